package limpettest

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
)

// link is the way to the objects of one life of the node. Until there is a
// network it is nothing but that. With one, each attempt is as if on a
// connection of its own:
//
//	request ─▶ fault? ─▶ encoded ─▶ object ─▶ encoded ─▶ fault? ─▶ answer
//
// and the context of the handler ends when its connection, or the life, does.
type link struct {
	n       *Node
	objects dispatch.Transport
	life    context.Context // ends when nothing passes any more
	lose    context.CancelCauseFunc

	mu       sync.Mutex
	underway map[*passage]struct{}
}

var _ dispatch.Transport = (*link)(nil)

func newLink(n *Node, objects dispatch.Transport) *link {
	l := &link{n: n, objects: objects, underway: map[*passage]struct{}{}}
	l.life, l.lose = context.WithCancelCause(context.Background())
	return l
}

func (l *link) isLost() bool { return l.life.Err() != nil }

// Lossless is true until there is a network.
func (l *link) Lossless() bool { return l.n.network.Load() == nil }

// Prompt says that Do and Fetch return at once when their context ends.
func (l *link) Prompt() bool { return true }

// Boot is that of the node's life.
func (l *link) Boot() dispatch.Boot { return l.objects.Boot() }

var (
	errFault   = errors.New("a fault of the test's network")
	errCrashed = errors.New("the test node crashed or stopped")

	// errHeld is that of an attempt that still lies in the network.
	errHeld = disconnected(limpet.DeliveryUncertain, errFault)
)

// disconnected is a lost connection as a caller sees it (SPEC C5).
func disconnected(d limpet.Delivery, cause error) *limpet.Error {
	return &limpet.Error{
		Code: limpet.CodeDisconnected, Message: "Network connection lost.", Delivery: d, Retryable: true, Cause: cause,
	}
}

// passage is one attempt on its way.
type passage struct {
	l     *link
	w     *Network
	fault *Fault // nil: none
	undo  func()
	left  atomic.Int64 // bytes until a cut; -1: no cut
	ctx   context.Context
	end   context.CancelCauseFunc
	stop  func()
	cut   atomic.Bool
	lost  atomic.Bool // cut, with all others
}

// connect begins an attempt. An error is the attempt's: it never reaches the
// object. The passage must be closed.
func (l *link) connect(ctx context.Context, w *Network, a dispatch.Attempt) (*passage, error) {
	if l.isLost() {
		return nil, disconnected(limpet.DeliveryNone, errCrashed)
	}
	p := &passage{l: l, w: w}
	p.ctx, p.end = context.WithCancelCause(ctx)
	l.mu.Lock()
	l.underway[p] = struct{}{}
	l.mu.Unlock()
	forget := context.AfterFunc(l.life, func() { p.end(errCrashed) })
	p.stop = func() {
		forget()
		p.end(nil)
		l.mu.Lock()
		delete(l.underway, p)
		l.mu.Unlock()
	}
	p.left.Store(-1)
	p.fault, p.undo = w.strike(a)
	if err := p.depart(ctx, a); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// depart is the way to the object. An error is the attempt's.
func (p *passage) depart(ctx context.Context, a dispatch.Attempt) error {
	l, w := p.l, p.w
	switch {
	case p.fault == nil:
	case p.fault.kind == FaultRefuse:
		return disconnected(limpet.DeliveryNone, errFault)
	case p.fault.kind == FaultDrain:
		return &limpet.Error{
			Code: limpet.CodeDraining, Delivery: limpet.DeliveryNone, Retryable: true, ObjectID: a.Call.Object.String(),
			Message: "Network connection lost: the node is stopping and did not take the call.",
		}
	case p.fault.kind == FaultDropRequest:
		return disconnected(limpet.DeliveryUncertain, errFault)
	case p.fault.kind == FaultCutConnection && !p.fault.on:
		l.cut()
		return disconnected(limpet.DeliveryUncertain, errFault)
	case p.fault.kind == FaultCutAfter:
		p.left.Store(p.fault.bytes)
	case p.fault.kind == FaultReorder && a.WillRetry:
		w.hold(&heldAttempt{ctx: context.WithoutCancel(ctx), l: l, attempt: a})
		return errHeld
	case p.fault.kind == FaultReorder: // no retry will overtake it
		return disconnected(limpet.DeliveryUncertain, errFault)
	case !p.fault.on:
		return p.wait(ctx)
	}
	return nil
}

// cut ends every attempt that is under way.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.underway {
		p.lost.Store(true)
		p.sever()
	}
}

// wait is a Delay or Freeze.
func (p *passage) wait(ctx context.Context) error {
	d, breaks := p.fault.d, p.fault.kind == FaultFreeze && p.fault.d >= PingDeadline
	if breaks {
		d = PingDeadline
	}
	timer := p.l.n.clock().NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-p.l.life.Done():
		return disconnected(limpet.DeliveryUncertain, errCrashed)
	case <-ctx.Done():
		return gaveUp(ctx)
	case <-p.ctx.Done(): // and neither of these: another attempt's CutConnection
		if ctx.Err() != nil {
			return gaveUp(ctx)
		}
		if p.l.isLost() {
			return disconnected(limpet.DeliveryUncertain, errCrashed)
		}
		return disconnected(limpet.DeliveryUncertain, errFault)
	}
	if breaks {
		return disconnected(limpet.DeliveryUncertain, errFault)
	}
	return nil
}

