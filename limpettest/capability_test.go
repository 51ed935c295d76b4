package limpettest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// A desk is an object that takes and gives capabilities. What it keeps lies
// outside of the class so that tests see it.
type desk struct {
	st    *limpet.State
	field int
	kept  *limpet.Stub[any]
	fn    func(context.Context, int) (int, error)
}

type deskPair struct {
	Name  string
	Stubs []*limpet.Stub[any]
	Calls map[string]func(context.Context, int) (int, error)
}

// gauge is a target.
type gauge struct {
	n        atomic.Int64
	disposed atomic.Int64
	panics   bool
}

func (g *gauge) Add(_ context.Context, n int) (int, error) { return int(g.n.Add(int64(n))), nil }
func (g *gauge) Fail(context.Context) error                { return &limpet.Error{Code: "Broken", Message: "no"} }
func (g *gauge) Total(context.Context) (map[string]any, error) {
	return map[string]any{"n": g.n.Load()}, nil
}
func (g *gauge) Dispose() {
	g.disposed.Add(1)
	if g.panics {
		panic("disposer")
	}
}

func newDesk(st *limpet.State) (*desk, error) { return &desk{st: st}, nil }

func (d *desk) desk(name string) *limpet.Stub[*desk] {
	ns, err := limpet.NamespaceOf[*desk](d.st, "DESK")
	if err != nil {
		panic(err)
	}
	return ns.Named(name)
}

// Twice calls fn two times.
func (d *desk) Twice(ctx context.Context, n int, fn func(context.Context, int) (int, error)) (int, error) {
	a, err := fn(ctx, n)
	if err != nil {
		return 0, err
	}
	b, err := fn(ctx, n)
	return a + b, err
}

// Count lets another desk call back into this one's memory and storage.
func (d *desk) Count(ctx context.Context, other string, n int) (int, error) {
	return limpet.Call2(ctx, d.desk(other), (*desk).Twice, n, func(_ context.Context, n int) (int, error) {
		d.field += n
		return d.field, d.st.KV().Put("field", d.field)
	})
}

func (d *desk) Stored(context.Context) (int, error) {
	var n int
	_, err := d.st.KV().Get("field", &n)
	return n, err
}

// Keep keeps a stub beyond the call, or only tries to.
func (d *desk) Keep(_ context.Context, s *limpet.Stub[any], dup bool) error {
	if d.kept = s; dup {
		d.kept = s.Dup()
	}
	return nil
}

func (d *desk) KeepFn(_ context.Context, fn func(context.Context, int) (int, error)) error {
	d.fn = fn
	return nil
}

func (d *desk) CallFn(ctx context.Context) (int, error) { return d.fn(ctx, 1) }

func (d *desk) CallKept(ctx context.Context, n int) (any, error) {
	return d.kept.Invoke(ctx, "add", n)
}

func (d *desk) Drop(context.Context) error {
	d.kept.Close()
	return nil
}

// Meter gives a target away that counts in the object.
func (d *desk) Meter(context.Context) (*limpet.Stub[any], error) {
	return limpet.NewTarget(&meter{d})
}

type meter struct{ d *desk }

func (m *meter) Add(_ context.Context, n int) (int, error) {
	m.d.field += n
	return m.d.field, m.d.st.KV().Put("field", m.d.field)
}

func (m *meter) Crash(context.Context) error { panic("meter") }

func (m *meter) Dispose() { _ = m.d.st.KV().Put("field", -1) }

func (d *desk) Read(_ context.Context, r io.Reader) (string, error) {
	b, err := io.ReadAll(r)
	return string(b), err
}

func (d *desk) Text(_ context.Context, text string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(text)), nil
}

func (d *desk) Other(_ context.Context, name string) (*limpet.Stub[*desk], error) {
	return d.desk(name), nil
}

func (d *desk) Echo(_ context.Context, v any) (any, error) { return v, nil }

func (d *desk) Pair(_ context.Context, p deskPair) (deskPair, error) { return p, nil }

func (d *desk) Panic(context.Context, *limpet.Stub[any]) error { panic("desk") }

func (d *desk) Bad(_ context.Context, s *limpet.Stub[any]) (any, error) {
	return []any{s, make(chan int)}, nil
}

var deskClass = limpet.NewClass("Desk", newDesk)

