package limpet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

// Recorder has methods of each arity, which write down what arrives.
type Recorder struct {
	mu  sync.Mutex
	got []any
}

func (r *Recorder) note(args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = args
	return nil
}

func (r *Recorder) D0(context.Context) error                    { return r.note() }
func (r *Recorder) D1(_ context.Context, a int) error           { return r.note(a) }
func (r *Recorder) D2(_ context.Context, a int, b string) error { return r.note(a, b) }
func (r *Recorder) D3(_ context.Context, a int, b string, c float64) error {
	return r.note(a, b, c)
}
func (r *Recorder) D4(_ context.Context, a int, b string, c float64, d bool) error {
	return r.note(a, b, c, d)
}
func (r *Recorder) D5(_ context.Context, a int, b string, c float64, d bool, e []int) error {
	return r.note(a, b, c, d, e)
}
func (r *Recorder) D6(_ context.Context, a int, b string, c float64, d bool, e []int, f *int) error {
	return r.note(a, b, c, d, e, f)
}
func (r *Recorder) C0(context.Context) (string, error)                    { return "C0", r.note() }
func (r *Recorder) C1(_ context.Context, a int) (string, error)           { return "C1", r.note(a) }
func (r *Recorder) C2(_ context.Context, a int, b string) (string, error) { return "C2", r.note(a, b) }
func (r *Recorder) C3(_ context.Context, a int, b string, c float64) (string, error) {
	return "C3", r.note(a, b, c)
}
func (r *Recorder) C4(_ context.Context, a int, b string, c float64, d bool) ([]string, error) {
	return []string{"C4"}, r.note(a, b, c, d)
}
func (r *Recorder) C5(_ context.Context, a int, b string, c float64, d bool, e map[string]int) (map[string]int, error) {
	return e, r.note(a, b, c, d, e)
}
func (r *Recorder) C6(_ context.Context, a int, b string, c float64, d bool, e map[string]int, f any) (any, error) {
	return f, r.note(a, b, c, d, e, f)
}

func recorderNode(t testing.TB) (*fakeNode, *limpet.Stub[*Recorder], *Recorder) {
	t.Helper()
	r := &Recorder{}
	class := limpet.NewClass("Recorder", func(*limpet.State) (*Recorder, error) { return r, nil })
	if err := class.Err(); err != nil {
		t.Fatal(err)
	}
	n := nodeOf(class, r)
	return n, namespace[*Recorder](t, n).Named("r"), r
}

