package value_test

import (
	"errors"
	"math"
	"math/big"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

// TestWriter writes token by token what an engine would, and reads it so.
func TestWriter(t *testing.T) {
	w := value.NewWriter([]byte("before"))
	w.Array(13)
	at := w.Pos()
	w.Object(2)
	w.Key("z") // the order of insertion stays
	w.Ref(at)
	w.Key("lone \xed\xa0\x80")
	w.Number(1)
	w.Ref(at)
	w.Null()
	w.Hole()
	w.Number(math.Copysign(0, -1))
	w.Number(1 << 53)
	w.Number(1 << 54)
	w.Int(-1 << 60)
	w.BigInt(big.NewInt(5))
	w.Date(-1.9)
	w.Date(math.Inf(1))
	w.Error(value.ErrorHead{Class: "Error", Name: "E", Message: "m"}, 1)
	w.Key("code")
	w.Bool(true)
	w.Undefined()
	w.Array(0)
	w.Boxed()
	w.String("s")
	b, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	r, err := value.NewReader(b[len("before"):])
	if err != nil {
		t.Fatal(err)
	}
	var got []value.Token
	for !r.Done() {
		var tok value.Token
		if err := r.Next(&tok); err != nil {
			t.Fatal(err)
		}
		got = append(got, tok)
	}
	if err := r.End(); err != nil {
		t.Fatal(err)
	}
	type kinds = value.Kind
	want := []kinds{
		value.KindArray, value.KindObject, value.KindKey, value.KindRef, value.KindKey, value.KindInt, value.KindRef, value.KindNull, value.KindHole,
		value.KindFloat, value.KindInt, value.KindFloat, value.KindBigInt, value.KindBigInt, value.KindDate, value.KindDate,
		value.KindError, value.KindKey, value.KindBool, value.KindUndefined, value.KindArray, value.KindBoxed, value.KindString,
	}
	if len(got) != len(want) {
		t.Fatalf("%d tokens, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i].Kind != want[i] {
			t.Errorf("token %d is %s, want %s", i, got[i].Kind, want[i])
		}
	}
	if got[1].Share != 0 || got[3].N != 0 || got[6].N != 0 || got[0].Share != -1 {
		t.Error("shared values are numbered wrongly")
	}
	if string(got[2].Str) != "z" || string(got[4].Str) != "lone \xed\xa0\x80" {
		t.Errorf("keys %q, %q", got[2].Str, got[4].Str)
	}
	if got[12].BigInt().Int64() != -1<<60 || got[13].BigInt().Int64() != 5 {
		t.Error("big integers")
	}
	if got[14].Float != -1 || got[15].Float == got[15].Float {
		t.Errorf("dates %v, %v", got[14].Float, got[15].Float)
	}
	if got[16].Err.Name != "E" || got[16].N != 1 {
		t.Errorf("error %+v", got[16])
	}
	if err := r.Next(&got[0]); !errors.Is(err, value.ErrSyntax) {
		t.Errorf("read past the end: %v", err)
	}
}

// A caller's mistake is an error at Finish, never bytes that can't be read.
func TestWriterMisuse(t *testing.T) {
	for name, f := range map[string]func(w *value.Writer){
		"nothing":          func(*value.Writer) {},
		"too few":          func(w *value.Writer) { w.Array(2); w.Null() },
		"too many":         func(w *value.Writer) { w.Array(0); w.Null() },
		"no key":           func(w *value.Writer) { w.Object(1); w.Null() },
		"two keys":         func(w *value.Writer) { w.Object(1); w.Key("a"); w.Key("b") },
		"key at top":       func(w *value.Writer) { w.Key("a") },
		"key in array":     func(w *value.Writer) { w.Array(1); w.Key("a") },
		"hole at top":      func(w *value.Writer) { w.Hole() },
		"hole in object":   func(w *value.Writer) { w.Object(1); w.Key("a"); w.Hole() },
		"hole in set":      func(w *value.Writer) { w.Set(1); w.Hole() },
		"hole in map":      func(w *value.Writer) { w.Map(1); w.Null(); w.Hole() },
		"box in box":       func(w *value.Writer) { w.Boxed(); w.Boxed(); w.Null() },
		"null in box":      func(w *value.Writer) { w.Boxed(); w.Null() },
		"array in box":     func(w *value.Writer) { w.Boxed(); w.Array(0) },
		"errors no array":  func(w *value.Writer) { w.Error(value.ErrorHead{}, 0); w.Hole(); w.Null() },
		"error cut":        func(w *value.Writer) { w.Error(value.ErrorHead{}, 0); w.Hole() },
		"negative":         func(w *value.Writer) { w.Array(-1) },
		"ref to nothing":   func(w *value.Writer) { w.Array(1); w.Ref(w.Pos()) },
		"ref before":       func(w *value.Writer) { w.Array(1); w.Ref(0) },
		"typed array kind": func(w *value.Writer) { w.TypedArray(limpet.TypedArrayKind(99), nil) },
		"long bigint":      func(w *value.Writer) { w.BigInt(new(big.Int).Lsh(big.NewInt(1), value.MaxBigIntBits)) },
		"bad string":       func(w *value.Writer) { w.String("\xff") },
		"bad regexp":       func(w *value.Writer) { w.RegExp("a", "\xff") },
		"bad error":        func(w *value.Writer) { w.Error(value.ErrorHead{Stack: "\xff"}, 0) },
	} {
		w := value.NewWriter([]byte("x"))
		f(w)
		w.Null() // a call after an error changes nothing
		if name == "too few" || name == "error cut" || name == "nothing" {
			w = value.NewWriter([]byte("x"))
			f(w)
		}
		b, err := w.Finish()
		if err == nil || string(b) != "x" {
			t.Errorf("%s: got %x, %v", name, b, err)
			continue
		}
		checkTyped(t, err)
	}
	w := value.Options{MaxSize: 100}.NewWriter(nil)
	w.Array(1 << 20)
	for range 1 << 20 {
		if w.Err() != nil {
			break
		}
		w.Bytes(make([]byte, 1000))
	}
	if err := w.Err(); !errors.Is(err, value.ErrTooLarge) {
		t.Errorf("wrote on and on: %v", err)
	}
}

func TestKindNames(t *testing.T) {
	if value.KindNull.String() != "null" || value.KindRef.String() != "shared reference" || value.Kind(0).String() != "nothing" || value.Kind(200).String() != "nothing" {
		t.Error("names of kinds")
	}
}
