package limpettest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// A maker is an object of values, properties and promises.
type maker struct {
	st    *limpet.State
	reads int
}

func newMaker(st *limpet.State) (*maker, error) { return &maker{st: st}, nil }

type made struct {
	N     int                                     `limpet:"n"`
	List  []any                                   `limpet:"list"`
	Twice func(context.Context, int) (int, error) `limpet:"twice"`
	Deep  map[string]map[string]*limpet.Stub[any] `limpet:"deep"`
}

func (m *maker) Make(context.Context) (made, error) {
	target, err := limpet.NewTarget(&gauge{}, limpet.Getter((*gauge).Total))
	return made{
		N: 7, List: []any{"a", map[string]any{"b": true}},
		Twice: func(_ context.Context, n int) (int, error) { return 2 * n, m.st.KV().Put("twice", n) },
		Deep:  map[string]map[string]*limpet.Stub[any]{"x": {"y": target}},
	}, err
}

// Config is a property.
func (m *maker) Config(ctx context.Context) (made, error) {
	m.reads++
	return m.Make(ctx)
}

func (m *maker) Reads(context.Context) (int, error) { return m.reads, nil }
func (m *maker) Fail(context.Context) (made, error) {
	return made{}, &limpet.Error{Code: "OutOfStock", Message: "none left"}
}
func (m *maker) Seven(context.Context) (int, error) { return 7, nil }
func (m *maker) Twice(context.Context) (int, error) {
	var n int
	_, err := m.st.KV().Get("twice", &n)
	return n, err
}

// Chain pipelines out of the object, and uses its own data in between.
func (m *maker) Chain(ctx context.Context, other string) (any, error) {
	ns, err := limpet.NamespaceOf[any](m.st, "MAKER")
	if err != nil {
		return nil, err
	}
	p := ns.Named(other).Start(ctx, "make")
	defer p.Close()
	if err := m.st.KV().Put("between", 1); err != nil { // the object is not given away
		return nil, err
	}
	a, err := p.Invoke(ctx, "twice", 4)
	if err != nil {
		return nil, err
	}
	b, err := p.At("deep", "x", "y").Invoke(ctx, "add", 3)
	if err != nil {
		return nil, err
	}
	v, err := p.Result(ctx)
	if err != nil {
		return nil, err
	}
	c, err := v.(map[string]any)["twice"].(*limpet.Stub[any]).Apply(ctx, 5)
	return []any{a, b, c}, err
}

func (m *maker) Forever(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

var makerClass = limpet.NewClass("Maker", newMaker, limpet.Getter((*maker).Config))

func makers(t *testing.T, n limpet.Resolver, name string) *limpet.Stub[*maker] {
	t.Helper()
	ns, err := limpet.NamespaceOf[*maker](n, "MAKER")
	if err != nil {
		t.Fatal(err)
	}
	return ns.Named(name)
}

// TestPromise makes calls on a promised result.
func TestPromise(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, makerClass)
	a := makers(t, n, "a")

	p := a.Start(ctx, "make")
	defer p.Close()
	// SPEC B33: members of what is returned by value, nested ones, and functions.
	for path, want := range map[string]any{"n": int64(7), "list.0": "a", "list.1.b": true, "deep.x.y.total": "map[n:0]"} {
		if got := must[any](t)(p.Get(ctx, strings.Split(path, ".")...)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v", path, got)
		}
	}
	if got := must[any](t)(p.Invoke(ctx, "twice", 21)); got != int64(42) {
		t.Errorf("got %v", got)
	}
	if got := must[any](t)(p.At("deep", "x", "y").Invoke(ctx, "add", 5)); got != int64(5) {
		t.Errorf("got %v", got)
	}
	if got := must[any](t)(p.At("list").At("0").Result(ctx)); got != "a" {
		t.Errorf("got %v", got)
	}
	// A chain of promises.
	q := p.At("deep", "x", "y").Start(ctx, "total")
	defer q.Close()
	if got := must[any](t)(q.Get(ctx, "n")); got != int64(5) {
		t.Errorf("got %v", got)
	}
	// SPEC B35: what is not there, and what is no object.
	seven := a.Start(ctx, "seven")
	defer seven.Close()
	for what, call := range map[string]func() (any, error){
		"missing":    func() (any, error) { return p.Invoke(ctx, "missing") },
		"n":          func() (any, error) { return p.Invoke(ctx, "n") },
		"toString":   func() (any, error) { return seven.Invoke(ctx, "toString") },
		"gone":       func() (any, error) { return p.Get(ctx, "list", "gone") },
		"9":          func() (any, error) { return p.Get(ctx, "list", "9") },
		"nope":       func() (any, error) { return p.At("deep", "x", "y").Invoke(ctx, "nope") },
		"ofFunction": func() (any, error) { return p.At("twice").Invoke(ctx, "ofFunction") },
	} {
		_, err := call()
		e := asError(t, err)
		if e.Name != "TypeError" || !e.Remote || e.Delivery != limpet.DeliveryReceived ||
			!strings.HasPrefix(e.Message, fmt.Sprintf("The RPC receiver does not implement the method %q.", what)) {
			t.Errorf("%s: got %+v", what, e)
		}
	}
	if _, err := seven.Apply(ctx); !strings.Contains(fmt.Sprint(err), "not a function") {
		t.Errorf("got %v", err)
	}
	// SPEC B34: the failure of the call is that of calls on its result.
	f := a.Start(ctx, "fail")
	defer f.Close()
	for _, call := range []func() (any, error){
		func() (any, error) { return f.Invoke(ctx, "twice", 1) },
		func() (any, error) { return f.Get(ctx, "n") },
		func() (any, error) { return f.Result(ctx) },
		func() (any, error) { return f.Start(ctx, "twice", 1).Result(ctx) },
	} {
		if _, err := call(); asError(t, err).Code != "OutOfStock" {
			t.Errorf("got %v", err)
		}
	}
	// Result may be asked many times, and what it holds is the promise's.
	v := must[any](t)(p.Result(ctx)).(map[string]any)
	again := must[any](t)(p.Result(ctx)).(map[string]any)
	fn := v["twice"].(*limpet.Stub[any])
	if again["twice"] != any(fn) {
		t.Error("two results")
	}
	kept := fn.Dup()
	defer kept.Close()
	p.Close()
	p.Close()
	if _, err := fn.Apply(ctx, 1); !errors.Is(err, limpet.CodeDisposed) {
		t.Errorf("after Close: %v", err)
	}
	if got := must[any](t)(kept.Apply(ctx, 4)); got != int64(8) {
		t.Errorf("got %v", got)
	}
	for _, err := range []error{
		second(p.Result(ctx)), second(p.Invoke(ctx, "twice", 1)), second(p.Get(ctx, "n")),
	} {
		if !errors.Is(err, limpet.CodeDisposed) {
			t.Errorf("after Close: %v", err)
		}
	}
	// A call that could not be made.
	var nothing context.Context
	for _, bad := range []*limpet.Promise{
		a.Start(ctx, "make", make(chan int)), (*limpet.Stub[any])(nil).Start(ctx, "make"), a.Start(nothing, "make"),
	} {
		if err := second(bad.Result(ctx)); limpet.DeliveryOf(err) != limpet.DeliveryNone || err == nil {
			t.Errorf("got %v", err)
		}
		if err := second(bad.Invoke(ctx, "x")); err == nil {
			t.Error("a call on it went")
		}
		bad.Close()
	}
	// Close cancels.
	ever := a.Start(ctx, "forever")
	ever.Close()
	if err := second(ever.Result(ctx)); err == nil {
		t.Error("closed, and gave a result")
	}
	if got := must[int](t)(limpet.Call(ctx, a, (*maker).Seven)); got != 7 {
		t.Fatal(got)
	}
}

