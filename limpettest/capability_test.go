package limpettest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	panics   atomic.Bool
}

func (g *gauge) Add(_ context.Context, n int) (int, error) { return int(g.n.Add(int64(n))), nil }
func (g *gauge) Fail(context.Context) error                { return &limpet.Error{Code: "Broken", Message: "no"} }
func (g *gauge) Total(context.Context) (map[string]any, error) {
	return map[string]any{"n": g.n.Load()}, nil
}
func (g *gauge) Dispose() {
	g.disposed.Add(1)
	if g.panics.Load() {
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

func (d *desk) Pair(_ context.Context, p deskPair) (deskPair, error) {
	for name, f := range p.Calls {
		if f != nil { // a received one ends with this call
			p.Calls[name] = func(_ context.Context, n int) (int, error) { d.field++; return 2 * n, nil }
		}
	}
	return p, nil
}

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
	eventually(t, "Dispose", func() bool { return g.disposed.Load() == 1 })
}

// eventually lets what goes on beside the test come to pass.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("did not come to pass: " + what)
}

// TestTargetOfAnObject calls what an object gave away: events of it.
func TestTargetOfAnObject(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, deskClass)
	a := desks(t, n).Named("a")
	m := must[*limpet.Stub[any]](t)(limpet.Call(ctx, a, (*desk).Meter))
	second := m.Dup()
	for want := 2; want <= 6; want += 2 {
		if got := must[any](t)(m.Invoke(ctx, "add", 2)); got != int64(want) {
			t.Fatalf("got %v, want %d", got, want)
		}
	}
	// SPEC B32, D11: it has neither ID, name nor policy.
	if _, named := m.Name(); named || !m.ID().IsZero() || m.Policy() != (limpet.RetryPolicy{}) {
		t.Fatal("a received stub tells of an object")
	}
	// Typed, by the type's own methods.
	if got := must[int](t)(limpet.Call1(ctx, limpet.As[*meter](m), (*meter).Add, 1)); got != 7 {
		t.Fatalf("got %d", got)
	}
	_, err := m.Invoke(ctx, "nothing")
	if e := asError(t, err); e.Code != limpet.CodeUnknownMethod || e.Name != "TypeError" || !e.Remote || e.Delivery != limpet.DeliveryReceived {
		t.Fatalf("got %+v", e)
	}
	// SPEC B20: dup and constructor are reserved on a target, alarm is not.
	_, err = m.Invoke(ctx, "dup")
	if e := asError(t, err); !strings.Contains(e.Message, "'dup' is a reserved method") {
		t.Fatalf("got %v", e)
	}
	// SPEC B40: while a handle lives the object is not evicted.
	if n.Evict(a.ID()) {
		t.Fatal("evicted while a handle lives")
	}
	m.Close()
	if got := must[any](t)(second.Invoke(ctx, "add", 1)); got != int64(8) {
		t.Fatalf("got %v", got)
	}
	// SPEC B37: Dispose runs once, after the last handle, as an event that writes.
	second.Close()
	eventually(t, "Dispose", func() bool { return must[int](t)(limpet.Call(ctx, a, (*desk).Stored)) == -1 })
	eventually(t, "the object is idle", func() bool { return n.Evict(a.ID()) })

	// A reset ends what was given away: the memory it belongs to is gone.
	m = must[*limpet.Stub[any]](t)(limpet.Call(ctx, a, (*desk).Meter))
	defer m.Close()
	third := m.Dup()
	defer third.Close()
	err = limpet.Do(ctx, limpet.As[*meter](m), (*meter).Crash)
	if e := asError(t, err); e.Code != limpet.CodeReset || !e.Reset || e.Delivery != limpet.DeliveryReceived {
		t.Fatalf("got %+v", e)
	}
	_, err = third.Invoke(ctx, "add", 1)
	if e := asError(t, err); e.Code != limpet.CodeReset || e.Delivery != limpet.DeliveryNone {
		t.Fatalf("got %+v", e)
	}
	// The object itself goes on, from its data.
	if got := must[int](t)(limpet.Call(ctx, desks(t, n).Named("a"), (*desk).Stored)); got != -1 {
		t.Fatalf("got %d", got)
	}
}

