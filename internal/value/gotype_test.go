package value_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/big"
	"net/http"
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

type base struct {
	ID   int
	Kind string `json:"kind"`
}

type Mixin struct{ Note string }

type order struct {
	base
	*Mixin
	Kind    string            `limpet:"kind"`
	Secret  string            `limpet:"-"`
	Lines   []line            `json:"lines,omitempty"`
	When    time.Time         `json:"when,omitzero"`
	Meta    map[string]string `json:"meta,omitempty"`
	private int
}

type line struct {
	Item  string
	Count uint8
	Price *float64
}

type celsius float64

type name string

// roundTrip encodes v and decodes it into a new value of the same type.
func roundTrip[T any](t *testing.T, v T) T {
	t.Helper()
	b, err := value.Marshal(v)
	if err != nil {
		t.Fatalf("%T: %v", v, err)
	}
	var out T
	if err := (value.Options{Strict: true}).Unmarshal(b, &out); err != nil {
		t.Fatalf("%T: %x: %v", v, b, err)
	}
	return out
}

func same[T any](t *testing.T, v T) {
	t.Helper()
	got := roundTrip(t, v)
	if !reflect.DeepEqual(got, v) {
		t.Errorf("%T: got %#v, want %#v", v, got, v)
	}
}

// TestGoTypes: what a Go type can hold comes back as it was (SPEC B26).
func TestGoTypes(t *testing.T) {
	// SPEC B26: primitives, Date, Map, Set, RegExp, BigInt, boxed primitives,
	// ArrayBuffer, typed arrays and errors pass by value.
	price := 2.5
	same(t, true)
	same(t, int8(-128))
	same(t, uint16(65535))
	same(t, int64(math.MaxInt64))
	same(t, int64(math.MinInt64))
	same(t, uint64(math.MaxUint64))
	same(t, float32(0.1))
	same(t, math.Copysign(0, -1))
	same(t, celsius(36.6))
	same(t, name("n"))
	same(t, "lone \xed\xa0\x80 surrogate")
	same(t, []byte{1, 2, 3})
	same(t, []byte(nil))
	same(t, []byte{})
	same(t, [3]byte{1, 2, 3})
	same(t, [2]name{"a", "b"})
	same(t, []int(nil))
	same(t, []int{})
	same(t, []string{"a", "", "b"})
	same(t, [][]string{{"a"}, nil, {}})
	same(t, map[string]int{"a": 1, "": 2})
	same(t, map[string]int(nil))
	same(t, map[name][]int{"k": {1}})
	same(t, map[int]string{1: "a", -1: "b"})
	same(t, map[uint64]bool{math.MaxUint64: true})
	same(t, map[float64]string{0.5: "half"})
	same(t, map[[2]int]string{{1, 2}: "pair"})
	same(t, map[base]int{{ID: 1, Kind: "k"}: 7})
	same(t, struct{}{})
	same(t, &price)
	same(t, (*float64)(nil))
	same(t, time.UnixMilli(1234567890123).UTC())
	same(t, time.Time{})
	same(t, big.NewInt(-12345))
	same(t, new(big.Int).Lsh(big.NewInt(1), 1000))
	same(t, netip.MustParseAddr("10.1.2.3"))
	same(t, map[string]netip.Addr{"a": netip.MustParseAddr("::1")})
	same(t, order{base: base{ID: 7}, Mixin: &Mixin{"n"}, Kind: "big", Lines: []line{{"mug", 2, &price}}, When: time.UnixMilli(5).UTC(), Meta: map[string]string{"a": "b"}})
	same(t, order{})
	same[any](t, nil)
	same[any](t, []any{limpet.Undefined{}, limpet.Hole{}, int64(1), 1.5, "s", map[string]any{}, time.UnixMilli(1).UTC()})
	same(t, limpet.Undefined{})
	same(t, limpet.InvalidDate{})
	same(t, limpet.RegExp{Source: "a", Flags: "g"})
	same(t, limpet.Boxed{Value: "s"})
	same(t, &limpet.Map{Entries: []limpet.MapEntry{{Key: int64(1), Value: true}}})
	same(t, limpet.Set{Values: []any{"a"}})
	same(t, &limpet.TypedArray{Kind: limpet.Int16Array, Data: []byte{1, 2}})
	same(t, &limpet.ErrorValue{Class: "TypeError", Name: "TypeError", Message: "m", Fields: map[string]any{"a": "b"}, Cause: int64(1), HasCause: true, Errors: []any{"e"}})
	if got := roundTrip(t, math.NaN()); got == got {
		t.Errorf("NaN became %v", got)
	}
	if got := roundTrip(t, celsius(math.Inf(-1))); !math.IsInf(float64(got), -1) {
		t.Errorf("-Inf became %v", got)
	}
}

