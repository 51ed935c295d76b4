package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/limpet-dev/limpet"
)

// outgoing is the half of a connection that makes calls.
//
// A call of it is in one of these states, which decide what is known of its
// delivery when the connection ends:
//
//	┌────────┐ handed to Write ┌──────┐ outcome's frame ┌──────────┐
//	│ queued │ ──────────────▶ │ sent │ ──────────────▶ │ received │
//	└────────┘                 └──────┘                 └──────────┘
//	not delivered              uncertain; not           received
//	                           delivered if above
//	                           the peer's GOAWAY
type outgoing struct {
	*link
	d *duplex

	// budget bounds the results that are being read; nil means that those are
	// what this process asked for and trusts itself with.
	budget *budget

	// Under link.mu.
	calls   map[uint64]*outCall
	next    uint64
	away    bool // the peer or we take no new calls
	awayWhy string
	slot    chan struct{} // closed when a call has ended; nil if nobody waits
	held    int64         // of budget
}

// outCall is a call that this side makes.
type outCall struct {
	n     uint64
	head  *Call
	done  chan struct{} // closed when there is an outcome or a failure
	over  chan struct{} // closed when the call has ended, body and all
	in    inBody
	out   outBody
	fetch bool

	// Under link.mu.
	sent, dropped bool
	settled       bool // done is closed
	ended         bool // over is closed
	// The outcome, fixed when done is closed.
	err    error
	has    bool // a result with a value
	length int
	resp   *responseHead
}

// begin queues a call's head, and its body if that is known and short. With
// more set there is a body that is sent apart.
func (o *outgoing) begin(ctx context.Context, c *Call, body limpet.Encoded, more bool) (*outCall, error) {
	head := appendCall(make([]byte, headerBytes, 256), c)
	if len(head)-headerBytes > maxBlock {
		return nil, refused(limpet.CodeTooLarge, "the head of the call (name, URL, headers) is %d bytes; the limit is %d", len(head)-headerBytes, maxBlock)
	}
	for {
		if err := o.waitRoom(ctx.Done()); err != nil {
			if errors.Is(err, errGone) {
				return nil, canceled(ctx, limpet.DeliveryNone)
			}
			return nil, lost(err, limpet.DeliveryNone)
		}
		if o.away {
			why := o.awayWhy
			o.mu.Unlock()
			return nil, draining(why)
		}
		if len(o.calls) < min(int(o.d.peer.MaxCalls), maxCalls) {
			break
		}
		if o.slot == nil {
			o.slot = make(chan struct{})
		}
		slot := o.slot
		o.mu.Unlock()
		select {
		case <-slot:
		case <-o.closed:
		case <-ctx.Done():
			return nil, canceled(ctx, limpet.DeliveryNone)
		}
	}
	defer o.mu.Unlock()
	oc := &outCall{n: o.next, head: c, done: make(chan struct{}), over: make(chan struct{}), fetch: c.Kind == KindFetch}
	o.next += 2
	o.calls[oc.n] = oc
	oc.in.init(o.link, oc.n, int64(o.hello.window(c.Kind, o.d.dialer)))
	oc.out.init(oc.n, oc, oc.over, o.d.peer.window(c.Kind, o.d.dialer))
	flags := uint8(flagEnd)
	if more || len(body) > 0 {
		flags = 0
	}
	if len(head) <= MaxFrame {
		appendHead(head[:0], frameCall, flags, oc.n, len(head)-headerBytes)
	} else {
		head = appendBlock(nil, frameCall, flags, oc.n, head[headerBytes:])
	}
	if len(body) > 0 {
		head = appendHead(head, frameData, flagEnd, oc.n, len(body))
		oc.out.flow -= outflow(len(body))
	}
	o.pushLocked(item{head: head, tail: body, call: oc})
	return oc, nil
}

