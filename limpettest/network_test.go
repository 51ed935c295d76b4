package limpettest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

// TestTimelines plays T1 to T3 with executions counted.
func TestTimelines(t *testing.T) {
	t.Parallel()
	t.Run("recovered", func(t *testing.T) {
		// SPEC T1, F14, E21
		inBubble(t, func(t *testing.T, s *street) {
			s.net.Inject(limpettest.DropRequest(limpettest.Times(1)))
			n, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
			if n != 1 || err != nil || s.count("k") != 1 || s.net.Attempts() != 2 {
				t.Errorf("%d, %v, %d runs, %d attempts", n, err, s.count("k"), s.net.Attempts())
			}
			// SPEC I2, I3, I4
			if r := metric(s.n, "limpet_call_retries_total", "type", "jsrpc", "binding", "SHOP", "method", "sell"); r != 1 {
				t.Errorf("%v retries", r)
			}
			if all, rec := metric(s.n, "limpet_call_retry_outcomes_total"), metric(s.n, "limpet_call_retry_outcomes_total", "outcome", "recovered"); all != 1 || rec != 1 {
				t.Errorf("%v outcomes, %v recovered", all, rec)
			}
		})
	})
	t.Run("received, not marked", func(t *testing.T) {
		// SPEC T2, F13, C25, E22
		inBubble(t, func(t *testing.T, s *street) {
			s.net.Inject(limpettest.DropReply(limpettest.Times(1), limpettest.Method("sell")))
			_, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
			e := failure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
			if !e.Retryable || e.Remote || e.Attempts != 2 || e.Identity == "" || s.count("k") != 1 {
				t.Errorf("%#v after %d runs", e, s.count("k"))
			}
			// SPEC B6: the stub is as good as before.
			if n, err := limpet.Call(t.Context(), s.shop, (*shop).Sold); n != 1 || err != nil {
				t.Errorf("%d sold, %v", n, err)
			}
			// SPEC I8
			if n := metric(s.n, "limpet_claims_rejected_total"); n != 1 {
				t.Errorf("%v claims rejected", n)
			}
			if n := metric(s.n, "limpet_call_retry_outcomes_total", "outcome", "claim_rejected"); n != 1 {
				t.Errorf("%v times claim_rejected", n)
			}
		})
	})
	t.Run("received, marked", func(t *testing.T) {
		// SPEC T3, F38
		inBubble(t, func(t *testing.T, s *street) {
			s.net.Inject(limpettest.DropReply(limpettest.Times(1), limpettest.Object(s.shop.ID())))
			if err := limpet.Do2(t.Context(), s.shop, (*shop).SetPrice, "k", 7); err != nil || s.count("k") != 2 {
				t.Errorf("%v, %d runs", err, s.count("k"))
			}
			if n := metric(s.n, "limpet_claims_taken_total", "marked", "true"); n != 2 {
				t.Errorf("%v marked claims", n)
			}
		})
	})
	t.Run("unreachable", func(t *testing.T) {
		// SPEC T4, C20, E26, E28
		inBubble(t, func(t *testing.T, s *street) {
			s.net.Inject(limpettest.Refuse())
			_, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
			e := failure(t, err, limpet.CodeDisconnected, limpet.DeliveryNone)
			if e.Attempts != 5 || s.count("k") != 0 || s.net.Count(limpettest.FaultRefuse) != 5 {
				t.Errorf("%d attempts, %d runs, %d refused", e.Attempts, s.count("k"), s.net.Count(limpettest.FaultRefuse))
			}
		})
	})
	t.Run("no retries", func(t *testing.T) {
		// SPEC T12, D2
		synctest.Test(t, func(t *testing.T) {
			s := open(t, node.Config{}, []limpet.StubOption{limpet.NoRetries()})
			s.net.Inject(limpettest.DropRequest())
			_, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
			if e := failure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain); e.Attempts != 1 {
				t.Errorf("%d attempts", e.Attempts)
			}
			if n := metric(s.n, "limpet_call_retry_outcomes_total"); n != 0 { // SPEC I3
				t.Errorf("%v outcomes without a retry", n)
			}
		})
	})
}