func TestEachArity(t *testing.T) {
	ctx := t.Context()
	node, s, r := recorderNode(t)
	var encoded limpet.Encoded // what would travel, were the object elsewhere
	node.intercept = func(c *limpet.CallSpec) (_ any, err error, _ bool) {
		encoded, err = c.Runner.Args()
		return nil, err, err != nil
	}
	// Untyped constants and nil take the types of the method.
	for _, c := range []struct {
		what string
		call func() (any, error)
		got  []any
		want any
	}{
		{"d0", func() (any, error) { return nil, limpet.Do(ctx, s, (*Recorder).D0) }, nil, nil},
		{"d1", func() (any, error) { return nil, limpet.Do1(ctx, s, (*Recorder).D1, 1) }, []any{1}, nil},
		{"d2", func() (any, error) { return nil, limpet.Do2(ctx, s, (*Recorder).D2, 1, "b") }, []any{1, "b"}, nil},
		{"d3", func() (any, error) { return nil, limpet.Do3(ctx, s, (*Recorder).D3, 1, "b", 3) }, []any{1, "b", 3.0}, nil},
		{"d4", func() (any, error) { return nil, limpet.Do4(ctx, s, (*Recorder).D4, 1, "b", 3, true) }, []any{1, "b", 3.0, true}, nil},
		{"d5", func() (any, error) { return nil, limpet.Do5(ctx, s, (*Recorder).D5, 1, "b", 3, true, []int{5}) }, []any{1, "b", 3.0, true, []int{5}}, nil},
		{"d5", func() (any, error) { return nil, limpet.Do5(ctx, s, (*Recorder).D5, 1, "b", 3, true, nil) }, []any{1, "b", 3.0, true, []int(nil)}, nil},
		{"d6", func() (any, error) { return nil, limpet.Do6(ctx, s, (*Recorder).D6, 1, "b", 3, true, []int{5}, new(6)) }, []any{1, "b", 3.0, true, []int{5}, new(6)}, nil},
		{"d6", func() (any, error) { return nil, limpet.Do6(ctx, s, (*Recorder).D6, 1, "b", 3, true, nil, nil) }, []any{1, "b", 3.0, true, []int(nil), (*int)(nil)}, nil},
		{"c0", func() (any, error) { return limpet.Call(ctx, s, (*Recorder).C0) }, nil, "C0"},
		{"c1", func() (any, error) { return limpet.Call1(ctx, s, (*Recorder).C1, 1) }, []any{1}, "C1"},
		{"c2", func() (any, error) { return limpet.Call2(ctx, s, (*Recorder).C2, 1, "b") }, []any{1, "b"}, "C2"},
		{"c3", func() (any, error) { return limpet.Call3(ctx, s, (*Recorder).C3, 1, "b", 3) }, []any{1, "b", 3.0}, "C3"},
		{"c4", func() (any, error) { return limpet.Call4(ctx, s, (*Recorder).C4, 1, "b", 3, true) }, []any{1, "b", 3.0, true}, []string{"C4"}},
		{"c5", func() (any, error) {
			return limpet.Call5(ctx, s, (*Recorder).C5, 1, "b", 3, true, map[string]int{"e": 5})
		}, []any{1, "b", 3.0, true, map[string]int{"e": 5}}, map[string]int{"e": 5}},
		{"c6", func() (any, error) {
			return limpet.Call6(ctx, s, (*Recorder).C6, 1, "b", 3, true, map[string]int{"e": 5}, "f")
		}, []any{1, "b", 3.0, true, map[string]int{"e": 5}, "f"}, "f"},
		{"c6", func() (any, error) { return limpet.Call6(ctx, s, (*Recorder).C6, 1, "b", 3, true, nil, nil) }, []any{1, "b", 3.0, true, map[string]int(nil), nil}, nil},
	} {
		got, err := c.call()
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		// SPEC B23: the argument list arrives as it was given, in order.
		if diff := cmp.Diff(c.got, r.got); diff != "" {
			t.Errorf("%s got other arguments: %s", c.what, diff)
		}
		want, err := json.Marshal(append([]any{}, c.got...))
		if err != nil || string(encoded) != string(want) {
			t.Errorf("%s encodes %s, want %s", c.what, encoded, want)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s gave another result: %s", c.what, diff)
		}
		if node.last() != c.what {
			t.Errorf("%s: called %s", c.what, node.last())
		}
	}
}

// Nested has every kind of memory that could be shared.
type Nested struct {
	Slice   []int
	Map     map[string][]int
	Pointer *Nested
	Any     any
	Array   [2][]int
}

func newNested() *Nested {
	return &Nested{
		Slice: []int{1, 2}, Map: map[string][]int{"k": {1}}, Pointer: &Nested{Slice: []int{3}},
		Any: []any{"x"}, Array: [2][]int{{4}, {5}},
	}
}

// spoil changes everything that can be reached.
func (n *Nested) spoil() {
	n.Slice[0] = -1
	n.Map["k"][0] = -1
	n.Map["new"] = nil
	n.Pointer.Slice[0] = -1
	n.Any.([]any)[0] = "spoiled"
	n.Array[0][0] = -1
}

// Keeper keeps what it is given and gives what it keeps.
type Keeper struct {
	nested  []*Nested
	kept    *Nested
	slice   []int
	table   map[string]int
	pointer *int
	value   Nested
	failure *limpet.Error
}

