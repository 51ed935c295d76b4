package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"github.com/limpet-dev/limpet"
)

// This file runs a class's http.Handler. What it writes is buffered, becomes
// chunks, and each chunk waits for the log like any output:
//
//	handler ──Write──▶ buffer ──32 KiB, Flush, return──▶ pipe (1 MiB) ──durable?──▶ body's reader
//	   └──WriteHeader, first chunk, return──▶ head ──durable?──▶ Fetch returns
//
// A chunk that leaves before the handler has returned commits what the turn has
// written so far, since it may tell of it. A write waits for the reader at most
// Limits.Stall, with the object's turn held.

const (
	writeBuffer = 32 << 10
	pipeBytes   = 1 << 20
	// allPipes is what the pipes of all responses of the node hold; beyond it each
	// has one chunk.
	allPipes = 16 << 20
)

// chunk is a piece of a body that leaves when pos is durable.
type chunk struct {
	data []byte
	pos  Pos
}

// responseWriter is the http.ResponseWriter of one fetch and the pipe of its
// body. Handlers may use it from several goroutines.
type responseWriter struct {
	ev     *event
	req    *http.Request // the caller's
	header http.Header   // the handler's own, not locked
	once   sync.Once     // closes the request's body

	// mu comes after the incarnation's locks.
	mu       sync.Mutex
	status   int // 0 until it is decided
	headed   bool
	late     bool  // headed, and not handed over yet: the handler has returned
	declared int64 // Content-Length, or -1
	length   int64 // the response's, once there is a head
	written  int64
	buf      []byte
	chunks   []chunk
	piped    int // bytes in chunks
	resp     *http.Response
	trailer  http.Header // for resp, once its reader has met the end
	closed   bool        // nobody reads
	final    bool        // nothing more comes, finalErr at the end
	finalErr error
	finalPos Pos
	tee      *[]byte       // the whole body, of an outcome that is to be kept; nil if it is not or has grown too large
	head     http.Header   // of resp, for tee
	refused  *limpet.Error // what the handler asked for is not supported

	avail chan struct{} // of one element: a chunk or the end has come
	space chan struct{} // of one element: the reader has taken something
}

var (
	_ http.ResponseWriter = (*responseWriter)(nil)
	_ http.Flusher        = (*responseWriter)(nil)
)

func newResponseWriter(ev *event) (*responseWriter, *limpet.Error) {
	req, id := ev.attempt.Request, ev.attempt.Call.Object
	if req == nil || req.URL == nil {
		return nil, refusal(id, limpet.CodeInvalidArgument, "a fetch needs a request with a URL")
	}
	if req.Header.Get("Upgrade") != "" && strings.Contains(strings.ToLower(req.Header.Get("Connection")), "upgrade") {
		return nil, refusal(id, limpet.CodeNotSupported, "not supported: connection upgrades (WebSocket) to an object")
	}
	return &responseWriter{
		ev: ev, req: req, header: http.Header{}, declared: -1,
		avail: make(chan struct{}, 1), space: make(chan struct{}, 1),
	}, nil
}

// closeRequest closes the request's body, as an http.RoundTripper does: when the
// handler has returned, or when nobody waits for it.
func (w *responseWriter) closeRequest() {
	w.once.Do(func() {
		if w.req.Body != nil {
			_ = w.req.Body.Close()
		}
	})
}

// serverRequest is the request as a handler expects it.
func (w *responseWriter) serverRequest() *http.Request {
	r := w.req
	s := &http.Request{
		Method: r.Method, Host: r.Host, RequestURI: r.URL.RequestURI(), RemoteAddr: r.RemoteAddr,
		URL:   &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery},
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.Header.Clone(), Body: r.Body, ContentLength: r.ContentLength, Trailer: r.Trailer,
	}
	if s.Method == "" {
		s.Method = http.MethodGet
	}
	if s.Host == "" {
		s.Host = r.URL.Host
	}
	if s.URL.Path == "" {
		s.URL.Path = "/"
	}
	if s.Header == nil {
		s.Header = http.Header{}
	}
	switch {
	case s.Body == nil || s.Body == http.NoBody:
		s.Body, s.ContentLength = http.NoBody, 0
	case s.ContentLength == 0:
		s.ContentLength = -1 // a client's zero with a body means unknown
	}
	return s.WithContext(w.ev)
}

// serve runs the handler.
func (w *responseWriter) serve(h http.Handler) (failure *limpet.Error) {
	defer func() {
		switch r := recover(); r := r.(type) {
		case nil:
		case aborted, *asidePanic:
			panic(r)
		default:
			if r == http.ErrAbortHandler { //nolint:errorlint // the very value is the sign
				failure = w.ev.inc.newError(limpet.CodeApplication, limpet.DeliveryReceived, "The handler aborted the response.")
				failure.Remote = true
				return
			}
			panic(&asidePanic{what: "ServeHTTP", value: r, stack: debug.Stack()})
		}
	}()
	h.ServeHTTP(w, w.serverRequest())
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
}

