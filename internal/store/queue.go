package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
)

// batch is the records that become durable together.
type batch struct {
	index   uint64
	buf     []byte // frameHeaderSize free bytes, then the records, each uvarint length and bytes
	records int
	cost    int64         // room reserved for its records: at least what it takes on disk
	done    chan struct{} // made by the first waiter, closed when the batch is settled
}

// recordCost is the most room a record of n bytes can take in a segment: as
// if it was a batch of its own.
func recordCost(n int) int64 {
	return int64(n) + binary.MaxVarintLen32 + frameHeaderSize
}

// recordsCost is that of several records.
func recordsCost(sizes []int) (cost int64) {
	for _, n := range sizes {
		cost += recordCost(n)
	}
	return cost
}

// queue is what every local log shares: the batch being filled, the batch
// being made durable, and those who wait for either. At most one batch is
// under way at any time.
//
//	Append ─> open ──take──> flying ──settle──> durable (or lost)
type queue struct {
	limit   int64 // of undurable bytes
	durable atomic.Uint64

	mu        sync.Mutex
	work      sync.Cond // flusher: open has records, or closing
	open      *batch
	flying    *batch // nil when nothing is under way
	spare     []byte // buffer of the batch settled last
	undurable int64  // bytes of open and flying
	closing   bool
	err       error         // set once: ErrLost and its cause, or ErrClosed
	lost      chan struct{} // closed when err is ErrLost
	room      chan struct{} // made by a waiter, closed when undurable falls or err is set
}

// maxSpare bounds the buffer that is kept between batches.
const maxSpare = 4 << 20

func (q *queue) init(limit int64) {
	q.limit = limit
	q.work.L = &q.mu
	q.lost = make(chan struct{})
	q.startLocked(1)
}

// startLocked opens the empty batch with the given index.
func (q *queue) startLocked(index uint64) {
	b := &batch{index: index, buf: q.spare}
	q.spare = nil
	if cap(b.buf) < frameHeaderSize {
		b.buf = make([]byte, 0, 64<<10)
	}
	b.buf = b.buf[:frameHeaderSize]
	q.open = b
}

// appendLocked puts rec into the open batch.
func (q *queue) appendLocked(rec []byte) Pos {
	b := q.open
	p := Pos{localTerm, b.index}
	if q.err != nil {
		return p
	}
	n := len(b.buf)
	b.buf = binary.AppendUvarint(b.buf, uint64(len(rec)))
	b.buf = append(b.buf, rec...)
	b.records++
	b.cost += recordCost(len(rec))
	q.undurable += int64(len(b.buf) - n)
	if b.records == 1 {
		q.work.Signal()
	}
	return p
}

// takeLocked waits for records and makes the open batch the flying one. It
// returns nil when the queue is closing and empty, or lost.
func (q *queue) takeLocked() *batch {
	for q.open.records == 0 && !q.closing && q.err == nil {
		q.work.Wait()
	}
	if q.err != nil || q.open.records == 0 {
		return nil
	}
	q.flying = q.open
	q.startLocked(q.flying.index + 1)
	return q.flying
}

// settleLocked ends the flying batch, which is durable.
func (q *queue) settleLocked() {
	b := q.flying
	q.flying = nil
	q.durable.Store(b.index)
	q.undurable -= int64(len(b.buf) - frameHeaderSize)
	if b.done != nil {
		close(b.done)
	}
	if q.room != nil && q.undurable < q.limit {
		close(q.room)
		q.room = nil
	}
	if cap(b.buf) <= maxSpare {
		q.spare = b.buf
	}
	b.buf = nil
}

// failLocked breaks every gate for good. The first call wins and returns true.
func (q *queue) failLocked(err error, lost bool) bool {
	if q.err != nil {
		return false
	}
	q.err = err
	if lost {
		close(q.lost)
	}
	for _, b := range []*batch{q.flying, q.open} {
		if b != nil && b.done != nil {
			close(b.done)
		}
	}
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
	q.work.Broadcast()
	return true
}

// Next implements CommitLog.
func (q *queue) Next() Pos {
	q.mu.Lock()
	defer q.mu.Unlock()
	return Pos{localTerm, q.open.index}
}

// Durable implements CommitLog.
func (q *queue) Durable() Pos {
	if n := q.durable.Load(); n > 0 {
		return Pos{localTerm, n}
	}
	return Pos{}
}

// Wait implements CommitLog.
func (q *queue) Wait(ctx context.Context, p Pos) error {
	if p.IsZero() || p.Term == localTerm && p.Index <= q.durable.Load() {
		return nil
	}
	q.mu.Lock()
	if p.Index <= q.durable.Load() && p.Term == localTerm {
		q.mu.Unlock()
		return nil
	}
	if q.err != nil {
		q.mu.Unlock()
		return fmt.Errorf("wait for %v: %w", p, q.err)
	}
	var b *batch
	switch {
	case p.Term != localTerm:
	case q.flying != nil && q.flying.index == p.Index:
		b = q.flying
	case q.open.index == p.Index && q.open.records > 0:
		b = q.open
	}
	if b == nil {
		q.mu.Unlock()
		return fmt.Errorf("wait for %v: the log never gave out this position", p)
	}
	if b.done == nil {
		b.done = make(chan struct{})
	}
	done := b.done
	q.mu.Unlock()

	select {
	case <-done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if p.Index <= q.durable.Load() {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return fmt.Errorf("wait for %v: %w", p, q.err)
}

// Full implements CommitLog.
func (q *queue) Full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.undurable >= q.limit
}

// WaitRoom implements CommitLog.
func (q *queue) WaitRoom(ctx context.Context) error {
	for {
		q.mu.Lock()
		if q.err != nil {
			defer q.mu.Unlock()
			return fmt.Errorf("wait for room in the commit log: %w", q.err)
		}
		if q.undurable < q.limit {
			q.mu.Unlock()
			return nil
		}
		if q.room == nil {
			q.room = make(chan struct{})
		}
		room := q.room
		q.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Lost implements CommitLog.
func (q *queue) Lost() <-chan struct{} { return q.lost }

// checkRecords refuses records over the cap.
func checkRecords(sizes []int) error {
	for _, n := range sizes {
		if n > MaxRecord {
			return &LimitError{
				What: "record of the commit log", Size: int64(n), Limit: MaxRecord,
				Remedy: "write less in one turn or transaction",
			}
		}
	}
	return nil
}
