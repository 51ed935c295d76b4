package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

func TestTimelines(t *testing.T) {
	typeError := &limpet.Error{Name: "TypeError", Message: "bad", Delivery: limpet.DeliveryReceived, Remote: true}
	tests := []struct {
		name     string
		policy   func(*limpet.CallSpec)
		marked   bool
		script   []fault
		delays   []time.Duration
		attempts []string
		end      time.Duration
		code     limpet.Code // empty: result
		delivery limpet.Delivery
		runs     int
		outcome  []string
	}{{
		// SPEC T1, E1, E21, E25, E30, E56 and C21: receipt unknown, so the same
		// identity with the flag; waiting for the result commits to no attempt
		name:     "recovered",
		script:   []fault{{after: 120 * ms, kind: lostRequest}, {after: 40 * ms}},
		delays:   []time.Duration{310 * ms},
		attempts: []string{"0s #1 (N1,0)", "430ms #2 (N1,1)"},
		end:      470 * ms, runs: 1, outcome: []string{"jsrpc recovered 350ms"},
	}, {
		// SPEC T2, E22, C25: nobody sees the rejection
		name:     "received, not marked",
		script:   []fault{{after: 50 * ms, kind: lostReply}, {after: 5 * ms}},
		delays:   []time.Duration{200 * ms},
		attempts: []string{"0s #1 (N1,0)", "250ms #2 (N1,1)"},
		end:      255 * ms, code: limpet.CodeDisconnected, delivery: limpet.DeliveryUncertain, runs: 1,
		outcome: []string{"jsrpc claim_rejected 205ms"},
	}, {
		// SPEC T3, F38
		name: "received, marked", marked: true,
		script:   []fault{{after: 50 * ms, kind: lostReply}, {after: 10 * ms}},
		delays:   []time.Duration{200 * ms},
		attempts: []string{"0s #1 (N1,0)", "250ms #2 (N1,1)"},
		end:      260 * ms, runs: 2, outcome: []string{"jsrpc recovered 210ms"},
	}, {
		// SPEC T4, E26, D2, C20
		name: "unreachable",
		script: []fault{
			{after: 5 * ms, kind: refused}, {after: 5 * ms, kind: refused}, {after: 5 * ms, kind: refused},
			{after: 5 * ms, kind: refused}, {after: 5 * ms, kind: refused},
		},
		delays: []time.Duration{304 * ms, 900 * ms, 1700 * ms, 1100 * ms},
		attempts: []string{
			"0s #1 (N1,0)", "309ms #2 (N2,0)", "1.214s #3 (N3,0)", "2.919s #4 (N4,0)", "4.024s #5 (N5,0)",
		},
		end: 4029 * ms, code: limpet.CodeDisconnected, delivery: limpet.DeliveryNone,
		outcome: []string{"jsrpc attempts_exhausted 4.024s"},
	}, {
		// SPEC T5, E31, E12, D3
		name: "hung retry", policy: policy(4, 1500*ms),
		script:   []fault{{after: 2 * ms, kind: refused}, {kind: hang}},
		delays:   []time.Duration{450 * ms},
		attempts: []string{"0s #1 (N1,0)", "452ms #2 (N2,0)"},
		end:      1500 * ms, code: limpet.CodeDisconnected,
		delivery: limpet.DeliveryUncertain, // the hung one may have arrived
		outcome:  []string{"jsrpc retry_budget_exhausted 1.498s"},
	}, {
		// SPEC T6, E27
		name: "backoff does not fit", policy: policy(4, 500*ms),
		script:   []fault{{after: 200 * ms, kind: refused}},
		delays:   []time.Duration{340 * ms},
		attempts: []string{"0s #1 (N1,0)"},
		end:      200 * ms, code: limpet.CodeDisconnected, delivery: limpet.DeliveryNone,
	}, {
		// SPEC T7
		name:     "slow first attempt fails",
		script:   []fault{{after: 14 * time.Second, kind: lostRequest}},
		attempts: []string{"0s #1 (N1,0)"},
		end:      14 * time.Second, code: limpet.CodeDisconnected, delivery: limpet.DeliveryUncertain,
	}, {
		// SPEC T7, E32, D10
		name: "slow first attempt answers", policy: policy(4, 500*ms),
		script:   []fault{{after: 14 * time.Second}},
		attempts: []string{"0s #1 (N1,0)"},
		end:      14 * time.Second, runs: 1,
	}, {
		// SPEC T9, E28
		name: "mixed identity",
		script: []fault{
			{after: ms, kind: refused}, {after: ms, kind: lostRequest}, {after: ms, kind: refused}, {after: ms},
		},
		delays:   []time.Duration{10 * ms, 10 * ms, 10 * ms},
		attempts: []string{"0s #1 (N1,0)", "11ms #2 (N2,0)", "22ms #3 (N2,1)", "33ms #4 (N2,1)"},
		end:      34 * ms, runs: 1, outcome: []string{"jsrpc recovered 33ms"},
	}, {
		// SPEC T10, E23
		name:     "retry meets user error",
		script:   []fault{{after: 10 * ms, kind: refused}, {after: 5 * ms, kind: failing, err: typeError}},
		delays:   []time.Duration{290 * ms},
		attempts: []string{"0s #1 (N1,0)", "300ms #2 (N2,0)"},
		end:      305 * ms, code: limpet.CodeApplication, delivery: limpet.DeliveryReceived,
		outcome: []string{"jsrpc unable_to_retry 295ms"},
	}, {
		// SPEC T12, D2, E3
		name: "no retries", policy: policy(0, 10*time.Second),
		script:   []fault{{after: 6 * ms, kind: refused}},
		attempts: []string{"0s #1 (N1,0)"},
		end:      6 * ms, code: limpet.CodeDisconnected, delivery: limpet.DeliveryNone,
	}, {
		// SPEC E24, C22, C52: the later disconnect is known to be received
		name:     "received on a retry",
		script:   []fault{{kind: refused}, {after: 5 * ms, kind: received}},
		attempts: []string{"0s #1 (N1,0)", "100ms #2 (N2,0)"},
		end:      105 * ms, code: limpet.CodeDisconnected, delivery: limpet.DeliveryReceived, runs: 1,
		outcome: []string{"jsrpc unable_to_retry 105ms"},
	}, {
		// SPEC C24, F22
		name:     "draining predecessor",
		script:   []fault{{after: ms, kind: draining}, {after: ms}},
		attempts: []string{"0s #1 (N1,0)", "101ms #2 (N2,0)"},
		end:      102 * ms, runs: 1, outcome: []string{"jsrpc recovered 101ms"},
	}, {
		// SPEC D10: eleven attempts, within the timeout
		name: "most retries", policy: policy(10, time.Minute), marked: true,
		script: slices.Repeat([]fault{{kind: lostReply}}, 10),
		attempts: []string{
			"0s #1 (N1,0)", "100ms #2 (N1,1)", "200ms #3 (N1,1)", "300ms #4 (N1,1)", "400ms #5 (N1,1)", "500ms #6 (N1,1)",
			"600ms #7 (N1,1)", "700ms #8 (N1,1)", "800ms #9 (N1,1)", "900ms #10 (N1,1)", "1s #11 (N1,1)",
		},
		end: time.Second, runs: 11, outcome: []string{"jsrpc recovered 1s"},
	}}
	for _, test := range tests {
		for _, mode := range []string{"direct", "cancellable", "prompt"} {
			t.Run(test.name+"/"+mode, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, test.script...)
					w.marked, w.prompt = test.marked, mode == "prompt"
					e := w.engine(test.delays...)
					defer e.Close()
					c := newCall()
					if test.policy != nil {
						test.policy(c)
					}
					ctx := context.Background()
					if mode != "direct" {
						var cancel context.CancelFunc
						ctx, cancel = context.WithCancel(ctx)
						defer cancel()
					}
					v, err := e.Call(ctx, c)
					if got := time.Since(w.start); got != test.end {
						t.Errorf("ended after %v, want %v", got, test.end)
					}
					if diff := cmp.Diff(test.attempts, w.flags()); diff != "" {
						t.Errorf("attempts (- want, + got):\n%s", diff)
					}
					if w.executions != test.runs {
						t.Errorf("%d executions, want %d", w.executions, test.runs)
					}
					// SPEC I2, I3, I4: as many retries as started, one outcome if any did
					if w.retries != len(test.attempts)-1 {
						t.Errorf("%d retries counted, want %d", w.retries, len(test.attempts)-1)
					}
					if diff := cmp.Diff(test.outcome, w.outcomes); diff != "" {
						t.Errorf("outcomes (- want, + got):\n%s", diff)
					}
					if test.code == "" {
						if err != nil || v != test.runs {
							t.Errorf("got %v, %v", v, err)
						}
					} else {
						got := asLimpet(t, err)
						if got.CodeOrDefault() != test.code || got.Delivery != test.delivery || got.Attempts != len(test.attempts) {
							t.Errorf("got %q, %v, %d attempts; want %q, %v, %d",
								got.CodeOrDefault(), got.Delivery, got.Attempts, test.code, test.delivery, len(test.attempts))
						}
					}
					// SPEC G22: released at the end
					if got := e.ReplayMemory().Used; got != 0 {
						t.Errorf("%d bytes of replay memory left", got)
					}
				})
			})
		}
	}
}

