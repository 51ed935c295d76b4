package host

import (
	"context"
	"fmt"
	"iter"
	"runtime/debug"
	"time"

	"github.com/limpet-dev/limpet"
)

// This file is what an object sees of its incarnation: limpet.Incarnation.

var _ limpet.Incarnation = (*incarnation)(nil)

// waitUntilLimit is how long WaitUntil keeps an object in memory (SPEC H10).
const waitUntilLimit = 15 * time.Minute

// maxWaitUntil is how many functions of WaitUntil an object may have that wait or
// run.
const maxWaitUntil = 10_000

// leaveSync is what leave is told by Sync, which waits for unconfirmed writes
// too.
const leaveSync = "Sync"

// aborted is the panic that ends a handler which called Abort.
type aborted struct{}

func (inc *incarnation) ID() limpet.ID {
	if id := inc.learned.Load(); id != nil {
		return *id
	}
	return inc.id
}

func (inc *incarnation) Codec() limpet.Codec { return inc.codec }

// Binding gives the stubs of an object their origin.
func (inc *incarnation) Binding(name string) (*limpet.Binding, error) {
	b, err := inc.host.bindings(name)
	if err != nil {
		return nil, err
	}
	own := *b
	own.Origin = inc
	return &own, nil
}

// enter locks the object's data for one use by the event that holds the turn.
func (inc *incarnation) enter() (Object, error) {
	inc.storage.Lock()
	inc.mu.Lock()
	defer inc.mu.Unlock()
	switch {
	case inc.gate.ended:
		inc.storage.Unlock()
		return nil, inc.cause
	case inc.gate.holder == nil:
		inc.storage.Unlock()
		return nil, inc.noTurnNow()
	}
	if len(inc.txBegun) > 0 {
		inc.endExpired()
	}
	return inc.data, nil
}

func (inc *incarnation) Get(key string) ([]byte, bool, error) {
	d, err := inc.enter()
	if err != nil {
		return nil, false, err
	}
	defer inc.storage.Unlock()
	return d.Get(key)
}

func (inc *incarnation) Put(key string, value []byte, unconfirmed bool) error {
	d, err := inc.enter()
	if err != nil {
		return err
	}
	defer inc.storage.Unlock()
	inc.confirmed = inc.confirmed || !unconfirmed
	return d.Put(key, value)
}

func (inc *incarnation) Delete(keys []string, unconfirmed bool) (int, error) {
	d, err := inc.enter()
	if err != nil {
		return 0, err
	}
	defer inc.storage.Unlock()
	inc.confirmed = inc.confirmed || !unconfirmed
	n := 0
	for _, k := range keys {
		existed, err := d.Delete(k)
		if err != nil {
			return n, err
		}
		if existed {
			n++
		}
	}
	return n, nil
}

func (inc *incarnation) DeleteAll() error {
	d, err := inc.enter()
	if err != nil {
		return err
	}
	defer inc.storage.Unlock()
	if inc.txDepth > 0 {
		return inc.newError(limpet.CodeInvalidArgument, limpet.DeliveryNone, "Cannot call deleteAll() within a transaction")
	}
	inc.confirmed = true
	return d.DeleteAll()
}

// Bounds of what List holds in memory at a time.
const (
	listEntries = 256
	listBytes   = 1 << 20
)

