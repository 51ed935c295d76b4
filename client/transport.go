package client

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/wire"
)

// router makes a transport for each attempt, which looks for its connection
// itself: that none can be made is a failure of an attempt, not of finding the
// object, and is retried (SPEC C20, E29).
type router struct{ c *Client }

func (r router) Route(context.Context, *limpet.CallSpec) (dispatch.Transport, error) {
	return &transport{c: r.c}, nil
}

// transport carries one attempt. It belongs to one goroutine.
type transport struct {
	c    *Client
	boot dispatch.Boot
}

// Lossless is false: connections get lost.
func (t *transport) Lossless() bool { return false }

// Prompt says that Do and Fetch return at once when their context ends.
func (t *transport) Prompt() bool { return true }

// Boot is the process that the attempt went to.
func (t *transport) Boot() dispatch.Boot { return t.boot }

// Do makes one attempt of a method call.
func (t *transport) Do(ctx context.Context, a dispatch.Attempt) (any, error) {
	args, err := a.Call.Runner.Args()
	if err != nil {
		return nil, notSent(err)
	}
	s, err := t.connect(ctx, a)
	if err != nil {
		return nil, err
	}
	p := limpet.Parcel{Bytes: args}
	if caps := a.Call.Runner.Capabilities(); len(caps) > 0 {
		p.Caps = make([]limpet.Capability, len(caps))
		for i, c := range caps {
			p.Caps[i] = c.Dup()
		}
	}
	h := t.head(ctx, a, wire.KindMethod)
	if a.Pipe != nil || a.Call.Property || len(a.Call.Path) > 0 {
		h.Ext = &wire.Ext{Path: a.Call.Path, Property: a.Call.Property}
		if a.Pipe != nil {
			h.Ext.Pipelinable, h.Ext.Begun = true, func(p *wire.Promise) { a.Pipe.Attach(p) }
		}
	}
	out, err := s.Call(ctx, h, p)
	switch {
	case err != nil:
		return nil, t.told(err)
	case len(out.Caps) > 0:
		return out, nil
	case out.Bytes != nil:
		return out.Bytes, nil
	}
	return nil, nil
}

// Fetch makes one attempt of a fetch.
func (t *transport) Fetch(ctx context.Context, a dispatch.Attempt) (*http.Response, error) {
	s, err := t.connect(ctx, a)
	if err != nil {
		if a.Request.Body != nil {
			_ = a.Request.Body.Close() // nothing was read from it
		}
		return nil, err
	}
	resp, err := s.Fetch(ctx, t.head(ctx, a, wire.KindFetch), a.Request)
	return resp, t.told(err)
}

// told is what the engine learns of a failure: the failure, except under a
// mutation.
func (t *transport) told(err error) error {
	if !t.c.cfg.broken.LostNotDelivered || limpet.CodeOf(err) != limpet.CodeDisconnected || limpet.DeliveryOf(err) != limpet.DeliveryUncertain {
		return err
	}
	e, _ := errors.AsType[*limpet.Error](err)
	e = e.Clone()
	e.Delivery = limpet.DeliveryNone
	return e
}

// Outcome asks what became of a call.
func (t *transport) Outcome(ctx context.Context, c *limpet.CallSpec, q limpet.OutcomeQuery, age time.Duration) (*limpet.CallOutcome, error) {
	a := dispatch.Attempt{Call: c}
	s, err := t.connect(ctx, a)
	if err != nil {
		return nil, err
	}
	head := t.head(ctx, a, wire.KindOutcome)
	head.Method, head.Replay = q.String(), false
	return s.Outcome(ctx, head, age)
}

func (t *transport) connect(ctx context.Context, a dispatch.Attempt) (*wire.Session, error) {
	s, err := t.c.connect(ctx)
	if err == nil && a.Late != nil && a.Late() {
		e := limpet.Errorf(limpet.CodeDisconnected, "Network connection lost: connected too late for another attempt")
		e.Delivery, e.Retryable = limpet.DeliveryNone, true
		return nil, e
	}
	if err == nil {
		t.boot = dispatch.Boot(s.Peer().Process())
	}
	return s, err
}

// head is what a call says of itself.
func (t *transport) head(ctx context.Context, a dispatch.Attempt, kind wire.Kind) *wire.Call {
	c := &wire.Call{
		Kind: kind, Binding: a.Call.Binding.Name, Object: a.Call.Object.Bytes(), Existing: a.Call.Existing,
		Identity: a.Identity, Attempt: a.Number, Retry: a.Retry, WillRetry: a.WillRetry, Method: a.Call.Method,
		Replay: a.Call.Policy.ReplayOutcome, Key: a.Call.Key,
	}
	c.Name, c.Named = a.Call.Object.Name()
	for _, b := range a.Uncertain {
		c.Uncertain = append(c.Uncertain, wire.Boot(b))
	}
	if t.c.cfg.trace != nil {
		c.TraceParent, c.TraceState = t.c.cfg.trace(ctx)
		if len(c.TraceParent) > wire.MaxTrace || len(c.TraceState) > wire.MaxTrace {
			c.TraceParent, c.TraceState = "", "" // a trace is never worth a call
		}
	}
	return c
}

// notSent is an error of arguments that can't be encoded.
func notSent(err error) error {
	e, ok := errors.AsType[*limpet.Error](err)
	if !ok {
		e = limpet.Errorf(limpet.CodeInternal, "%w", err)
	}
	e = e.Clone()
	e.Delivery = limpet.DeliveryNone
	return e
}
