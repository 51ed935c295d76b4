package wire

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/workers"
)

// duplex is a link with calls both ways: what Session and serverConn share. The
// dialer's calls have odd numbers, the acceptor's even ones, so that a frame's
// number tells whose call it is about.
//
//	            ┌───────────────────────┐
//	callers ──▶ │ outgoing  (our calls) │ ◀──▶ the peer's incoming
//	            ├───────────────────────┤
//	Callee ◀──▶ │ incoming (the peer's) │ ◀──▶ the peer's outgoing
//	            └───────────────────────┘
//
// A drain ends new calls of objects. Calls under way go on, and so do those that
// they lead to: of capabilities, in both directions. The connection ends when
// neither side has a call left, nor a byte stream that the other may still read.
type duplex struct {
	*link
	dialer bool
	peer   Hello
	out    outgoing
	in     incoming
	caps   capabilities
}

// init makes both halves of a new link. Calls of the peer go to callee; base is
// the context of all of them, w runs them. total counts the capabilities.
func (d *duplex) init(l *link, dialer bool, callee Callee, base context.Context, total *budget, w *workers.Pool[*inCall]) {
	d.link, d.dialer = l, dialer
	d.out = outgoing{link: l, d: d, calls: map[uint64]*outCall{}, next: 2}
	d.in = incoming{
		link: l, d: d, calls: map[uint64]*inCall{}, promised: map[uint64]*promised{},
		callee: callee, base: base, most: maxCalls, workers: w,
	}
	d.caps = capabilities{
		link: l, d: d, total: total, exports: map[uint64]limpet.Capability{}, imports: map[uint64]limpet.CapabilityKind{},
	}
	if dialer {
		d.out.next, d.in.most = 1, maxBackCalls
	} else {
		d.out.budget = &l.shares.results
	}
}

// frame takes what the peer sends about calls.
func (d *duplex) frame(f frame) error {
	switch f.typ {
	case frameAck:
		if d.in.callee == (noObjects{}) {
			return violation("%v for a process without objects", f.typ)
		}
		return readAcks(f.payload, func(a ack) { d.in.callee.Acknowledge(a.object, a.id) })
	case frameGoAway:
		last, why, err := readGoAway(f.payload)
		switch {
		case err != nil:
			return err
		case !d.dialer: // dialers do not drain
			return fmt.Errorf("the peer ended the connection: %.1000q", why)
		}
		d.out.goneAway(last, why)
		return nil
	case frameCall:
		return d.in.begin(f)
	case frameRelease:
		return d.caps.released(f.payload)
	}
	if d.ours(f.call) {
		return d.out.frame(f)
	}
	return d.in.frame(f)
}

// ours reports whether a number is one of the calls that this side makes.
func (d *duplex) ours(call uint64) bool { return (call%2 == 1) == d.dialer }

// restLocked ends the connection when one side drains and no call is left.
func (d *duplex) restLocked() {
	if (d.in.drained || d.out.away) && len(d.in.calls) == 0 && len(d.out.calls) == 0 && d.caps.streams == 0 {
		d.finishLocked(errClosed)
	}
}

// gone ends all calls when the connection has ended.
func (d *duplex) gone(why error) {
	d.out.gone(why)
	d.in.gone(why)
	d.caps.gone()
}

func (d *duplex) tick(now time.Duration) { d.in.tick(now) }

func (d *duplex) several() bool { return len(d.out.calls)+len(d.in.calls) > 1 }

// noObjects is the Callee of a process that has none.
type noObjects struct{}

func (noObjects) refuse() *limpet.Error {
	return refused(limpet.CodeNotSupported, "the process at the other end of the connection has no objects")
}

func (n noObjects) Call(_ context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
	args.Release()
	return limpet.Parcel{}, n.refuse()
}

func (n noObjects) Child(_ context.Context, _ limpet.Parcel, c limpet.TargetCall) (limpet.Parcel, error) {
	c.Args.Release()
	return limpet.Parcel{}, n.refuse()
}

func (n noObjects) Fetch(context.Context, *Call, *http.Request) (*http.Response, error) {
	return nil, n.refuse()
}

func (n noObjects) Describe(context.Context, string) (BindingInfo, error) {
	return BindingInfo{}, n.refuse()
}

func (n noObjects) Outcome(context.Context, *Call, time.Duration) (*limpet.CallOutcome, error) {
	return nil, n.refuse()
}

func (noObjects) Acknowledge([32]byte, limpet.Identity) {}
