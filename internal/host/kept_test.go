package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/sim"
)

// Every combination of what can be known of a call that wants its first outcome or
// has a key, against the rules in words.
func TestKeptRule(t *testing.T) {
	for bits := range 1 << 13 {
		bit := func(i int) bool { return bits>>i&1 == 1 }
		k := knowledge{
			claimed: bit(0), flagged: bit(1), marked: bit(2), complete: bit(3), thisBoot: bit(4), gated: bit(5),
			replay: bit(6), told: bit(7), barred: bit(8), chosen: bit(9), other: bit(10), full: bit(11), foreign: bit(12),
		}
		k.thisHistory = !k.foreign
		got := rule(k)
		bad := ""
		switch {
		case k.claimed && k.barred && got != never:
			bad = "a call runs of which it was told that it never will"
		case k.claimed && !k.barred && k.other && got != reused:
			bad = "a key is taken for another call"
		case k.claimed && !k.barred && !k.other && k.replay && k.told && got != joins:
			bad = "a duplicate does not get the outcome"
		case got == joins && !(k.claimed && k.replay && k.told):
			bad = "there is no outcome to get"
		case k.claimed && !k.marked && got == taken:
			bad = "an unmarked handler runs again"
		case k.chosen && !k.claimed && k.full && got != full:
			bad = "a key is taken without room"
		case k.chosen && !k.claimed && !k.full && !k.marked && (k.foreign || !k.complete) && got != unproven:
			bad = "a key runs that may have run in another history"
		case k.chosen && !k.claimed && !k.full && !k.foreign && k.complete && got != taken:
			bad = "a new key does not run"
		}
		if bad != "" {
			t.Errorf("%s: %v of %+v", bad, got, k)
		}
	}
}

func TestOutcomeMemory(t *testing.T) {
	table := newClaims(testBoot, 1<<20)
	table.outcomes.limit = 3 * (10 + outcomeCost)
	run := func(now int64, n int, chosen bool) *claim {
		a := arrival{key: key(n), replay: true, uncertain: []dispatch.Boot{testBoot}}
		a.key.chosen = chosen
		c, r := table.take(now, a)
		if r != taken {
			t.Fatalf("claim %d: %v", n, r)
		}
		table.settle(c, make([]byte, 10), Pos{1, uint64(n)})
		table.settle(c, nil, Pos{}) // only the first time
		table.finish(c)
		return c
	}
	again := func(now int64, n int, chosen bool) ruling {
		a := arrival{key: key(n), replay: true, flagged: true, uncertain: []dispatch.Boot{testBoot}}
		a.key.chosen = chosen
		_, r := table.decide(now, a, true)
		return r
	}
	for n := range 5 {
		run(0, n, n%2 == 0)
	}
	// 0 and 1 made room. They are known all the same.
	for n := range 5 {
		want := joins
		if n < 2 {
			want = received
		}
		if got := again(1, n, n%2 == 0); got != want {
			t.Errorf("duplicate of %d: %v, want %v", n, got, want)
		}
	}
	if m := &table.outcomes; m.count != 3 || m.dropped != 2 || m.used != m.limit {
		t.Errorf("%d outcomes of %d bytes, %d dropped", m.count, m.used, m.dropped)
	}
	// An acknowledged call's goes; one under a key is out of reach of that.
	table.acknowledge(key(3))
	table.acknowledge(key(4))
	if table.outcomes.count != 2 || again(1, 4, true) != joins {
		t.Errorf("%d outcomes after an acknowledgement", table.outcomes.count)
	}
	// What is over goes with its claim: 90 s, or 24 h for keys.
	table.expire(int64(claimRetention))
	if again(int64(claimRetention), 4, true) != joins || again(int64(claimRetention), 0, true) != received {
		t.Error("a key is forgotten before its time")
	}
	table.expire(int64(defaultKeyRetention))
	if len(table.byKey) != 0 || table.outcomes.used != 0 || table.outcomes.count != 0 {
		t.Errorf("%d claims, %d bytes of outcomes at the end", len(table.byKey), table.outcomes.used)
	}
	// Many that come and go do not pile up.
	for n := range 100_000 {
		c := run(1, n, false)
		table.acknowledge(c.key)
	}
	if n := len(table.outcomes.queue); n > 5000 {
		t.Errorf("%d dead outcomes are held", n)
	}
}

