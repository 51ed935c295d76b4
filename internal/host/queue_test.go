package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
)

func TestOverload(t *testing.T) {
	// SPEC C37
	b := new(box).standard()
	big := strings.Repeat("x", 1000)
	for _, test := range []struct {
		name   string
		limits Limits
		queued int
		arg    string
		wait   time.Duration
		text   string
	}{
		{"count", Limits{QueueEvents: 3}, 3, "n", 0, "Too many requests queued. (3 queued, 0 replies waiting for the log; the limit is 3 together)"},
		{"bytes", Limits{QueueBytes: 2 * (callBytes + 1000 + 9)}, 1, big, 0, "Too much data queued. ("},
		{"age", Limits{}, 1, "n", 10 * time.Second, "Requests queued for too long. (the oldest of 1 for 10s; the limit is 10s)"},
		{"node", Limits{NodeBytes: 2*callBytes + 100}, 2, "n", 0, "Too much data queued on this node. ("},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, test.limits, oneClass(b), func(t *testing.T, w *world) {
				do := func(arg string) *pending {
					a := w.attempt(0, false, "do", "get", arg)
					a.Identity = limpet.Identity{}
					return w.startAttempt(t.Context(), a)
				}
				holding := w.start(t.Context(), "hold", "1m")
				synctest.Wait()
				var queued []*pending
				for range test.queued {
					queued = append(queued, do(test.arg))
					synctest.Wait()
				}
				time.Sleep(test.wait)
				var over error
				for range 2 { // the second one of "bytes" is too much
					_, over = do(strings.Repeat(test.arg, 2)).waitOr(synctest.Wait)
					if over != nil {
						break
					}
				}
				e := failureOf(t, over, limpet.CodeOverloaded, limpet.DeliveryNone)
				if !e.Overloaded || e.Retryable || !strings.HasPrefix(e.Message, textOverloaded+test.text) {
					t.Errorf("%#v, want %q", e, test.text)
				}
				if n := w.host.Stats().Overloads; n == 0 {
					t.Error("nothing was counted")
				}
				if _, err := holding.wait(); err != nil {
					t.Error(err)
				}
				for _, p := range queued {
					if _, err := p.wait(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// waitOr waits for a call that ends without time passing, or gives up.
func (p *pending) waitOr(settle func()) (string, error) {
	settle()
	if !p.ended() {
		return "", nil
	}
	return p.wait()
}

// Replies that wait for the log count against the inbox.
func TestOutputsCount(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{QueueEvents: 3}, oneClass(b), func(t *testing.T, w *world) {
		w.mem.hold()
		var calls []*pending
		for range 3 {
			calls = append(calls, w.start(t.Context(), "put", "n"))
			synctest.Wait()
		}
		_, err := w.call(t.Context(), "get", "n")
		if e := failureOf(t, err, limpet.CodeOverloaded, limpet.DeliveryNone); !strings.Contains(e.Message, "3 replies waiting for the log") {
			t.Error(e)
		}
		w.mem.release()
		for _, p := range calls {
			if _, err := p.wait(); err != nil {
				t.Error(err)
			}
		}
		if _, err := w.call(t.Context(), "get", "n"); err != nil {
			t.Error(err)
		}
	})
}

func TestCallerGivesUp(t *testing.T) {
	for _, test := range []struct {
		name     string
		what     string
		queued   bool
		delivery limpet.Delivery
	}{
		{"queued", "put", true, limpet.DeliveryNone},
		{"running", "hold", false, limpet.DeliveryReceived}, // SPEC C52
		{"away", "sleep", false, limpet.DeliveryReceived},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := new(box).standard()
			ended := make(chan error, 1)
			b.on("hold", func(ctx context.Context, th *thing, d string) (string, error) {
				time.Sleep(time.Minute)
				put(th.st, "n", 50)
				ended <- context.Cause(ctx)
				return "", nil
			}).on("sleep", func(ctx context.Context, th *thing, _ string) (string, error) {
				return "", th.st.Await(ctx, func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(time.Second)
					return nil
				})
			})
			inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
				if test.queued {
					w.start(context.Background(), "hold", "")
					synctest.Wait()
				}
				cause := errors.New("enough")
				ctx, cancel := context.WithCancelCause(t.Context())
				start := time.Now()
				p := w.start(ctx, test.what, "1h")
				synctest.Wait()
				cancel(cause)
				_, err := p.wait()
				e := failureOf(t, err, limpet.CodeCanceled, test.delivery) // SPEC C41
				if !errors.Is(e, cause) || time.Since(start) != 0 {
					t.Errorf("%v after %v", e, time.Since(start))
				}
				// A handler that goes on keeps the turn until it returns.
				v, err := w.call(t.Context(), "get", "n")
				want, took := "0 mem 0", time.Duration(0)
				if test.name != "away" {
					want, took = "50 mem 0", time.Minute
				}
				if v != want || err != nil || time.Since(start) != took {
					t.Errorf("%q %v after %v, want %q after %v", v, err, time.Since(start), want, took)
				}
				if test.name == "running" {
					if got := <-ended; !errors.Is(got, cause) {
						t.Errorf("the handler's context ended with %v, want the caller's cause", got)
					}
				}
			})
		})
	}
}

