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

// bodyIdle is how long a client may send nothing of a call's body.
const bodyIdle = 30 * time.Second

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
	control := http.NewResponseController(w)
	if d.clock != nil {
		defer func() { _ = control.SetReadDeadline(time.Time{}) }() // not supported: then none was set
	}
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
		if d.clock != nil {
			_ = control.SetReadDeadline(d.clock.Now().Add(bodyIdle))
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
