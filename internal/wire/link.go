package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
)

// Conn is what a connection needs of a network: a net.Conn has it. Close makes
// Read and Write return.
type Conn interface {
	Read(p []byte) (int, error)
	Write(p []byte) (int, error)
	Close() error
	RemoteAddr() net.Addr
}

// closeWriter is a Conn that can end one direction: TCP and TLS can.
type closeWriter interface{ CloseWrite() error }

const (
	// batchBytes is about what one Write is given.
	batchBytes = 64 << 10
	// maxQueued is what calls may queue for the writer; then they wait.
	maxQueued = 1 << 20
	// maxAnswers is what the reader may queue in answer to a peer that does not
	// read; then the connection ends. It is fewAnswers when all connections
	// together have queued what they may (shares).
	maxAnswers = 8 << 20
	fewAnswers = 128 << 10
	// keptBuffer is the most of a buffer that an idle connection keeps.
	keptBuffer = 8 << 10
	// finishTimeout is how long a last word may take, other than the answers of an
	// acceptor that drains.
	finishTimeout = 2 * time.Second
)

var (
	errSilent   = fmt.Errorf("nothing was heard from the peer for %v", lostAfter)
	errStalled  = fmt.Errorf("the peer took nothing for %v", stallAfter)
	errNotReads = errors.New("the peer does not read: too many answers wait for it")
	errClosed   = errors.New("the connection was closed")
)

// link is one connection: a reader, a writer and a keeper of time, which end
// together. What calls are is the business of its end (duplex).
//
//	callers ──▶ queue ──▶ writer ──▶ Write ──▶ peer
//	  ▲                     ▲ pings, windows, acks go first
//	  │  end.frame          │
//	reader ◀── Read ◀── peer┘
type link struct {
	conn   Conn
	clock  limpet.Clock
	shares *shares
	start  time.Time
	hello  Hello // what we said; set by greet
	end    end
	fr     *frameReader

	// linger: after the last word wait until the peer closes too, or fail is
	// called. To close while the peer still sends (windows, acks) would make TCP
	// throw away what it has not delivered yet.
	linger bool

	wake    chan struct{} // of one element: the writer has something to do
	closed  chan struct{} // closed with err set
	flushed chan struct{} // closed when the last word was given to the system
	wg      sync.WaitGroup

	mu       sync.Mutex // guards all below, and what of calls more than one goroutine sees
	err      error      // why the connection has ended
	last     error      // it ends with this once all is written
	lastWord limpet.Timer
	queue    []item
	queued   int           // bytes
	room     chan struct{} // closed when there is room again; nil if nobody waits
	first    []byte        // frames that go before the queue
	pong     uint64        // to be echoed
	pongs    bool
	pings    uint64
	acks     []ack
	grants   []*inBody // that have a grant to send
	pool     *pool
	keep     keepalive
}

// end is what a link carries.
type end interface {
	// frame takes a frame; an error ends the connection. It must not wait.
	frame(f frame) error
	// gone is called once, with no lock held, when the connection has ended.
	gone(err error)
	// tick is called with the lock held, every few seconds.
	tick(now time.Duration)
	// several reports, with the lock held, whether several calls are under way.
	several() bool
}

// item is what the writer is given: frames of one call, or of none.
type item struct {
	head []byte
	tail []byte // written after head, not changed by anybody
	call *outCall
}

func newLink(conn Conn, clock limpet.Clock, shared *shares) *link {
	l := &link{
		conn: conn, clock: clock, start: clock.Now(), wake: make(chan struct{}, 1), closed: make(chan struct{}),
		flushed: make(chan struct{}),
		pool:    newPool(&shared.lent), shares: shared,
	}
	l.fr = newFrameReader(timedReader{l})
	return l
}

// now is the time of the keepalive.
func (l *link) now() time.Duration { return l.clock.Now().Sub(l.start) }

// run starts the goroutines, which wait ends.
func (l *link) run(e end) {
	l.end = e
	l.wg.Go(l.reads)
	l.wg.Go(l.writes)
	l.wg.Go(l.keeps)
}

// spawn runs f on a goroutine that wait waits for; false if the connection has
// ended.
func (l *link) spawn(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false
	}
	l.wg.Go(f) // the reader still runs, since err is not set
	return true
}

func (l *link) reads() {
	err := l.readAll()
	switch {
	case errors.Is(err, errProtocol):
		l.finish(err) // so that the peer hears why
		<-l.closed
	default:
		l.fail(err)
	}
	l.mu.Lock()
	err = l.err
	l.mu.Unlock()
	l.end.gone(err)
}

func (l *link) readAll() error {
	for {
		f, err := l.fr.next()
		if err != nil {
			return err
		}
		if err := l.common(f); err != nil {
			return err
		}
	}
}

