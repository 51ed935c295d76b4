package dispatch

import (
	"context"
	"sync"

	"github.com/limpet-dev/limpet"
)

// This file is a call whose caller does not wait for its result, and the calls
// that are made on the promised result (SPEC B33, E53 to E56).
//
// A first such call, a child, commits the parent: its machine hears evPipelined,
// and from then on the attempt that is under way decides. A transport that can
// pipeline takes children meanwhile; else they wait for the result and run
// against that here:
//
//	Child ─▶ commit ─▶ the run's next event ─┬─▶ parent failed: its final error
//	                                         ├─▶ transport attached: sent at once
//	                                         └─▶ result is there: limpet.CallResult
//
// Children have no machine: they are never retried, and a claim rejection that
// one gets because its parent got it (E55) is the parent's to explain.

// promise is such a call. The run belongs to its goroutine.
type promise struct {
	codec  limpet.Codec
	cancel context.CancelCauseFunc

	commit    chan struct{} // closed by the first child
	committed chan struct{} // closed when the machine has heard of it
	done      chan struct{} // closed when value and err are final

	mu       sync.Mutex
	pipe     *Pipe // of the running attempt
	closed   bool
	children map[*context.CancelCauseFunc]struct{}
	asked    bool // commit is closed

	value any
	err   error
}

var (
	_ limpet.PendingCall = (*promise)(nil)
	_ limpet.Starter     = (*Engine)(nil)
)

// Start makes a KindMethod call on a goroutine of the engine and returns at once.
// It is for callers that have left their own object (limpet.Origin). The call
// ends with ctx, and with Close of what is returned, which must be called.
func (e *Engine) Start(ctx context.Context, c *limpet.CallSpec) (limpet.PendingCall, error) {
	if err := e.admit(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	p := &promise{
		codec: c.Binding.Codec, cancel: cancel,
		commit: make(chan struct{}), committed: make(chan struct{}), done: make(chan struct{}),
	}
	if !e.spawn(func() { p.run(e, ctx, c) }) {
		cancel(errClosed)
		return nil, closed(limpet.DeliveryNone)
	}
	return p, nil
}

func (p *promise) run(e *Engine, ctx context.Context, c *limpet.CallSpec) {
	r := newRun(e, ctx, c, c.Unretryable == "")
	r.why, r.promise = c.Unretryable, p
	start := e.now()
	r.first, r.firstErr = e.router.Route(ctx, c)
	p.value, p.err = r.call(start)
	p.mu.Lock()
	drop := p.closed
	if p.err != nil {
		for cancel := range p.children {
			(*cancel)(p.err) // they can't come to an end
		}
	}
	close(p.done)
	p.mu.Unlock()
	if drop {
		releaseValue(p.value)
	}
}

// begin is told of each attempt: what was sent to an earlier one is lost with it
// (SPEC E52).
func (p *promise) begin() *Pipe {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pipe != nil {
		p.pipe.Close()
	}
	p.pipe = NewPipe()
	if p.closed {
		p.pipe.Close()
	}
	return p.pipe
}

// wanted is closed when somebody commits the call; nil once the machine knows.
func (p *promise) wanted() <-chan struct{} {
	if p == nil {
		return nil
	}
	select {
	case <-p.committed:
		return nil
	default:
		return p.commit
	}
}

// Done is closed when the outcome is there.
func (p *promise) Done() <-chan struct{} { return p.done }

// Outcome is the result, which stays the promise's, or the error; call it after
// Done.
func (p *promise) Outcome() (any, error) { return p.value, p.err }

// Close says that nobody asks any more: the call is canceled if it runs, and its
// result given back. Children under way go on.
func (p *promise) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	pipe := p.pipe
	over := false
	select {
	case <-p.done:
		over = true
	default:
	}
	p.mu.Unlock()
	p.cancel(context.Canceled)
	if pipe != nil {
		pipe.Close()
	}
	if over {
		releaseValue(p.value)
	}
}

// Child makes a call on the promised result; see limpet.PendingCall.
func (p *promise) Child(ctx context.Context, c limpet.TargetCall) (limpet.Parcel, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		c.Args.Release()
		return limpet.Parcel{}, limpet.DisposedError()
	}
	if !p.asked {
		p.asked = true
		close(p.commit)
	}
	cctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if p.children == nil {
		p.children = map[*context.CancelCauseFunc]struct{}{}
	}
	p.children[&cancel] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.children, &cancel)
		p.mu.Unlock()
	}()

	x, err := p.pipeliner(ctx)
	switch {
	case err != nil:
		c.Args.Release()
		return limpet.Parcel{}, err
	case x == nil:
		return p.settled(ctx, c)
	}
	out, err := x.Child(cctx, c)
	if err == nil || ctx.Err() != nil {
		return out, err
	}
	// Why it failed is known when it is known whether its parent did.
	select {
	case <-p.done:
	case <-ctx.Done():
		return limpet.Parcel{}, err
	}
	if p.err != nil {
		return limpet.Parcel{}, p.err
	}
	return limpet.Parcel{}, err
}

// pipeliner waits until a child can be sent (then it returns where to), or the
// outcome is there (then nil).
func (p *promise) pipeliner(ctx context.Context) (Pipeliner, error) {
	select {
	case <-p.committed:
	case <-p.done:
		return nil, nil
	case <-ctx.Done():
		return nil, canceled(ctx, limpet.DeliveryNone)
	}
	p.mu.Lock()
	pipe := p.pipe
	p.mu.Unlock()
	if pipe == nil { // it was committed before its first attempt, and has made none
		pipe = NewPipe()
	}
	select {
	case <-p.done:
		return nil, nil
	default:
	}
	select {
	case <-pipe.Attached():
		return pipe.Pipeliner(), nil
	case <-p.done:
		return nil, nil
	case <-ctx.Done():
		return nil, canceled(ctx, limpet.DeliveryNone)
	}
}

// settled makes a call on the result that is there.
func (p *promise) settled(ctx context.Context, c limpet.TargetCall) (limpet.Parcel, error) {
	if p.err != nil {
		c.Args.Release()
		return limpet.Parcel{}, p.err // SPEC B34, E54
	}
	switch v := p.value.(type) {
	case nil:
		return limpet.CallResult(ctx, p.codec, limpet.Parcel{}, c)
	case limpet.Encoded:
		return limpet.CallResult(ctx, p.codec, limpet.Parcel{Bytes: v}, c)
	case limpet.Parcel:
		return limpet.CallResult(ctx, p.codec, v, c)
	}
	c.Args.Release()
	return limpet.Parcel{}, asError(limpet.Errorf(limpet.CodeInternal, "a call by name returned a %T", p.value))
}
