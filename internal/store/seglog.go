package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/limpet-dev/limpet"
)

// prepareRetry is how long after a failure the next segment is tried again.
const prepareRetry = time.Second

// DefaultUndurableLimit is how many bytes may wait for the disk before Full.
const DefaultUndurableLimit = 64 << 20

// logOptions are the parameters of a segment log.
type logOptions struct {
	fs       vfs.FS
	dir      string // exists
	clock    limpet.Clock
	identity logIdentity
	// first is the number of the first segment, which must exist when started.
	first   uint64
	started bool
	// size of new segments in bytes; those on disk keep theirs.
	size           int64
	undurableLimit int64
	// fatal is called once, on a goroutine of the log, when it is lost.
	fatal func(error)
	// fullChanged is called when preparing a segment begins to fail, with the
	// cause, and when it works again, with nil.
	fullChanged func(error)
	// from is where the base store needs replay to begin: it has all before.
	from Pos
	// limit is how many bytes all segments may have; 0 is no limit. Beyond it
	// no segment is prepared.
	limit int64
	// shorten is called by the preparer when limit is met, and is to Truncate.
	shorten func() error
	// progress is called before each segment of a replay, from 1.
	progress func(segment, of int, stats *ReplayStats)
}

// segmentLog is the CommitLog of one node: numbered segments, one write and one
// fdatasync per batch.
//
//	preparer: zero-filled segments, one ahead of need ──> ready
//	Admit:    reserves room in current and ready, or fails
//	Append:   copies into the open batch
//	flusher:  batch ─> pieces, at the end of current, then in ready ─> sync ─> settle
type segmentLog struct {
	queue
	opt logOptions

	// Under queue.mu.
	sealed     []sealedSegment // full ones, oldest first
	current    *segment
	ready      []*segment
	free       []string // files of segments that were given back, to be used again
	gone       uint64   // no batch up to this can come again at a replay
	reserved   int64    // cost of admitted records that have not been appended
	shortage   bool     // an Admit waits for another segment
	prepareErr error    // of the last attempt; nil when it worked
	readiness  chan struct{}

	readers    segmentReaders
	truncating sync.Mutex   // held by Truncate
	sealedSize atomic.Int64 // bytes of sealed

	kick    chan struct{} // tells the preparer to look again
	stop    chan struct{} // closed by Close
	stopped sync.WaitGroup
	stats   logCounters
}

// logCounters are under queue.mu.
type logCounters struct {
	records, batches, bytes, syncs, segments, recycled int64
}

// sealedSegment is a segment that is full.
type sealedSegment struct {
	number  uint64
	path    string
	size    int64
	last    uint64 // index of the last batch that may have a piece in it
	renamed bool   // it has the name of a free one, perhaps not durably
}

// maxFree is how many segments that were given back are kept to be used again.
const maxFree = 4

var errLogLimit = errors.New("the commit log waits for checkpoints, since it has its full size")

func newSegmentLog(opt logOptions) *segmentLog {
	l := &segmentLog{opt: opt, kick: make(chan struct{}, 1), stop: make(chan struct{}), readiness: make(chan struct{})}
	l.init(opt.undurableLimit)
	return l
}

// Replay implements CommitLog.
func (l *segmentLog) Replay(ctx context.Context, fn func(Replayed) error) (ReplayStats, error) {
	r := recovery{opt: l.opt, fn: fn}
	stats, err := r.run(ctx)
	if err == nil && len(r.tail) == 0 {
		var s *segment
		if s, err = prepareSegment(l.opt.fs, l.opt.dir, l.opt.first, l.opt.size, l.opt.identity); err == nil {
			r.tail = []*segment{s}
		} else {
			err = fullError(err)
		}
	}
	if err != nil {
		for _, s := range r.tail {
			_ = s.f.Close()
		}
		return stats, err
	}
	l.mu.Lock()
	l.current, l.ready, l.sealed = r.tail[0], r.tail[1:], r.sealed
	for i := range l.sealed {
		l.sealedSize.Add(l.sealed[i].size)
	}
	if r.begin > 0 {
		l.gone = r.begin - 1
	} else {
		l.gone = stats.Last.Index
	}
	l.durable.Store(stats.Last.Index)
	l.startLocked(stats.Last.Index + 1)
	l.mu.Unlock()
	l.stopped.Go(l.flush)
	l.stopped.Go(l.prepare)
	return stats, nil
}

