package wire

import (
	"errors"
	"io"
	"net/http"

	"github.com/limpet-dev/limpet"
)

// inBody is a body that comes in: the reader's end of a stream. It is read by
// one goroutine at a time.
type inBody struct {
	l       *link
	call    uint64
	atEnd   func(err error)   // called once by the reader that met the end; may be nil
	onClose func(unread bool) // called once by Close; may be nil

	// Under l.mu.
	avail   chan struct{} // of one element: something has changed; nil until the reader has waited
	flow    inflow
	buf     []byte
	off     int
	err     error // the end: io.EOF or a failure, after what is in buf
	trailer http.Header
	dead    bool  // nobody reads: what comes is thrown away
	owing   int64 // a grant that the writer is to send
	listed  bool  // in l.grants

	// Of the reader.
	ended, shut bool
}

func newInBody(l *link, call uint64) *inBody {
	in := &inBody{}
	in.init(l, call, initialWindow)
	return in
}

func (in *inBody) init(l *link, call uint64, window int64) {
	in.l, in.call, in.flow = l, call, newInflow(l.pool, window)
}

// arriveLocked takes a piece that the peer sent.
func (in *inBody) arriveLocked(p []byte) error {
	if in.dead {
		return nil
	}
	if in.err != nil {
		return violation("DATA of call %d after its end", in.call)
	}
	if !in.flow.arrive(int64(len(p))) {
		return violation("DATA of call %d over its window", in.call)
	}
	if in.off > 0 && in.off >= len(in.buf)/2 {
		in.buf = append(in.buf[:0], in.buf[in.off:]...)
		in.off = 0
	}
	in.buf = append(in.buf, p...)
	in.signal()
	return nil
}

// endLocked ends the body after what has come. The first end counts.
func (in *inBody) endLocked(err error) {
	if in.err == nil {
		in.err = err
	}
	in.signal()
}

// breakLocked ends the body at once.
func (in *inBody) breakLocked(err error) {
	if in.ended || in.dead {
		return
	}
	in.buf, in.off, in.owing = nil, 0, 0
	in.flow.close()
	in.err = err
	in.signal()
}

// dropLocked is for a body that nobody reads any more.
func (in *inBody) dropLocked() {
	if in.dead {
		return
	}
	in.dead = true
	in.flow.close()
	in.buf, in.off, in.owing = nil, 0, 0
	in.signal()
}

func (in *inBody) signal() {
	if in.avail == nil {
		return // nobody waits: who comes looks first
	}
	select {
	case in.avail <- struct{}{}:
	default:
	}
}

func (in *inBody) grantLocked(n int64) {
	if n <= 0 || in.err != nil || in.dead {
		return
	}
	in.owing += n
	if !in.listed && in.l.err == nil {
		in.listed = true
		in.l.grants = append(in.l.grants, in)
		in.l.kick()
	}
}

// expectLocked says that n bytes will come that are taken at once.
func (in *inBody) expectLocked(n int64) { in.grantLocked(in.flow.expect(n)) }

// Read waits for bytes, or for the end.
func (in *inBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		in.l.mu.Lock()
		switch {
		case in.dead:
			in.l.mu.Unlock()
			return 0, http.ErrBodyReadAfterClose
		case in.off < len(in.buf):
			n := copy(p, in.buf[in.off:])
			in.off += n
			if in.off == len(in.buf) {
				in.off = 0
				in.buf = in.buf[:0]
				if cap(in.buf) > MaxFrame {
					in.buf = nil
				}
			}
			in.grantLocked(in.flow.consume(int64(n)))
			in.l.mu.Unlock()
			return n, nil
		case in.err != nil:
			err := in.err
			first := !in.ended
			in.ended = true
			in.flow.close()
			in.l.mu.Unlock()
			if first && in.atEnd != nil {
				in.atEnd(err)
			}
			return 0, err
		}
		if in.avail == nil {
			in.avail = make(chan struct{}, 1)
		}
		avail := in.avail
		in.l.mu.Unlock()
		<-avail // whatever ends the call or the connection ends the body
	}
}

