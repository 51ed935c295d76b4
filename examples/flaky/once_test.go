package main

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// TestOnce: each order is sold once, whatever is lost.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := limpettest.Start(t, ShopClass)
		shops, err := limpet.NamespaceOf[*Shop](n, "SHOP")
		if err != nil {
			t.Fatal(err)
		}
		shop := shops.Named("corner")
		net := n.Network()
		net.Inject(limpettest.DropReply(limpettest.Times(5))) // all attempts of a call
		_, err = sellOnce(t.Context(), shop, "order 1")
		if !errors.Is(err, limpet.CodeDisconnected) {
			t.Fatalf("got %v", err)
		}
		n.Crash()
		n.Restart()
		for range 2 {
			if number, err := sellOnce(t.Context(), shop, "order 1"); number != 1 || err != nil {
				t.Errorf("number %d, %v", number, err)
			}
		}
		for _, c := range []struct {
			order string
			fault limpettest.Fault
			want  string
		}{
			{"order 2", limpettest.DropReply(limpettest.Times(1)), "sold as number 2"}, // a retry brings the result
			{"order 3", limpettest.DropReply(limpettest.Times(5)), "sold as number 3, the answer was lost"},
			{"order 4", limpettest.DropRequest(limpettest.Times(5)), "not sold, and it will not be"},
		} {
			net.Inject(c.fault)
			if got := sellAndAsk(t.Context(), shops, c.order); got != c.want {
				t.Errorf("%s: %s, want %s", c.order, got, c.want)
			}
		}
		if sold, err := limpet.Call(t.Context(), shop, (*Shop).Sold); sold != 3 || err != nil {
			t.Errorf("sold %d, %v", sold, err)
		}
	})
}
