package host

import (
	"fmt"
	"time"

	"github.com/limpet-dev/limpet/internal/invariant"
)

// This file is the state machine of one object's turn: who holds it, who waits
// for it, who is refused. It has no clock, lock, goroutine or I/O; time comes in
// as nanoseconds of a monotonic clock. The shell (incarnation.go, turn.go) calls
// step under the incarnation's mutex and does what the outcome says.
//
//	             ┌── refused: ended, draining, count, bytes, age, cycle
//	             │
//	fresh ──arrive──▶ queued ──grant──▶ holding ──conclude──▶ done
//	             │        │              ▲   │                 ▲
//	             └─free───┼──────────────┘   │leave            │
//	                      │cancel, drain,    ▼                 │
//	                      └─▶ done   ┌───  away ◀─┐            │
//	                                 │ return     │ leave      │
//	                                 ▼            │            │
//	                               wanting ───────┴──grant──▶ holding
//
// Queued and wanting entries are granted the turn in one order, that in which
// they asked. While an entry blocks concurrency only that entry is granted.
// An entry that several goroutines took away (out counts them) wants the turn
// back when the last of them has returned.

// entryState is where an event stands.
type entryState uint8

const (
	fresh entryState = iota
	queued
	holding
	away
	wanting
	done
)

var entryStateNames = [...]string{"fresh", "queued", "holding", "away", "wanting", "done"}

func (s entryState) String() string { return entryStateNames[s] }

// entry is what the gate knows of one event. It is part of the event.
type entry struct {
	state    entryState
	internal bool // the object's own (constructor, WaitUntil): no limit and no draining refuses it
	size     int  // bytes it holds while queued
	out      int  // goroutines of the event that are away
	arrived  int64
	seq      uint64 // when it asked for the turn
	index    int    // place in gate.running
	prev     *entry
	next     *entry
	parent   *entry // the event that made this call, perhaps of another object; nil from outside
	depth    int    // how many parents it has
	within   *event // callback: the event that gave it away
	ev       *event
}

// line is a list of entries in the order they were added.
type line struct{ head, tail *entry }

func (l *line) push(e *entry) {
	e.prev, e.next = l.tail, nil
	if l.tail == nil {
		l.head = e
	} else {
		l.tail.next = e
	}
	l.tail = e
}

