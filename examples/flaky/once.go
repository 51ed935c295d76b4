package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/limpet-dev/limpet"
)

// sellOnce may be called again after any failure, also by another process after a
// restart: the shop sells once for each order.
func sellOnce(ctx context.Context, shop *limpet.Stub[*Shop], order string) (int, error) {
	return limpet.Call1(limpet.WithIdempotencyKey(ctx, order), shop, (*Shop).Sell, order)
}

// sellAndAsk sells once, and after a failure asks what became of it.
func sellAndAsk(ctx context.Context, shops limpet.Namespace[*Shop], order string) string {
	shop := shops.Named("corner", limpet.ReplayOutcome())
	number, err := limpet.Call1(ctx, shop, (*Shop).Sell, order)
	lost, ok := errors.AsType[*limpet.Error](err)
	switch {
	case err == nil:
		return fmt.Sprintf("sold as number %d", number)
	case !ok || lost.Identity == "":
		return fmt.Sprintf("not sold: %v", err)
	}
	found, err := limpet.Outcome(ctx, shop, lost.Identity)
	if err != nil {
		return fmt.Sprintf("may have been sold; can't ask: %v", err)
	}
	switch found.Kind {
	case limpet.OutcomeNotReceived:
		return "not sold, and it will not be"
	case limpet.OutcomeRunning:
		return "being sold: ask again"
	case limpet.OutcomeError:
		return fmt.Sprintf("not sold: %v", found.Err)
	case limpet.OutcomeResult:
		if err := found.Decode(&number); err != nil {
			return fmt.Sprintf("sold, but %v", err)
		}
		return fmt.Sprintf("sold as number %d, the answer was lost", number)
	default: // OutcomeNotKept
		return "may have been sold: look"
	}
}
