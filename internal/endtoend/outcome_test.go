package endtoend

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
)

// waitStrike waits until the proxy has cut n times.
func (p *proxy) waitStrike(t *testing.T, n int64) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); p.strikes.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the proxy has cut %d times, want %d", p.strikes.Load(), n)
		}
	}
}

// TestReplayOverNetwork: a lost reply, a connection that is lost while the method
// runs, and questions, over sockets.
func TestReplayOverNetwork(t *testing.T) {
	w := open(t, nil)
	p := newProxy(t, w.addr)
	ns := shops(t, dial(t, p.addr()))
	s := ns.Named("x", limpet.ReplayOutcome())

	p.cutDown.Store(1)
	if n, err := limpet.Call1(t.Context(), s, Shop.Add, 1); n != 1 || err != nil || w.g.runs.Load() != 1 {
		t.Errorf("a lost reply gives %d, %v, %d runs", n, err, w.g.runs.Load())
	}
	p.cutDown.Store(1)
	e := errorOf(t, limpet.Do1(t.Context(), s, Shop.Fail, "sold out"))
	if e.Code != "SoldOut" || e.Name != "ShopError" || !e.Remote || !e.Overloaded || fmt.Sprint(e.Fields["left"]) != "7" || e.Attempts != 2 {
		t.Errorf("a lost error gives %+v", e)
	}
	p.cutDown.Store(1)
	e = errorOf(t, limpet.Do1(t.Context(), s, Shop.Fail, "abort"))
	if e.Code != limpet.CodeReset || !e.Reset || !limpet.BreaksStub(e) || e.Attempts != 2 {
		t.Errorf("a lost reset gives %+v", e)
	}

	// The run goes on without its connection; the retry waits for it.
	s = ns.Named("y", append(patient, limpet.ReplayOutcome())...)
	done := make(chan error, 1)
	go func() { done <- limpet.Do(t.Context(), s, Shop.Wait) }()
	<-w.g.entered
	p.cut()
	time.Sleep(50 * time.Millisecond) // for the node to hear of it; if it is late, the test proves less
	w.g.open <- struct{}{}
	if err := <-done; err != nil {
		t.Errorf("the retry gives %v", err)
	}
	if err := <-w.g.ended; err != nil || len(w.g.entered) > 0 {
		t.Errorf("the run ended with %v, and %d more began", err, len(w.g.entered))
	}

	// Questions.
	s = ns.Named("z", limpet.NoRetries(), limpet.ReplayOutcome())
	p.cutDown.Store(1)
	_, err := limpet.Call1(t.Context(), s, Shop.Add, 5)
	lost := errorOf(t, err)
	if _, err := limpet.Call(t.Context(), s, Shop.Get); err != nil { // there is a connection again
		t.Fatal(err)
	}
	p.cutUp.Store(1)
	_, err = limpet.Call1(t.Context(), s, Shop.Add, 5)
	never := errorOf(t, err)
	s = ns.Named("z") // asking is tried again
	p.cutDown.Store(1)
	var n int
	if o, err := limpet.Outcome(t.Context(), s, lost.Identity); err != nil || o.Kind != limpet.OutcomeResult || o.Decode(&n) != nil || n != 5 {
		t.Errorf("of the one that ran: %v, %d, %v", o, n, err)
	}
	for range 2 {
		if o, err := limpet.Outcome(t.Context(), s, never.Identity); err != nil || o.Kind != limpet.OutcomeNotReceived {
			t.Errorf("of the one that never came: %v, %v", o, err)
		}
	}
	if o, err := limpet.Outcome(t.Context(), ns.Named("other"), lost.Identity); err != nil || o.Kind != limpet.OutcomeNotReceived {
		t.Errorf("another object says %v, %v", o, err)
	}
	_, err = limpet.Outcome(t.Context(), s, lost.Identity[:34]+"1")
	if e := errorOf(t, err); e.Code != limpet.CodeOutcomeUnknown && e.Code != limpet.CodeInvalidArgument {
		t.Errorf("an old identity gives %+v", e)
	}
}

