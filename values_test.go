package limpet_test

import (
	"errors"
	"testing"

	"github.com/limpet-dev/limpet"
)

func TestErrorValueText(t *testing.T) {
	for want, e := range map[string]*limpet.ErrorValue{
		"no":      {Message: "no"},
		"gone":    {Name: "Error", Message: "gone"},
		"Bad: no": {Name: "Bad", Message: "no"},
		"Bad":     {Name: "Bad"},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Causes come from peers, and errors.Is must end whatever they are.
func TestErrorValueCauses(t *testing.T) {
	inner := &limpet.ErrorValue{Name: "Inner"}
	outer := &limpet.ErrorValue{Name: "Outer", Cause: inner}
	if !errors.Is(outer, inner) {
		t.Error("cause not found")
	}
	self := &limpet.ErrorValue{Name: "Self"}
	self.Cause = self
	ring := &limpet.ErrorValue{Name: "A", Cause: &limpet.ErrorValue{Name: "B"}}
	ring.Cause.(*limpet.ErrorValue).Cause = ring
	long := &limpet.ErrorValue{Name: "end"}
	for range 100_000 {
		long = &limpet.ErrorValue{Name: "step", Cause: long}
	}
	for _, e := range []*limpet.ErrorValue{self, ring, long} {
		if errors.Is(e, inner) {
			t.Errorf("%s: found what is not there", e.Name)
		}
	}
	text := &limpet.ErrorValue{Cause: "no error"}
	if text.Unwrap() != nil {
		t.Error("unwrapped what is no error")
	}
}

func TestTypedArrayKind(t *testing.T) {
	if got := limpet.Float64Array.String(); got != "Float64Array" {
		t.Error(got)
	}
	if got := limpet.TypedArrayKind(99); got.String() != "TypedArrayKind(99)" || got.ElementSize() != 0 {
		t.Error(got, got.ElementSize())
	}
	if got := limpet.TypedArrayKind(0); got.String() != "TypedArrayKind(0)" || got.ElementSize() != 0 {
		t.Error(got, got.ElementSize())
	}
	for k := limpet.ArrayBuffer; k <= limpet.Float64Array; k++ {
		if k.ElementSize() == 0 || k.String() == "" {
			t.Errorf("kind %d has no size or name", k)
		}
	}
}
