package store

import (
	"context"
	"fmt"
)

// Pos is a place in the commit log: the batch a record went into. It is never
// a file offset, so that a replicated log can stand behind the same code.
// The zero Pos is before everything and always durable.
type Pos struct {
	Term  uint64 // 1 on one node
	Index uint64 // number of the batch, from 1, without gaps
}

// localTerm is the term of every Pos on one node.
const localTerm = 1

// IsZero says whether p is before everything.
func (p Pos) IsZero() bool { return p == Pos{} }

// Compare is negative, zero or positive as p is before, at or after q.
func (p Pos) Compare(q Pos) int {
	switch {
	case p.Term != q.Term:
		if p.Term < q.Term {
			return -1
		}
		return 1
	case p.Index < q.Index:
		return -1
	case p.Index > q.Index:
		return 1
	}
	return 0
}

func (p Pos) String() string { return fmt.Sprintf("%d/%d", p.Term, p.Index) }

// MaxRecord is the largest commit record in bytes. Larger ones are refused by
// Admit with a *LimitError.
const MaxRecord = 32 << 20

// CommitLog is the one order of all commits. Safe for concurrent use, except
// that Replay comes first and alone.
//
// A commit is two steps: Admit, which may fail and changes nothing but a
// reservation, then Append, which cannot fail and does not block. Whoever
// admitted n bytes calls either Append with a record of exactly n bytes or
// Release(n).
type CommitLog interface {
	// Replay reads what the log holds, oldest first, and makes it ready for
	// Append. It is called once, before anything else. fn gets each record
	// with its position; the bytes are valid during the call only. A torn
	// tail is cut; other damage is a *DamageError, a newer format a
	// *FormatError. All that fn saw is durable when Replay returns nil.
	Replay(ctx context.Context, fn func(Pos, []byte) error) (ReplayStats, error)

	// Admit reserves room for a record of n bytes. It waits while a segment
	// is being prepared and fails with ErrStorageFull when that does not
	// work, with a *LimitError above MaxRecord, with ErrLost, ErrClosed, or
	// the cause of ctx.
	Admit(ctx context.Context, n int) error

	// Release gives back the room of a record that will not come.
	Release(n int)

	// Append takes an admitted record. The order of records is the order of
	// calls. It copies rec and never blocks. When the log is lost or closed
	// the record is dropped, and Wait on its position says so.
	Append(rec []byte) Pos

	// Wait returns nil when everything up to p is durable, ErrLost wrapping
	// the cause when it never will be known to be, ErrClosed when the log was
	// closed before, or the cause of ctx.
	Wait(ctx context.Context, p Pos) error

	// Durable is the position up to which everything is durable.
	Durable() Pos

	// Full says whether the log holds as many undurable bytes as it may: no
	// object starts another turn then.
	Full() bool

	// WaitRoom waits until Full is false. Errors as Wait.
	WaitRoom(ctx context.Context) error

	// Lost is closed when a write or sync failed.
	Lost() <-chan struct{}

	// Close makes what was appended durable, ends all goroutines and closes
	// all files. It returns the error of a lost log.
	Close() error
}

// ReplayStats says what Replay met.
type ReplayStats struct {
	Segments int   // files read, prepared ones included
	Batches  int64 // whole batches
	Records  int64
	Bytes    int64  // of records
	CutBytes int64  // of a torn tail: a batch that was being written when the power went
	CutFile  string // segment in which the torn tail began; "" when nothing was cut
	CutAt    int64  // byte in CutFile
	Last     Pos
}
