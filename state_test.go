package limpet_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

type fakeOrigin struct{ left, returned int }

func (o *fakeOrigin) Leave(ctx context.Context) (context.Context, error) { o.left++; return ctx, nil }
func (o *fakeOrigin) Return(context.Context) error                       { o.returned++; return nil }

// fakeLife is an Incarnation that keeps its data in a map and writes down what
// it is asked for.
type fakeLife struct {
	fakeOrigin
	data   map[string][]byte
	log    []string
	failAt string // the key whose Put fails
}

var errDisk = errors.New("no disk")

func (f *fakeLife) note(words ...string) { f.log = append(f.log, strings.Join(words, " ")) }

func (f *fakeLife) ID() limpet.ID                           { return limpet.ID{} }
func (f *fakeLife) Codec() limpet.Codec                     { return &jsonCodec{} }
func (f *fakeLife) Binding(string) (*limpet.Binding, error) { return nil, errDisk }
func (f *fakeLife) Get(key string) ([]byte, bool, error) {
	if key == f.failAt && key != "" {
		return nil, false, errDisk
	}
	v, ok := f.data[key]
	return v, ok, nil
}

func (f *fakeLife) Put(key string, value []byte, unconfirmed bool) error {
	if key == f.failAt && key != "" {
		return errDisk
	}
	mode := "confirmed"
	if unconfirmed {
		mode = "unconfirmed"
	}
	f.note("put", key, string(value), mode)
	f.data[key] = value
	return nil
}

func (f *fakeLife) Delete(keys []string, unconfirmed bool) (int, error) {
	mode := "confirmed"
	if unconfirmed {
		mode = "unconfirmed"
	}
	f.note("delete", strings.Join(keys, ","), mode)
	n := 0
	for _, k := range keys {
		if _, ok := f.data[k]; ok {
			delete(f.data, k)
			n++
		}
	}
	return n, nil
}

func (f *fakeLife) DeleteAll() error { f.note("deleteAll"); clear(f.data); return nil }

func (f *fakeLife) List(o limpet.ListOptions) iter.Seq2[limpet.ListEntry, error] {
	f.note("list")
	return func(yield func(limpet.ListEntry, error) bool) {
		for k, v := range f.data {
			if strings.HasPrefix(k, o.Prefix) && !yield(limpet.NewListEntry(k, v, f.Codec()), nil) {
				return
			}
		}
	}
}

func (f *fakeLife) Transaction(fn func() error) error {
	f.note("begin")
	before := map[string][]byte{}
	for k, v := range f.data {
		before[k] = v
	}
	err := fn()
	if err != nil {
		f.data = before
		f.note("rollback")
	} else {
		f.note("commit")
	}
	return err
}

func (f *fakeLife) Sync(context.Context) error { f.note("sync"); return nil }

func (f *fakeLife) Await(ctx context.Context, fn func(context.Context) error) error {
	f.note("await")
	return fn(ctx)
}

func (f *fakeLife) BlockConcurrencyWhile(ctx context.Context, fn func(context.Context) error) error {
	f.note("block")
	return fn(ctx)
}

func (f *fakeLife) WaitUntil(func(context.Context) error) { f.note("waitUntil") }
func (f *fakeLife) Abort(error)                           { f.note("abort") }

func newLife() (*fakeLife, *limpet.State) {
	f := &fakeLife{data: map[string][]byte{}}
	return f, limpet.NewState(f)
}

func TestKVPutAndGet(t *testing.T) {
	f, st := newLife()
	kv := st.KV()
	for _, c := range []struct {
		key   string
		value any
		opts  []limpet.PutOption
		want  string
	}{
		{"a", 1, nil, "put a 1 confirmed"},
		// SPEC H22: the empty key is allowed.
		{"", "x", nil, `put  "x" confirmed`},
		{"null", nil, nil, "put null null confirmed"},
		// SPEC H3
		{"u", true, []limpet.PutOption{limpet.AllowUnconfirmed()}, "put u true unconfirmed"},
	} {
		f.log = nil
		if err := kv.Put(c.key, c.value, c.opts...); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{c.want}, f.log); diff != "" {
			t.Error(diff)
		}
	}
	n := 7
	if ok, err := kv.Get("a", &n); !ok || err != nil || n != 1 {
		t.Errorf("got %v, %v, %d", ok, err, n)
	}
	n = 7
	if ok, err := kv.Get("absent", &n); ok || err != nil || n != 7 {
		t.Errorf("got %v, %v, %d", ok, err, n)
	}
	ok, err := kv.Get("", &n)
	if !ok || limpet.CodeOf(err) != limpet.CodeInvalidArgument {
		t.Errorf("a value that does not fit: %v, %v", ok, err)
	}
	contains(t, err, "get", `""`)
	for key, want := range map[string]bool{"a": true, "": true, "null": true, "absent": false} {
		if ok, err := kv.Has(key); ok != want || err != nil {
			t.Errorf("Has(%q): %v, %v", key, ok, err)
		}
	}
	f.failAt = "a"
	if _, err := kv.Get("a", &n); !errors.Is(err, errDisk) {
		t.Errorf("got %v", err)
	}
	if _, err := kv.Has("a"); !errors.Is(err, errDisk) {
		t.Errorf("got %v", err)
	}
	if err := kv.Put("a", 1); !errors.Is(err, errDisk) {
		t.Errorf("got %v", err)
	}
}