// TestOwnErrorsPass: what a method says itself is not retried and does cross,
// its cause does not.
func TestOwnErrorsPass(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		// SPEC C26, T10, E23
		s.net.Inject(limpettest.Refuse(limpettest.Times(1)))
		err := limpet.Do1(t.Context(), s.shop, (*shop).Fail, "k")
		e := failure(t, err, "SoldOut", limpet.DeliveryReceived)
		if !e.Remote || !strings.HasPrefix(e.Message, "sold out") || e.Attempts != 2 || s.count("k") != 1 || errors.Is(err, io.ErrNoProgress) {
			t.Errorf("%#v after %d runs", e, s.count("k"))
		}
		if n := metric(s.n, "limpet_call_retry_outcomes_total", "outcome", "unable_to_retry"); n != 1 {
			t.Errorf("%v times unable_to_retry", n)
		}
	})
}

// TestValuesCross: nothing is shared, and calls by name see the same network.
func TestValuesCross(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		mine := []string{"a", "b"}
		got, err := limpet.Call1(t.Context(), s.shop, (*shop).Tags, mine)
		if err != nil || !slices.Equal(got, []string{"a!", "b!"}) || !slices.Equal(mine, []string{"a", "b"}) {
			t.Errorf("%q, %v; mine %q", got, err, mine)
		}
		s.net.Inject(limpettest.DropRequest(limpettest.Times(1)))
		if v, err := s.shop.Invoke(t.Context(), "sell", "k"); v != int64(1) && fmt.Sprint(v) != "1" || err != nil {
			t.Errorf("%v (%T), %v", v, v, err)
		}
		_, err = s.shop.Invoke(t.Context(), "steal")
		wantFailure(t, err, limpet.CodeUnknownMethod, limpet.DeliveryReceived)
		if s.net.Attempts() != 4 {
			t.Errorf("%d attempts crossed the network", s.net.Attempts())
		}
	})
}

// TestObjectsCallAcross: a call out of an object crosses the network too.
func TestObjectsCallAcross(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		s.net.Inject(limpettest.DropReply(limpettest.Method("sell"), limpettest.Times(1)))
		_, err := limpet.Call2(t.Context(), s.shop, (*shop).Order, "other", "k")
		// SPEC C28: the object passed its own failure on; the retries were its own.
		if e := failure(t, err, limpet.CodeDisconnected, limpet.DeliveryReceived); !e.Remote || !e.Retryable || e.Attempts != 1 {
			t.Errorf("%#v", e)
		}
		if s.count("k") != 1 || s.net.Attempts() != 3 {
			t.Errorf("%d runs, %d attempts", s.count("k"), s.net.Attempts())
		}
		if n := metric(s.n, "limpet_call_retries_total", "method", "sell"); n != 1 {
			t.Errorf("%v retries", n)
		}
	})
}

// TestCut breaks calls at every byte of request and reply.
func TestCut(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		key := "key"
		never, lost := 0, 0
		for bytes := int64(0); ; bytes++ {
			before := s.net.Count(limpettest.FaultCutAfter)
			s.net.Inject(limpettest.CutAfter(bytes, limpettest.Attempt(1)))
			k := fmt.Sprintf("%s%02d", key, bytes)
			_, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, k)
			s.net.Heal()
			struck := s.net.Count(limpettest.FaultCutAfter) - before
			switch {
			case struck == 0:
				if err != nil || s.count(k) != 1 {
					t.Errorf("after %d bytes: %v, %d runs", bytes, err, s.count(k))
				}
				// "sell" has arguments and a result of more than a byte each.
				if never < 3 || lost == 0 {
					t.Errorf("%d requests and %d replies were cut", never, lost)
				}
				return
			case err == nil: // the request was cut, the retry ran
				if lost > 0 || s.count(k) != 1 {
					t.Errorf("after %d bytes: %d runs, after %d replies", bytes, s.count(k), lost)
				}
				never++
			default:
				wantFailure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
				if s.count(k) != 1 {
					t.Errorf("after %d bytes: %d runs", bytes, s.count(k))
				}
				lost++
			}
		}
	})
}

