package main

import (
	"context"

	"github.com/limpet-dev/limpet"
)

// maxQuantity is the most of one item that fits a cart.
const maxQuantity = 1_000_000

// Cart is one customer's cart: how many of each item.
type Cart struct{ st *limpet.State }

// CartClass has SetQuantity marked: setting the same quantity again does no
// harm. Adding one again would, so AddOne is not.
var CartClass = limpet.NewClass("Cart", func(st *limpet.State) (*Cart, error) { return &Cart{st}, nil },
	limpet.Retryable((*Cart).SetQuantity))

// SetQuantity puts n of an item into the cart, 0 to 1,000,000; 0 takes it out.
func (c *Cart) SetQuantity(_ context.Context, item string, n int) error {
	switch {
	case item == "":
		return limpet.Errorf(limpet.CodeInvalidArgument, "the item has no name")
	case n < 0 || n > maxQuantity:
		return limpet.Errorf(limpet.CodeInvalidArgument, "the quantity of %q must be 0 to %d, got %d", item, maxQuantity, n)
	case n == 0:
		_, err := c.st.KV().Delete(item)
		return err
	}
	return c.st.KV().Put(item, n)
}

// AddOne puts one more of an item into the cart and returns how many there are
// now.
func (c *Cart) AddOne(ctx context.Context, item string) (int, error) {
	n, err := c.Quantity(ctx, item)
	if err != nil {
		return 0, err
	}
	return n + 1, c.SetQuantity(ctx, item, n+1)
}

// Quantity is how many of an item are in the cart: 0 if it is not there.
func (c *Cart) Quantity(_ context.Context, item string) (int, error) {
	var n int
	_, err := c.st.KV().Get(item, &n)
	return n, err
}
