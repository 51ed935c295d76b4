package value_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

// hooks keep what is exported, and make strings of what is imported.
type hooks struct {
	list []any
	fail error
}

func (h *hooks) ExportCapability(v reflect.Value) (limpet.CapabilityKind, int, error) {
	if h.fail != nil {
		return 0, 0, h.fail
	}
	h.list = append(h.list, v.Interface())
	kind := limpet.CapabilityTarget
	if _, ok := v.Interface().(io.Reader); ok {
		kind = limpet.CapabilityStream
	}
	return kind, len(h.list) - 1, nil
}

func (h *hooks) ImportCapability(kind limpet.CapabilityKind, index int, t reflect.Type) (reflect.Value, error) {
	if h.fail != nil {
		return reflect.Value{}, h.fail
	}
	if index >= len(h.list) {
		return reflect.Value{}, errors.New("there is no such one")
	}
	v := reflect.ValueOf(h.list[index])
	if !v.Type().AssignableTo(t) {
		return reflect.Value{}, fmt.Errorf("a %v for a %v", v.Type(), t)
	}
	return v, nil
}

type holder struct {
	Fn    func(context.Context) error `limpet:"fn"`
	Stubs []*limpet.Stub[any]         `limpet:"stubs"`
	R     io.Reader                   `limpet:"r"`
	Any   any                         `limpet:"any"`
}