// timedReader reads from the connection, and refuses what has come when it comes
// after too long a silence: before anybody looks at it (DESIGN 8).
type timedReader struct{ l *link }

func (r timedReader) Read(p []byte) (int, error) {
	n, err := r.l.conn.Read(p)
	if n == 0 {
		return n, err
	}
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if r.l.err != nil {
		return 0, r.l.err
	}
	if !r.l.keep.read(r.l.now()) {
		return 0, errSilent
	}
	return n, err
}

// common takes the frames that mean the same to both sides.
func (l *link) common(f frame) error {
	switch f.typ {
	case framePing:
		nonce, err := readPing(f.payload)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.pong, l.pongs = nonce, true // a flood of pings costs one answer
		l.mu.Unlock()
		l.kick()
		return nil
	case framePong:
		_, err := readPing(f.payload)
		return err
	case frameHello:
		return violation("a second HELLO")
	}
	return l.end.frame(f)
}

func (l *link) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// writes is the writer.
func (l *link) writes() {
	var buf []byte
	for {
		select {
		case <-l.wake:
		case <-l.closed:
			return
		}
		for {
			l.mu.Lock()
			if l.end.several() {
				// Let those who are about to queue something do so first: one write
				// for many frames.
				l.mu.Unlock()
				runtime.Gosched()
				l.mu.Lock()
			}
			buf = l.takeLocked(buf[:0])
			if len(buf) == 0 {
				if l.last != nil {
					close(l.flushed) // once: both ways end the writer
				}
				if half, ok := l.conn.(closeWriter); ok && l.linger && l.err == nil && errors.Is(l.last, errClosed) {
					l.mu.Unlock()
					_ = half.CloseWrite() // if it fails, so does the reader
					<-l.closed            // the reader meets the peer's end, or Close does not wait any more
					return
				}
				if l.last != nil {
					l.failLocked(l.last)
					l.mu.Unlock()
					return
				}
				l.mu.Unlock()
				if cap(buf) > keptBuffer {
					buf = nil
				}
				break
			}
			l.keep.writeBegins(l.now())
			l.mu.Unlock()
			_, err := l.conn.Write(buf)
			l.mu.Lock()
			l.keep.writeEnds()
			l.mu.Unlock()
			if err != nil {
				l.fail(err)
				return
			}
			if cap(buf) > 4*batchBytes {
				buf = nil
			}
		}
	}
}

// takeLocked gathers what the next Write is given. From then on the calls whose
// frames are in it may have reached the peer, whatever Write returns.
func (l *link) takeLocked(b []byte) []byte {
	if l.err != nil {
		return b
	}
	if l.pongs {
		b = appendPing(b, framePong, l.pong)
		l.pongs = false
	}
	b = append(b, l.first...)
	l.first = l.first[:0]
	for _, in := range l.grants {
		if in.owing > 0 {
			b = appendWindow(b, in.call, in.owing)
		}
		in.owing, in.listed = 0, false
	}
	clear(l.grants)
	l.grants = l.grants[:0]
	n := 0
	for n < len(l.queue) && len(b) < batchBytes {
		it := &l.queue[n]
		n++
		l.countLocked(-len(it.head) - len(it.tail))
		if it.call != nil {
			if it.call.dropped {
				continue
			}
			it.call.sent = true
		}
		b = append(append(b, it.head...), it.tail...)
	}
	if n == len(l.queue) {
		clear(l.queue)
		l.queue = l.queue[:0]
	} else {
		l.queue = slices.Delete(l.queue, 0, n)
	}
	if len(l.acks) > 0 && (len(b) > 0 || len(l.acks) >= maxAcks/4) {
		k := min(len(l.acks), maxAcks)
		b = appendAcks(b, l.acks[:k])
		l.acks = slices.Delete(l.acks, 0, k)
	}
	if l.room != nil && l.roomLocked() {
		close(l.room)
		l.room = nil
	}
	return b
}

// push queues without waiting; for the reader.
func (l *link) pushLocked(it item) {
	if l.err != nil {
		return
	}
	l.queue = append(l.queue, it)
	l.countLocked(len(it.head) + len(it.tail))
	l.kick()
}

// pushReleaseLocked queues the release of a capability: behind all frames that
// may name it.
func (l *link) pushReleaseLocked(id uint64) {
	if l.err != nil {
		return
	}
	if n := len(l.queue); n > 0 && frameType(l.queue[n-1].head[0]) == frameRelease && len(l.queue[n-1].head) < maxReleases {
		it := &l.queue[n-1] // a frame of its own: it takes more ids
		before := len(it.head)
		it.head = binary.AppendUvarint(it.head, id)
		binary.BigEndian.PutUint16(it.head[2:], uint16(len(it.head)-headerBytes)) //nolint:gosec // below maxReleases and some
		l.countLocked(len(it.head) - before)
		return
	}
	l.pushLocked(item{head: appendFrame(nil, frameRelease, 0, 0, binary.AppendUvarint(nil, id))})
}

