package host

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
)

func TestInputGate(t *testing.T) {
	increment := func(between func(ctx context.Context, th *thing)) func(context.Context, *thing, string) (string, error) {
		return func(ctx context.Context, th *thing, _ string) (string, error) {
			n := get(th.st, "n")
			between(ctx, th)
			put(th.st, "n", n+1)
			return fmt.Sprint(n + 1), nil
		}
	}
	b := new(box).
		on("plain", increment(func(context.Context, *thing) {})).
		on("await", increment(func(ctx context.Context, th *thing) {
			_ = th.st.Await(ctx, func(context.Context) error { time.Sleep(time.Second); return nil })
		})).
		on("block", increment(func(ctx context.Context, th *thing) {
			_ = th.st.BlockConcurrencyWhile(ctx, func(ctx context.Context) error {
				return th.st.Await(ctx, func(context.Context) error { time.Sleep(time.Second); return nil })
			})
		}))
	for _, test := range []struct {
		method string
		want   []string
	}{
		{"plain", []string{"1", "2", "3", "4", "5"}}, // SPEC H1
		{"await", []string{"1", "1", "1", "1", "1"}}, // SPEC H1
		{"block", []string{"1", "2", "3", "4", "5"}}, // SPEC H4
	} {
		t.Run(test.method, func(t *testing.T) {
			inBubble(t, Limits{}, func() []*limpet.Class { return []*limpet.Class{b.class("Thing")} }, func(t *testing.T, w *world) {
				var wg sync.WaitGroup
				var mu sync.Mutex
				var got []string
				for range 5 {
					wg.Go(func() {
						v, err := w.call(t.Context(), test.method, "")
						if err != nil {
							t.Error(err)
						}
						mu.Lock()
						got = append(got, v)
						mu.Unlock()
					})
				}
				wg.Wait()
				slices.Sort(got)
				if !slices.Equal(got, test.want) {
					t.Errorf("five increments with %s between get and put gave %v, want %v", test.method, got, test.want)
				}
			})
		})
	}
}

// No output leaves before what it rests on is durable, and all leave in order
// once it is.
func TestOutputGate(t *testing.T) {
	// SPEC H2
	b := new(box)
	var mu sync.Mutex
	var left []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		left = append(left, s)
	}
	seen := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(left)
	}
	var w *world
	b.on("write", func(_ context.Context, th *thing, arg string) (string, error) {
		put(th.st, "n", get(th.st, "n")+1)
		return arg, nil
	}).on("fail", func(_ context.Context, th *thing, arg string) (string, error) {
		put(th.st, "n", get(th.st, "n")+1)
		return "", fmt.Errorf("%s", arg)
	}).on("read", func(_ context.Context, th *thing, _ string) (string, error) {
		return fmt.Sprint("read ", get(th.st, "n")), nil
	}).on("call", func(ctx context.Context, th *thing, _ string) (string, error) {
		put(th.st, "n", get(th.st, "n")+1)
		other, err := limpet.NamespaceOf[*thing](th.st, "Thing")
		if err != nil {
			return "", err
		}
		return limpet.Call2(ctx, other.Named("other"), (*thing).Do, "note", "outgoing call")
	}).on("note", func(_ context.Context, _ *thing, arg string) (string, error) {
		note(arg)
		return arg, nil
	}).on("await", func(ctx context.Context, th *thing, _ string) (string, error) {
		put(th.st, "n", get(th.st, "n")+1)
		return "awaited", th.st.Await(ctx, func(context.Context) error { note("await"); return nil })
	})
	inBubble(t, Limits{}, func() []*limpet.Class { return []*limpet.Class{b.class("Thing")} }, func(t *testing.T, world *world) {
		w = world
		w.mem.hold()
		var calls []*pending
		for _, m := range []string{"write", "read", "fail", "read", "call", "await", "read"} {
			p := async(func() (string, error) {
				v, err := w.call(t.Context(), m, m)
				if err != nil {
					v = "error " + err.Error()
				}
				note("reply " + v)
				return v, err
			})
			synctest.Wait()
			calls = append(calls, p)
		}
		time.Sleep(time.Hour / 2) // nothing leaves however long it takes
		if got := seen(); len(got) != 0 {
			t.Fatalf("%v left before anything was durable", got)
		}
		// One record at a time: each lets leave exactly what rests on it.
		want := [][]string{
			{"reply write", "reply read 1"},
			{"reply error fail", "reply read 2"},
			{"outgoing call"}, // its handler goes on when record 4 is there already, and so rests on that
			{"await", "reply awaited", "reply outgoing call", "reply read 4"},
		}
		for i, group := range want {
			left = nil
			w.mem.syncOne()
			synctest.Wait()
			got := seen()
			slices.Sort(got)
			slices.Sort(group)
			if !slices.Equal(got, group) {
				t.Errorf("record %d is durable and %q left, want %q", i+1, got, group)
			}
		}
		for _, p := range calls {
			_, _ = p.wait()
		}
		w.mem.release()
	})
}