// Close says that nobody reads any more.
func (in *inBody) Close() error {
	in.l.mu.Lock()
	first, unread := !in.shut, !in.ended
	in.shut = true
	in.dropLocked()
	in.l.mu.Unlock()
	if first && in.onClose != nil {
		in.onClose(unread)
	}
	return nil
}

// outBody is the sender's end of a stream.
type outBody struct {
	call *outCall // marks the frames; nil at the acceptor
	n    uint64
	done <-chan struct{} // closed when the peer wants no more

	// Under link.mu.
	flow  outflow
	ready chan struct{} // of one element: flow has grown; nil until the sender has waited
}

func (o *outBody) init(n uint64, call *outCall, done <-chan struct{}, window uint32) {
	o.call, o.n, o.done, o.flow = call, n, done, outflow(window)
}

func (o *outBody) grantLocked(n int64) error {
	if !o.flow.add(n) {
		return violation("WINDOW of call %d beyond all measure", o.n)
	}
	if o.ready == nil {
		return nil // nobody waits: who comes looks first
	}
	select {
	case o.ready <- struct{}{}:
	default:
	}
	return nil
}

// send queues p, which nobody may change afterwards, as the windows allow. The
// error is errGone when the peer wants no more, or the connection's.
func (l *link) send(o *outBody, p []byte, last bool) error {
	for {
		if err := l.waitRoom(o.done); err != nil {
			return err
		}
		n := min(len(p), int(o.flow), maxPayload)
		if n == 0 && len(p) > 0 {
			if o.ready == nil {
				o.ready = make(chan struct{}, 1)
			}
			ready := o.ready
			l.mu.Unlock()
			select {
			case <-ready:
			case <-o.done:
				return errGone
			case <-l.closed:
			}
			continue
		}
		flags := uint8(0)
		if last && n == len(p) {
			flags = flagEnd
		}
		o.flow -= outflow(n)
		l.pushLocked(item{head: appendHead(nil, frameData, flags, o.n, n), tail: p[:n:n], call: o.call})
		l.mu.Unlock()
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

// block queues a block of a body's call, when there is room.
func (l *link) block(o *outBody, t frameType, flags uint8, block []byte) error {
	if err := l.waitRoom(o.done); err != nil {
		return err
	}
	l.pushLocked(item{head: appendBlock(nil, t, flags, o.n, block), call: o.call})
	l.mu.Unlock()
	return nil
}

// fewBytes and pumpBytes are how much of a body is read at a time, at first and
// if there is more each time.
const (
	fewBytes  = 4 << 10
	pumpBytes = 32 << 10
)

// errSource wraps what reading a body to be sent failed with.
type errSource struct{ err error }

func (e errSource) Error() string { return e.err.Error() }
func (e errSource) Unwrap() error { return e.err }

// pump sends all of r, piece by piece as it comes, and then end: the trailers or
// the end of the body. A failure of r is an errSource; nothing was sent of it.
func (l *link) pump(o *outBody, r io.Reader, trailer func() http.Header) error {
	size := fewBytes
	for empty := 0; ; {
		buf := make([]byte, size)
		n, err := r.Read(buf)
		if n == size {
			size = min(2*size, pumpBytes)
		} else if n < size/4 {
			size = max(size/2, fewBytes)
		}
		if n > 0 {
			empty = 0
			if serr := l.send(o, buf[:n], false); serr != nil {
				return serr
			}
		} else if empty++; err == nil && empty > 100 {
			return errSource{io.ErrNoProgress}
		}
		switch {
		case errors.Is(err, io.EOF):
			if t := trailer(); len(t) > 0 {
				b := appendHeader(nil, t)
				if n := fields(t); len(b) > maxBlock || n > maxFields { // the peer would end the connection
					return errSource{limpet.Errorf(limpet.CodeTooLarge, "%d trailers of %d bytes; the limits are %d and %d", n, len(b), maxFields, maxBlock)}
				}
				return l.block(o, frameTrailer, flagEnd, b)
			}
			return l.send(o, nil, true)
		case err != nil:
			return errSource{err}
		}
	}
}
