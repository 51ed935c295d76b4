package dispatch

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

// object is an Origin.
type object struct {
	w        *world
	leave    time.Duration // how long the output gate holds
	leaveErr error
	back     time.Duration // how long the object is busy when the call returns
	backErr  error
	story    []string
}

type chainKey struct{}

func (o *object) Leave(ctx context.Context) (context.Context, error) {
	time.Sleep(o.leave)
	o.note("left")
	return context.WithValue(ctx, chainKey{}, "carried"), o.leaveErr
}

func (o *object) Return(context.Context) error {
	time.Sleep(o.back)
	o.note("returned")
	return o.backErr
}

func (o *object) note(s string) {
	o.story = append(o.story, s+" "+time.Since(o.w.start).String())
}

func TestOutputGate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E10, E11: the wait at the gate is before callStart, and does not use up
		// the retry timeout
		w := newWorld(t, fault{after: 100 * ms, kind: refused}, fault{kind: hang})
		o := &object{w: w, leave: 20 * time.Second, back: time.Second}
		w.routes = func(n int) Transport {
			return transportFunc{w, func(ctx context.Context, a Attempt) (any, error) {
				if ctx.Value(chainKey{}) != "carried" {
					t.Error("the attempt's context is not the one of Leave")
				}
				if n == 0 {
					return nil, lost(limpet.DeliveryNone)
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}}
		}
		e := w.engine()
		defer e.Close()
		_, err := e.Call(limpet.WithOrigin(t.Context(), o), newCall(policy(4, 500*ms)))
		if limpet.CodeOf(err) != limpet.CodeDisconnected {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"20s #1 (N1,0)", "20.1s #2 (N2,0)"}, w.flags()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"left 20s", "returned 21.5s"}, o.story); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOutputGateOfBinding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E10: a stub that came from a State belongs to its object
		w := newWorld(t)
		o := &object{w: w}
		e := w.engine()
		defer e.Close()
		if _, err := e.Call(t.Context(), newCall(func(c *limpet.CallSpec) { c.Binding = &limpet.Binding{Origin: o} })); err != nil {
			t.Fatal(err)
		}
		if len(o.story) != 2 {
			t.Errorf("story %q", o.story)
		}
	})
}

func TestGateFails(t *testing.T) {
	reset := limpet.ResetError(limpet.ID{}, "object was reset", nil)
	calls := map[string]func(e *Engine, ctx context.Context) error{
		"call": func(e *Engine, ctx context.Context) error {
			_, err := e.Call(ctx, newCall())
			return err
		},
		"fetch": func(e *Engine, ctx context.Context) error {
			req, _ := http.NewRequest("GET", "http://x/", nil)
			_, err := e.Fetch(ctx, fetchCall(), req, true)
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				// SPEC H2: nothing leaves through a broken gate
				w := newWorld(t)
				o := &object{w: w, leaveErr: reset}
				e := w.engine()
				defer e.Close()
				err := call(e, limpet.WithOrigin(t.Context(), o))
				got := asLimpet(t, err)
				if got.Code != limpet.CodeReset || got.Delivery != limpet.DeliveryNone || len(w.attempts) != 0 || len(o.story) != 1 {
					t.Errorf("got %+v, %d attempts, story %q", got, len(w.attempts), o.story)
				}
				if limpet.BreaksStub(err) {
					t.Error("the reset of the calling object breaks the stub")
				}
			})
			bubble(t, func(t *testing.T) {
				// The call ran, but there is no handler to go back to.
				w := newWorld(t)
				o := &object{w: w, backErr: reset}
				e := w.engine()
				defer e.Close()
				err := call(e, limpet.WithOrigin(t.Context(), o))
				got := asLimpet(t, err)
				if got.Code != limpet.CodeReset || got.Delivery != limpet.DeliveryReceived || w.executions != 1 || limpet.BreaksStub(err) {
					t.Errorf("got %+v", got)
				}
			})
			bubble(t, func(t *testing.T) {
				w := newWorld(t, fault{kind: failing, err: code(limpet.CodeOverloaded, limpet.DeliveryNone)})
				e := w.engine()
				defer e.Close()
				err := call(e, limpet.WithOrigin(t.Context(), &object{w: w, backErr: reset}))
				if got := asLimpet(t, err); got.Code != limpet.CodeReset || got.Delivery != limpet.DeliveryNone {
					t.Errorf("got %+v", got)
				}
			})
		})
	}
}

func TestLossless(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// DESIGN 5, rule B: no identity, no timer, the caller's own goroutine
		timers := 0
		w := newWorld(t)
		w.lossless = true
		var there string
		w.handler = func(Attempt) (any, error) {
			there = goroutine()
			return "done", nil
		}
		e := New(Config{Router: w, Clock: clock{timers: &timers}, Rand: noRand{}})
		defer e.Close()
		a := &args{}
		v, err := e.Call(context.Background(), newCall(func(c *limpet.CallSpec) { c.Runner = a }))
		if v != "done" || err != nil || timers != 0 || a.encoded != 0 || there != goroutine() {
			t.Errorf("%v, %v; %d timers, encoded %d times, ran on %s, called on %s", v, err, timers, a.encoded, there, goroutine())
		}
		// A context that can end needs another goroutine, unless the transport is
		// prompt.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, prompt := range []bool{false, true} {
			w.prompt = prompt
			if _, err := e.Call(ctx, newCall()); err != nil || (there == goroutine()) != prompt {
				t.Errorf("prompt %v: %v, ran on %s, called on %s", prompt, err, there, goroutine())
			}
		}
		if diff := cmp.Diff([]string{"0s #1 (none,0)", "0s #1 (none,0)", "0s #1 (none,0)"}, w.flags()); diff != "" || timers != 0 {
			t.Errorf("%d timers\n%s", timers, diff)
		}
	})
}

