package host

import (
	"context"

	"github.com/limpet-dev/limpet"
)

// Pos is a place in the commit log, ordered by Term and then Index; records that
// become durable together may have the same one. The zero Pos is before the
// first record and always durable.
type Pos struct{ Term, Index uint64 }

// After reports whether p is later than q.
func (p Pos) After(q Pos) bool {
	return p.Term > q.Term || p.Term == q.Term && p.Index > q.Index
}

// IsZero reports whether p is before the first record.
func (p Pos) IsZero() bool { return p == Pos{} }

// Birth is what is stored with an object's first commit.
type Birth struct {
	Class string // identity of the class
	Name  string // name of the object, if Named
	Named bool
}

// Kept is what a record says of one call: see store.Kept.
type Kept struct {
	Keyed     bool
	ID        limpet.Identity
	Claimed   bool
	Print     [32]byte
	ClaimedMS int64
	Kind      uint8
	Data      []byte
}

// Storage is what the host needs of the node's storage: internal/store, or the
// memory implementation of hosttest. Every error is an *limpet.Error or wraps a
// limpet.Code (CodeStorageFull, CodeStorageLost, CodeTooLarge); an error of a
// context is returned as it is. It is safe for concurrent use.
type Storage interface {
	// Object opens an object's data; it creates nothing before the first
	// commit. An object is open at most once: the host closes it before it
	// opens it again.
	Object(id [32]byte, b Birth) (Object, error)
	// Exists reports whether the object has ever committed and was not deleted
	// since.
	Exists(id [32]byte) bool
	// Wait returns when p is durable; at once, without touching ctx, when it is
	// already. It fails with CodeStorageLost when it never will be, and with
	// the cause of ctx.
	Wait(ctx context.Context, p Pos) error
	// WaitRoom returns when there is room for another turn's record: at once,
	// without touching ctx, unless too much waits to become durable.
	WaitRoom(ctx context.Context) error
	// Lost is closed when the log has failed: nothing becomes durable any more.
	Lost() <-chan struct{}
}

// earlyStorage is a Storage whose outputs do not wait; only a mutation uses it.
type earlyStorage struct{ Storage }

// Wait returns at once.
func (earlyStorage) Wait(context.Context, Pos) error { return nil }

// Object is one object's data, with the writes of the running turn. It is used
// by one goroutine at a time. After Close every method fails.
type Object interface {
	Get(key string) (value []byte, ok bool, err error)
	Put(key string, value []byte) error
	Delete(key string) (existed bool, err error)
	DeleteAll() error
	// List calls yield with the entries in order until it returns false. The
	// value is the callee's to keep. yield does not use the Object.
	List(o limpet.ListOptions, yield func(key string, value []byte) bool) error
	// Transaction runs fn and takes its writes back when it returns an error,
	// which is then Transaction's, or does not return (a panic goes on). It
	// nests. If the Object was closed meanwhile, it fails and does nothing.
	Transaction(fn func() error) error
	// BeginTransaction begins what Transaction does to its function and returns the
	// depth to give EndTransaction, which keeps the writes or takes them back. It
	// rolls transactions within back that are open still, and then fails if it was
	// to keep.
	BeginTransaction() (depth int, err error)
	EndTransaction(depth int, keep bool) error
	// Query runs statements of SQL; the rows are those of the last one, and are
	// used as the Object is. ctx ends one that only reads. wrote says whether one was
	// of those that write, also when it failed.
	Query(ctx context.Context, query string, args []limpet.SQLArg) (rows limpet.SQLRows, wrote bool, err error)
	// EndCursors ends the rows that are open still: the turn is over.
	EndCursors()
	// DatabaseSize is the size of the database in bytes.
	DatabaseSize() (int64, error)
	// Dirty reports whether the turn has written anything.
	Dirty() bool
	// Commit appends the turn's writes, the identities and what is to say of calls
	// as one record and returns its position, without waiting until it is durable.
	// With none of these it appends nothing and returns the last position; without
	// writes the record has no pages. When it fails, nothing was appended and
	// the turn's writes are taken back.
	Commit(ids []limpet.Identity, kept ...Kept) (Pos, error)
	// Note appends a record of identities and kept alone, while a turn may be open, and
	// returns its position; without identities that is the last position. The
	// turn is left as it is, also when Note fails.
	Note(ids []limpet.Identity, kept ...Kept) (Pos, error)
	// Rollback takes back the writes of the turn, also those of open
	// transactions.
	Rollback() error
	// LastPos is the position of the object's last record; zero when it has
	// none.
	LastPos() Pos
	// SetInterrupt makes a running statement fail soon after c was closed, and
	// perhaps later ones; nil takes that back. The host rolls back after it.
	SetInterrupt(c <-chan struct{})
	// Close ends the use of the Object; writes of the running turn are taken
	// back. The data stays, also what is not durable yet. It may be called
	// twice.
	Close() error
}
