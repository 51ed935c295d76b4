package host

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/limpet-dev/limpet"
)

// This file is what an object gives away: functions, targets and byte streams
// whose code is its own. They belong to the incarnation that gave them away and
// end with it.
//
//	Export ──▶ alive ──last handle released──▶ disposed (a target's Dispose runs as an event)
//	             │ the incarnation ends
//	             ▼
//	           dead: every use fails with what ended the incarnation
//
// A call is an event without an identity: it is never retried, so that there is
// nothing to claim. It passes the inbox with its limits, holds the turn, and its
// outcome waits at the output gate with what the running calls owe (rules C and D
// of DESIGN 5), as any output that is no call's own reply. A read of a stream runs
// beside the turns, as a function of Await does; what it brought waits at the gate.

var (
	_ limpet.Exporter = (*event)(nil)
	_ limpet.Exporter = (*incarnation)(nil)
	_ limpet.Exporter = (*awaiting)(nil)
)

// export is one thing that an object gave away.
type export struct {
	inc  *incarnation
	c    limpet.LocalCapability
	from *event // that was running then, or nil
}

// callback is one call of it.
type callback struct {
	x     *export
	call  limpet.TargetCall
	began atomic.Bool // call.Args were taken
}

// Export makes an event an Exporter.
func (ev *event) Export(c limpet.Capability) limpet.Capability { return ev.inc.export(c, ev) }

// Export of an incarnation is that of the event that holds the turn.
func (inc *incarnation) Export(c limpet.Capability) limpet.Capability { return inc.export(c, nil) }

// Export of an Await is its event's.
func (a *awaiting) Export(c limpet.Capability) limpet.Capability { return a.ev.Export(c) }

// Object is the incarnation.
func (ev *event) Object() limpet.Origin { return ev.inc }

// Object is itself.
func (inc *incarnation) Object() limpet.Origin { return inc }

// Object is that of its event.
func (a *awaiting) Object() limpet.Origin { return a.ev.inc }

func (inc *incarnation) export(c limpet.Capability, from *event) limpet.Capability {
	local, ok := c.(limpet.LocalCapability)
	if !ok {
		return c // it runs no code of this process
	}
	x := &export{inc: inc, c: local, from: from}
	inc.mu.Lock()
	if from == nil && inc.gate.holder != nil {
		x.from = inc.gate.holder.ev
	}
	ended := inc.gate.ended
	if !ended {
		if inc.exports == nil {
			inc.exports = map[*export]struct{}{}
		}
		inc.exports[x] = struct{}{}
	}
	inc.mu.Unlock()
	if ended {
		x.c.Dispose(false)
	}
	return limpet.NewCapability(x)
}

// Kind is that of what was given away.
func (x *export) Kind() limpet.CapabilityKind { return x.c.Kind() }

// Call runs one call as an event.
func (x *export) Call(ctx context.Context, c limpet.TargetCall) (limpet.Parcel, error) {
	ev := &event{kind: eventCallback, parent: ctx, back: &callback{x: x, call: c}}
	p, err := x.do(ctx, ev)
	if !ev.back.began.Load() {
		c.Args.Release()
	}
	return p, err
}

func (x *export) do(ctx context.Context, ev *event) (limpet.Parcel, error) {
	inc := x.inc
	if caller := eventOf(ctx); caller != nil {
		if err := ev.link(caller); err != nil {
			return limpet.Parcel{}, err
		}
	}
	ev.entry.ev, ev.entry.size = ev, callBytes+len(ev.back.call.Args.Bytes)
	ev.entry.within = x.from
	ev.here = unstoppable(ctx)
	delivered, err := inc.deliver(ctx, ev, nil)
	switch {
	case err != nil:
		return limpet.Parcel{}, err
	case !delivered:
		return limpet.Parcel{}, inc.goneError()
	}
	v, err := inc.host.collect(ctx, ev)
	if err != nil || v == nil {
		return limpet.Parcel{}, err
	}
	return v.(limpet.Parcel), nil
}

// run runs the call; the turn is held.
func (x *export) run(ev *event) (any, *limpet.Error) {
	ev.back.began.Store(true)
	p, err := x.c.Run(ev, ev.back.call)
	if err != nil {
		return nil, limpet.MethodError(x.inc.id, err)
	}
	if len(p.Bytes) == 0 {
		return nil, nil
	}
	return p, nil
}

