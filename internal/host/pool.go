package host

import "github.com/limpet-dev/limpet/internal/workers"

// pool is where every goroutine of the host runs. What is started once Close has
// waited for them is an event of an incarnation that Close has ended, between its
// grant and its start, and its caller has been answered.
type pool struct{ workers.Pool[task] }

// task is a function, or an event that was granted the turn.
type task struct {
	f  func()
	ev *event
}

// Do does it.
func (t task) Do() {
	if t.ev != nil {
		t.ev.inc.loop(t.ev)
		return
	}
	t.f()
}

func (p *pool) run(f func()) { p.Run(task{f: f}) }

func (p *pool) runEvent(ev *event) { p.Run(task{ev: ev}) }
