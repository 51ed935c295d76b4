package limpettest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

func keyed(ctx context.Context, key string) context.Context {
	return limpet.WithIdempotencyKey(ctx, key)
}

// replaying opens a shop whose stub has ReplayOutcome.
func replaying(t *testing.T, f func(t *testing.T, s *street), opts ...limpet.ClassOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, open(t, node.Config{}, []limpet.StubOption{limpet.ReplayOutcome()}, opts...))
	})
}

func askFor(t *testing.T, s *street, identity string, want limpet.OutcomeKind) *limpet.CallOutcome {
	t.Helper()
	o, err := limpet.Outcome(t.Context(), s.shop, identity)
	if err != nil {
		t.Fatalf("Outcome(%s): %v", identity, err)
	}
	if o.Kind != want {
		t.Fatalf("Outcome(%s) is %q, want %q", identity, o.Kind, want)
	}
	return o
}

// TestReplayOutcome: a refused duplicate gets the first outcome (DESIGN 5).
func TestReplayOutcome(t *testing.T) {
	t.Parallel()
	t.Run("result", func(t *testing.T) {
		replaying(t, func(t *testing.T, s *street) {
			s.net.Inject(limpettest.DropReply(limpettest.Times(3), limpettest.Method("sell")))
			n, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
			if n != 1 || err != nil || s.count("k") != 1 || s.net.Attempts() != 4 {
				t.Errorf("%d, %v, %d runs, %d attempts", n, err, s.count("k"), s.net.Attempts())
			}
			if n := metric(s.n, "limpet_outcomes_replayed_total"); n != 3 {
				t.Errorf("%v outcomes replayed", n)
			}
		})
	})
	t.Run("error", func(t *testing.T) {
		replaying(t, func(t *testing.T, s *street) {
			s.net.Inject(limpettest.DropReply(limpettest.Times(1)))
			err := limpet.Do1(t.Context(), s.shop, (*shop).Fail, "k")
			e := failure(t, err, "SoldOut", limpet.DeliveryReceived)
			if !e.Remote || !strings.HasPrefix(e.Message, "sold out") || s.count("k") != 1 || e.Attempts != 2 {
				t.Errorf("%#v, %d runs", e, s.count("k"))
			}
		})
	})
	t.Run("after a crash", func(t *testing.T) {
		replaying(t, func(t *testing.T, s *street) {
			s.net.Inject(limpettest.DropReply(limpettest.Times(1), limpettest.Method("sell")))
			go func() { // during the backoff, which is more than 1 ms with this seed
				time.Sleep(time.Millisecond)
				s.n.Crash()
				s.n.Restart()
			}()
			n, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
			if n != 1 || err != nil || s.count("k") != 1 {
				t.Errorf("%d, %v, %d runs", n, err, s.count("k"))
			}
			synctest.Wait()
			if n, err := limpet.Call(t.Context(), s.shop, (*shop).Sold); n != 1 || err != nil {
				t.Errorf("%d sold, %v", n, err)
			}
		})
	})
	t.Run("joins the run", func(t *testing.T) {
		replaying(t, func(t *testing.T, s *street) {
			// The connection breaks after a second, the run takes eight: its context
			// goes on, and the retry waits for it.
			s.net.Inject(limpettest.Freeze(time.Second, limpettest.Times(1), limpettest.OnReply()))
			v, err := limpet.Call2(t.Context(), s.shop, (*shop).Wait, "k", 500)
			if v != "k" || err != nil || s.count("k") != 1 || len(s.causes) > 0 {
				t.Errorf("%q, %v, %d runs, contexts ended with %v", v, err, s.count("k"), s.causes)
			}
		})
	})
	t.Run("marked", func(t *testing.T) {
		replaying(t, func(t *testing.T, s *street) {
			s.net.Inject(limpettest.DropReply(limpettest.Times(2)))
			if err := limpet.Do2(t.Context(), s.shop, (*shop).SetPrice, "k", 7); err != nil || s.count("k") != 1 {
				t.Errorf("%v, %d runs", err, s.count("k"))
			}
		})
	})
	t.Run("fetch", func(t *testing.T) {
		replaying(t, func(t *testing.T, s *street) {
			for _, path := range []string{"/hello", "/big"} {
				s.net.Inject(limpettest.DropReply(limpettest.Times(1)))
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://shop"+path, strings.NewReader("body"))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := s.shop.Fetch(req)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				want := map[string]string{"/hello": "hello", "/big": strings.Repeat(fmt.Sprintf("%0100d", 1), 10)}[path]
				if string(body) != want || err != nil || resp.StatusCode != 200 || resp.Body.Close() != nil {
					t.Errorf("%s: %v with %q, %v", path, resp.Status, body, err)
				}
			}
			if s.count("fetch") != 2 {
				t.Errorf("%d runs of two fetches", s.count("fetch"))
			}
		})
	})
}