// Fetch is not what functions and targets answer.
func (x *export) Fetch(ctx context.Context, req *http.Request) (*http.Response, error) {
	return x.c.Fetch(ctx, req)
}

// Open begins to read a stream.
func (x *export) Open(ctx context.Context) (io.ReadCloser, error) {
	if x.inc.ended.Load() {
		return nil, x.inc.goneError()
	}
	r, err := x.c.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &exportedReader{x: x, ctx: ctx, r: r}, nil
}

// exportedReader holds back what was read until it may leave the object.
type exportedReader struct {
	x   *export
	ctx context.Context
	mu  sync.Mutex // one Read at a time
	r   io.ReadCloser
}

func (r *exportedReader) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.x.inc.ended.Load() {
		return 0, r.x.inc.cause
	}
	n, err := r.r.Read(b)
	if r.x.inc.ended.Load() {
		return 0, r.x.inc.cause // it may be why Read ended
	}
	if gone := r.x.inc.chunk(r.ctx); gone != nil {
		_ = r.r.Close() // whoever writes to it may hold the turn, and must hear of it
		return 0, gone
	}
	return n, err
}

func (r *exportedReader) Close() error { return r.r.Close() }

// chunk lets something leave that no event holds: what the running calls owe is
// put on record, and everything that was committed is durable then. What was read
// may rest on what the running turn has written, by a handler that writes into a
// pipe for one: it waits until the turn has kept that, and not for ever, since
// the handler may wait for the reader.
func (inc *incarnation) chunk(ctx context.Context) error {
	var limit <-chan struct{}
	for {
		inc.storage.Lock()
		if inc.ended.Load() {
			inc.storage.Unlock()
			return inc.cause
		}
		if !inc.confirmed || !inc.data.Dirty() {
			break
		}
		if inc.kept == nil {
			inc.kept = make(chan struct{})
		}
		kept := inc.kept
		inc.storage.Unlock()
		if limit == nil {
			over := make(chan struct{})
			limit = over
			defer inc.host.clock.AfterFunc(inc.host.limits.Block, func() { close(over) }).Stop()
		}
		select {
		case <-kept:
		case <-inc.dead:
		case <-limit:
			return inc.newError(limpet.CodeInvalidArgument, limpet.DeliveryReceived,
				"a byte stream of %s was broken off: a part of it came while an event had writes that were not committed, and that went on for %v; an event that writes to the object and then into a stream must do the latter inside State.Await", inc.label(), inc.host.limits.Block)
		case <-ctx.Done():
			return waitError(ctx, inc.id, context.Cause(ctx), limpet.DeliveryReceived)
		}
	}
	pos, err := inc.record(nil, false)
	if err != nil {
		return err
	}
	inc.storage.Unlock()
	if err := inc.waitDurable(ctx, pos, 0); err != nil {
		return waitError(ctx, inc.id, err, limpet.DeliveryReceived)
	}
	return nil
}

// keptLocked lets chunks go on that wait for the turn. inc.storage is held.
func (inc *incarnation) keptLocked() {
	if inc.kept != nil {
		close(inc.kept)
		inc.kept = nil
	}
}

// Account is that of the event that holds the turn.
func (inc *incarnation) Account(ctx context.Context) error { return inc.accountFor(ctx, nil) }

// Account is for a stream that the object begins to read.
func (ev *event) Account(ctx context.Context) error { return ev.inc.accountFor(ctx, ev) }

// Account is that of the event.
func (a *awaiting) Account(ctx context.Context) error { return a.ev.inc.accountFor(ctx, a.ev) }

// accountFor makes durable what ev has done, or if it is over or nil the event
// that holds the turn: that is committed so far.
func (inc *incarnation) accountFor(ctx context.Context, ev *event) error {
	inc.storage.Lock()
	inc.mu.Lock()
	holds, ended := inc.gate.holder != nil, inc.gate.ended
	if ev != nil && begun(ev.entry.state) {
		holds = ev.entry.state == holding
	}
	inc.mu.Unlock()
	switch {
	case ended:
		inc.storage.Unlock()
		return inc.cause
	case holds && inc.txDepth > 0:
		inc.storage.Unlock()
		return inc.inTransaction("reading a byte stream that was received")
	}
	pos, err := inc.record(nil, holds)
	if err != nil {
		return err
	}
	inc.storage.Unlock()
	if err := inc.waitDurable(ctx, pos, 0); err != nil {
		return waitError(ctx, inc.id, err, limpet.DeliveryNone)
	}
	return nil
}

