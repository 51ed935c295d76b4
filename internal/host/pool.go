package host

import "sync"

// maxIdleWorkers is how many goroutines are kept for later work. Kept ones have
// the stack that handlers and SQLite need already.
const maxIdleWorkers = 64

// pool runs functions on goroutines that are used again. Every goroutine of the
// host runs in it, so that wait means that nothing of the host runs any more.
type pool struct {
	mu     sync.Mutex
	idle   []chan task
	closed bool
	wg     sync.WaitGroup
}

// task is a function, or an event that was granted the turn.
type task struct {
	f  func()
	ev *event
}

// run starts f at once on a goroutine of the pool. It works after close too:
// what runs may have to start something to end properly.
func (p *pool) run(f func()) { p.start(task{f: f}) }

// runEvent does so with an event.
func (p *pool) runEvent(ev *event) { p.start(task{ev: ev}) }

func (p *pool) start(t task) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		c <- t
		return
	}
	p.wg.Add(1)
	p.mu.Unlock()
	go p.work(t)
}

// work does t and what follows. A handler that calls runtime.Goexit ends it.
func (p *pool) work(t task) {
	defer p.wg.Done()
	c := make(chan task, 1)
	for ok := true; ok; {
		if t.ev != nil {
			t.ev.inc.loop(t.ev)
		} else {
			t.f()
		}
		p.mu.Lock()
		if p.closed || len(p.idle) >= maxIdleWorkers {
			p.mu.Unlock()
			return
		}
		p.idle = append(p.idle, c)
		p.mu.Unlock()
		t = task{} // let go of what it held
		t, ok = <-c
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
