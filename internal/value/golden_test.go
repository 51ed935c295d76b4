package value_test

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden.txt anew; then read the diff")

type cartItem struct {
	Count int     `json:"count"`
	Name  string  `json:"ignored" limpet:"name"`
	Price float64 `json:"price,omitempty"`
}

func goldens() []struct {
	name string
	v    any
} {
	self := map[string]any{}
	self["self"] = self
	list := []any{int64(1)}
	item := &cartItem{Name: "mug", Count: 2}
	type goldenCase = struct {
		name string
		v    any
	}
	cases := []goldenCase{
		{"null", nil},
		{"undefined", limpet.Undefined{}},
		{"false", false},
		{"true", true},
		{"zero", 0},
		{"one byte", 23},
		{"two bytes", 24},
		{"minus one", -1},
		{"largest number", 1 << 53},
		{"largest number plus one", 1<<53 + 1},
		{"smallest number", -1 << 53},
		{"smallest number minus one", -1<<53 - 1},
		{"uint64", uint64(math.MaxUint64)},
		{"int64", int64(math.MinInt64)},
		{"minus zero", math.Copysign(0, -1)},
		{"NaN", math.NaN()},
		{"Infinity", math.Inf(1)},
		{"-Infinity", math.Inf(-1)},
		{"whole float", 3.0},
		{"half", 1.5},
		{"subnormal half", math.Ldexp(1, -24)},
		{"single", 100000.5},
		{"double", 0.1},
		{"bigint", big.NewInt(5)},
		{"bigint zero", big.NewInt(0)},
		{"bigint negative", big.NewInt(-256)},
		{"bigint long", new(big.Int).Lsh(big.NewInt(1), 100)},
		{"empty string", ""},
		{"string", "x"},
		{"unicode", "\u00e9\u20ac\U0001f600"},
		{"NUL", "a\x00b"},
		{"lone high surrogate", "a\xed\xa0\x80"},
		{"lone low surrogate", "\xed\xbf\xbfz"},
		{"long string", strings.Repeat("y", 24)},
		{"Uint8Array", []byte{1, 2}},
		{"array of bytes", [2]byte{1, 2}},
		{"date", time.UnixMilli(1000)},
		{"date before 1970", time.Date(1969, 12, 31, 23, 59, 59, 999_999_999, time.UTC)},
		{"date of the year 1", time.Time{}},
		{"last date", time.UnixMilli(864e13)},
		{"first date", time.UnixMilli(-864e13)},
		{"invalid date", limpet.InvalidDate{}},
		{"RegExp", limpet.RegExp{Source: "a+", Flags: "gi"}},
		{"boxed number", limpet.Boxed{Value: 1}},
		{"boxed bigint", limpet.Boxed{Value: big.NewInt(1)}},
		{"boxed string", limpet.Boxed{Value: "s"}},
		{"array", []any{int64(1), nil, "x"}},
		{"array with holes", []any{limpet.Hole{}, limpet.Undefined{}, limpet.Hole{}}},
		{"empty array", []int{}},
		{"object", map[string]any{"b": 1, "a": limpet.Undefined{}}},
		{"object like a form", map[string]any{"$date": 1}},
		{"object with a form's name", map[string]any{"$date": 1, "b": 2}},
		{"empty object", struct{}{}},
		{"struct", cartItem{Name: "mug", Count: 2}},
		{"Map", &limpet.Map{Entries: []limpet.MapEntry{{Key: 1, Value: "a"}, {Key: math.NaN(), Value: nil}}}},
		{"Go map", map[int]string{2: "b", -1: "a"}},
		{"Set", &limpet.Set{Values: []any{"a", 1}}},
		{"error", &limpet.ErrorValue{Message: "no", Fields: map[string]any{"code": 7}}},
		{"error with all", &limpet.ErrorValue{Class: "TypeError", Name: "Bad", Message: "m", Stack: "at x", HasCause: true}},
		{"AggregateError", &limpet.ErrorValue{Name: "AggregateError", Errors: []any{"a", "b"}}},
		{"Go error", fmt.Errorf("open: %w", errors.New("gone"))},
		{"Go errors", errors.Join(errors.New("a"), errors.New("b"))},
		{"cycle", self},
		{"shared", []any{list, list}},
		{"shared struct", []*cartItem{item, item}},
	}
	for k := limpet.ArrayBuffer; k <= limpet.Float64Array; k++ {
		cases = append(cases, goldenCase{k.String(), &limpet.TypedArray{Kind: k, Data: []byte{1, 0, 0, 0, 0, 0, 0, 0x40}}})
	}
	return cases
}

// TestGolden pins the bytes and the JSON of every kind of value (SPEC B26). They
// are stored on disks: a line of testdata/golden.txt may be added, never changed.
func TestGolden(t *testing.T) {
	var out strings.Builder
	out.WriteString("# name | bytes | JSON; written by: go test ./internal/value -run TestGolden -rewrite\n")
	for _, c := range goldens() {
		b, err := value.Marshal(c.v)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		text, err := value.ToJSON(b)
		if err != nil {
			text = []byte("error: " + err.Error())
		}
		fmt.Fprintf(&out, "%s | %x | %s\n", c.name, b, text)
		// What was read writes the same bytes again: nothing is lost on the way.
		x, err := value.Decode(b)
		if err != nil {
			t.Fatalf("%s: decode: %v", c.name, err)
		}
		again, err := value.Marshal(x)
		if err != nil {
			t.Fatalf("%s: encode again: %v", c.name, err)
		}
		if string(again) != string(b) {
			t.Errorf("%s: decoded to %#v, which is %x, not %x", c.name, x, again, b)
		}
	}
	const file = "testdata/golden.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(out.String(), "\n")
	for i, line := range strings.Split(string(want), "\n") {
		if i >= len(got) {
			t.Errorf("no longer there: %s", line)
		} else if got[i] != line {
			t.Errorf("got  %s\nwant %s", got[i], line)
		}
	}
	if n := strings.Count(string(want), "\n"); len(got)-1 > n {
		t.Errorf("%d new lines; run with -rewrite", len(got)-1-n)
	}
}

// goldenBytes are seeds for fuzzing.
func goldenBytes(t testing.TB) [][]byte {
	text, err := os.ReadFile("testdata/golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for _, line := range strings.Split(string(text), "\n") {
		if part := strings.Split(line, " | "); len(part) == 3 && part[0][0] != '#' {
			b, err := hex.DecodeString(part[1])
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b)
		}
	}
	return all
}
