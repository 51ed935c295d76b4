package host

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
)

// goroutine names the goroutine that it is called on.
func goroutine() string {
	buf := make([]byte, 64)
	return strings.Fields(string(buf[:runtime.Stack(buf, false)]))[1]
}

// TestInlineChain follows a call through two objects: on one goroutine if nobody
// outside can end it, else on one for each.
func TestInlineChain(t *testing.T) {
	b := new(box).standard()
	var places []string
	b.on("here", func(context.Context, *thing, string) (string, error) {
		places = append(places, goroutine())
		return "", nil
	}).on("there", func(ctx context.Context, th *thing, _ string) (string, error) {
		places = append(places, goroutine())
		return limpet.Call2(ctx, th.other(), (*thing).Do, "here", "")
	}).on("and back", func(ctx context.Context, th *thing, _ string) (string, error) {
		v, err := limpet.Call2(ctx, th.other(), (*thing).Do, "to o", "")
		put(th.st, "n", 7) // the turn is there again
		return v, err
	}).on("to o", func(ctx context.Context, th *thing, _ string) (string, error) {
		ns, err := limpet.NamespaceOf[*thing](th.st, "Thing")
		if err != nil {
			return "", err
		}
		return limpet.Call2(ctx, ns.Named("o"), (*thing).Do, "get", "n")
	}).on("derived", func(ctx context.Context, th *thing, _ string) (string, error) {
		short, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		places = append(places, goroutine())
		return limpet.Call2(short, th.other(), (*thing).Do, "here", "")
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		for _, object := range []string{"o", "other"} { // construct them
			if _, err := w.callOf(t.Context(), object, "get", "n"); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		me := goroutine()
		for _, test := range []struct {
			what  string
			ctx   context.Context
			first bool // the first object runs on the caller's goroutine
			rest  bool // the second on that of the first
		}{
			{"there", context.Background(), true, true},
			{"there", t.Context(), false, false},
			{"derived", context.Background(), true, false},
		} {
			places = nil
			_, err := w.call(test.ctx, test.what, "")
			if err != nil || len(places) != 2 || (places[0] == me) != test.first || (places[1] == places[0]) != test.rest {
				t.Errorf("%+v from goroutine %s ran on %v: %v", test, me, places, err)
			}
			synctest.Wait()
		}
		if v, err := w.call(context.Background(), "and back", ""); v != "0 mem 0" || err != nil { // SPEC H6
			t.Errorf("a call that comes back: %q %v", v, err)
		}
		if v, err := w.call(context.Background(), "get", "n"); v != "7 mem 0" || err != nil {
			t.Errorf("after it: %q %v", v, err)
		}
	})
}

// TestInlineCallerResets resets an object while a call of it runs on the same
// goroutine: the callee's context ends, the callee keeps what it did and goes on
// to serve, and the outer caller gets the reset.
func TestInlineCallerResets(t *testing.T) {
	b := new(box).standard()
	var ended error
	b.on("wait", func(ctx context.Context, th *thing, _ string) (string, error) {
		put(th.st, "n", 5)
		<-ctx.Done()
		ended = context.Cause(ctx)
		return "late", nil
	}).on("other waits", func(ctx context.Context, th *thing, _ string) (string, error) {
		put(th.st, "n", 9)
		if _, err := limpet.Call2(ctx, th.other(), (*thing).Do, "wait", ""); limpet.CodeOf(err) != limpet.CodeReset || limpet.DeliveryOf(err) != limpet.DeliveryReceived {
			t.Errorf("the inner call of an object that was reset: %v (%v)", err, limpet.DeliveryOf(err))
		}
		if err := th.st.KV().Put("n", 10); limpet.CodeOf(err) != limpet.CodeReset {
			t.Errorf("an object that was reset stores: %v", err)
		}
		return "out", nil
	}).on("abort", func(_ context.Context, th *thing, _ string) (string, error) {
		th.st.Abort(errors.New("enough"))
		return "", nil
	}).on("panic", func(context.Context, *thing, string) (string, error) {
		panic("boom")
	}).on("other panics", func(ctx context.Context, th *thing, _ string) (string, error) {
		_, err := limpet.Call2(ctx, th.other(), (*thing).Do, "panic", "")
		if limpet.CodeOf(err) != limpet.CodeReset {
			t.Errorf("the inner call of an object that panics: %v", err)
		}
		put(th.st, "n", 3)
		return "went on", nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		outer := w.start(context.Background(), "other waits", "")
		synctest.Wait() // "o" has given itself away, "other" waits
		_, err := w.call(t.Context(), "abort", "")
		wantError(t, err, limpet.CodeReset, limpet.DeliveryReceived)
		synctest.Wait()
		if !outer.ended() {
			t.Fatal("the callee does not learn that its caller was reset")
		}
		wantError(t, outer.err, limpet.CodeReset, limpet.DeliveryReceived)
		if limpet.CodeOf(ended) != limpet.CodeReset {
			t.Errorf("the callee's context ended with %v", ended)
		}
		if v, err := w.callOf(context.Background(), "other", "get", "n"); v != "5 mem 0" || err != nil {
			t.Errorf("the callee: %q %v", v, err)
		}
		// What the caller wrote before it called was committed then.
		if v, err := w.call(context.Background(), "get", "n"); v != "9 mem 0" || err != nil {
			t.Errorf("the caller: %q %v", v, err)
		}
		if v, err := w.call(context.Background(), "other panics", ""); v != "went on" || err != nil {
			t.Errorf("the callee panics: %q %v", v, err)
		}
	})
}

// TestCanceledChain cancels a call through two objects, of which the second does
// not look at its context: the caller does not wait for it.
func TestCanceledChain(t *testing.T) {
	b := new(box).standard()
	b.on("other holds", func(ctx context.Context, th *thing, _ string) (string, error) {
		return limpet.Call2(ctx, th.other(), (*thing).Do, "hold", "1h")
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		p := w.start(ctx, "other holds", "")
		synctest.Wait()
		cancel()
		synctest.Wait()
		if !p.ended() {
			t.Fatal("the caller waits for a handler that it has given up")
		}
		wantError(t, p.err, limpet.CodeCanceled, limpet.DeliveryReceived) // SPEC E34
		time.Sleep(2 * time.Hour)
	})
}
