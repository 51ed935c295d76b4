package endtoend

import (
	"testing"

	"github.com/limpet-dev/limpet"
)

// TestOutcomeOfKey asks over a connection what became of calls under a key: keys
// have no creation time that could be sent along.
func TestOutcomeOfKey(t *testing.T) {
	w := open(t, nil)
	s := shops(t, dial(t, w.addr)).Named("x")
	if _, err := limpet.Call1(limpet.WithIdempotencyKey(t.Context(), "order-17"), s, Shop.Add, 5); err != nil {
		t.Fatal(err)
	}
	o, err := limpet.Outcome(t.Context(), s, limpet.KeyIdentity("order-17"))
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := o.Decode(&n); err != nil || o.Kind != limpet.OutcomeResult || n != 5 {
		t.Errorf("the outcome is %v with %d, %v, want the result 5", o.Kind, n, err)
	}
	o, err = limpet.Outcome(t.Context(), s, limpet.KeyIdentity("order-18"))
	if err != nil || o.Kind != limpet.OutcomeNotReceived {
		t.Errorf("the outcome of a key that nobody used is %+v, %v", o, err)
	}
}
