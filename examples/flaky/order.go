package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/limpet-dev/limpet"
)

// placeOrder sells once and says what came of it.
func placeOrder(ctx context.Context, shop *limpet.Stub[*Shop], order string) string {
	number, err := limpet.Call1(ctx, shop, (*Shop).Sell, order)
	switch {
	case err == nil:
		return fmt.Sprintf("sold as number %d", number)
	case errors.Is(err, limpet.CodeOverloaded):
		return "the shop is busy: not sold, come back later"
	case limpet.DeliveryOf(err) == limpet.DeliveryNone:
		return "not sold, certainly"
	}
	// Uncertain, or received without an outcome: look, don't sell again.
	number, err = limpet.Call1(ctx, shop, (*Shop).NumberOf, order)
	switch {
	case err != nil:
		return fmt.Sprintf("may have been sold; can't look: %v", err)
	case number > 0:
		return fmt.Sprintf("sold as number %d, the answer was lost", number)
	default:
		return "not sold, as far as the shop knows"
	}
}

// sellPatiently has a loop of its own, so limpet's is off: three rounds with
// four retries each would make fifteen attempts. It goes on only where the shop
// certainly did not sell: another call is another identity, which the promise
// does not cover.
func sellPatiently(ctx context.Context, shops limpet.Namespace[*Shop], order string) (int, error) {
	shop := shops.Named("corner", limpet.NoRetries())
	for wait := time.Second; ; wait *= 2 {
		number, err := limpet.Call1(ctx, shop, (*Shop).Sell, order)
		if err == nil || limpet.DeliveryOf(err) != limpet.DeliveryNone || wait > 4*time.Second {
			return number, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
