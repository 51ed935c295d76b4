// Command flaky shows what retries do: a shop behind a network that loses
// requests and replies, called without and with them. It plays for some seconds
// and ends; the same seed plays the same.
//
//	go run ./examples/flaky -seed 7
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

func main() {
	seed := flag.Uint64("seed", 1, "the network draws its faults from `n`")
	calls := flag.Int("calls", 10, "calls in each scene, `n` from 1 to 1000")
	flag.Parse()
	if *calls < 1 || *calls > 1000 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	s := &stage{}
	err := play(context.Background(), s, os.Stdout, *seed, *calls)
	s.close()
	if err != nil || s.failed {
		fmt.Fprintln(os.Stderr, "flaky:", err)
		os.Exit(1)
	}
}

// scene is one way to call the shop.
type scene struct {
	title   string
	retries limpet.StubOption
	call    func(ctx context.Context, shop *limpet.Stub[*Shop], i int) string
}

func sell(ctx context.Context, shop *limpet.Stub[*Shop], i int) string {
	return placeOrder(ctx, shop, fmt.Sprintf("order %d", i))
}

func setPrice(ctx context.Context, shop *limpet.Stub[*Shop], i int) string {
	if err := limpet.Do2(ctx, shop, (*Shop).SetPrice, "apple", i); err != nil {
		return fmt.Sprintf("%v: %v", limpet.DeliveryOf(err), err)
	}
	return fmt.Sprintf("the price is %d", i)
}

// play shows the scenes, each with a node of its own.
func play(ctx context.Context, tb limpettest.TB, out io.Writer, seed uint64, calls int) error {
	fmt.Fprintf(out, "A shop behind a bad network (seed %d): of 100 attempts about 15\nare refused, 15 requests are lost, and 15 replies.\n", seed)
	scenes := []scene{
		{"sell, without retries", limpet.NoRetries(), sell},
		{"sell, with retries; not marked, so it never runs twice", limpet.MaxRetries(4), sell},
		{"setPrice, with retries; marked, so it may run again", limpet.MaxRetries(4), setPrice},
	}
	var table string
	for _, sc := range scenes {
		row, err := sc.play(ctx, tb, out, seed, calls)
		if err != nil {
			return err
		}
		table += row
	}
	fmt.Fprintf(out, "\ncalls  attempts  ran  retries refused by the shop\n%s", table)
	return nil
}

func (sc scene) play(ctx context.Context, tb limpettest.TB, out io.Writer, seed uint64, calls int) (row string, err error) {
	fmt.Fprintf(out, "\n%s:\n", sc.title)
	n := limpettest.StartConfig(tb, node.Config{
		Classes: []*limpet.Class{ShopClass}, Logger: slog.New(slog.DiscardHandler),
	})
	shops, err := limpet.NamespaceOf[*Shop](n, "SHOP")
	if err != nil {
		return "", err
	}
	net := n.Network(limpettest.Seed(seed))
	for _, method := range []string{"sell", "setPrice"} {
		where := []limpettest.FaultOption{limpettest.Method(method), limpettest.Probability(0.15)}
		net.Inject(limpettest.Refuse(where...), limpettest.DropRequest(where...), limpettest.DropReply(where...))
	}
	shop := shops.Named("corner", sc.retries)
	attempts := 0
	for i := range calls {
		before := sum(n)
		refused, requests, replies := net.Count(limpettest.FaultRefuse), net.Count(limpettest.FaultDropRequest), net.Count(limpettest.FaultDropReply)
		came := sc.call(ctx, shop, i+1)
		after := sum(n)
		made := 1 + int(after.retries-before.retries)
		attempts += made
		fmt.Fprintf(out, "%4d  attempts %d", i+1, made)
		for _, f := range []struct {
			what string
			n    int
		}{
			{"connection refused", net.Count(limpettest.FaultRefuse) - refused},
			{"request lost", net.Count(limpettest.FaultDropRequest) - requests},
			{"reply lost", net.Count(limpettest.FaultDropReply) - replies},
			{"retry refused by the shop", int(after.rejected - before.rejected)},
		} {
			if f.n > 0 {
				fmt.Fprintf(out, ", %s %d", f.what, f.n)
			}
		}
		fmt.Fprintf(out, ": %s\n", came)
	}
	net.Heal()
	sold, err := limpet.Call(ctx, shop, (*Shop).Sold)
	if err != nil {
		return "", err
	}
	end := sum(n)
	ran := sold + int(end.marked) // whoever sells is not marked, whoever is marked does not sell
	return fmt.Sprintf("%5d  %8d  %3d  %27d  %s\n", calls, attempts, ran, int(end.rejected), sc.title), nil
}

// counters are what the node counts of a scene.
type counters struct{ retries, marked, rejected float64 }

func sum(n *limpettest.Node) (c counters) {
	for _, m := range n.Metrics() {
		switch {
		case m.Name == "limpet_call_retries_total":
			c.retries += m.Value
		case m.Name == "limpet_claims_taken_total" && m.Labels["marked"] == "true":
			c.marked += m.Value
		case m.Name == "limpet_claims_rejected_total":
			c.rejected += m.Value
		}
	}
	return c
}
