package host

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
)

var nilPanic any // what a careless panic gives

func oneClass(b *box) func() []*limpet.Class {
	return func() []*limpet.Class { return []*limpet.Class{b.class("Thing")} }
}

// standard methods of the tests below.
func (b *box) standard() *box {
	return b.on("get", func(_ context.Context, th *thing, key string) (string, error) {
		return fmt.Sprintf("%d mem %d", get(th.st, key), th.mem), nil
	}).on("put", func(_ context.Context, th *thing, key string) (string, error) {
		put(th.st, key, get(th.st, key)+1)
		th.mem++
		return "", nil
	}).on("sleep", func(ctx context.Context, th *thing, d string) (string, error) {
		dur, err := time.ParseDuration(d)
		if err != nil {
			return "", err
		}
		return "slept", th.st.Await(ctx, func(ctx context.Context) error {
			select {
			case <-time.After(dur):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}).on("hold", func(_ context.Context, _ *thing, d string) (string, error) {
		dur, err := time.ParseDuration(d)
		time.Sleep(dur)
		return "held", err
	})
}

// Everything that resets an object: what the callers get, what is kept, and that
// the next call finds a new incarnation.
func TestResets(t *testing.T) {
	for _, test := range []struct {
		name       string
		f          func(ctx context.Context, th *thing) error
		message    string
		overloaded bool
		log        string
	}{
		{name: "abort", f: func(_ context.Context, th *thing) error { th.st.Abort(nil); return nil }, message: "Application called abort() to reset Durable Object."}, // SPEC C33
		{name: "abort with a reason", f: func(_ context.Context, th *thing) error { th.st.Abort(errors.New("enough")); return nil }, message: "enough"},               // SPEC C33
		{name: "abort with a class", f: func(_ context.Context, th *thing) error {
			th.st.Abort(&limpet.Error{Name: "TypeError", Message: "x"})
			return nil
		}, message: "TypeError: x"}, // SPEC C33
		{name: "abort in a transaction", f: func(_ context.Context, th *thing) error {
			return th.st.Transaction(func() error { put(th.st, "t", 1); th.st.Abort(errors.New("inside")); return nil })
		}, message: "inside"},
		{name: "panic", f: func(context.Context, *thing) error { panic("boom") }, message: "The object's code panicked and the object was reset: boom", log: "boom"},
		{name: "panic with nil", f: func(context.Context, *thing) error { panic(nilPanic) }, message: "The object's code panicked and the object was reset: panic called with nil argument", log: "panic"},
		{name: "goexit", f: func(context.Context, *thing) error { runtime.Goexit(); return nil }, message: "The object's code called runtime.Goexit and the object was reset.", log: "Goexit"},
		{name: "panic in Await", f: func(ctx context.Context, th *thing) error {
			return th.st.Await(ctx, func(context.Context) error { panic("aside") })
		}, message: "The object's code panicked and the object was reset: aside (in a function given to Await)", log: "aside"},
		{name: "goexit in Await", f: func(ctx context.Context, th *thing) error {
			return th.st.Await(ctx, func(context.Context) error { runtime.Goexit(); return nil })
		}, message: "a function given to Await called runtime.Goexit and the object was reset."},
		{name: "blocked function fails", f: func(ctx context.Context, th *thing) error {
			_ = th.st.BlockConcurrencyWhile(ctx, func(context.Context) error { return errors.New("blocked and failed") })
			return nil // SPEC C35: going on does not help
		}, message: "blocked and failed"},
		{name: "blocked function panics", f: func(ctx context.Context, th *thing) error {
			return th.st.BlockConcurrencyWhile(ctx, func(context.Context) error { panic("in the block") })
		}, message: "The object's code panicked and the object was reset: in the block (in a function given to BlockConcurrencyWhile)", log: "in the block"},
		{name: "blocked function aborts", f: func(ctx context.Context, th *thing) error {
			return th.st.BlockConcurrencyWhile(ctx, func(context.Context) error { th.st.Abort(errors.New("from within")); return nil })
		}, message: "from within"},
		{name: "blocked for too long", f: func(ctx context.Context, th *thing) error {
			return th.st.BlockConcurrencyWhile(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
		}, message: textBlocked, overloaded: true}, // SPEC C36, H5
	} {
		t.Run(test.name, func(t *testing.T) {
			b := new(box).standard()
			b.on("fail", func(ctx context.Context, th *thing, _ string) (string, error) {
				put(th.st, "n", 100)
				return "", test.f(ctx, th)
			})
			inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
				stub := stubOf[*thing](w, "Thing", "o")
				do := func(what, arg string) *pending {
					return async(func() (string, error) {
						return limpet.Call2(t.Context(), stub, (*thing).Do, what, arg)
					})
				}
				if _, err := w.call(t.Context(), "put", "n"); err != nil {
					t.Fatal(err)
				}
				inFlight := w.start(t.Context(), "sleep", "1h") // has given the object away
				synctest.Wait()
				start := time.Now()
				failing := do("fail", "")
				synctest.Wait()
				queued := w.start(t.Context(), "get", "n")
				_, err := failing.wait()
				took := time.Since(start)
				for name, err := range map[string]error{"the failing call": err, "the call in flight": second(inFlight.wait()), "the queued call": second(queued.wait())} {
					if name == "the queued call" && err == nil && !test.overloaded {
						continue // came after the reset
					}
					e := failureOf(t, err, limpet.CodeReset, limpet.DeliveryReceived)
					if e.Message != test.message || !e.Reset || e.Overloaded != test.overloaded || e.Remote || e.ObjectID != stub.ID().String() {
						t.Errorf("%s: %+v", name, e)
					}
				}
				if want := map[bool]time.Duration{true: 30 * time.Second}[test.overloaded]; took != want {
					t.Errorf("the reset took %v, want %v", took, want)
				}
				// SPEC B5: the stub is broken, nothing is delivered any more.
				if err := stub.Err(); err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(test.message, ".")) {
					t.Errorf("the stub's error is %v", err)
				}
				made := b.count()
				if _, err := do("get", "n").wait(); limpet.DeliveryOf(err) != limpet.DeliveryNone {
					t.Errorf("a call through the broken stub: %v", err)
				}
				// A fresh one finds what was committed before, and new memory.
				v, err := w.call(t.Context(), "get", "n")
				want := "1 mem 0"
				if strings.HasSuffix(test.name, "in Await") {
					want = "100 mem 0" // Await has ended the turn
				}
				if v != want || err != nil {
					t.Errorf("after the reset: %q %v, want %q", v, err, want)
				}
				if made > 2 || b.count() != 2 {
					t.Errorf("%d constructors ran, then %d; want 2 in the end", made, b.count())
				}
				if got := strings.Join(w.log.lines, "\n"); !strings.Contains(got, test.log) {
					t.Errorf("the log has %q, want something of %q", got, test.log)
				}
			})
		})
	}
}

func second[T any](_ T, err error) error { return err }

// A reset by abort keeps what earlier turns of the same call committed, and
// takes back the running one.
func TestAbortAfterLeaving(t *testing.T) {
	// SPEC H8, as DESIGN 6 has it
	b := new(box).standard().on("f", func(ctx context.Context, th *thing, _ string) (string, error) {
		put(th.st, "a", 1)
		if err := th.st.Await(ctx, func(context.Context) error { return nil }); err != nil {
			return "", err
		}
		put(th.st, "b", 1)
		th.st.Abort(nil)
		return "", nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		w.mem.hold()
		p := w.start(t.Context(), "f", "")
		synctest.Wait()
		w.mem.sync()
		_, err := p.wait()
		wantError(t, err, limpet.CodeReset, limpet.DeliveryReceived)
		for key, want := range map[string]string{"a": "1 mem 0", "b": "0 mem 0"} {
			if v, err := w.call(t.Context(), "get", key); v != want || err != nil {
				t.Errorf("%s: %q %v, want %q", key, v, err, want)
			}
		}
	})
}

// The next incarnation begins with what was appended, not only with what is
// durable, and its outputs wait for that; a reset's own failures do too.
func TestResetBeforeDurable(t *testing.T) {
	b := new(box).standard().on("abort", func(_ context.Context, th *thing, _ string) (string, error) { th.st.Abort(nil); return "", nil })
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		w.mem.hold()
		calls := []*pending{w.start(t.Context(), "put", "n")}
		for _, m := range []string{"abort", "get"} {
			synctest.Wait()
			calls = append(calls, w.start(t.Context(), m, "n"))
		}
		time.Sleep(time.Second)
		for i, c := range calls {
			if c.ended() {
				t.Errorf("call %d has ended before anything is durable: %q %v", i, c.v, c.err)
			}
		}
		w.mem.release()
		if v, err := calls[2].wait(); v != "1 mem 0" || err != nil {
			t.Errorf("%q %v, want what was appended", v, err)
		}
		if _, err := calls[0].wait(); err != nil {
			t.Errorf("the output of the reset incarnation: %v", err)
		}
	})
}

