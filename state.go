package limpet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"unicode/utf8"
)

// Incarnation is one life of an object in memory, as State sees it: the seam to
// internal/host. For limpet's own packages. Its methods answer CodeReset once the
// incarnation has ended, and those that touch data answer CodeNoTurn while no
// event of the object holds the turn.
type Incarnation interface {
	Origin
	ID() ID
	Codec() Codec
	// Binding is a Resolver's, with Origin set to this incarnation.
	Binding(name string) (*Binding, error)

	Get(key string) (value []byte, ok bool, err error)
	// Put writes; unconfirmed lifts the output gate's wait for this write.
	Put(key string, value []byte, unconfirmed bool) error
	Delete(keys []string, unconfirmed bool) (deleted int, err error)
	DeleteAll() error
	List(o ListOptions) iter.Seq2[ListEntry, error]
	Transaction(fn func() error) error
	Sync(ctx context.Context) error

	// Query runs statements; the rows are those of the last one.
	Query(ctx context.Context, query string, args []SQLArg) (SQLRows, error)
	DatabaseSize() (int64, error)
	// BeginTransaction begins what Transaction does to its function; end keeps its
	// writes or takes them back, once. The end of ctx takes them back, before the
	// next use of the object.
	BeginTransaction(ctx context.Context) (end func(keep bool) error, err error)
	// AtEnd has fn called when the incarnation ends, or at once if it has.
	AtEnd(fn func())

	Await(ctx context.Context, fn func(context.Context) error) error
	BlockConcurrencyWhile(ctx context.Context, fn func(context.Context) error) error
	WaitUntil(fn func(context.Context) error)
	Abort(reason error)
}

// State is what an object has: its identity, its data, and control over its own
// concurrency. A class's constructor gets it and keeps it in the object.
//
// A State may be used only while an event of its object runs: inside a
// constructor, a method, ServeHTTP, or a function given to WaitUntil. Elsewhere
// every method answers CodeNoTurn. Writes of one turn, that is until the object
// is given back by returning, by a call through a stub or by Await, are one
// atomic commit; whatever leaves the object afterwards waits until that commit
// is durable (SPEC H2).
//
// Several goroutines of one handler may use a State at once: each operation is
// atomic, and all of them belong to the object's running turn, whoever makes
// them. So a Transaction takes back what others wrote meanwhile too (and two that
// overlap fail), and when one goroutine calls a stub, or Await or Sync, the object
// is given away for all: until it is back what the others do fails with
// CodeNoTurn, or falls into the turn of another event that runs meanwhile. The
// handler must wait for its goroutines before it returns; what they do later is
// not part of it.
//
// Only limpet makes one; methods of a zero State panic.
type State struct {
	in Incarnation
	db dbView
}

// NewState makes a State. For limpet's own packages.
func NewState(in Incarnation) *State { return &State{in: in} }

// ID is the object's identity, with its name if it was addressed by name
// (SPEC A11, A13).
func (s *State) ID() ID { return s.in.ID() }

// Binding makes State a Resolver: NamespaceOf(state, "CART") gives stubs whose
// calls are calls out of this object, whatever context they get.
func (s *State) Binding(name string) (*Binding, error) { return s.in.Binding(name) }

// KV is the object's key-value storage.
func (s *State) KV() *KV { return &KV{in: s.in} }

// Transaction runs fn, and takes its writes back if it returns an error or
// panics; that error is then Transaction's (SPEC H25). Transactions nest. Inside
// fn stub calls, Await and BlockConcurrencyWhile are refused, since they would
// give the object away half-done. Transactions of several goroutines must not
// overlap: one that ends while another that began in it goes on resets the object.
func (s *State) Transaction(fn func() error) error {
	if fn == nil {
		return nilFunction("Transaction")
	}
	return s.in.Transaction(fn)
}

func nilFunction(of string) error { return invalid("TypeError", "%s: the function is nil", of) }

// Sync ends the turn's commit and returns when all writes of the object so far
// are durable. Other events may run meanwhile.
func (s *State) Sync(ctx context.Context) error { return s.in.Sync(ctx) }

// Await runs slow work that is not the object's own (an outside request, a
// computation) while other events of the object may run. Before fn starts, the
// writes so far are durable. fn gets a context that ends with the event and must
// not use the State. When Await returns, other events may have changed the
// object.
func (s *State) Await(ctx context.Context, fn func(context.Context) error) error {
	if fn == nil {
		return nilFunction("Await")
	}
	return s.in.Await(ctx, fn)
}