// Flush puts the running turn on record and waits until it is durable.
func (ev *event) Flush(ctx context.Context) (context.Context, error) { return ev.inc.flush(ctx, ev) }

// Flush is that of the event which the context belongs to, or that holds the turn.
func (inc *incarnation) Flush(ctx context.Context) (context.Context, error) {
	if a := awaitingOf(ctx); a != nil && a.ev.inc == inc {
		return a.Flush(ctx)
	}
	ev, err := inc.eventFor(ctx)
	if err != nil {
		return nil, err
	}
	return inc.flush(ctx, ev)
}

// Flush has nothing to do.
func (a *awaiting) Flush(ctx context.Context) (context.Context, error) { return a.Leave(ctx) }

// flush is leave, except that ev keeps the turn.
func (inc *incarnation) flush(ctx context.Context, ev *event) (context.Context, error) {
	pos, err := inc.depart(ev, "a call through a stub")
	if err != nil {
		return nil, err
	}
	inc.storage.Unlock()
	octx := outgoingContext(ctx, ev)
	if err := inc.waitDurable(octx, pos, 0); err != nil {
		return nil, waitError(octx, inc.id, err, limpet.DeliveryNone)
	}
	return octx, nil
}

// Disposed is told by the last handle: the target's Dispose is an event of the
// object, for which nobody waits. A panic in it resets the object as any.
func (x *export) Disposed() {
	inc := x.inc
	inc.mu.Lock()
	_, alive := inc.exports[x]
	delete(inc.exports, x)
	inc.lastUsed = inc.host.coarse.Load()
	if !alive || !x.c.Disposes() {
		inc.mu.Unlock()
		if alive {
			x.c.Dispose(true)
		}
		return
	}
	ev := &event{
		inc: inc, kind: eventWaitUntil, parent: context.Background(),
		fn: func(context.Context) error { x.c.Dispose(true); return nil },
	}
	ev.entry.ev, ev.entry.internal = ev, true
	next := inc.follow(inc.gate.step(0, inArrive, &ev.entry, 0).grant)
	inc.mu.Unlock()
	inc.start(next)
}

// dropExports ends what the object gave away, because the incarnation has ended.
// What is read ends; no Dispose runs: the memory it would clean up is gone.
func (inc *incarnation) dropExports() {
	inc.mu.Lock()
	all := inc.exports
	inc.exports = nil
	inc.mu.Unlock()
	if len(all) == 0 {
		return
	}
	inc.host.pool.run(func() { // a reader's Close may take its time
		for x := range all {
			x.c.Dispose(false)
		}
	})
}

// goneError refuses the use of what an ended incarnation gave away: nothing ran.
func (inc *incarnation) goneError() *limpet.Error {
	e := inc.cause.Clone()
	e.Delivery = limpet.DeliveryNone
	return e
}

// releaseResult gives back what is in an outcome that nobody takes.
func releaseResult(v any) {
	if p, ok := v.(limpet.Parcel); ok {
		p.Release()
	}
}

// passing is the Origin of calls that code outside of the object makes while the
// object, which called it, is away. They are part of the call chain only.
type passing struct{ ev *event }

func (p passing) Leave(ctx context.Context) (context.Context, error) { return ctx, nil }
func (p passing) Return(context.Context) error                       { return nil }

func aside(ctx context.Context) context.Context {
	ev := eventOf(ctx)
	if ev == nil {
		return ctx
	}
	return limpet.WithOrigin(ctx, passing{ev})
}

// Aside makes the context of other code's.
func (ev *event) Aside(ctx context.Context) context.Context        { return aside(ctx) }
func (inc *incarnation) Aside(ctx context.Context) context.Context { return aside(ctx) }
func (a *awaiting) Aside(ctx context.Context) context.Context      { return aside(ctx) }
