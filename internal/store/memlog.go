package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// MemLog is a CommitLog in memory, for tests: batches become durable when the
// flusher gets to them, which Hold delays and Fail prevents.
type MemLog struct {
	queue
	kept    []memBatch // durable, under queue.mu
	gone    uint64     // index of the last batch before kept
	held    bool       // under queue.mu
	stopped sync.WaitGroup
}

type memBatch struct {
	pos     Pos
	payload []byte
}

// NewMemLog returns an empty log; undurableLimit 0 means DefaultUndurableLimit.
func NewMemLog(undurableLimit int64) *MemLog {
	if undurableLimit <= 0 {
		undurableLimit = DefaultUndurableLimit
	}
	l := &MemLog{}
	l.init(undurableLimit)
	return l
}

// Crash returns a log with the durable batches of l, as after a power cut, to
// be replayed. l stays as it is.
func (l *MemLog) Crash() *MemLog {
	n := NewMemLog(l.limit)
	l.mu.Lock()
	defer l.mu.Unlock()
	n.kept, n.gone = slices.Clone(l.kept), l.gone
	return n
}

// Hold keeps what is appended from becoming durable until Unhold or Close.
func (l *MemLog) Hold() { l.setHeld(true) }

// Unhold ends Hold.
func (l *MemLog) Unhold() { l.setHeld(false) }

func (l *MemLog) setHeld(held bool) {
	l.mu.Lock()
	l.held = held
	l.mu.Unlock()
	l.work.Broadcast()
}

// Fail loses the log as a failed sync does.
func (l *MemLog) Fail(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failLocked(fmt.Errorf("%w: %w", ErrLost, cause), true)
}

// Replay implements CommitLog.
func (l *MemLog) Replay(ctx context.Context, fn func(Replayed) error) (ReplayStats, error) {
	var stats ReplayStats
	for _, b := range l.kept {
		if ctx.Err() != nil {
			return stats, context.Cause(ctx)
		}
		if _, err := eachRecord(b.payload, func(from int, rec []byte) error {
			stats.Records++
			stats.Bytes += int64(len(rec))
			return fn(Replayed{Pos: b.pos, Rec: rec, from: from, in: b})
		}); err != nil {
			return stats, fmt.Errorf("replay batch %d: %w", b.pos.Index, err)
		}
		stats.Batches++
		stats.Last = b.pos
	}
	l.mu.Lock()
	if l.gone > stats.Last.Index {
		stats.Last = Pos{localTerm, l.gone}
	}
	l.durable.Store(stats.Last.Index)
	l.startLocked(stats.Last.Index + 1)
	l.mu.Unlock()
	l.stopped.Go(l.flush)
	return stats, nil
}

// place implements placer.
func (b memBatch) place(from, size int) Place {
	return Place{{b.pos.Index, int64(from), size}}
}

// Reread implements CommitLog.
func (l *MemLog) Reread(p Place, buf []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	buf = buf[:0]
	for _, e := range p {
		if e.file <= l.gone {
			return nil, fmt.Errorf("batch %d was given back", e.file)
		}
		buf = append(buf, l.kept[e.file-1-l.gone].payload[e.off:e.off+int64(e.size)]...)
	}
	return buf, nil
}

// Truncate implements CommitLog.
func (l *MemLog) Truncate(p Pos) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.kept) > 0 && l.kept[0].pos.Compare(p) < 0 {
		l.kept, l.gone = l.kept[1:], l.kept[0].pos.Index
	}
	return nil
}

// Admit implements CommitLog; there is always room.
func (l *MemLog) Admit(ctx context.Context, sizes ...int) error {
	if err := checkRecords(sizes); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return fmt.Errorf("admit a commit record: %w", l.err)
	case l.closing:
		return ErrClosed
	}
	return nil
}

// Release implements CommitLog.
func (l *MemLog) Release(...int) {}

// Append implements CommitLog.
func (l *MemLog) Append(rec []byte) Pos {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(rec)
}

func (l *MemLog) flush() {
	for {
		l.mu.Lock()
		b := l.takeLocked()
		if b == nil {
			l.mu.Unlock()
			return
		}
		for l.held && !l.closing && l.err == nil {
			l.work.Wait()
		}
		if l.err != nil {
			l.mu.Unlock()
			return
		}
		l.kept = append(l.kept, memBatch{Pos{localTerm, b.index}, slices.Clone(b.buf[frameHeaderSize:])})
		l.settleLocked()
		l.mu.Unlock()
	}
}

// Close implements CommitLog.
func (l *MemLog) Close() error {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return ErrClosed
	}
	l.closing = true
	l.work.Broadcast()
	l.mu.Unlock()
	l.stopped.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.failLocked(ErrClosed, false) && errors.Is(l.err, ErrLost) {
		return l.err
	}
	return nil
}
