package limpettest_test

import (
	"context"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// A test of a class: a whole node in one line, and a power cut in another.
func Example() {
	test := func(t *testing.T) { // in your code: func TestCounter(t *testing.T)
		ctx := t.Context()
		n := limpettest.Start(t, newCounter())
		counters, err := limpet.NamespaceOf[*counter](n, "COUNTER")
		if err != nil {
			t.Fatal(err)
		}
		c := counters.Named("visits")
		if _, err := limpet.Call1(ctx, c, (*counter).Add, 2); err != nil {
			t.Fatal(err)
		}
		n.Crash() // memory and everything that is not durable are gone
		n.Restart()
		if got, err := limpet.Call1(ctx, c, (*counter).Add, 1); err != nil || got != 3 {
			t.Errorf("got %d, %v, want 3", got, err)
		}
	}
	_ = test
}

type counter struct{ st *limpet.State }

func (c *counter) Add(_ context.Context, n int) (int, error) {
	var v int
	if _, err := c.st.KV().Get("n", &v); err != nil {
		return 0, err
	}
	v += n
	return v, c.st.KV().Put("n", v)
}

func newCounter() *limpet.Class {
	return limpet.NewClass("Counter", func(st *limpet.State) (*counter, error) { return &counter{st}, nil })
}

// A test of what callers see when the answer to a call is lost: Add is not
// marked, so its retry is refused, and it has run once.
func ExampleNode_Network() {
	test := func(t *testing.T) { // in your code: func TestLostAnswer(t *testing.T)
		n := limpettest.Start(t, newCounter())
		counters, err := limpet.NamespaceOf[*counter](n, "COUNTER")
		if err != nil {
			t.Fatal(err)
		}
		c := counters.Named("visits")
		net := n.Network()
		net.Inject(limpettest.DropReply(limpettest.Method("add"), limpettest.Times(1)))
		if _, err := limpet.Call1(t.Context(), c, (*counter).Add, 1); limpet.DeliveryOf(err) != limpet.DeliveryUncertain {
			t.Errorf("got %v", err)
		}
		if got, err := limpet.Call1(t.Context(), c, (*counter).Add, 0); err != nil || got != 1 {
			t.Errorf("got %d, %v, want 1", got, err)
		}
		if net.Count(limpettest.FaultDropReply) != 1 {
			t.Error("no reply was lost")
		}
	}
	_ = test
}
