package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/workers"
)

// incoming is the half of a connection that runs the peer's calls.
//
//	a call:  CALL ──▶ arguments come ──END──▶ runs ──outcome──▶ body leaves ──END──▶ over
//	                  (a fetch runs at once)
//	                  CANCEL, or the end of the connection, ends its context in
//	                  every state; then nothing more of it is written
type incoming struct {
	*link
	d      *duplex
	callee Callee
	base   context.Context // of all calls, which end when it has ended and gone was called
	most   int             // calls at one time

	workers *workers.Pool[*inCall] // run the calls; other connections may share them

	// Under link.mu.
	calls    map[uint64]*inCall
	promised map[uint64]*promised
	last     uint64 // highest number taken
	drained  bool   // GOAWAY was sent: no new calls of objects are taken
	held     int64  // of shares.calls
	results  int64  // bytes of results that wait
	running  int    // goroutines of calls, also of those that are over
}

// inCall is a call of the peer.
type inCall struct {
	c     *incoming
	n     uint64
	head  *Call
	ctx   *callContext
	out   outBody
	body  *inBody // of a fetch
	gone  chan struct{}
	limit limpet.Timer // the caller's deadline; nil if it has none
	// pumping is its goroutine's own: the head of the outcome was sent.
	pumping bool
	// Under link.mu.
	args    limpet.Encoded // of a method
	held    int64          // of shares.calls: cost and what args have taken
	cost    int64          // until the goroutine has ended
	moved   time.Duration  // when a piece of args came last
	running bool
	over    bool // out of c.calls
	ext     *inExt
}

// inExt is what a call has beyond plain ones, or nil.
type inExt struct {
	target  limpet.Capability // what is called; of the call, unless it is a stream
	of      *promised         // the result on which the call is made, or nil
	promise *promised         // of this call's result, or nil
	args    []limpet.Capability
}

// callContext is the context of a call: it ends with the connection, with a
// CANCEL, and at the caller's deadline, which it knows.
type callContext struct {
	context.Context
	cancel context.CancelCauseFunc
	at     time.Time
}

func (x *callContext) Deadline() (time.Time, bool) { return x.at, !x.at.IsZero() }

