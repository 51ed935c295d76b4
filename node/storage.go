package node

import (
	"context"
	"errors"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/host"
	"github.com/limpet-dev/limpet/internal/store"
)

// hostStorage is internal/store as internal/host sees it.
type hostStorage struct{ s *store.Store }

func (h hostStorage) Object(id [32]byte, b host.Birth) (host.Object, error) {
	o, err := h.s.Object(id, store.Birth{Class: b.Class, Name: b.Name})
	if err != nil {
		return nil, storageError(err)
	}
	return &hostObject{o}, nil
}

func (h hostStorage) Exists(id [32]byte) bool { return h.s.Exists(id) }

func (h hostStorage) Wait(ctx context.Context, p host.Pos) error {
	return storageError(h.s.Wait(ctx, store.Pos(p)))
}

func (h hostStorage) WaitRoom(ctx context.Context) error {
	if !h.s.Full() {
		return nil
	}
	return storageError(h.s.WaitRoom(ctx))
}

func (h hostStorage) Lost() <-chan struct{} { return h.s.Lost() }

type hostObject struct{ o *store.Object }

func (h *hostObject) Get(key string) ([]byte, bool, error) {
	v, ok, err := h.o.Get(key)
	return v, ok, storageError(err)
}

func (h *hostObject) Put(key string, value []byte) error { return storageError(h.o.Put(key, value)) }

func (h *hostObject) Delete(key string) (bool, error) {
	ok, err := h.o.Delete(key)
	return ok, storageError(err)
}

func (h *hostObject) DeleteAll() error { return storageError(h.o.DeleteAll()) }

func (h *hostObject) List(o limpet.ListOptions, yield func(string, []byte) bool) error {
	for e, err := range h.o.List(store.ListOptions{
		Start: o.Start, StartAfter: o.StartAfter, End: o.End, Prefix: o.Prefix, Reverse: o.Reverse, Limit: o.Limit,
	}) {
		if err != nil {
			return storageError(err)
		}
		if !yield(e.Key, e.Value) {
			break
		}
	}
	return nil
}

func (h *hostObject) Transaction(fn func() error) error {
	var own error
	err := h.o.Transaction(func() error {
		own = fn()
		return own
	})
	if own != nil && errors.Is(err, own) {
		return own // the function's, as it is
	}
	return storageError(err)
}

func (h *hostObject) Dirty() bool { return h.o.Dirty() }

func (h *hostObject) Commit(ids []limpet.Identity) (host.Pos, error) {
	p, err := h.o.Commit(ids)
	return host.Pos(p), storageError(err)
}

func (h *hostObject) Rollback() error                { return storageError(h.o.Rollback()) }
func (h *hostObject) LastPos() host.Pos              { return host.Pos(h.o.LastPos()) }
func (h *hostObject) SetInterrupt(c <-chan struct{}) { h.o.SetInterrupt(c) }

func (h *hostObject) Close() error {
	if err := h.o.Close(); !errors.Is(err, store.ErrObjectClosed) {
		return storageError(err)
	}
	return nil
}

// storageError gives an error of internal/store its code. Errors of a context
// stay as they are.
func storageError(err error) error {
	if err == nil {
		return nil
	}
	code := limpet.CodeInternal
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, store.ErrStorageFull):
		code = limpet.CodeStorageFull
	case errors.Is(err, store.ErrLost), errors.Is(err, store.ErrClosed):
		code = limpet.CodeStorageLost
	case errors.Is(err, store.ErrTooLarge):
		code = limpet.CodeTooLarge
	}
	return limpet.Errorf(code, "%w", err)
}
