package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/limpet-dev/limpet"
)

// A connection that the object itself lost, and for which it was reset, is no
// lost connection of its caller: the call was received, and runs once.
func TestDependencyDisconnects(t *testing.T) {
	// SPEC C23: any "not delivered" of the dependency is taken off.
	gone := &limpet.Error{
		Code: limpet.CodeDisconnected, Message: "Network connection lost.", Delivery: limpet.DeliveryNone, Retryable: true,
	}
	for name, f := range map[string]func(ctx context.Context, th *thing) error{
		"abort": func(_ context.Context, th *thing) error { th.st.Abort(gone); return nil },
		"block": func(ctx context.Context, th *thing) error {
			return th.st.BlockConcurrencyWhile(ctx, func(context.Context) error { return gone })
		},
		"panic": func(context.Context, *thing) error { panic(gone) },
		"Await": func(ctx context.Context, th *thing) error {
			return th.st.Await(ctx, func(context.Context) error { panic(gone) })
		},
		"constructor": nil,
	} {
		t.Run(name, func(t *testing.T) {
			b, runs := new(box), 0
			b.on("f", func(ctx context.Context, th *thing, _ string) (string, error) {
				runs++
				return "", f(ctx, th)
			})
			if f == nil {
				b.construct = func(*thing) error { runs++; return gone }
			}
			inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
				_, err := w.call(t.Context(), "f", "")
				e := failureOf(t, err, limpet.CodeReset, limpet.DeliveryReceived)
				if e.Attempts != 1 || runs != 1 || e.Retryable || !e.Reset {
					t.Errorf("%d runs: %#v", runs, e)
				}
			})
		})
	}
}

// The call that brings an object into memory is queued before the constructor
// can fail, so that it fails with it and does not construct again.
func TestCallFailsWithItsConstructor(t *testing.T) {
	// SPEC C34
	b := new(box)
	b.construct = func(*thing) error { return errors.New("no") }
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		for i := range 500 {
			for _, ctx := range []context.Context{t.Context(), context.Background()} {
				_, err := w.callOf(ctx, fmt.Sprint(i), "f", "")
				wantError(t, err, limpet.CodeReset, limpet.DeliveryReceived)
			}
		}
		if n := b.count(); n != 1000 {
			t.Errorf("%d constructors for 1000 calls", n)
		}
	})
}

// A handler that breaks its response off fails as received, and is not run again.
func TestFetchHandlerFails(t *testing.T) {
	// SPEC C27
	runs := 0
	fetchBubble(t, Limits{}, func(*thing, http.ResponseWriter, *http.Request) {
		runs++
		panic(http.ErrAbortHandler)
	}, func(t *testing.T, w *world) {
		stub := stubOf[*servingThing](w, "Thing", "o")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://h/", nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = stub.Fetch(req) //nolint:bodyclose // it fails
		e := failureOf(t, err, limpet.CodeApplication, limpet.DeliveryReceived)
		if runs != 1 || e.Attempts != 1 || !e.Remote || e.Retryable || e.ObjectID != stub.ID().String() || stub.Err() != nil {
			t.Errorf("%d runs: %#v; the stub: %v", runs, e, stub.Err())
		}
	})
}

// An identity is one object's: at another one it says nothing.
func TestIdentityOfOneObject(t *testing.T) {
	// SPEC F3
	b := new(box).standard()
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		a := w.attempt(1, false, "do", "put", "n")
		if _, err := w.startAttempt(t.Context(), a).wait(); err != nil {
			t.Fatal(err)
		}
		other := w.attempt(1, true, "do", "put", "n")
		other.Call.Object = stubOf[*thing](w, "Thing", "p").ID()
		if _, err := w.startAttempt(t.Context(), other).wait(); err != nil {
			t.Errorf("the same identity at another object: %v", err)
		}
		_, err := w.startAttempt(t.Context(), other).wait()
		wantError(t, err, limpet.CodeAlreadyReceived, limpet.DeliveryReceived)
	})
}