// Err is context.DeadlineExceeded if that is why the context ended.
func (x *callContext) Err() error {
	err := x.Context.Err()
	if err != nil && errors.Is(context.Cause(x.Context), context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}

// Causes of contexts that end by the caller.
var (
	errCanceledByCaller = errors.New("the caller canceled the call")
	errBodyNotWanted    = errors.New("the caller closed the response's body")
	// The code tells it from the caller's own wish: see internal/host.
	errCallerLost = limpet.Errorf(limpet.CodeDisconnected, "the caller waits no longer")
)

// frame takes what the peer sends about a call of its own.
func (c *incoming) frame(f frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ic := c.calls[f.call]
	if f.typ == frameForget {
		if len(f.payload) > 0 {
			return violation("%v of %d bytes", f.typ, len(f.payload))
		}
		if f.call > c.last && !c.drained {
			return violation("%v of call %d, which was never made", f.typ, f.call)
		}
		c.forgetLocked(f.call)
		return nil
	}
	if ic == nil {
		if f.call > c.last && !c.drained {
			return violation("%v of call %d, which was never made", f.typ, f.call)
		}
		return nil // it is over, or came after GOAWAY
	}
	switch f.typ {
	case frameWindow:
		n, err := readWindow(f.payload)
		if err != nil {
			return err
		}
		return ic.out.grantLocked(n)
	case frameCancel:
		why, err := readCancel(f.payload)
		if err != nil {
			return err
		}
		cause := map[cancelReason]error{
			cancelAborted: errCanceledByCaller, cancelDeadline: context.DeadlineExceeded, cancelClosed: errBodyNotWanted,
			cancelLost: errCallerLost,
		}[why]
		ic.dropLocked(cause)
		return nil
	case frameData, frameTrailer, frameAbort:
		if ic.body != nil {
			_, err := takeBodyLocked(ic.body, f)
			return err
		}
		return ic.argsLocked(f)
	}
	return violation("%v of call %d by the side that made it", f.typ, f.call)
}

// begin takes a call.
func (c *incoming) begin(f frame) error {
	if c.d.ours(f.call) {
		return violation("call %d has a number of the other side", f.call)
	}
	head, err := readCall(f.payload)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.drained && head.Kind.ofObject():
		return nil // above GOAWAY: the caller knows that it was not taken
	case c.link.last != nil:
		return nil // the connection is about to end
	case f.call <= c.last:
		return violation("call %d after call %d", f.call, c.last)
	case len(c.calls) >= c.most:
		return violation("more than %d calls at one time", c.most)
	}
	c.last = f.call
	ic := &inCall{c: c, n: f.call, head: head, gone: make(chan struct{}), moved: c.now()}
	// Not a child of base: gone ends it, and a thousand children cost time.
	inner, cancel := context.WithCancelCause(context.Background())
	ic.ctx = &callContext{Context: inner, cancel: cancel}
	if head.HasTimeLeft {
		ic.ctx.at = c.clock.Now().Add(head.TimeLeft)
		ic.limit = c.clock.AfterFunc(head.TimeLeft, func() { cancel(context.DeadlineExceeded) })
	}
	ic.out.init(ic.n, nil, ic.gone, c.d.peer.window(head.Kind, !c.d.dialer))
	c.calls[ic.n] = ic
	if head.Ext != nil {
		if refused, err := ic.extendLocked(); refused != nil || err != nil {
			if err == nil {
				err = ic.refuseLocked(refused)
			}
			return err
		}
	}
	ic.cost = callCost
	if head.Kind.hasResponse() {
		ic.cost = fetchCost
	}
	if n := int64(len(f.payload)); n > smallHead {
		ic.cost += 2 * n
	}
	if !ic.holdLocked(ic.cost) {
		ic.cost = 0
		return ic.refuseLocked(c.full())
	}
	if head.Kind.hasResponse() {
		ic.body = newInBody(c.link, ic.n)
		if f.ends() {
			ic.body.endLocked(io.EOF)
		}
		return ic.startLocked()
	}
	switch {
	case head.Kind == KindOutcome && head.Length != ageBytes:
		return violation("an age of %d bytes", head.Length)
	case (head.Kind == KindMethod || head.Kind == KindTarget) && (head.Length < 0 || head.Length > maxBody):
		return violation("a method call with arguments of %d bytes", head.Length)
	case f.ends():
		if head.Length > 0 {
			return violation("a method call without its arguments of %d bytes", head.Length)
		}
		return ic.startLocked()
	}
	// Arguments are taken as they come.
	if n, window := head.Length, int64(c.hello.window(head.Kind, !c.d.dialer)); n > window {
		return c.answerLocked(item{head: appendWindow(nil, ic.n, n-window)})
	}
	return nil
}

// smallHead is a call's head that costs less than counting it.
const smallHead = 4 << 10

// holdLocked takes n bytes more of the budgets, if they are there.
func (ic *inCall) holdLocked(n int64) bool {
	if !ic.c.holdLocked(n) {
		return false
	}
	ic.held += n
	return true
}

func (c *incoming) holdLocked(n int64) bool {
	if c.held+n > maxOfCalls || !c.shares.calls.take(c.held, n) {
		return false
	}
	c.held += n
	return true
}

func (c *incoming) giveLocked(n int64) {
	c.shares.calls.give(c.held, n)
	c.held -= n
}

// full refuses a call for which there is no room.
func (c *incoming) full() *limpet.Error {
	c.shares.refused.Add(1)
	return overloaded("calls of other processes hold too many bytes: %d on this connection, of at most %d, and %d at this node, of at most %d (Config.Wire.MaxMemory); calls of large arguments are refused first",
		c.held, int64(maxOfCalls), c.shares.calls.inUse(), c.shares.calls.limit)
}

