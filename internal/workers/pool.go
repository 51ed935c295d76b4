package workers

import "sync"

// maxIdle is how many goroutines are kept for later work.
const maxIdle = 64

// Pool runs work on goroutines of its own, as many as there is work at one time.
// All of an owner's goroutines run in it, so that Wait means that nothing of the
// owner runs any more, or will. The zero Pool is open. It is safe for concurrent
// use.
type Pool[T interface{ Do() }] struct {
	mu         sync.Mutex
	idle       []chan T
	goroutines int // busy and idle
	closed     bool
	over       chan struct{} // made by Close, closed when no goroutine is left
}

// Run starts t.Do at once. It works after Close too: what runs may have to start
// something to end properly. Once all goroutines have ended it does nothing: what
// comes that late, its owner has answered already.
func (p *Pool[T]) Run(t T) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		c <- t
		return
	}
	if p.closed && p.goroutines == 0 {
		p.mu.Unlock()
		return
	}
	p.goroutines++
	p.mu.Unlock()
	go p.work(t)
}

// work does t and what follows. A Do that calls runtime.Goexit ends it.
func (p *Pool[T]) work(t T) {
	defer p.ended()
	c := make(chan T, 1)
	for ok := true; ok; {
		t.Do()
		var none T
		t = none // let go of what it holds
		p.mu.Lock()
		if p.closed || len(p.idle) >= maxIdle {
			p.mu.Unlock()
			return
		}
		p.idle = append(p.idle, c)
		p.mu.Unlock()
		t, ok = <-c
	}
}

// ended counts a goroutine out.
func (p *Pool[T]) ended() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.goroutines--
	if p.closed && p.goroutines == 0 {
		close(p.over)
	}
}

// Close ends idle goroutines now and busy ones when their work is over. Closing
// again is harmless.
func (p *Pool[T]) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed, p.over = true, make(chan struct{})
	if p.goroutines == 0 {
		close(p.over)
	}
	for _, c := range p.idle {
		close(c)
	}
	p.idle = nil
}

// Wait returns when all goroutines have ended; call it after Close.
func (p *Pool[T]) Wait() { <-p.over }