// BlockConcurrencyWhile runs fn while no other event of the object is delivered,
// also across stub calls and Await inside it (SPEC H4). It may be nested. If fn
// returns an error or panics, or takes longer than 30 s, the object is reset
// (SPEC H5, C35, C36).
func (s *State) BlockConcurrencyWhile(ctx context.Context, fn func(context.Context) error) error {
	if fn == nil {
		return nilFunction("BlockConcurrencyWhile")
	}
	return s.in.BlockConcurrencyWhile(ctx, fn)
}

// WaitUntil runs fn as an event of its own after the running one has ended,
// and keeps the object in memory until it returns, at most 15 minutes
// (SPEC H10). The reply of the running event does not wait for it. An error of
// fn is logged. fn holds the object like any handler: use Await for slow work.
// A nil fn panics here, in the event that gave it. An object may have 10,000
// functions that wait or run; one more resets it, with an error that is
// Overloaded.
func (s *State) WaitUntil(fn func(context.Context) error) {
	if fn == nil {
		panic(nilFunction("WaitUntil"))
	}
	s.in.WaitUntil(fn)
}

// Abort resets the object at once: its memory is lost, the running turn is
// rolled back, every call in flight fails with the text of reason, or with
// "Application called abort() to reset Durable Object." for nil (SPEC C33, H8).
// Commits made before stay. Abort does not return to the handler: it ends its
// goroutine's work by a panic that limpet recovers.
func (s *State) Abort(reason error) { s.in.Abort(reason) }

// KV is the key-value storage of one object. Keys are UTF-8 strings ordered by
// their bytes; the empty key is valid (SPEC H22). Values are whatever limpet
// carries between objects, by copy; key and value together take up to 31 MiB.
// For its use by several goroutines see State.
type KV struct{ in Incarnation }

// PutOption changes how one write behaves.
type PutOption interface{ applyPut(*putOptions) }

type putOptions struct{ unconfirmed bool }

type putOptionFunc func(*putOptions)

func (f putOptionFunc) applyPut(o *putOptions) { f(o) }

// AllowUnconfirmed lets outputs leave before this write is durable (SPEC H3): a
// crash may then lose a write that others have heard of.
func AllowUnconfirmed() PutOption {
	return putOptionFunc(func(o *putOptions) { o.unconfirmed = true })
}

func putOptionsOf(opts []PutOption) (o putOptions, err error) {
	for _, f := range opts {
		if f == nil {
			return o, invalid("TypeError", "a put option is nil")
		}
		f.applyPut(&o)
	}
	return o, nil
}

// Get reads the value under key into the pointer, and reports whether there is
// one; without one the pointer's target is left alone. A value that does not fit
// the target is CodeInvalidArgument with found true: a null (a nil that was put)
// fits pointers, slices, maps and interfaces, but no int and no string.
func (kv *KV) Get(key string, into any) (found bool, err error) {
	b, ok, err := kv.in.Get(key)
	if err != nil || !ok {
		return false, err
	}
	if err := kv.in.Codec().Unmarshal(b, into); err != nil {
		return true, keyError("get", key, err)
	}
	return true, nil
}

// GetMany reads the values under keys, in the order of the keys' bytes. A key
// without a value is left out, one that is given twice comes once (SPEC H20).
func (kv *KV) GetMany(keys []string) ([]ListEntry, error) {
	sorted := slices.Compact(slices.Sorted(slices.Values(keys)))
	entries := make([]ListEntry, 0, len(sorted))
	for _, key := range sorted {
		b, ok, err := kv.in.Get(key)
		if err != nil {
			return nil, err
		}
		if ok {
			entries = append(entries, NewListEntry(key, b, kv.in.Codec()))
		}
	}
	return entries, nil
}

// Has reports whether there is a value under key.
func (kv *KV) Has(key string) (bool, error) {
	_, ok, err := kv.in.Get(key)
	return ok, err
}

// Put writes a value; nil is JavaScript's null. A value that limpet can't carry
// (a channel, a function) is CodeInvalidArgument naming its path, and so are
// Undefined{} (SPEC H22) and a key that is not valid UTF-8.
func (kv *KV) Put(key string, value any, opts ...PutOption) error {
	o, err := putOptionsOf(opts)
	if err != nil {
		return err
	}
	b, err := kv.encode(key, value, "")
	if err != nil {
		return err
	}
	return kv.in.Put(key, b, o.unconfirmed)
}

