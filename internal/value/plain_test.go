package value_test

import (
	"math/big"
	"net/netip"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

type errorStruct struct{ Code int }

func (errorStruct) Error() string { return "e" }

func TestPlain(t *testing.T) {
	type inner struct{ A, B int }
	type good struct {
		Name  string
		When  time.Duration
		Pairs [3]inner
		Inner2
	}
	for _, c := range []struct {
		v    any
		want bool
	}{
		{1, true}, {"s", true}, {1.5, true}, {true, true}, {time.Time{}, false}, {time.Second, true}, {name("n"), true},
		{[2]string{}, true}, {inner{}, true}, {good{}, true}, {struct{}{}, true}, {struct{ When time.Time }{}, false},
		{[]int{}, false}, {map[int]int{}, false}, {new(int), false}, {[1][]int{}, false}, {[1]*int{}, false},
		{struct{ P *int }{}, false}, {struct{ a int }{}, false},
		{struct {
			A int `limpet:"-"`
		}{}, false},
		{struct {
			A int `json:"-"`
		}{}, false},
		{struct {
			X1
			X2
		}{}, false}, // X is in both, and so in neither
		{struct{ A any }{}, false}, {struct{ E error }{}, false}, {errorStruct{}, false}, {code(1), false},
		{big.Int{}, false}, {&big.Int{}, false}, {netip.Addr{}, false}, {make(chan int), false}, {func() {}, false}, {uintptr(1), false}, {complex(1, 1), false},
		{limpet.Boxed{}, false}, {limpet.RegExp{}, false},
	} {
		if got := value.Plain(reflect.TypeOf(c.v)); got != c.want {
			t.Errorf("%T: got %v, want %v", c.v, got, c.want)
		}
	}
	if value.Plain(nil) || value.Plain(reflect.TypeFor[any]()) || value.Plain(reflect.TypeFor[error]()) {
		t.Error("an interface can hold anything")
	}
}

type Inner2 struct{ C string }

type X1 struct{ X int }

type X2 struct{ X int }

// A copy by assignment is what the wire would give.
func TestCopyPlain(t *testing.T) {
	type T struct {
		A int
		B string `json:"b,omitempty"`
		C [2]float64
	}
	v := T{1, "", [2]float64{0.5, -1}}
	got, err := value.Copy(v)
	if err != nil || got != v {
		t.Errorf("got %v, %v", got, err)
	}
	if wire := roundTrip(t, v); wire != got {
		t.Errorf("by assignment %v, by wire %v", got, wire)
	}
	if _, err := value.Copy(make(chan int)); err == nil {
		t.Error("a channel was copied")
	}
	x, err := value.Copy[any](v)
	if want := map[string]any{"A": int64(1), "C": []any{0.5, -1.0}}; err != nil || !reflect.DeepEqual(x, want) {
		t.Errorf("got %#v, %v", x, err)
	}
}

// Plans are made once, by whoever comes first.
func TestPlansConcurrently(t *testing.T) {
	type a struct{ B []map[string]*tree }
	type b struct{ A *a }
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			v := &b{&a{[]map[string]*tree{{"x": {Name: "n"}}}}}
			enc, err := value.Marshal(v)
			if err != nil {
				t.Error(err)
				return
			}
			var out b
			if err := value.Unmarshal(enc, &out); err != nil || out.A.B[0]["x"].Name != "n" {
				t.Error(out, err)
			}
		})
	}
	wg.Wait()
}