type noRand struct{}

func (noRand) Uint64() uint64 { panic("a random number was drawn") }

func goroutine() string {
	b := make([]byte, 64)
	b = b[:runtime.Stack(b, false)]
	return strings.Fields(string(b))[1]
}

func TestLosslessFailures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC C24: the node here drains, the next one is elsewhere and wants an
		// identity. SPEC G20: then the arguments need memory.
		w := newWorld(t, fault{kind: draining}, fault{kind: lostRequest})
		w.routes = func(n int) Transport {
			if n == 0 {
				return losslessTransport{w}
			}
			return w
		}
		e := w.engine()
		defer e.Close()
		var used int64
		w.onRetry = func() { used = e.ReplayMemory().Used }
		a := &args{size: 10}
		if _, err := e.Call(t.Context(), newCall(func(c *limpet.CallSpec) { c.Runner = a })); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"0s #1 (none,0)", "100ms #2 (N2,0)", "200ms #3 (N2,1)"}, w.flags()); diff != "" {
			t.Error(diff)
		}
		if a.encoded != 1 || used != 1024+10+6 {
			t.Errorf("encoded %d times, %d bytes reserved", a.encoded, used)
		}
	})
	bubble(t, func(t *testing.T) {
		// SPEC E28: the flag follows the call back into this process
		w := newWorld(t, fault{kind: lostRequest})
		w.routes = func(n int) Transport {
			if n == 0 {
				return w
			}
			return losslessTransport{w}
		}
		e := w.engine()
		defer e.Close()
		if _, err := e.Call(t.Context(), newCall()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"0s #1 (N1,0)", "100ms #2 (N1,1)"}, w.flags()); diff != "" {
			t.Error(diff)
		}
	})
	bubble(t, func(t *testing.T) {
		// and without the flag it needs no identity here
		w := newWorld(t, fault{kind: refused})
		w.routes = func(n int) Transport {
			if n == 0 {
				return w
			}
			return losslessTransport{w}
		}
		e := w.engine()
		defer e.Close()
		if _, err := e.Call(t.Context(), newCall()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"0s #1 (N1,0)", "100ms #2 (none,0)"}, w.flags()); diff != "" {
			t.Error(diff)
		}
	})
	bubble(t, func(t *testing.T) {
		// SPEC F18: without an identity the object can't tell a duplicate, so there
		// must be none
		w := newWorld(t, fault{kind: lostReply})
		w.lossless = true
		e := w.engine()
		defer e.Close()
		_, err := e.Call(t.Context(), newCall())
		if got := asLimpet(t, err); got.Delivery != limpet.DeliveryUncertain || w.executions != 1 {
			t.Errorf("%d executions, got %+v", w.executions, got)
		}
	})
	bubble(t, func(t *testing.T) {
		// SPEC G21: no memory when it is first needed
		w := newWorld(t, fault{kind: draining})
		w.lossless = true
		e := New(Config{Router: w, Clock: clock{}, ReplayMemory: -1})
		defer e.Close()
		_, err := e.Call(t.Context(), newCall())
		if got := asLimpet(t, err); got.Code != limpet.CodeDraining || !got.Retryable || got.Attempts != 1 || e.ReplayMemory().Refused != 1 {
			t.Errorf("got %+v", got)
		}
	})
	bubble(t, func(t *testing.T) {
		// nor can arguments be kept that can't be encoded
		w := newWorld(t, fault{kind: draining})
		w.lossless = true
		e := w.engine()
		defer e.Close()
		_, err := e.Call(t.Context(), newCall(func(c *limpet.CallSpec) { c.Runner = &args{err: errors.New("a channel")} }))
		if got := asLimpet(t, err); got.Code != limpet.CodeDraining || got.Attempts != 1 {
			t.Errorf("got %+v", got)
		}
	})
}

type losslessTransport struct{ *world }

func (losslessTransport) Lossless() bool { return true }

func TestLosslessAfterClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.lossless = true
		e := w.engine()
		e.Close()
		_, err := e.Call(context.Background(), newCall())
		if got := asLimpet(t, err); got.Code != limpet.CodeDraining || got.Delivery != limpet.DeliveryNone || w.routed != 0 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestErrorsAreCopies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// An error that the transport holds is not changed.
		shared := lost(limpet.DeliveryReceived)
		w := newWorld(t, fault{kind: failing, err: shared})
		e := w.engine()
		defer e.Close()
		_, err := e.Call(t.Context(), newCall())
		if err == error(shared) || shared.Attempts != 0 { //nolint:errorlint // the same one?
			t.Errorf("the transport's error was changed: %+v", shared)
		}
	})
	// But a reset of the called object still breaks the stub (SPEC B5).
	bubble(t, func(t *testing.T) {
		w := newWorld(t, fault{kind: failing, err: limpet.ResetError(limpet.ID{}, "reset", nil)})
		e := w.engine()
		defer e.Close()
		_, err := e.Call(t.Context(), newCall())
		if !limpet.BreaksStub(err) {
			t.Errorf("%v does not break the stub", err)
		}
	})
}

func TestSystemRand(t *testing.T) {
	var a, b [16]byte
	for i := range 2 {
		id := New(Config{Clock: clock{}}).identity()
		if i == 0 {
			a = id.Nonce
		} else {
			b = id.Nonce
		}
	}
	if a == b || bytes.Equal(a[:8], a[8:]) || [8]byte(a[:8]) == [8]byte{} || [8]byte(a[8:]) == [8]byte{} {
		t.Errorf("nonces %x and %x", a, b)
	}
}
