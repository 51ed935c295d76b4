package value_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

type person struct {
	Name    string
	Friend  *person
	Tags    []string
	Scores  map[string]int
	Anyhow  any
	Pointer **person
}

// TestShared: what is one thing before is one thing after, of every kind that
// has an identity, and cycles end (SPEC B26).
func TestShared(t *testing.T) {
	// SPEC B26: cycles are preserved.
	a, b := &person{Name: "a"}, &person{Name: "b"}
	a.Friend, b.Friend = b, a
	a.Tags = []string{"x", "y"}
	b.Tags = a.Tags
	a.Scores = map[string]int{"k": 1}
	b.Scores = a.Scores
	a.Anyhow, b.Anyhow = b, b.Tags
	a.Pointer = &a.Friend

	got := roundTrip(t, a)
	if got.Friend.Friend != got {
		t.Error("pointers: the cycle is gone")
	}
	if got.Friend.Tags[0] = "changed"; got.Tags[0] != "changed" {
		t.Error("slices: shared no more")
	}
	if got.Friend.Scores["k"] = 9; got.Scores["k"] != 9 {
		t.Error("maps: shared no more")
	}
	if *got.Pointer != got.Friend {
		t.Error("pointer to pointer: another friend")
	}
	if m, ok := got.Anyhow.(map[string]any); !ok || m["Name"] != "b" || m["Friend"].(map[string]any)["Anyhow"].(map[string]any)["Name"] != "b" {
		t.Errorf("any: %v", got.Anyhow)
	}
	// By value at the top: the cycle leads back to what was decoded into.
	enc, err := value.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	var top person
	if err := value.Unmarshal(enc, &top); err != nil {
		t.Fatal(err)
	}
	if top.Friend.Friend != &top {
		t.Error("top: the cycle does not lead back")
	}

	m := map[string]any{}
	list := []any{m, m}
	set := &limpet.Set{Values: []any{list}}
	jm := &limpet.Map{Entries: []limpet.MapEntry{{Key: set, Value: set}}}
	e := &limpet.ErrorValue{Name: "E", Cause: jm, HasCause: true}
	m["list"], m["error"] = list, e
	x := roundTrip[any](t, m).(map[string]any)
	xl := x["list"].([]any)
	xe := x["error"].(*limpet.ErrorValue)
	xm := xe.Cause.(*limpet.Map)
	if reflect.ValueOf(xl[0]).Pointer() != reflect.ValueOf(x).Pointer() || reflect.ValueOf(xl[1]).Pointer() != reflect.ValueOf(x).Pointer() {
		t.Error("dynamic: object is another")
	}
	if xm.Entries[0].Key != xm.Entries[0].Value || &xm.Entries[0].Key.(*limpet.Set).Values[0].([]any)[0] != &xl[0] {
		t.Error("dynamic: set or array is another")
	}
	// Typed pointers to the dynamic types keep identity too.
	type holder struct{ A, B *limpet.Map }
	h := roundTrip(t, holder{jm, jm})
	if h.A != h.B || h.A == nil {
		t.Error("*Map: shared no more")
	}
}

// A shared object that one Go type holds by value, or under two types, is copied
// out of the bytes for each.
func TestSharedAsAnotherType(t *testing.T) {
	shared := map[string]any{"Name": "p", "Tags": []any{"x"}}
	enc, err := value.Marshal([]any{shared, shared, shared})
	if err != nil {
		t.Fatal(err)
	}
	var byValue []person
	if err := value.Unmarshal(enc, &byValue); err != nil {
		t.Fatal(err)
	}
	if len(byValue) != 3 || byValue[2].Name != "p" || byValue[1].Tags[0] != "x" {
		t.Errorf("got %+v", byValue)
	}
	enc, err = value.Marshal(map[string]any{"A": shared, "B": shared, "C": shared, "D": shared})
	if err != nil {
		t.Fatal(err)
	}
	var two struct {
		A, C *person
		B, D any
	}
	if err := value.Unmarshal(enc, &two); err != nil {
		t.Fatal(err)
	}
	if two.A != two.C || two.A.Tags[0] != "x" || two.B.(map[string]any)["Name"] != "p" {
		t.Errorf("got %+v", two)
	}
	if reflect.ValueOf(two.B).Pointer() != reflect.ValueOf(two.D).Pointer() {
		t.Error("any: two objects")
	}
	// A cycle that a type holds by value has no end.
	cycle := map[string]any{}
	cycle["Value"] = []any{cycle}
	enc, err = value.Marshal(cycle)
	if err != nil {
		t.Fatal(err)
	}
	type box struct{ Value [1]struct{ Value [1]any } }
	var bx box
	if err := value.Unmarshal(enc, &bx); err != nil {
		t.Errorf("finite by type: %v", err)
	}
	type endless struct{ Value []endless }
	var en endless
	if err := value.Unmarshal(enc, &en); !errors.Is(err, value.ErrTooDeep) {
		t.Errorf("got %v, want ErrTooDeep", err)
	}
}