func TestKeysFull(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{Keys: 2}, oneClass(b), func(t *testing.T, w *world) {
		do := func(k string) (string, error) {
			return w.call(limpet.WithIdempotencyKey(t.Context(), k), "put", "n")
		}
		for _, k := range []string{"a", "b", "a"} {
			if _, err := do(k); err != nil {
				t.Fatal(err)
			}
		}
		_, err := do("c")
		e := failureOf(t, err, limpet.CodeOverloaded, limpet.DeliveryNone)
		if !e.Overloaded || !strings.Contains(e.Message, "2 keys") {
			t.Error(e)
		}
		_, err = limpet.Outcome(t.Context(), stubOf[*thing](w, "Thing", "o"), limpet.KeyIdentity("d"))
		wantError(t, err, limpet.CodeOverloaded, limpet.DeliveryReceived)
		time.Sleep(24 * time.Hour)
		if _, err := do("c"); err != nil {
			t.Error(err)
		}
	})
}

// TestKeyClaimedBeforeHandler: the claim is durable first, and the object is free
// meanwhile.
func TestKeyClaimedBeforeHandler(t *testing.T) {
	started := make(chan string, 10)
	b := new(box).standard().on("note", func(_ context.Context, _ *thing, arg string) (string, error) {
		started <- arg
		return arg, nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		w.mem.hold()
		ctx, cancel := context.WithCancel(limpet.WithIdempotencyKey(t.Context(), "k"))
		defer cancel()
		first := w.start(ctx, "note", "keyed")
		synctest.Wait()
		if len(started) > 0 || first.ended() {
			t.Fatal("the handler started before the key was durable")
		}
		other := w.start(t.Context(), "note", "other")
		synctest.Wait()
		if len(started) != 1 || <-started != "other" {
			t.Error("the object was not free")
		}
		if r := w.mem.records(); len(r) != 1 || len(r[0].ids) > 0 || len(r[0].kept) != 1 || !r[0].kept[0].Claimed {
			t.Fatalf("records %+v", r)
		}
		w.mem.syncOne()
		synctest.Wait()
		if len(started) != 1 {
			t.Fatal("the handler did not start")
		}
		if first.ended() {
			t.Error("the reply left before its outcome was durable")
		}
		second := w.start(ctx, "note", "keyed") // waits for the same record
		synctest.Wait()
		if second.ended() {
			t.Error("a duplicate was told what is not durable")
		}
		w.mem.release()
		for _, p := range []*pending{first, second, other} {
			if v, err := p.wait(); err != nil || v == "" {
				t.Errorf("%q, %v", v, err)
			}
		}
		if r := w.mem.records(); len(r) != 2 || r[1].kept[0].Kind != keptOutcome {
			t.Errorf("records %+v", r)
		}
	})
}

// TestKeyNotRecorded: what the log refuses is not claimed and does not run.
func TestKeyNotRecorded(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		if _, err := w.call(t.Context(), "get", "n"); err != nil {
			t.Fatal(err)
		}
		full := func() {
			w.mem.change(func() { w.mem.fail = limpet.Errorf(limpet.CodeStorageFull, "no room") })
		}
		ctx := limpet.WithIdempotencyKey(t.Context(), "k")
		full()
		_, err := w.call(ctx, "put", "n")
		wantError(t, err, limpet.CodeStorageFull, limpet.DeliveryNone)
		full()
		_, err = limpet.Outcome(t.Context(), stubOf[*thing](w, "Thing", "o"), limpet.KeyIdentity("k"))
		wantError(t, err, limpet.CodeStorageFull, limpet.DeliveryReceived)
		if s := w.host.Stats(); s.Keys != 0 || s.Resets != 0 {
			t.Errorf("%d keys, %d resets", s.Keys, s.Resets)
		}
		if _, err := w.call(ctx, "put", "n"); err != nil { // there is room again
			t.Error(err)
		}
		if v, _ := w.call(t.Context(), "get", "n"); !strings.HasPrefix(v, "1 ") {
			t.Errorf("%q", v)
		}
	})
}