// settleLocked fixes the outcome, once.
func (o *outgoing) settleLocked(oc *outCall, err error) {
	if !oc.settled {
		oc.settled, oc.err = true, err
		close(oc.done)
	}
}

// endLocked forgets a call: its numbers mean nothing any more.
func (o *outgoing) endLocked(oc *outCall) {
	if oc.ended {
		return
	}
	oc.ended = true
	close(oc.over)
	delete(o.calls, oc.n)
	if o.slot != nil {
		close(o.slot)
		o.slot = nil
	}
	o.d.restLocked()
}

// abandon ends a call that nobody waits for, and returns what is known of its
// delivery.
func (o *outgoing) abandon(oc *outCall, why cancelReason, broken error) limpet.Delivery {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := limpet.DeliveryUncertain
	switch {
	case oc.settled && oc.err == nil:
		d = limpet.DeliveryReceived
	case oc.settled:
		d = limpet.DeliveryOf(oc.err)
	case !oc.sent:
		d = limpet.DeliveryNone
		oc.dropped = true
	}
	if !oc.ended && oc.sent {
		o.pushLocked(item{head: appendFrame(nil, frameCancel, 0, oc.n, []byte{byte(why)})})
	}
	o.settleLocked(oc, errGone)
	oc.in.breakLocked(broken)
	o.endLocked(oc)
	return d
}

// reasonOf is why a context ended, for the peer.
func reasonOf(ctx context.Context) cancelReason {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return cancelDeadline
	}
	return cancelAborted
}

// canceled is the failure of a call whose caller's context ended (SPEC C41).
func canceled(ctx context.Context, d limpet.Delivery) *limpet.Error {
	e := limpet.Errorf(limpet.CodeCanceled, "The operation was aborted: %w", context.Cause(ctx))
	e.Delivery = d
	return e
}

// outcome waits for a call's outcome, or for the caller's end.
func (o *outgoing) outcome(ctx context.Context, oc *outCall) error {
	select {
	case <-oc.done:
		return oc.err
	default:
	}
	select {
	case <-oc.done:
		return oc.err
	case <-ctx.Done():
		return canceled(ctx, o.abandon(oc, reasonOf(ctx), errGone))
	}
}