func TestCutoffCancelsRetry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E31: at exactly the cutoff, and cancellation reaches the receiver
		w := newWorld(t, fault{kind: refused}, fault{kind: hang})
		var cause error
		w.routes = func(n int) Transport {
			if n == 0 {
				return w
			}
			return transportFunc{w, func(ctx context.Context, a Attempt) (any, error) {
				<-ctx.Done()
				cause = context.Cause(ctx)
				return nil, ctx.Err()
			}}
		}
		e := w.engine(0)
		_, err := e.Call(t.Context(), newCall(policy(4, 500*ms)))
		if got := time.Since(w.start); got != 500*ms {
			t.Errorf("ended after %v, want 500ms", got)
		}
		e.Close()
		if !errors.Is(cause, errCutoff) {
			t.Errorf("the retry was cancelled with %v, want %v", cause, errCutoff)
		}
		if got := asLimpet(t, err); got.Identity == "" {
			t.Errorf("no identity in %+v: the cancelled retry is uncertain", got)
		}
	})
}

// transportFunc is a world with its own Do.
type transportFunc struct {
	*world
	do func(context.Context, Attempt) (any, error)
}

func (f transportFunc) Do(ctx context.Context, a Attempt) (any, error) {
	f.mu.Lock()
	f.attempts = append(f.attempts, seen{time.Since(f.start), a})
	f.mu.Unlock()
	return f.do(ctx, a)
}

func TestNoWaitAfterLastAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E26
		w := newWorld(t, fault{kind: refused}, fault{after: 7 * ms, kind: refused})
		e := w.engine(10*ms, 900*ms)
		defer e.Close()
		_, err := e.Call(t.Context(), newCall(policy(1, 10*time.Second)))
		if got := time.Since(w.start); got != 17*ms || err == nil {
			t.Errorf("ended after %v with %v, want 17ms and an error", got, err)
		}
	})
}

func TestWhichErrorIsFinal(t *testing.T) {
	// The table at the end of SPEC E.4. SPEC C50, C51
	tests := []struct {
		name     string
		second   error
		attempts int
		message  string
	}{
		{"overloaded", code(limpet.CodeOverloaded, limpet.DeliveryNone), 2, "Overloaded"},
		{"reset", code(limpet.CodeReset, limpet.DeliveryReceived), 2, "Reset"},
		{"no limpet error", errors.New("boom"), 2, "boom"},
		{"wrapped", fmt.Errorf("there: %w", code(limpet.CodeTooLarge, limpet.DeliveryNone)), 2, "there: TooLarge"},
		{"claimed", code(limpet.CodeAlreadyReceived, 0), 2, "Network connection lost."},
		{"lost until exhausted", lost(limpet.DeliveryNone), 5, "Network connection lost."},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t)
				w.faults = func(n int) fault {
					if n == 0 {
						return fault{kind: lostRequest}
					}
					return fault{kind: failing, err: test.second}
				}
				e := w.engine()
				defer e.Close()
				_, err := e.Call(t.Context(), newCall())
				got := asLimpet(t, err)
				if test.name == "wrapped" && !errors.Is(err, test.second) {
					t.Errorf("%v does not lead to %v", err, test.second)
				}
				if got.Message != test.message || got.Attempts != test.attempts || len(w.attempts) != test.attempts {
					t.Errorf("got %q after %d (%d) attempts, want %q after %d",
						got.Message, got.Attempts, len(w.attempts), test.message, test.attempts)
				}
				// The first attempt may have run the method, whatever became of the last.
				if got.Delivery == limpet.DeliveryNone {
					t.Errorf("delivery is %v after an uncertain attempt", got.Delivery)
				}
				if want := w.attempts[0].Identity.String() + "@0100000000000000"; got.Identity != want {
					t.Errorf("identity %q, want that of the uncertain attempt %q", got.Identity, want)
				}
			})
		})
	}
}