// List reads in pieces, so that the loop's body may use the State.
func (inc *incarnation) List(o limpet.ListOptions) iter.Seq2[limpet.ListEntry, error] {
	return func(yield func(limpet.ListEntry, error) bool) {
		left := o.Limit
		for size := 16; ; size = min(2*size, listEntries) {
			piece := o
			piece.Limit = size
			if o.Limit > 0 {
				piece.Limit = min(size, left)
			}
			entries, full, err := inc.listPiece(piece)
			if err != nil {
				yield(limpet.ListEntry{}, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			left -= len(entries)
			if !full || o.Limit > 0 && left <= 0 {
				return
			}
			last := entries[len(entries)-1].Key
			switch {
			case !o.Reverse:
				o.Start, o.StartAfter = last+"\x00", "" // the next key that can be
			case last == "":
				return
			default:
				o.End = last
			}
		}
	}
}

// listPiece reads up to o.Limit entries; full says that there may be more.
func (inc *incarnation) listPiece(o limpet.ListOptions) (entries []limpet.ListEntry, full bool, err error) {
	d, err := inc.enter()
	if err != nil {
		return nil, false, err
	}
	defer inc.storage.Unlock()
	bytes := 0
	err = d.List(o, func(key string, value []byte) bool {
		entries = append(entries, limpet.NewListEntry(key, value, inc.codec))
		bytes += len(key) + len(value)
		full = len(entries) >= o.Limit || bytes >= listBytes
		return !full
	})
	return entries, full, err
}

// Transaction runs fn in a transaction. One that ends before another that began in
// it, on another goroutine, has taken back what that one wrote and still writes:
// nobody could say any more what is half-done.
func (inc *incarnation) Transaction(fn func() error) error {
	tangled, err := inc.transaction(fn)
	if tangled {
		inc.reset(inc.resetError(nil, "State.Transaction was used by several goroutines at once, and one ended while another that had begun in it was running: the object was reset, and nothing of the turn is kept. Use it on one goroutine at a time."))
		return inc.cause
	}
	if err != nil && inc.ended.Load() {
		return inc.cause
	}
	return err
}

// transaction unlocks the data while fn runs, which uses it.
func (inc *incarnation) transaction(fn func() error) (tangled bool, err error) {
	d, err := inc.enter()
	if err != nil {
		return false, err
	}
	defer inc.storage.Unlock()
	depth, begun := inc.txDepth, len(inc.txBegun)
	inc.txDepth++
	defer func() {
		inc.txDepth = min(inc.txDepth, depth)
		inc.forgetBegun(min(begun, len(inc.txBegun)))
	}()
	err = d.Transaction(func() error {
		inc.storage.Unlock()
		defer func() {
			inc.storage.Lock()
			within := max(0, len(inc.txBegun)-begun) // of State.DB: they end with this one
			tangled = !inc.ended.Load() && inc.txDepth-within > depth+1
		}()
		return fn()
	})
	return tangled, err
}

// Sync ends the turn and waits for all writes, unconfirmed ones too.
func (inc *incarnation) Sync(ctx context.Context) error {
	ev, err := inc.eventFor(ctx)
	if err != nil {
		return err
	}
	if _, err := inc.leave(ctx, ev, leaveSync); err != nil {
		return err
	}
	return inc.retake(ev)
}

// Leave and Return make the incarnation the Origin of stubs that came from its
// State, whatever context their calls get.
func (inc *incarnation) Leave(ctx context.Context) (context.Context, error) {
	if a := awaitingOf(ctx); a != nil && a.ev.inc == inc {
		return a.Leave(ctx)
	}
	ev, err := inc.eventFor(ctx)
	if err != nil {
		return nil, err
	}
	return inc.leave(ctx, ev, "a call through a stub")
}

// Return expects the context that Leave returned.
func (inc *incarnation) Return(ctx context.Context) error {
	if a := awaitingOf(ctx); a != nil && a.ev.inc == inc {
		return a.Return(ctx)
	}
	ev := eventOf(ctx)
	if ev == nil || ev.inc != inc {
		return inc.noTurn()
	}
	return ev.Return(ctx)
}

// eventFor is the event that a use of the State belongs to: the context's, else
// the one that holds the turn.
func (inc *incarnation) eventFor(ctx context.Context) (*event, error) {
	if a := awaitingOf(ctx); a != nil && a.ev.inc == inc {
		if inc.ended.Load() {
			return nil, inc.cause
		}
		return nil, inc.noTurnInAwait()
	}
	if ev := eventOf(ctx); ev != nil && ev.inc == inc {
		return ev, nil
	}
	inc.mu.Lock()
	defer inc.mu.Unlock()
	switch {
	case inc.gate.ended:
		return nil, inc.cause
	case inc.gate.holder == nil:
		return nil, inc.noTurnNow()
	}
	return inc.gate.holder.ev, nil
}

// Await runs fn aside, so that a reset ends the wait for it at once.
func (inc *incarnation) Await(ctx context.Context, fn func(context.Context) error) error {
	ev, err := inc.eventFor(ctx)
	if err != nil {
		return err
	}
	octx, err := inc.leave(ctx, ev, "Await")
	if err != nil {
		return err
	}
	r, over := inc.aside(&awaitContext{octx, awaiting{ev}}, fn)
	if !over {
		return inc.cause
	}
	if err := inc.retake(ev); err != nil {
		return err
	}
	return inc.asideOutcome("a function given to Await", r)
}

// BlockConcurrencyWhile runs fn aside too; the turn stays with the event.
func (inc *incarnation) BlockConcurrencyWhile(ctx context.Context, fn func(context.Context) error) error {
	ev, err := inc.eventFor(ctx)
	if err != nil {
		return err
	}
	inc.storage.Lock()
	if inc.txDepth > 0 {
		inc.storage.Unlock()
		return inc.inTransaction("BlockConcurrencyWhile")
	}
	inc.storage.Unlock()
	inc.mu.Lock()
	if inc.gate.ended {
		inc.mu.Unlock()
		return inc.cause
	}
	if !inc.block(ev) {
		defer inc.mu.Unlock()
		return inc.noTurnNow()
	}
	inc.mu.Unlock()

	r, over := inc.aside(outgoingContext(ctx, ev), fn)
	if over && r.err == nil && !r.crashed {
		// Goroutines of fn may be away still: the block ends with the turn held.
		if err := inc.take(ev, inReturn); err != nil {
			return err
		}
		inc.mu.Lock()
		defer inc.mu.Unlock()
		if inc.gate.ended {
			return inc.cause
		}
		inc.unblock(ev)
		return nil
	}
	if !over {
		return inc.cause
	}
	if r.err != nil {
		inc.reset(inc.failureReset(r.err, "a function given to State.BlockConcurrencyWhile")) // SPEC C35: also if the handler would go on
		return inc.cause
	}
	return inc.asideOutcome("a function given to BlockConcurrencyWhile", r)
}

// asideResult is how a function that ran aside ended.
type asideResult struct {
	err     error
	crashed bool // by a panic, or by runtime.Goexit
	panic   any
	stack   []byte
}

// aside runs fn on a goroutine of its own and waits for its end, or for that of
// the incarnation; over is false for that, and fn may run on.
func (inc *incarnation) aside(ctx context.Context, fn func(context.Context) error) (r asideResult, over bool) {
	c := make(chan asideResult, 1)
	inc.host.pool.run(func() {
		r := asideResult{crashed: true}
		defer func() {
			if r.crashed {
				r.panic, r.stack = recover(), debug.Stack()
			}
			c <- r
		}()
		r.err = fn(ctx)
		r.crashed = false
	})
	select {
	case r = <-c:
		return r, true
	case <-inc.dead:
		select {
		case r = <-c:
			return r, true
		default:
			return asideResult{}, false
		}
	}
}

// asideOutcome goes on after fn as if it had run on the handler's own goroutine:
// a panic resets the object.
func (inc *incarnation) asideOutcome(what string, r asideResult) error {
	switch {
	case !r.crashed:
		return r.err
	case r.panic == nil:
		inc.reset(inc.resetError(nil, "%s called runtime.Goexit and the object was reset.", what))
		return inc.cause
	}
	if _, ok := r.panic.(aborted); ok {
		panic(r.panic)
	}
	panic(&asidePanic{what: what, value: r.panic, stack: r.stack})
}

// asidePanic carries a panic from the goroutine it happened on to the handler's.
type asidePanic struct {
	what  string
	value any
	stack []byte
}

func (p *asidePanic) Error() string {
	return fmt.Sprintf("%v (in %s)", p.value, p.what)
}

func (p *asidePanic) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// WaitUntil queues fn when the event that holds the turn has ended. There is no
// error to return: an object with too many is reset, like one that aborts.
func (inc *incarnation) WaitUntil(fn func(context.Context) error) {
	if !inc.waitUntil(fn) {
		e := inc.resetError(nil, "WaitUntil: %d functions of the object wait or run, which is the limit; the object was reset", maxWaitUntil)
		e.Overloaded = true
		inc.reset(e)
		panic(aborted{})
	}
}

// waitUntil is false if there are too many.
func (inc *incarnation) waitUntil(fn func(context.Context) error) bool {
	ev := &event{
		inc: inc, kind: eventWaitUntil, fn: fn, parent: context.Background(),
		deadline: inc.host.clock.Now().Add(waitUntilLimit),
	}
	ev.entry.ev, ev.entry.internal = ev, true
	inc.mu.Lock()
	defer inc.mu.Unlock()
	holder := inc.gate.holder
	if inc.gate.ended || holder == nil {
		err := inc.cause
		if err == nil {
			err = inc.noTurnNow()
		}
		inc.host.log.Error("WaitUntil was called too late: its function does not run", "object", inc.label(), "error", err)
		return true
	}
	if inc.waits < maxWaitUntil {
		inc.waits++
		ev.waits = true
		holder.ev.after = append(holder.ev.after, ev)
		ev.limit = inc.host.clock.AfterFunc(waitUntilLimit, func() { inc.expire(ev) })
		return true
	}
	return false
}

// unwaitLocked gives back what a function of WaitUntil counts. inc.mu is held.
func (inc *incarnation) unwaitLocked(ev *event) {
	if ev.waits {
		ev.waits = false
		inc.waits--
	}
}

// expire ends the time of a function given to WaitUntil: its context ends, and
// unless it holds the turn it no longer keeps the object in memory.
func (inc *incarnation) expire(ev *event) {
	ev.cancel(context.DeadlineExceeded)
	inc.mu.Lock()
	defer inc.mu.Unlock()
	if inc.gate.ended {
		return
	}
	if inc.gate.step(0, inDetach, &ev.entry, 0).verdict == accepted {
		inc.unwaitLocked(ev)
		ev.wakeAll()
		inc.quietLocked()
	}
}

// Abort resets the object and ends the goroutine's work by a panic that run or
// aside recovers (SPEC C33, H8).
func (inc *incarnation) Abort(reason error) {
	text := textAbort
	if reason != nil {
		text = errText(reason)
	}
	inc.reset(inc.resetError(reason, "%s", text))
	panic(aborted{})
}