func desks(t *testing.T, n limpet.Resolver) limpet.Namespace[*desk] {
	t.Helper()
	ns, err := limpet.NamespaceOf[*desk](n, "DESK")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestCallback lets a program's function be called by an object, and an object's
// by another object: that one runs as an event and writes.
func TestCallback(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, deskClass)
	a := desks(t, n).Named("a")

	// SPEC B28: functions are carried, and called where they were made.
	var seen []int
	got, err := limpet.Call2(ctx, a, (*desk).Twice, 4, func(_ context.Context, n int) (int, error) {
		seen = append(seen, n)
		return n * len(seen), nil
	})
	if err != nil || got != 12 || len(seen) != 2 {
		t.Fatalf("got %d, %v after %v", got, err, seen)
	}
	// An error arrives as a method's does.
	_, err = limpet.Call2(ctx, a, (*desk).Twice, 4, func(context.Context, int) (int, error) {
		return 0, &limpet.Error{Code: "OutOfStock", Message: "none left", Fields: map[string]any{"left": 0}}
	})
	if e := asError(t, err); e.Code != "OutOfStock" || e.Message != "none left" || fmt.Sprint(e.Fields["left"]) != "0" {
		t.Fatalf("got %+v", e)
	}
	// A panic of the program's function is no panic of the object.
	_, err = limpet.Call2(ctx, a, (*desk).Twice, 4, func(context.Context, int) (int, error) { panic("mine") })
	if e := asError(t, err); e.Reset || !strings.Contains(e.Message, "panicked: mine") {
		t.Fatalf("got %+v", e)
	}

	// a calls b, which calls back into a: a is away then, and the callback is an
	// event of it that holds the turn.
	if got := must[int](t)(limpet.Call2(ctx, a, (*desk).Count, "b", 3)); got != 9 {
		t.Fatalf("got %d", got)
	}
	n.Crash()
	n.Restart()
	if got := must[int](t)(limpet.Call(ctx, a, (*desk).Stored)); got != 6 {
		t.Fatalf("stored %d", got)
	}
	// Several at once: each callback is atomic.
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if _, err := limpet.Call2(ctx, a, (*desk).Count, fmt.Sprint("other", i%3), 1); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := must[int](t)(limpet.Call(ctx, a, (*desk).Stored)); got != 40 {
		t.Fatalf("stored %d", got)
	}
}

func asError(t *testing.T, err error) *limpet.Error {
	t.Helper()
	e, ok := errors.AsType[*limpet.Error](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	return e
}

// TestHandles follows the life of a target.
func TestHandles(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, deskClass)
	a := desks(t, n).Named("a")
	g := &gauge{}
	target := must[*limpet.Stub[any]](t)(limpet.NewTarget(g))

	if _, err := target.Invoke(ctx, "add", 1); !errors.Is(err, limpet.CodeNotSupported) {
		t.Fatalf("before it was sent: %v", err)
	}
	// SPEC B39: what was not dup'ed is closed when the call has returned.
	if err := limpet.Do2(ctx, a, (*desk).Keep, target, false); err != nil {
		t.Fatal(err)
	}
	_, err := limpet.Call1(ctx, a, (*desk).CallKept, 1)
	if e := asError(t, err); e.Code != limpet.CodeDisposed || e.Message != "RPC stub used after being disposed." { // SPEC C42
		t.Fatalf("got %+v", e)
	}
	// SPEC B37: a Dup lives on, also when its original and the sender's are closed.
	if err := limpet.Do2(ctx, a, (*desk).Keep, target, true); err != nil {
		t.Fatal(err)
	}
	if got := must[any](t)(target.Invoke(ctx, "add", 5)); got != int64(5) {
		t.Fatalf("got %v", got)
	}
	target.Close()
	target.Close()
	if _, err := target.Invoke(ctx, "add", 1); !errors.Is(err, limpet.CodeDisposed) {
		t.Fatalf("closed: %v", err)
	}
	if _, err := a.Invoke(ctx, "keep", target, true); !errors.Is(err, limpet.CodeDisposed) {
		t.Fatalf("sending a closed one: %v", err)
	}
	if got := must[any](t)(limpet.Call1(ctx, a, (*desk).CallKept, 2)); got != int64(7) {
		t.Fatalf("got %v", got)
	}
	if g.disposed.Load() != 0 {
		t.Fatal("disposed while a handle lives")
	}
	if err := limpet.Do(ctx, a, (*desk).Drop); err != nil {
		t.Fatal(err)
	}
	if g.disposed.Load() != 1 {
		t.Fatalf("disposed %d times", g.disposed.Load())
	}
}
