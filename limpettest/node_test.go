package limpettest_test

import (
	"context"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

type counter struct{ st *limpet.State }

func (c *counter) Add(ctx context.Context, n int) (int, error) {
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

func TestCrashKeepsWhatWasAnswered(t *testing.T) {
	ctx := context.Background()
	n := limpettest.Start(t, newCounter())
	counters, err := limpet.NamespaceOf[*counter](n, "COUNTER")
	if err != nil {
		t.Fatal(err)
	}
	c := counters.Named("a")
	for want := 1; want <= 10; want++ {
		got, err := limpet.Call1(ctx, c, (*counter).Add, 1)
		if err != nil || got != want {
			t.Fatalf("add: got %d, %v, want %d", got, err, want)
		}
		switch want % 4 {
		case 1:
			n.Crash()
			if _, err := limpet.Call1(ctx, c, (*counter).Add, 1); limpet.DeliveryOf(err) != limpet.DeliveryNone {
				t.Fatalf("a call to a node that is down: %v", err)
			}
			n.Restart()
		case 2:
			n.Restart()
		case 3:
			if !n.Evict(c.ID()) {
				t.Fatal("the object was not in memory")
			}
		}
	}
}