func (k *Keeper) TakeNested(_ context.Context, n *Nested) error {
	k.nested = append(k.nested, n)
	return nil
}
func (k *Keeper) TakeSlice(_ context.Context, s []int) error        { k.slice = s; return nil }
func (k *Keeper) TakeMap(_ context.Context, m map[string]int) error { k.table = m; return nil }
func (k *Keeper) TakePointer(_ context.Context, p *int) error       { k.pointer = p; return nil }
func (k *Keeper) TakeValue(_ context.Context, n Nested) error       { k.value = n; return nil }
func (k *Keeper) GiveNested(context.Context) (*Nested, error)       { return k.kept, nil }
func (k *Keeper) GiveValue(context.Context) (Nested, error)         { return *k.kept, nil }
func (k *Keeper) GiveSlice(context.Context) ([]int, error)          { return k.kept.Slice, nil }
func (k *Keeper) GiveMap(context.Context) (map[string][]int, error) { return k.kept.Map, nil }
func (k *Keeper) GiveAny(context.Context) (any, error)              { return k.kept.Any, nil }
func (k *Keeper) Fail(context.Context) error                        { return k.failure }
func (k *Keeper) Spoil(_ context.Context, n *Nested) error {
	k.nested = append(k.nested, n)
	if diff := cmp.Diff(newNested(), n); diff != "" {
		return errors.New("arrived spoiled: " + diff)
	}
	n.spoil()
	return nil
}

func keeperNode(t testing.TB) (*fakeNode, *limpet.Stub[*Keeper], *Keeper) {
	t.Helper()
	k := &Keeper{kept: newNested()}
	n := nodeOf(limpet.NewClass("Keeper", func(*limpet.State) (*Keeper, error) { return k, nil }), k)
	if err := n.binding.Class.Err(); err != nil {
		t.Fatal(err)
	}
	return n, namespace[*Keeper](t, n).Named("k"), k
}