// TestCapabilities carries them with hooks, pins their bytes, and refuses them
// without.
func TestCapabilities(t *testing.T) {
	stub, r := new(limpet.Stub[any]), strings.NewReader("x")
	fn := func(context.Context) error { return errors.New("this one") }
	// SPEC B28: what is no data has its place in the value, and is in the list.
	in := holder{Fn: fn, Stubs: []*limpet.Stub[any]{stub, nil, stub}, R: r, Any: map[string]any{"r": r, "stub": stub}}
	h := &hooks{}
	o := value.Options{Hooks: h}
	b, err := o.Append(nil, in)
	if err != nil {
		t.Fatal(err)
	}
	// These bytes are the format: they may not change.
	const want = "01a4" + "62666e" + "d94c06820000" + // fn: target 0
		"6573747562" + "73" + "83" + "d81c" + "d94c06820001" + "f6" + "d81d00" + // stubs: shared target 1, null, once more
		"6172" + "d81c" + "d94c06820102" + // r: shared stream 2
		"63616e79" + "a2" + "6172" + "d81d01" + "6473747562" + "d81d00"
	if got := hex.EncodeToString(b); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	if len(h.list) != 3 {
		t.Fatalf("got %v", h.list)
	}
	var out holder
	if err := o.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if out.Fn(t.Context()).Error() != "this one" || out.Stubs[0] != stub || out.Stubs[1] != nil || out.Stubs[2] != stub ||
		out.R != io.Reader(r) || !reflect.DeepEqual(out.Any, map[string]any{"r": r, "stub": stub}) {
		t.Fatalf("got %+v", out)
	}
	x, err := o.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if m := x.(map[string]any); m["r"] != any(r) || m["stubs"].([]any)[2] != any(stub) {
		t.Fatalf("got %+v", m)
	}
	// As nil they are null.
	if b, err := value.Marshal(holder{}); err != nil {
		t.Fatal(err)
	} else if err := value.Unmarshal(b, &out); err != nil || out.Fn != nil || out.R != nil {
		t.Fatalf("got %+v, %v", out, err)
	}
	// Token by token it is the same.
	w := value.NewWriter(nil)
	w.Array(2)
	w.Capability(limpet.CapabilityTarget, 0)
	w.Capability(limpet.CapabilityStream, 999)
	b2, err := w.Finish()
	if err != nil || hex.EncodeToString(b2) != "0182d94c06820000d94c0682011903e7" {
		t.Fatalf("got %x, %v", b2, err)
	}
	w = value.NewWriter(nil)
	w.Capability(limpet.CapabilityTarget, limpet.MaxCapabilities)
	if _, err := w.Finish(); !errors.Is(err, value.ErrSyntax) {
		t.Fatalf("got %v", err)
	}

	// Without hooks, in stored values and JSON, there are none.
	for _, v := range []any{fn, stub, holder{R: r}, []any{stub}, map[string]any{"a": fn}} {
		if _, err := value.Marshal(v); !errors.Is(err, value.ErrType) || !strings.Contains(err.Error(), "can't be stored") {
			t.Errorf("%T: got %v", v, err)
		}
	}
	for _, dst := range []any{new(holder), new(any)} {
		if err := value.Unmarshal(b, dst); !errors.Is(err, value.ErrCapability) {
			t.Errorf("%T: got %v", dst, err)
		}
	}
	if _, err := value.ToJSON(b); !errors.Is(err, value.ErrCapability) || err.Error() != ".fn: a stub has no JSON form" {
		t.Errorf("got %v", err)
	}
	if code := limpet.CodeOf((value.Codec{}).Unmarshal(b, new(any))); code != limpet.CodeNotSupported {
		t.Errorf("got %v", code)
	}

	// One kind does not fit the other's types, and neither fits data.
	for _, test := range []struct {
		bytes string
		dst   any
		text  string
	}{
		{"01d94c06820100", new(func(context.Context) error), "byte stream does not fit the Go type func(context.Context) error"},
		{"01d94c06820000", new(io.Reader), "stub does not fit the Go type io.Reader"},
		{"01d94c06820000", new(int), "stub does not fit the Go type int"},
		{"0103", new(io.Reader), "number 3 does not fit the Go type io.Reader"},
		{"01d94c06820009", new(any), "there is no such one"},
		{"01d94c06820200", new(any), "capability of kind 2 with index 0"},
		{"01d94c0682001903e8", new(any), "capability of kind 0 with index 1000"},
		{"01d94c06810000", new(any), "capability of kind 0"},
		{"01d94c06820020", new(any), "capability is no pair of numbers"},
		{"01d94c06f6", new(any), "capability is no pair of numbers"},
		{"01d94c02d94c06820000", new(any), "capability in a boxed primitive"},
	} {
		b, err := hex.DecodeString(test.bytes)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Unmarshal(b, test.dst); err == nil || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s into a %T: got %v", test.bytes, test.dst, err)
		}
	}
	// What the hooks say is passed on.
	h.fail = limpet.CodeDisposed
	if _, err := o.Append(nil, in); !errors.Is(err, limpet.CodeDisposed) || !strings.HasPrefix(err.Error(), ".fn: ") {
		t.Errorf("got %v", err)
	}
	if err := o.Unmarshal(b, &out); !errors.Is(err, limpet.CodeDisposed) {
		t.Errorf("got %v", err)
	}
	if _, err := (value.Codec{}).With(h).Marshal(fn); limpet.CodeOf(err) != limpet.CodeDisposed {
		t.Errorf("got %v", err)
	}
	// Skipped they are not asked for.
	type none struct{}
	if err := value.Unmarshal(b, new(none)); err != nil {
		t.Errorf("got %v", err)
	}
}

// FuzzCapabilities reads hostile bytes with hooks: no panic, and no index beyond
// the list is ever asked for without an error.
func FuzzCapabilities(f *testing.F) {
	for _, s := range []string{
		"01d94c06820000", "0182d81cd94c06820001d81d00", "01a1616181d94c06820102", "01d94c0682001903e8", "01d94c03876161d94c06820000",
		"01d9010281d94c06820001", "01d90103a1d94c06820000d94c06820101",
	} {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h := &hooks{list: []any{new(limpet.Stub[any]), strings.NewReader("")}}
		o := value.Options{Hooks: h}
		x, err := o.Decode(b)
		for _, dst := range []any{new(holder), new([]io.Reader), new(map[string]*limpet.Stub[any])} {
			_ = o.Unmarshal(b, dst) // must not panic
		}
		if err != nil {
			return
		}
		again, err := o.Append(nil, x)
		if err != nil {
			t.Fatalf("%x was read and can't be written: %v", b, err)
		}
		if _, err := o.Decode(again); err != nil {
			t.Fatalf("%x: %v", again, err)
		}
	})
}