func second(_ any, err error) error { return err }

// TestPromiseInObject pipelines out of an object.
func TestPromiseInObject(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, makerClass)
	got := must[any](t)(limpet.Call1(ctx, makers(t, n, "a"), (*maker).Chain, "b"))
	if fmt.Sprint(got) != "[8 3 10]" {
		t.Fatalf("got %v", got)
	}
	if got := must[int](t)(limpet.Call(ctx, makers(t, n, "b"), (*maker).Twice)); got != 5 {
		t.Fatalf("got %d", got)
	}
}

// TestProperties reads getters and methods as properties.
func TestProperties(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, makerClass)
	a := makers(t, n, "a")
	// SPEC B24: a getter runs when it is read.
	v := must[any](t)(a.Get(ctx, "config")).(map[string]any)
	if v["n"] != int64(7) {
		t.Fatalf("got %v", v)
	}
	// SPEC B25: a path is one call.
	if got := must[any](t)(a.Get(ctx, "config", "list", "1", "b")); got != true {
		t.Fatalf("got %v", got)
	}
	if got := must[int](t)(limpet.Call(ctx, a, (*maker).Reads)); got != 2 {
		t.Fatalf("read %d times", got)
	}
	// A method read as a property is a stub of it.
	seven := must[any](t)(a.Get(ctx, "seven")).(*limpet.Stub[any])
	if got := must[any](t)(seven.Apply(ctx)); got != int64(7) {
		t.Fatalf("got %v", got)
	}
	if n.Evict(a.ID()) {
		t.Fatal("evicted under a handle")
	}
	seven.Close()
	// An error in a getter, and what is not there.
	if _, err := a.Get(ctx, "nothing"); limpet.CodeOf(err) != limpet.CodeUnknownMethod {
		t.Fatalf("got %v", err)
	}
	if _, err := a.Get(ctx, "config", "nothing"); limpet.CodeOf(err) != limpet.CodeUnknownMethod {
		t.Fatalf("got %v", err)
	}
	if _, err := a.Get(ctx, "seven", "name"); limpet.CodeOf(err) != limpet.CodeUnknownMethod {
		t.Fatalf("got %v", err)
	}
	deep := make([]string, limpet.MaxPath+1)
	_, err := a.Get(ctx, deep...)
	if e := asError(t, err); e.Name != "TypeError" || e.Delivery != limpet.DeliveryNone || e.Message != "RPC pipelined property path is too deep (max 64)." {
		t.Fatalf("got %+v", e)
	}
	for _, s := range v {
		if s, ok := s.(*limpet.Stub[any]); ok {
			s.Close()
		}
	}
}