func TestNeverRetried(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want limpet.Error
	}{
		// SPEC C7, C28: look-alikes from user code
		{"forged disconnect", &limpet.Error{Code: limpet.CodeDisconnected, Message: "x", Remote: true, Retryable: true},
			limpet.Error{Code: limpet.CodeDisconnected, Remote: true, Retryable: true}},
		{"forged disconnect, not delivered", &limpet.Error{Code: limpet.CodeDisconnected, Message: "x", Remote: true, Delivery: limpet.DeliveryNone},
			limpet.Error{Code: limpet.CodeDisconnected, Remote: true, Delivery: limpet.DeliveryNone}},
		// SPEC F17: neither is a claim rejection by its look
		{"forged claim", &limpet.Error{Code: limpet.CodeAlreadyReceived, Message: "x", Remote: true, Delivery: limpet.DeliveryReceived},
			limpet.Error{Code: limpet.CodeAlreadyReceived, Remote: true, Delivery: limpet.DeliveryReceived}},
		// SPEC C51, C2: retryable exactly for lost connections, and never both
		{"overloaded", &limpet.Error{Code: limpet.CodeOverloaded, Message: "x", Overloaded: true, Retryable: true},
			limpet.Error{Code: limpet.CodeOverloaded, Overloaded: true}},
		// SPEC C22, C50
		{"received", lost(limpet.DeliveryReceived),
			limpet.Error{Code: limpet.CodeDisconnected, Delivery: limpet.DeliveryReceived, Retryable: true}},
		{"not a limpet error", errors.New("boom"), limpet.Error{Code: limpet.CodeInternal}},
		{"canceled elsewhere", context.Canceled, limpet.Error{Code: limpet.CodeInternal}},
		// SPEC E22: no retry was made
		{"claim without a retry", code(limpet.CodeAlreadyReceived, 0), limpet.Error{Code: limpet.CodeInternal}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, fault{kind: failing, err: test.err})
				e := w.engine()
				defer e.Close()
				_, err := e.Call(t.Context(), newCall())
				got := asLimpet(t, err)
				short := limpet.Error{
					Code: got.Code, Delivery: got.Delivery, Remote: got.Remote, Retryable: got.Retryable, Overloaded: got.Overloaded,
				}
				if diff := cmp.Diff(test.want, short, ignoreUnexported); diff != "" {
					t.Errorf("error (- want, + got):\n%s", diff)
				}
				if len(w.attempts) != 1 || w.retries != 0 || w.outcomes != nil || got.Attempts != 1 {
					t.Errorf("%d attempts, %d retries, outcomes %v", len(w.attempts), w.retries, w.outcomes)
				}
			})
		})
	}
}

var ignoreUnexported = cmp.FilterPath(func(p cmp.Path) bool {
	f, ok := p.Last().(cmp.StructField)
	return ok && strings.ToLower(f.Name()[:1]) == f.Name()[:1]
}, cmp.Ignore())

func TestIneligible(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E2, E5, D11, G11: one attempt, no identity (F2), the failure untouched
		w := newWorld(t, fault{after: 20 * time.Second, kind: lostRequest})
		e := w.engine()
		defer e.Close()
		_, err := e.Call(t.Context(), newCall(func(c *limpet.CallSpec) { c.Unretryable = "an argument is a stub" }))
		if diff := cmp.Diff([]string{"0s #1 (none,0)"}, w.flags()); diff != "" {
			t.Error(diff)
		}
		want := lost(limpet.DeliveryUncertain)
		want.Attempts, want.NoRetry = 1, "an argument is a stub"
		if diff := cmp.Diff(want, err, ignoreUnexported); diff != "" {
			t.Error(diff)
		}
		if w.attempts[0].WillRetry || w.retries != 0 {
			t.Error("the attempt says that there will be retries")
		}
	})
}