// TestFreeze: silence passes, or the connection is lost after the deadline.
func TestFreeze(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		fault    limpettest.Fault
		after    time.Duration
		delivery limpet.Delivery
		runs     int
		ok       bool
	}{
		{"request, short", limpettest.Freeze(9*time.Second, limpettest.Times(1)), 9 * time.Second, 0, 1, true},
		{"request, long", limpettest.Freeze(10*time.Second, limpettest.Times(1)), 10 * time.Second, limpet.DeliveryUncertain, 0, false},
		{"reply, short", limpettest.Freeze(time.Second, limpettest.Times(1), limpettest.OnReply()), time.Second, 0, 1, true},
		{"reply, long", limpettest.Freeze(time.Hour, limpettest.Times(1), limpettest.OnReply()), 10 * time.Second, limpet.DeliveryUncertain, 1, false},
		{"slow request", limpettest.Delay(time.Minute, limpettest.Times(1)), time.Minute, 0, 1, true},
		{"slow reply", limpettest.Delay(time.Minute, limpettest.Times(1), limpettest.OnReply()), time.Minute, 0, 1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *street) {
				s.net.Inject(test.fault)
				start := time.Now()
				_, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
				took := time.Since(start)
				// SPEC E20, E32, T7: a first attempt may last, and after the
				// timeout there is no retry.
				if took != test.after || (err == nil) != test.ok || s.count("k") != test.runs {
					t.Errorf("%v after %v, %d runs", err, took, s.count("k"))
				}
				if err != nil {
					wantFailure(t, err, limpet.CodeDisconnected, test.delivery)
				}
			})
		})
	}
}

// TestReorder: a first attempt that its own retry overtook is refused.
func TestReorder(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		// SPEC F15, F16
		s.net.Inject(limpettest.Reorder(limpettest.Times(3)))
		n, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
		if n != 1 || err != nil || s.count("k") != 1 {
			t.Errorf("%d, %v, %d runs", n, err, s.count("k"))
		}
		if r := metric(s.n, "limpet_claims_rejected_total"); r != 1 {
			t.Errorf("%v claims rejected: the overtaken attempt did not arrive", r)
		}
		// A marked one runs again.
		if err := limpet.Do2(t.Context(), s.shop, (*shop).SetPrice, "p", 1); err != nil || s.count("p") != 2 {
			t.Errorf("%v, %d runs", err, s.count("p"))
		}
		resp, err := s.shop.Fetch(request(t, "POST", "http://shop/", "body"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if s.count("fetch") != 1 || metric(s.n, "limpet_claims_rejected_total") != 2 {
			t.Errorf("%d runs of the fetch", s.count("fetch"))
		}
	})
}

func request(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodGet {
		req.Body, req.GetBody, req.ContentLength = nil, nil, 0
	}
	return req
}

// TestBodiesReplay compares a request over five attempts.
func TestBodiesReplay(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		// SPEC E46, G1
		s.net.Inject(limpettest.DropReply(limpettest.Method("fetch"), limpettest.Times(4)))
		req := request(t, "POST", "http://shop/x", strings.Repeat("all the same ", 20_000))
		req.Header.Set("X-Tag", "v")
		_, err := s.shop.Fetch(req)
		wantFailure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		if s.count("fetch") != 1 {
			t.Errorf("an unmarked handler ran %d times", s.count("fetch"))
		}
	})
	inBubble(t, func(t *testing.T, s *street) {
		s.net.Inject(limpettest.DropReply(limpettest.Method("fetch"), limpettest.Times(4)))
		req := request(t, "POST", "http://shop/x", strings.Repeat("all the same ", 20_000))
		req.Header.Set("X-Tag", "v")
		resp, err := s.shop.Fetch(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "hello" || err != nil {
			t.Errorf("%q, %v", body, err)
		}
		seen := slices.Compact(slices.Clone(s.notes))
		if len(s.notes) != 5 || len(seen) != 1 || !strings.HasPrefix(seen[0], "POST v 260000 ") || !strings.HasSuffix(seen[0], " <nil>") {
			t.Errorf("five attempts brought %q", s.notes)
		}
	}, limpet.Retryable((*shop).ServeHTTP))
}

// TestRedirects: each hop is a call with attempts of its own.
func TestRedirects(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		// SPEC E42, B11
		s.net.Inject(limpettest.DropRequest(limpettest.Attempt(1), limpettest.Times(2)))
		resp, err := s.shop.Fetch(request(t, "POST", "http://shop/moved", "body"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.Request.URL.Path != "/here" || s.net.Attempts() != 4 || s.count("fetch") != 2 || len(slices.Compact(slices.Clone(s.notes))) != 1 {
			t.Errorf("%v after %d attempts, %d runs: %q", resp.Request.URL, s.net.Attempts(), s.count("fetch"), s.notes)
		}
		// SPEC I1, I3
		if n := metric(s.n, "limpet_call_retry_outcomes_total", "type", "fetch", "outcome", "recovered"); n != 2 {
			t.Errorf("%v hops recovered", n)
		}
	})
}