// extendLocked finds what a call is made on, and takes its capabilities. It is
// refused, or the peer has broken the protocol.
func (ic *inCall) extendLocked() (refused *limpet.Error, err error) {
	c, h := ic.c, ic.head.Ext
	x := &inExt{}
	ic.ext = x
	switch {
	case h.capability != 0:
		if x.target, err = c.d.caps.exportedLocked(h.capability); err != nil {
			return nil, err
		}
		if ic.head.Kind != KindStream { // a read ends with the handle, a call does not
			x.target = x.target.Dup()
		}
	case h.parent != 0:
		if x.of = c.promised[h.parent]; x.of != nil {
			x.of.refs++
			break
		}
		switch {
		case c.drained:
			refused = draining("the node is stopping")
		case h.parent >= ic.n || c.d.ours(h.parent):
			return nil, violation("call %d on the result of call %d, which was not made before", ic.n, h.parent)
		default:
			refused = limpet.DisposedError()
		}
	}
	x.args, err = c.d.caps.importLocked(h.caps)
	if err != nil {
		if errors.Is(err, errProtocol) {
			return nil, err
		}
		return overloaded("%w", err), nil
	}
	if h.Pipelinable && refused == nil {
		x.promise, err = c.promiseLocked(ic.n)
	}
	return refused, err
}

// freeLocked gives back what the call was made on and with.
func (ic *inCall) freeLocked() {
	x := ic.ext
	if x == nil {
		return
	}
	free := x.args
	if x.target != nil && ic.head.Kind != KindStream {
		free = append(free, x.target)
	}
	x.args, x.target = nil, nil
	ic.c.d.caps.laterLocked(free)
	if x.of != nil {
		ic.c.letGoLocked(x.of)
		x.of = nil
	}
}

// argsLocked takes a piece of a method's arguments.
func (ic *inCall) argsLocked(f frame) error {
	c := ic.c
	switch {
	case f.typ == frameAbort:
		ic.dropLocked(errCanceledByCaller)
		return nil
	case f.typ != frameData || ic.running:
		return violation("%v of call %d, whose arguments are there", f.typ, f.call)
	}
	need := int64(len(ic.args) + len(f.payload))
	if need > ic.head.Length || f.ends() && need != ic.head.Length {
		return violation("arguments of %d bytes or more; they were said to be %d", need, ic.head.Length)
	}
	if need > int64(cap(ic.args)) {
		size := ic.head.Length // all of it, once the peer has sent enough to be believed
		if ic.args == nil {
			size = min(size, max(need, MaxFrame))
		}
		if !ic.holdLocked(size - int64(cap(ic.args))) {
			return ic.refuseLocked(c.full())
		}
		ic.args = append(make(limpet.Encoded, 0, size), ic.args...)
	}
	ic.args = append(ic.args, f.payload...)
	ic.moved = c.now()
	if f.ends() {
		return ic.startLocked()
	}
	return nil
}

// refuseLocked ends a call that has not run.
func (ic *inCall) refuseLocked(e *limpet.Error) error {
	err := ic.c.answerLocked(item{head: appendBlock(nil, frameFailure, flagEnd, ic.n, appendFailure(nil, e))})
	ic.endLocked(e)
	return err
}

// startLocked runs the call. Calls that were canceled count until their
// goroutine has ended: else a peer that cancels at once could start any number.
func (ic *inCall) startLocked() error {
	if ic.c.running >= ic.c.most {
		return ic.refuseLocked(overloaded("%d calls of this connection run, canceled ones among them", ic.c.most))
	}
	if n := int64(len(ic.args)); n > smallHead && !ic.holdLocked(n) { // the method gets them decoded
		return ic.refuseLocked(ic.c.full())
	}
	ic.c.running++
	ic.running = true
	ic.c.wg.Add(1) // the reader, whose goroutine this is, still runs
	ic.c.workers.Run(ic)
	return nil
}

// dropLocked is for a call whose caller has gone: nothing of it is written any
// more.
func (ic *inCall) dropLocked(cause error) { ic.endLocked(cause) }