// TestIdempotencyKey: of all calls under one key one runs.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		ctx := keyed(t.Context(), "order-17")
		sell := func(ctx context.Context, arg string) (int, error) {
			return limpet.Call1(ctx, s.shop, (*shop).Sell, arg)
		}
		for range 3 { // by whatever callers
			if n, err := sell(ctx, "k"); n != 1 || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
		// Another method or other arguments.
		_, err := sell(ctx, "other")
		wantFailure(t, err, limpet.CodeIdentityReused, limpet.DeliveryNone)
		wantFailure(t, limpet.Do1(ctx, s.shop, (*shop).Fail, "k"), limpet.CodeIdentityReused, limpet.DeliveryNone)
		if n, err := sell(keyed(t.Context(), "order-18"), "k"); n != 2 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := sell(keyed(ctx, ""), "k"); n != 3 || err != nil { // without a key
			t.Errorf("%d, %v", n, err)
		}
		for _, bad := range []string{strings.Repeat("k", 257), "\xff"} {
			_, err := sell(keyed(t.Context(), bad), "k")
			wantFailure(t, err, limpet.CodeInvalidArgument, limpet.DeliveryNone)
		}
		// An error is an outcome too.
		fails := keyed(t.Context(), "order-19")
		for range 2 {
			wantFailure(t, limpet.Do1(fails, s.shop, (*shop).Fail, "f"), "SoldOut", limpet.DeliveryReceived)
		}
		if s.count("f") != 1 {
			t.Errorf("%d runs", s.count("f"))
		}
		// After a crash.
		s.n.Crash()
		s.n.Restart()
		if n, err := sell(ctx, "k"); n != 1 || err != nil || s.count("k") != 3 {
			t.Errorf("after a crash: %d, %v, %d runs", n, err, s.count("k"))
		}
		_, err = sell(ctx, "other")
		wantFailure(t, err, limpet.CodeIdentityReused, limpet.DeliveryNone)
		// The handler's own calls do not have it.
		n, err := limpet.Call2(keyed(t.Context(), "order-20"), s.shop, (*shop).Order, "next", "k")
		if n != 1 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		if n := metric(s.n, "limpet_idempotency_keys"); n != 4 {
			t.Errorf("%v keys are known", n)
		}
		// After its retention a key is as new.
		time.Sleep(24 * time.Hour)
		if n, err := sell(ctx, "k"); n != 4 || err != nil {
			t.Errorf("a day later: %d, %v", n, err)
		}
		time.Sleep(24*time.Hour - time.Minute)
		s.n.Crash()
		s.n.Restart()
		if n, err := sell(ctx, "k"); n != 4 || err != nil {
			t.Errorf("almost a day later, after a restart: %d, %v", n, err)
		}
		time.Sleep(2 * time.Minute)
		if n, err := sell(ctx, "k"); n != 5 || err != nil {
			t.Errorf("another day later: %d, %v", n, err)
		}
	})
}

// TestIdempotencyKeyRuns: what a duplicate gets of a run that goes on, that was
// cut short, and that has nothing to keep.
func TestIdempotencyKeyRuns(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		ctx := keyed(t.Context(), "slow")
		type ended struct {
			v   string
			err error
		}
		calls := make(chan ended, 3)
		for range 3 {
			go func() {
				v, err := limpet.Call2(ctx, s.shop, (*shop).Wait, "slow", 60_000)
				calls <- ended{v, err}
			}()
		}
		time.Sleep(time.Second)
		askFor(t, s, limpet.KeyIdentity("slow"), limpet.OutcomeRunning)
		for range 3 {
			if e := <-calls; e.v != "slow" || e.err != nil {
				t.Errorf("%q, %v", e.v, e.err)
			}
		}
		if s.count("slow") != 1 {
			t.Errorf("%d runs", s.count("slow"))
		}
		// Cut short by a crash: it may have done anything.
		ctx = keyed(t.Context(), "cut")
		go func() {
			v, err := limpet.Call2(ctx, s.shop, (*shop).Wait, "cut", 60_000)
			calls <- ended{v, err}
		}()
		time.Sleep(time.Second)
		s.n.Crash()
		s.n.Restart()
		e := failure(t, (<-calls).err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived) // told by a retry
		if e.Identity != "key:cut" {
			t.Errorf("identity %q", e.Identity)
		}
		_, err := limpet.Call2(ctx, s.shop, (*shop).Wait, "cut", 60_000)
		wantFailure(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		askFor(t, s, e.Identity, limpet.OutcomeNotKept)
		if s.count("cut") != 1 {
			t.Errorf("%d runs", s.count("cut"))
		}
		// Too large to keep.
		ctx = keyed(t.Context(), "large")
		tags := []string{strings.Repeat("x", limpet.MaxKeptOutcome)}
		if _, err := limpet.Call1(ctx, s.shop, (*shop).Tags, tags); err != nil {
			t.Error(err)
		}
		_, err = limpet.Call1(ctx, s.shop, (*shop).Tags, tags)
		wantFailure(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
	})
}