// Reread implements CommitLog.
func (l *segmentLog) Reread(p Place, buf []byte) ([]byte, error) {
	buf = buf[:0]
	for _, e := range p {
		n := len(buf)
		buf = slices.Grow(buf, e.size)[:n+e.size]
		if err := l.readers.read(l.opt.fs, l.opt.fs.PathJoin(l.opt.dir, segmentName(e.file)), e.file, buf[n:], e.off); err != nil {
			return nil, err
		}
	}
	return buf, nil
}

// maxReaders is how many segments are open for Reread at a time.
const maxReaders = 12

// segmentReaders are segments that are open to be read.
type segmentReaders struct {
	mu    sync.RWMutex
	files map[uint64]vfs.File
}

func (r *segmentReaders) read(fs vfs.FS, path string, number uint64, b []byte, off int64) error {
	at := func(f vfs.File) error {
		if n, err := f.ReadAt(b, off); n < len(b) {
			return fmt.Errorf("read %s: %d of %d bytes at %d: %w", path, n, len(b), off, err)
		}
		return nil
	}
	r.mu.RLock()
	if f := r.files[number]; f != nil {
		defer r.mu.RUnlock()
		return at(f)
	}
	r.mu.RUnlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[number]
	if f == nil {
		if len(r.files) >= maxReaders {
			r.closeLocked()
		}
		var err error
		if f, err = fs.Open(path, vfs.RandomReadsOption); err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		if r.files == nil {
			r.files = map[uint64]vfs.File{}
		}
		r.files[number] = f
	}
	return at(f)
}

// close ends the use of all segments; they are opened again when they are read.
func (r *segmentReaders) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeLocked()
}

func (r *segmentReaders) closeLocked() {
	for _, f := range r.files {
		_ = f.Close() // it was read only
	}
	clear(r.files)
}

// fullError wraps the failure to prepare a segment.
func fullError(cause error) error {
	return fmt.Errorf("%w: cannot prepare the next segment of the commit log: %w", ErrStorageFull, cause)
}

// roomLocked is the cost of records that surely fits in the segments at hand.
func (l *segmentLog) roomLocked() int64 {
	n := l.current.usableCurrent()
	for _, s := range l.ready {
		n += s.usableReady()
	}
	return n
}