// Header is the response's header until the head has left.
func (w *responseWriter) Header() http.Header { return w.header }

// WriteHeader hands the head over at once. A status of 1xx is ignored, except
// 101, which is not supported; nor is one without three digits.
func (w *responseWriter) WriteHeader(status int) {
	w.mu.Lock()
	switch {
	case status == http.StatusSwitchingProtocols:
		_ = w.refuseLocked("not supported: switching protocols (status 101) from an object")
		w.mu.Unlock()
		return
	case status < 100 || status > 999: // servers panic at them
		_ = w.refuseLocked(fmt.Sprintf("not supported: status %d from an object; a status has three digits", status))
		w.mu.Unlock()
		return
	case status < 200 || w.status != 0 || w.final:
		w.mu.Unlock()
		return
	}
	w.status = status
	w.mu.Unlock()
	_ = w.emit(true) // whoever writes after it is told
}

func (w *responseWriter) refuseLocked(text string) error {
	if w.refused == nil {
		w.refused = w.ev.inc.newError(limpet.CodeNotSupported, limpet.DeliveryReceived, "%s", text)
	}
	return w.refused
}

// Write adds to the body. It fails when nobody reads the body any more, when the
// reader stalls, when the event or incarnation has ended, and inside
// State.Transaction once the buffer is full.
func (w *responseWriter) Write(p []byte) (int, error) {
	n := 0
	for {
		w.mu.Lock()
		if err := w.writableLocked(len(p) - n); err != nil {
			w.mu.Unlock()
			return n, err
		}
		if w.status == 0 {
			w.status = http.StatusOK
		}
		if w.req.Method == http.MethodHead {
			w.written += int64(len(p))
			w.mu.Unlock()
			return len(p), nil
		}
		k := min(len(p)-n, writeBuffer-len(w.buf))
		if w.tee != nil {
			if *w.tee = append(*w.tee, p[n:n+k]...); len(*w.tee) > limpet.MaxKeptOutcome {
				w.tee = nil
			}
		}
		if w.closed { // only the outcome is of interest
			w.written += int64(k)
			w.mu.Unlock()
			if n += k; n == len(p) {
				return n, nil
			}
			continue
		}
		w.buf = append(w.buf, p[n:n+k]...)
		w.written += int64(k)
		full := len(w.buf) >= writeBuffer
		w.mu.Unlock()
		n += k
		if full {
			if err := w.emit(false); err != nil {
				return n, err
			}
		}
		if n == len(p) {
			return n, nil
		}
	}
}

func (w *responseWriter) writableLocked(n int) error {
	switch {
	case w.refused != nil:
		return w.refused
	case w.final:
		return w.ev.inc.newError(limpet.CodeNoTurn, limpet.DeliveryNone, "the response was written to after its handler had ended")
	case w.closed && w.tee == nil:
		return io.ErrClosedPipe
	case n > 0 && !bodyAllowed(w.status):
		return http.ErrBodyNotAllowed
	}
	if !w.headed && w.declared < 0 {
		w.declareLocked()
	}
	if w.declared >= 0 && w.written+int64(n) > w.declared && w.req.Method != http.MethodHead {
		return http.ErrContentLength
	}
	return nil
}

func (w *responseWriter) declareLocked() {
	if n, err := strconv.ParseInt(w.header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		w.declared = n
	}
}

func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// Flush lets everything written so far leave.
func (w *responseWriter) Flush() { _ = w.FlushError() }

// FlushError is Flush for http.ResponseController.
func (w *responseWriter) FlushError() error {
	w.mu.Lock()
	err := w.writableLocked(0)
	if err == nil && w.status == 0 {
		w.status = http.StatusOK
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.emit(false)
}

// Hijack is not supported; its signature is not http.Hijacker's, so that a type
// assertion says so too.
func (w *responseWriter) Hijack() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refuseLocked("not supported: hijacking the connection of an object's fetch")
}

// emit commits what the turn wrote, and lets the head and the buffer leave after
// it. headOnly is for WriteHeader: the buffer is empty then.
func (w *responseWriter) emit(headOnly bool) error {
	ev, inc := w.ev, w.ev.inc
	pos, err := inc.outputNow(ev)
	if err != nil {
		return err
	}
	inc.mu.Lock()
	w.mu.Lock()
	if !w.headed && !w.final {
		w.headLocked(-1)
		if !ev.settle(w.resp, nil, pos) {
			w.closeLocked()
		}
	}
	data := w.buf
	w.buf = nil
	w.mu.Unlock()
	inc.mu.Unlock()
	if headOnly || len(data) == 0 {
		return nil
	}
	return w.push(chunk{data, pos})
}