// The handler's context has the caller's deadline and end, and none of its
// values.
func TestHandlerContext(t *testing.T) {
	type mine struct{}
	b := new(box)
	var leaked context.Context
	b.on("look", func(ctx context.Context, th *thing, _ string) (string, error) {
		leaked = ctx
		d, ok := ctx.Deadline()
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		return fmt.Sprint(ctx.Value(mine{}), inner.Value(mine{}), ok, d.Second(), ctx.Err(), eventOf(inner) != nil), nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		ctx, cancel := context.WithDeadline(context.WithValue(context.Background(), mine{}, "secret"), time.Now().Add(7*time.Second))
		defer cancel()
		v, err := w.call(ctx, "look", "")
		if want := "<nil> <nil> true 7 <nil> true"; v != want || err != nil {
			t.Errorf("%q %v, want %q", v, err, want)
		}
		synctest.Wait() // the reply may be first
		if leaked.Err() == nil || context.Cause(leaked) == nil {
			t.Error("the context did not end with the handler")
		}
		if v, err := w.call(context.WithValue(context.Background(), mine{}, "secret"), "look", ""); v != "<nil> <nil> false 0 <nil> true" || err != nil {
			t.Errorf("%q %v", v, err)
		}
		if leaked.Err() == nil {
			t.Error("the context did not end with the handler")
		}
		<-leaked.Done()
	})
}

func (th *thing) other() *limpet.Stub[*thing] {
	ns, err := limpet.NamespaceOf[*thing](th.st, "Thing")
	if err != nil {
		panic(err)
	}
	return ns.Named("other")
}

func (th *thing) self() *limpet.Stub[*thing] {
	ns, err := limpet.NamespaceOf[*thing](th.st, "Thing")
	if err != nil {
		panic(err)
	}
	return ns.Get(th.st.ID())
}

