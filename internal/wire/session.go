package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
)

// Session is the dialer's end of a connection. It is safe for concurrent use.
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
type Session struct {
	*link
	peer Hello

	// Under link.mu.
	calls   map[uint64]*outCall
	next    uint64
	away    bool // the peer or we take no new calls
	awayWhy string
	slot    chan struct{} // closed when a call has ended; nil if nobody waits
}

// outCall is a call of a Session.
type outCall struct {
	n     uint64
	head  *Call
	done  chan struct{} // closed when there is an outcome or a failure
	over  chan struct{} // closed when the call has ended, body and all
	in    *inBody
	out   *outBody
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

// NewSession makes a session of a connection that was dialed. It waits for the
// peer's hello until ctx ends. The errors are plain; nothing of a call was sent.
func NewSession(ctx context.Context, conn Conn, ours Hello, clock limpet.Clock) (*Session, error) {
	s := &Session{link: newLink(conn, clock), calls: map[uint64]*outCall{}, next: 1}
	peer, err := s.greet(ctx, ours, true)
	if err != nil {
		_ = conn.Close() // nothing was promised
		return nil, err
	}
	s.peer = peer
	s.run(s)
	return s, nil
}

// Peer is what the other side said of itself.
func (s *Session) Peer() Hello { return s.peer }

// Usable reports whether new calls may begin.
func (s *Session) Usable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err == nil && s.last == nil && !s.away
}

// Ended is closed when the connection has ended.
func (s *Session) Ended() <-chan struct{} { return s.closed }

// Close ends the connection at once and returns when its goroutines have ended.
// Calls fail as if it had been lost.
func (s *Session) Close() {
	s.fail(errClosed)
	s.wait()
}

// begin queues a call's head, and its body if that is known and short. With
// more set there is a body that is sent apart.
func (s *Session) begin(ctx context.Context, c *Call, body limpet.Encoded, more bool) (*outCall, error) {
	head := appendCall(make([]byte, headerBytes, 256), c)
	if len(head)-headerBytes > maxBlock {
		return nil, refused(limpet.CodeTooLarge, "the head of the call (name, URL, headers) is %d bytes; the limit is %d", len(head)-headerBytes, maxBlock)
	}
	for {
		if err := s.waitRoom(ctx.Done()); err != nil {
			if errors.Is(err, errGone) {
				return nil, canceled(ctx, limpet.DeliveryNone)
			}
			return nil, lost(err, limpet.DeliveryNone)
		}
		if s.away {
			why := s.awayWhy
			s.mu.Unlock()
			return nil, draining(why)
		}
		if len(s.calls) < min(int(s.peer.MaxCalls), maxCalls) {
			break
		}
		if s.slot == nil {
			s.slot = make(chan struct{})
		}
		slot := s.slot
		s.mu.Unlock()
		select {
		case <-slot:
		case <-s.closed:
		case <-ctx.Done():
			return nil, canceled(ctx, limpet.DeliveryNone)
		}
	}
	defer s.mu.Unlock()
	oc := &outCall{n: s.next, head: c, done: make(chan struct{}), over: make(chan struct{}), fetch: c.Kind == KindFetch}
	s.next += 2
	s.calls[oc.n] = oc
	oc.in = newInBody(s.link, oc.n)
	oc.out = newOutBody(oc.n, oc, oc.over, s.peer.InitialWindow)
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
	s.pushLocked(item{head: head, tail: body, call: oc})
	return oc, nil
}

// settleLocked fixes the outcome, once.
func (s *Session) settleLocked(oc *outCall, err error) {
	if !oc.settled {
		oc.settled, oc.err = true, err
		close(oc.done)
	}
}

// endLocked forgets a call: its numbers mean nothing any more.
func (s *Session) endLocked(oc *outCall) {
	if oc.ended {
		return
	}
	oc.ended = true
	close(oc.over)
	delete(s.calls, oc.n)
	if s.slot != nil {
		close(s.slot)
		s.slot = nil
	}
	if s.away && len(s.calls) == 0 {
		s.finishLocked(errClosed)
	}
}

// abandon ends a call that nobody waits for, and returns what is known of its
// delivery.
func (s *Session) abandon(oc *outCall, why cancelReason, broken error) limpet.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
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
		s.pushLocked(item{head: appendFrame(nil, frameCancel, 0, oc.n, []byte{byte(why)})})
	}
	s.settleLocked(oc, errGone)
	oc.in.breakLocked(broken)
	s.endLocked(oc)
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
func (s *Session) outcome(ctx context.Context, oc *outCall) error {
	select {
	case <-oc.done:
		return oc.err
	default:
	}
	select {
	case <-oc.done:
		return oc.err
	case <-ctx.Done():
		return canceled(ctx, s.abandon(oc, reasonOf(ctx), errGone))
	}
}