// TestBodyCut: a response that breaks after its head is not retried.
func TestBodyCut(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		// SPEC E40
		s.net.Inject(limpettest.CutAfter(250, limpettest.Times(1)))
		resp, err := s.shop.Fetch(request(t, "GET", "http://shop/big", ""))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		wantFailure(t, err, limpet.CodeDisconnected, limpet.DeliveryReceived)
		if len(body) != 250 || s.count("fetch") != 1 || s.net.Attempts() != 1 || s.net.Count(limpettest.FaultCutAfter) != 1 {
			t.Errorf("%d bytes, %d runs, %d attempts", len(body), s.count("fetch"), s.net.Attempts())
		}
		// A request's body that breaks: the handler sees a broken body, the caller
		// does not know, and the retry is refused.
		s.net.Inject(limpettest.CutAfter(3, limpettest.Times(1)))
		_, err = s.shop.Fetch(request(t, "POST", "http://shop/", "0123456789"))
		wantFailure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		synctest.Wait()
		if last := s.notes[len(s.notes)-1]; s.count("fetch") != 2 || !strings.HasSuffix(last, io.ErrUnexpectedEOF.Error()) || !strings.Contains(last, " 3 ") {
			t.Errorf("%d runs, %q", s.count("fetch"), s.notes)
		}
		// One with too few bytes is not struck, and the fault waits for another.
		s.net.Inject(limpettest.CutAfter(15, limpettest.Times(1)))
		for i, want := range []string{"0123456789", "0123456789ab"} {
			resp, err := s.shop.Fetch(request(t, "POST", "http://shop/", want))
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if (err != nil) != (i == 1) {
				t.Errorf("body of %d bytes and 5 in the answer: %v", len(want), err)
			}
		}
	})
}

// TestCutoffReachesHandler: the end of the retry timeout ends the handler that
// runs for a retry.
func TestCutoffReachesHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// SPEC E31, T5
		s := open(t, node.Config{}, []limpet.StubOption{limpet.RetryTimeout(1500 * time.Millisecond)})
		s.net.Inject(limpettest.DropRequest(limpettest.Times(1)))
		start := time.Now()
		_, err := limpet.Call2(t.Context(), s.shop, (*shop).Wait, "k", 60_000)
		wantFailure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		synctest.Wait()
		if took := time.Since(start); took != 1500*time.Millisecond || s.count("k") != 1 || len(s.causes) != 1 {
			t.Errorf("after %v: %d runs, contexts ended with %v", took, s.count("k"), s.causes)
		}
		if n := metric(s.n, "limpet_call_retry_outcomes_total", "outcome", "retry_budget_exhausted"); n != 1 {
			t.Errorf("%v times retry_budget_exhausted", n)
		}
	})
}

// TestCallerCancels: the caller's end reaches the handler, and the caller does
// not know how far it came.
func TestCallerCancels(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		// SPEC E34, C41
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("closing time")
		time.AfterFunc(time.Second, func() { cancel(why) })
		_, err := limpet.Call2(ctx, s.shop, (*shop).Wait, "k", 60_000)
		wantFailure(t, err, limpet.CodeCanceled, limpet.DeliveryUncertain)
		synctest.Wait()
		if !errors.Is(err, why) || len(s.causes) != 1 {
			t.Errorf("%v, contexts ended with %v", err, s.causes)
		}
		// While a request is held back, too.
		s.net.Inject(limpettest.Delay(time.Hour))
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err = limpet.Call1(ctx, s.shop, (*shop).Sell, "late")
		wantFailure(t, err, limpet.CodeCanceled, limpet.DeliveryUncertain)
		if s.count("late") != 0 {
			t.Error("the request arrived")
		}
	})
}