// gaveUp is what a caller knows that did not wait for the answer.
func gaveUp(ctx context.Context) *limpet.Error {
	return &limpet.Error{Code: limpet.CodeCanceled, Message: "the call was canceled", Cause: context.Cause(ctx)}
}

// take counts bytes that pass and tells how many may.
func (p *passage) take(n int) int {
	left := p.left.Load()
	if left < 0 {
		return n
	}
	k := min(int64(n), left)
	p.left.Store(left - k)
	return int(k)
}

// sever breaks the connection.
func (p *passage) sever() {
	p.cut.Store(true)
	p.end(disconnected(limpet.DeliveryUncertain, errFault)) // as a lost connection ends a handler's context
}

// over ends the attempt. A cut that had too few bytes to strike did not.
func (p *passage) over() {
	if p.left.Swap(-1) >= 0 && (!p.cut.Load() || p.lost.Load()) {
		p.undo()
	}
	p.stop()
}

// reply is what becomes of the object's answer; err is that of the attempt.
func (p *passage) reply(ctx context.Context, err error) error {
	var e *limpet.Error
	if err != nil {
		var ok bool
		if e, ok = errors.AsType[*limpet.Error](err); !ok {
			return err
		}
	}
	switch {
	case ctx.Err() != nil && e != nil && !e.Remote:
		return gaveUp(ctx)
	case p.cut.Load():
		return disconnected(limpet.DeliveryUncertain, errFault)
	case p.l.isLost() && e != nil && (e.Reset || e.ByLimpet()): // a machine without power says nothing
		return disconnected(limpet.DeliveryUncertain, errCrashed)
	}
	if f := p.fault; f != nil {
		switch {
		case f.kind == FaultDropReply:
			return disconnected(limpet.DeliveryUncertain, errFault)
		case f.kind == FaultCutConnection:
			p.l.cut()
			return disconnected(limpet.DeliveryUncertain, errFault)
		case f.on:
			if err := p.wait(ctx); err != nil {
				return err
			}
		}
	}
	if e == nil {
		return nil
	}
	e = e.Clone()
	e.Cause = nil // it does not cross
	return e
}

// Do brings a method call to its object.
func (l *link) Do(ctx context.Context, a dispatch.Attempt) (any, error) {
	w := l.n.network.Load()
	if w == nil {
		return l.objects.Do(ctx, a)
	}
	args, err := a.Call.Runner.Args()
	if err != nil {
		e := limpet.Errorf(limpet.CodeOf(err), "call of %s: %w", a.Call.Method, err)
		e.Delivery = limpet.DeliveryNone
		return nil, e
	}
	a.Call = limpet.EncodedCall(a.Call, limpet.Parcel{Bytes: slices.Clone(args), Caps: a.Call.Runner.Capabilities()})
	p, err := l.connect(ctx, w, a)
	if err != nil {
		return nil, err
	}
	defer p.over()
	if p.take(len(args)) < len(args) {
		p.sever()
		return nil, disconnected(limpet.DeliveryUncertain, errFault)
	}
	out, err := l.objects.Do(p.ctx, a)
	if h := w.overtaken(a); h != nil {
		h.arrive()
	}
	if err := p.reply(ctx, err); err != nil {
		if parcel, ok := out.(limpet.Parcel); ok {
			parcel.Release()
		}
		return nil, err
	}
	if parcel, ok := out.(limpet.Parcel); ok { // what is in it is not behind the network
		if p.take(len(parcel.Bytes)) < len(parcel.Bytes) {
			parcel.Release()
			p.sever()
			return nil, disconnected(limpet.DeliveryUncertain, errFault)
		}
		return parcel, nil
	}
	enc, _ := out.(limpet.Encoded) // nil for none
	if p.take(len(enc)) < len(enc) {
		p.sever()
		return nil, disconnected(limpet.DeliveryUncertain, errFault)
	}
	if enc == nil {
		return nil, nil
	}
	return slices.Clone(enc), nil
}

// Fetch brings a fetch to its object.
func (l *link) Fetch(ctx context.Context, a dispatch.Attempt) (*http.Response, error) {
	w := l.n.network.Load()
	if w == nil {
		return l.objects.Fetch(ctx, a)
	}
	p, err := l.connect(ctx, w, a)
	if err != nil {
		if err != error(errHeld) { //nolint:errorlint // this very one
			closeRequest(a)
		}
		return nil, err
	}
	req := a.Request.WithContext(p.ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &requestBody{ReadCloser: req.Body, p: p}
	}
	a.Request = req
	resp, err := l.objects.Fetch(p.ctx, a)
	if h := w.overtaken(a); h != nil {
		h.arrive()
	}
	if err := p.reply(ctx, err); err != nil {
		if resp != nil {
			_ = resp.Body.Close() // nobody gets it
		}
		p.over()
		return nil, err
	}
	resp.Body = &responseBody{ReadCloser: resp.Body, p: p}
	return resp, nil
}

