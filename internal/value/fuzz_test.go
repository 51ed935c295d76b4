package value_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

type tree struct {
	Name  string
	Left  *tree
	Right *tree `json:"right,omitempty"`
	Any   any
	List  []*tree
	ByKey map[string]*tree
	Plain struct{ A, B int }
	At    *time.Time
	Err   error
	Set   *limpet.Set
	Map   limpet.Map
	Big   *big.Int
	Bytes []byte
	Value []tree
}

// FuzzDecode gives every reader strange bytes: none may panic or allocate without
// bound, and what is read must write the same value again.
func FuzzDecode(f *testing.F) {
	for _, b := range goldenBytes(f) {
		f.Add(b)
	}
	for _, b := range hostile() {
		f.Add(b)
	}
	oracle, err := cbor.DecOptions{MaxNestedLevels: 65535}.DecMode()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, jsonErr := value.ToJSON(b)
		for _, dst := range []any{new(tree), new([]tree), new(map[string][]int), new(map[int]any), new([4]byte), new([]float32),
			new(string), new(*limpet.ErrorValue), new(error), new(uint64), new(big.Int), new([]map[any]any)} {
			if err := value.Unmarshal(b, dst); err != nil {
				checkTyped(t, err)
			}
		}
		if args, err := value.ReadArgs(b); err == nil {
			for range args.Len() {
				if _, err := args.NextAny(); err != nil {
					checkTyped(t, err)
					break
				}
			}
		}
		x, err := value.Decode(b)
		if err != nil {
			checkTyped(t, err)
			if jsonErr == nil {
				t.Fatalf("ToJSON takes what Decode refuses: %v", err)
			}
			return
		}
		if err := oracle.Wellformed(b[1:]); err != nil {
			t.Fatalf("accepted what is no CBOR: %v", err)
		}
		if jsonErr != nil && !errors.Is(jsonErr, value.ErrType) && !errors.Is(jsonErr, value.ErrTooLarge) && !errors.Is(jsonErr, value.ErrTooDeep) {
			t.Fatalf("ToJSON refuses what Decode takes: %v", jsonErr)
		}
		one, err := value.Marshal(x)
		if err != nil {
			checkTyped(t, err)
			return
		}
		y, err := value.Decode(one)
		if err != nil {
			t.Fatalf("can't read %x: %v", one, err)
		}
		two, err := value.Marshal(y)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one, two) {
			t.Fatalf("first %x, then %x", one, two)
		}
	})
}

func checkTyped(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*value.Error](err)
	if !ok {
		t.Fatalf("%T is no *value.Error: %v", err, err)
	}
	n := 0
	for _, s := range []error{value.ErrTooLarge, value.ErrTooDeep, value.ErrSyntax, value.ErrVersion, value.ErrType} {
		if errors.Is(e, s) {
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%v is %d of the sentinels", err, n)
	}
	if len(e.Error()) > 2000 {
		t.Fatalf("error of %d bytes", len(e.Error()))
	}
}

// FuzzRoundTrip makes values of every kind, shared and cyclic ones too, and
// wants the same back.
func FuzzRoundTrip(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		g := newGenerator(seed)
		x := g.value(5)
		b, err := value.Marshal(x)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		y, err := value.Decode(b)
		if err != nil {
			t.Fatalf("seed %d: %x: %v", seed, b, err)
		}
		again, err := value.Marshal(y)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if !bytes.Equal(b, again) {
			t.Fatalf("seed %d:\n%x became\n%x", seed, b, again)
		}
	})
}

// FuzzJSON: text that is JSON is read as encoding/json reads it, all other text is
// refused, and what was read is written and read again alike.
var longDigits = regexp.MustCompile(`[0-9]{16}`)

