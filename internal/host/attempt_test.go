package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
)

// doRunner is an attempt's call of Do or Marked.
type doRunner struct{ method, what, arg string }

func (r doRunner) Run(ctx context.Context, receiver any) (any, error) {
	th := receiver.(*thing)
	if r.method == "marked" {
		return th.Marked(ctx, r.what, r.arg)
	}
	return th.Do(ctx, r.what, r.arg)
}
func (r doRunner) Args() (limpet.Encoded, error)     { return nil, nil }
func (r doRunner) Capabilities() []limpet.Capability { return nil }
func (r doRunner) Size() int                         { return len(r.arg) }

// attempt is one try over a transport that can lose answers.
func (w *world) attempt(n int, retry bool, method, what, arg string) dispatch.Attempt {
	w.t.Helper()
	a := dispatch.Attempt{
		Call: &limpet.CallSpec{
			Binding: w.names["Thing"], Object: stubOf[*thing](w, "Thing", "o").ID(), Method: method, Runner: doRunner{method, what, arg},
		},
		Identity: key(n).id, Number: 1, Retry: retry, WillRetry: true,
	}
	if retry {
		a.Uncertain = []dispatch.Boot{testBoot}
	}
	return a
}

func (w *world) startAttempt(ctx context.Context, a dispatch.Attempt) *pending {
	return async(func() (string, error) {
		v, err := w.host.Do(ctx, a)
		s, _ := v.(string)
		return s, err
	})
}

