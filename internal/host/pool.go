package host

import "sync"

// maxIdleWorkers is how many goroutines are kept for later work. Kept ones have
// the stack that handlers and SQLite need already.
const maxIdleWorkers = 64

// pool runs functions on goroutines that are used again. Every goroutine of the
// host runs in it, so that wait means that nothing of the host runs any more, or
// will.
//
//	open ──close──▶ closed ──last goroutine ended──▶ over
type pool struct {
	mu         sync.Mutex
	idle       []chan task
	goroutines int // busy and idle
	closed     bool
	over       chan struct{} // made by close, closed when no goroutine is left
}

// task is a function, or an event that was granted the turn.
type task struct {
	f  func()
	ev *event
}

// run starts f at once on a goroutine of the pool. It works after close too:
// what runs may have to start something to end properly. Once all goroutines
// have ended it does nothing: what comes that late is an event of an incarnation
// that Close has ended, between its grant and its start, and its caller has been
// answered.
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
	if p.closed && p.goroutines == 0 {
		p.mu.Unlock()
		return
	}
	p.goroutines++
	p.mu.Unlock()
	go p.work(t)
}

// work does t and what follows. A handler that calls runtime.Goexit ends it.
func (p *pool) work(t task) {
	defer p.ended()
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

// ended counts a goroutine out.
func (p *pool) ended() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.goroutines--
	if p.closed && p.goroutines == 0 {
		close(p.over)
	}
}

// close ends idle goroutines now and busy ones when their work is over.
func (p *pool) close() {
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

// wait returns when all goroutines have ended; call it after close.
func (p *pool) wait() { <-p.over }
