package host

import (
	"context"
	"time"

	"github.com/limpet-dev/limpet"
)

// An event is the context of its own handler, so that a call costs no other
// allocation. It has the deadline and the end of the caller's context and none
// of its values, as over a wire; it also ends, with the cause, when the handler
// has returned and when the incarnation ends. The inner context exists only once
// somebody looks at Done, asks for a value or derives a context.

var _ context.Context = (*event)(nil)

// Deadline is the caller's, or the limit of WaitUntil.
func (ev *event) Deadline() (time.Time, bool) {
	if !ev.deadline.IsZero() {
		return ev.deadline, true
	}
	return ev.parent.Deadline()
}

// Done is closed when the event has ended or nobody waits for it any more.
func (ev *event) Done() <-chan struct{} { return ev.base().Done() }

// Err is the error of the caller's context if that has ended, else
// context.Canceled once the event has ended.
func (ev *event) Err() error {
	if err := ev.parent.Err(); err != nil && !ev.shielded(ev.parent) {
		return err
	}
	ev.ctxMu.Lock()
	defer ev.ctxMu.Unlock()
	switch {
	case ev.inner != nil:
		return ev.inner.Err()
	case ev.cause != nil:
		return context.Canceled
	}
	return nil
}

// Value answers limpet's own key, and what package context needs for causes and
// derived contexts.
func (ev *event) Value(key any) any {
	switch key {
	case limpet.OriginKey():
		return ev
	case limpet.IdempotencyContextKey():
		return nil // it is the caller's
	}
	return ev.base().Value(key)
}

func (ev *event) base() context.Context {
	ev.ctxMu.Lock()
	defer ev.ctxMu.Unlock()
	if ev.inner == nil {
		ev.inner, ev.cancelInner = context.WithCancelCause(context.Background())
		switch {
		case ev.cause != nil:
			ev.cancelInner(ev.cause)
		case ev.parent.Done() != nil:
			ev.stopParent = context.AfterFunc(ev.parent, func() {
				if !ev.shielded(ev.parent) {
					ev.cancel(context.Cause(ev.parent))
				}
			})
		}
	}
	return ev.inner
}

// cancel ends the context. The first cause counts.
func (ev *event) cancel(cause error) {
	ev.ctxMu.Lock()
	defer ev.ctxMu.Unlock()
	if ev.cause != nil {
		return
	}
	ev.cause = cause
	if ev.inner != nil {
		ev.cancelInner(cause)
	}
	if ev.stopParent != nil {
		ev.stopParent()
	}
}

// finish ends the context, and everything that left the object with another one,
// because the event has ended.
func (ev *event) finish(cause error) {
	ev.cancel(cause)
	ev.ctxMu.Lock()
	defer ev.ctxMu.Unlock()
	if ev.overCause == nil {
		ev.overCause = cause
	}
	if ev.over != nil {
		ev.cancelOver(ev.overCause)
	}
}

// untilOver is a context that ends only when the event has ended.
func (ev *event) untilOver() context.Context {
	ev.ctxMu.Lock()
	defer ev.ctxMu.Unlock()
	if ev.over == nil {
		ev.over, ev.cancelOver = context.WithCancelCause(context.Background())
		if ev.overCause != nil {
			ev.cancelOver(ev.overCause)
		}
	}
	return ev.over
}

// outgoing is the context of something that leaves an object when the handler
// gave another context than its own: that context, ended also by the event's
// end, and with the event as the origin of the call chain. A handler that wants
// to go on when its caller has gone gives one that says so.
type outgoing struct {
	context.Context
	ev     *event
	values context.Context // the handler's
}

func (o *outgoing) Value(key any) any {
	if key == limpet.OriginKey() {
		return o.ev
	}
	if v := o.Context.Value(key); v != nil {
		return v
	}
	return o.values.Value(key)
}

// outgoingContext returns the event's own context as it is.
func outgoingContext(ctx context.Context, ev *event) context.Context {
	if ctx == context.Context(ev) {
		return ctx
	}
	if o, ok := ctx.(*outgoing); ok && o.ev == ev {
		return ctx
	}
	over := ev.untilOver()
	if ctx.Done() == nil {
		return &outgoing{Context: over, ev: ev, values: ctx}
	}
	inner, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(over, func() { cancel(context.Cause(over)) })
	context.AfterFunc(ctx, func() { stop() })
	return &outgoing{Context: inner, ev: ev, values: ctx}
}

// eventOf is the event whose handler the context belongs to, or nil.
func eventOf(ctx context.Context) *event {
	switch o := ctx.Value(limpet.OriginKey()).(type) {
	case *event:
		return o
	case *awaiting:
		return o.ev
	case passing:
		return o.ev
	}
	return nil
}

// awaiting is the Origin of calls that are made inside a function given to
// Await: the object was given away for all of it, so that they neither leave nor
// return. Their chain still comes from the event.
type awaiting struct{ ev *event }

// Leave has nothing to do.
func (a *awaiting) Leave(ctx context.Context) (context.Context, error) {
	if a.ev.inc.ended.Load() {
		return nil, a.ev.inc.cause
	}
	return ctx, nil
}

// Return has nothing to do either.
func (a *awaiting) Return(context.Context) error { return nil }

// awaitContext is the context of such a function.
type awaitContext struct {
	context.Context
	origin awaiting
}

func (c *awaitContext) Value(key any) any {
	if key == limpet.OriginKey() {
		return &c.origin
	}
	return c.Context.Value(key)
}

// awaitingOf is the Await that the context belongs to, or nil.
func awaitingOf(ctx context.Context) *awaiting {
	a, _ := ctx.Value(limpet.OriginKey()).(*awaiting)
	return a
}