// outputNow is the position of an output that leaves while its handler goes on.
func (inc *incarnation) outputNow(ev *event) (Pos, error) {
	inc.storage.Lock()
	inc.mu.Lock()
	ended, holds := inc.gate.ended, ev.entry.state == holding
	inc.mu.Unlock()
	switch {
	case ended:
		inc.storage.Unlock()
		return Pos{}, inc.cause
	case holds && inc.txDepth > 0:
		inc.storage.Unlock()
		return Pos{}, inc.inTransaction("sending a part of a response")
	}
	pos, err := inc.record(ev.claim, holds)
	if err == nil {
		inc.storage.Unlock()
	}
	return pos, err
}

// headLocked makes the response; whole is the body's length if it is known.
func (w *responseWriter) headLocked(whole int64) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.headed = true
	w.declareLocked()
	body := bodyAllowed(w.status)
	if _, set := w.header["Content-Type"]; !set && body && len(w.buf) > 0 && w.header.Get("Content-Encoding") == "" {
		w.header.Set("Content-Type", http.DetectContentType(w.buf))
	}
	length := w.declared
	switch {
	case !body:
		length = 0
	case length < 0 && whole >= 0:
		length = whole
		if w.req.Method != http.MethodHead {
			w.header.Set("Content-Length", strconv.FormatInt(whole, 10))
		}
	}
	w.length = length
	w.resp = &http.Response{
		Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), StatusCode: w.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header.Clone(), ContentLength: length, Body: &responseBody{w: w}, Request: w.req,
	}
	for _, line := range w.header.Values("Trailer") {
		for _, name := range strings.Split(line, ",") {
			if w.resp.Trailer == nil {
				w.resp.Trailer = http.Header{}
			}
			w.resp.Trailer[http.CanonicalHeaderKey(strings.TrimSpace(name))] = nil
		}
	}
	w.resp.Header.Del("Trailer")
	if w.tee != nil {
		w.head = w.resp.Header.Clone() // that of resp is the caller's soon
	}
}