// endLocked ends everything of the call but its handler, whose context ends.
func (ic *inCall) endLocked(cause error) {
	if ic.over {
		return
	}
	ic.over = true
	close(ic.gone)
	ic.ctx.cancel(cause)
	if ic.limit != nil {
		ic.limit.Stop()
	}
	if ic.body != nil {
		ic.body.breakLocked(broken(cause))
		ic.body.flow.close()
	}
	if !ic.running {
		ic.releaseLocked(0)
		ic.freeLocked()
	}
	if ic.ext != nil && ic.ext.promise != nil {
		ic.c.breakLocked(ic.n, ic.ext.promise, gone(cause))
	}
	delete(ic.c.calls, ic.n)
	ic.c.d.restLocked()
}

// gone is what calls on the promised result of a call fail with that has ended
// without one.
func gone(cause error) *limpet.Error {
	if e, ok := cause.(*limpet.Error); ok { //nolint:errorlint // one of ours
		return e
	}
	e := limpet.Errorf(limpet.CodeCanceled, "The operation was aborted: nobody waits for the call on whose result this one was made: %w", cause)
	e.Delivery = limpet.DeliveryNone
	return e
}

// broken is what a handler gets that reads its request's body too late.
func broken(cause error) error {
	if cause == nil {
		return http.ErrBodyReadAfterClose
	}
	return cause
}

// releaseLocked gives back what the call holds, but for so many bytes.
func (ic *inCall) releaseLocked(but int64) {
	ic.c.giveLocked(ic.held - but)
	ic.args, ic.held = nil, but
}

// Do runs the call, on a goroutine of workers. Code of the program may end that with
// runtime.Goexit, as t.Fatal in a function of a test does: then the call fails.
func (ic *inCall) Do() {
	returned := false
	defer func() {
		if !returned {
			ic.exited()
		}
		ic.c.mu.Lock()
		ic.c.running--
		ic.releaseLocked(0)
		ic.freeLocked()
		ic.endLocked(nil)
		ic.c.mu.Unlock()
		ic.c.wg.Done()
	}()
	ic.answer()
	returned = true
}

// exited tells the caller that there will be no outcome, or no more of the body.
func (ic *inCall) exited() {
	e := limpet.Errorf(limpet.CodeApplication, "the code that was called ended its goroutine (runtime.Goexit, which testing's FailNow and Fatal call)")
	e.Delivery, e.Remote = limpet.DeliveryReceived, true
	if ic.pumping {
		_ = ic.c.block(&ic.out, frameAbort, flagEnd, appendFailure(nil, e)) // as for fail
		return
	}
	ic.fail(e)
}

// answer runs the call and sends its outcome.
func (ic *inCall) answer() {
	switch ic.head.Kind {
	case KindFetch, KindTargetFetch:
		ic.fetch()
	case KindDescribe:
		info, err := ic.c.callee.Describe(ic.ctx, ic.head.Binding)
		if err != nil {
			ic.fail(err)
			break
		}
		ic.result(limpet.Parcel{Bytes: appendBinding(nil, info)})
	case KindOutcome:
		ic.outcome()
	case KindStream:
		ic.stream()
	case KindMethod, KindTarget:
		args := limpet.Parcel{Bytes: ic.args}
		if x := ic.ext; x != nil {
			args.Caps, x.args = x.args, nil
		}
		var result limpet.Parcel
		var err error
		if ic.head.Kind == KindMethod {
			result, err = ic.c.callee.Call(ic.ctx, ic.head, args)
		} else {
			result, err = ic.target(args)
		}
		ic.c.mu.Lock()
		ic.releaseLocked(ic.cost) // long before a slow reader has the result
		ic.freeLocked()
		ic.c.mu.Unlock()
		if err != nil {
			ic.fail(err)
			break
		}
		if x := ic.ext; x != nil && x.promise != nil {
			ic.c.keep(x.promise, result)
		}
		ic.result(result)
	}
}