func TestIdentityWithoutRetries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC F2, F1: an identity, but the receiver must only observe
		w := newWorld(t)
		e := w.engine()
		defer e.Close()
		if _, err := e.Call(t.Context(), newCall(policy(0, 10*time.Second))); err != nil {
			t.Fatal(err)
		}
		a := w.attempts[0]
		if a.Identity.IsZero() || a.WillRetry || a.Retry {
			t.Errorf("attempt %+v", a)
		}
		if got := a.Identity.Created(); !got.Equal(w.start) {
			t.Errorf("identity of %v, want %v", got, w.start)
		}
		if _, err := e.Call(t.Context(), newCall()); err != nil {
			t.Fatal(err)
		}
		if a := w.attempts[1]; !a.WillRetry || a.Identity == w.attempts[0].Identity {
			t.Errorf("second call's attempt %+v", a)
		}
	})
}

func TestReplayMemory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.faults = func(n int) fault { return fault{after: ms, kind: refused} }
		e := New(Config{Router: w, Clock: clock{}, Observer: w, ReplayMemory: 10_000, ReplayMemoryPerCall: 5_000})
		defer e.Close()
		var peak int64
		w.onRetry = func() { peak = e.ReplayMemory().Used }

		// SPEC G20, E4: arguments + 1 KiB + method name
		_, err := e.Call(t.Context(), newCall(func(c *limpet.CallSpec) { c.Runner = &args{size: 100} }))
		if got := asLimpet(t, err).Attempts; got != 5 {
			t.Errorf("%d attempts, want 5", got)
		}
		if want := int64(100 + 1024 + len("addOne")); peak != want {
			t.Errorf("reserved %d bytes, want %d", peak, want)
		}
		// SPEC G20, G10: a call without arguments reserves, and is retried, too
		if _, err = e.Call(t.Context(), newCall()); err == nil || peak != 1024+6 {
			t.Errorf("reserved %d bytes, want 1030", peak)
		}
		// SPEC G20: the path of a property read counts as its name does
		_, err = e.Call(t.Context(), newCall(func(c *limpet.CallSpec) { c.Path, c.Property = []string{"seven77", "of"}, true }))
		if err == nil || peak != 1024+6+7+2 {
			t.Errorf("reserved %d bytes, want 1039", peak)
		}
		// SPEC G21, G23: over the cap of a call: one attempt, which says so
		_, err = e.Call(t.Context(), newCall(func(c *limpet.CallSpec) { c.Runner = &args{size: 5001} }))
		if got := asLimpet(t, err); got.Attempts != 1 || got.Delivery != limpet.DeliveryNone {
			t.Errorf("over the cap: %+v", got)
		}
		if a := w.attempts[len(w.attempts)-1]; a.WillRetry || a.Identity.IsZero() {
			t.Errorf("over the cap: attempt %+v", a)
		}
		// SPEC G22, G23: calls share the pool, and give back what they took, once
		done := make(chan error)
		for range 5 {
			go func() {
				_, err := e.Call(context.Background(), newCall(func(c *limpet.CallSpec) { c.Runner = &args{size: 3000} }))
				done <- err
			}()
		}
		var got []int
		for range 5 {
			got = append(got, asLimpet(t, <-done).Attempts)
		}
		slices.Sort(got)
		if want := []int{1, 1, 1, 5, 5}; !slices.Equal(got, want) { // 4030 bytes each
			t.Errorf("attempts %v, want %v", got, want)
		}
		// SPEC I7
		if m, want := e.ReplayMemory(), (ReplayMemory{Used: 0, Limit: 10_000, PerCall: 5000, Refused: 4}); m != want || w.refusals != 4 {
			t.Errorf("replay memory %+v, want %+v; %d refusals seen", m, want, w.refusals)
		}
	})
}

func TestReplayMemoryDefaults(t *testing.T) {
	// SPEC G23
	e := newWorld(t).engine()
	if got := e.ReplayMemory().Limit; got != 64<<20 {
		t.Errorf("pool of %d bytes, want 64 MiB", got)
	}
	for size, want := range map[int]bool{32 << 20: true, 32<<20 + 1: false} {
		n, why := e.replay.reserve(newCall(func(c *limpet.CallSpec) { c.Runner = &args{size: size} }))
		if (why == "") != want {
			t.Errorf("reserve of %d bytes: %q, want %v", size, why, want)
		}
		e.replay.release(n)
	}
}