// acknowledge lets the peer forget the identity of a call that was answered and
// of which there is no other attempt.
func (o *outgoing) acknowledge(oc *outCall) {
	if oc.head.Retry || oc.head.Identity.IsZero() || oc.head.Kind == KindDescribe {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil || len(o.acks) >= 4*maxAcks {
		return
	}
	o.acks = append(o.acks, ack{oc.head.Object, oc.head.Identity})
	if len(o.acks) == maxAcks/4 {
		o.kick()
	}
}

// left notes the time until ctx's deadline. One beyond what a call's head can say
// is none: it is decades away.
func (o *outgoing) left(ctx context.Context, c *Call) {
	if at, ok := ctx.Deadline(); ok {
		if d := max(at.Sub(o.clock.Now()), 0); d < milliseconds(maxDeadline) {
			c.HasTimeLeft, c.TimeLeft = true, d
		}
	}
}

// call is Session.Call.
func (o *outgoing) call(ctx context.Context, c *Call, args limpet.Encoded) (limpet.Encoded, error) {
	if len(c.Method) > maxMethod {
		return nil, refused(limpet.CodeInvalidArgument, "a method name of %d bytes; the limit is %d", len(c.Method), maxMethod)
	}
	c.Length = int64(len(args))
	o.left(ctx, c)
	return o.exchange(ctx, c, args)
}

// describe is Session.Describe.
func (o *outgoing) describe(ctx context.Context, binding string) (BindingInfo, error) {
	if len(binding) > maxBinding {
		return BindingInfo{}, refused(limpet.CodeUnknownNamespace, "no namespace is bound to %.200q", binding)
	}
	b, err := o.exchange(ctx, &Call{Kind: KindDescribe, Binding: binding}, nil)
	if err != nil {
		return BindingInfo{}, err
	}
	info, err := readBinding(b)
	if err != nil {
		o.fail(err)
		return BindingInfo{}, lost(err, limpet.DeliveryReceived)
	}
	return info, nil
}

func (o *outgoing) exchange(ctx context.Context, c *Call, args limpet.Encoded) (limpet.Encoded, error) {
	long := len(args) > min(int(o.d.peer.window(c.Kind, o.d.dialer)), maxPayload)
	first := args
	if long {
		first = nil
	}
	oc, err := o.begin(ctx, c, first, long)
	if err != nil {
		return nil, err
	}
	if long {
		sent := make(chan struct{})
		if o.spawn(func() { // ends with the call; outcome tells why
			_ = o.send(&oc.out, args, true)
			close(sent)
		}) {
			defer func() { <-sent }()
		}
	}
	if err := o.outcome(ctx, oc); err != nil {
		if e, ok := errors.AsType[*limpet.Error](err); ok && e.Delivery == limpet.DeliveryReceived {
			o.acknowledge(oc)
		}
		return nil, err
	}
	var result limpet.Encoded
	if oc.has {
		if result, err = o.collect(ctx, oc); err != nil {
			return nil, err
		}
	}
	o.acknowledge(oc)
	return result, nil
}

// whole takes a short result that has come to its end already, as most do.
func (o *outgoing) whole(oc *outCall) (limpet.Encoded, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	in := &oc.in
	if !errors.Is(in.err, io.EOF) || in.off > 0 || len(in.buf) != oc.length || o.budget != nil && oc.length > initialWindow {
		return nil, false
	}
	result := limpet.Encoded(in.buf)
	in.dropLocked()
	return result, true
}

// collect reads a result of known length.
func (o *outgoing) collect(ctx context.Context, oc *outCall) (limpet.Encoded, error) {
	if oc.length > 0 {
		if result, ok := o.whole(oc); ok {
			return result, nil
		}
	}
	stop := context.AfterFunc(ctx, func() {
		o.abandon(oc, reasonOf(ctx), canceled(ctx, limpet.DeliveryReceived))
	})
	defer stop()
	o.mu.Lock()
	oc.in.expectLocked(int64(oc.length))
	o.mu.Unlock()
	var held int64
	if o.budget != nil {
		defer func() { o.unhold(held) }()
	}
	result := limpet.Encoded{} // nil would be none
	for size := min(oc.length, maxWindow); len(result) < oc.length; {
		if len(result) == cap(result) {
			if o.budget != nil {
				if !o.hold(int64(size) - held) {
					o.abandon(oc, cancelClosed, errGone)
					e := overloaded("results under way hold too many bytes on this connection or node; this one has %d", oc.length)
					e.Delivery = limpet.DeliveryReceived
					return nil, e
				}
				held = int64(size)
			}
			result = append(make(limpet.Encoded, 0, size), result...)
			size = min(oc.length, 2*size)
		}
		n, err := oc.in.Read(result[len(result):cap(result)])
		result = result[:len(result)+n]
		if err != nil {
			return nil, received(err)
		}
	}
	_, err := oc.in.Read(make([]byte, 1))
	if !errors.Is(err, io.EOF) {
		if err == nil {
			err = violation("a result is longer than it was said to be")
			o.fail(err)
		}
		return nil, received(err)
	}
	_ = oc.in.Close()
	return result, nil
}

// hold takes n bytes more of the budget, if they are there.
func (o *outgoing) hold(n int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held+n > o.budget.limit/2 || !o.budget.take(n) {
		return false
	}
	o.held += n
	return true
}

func (o *outgoing) unhold(n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held -= n
	o.budget.give(n)
}

// received is the failure of a call whose answer could not be read to its end.
func received(err error) error {
	if e, ok := errors.AsType[*limpet.Error](err); ok {
		return e
	}
	return lost(err, limpet.DeliveryReceived)
}

// fetch is Session.Fetch.
func (o *outgoing) fetch(ctx context.Context, c *Call, req *http.Request) (*http.Response, error) {
	body := req.Body
	if body == http.NoBody {
		body = nil
	}
	closeBody := sync.OnceFunc(func() {
		if body != nil {
			_ = body.Close()
		}
	})
	c.Method, c.URL, c.Host, c.Header, c.Trailer = req.Method, req.URL.String(), req.Host, req.Header, req.Trailer
	if len(c.Method) > maxMethod || len(c.URL) > maxURL || len(c.Host) > maxURL {
		closeBody()
		return nil, refused(limpet.CodeTooLarge, "the method, URL or host of a fetch is over its limit of %d, %d and %d bytes", maxMethod, maxURL, maxURL)
	}
	if n := max(fields(c.Header), len(c.Trailer)); n > maxFields {
		closeBody()
		return nil, refused(limpet.CodeTooLarge, "the request has %d header fields or trailers; the limit is %d", n, maxFields)
	}
	c.Length = req.ContentLength
	if body == nil {
		c.Length = 0
	} else if c.Length <= 0 {
		c.Length = -1
	}
	o.left(ctx, c)
	oc, err := o.begin(ctx, c, nil, body != nil)
	if err != nil {
		closeBody()
		return nil, err
	}
	if body != nil {
		stop := context.AfterFunc(ctx, closeBody) // so that a Read that waits returns
		if !o.spawn(func() {
			defer closeBody()
			defer stop()
			o.upload(oc, body, req)
		}) {
			closeBody()
		}
	}
	if err := o.outcome(ctx, oc); err != nil {
		closeBody()
		if e, ok := errors.AsType[*limpet.Error](err); ok && e.Delivery == limpet.DeliveryReceived {
			o.acknowledge(oc)
		}
		return nil, err
	}
	return o.response(ctx, oc, req, closeBody), nil
}

// upload sends a request's body.
func (o *outgoing) upload(oc *outCall, body io.Reader, req *http.Request) {
	err := o.pump(&oc.out, body, func() http.Header { return req.Trailer })
	var source errSource
	if !errors.As(err, &source) {
		return // the end of the call or of the connection, which tell of themselves
	}
	e := limpet.Errorf(limpet.CodeInvalidArgument, "the request's body can't be read: %w", source.err)
	_ = o.block(&oc.out, frameAbort, flagEnd, appendFailure(nil, e)) // if it fails, so has the call
	o.mu.Lock()
	defer o.mu.Unlock()
	if !oc.settled { // else the handler answered without it
		if !oc.sent {
			oc.dropped = true
			e.Delivery = limpet.DeliveryNone
		}
		o.settleLocked(oc, e)
		o.endLocked(oc)
	}
}

// response makes the response of a call that has a head. ended is called when
// the response has ended.
func (o *outgoing) response(ctx context.Context, oc *outCall, req *http.Request, ended func()) *http.Response {
	h := oc.resp
	resp := &http.Response{
		Status: strconv.Itoa(h.status) + " " + http.StatusText(h.status), StatusCode: h.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h.header, ContentLength: h.length, Trailer: h.trailer,
		Request: req, Body: &oc.in,
	}
	stop := context.AfterFunc(ctx, func() {
		o.abandon(oc, reasonOf(ctx), canceled(ctx, limpet.DeliveryReceived))
	})
	oc.in.atEnd = func(err error) {
		stop()
		ended()
		if !errors.Is(err, io.EOF) {
			return
		}
		o.mu.Lock()
		trailer := oc.in.trailer
		o.mu.Unlock()
		if len(trailer) > 0 {
			if resp.Trailer == nil {
				resp.Trailer = http.Header{}
			}
			for k, v := range trailer {
				resp.Trailer[k] = v
			}
		}
		o.acknowledge(oc)
	}
	oc.in.onClose = func(unread bool) {
		stop()
		ended()
		if unread {
			o.abandon(oc, cancelClosed, http.ErrBodyReadAfterClose)
		}
	}
	return resp
}

// frame takes what the peer sends about a call of this side.
func (o *outgoing) frame(f frame) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	oc := o.calls[f.call]
	if oc == nil {
		if f.call >= o.next {
			return violation("%v of call %d, which was never made", f.typ, f.call)
		}
		return nil // it was abandoned
	}
	return o.takeLocked(oc, f)
}