// push puts a chunk into the pipe, and waits while that is full.
func (w *responseWriter) push(c chunk) error {
	var stall limpet.Timer
	for {
		w.mu.Lock()
		switch {
		case w.closed && w.tee != nil:
			w.mu.Unlock()
			return nil
		case w.closed:
			w.mu.Unlock()
			return io.ErrClosedPipe
		case w.final:
			err := w.writableLocked(0)
			w.mu.Unlock()
			return err
		case w.piped < pipeBytes && (w.piped == 0 || w.ev.inc.host.piped.Load() < allPipes):
			w.chunks = append(w.chunks, c)
			w.pipedLocked(len(c.data))
			w.mu.Unlock()
			signal(w.avail)
			if stall != nil {
				stall.Stop()
			}
			return nil
		}
		w.mu.Unlock()
		h := w.ev.inc.host
		if stall == nil {
			stall = h.clock.NewTimer(h.limits.Stall)
		}
		select {
		case <-w.space:
		case <-w.ev.Done():
			stall.Stop()
			return w.ev.Err()
		case <-stall.C():
			return w.ev.inc.newError(limpet.CodeOverloaded, limpet.DeliveryReceived,
				"the response's reader took nothing for %v while as many bytes waited for it as may", h.limits.Stall)
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// whole is the response of a handler that has returned, for keeping it, or nil if
// it is too large or not whole.
func (w *responseWriter) whole() *http.Response {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tee == nil || w.refused != nil || w.final {
		return nil
	}
	if !w.headed {
		w.headLocked(int64(len(w.buf)))
		w.late = true
	}
	if w.short() {
		return nil
	}
	trailer := w.trailers()
	return &http.Response{
		StatusCode: w.status, Header: w.head, ContentLength: w.length, Trailer: trailer,
		Body: io.NopCloser(bytes.NewReader(*w.tee)),
	}
}

// short reports whether the body ended before its declared length; w.mu is held.
func (w *responseWriter) short() bool {
	return w.declared > w.written && w.req.Method != http.MethodHead && bodyAllowed(w.status)
}

// trailers are those that the handler has set; w.mu is held and the head is made.
func (w *responseWriter) trailers() http.Header {
	t := http.Header{}
	for name := range w.resp.Trailer {
		t[name] = w.header[name]
	}
	for name, v := range maps.All(w.header) {
		if cut, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			t[cut] = v
		}
	}
	return t
}

// concluded ends the response after the handler has returned; the incarnation's
// locks are held. What is left in the buffer waits for the turn's own commit.
func (w *responseWriter) concluded(failure *limpet.Error, pos Pos) {
	if failure != nil {
		w.fail(failure, pos)
		w.ev.settle(nil, failure, pos)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.headed || w.late {
		if !w.late {
			w.headLocked(int64(len(w.buf)))
		}
		if !w.ev.settle(w.resp, nil, pos) {
			w.closeLocked()
		}
	}
	if len(w.buf) > 0 && !w.closed {
		w.chunks = append(w.chunks, chunk{w.buf, pos})
		w.pipedLocked(len(w.buf))
		w.buf = nil
	}
	w.final, w.finalErr, w.finalPos = true, io.EOF, pos
	if w.short() {
		w.finalErr = io.ErrUnexpectedEOF
	}
	w.trailer = w.trailers()
	signal(w.avail)
}

// fail ends the body with an error, after what is in the pipe.
func (w *responseWriter) fail(err *limpet.Error, pos Pos) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.final {
		return
	}
	w.buf = nil
	w.final, w.finalErr, w.finalPos = true, err, pos
	signal(w.avail)
}

// abandon is for a fetch whose caller gets an error instead of the response.
func (w *responseWriter) abandon(cause error) {
	w.mu.Lock()
	w.closeLocked()
	w.mu.Unlock()
	if !w.ev.shielded(w.ev.parent) {
		w.ev.cancel(cause)
	}
}

func (w *responseWriter) closeLocked() {
	w.closed = true
	w.chunks, w.buf = nil, nil
	w.pipedLocked(-w.piped)
	signal(w.space)
}

// pipedLocked counts n bytes more or less in the pipe.
func (w *responseWriter) pipedLocked(n int) {
	if n != 0 { // else there may be no incarnation yet
		w.piped += n
		w.ev.inc.host.piped.Add(int64(n))
	}
}

// responseBody is the reader's end. It is used by one goroutine at a time, but
// may be closed by another.
type responseBody struct {
	w   *responseWriter
	cur []byte
}

// Read waits for the next chunk and until that may leave.
func (b *responseBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	w := b.w
	ctx, inc := w.ev.parent, w.ev.inc
	for len(b.cur) == 0 {
		w.mu.Lock()
		switch {
		case w.closed:
			w.mu.Unlock()
			return 0, http.ErrBodyReadAfterClose
		case len(w.chunks) > 0:
			c := w.chunks[0]
			w.chunks[0] = chunk{}
			w.chunks = w.chunks[1:]
			w.mu.Unlock()
			if err := inc.waitDurable(ctx, c.pos, len(c.data)); err != nil {
				return 0, b.broken(waitError(ctx, inc.id, err, limpet.DeliveryReceived))
			}
			w.mu.Lock()
			w.pipedLocked(-min(w.piped, len(c.data)))
			w.mu.Unlock()
			signal(w.space)
			b.cur = c.data
			continue
		case w.final:
			pos, err := w.finalPos, w.finalErr
			w.mu.Unlock()
			if werr := inc.waitDurable(ctx, pos, 0); werr != nil {
				return 0, b.broken(waitError(ctx, inc.id, werr, limpet.DeliveryReceived))
			}
			if errors.Is(err, io.EOF) {
				b.trail()
			}
			return 0, err
		}
		w.mu.Unlock()
		select {
		case <-w.avail:
		case <-ctx.Done():
			return 0, b.broken(canceled(ctx, inc.id, limpet.DeliveryReceived))
		}
	}
	n := copy(p, b.cur)
	b.cur = b.cur[n:]
	return n, nil
}

// trail gives the response its trailers: in Read, since nobody may look at them
// while that runs (net/http.Response).
func (b *responseBody) trail() {
	w := b.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.trailer) > 0 && w.resp.Trailer == nil {
		w.resp.Trailer = http.Header{}
	}
	maps.Copy(w.resp.Trailer, w.trailer)
	w.trailer = nil
}

// broken makes err the body's end for good.
func (b *responseBody) broken(err *limpet.Error) error {
	b.w.mu.Lock()
	if b.w.tee != nil && b.w.ev.shielded(b.w.ev.parent) {
		b.w.closeLocked() // the handler goes on
		b.w.mu.Unlock()
		return err
	}
	b.w.chunks = nil
	b.w.pipedLocked(-b.w.piped)
	b.w.final, b.w.finalErr, b.w.finalPos = true, err, Pos{}
	b.w.mu.Unlock()
	signal(b.w.space)
	b.w.ev.cancel(err)
	return err
}

// Close says that nobody reads any more: the handler's context ends and its
// writes fail.
func (b *responseBody) Close() error {
	w := b.w
	w.mu.Lock()
	over := w.final && len(w.chunks) == 0
	w.closeLocked()
	kept := w.tee != nil // somebody may ask for it yet
	w.mu.Unlock()
	if !over && !kept {
		w.ev.cancel(errBodyClosed)
	}
	return nil
}