func TestConstructorFails(t *testing.T) {
	for _, test := range []struct {
		name    string
		f       func(th *thing) error
		message string
		text    string // of the error in Go
	}{
		{"error", func(*thing) error { return &limpet.Error{Name: "RangeError", Message: "no"} }, "no", "no: in the constructor of class Thing"}, // SPEC C34
		{"panic", func(*thing) error { panic("no") }, "The object's code panicked and the object was reset: no", "The object's code panicked and the object was reset: no"},
		{"blocks", func(th *thing) error {
			return th.st.BlockConcurrencyWhile(context.Background(), func(context.Context) error { return errors.New("no") })
		}, "no", "no: in a function given to State.BlockConcurrencyWhile"}, // SPEC C35
		{"hangs", func(th *thing) error {
			return th.st.Await(context.Background(), func(ctx context.Context) error { <-ctx.Done(); return nil })
		}, textBlocked, "the Durable Object was reset: a function given to State.BlockConcurrencyWhile may take 30s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := new(box).standard()
			b.construct = func(th *thing) error {
				if n := get(th.st, "made"); n == 0 && b.count() < 2 {
					put(th.st, "made", 1) // rolled back
					time.Sleep(time.Second)
					return test.f(th)
				}
				return nil
			}
			inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						_, err := w.call(t.Context(), "get", "made")
						e := failureOf(t, err, limpet.CodeReset, limpet.DeliveryReceived)
						if e.Message != test.message || !strings.HasSuffix(e.Error(), test.text) || !e.Reset || e.Remote {
							t.Errorf("%+v %v", e, e)
						}
						if test.name == "error" && e.Name != "RangeError" {
							t.Errorf("class %q, want the error's own", e.Name)
						}
					})
				}
				wg.Wait()
				// SPEC H7
				want := "0 mem 0"
				if test.name == "hangs" {
					want = "1 mem 0" // Await ended the turn: the write is committed
				}
				if v, err := w.call(t.Context(), "get", "made"); v != want || err != nil || b.count() != 2 {
					t.Errorf("the next call: %q %v after %d constructors", v, err, b.count())
				}
			})
		})
	}
}

