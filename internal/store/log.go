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

// MaxRecord is the largest record of the log in bytes. Admit refuses larger
// ones with a *LimitError. A commit may be larger: it is spilled.
const MaxRecord = 32 << 20

// CommitLog is the one order of all commits. Safe for concurrent use, except
// that Replay comes first and alone.
//
// A commit is two steps: Admit, which may fail and changes nothing but a
// reservation, then Append, which cannot fail and does not block. For each
// size that was admitted there is one Append of a record with exactly that many
// bytes, or one Release.
type CommitLog interface {
	// Replay reads what the log holds, oldest first, and makes it ready for
	// Append. It is called once, before anything but Reread. fn gets each
	// record. A torn tail is cut; other damage is a *DamageError, a newer
	// format a *FormatError. All that fn saw is durable when Replay returns nil.
	Replay(ctx context.Context, fn func(Replayed) error) (ReplayStats, error)

	// Reread reads a record that Replay found once more, into buf if it is
	// large enough. It may be called from within Replay's fn. The bytes are
	// not checked again.
	Reread(p Place, buf []byte) ([]byte, error)

	// Admit reserves room for records of these many bytes: for all of them, or
	// on an error for none. It waits while segments are being prepared and
	// fails with ErrStorageFull when that does not work, with a *LimitError
	// for one above MaxRecord, with ErrLost, ErrClosed, or the cause of ctx.
	Admit(ctx context.Context, sizes ...int) error

	// Release gives back the room of records that will not come.
	Release(sizes ...int)

	// Append takes an admitted record. The order of records is the order of
	// calls. It copies rec and never blocks. When the log is lost or closed
	// the record is dropped, and Wait on its position says so.
	Append(rec []byte) Pos

	// Next is a position that no record before it can still get: that of the next
	// Append, or an earlier one of what is not durable.
	Next() Pos

	// Truncate gives back what is before p: records there need not come again
	// at the next Replay. All before p is durable. An error leaves some of it; it may be
	// called again.
	Truncate(p Pos) error

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

// Replayed is a record that Replay found.
type Replayed struct {
	Pos Pos
	Rec []byte // valid during the call only

	from int // byte in the batch's payload
	in   placer
}

// Place says where the record is, so that it need not be kept in memory.
func (r *Replayed) Place() Place { return r.in.place(r.from, len(r.Rec)) }

// Place is where a record lies in its log: several extents when it crosses
// segments.
type Place []extent

type extent struct {
	file uint64 // segment, or batch of a MemLog
	off  int64
	size int
}

// placer finds bytes of the payload of the batch that is replayed.
type placer interface{ place(from, size int) Place }

// ReplayStats says what Replay met.
type ReplayStats struct {
	Segments int    // files read, prepared ones included
	Batches  int64  // whole batches
	Records  int64  // pieces of spilled commits are records too
	Bytes    int64  // of records
	CutBytes int64  // of a torn tail: a batch that was being written when the power went
	CutFile  string // segment in which the torn tail began; "" when nothing was cut
	CutAt    int64  // byte in CutFile
	Last     Pos

	// Pieces of spilled commits that never came to their last record: rolled
	// back, or being written when the process or the power ended. They count
	// for nothing.
	DroppedPieces int64
	DroppedBytes  int64
}