// Admit implements CommitLog.
func (l *segmentLog) Admit(ctx context.Context, sizes ...int) error {
	if err := checkRecords(sizes); err != nil {
		return err
	}
	cost := recordsCost(sizes)
	for {
		l.mu.Lock()
		if l.err == nil && l.closing {
			l.mu.Unlock()
			return ErrClosed
		}
		if l.err != nil {
			defer l.mu.Unlock()
			return fmt.Errorf("admit a commit record: %w", l.err)
		}
		if l.reserved+l.open.cost+cost <= l.roomLocked() {
			l.reserved += cost
			l.mu.Unlock()
			return nil
		}
		if l.prepareErr != nil {
			defer l.mu.Unlock()
			return fullError(l.prepareErr)
		}
		l.shortage = true
		readiness := l.readiness
		l.mu.Unlock()
		l.kickPreparer()
		select {
		case <-readiness:
		case <-l.lost:
		case <-l.stop:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Release implements CommitLog.
func (l *segmentLog) Release(sizes ...int) {
	l.mu.Lock()
	l.reserved -= recordsCost(sizes)
	l.mu.Unlock()
}

// Append implements CommitLog.
func (l *segmentLog) Append(rec []byte) Pos {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved -= recordCost(len(rec))
	return l.appendLocked(rec)
}

// sizeLocked is the bytes of all segments, those that are ready too.
func (l *segmentLog) sizeLocked() (n int64) {
	for i := range l.sealed {
		n += l.sealed[i].size
	}
	for _, s := range l.ready {
		n += s.size
	}
	return n + l.current.size
}

// Size is the bytes of all segments that are full, and of what is in the one in use.
func (l *segmentLog) Size() (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.sealed {
		n += l.sealed[i].size
	}
	if l.current != nil {
		n += l.current.off
	}
	return n
}

// Gone is the index of the last batch that cannot come again at a replay.
func (l *segmentLog) Gone() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone
}

// Truncate implements CommitLog: segments with nothing at or after p get the name
// of free ones, one after the other, so that what a crash leaves has no gap.
func (l *segmentLog) Truncate(p Pos) error {
	l.truncating.Lock()
	defer l.truncating.Unlock()
	fs := l.opt.fs
	for {
		l.mu.Lock()
		if len(l.sealed) == 0 || l.sealed[0].last >= p.Index || l.err != nil {
			l.mu.Unlock()
			return nil
		}
		s := l.sealed[0]
		l.mu.Unlock()
		l.readers.close()
		free := s.path + freeSuffix
		if !s.renamed {
			if err := fs.Rename(s.path, free); err != nil {
				return fmt.Errorf("give back segment %s: %w", s.path, err)
			}
			l.mu.Lock()
			l.sealed[0].renamed = true
			l.mu.Unlock()
		}
		if err := syncDir(fs, l.opt.dir); err != nil {
			return err
		}
		l.mu.Lock()
		keep := s.size == l.opt.size && len(l.free) < maxFree
		if keep {
			l.free = append(l.free, free)
		}
		l.gone = s.last
		l.sealed = l.sealed[1:]
		l.sealedSize.Add(-s.size)
		full := l.prepareErr != nil
		l.mu.Unlock()
		if !keep {
			if err := fs.Remove(free); err != nil {
				return fmt.Errorf("remove %s: %w", free, err)
			}
		}
		if full {
			l.kickPreparer()
		}
	}
}

// prepareNext makes segment number, out of a free file if there is one.
func (l *segmentLog) prepareNext(number uint64) (*segment, error) {
	over := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.opt.limit > 0 && l.sizeLocked()+l.opt.size > l.opt.limit
	}
	if over() {
		var err error
		if l.opt.shorten != nil {
			err = l.opt.shorten()
		}
		if over() {
			return nil, errors.Join(fmt.Errorf("%w of %d bytes", errLogLimit, l.opt.limit), err)
		}
	}
	l.mu.Lock()
	free := ""
	if n := len(l.free); n > 0 {
		free, l.free = l.free[n-1], l.free[:n-1]
	}
	l.mu.Unlock()
	if free != "" {
		s, err := recycleSegment(l.opt.fs, l.opt.dir, free, number, l.opt.size, l.opt.identity)
		if err == nil {
			l.mu.Lock()
			l.stats.recycled++
			l.mu.Unlock()
		}
		return s, err // the file is left to the next start if it failed
	}
	return prepareSegment(l.opt.fs, l.opt.dir, number, l.opt.size, l.opt.identity)
}

// Close implements CommitLog.
func (l *segmentLog) Close() error {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return ErrClosed
	}
	l.closing = true
	l.work.Broadcast()
	l.mu.Unlock()
	close(l.stop)
	l.stopped.Wait()

	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if !l.failLocked(ErrClosed, false) && errors.Is(l.err, ErrLost) {
		err = l.err
	}
	if l.current != nil {
		err = errors.Join(err, l.current.f.Close())
	}
	for _, s := range l.ready {
		err = errors.Join(err, s.f.Close())
	}
	l.current, l.ready = nil, nil
	l.readers.close()
	return err
}

// piece is the part of a batch that goes into one segment.
type piece struct {
	s        *segment
	off      int64 // of its frame in s
	from, to int   // of its payload in the batch's buffer; from -1: s is full, close it
}

// flush is the flusher: it makes one batch after the other durable.
func (l *segmentLog) flush() {
	var pieces []piece
	for {
		l.mu.Lock()
		b := l.takeLocked()
		if b == nil {
			l.mu.Unlock()
			return
		}
		var ok bool
		pieces, ok = l.placeLocked(pieces[:0], b)
		lookAhead := len(l.ready) == 0
		l.mu.Unlock()
		if lookAhead {
			l.kickPreparer()
		}
		err := errors.New("a record was appended without room: it was not admitted")
		if ok {
			err = l.write(b, pieces)
		}
		l.mu.Lock()
		if err != nil {
			lost := fmt.Errorf("%w: %w", ErrLost, err)
			l.failLocked(lost, true)
			l.mu.Unlock()
			if l.opt.fatal != nil {
				l.opt.fatal(lost)
			}
			return
		}
		for _, p := range pieces {
			if p.from < 0 {
				l.sealed = append(l.sealed, sealedSegment{number: p.s.number, path: p.s.path, size: p.s.size, last: b.index})
				l.sealedSize.Add(p.s.size)
			}
		}
		l.stats.batches++
		l.stats.records += int64(b.records)
		l.stats.syncs += int64(len(pieces))
		l.stats.bytes += int64(len(b.buf) - frameHeaderSize + len(pieces)*frameHeaderSize)
		l.settleLocked()
		l.mu.Unlock()
	}
}

