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
	// promised is the number of calls whose results the peer keeps.
	promised int
}

// outCall is a call that this side makes.
type outCall struct {
	n    uint64
	head *Call
	done chan struct{} // closed when there is an outcome or a failure
	over chan struct{} // closed when the call has ended, body and all
	in   inBody
	out  outBody

	// Under link.mu.
	sent, dropped bool
	refused       bool // the peer said that it failed
	settled       bool // done is closed
	ended         bool // over is closed
	has           bool // a value follows; fixed when done is closed
	// The outcome, fixed when done is closed.
	err    error
	length int            // of the value
	caps   *limpet.Parcel // in the result, until somebody takes them; nil if there are none
	resp   *responseHead
}

// begin queues a call's head, and its body if that is known and short. With
// more set there is a body that is sent apart. It takes over the capabilities,
// unless it fails.
func (o *outgoing) begin(ctx context.Context, c *Call, body limpet.Encoded, more bool, caps []limpet.Capability) (*outCall, error) {
	var head []byte
	if c.Ext == nil { // else what it says is known only below
		head = appendCall(make([]byte, headerBytes, 256), c)
		if len(head)-headerBytes > maxBlock {
			return nil, refused(limpet.CodeTooLarge, "the head of the call (name, URL, headers) is %d bytes; the limit is %d", len(head)-headerBytes, maxBlock)
		}
	}
	for {
		if err := o.waitRoom(ctx.Done()); err != nil {
			if errors.Is(err, errGone) {
				return nil, canceled(ctx, limpet.DeliveryNone)
			}
			return nil, lost(err, limpet.DeliveryNone)
		}
		if o.away && c.Kind.ofObject() {
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
	oc := &outCall{n: o.next, head: c, done: make(chan struct{}), over: make(chan struct{})}
	var free []limpet.Capability
	if c.Ext != nil {
		var err error
		if head, free, err = o.extendLocked(oc, caps); err != nil {
			o.mu.Unlock()
			return nil, err
		}
	}
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
	o.mu.Unlock()
	limpet.Parcel{Caps: free}.Release()
	if oc.promise() != nil && c.Ext.Begun != nil {
		c.Ext.Begun(&Promise{o, oc})
	}
	return oc, nil
}

// extendLocked makes the head of a call that is not a plain one. On an error
// nothing has changed. free is as for exportLocked.
func (o *outgoing) extendLocked(oc *outCall, caps []limpet.Capability) (head []byte, free []limpet.Capability, err error) {
	x := oc.head.Ext
	if x.of != nil {
		if err := o.parentLocked(x.of); err != nil {
			return nil, nil, err
		}
	}
	if x.caps, free, err = o.d.caps.exportLocked(caps); err != nil {
		return nil, nil, err
	}
	x.Pipelinable = x.Pipelinable && o.promised < min(int(o.d.peer.MaxCalls), maxCalls)
	head = appendCall(make([]byte, headerBytes, 256), oc.head)
	if n := len(head) - headerBytes; n > maxBlock {
		for _, d := range x.caps { // the caller keeps them
			if !d.home {
				o.d.caps.takeBackLocked(d)
			}
		}
		return nil, nil, refused(limpet.CodeTooLarge, "the head of the call (names, URL, headers, path) is %d bytes; the limit is %d", n, maxBlock)
	}
	if x.Pipelinable {
		o.promised++
		x.promise = &outPromise{}
	}
	if x.of != nil {
		o.adoptLocked(oc, x.of)
	}
	return head, free, nil
}

// dropLocked is for a call that never left, or that the peer never took.
func (o *outgoing) dropLocked(oc *outCall) {
	oc.dropped = true
	if x := oc.head.Ext; x != nil && o.err == nil { // else gone releases everything
		o.d.caps.unexportLocked(x.caps)
	}
}

// settleLocked fixes the outcome, once.
func (o *outgoing) settleLocked(oc *outCall, err error) {
	if !oc.settled {
		oc.settled, oc.err = true, err
		close(oc.done)
		if err != nil {
			o.brokenLocked(oc)
		}
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
		o.dropLocked(oc)
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
	switch {
	case errors.Is(context.Cause(ctx), limpet.CodeDisconnected):
		return cancelLost
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
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

// call is Session.Call, and calls a capability.
func (o *outgoing) call(ctx context.Context, c *Call, args limpet.Parcel) (limpet.Parcel, error) {
	if len(c.Method) > maxMethod {
		args.Release()
		return limpet.Parcel{}, refused(limpet.CodeInvalidArgument, "a method name of %d bytes; the limit is %d", len(c.Method), maxMethod)
	}
	if len(args.Caps) > 0 && c.Ext == nil {
		c.Ext = &Ext{}
	}
	c.Length = int64(len(args.Bytes))
	o.left(ctx, c)
	return o.exchange(ctx, c, args)
}

// describe is Session.Describe.
func (o *outgoing) describe(ctx context.Context, binding string) (BindingInfo, error) {
	if len(binding) > maxBinding {
		return BindingInfo{}, refused(limpet.CodeUnknownNamespace, "no namespace is bound to %.200q", binding)
	}
	b, err := o.exchange(ctx, &Call{Kind: KindDescribe, Binding: binding}, limpet.Parcel{})
	if err != nil {
		return BindingInfo{}, err
	}
	info, err := readBinding(b.Bytes)
	if err != nil {
		o.fail(err)
		return BindingInfo{}, lost(err, limpet.DeliveryReceived)
	}
	return info, nil
}

func (o *outgoing) exchange(ctx context.Context, c *Call, args limpet.Parcel) (result limpet.Parcel, err error) {
	long := len(args.Bytes) > min(int(o.d.peer.window(c.Kind, o.d.dialer)), maxPayload)
	first := args.Bytes
	if long {
		first = nil
	}
	oc, err := o.begin(ctx, c, first, long, args.Caps)
	if err != nil {
		args.Release()
		return result, err
	}
	if long {
		sent := make(chan struct{})
		if o.spawn(func() { // ends with the call; outcome tells why
			_ = o.send(&oc.out, args.Bytes, true)
			close(sent)
		}) {
			defer func() { <-sent }()
		}
	}
	if err := o.outcome(ctx, oc); err != nil {
		if e, ok := errors.AsType[*limpet.Error](err); ok && e.Delivery == limpet.DeliveryReceived {
			o.acknowledge(oc)
		}
		o.take(oc).Release()
		return result, err
	}
	var b limpet.Encoded
	if oc.has {
		if b, err = o.collect(ctx, oc); err != nil {
			o.take(oc).Release()
			return result, err
		}
	}
	o.acknowledge(oc)
	if result.Bytes = b; oc.caps != nil {
		result.Caps = o.take(oc).Caps
	}
	return result, nil
}

// take takes the capabilities of the result, once.
func (o *outgoing) take(oc *outCall) limpet.Parcel {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := oc.caps
	oc.caps = nil
	if p == nil {
		return limpet.Parcel{}
	}
	return *p
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
	if o.held+n > maxOfResults || !o.budget.take(o.held, n) {
		return false
	}
	o.held += n
	return true
}

func (o *outgoing) unhold(n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.budget.give(o.held, n)
	o.held -= n
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
	oc, err := o.begin(ctx, c, nil, body != nil, nil)
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
			o.dropLocked(oc)
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
		if f.typ == frameResult { // it was abandoned
			h, err := readResult(f.payload)
			if err != nil {
				return err
			}
			o.d.caps.refuseLocked(h.caps)
		}
		return nil
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
		if oc.settled || oc.head.Kind.hasResponse() != (f.typ == frameResponse) {
			return violation("%v of call %d, which is not due", f.typ, f.call)
		}
		if err := o.outcomeLocked(oc, f); err != nil {
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
		oc.refused = true
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

// outcomeLocked reads the head of an outcome.
func (o *outgoing) outcomeLocked(oc *outCall, f frame) (err error) {
	if oc.head.Kind.hasResponse() {
		oc.resp, err = readResponse(f.payload)
		return err
	}
	h, err := readResult(f.payload)
	if err != nil {
		return err
	}
	oc.has, oc.length = h.has, h.length
	if !oc.has && !f.ends() && oc.head.Kind != KindStream {
		return violation("%v of call %d without a value does not end it", f.typ, f.call)
	}
	if len(h.caps) == 0 {
		return nil
	}
	if oc.head.Kind == KindStream || oc.head.Kind == KindDescribe || oc.head.Kind == KindOutcome {
		return violation("%v of call %d with capabilities, which it can't have", f.typ, f.call)
	}
	caps, err := o.d.caps.importLocked(h.caps)
	if err == nil {
		oc.caps = &limpet.Parcel{Caps: caps}
		return nil
	}
	if !errors.Is(err, errProtocol) {
		e := limpet.Errorf(limpet.CodeOverloaded, "the result was dropped: %w", err)
		e.Overloaded, e.Delivery = true, limpet.DeliveryReceived
		if !f.ends() {
			o.pushLocked(item{head: appendFrame(nil, frameCancel, 0, oc.n, []byte{byte(cancelClosed)})})
		}
		o.settleLocked(oc, e)
		o.endLocked(oc)
		return nil
	}
	return err
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
		if n > last && !oc.settled && oc.head.Kind.ofObject() {
			o.dropLocked(oc)
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