func TestReplayMemoryReleasedOnAbort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC G22
		w := newWorld(t, fault{kind: refused}, fault{kind: hang})
		e := w.engine()
		defer e.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.onRetry = func() {
			if e.ReplayMemory().Used == 0 {
				t.Error("nothing reserved")
			}
		}
		if _, err := e.Call(ctx, newCall()); err == nil {
			t.Error("no error")
		}
		if got := e.ReplayMemory().Used; got != 0 {
			t.Errorf("%d bytes left", got)
		}
	})
}

func TestArgumentsEncodedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E51, C32: a call whose arguments can't be encoded makes no attempt
		w := newWorld(t, fault{kind: refused}, fault{kind: refused})
		e := w.engine()
		defer e.Close()
		a := &args{}
		if _, err := e.Call(t.Context(), newCall(func(c *limpet.CallSpec) { c.Runner = a })); err != nil || len(w.attempts) != 3 {
			t.Errorf("%v after %d attempts", err, len(w.attempts))
		}
		if a.encoded != 1 {
			t.Errorf("the engine asked %d times for the arguments, want once", a.encoded)
		}
		w.attempts = nil
		a = &args{err: code(limpet.CodeInvalidArgument, 0)}
		_, err := e.Call(t.Context(), newCall(func(c *limpet.CallSpec) { c.Runner = a }))
		got := asLimpet(t, err)
		if got.Code != limpet.CodeInvalidArgument || got.Delivery != limpet.DeliveryNone || got.Attempts != 0 || len(w.attempts) != 0 {
			t.Errorf("got %+v after %d attempts", got, len(w.attempts))
		}
	})
}