// TestOutcomeOfReset: the object was reset under the run; that is its outcome, also
// when the next life of the process asks.
func TestOutcomeOfReset(t *testing.T) {
	runs := 0
	b := new(box).standard().on("panics", func(_ context.Context, th *thing, arg string) (string, error) {
		runs++
		put(th.st, "n", 1)
		panic("spilled")
	}).on("aborts", func(_ context.Context, th *thing, arg string) (string, error) {
		runs++
		th.st.Abort(errors.New("enough"))
		return "", nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		for _, what := range []string{"panics", "aborts"} {
			ctx := limpet.WithIdempotencyKey(t.Context(), what)
			_, err := w.call(ctx, what, "")
			first := failureOf(t, err, limpet.CodeReset, limpet.DeliveryReceived)
			_, err = w.call(ctx, what, "")
			again := failureOf(t, err, limpet.CodeReset, limpet.DeliveryReceived)
			if again.Error() != first.Error() || !again.Reset || !limpet.BreaksStub(again) {
				t.Errorf("%#v, want %#v", again, first)
			}
		}
		if runs != 2 {
			t.Errorf("%d runs of two calls", runs)
		}
		if v, _ := w.call(t.Context(), "get", "n"); !strings.HasPrefix(v, "0 ") {
			t.Errorf("the turn was not rolled back: %q", v)
		}
		// Another life of the process, with what the log has.
		var said []Recovered
		for _, r := range w.mem.records() {
			for _, k := range r.kept {
				said = append(said, Recovered{r.object, k})
			}
		}
		h, err := New(Config{Storage: w.mem, Clock: sim.Clock{}, Bindings: w.Binding, Boot: dispatch.Boot{Boot: [16]byte{9}}, Kept: said})
		if err != nil {
			t.Fatal(err)
		}
		a := w.attempt(1, false, "do", "panics", "")
		a.Identity, a.Call.Key = limpet.Identity{}, "panics"
		_, err = h.Do(t.Context(), a)
		wantError(t, err, limpet.CodeIdentityReused, limpet.DeliveryNone) // the test's runner has no arguments
		o, err := h.Outcome(t.Context(), a.Call, limpet.OutcomeQuery{Key: "panics"}, 0)
		if err != nil || o.Kind != limpet.OutcomeError || o.Err.Code != limpet.CodeReset {
			t.Errorf("%+v, %v", o, err)
		}
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestKeyCycle: a call that would wait for the run that it is made from.
func TestKeyCycle(t *testing.T) {
	var w *world
	b := new(box).standard().on("self", func(ctx context.Context, th *thing, arg string) (string, error) {
		return w.call(limpet.WithIdempotencyKey(ctx, "k"), "self", "")
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, here *world) {
		w = here
		_, err := w.call(limpet.WithIdempotencyKey(t.Context(), "k"), "self", "")
		e, ok := errors.AsType[*limpet.Error](err)
		if !ok || e.Code != limpet.CodeCallCycle {
			t.Errorf("%v", err)
		}
	})
}

// TestLostConnection: the end of a connection does not end the context of a run
// whose outcome is kept; the caller's own wish does.
func TestLostConnection(t *testing.T) {
	b := new(box).on("wait", func(ctx context.Context, _ *thing, arg string) (string, error) {
		select {
		case <-time.After(time.Minute):
			return "done", ctx.Err()
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		for i, c := range []struct {
			cause  error
			replay bool
			want   limpet.OutcomeKind
		}{
			{limpet.Errorf(limpet.CodeDisconnected, "lost"), true, limpet.OutcomeResult},
			{errors.New("no longer wanted"), true, limpet.OutcomeError},
			{limpet.Errorf(limpet.CodeDisconnected, "lost"), false, limpet.OutcomeNotKept},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			a := w.attempt(i+1, false, "do", "wait", "")
			a.Call.Policy.ReplayOutcome = c.replay
			p := w.startAttempt(ctx, a)
			synctest.Wait()
			cancel(c.cause)
			_, err := p.wait()
			wantError(t, err, limpet.CodeCanceled, limpet.DeliveryReceived)
			q := limpet.OutcomeQuery{Identity: a.Identity}
			o, err := w.host.Outcome(t.Context(), a.Call, q, 0)
			if err != nil || c.want == limpet.OutcomeResult && o.Kind != limpet.OutcomeRunning {
				t.Fatalf("case %d: %v, %v", i, o, err)
			}
			time.Sleep(time.Minute + time.Second)
			if o, err = w.host.Outcome(t.Context(), a.Call, q, 0); err != nil || o.Kind != c.want {
				t.Errorf("case %d: %v, %v; want %v", i, o.Kind, err, c.want)
			}
		}
	})
}

// TestKeptFetch: a response is kept whole, however it was written.
func TestKeptFetch(t *testing.T) {
	runs := 0
	b := &box{serve: func(_ *thing, w http.ResponseWriter, r *http.Request) {
		runs++
		w.Header().Set("Trailer", "Sum")
		w.Header().Set("X", "y")
		w.WriteHeader(http.StatusAccepted)
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "part %d,", i)
			w.(http.Flusher).Flush()
		}
		w.Header().Set("Sum", "3")
		if r.URL.Path == "/large" {
			_, _ = w.Write(make([]byte, limpet.MaxKeptOutcome))
		}
	}}
	inBubble(t, Limits{}, func() []*limpet.Class { return []*limpet.Class{b.servingClass("Thing")} }, func(t *testing.T, w *world) {
		fetch := func(path string) (*http.Response, error) {
			req, err := http.NewRequestWithContext(limpet.WithIdempotencyKey(t.Context(), path), http.MethodPost, "http://x"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			return stubOf[any](w, "Thing", "o").Fetch(req)
		}
		for range 2 {
			resp, err := fetch("/")
			if err != nil {
				t.Fatal(err)
			}
			body := make([]byte, 100)
			n := 0
			for err == nil {
				var k int
				k, err = resp.Body.Read(body[n:])
				n += k
			}
			if string(body[:n]) != "part 0,part 1,part 2," || resp.StatusCode != 202 || resp.Header.Get("X") != "y" || resp.Trailer.Get("Sum") != "3" || resp.Body.Close() != nil {
				t.Errorf("%d %v %v with %q", resp.StatusCode, resp.Header, resp.Trailer, body[:n])
			}
		}
		if runs != 1 {
			t.Errorf("%d runs", runs)
		}
		// A client that leaves early is no reason not to keep it.
		for _, path := range []string{"/early", "/large"} {
			resp, err := fetch(path)
			if err != nil || resp.Body.Close() != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			resp, err = fetch(path)
			if path == "/large" {
				wantError(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
			} else if err != nil || resp.StatusCode != 202 || resp.Body.Close() != nil {
				t.Errorf("%v, %v", resp, err)
			}
		}
	})
}

// TestBarsAreBounded: what is remembered of calls that never came is bounded too,
// and never dropped for room.
func TestBarsAreBounded(t *testing.T) {
	table := newClaims(testBoot, 3*claimBytes)
	named := func(n int) claimKey { return claimKey{id: limpet.Identity{CreatedMS: int64(n + 1)}} }
	q := func(n int) inquiry { return inquiry{key: named(n), here: true, age: int64(time.Second)} }
	for n := range maxBars {
		if c, known, r := table.bar(0, q(n)); known || r != taken {
			t.Fatalf("%d: %v, %v", n, known, r)
		} else {
			table.settle(c, nil, Pos{1, 1})
		}
	}
	if _, _, r := table.bar(0, q(maxBars)); r != full {
		t.Errorf("one more: %v", r)
	}
	for n := range 10 { // claims of calls do not push them out
		table.take(0, arrival{key: named(maxBars + 10 + n)})
	}
	if _, r := table.take(0, arrival{key: named(0), marked: true}); r != never {
		t.Errorf("a barred call: %v", r)
	}
	table.acknowledge(named(0))
	if _, r := table.take(0, arrival{key: named(0)}); r != never {
		t.Errorf("a barred call, acknowledged: %v", r)
	}
	for _, bad := range []inquiry{
		{key: named(0), here: false}, {key: named(0), here: true, age: int64(61 * time.Second)}, {key: named(0), here: true, age: -int64(31 * time.Second)},
	} {
		bad.key = named(1 << 17)
		if _, _, r := table.bar(0, bad); r != unproven {
			t.Errorf("%+v: %v", bad, r)
		}
	}
}

// TestKeyTakenAgain: a key that ran out and was taken again is known from then on,
// also by the next life of the process.
func TestKeyTakenAgain(t *testing.T) {
	table := newClaims(testBoot, 1<<20)
	hour := int64(time.Hour)
	k := key(1)
	for _, at := range []int64{-23 * hour, -hour} {
		table.restoreKept(Recovered{k.object, Kept{Keyed: true, ID: k.id, Claimed: true}}, at)
		table.restoreKept(Recovered{key(2).object, Kept{Keyed: true, ID: key(2).id, Claimed: true}}, at)
	}
	k.chosen = true
	table.expire(22 * hour)
	if _, r := table.decide(22*hour, arrival{key: k, replay: true}, true); r != received {
		t.Errorf("23 h after it was taken a key counts as %v, want %v", r, received)
	}
	table.expire(23 * hour)
	if n := len(table.byKey); n != 0 || table.chosen.listed != 0 {
		t.Errorf("%d keys are known after 24 h", n)
	}
}

// TestCrowdedKey: the duplicates that wait for one run are bounded as an inbox is.
func TestCrowdedKey(t *testing.T) {
	b := new(box).on("wait", func(context.Context, *thing, string) (string, error) {
		time.Sleep(time.Minute)
		return "done", nil
	})
	inBubble(t, Limits{QueueEvents: 3}, oneClass(b), func(t *testing.T, w *world) {
		ctx := limpet.WithIdempotencyKey(t.Context(), "k")
		var all []*pending
		for range 4 {
			all = append(all, w.start(ctx, "wait", ""))
			synctest.Wait()
		}
		_, err := w.call(ctx, "wait", "")
		if e := failureOf(t, err, limpet.CodeOverloaded, limpet.DeliveryReceived); !e.Overloaded || !strings.Contains(e.Message, "3 duplicates") {
			t.Error(e)
		}
		_, _ = all[0].wait()
		all = append(all, w.start(ctx, "wait", ""))
		for _, p := range all {
			if v, err := p.wait(); !strings.HasPrefix(v, "done") || err != nil {
				t.Errorf("%q, %v", v, err)
			}
		}
	})
}

// TestResetNotKept: a reset that can't be recorded is told at once, although the
// handler goes on.
func TestResetNotKept(t *testing.T) {
	b := new(box).standard().on("linger", func(ctx context.Context, th *thing, _ string) (string, error) {
		return "", th.st.Await(ctx, func(context.Context) error { time.Sleep(time.Second); return nil })
	}).on("abort", func(_ context.Context, th *thing, _ string) (string, error) {
		th.st.Abort(errors.New("enough"))
		return "", nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		ctx := limpet.WithIdempotencyKey(t.Context(), "k")
		first, second := w.start(ctx, "linger", ""), (*pending)(nil)
		synctest.Wait()
		second = w.start(ctx, "linger", "")
		synctest.Wait()
		w.mem.change(func() { w.mem.fail = limpet.Errorf(limpet.CodeStorageFull, "no room") })
		_, err := w.call(t.Context(), "abort", "")
		wantError(t, err, limpet.CodeReset, limpet.DeliveryReceived)
		_, err = first.wait()
		wantError(t, err, limpet.CodeReset, limpet.DeliveryReceived)
		synctest.Wait()
		if !second.ended() {
			t.Fatal("a duplicate waits for a handler that outlived its incarnation")
		}
		_, err = second.wait()
		wantError(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		o, err := limpet.Outcome(t.Context(), stubOf[*thing](w, "Thing", "o"), limpet.KeyIdentity("k"))
		if err != nil || o.Kind != limpet.OutcomeNotKept {
			t.Errorf("%+v, %v", o, err)
		}
	})
}