func (l *link) countLocked(n int) {
	l.queued += n
	l.shares.queue.Add(int64(n))
}

// crowded reports whether all connections together have queued what they may.
func (l *link) crowded() bool { return l.shares.queue.Load() >= l.shares.queueLimit }

// roomLocked reports whether calls may queue more.
func (l *link) roomLocked() bool {
	return l.queued < batchBytes || l.queued < maxQueued && !l.crowded()
}

// answerLocked is pushLocked for what the peer can provoke without reading.
func (l *link) answerLocked(it item) error {
	l.pushLocked(it)
	if l.queued > maxAnswers+maxQueued || l.queued > fewAnswers+batchBytes && l.crowded() {
		return errNotReads
	}
	return nil
}

// waitRoom returns with the lock held and room in the queue, or with an error and
// no lock. gone ends the wait too.
func (l *link) waitRoom(gone <-chan struct{}) error {
	l.mu.Lock()
	for {
		if l.err != nil {
			err := l.err
			l.mu.Unlock()
			return err
		}
		if l.last == nil && l.roomLocked() {
			return nil
		}
		if l.room == nil {
			l.room = make(chan struct{})
		}
		room := l.room
		l.mu.Unlock()
		select {
		case <-room:
		case <-l.closed:
		case <-gone:
			return errGone
		}
		l.mu.Lock()
	}
}

// errGone says that nobody waits any more.
var errGone = errors.New("nobody waits any more")

// keeps pings, and finds out whether the peer is there.
func (l *link) keeps() {
	timer := l.clock.NewTimer(pingEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
		case <-l.closed:
			return
		}
		l.mu.Lock()
		now := l.now()
		good, stalled := l.keep.tick(now)
		if good && len(l.first) < MaxFrame {
			l.pings++
			l.first = appendPing(l.first, framePing, l.pings)
		}
		l.end.tick(now)
		l.mu.Unlock()
		switch {
		case stalled:
			l.fail(errStalled)
		case !good:
			l.fail(errSilent)
		}
		l.kick()
		timer.Reset(pingEvery)
	}
}

// finish ends the connection once everything queued is written.
func (l *link) finish(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finishLocked(why)
}

func (l *link) finishLocked(why error) {
	if l.err != nil || l.last != nil {
		return
	}
	if errors.Is(why, errProtocol) {
		l.pushLocked(item{head: appendGoAway(nil, math.MaxUint64, why.Error())})
	}
	l.last = why
	if !l.linger || !errors.Is(why, errClosed) { // Close bounds a drain
		l.lastWord = l.clock.AfterFunc(finishTimeout, func() { l.fail(why) })
	}
	l.kick()
}

// fail ends the connection at once. The first reason counts.
func (l *link) fail(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failLocked(why)
}

func (l *link) failLocked(why error) {
	if l.err != nil {
		return
	}
	if l.last != nil {
		why = l.last
	}
	l.err = why
	close(l.closed)
	if l.lastWord != nil {
		l.lastWord.Stop()
	}
	clear(l.queue)
	l.countLocked(-l.queued)
	l.queue, l.grants, l.acks, l.first = nil, nil, nil, nil
	// Elsewhere, since a TLS connection says goodbye. The reader still runs, so
	// that wait waits for it.
	l.wg.Go(func() { _ = l.conn.Close() })
}

// wait returns when the goroutines have ended.
func (l *link) wait() { l.wg.Wait() }

// greet exchanges hellos, within ctx. The dialer speaks first. After an error
// the connection is the caller's to close.
func (l *link) greet(ctx context.Context, ours Hello, dialer bool) (Hello, error) {
	stop := context.AfterFunc(ctx, func() { _ = l.conn.Close() })
	defer stop()
	theirs, err := l.hellos(ours, dialer)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("handshake: %w", context.Cause(ctx))
		}
		return theirs, err
	}
	return theirs, nil
}

func (l *link) hellos(ours Hello, dialer bool) (theirs Hello, err error) {
	l.hello = ours
	if dialer {
		if _, err := l.conn.Write(appendHello(nil, ours)); err != nil {
			return theirs, err
		}
	}
	if theirs, err = peerHello(l.fr); err != nil {
		return theirs, err
	}
	if !dialer {
		if _, err := l.conn.Write(appendHello(nil, ours)); err != nil {
			return theirs, err
		}
	}
	_, err = agree(ours, theirs)
	return theirs, err
}
