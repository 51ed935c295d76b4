package wire

import (
	"context"
	"errors"
	"slices"

	"github.com/limpet-dev/limpet"
)

// This file is pipelining: calls on the result of a call that is under way. The
// caller sends them at once, the receiver keeps the result for them.
//
//	   CALL 1, pipelinable ─────▶ promised ──────────── runs ──┐
//	   CALL 3, on the result of 1 ──▶ waits                    │
//	   ◀────────────────────────────────────────── RESULT 1 ◀──┤ kept
//	   ◀───────────────────────── RESULT 3 ◀── runs ◀──────────┘
//	   FORGET 1 ────────────────▶ let go, when no call on it runs
//
// A call that failed keeps nothing: the caller, who hears of that first, fails
// the calls on it with the same error (SPEC B34). There may be as many promised
// results as calls.

// Promise is the result of a call that was made as pipelinable, on the caller's
// side. It is safe for concurrent use.
type Promise struct {
	o  *outgoing
	oc *outCall
}

// Child makes a call on the result, at once. It takes over c.Args, also when it
// fails. If the call that promises it fails, so does Child, with the same error.
func (p *Promise) Child(ctx context.Context, c limpet.TargetCall) (limpet.Parcel, error) {
	out, err := p.o.target(ctx, &Ext{parent: p.oc.n, of: p.oc}, c)
	if err != nil {
		p.o.mu.Lock()
		defer p.o.mu.Unlock()
		if p.oc.settled && p.oc.err != nil && ctx.Err() == nil {
			return out, p.oc.failed()
		}
	}
	return out, err
}

// Close says that no more calls come; those under way go on. Closing again is
// harmless.
func (p *Promise) Close() {
	p.o.mu.Lock()
	defer p.o.mu.Unlock()
	p.o.forgetLocked(p.oc)
}

// outPromise is what an outCall has for its promise.
type outPromise struct {
	children  []*outCall // unsettled, and some that are not
	forgotten bool
}

// failed is the failure of a call, for calls on its result.
func (oc *outCall) failed() error {
	if e, ok := errors.AsType[*limpet.Error](oc.err); ok {
		return e
	}
	e := limpet.Errorf(limpet.CodeCanceled, "The operation was aborted: nobody waits for the call on whose result this one was made")
	e.Delivery = limpet.DeliveryUncertain
	return e
}

// promise is nil for a call that is not pipelinable.
func (oc *outCall) promise() *outPromise {
	if oc.head.Ext == nil {
		return nil
	}
	return oc.head.Ext.promise
}

// forgetLocked lets the peer forget the result of a call.
func (o *outgoing) forgetLocked(oc *outCall) {
	p := oc.promise()
	if p == nil || p.forgotten {
		return
	}
	p.forgotten, p.children = true, nil
	o.promised--
	if !oc.dropped && !oc.refused {
		o.pushLocked(item{head: appendFrame(nil, frameForget, 0, oc.n, nil), call: oc})
	}
}

// parentLocked refuses a call on the promised result of another; the error is
// that one's failure.
func (o *outgoing) parentLocked(parent *outCall) error {
	switch {
	case parent.settled && parent.err != nil:
		return parent.failed()
	case parent.promise().forgotten:
		return limpet.DisposedError()
	}
	return nil
}

// adoptLocked makes a call, which can't fail to be made any more and has its
// number, one on the promised result of another.
func (o *outgoing) adoptLocked(child, parent *outCall) {
	if !parent.settled {
		p := parent.promise()
		p.children = append(slices.DeleteFunc(p.children, func(c *outCall) bool { return c.settled }), child)
	}
}

// brokenLocked fails the calls on the promised result of one that failed.
func (o *outgoing) brokenLocked(oc *outCall) {
	p := oc.promise()
	if p == nil {
		return
	}
	children := p.children
	o.forgetLocked(oc)
	for _, c := range children {
		if c.settled {
			continue
		}
		if !c.sent {
			o.dropLocked(c)
		} else {
			o.pushLocked(item{head: appendFrame(nil, frameCancel, 0, c.n, []byte{byte(cancelAborted)})})
		}
		o.settleLocked(c, oc.failed())
		o.endLocked(c)
	}
}

// promised is a promised result on the side that runs the call.
type promised struct {
	done chan struct{} // closed when there is an outcome

	// Fixed when done is closed.
	result limpet.Parcel
	err    error

	// Under link.mu.
	refs int // the caller, unless it has forgotten it, and calls on it
	held int64
}

// promiseLocked makes room for the result of a call.
func (c *incoming) promiseLocked(n uint64) (*promised, error) {
	if len(c.promised) >= c.most {
		return nil, violation("more than %d promised results", c.most)
	}
	p := &promised{done: make(chan struct{}), refs: 1}
	c.promised[n] = p
	return p, nil
}

// keep keeps a copy of the result, and lets the calls on it go on.
func (c *incoming) keep(p *promised, result limpet.Parcel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch n := int64(len(result.Bytes)); {
	case p.isDone(): // the caller has gone
		return
	case p.refs == 0:
		p.err = limpet.DisposedError()
	case !c.holdLocked(n):
		p.err = overloaded("promised results hold too many bytes on this connection or node; this one has %d", n)
	default:
		p.held = n
		p.result = limpet.Parcel{Bytes: result.Bytes, Caps: slices.Clone(result.Caps)}
		for i, h := range p.result.Caps {
			p.result.Caps[i] = h.Dup()
		}
	}
	close(p.done)
}

func (p *promised) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// breakLocked is for a call that failed, or whose caller has gone: nobody will
// ask for its result any more but by a call that is here already.
func (c *incoming) breakLocked(n uint64, p *promised, err error) {
	if p.isDone() {
		return
	}
	p.err = err
	close(p.done)
	c.forgetLocked(n)
}

// forgetLocked takes the caller's word that no more calls come.
func (c *incoming) forgetLocked(n uint64) {
	if p := c.promised[n]; p != nil {
		delete(c.promised, n)
		c.letGoLocked(p)
	}
}

func (c *incoming) letGoLocked(p *promised) {
	if p.refs--; p.refs == 0 && p.isDone() { // else keep will not keep it
		c.giveLocked(p.held)
		c.d.caps.laterLocked(p.result.Caps)
	}
}