// placeLocked says where the batch goes and moves on to ready segments as
// needed. It is false when there is no room, which Admit excludes.
func (l *segmentLog) placeLocked(pieces []piece, b *batch) ([]piece, bool) {
	for from := frameHeaderSize; from < len(b.buf); {
		s := l.current
		if s.room() <= frameHeaderSize {
			if len(l.ready) == 0 {
				return pieces, false
			}
			l.current, l.ready = l.ready[0], l.ready[1:]
			pieces = append(pieces, piece{s: s, from: -1})
			continue
		}
		to := int(min(int64(len(b.buf)), int64(from)+s.room()-frameHeaderSize))
		pieces = append(pieces, piece{s: s, off: s.off, from: from, to: to})
		s.off += frameHeaderSize + int64(to-from)
		from = to
	}
	return pieces, true
}

// write writes and syncs the pieces in order. A piece is synced before the
// next is written: so a torn batch never has a later piece without the earlier.
func (l *segmentLog) write(b *batch, pieces []piece) error {
	now := l.opt.clock.Now().UnixMilli()
	part := uint32(0)
	for _, p := range pieces {
		if p.from < 0 {
			_ = p.s.f.Close() // all of it is synced
			continue
		}
		// The header goes right before the payload: into the free bytes at
		// the start of the buffer, or over what the last piece has written.
		frameBytes := b.buf[p.from-frameHeaderSize : p.to]
		f := frame{part: part, term: localTerm, index: b.index, time: now}
		if p.to == len(b.buf) {
			f.flags |= frameLast
		}
		sealFrame(frameBytes, &f, seedAt(p.s.seed, p.off))
		if n, err := p.s.f.WriteAt(frameBytes, p.off); err != nil {
			return fmt.Errorf("write %d bytes at %d of %s: %w", len(frameBytes), p.off, p.s.path, err)
		} else if n != len(frameBytes) {
			return fmt.Errorf("write %d bytes at %d of %s: only %d were taken", len(frameBytes), p.off, p.s.path, n)
		}
		if err := syncData(p.s.f); err != nil {
			return fmt.Errorf("sync %s: %w", p.s.path, err)
		}
		part++
	}
	return nil
}

func (l *segmentLog) kickPreparer() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// prepare is the preparer: it keeps one segment ready, and as many as waiting
// records need.
func (l *segmentLog) prepare() {
	for {
		l.mu.Lock()
		if l.closing || l.err != nil {
			l.mu.Unlock()
			return
		}
		need := len(l.ready) == 0 || l.shortage || l.prepareErr != nil
		number := l.current.number + uint64(len(l.ready)) + 1
		l.mu.Unlock()
		if !need {
			select {
			case <-l.kick:
				continue
			case <-l.lost:
			case <-l.stop:
			}
			return
		}
		s, err := l.prepareNext(number)
		if (l.prepareErr == nil) != (err == nil) && l.opt.fullChanged != nil { // only the preparer changes it
			l.opt.fullChanged(err)
		}
		l.mu.Lock()
		l.prepareErr, l.shortage = err, false
		if err == nil {
			l.ready = append(l.ready, s)
			l.stats.segments++
		}
		close(l.readiness)
		l.readiness = make(chan struct{})
		l.mu.Unlock()
		if err == nil {
			continue
		}
		t := l.opt.clock.NewTimer(prepareRetry)
		select {
		case <-t.C():
		case <-l.kick:
			t.Stop()
		case <-l.lost:
			t.Stop()
			return
		case <-l.stop:
			t.Stop()
			return
		}
	}
}