// A time loses what is below a millisecond, and its zone.
func TestTime(t *testing.T) {
	in := time.Date(2026, 11, 30, 12, 0, 0, 123_999_999, time.FixedZone("X", 3600))
	if got, want := roundTrip(t, in), time.Date(2026, 11, 30, 11, 0, 0, 123_000_000, time.UTC); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	before := time.Date(1969, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	if got, want := roundTrip(t, before), before.Truncate(time.Millisecond); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestNumbers: a Go number takes every number that fits it exactly, however it
// was written, and names any other.
func TestNumbers(t *testing.T) {
	huge := new(big.Int).Lsh(big.NewInt(1), 70)
	for _, c := range []struct {
		from any
		into any
		want any // nil: refused
	}{
		{5, new(float64), 5.0},
		{5.0, new(int), 5},
		{5.5, new(int), nil},
		{math.NaN(), new(int), nil},
		{math.Inf(1), new(int64), nil},
		{big.NewInt(5), new(int8), int8(5)},
		{big.NewInt(5), new(float64), 5.0},
		{int64(1<<53 + 1), new(float64), nil},
		{int64(1 << 60), new(float64), float64(1 << 60)},
		{uint64(math.MaxUint64), new(int64), nil},
		{uint64(math.MaxUint64), new(uint64), uint64(math.MaxUint64)},
		{float64(1 << 63), new(int64), nil},
		{float64(1 << 63), new(uint64), uint64(1 << 63)},
		{float64(-1 << 63), new(int64), int64(math.MinInt64)},
		{float64(1 << 62), new(int64), int64(1 << 62)},
		{math.Exp2(64), new(uint64), nil},
		{-1, new(uint), nil},
		{256, new(uint8), nil},
		{-129, new(int8), nil},
		{1e300, new(float32), nil},
		{0.1, new(float32), float32(0.1)},
		{huge, new(float64), math.Exp2(70)},
		{huge, new(uint64), nil},
		{limpet.Boxed{Value: 3}, new(int), 3},
		{"5", new(int), nil},
		{true, new(int), nil},
		{nil, new(int), nil},
		{1, new(string), nil},
		{1, new(bool), nil},
	} {
		b, err := value.Marshal(c.from)
		if err != nil {
			t.Fatal(err)
		}
		err = value.Unmarshal(b, c.into)
		if c.want == nil {
			if !errors.Is(err, value.ErrType) {
				t.Errorf("%T %v into %T: got %v, %v; want ErrType", c.from, c.from, c.into, reflect.ValueOf(c.into).Elem(), err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%T %v into %T: %v", c.from, c.from, c.into, err)
		} else if got := reflect.ValueOf(c.into).Elem().Interface(); got != c.want {
			t.Errorf("%T %v into %T: got %v", c.from, c.from, c.into, got)
		}
	}
	var i big.Int
	for _, from := range []any{7, 7.0, big.NewInt(7)} {
		b, _ := value.Marshal(from)
		if err := value.Unmarshal(b, &i); err != nil || i.Int64() != 7 {
			t.Errorf("%T: %v, %v", from, &i, err)
		}
	}
}

// TestRefused: what can't be carried is named with type and path (SPEC B27).
func TestRefused(t *testing.T) {
	type hidden struct{ x int }
	type endless *endless
	type holder struct {
		Items []map[string]any
		Fn    func() `json:",omitempty"`
	}
	var any1 any
	any1 = &any1
	_ = hidden{}.x
	for want, v := range map[string]any{
		`Could not serialize object of type "http.Response". This type does not support serialization. Send it with Stub.Fetch, or carry what you need of it.`:                                              &http.Response{StatusCode: 200},
		`Could not serialize object of type "http.Request". This type does not support serialization. Send it with Stub.Fetch, or carry what you need of it.`:                                               &http.Request{},
		`Could not serialize object of type "chan int". This type does not support serialization.`:                                                                                                          make(chan int),
		`Could not serialize object of type "func()". This type does not support serialization.`:                                                                                                            func() {},
		`Could not serialize object of type "complex128". This type does not support serialization.`:                                                                                                        complex(1, 2),
		`Could not serialize object of type "uintptr". This type does not support serialization.`:                                                                                                           uintptr(1),
		`Could not serialize object of type "value_test.hidden". This type does not support serialization. It has only unexported fields: export those to carry, or give it MarshalText and UnmarshalText.`: hidden{},
		`.Items[1].a: Could not serialize object of type "chan bool". This type does not support serialization.`:                                                                                            holder{Items: []map[string]any{nil, {"a": make(chan bool)}}},
		`.Fn: Could not serialize object of type "func()". This type does not support serialization.`:                                                                                                       holder{Fn: func() {}},
		`["a b"]: Could not serialize object of type "func()". This type does not support serialization.`:                                                                                                   map[string]any{"a b": func() {}},
		`[1]: string is no UTF-8: byte 0xff at byte 1; carry binary data as []byte`:                                                                                                                         []string{"ok", "a\xffb"},
		`string is no UTF-8: a surrogate pair at byte 1 is written as two characters`:                                                                                                                       "x\xed\xa0\xbd\xed\xb8\x80",
		`[0]: time in the year 300000: a date reaches from the year -271821 to 275760`:                                                                                                                      []time.Time{time.Date(300000, 1, 1, 0, 0, 0, 0, time.UTC)},
		`hole outside of a []any`:                               limpet.Hole{},
		`*interface {} leads to itself without a value between`: any1,
		`Int16Array of 3 bytes: no whole elements of 2 bytes`:   &limpet.TypedArray{Kind: limpet.Int16Array, Data: make([]byte, 3)},
		`TypedArrayKind(0) is no kind of typed array`:           &limpet.TypedArray{},
		`[]int in a Boxed, which is for primitives`:             limpet.Boxed{Value: []int{1}},
	} {
		// SPEC B27: what structured clone does not know is refused, with this text.
		b, err := value.Append([]byte("before"), v)
		if !errors.Is(err, value.ErrType) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		if string(b) != "before" {
			t.Errorf("%s: dst became %q", want, b)
		}
	}
	var e endless
	if _, err := value.Marshal(e); !errors.Is(err, value.ErrType) {
		t.Error(err)
	}
	for want, dst := range map[string]any{
		"can't decode into int: need a pointer that is not nil":                                          1,
		"can't decode into *int: need a pointer that is not nil":                                         (*int)(nil),
		"can't decode into <nil>: need a pointer that is not nil":                                        nil,
		"object does not fit the Go type chan int":                                                       new(chan int),
		"object can't be made a fmt.Stringer: an interface with methods does not say which type to make": new(fmt.Stringer),
		"object does not fit the Go type error":                                                          new(error),
		"object does not fit the Go type []int":                                                          new([]int),
		"object does not fit the Go type time.Time":                                                      new(time.Time),
		"object does not fit the Go type value_test.hidden, which has only unexported fields":            new(hidden),
		"object does not fit the Go type netip.Addr":                                                     new(netip.Addr),
		".a: array does not fit the Go type int":                                                         new(map[string]int),
		".a[1]: string \"x\" does not fit the Go type bool":                                              new(map[string][]bool),
		".a: 2 elements do not fit the Go type [3]any":                                                   new(map[string][3]any),
		"[key]: string \"a\" does not fit the Go type int":                                               new(map[int]any),
		"object does not fit the Go type limpet.Set":                                                     new(*limpet.Set),
	} {
		b, err := value.Marshal(map[string]any{"a": []any{true, "x"}})
		if err != nil {
			t.Fatal(err)
		}
		err = value.Unmarshal(b, dst)
		if !errors.Is(err, value.ErrType) || err.Error() != strings.ReplaceAll(strings.ReplaceAll(want, "[3]any", "[3]interface {}"), "type limpet.Set", "type *limpet.Set") {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// What JSON has no form for arrives as a string or a number: the error tells how
// it is written.
func TestHints(t *testing.T) {
	const date, bigint, bytes = ` (in JSON a date is {"$date": "2026-01-31T12:00:00Z"})`, ` (in JSON a big integer is {"$bigint": "123"})`, ` (in JSON bytes are {"$bytes": "AQI="}, in base64)`
	for _, c := range []struct {
		json string
		dst  any
		want string
	}{
		{`"2026-01-31"`, new(time.Time), `string "2026-01-31" does not fit the Go type time.Time` + date},
		{`1000`, new(time.Time), `number 1000 does not fit the Go type time.Time` + date},
		{`[{"at":"x"}]`, new([]struct {
			At *time.Time `json:"at"`
		}), `[0].at: string "x" does not fit the Go type time.Time` + date},
		{`"12"`, new(*big.Int), `string "12" does not fit the Go type big.Int` + bigint},
		{`1.5`, new(big.Int), `number 1.5 does not fit the Go type big.Int` + bigint},
		{`"AQI="`, new([]byte), `string "AQI=" does not fit the Go type []uint8` + bytes},
		{`7`, new([2]byte), `number 7 does not fit the Go type [2]uint8` + bytes},
		{`"AQI="`, new([]int), `string "AQI=" does not fit the Go type []int`},
		{`true`, new(time.Time), `boolean true does not fit the Go type time.Time`},
	} {
		b, err := value.FromJSON([]byte(c.json))
		if err != nil {
			t.Fatal(err)
		}
		if err := value.Unmarshal(b, c.dst); err == nil || err.Error() != c.want {
			t.Errorf("%s:\ngot  %v\nwant %s", c.json, err, c.want)
		}
	}
	// What the hints say is true.
	for text, dst := range map[string]any{
		`{"$date": "2026-01-31T12:00:00Z"}`: new(time.Time), `{"$bigint": "123"}`: new(*big.Int), `{"$bytes": "AQI="}`: new([2]byte),
	} {
		b, err := value.FromJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := value.Unmarshal(b, dst); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestStruct(t *testing.T) {
	b, err := value.Marshal(order{base: base{ID: 1, Kind: "hidden"}, Kind: "shown", Secret: "s", private: 3})
	if err != nil {
		t.Fatal(err)
	}
	got, err := value.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"ID": int64(1), "kind": "shown"}, got); diff != "" {
		t.Error(diff)
	}
	// Members without a field are ignored, or named when strict.
	b, err = value.Marshal(map[string]any{"ID": 1, "extra": []any{map[string]any{"deep": 1}}, "kind": limpet.Undefined{}})
	if err != nil {
		t.Fatal(err)
	}
	x := base{Kind: "stays"}
	if err := value.Unmarshal(b, &x); err != nil || x != (base{1, "stays"}) {
		t.Errorf("got %v, %v", x, err)
	}
	err = value.Options{Strict: true}.Unmarshal(b, &x)
	if want := `value_test.base has no field for the member "extra"`; !errors.Is(err, value.ErrType) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	// Names are compared exactly.
	b, _ = value.Marshal(map[string]any{"id": 1})
	x = base{}
	if err := value.Unmarshal(b, &x); err != nil || x.ID != 0 {
		t.Errorf("got %v, %v", x, err)
	}
}

// Two fields with one name: the outer one, the tagged one, or none.
func TestFieldNames(t *testing.T) {
	type A struct{ X, Y int }
	type B struct{ X, Z int }
	type C struct {
		A
		B
		Z string
	}
	type D struct {
		A `json:"a"`
	}
	for want, v := range map[string]any{
		`{"Y":2,"Z":"z"}`:     C{A{1, 2}, B{3, 4}, "z"},
		`{"a":{"X":1,"Y":2}}`: D{A{1, 2}},
	} {
		b, err := value.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := value.ToJSON(b); err != nil || string(got) != want {
			t.Errorf("got %s, %v; want %s", got, err, want)
		}
	}
}

type Deep struct {
	Level int
	Name  string `json:"name,omitempty"`
}

type Middle struct {
	Deep
	Level string `json:"Level"`
}

type marked struct{ On bool }

func (m marked) IsZero() bool { return !m.On }

// The rules for fields are those of encoding/json, so that it is the oracle.
func TestFieldsAsJSON(t *testing.T) {
	n := 5
	type inner struct{ A, B int }
	for _, v := range []any{
		struct{ Middle }{Middle{Deep{1, "n"}, "two"}},
		struct {
			*Deep
			Other *Middle `json:"other"`
		}{},
		struct {
			*Deep
			*Middle
		}{&Deep{1, "a"}, &Middle{Deep{2, "b"}, "three"}},
		struct {
			Deep `json:"deep"`
			inner
		}{Deep{1, ""}, inner{2, 3}},
		struct {
			A int `json:"x"`
			B int `json:",omitempty"`
			C int `json:"-"`
			E int `json:"e e"`
		}{1, 0, 3, 5},
		struct {
			S  string         `json:",omitempty"`
			P  *int           `json:",omitempty"`
			M  map[string]int `json:",omitempty"`
			L  []int          `json:",omitempty"`
			A  [0]int         `json:",omitempty"`
			F  float64        `json:",omitempty"`
			B  bool           `json:",omitempty"`
			I  any            `json:",omitempty"`
			Z  marked         `json:",omitzero"`
			Y  marked         `json:",omitzero"`
			S2 string         `json:",omitempty"`
			P2 *int           `json:",omitempty"`
			L2 []int          `json:",omitempty"`
		}{Y: marked{true}, S2: "s", P2: &n, L2: []int{1}},
		struct{ A, b int }{1, 2},
		map[string]any{"b": []any{nil, true, "x"}, "a": map[string]int{"z": 1, "y": 2}},
	} {
		b, err := value.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := value.ToJSON(b)
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%T\n got %s\nwant %s", v, got, want)
		}
		back := reflect.New(reflect.TypeOf(v))
		if err := (value.Options{Strict: true}).Unmarshal(b, back.Interface()); err != nil {
			t.Errorf("%T: %v", v, err)
			continue
		}
		if again, err := json.Marshal(back.Elem().Interface()); err != nil || string(again) != string(want) {
			t.Errorf("%T\ncame back as %s, %v\n      want %s", v, again, err, want)
		}
	}
}

type notFound struct {
	Key  string
	Why  error
	Hook func() `json:"hook"`
}

func (e *notFound) Error() string { return "no " + e.Key }
func (e *notFound) Unwrap() error { return e.Why }

type panics struct{ p *int }

func (e panics) Error() string { return fmt.Sprint(*e.p) }

type code int

func (c code) Error() string { return fmt.Sprintf("code %d", int(c)) }

// Go errors keep name, text, fields and cause (SPEC C9).
func TestGoErrors(t *testing.T) {
	same := &notFound{Key: "k", Why: fs.ErrNotExist, Hook: func() {}}
	in := fmt.Errorf("get: %w", same)
	// SPEC C9: name, message, own enumerable properties, cause and errors cross.
	var out error
	b, err := value.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := value.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if out.Error() != "get: no k" {
		t.Errorf("got %q", out)
	}
	inner, ok := errors.AsType[*limpet.ErrorValue](errors.Unwrap(out))
	if !ok {
		t.Fatalf("cause is %T", errors.Unwrap(out))
	}
	want := &limpet.ErrorValue{Class: "Error", Name: "Error", Message: fs.ErrNotExist.Error()}
	if diff := cmp.Diff(want, inner.Cause); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]any{"Key": "k"}, inner.Fields); diff != "" {
		t.Error(diff)
	}

	_, statErr := fs.Stat(fs.FS(nil2{}), "x")
	for _, c := range []struct {
		in   error
		want string
	}{
		{errors.Join(errors.New("a"), code(3)), `{"$error":{"class":"AggregateError","name":"AggregateError","message":"a\ncode 3","errors":[{"$error":{"class":"Error","name":"Error","message":"a"}},{"$error":{"class":"Error","name":"Error","message":"code 3"}}]}}`},
		{&limpet.ErrorValue{Name: "RangeError", Message: "m"}, `{"$error":{"class":"RangeError","name":"RangeError","message":"m"}}`},
		{&limpet.ErrorValue{Name: "MyError", Message: "m"}, `{"$error":{"class":"Error","name":"MyError","message":"m"}}`},
		{syscall.ENOENT, `{"$error":{"class":"Error","name":"Errno","message":"no such file or directory"}}`},
		{statErr, `{"$error":{"class":"Error","name":"PathError","message":"open x: no such file or directory","fields":{"Op":"open","Path":"x"},"cause":{"$error":{"class":"Error","name":"Errno","message":"no such file or directory"}}}}`},
		{errors.New("bytes \xff"), `{"$error":{"class":"Error","name":"Error","message":"bytes ` + "\ufffd" + `"}}`},
		{(*notFound)(nil), "null"},
	} {
		b, err := value.Marshal(c.in)
		if err != nil {
			t.Fatalf("%v: %v", c.in, err)
		}
		if got, err := value.ToJSON(b); err != nil || string(got) != c.want {
			t.Errorf("got  %s, %v\nwant %s", got, err, c.want)
		}
	}
	if _, err := value.Marshal(panics{}); !errors.Is(err, value.ErrType) || !strings.Contains(err.Error(), "nil pointer") {
		t.Error(err)
	}
	loop := &notFound{Key: "loop"}
	loop.Why = loop
	if b, err = value.Marshal(error(loop)); err != nil {
		t.Fatal(err)
	}
	if err := value.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if e, _ := errors.AsType[*limpet.ErrorValue](out); e == nil || e.Cause != any(e) {
		t.Errorf("the cause of the error that wraps itself is %v", e.Cause)
	}
}

// fresh wraps a new error each time it is asked.
type fresh struct{ n int }

func (e *fresh) Error() string { return fmt.Sprint("level ", e.n) }
func (e *fresh) Unwrap() error {
	if e.n == 0 {
		return nil
	}
	runtime.GC()
	return &fresh{e.n - 1}
}

// Errors made on the way must not be taken for each other when the collector
// gives out an address again.
func TestFreshErrors(t *testing.T) {
	list := []any{}
	for range 5 {
		list = append(list, &fresh{3})
	}
	b, err := value.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	got, err := value.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range got.([]any) {
		e := x.(*limpet.ErrorValue)
		for n := 3; n > 0; n-- {
			if want := fmt.Sprint("level ", n); e.Message != want {
				t.Fatalf("got %q, want %q", e.Message, want)
			}
			e = e.Cause.(*limpet.ErrorValue)
		}
		if e.Message != "level 0" || e.HasCause {
			t.Fatalf("got %q", e.Message)
		}
	}
}

type nil2 struct{}

func (nil2) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
}

// TestMixed: values from JavaScript go into Go types that are near enough.
func TestMixed(t *testing.T) {
	w := value.NewWriter(nil)
	w.Object(5)
	w.Key("typed")
	w.TypedArray(limpet.Float32Array, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40})
	w.Key("set")
	w.Set(2)
	w.String("a")
	w.String("b")
	w.Key("map")
	w.Map(1)
	w.String("k")
	w.Number(3)
	w.Key("buffer")
	w.TypedArray(limpet.ArrayBuffer, []byte{7, 8})
	w.Key("boxed")
	w.Boxed()
	w.String("s")
	b, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	type T struct {
		Typed  [2]float64     `json:"typed"`
		Set    []string       `json:"set"`
		Map    map[string]int `json:"map"`
		Buffer []byte         `json:"buffer"`
		Boxed  string         `json:"boxed"`
	}
	var got T
	if err := value.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	want := T{[2]float64{1, 2}, []string{"a", "b"}, map[string]int{"k": 3}, []byte{7, 8}, "s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// An object with decimal keys is as good as a Go map with integer keys.
	b, err = value.FromJSON([]byte(`{"1":"a","-20":"b"}`))
	if err != nil {
		t.Fatal(err)
	}
	var m map[int8]string
	if err := value.Unmarshal(b, &m); err != nil || !reflect.DeepEqual(m, map[int8]string{1: "a", -20: "b"}) {
		t.Errorf("got %v, %v", m, err)
	}
	for _, bad := range []string{`{"300":1}`, `{"01":1}`, `{"1.5":1}`, `{"x":1}`} {
		b, err = value.FromJSON([]byte(bad))
		if err != nil {
			t.Fatal(err)
		}
		if err := value.Unmarshal(b, &m); !errors.Is(err, value.ErrType) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	// A Map's key that Go can't hash.
	b, err = value.FromJSON([]byte(`{"$map":[[[1],2]]}`))
	if err != nil {
		t.Fatal(err)
	}
	var a map[any]int
	if err := value.Unmarshal(b, &a); !errors.Is(err, value.ErrType) {
		t.Error(err)
	}
}