func TestKVRefusesValues(t *testing.T) {
	f, st := newLife()
	kv := st.KV()
	for what, c := range map[string]struct {
		key   string
		value any
		opts  []limpet.PutOption
		words []string
	}{
		// SPEC H22
		"undefined":       {"k", limpet.Undefined{}, nil, []string{"put() called with undefined value"}},
		"channel":         {"k", make(chan int), nil, []string{`"k"`, "chan"}},
		"NaN in JSON":     {"k", math.NaN(), nil, []string{`"k"`}},
		"key of no UTF-8": {"k\xff", 1, nil, []string{"key", "UTF-8", `k\xff`}},
		"nil option":      {"k", 1, []limpet.PutOption{nil}, []string{"option is nil"}},
	} {
		t.Run(what, func(t *testing.T) {
			err := kv.Put(c.key, c.value, c.opts...)
			if limpet.CodeOf(err) != limpet.CodeInvalidArgument {
				t.Fatalf("got %v", err)
			}
			contains(t, err, c.words...)
			err = kv.PutMany(map[string]any{"before": 1, c.key: c.value, "z": 2}, c.opts...)
			if limpet.CodeOf(err) != limpet.CodeInvalidArgument {
				t.Fatalf("got %v", err)
			}
			contains(t, err, c.words...)
			if len(f.log) != 0 {
				t.Errorf("something was written: %v", f.log)
			}
		})
	}
	err := kv.Put("k", limpet.Undefined{})
	if e := asError(t, err); e.Message != "put() called with undefined value." || e.Name != "TypeError" {
		t.Errorf("got %s: %s", e.Name, e.Message)
	}
}

func TestKVGetMany(t *testing.T) {
	f, st := newLife()
	f.data["a"], f.data["b"], f.data[""] = []byte("1"), []byte("2"), []byte("0")
	// SPEC H20
	entries, err := st.KV().GetMany([]string{"b", "absent", "", "b", "a"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		var n int
		if err := e.Decode(&n); err != nil {
			t.Error(err)
		}
		got = append(got, fmt.Sprintf("%s=%d", e.Key, n))
	}
	if diff := cmp.Diff([]string{"=0", "a=1", "b=2"}, got); diff != "" {
		t.Error(diff)
	}
	if entries, err := st.KV().GetMany(nil); len(entries) != 0 || err != nil {
		t.Errorf("no keys: %v, %v", entries, err)
	}
	f.failAt = "a"
	if _, err := st.KV().GetMany([]string{"b", "a"}); !errors.Is(err, errDisk) {
		t.Errorf("got %v", err)
	}
}

func TestKVPutMany(t *testing.T) {
	f, st := newLife()
	kv := st.KV()
	if err := kv.PutMany(map[string]any{"b": 2, "": 0, "a": 1, "c": []int{3}}, limpet.AllowUnconfirmed()); err != nil {
		t.Fatal(err)
	}
	want := []string{"begin", "put  0 unconfirmed", "put a 1 unconfirmed", "put b 2 unconfirmed", "put c [3] unconfirmed", "commit"}
	if diff := cmp.Diff(want, f.log); diff != "" {
		t.Error(diff)
	}
	f.log, f.failAt = nil, "b"
	if err := kv.PutMany(map[string]any{"b": 20, "a": 10}); !errors.Is(err, errDisk) {
		t.Errorf("got %v", err)
	}
	// SPEC H25: what was written before the failure is taken back.
	if string(f.data["a"]) != "1" {
		t.Errorf("a is %s after a failed PutMany", f.data["a"])
	}
	if diff := cmp.Diff([]string{"begin", "put a 10 confirmed", "rollback"}, f.log); diff != "" {
		t.Error(diff)
	}
	if err := kv.PutMany(nil); err != nil {
		t.Errorf("no entries: %v", err)
	}
}

func TestKVDelete(t *testing.T) {
	f, st := newLife()
	kv := st.KV()
	f.data["a"], f.data["b"] = []byte("1"), []byte("2")
	// SPEC H20: whether there was one, and how many there were.
	if ok, err := kv.Delete("a"); !ok || err != nil {
		t.Errorf("got %v, %v", ok, err)
	}
	if ok, err := kv.Delete("a", limpet.AllowUnconfirmed()); ok || err != nil {
		t.Errorf("got %v, %v", ok, err)
	}
	if n, err := kv.DeleteMany([]string{"a", "b", "c"}); n != 1 || err != nil {
		t.Errorf("got %v, %v", n, err)
	}
	if err := kv.DeleteAll(); err != nil {
		t.Error(err)
	}
	want := []string{"delete a confirmed", "delete a unconfirmed", "delete a,b,c confirmed", "deleteAll"}
	if diff := cmp.Diff(want, f.log); diff != "" {
		t.Error(diff)
	}
	if _, err := kv.DeleteMany(nil, nil); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
		t.Errorf("a nil option: %v", err)
	}
}