// Outcome asks what became of a call. Faults do not strike it.
func (l *link) Outcome(ctx context.Context, c *limpet.CallSpec, q limpet.OutcomeQuery, age time.Duration) (*limpet.CallOutcome, error) {
	if l.isLost() {
		return nil, disconnected(limpet.DeliveryNone, errCrashed)
	}
	asked, ok := l.objects.(dispatch.OutcomeTransport)
	if !ok {
		return nil, limpet.Errorf(limpet.CodeNotSupported, "not supported: to ask these objects for outcomes")
	}
	life, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(errCrashed) })()
	o, err := asked.Outcome(life, c, q, age)
	if err != nil && l.isLost() && ctx.Err() == nil {
		return nil, disconnected(limpet.DeliveryUncertain, errCrashed)
	}
	return o, err
}

func closeRequest(a dispatch.Attempt) {
	if a.Request != nil && a.Request.Body != nil {
		_ = a.Request.Body.Close() // nothing was read from it
	}
}

// requestBody is a body on its way to the object.
type requestBody struct {
	io.ReadCloser
	p *passage
}

func (b *requestBody) Read(buf []byte) (int, error) {
	if b.p.cut.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	if len(buf) == 0 || b.p.left.Load() < 0 {
		return b.ReadCloser.Read(buf)
	}
	if left := b.p.left.Load(); left > 0 {
		n, err := b.ReadCloser.Read(buf[:min(int64(len(buf)), left)])
		b.p.take(n)
		return n, err
	}
	n, err := b.ReadCloser.Read(buf[:1]) // is there more that could not pass?
	if n > 0 {
		b.p.sever()
		return 0, io.ErrUnexpectedEOF
	}
	return 0, err
}

// responseBody is a body on its way to the caller.
type responseBody struct {
	io.ReadCloser
	p      *passage
	broken error
}

func (b *responseBody) Read(buf []byte) (n int, err error) {
	switch {
	case b.broken != nil:
		return 0, b.broken
	case b.p.cut.Load():
		return 0, b.breakOff(errFault)
	case len(buf) == 0:
		return 0, nil
	}
	left := b.p.left.Load()
	switch {
	case left < 0:
		n, err = b.ReadCloser.Read(buf)
	case left > 0:
		n, err = b.ReadCloser.Read(buf[:min(int64(len(buf)), left)])
		b.p.take(n)
	default:
		if n, err = b.ReadCloser.Read(buf[:1]); n > 0 {
			b.p.sever()
			return 0, b.breakOff(errFault)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) && b.p.l.isLost() {
		err = b.breakOff(errCrashed)
	}
	return n, err
}

// breakOff ends the body for good. The head has arrived, so that the object has
// certainly taken the request.
func (b *responseBody) breakOff(cause error) error {
	b.broken = disconnected(limpet.DeliveryReceived, cause)
	return b.broken
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.p.over()
	return err
}

// heldAttempt is a request that its own retry overtakes. Its sender has gone.
type heldAttempt struct {
	ctx     context.Context
	l       *link
	attempt dispatch.Attempt
}

// arrive brings it to the object. Nobody hears the answer.
func (h *heldAttempt) arrive() {
	ctx, cancel := context.WithCancelCause(h.ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.l.life, func() { cancel(errCrashed) })()
	if h.l.isLost() {
		closeRequest(h.attempt)
		return
	}
	if h.attempt.Call.Kind == limpet.KindMethod {
		_, _ = h.l.objects.Do(ctx, h.attempt)
		return
	}
	h.attempt.Request = h.attempt.Request.WithContext(ctx)
	if resp, err := h.l.objects.Fetch(ctx, h.attempt); err == nil {
		_ = resp.Body.Close()
	}
}

// nowhere is the way to a node that is down: nobody answers the door.
type nowhere struct{}

func (nowhere) Do(context.Context, dispatch.Attempt) (any, error) { return nil, errDown() }

func (nowhere) Fetch(_ context.Context, a dispatch.Attempt) (*http.Response, error) {
	closeRequest(a)
	return nil, errDown()
}

func (nowhere) Outcome(context.Context, *limpet.CallSpec, limpet.OutcomeQuery, time.Duration) (*limpet.CallOutcome, error) {
	return nil, errDown()
}

func (nowhere) Lossless() bool      { return false }
func (nowhere) Boot() dispatch.Boot { return dispatch.Boot{} }

// router finds the node's objects where they are at the moment (SPEC E29).
type router struct{ n *Node }

func (r router) Route(context.Context, *limpet.CallSpec) (dispatch.Transport, error) {
	if l := r.n.way(); l != nil {
		return l, nil
	}
	return nowhere{}, nil
}

func systemRandom() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails (crypto/rand)
	return binary.BigEndian.Uint64(b[:])
}