// target calls a capability, or something in the result of another call.
func (ic *inCall) target(args limpet.Parcel) (limpet.Parcel, error) {
	x := ic.ext
	c := limpet.TargetCall{Path: ic.head.Ext.Path, Property: ic.head.Ext.Property, Args: args}
	if x.of == nil {
		return x.target.Call(ic.ctx, c)
	}
	select {
	case <-x.of.done:
	case <-ic.ctx.Done():
		args.Release()
		return limpet.Parcel{}, canceled(ic.ctx, limpet.DeliveryNone)
	}
	if x.of.err != nil {
		args.Release()
		return limpet.Parcel{}, x.of.err
	}
	return ic.c.callee.Child(ic.ctx, x.of.result, c)
}

// stream sends a byte stream.
func (ic *inCall) stream() {
	r, err := ic.ext.target.Open(ic.ctx)
	if err != nil {
		ic.fail(err)
		return
	}
	defer r.Close()
	if ic.c.block(&ic.out, frameResult, 0, appendResult(nil, nil, nil)) == nil {
		ic.pump(r, func() http.Header { return nil })
	}
}

// pump sends a body to its end.
func (ic *inCall) pump(r io.Reader, trailer func() http.Header) {
	ic.pumping = true
	err := ic.c.pump(&ic.out, r, trailer)
	var source errSource
	if errors.As(err, &source) {
		failed := source.err
		if !errors.Is(failed, io.ErrUnexpectedEOF) {
			failed = answered(failed)
		}
		_ = ic.c.block(&ic.out, frameAbort, flagEnd, appendFailure(nil, failed)) // as for fail
	}
}

// fail answers with a failure. The errors of writing mean that nobody waits.
func (ic *inCall) fail(err error) {
	e := answered(err)
	if x := ic.ext; x != nil && x.promise != nil {
		ic.c.mu.Lock()
		ic.c.breakLocked(ic.n, x.promise, e)
		ic.c.mu.Unlock()
	}
	b := appendFailure(nil, e)
	n := int64(len(b))
	if !ic.room(n) {
		e = e.Clone()
		e.Message, e.Fields, e.Cause = cut(e.Message, maxWord), nil, nil
		b, n = appendFailure(nil, e), 0
	}
	_ = ic.c.block(&ic.out, frameFailure, flagEnd, b)
	ic.unroom(n)
}

// result answers with a value, which it takes over.
func (ic *inCall) result(p limpet.Parcel) {
	c, v := ic.c, p.Bytes
	if !ic.room(int64(len(v))) {
		p.Release()
		ic.fail(c.unread("result", len(v)))
		return
	}
	defer ic.unroom(int64(len(v)))
	flags := uint8(0)
	if len(v) == 0 {
		flags = flagEnd
		p.Release() // there are none in nothing
		p.Caps = nil
	}
	if c.waitRoom(ic.gone) != nil {
		p.Release()
		return
	}
	caps, free, err := c.d.caps.exportLocked(p.Caps)
	if err != nil {
		c.mu.Unlock()
		p.Release()
		e := limpet.Errorf(limpet.CodeOverloaded, "the result was dropped: %w", err)
		e.Overloaded, e.Delivery = true, limpet.DeliveryReceived
		ic.fail(e)
		return
	}
	head := appendBlock(make([]byte, 0, 2*headerBytes+8), frameResult, flags, ic.n, appendResult(nil, v, caps))
	if n := len(v); 0 < n && n <= min(int(ic.out.flow), maxPayload) {
		ic.out.flow -= outflow(n)
		c.pushLocked(item{head: appendHead(head, frameData, flagEnd, ic.n, n), tail: v})
		v = nil
	} else {
		c.pushLocked(item{head: head})
	}
	c.mu.Unlock()
	limpet.Parcel{Caps: free}.Release()
	if len(v) > 0 {
		_ = c.send(&ic.out, v, true) // as for fail
	}
}

// smallResult is what costs less than counting it.
const smallResult = 4 << 10

// unread is the failure of a call whose answer there is no room for.
func (c *incoming) unread(what string, n int) *limpet.Error {
	c.shares.dropped.Add(1)
	e := limpet.Errorf(limpet.CodeOverloaded, "the %s of %d bytes was dropped: too many wait for callers in other processes that do not read them, on this connection (at most %d bytes) or at this node (%d)",
		what, n, int64(maxOfResults), c.shares.results.limit)
	e.Overloaded, e.Delivery = true, limpet.DeliveryReceived
	return e
}