func (o *outgoing) takeLocked(oc *outCall, f frame) error {
	switch f.typ {
	case frameWindow:
		n, err := readWindow(f.payload)
		if err != nil {
			return err
		}
		return oc.out.grantLocked(n)
	case frameResult, frameResponse:
		if oc.settled || oc.fetch != (f.typ == frameResponse) {
			return violation("%v of call %d, which is not due", f.typ, f.call)
		}
		var err error
		if oc.fetch {
			oc.resp, err = readResponse(f.payload)
		} else {
			oc.has, oc.length, err = readResult(f.payload)
		}
		if err != nil {
			return err
		}
		o.settleLocked(oc, nil)
	case frameFailure:
		if oc.settled {
			return violation("%v of call %d, which has its outcome", f.typ, f.call)
		}
		failed, err := readFailure(f.payload)
		if err != nil {
			return err
		}
		if e, ok := errors.AsType[*limpet.Error](failed); ok {
			o.settleLocked(oc, e)
		} else {
			o.settleLocked(oc, lost(failed, limpet.DeliveryReceived))
		}
		o.endLocked(oc)
		return nil
	case frameData, frameTrailer, frameAbort:
		if !oc.settled {
			return violation("%v of call %d before its outcome", f.typ, f.call)
		}
		return o.bodyLocked(oc, f)
	default:
		return violation("%v of call %d by the side that runs it", f.typ, f.call)
	}
	if f.ends() {
		oc.in.endLocked(io.EOF)
		o.endLocked(oc)
	}
	return nil
}