func TestKVList(t *testing.T) {
	f, st := newLife()
	kv := st.KV()
	f.data["a"] = []byte("1")
	for entry, err := range kv.List(limpet.ListOptions{Limit: 3, Start: "a"}) {
		var n int
		if err != nil || entry.Key != "a" || entry.Decode(&n) != nil || n != 1 {
			t.Errorf("got %+v, %v, %d", entry, err, n)
		}
		var s []string
		err := entry.Decode(&s)
		if limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("a value that does not fit: %v", err)
		}
		contains(t, err, "decode", `"a"`)
	}
	f.log = nil
	for what, o := range map[string]limpet.ListOptions{
		// SPEC H21
		"List: a Limit of -1: must not be negative; 0 means no limit":                       {Limit: -1},
		`List: both Start ("a") and StartAfter ("b") are given: at most one of them may be`: {Start: "a", StartAfter: "b"},
	} {
		n := 0
		for entry, err := range kv.List(o) {
			n++
			if e := asError(t, err); e.Error() != what || e.Code != limpet.CodeInvalidArgument || e.Name != "TypeError" {
				t.Errorf("got %v, want %s", err, what)
			}
			if err := entry.Decode(new(int)); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
				t.Errorf("decoding what came with an error: %v", err)
			}
		}
		if n != 1 || len(f.log) != 0 {
			t.Errorf("%s: %d entries, %v", what, n, f.log)
		}
	}
}

func TestStatePassesThrough(t *testing.T) {
	f, st := newLife()
	ctx := t.Context()
	ran := 0
	fn := func(context.Context) error { ran++; return errDisk }
	if err := st.Transaction(func() error { ran++; return errDisk }); !errors.Is(err, errDisk) {
		t.Errorf("got %v", err)
	}
	if err := st.Await(ctx, fn); !errors.Is(err, errDisk) {
		t.Errorf("got %v", err)
	}
	if err := st.BlockConcurrencyWhile(ctx, fn); !errors.Is(err, errDisk) {
		t.Errorf("got %v", err)
	}
	if err := st.Sync(ctx); err != nil {
		t.Error(err)
	}
	st.WaitUntil(fn)
	st.Abort(nil)
	if _, err := st.Binding("CART"); !errors.Is(err, errDisk) || !st.ID().IsZero() {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"begin", "rollback", "await", "block", "sync", "waitUntil", "abort"}, f.log); diff != "" || ran != 3 {
		t.Errorf("%d functions ran: %s", ran, diff)
	}
	f.log = nil
	for what, err := range map[string]error{
		"Transaction": st.Transaction(nil), "Await": st.Await(ctx, nil), "BlockConcurrencyWhile": st.BlockConcurrencyWhile(ctx, nil),
	} {
		refused(t, err, limpet.CodeInvalidArgument, what, "nil")
	}
	func() {
		defer func() { // in the event that gave it, not in a later one
			if p := recover(); p == nil {
				t.Error("WaitUntil took a nil function")
			}
		}()
		st.WaitUntil(nil)
	}()
	if len(f.log) != 0 {
		t.Errorf("a nil function came through: %v", f.log)
	}
	// The State of an object makes namespaces whose calls are the object's.
	if _, err := limpet.NamespaceOf[any](st, "CART"); !errors.Is(err, errDisk) {
		t.Errorf("got %v", err)
	}
}

func (f *fakeLife) Query(context.Context, string, []limpet.SQLArg) (limpet.SQLRows, error) {
	return nil, limpet.Errorf(limpet.CodeNotSupported, "not supported: SQL of fakeLife")
}
func (f *fakeLife) DatabaseSize() (int64, error) { return 0, nil }
func (f *fakeLife) BeginTransaction(context.Context) (func(bool) error, error) {
	return nil, limpet.Errorf(limpet.CodeNotSupported, "not supported: BeginTransaction of fakeLife")
}
func (f *fakeLife) AtEnd(func()) {}
