package limpettest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// clumsy uses its State as one should not.
type clumsy struct{ st *limpet.State }

var clumsyClass = limpet.NewClass("Clumsy", func(st *limpet.State) (*clumsy, error) { return &clumsy{st}, nil })

func (c *clumsy) Count(context.Context) (n int, err error) {
	for _, err := range c.st.KV().List(limpet.ListOptions{}) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// Tangle runs two transactions at once; the first one ends in the second.
func (c *clumsy) Tangle(_ context.Context, nested bool) error {
	if err := c.st.KV().Put("before", 1); err != nil {
		return err
	}
	one, two := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	var first, second error
	all.Go(func() {
		first = c.st.Transaction(func() error {
			close(one)
			<-two
			return c.st.KV().Put("first", 1)
		})
	})
	<-one
	if nested { // the second one ends first, as it should
		second = c.st.Transaction(func() error { return c.st.KV().Put("second", 1) })
		close(two)
		all.Wait()
	} else {
		second = c.st.Transaction(func() error {
			close(two)
			all.Wait()
			return c.st.KV().Put("second", 1)
		})
	}
	return errors.Join(first, second)
}

// Later gives so many functions to WaitUntil.
func (c *clumsy) Later(_ context.Context, n int) error {
	for range n {
		c.st.WaitUntil(func(context.Context) error { return nil })
	}
	return nil
}

func TestTransactionsOfSeveralGoroutines(t *testing.T) {
	n := limpettest.Start(t, clumsyClass)
	ns, err := limpet.NamespaceOf[*clumsy](n, "CLUMSY")
	if err != nil {
		t.Fatal(err)
	}
	if err := limpet.Do1(t.Context(), ns.Named("x"), (*clumsy).Tangle, true); err != nil {
		t.Errorf("transactions that nest: %v", err)
	}
	if k, err := limpet.Call(t.Context(), ns.Named("x"), (*clumsy).Count); k != 3 || err != nil {
		t.Errorf("they left %d keys, %v", k, err)
	}
	err = limpet.Do1(t.Context(), ns.Named("y"), (*clumsy).Tangle, false)
	e, ok := errors.AsType[*limpet.Error](err)
	if !ok || e.Code != limpet.CodeReset || !e.Reset || !strings.Contains(e.Message, "State.Transaction was used by several goroutines at once") {
		t.Errorf("transactions that don't: %v", err)
	}
	if k, err := limpet.Call(t.Context(), ns.Named("y"), (*clumsy).Count); k != 0 || err != nil {
		t.Errorf("they left %d keys, %v", k, err)
	}
}

func TestTooManyWaitUntil(t *testing.T) {
	n := limpettest.Start(t, clumsyClass)
	ns, err := limpet.NamespaceOf[*clumsy](n, "CLUMSY")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // what has run does not count
		if err := limpet.Do1(t.Context(), ns.Named("x"), (*clumsy).Later, 6000); err != nil {
			t.Fatal(err)
		}
		if _, err := limpet.Call(t.Context(), ns.Named("x"), (*clumsy).Count); err != nil { // behind them
			t.Fatal(err)
		}
	}
	if err := limpet.Do1(t.Context(), ns.Named("y"), (*clumsy).Later, 10_000); err != nil {
		t.Errorf("as many as there may be: %v", err)
	}
	err = limpet.Do1(t.Context(), ns.Named("z"), (*clumsy).Later, 10_001)
	e, ok := errors.AsType[*limpet.Error](err)
	if !ok || e.Code != limpet.CodeReset || !e.Overloaded || !e.Reset || e.Delivery != limpet.DeliveryReceived ||
		e.Message != "WaitUntil: 10000 functions of the object wait or run, which is the limit; the object was reset" {
		t.Errorf("one too many: %+v", err)
	}
	if _, err := limpet.Call(t.Context(), ns.Named("z"), (*clumsy).Count); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