func TestAttempts(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		ctx := t.Context()
		do := func(n int, retry bool, method, what string) (string, error) {
			return w.startAttempt(ctx, w.attempt(n, retry, method, what, "n")).wait()
		}
		if !w.host.Lossless() {
			t.Error("the host's own transport needs identities") // DESIGN 5, rule B
		}
		if _, err := do(1, false, "do", "put"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err := do(1, true, "do", "put") // SPEC F13
			e := failureOf(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
			if e.Remote || e.Identity != key(1).id.String() { // SPEC F17: the code, which no method can forge
				t.Errorf("%#v", e)
			}
		}
		_, err := do(1, false, "do", "put") // SPEC F15
		wantError(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		for range 2 {
			if _, err := do(2, true, "marked", "put"); err != nil { // SPEC F30, F38, F42
				t.Errorf("a marked retry: %v", err)
			}
		}
		_, err = do(3, false, "nope", "") // SPEC F11: a missing handler claims
		wantError(t, err, limpet.CodeUnknownMethod, limpet.DeliveryReceived)
		_, err = do(3, true, "nope", "")
		wantError(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		// SPEC F12: failed and running ones are claimed too.
		if _, err = do(4, false, "do", "unknown to the test"); !errors.Is(err, limpet.CodeApplication) {
			t.Errorf("%v", err)
		}
		_, err = do(4, true, "do", "put")
		wantError(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		running := w.startAttempt(ctx, w.attempt(5, false, "do", "sleep", "1m"))
		synctest.Wait()
		_, err = do(5, true, "do", "put")
		wantError(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		// Rule A: a claim outlives the incarnation, evicted or reset.
		if _, err := running.wait(); err != nil {
			t.Error(err)
		}
		if !w.host.Evict(stubOf[*thing](w, "Thing", "o").ID()) {
			t.Error("not evicted")
		}
		made := b.count()
		_, err = do(1, true, "do", "put")
		wantError(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		if b.count() != made+1 { // SPEC F10, F11: after construction
			t.Errorf("%d constructors ran for a rejected retry, want 1", b.count()-made)
		}
		// SPEC F18: no proof, and this class is not gated.
		a := w.attempt(6, true, "do", "put", "n")
		a.Uncertain = []dispatch.Boot{{History: testBoot.History}}
		_, err = w.startAttempt(ctx, a).wait()
		wantError(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		if v, _ := w.call(ctx, "get", "n"); !strings.HasPrefix(v, "3 ") {
			t.Errorf("%q, want three puts", v)
		}
		w.host.Acknowledge(stubOf[*thing](w, "Thing", "o").ID().Bytes(), key(1).id)
		if _, err := do(1, true, "do", "put"); err != nil {
			t.Errorf("after an acknowledgement: %v", err)
		}
	})
}

// A gated class may run a retry after a restart, unless the log has its claim.
func TestAttemptAfterRestart(t *testing.T) {
	// SPEC F20, F21
	b := new(box).standard()
	synctest.Test(t, func(t *testing.T) {
		class := b.class("Thing", limpet.GatedEffects())
		w := newWorld(t, Limits{}, class)
		defer w.close()
		h, err := New(Config{
			Storage: w.mem, Clock: w.host.clock, Bindings: w.Binding, Boot: testBoot,
			Claims: []Claim{{Object: stubOf[*thing](w, "Thing", "o").ID().Bytes(), Identity: key(1).id}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = h.Close(context.Background()) }()
		w.host, h = h, w.host
		other := dispatch.Boot{History: testBoot.History, Boot: [16]byte{42}}
		for n, want := range map[int]limpet.Code{1: limpet.CodeAlreadyReceived, 2: ""} {
			a := w.attempt(n, true, "do", "put", "n")
			a.Uncertain = []dispatch.Boot{other}
			_, err := w.host.Do(t.Context(), a)
			if limpet.CodeOf(err) != want {
				t.Errorf("retry of call %d: %v, want code %q", n, err, want)
			}
		}
		w.host, h = h, w.host
	})
}

// A claim rejection is not replaced by a failure of the output gate.
func TestRejectionStays(t *testing.T) {
	// SPEC C53
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		w.mem.hold()
		first := w.startAttempt(t.Context(), w.attempt(1, false, "do", "put", "n"))
		synctest.Wait()
		_, err := w.startAttempt(t.Context(), w.attempt(1, true, "do", "put", "n")).wait()
		wantError(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
		if first.ended() {
			t.Error("the first attempt did not wait for the log")
		}
		w.mem.release()
		if _, err := first.wait(); err != nil {
			t.Error(err)
		}
	})
}

// Which identities are written when: rules C and D through the whole host.
func TestIdentitiesInRecords(t *testing.T) {
	// SPEC F21
	b := new(box).standard()
	b.on("memory", func(_ context.Context, th *thing, _ string) (string, error) { th.mem++; return "", nil })
	b.on("unconfirmed", func(_ context.Context, th *thing, key string) (string, error) {
		put(th.st, key, 1, limpet.AllowUnconfirmed())
		return "", nil
	})
	type want struct {
		ids   []int
		pages bool
	}
	check := func(t *testing.T, w *world, want ...want) {
		t.Helper()
		got := w.mem.records()
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) {
				t.Fatalf("%d records, want %d", len(got), len(want))
			}
			var ids []limpet.Identity
			for _, n := range want[i].ids {
				ids = append(ids, key(n).id)
			}
			if got[i].pages != want[i].pages || !slices.Equal(got[i].ids, ids) {
				t.Errorf("record %d: %v pages %v, want calls %v pages %v", i+1, got[i].ids, got[i].pages, want[i].ids, want[i].pages)
			}
		}
	}
	for _, test := range []struct {
		name string
		f    func(t *testing.T, w *world)
		want []want
	}{
		{"a read that only replies costs no record", func(t *testing.T, w *world) {
			_, _ = w.startAttempt(t.Context(), w.attempt(1, false, "do", "memory", "")).wait()
		}, nil},
		{"a write", func(t *testing.T, w *world) {
			_, _ = w.startAttempt(t.Context(), w.attempt(1, false, "do", "put", "n")).wait()
		}, []want{{[]int{1}, true}}},
		{"an outgoing call or Await", func(t *testing.T, w *world) {
			_, _ = w.startAttempt(t.Context(), w.attempt(1, false, "do", "sleep", "1s")).wait()
		}, []want{{[]int{1}, false}}},
		{"a marked call needs no record", func(t *testing.T, w *world) {
			_, _ = w.startAttempt(t.Context(), w.attempt(1, false, "marked", "sleep", "1s")).wait()
		}, nil},
		{"nor one that is never sent again", func(t *testing.T, w *world) {
			a := w.attempt(1, false, "do", "sleep", "1s")
			a.WillRetry = false // SPEC F2
			_, _ = w.startAttempt(t.Context(), a).wait()
		}, nil},
		{"nor one without an identity", func(t *testing.T, w *world) {
			_, _ = w.call(t.Context(), "sleep", "1s")
		}, nil},
		{"the write of one call, while two run", func(t *testing.T, w *world) {
			// The second one's Await comes first: its record has both.
			x := w.startAttempt(t.Context(), w.attempt(1, false, "do", "wait1", ""))
			synctest.Wait()
			y := w.startAttempt(t.Context(), w.attempt(2, false, "do", "wait2", ""))
			_, _ = x.wait()
			_, _ = y.wait()
		}, []want{{[]int{1}, false}, {[]int{2}, false}, {nil, true}}},
		{"an unconfirmed write", func(t *testing.T, w *world) {
			_, _ = w.startAttempt(t.Context(), w.attempt(1, false, "do", "unconfirmed", "n")).wait()
		}, []want{{[]int{1}, true}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b.on("wait1", func(ctx context.Context, th *thing, _ string) (string, error) {
				_ = th.st.Await(ctx, func(context.Context) error { time.Sleep(time.Second); return nil })
				put(th.st, "n", 1)
				return "", nil
			}).on("wait2", func(ctx context.Context, th *thing, _ string) (string, error) {
				return "", th.st.Await(ctx, func(context.Context) error { time.Sleep(2 * time.Second); return nil })
			})
			inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
				test.f(t, w)
				check(t, w, test.want...)
			})
		})
	}
}

// The reply of another call shows memory of one that runs: it waits until that
// one's identity is durable, and a read alone does not.
func TestRuleD(t *testing.T) {
	b := new(box).standard()
	// A handler that gives the object away has its identity recorded by that. What
	// is left is a reset: the failure of the other call tells the aborting one's
	// memory.
	b.on("tell", func(_ context.Context, th *thing, _ string) (string, error) {
		th.mem = 77
		th.st.Abort(fmt.Errorf("memory is %d", th.mem))
		return "", nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		inFlight := w.start(t.Context(), "sleep", "1h") // no identity: no record
		synctest.Wait()
		w.mem.hold()
		teller := w.startAttempt(t.Context(), w.attempt(1, false, "do", "tell", ""))
		time.Sleep(time.Second)
		if inFlight.ended() || teller.ended() {
			t.Error("an outcome left that tells of a call whose identity is not durable")
		}
		if got := w.mem.records(); len(got) != 1 || len(got[0].ids) != 1 || got[0].pages {
			t.Errorf("records %+v, want one of the identity", got)
		}
		w.mem.release()
		for _, p := range []*pending{inFlight, teller} {
			_, err := p.wait()
			if e := failureOf(t, err, limpet.CodeReset, limpet.DeliveryReceived); e.Message != "memory is 77" {
				t.Errorf("%v", e)
			}
		}
	})
}

// An event that is away may send more out (another goroutine of its handler, a
// part of a response) while another call holds the turn half-done: the identity
// of that call must be on record first, and its turn must stay whole.
func TestRuleDAway(t *testing.T) {
	b := new(box).standard()
	var heard atomic.Bool
	b.on("fan", func(ctx context.Context, th *thing, _ string) (string, error) {
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = limpet.Call2(ctx, th.other(), (*thing).Do, "sleep", "10s") })
		time.Sleep(3 * time.Second) // the first goroutine has left, another call holds the turn
		_, err := limpet.Call2(ctx, th.other(), (*thing).Do, "hear", "")
		wg.Wait()
		return "", err
	}).on("hear", func(context.Context, *thing, string) (string, error) {
		heard.Store(true)
		return "", nil
	}).on("half", func(_ context.Context, th *thing, _ string) (string, error) {
		put(th.st, "half", 1)
		time.Sleep(5 * time.Second)
		th.st.Abort(errors.New("half-done"))
		return "", nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		fan := w.startAttempt(t.Context(), w.attempt(1, false, "do", "fan", ""))
		time.Sleep(time.Second)
		half := w.startAttempt(t.Context(), w.attempt(2, false, "do", "half", ""))
		time.Sleep(time.Second)
		w.mem.hold()
		time.Sleep(2 * time.Second) // the second goroutine wants to leave
		if heard.Load() {
			t.Error("a call left before the identity of the call that holds the turn is durable")
		}
		records := w.mem.records()
		if last := records[len(records)-1]; last.pages || len(last.ids) != 1 || last.ids[0] != key(2).id {
			t.Errorf("records %+v, want a last one of identity 2 alone", records)
		}
		w.mem.release()
		synctest.Wait()
		if !heard.Load() {
			t.Error("the call did not leave once the identity was durable")
		}
		_, err := half.wait()
		_ = failureOf(t, err, limpet.CodeReset, limpet.DeliveryReceived)
		_, err = fan.wait()
		_ = failureOf(t, err, limpet.CodeReset, limpet.DeliveryReceived)
		if v, err := w.call(t.Context(), "get", "half"); v != "0 mem 0" || err != nil {
			t.Errorf("the half-done turn was committed: %q %v", v, err)
		}
	})
}