// TestGivenBack counts that nothing is kept on any way that a call can end.
func TestGivenBack(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, deskClass)
	ns := desks(t, n)
	for name, call := range map[string]func(s *limpet.Stub[any]) error{
		"the method returns": func(s *limpet.Stub[any]) error {
			return limpet.Do2(ctx, ns.Named("a"), (*desk).Keep, s, false)
		},
		"by name": func(s *limpet.Stub[any]) error {
			_, err := ns.Named("a").Invoke(ctx, "keep", s, false)
			return err
		},
		"an argument does not fit": func(s *limpet.Stub[any]) error {
			_, err := ns.Named("a").Invoke(ctx, "keep", s, "no")
			return err
		},
		"an argument can't be carried": func(s *limpet.Stub[any]) error {
			_, err := ns.Named("a").Invoke(ctx, "keep", s, make(chan int))
			return err
		},
		"the method is unknown": func(s *limpet.Stub[any]) error {
			_, err := ns.Named("a").Invoke(ctx, "keeep", s)
			return err
		},
		"the method panics": func(s *limpet.Stub[any]) error {
			return limpet.Do1(ctx, ns.Named("p"), (*desk).Panic, s)
		},
		"the caller has gone": func(s *limpet.Stub[any]) error {
			gone, cancel := context.WithCancel(ctx)
			cancel()
			return limpet.Do2(gone, ns.Named("a"), (*desk).Keep, s, false)
		},
		"the result can't be carried": func(s *limpet.Stub[any]) error {
			_, err := limpet.Call1(ctx, ns.Named("a"), (*desk).Bad, s)
			return err
		},
		"the result holds it": func(s *limpet.Stub[any]) error {
			v, err := limpet.Call1(ctx, ns.Named("a"), (*desk).Echo, any([]any{s, 1, s}))
			if err != nil {
				return err
			}
			list := v.([]any)
			if list[0] != list[2] {
				t.Error("one stub became two")
			}
			list[0].(*limpet.Stub[any]).Close()
			return nil
		},
		"nobody wants the result": func(s *limpet.Stub[any]) error {
			_, err := ns.Named("a").Invoke(ctx, "pair", map[string]any{"Name": "x", "Other": s})
			return err
		},
		"a promise": func(s *limpet.Stub[any]) error {
			p := ns.Named("a").Start(ctx, "echo", []any{s})
			_, err := p.Result(ctx)
			p.Close()
			return err
		},
		"a promise closed at once": func(s *limpet.Stub[any]) error {
			ns.Named("a").Start(ctx, "echo", []any{s}).Close()
			return nil
		},
		"pipelined": func(s *limpet.Stub[any]) error {
			p := ns.Named("a").Start(ctx, "echo", []any{s})
			defer p.Close()
			_, err := p.At("0").Invoke(ctx, "add", 1)
			return err
		},
		"pipelined on nothing": func(s *limpet.Stub[any]) error {
			p := ns.Named("a").Start(ctx, "echo", 1)
			defer p.Close()
			_, err := p.Invoke(ctx, "add", s)
			return err
		},
		"to a closed stub": func(s *limpet.Stub[any]) error {
			m, err := limpet.Call(ctx, ns.Named("a"), (*desk).Meter)
			if err != nil {
				return err
			}
			m.Close()
			_, err = m.Invoke(ctx, "add", s)
			return err
		},
	} {
		g := &gauge{}
		s := must[*limpet.Stub[any]](t)(limpet.NewTarget(g))
		err := call(s)
		if g.disposed.Load() != 0 {
			t.Errorf("%s (%v): disposed while its maker holds it", name, err)
		}
		s.Close()
		eventually(t, fmt.Sprintf("%s (%v): given back", name, err), func() bool { return g.disposed.Load() == 1 })
	}
	// Node is left without handles: everything can be evicted.
	eventually(t, "idle", func() bool { return n.Evict(ns.Named("a").ID()) })
}

// TestStreams sends bytes both ways.
func TestStreams(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, deskClass)
	a := desks(t, n).Named("a")
	// SPEC B28, B31: a stream is an argument; its reader is closed with the call.
	r := &closing{Reader: strings.NewReader("hello")}
	if got := must[string](t)(limpet.Call1(ctx, a, (*desk).Read, io.Reader(r))); got != "hello" || r.closed.Load() != 1 {
		t.Fatalf("got %q, closed %d", got, r.closed.Load())
	}
	if got := must[any](t)(a.Invoke(ctx, "read", strings.NewReader("dynamic"))); got != "dynamic" {
		t.Fatalf("got %q", got)
	}
	// One that fails arrives as failed.
	_, err := limpet.Call1(ctx, a, (*desk).Read, io.MultiReader(strings.NewReader("x"), &closing{Reader: failing{}}))
	if e := asError(t, err); !strings.Contains(e.Message, "ReadableStream received over RPC disconnected prematurely") || !strings.Contains(e.Message, "torn") {
		t.Fatalf("got %v", e)
	}
	long := strings.Repeat("0123456789", 100_000)
	s := must[io.ReadCloser](t)(limpet.Call1(ctx, a, (*desk).Text, long))
	b, err := io.ReadAll(s)
	if err != nil || string(b) != long {
		t.Fatalf("got %d bytes, %v", len(b), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, limpet.CodeDisposed) {
		t.Fatalf("after Close: %v", err)
	}
	// Through an object: what it received it may pass on.
	v := must[any](t)(limpet.Call1(ctx, a, (*desk).Echo, any(strings.NewReader("through"))))
	back := v.(io.ReadCloser)
	defer func() { _ = back.Close() }()
	if b, err := io.ReadAll(back); err != nil || string(b) != "through" {
		t.Fatalf("got %q, %v", b, err)
	}
	// A reset ends a stream that an object gave away.
	s = must[io.ReadCloser](t)(limpet.Call1(ctx, a, (*desk).Text, long))
	defer func() { _ = s.Close() }()
	if _, err := io.ReadFull(s, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	_ = limpet.Do1(ctx, a, (*desk).Panic, nil) // resets
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, limpet.CodeReset) {
		t.Fatalf("got %v", err)
	}
}