// TestReplayAfterKill: the reply is lost, the node killed and started again, and
// the retry gets the first result.
func TestReplayAfterKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	node := start(t, dir, "")
	p := newProxy(t, node.addr)
	ns := shops(t, dial(t, p.addr()))
	s := ns.Named("x", append(patient, limpet.ReplayOutcome())...)
	type result struct {
		n   int
		err error
	}
	for round := range 3 {
		done := make(chan result, 1)
		p.cutDown.Store(1)
		ctx := t.Context()
		if round == 2 {
			ctx = limpet.WithIdempotencyKey(ctx, "third")
		}
		go func() {
			n, err := limpet.Call1(ctx, s, Shop.Add, 1)
			done <- result{n, err}
		}()
		p.waitStrike(t, int64(round+1))
		node.kill()
		node = start(t, dir, node.addr)
		if r := <-done; r.n != round+1 || r.err != nil {
			t.Errorf("call %d gives %d, %v", round+1, r.n, r.err)
		}
	}
	node.kill()
	start(t, dir, node.addr)
	n, err := limpet.Call1(limpet.WithIdempotencyKey(t.Context(), "third"), ns.Named("x", patient...), Shop.Add, 1)
	if n != 3 || err != nil {
		t.Errorf("the key gives %d, %v", n, err)
	}
	if n, err := limpet.Call(t.Context(), ns.Named("x"), Shop.Get); n != 3 || err != nil {
		t.Errorf("the object has %d, %v, want 3", n, err)
	}
}

// TestKeyOverKills kills the node while callers send calls under keys until they
// are answered: each key counts once, and everybody hears the same of it.
func TestKeyOverKills(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for seconds")
	}
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir, "")
	c := dial(t, p.addr)
	s := shops(t, c).Named("x", limpet.MaxRetries(10), limpet.RetryTimeout(20*time.Second))
	var mu sync.Mutex
	results, cut := map[string]int{}, map[string]bool{}
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint(i/2, "-", k) // two callers share each key
				n, err := 0, error(limpet.CodeDisconnected)
				for errors.Is(err, limpet.CodeDisconnected) || errors.Is(err, limpet.CodeDraining) {
					n, err = limpet.Call1(limpet.WithIdempotencyKey(context.Background(), key), s, Shop.Add, 1)
				}
				mu.Lock()
				before, told := results[key]
				switch {
				case errors.Is(err, limpet.CodeAlreadyReceived):
					cut[key] = true
				case err != nil:
					t.Errorf("key %s gives %v", key, err)
				case told && before != n:
					t.Errorf("key %s gave %d and gives %d", key, before, n)
				default:
					results[key] = n
				}
				mu.Unlock()
			}
		})
	}
	some := func() {
		mu.Lock()
		before := len(results)
		mu.Unlock()
		for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			mu.Lock()
			enough := len(results) >= before+50
			mu.Unlock()
			if enough {
				return
			}
			if time.Now().After(limit) {
				t.Fatal("no 50 calls were answered within a minute")
			}
		}
	}
	for range 3 {
		some()
		p.kill()
		p = start(t, dir, p.addr)
	}
	some()
	close(stop)
	all.Wait()
	numbers := map[int]string{}
	for key, n := range results {
		if cut[key] {
			t.Errorf("key %s gave %d, and was refused as not kept", key, n)
		}
		if other, ok := numbers[n]; ok {
			t.Errorf("keys %s and %s both gave %d", key, other, n)
		}
		numbers[n] = key
		o, err := limpet.Outcome(t.Context(), s, limpet.KeyIdentity(key))
		var again int
		if err != nil || o.Kind != limpet.OutcomeResult || o.Decode(&again) != nil || again != n {
			t.Errorf("key %s gave %d, and its outcome is %v, %d, %v", key, n, o, again, err)
		}
	}
	for key := range cut {
		if o, err := limpet.Outcome(t.Context(), s, limpet.KeyIdentity(key)); err != nil || o.Kind != limpet.OutcomeNotKept {
			t.Errorf("key %s was refused as not kept, and its outcome is %v, %v", key, o, err)
		}
	}
	n, err := limpet.Call(t.Context(), s, Shop.Get)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d keys were answered, %d were cut short; the object has %d", len(results), len(cut), n)
	if n < len(results) || n > len(results)+len(cut) {
		t.Errorf("the object has %d, want %d to %d", n, len(results), len(results)+len(cut))
	}
}

// TestOutcomeOfKey asks over a connection what became of calls under a key: keys
// have no creation time that could be sent along.
func TestOutcomeOfKey(t *testing.T) {
	w := open(t, nil)
	s := shops(t, dial(t, w.addr)).Named("x")
	if _, err := limpet.Call1(limpet.WithIdempotencyKey(t.Context(), "order-17"), s, Shop.Add, 5); err != nil {
		t.Fatal(err)
	}
	o, err := limpet.Outcome(t.Context(), s, limpet.KeyIdentity("order-17"))
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := o.Decode(&n); err != nil || o.Kind != limpet.OutcomeResult || n != 5 {
		t.Errorf("the outcome is %v with %d, %v, want the result 5", o.Kind, n, err)
	}
	o, err = limpet.Outcome(t.Context(), s, limpet.KeyIdentity("order-18"))
	if err != nil || o.Kind != limpet.OutcomeNotReceived {
		t.Errorf("the outcome of a key that nobody used is %+v, %v", o, err)
	}
}