// Fields of one slice that overlap without being the same are copies.
func TestOverlap(t *testing.T) {
	all := []int{1, 2, 3}
	got := roundTrip(t, [][]int{all, all[:2], all[1:], all})
	want := [][]int{{1, 2, 3}, {1, 2}, {2, 3}, {1, 2, 3}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	got[0][0] = 9
	if got[3][0] != 9 || got[1][0] != 1 {
		t.Errorf("got %v", got)
	}
}

// Many shared values, so that their numbers take one to three bytes and the
// identity table is an index.
func TestManyShared(t *testing.T) {
	var list []*person
	for range 70_000 {
		list = append(list, &person{Name: "n"})
	}
	list = append(list, list...)
	got := roundTrip(t, list)
	for i := range 70_000 {
		if got[i] != got[i+70_000] || i > 0 && got[i] == got[i-1] {
			t.Fatalf("element %d is not the one", i)
		}
	}
}

// TestLimits: size and depth are limits, with the text of SPEC B30 for the size.
func TestLimits(t *testing.T) {
	// SPEC B30
	big := make([]byte, value.DefaultMaxSize-6)
	b, err := value.Marshal(big)
	if err != nil || len(b) != value.DefaultMaxSize {
		t.Fatalf("%d bytes: %v", len(b), err)
	}
	if _, err := value.Decode(b); err != nil {
		t.Error(err)
	}
	_, err = value.Marshal(append(big, 0))
	want := "Serialized RPC arguments or return values are limited to 32MiB, but the size of this value was: 33554433 bytes."
	if !errors.Is(err, value.ErrTooLarge) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if e, ok := errors.AsType[*value.Error](err); !ok || e.Size != value.DefaultMaxSize+1 || e.Limit != value.DefaultMaxSize {
		t.Errorf("got %+v", e)
	}
	if _, err = value.Decode(append(b, 0)); !errors.Is(err, value.ErrTooLarge) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	small := value.Options{MaxSize: 4}
	if _, err := small.Append([]byte("before"), "abc"); !errors.Is(err, value.ErrTooLarge) && err != nil {
		t.Error(err)
	}
	if _, err := small.Append(nil, "abcd"); !errors.Is(err, value.ErrTooLarge) || !strings.Contains(err.Error(), "limited to 4 bytes") {
		t.Error(err)
	}
	if _, err := small.AppendArgs(nil, "ab", "c"); !errors.Is(err, value.ErrTooLarge) {
		t.Error(err)
	}

	nested := func(n int) any {
		var x any = "leaf"
		for range n {
			x = []any{x}
		}
		return x
	}
	type list struct{ Next *list }
	chain := func(n int) *list {
		var l *list
		for range n {
			l = &list{l}
		}
		return l
	}
	for _, c := range []struct {
		name string
		o    value.Options
		v    any
		ok   bool
	}{
		{"default", value.Options{}, nested(value.DefaultMaxDepth), true},
		{"default", value.Options{}, nested(value.DefaultMaxDepth + 1), false},
		{"list", value.Options{}, chain(value.DefaultMaxDepth), true},
		{"list", value.Options{}, chain(value.DefaultMaxDepth + 1), false},
		{"three", value.Options{MaxDepth: 3}, nested(3), true},
		{"three", value.Options{MaxDepth: 3}, nested(4), false},
		{"errors", value.Options{MaxDepth: 2}, &limpet.ErrorValue{Cause: &limpet.ErrorValue{Cause: "x"}}, true},
		{"errors", value.Options{MaxDepth: 1}, &limpet.ErrorValue{Cause: &limpet.ErrorValue{Cause: "x"}}, false},
		{"boxes and maps", value.Options{MaxDepth: 2}, &limpet.Map{Entries: []limpet.MapEntry{{Key: limpet.Boxed{Value: 1}}}}, true},
		{"boxes and maps", value.Options{MaxDepth: 1}, &limpet.Map{Entries: []limpet.MapEntry{{Key: limpet.Boxed{Value: 1}}}}, false},
		{"sets", value.Options{MaxDepth: 1}, &limpet.Set{Values: []any{&limpet.Set{}}}, false},
		{"maps", value.Options{MaxDepth: 1}, map[string]any{"a": map[int]int{}}, false},
	} {
		b, err := c.o.Append(nil, c.v)
		if c.ok != (err == nil) || err != nil && !errors.Is(err, value.ErrTooDeep) {
			t.Errorf("%s %v: encode: %v", c.name, c.o, err)
		}
		if !c.ok {
			if b, err = (value.Options{MaxDepth: 3000}).Append(nil, c.v); err != nil {
				t.Fatal(err)
			}
		}
		_, err = c.o.Decode(b)
		if c.ok != (err == nil) || err != nil && !errors.Is(err, value.ErrTooDeep) {
			t.Errorf("%s %v: decode: %v", c.name, c.o, err)
		}
		text, err := c.o.ToJSON(b)
		if c.ok != (err == nil) || err != nil && !errors.Is(err, value.ErrTooDeep) {
			t.Errorf("%s %v: to JSON: %v", c.name, c.o, err)
		}
		if !c.ok {
			if text, err = (value.Options{MaxDepth: 3000}).ToJSON(b); err != nil {
				t.Fatal(err)
			}
		}
		_, err = c.o.FromJSON(text)
		if c.ok != (err == nil) || err != nil && !errors.Is(err, value.ErrTooDeep) {
			t.Errorf("%s %v: from JSON: %v", c.name, c.o, err)
		}
	}
}

// TestMutation: a copy shares nothing with its original, of every kind.
func TestMutation(t *testing.T) {
	type all struct {
		Bytes  []byte
		Ints   []int
		Map    map[string][]int
		Ptr    *int
		Any    any
		Array  [2][]int
		Typed  *limpet.TypedArray
		Set    *limpet.Set
		JSMap  *limpet.Map
		Err    *limpet.ErrorValue
		Nested *person
	}
	make1 := func() all {
		n := 1
		return all{
			[]byte{1}, []int{1}, map[string][]int{"a": {1}}, &n, map[string]any{"a": []any{int64(1), []byte{1}}}, [2][]int{{1}, {1}},
			&limpet.TypedArray{Kind: limpet.Int8Array, Data: []byte{1}}, &limpet.Set{Values: []any{[]any{int64(1)}}},
			&limpet.Map{Entries: []limpet.MapEntry{{Key: int64(1), Value: []any{int64(1)}}}},
			&limpet.ErrorValue{Class: "Error", Name: "Error", Message: "m", Fields: map[string]any{"a": []any{int64(1)}}},
			&person{Name: "n", Tags: []string{"x"}, Scores: map[string]int{"a": 1}},
		}
	}
	spoil := func(x *all) {
		x.Bytes[0], x.Ints[0], *x.Ptr, x.Array[0][0], x.Typed.Data[0] = 9, 9, 9, 9, 9
		x.Map["a"][0], x.Map["b"] = 9, nil
		x.Any.(map[string]any)["a"].([]any)[1].([]byte)[0] = 9
		x.Any.(map[string]any)["a"].([]any)[0] = "nine"
		x.Set.Values[0].([]any)[0], x.Set.Values = 9, append(x.Set.Values, 9)
		x.JSMap.Entries[0].Value.([]any)[0], x.JSMap.Entries[0].Key = 9, 9
		x.Err.Fields["a"].([]any)[0], x.Err.Message = 9, "nine"
		x.Nested.Tags[0], x.Nested.Name, x.Nested.Scores["a"] = "nine", "nine", 9
	}
	original := make1()
	dup, err := value.Copy(original)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(dup, make1()) {
		t.Errorf("copy differs: %+v", dup)
	}
	spoil(&original)
	if !reflect.DeepEqual(dup, make1()) {
		t.Errorf("copy changed with the original: %+v", dup)
	}
	original = make1()
	if dup, err = value.Copy(original); err != nil {
		t.Fatal(err)
	}
	spoil(&dup)
	if !reflect.DeepEqual(original, make1()) {
		t.Errorf("original changed with the copy: %+v", original)
	}
	// The bytes are free to be reused after decoding.
	b, err := value.Marshal(make1())
	if err != nil {
		t.Fatal(err)
	}
	var out all
	if err := value.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	x, err := value.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	before, err := value.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	clear(b)
	if !reflect.DeepEqual(out, make1()) {
		t.Errorf("decoded value changed with the bytes: %+v", out)
	}
	if after, err := value.Marshal(x); err != nil || string(after) != string(before) {
		t.Errorf("dynamic value changed with the bytes: %v", err)
	}
}