// TestDownNode: a node that is not there is tried again until it is back.
func TestDownNode(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		// SPEC C20, E29
		s.n.Crash()
		done := make(chan error, 1)
		go func() {
			_, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
			done <- err
		}()
		synctest.Wait()
		s.n.Restart()
		if err := <-done; err != nil || s.count("k") != 1 {
			t.Errorf("%v, %d runs", err, s.count("k"))
		}
		s.n.Crash()
		resp, err := s.shop.Fetch(request(t, "POST", "http://shop/", "x"))
		if err == nil {
			resp.Body.Close()
		}
		if e := failure(t, err, limpet.CodeDisconnected, limpet.DeliveryNone); e.Attempts != 5 {
			t.Errorf("%d attempts", e.Attempts)
		}
		s.n.Restart()
	})
}

// TestRestartBetweenAttempts: after a restart a retry that the log knows nothing
// of runs only in a class whose effects are gated.
func TestRestartBetweenAttempts(t *testing.T) {
	t.Parallel()
	for _, gated := range []bool{false, true} {
		for _, crash := range []bool{false, true} {
			var opts []limpet.ClassOption
			if gated {
				opts = append(opts, limpet.GatedEffects())
			}
			for _, test := range []struct {
				fault limpettest.Fault
				runs  int // with gated effects
			}{
				{limpettest.DropReply(limpettest.Times(1)), 1},   // its claim is in the log
				{limpettest.DropRequest(limpettest.Times(1)), 1}, // never arrived
			} {
				name := fmt.Sprintf("gated %v, crash %v, %v", gated, crash, test.fault)
				inBubble(t, func(t *testing.T, s *street) {
					// SPEC F18, F20, F21
					s.net.Inject(test.fault)
					done := make(chan error, 1)
					go func() {
						_, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
						done <- err
					}()
					synctest.Wait() // in its backoff
					arrived := s.count("k")
					if crash {
						s.n.Crash()
					}
					s.n.Restart()
					err := <-done
					if arrived == 0 && gated { // nothing of it was seen: it may run
						if err != nil || s.count("k") != 1 {
							t.Errorf("%s: %v, %d runs", name, err, s.count("k"))
						}
						return
					}
					if e := failure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain); e.Attempts != 2 {
						t.Errorf("%s: %d attempts", name, e.Attempts)
					}
					if s.count("k") != arrived {
						t.Errorf("%s: %d runs after %d", name, s.count("k"), arrived)
					}
				}, opts...)
			}
		}
	}
}

// TestCrashBeforeDurable: a run whose commit was lost with the power was not
// answered, and a class with gated effects runs the retry as if it were the
// first.
func TestCrashBeforeDurable(t *testing.T) {
	t.Parallel()
	// SPEC H2, F21
	s := open(t, node.Config{}, nil, limpet.GatedEffects())
	if _, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "before"); err != nil {
		t.Fatal(err)
	}
	release := s.n.HoldSyncs()
	done := make(chan int, 1)
	go func() {
		n, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
		if err != nil {
			t.Errorf("%v", err)
		}
		done <- n
	}()
	for s.count("k") == 0 {
		runtime.Gosched()
	}
	s.n.Crash()
	release()
	s.n.Restart()
	n := <-done
	sold, err := limpet.Call(t.Context(), s.shop, (*shop).Sold)
	if n != 2 || sold != 2 || err != nil || s.count("k") != 2 {
		t.Errorf("answered %d after %d runs; %d sold, %v", n, s.count("k"), sold, err)
	}
}

// TestCrashWhileRunning: the machine dies under a handler.
func TestCrashWhileRunning(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		// SPEC C21
		done := make(chan error, 1)
		go func() {
			_, err := limpet.Call2(t.Context(), s.shop, (*shop).Wait, "k", 1000)
			done <- err
		}()
		synctest.Wait()
		s.n.Crash()
		s.n.Restart()
		err := <-done
		// The class is not gated, and its new process knows nothing: refused.
		if e := failure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain); e.Attempts != 2 || s.count("k") != 1 {
			t.Errorf("%d attempts, %d runs", e.Attempts, s.count("k"))
		}
	})
}

// mock is a test that records how it fails.
type mock struct {
	limpettest.TB
	fatal string
}