// AllowUnconfirmed lifts the wait for data, never the one for identities.
func TestUnconfirmed(t *testing.T) {
	// SPEC H3
	b := new(box).standard()
	b.on("unconfirmed", func(_ context.Context, th *thing, key string) (string, error) {
		put(th.st, key, 1, limpet.AllowUnconfirmed())
		return "", nil
	}).on("both", func(_ context.Context, th *thing, key string) (string, error) {
		put(th.st, key, 1, limpet.AllowUnconfirmed())
		put(th.st, key, 2)
		return "", nil
	}).on("sync", func(ctx context.Context, th *thing, key string) (string, error) {
		put(th.st, key, 1, limpet.AllowUnconfirmed())
		return "", th.st.Sync(ctx)
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		if _, err := w.call(t.Context(), "get", "n"); err != nil { // loaded before the log is held
			t.Fatal(err)
		}
		w.mem.hold()
		if _, err := w.call(t.Context(), "unconfirmed", "n"); err != nil {
			t.Error(err)
		}
		if v, err := w.call(t.Context(), "get", "n"); v != "1 mem 0" || err != nil {
			t.Errorf("%q %v", v, err)
		}
		// A call with an identity: its own reply needs no record, the next
		// one's output does.
		own := w.startAttempt(t.Context(), w.attempt(1, false, "do", "unconfirmed", "n"))
		synctest.Wait()
		if !own.ended() {
			t.Error("the own reply of an unconfirmed write waits")
		}
		other := w.start(t.Context(), "get", "n")
		synctest.Wait()
		if other.ended() {
			t.Error("another reply left before the identity of the call is durable")
		}
		w.mem.sync()
		_, _ = other.wait()
		var calls []*pending
		for _, m := range []string{"both", "sync"} {
			calls = append(calls, w.start(t.Context(), m, "n"))
			synctest.Wait()
		}
		for i, p := range calls {
			if p.ended() {
				t.Errorf("call %d did not wait for the log", i)
			}
		}
		w.mem.release()
		for _, p := range calls {
			if _, err := p.wait(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestExisting(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		ns, err := limpet.NamespaceOf[*thing](w, "Thing")
		if err != nil {
			t.Fatal(err)
		}
		id, _ := ns.IDFromName("o")
		get := func() error {
			_, err := limpet.Call2(t.Context(), ns.Existing(id), (*thing).Do, "get", "n")
			return err
		}
		for range 2 {
			e := failureOf(t, get(), limpet.CodeNoSuchObject, limpet.DeliveryNone)
			if e.Attempts != 1 || b.count() != 0 || w.mem.Exists(id.Bytes()) {
				t.Errorf("%d attempts, %d constructors", e.Attempts, b.count())
			}
		}
		if _, err := w.call(t.Context(), "get", "n"); err != nil {
			t.Fatal(err)
		}
		if err := get(); err != nil {
			t.Errorf("an object in memory: %v", err)
		}
		w.host.Evict(id)
		wantError(t, get(), limpet.CodeNoSuchObject, limpet.DeliveryNone) // it left nothing behind
		if _, err := w.call(t.Context(), "put", "n"); err != nil {
			t.Fatal(err)
		}
		w.host.Evict(id)
		if err := get(); err != nil {
			t.Errorf("an object with data: %v", err)
		}
	})
}
