package value_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

// Objects with many members, some of them twice.
func TestFromJSONManyMembers(t *testing.T) {
	var text strings.Builder
	text.WriteString(`{`)
	for i := range 200 {
		fmt.Fprintf(&text, `"k%d":[%d,{"x":[%d]}],`, i%60, i, i)
	}
	text.WriteString(`"end":{}}`)
	b, err := value.FromJSON([]byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	got, err := value.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	var want any
	if err := json.Unmarshal([]byte(text.String()), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, floats(got)); diff != "" {
		t.Error(diff)
	}
}

type failing struct {
	Before []*person
	Bad    any
	After  []*person
}

func (*failing) Error() string { return "failing" }

// A field of an error that can't be carried is left out, and what was noted of
// it forgotten: references must not lead to bytes that are gone.
func TestErrorFieldLeftOut(t *testing.T) {
	var people []*person
	for i := range 40 {
		people = append(people, &person{Name: fmt.Sprint(i)})
	}
	for _, n := range []int{2, 40} {
		e := &failing{
			Before: people[:n:n],
			Bad:    []any{&person{Name: "gone"}, people[0], people, make(chan int)},
			After:  append([]*person{people[1]}, people[:n]...),
		}
		b, err := value.Marshal([]any{e, people[0], e})
		if err != nil {
			t.Fatal(err)
		}
		x, err := value.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		list := x.([]any)
		got := list[0].(*limpet.ErrorValue)
		if list[2] != any(got) || got.Fields["Bad"] != nil || len(got.Fields) != 2 {
			t.Errorf("got %v", got.Fields)
		}
		before, after := got.Fields["Before"].([]any), got.Fields["After"].([]any)
		if len(before) != n || len(after) != n+1 {
			t.Fatalf("got %d and %d people", len(before), len(after))
		}
		for i := range n {
			if reflect.ValueOf(before[i]).Pointer() != reflect.ValueOf(after[i+1]).Pointer() || before[i].(map[string]any)["Name"] != fmt.Sprint(i) {
				t.Fatalf("person %d is another", i)
			}
		}
		if reflect.ValueOf(list[1]).Pointer() != reflect.ValueOf(before[0]).Pointer() {
			t.Error("person 0 outside is another")
		}
	}
}

// Slices of large elements grow as the elements come, and are as shared as others.
func TestLargeElements(t *testing.T) {
	type large struct {
		Name string
		_    [0]int
		Pad  [40]string
	}
	list := make([]large, 500)
	for i := range list {
		list[i].Name = fmt.Sprint(i)
	}
	got := roundTrip(t, [][]large{list, list})
	if len(got[0]) != 500 || got[0][499].Name != "499" || &got[0][0] != &got[1][0] {
		t.Error("large elements differ")
	}
	type omit struct {
		Name string
		Pad  [40]string `json:",omitzero"`
	}
	small := make([]omit, 500)
	small[499].Name = "last"
	if got := roundTrip(t, small); !reflect.DeepEqual(got, small) {
		t.Error("large elements with small bytes differ")
	}
	m := map[string]omit{"a": small[499]}
	if got := roundTrip(t, m); !reflect.DeepEqual(got, m) {
		t.Error("large map elements differ")
	}
}

func TestEdges(t *testing.T) {
	// Pointers and interfaces nest without a container.
	var x any = "leaf"
	for range 5000 {
		y := x
		x = &y
	}
	if _, err := value.Marshal(x); !errors.Is(err, value.ErrTooDeep) {
		t.Errorf("long chain of pointers: %v", err)
	}
	ptr := new(*big.Int)
	*ptr = big.NewInt(7)
	if got := roundTrip(t, &ptr); (**got).Int64() != 7 {
		t.Error(got)
	}
	same(t, []big.Int{*big.NewInt(3)})
	same(t, map[string]big.Int{"a": *big.NewInt(-3)})
	if _, err := value.Marshal(map[string]any{"a\xff": 1}); !errors.Is(err, value.ErrType) || !strings.Contains(err.Error(), `[key "a\xff"]`) {
		t.Error(err)
	}
	if _, err := value.Marshal(map[string]int{"a\xff": 1}); !errors.Is(err, value.ErrType) || !strings.Contains(err.Error(), `[key "a\xff"]`) {
		t.Error(err)
	}
	for want, v := range map[string]any{
		`.k: Could not serialize object of type "func()". This type does not support serialization.`:          map[string]func(){"k": func() {}},
		`[map value]: Could not serialize object of type "func()". This type does not support serialization.`: map[int]func(){1: func() {}},
		`[key]: Could not serialize object of type "chan int". This type does not support serialization.`:     map[chan int]int{make(chan int): 1},
		`[value 1]: Could not serialize object of type "func()". This type does not support serialization.`:   &limpet.Set{Values: []any{1, func() {}}},
		`[key 0]: Could not serialize object of type "func()". This type does not support serialization.`:     &limpet.Map{Entries: []limpet.MapEntry{{Key: func() {}}}},
		`[value 0]: Could not serialize object of type "func()". This type does not support serialization.`:   limpet.Map{Entries: []limpet.MapEntry{{Value: func() {}}}},
		`.cause: Could not serialize object of type "func()". This type does not support serialization.`:      &limpet.ErrorValue{Cause: func() {}},
		`.f: Could not serialize object of type "func()". This type does not support serialization.`:          limpet.ErrorValue{Fields: map[string]any{"f": func() {}}},
		`.errors[0]: Could not serialize object of type "func()". This type does not support serialization.`:  &limpet.ErrorValue{Errors: []any{func() {}}},
		`nil *big.Int in a Boxed`:                   limpet.Boxed{Value: (*big.Int)(nil)},
		`<nil> in a Boxed, which is for primitives`: limpet.Boxed{},
	} {
		if _, err := value.Marshal(v); !errors.Is(err, value.ErrType) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	deep := any(func() {})
	for range 900 {
		deep = map[string]any{"a rather long name of a member, with spaces": deep}
	}
	if _, err := value.Marshal(deep); err == nil || len(err.Error()) > 500 || !strings.HasPrefix(err.Error(), "...") {
		t.Errorf("path is not cut: %v", err)
	}
	b, err := value.Marshal("no address")
	if err != nil {
		t.Fatal(err)
	}
	var addr netip.Addr
	if err := value.Unmarshal(b, &addr); !errors.Is(err, value.ErrType) || !strings.Contains(err.Error(), `string "no address" does not fit the Go type netip.Addr`) {
		t.Error(err)
	}
	// A nil of each kind into an error.
	if b, err = value.Marshal(nil); err != nil {
		t.Fatal(err)
	}
	e := errors.New("before")
	m, s, p, st := map[string]int{"a": 1}, []int{1}, new(int), any(1)
	for _, dst := range []any{&e, &m, &s, &p, &st} {
		if err := value.Unmarshal(b, dst); err != nil {
			t.Error(err)
		}
	}
	if e != nil || m != nil || s != nil || p != nil || st != nil {
		t.Error(e, m, s, p, st)
	}
}

// Errors quote what is wrong, but not all of it: names come from outside.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("\u00e9\"", 1<<16)
	quoted, err := json.Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	q := string(quoted)
	for _, text := range []string{`{"$` + q[1:] + `:1}`, `{"$error":{` + q + `:1}}`, `{` + q + `:1e999}`, `[` + strings.Repeat("9", 1<<16) + `]`} {
		_, err := value.FromJSON([]byte(text))
		if err == nil {
			t.Fatalf("%.20s is accepted", text)
		}
		checkTyped(t, err)
	}
	type T struct{ A int }
	for _, v := range []any{map[string]any{long: 1}, map[string]any{"A": long}, map[string]any{"A": &limpet.ErrorValue{Name: long}}, map[string]any{"A": map[string]any{long: long}}} {
		b, err := value.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err = (value.Options{Strict: true}).Unmarshal(b, new(T)); err == nil {
			t.Fatal("accepted")
		}
		checkTyped(t, err)
		if err = value.Unmarshal(b, new(map[string]map[string]netip.Addr)); err == nil {
			t.Fatal("accepted")
		}
		checkTyped(t, err)
	}
	if _, err = value.Marshal(map[string]any{long + "\xff": 1}); err == nil {
		t.Fatal("accepted")
	}
	checkTyped(t, err)
}

// The same bytes in the hands of a reader that knows less: errors name the version.
func TestVersion(t *testing.T) {
	if _, err := value.Decode([]byte{2, 0xf6}); !errors.Is(err, value.ErrVersion) || err.Error() != "value of format version 2; this build reads version 1" {
		t.Error(err)
	}
	if _, err := value.Decode(fromHex("01 d94c20 00")); !errors.Is(err, value.ErrSyntax) || !strings.Contains(err.Error(), "tag 19488 means nothing in format version 1") {
		t.Error(err)
	}
}
