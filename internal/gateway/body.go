package gateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/limpet-dev/limpet"
)

const (
	// bodyIdle is how long a client may send nothing of a body that is read.
	bodyIdle = 30 * time.Second
	// restTime is how long the rest of a body that nobody wants may take to come
	// before the answer, and restBytes how much of it: beyond them the connection
	// ends with the answer.
	restTime  = 5 * time.Second
	restBytes = 256 << 10
)

// clientBody is the body of a request, whose client may stop in the middle of
// it. Left to itself, net/http waits for the rest before it writes an answer, and
// for ever.
type clientBody struct {
	io.ReadCloser
	control *http.ResponseController
	clock   limpet.Clock
	asked   atomic.Bool // the client sends it: it may wait for a 100 Continue until it is read
	over    atomic.Bool // it has been read to its end
}

// patience gives the request's body its limits. Without a body or a clock the
// request stays as it is and the body is nil.
func patience(clock limpet.Clock, w http.ResponseWriter, r *http.Request) (*http.Request, *clientBody) {
	if clock == nil || r.Body == nil || r.Body == http.NoBody {
		return r, nil
	}
	b := &clientBody{ReadCloser: r.Body, control: http.NewResponseController(w), clock: clock}
	b.asked.Store(r.Header.Get("Expect") == "")
	r = r.WithContext(r.Context()) // a copy: net/http looks at the body of its own
	r.Body = b
	return r, b
}

func (b *clientBody) Read(p []byte) (int, error) { return b.read(p, b.clock.Now().Add(bodyIdle)) }

// read reads until a moment. After it has passed, every read fails at once, also
// net/http's own.
func (b *clientBody) read(p []byte, until time.Time) (int, error) {
	b.asked.Store(true)
	_ = b.control.SetReadDeadline(until) // not supported: then there is no connection to wait for
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	_ = b.control.SetReadDeadline(time.Time{}) // or it would end the call, too
	if errors.Is(err, io.EOF) {
		b.over.Store(true)
	}
	return n, err
}

// rest takes what is left of the body before an answer is written. b may be nil.
func (b *clientBody) rest() {
	if b == nil || b.over.Load() || !b.asked.Load() {
		return
	}
	until := b.clock.Now().Add(restTime)
	buf := make([]byte, 8<<10)
	for left := restBytes; left > 0; {
		n, err := b.read(buf, until)
		if err != nil {
			return
		}
		left -= n
	}
	_ = b.control.SetReadDeadline(until) // for net/http, which tries as much again
}

// firstRead is what is reserved for a body before anything of it has come.
const firstRead = 4 << 10

// budget is the memory for bodies that calls wait for or are made with, over all
// requests. It is safe for concurrent use.
type budget struct {
	limit int64
	used  atomic.Int64
}

func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// readBody reads a call's whole body. Memory is reserved only as bytes arrive;
// release gives it back and must be called, also after an error; after one the
// connection is closed, since the rest of the body is on its way.
func (d *door) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), _ *limpet.Error) {
	var held int64
	release = func() { d.bodies.give(held) }
	tooLarge := func() *limpet.Error {
		return refusal(limpet.CodeTooLarge, "the body is larger than the limit of %d bytes", d.maxBody)
	}
	w.Header().Set("Connection", "close")
	if r.ContentLength > d.maxBody {
		return nil, release, tooLarge()
	}
	src := http.MaxBytesReader(w, r.Body, d.maxBody)
	for {
		if len(body) == cap(body) {
			grow := int64(max(cap(body), firstRead))
			if !d.bodies.take(grow) {
				return nil, release, refusal(limpet.CodeOverloaded, "the bodies of calls in work hold %d bytes, the limit is %d: try later", d.bodies.used.Load(), d.bodies.limit)
			}
			held += grow
			next := make([]byte, len(body), int64(cap(body))+grow)
			copy(next, body)
			body = next
		}
		n, err := src.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			w.Header().Del("Connection")
			return body, release, nil
		}
		if _, over := errors.AsType[*http.MaxBytesError](err); over {
			return nil, release, tooLarge()
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, release, refusal(codeBodyTimeout, "nothing of the body came for %v", bodyIdle)
		}
		return nil, release, refusal(limpet.CodeInvalidArgument, "the body can't be read: %w", err)
	}
}