type closing struct {
	io.Reader
	closed atomic.Int32
}

func (c *closing) Close() error { c.closed.Add(1); return nil }

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("torn") }

// TestStubInValue sends the stub of an object.
func TestStubInValue(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, deskClass)
	ns := desks(t, n)
	// SPEC B32: it arrives as a plain stub.
	b := must[*limpet.Stub[*desk]](t)(limpet.Call1(ctx, ns.Named("a"), (*desk).Other, "b"))
	defer b.Close()
	if _, named := b.Name(); named || !b.ID().IsZero() {
		t.Fatal("it has an identity")
	}
	if got := must[int](t)(limpet.Call2(ctx, b, (*desk).Count, "c", 2)); got != 6 {
		t.Fatalf("got %d", got)
	}
	if got := must[int](t)(limpet.Call(ctx, ns.Named("b"), (*desk).Stored)); got != 4 {
		t.Fatalf("got %d", got)
	}
	// Whole structures, at any depth.
	g := &gauge{}
	target := must[*limpet.Stub[any]](t)(limpet.NewTarget(g))
	defer target.Close()
	anyA := must[limpet.Namespace[any]](t)(limpet.NamespaceOf[any](n, "DESK")).Named("a")
	p := must[deskPair](t)(limpet.Call1(ctx, ns.Named("a"), (*desk).Pair, deskPair{
		Name: "p", Stubs: []*limpet.Stub[any]{target, nil, anyA},
		Calls: map[string]func(context.Context, int) (int, error){"double": func(_ context.Context, n int) (int, error) { return n, nil }, "none": nil},
	}))
	if p.Stubs[1] != nil || p.Calls["none"] != nil || len(p.Stubs) != 3 || len(p.Calls) != 2 {
		t.Fatalf("got %+v", p)
	}
	if got := must[any](t)(p.Stubs[0].Invoke(ctx, "add", 3)); got != int64(3) {
		t.Fatalf("got %v", got)
	}
	if got := must[any](t)(p.Stubs[2].Invoke(ctx, "stored")); got != int64(0) {
		t.Fatalf("got %v", got)
	}
	if got := must[int](t)(p.Calls["double"](ctx, 21)); got != 42 {
		t.Fatalf("got %v", got)
	}
	for _, s := range p.Stubs {
		s.Close()
	}
	// Stored they are refused.
	err := limpet.Do(ctx, ns.Named("s"), (*desk).StoreStub)
	if e := asError(t, err); e.Code != limpet.CodeInvalidArgument || !strings.Contains(e.Message, "can't be stored") {
		t.Fatalf("got %v", e)
	}
}

func (d *desk) StoreStub(context.Context) error { return d.st.KV().Put("stub", d.desk("x")) }

// leaver is a target whose Dispose calls the object that let it go.
type leaver struct {
	a    *limpet.Stub[*desk]
	done chan error
}

func (l *leaver) Dispose() {
	_, err := limpet.Call(context.Background(), l.a, (*desk).Stored)
	l.done <- err
}

func (l *leaver) Nothing(context.Context) error { return nil }

// TestDisposeCalls lets Dispose call the object in whose turn the last handle was
// given back, and a handle nobody closes be found by the garbage collector.
func TestDisposeCalls(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, deskClass)
	a := desks(t, n).Named("a")
	l := &leaver{a, make(chan error, 1)}
	s := must[*limpet.Stub[any]](t)(limpet.NewTarget(l))
	if err := limpet.Do2(ctx, a, (*desk).Keep, s, true); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := limpet.Do(ctx, a, (*desk).Drop); err != nil {
		t.Fatal(err)
	}
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}

	g := &gauge{}
	func() {
		lost := must[*limpet.Stub[any]](t)(limpet.NewTarget(g))
		if _, err := limpet.Call1(ctx, a, (*desk).Echo, any([]any{lost})); err != nil {
			t.Fatal(err)
		}
	}()
	eventually(t, "collected", func() bool { runtime.GC(); return g.disposed.Load() == 1 })
	// A promise that nobody closes lets its call go on.
	desks(t, n).Named("b").Start(ctx, "count", "c", 2)
	eventually(t, "the call has run", func() bool {
		runtime.GC()
		return must[int](t)(limpet.Call(ctx, desks(t, n).Named("b"), (*desk).Stored)) == 4
	})
}
