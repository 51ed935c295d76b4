package limpettest_test

import (
	"context"
	"fmt"
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

// shown is the test that an example runs in.
type shown struct{ cleanups []func() }

func (s *shown) Helper()                   {}
func (s *shown) Cleanup(f func())          { s.cleanups = append(s.cleanups, f) }
func (s *shown) Failed() bool              { return false }
func (s *shown) Logf(string, ...any)       {}
func (s *shown) Errorf(f string, a ...any) { fmt.Printf(f+"\n", a...) }
func (s *shown) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func (s *shown) end() {
	for i := range s.cleanups {
		s.cleanups[len(s.cleanups)-1-i]()
	}
}

// A request is overtaken by its own retry. The object takes whichever comes first;
// the other one is refused, so that it has added once.
func ExampleReorder() {
	t := &shown{} // a *testing.T in a test
	defer t.end()
	n := limpettest.Start(t, newCounter())
	counters, err := limpet.NamespaceOf[*counter](n, "COUNTER")
	if err != nil {
		t.Fatalf("%v", err)
	}
	net := n.Network()
	net.Inject(limpettest.Reorder(limpettest.Times(1)))
	v, err := limpet.Call1(context.Background(), counters.Named("visits"), (*counter).Add, 1)
	fmt.Println("the retry answers:", v, err)
	v, err = limpet.Call1(context.Background(), counters.Named("visits"), (*counter).Add, 0)
	fmt.Println("then it has:", v, err)
	fmt.Println("reordered:", net.Count(limpettest.FaultReorder), "attempts:", net.Attempts())
	// Output:
	// the retry answers: 1 <nil>
	// then it has: 1 <nil>
	// reordered: 1 attempts: 3
}

// The connection breaks after so many bytes: first in the arguments, so that the
// object never gets them, then in the result, when it has run already.
func ExampleCutAfter() {
	t := &shown{} // a *testing.T in a test
	defer t.end()
	n := limpettest.Start(t, newCounter())
	counters, err := limpet.NamespaceOf[*counter](n, "COUNTER")
	if err != nil {
		t.Fatalf("%v", err)
	}
	c := counters.Named("visits", limpet.NoRetries())
	net := n.Network()
	for _, bytes := range []int64{0, 4, 1000} { // of some bytes of arguments and result
		net.Heal()
		net.Inject(limpettest.CutAfter(bytes, limpettest.Times(1)))
		_, err = limpet.Call1(context.Background(), c, (*counter).Add, 1)
		struck := net.Count(limpettest.FaultCutAfter)
		net.Heal()
		v, lookErr := limpet.Call1(context.Background(), c, (*counter).Add, 0)
		fmt.Printf("after %d bytes: %d struck so far, lost: %v; it has %d, %v\n", bytes, struck, err != nil, v, lookErr)
	}
	// Output:
	// after 0 bytes: 1 struck so far, lost: true; it has 0, <nil>
	// after 4 bytes: 2 struck so far, lost: true; it has 1, <nil>
	// after 1000 bytes: 2 struck so far, lost: false; it has 2, <nil>
}