// TestIdempotencyKeyOfFetch: a key belongs to method, URL and body.
func TestIdempotencyKeyOfFetch(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		fetch := func(key, method, url, body string) (string, error) {
			req, err := http.NewRequestWithContext(keyed(t.Context(), key), method, url, io.MultiReader(strings.NewReader(body)))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := s.shop.Fetch(req)
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			return string(b), err
		}
		for range 2 {
			if body, err := fetch("a", "POST", "http://shop/x", "one"); body != "hello" || err != nil {
				t.Errorf("%q, %v", body, err)
			}
		}
		if s.count("fetch") != 1 {
			t.Errorf("%d runs", s.count("fetch"))
		}
		for _, other := range [][3]string{{"PUT", "http://shop/x", "one"}, {"POST", "http://shop/y", "one"}, {"POST", "http://shop/x", "two"}} {
			_, err := fetch("a", other[0], other[1], other[2])
			wantFailure(t, err, limpet.CodeIdentityReused, limpet.DeliveryNone)
		}
		_, err := fetch("b", "POST", "http://shop/x", strings.Repeat("x", limpet.MaxKeyedBody+1))
		if e := failure(t, err, limpet.CodeTooLarge, limpet.DeliveryNone); !strings.Contains(e.Message, "1048576") {
			t.Error(e)
		}
		if s.count("fetch") != 1 {
			t.Errorf("%d runs", s.count("fetch"))
		}
		o := askFor(t, s, limpet.KeyIdentity("a"), limpet.OutcomeResult)
		if b, _ := io.ReadAll(o.Response.Body); string(b) != "hello" || o.Response.StatusCode != 200 { // of memory
			t.Errorf("%v with %q", o.Response.Status, b)
		}
		// A redirect's hops are each known by themselves.
		req := func() *http.Request {
			r, err := http.NewRequestWithContext(keyed(t.Context(), "moved"), http.MethodPost, "http://shop/moved", strings.NewReader("b"))
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		for range 2 {
			resp, err := s.shop.Fetch(req())
			if err != nil || resp.Request.URL.Path != "/here" || resp.Body.Close() != nil {
				t.Fatalf("%v, %v", resp, err)
			}
		}
		if s.count("fetch") != 3 {
			t.Errorf("%d runs, want 3", s.count("fetch"))
		}
	})
}