// Calls that come back to an object which blocks concurrency fail at once and
// name the chain; those to an object that only waits go through.
func TestCallCycle(t *testing.T) {
	b := new(box).standard()
	late := make(chan error, 1)
	b.on("back", func(ctx context.Context, th *thing, _ string) (string, error) {
		ns, err := limpet.NamespaceOf[*thing](th.st, "Thing")
		if err != nil {
			return "", err
		}
		return limpet.Call2(ctx, ns.Named("o"), (*thing).Do, "get", "n")
	}).on("self", func(ctx context.Context, th *thing, _ string) (string, error) {
		return limpet.Call2(ctx, th.self(), (*thing).Do, "get", "n")
	}).on("via other", func(ctx context.Context, th *thing, _ string) (string, error) {
		return limpet.Call2(ctx, th.other(), (*thing).Do, "back", "")
	}).on("no context", func(_ context.Context, th *thing, _ string) (string, error) {
		return limpet.Call2(context.Background(), th.other(), (*thing).Do, "back", "")
	}).on("block", func(ctx context.Context, th *thing, what string) (v string, err error) {
		err = th.st.BlockConcurrencyWhile(ctx, func(ctx context.Context) error {
			var in error
			v, in = th.box.do[what](ctx, th, "")
			if in != nil {
				v = in.Error()
			}
			return nil
		})
		return v, err
	}).on("late back", func(_ context.Context, th *thing, _ string) (string, error) {
		time.Sleep(2 * time.Second) // does not look at its context
		_, err := b.do["no context back"](context.Background(), th, "")
		late <- err
		return "", nil
	}).on("no context back", func(_ context.Context, th *thing, _ string) (string, error) {
		return b.do["back"](context.Background(), th, "")
	}).on("block later", func(ctx context.Context, th *thing, _ string) (v string, err error) {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := limpet.Call2(short, th.other(), (*thing).Do, "late back", ""); limpet.CodeOf(err) != limpet.CodeCanceled {
			t.Errorf("%v", err)
		}
		time.Sleep(2 * time.Second) // holds the turn: the late call back is queued
		err = th.st.BlockConcurrencyWhile(ctx, func(context.Context) error { return nil })
		if e := <-late; e != nil {
			v = e.Error()
		}
		return v, err
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		for _, m := range []string{"self", "via other", "no context"} { // SPEC H6
			if v, err := w.call(t.Context(), m, ""); v != "0 mem 0" || err != nil {
				t.Errorf("%s: %q %v", m, v, err)
			}
		}
		start := time.Now()
		for _, test := range []struct{ what, arg, want string }{
			{"block", "self", "call cycle: Thing/o.do → Thing/o.do; Thing/o blocks concurrency"},
			{"block", "via other", "call cycle: Thing/o.do → Thing/other.do → Thing/o.do; "},
			{"block", "no context", "call cycle: Thing/o.do → Thing/other.do → Thing/o.do; "},
			{"block later", "", "call cycle: Thing/o.do → Thing/other.do → Thing/o.do; "},
		} {
			v, err := w.call(t.Context(), test.what, test.arg)
			if !strings.HasPrefix(v, test.want) || err != nil {
				t.Errorf("%s %s: %q %v, want %q", test.what, test.arg, v, err, test.want)
			}
		}
		if time.Since(start) > 4*time.Second {
			t.Errorf("it took %v", time.Since(start))
		}
	})
}

// Inside Await's function the object is given away already: calls just go out,
// as part of the chain, and the State refuses.
func TestCallsInAwait(t *testing.T) {
	b := new(box).standard()
	b.on("await", func(ctx context.Context, th *thing, _ string) (v string, err error) {
		put(th.st, "n", 4)
		self := th.self()
		err = th.st.Await(ctx, func(ctx context.Context) error {
			nested := th.st.Await(ctx, func(context.Context) error { return nil })
			_, read := th.st.KV().Has("n")
			for what, err := range map[string]error{
				"Await": nested, "Has": read, "Put": th.st.KV().Put("n", 5), "Sync": th.st.Sync(ctx),
				"BlockConcurrencyWhile": th.st.BlockConcurrencyWhile(ctx, func(context.Context) error { return nil }),
			} {
				if !errors.Is(err, limpet.CodeNoTurn) || !strings.Contains(err.Error(), "Await") ||
					!strings.Contains(err.Error(), "the object is given away: read before it and write after it") {
					t.Errorf("%s in Await: %v", what, err)
				}
			}
			var err error
			v, err = limpet.Call2(ctx, self, (*thing).Do, "get", "n")
			return err
		})
		return v, err
	}).on("block", func(ctx context.Context, th *thing, _ string) (v string, err error) {
		self := th.self()
		err = th.st.BlockConcurrencyWhile(ctx, func(ctx context.Context) error {
			return th.st.Await(ctx, func(ctx context.Context) error {
				_, in := limpet.Call2(ctx, self, (*thing).Do, "get", "n")
				v = fmt.Sprint(limpet.CodeOf(in))
				return nil
			})
		})
		return v, err
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		for what, want := range map[string]string{"await": "4 mem 0", "block": string(limpet.CodeCallCycle)} {
			v, err := w.call(t.Context(), what, "")
			if strings.TrimPrefix(v, "limpet: ") != want || err != nil {
				t.Errorf("%s: %q %v, want %q", what, v, err, want)
			}
		}
	})
}