func TestRoute(t *testing.T) {
	unknown := code(limpet.CodeUnknownNamespace, limpet.DeliveryNone)
	bubble(t, func(t *testing.T) {
		// SPEC E29, E52, E50: each attempt asks where the object is
		w := newWorld(t, fault{kind: refused}, fault{kind: refused})
		e := w.engine()
		defer e.Close()
		if _, err := e.Call(t.Context(), newCall()); err != nil || w.routed != 3 {
			t.Errorf("%v after %d routes, want 3", err, w.routed)
		}
	})
	bubble(t, func(t *testing.T) {
		// SPEC C43: not even a lost connection is retried if there was no attempt
		for _, fail := range []*limpet.Error{lost(limpet.DeliveryNone), unknown} {
			w := newWorld(t, fault{kind: noRoute, err: fail})
			e := w.engine()
			_, err := e.Call(t.Context(), newCall())
			if got := asLimpet(t, err); got.Code != fail.Code || got.Attempts != 0 || w.routed != 1 {
				t.Errorf("%+v after %d routes", got, w.routed)
			}
			e.Close()
		}
	})
	bubble(t, func(t *testing.T) {
		// SPEC E33: a retry that can't be started ends the call, …
		w := newWorld(t, fault{kind: lostRequest}, fault{kind: noRoute, err: unknown})
		e := w.engine()
		defer e.Close()
		_, err := e.Call(t.Context(), newCall())
		got := asLimpet(t, err)
		if got.Code != limpet.CodeUnknownNamespace || got.Delivery != limpet.DeliveryUncertain {
			t.Errorf("got %+v, want the router's error, uncertain because of the first attempt", got)
		}
		if diff := cmp.Diff([]string{"jsrpc other 100ms"}, w.outcomes); diff != "" {
			t.Error(diff)
		}
	})
	bubble(t, func(t *testing.T) {
		// … except for a lost connection, which counts as not delivered.
		w := newWorld(t, fault{kind: refused}, fault{kind: noRoute, err: lost(limpet.DeliveryUncertain)}, fault{})
		e := w.engine()
		defer e.Close()
		_, err := e.Call(t.Context(), newCall())
		if diff := cmp.Diff([]string{"0s #1 (N1,0)", "200ms #3 (N2,0)"}, w.flags()); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}

func TestUncertainBoots(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// DESIGN 5: a flagged retry lists where the uncertain attempts went
		w := newWorld(t, fault{kind: refused}, fault{kind: lostRequest}, fault{kind: lostRequest}, fault{kind: refused})
		w.routes = func(n int) Transport {
			return bootTransport{w, Boot{Boot: [16]byte{byte(n)}}}
		}
		e := w.engine()
		defer e.Close()
		if _, err := e.Call(t.Context(), newCall()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range w.attempts {
			s := ""
			for _, b := range a.Uncertain {
				s += fmt.Sprint(b.Boot[0])
			}
			got = append(got, s)
		}
		if want := []string{"", "", "1", "12", "12"}; !slices.Equal(got, want) {
			t.Errorf("boots %q, want %q", got, want)
		}
	})
}

type bootTransport struct {
	*world
	boot Boot
}

func (b bootTransport) Boot() Boot { return b.boot }

func TestAbort(t *testing.T) {
	stop := errors.New("no longer wanted")
	tests := []struct {
		name     string
		script   []fault
		at       time.Duration
		delivery limpet.Delivery
		attempts int
		outcome  []string
	}{
		// SPEC E34, C41: at once, with what is known of the delivery
		{"before the start", nil, 0, limpet.DeliveryNone, 0, nil},
		{"first attempt", []fault{{kind: hang}}, 50 * ms, limpet.DeliveryUncertain, 1, nil},
		{"first attempt, stuck transport", []fault{{kind: stuck}}, 50 * ms, limpet.DeliveryUncertain, 1, nil},
		{"backoff, not delivered", []fault{{kind: refused}}, 50 * ms, limpet.DeliveryNone, 1, nil},
		{"backoff, uncertain", []fault{{kind: lostRequest}}, 50 * ms, limpet.DeliveryUncertain, 1, nil},
		{"retry", []fault{{kind: refused}, {kind: hang}}, 150 * ms, limpet.DeliveryUncertain, 2,
			[]string{"jsrpc canceled 150ms"}},
		{"retry, stuck transport", []fault{{kind: refused}, {kind: stuck}}, 150 * ms, limpet.DeliveryUncertain, 2,
			[]string{"jsrpc canceled 150ms"}},
		{"second backoff", []fault{{kind: refused}, {kind: refused}}, 150 * ms, limpet.DeliveryNone, 2,
			[]string{"jsrpc canceled 150ms"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, test.script...)
				e := w.engine()
				ctx, cancel := context.WithCancelCause(t.Context())
				if test.at == 0 {
					cancel(stop)
				} else {
					time.AfterFunc(test.at, func() { cancel(stop) })
				}
				_, err := e.Call(ctx, newCall())
				if got := time.Since(w.start); got != test.at {
					t.Errorf("ended after %v, want %v", got, test.at)
				}
				got := asLimpet(t, err)
				if got.Code != limpet.CodeCanceled || !errors.Is(err, stop) || got.Delivery != test.delivery ||
					got.Attempts != test.attempts || got.Retryable {
					t.Errorf("got %+v", got)
				}
				if diff := cmp.Diff(test.outcome, w.outcomes); diff != "" {
					t.Error(diff)
				}
				// SPEC E36: Close waits for what the transport still does.
				closed := make(chan struct{})
				go func() {
					e.Close()
					close(closed)
				}()
				synctest.Wait()
				select {
				case <-closed:
					if slices.ContainsFunc(test.script, func(f fault) bool { return f.kind == stuck }) {
						t.Error("Close did not wait for the stuck attempt")
					}
				default:
				}
				close(w.unstick)
				<-closed
			})
		})
	}
}

func TestDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, fault{kind: hang})
		e := w.engine()
		defer e.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := e.Call(ctx, newCall())
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, limpet.CodeCanceled) || time.Since(w.start) != time.Minute ||
			!strings.Contains(err.Error(), "deadline passed") {
			t.Errorf("%v after %v", err, time.Since(w.start))
		}
	})
}

func TestAbortWhileRouting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E34: nothing was sent
		w := newWorld(t, fault{kind: noRoute, err: context.Canceled})
		ctx, cancel := context.WithCancel(t.Context())
		e := New(Config{Router: routerFunc(func(ctx context.Context, c *limpet.CallSpec) (Transport, error) {
			cancel()
			return w.Route(ctx, c)
		}), Clock: clock{}})
		defer e.Close()
		_, err := e.Call(ctx, newCall())
		if got := asLimpet(t, err); got.Code != limpet.CodeCanceled || got.Delivery != limpet.DeliveryNone || got.Attempts != 0 {
			t.Errorf("got %+v", got)
		}
	})
}

