package workers

import (
	"sync"
	"testing"
)

// work is a function.
type work func()

func (f work) Do() { f() }

// TestPoolEnds: after Close, work that others wait for still runs; once wait has
// returned nothing does. Starts that race with the end, as those of calls which
// meet Host.Close, are either waited for or do nothing.
func TestPoolEnds(t *testing.T) {
	for range 200 {
		var p Pool[work]
		inner, ran := make(chan struct{}), make(chan struct{})
		p.Run(func() {
			<-inner
			p.Run(func() { close(ran) })
		})
		p.Close()
		p.Close() // as Host.Close comes twice

		var mu sync.Mutex
		over := false
		late := func() {
			mu.Lock()
			defer mu.Unlock()
			if over {
				t.Error("something ran after Wait had returned")
			}
		}
		var starters sync.WaitGroup
		for range 4 {
			starters.Go(func() { p.Run(late) })
		}
		close(inner)
		p.Wait()
		<-ran
		mu.Lock()
		over = true
		mu.Unlock()
		starters.Wait()
		p.Run(late)
		p.Wait()
	}
}

func TestPoolWithoutWork(t *testing.T) {
	var p Pool[work]
	p.Close()
	p.Wait()
	p.Run(func() { t.Error("ran") })
}
