package wire

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// TestChildThatCantBeSent fails to make a child, whose number another call gets
// then: the failure of its parent must not end that one.
func TestChildThatCantBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		promise, parent := start(t.Context(), s, method("m"))
		p.expect(frameCall, 1)
		f := echoThing()
		many := make([]limpet.Capability, maxExports+1)
		for i := range many {
			many[i] = f.handle()
		}
		_, err := promise.Child(t.Context(), target("a", "x", many...))
		wantDelivery(t, "a child with too many functions", err, limpet.CodeOverloaded, limpet.DeliveryNone)
		if n := f.disposed.Load(); n != maxExports+1 {
			t.Errorf("%d functions were disposed of", n)
		}
		other := startCall(t.Context(), s, method("other"), nil)
		p.expect(frameCall, 3)
		p.write(appendBlock(nil, frameFailure, flagEnd, 1, appendFailure(nil, refused(limpet.CodeUnknownMethod, "no"))))
		if r := <-parent; limpet.CodeOf(r.err) != limpet.CodeUnknownMethod {
			t.Errorf("the parent gives %v", r.err)
		}
		p.write(appendFrame(nil, frameResult, flagEnd, 3, appendResult(nil, nil, nil)))
		synctest.Wait()
		select {
		case r := <-other:
			if r.err != nil {
				t.Error(r.err)
			}
		default:
			t.Error("the other call never ends")
		}
		s.Close()
		_ = p.conn.Close()
	})
}

// TestViolationKeepsCount breaks the protocol with numbers of both sides that are
// the same: what all connections may have is counted right afterwards.
func TestViolationKeepsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := make(chan limpet.Parcel, 1)
		w := serve(t, parcels(func(_ context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
			kept <- args
			return limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{echoThing().handle()}}, nil
		}), sim.Clock{})
		p := newDialerScript(t, w)
		c := w.conn(t)
		h := method("m")
		h.Ext = &Ext{caps: []descriptor{{id: 1}}}
		p.write(appendFrame(nil, frameCall, flagEnd, 1, appendCall(nil, h)))
		p.expect(frameResult, 1)
		h = method("m")
		h.Ext = &Ext{caps: []descriptor{{home: true, id: 1}, {home: true, id: 77}}}
		p.write(appendFrame(nil, frameCall, flagEnd, 3, appendCall(nil, h)))
		synctest.Wait()
		_ = p.conn.Close()
		(<-kept).Release()
		synctest.Wait()
		empty(t, &c.duplex)
		w.close(t)
	})
}

// TestStreamWithCapabilities opens a stream whose outcome brings what it can't.
func TestStreamWithCapabilities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		call := make(chan limpet.Parcel, 1)
		go func() {
			r, err := s.Call(t.Context(), method("m"), limpet.Parcel{})
			if err != nil {
				t.Error(err)
			}
			call <- r
		}()
		p.expect(frameCall, 1)
		b := appendFrame(nil, frameResult, 0, 1, appendResult(nil, limpet.Encoded("x"), []descriptor{{kind: limpet.CapabilityStream, id: 1}}))
		p.write(appendFrame(b, frameData, flagEnd, 1, []byte("x")))
		r := <-call
		opened := make(chan error, 1)
		go func() {
			rd, err := r.Caps[0].Open(t.Context())
			if err == nil {
				_ = rd.Close()
			}
			opened <- err
		}()
		p.expect(frameCall, 3)
		p.write(appendFrame(nil, frameResult, 0, 3, appendResult(nil, limpet.Encoded("x"), []descriptor{{id: 2}})))
		synctest.Wait()
		if err := <-opened; limpet.CodeOf(err) != limpet.CodeDisconnected {
			t.Errorf("the stream opens with %v", err)
		}
		r.Release()
		s.Close()
		_ = p.conn.Close()
		empty(t, &s.duplex)
	})
}

// TestCallbackExits has a function of the program end its goroutine, as t.Fatal
// in it does: the call fails, and nothing else.
func TestCallbackExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, parcels(func(ctx context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
			defer args.Release()
			if args.Caps[0].Kind() == limpet.CapabilityStream {
				r, err := args.Caps[0].Open(ctx)
				if err != nil {
					return limpet.Parcel{}, err
				}
				b, err := io.ReadAll(r)
				return limpet.Parcel{Bytes: b}, err
			}
			return args.Caps[0].Call(ctx, target("a", ""))
		}), sim.Clock{})
		s, c := w.pair(t)
		exits := func(context.Context, limpet.TargetCall) (limpet.Parcel, error) {
			runtime.Goexit()
			return limpet.Parcel{}, nil
		}
		opens := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(goner{}), nil }
		for _, x := range []*thing{{call: exits}, {kind: limpet.CapabilityStream, open: opens}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := s.Call(ctx, method("m"), limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{x.handle()}})
			if e, ok := errors.AsType[*limpet.Error](err); !ok || !strings.Contains(e.Message, "Goexit") || e.Delivery != limpet.DeliveryReceived {
				t.Errorf("the call gives %v", err)
			}
			cancel()
		}
		synctest.Wait()
		s.mu.Lock()
		if s.in.running != 0 || len(s.in.calls) != 0 {
			t.Errorf("%d goroutines and %d calls are counted still", s.in.running, len(s.in.calls))
		}
		s.mu.Unlock()
		empty(t, &s.duplex, &c.duplex)
		s.Close()
		w.close(t)
	})
}

type goner struct{}

func (goner) Read([]byte) (int, error) { runtime.Goexit(); return 0, nil }
