package host

import (
	"context"
	"errors"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store"
)

// FromStore makes a store the host's Storage. Errors of the store become
// *limpet.Errors with their code; the delivery is the host's to say.
func FromStore(s *store.Store) Storage { return storeStorage{s} }

type storeStorage struct{ s *store.Store }

func (t storeStorage) Object(id [32]byte, b Birth) (Object, error) {
	o, err := t.s.Object(id, store.Birth(b))
	if err != nil {
		return nil, storeError(err)
	}
	return storeObject{o}, nil
}

// Exists says yes when it cannot be known: Object then tells why.
func (t storeStorage) Exists(id [32]byte) bool {
	ok, err := t.s.Exists(id)
	return ok || err != nil
}

func (t storeStorage) Wait(ctx context.Context, p Pos) error {
	return storeError(t.s.Wait(ctx, store.Pos(p)))
}

func (t storeStorage) WaitRoom(ctx context.Context) error { return storeError(t.s.WaitRoom(ctx)) }

func (t storeStorage) Lost() <-chan struct{} { return t.s.Lost() }

type storeObject struct{ o *store.Object }

func (t storeObject) Get(key string) ([]byte, bool, error) {
	v, ok, err := t.o.Get(key)
	return v, ok, storeError(err)
}

func (t storeObject) Put(key string, value []byte) error { return storeError(t.o.Put(key, value)) }

func (t storeObject) Delete(key string) (bool, error) {
	existed, err := t.o.Delete(key)
	return existed, storeError(err)
}

func (t storeObject) DeleteAll() error { return storeError(t.o.DeleteAll()) }

func (t storeObject) List(o limpet.ListOptions, yield func(string, []byte) bool) error {
	for e, err := range t.o.List(store.ListOptions{
		Start: o.Start, StartAfter: o.StartAfter, End: o.End, Prefix: o.Prefix, Reverse: o.Reverse, Limit: o.Limit,
	}) {
		if err != nil {
			return storeError(err)
		}
		if !yield(e.Key, e.Value) {
			return nil
		}
	}
	return nil
}

// Transaction returns fn's own error as it is.
func (t storeObject) Transaction(fn func() error) error {
	var own error
	err := t.o.Transaction(func() error {
		own = fn()
		return own
	})
	if own != nil && err == own { //nolint:errorlint // the very error that fn returned
		return err
	}
	return storeError(err)
}

func (t storeObject) BeginTransaction() (int, error) {
	depth, err := t.o.BeginTransaction()
	return depth, storeError(err)
}

func (t storeObject) EndTransaction(depth int, keep bool) error {
	return storeError(t.o.EndTransaction(depth, keep))
}

func (t storeObject) Query(ctx context.Context, query string, args []limpet.SQLArg) (limpet.SQLRows, bool, error) {
	c, wrote, err := t.o.Query(ctx, query, args)
	if err != nil {
		return nil, wrote, storeError(err)
	}
	return storeCursor{c}, wrote, nil
}

func (t storeObject) EndCursors() { t.o.EndCursors() }

func (t storeObject) DatabaseSize() (int64, error) {
	n, err := t.o.DatabaseSize()
	return n, storeError(err)
}

// storeCursor gives errors their codes.
type storeCursor struct{ *store.Cursor }

func (c storeCursor) Next(row []limpet.SQLValue) (bool, error) {
	ok, err := c.Cursor.Next(row)
	return ok, storeError(err)
}

func (c storeCursor) Close() error { return storeError(c.Cursor.Close()) }

func (t storeObject) Dirty() bool { return t.o.Dirty() }

func (t storeObject) Commit(ids []limpet.Identity, kept ...Kept) (Pos, error) {
	p, err := t.o.Commit(ids, toStore(kept)...)
	return Pos(p), storeError(err)
}

func (t storeObject) Note(ids []limpet.Identity, kept ...Kept) (Pos, error) {
	p, err := t.o.Note(ids, toStore(kept)...)
	return Pos(p), storeError(err)
}

// toStore is nil for nil.
func toStore(kept []Kept) (out []store.Kept) {
	for _, k := range kept {
		out = append(out, store.Kept(k))
	}
	return out
}

func (t storeObject) Rollback() error { return storeError(t.o.Rollback()) }

func (t storeObject) LastPos() Pos { return Pos(t.o.LastPos()) }

func (t storeObject) SetInterrupt(c <-chan struct{}) { t.o.SetInterrupt(c) }

func (t storeObject) Close() error { return storeError(t.o.Close()) }

// storeError gives an error of the store its code. Errors of a context and those
// that have a code stay.
func storeError(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	code := limpet.CodeInternal
	_, coded := errors.AsType[*limpet.Error](err)
	_, sql := errors.AsType[*limpet.SQLError](err)
	switch {
	case coded && !errors.Is(err, store.ErrTurnBroken):
		return err
	case errors.Is(err, store.ErrStorageFull):
		code = limpet.CodeStorageFull
	case errors.Is(err, store.ErrTooLarge):
		code = limpet.CodeTooLarge
	case errors.Is(err, store.ErrLost), errors.Is(err, store.ErrClosed):
		code = limpet.CodeStorageLost
	case errors.Is(err, store.ErrTurnOver):
		code = limpet.CodeNoTurn
	case errors.Is(err, store.ErrNested):
		code = limpet.CodeInvalidArgument
	case sql, errors.Is(err, store.ErrTurnBroken):
		code = limpet.CodeSQL
	}
	return limpet.Errorf(code, "%w", err)
}