// A constructor may use stubs and Await; no event is delivered before it is done.
func TestConstructorLeaves(t *testing.T) {
	b := new(box).standard()
	b.construct = func(th *thing) error {
		if err := th.st.Await(context.Background(), func(context.Context) error { time.Sleep(time.Second); return nil }); err != nil {
			return err
		}
		put(th.st, "made", 7)
		return nil
	}
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		start := time.Now()
		if v, err := w.call(t.Context(), "get", "made"); v != "7 mem 0" || err != nil || time.Since(start) != time.Second {
			t.Errorf("%q %v after %v", v, err, time.Since(start))
		}
	})
}

// A handler that outlives its incarnation gets the reset from everything, its
// context tells it, and nothing of it passes a gate.
func TestOutlives(t *testing.T) {
	// SPEC A25: one incarnation commits; a superseded one gets an error from all
	// that it touches.
	after := make(chan string, 1)
	b := new(box).standard()
	b.on("outlive", func(ctx context.Context, th *thing, _ string) (string, error) {
		<-ctx.Done() // does not give the object away
		other, err := limpet.NamespaceOf[*thing](th.st, "Thing")
		if err != nil {
			return "", err
		}
		var kv int
		_, getErr := th.st.KV().Get("n", &kv)
		_, hasErr := th.st.KV().Has("n")
		var listErr error
		for _, err := range th.st.KV().List(limpet.ListOptions{}) {
			listErr = err
		}
		for name, err := range map[string]error{
			"the context": context.Cause(ctx), "get": getErr, "has": hasErr, "list": listErr,
			"put":         th.st.KV().Put("n", 1),
			"delete":      second(th.st.KV().Delete("n")),
			"delete all":  th.st.KV().DeleteAll(),
			"transaction": th.st.Transaction(func() error { return nil }),
			"sync":        th.st.Sync(ctx),
			"await":       th.st.Await(ctx, func(context.Context) error { after <- "ran in Await"; return nil }),
			"block":       th.st.BlockConcurrencyWhile(ctx, func(context.Context) error { after <- "ran in a block"; return nil }),
		} {
			if !errors.Is(err, limpet.CodeReset) {
				after <- fmt.Sprintf("%s: %v, want a reset", name, err)
			}
		}
		// The caller's context has ended too, so with another one.
		if _, err := limpet.Call2(context.Background(), other.Named("other"), (*thing).Do, "put", "n"); !errors.Is(err, limpet.CodeReset) {
			after <- fmt.Sprintf("a call through a stub: %v, want a reset", err)
		}
		after <- ""
		return "late", nil
	})
	inBubble(t, Limits{Block: time.Minute}, func() []*limpet.Class { return []*limpet.Class{b.class("Thing")} }, func(t *testing.T, w *world) {
		p := w.start(t.Context(), "outlive", "")
		synctest.Wait()
		id := stubOf[*thing](w, "Thing", "o").ID()
		key := id.Bytes()
		inc := w.host.shards[key[0]%shards].live[key]
		inc.reset(inc.resetError(nil, "by the test"))
		if e := failureOf(t, second(p.wait()), limpet.CodeReset, limpet.DeliveryReceived); e.Message != "by the test" {
			t.Errorf("%v", e)
		}
		if v, err := w.call(t.Context(), "get", "n"); v != "0 mem 0" || err != nil {
			t.Errorf("the next incarnation: %q %v", v, err)
		}
		for m := range after {
			if m == "" {
				break
			}
			t.Error(m)
		}
		if v, err := w.callOf(t.Context(), "other", "get", "n"); v != "0 mem 0" || err != nil {
			t.Errorf("the other object: %q %v", v, err)
		}
	})
}

