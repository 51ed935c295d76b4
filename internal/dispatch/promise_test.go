package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
)

// TestPromise plays random faults, policies and aborts against an object that
// keeps claims, and holds every call against the promise: an unmarked method
// runs at most once, a call that succeeded ran, a call that says "not delivered"
// did not. LIMPET_SEED plays one seed.
func TestPromise(t *testing.T) {
	// SPEC E28, F13, F14, F15, F18, F41
	seeds := 2000
	first := uint64(time.Now().UnixNano())
	if s := os.Getenv("LIMPET_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, seeds = n, 1
	}
	if testing.Short() {
		seeds = min(seeds, 200)
	}
	for i := range seeds {
		seed := first + uint64(i)
		bubble(t, func(t *testing.T) { playSeed(t, seed) })
		if t.Failed() {
			t.Fatalf("replay with LIMPET_SEED=%d", seed)
		}
	}
}

func playSeed(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	w.marked, w.prompt = rng.IntN(8) == 0, rng.IntN(2) == 0
	faults := make([]fault, 20)
	for i := range faults {
		faults[i] = fault{
			kind:  [...]faultKind{answer, lostRequest, lostRequest, lostReply, lostReply, refused, refused, draining, received, hang, noRoute, failing}[rng.IntN(12)],
			after: time.Duration(rng.IntN(1000)) * ms,
			err:   [...]error{lost(limpet.DeliveryNone), code(limpet.CodeOverloaded, limpet.DeliveryNone), fmt.Errorf("broken")}[rng.IntN(3)],
		}
	}
	w.faults = func(n int) fault { return faults[n%len(faults)] }
	kinds := make([]bool, 20) // which transports are lossless
	for i := range kinds {
		kinds[i] = rng.IntN(4) == 0
	}
	w.routes = func(n int) Transport {
		f := faults[n%len(faults)].kind
		if kinds[n%len(kinds)] && f != lostRequest && f != lostReply {
			return losslessTransport{w}
		}
		return w
	}
	e := New(Config{Router: w, Clock: clock{}, Observer: w, Rand: rng})
	defer e.Close()
	ctx, cancel := context.WithCancel(context.Background())
	if rng.IntN(2) == 0 || faults[0].kind == hang {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(12_000))*ms)
	}
	defer cancel()
	c := newCall(policy(rng.IntN(11), time.Duration(500+rng.IntN(10_000))*ms))
	if rng.IntN(8) == 0 {
		c.Unretryable = "an argument is a stream"
	}

	v, err := e.Call(ctx, c)
	w.mu.Lock()
	runs, attempts := w.executions, len(w.attempts)
	w.mu.Unlock()
	if runs > 1 && !w.marked {
		t.Errorf("the method ran %d times: %q", runs, w.flags())
	}
	if err == nil {
		if runs == 0 || v != runs {
			t.Errorf("result %v after %d runs", v, runs)
		}
	} else {
		got := asLimpet(t, err)
		if got.Delivery == limpet.DeliveryNone && runs > 0 {
			t.Errorf("%v: not delivered, but the method ran %d times: %q", got, runs, w.flags())
		}
		if got.Delivery == limpet.DeliveryReceived && runs == 0 {
			t.Errorf("%v: received, but the method never ran: %q", got, w.flags())
		}
		if got.Attempts < attempts {
			t.Errorf("%d attempts told, %d made", got.Attempts, attempts)
		}
	}
	if attempts > 1+c.Policy.MaxRetries || attempts > 1 && c.Unretryable != "" {
		t.Errorf("%d attempts with %+v", attempts, c.Policy)
	}
	for i, a := range w.attempts {
		if i > 0 && a.at >= c.Policy.Timeout {
			t.Errorf("retry at %v, timeout %v", a.at, c.Policy.Timeout)
		}
	}
	// SPEC I3
	if want := min(1, w.retries); len(w.outcomes) != want {
		t.Errorf("outcomes %q after %d retries", w.outcomes, w.retries)
	}
	if used := e.ReplayMemory().Used; used != 0 {
		t.Errorf("%d bytes of replay memory left", used)
	}
}