// acknowledge lets the peer forget the identity of a call that was answered and
// of which there is no other attempt.
func (s *Session) acknowledge(oc *outCall) {
	if oc.head.Retry || oc.head.Identity.IsZero() || oc.head.Kind == KindDescribe {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || len(s.acks) >= 4*maxAcks {
		return
	}
	s.acks = append(s.acks, ack{oc.head.Object, oc.head.Identity})
	if len(s.acks) == maxAcks/4 {
		s.kick()
	}
}

// left notes the time until ctx's deadline. One beyond what a call's head can say
// is none: it is decades away.
func (s *Session) left(ctx context.Context, c *Call) {
	if at, ok := ctx.Deadline(); ok {
		if d := max(at.Sub(s.clock.Now()), 0); d < milliseconds(maxDeadline) {
			c.HasTimeLeft, c.TimeLeft = true, d
		}
	}
}

// Call makes one attempt of a method call. The result is nil for none. Every
// error is an *limpet.Error with its delivery. args must not change, also after
// Call has returned.
func (s *Session) Call(ctx context.Context, c *Call, args limpet.Encoded) (limpet.Encoded, error) {
	if len(c.Method) > maxMethod {
		return nil, refused(limpet.CodeInvalidArgument, "a method name of %d bytes; the limit is %d", len(c.Method), maxMethod)
	}
	c.Length = int64(len(args))
	s.left(ctx, c)
	return s.exchange(ctx, c, args)
}

// Describe asks about a binding.
func (s *Session) Describe(ctx context.Context, binding string) (BindingInfo, error) {
	if len(binding) > maxBinding {
		return BindingInfo{}, refused(limpet.CodeUnknownNamespace, "no namespace is bound to %.200q", binding)
	}
	b, err := s.exchange(ctx, &Call{Kind: KindDescribe, Binding: binding}, nil)
	if err != nil {
		return BindingInfo{}, err
	}
	info, err := readBinding(b)
	if err != nil {
		s.fail(err)
		return BindingInfo{}, lost(err, limpet.DeliveryReceived)
	}
	return info, nil
}

func (s *Session) exchange(ctx context.Context, c *Call, args limpet.Encoded) (limpet.Encoded, error) {
	long := len(args) > min(int(s.peer.InitialWindow), maxPayload)
	first := args
	if long {
		first = nil
	}
	oc, err := s.begin(ctx, c, first, long)
	if err != nil {
		return nil, err
	}
	if long {
		sent := make(chan struct{})
		if s.spawn(func() { // ends with the call; outcome tells why
			_ = s.send(oc.out, args, true)
			close(sent)
		}) {
			defer func() { <-sent }()
		}
	}
	if err := s.outcome(ctx, oc); err != nil {
		if e, ok := errors.AsType[*limpet.Error](err); ok && e.Delivery == limpet.DeliveryReceived {
			s.acknowledge(oc)
		}
		return nil, err
	}
	var result limpet.Encoded
	if oc.has {
		if result, err = s.collect(ctx, oc); err != nil {
			return nil, err
		}
	}
	s.acknowledge(oc)
	return result, nil
}

// collect reads a result of known length.
func (s *Session) collect(ctx context.Context, oc *outCall) (limpet.Encoded, error) {
	stop := context.AfterFunc(ctx, func() {
		s.abandon(oc, reasonOf(ctx), canceled(ctx, limpet.DeliveryReceived))
	})
	defer stop()
	s.mu.Lock()
	oc.in.expectLocked(int64(oc.length))
	s.mu.Unlock()
	result := make(limpet.Encoded, 0, min(oc.length, maxWindow))
	for len(result) < oc.length {
		if len(result) == cap(result) {
			grown := make(limpet.Encoded, len(result), min(oc.length, 2*cap(result)))
			copy(grown, result)
			result = grown
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
			s.fail(err)
		}
		return nil, received(err)
	}
	_ = oc.in.Close()
	return result, nil
}

// received is the failure of a call whose answer could not be read to its end.
func received(err error) error {
	if e, ok := errors.AsType[*limpet.Error](err); ok {
		return e
	}
	return lost(err, limpet.DeliveryReceived)
}

// Fetch makes one attempt of a fetch. It returns when the response's head is
// there; ctx goes on to bound the body. It closes req.Body in every case. Every
// error is an *limpet.Error with its delivery.
func (s *Session) Fetch(ctx context.Context, c *Call, req *http.Request) (*http.Response, error) {
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
	s.left(ctx, c)
	oc, err := s.begin(ctx, c, nil, body != nil)
	if err != nil {
		closeBody()
		return nil, err
	}
	if body != nil {
		stop := context.AfterFunc(ctx, closeBody) // so that a Read that waits returns
		if !s.spawn(func() {
			defer closeBody()
			defer stop()
			s.upload(oc, body, req)
		}) {
			closeBody()
		}
	}
	if err := s.outcome(ctx, oc); err != nil {
		closeBody()
		if e, ok := errors.AsType[*limpet.Error](err); ok && e.Delivery == limpet.DeliveryReceived {
			s.acknowledge(oc)
		}
		return nil, err
	}
	return s.response(ctx, oc, req, closeBody), nil
}

// upload sends a request's body.
func (s *Session) upload(oc *outCall, body io.Reader, req *http.Request) {
	err := s.pump(oc.out, body, func() http.Header { return req.Trailer })
	var source errSource
	if !errors.As(err, &source) {
		return // the end of the call or of the connection, which tell of themselves
	}
	e := limpet.Errorf(limpet.CodeInvalidArgument, "the request's body can't be read: %w", source.err)
	_ = s.block(oc.out, frameAbort, flagEnd, appendFailure(nil, e)) // if it fails, so has the call
	s.mu.Lock()
	defer s.mu.Unlock()
	if !oc.settled { // else the handler answered without it
		if !oc.sent {
			oc.dropped = true
			e.Delivery = limpet.DeliveryNone
		}
		s.settleLocked(oc, e)
		s.endLocked(oc)
	}
}

// response makes the response of a call that has a head. ended is called when
// the response has ended.
func (s *Session) response(ctx context.Context, oc *outCall, req *http.Request, ended func()) *http.Response {
	h := oc.resp
	resp := &http.Response{
		Status: strconv.Itoa(h.status) + " " + http.StatusText(h.status), StatusCode: h.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h.header, ContentLength: h.length, Trailer: h.trailer,
		Request: req, Body: oc.in,
	}
	stop := context.AfterFunc(ctx, func() {
		s.abandon(oc, reasonOf(ctx), canceled(ctx, limpet.DeliveryReceived))
	})
	oc.in.atEnd = func(err error) {
		stop()
		ended()
		if !errors.Is(err, io.EOF) {
			return
		}
		s.mu.Lock()
		trailer := oc.in.trailer
		s.mu.Unlock()
		if len(trailer) > 0 {
			if resp.Trailer == nil {
				resp.Trailer = http.Header{}
			}
			for k, v := range trailer {
				resp.Trailer[k] = v
			}
		}
		s.acknowledge(oc)
	}
	oc.in.onClose = func(unread bool) {
		stop()
		ended()
		if unread {
			s.abandon(oc, cancelClosed, http.ErrBodyReadAfterClose)
		}
	}
	return resp
}

// frame takes what the peer sends about calls.
func (s *Session) frame(f frame) error {
	switch f.typ {
	case frameGoAway:
		last, why, err := readGoAway(f.payload)
		if err != nil {
			return err
		}
		s.goneAway(last, why)
		return nil
	case frameCall:
		return violation("a call by the acceptor: not supported in version %d", maxVersion)
	case frameAck, frameCancel:
		return violation("%v by the acceptor", f.typ)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	oc := s.calls[f.call]
	if oc == nil {
		if f.call >= s.next || f.call%2 == 0 {
			return violation("%v of call %d, which was never made", f.typ, f.call)
		}
		return nil // it was abandoned
	}
	return s.takeLocked(oc, f)
}

func (s *Session) takeLocked(oc *outCall, f frame) error {
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
		s.settleLocked(oc, nil)
	case frameFailure:
		if oc.settled {
			return violation("%v of call %d, which has its outcome", f.typ, f.call)
		}
		failed, err := readFailure(f.payload)
		if err != nil {
			return err
		}
		if e, ok := errors.AsType[*limpet.Error](failed); ok {
			s.settleLocked(oc, e)
		} else {
			s.settleLocked(oc, lost(failed, limpet.DeliveryReceived))
		}
		s.endLocked(oc)
		return nil
	case frameData, frameTrailer, frameAbort:
		if !oc.settled {
			return violation("%v of call %d before its outcome", f.typ, f.call)
		}
		return s.bodyLocked(oc, f)
	default:
		return violation("%v by the acceptor", f.typ)
	}
	if f.ends() {
		oc.in.endLocked(io.EOF)
		s.endLocked(oc)
	}
	return nil
}

func (s *Session) bodyLocked(oc *outCall, f frame) error {
	end, err := takeBodyLocked(oc.in, f)
	if end {
		s.endLocked(oc)
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
func (s *Session) goneAway(last uint64, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away, s.awayWhy = true, why
	for n, oc := range s.calls {
		if n > last && !oc.settled {
			oc.dropped = true
			s.settleLocked(oc, draining(why))
			s.endLocked(oc)
		}
	}
	if len(s.calls) == 0 {
		s.finishLocked(errClosed)
	}
}

// gone fails all calls when the connection has ended.
func (s *Session) gone(why error) {
	if errors.Is(why, io.EOF) {
		why = errors.New("the peer closed the connection")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = true
	for _, oc := range s.calls {
		switch {
		case oc.settled:
			oc.in.breakLocked(lost(why, limpet.DeliveryReceived)) // SPEC C22
		case oc.sent:
			s.settleLocked(oc, lost(why, limpet.DeliveryUncertain)) // SPEC C21
		default:
			s.settleLocked(oc, lost(why, limpet.DeliveryNone)) // SPEC C20
		}
		s.endLocked(oc)
	}
}

func (s *Session) tick(time.Duration) {}
