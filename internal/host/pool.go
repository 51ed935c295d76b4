package host

import "sync"

// maxIdleWorkers is how many goroutines are kept for later work. Kept ones have
// the stack that handlers and SQLite need already.
const maxIdleWorkers = 64

// pool runs functions on goroutines that are used again. Every goroutine of the
// host runs in it, so that wait means that nothing of the host runs any more.
type pool struct {
	mu     sync.Mutex
	idle   []chan func()
	closed bool
	wg     sync.WaitGroup
}

// run starts f at once on a goroutine of the pool. It works after close too:
// what runs may have to start something to end properly.
func (p *pool) run(f func()) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		c <- f
		return
	}
	p.wg.Add(1)
	p.mu.Unlock()
	go p.work(f)
}

// work runs f and what follows. A handler that calls runtime.Goexit ends it.
func (p *pool) work(f func()) {
	defer p.wg.Done()
	c := make(chan func(), 1)
	for ok := true; ok; {
		f()
		p.mu.Lock()
		if p.closed || len(p.idle) >= maxIdleWorkers {
			p.mu.Unlock()
			return
		}
		p.idle = append(p.idle, c)
		p.mu.Unlock()
		f = nil // let go of what it held
		f, ok = <-c
	}
}

// close ends idle goroutines now and busy ones when their work is over.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.idle {
		close(c)
	}
	p.idle = nil
}

// wait returns when all goroutines have ended; call it after close.
func (p *pool) wait() { p.wg.Wait() }