// Returning an error commits the turn.
func TestErrorCommits(t *testing.T) {
	// SPEC H9
	b := new(box).standard().on("f", func(_ context.Context, th *thing, _ string) (string, error) {
		put(th.st, "n", 5)
		return "", &limpet.Error{Code: "Own", Name: "MyError", Message: "mine", Retryable: true, Overloaded: true, Reset: true, Fields: map[string]any{"a": 1}}
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		_, err := w.call(t.Context(), "f", "")
		e := failureOf(t, err, "Own", limpet.DeliveryReceived)
		// SPEC C26, C7, C8, C28
		if !e.Remote || e.Name != "MyError" || e.Message != "mine" || !e.Retryable || !e.Overloaded || e.Reset || fmt.Sprint(e.Fields["a"]) != "1" || e.Attempts != 1 {
			t.Errorf("%#v", e)
		}
		if v, _ := w.call(t.Context(), "get", "n"); v != "5 mem 0" {
			t.Errorf("%q, want the write", v)
		}
	})
}

func TestMethodErrors(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		stub := stubOf[*thing](w, "Thing", "o")
		for method, want := range map[string]string{
			"nope":             `The RPC receiver does not implement the method "nope".`,      // SPEC C30, B19
			"alarm":            "'alarm' is a reserved method and cannot be called over RPC.", // SPEC C31, B20
			"webSocketMessage": "'webSocketMessage' is a reserved method and cannot be called over RPC.",
		} {
			_, err := stub.Invoke(t.Context(), method)
			if e := failureOf(t, err, limpet.CodeUnknownMethod, limpet.DeliveryReceived); e.Message != want || e.Name != "TypeError" || !e.Remote {
				t.Errorf("%+v", e)
			}
		}
		if v, err := stub.Invoke(t.Context(), "do", "get", "n"); err != nil || v != "0 mem 0" {
			t.Errorf("%v %v", v, err)
		}
		if _, err := stub.Invoke(t.Context(), "do", "get"); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("a call with too few arguments: %v", err)
		}
	})
}

