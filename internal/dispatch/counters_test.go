package dispatch

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
		attempt := func(method, replayable, result string) map[string]string {
			m := l(method)
			m["replayable"], m["retryable"], m["committed"], m["result"] = replayable, "true", "false", result
			return m
		}
		want := []limpet.Metric{
			{Name: "limpet_replay_memory_bytes", Value: 0},
			{Name: "limpet_replay_memory_limit_bytes", Value: 10_000},
			{Name: "limpet_replay_memory_call_limit_bytes", Value: 32 << 20},
			{Name: "limpet_replay_refused_total", Value: 1},
			// SPEC I5: each attempt once, when it is decided what follows.
			{Name: "limpet_call_attempts_total", Labels: attempt("addOne", "true", "retried"), Value: 2},
			{Name: "limpet_call_attempts_total", Labels: attempt("addOne", "true", "succeeded"), Value: 1},
			{Name: "limpet_call_attempts_total", Labels: attempt("addOne", "true", "failed"), Value: 1}, // the claim
			{Name: "limpet_call_attempts_total", Labels: attempt("addOne", "false", "succeeded"), Value: 1},
			{Name: "limpet_call_attempts_total", Labels: attempt("", "true", "retried"), Value: 1},
			{Name: "limpet_call_attempts_total", Labels: attempt("", "true", "succeeded"), Value: 1},
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

// TestAttemptEnds tells of every attempt once, also of fetches and of those that
// were given up.
func TestAttemptEnds(t *testing.T) {
	retries := func(n int) func(*limpet.CallSpec) { return policy(n, 1500*ms) }
	for _, test := range []struct {
		name   string
		script []fault
		make   func(e *Engine, ctx context.Context) error
		want   []AttemptEnd
	}{
		// SPEC I6: rewindable, retryable
		{"fetch", []fault{{kind: lostRequest}}, func(e *Engine, ctx context.Context) error {
			_, err := e.Fetch(ctx, fetchCall(), must(http.NewRequest("PUT", "http://x/", strings.NewReader("a"))), true)
			return err
		}, []AttemptEnd{{true, true, false, AttemptRetried}, {true, true, false, AttemptSucceeded}}},
		{"stream", []fault{{kind: lostRequest}}, func(e *Engine, ctx context.Context) error {
			_, err := e.Fetch(ctx, fetchCall(), stream("PUT", "http://x/", newBody("a")), true)
			return err
		}, []AttemptEnd{{false, true, false, AttemptFailed}}},
		{"no retries", []fault{{kind: lostRequest}}, func(e *Engine, ctx context.Context) error {
			_, err := e.Fetch(ctx, fetchCall(retries(0)), must(http.NewRequest("GET", "http://x/", nil)), true)
			return err
		}, []AttemptEnd{{true, false, false, AttemptFailed}}},
		// SPEC I5: a failure that awaits a decision is counted when that is made,
		// and what is canceled is no failure
		{"cutoff", []fault{{kind: lostRequest}, {kind: hang}}, func(e *Engine, ctx context.Context) error {
			_, err := e.Call(ctx, newCall(retries(4)))
			return err
		}, []AttemptEnd{{true, true, false, AttemptRetried}, {true, true, false, AttemptCanceled}}},
		{"caller", []fault{{kind: hang}}, func(e *Engine, ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 10*ms)
			defer cancel()
			_, err := e.Call(ctx, newCall())
			return err
		}, []AttemptEnd{{true, true, false, AttemptCanceled}}},
		{"caller, while backing off", []fault{{kind: refused}}, func(e *Engine, ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 10*ms)
			defer cancel()
			_, err := e.Call(ctx, newCall())
			return err
		}, []AttemptEnd{{true, true, false, AttemptRetried}}},
		{"stub as an argument", []fault{{kind: refused}}, func(e *Engine, ctx context.Context) error {
			_, err := e.Call(ctx, newCall(func(c *limpet.CallSpec) { c.Unretryable = "a stub" }))
			return err
		}, []AttemptEnd{{false, true, false, AttemptFailed}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, test.script...)
				e := w.engine()
				_ = test.make(e, t.Context()) // how it ends is not the point
				e.Close()
				if !slices.Equal(w.ends, test.want) {
					t.Errorf("attempts ended %+v, want %+v", w.ends, test.want)
				}
			})
		})
	}
}

func TestCountersAddUp(t *testing.T) {
	// SPEC I3: calls of one kind are one line, with the time of all of them
	var k Counters
	for _, since := range []time.Duration{time.Second, 250 * ms} {
		k.Outcome(newCall(), OutcomeRecovered, since)
	}
	got := map[string]float64{}
	for _, m := range k.Metrics(newWorld(t).engine()) {
		if m.Labels["outcome"] == "recovered" {
			got[m.Name] += m.Value
		}
	}
	want := map[string]float64{"limpet_call_retry_outcomes_total": 2, "limpet_call_retry_seconds_total": 1.25}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
