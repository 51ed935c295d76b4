package host

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
)

func TestEviction(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		stub := stubOf[*thing](w, "Thing", "o")
		call := func(what string) string {
			v, err := limpet.Call2(t.Context(), stub, (*thing).Do, what, "n")
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		call("put")
		for range 5 {
			time.Sleep(9 * time.Second) // SPEC H60
			if v := call("get"); v != "1 mem 1" {
				t.Errorf("%q after nine idle seconds", v)
			}
		}
		time.Sleep(11*time.Second + 500*time.Millisecond)
		if n := w.host.Stats(); n.Live != 0 || n.Evictions != 1 {
			t.Errorf("%+v after 11.5 idle seconds", n)
		}
		if v := call("get"); v != "1 mem 0" { // SPEC B7: the stub still works
			t.Errorf("%q after the eviction", v)
		}
		// An object with an event in progress stays.
		p := w.start(t.Context(), "sleep", "1m")
		time.Sleep(50 * time.Second)
		if n := w.host.Stats().Live; n != 1 {
			t.Error("evicted with an event in progress")
		}
		_, _ = p.wait()
	})
}

// Outputs of an evicted incarnation keep waiting and leave when durable.
func TestEvictedOutputs(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		w.mem.hold()
		p := w.start(t.Context(), "put", "n")
		synctest.Wait()
		if !w.host.Evict(stubOf[*thing](w, "Thing", "o").ID()) {
			t.Fatal("not evicted")
		}
		read := w.start(t.Context(), "get", "n")
		time.Sleep(time.Minute)
		if p.ended() || read.ended() {
			t.Error("an output left before the write was durable")
		}
		w.mem.release()
		if v, err := read.wait(); v != "1 mem 0" || err != nil {
			t.Errorf("%q %v", v, err)
		}
		if _, err := p.wait(); err != nil {
			t.Error(err)
		}
	})
}

// No object starts another turn while too much waits for the log.
func TestWaitRoom(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		if _, err := w.call(t.Context(), "put", "n"); err != nil {
			t.Fatal(err)
		}
		sleeping := w.start(t.Context(), "sleep", "1s")
		synctest.Wait()
		w.mem.setFull(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := w.call(ctx, "put", "n")
		if limpet.CodeOf(err) != limpet.CodeCanceled {
			t.Errorf("%v", err)
		}
		p := w.start(t.Context(), "get", "n")
		time.Sleep(time.Minute)
		if p.ended() || sleeping.ended() {
			t.Error("a turn began without room")
		}
		w.mem.setFull(false)
		if v, err := p.wait(); v != "1 mem 1" || err != nil {
			t.Errorf("%q %v, want only the first put", v, err)
		}
		if _, err := sleeping.wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestDrain(t *testing.T) {
	b := new(box).standard()
	b.on("call out", func(ctx context.Context, th *thing, _ string) (string, error) {
		if err := th.st.Await(ctx, func(context.Context) error { time.Sleep(time.Second); return nil }); err != nil {
			return "", err
		}
		return limpet.Call2(ctx, th.other(), (*thing).Do, "get", "n")
	}).on("later", func(ctx context.Context, th *thing, _ string) (string, error) {
		th.st.WaitUntil(func(ctx context.Context) error {
			return th.st.Await(ctx, func(context.Context) error { time.Sleep(3 * time.Second); return nil })
		})
		return "", nil
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		ctx := context.Background()
		running := w.start(ctx, "call out", "")
		if _, err := w.callOf(ctx, "p", "later", ""); err != nil {
			t.Fatal(err)
		}
		holding := async(func() (string, error) { return w.callOf(ctx, "q", "hold", "2s") })
		synctest.Wait()
		// Without retries, to see what the host says.
		queued := async(func() (string, error) {
			ns, _ := limpet.NamespaceOf[*thing](w, "Thing")
			return limpet.Call2(ctx, ns.Named("q", limpet.NoRetries()), (*thing).Do, "get", "n")
		})
		synctest.Wait()
		start := time.Now()
		drained := async(func() (string, error) { return "", w.host.Drain(ctx) })
		_, err := queued.wait()
		wantError(t, err, limpet.CodeDraining, limpet.DeliveryNone) // SPEC C24, F22
		for _, object := range []string{"q", "new"} {
			ns, _ := limpet.NamespaceOf[*thing](w, "Thing")
			_, err := limpet.Call2(ctx, ns.Named(object, limpet.NoRetries()), (*thing).Do, "get", "n")
			wantError(t, err, limpet.CodeDraining, limpet.DeliveryNone)
		}
		if time.Since(start) != 0 {
			t.Error("refusals took time")
		}
		for _, p := range []*pending{running, holding} {
			if _, err := p.wait(); err != nil {
				t.Errorf("a call that was claimed before the drain: %v", err)
			}
		}
		if _, err := drained.wait(); err != nil || time.Since(start) != 3*time.Second {
			t.Errorf("drained with %v after %v, want WaitUntil to have ended", err, time.Since(start))
		}
	})
}

func TestDrainTimeout(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		stub := stubOf[*thing](w, "Thing", "o")
		p := async(func() (string, error) {
			return limpet.Call2(context.Background(), stub, (*thing).Do, "sleep", "1h")
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := w.host.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "objects still at work: 1") {
			t.Errorf("drain: %v", err)
		}
		if err := w.host.Close(t.Context()); err != nil {
			t.Error(err)
		}
		_, err := p.wait()
		wantError(t, err, limpet.CodeDisconnected, limpet.DeliveryReceived) // SPEC C22, C52
		if err := stub.Err(); err != nil {                                  // SPEC B6: a disconnect does not break the stub
			t.Error(err)
		}
	})
}

// A handler that does not look at its context can't be stopped: Close says so.
func TestCloseTimeout(t *testing.T) {
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		p := w.start(t.Context(), "hold", "1h")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.host.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
		_, err := p.wait()
		wantError(t, err, limpet.CodeDisconnected, limpet.DeliveryReceived)
		time.Sleep(time.Hour) // the handler returns, and the world can be closed
	})
}