func (ic *inCall) room(n int64) bool {
	if n <= smallResult {
		return true
	}
	ic.c.mu.Lock()
	defer ic.c.mu.Unlock()
	if ic.c.results+n > maxOfResults || !ic.c.shares.results.take(ic.c.results, n) {
		return false
	}
	ic.c.results += n
	return true
}

func (ic *inCall) unroom(n int64) {
	if n <= smallResult {
		return
	}
	ic.c.mu.Lock()
	ic.c.shares.results.give(ic.c.results, n)
	ic.c.results -= n
	ic.c.mu.Unlock()
}

// fetch runs an http.Handler.
func (ic *inCall) fetch() {
	h := ic.head
	u, err := url.Parse(h.URL)
	if err != nil {
		ic.fail(refused(limpet.CodeInvalidArgument, "Invalid URL: %w", err))
		return
	}
	req := &http.Request{
		Method: h.Method, URL: u, Host: h.Host, Header: h.Header, Trailer: h.Trailer, ContentLength: h.Length,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: ic.body, RemoteAddr: ic.c.conn.RemoteAddr().String(),
	}
	if h.Length == 0 {
		req.Body = http.NoBody
	}
	ic.body.atEnd = func(error) {
		ic.c.mu.Lock()
		defer ic.c.mu.Unlock()
		for k, v := range ic.body.trailer {
			if req.Trailer == nil {
				req.Trailer = http.Header{}
			}
			req.Trailer[k] = v
		}
	}
	req = req.WithContext(ic.ctx)
	var resp *http.Response
	if x := ic.ext; x != nil && x.target != nil {
		resp, err = x.target.Fetch(ic.ctx, req)
	} else {
		resp, err = ic.c.callee.Fetch(ic.ctx, h, req)
	}
	if err != nil {
		ic.fail(err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode < minStatus || resp.StatusCode > maxStatus { // the peer would end the connection
		e := limpet.Errorf(limpet.CodeInternal, "the response has status %d; it must be from %d to %d", resp.StatusCode, minStatus, maxStatus)
		e.Delivery = limpet.DeliveryReceived
		ic.fail(e)
		return
	}
	head := appendResponse(nil, &responseHead{
		status: resp.StatusCode, length: max(resp.ContentLength, -1), header: resp.Header, trailer: resp.Trailer,
	})
	if n := max(fields(resp.Header), len(resp.Trailer)); len(head) > maxBlock || n > maxFields {
		e := limpet.Errorf(limpet.CodeTooLarge, "the response has %d header fields or trailers, %d bytes; the limits are %d and %d", n, len(head), maxFields, maxBlock)
		e.Delivery = limpet.DeliveryReceived
		ic.fail(e)
		return
	}
	if n := int64(len(head)); ic.room(n) {
		err = ic.c.block(&ic.out, frameResponse, 0, head)
		ic.unroom(n)
	} else {
		ic.fail(ic.c.unread("response's head", len(head)))
		return
	}
	if err != nil {
		return
	}
	ic.pump(resp.Body, func() http.Header { return resp.Trailer })
}

// gone ends all calls when the connection has ended.
func (c *incoming) gone(why error) {
	// The code tells this end from the caller's own wish: see internal/host.
	var cause error = limpet.Errorf(limpet.CodeDisconnected, "the caller's connection was lost: %w", why)
	if c.base.Err() != nil {
		cause = context.Cause(c.base)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ic := range c.calls {
		ic.dropLocked(cause)
	}
	for n := range c.promised {
		c.forgetLocked(n)
	}
}

// tick refuses calls whose arguments have stopped coming.
func (c *incoming) tick(now time.Duration) {
	for _, ic := range c.calls {
		if !ic.running && now-ic.moved > argsTimeout {
			_ = ic.refuseLocked(refused(limpet.CodeInvalidArgument, "the arguments stopped after %d of %d bytes, for %v", len(ic.args), ic.head.Length, argsTimeout)) // a queue too long is found by the reader
		}
	}
}
