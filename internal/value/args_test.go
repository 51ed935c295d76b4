package value_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

func TestArgs(t *testing.T) {
	b, err := value.AppendArgs([]byte("before"), "item-1", 3, nil, limpet.Undefined{}, []int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	b = b[len("before"):]
	args, err := value.ReadArgs(b)
	if err != nil {
		t.Fatal(err)
	}
	// SPEC B23: as many as were given, and undefined stays undefined.
	if args.Len() != 5 {
		t.Errorf("got %d arguments", args.Len())
	}
	var item string
	var n int
	var p *int
	if err := errors.Join(args.Next(&item), args.NextValue(reflect.ValueOf(&n).Elem()), args.Next(&p)); err != nil {
		t.Fatal(err)
	}
	if item != "item-1" || n != 3 || p != nil {
		t.Error(item, n, p)
	}
	if x, err := args.NextAny(); err != nil || x != any(limpet.Undefined{}) {
		t.Error(x, err)
	}
	if err := args.End(); !errors.Is(err, value.ErrSyntax) {
		t.Errorf("end before the last argument: %v", err)
	}
	var list []int
	if err := args.Next(&list); err != nil || len(list) != 2 {
		t.Error(list, err)
	}
	if err := args.Next(&n); !errors.Is(err, value.ErrType) || err.Error() != "argument 6 (int): there are only 5 arguments" {
		t.Error(err)
	}
	if err := errors.Join(args.End(), args.End()); err != nil {
		t.Error(err)
	}
	if err := args.Next(&n); !errors.Is(err, value.ErrType) {
		t.Error(err)
	}
	b, err = value.AppendArgs(nil)
	if err != nil {
		t.Fatal(err)
	}
	if args, err = value.ReadArgs(b); err != nil || args.Len() != 0 || args.End() != nil {
		t.Error(args, err)
	}
}

func TestArgErrors(t *testing.T) {
	_, err := value.AppendArgs(nil, 1, []any{"a", make(chan int)})
	want := `argument 2 ([]interface {}): [1]: Could not serialize object of type "chan int". This type does not support serialization.`
	if !errors.Is(err, value.ErrType) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	b, err := value.AppendArgs(nil, "x", []any{1, "y"}, 3)
	if err != nil {
		t.Fatal(err)
	}
	args, err := value.ReadArgs(b)
	if err != nil {
		t.Fatal(err)
	}
	var s string
	var list []int
	if err := args.Next(&s); err != nil {
		t.Fatal(err)
	}
	want = `argument 2 ([]int): [1]: string "y" does not fit the Go type int`
	if err = args.Next(&list); !errors.Is(err, value.ErrType) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	e, _ := errors.AsType[*value.Error](err)
	if e == nil || e.Arg != 2 || e.ArgType != "[]int" || e.Path != "[1]" {
		t.Errorf("got %+v", e)
	}
	if err := args.Next(&s); err == nil || err.Error() != want {
		t.Errorf("the error does not stay: %v", err)
	}
	var n int
	if err := value.DecodeArgs(b, &s, &n, &n); err == nil || err.Error() != "argument 2 (int): array does not fit the Go type int" {
		t.Error(err)
	}
	if err := value.DecodeArgs(b, &s, &n); !errors.Is(err, value.ErrType) || err.Error() != "3 arguments where 2 are taken" {
		t.Error(err)
	}
	for want, count := range map[string][2]int{
		"1 argument where none is taken": {1, 0}, "1 argument where 2 are taken": {1, 2},
		"no arguments where 1 is taken": {0, 1}, "2 arguments where 1 is taken": {2, 1},
	} {
		b, err := value.AppendArgs(nil, []any{1, 2}[:count[0]]...)
		if err != nil {
			t.Fatal(err)
		}
		if err := value.DecodeArgs(b, []any{&n, &n}[:count[1]]...); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := value.DecodeArgs(b, &s, 1, &n); !errors.Is(err, value.ErrType) {
		t.Error(err)
	}
	if err := value.DecodeArgs(b, (*string)(nil), &list, &n); !errors.Is(err, value.ErrType) {
		t.Error(err)
	}
	one, err := value.Marshal(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := value.ReadArgs(one); !errors.Is(err, value.ErrSyntax) {
		t.Error(err)
	}
	if err := value.DecodeArgs(one); !errors.Is(err, value.ErrSyntax) {
		t.Error(err)
	}
	if err := value.DecodeArgs(append(b, 0), &s, new(any), &n); !errors.Is(err, value.ErrSyntax) {
		t.Errorf("trailing byte: %v", err)
	}
}

// Two arguments that are one thing arrive as one thing.
func TestArgsShared(t *testing.T) {
	p := &person{Name: "p"}
	list := []string{"a"}
	b, err := value.AppendArgs(nil, p, list, p, list, map[string]any{"p": p})
	if err != nil {
		t.Fatal(err)
	}
	var p1, p2 *person
	var l1, l2 []string
	var m map[string]*person
	if err := value.DecodeArgs(b, &p1, &l1, &p2, &l2, &m); err != nil {
		t.Fatal(err)
	}
	if p1 != p2 || m["p"] != p1 || &l1[0] != &l2[0] || p1.Name != "p" {
		t.Error(p1, p2, l1, l2, m)
	}
}