func (m *mock) Fatalf(format string, args ...any) {
	m.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestRefusals: faults that could not strike as they are written.
func TestRefusals(t *testing.T) {
	t.Parallel()
	m := &mock{TB: t}
	s := open(m, node.Config{}, nil)
	for want, f := range map[string]func(){
		"Times(0): must be 1 or more":                          func() { s.net.Inject(limpettest.Refuse(limpettest.Times(0))) },
		"Times is given twice":                                 func() { s.net.Inject(limpettest.Refuse(limpettest.Times(1), limpettest.Times(2))) },
		"Attempt(12): a call makes attempts 1 to 11":           func() { s.net.Inject(limpettest.Refuse(limpettest.Attempt(12))) },
		"Probability(0): must be above 0 and at most 1":        func() { s.net.Inject(limpettest.Refuse(limpettest.Probability(0))) },
		"OnReply is for Delay, Freeze and CutConnection":       func() { s.net.Inject(limpettest.DropReply(limpettest.OnReply())) },
		"CutAfter(-1): must be 0 or more":                      func() { s.net.Inject(limpettest.CutAfter(-1)) },
		"Freeze(0s): must be above 0":                          func() { s.net.Inject(limpettest.Freeze(0)) },
		"Delay(-1ns): must be above 0":                         func() { s.net.Inject(limpettest.Delay(-1)) },
		"Reorder strikes first attempts":                       func() { s.net.Inject(limpettest.Reorder(limpettest.Attempt(2))) },
		`Binding("CART"): the node has no such binding`:        func() { s.net.Inject(limpettest.Refuse(limpettest.Binding("CART"))) },
		`Method("addone"): no class has it`:                    func() { s.net.Inject(limpettest.Refuse(limpettest.Method("addone"))) },
		"Object: the ID is zero":                               func() { s.net.Inject(limpettest.Refuse(limpettest.Object(limpet.ID{}))) },
		"an option is nil":                                     func() { s.net.Inject(limpettest.Refuse(nil)) },
		"the options of Network must be given when it is call": func() { s.n.Network(limpettest.Seed(1)) },
	} {
		m.fatal = ""
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		<-done
		if !strings.Contains(m.fatal, want) {
			t.Errorf("got %q, want %q", m.fatal, want)
		}
	}
	s.net.Inject(limpettest.Refuse(limpettest.Method("fetch"), limpettest.Binding("SHOP")))
	if _, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k"); err != nil {
		t.Errorf("a fault of fetches struck a method: %v", err)
	}
}

// TestSeed: the same seed strikes the same calls.
func TestSeed(t *testing.T) {
	t.Parallel()
	play := func(seed uint64) (out string) {
		synctest.Test(t, func(t *testing.T) {
			w := &witness{}
			n := limpettest.Start(t, w.class())
			net := n.Network(limpettest.Seed(seed))
			net.Inject(limpettest.DropReply(limpettest.Probability(0.3)), limpettest.Refuse(limpettest.Probability(0.3)))
			ns, err := limpet.NamespaceOf[*shop](n, "SHOP")
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			for i := range 30 {
				_, err := limpet.Call1(t.Context(), ns.Named("a"), (*shop).Sell, fmt.Sprint(i))
				out += fmt.Sprintf("%v %v\n", time.Since(start), err)
			}
		})
		return out
	}
	first := play(7)
	if again := play(7); again != first {
		t.Errorf("the same seed gave\n%s\nand then\n%s", first, again)
	}
	if play(8) == first {
		t.Error("another seed gave the same")
	}
}

// TestDoor: requests from outside cross the network, and the door tells what is
// known of a failure.
func TestDoor(t *testing.T) {
	t.Parallel()
	s := open(t, node.Config{Namespaces: map[string]node.Namespace{"SHOP": {Class: "Shop", Defaults: []limpet.StubOption{limpet.NoRetries()}}}}, nil)
	s.net.Inject(limpettest.DropReply(limpettest.Times(1)))
	status, body := post(t, s.n, "/v1/objects/SHOP/corner/call/sell", `["k"]`)
	if status != http.StatusBadGateway || !strings.Contains(body, `"delivery":"uncertain"`) || s.count("k") != 1 {
		t.Errorf("%d %s after %d runs", status, body, s.count("k"))
	}
}

func post(t *testing.T, n *limpettest.Node, path, body string) (int, string) {
	t.Helper()
	srv := httptest.NewServer(n.Handler())
	defer srv.Close()
	resp, err := http.Post(srv.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
