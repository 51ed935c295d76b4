package main

import (
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

func startCart(t *testing.T) (*limpettest.Node, limpet.Namespace[*Cart]) {
	t.Helper()
	n := limpettest.Start(t, CartClass)
	carts, err := limpet.NamespaceOf[*Cart](n, "CART")
	if err != nil {
		t.Fatal(err)
	}
	return n, carts
}

func TestCart(t *testing.T) {
	t.Parallel()
	_, carts := startCart(t)
	ctx := t.Context()
	cart := carts.Named("user-123")
	quantity := func(item string, want int) {
		t.Helper()
		if got, err := limpet.Call1(ctx, cart, (*Cart).Quantity, item); err != nil || got != want {
			t.Fatalf("quantity of %s: got %d, %v, want %d", item, got, err, want)
		}
	}
	quantity("item-1", 0)
	for range 2 { // again does no harm
		if err := limpet.Do2(ctx, cart, (*Cart).SetQuantity, "item-1", 3); err != nil {
			t.Fatal(err)
		}
	}
	quantity("item-1", 3)
	if got, err := limpet.Call1(ctx, cart, (*Cart).AddOne, "item-1"); err != nil || got != 4 {
		t.Fatalf("got %d, %v, want 4", got, err)
	}
	quantity("item-1", 4)
	quantity("item-2", 0)
	if got, err := limpet.Call1(ctx, carts.Named("user-124"), (*Cart).Quantity, "item-1"); err != nil || got != 0 {
		t.Fatalf("another customer's cart: got %d, %v", got, err)
	}
	if err := limpet.Do2(ctx, cart, (*Cart).SetQuantity, "item-1", 0); err != nil {
		t.Fatal(err)
	}
	quantity("item-1", 0)
}

func TestCartRefuses(t *testing.T) {
	t.Parallel()
	_, carts := startCart(t)
	ctx := t.Context()
	cart := carts.Named("user-123")
	if err := limpet.Do2(ctx, cart, (*Cart).SetQuantity, "full", maxQuantity); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, limpet.CodeInvalidArgument) || limpet.DeliveryOf(err) != limpet.DeliveryReceived {
			t.Errorf("%s: got %v", what, err)
		}
	}
	for _, n := range []int{-1, math.MinInt, maxQuantity + 1, math.MaxInt} {
		refused("set", limpet.Do2(ctx, cart, (*Cart).SetQuantity, "x", n))
	}
	refused("no name", limpet.Do2(ctx, cart, (*Cart).SetQuantity, "", 1))
	_, err := limpet.Call1(ctx, cart, (*Cart).AddOne, "full")
	refused("one more", err)
	if got, err := limpet.Call1(ctx, cart, (*Cart).Quantity, "full"); err != nil || got != maxQuantity {
		t.Errorf("got %d, %v", got, err)
	}
}

// TestCartSurvives: what was acknowledged outlives a crash of the node, and
// callers at once don't lose each other's items.
func TestCartSurvives(t *testing.T) {
	t.Parallel()
	n, carts := startCart(t)
	ctx := t.Context()
	const callers, times = 8, 10
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range times {
				if _, err := limpet.Call1(ctx, carts.Named("shared"), (*Cart).AddOne, "item-1"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n.Crash()
	n.Restart()
	if got, err := limpet.Call1(ctx, carts.Named("shared"), (*Cart).Quantity, "item-1"); err != nil || got != callers*times {
		t.Errorf("got %d, %v, want %d", got, err, callers*times)
	}
}

func TestMarks(t *testing.T) {
	if !CartClass.Method("setQuantity").Marked || CartClass.Method("addOne").Marked {
		t.Error("setQuantity is marked, addOne is not")
	}
}
