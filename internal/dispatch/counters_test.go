package dispatch

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// TestCounters plays calls and reads what was counted.
func TestCounters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC I1, I2, I3, I4, I7, G21
		w := newWorld(t, fault{kind: lostRequest}, fault{}, fault{kind: lostReply}, fault{})
		w.boot = Boot{}
		var k Counters
		e := New(Config{Router: w, Clock: sim.Clock{}, Observer: &k, ReplayMemory: 10_000})
		defer e.Close()
		draw, err := drawFor(1, 100*ms)
		if err != nil {
			t.Fatal(err)
		}
		e.draw = func() uint64 { return draw }
		class := limpet.NewClass("Cart", func(*limpet.State) (*countedCart, error) { return nil, nil })
		named := func(c *limpet.CallSpec) { c.Binding = &limpet.Binding{Name: "CART", Class: class} }
		if _, err := e.Call(t.Context(), newCall(named)); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Call(t.Context(), newCall(named)); err == nil {
			t.Fatal("the claim was not rejected")
		}
		big := func(c *limpet.CallSpec) { c.Runner = &args{size: 20_000} }
		if _, err := e.Call(t.Context(), newCall(named, big)); err != nil {
			t.Fatal(err)
		}
		w.script = append(w.script, fault{}, fault{kind: refused}, fault{})
		unknown := func(c *limpet.CallSpec) { c.Method = "anything a caller may write" }
		if _, err := e.Call(t.Context(), newCall(named, unknown)); err != nil {
			t.Fatal(err)
		}
		l := func(method string) map[string]string {
			return map[string]string{"type": "jsrpc", "binding": "CART", "method": method}
		}
		with := func(m map[string]string, outcome string) map[string]string {
			m["outcome"] = outcome
			return m
		}
		want := []limpet.Metric{
			{Name: "limpet_replay_memory_bytes", Value: 0},
			{Name: "limpet_replay_memory_limit_bytes", Value: 10_000},
			{Name: "limpet_replay_refused_total", Value: 1},
			{Name: "limpet_call_retries_total", Labels: l("addOne"), Value: 2},
			{Name: "limpet_call_retries_total", Labels: l(""), Value: 1},
			{Name: "limpet_call_retry_outcomes_total", Labels: with(l("addOne"), "recovered"), Value: 1},
			{Name: "limpet_call_retry_outcomes_total", Labels: with(l("addOne"), "claim_rejected"), Value: 1},
			{Name: "limpet_call_retry_outcomes_total", Labels: with(l(""), "recovered"), Value: 1},
			{Name: "limpet_call_retry_seconds_total", Labels: with(l("addOne"), "recovered"), Value: 0.1},
			{Name: "limpet_call_retry_seconds_total", Labels: with(l("addOne"), "claim_rejected"), Value: 0.1},
			{Name: "limpet_call_retry_seconds_total", Labels: with(l(""), "recovered"), Value: 0.1},
		}
		got := k.Metrics(e)
		for _, m := range want {
			if !slices.ContainsFunc(got, func(g limpet.Metric) bool {
				return g.Name == m.Name && g.Value == m.Value && maps.Equal(g.Labels, m.Labels)
			}) {
				t.Errorf("no %+v", m)
			}
		}
		if len(got) != len(want) {
			t.Errorf("got %+v", got)
		}
	})
}

type countedCart struct{}

func (*countedCart) AddOne(context.Context) error { return nil }