// A commit that fails resets the object: memory and data would not fit.
func TestCommitFails(t *testing.T) {
	for _, code := range []limpet.Code{limpet.CodeStorageFull, limpet.CodeTooLarge, limpet.CodeInternal} {
		t.Run(string(code), func(t *testing.T) {
			b := new(box).standard().on("await", func(ctx context.Context, th *thing, _ string) (string, error) {
				put(th.st, "n", 9)
				err := th.st.Await(ctx, func(context.Context) error { t.Error("ran"); return nil })
				return "", err
			})
			inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
				for _, m := range []string{"put", "await"} {
					if _, err := w.call(t.Context(), "put", "n"); err != nil {
						t.Fatal(err)
					}
					before, _ := w.call(t.Context(), "get", "n")
					w.mem.fail = limpet.Errorf(code, "by the test")
					_, err := w.call(t.Context(), m, "n")
					e := failureOf(t, err, code, limpet.DeliveryReceived) // SPEC C38, H2
					if !e.Reset || !strings.Contains(e.Message, "by the test") {
						t.Errorf("%+v", e)
					}
					after, err := w.call(t.Context(), "get", "n")
					if err != nil || strings.Fields(after)[0] != strings.Fields(before)[0] || !strings.HasSuffix(after, "mem 0") {
						t.Errorf("%s: %q after the failed commit (%v), %q before", m, after, err, before)
					}
				}
			})
		})
	}
}

// A log that is lost breaks every gate, which replaces what the handler said.
func TestStorageLost(t *testing.T) {
	b := new(box).standard().on("fail", func(_ context.Context, th *thing, _ string) (string, error) {
		put(th.st, "n", 1)
		return "", errors.New("the handler's own")
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		w.mem.hold()
		calls := []*pending{w.start(t.Context(), "fail", ""), w.start(t.Context(), "sleep", "1h")}
		synctest.Wait()
		close(w.mem.lost)
		for _, c := range calls {
			_, err := c.wait()
			wantError(t, err, limpet.CodeStorageLost, limpet.DeliveryReceived) // SPEC C38, C54
		}
	})
}

// The same on the caller's own goroutine, where a call runs that nothing can
// cancel.
func TestInline(t *testing.T) {
	b := new(box).standard()
	var on string
	where := func() string {
		buf := make([]byte, 64)
		return strings.Fields(string(buf[:runtime.Stack(buf, false)]))[1]
	}
	b.on("where", func(context.Context, *thing, string) (string, error) { on = where(); return "", nil }).
		on("panic", func(_ context.Context, th *thing, _ string) (string, error) { put(th.st, "n", 9); panic("boom") }).
		on("abort", func(_ context.Context, th *thing, _ string) (string, error) {
			put(th.st, "n", 9)
			th.st.Abort(nil)
			return "", nil
		}).
		on("goexit", func(_ context.Context, th *thing, _ string) (string, error) {
			put(th.st, "n", 9)
			runtime.Goexit()
			return "", nil
		})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		ctx := context.Background()
		if _, err := w.call(ctx, "put", "n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := w.call(ctx, "where", ""); err != nil || on != where() {
			t.Errorf("ran on goroutine %s, called on %s: %v", on, where(), err)
		}
		if _, err := w.call(t.Context(), "where", ""); err != nil || on == where() {
			t.Errorf("a call that can be canceled ran on its caller's goroutine: %v", err)
		}
		for _, m := range []string{"panic", "abort"} {
			_, err := w.call(ctx, m, "")
			wantError(t, err, limpet.CodeReset, limpet.DeliveryReceived)
			if v, err := w.call(ctx, "get", "n"); v != "1 mem 0" || err != nil {
				t.Errorf("after %s: %q %v", m, v, err)
			}
			synctest.Wait()
		}
		over := make(chan bool)
		go func() {
			defer close(over)
			_, _ = w.call(ctx, "goexit", "")
			t.Error("went on after runtime.Goexit")
		}()
		<-over
		if v, err := w.call(ctx, "get", "n"); v != "1 mem 0" || err != nil {
			t.Errorf("after goexit: %q %v", v, err)
		}
	})
}

// A stub that came from a State belongs to its object whatever context its calls
// get: such a call gives the object away too.
func TestStubFromState(t *testing.T) {
	// SPEC H6
	b := new(box).standard()
	b.on("self", func(_ context.Context, th *thing, _ string) (string, error) {
		put(th.st, "n", 3)
		// The stub says which object the call leaves, not the context.
		return limpet.Call2(context.Background(), th.self(), (*thing).Do, "get", "n")
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		if v, err := w.call(t.Context(), "self", ""); v != "3 mem 0" || err != nil {
			t.Errorf("%q %v", v, err)
		}
	})
}