// Several goroutines of one handler may call out and use the State.
func TestFanOut(t *testing.T) {
	b := new(box).standard()
	b.on("fan", func(ctx context.Context, th *thing, _ string) (string, error) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		n := 0
		for i := range 10 {
			wg.Go(func() {
				d := fmt.Sprint(time.Duration(i) * time.Second)
				if _, err := limpet.Call2(ctx, th.other(), (*thing).Do, "sleep", d); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				n++
			})
		}
		wg.Wait()
		put(th.st, "n", n)
		return fmt.Sprint(n), nil
	}).on("state", func(_ context.Context, th *thing, _ string) (string, error) {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for k := range 20 {
					put(th.st, fmt.Sprint(i, " ", k), k)
					_ = get(th.st, "n")
				}
			})
		}
		wg.Wait()
		n := 0
		for _, err := range th.st.KV().List(limpet.ListOptions{}) {
			if err != nil {
				return "", err
			}
			n++
		}
		return fmt.Sprint(n), nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		start := time.Now()
		fan := w.start(t.Context(), "fan", "")
		time.Sleep(time.Second)
		if v, err := w.call(t.Context(), "get", "n"); v != "0 mem 0" || err != nil || time.Since(start) != time.Second {
			t.Errorf("the object was not given away: %q %v", v, err)
		}
		if v, err := fan.wait(); v != "10" || err != nil || time.Since(start) != 9*time.Second {
			t.Errorf("%q %v after %v", v, err, time.Since(start))
		}
		if v, err := w.call(t.Context(), "state", ""); v != "161" || err != nil {
			t.Errorf("%q %v", v, err)
		}
	})
}