func (kv *KV) encode(key string, value any, where string) ([]byte, error) {
	if !utf8.ValidString(key) {
		return nil, invalid("TypeError", "put %.200q: the key is not valid UTF-8", key)
	}
	if _, ok := value.(Undefined); ok {
		return nil, invalid("TypeError", "put() called with undefined value%s.", where)
	}
	b, err := kv.in.Codec().Marshal(value)
	if err != nil {
		return nil, keyError("put", key, err)
	}
	return b, nil
}

// PutMany writes all entries, in the order of their keys, or none if one is
// refused as by Put or fails.
func (kv *KV) PutMany(entries map[string]any, opts ...PutOption) error {
	o, err := putOptionsOf(opts)
	if err != nil {
		return err
	}
	keys := slices.Sorted(maps.Keys(entries))
	values := make([][]byte, len(keys))
	for i, k := range keys {
		if values[i], err = kv.encode(k, entries[k], fmt.Sprintf(" under key %.200q", k)); err != nil {
			return err
		}
	}
	return kv.in.Transaction(func() error {
		for i, k := range keys {
			if err := kv.in.Put(k, values[i], o.unconfirmed); err != nil {
				return err
			}
		}
		return nil
	})
}

// Delete removes the value under key and reports whether there was one.
func (kv *KV) Delete(key string, opts ...PutOption) (bool, error) {
	n, err := kv.DeleteMany([]string{key}, opts...)
	return n > 0, err
}

// DeleteMany removes the values under keys and returns how many there were.
func (kv *KV) DeleteMany(keys []string, opts ...PutOption) (int, error) {
	o, err := putOptionsOf(opts)
	if err != nil {
		return 0, err
	}
	return kv.in.Delete(keys, o.unconfirmed)
}

// DeleteAll removes everything, what SQL has made too. It is refused inside Transaction (SPEC H25).
func (kv *KV) DeleteAll() error { return kv.in.DeleteAll() }

// ListOptions bounds a List. The zero value lists everything in key order.
type ListOptions struct {
	// Start is the first key, inclusive; StartAfter the same, exclusive. Giving
	// both is an error (SPEC H21). Empty means from the beginning.
	Start, StartAfter string
	// End is where to stop, exclusive; empty means no end.
	End string
	// Prefix keeps only keys that begin with it.
	Prefix string
	// Reverse goes from the last key to the first; Start and End keep their
	// meaning.
	Reverse bool
	// Limit is the largest number of entries; 0 means no limit, a negative one
	// is an error (SPEC H21).
	Limit int
}

// ListEntry is one key and its value, as List and GetMany give them.
type ListEntry struct {
	Key   string
	value []byte
	codec Codec
}

// NewListEntry makes a ListEntry. For limpet's own packages.
func NewListEntry(key string, value []byte, codec Codec) ListEntry {
	return ListEntry{Key: key, value: value, codec: codec}
}

// Decode reads the value into the pointer. It may be called at any time after
// the entry was given. The entry that comes with an error of List has no value;
// Decode says so with CodeInvalidArgument.
func (e ListEntry) Decode(into any) error {
	if e.codec == nil {
		return invalid("", "the entry has no value: it came with an error of List, which says why")
	}
	if err := e.codec.Unmarshal(e.value, into); err != nil {
		return keyError("decode", e.Key, err)
	}
	return nil
}

// List goes over the entries in key order without loading them all. An error
// ends it and comes as the second value. Writing while the loop runs is allowed;
// whether the loop sees such a write is not defined.
func (kv *KV) List(o ListOptions) iter.Seq2[ListEntry, error] {
	if err := o.validate(); err != nil {
		return func(yield func(ListEntry, error) bool) { yield(ListEntry{}, err) }
	}
	return kv.in.List(o)
}

func (o ListOptions) validate() error {
	if o.Limit < 0 {
		return invalid("TypeError", "List: a Limit of %d: must not be negative; 0 means no limit", o.Limit)
	}
	if o.Start != "" && o.StartAfter != "" {
		return invalid("TypeError", "List: both Start (%.64q) and StartAfter (%.64q) are given: at most one of them may be", o.Start, o.StartAfter)
	}
	return nil
}

func keyError(op, key string, err error) error {
	code := CodeOf(err)
	if over, ok := errors.AsType[interface {
		error
		Over() (size, limit int)
	}](err); ok && code == CodeTooLarge {
		size, limit := over.Over()
		return Errorf(code, "%s %.200q: the value takes more than the limit of %d bytes: at least %d", op, key, limit, size)
	}
	if code == CodeInternal {
		code = CodeInvalidArgument
	}
	return Errorf(code, "%s %.200q: %w", op, key, err)
}