func (l *line) remove(e *entry) {
	if e.prev == nil {
		l.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
}

// gateLimits bound one object's inbox (DESIGN 6, SPEC C37).
type gateLimits struct {
	events int           // calls queued and outputs held
	bytes  int           // bytes they hold
	age    time.Duration // of the oldest queued call, when another one arrives
	block  time.Duration // how long concurrency may be blocked (SPEC C36)
}

type inputKind uint8

const (
	inArrive     inputKind = iota // e came
	inCancel                      // nobody waits for e any more; only a queued one is taken out
	inLeave                       // a goroutine of e gives the turn up for outside work
	inReturn                      // that goroutine wants it back
	inConclude                    // e's handler has returned
	inBlock                       // e blocks concurrency (once more)
	inUnblock                     // e ends one block
	inBlockLimit                  // the time of block number n has come
	inDrain                       // refuse what has not begun, and arrivals from outside
	inEvict                       // end if there is nothing to do
	inEnd                         // end in any case
	inHold                        // an output of n bytes waits for the log
	inRelease                     // it does no longer
	inDetach                      // e has had its time: it does not count any more unless it holds the turn
)

var inputNames = [...]string{
	"arrive", "cancel", "leave", "return", "conclude", "block", "unblock",
	"block limit", "drain", "evict", "end", "hold", "release", "detach",
}

func (k inputKind) String() string { return inputNames[k] }

// verdict is what became of the input.
type verdict uint8

const (
	accepted       verdict = iota // done as asked
	waits                         // e must wait until it is granted the turn
	notNow                        // the input does not fit the state; nothing changed
	refusedEnded                  // the incarnation has ended
	refusedDrain                  // the node is stopping (SPEC F22)
	refusedCount                  // too many queued
	refusedBytes                  // too many bytes queued
	refusedAge                    // the oldest queued one waits too long
	refusedCycle                  // e comes from the event that blocks concurrency
	refusedNode                   // the node's budget for queued bytes is used up
	blockedTooLong                // the block lasts too long: reset the object
)

var verdictNames = [...]string{
	"accepted", "waits", "not now", "ended", "draining", "too many", "too much",
	"too old", "cycle", "node budget", "blocked too long",
}

func (v verdict) String() string { return verdictNames[v] }

// outcome is what the shell has to do.
type outcome struct {
	verdict verdict
	grant   *entry   // has the turn now: start or resume it
	failed  []*entry // were queued and are done: refuse them (cycle, draining, ended)
	running []*entry // inEnd: had begun and are done
}

// gate is the machine. The zero value with limits set is free.
type gate struct {
	limits  gateLimits
	holder  *entry
	inbox   line     // queued
	back    line     // wanting
	running []*entry // holding, away or wanting, in no order
	queued  int      // entries in inbox that are not internal
	bytes   int      // their bytes
	outputs int      // outputs that wait for the log
	held    int      // their bytes
	seq     uint64

	blocker  *entry
	depth    int
	blocks   uint64 // number of the present outermost block
	blockEnd int64

	draining bool
	ended    bool
}

// free reports whether an arriving entry would be given the turn at once.
func (g *gate) free() bool {
	return g.holder == nil && g.blocker == nil && g.inbox.head == nil && g.back.head == nil &&
		g.outputs < g.limits.events && !g.ended && !g.draining
}

// quiet reports whether nothing runs or waits.
func (g *gate) quiet() bool { return len(g.running) == 0 && g.inbox.head == nil }

// step does one input. now matters for inArrive when the gate is not free, for
// inBlock and for inBlockLimit. n is a number of bytes (inHold, inRelease), or
// of a block (inBlockLimit).
func (g *gate) step(now int64, in inputKind, e *entry, n int) outcome {
	out := g.apply(now, in, e, n)
	if invariant.Enabled {
		invariant.CheckFunc(g.check)
	}
	return out
}

func (g *gate) apply(now int64, in inputKind, e *entry, n int) outcome {
	if g.ended {
		switch in {
		case inRelease:
			g.outputs, g.held = g.outputs-1, g.held-n
			return outcome{}
		case inHold:
			g.outputs, g.held = g.outputs+1, g.held+n
			return outcome{}
		}
		return outcome{verdict: refusedEnded}
	}
	switch in {
	case inArrive:
		return g.arrive(now, e)

	case inCancel:
		if e.state != queued {
			return outcome{verdict: notNow}
		}
		g.unqueue(e)
		e.state = done
		return outcome{}

	case inLeave:
		switch e.state {
		case holding:
			e.state, e.out = away, 1
			g.holder = nil
			return outcome{grant: g.next()}
		case away:
			e.out++
			return outcome{}
		case wanting:
			g.back.remove(e)
			e.state, e.out = away, 1
			return outcome{}
		}
		return outcome{verdict: notNow}

	case inReturn:
		switch {
		case e.state == holding:
			return outcome{}
		case e.state == wanting:
			return outcome{verdict: waits}
		case e.state != away:
			return outcome{verdict: notNow}
		}
		if e.out--; e.out > 0 {
			return outcome{verdict: waits}
		}
		return g.want(e)

	case inConclude:
		switch e.state {
		case away:
			e.out = 0
			return g.want(e)
		case wanting:
			return outcome{verdict: waits}
		case holding:
		default:
			return outcome{verdict: notNow}
		}
		if g.blocker == e {
			g.blocker, g.depth = nil, 0
		}
		g.stop(e)
		g.holder = nil
		return outcome{grant: g.next()}

	case inBlock:
		if g.holder != e {
			return outcome{verdict: notNow}
		}
		if g.depth++; g.depth > 1 {
			return outcome{}
		}
		g.blocker, g.blockEnd = e, now+int64(g.limits.block)
		g.blocks++
		var out outcome
		for q := g.inbox.head; q != nil; {
			following := q.next
			if descends(q, e) {
				g.unqueue(q)
				q.state = done
				out.failed = append(out.failed, q)
			}
			q = following
		}
		return out

	case inUnblock:
		if g.blocker != e {
			return outcome{verdict: notNow}
		}
		if g.depth--; g.depth > 0 {
			return outcome{}
		}
		g.blocker = nil
		if g.holder != nil {
			return outcome{}
		}
		return outcome{grant: g.next()}

	case inBlockLimit:
		if g.blocker == nil || g.blocks != uint64(n) || now < g.blockEnd {
			return outcome{verdict: notNow}
		}
		return outcome{verdict: blockedTooLong}

	case inDrain:
		g.draining = true
		var out outcome
		for q := g.inbox.head; q != nil; {
			following := q.next
			if q.outside() {
				g.unqueue(q)
				q.state = done
				out.failed = append(out.failed, q)
			}
			q = following
		}
		return out

	case inEvict:
		if !g.quiet() {
			return outcome{verdict: notNow}
		}
		g.ended = true
		return outcome{}

	case inEnd:
		var out outcome
		for q := g.inbox.head; q != nil; q = g.inbox.head {
			g.unqueue(q)
			q.state = done
			out.failed = append(out.failed, q)
		}
		for q := g.back.head; q != nil; q = g.back.head {
			g.back.remove(q)
		}
		out.running = g.running
		for _, q := range out.running {
			q.state, q.out = done, 0
		}
		g.running, g.holder, g.blocker, g.depth = nil, nil, nil, 0
		g.ended = true
		return out

	case inHold:
		g.outputs, g.held = g.outputs+1, g.held+n
		return outcome{}

	case inRelease:
		g.outputs, g.held = g.outputs-1, g.held-n
		return outcome{}

	case inDetach:
		switch {
		case g.blocker == e || e.state != away && e.state != wanting:
			return outcome{verdict: notNow}
		case e.state == wanting:
			g.back.remove(e)
		}
		e.out = 0
		g.stop(e)
		return outcome{}
	}
	panic(fmt.Sprintf("host: gate input %d", in))
}

// outside reports whether e is a call that comes from no handler of this
// process: what draining refuses. Calls out of handlers are still taken, so that
// calls which were claimed before the drain can end.
// So are callbacks while the event that gave them away runs: it may wait for them.
func (e *entry) outside() bool {
	return !e.internal && e.parent == nil && (e.within == nil || !begun(e.within.entry.state))
}

// begun reports whether an entry runs.
func begun(s entryState) bool { return s == holding || s == away || s == wanting }

// descends reports whether a call chain leads from e back to its ancestor a.
func descends(e, a *entry) bool {
	for p := e.parent; p != nil; p = p.parent {
		if p == a {
			return true
		}
	}
	return false
}

func (g *gate) arrive(now int64, e *entry) outcome {
	if g.draining && e.outside() {
		e.state = done
		return outcome{verdict: refusedDrain}
	}
	if g.blocker != nil && descends(e, g.blocker) {
		e.state = done
		return outcome{verdict: refusedCycle}
	}
	if !e.internal {
		if v := g.room(now, e); v != accepted {
			e.state = done
			return outcome{verdict: v}
		}
	}
	if g.holder == nil && g.blocker == nil && g.inbox.head == nil && g.back.head == nil {
		g.start(e)
		return outcome{grant: e}
	}
	e.state, e.arrived = queued, now
	e.seq = g.ask()
	g.inbox.push(e)
	if !e.internal {
		g.queued++
		g.bytes += e.size
	}
	return outcome{verdict: waits}
}

// room decides whether the inbox may take e too.
func (g *gate) room(now int64, e *entry) verdict {
	switch {
	case g.queued+g.outputs >= g.limits.events:
		return refusedCount
	case g.queued+g.outputs > 0 && g.bytes+g.held+e.size > g.limits.bytes:
		return refusedBytes
	}
	if o := g.oldest(); o != nil && now-o.arrived >= int64(g.limits.age) {
		return refusedAge
	}
	return accepted
}

// oldest is the call that has been queued longest.
func (g *gate) oldest() *entry {
	o := g.inbox.head
	for o != nil && o.internal {
		o = o.next
	}
	return o
}

func (g *gate) ask() uint64 { g.seq++; return g.seq }

func (g *gate) unqueue(e *entry) {
	g.inbox.remove(e)
	if !e.internal {
		g.queued--
		g.bytes -= e.size
	}
}

// want puts an entry that is back in line, or gives it the turn.
func (g *gate) want(e *entry) outcome {
	e.state, e.seq = wanting, g.ask()
	g.back.push(e)
	if g.holder == nil {
		if n := g.next(); n != nil {
			if n == e {
				return outcome{grant: e}
			}
			return outcome{verdict: waits, grant: n}
		}
	}
	return outcome{verdict: waits}
}

// next gives the free turn to whom it is due.
func (g *gate) next() *entry {
	if b := g.blocker; b != nil {
		if b.state != wanting {
			return nil
		}
		g.back.remove(b)
		g.give(b)
		return b
	}
	q, w := g.inbox.head, g.back.head
	switch {
	case q == nil && w == nil:
		return nil
	case q == nil || w != nil && w.seq < q.seq:
		g.back.remove(w)
		g.give(w)
		return w
	}
	g.unqueue(q)
	g.start(q)
	return q
}

func (g *gate) give(e *entry) {
	e.state = holding
	g.holder = e
}

func (g *gate) start(e *entry) {
	g.give(e)
	e.index = len(g.running)
	g.running = append(g.running, e)
}

func (g *gate) stop(e *entry) {
	last := len(g.running) - 1
	g.running[e.index] = g.running[last]
	g.running[e.index].index = e.index
	g.running[last] = nil
	g.running = g.running[:last]
	e.state = done
}

// check tells what is wrong with the gate, or nil.
func (g *gate) check() error {
	holders := 0
	for i, e := range g.running {
		if e.index != i {
			return fmt.Errorf("running[%d] says it is %d", i, e.index)
		}
		switch e.state {
		case holding:
			holders++
			if g.holder != e {
				return fmt.Errorf("an entry holds the turn and is not the holder")
			}
		case away:
			if e.out < 1 {
				return fmt.Errorf("an entry is away with %d goroutines", e.out)
			}
		case wanting:
		default:
			return fmt.Errorf("a running entry is %v", e.state)
		}
	}
	if (g.holder != nil) != (holders == 1) || holders > 1 {
		return fmt.Errorf("%d entries hold the turn, holder %v", holders, g.holder != nil)
	}
	count, bytes, last := 0, 0, uint64(0)
	for e := g.inbox.head; e != nil; e = e.next {
		if e.state != queued || e.seq <= last {
			return fmt.Errorf("inbox: %v entry number %d after %d", e.state, e.seq, last)
		}
		last = e.seq
		if !e.internal {
			count++
			bytes += e.size
		}
	}
	if count != g.queued || bytes != g.bytes {
		return fmt.Errorf("inbox has %d calls of %d bytes and counts %d of %d", count, bytes, g.queued, g.bytes)
	}
	last = 0
	for e := g.back.head; e != nil; e = e.next {
		if e.state != wanting || e.seq <= last {
			return fmt.Errorf("back: %v entry number %d after %d", e.state, e.seq, last)
		}
		last = e.seq
	}
	if (g.blocker != nil) != (g.depth > 0) {
		return fmt.Errorf("blocker %v at depth %d", g.blocker != nil, g.depth)
	}
	if g.holder == nil && g.blocker == nil && (g.inbox.head != nil || g.back.head != nil) {
		return fmt.Errorf("the turn is free and somebody waits")
	}
	if g.blocker != nil && g.blocker.state == wanting && g.holder == nil {
		return fmt.Errorf("the turn is free and the blocker waits")
	}
	if g.blocker != nil && g.holder != nil && g.holder != g.blocker {
		return fmt.Errorf("concurrency is blocked and another entry holds the turn")
	}
	return nil
}