func TestWaitUntil(t *testing.T) {
	// SPEC H10
	b := new(box).standard()
	b.on("later", func(_ context.Context, th *thing, d string) (string, error) {
		dur, _ := time.ParseDuration(d)
		th.st.WaitUntil(func(ctx context.Context) error {
			put(th.st, "n", 1)
			err := th.st.Await(ctx, func(ctx context.Context) error {
				select {
				case <-time.After(dur):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if err == nil {
				put(th.st, "n", 2)
			}
			return err
		})
		return "replied", nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		start := time.Now()
		if v, err := w.call(t.Context(), "later", "1m"); v != "replied" || err != nil || time.Since(start) != 0 {
			t.Errorf("%q %v after %v: the reply waited", v, err, time.Since(start))
		}
		time.Sleep(30 * time.Second) // more than the idle time
		for _, want := range []string{"1 mem 0", "2 mem 0"} {
			if v, err := w.call(t.Context(), "get", "n"); v != want || err != nil {
				t.Errorf("%q %v after %v, want %q", v, err, time.Since(start), want)
			}
			time.Sleep(31 * time.Second)
		}
		if n := b.count(); n != 1 && n != 2 {
			t.Errorf("%d constructors", n)
		}
		// No more than 15 minutes: then the object may go.
		if _, err := w.call(t.Context(), "later", "24h"); err != nil {
			t.Error(err)
		}
		time.Sleep(14 * time.Minute)
		if w.host.Evict(stubOf[*thing](w, "Thing", "o").ID()) {
			t.Error("evicted while WaitUntil keeps it")
		}
		time.Sleep(time.Minute + 12*time.Second)
		if n := w.host.Stats().Live; n != 0 {
			t.Errorf("%d objects are live after the limit of WaitUntil", n)
		}
	})
}

func TestNoTurn(t *testing.T) {
	b := new(box).standard()
	var st *limpet.State
	b.on("leak", func(_ context.Context, th *thing, _ string) (string, error) { st = th.st; return "", nil })
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		if _, err := w.call(t.Context(), "leak", ""); err != nil {
			t.Fatal(err)
		}
		_, getErr := st.KV().Has("n")
		for name, err := range map[string]error{
			"get": getErr, "put": st.KV().Put("n", 1), "transaction": st.Transaction(func() error { return nil }),
			"await": st.Await(context.Background(), func(context.Context) error { return nil }),
			"block": st.BlockConcurrencyWhile(context.Background(), func(context.Context) error { return nil }),
			"sync":  st.Sync(context.Background()),
		} {
			if !errors.Is(err, limpet.CodeNoTurn) || !strings.Contains(err.Error(), "WaitUntil") || strings.Contains(err.Error(), "inside Await") {
				t.Errorf("%s: %v, want no turn and the name of WaitUntil", name, err)
			}
		}
		st.WaitUntil(func(context.Context) error { t.Error("ran"); return nil })
		if len(w.log.lines) != 1 || !strings.Contains(w.log.lines[0], "WaitUntil was called too late") {
			t.Errorf("log %q", w.log.lines)
		}
	})
}

func TestTransaction(t *testing.T) {
	// SPEC H25
	b := new(box).standard()
	boom := errors.New("boom")
	b.on("tx", func(ctx context.Context, th *thing, _ string) (string, error) {
		put(th.st, "a", 1)
		err := th.st.Transaction(func() error {
			put(th.st, "b", 1)
			inner := th.st.Transaction(func() error { put(th.st, "c", 1); return boom })
			if inner != boom { //nolint:errorlint // the very error
				t.Errorf("inner: %v", inner)
			}
			for name, err := range map[string]error{
				"Await":                 th.st.Await(ctx, func(context.Context) error { return nil }),
				"BlockConcurrencyWhile": th.st.BlockConcurrencyWhile(ctx, func(context.Context) error { return nil }),
				"a call through a stub": second(limpet.Call2(ctx, th.other(), (*thing).Do, "get", "n")),
				"Sync":                  th.st.Sync(ctx),
				"within a transaction":  th.st.KV().DeleteAll(),
			} {
				if !errors.Is(err, limpet.CodeInvalidArgument) || !strings.Contains(err.Error(), name) {
					t.Errorf("%s in a transaction: %v", name, err)
				}
			}
			return nil
		})
		return fmt.Sprint(get(th.st, "a"), get(th.st, "b"), get(th.st, "c")), err
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		if v, err := w.call(t.Context(), "tx", ""); v != "1 1 0" || err != nil {
			t.Errorf("%q %v", v, err)
		}
		if got := w.mem.records(); len(got) != 1 {
			t.Errorf("%d records, want one for the turn", len(got)) // SPEC H33
		}
	})
}

func TestList(t *testing.T) {
	// SPEC H20, H21
	b := new(box)
	b.on("list", func(_ context.Context, th *thing, _ string) (string, error) {
		want := []string{""}
		put(th.st, "", 0)
		for i := range 700 {
			k := fmt.Sprintf("k%03d", i)
			put(th.st, k, i)
			want = append(want, k)
		}
		read := func(o limpet.ListOptions) (keys []string) {
			for e, err := range th.st.KV().List(o) {
				if err != nil {
					t.Fatal(err)
				}
				keys = append(keys, e.Key)
				put(th.st, "z"+e.Key, 1) // writing while listing is allowed
				_, _ = th.st.KV().Delete("z" + e.Key)
			}
			return keys
		}
		same := func(name string, got, want []string) {
			if strings.Join(got, ",") != strings.Join(want, ",") {
				t.Errorf("%s: %d keys, want %d", name, len(got), len(want))
			}
		}
		same("all", read(limpet.ListOptions{}), want)
		reversed := make([]string, 0, len(want))
		for i := range want {
			reversed = append(reversed, want[len(want)-1-i])
		}
		same("reverse", read(limpet.ListOptions{Reverse: true}), reversed)
		same("limit", read(limpet.ListOptions{Limit: 300, StartAfter: "k099"}), want[101:401])
		same("end", read(limpet.ListOptions{Start: "k001", End: "k500"}), want[2:501])
		same("prefix", read(limpet.ListOptions{Prefix: "k6", Reverse: true, Limit: 50}), reversed[:50])
		return "", nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		if _, err := w.call(t.Context(), "list", ""); err != nil {
			t.Error(err)
		}
	})
}

// Calls run in the order in which they came.
func TestOrder(t *testing.T) {
	// SPEC B4
	b := new(box).standard()
	var got []string
	b.on("note", func(_ context.Context, _ *thing, arg string) (string, error) { got = append(got, arg); return "", nil })
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		calls := []*pending{w.start(t.Context(), "hold", "1s")}
		var want []string
		for i := range 100 {
			want = append(want, fmt.Sprint(i))
			synctest.Wait()
			ctx := t.Context()
			if i%2 == 0 {
				ctx = context.Background()
			}
			calls = append(calls, w.start(ctx, "note", fmt.Sprint(i)))
		}
		for _, c := range calls {
			if _, err := c.wait(); err != nil {
				t.Error(err)
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("ran in the order %v", got)
		}
	})
}