// No sharing between caller and object: what one side changes after the call,
// the other does not see.
func TestArgumentsAreNotShared(t *testing.T) {
	ctx := t.Context()
	_, s, k := keeperNode(t)
	n, slice, table, pointer := newNested(), []int{1, 2}, map[string]int{"a": 1}, new(5)
	for _, err := range []error{
		limpet.Do1(ctx, s, (*Keeper).TakeNested, n), limpet.Do1(ctx, s, (*Keeper).TakeValue, *n), limpet.Do1(ctx, s, (*Keeper).TakeSlice, slice),
		limpet.Do1(ctx, s, (*Keeper).TakeMap, table), limpet.Do1(ctx, s, (*Keeper).TakePointer, pointer),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	n.spoil()
	slice[0], table["a"], *pointer = -1, -1, -1
	want := []any{newNested(), *newNested(), []int{1, 2}, map[string]int{"a": 1}, 5}
	if diff := cmp.Diff(want, []any{k.nested[0], k.value, k.slice, k.table, *k.pointer}); diff != "" {
		t.Errorf("the object sees what the caller changed: %s", diff)
	}
	n, slice, table, pointer = newNested(), []int{1, 2}, map[string]int{"a": 1}, new(5)
	for _, err := range []error{
		limpet.Do1(ctx, s, (*Keeper).TakeNested, n), limpet.Do1(ctx, s, (*Keeper).TakeSlice, slice),
		limpet.Do1(ctx, s, (*Keeper).TakeMap, table), limpet.Do1(ctx, s, (*Keeper).TakePointer, pointer),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	k.nested[1].spoil()
	k.slice[0], k.table["a"], *k.pointer = -1, -1, -1
	want = []any{newNested(), []int{1, 2}, map[string]int{"a": 1}, 5}
	if diff := cmp.Diff(want, []any{n, slice, table, *pointer}); diff != "" {
		t.Errorf("the caller sees what the object changed: %s", diff)
	}
}

func TestResultsAreNotShared(t *testing.T) {
	ctx := t.Context()
	_, s, k := keeperNode(t)
	all := func() []any {
		t.Helper()
		n, err1 := limpet.Call(ctx, s, (*Keeper).GiveNested)
		v, err2 := limpet.Call(ctx, s, (*Keeper).GiveValue)
		sl, err3 := limpet.Call(ctx, s, (*Keeper).GiveSlice)
		m, err4 := limpet.Call(ctx, s, (*Keeper).GiveMap)
		a, err5 := limpet.Call(ctx, s, (*Keeper).GiveAny)
		if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
			t.Fatal(err)
		}
		return []any{n, &v, sl, m, a}
	}
	want := []any{newNested(), newNested(), newNested().Slice, newNested().Map, newNested().Any}
	first := all()
	if diff := cmp.Diff(want, first); diff != "" {
		t.Fatal(diff)
	}
	first[0].(*Nested).spoil()
	first[1].(*Nested).spoil()
	first[2].([]int)[0] = -1
	first[3].(map[string][]int)["k"][0] = -1
	first[4].([]any)[0] = "spoiled"
	if diff := cmp.Diff(newNested(), k.kept); diff != "" {
		t.Errorf("the object sees what the caller changed: %s", diff)
	}
	second := all()
	k.kept.spoil()
	if diff := cmp.Diff(want, second); diff != "" {
		t.Errorf("the caller sees what the object changed: %s", diff)
	}
}

func TestErrorFieldsAreNotShared(t *testing.T) {
	_, s, k := keeperNode(t)
	list, deep := []any{"a"}, map[string]any{"x": []any{1.0}}
	k.failure = &limpet.Error{Code: "Own", Message: "m", Fields: map[string]any{"list": list, "deep": deep, "number": 3, "channel": make(chan int)}}
	typed := limpet.Do(t.Context(), s, (*Keeper).Fail)
	_, dynamic := s.Invoke(t.Context(), "fail")
	list[0], deep["x"].([]any)[0] = "spoiled", -1.0
	for what, err := range map[string]error{"typed": typed, "dynamic": dynamic} {
		e := asError(t, err)
		// A field that can't be carried is left out, the others are copies in the
		// form that a caller elsewhere would get (here JSON's).
		want := map[string]any{"list": []any{"a"}, "deep": map[string]any{"x": []any{1.0}}, "number": 3.0}
		if diff := cmp.Diff(want, e.Fields); diff != "" || e.Code != "Own" || e.Message != "m" || !e.Remote || e.ByLimpet() {
			t.Errorf("%s: got %+v: %s", what, e, diff)
		}
	}
	k.failure = nil // a nil pointer in an error interface is an error in Go
	e := asError(t, limpet.Do(t.Context(), s, (*Keeper).Fail))
	if e.Code != limpet.CodeApplication || !strings.Contains(e.Message, "*limpet.Error") {
		t.Errorf("got %+v", e)
	}
}

// Each attempt has arguments of its own: what a run changes, the next does not see.
func TestEachAttemptHasItsOwnArguments(t *testing.T) {
	node, s, k := keeperNode(t)
	node.runs = 3
	n := newNested()
	if err := limpet.Do1(t.Context(), s, (*Keeper).Spoil, n); err != nil {
		t.Error(err)
	}
	// SPEC G10, G12: what is sent again is the form made at the start.
	if len(k.nested) != 3 || node.codec().args != 1 || node.codec().decoded != 3 {
		t.Errorf("%d runs, %d lists encoded, %d decoded", len(k.nested), node.codec().args, node.codec().decoded)
	}
	if diff := cmp.Diff(newNested(), n); diff != "" {
		t.Errorf("the caller's arguments changed: %s", diff)
	}
	if k.nested[0] == k.nested[1] || &k.nested[0].Slice[0] == &k.nested[2].Slice[0] {
		t.Error("two attempts share arguments")
	}
}

// Plain values are handed over by assignment: no codec, also for Do.
func TestPlainValuesAreAssigned(t *testing.T) {
	ctx := t.Context()
	node, s, r := recorderNode(t)
	node.runs = 2
	if err := limpet.Do4(ctx, s, (*Recorder).D4, 1, "b", 2.5, true); err != nil {
		t.Error(err)
	}
	if got, err := limpet.Call3(ctx, s, (*Recorder).C3, 1, "b", 2.5); got != "C3" || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	if c := node.codec(); c.args != 0 || c.decoded != 0 {
		t.Errorf("%d lists encoded, %d decoded", c.args, c.decoded)
	}
	if diff := cmp.Diff([]any{1, "b", 2.5}, r.got); diff != "" {
		t.Error(diff)
	}
}

func TestArgumentsAreEncodedOnce(t *testing.T) {
	node, s, _ := recorderNode(t)
	var spec *limpet.CallSpec
	var results []any
	node.intercept = func(c *limpet.CallSpec) (any, error, bool) {
		spec = c
		var wg sync.WaitGroup
		var mu sync.Mutex
		for range 8 { // attempts may run at the same time
			wg.Go(func() {
				enc, err := c.Runner.Args()
				again, _ := c.Runner.Args()
				result, runErr := c.Runner.Run(t.Context(), node.receiver)
				mu.Lock()
				defer mu.Unlock()
				if err != nil || runErr != nil || string(enc) != `[1,"two"]` || string(again) != string(enc) {
					t.Errorf("got %s, %v, %v", enc, err, runErr)
				}
				results = append(results, result)
			})
		}
		wg.Wait()
		return results[0], nil, true
	}
	if got, err := limpet.Call2(t.Context(), s, (*Recorder).C2, 1, "two"); got != "C2" || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	// SPEC E51, G12
	if n := node.codec().args; n != 1 {
		t.Errorf("the arguments were encoded %d times", n)
	}
	if spec.Kind != limpet.KindMethod || spec.Kind.String() != "jsrpc" || spec.Method != "c2" || spec.Existing || !spec.Object.Equal(s.ID()) {
		t.Errorf("the call is %+v", spec)
	}
}

type part struct{ Text string }

// label is plain and holds strings in places.
type label struct {
	Texts [2]string
	Part  part
	Bytes [4]byte
}

type Names interface {
	Take(ctx context.Context, l label) error
}

func TestRunnerSize(t *testing.T) {
	node, s, _ := recorderNode(t)
	var sizes []int
	take := func(c *limpet.CallSpec) (any, error, bool) {
		sizes = append(sizes, c.Runner.Size())
		return nil, nil, true
	}
	node.intercept = take
	ctx := t.Context()
	_ = limpet.Do(ctx, s, (*Recorder).D0)
	_ = limpet.Do2(ctx, s, (*Recorder).D2, 1, "")
	_ = limpet.Do2(ctx, s, (*Recorder).D2, 1, strings.Repeat("x", 1000))
	_, _ = s.Invoke(ctx, "d2", 1, strings.Repeat("x", 1000))
	_ = limpet.Do5(ctx, s, (*Recorder).D5, 1, "", 0, false, make([]int, 1000))
	node.binding.Class = nil
	names := namespace[Names](t, node).Named("r")
	_ = limpet.Do1(ctx, names, Names.Take, label{})
	_ = limpet.Do1(ctx, names, Names.Take, label{Texts: [2]string{"1234567890", "12345"}, Part: part{"12345"}})
	// SPEC G20: the size counts, also of strings that are handed over as they are.
	if len(sizes) != 7 || sizes[0] != 0 || sizes[2]-sizes[1] != 1000 || sizes[3] < 1000 || sizes[4] < 1000 || sizes[6]-sizes[5] != 20 {
		t.Errorf("sizes are %v", sizes)
	}
}

// Odd gives what is easily lost on the way.
type Odd struct{}

func (*Odd) NilPointer(context.Context) (*int, error)               { return nil, nil }
func (*Odd) NilSlice(context.Context) ([]int, error)                { return nil, nil }
func (*Odd) NilAny(context.Context) (any, error)                    { return nil, nil }
func (*Odd) Zero(context.Context) (int, error)                      { return 0, nil }
func (*Odd) Empty(context.Context) (struct{}, error)                { return struct{}{}, nil }
func (*Odd) Stringer(context.Context) (fmt.Stringer, error)         { return nil, nil }
func (*Odd) Channel(context.Context) (any, error)                   { return make(chan int), nil }
func (*Odd) TakeChannel(_ context.Context, _ any) error             { return nil }
func (*Odd) ValueAndError(context.Context) (int, error)             { return 5, errors.New("both") }
func (*Odd) NilArgs(_ context.Context, p *int, a any) (bool, error) { return p == nil && a == nil, nil }
func (*Odd) Panics(context.Context) error                           { panic("in the method") }

func TestOddResults(t *testing.T) {
	ctx := t.Context()
	odd := &Odd{}
	node := nodeOf(limpet.NewClass("Odd", func(*limpet.State) (*Odd, error) { return odd, nil }), odd)
	s := namespace[*Odd](t, node).Named("o")
	if p, err := limpet.Call(ctx, s, (*Odd).NilPointer); p != nil || err != nil {
		t.Errorf("got %v, %v", p, err)
	}
	if v, err := limpet.Call(ctx, s, (*Odd).NilSlice); v != nil || err != nil {
		t.Errorf("got %v, %v", v, err)
	}
	if v, err := limpet.Call(ctx, s, (*Odd).NilAny); v != nil || err != nil {
		t.Errorf("got %v, %v", v, err)
	}
	if v, err := limpet.Call(ctx, s, (*Odd).Zero); v != 0 || err != nil {
		t.Errorf("got %v, %v", v, err)
	}
	if _, err := limpet.Call(ctx, s, (*Odd).Empty); err != nil {
		t.Error(err)
	}
	if v, err := limpet.Call(ctx, s, (*Odd).Stringer); v != nil || err != nil {
		t.Errorf("got %v, %v", v, err)
	}
	if v, err := limpet.Call2(ctx, s, (*Odd).NilArgs, nil, nil); !v || err != nil {
		t.Errorf("got %v, %v", v, err)
	}
	v, err := limpet.Call(ctx, s, (*Odd).ValueAndError)
	if e := asError(t, err); v != 0 || e.Message != "both" || e.ByLimpet() {
		t.Errorf("a value beside an error: %v, %v", v, err)
	}
	_, err = limpet.Call(ctx, s, (*Odd).Channel)
	// SPEC B27: a result that can't be carried is the object's failure.
	if e := asError(t, err); e.Code != limpet.CodeInvalidArgument || e.Delivery != limpet.DeliveryReceived || !e.Remote || !e.ByLimpet() {
		t.Errorf("got %+v", e)
	}
	contains(t, err, "result of channel", "chan")
	made := node.attempts()
	// SPEC C32: an argument is the caller's, and nothing is sent.
	refused(t, limpet.Do1(ctx, s, (*Odd).TakeChannel, any(make(chan int))), limpet.CodeInvalidArgument, "takeChannel", "chan")
	if node.attempts() != made {
		t.Error("a call was made")
	}
}

func TestResultsFromElsewhere(t *testing.T) {
	ctx := t.Context()
	node := nodeOf(nil, nil)
	s := namespace[CartAPI](t, node).Named("c")
	answer := func(v any) { node.intercept = func(*limpet.CallSpec) (any, error, bool) { return v, nil, true } }
	for what, c := range map[string]struct {
		result any
		want   int
		code   limpet.Code
	}{
		"encoded":     {limpet.Encoded("7"), 7, ""},
		"none":        {nil, 0, ""},
		"empty":       {limpet.Encoded{}, 0, ""},
		"by value":    {7, 7, ""},
		"wrong type":  {"seven", 0, limpet.CodeInternal},
		"wrong value": {limpet.Encoded(`"seven"`), 0, limpet.CodeInvalidArgument},
		"garbage":     {limpet.Encoded("{"), 0, limpet.CodeInvalidArgument},
	} {
		answer(c.result)
		got, err := limpet.Call1(ctx, s, CartAPI.AddOne, "i")
		if got != c.want || limpet.CodeOf(err) != c.code {
			t.Errorf("%s: got %v, %v", what, got, err)
		}
		if err != nil {
			if e := asError(t, err); e.Delivery != limpet.DeliveryReceived {
				t.Errorf("%s: delivery %s", what, e.Delivery)
			}
			contains(t, err, "result of addOne")
		}
		// A method without result takes none, whatever the code elsewhere gives.
		if err := limpet.Do2(ctx, s, CartAPI.SetQuantity, "i", 1); err != nil {
			t.Errorf("%s: without result: %v", what, err)
		}
	}
}

// A Runner gives nil for no result, an assignable value itself, else its encoded form.
func TestRunnerResults(t *testing.T) {
	ctx := t.Context()
	node, s, _ := recorderNode(t)
	var results []any
	node.intercept = func(c *limpet.CallSpec) (any, error, bool) {
		result, err := c.Runner.Run(ctx, node.receiver)
		results = append(results, result)
		return result, err, true
	}
	for _, f := range []func() error{
		func() error { return limpet.Do(ctx, s, (*Recorder).D0) },
		func() error { _, err := s.Invoke(ctx, "d0"); return err },
		func() error { _, err := limpet.Call(ctx, s, (*Recorder).C0); return err },
		func() error { _, err := s.Invoke(ctx, "c0"); return err },
		func() error { _, err := limpet.Call4(ctx, s, (*Recorder).C4, 1, "", 0, true); return err },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	want := []any{nil, nil, "C0", limpet.Encoded(`"C0"`), limpet.Encoded(`["C4"]`)}
	if diff := cmp.Diff(want, results); diff != "" {
		t.Error(diff)
	}
}

// A receiver of another type must not take the node down.
func TestWrongReceiver(t *testing.T) {
	ctx := t.Context()
	class := limpet.NewClass("Cart", newCart)
	for what, receiver := range map[string]any{"another type": &Bag{}, "nil": nil, "a value": Cart{}} {
		node := nodeOf(class, receiver)
		err := limpet.Do2(ctx, namespace[*Cart](t, node).Named("c"), (*Cart).SetQuantity, "i", 1)
		if e := asError(t, err); e.Code != limpet.CodeInternal || !e.ByLimpet() {
			t.Errorf("%s: got %+v", what, e)
		}
		contains(t, err, "setQuantity", "*limpet_test.Cart", fmt.Sprintf("%T", receiver))
	}
	node := nodeOf(class, &Shapes{})
	err := limpet.Do2(ctx, namespace[CartAPI](t, node).Named("c"), CartAPI.SetQuantity, "i", 1)
	if e := asError(t, err); e.Code != limpet.CodeInternal {
		t.Errorf("interface: got %+v", e)
	}
	// Through an interface, what implements it is right.
	cart := &Cart{items: map[string]int{}}
	if err := limpet.Do2(ctx, namespace[CartAPI](t, nodeOf(class, cart)).Named("c"), CartAPI.SetQuantity, "i", 1); err != nil || cart.items["i"] != 1 {
		t.Errorf("interface: %v, %v", err, cart.items)
	}
}

func TestMethodPanicsGoThrough(t *testing.T) {
	odd := &Odd{}
	node := nodeOf(limpet.NewClass("Odd", func(*limpet.State) (*Odd, error) { return odd, nil }), odd)
	defer func() {
		if p := recover(); p != "in the method" {
			t.Errorf("got %v: the host must see what the method panicked with", p)
		}
	}()
	_ = limpet.Do(t.Context(), namespace[*Odd](t, node).Named("o"), (*Odd).Panics)
	t.Error("the panic was swallowed")
}

func TestStubConcurrently(t *testing.T) {
	_, s, _ := recorderNode(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 50 {
				got, err := limpet.Call1(t.Context(), s, (*Recorder).C1, i)
				if got != "C1" || err != nil {
					t.Errorf("got %v, %v", got, err)
				}
				if err := limpet.Do5(t.Context(), s, (*Recorder).D5, i, "", 0, false, []int{i}); err != nil {
					t.Error(err)
				}
				if _, err := s.Invoke(t.Context(), "c0"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