// TestOutcome: each of the five answers, and those that can't be given.
func TestOutcome(t *testing.T) {
	t.Parallel()
	lose := func(t *testing.T, s *street, f limpettest.Fault, call func() error) string {
		t.Helper()
		s.net.Inject(f)
		e := failure(t, call(), limpet.CodeDisconnected, limpet.DeliveryUncertain)
		if e.Identity == "" {
			t.Fatal("the error names no identity")
		}
		return e.Identity
	}
	synctest.Test(t, func(t *testing.T) {
		s := open(t, node.Config{}, []limpet.StubOption{limpet.ReplayOutcome(), limpet.NoRetries()})
		sell := func() error {
			_, err := limpet.Call1(t.Context(), s.shop, (*shop).Sell, "k")
			return err
		}
		id := lose(t, s, limpettest.DropReply(limpettest.Times(1)), sell)
		var n int
		if err := askFor(t, s, id, limpet.OutcomeResult).Decode(&n); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		failed := lose(t, s, limpettest.DropReply(limpettest.Times(1)), func() error { return limpet.Do1(t.Context(), s.shop, (*shop).Fail, "f") })
		o := askFor(t, s, failed, limpet.OutcomeError)
		if o.Err.Code != "SoldOut" || !o.Err.Remote {
			t.Errorf("%#v", o.Err)
		}
		if err := o.Decode(&n); !errors.Is(err, limpet.CodeInvalidArgument) {
			t.Errorf("Decode of an error says %v", err)
		}
		never := lose(t, s, limpettest.DropRequest(limpettest.Times(1)), sell)
		askFor(t, s, never, limpet.OutcomeNotReceived)
		askFor(t, s, never, limpet.OutcomeNotReceived)
		bare := open(t, node.Config{}, []limpet.StubOption{limpet.NoRetries()})
		id = lose(t, bare, limpettest.DropReply(limpettest.Times(1)), func() error {
			_, err := limpet.Call1(t.Context(), bare.shop, (*shop).Sell, "k")
			return err
		})
		askFor(t, bare, id, limpet.OutcomeNotKept)

		// After a restart: what the log knows, and no more.
		unknown := lose(t, s, limpettest.DropRequest(limpettest.Times(1)), sell)
		s.n.Crash()
		s.n.Restart()
		askFor(t, s, never, limpet.OutcomeNotReceived)
		askFor(t, s, failed, limpet.OutcomeError)
		_, err := limpet.Outcome(t.Context(), s.shop, unknown)
		if e := failure(t, err, limpet.CodeOutcomeUnknown, limpet.DeliveryReceived); !strings.Contains(e.Message, "restarted") {
			t.Error(e)
		}
		// Too old.
		old := lose(t, s, limpettest.DropRequest(limpettest.Times(1)), sell)
		time.Sleep(61 * time.Second)
		_, err = limpet.Outcome(t.Context(), s.shop, old)
		if e := failure(t, err, limpet.CodeOutcomeUnknown, limpet.DeliveryReceived); !strings.Contains(e.Message, "1m1s ago") {
			t.Error(e)
		}
		for _, bad := range []string{"", "key:", "nonsense", old[:40] + "@123"} {
			_, err := limpet.Outcome(t.Context(), s.shop, bad)
			wantFailure(t, err, limpet.CodeInvalidArgument, limpet.DeliveryNone)
		}
		// A key that was never used can't be used any more.
		askFor(t, s, limpet.KeyIdentity("late"), limpet.OutcomeNotReceived)
		s.n.Crash()
		s.n.Restart()
		for _, arg := range []string{"k", "other"} {
			_, err = limpet.Call1(keyed(t.Context(), "late"), s.shop, (*shop).Sell, arg)
			wantFailure(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		}
		wantFailure(t, limpet.Do2(keyed(t.Context(), "late"), s.shop, (*shop).SetPrice, "k", 1), limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		askFor(t, s, limpet.KeyIdentity("late"), limpet.OutcomeNotReceived)
		if s.count("k") != 1 {
			t.Errorf("%d runs, want 1", s.count("k"))
		}
	})
}

// TestOutcomeBarsLateAttempt: "not received" stays true when the attempt arrives
// after all.
func TestOutcomeBarsLateAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, node.Config{}, []limpet.StubOption{limpet.NoRetries()})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.net.Inject(limpettest.Delay(3*time.Second, limpettest.Times(1), limpettest.Method("setPrice")))
		err := limpet.Do2(ctx, s.shop, (*shop).SetPrice, "k", 7)
		e := failure(t, err, limpet.CodeCanceled, limpet.DeliveryUncertain)
		askFor(t, s, e.Identity, limpet.OutcomeNotReceived)
		time.Sleep(5 * time.Second)
		askFor(t, s, e.Identity, limpet.OutcomeNotReceived)
		if s.count("k") != 0 {
			t.Errorf("%d runs", s.count("k"))
		}
	})
}

// TestIdempotencyKeyOutlivesCutoff: the end of a retry's time is not the caller's
// wish: the run goes on, and its outcome is not a cancellation that the key would
// be stuck with.
func TestIdempotencyKeyOutlivesCutoff(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *street) {
		ctx := keyed(t.Context(), "order")
		s.net.Inject(limpettest.DropRequest(limpettest.Times(1), limpettest.Method("wait")))
		_, err := limpet.Call2(ctx, s.shop, (*shop).Wait, "order", 30_000)
		wantFailure(t, err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		askFor(t, s, limpet.KeyIdentity("order"), limpet.OutcomeRunning)
		v, err := limpet.Call2(ctx, s.shop, (*shop).Wait, "order", 30_000)
		if v != "order" || err != nil || s.count("order") != 1 {
			t.Errorf("%q, %v, %d runs", v, err, s.count("order"))
		}
		// The caller's own wish is.
		ctx, cancel := context.WithCancel(keyed(t.Context(), "wish"))
		time.AfterFunc(time.Second, cancel)
		_, err = limpet.Call2(ctx, s.shop, (*shop).Wait, "wish", 30_000)
		wantFailure(t, err, limpet.CodeCanceled, limpet.DeliveryUncertain)
		synctest.Wait() // the handler has heard of it
		askFor(t, s, limpet.KeyIdentity("wish"), limpet.OutcomeError)
	})
}