type routerFunc func(context.Context, *limpet.CallSpec) (Transport, error)

func (f routerFunc) Route(ctx context.Context, c *limpet.CallSpec) (Transport, error) {
	return f(ctx, c)
}

func TestCloseCancelsWithCause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E35
		w := newWorld(t)
		var cause error
		w.routes = func(int) Transport {
			return transportFunc{w, func(ctx context.Context, _ Attempt) (any, error) {
				<-ctx.Done()
				cause = context.Cause(ctx)
				return nil, ctx.Err()
			}}
		}
		e := w.engine()
		time.AfterFunc(time.Second, e.Close)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := e.Call(ctx, newCall())
		e.Close()
		if !errors.Is(err, errClosed) || !errors.Is(cause, errClosed) {
			t.Errorf("%v; the attempt was cancelled with %v", err, cause)
		}
	})
}

func TestPromptTransportTellsDelivery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// The transport knows better than the engine what a cancel met.
		for _, d := range []limpet.Delivery{limpet.DeliveryNone, limpet.DeliveryReceived, limpet.DeliveryUncertain} {
			w := newWorld(t)
			w.prompt = true
			w.routes = func(int) Transport {
				return transportFunc{w, func(ctx context.Context, a Attempt) (any, error) {
					<-ctx.Done()
					return nil, code(limpet.CodeCanceled, d)
				}}
			}
			e := w.engine()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := e.Call(ctx, newCall())
			if got := asLimpet(t, err); got.Code != limpet.CodeCanceled || got.Delivery != d || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %+v, want delivery %v", got, d)
			}
			cancel()
			e.Close()
		}
	})
}

func TestResultBeatsCancel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// A method's own "canceled" is an answer like any other.
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorld(t)
		w.prompt = true
		w.handler = func(Attempt) (any, error) {
			cancel()
			return nil, &limpet.Error{Code: limpet.CodeCanceled, Message: "mine", Remote: true, Delivery: limpet.DeliveryReceived}
		}
		e := w.engine()
		defer e.Close()
		_, err := e.Call(ctx, newCall())
		if got := asLimpet(t, err); got.Message != "mine" || !got.Remote {
			t.Errorf("got %+v", got)
		}
	})
}

func TestClose(t *testing.T) {
	tests := []struct {
		name     string
		script   []fault
		code     limpet.Code
		delivery limpet.Delivery
		outcome  []string
	}{
		// SPEC E35
		{"first attempt", []fault{{kind: hang}}, limpet.CodeCanceled, limpet.DeliveryUncertain, nil},
		{"backoff", []fault{{kind: refused}, {kind: refused}}, limpet.CodeDraining, limpet.DeliveryNone,
			[]string{"jsrpc other 150ms"}},
		{"retry", []fault{{kind: refused}, {kind: hang}}, limpet.CodeCanceled, limpet.DeliveryUncertain,
			[]string{"jsrpc other 150ms"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, test.script...)
				e := w.engine()
				time.AfterFunc(150*ms, e.Close)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				_, err := e.Call(ctx, newCall())
				got := asLimpet(t, err)
				if got.Code != test.code || got.Delivery != test.delivery || time.Since(w.start) != 150*ms {
					t.Errorf("after %v: %+v", time.Since(w.start), got)
				}
				if diff := cmp.Diff(test.outcome, w.outcomes); diff != "" {
					t.Error(diff)
				}
				_, err = e.Call(ctx, newCall())
				if got := asLimpet(t, err); got.Code != limpet.CodeDraining || got.Delivery != limpet.DeliveryNone {
					t.Errorf("after Close: %+v", got)
				}
				e.Close()
			})
		})
	}
}

func TestClosedText(t *testing.T) {
	for _, d := range []limpet.Delivery{limpet.DeliveryNone, limpet.DeliveryUncertain, limpet.DeliveryReceived} {
		e := closed(d)
		if n := strings.Count(e.Error(), "the node is closing"); n != 1 || !errors.Is(e, errClosed) {
			t.Errorf("%s: says it %d times: %v", d, n, e)
		}
	}
}
