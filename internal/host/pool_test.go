package host

import (
	"sync"
	"testing"
)

// TestPoolEnds: after close, work that others wait for still runs; once wait has
// returned nothing does. Starts that race with the end, as those of calls which
// meet Host.Close, are either waited for or do nothing.
func TestPoolEnds(t *testing.T) {
	for range 200 {
		var p pool
		inner, ran := make(chan struct{}), make(chan struct{})
		p.run(func() {
			<-inner
			p.run(func() { close(ran) })
		})
		p.close()
		p.close() // as Host.Close comes twice

		var mu sync.Mutex
		over := false
		late := func() {
			mu.Lock()
			defer mu.Unlock()
			if over {
				t.Error("something ran after wait had returned")
			}
		}
		var starters sync.WaitGroup
		for range 4 {
			starters.Go(func() { p.run(late) })
		}
		close(inner)
		p.wait()
		<-ran
		mu.Lock()
		over = true
		mu.Unlock()
		starters.Wait()
		p.run(late)
		p.wait()
	}
}

func TestPoolWithoutWork(t *testing.T) {
	var p pool
	p.close()
	p.wait()
	p.run(func() { t.Error("ran") })
}
