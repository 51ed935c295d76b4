package limpettest_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

// TestDrainFault has calls refused as by a node that stops.
func TestDrainFault(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		// SPEC C24, F22, E28: not delivered, and retried with an identity of its own,
		// so that an unmarked method runs.
		s.net.Inject(limpettest.Drain(limpettest.Times(2), limpettest.Method("sell")))
		if n, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k"); n != 1 || err != nil || s.count("k") != 1 {
			t.Errorf("%d, %v, %d runs", n, err, s.count("k"))
		}
		if n := s.net.Count(limpettest.FaultDrain); n != 2 || s.net.Attempts() != 3 {
			t.Errorf("%d refused, %d attempts", n, s.net.Attempts())
		}
		s.net.Inject(limpettest.Drain())
		_, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "l")
		e := failure(t, err, limpet.CodeDraining, limpet.DeliveryNone)
		if !e.Retryable || e.Remote || e.Attempts != 5 || e.Identity != "" || e.ObjectID != s.shop.ID().String() || s.count("l") != 0 {
			t.Errorf("%+v after %d runs", e, s.count("l"))
		}
		_, err = s.shop.Fetch(request(t, "PUT", "http://shop/", "x"))
		if e := failure(t, err, limpet.CodeDraining, limpet.DeliveryNone); e.Attempts != 5 || s.count("fetch") != 0 {
			t.Errorf("%+v", e)
		}
	})
}

// TestCutConnection loses everything that is under way at once.
func TestCutConnection(t *testing.T) {
	t.Parallel()
	for _, onReply := range []bool{false, true} {
		t.Run(fmt.Sprint("on reply ", onReply), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t, node.Config{}, []limpet.StubOption{limpet.NoRetries()})
				shops, err := limpet.NamespaceOf[*shop](s.n, "SHOP")
				if err != nil {
					t.Fatal(err)
				}
				resp, err := s.shop.Fetch(request(t, "GET", "http://shop/big", ""))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				var all sync.WaitGroup
				errs := make([]error, 5)
				for i := range 5 {
					all.Go(func() {
						_, errs[i] = limpet.Call2(t.Context(), shops.Named(fmt.Sprint(i), limpet.NoRetries()), (*shop).Wait, fmt.Sprint(i), 60_000)
					})
				}
				s.net.Inject(limpettest.Delay(time.Hour, limpettest.Object(shops.Named("late").ID())))
				delayed := make(chan error, 1)
				go func() {
					_, err := limpet.Call1(t.Context(), shops.Named("late", limpet.NoRetries()), (*shop).Sell, "late")
					delayed <- err
				}()
				synctest.Wait()
				opts := []limpettest.FaultOption{limpettest.Times(1), limpettest.Method("sell"), limpettest.Object(s.shop.ID())}
				if onReply {
					opts = append(opts, limpettest.OnReply())
				}
				s.net.Inject(limpettest.CutConnection(opts...))
				begun := time.Now()
				_, err = limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
				if e := failure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain); e.Attempts != 1 {
					t.Errorf("%+v", e)
				}
				all.Wait()
				for _, err := range append(errs, <-delayed) {
					// SPEC C21
					if e := failure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain); !e.Retryable || e.Attempts != 1 {
						t.Errorf("%+v", e)
					}
				}
				if time.Since(begun) != 0 {
					t.Errorf("it took %v until all had failed", time.Since(begun))
				}
				synctest.Wait()
				s.mu.Lock()
				causes := slices.Clone(s.causes)
				s.mu.Unlock()
				if len(causes) != 5 {
					t.Errorf("the contexts of %d handlers ended, want 5", len(causes))
				}
				if want := map[bool]int{false: 0, true: 1}[onReply]; s.count("k") != want || s.count("late") != 0 {
					t.Errorf("the one that was struck ran %d times, want %d; the one on its way %d", s.count("k"), want, s.count("late"))
				}
				// SPEC C22, E40: the response had arrived, and breaks.
				if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, limpet.CodeDisconnected) || limpet.DeliveryOf(err) != limpet.DeliveryReceived {
					t.Errorf("the response ends with %v", err)
				}
				if n := s.net.Count(limpettest.FaultCutConnection); n != 1 {
					t.Errorf("%d connections were cut", n)
				}
				// Afterwards everything is well.
				if _, err := limpet.Call1(t.Context(), shops.Named("0"), (*shop).Sell, "after"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestConnectionFaultsAreSeeded plays the same faults twice.
func TestConnectionFaultsAreSeeded(t *testing.T) {
	t.Parallel()
	play := func() (counts []int) {
		synctest.Test(t, func(t *testing.T) {
			n := limpettest.Start(t, newCounter())
			counters, err := limpet.NamespaceOf[*counter](n, "COUNTER")
			if err != nil {
				t.Fatal(err)
			}
			net := n.Network(limpettest.Seed(7))
			net.Inject(limpettest.Drain(limpettest.Probability(0.2)), limpettest.CutConnection(limpettest.Probability(0.3)))
			for i := range 50 {
				_, _ = limpet.Call1(t.Context(), counters.Named("x"), (*counter).Add, i)
			}
			counts = []int{net.Count(limpettest.FaultDrain), net.Count(limpettest.FaultCutConnection), net.Attempts()}
		})
		return counts
	}
	first := play()
	if second := play(); !slices.Equal(first, second) || first[0] == 0 || first[1] == 0 {
		t.Errorf("the same seed struck %v, then %v", first, second)
	}
}

// TestRetriesInVirtualTime shows a node with its timers and retries under the clock of a
// bubble.
func TestRetriesInVirtualTime(t *testing.T) {
	t.Parallel()
	real := time.Now()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, node.Config{}, []limpet.StubOption{limpet.MaxRetries(10), limpet.RetryTimeout(time.Minute)})
		s.net.Inject(limpettest.Refuse(limpettest.Times(10)))
		begun := time.Now()
		if n, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k"); n != 1 || err != nil {
			t.Errorf("after ten retries: %d, %v", n, err)
		}
		if took := time.Since(begun); took < time.Second || took > 18*time.Second {
			t.Errorf("ten backoffs took %v", took)
		}
		time.Sleep(time.Hour)
		if n := metric(s.n, "limpet_objects_live"); n != 0 {
			t.Errorf("%v objects are in memory after an hour", n)
		}
	})
	if took := time.Since(real); took > time.Minute {
		t.Errorf("an hour took %v", took)
	}
}