func FuzzJSON(f *testing.F) {
	for _, b := range goldenBytes(f) {
		if text, err := value.ToJSON(b); err == nil {
			f.Add(string(text))
		}
	}
	for _, s := range []string{`{"a":1,"\u0061":2}`, `[1e400]`, `"\ud83d\ude00\ud83d"`, `{"$x":1}`, `{"$date":"x"}`, ` [ -0 , 0.0 , 1E+2 ] `, `01`, `"` + "\xed\xa0\x80" + `"`, `{"$map":[[1,2]],"$map":[]}`,
		`{"$error":{"errors":[],"cause":1,"fields":{"$a":1},"name":"N"}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b, err := value.FromJSON([]byte(text))
		if err != nil {
			checkTyped(t, err)
			longInteger := longDigits.MatchString(text) // may be refused for being rounded
			if json.Valid([]byte(text)) && utf8.ValidString(text) && !longInteger && !strings.Contains(text, `$`) && !strings.Contains(text, `\u0024`) && !errors.Is(err, value.ErrTooDeep) {
				var x any
				if json.Unmarshal([]byte(text), &x) == nil { // it refuses numbers out of range too
					t.Fatalf("refused: %v", err)
				}
			}
			return
		}
		if !json.Valid([]byte(text)) {
			t.Fatalf("accepted what is no JSON")
		}
		if !strings.Contains(text, `$`) && !strings.Contains(text, `\u`) {
			var want any
			if err := json.Unmarshal([]byte(text), &want); err != nil {
				t.Fatal(err)
			}
			got, err := value.Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, floats(got)); diff != "" {
				t.Fatal(diff)
			}
		}
		out, err := value.ToJSON(b)
		if err != nil {
			t.Fatalf("%x: %v", b, err)
		}
		if !json.Valid(out) {
			t.Fatalf("%s is no JSON", out)
		}
		again, err := value.FromJSON(out)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if !bytes.Equal(b, again) {
			t.Fatalf("%x became %s and that %x", b, out, again)
		}
	})
}

// floats turns integers into float64, as encoding/json reads them.
func floats(v any) any {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case []any:
		for i := range v {
			v[i] = floats(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = floats(v[k])
		}
	}
	return v
}

// TestJSONRoundTrip: every kind of value comes back from its JSON byte for byte.
func TestJSONRoundTrip(t *testing.T) {
	for seed := range uint64(5000) {
		g := newGenerator(seed)
		g.json = true
		b, err := value.Marshal(g.value(5))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		text, err := value.ToJSON(b)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		again, err := value.FromJSON(text)
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, text, err)
		}
		if !bytes.Equal(b, again) {
			t.Fatalf("seed %d:\n%x\n%s\n%x", seed, b, text, again)
		}
	}
}

// FuzzOracle compares with fxamacker/cbor both ways.
func FuzzOracle(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	dec, err := cbor.DecOptions{
		DupMapKey:       cbor.DupMapKeyEnforcedAPF,
		IntDec:          cbor.IntDecConvertSignedOrFail,
		BigIntDec:       cbor.BigIntDecodePointer,
		DefaultMapType:  reflect.TypeFor[map[string]any](),
		MaxNestedLevels: 1000,
		IndefLength:     cbor.IndefLengthForbidden,
	}.DecMode()
	if err != nil {
		f.Fatal(err)
	}
	enc, err := cbor.EncOptions{
		Sort:          cbor.SortBytewiseLexical,
		ShortestFloat: cbor.ShortestFloat16,
		NaNConvert:    cbor.NaNConvert7e00,
		BigIntConvert: cbor.BigIntConvertNone,
	}.EncMode()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		g := newGenerator(seed)
		g.oracle = true
		x := g.value(5)
		want, err := value.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		// What we write, the oracle reads as what we meant.
		var got any
		if err := dec.Unmarshal(want[1:], &got); err != nil {
			t.Fatalf("seed %d: oracle can't read %x: %v", seed, want, err)
		}
		if diff := cmp.Diff(asCBOR(x, nil), got, cmp.Comparer(sameFloat), cmp.Comparer(sameBig)); diff != "" {
			t.Fatalf("seed %d: %x: %s", seed, want, diff)
		}
		// What the oracle writes of it, we read as the same value.
		b, err := enc.Marshal(asCBOR(x, cbor.SimpleValue(23)))
		if err != nil {
			t.Fatal(err)
		}
		y, err := value.Decode(append([]byte{1}, b...))
		if err != nil {
			t.Fatalf("seed %d: can't read the oracle's %x: %v", seed, b, err)
		}
		again, err := value.Marshal(y)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, again) {
			t.Fatalf("seed %d:\n%x through the oracle became\n%x", seed, want, again)
		}
	})
}

func sameFloat(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

func sameBig(a, b *big.Int) bool { return a.Cmp(b) == 0 }

// asCBOR says in fxamacker's words what the bytes of v mean: the table of doc.go
// once more, written from the table and not from the code. Undefined is what
// undefined is: fxamacker writes simple(23) as such but reads it as nil.
func asCBOR(v, undefined any) any {
	tag := func(n uint64, content any) any { return cbor.Tag{Number: n, Content: content} }
	list := func(in []any) []any {
		out := make([]any, len(in))
		for i := range in {
			out[i] = asCBOR(in[i], undefined)
		}
		return out
	}
	object := func(in map[string]any) map[string]any {
		out := map[string]any{}
		for k, x := range in {
			out[k] = asCBOR(x, undefined)
		}
		return out
	}
	switch v := v.(type) {
	case limpet.Undefined:
		return undefined
	case limpet.Hole:
		return cbor.SimpleValue(0)
	case string:
		if !utf8.ValidString(v) {
			return tag(273, []byte(v))
		}
	case *limpet.TypedArray:
		n := map[limpet.TypedArrayKind]uint64{
			limpet.ArrayBuffer: 19460, limpet.DataView: 19461, limpet.Uint8ClampedArray: 68, limpet.Int8Array: 72,
			limpet.Int16Array: 77, limpet.Uint16Array: 69, limpet.Int32Array: 78, limpet.Uint32Array: 70, limpet.BigInt64Array: 79,
			limpet.BigUint64Array: 71, limpet.Float16Array: 84, limpet.Float32Array: 85, limpet.Float64Array: 86,
		}[v.Kind]
		return tag(n, v.Data)
	case time.Time:
		return tag(19456, v.UnixMilli())
	case limpet.InvalidDate:
		return tag(19456, math.NaN())
	case limpet.RegExp:
		return tag(19457, []any{asCBOR(v.Source, undefined), asCBOR(v.Flags, undefined)})
	case limpet.Boxed:
		return tag(19458, asCBOR(v.Value, undefined))
	case []any:
		return list(v)
	case map[string]any:
		return object(v)
	case *limpet.Map:
		m := map[string]any{}
		for _, e := range v.Entries {
			m[e.Key.(string)] = asCBOR(e.Value, undefined)
		}
		return tag(259, m)
	case *limpet.Set:
		return tag(258, list(v.Values))
	case *limpet.ErrorValue:
		var cause, errs any = cbor.SimpleValue(0), cbor.SimpleValue(0)
		if v.HasCause {
			cause = asCBOR(v.Cause, undefined)
		}
		if v.Errors != nil {
			errs = list(v.Errors)
		}
		return tag(19459, []any{asCBOR(v.Class, undefined), asCBOR(v.Name, undefined), asCBOR(v.Message, undefined), asCBOR(v.Stack, undefined), object(v.Fields), cause, errs})
	}
	return v
}

// What fxamacker/cbor writes of plain Go values when nobody tells it how is read
// too: floats of full width, members in any order.
func TestOracleDefaults(t *testing.T) {
	for _, v := range []any{
		nil, true, int64(0), int64(-25), int64(1 << 53), 1.0, 0.1, math.Inf(-1), "", "\u20ac", []byte{1}, []any{int64(1), "a", nil},
		map[string]any{"b": 1.5, "a": []any{map[string]any{}}},
	} {
		b, err := cbor.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := value.Decode(append([]byte{1}, b...))
		if err != nil {
			t.Errorf("%v: %v", v, err)
		} else if diff := cmp.Diff(v, got); diff != "" {
			t.Error(diff)
		}
	}
}