func (o *outgoing) bodyLocked(oc *outCall, f frame) error {
	end, err := takeBodyLocked(&oc.in, f)
	if end {
		o.endLocked(oc)
	}
	return err
}

// takeBodyLocked gives a frame of a body to its reader, and reports whether it
// was the last one.
func takeBodyLocked(in *inBody, f frame) (end bool, err error) {
	switch f.typ {
	case frameTrailer:
		if in.trailer, err = readTrailer(f.payload); err != nil {
			return false, err
		}
		in.endLocked(io.EOF)
		return true, nil
	case frameAbort:
		failed, err := readFailure(f.payload)
		if err != nil {
			return false, err
		}
		in.endLocked(failed)
		return true, nil
	}
	if err := in.arriveLocked(f.payload); err != nil {
		return false, err
	}
	if f.ends() {
		in.endLocked(io.EOF)
	}
	return f.ends(), nil
}

// goneAway takes no new calls, and fails those that the peer never took.
func (o *outgoing) goneAway(last uint64, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away, o.awayWhy = true, why
	for n, oc := range o.calls {
		if n > last && !oc.settled {
			oc.dropped = true
			o.settleLocked(oc, draining(why))
			o.endLocked(oc)
		}
	}
	o.d.restLocked()
}

// gone fails all calls when the connection has ended.
func (o *outgoing) gone(why error) {
	if errors.Is(why, io.EOF) {
		why = errors.New("the peer closed the connection")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away = true
	for _, oc := range o.calls {
		switch {
		case oc.settled:
			oc.in.breakLocked(lost(why, limpet.DeliveryReceived)) // SPEC C22
		case oc.sent:
			o.settleLocked(oc, lost(why, limpet.DeliveryUncertain)) // SPEC C21
		default:
			o.settleLocked(oc, lost(why, limpet.DeliveryNone)) // SPEC C20
		}
		o.endLocked(oc)
	}
}
