package dispatch

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// firstKept is what a buffer reserves for the first bytes of a body.
const firstKept = 4 << 10

// bodyBuffer lets a body that can be read only once be sent again (G.1): it keeps
// what attempts have read of it, as they read it, up to a limit. Each attempt
// has a view, which gives first what is kept and then reads on:
//
//	source   ──▶ kept: "0123456789"
//	attempt 1    read 0-9, connection lost
//	attempt 2    reads 0-9 from what is kept ──▶ reads on, which is kept too
//
// Over the limit nothing is kept any more: the view that has read everything so
// far goes on, and there can be no other.
type bodyBuffer struct {
	pool    *replayPool
	limit   int64  // of bytes kept
	refused func() // called once, when there is no room

	mu      sync.Mutex
	changed sync.Cond
	src     io.ReadCloser
	kept    []byte
	held    int64  // of pool
	read    int64  // bytes of src so far
	err     error  // how src ended
	reading bool   // a view reads src
	gone    bool   // kept is no more
	why     string // nothing is kept since there is no room
	settled bool   // there will be no other view
	views   int    // not closed
}

func newBodyBuffer(pool *replayPool, limit int64, src io.ReadCloser, refused func()) *bodyBuffer {
	b := &bodyBuffer{pool: pool, limit: limit, refused: refused, src: src}
	b.changed.L = &b.mu
	return b
}

var errSettled = errors.New("the call has ended")

// open gives the body from its beginning, once more.
func (b *bodyBuffer) open() (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.settled {
		return nil, errSettled
	}
	if b.why != "" {
		return nil, errors.New(b.why)
	}
	b.views++
	return &bodyView{b: b}, nil
}

// spent says why the body can't be sent again, or is empty.
func (b *bodyBuffer) spent() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.why
}

// settle says that no attempt will follow. The one that reads the body goes on;
// the source is closed when it ends.
func (b *bodyBuffer) settle() {
	b.mu.Lock()
	b.settled = true
	end := b.endLocked()
	b.mu.Unlock()
	end()
}

// endLocked gives everything back when nobody needs it any more; what it returns
// must be called without the lock.
func (b *bodyBuffer) endLocked() func() {
	if !b.settled || b.views > 0 || b.src == nil {
		return func() {}
	}
	b.dropLocked()
	src := b.src
	b.src = nil
	if b.err == nil {
		b.err = http.ErrBodyReadAfterClose
	}
	return func() { _ = src.Close() } // what was wrong with it, reading has told
}

func (b *bodyBuffer) dropLocked() {
	b.pool.release(b.held)
	b.kept, b.held, b.gone = nil, 0, true
}

// keepLocked adds what was read of the source.
func (b *bodyBuffer) keepLocked(p []byte) {
	b.read += int64(len(p))
	if b.gone {
		return
	}
	if b.settled { // whoever reads has read all that is kept
		b.dropLocked()
		return
	}
	if !b.growLocked(int64(len(p))) {
		b.dropLocked()
		b.refused()
		return
	}
	b.kept = append(b.kept, p...)
}

// tooLong says which limit n bytes of a body are over, or is empty.
func tooLong(n, limit int64, pool *replayPool) string {
	switch {
	case n > limit:
		return fmt.Sprintf("the request body is larger than the %d bytes of BufferBody", limit)
	case n > pool.perCall:
		return fmt.Sprintf("the request body is larger than the %d bytes of replay memory that a call may have", pool.perCall)
	default:
		return ""
	}
}

// growLocked makes room for n more bytes, if there is some.
func (b *bodyBuffer) growLocked(n int64) bool {
	need := int64(len(b.kept)) + n
	if b.why = tooLong(need, b.limit, b.pool); b.why != "" {
		return false
	}
	if need <= int64(cap(b.kept)) {
		return true
	}
	size := min(max(2*int64(cap(b.kept)), need, firstKept), b.limit, b.pool.perCall)
	for _, size := range [...]int64{size, need} {
		if b.pool.take(size - b.held) {
			kept := make([]byte, len(b.kept), size)
			copy(kept, b.kept)
			b.kept, b.held = kept, size
			return true
		}
	}
	b.why = b.pool.full()
	return false
}

// bodyView is the body of one attempt.
type bodyView struct {
	b      *bodyBuffer
	off    int64 // under b.mu, as the rest
	closed bool
}

// Read gives what is kept, then what the source has.
func (v *bodyView) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b := v.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		switch {
		case v.closed:
			return 0, http.ErrBodyReadAfterClose
		case v.off < b.read && b.gone:
			return 0, errSettled // another attempt has read on
		case v.off < b.read:
			n := copy(p, b.kept[v.off:])
			v.off += int64(n)
			if b.settled && v.off == b.read {
				b.dropLocked()
			}
			return n, nil
		case b.err != nil:
			return 0, b.err
		case !b.reading:
			return v.readOnLocked(p)
		}
		b.changed.Wait() // an attempt before this one has not returned from its read
	}
}

// readOnLocked reads the source; the lock is given back meanwhile.
func (v *bodyView) readOnLocked(p []byte) (n int, err error) {
	b := v.b
	src := b.src
	b.reading = true
	b.mu.Unlock()
	defer func() { // also if the caller's Read panics
		b.mu.Lock()
		b.reading = false
		b.changed.Broadcast()
		b.keepLocked(p[:n])
		v.off += int64(n)
		if b.err == nil {
			b.err = err
		}
	}()
	return src.Read(p)
}

// Close ends the view.
func (v *bodyView) Close() error {
	b := v.b
	b.mu.Lock()
	end := func() {}
	if !v.closed {
		v.closed = true
		b.views--
		b.changed.Broadcast()
		end = b.endLocked()
	}
	b.mu.Unlock()
	end()
	return nil
}

// trailerBody fills in the trailers of an attempt's request when its body has
// ended: the caller may set them until then, and the request is a copy.
type trailerBody struct {
	io.ReadCloser
	from, to http.Header
}

func (t trailerBody) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		for k, v := range t.from {
			t.to[k] = append([]string(nil), v...)
		}
	}
	return n, err
}
