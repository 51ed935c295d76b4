package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

func show(t *testing.T, seed uint64, calls int) string {
	t.Helper()
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		start := time.Now()
		if err := play(t.Context(), s, &out, seed, calls); err != nil || s.Failed() {
			t.Error(err)
		}
		s.close()
		if took := time.Since(start); calls <= 10 && took > time.Minute {
			t.Errorf("it took %v", took)
		}
	})
	return out.String()
}

func TestPlay(t *testing.T) {
	t.Parallel()
	got := show(t, 1, 10)
	if again := show(t, 1, 10); again != got {
		t.Errorf("the same seed gave\n%s\nand then\n%s", got, again)
	}
	for _, want := range []string{
		"reply lost 1, retry refused by the shop 1: sold as number 7, the answer was lost\n",
		"connection refused 1: not sold, certainly\n",
		"   10        16   10                            1  sell, with retries; not marked, so it never runs twice\n",
		"   10        16   11                            0  setPrice, with retries; marked, so it may run again\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if long := show(t, 2, 300); strings.Count(long, "sold as number") < 400 {
		t.Errorf("300 orders without and with retries:\n%s", long)
	}
}

// TestPlaceOrder meets each way in which an order can end.
func TestPlaceOrder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		want   string
		faults []limpettest.Fault
	}{
		{"sold as number 1", nil},
		{"not sold, certainly", []limpettest.Fault{limpettest.Refuse()}},
		{"sold as number 1, the answer was lost", []limpettest.Fault{limpettest.DropReply(limpettest.Method("sell"))}},
		{"not sold, as far as the shop knows", []limpettest.Fault{limpettest.DropRequest(limpettest.Method("sell"))}},
		{"may have been sold; can't look: ", []limpettest.Fault{limpettest.DropRequest()}},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := limpettest.Start(t, ShopClass)
			n.Network().Inject(test.faults...)
			shops, err := limpet.NamespaceOf[*Shop](n, "SHOP")
			if err != nil {
				t.Fatal(err)
			}
			if got := placeOrder(t.Context(), shops.Named("corner"), "o"); !strings.HasPrefix(got, test.want) || len(got) > len(test.want) && !strings.HasSuffix(test.want, " ") {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestSellPatiently counts the attempts of a loop of one's own.
func TestSellPatiently(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// SPEC D30
		n := limpettest.Start(t, ShopClass)
		net := n.Network()
		shops, err := limpet.NamespaceOf[*Shop](n, "SHOP")
		if err != nil {
			t.Fatal(err)
		}
		net.Inject(limpettest.Refuse(limpettest.Times(3)))
		if number, err := sellPatiently(t.Context(), shops, "o"); number != 1 || err != nil || net.Attempts() != 4 {
			t.Errorf("%d, %v, %d attempts", number, err, net.Attempts())
		}
		net.Inject(limpettest.DropReply(limpettest.Times(1)))
		if _, err := sellPatiently(t.Context(), shops, "p"); limpet.DeliveryOf(err) != limpet.DeliveryUncertain || net.Attempts() != 5 {
			t.Errorf("%v, %d attempts", err, net.Attempts())
		}
		net.Inject(limpettest.Refuse())
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if _, err := sellPatiently(ctx, shops, "q"); err == nil || net.Attempts() != 7 {
			t.Errorf("%v, %d attempts", err, net.Attempts())
		}
	})
}

// A test of one's own: the answer to an order is lost, and nothing is sold twice.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // waiting takes no time
		n := limpettest.Start(t, ShopClass)
		shops, err := limpet.NamespaceOf[*Shop](n, "SHOP")
		if err != nil {
			t.Fatal(err)
		}
		shop := shops.Named("corner")
		net := n.Network()
		net.Inject(limpettest.DropReply(limpettest.Method("sell"), limpettest.Times(1)))

		_, err = limpet.Call1(t.Context(), shop, (*Shop).Sell, "order 1")
		if limpet.DeliveryOf(err) != limpet.DeliveryUncertain {
			t.Errorf("got %v", err)
		}
		if sold, err := limpet.Call(t.Context(), shop, (*Shop).Sold); sold != 1 || err != nil {
			t.Errorf("sold %d, %v", sold, err)
		}
		if net.Count(limpettest.FaultDropReply) != 1 {
			t.Error("no reply was lost")
		}
	})
}

// A retry policy for one stub, and one for a whole binding, show in its stubs.
func TestPolicies(t *testing.T) {
	t.Parallel()
	// SPEC D1, D5
	n := limpettest.StartConfig(t, config)
	shops, err := limpet.NamespaceOf[*Shop](n, "SHOP")
	if err != nil {
		t.Fatal(err)
	}
	quick := shops.Named("corner", limpet.MaxRetries(1), limpet.RetryTimeout(2*time.Second))
	if got, want := quick.Policy(), (limpet.RetryPolicy{MaxRetries: 1, Timeout: 2 * time.Second}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := shops.Named("corner").Policy(), (limpet.RetryPolicy{MaxRetries: 4, Timeout: 5 * time.Second}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestPage compares the Go code of docs/RETRIES.md with the files of this folder.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "RETRIES.md"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code.WriteString(unindented(string(b)) + "\n")
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) < 5 {
		t.Fatalf("%d examples", len(blocks))
	}
	for _, b := range blocks {
		b, _, _ = strings.Cut(b, "\n```")
		if !strings.Contains(code.String(), unindented(b)) {
			t.Errorf("docs/RETRIES.md shows code that no test runs:\n%s", b)
		}
	}
}

func unindented(code string) string {
	lines := strings.Split(code, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}
