package wire

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// start makes a pipelinable call and returns its promise once it was sent.
func start(ctx context.Context, s *Session, h *Call) (*Promise, chan outcome) {
	begun := make(chan *Promise, 1)
	h.Ext = &Ext{Pipelinable: true, Begun: func(p *Promise) { begun <- p }}
	done := startCall(ctx, s, h, nil)
	return <-begun, done
}

func startChild(ctx context.Context, p *Promise, c limpet.TargetCall) chan outcome {
	done := make(chan outcome, 1)
	go func() {
		r, err := p.Child(ctx, c)
		r.Release()
		done <- outcome{r.Bytes, err}
	}()
	return done
}

// TestChildIsSentAtOnce has a child on the wire before its parent's result.
func TestChildIsSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		promise, parent := start(t.Context(), s, method("m"))
		// SPEC B33
		child := startChild(t.Context(), promise, target("a.b", ""))
		f := p.expect(frameCall, 1)
		if c, err := readCall(f.payload); err != nil || c.Ext == nil || !c.Ext.Pipelinable {
			t.Errorf("the parent is %+v, %v", c, err)
		}
		f = p.expect(frameCall, 3)
		if c, err := readCall(f.payload); err != nil || c.Kind != KindTarget || c.Ext.parent != 1 || strings.Join(c.Ext.Path, ".") != "a.b" {
			t.Errorf("the child is %+v, %v", c, err)
		}
		p.write(appendFrame(nil, frameResult, flagEnd, 1, appendResult(nil, nil, nil)))
		if r := <-parent; r.err != nil {
			t.Error(r.err)
		}
		// After the parent's result it still goes to the other side.
		late := startChild(t.Context(), promise, target("c", ""))
		p.expect(frameCall, 5)
		promise.Close()
		promise.Close()
		p.expect(frameForget, 1)
		for _, n := range []uint64{3, 5} {
			p.write(appendFrame(nil, frameResult, flagEnd, n, appendResult(nil, nil, nil)))
		}
		for _, c := range []chan outcome{child, late} {
			if r := <-c; r.err != nil {
				t.Error(r.err)
			}
		}
		_, err := promise.Child(t.Context(), target("d", ""))
		wantDelivery(t, "after Close", err, limpet.CodeDisposed, limpet.DeliveryNone)
		empty(t, &s.duplex)
		s.Close()
		_ = p.conn.Close()
	})
}

// TestRoundTrips counts what a chain of calls costs on a slow network.
func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 50 * time.Millisecond
		w := serve(t, parcels(func(context.Context, *Call, limpet.Parcel) (limpet.Parcel, error) {
			return limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{echoThing().handle()}}, nil
		}), sim.Clock{})
		dial := w.dialer.Net
		w.dialer.Net = delayed(dial, delay)
		s, _ := w.pair(t)
		begun := time.Now()
		promise, parent := start(t.Context(), s, method("m"))
		child := startChild(t.Context(), promise, target("0.m", "y"))
		if r := <-child; r.err != nil || string(r.v) != "m:y" {
			t.Errorf("the child gives %q, %v", r.v, r.err)
		}
		// SPEC B33: one round trip for both.
		if took := time.Since(begun); took >= 3*delay {
			t.Errorf("two calls took %v at %v each way", took, delay)
		}
		<-parent
		promise.Close()
		s.Close()
		w.close(t)
	})
}

// TestPipelines has children of every kind, before and after the result.
func TestPipelines(t *testing.T) {
	for _, early := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			x, sub := echoThing(), echoThing()
			x.call = func(_ context.Context, c limpet.TargetCall) (limpet.Parcel, error) {
				c.Args.Release()
				if len(c.Path) > 0 && c.Path[0] == "sub" {
					return limpet.Parcel{Bytes: limpet.Encoded("sub"), Caps: []limpet.Capability{sub.handle()}}, nil
				}
				return limpet.Parcel{Bytes: append([]byte("called "), c.Args.Bytes...)}, nil
			}
			w := serve(t, parcels(func(context.Context, *Call, limpet.Parcel) (limpet.Parcel, error) {
				<-release
				return limpet.Parcel{Bytes: limpet.Encoded("result"), Caps: []limpet.Capability{x.handle()}}, nil
			}), sim.Clock{})
			s, c := w.pair(t)
			begun := make(chan *Promise, 1)
			h := method("m")
			h.Ext = &Ext{Pipelinable: true, Begun: func(p *Promise) { begun <- p }}
			parent := make(chan limpet.Parcel, 1)
			go func() {
				p, err := s.Call(t.Context(), h, limpet.Parcel{})
				if err != nil {
					t.Error(err)
				}
				parent <- p
			}()
			promise := <-begun
			if !early {
				close(release)
				synctest.Wait()
			}
			f := echoThing()
			called := startChild(t.Context(), promise, target("0.m", "x", f.handle()))
			value := startChild(t.Context(), promise, limpet.TargetCall{Path: []string{"value"}, Property: true})
			missing := startChild(t.Context(), promise, target("none", "", f.handle()))
			// A child whose result has children itself.
			x2 := &Ext{parent: promise.oc.n, of: promise.oc, Pipelinable: true, Begun: func(p *Promise) { begun <- p }}
			nested := make(chan error, 1)
			go func() {
				p, err := s.out.target(t.Context(), x2, target("0.sub", ""))
				p.Release()
				nested <- err
			}()
			inner := <-begun
			grandchild := startChild(t.Context(), inner, target("0.deep", "z"))
			synctest.Wait()
			if early {
				close(release)
			}
			if r := <-called; r.err != nil || string(r.v) != "called x" {
				t.Errorf("early %v: a call gives %q, %v", early, r.v, r.err)
			}
			if r := <-value; r.err != nil || string(r.v) != "result" {
				t.Errorf("early %v: a property is %q, %v", early, r.v, r.err)
			}
			// SPEC B35
			if r := <-missing; limpet.CodeOf(r.err) != limpet.CodeUnknownMethod || !strings.Contains(r.err.Error(), "does not implement the method \"none\"") {
				t.Errorf("early %v: a missing member gives %v", early, r.err)
			}
			if r := <-grandchild; r.err != nil || string(r.v) != "deep:z" {
				t.Errorf("early %v: a call on a child's result gives %q, %v", early, r.v, r.err)
			}
			if err := <-nested; err != nil {
				t.Error(err)
			}
			(<-parent).Release()
			synctest.Wait()
			if x.disposed.Load() != 0 {
				t.Error("what the promise keeps was disposed of")
			}
			promise.Close()
			inner.Close()
			synctest.Wait()
			if x.disposed.Load() != 1 || sub.disposed.Load() != 1 || f.disposed.Load() != 2 {
				t.Errorf("disposed of: %d, %d, %d", x.disposed.Load(), sub.disposed.Load(), f.disposed.Load())
			}
			empty(t, &s.duplex, &c.duplex)
			s.Close()
			w.close(t)
		})
	}
}

// TestForgetBeforeResult closes a promise while the call runs: children that are
// under way get theirs, and nothing is kept.
func TestForgetBeforeResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		x := echoThing()
		w := serve(t, parcels(func(context.Context, *Call, limpet.Parcel) (limpet.Parcel, error) {
			<-release
			return limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{x.handle()}}, nil
		}), sim.Clock{})
		s, c := w.pair(t)
		first, firstDone := start(t.Context(), s, method("m"))
		second, secondDone := start(t.Context(), s, method("m"))
		child := startChild(t.Context(), first, target("0.m", ""))
		synctest.Wait()
		first.Close()
		second.Close()
		synctest.Wait()
		close(release)
		if r := <-child; r.err != nil {
			t.Errorf("the child of a closed promise gives %v", r.err)
		}
		<-firstDone
		<-secondDone
		synctest.Wait()
		// startCall's callers do not look at the handles of the results.
		if n := len(c.in.promised); n != 0 || c.in.held != 0 {
			t.Errorf("%d results and %d bytes are kept", n, c.in.held)
		}
		s.Close()
		synctest.Wait()
		if x.disposed.Load() != 2 {
			t.Errorf("disposed of %d times", x.disposed.Load())
		}
		w.close(t)
	})
}

// TestParentFails fails parents in all ways: the children fail with them.
func TestParentFails(t *testing.T) {
	rejection := limpet.ReceivedError(&limpet.Error{Code: limpet.CodeAlreadyReceived, Message: "taken already", Delivery: limpet.DeliveryReceived}, false, true)
	for name, c := range map[string]struct {
		fail func(t *testing.T, p *script, cancel func())
		code limpet.Code
		want limpet.Delivery
	}{
		"its own error": {func(_ *testing.T, p *script, _ func()) {
			p.write(appendFrame(nil, frameFailure, flagEnd, 1, appendFailure(nil, &limpet.Error{Code: "Own", Message: "m", Delivery: limpet.DeliveryReceived, Remote: true})))
		}, "Own", limpet.DeliveryReceived},
		// SPEC E55: the mark is the parent's.
		"a refused claim": {func(_ *testing.T, p *script, _ func()) {
			p.write(appendFrame(nil, frameFailure, flagEnd, 1, appendFailure(nil, rejection)))
		}, limpet.CodeAlreadyReceived, limpet.DeliveryReceived},
		"a drain": {func(_ *testing.T, p *script, _ func()) { p.write(appendGoAway(nil, 0, "going")) }, limpet.CodeDraining, limpet.DeliveryNone},
		"a lost connection": {func(_ *testing.T, p *script, _ func()) {
			_ = p.conn.Close()
		}, limpet.CodeDisconnected, limpet.DeliveryUncertain},
		"its caller": {func(_ *testing.T, _ *script, cancel func()) { cancel() }, limpet.CodeCanceled, limpet.DeliveryUncertain},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newScript(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				promise, parent := start(ctx, s, method("m"))
				f := echoThing()
				// SPEC B34, E54
				child := startChild(t.Context(), promise, target("a", "", f.handle()))
				p.expect(frameCall, 1)
				p.expect(frameCall, 3)
				drained := make(chan struct{})
				go func() { // FORGET and CANCEL
					defer close(drained)
					for {
						if _, err := p.fr.next(); err != nil {
							return
						}
					}
				}()
				c.fail(t, p, cancel)
				wantDelivery(t, "the parent", (<-parent).err, c.code, c.want)
				wantDelivery(t, "the child", (<-child).err, c.code, c.want)
				_, err := promise.Child(t.Context(), target("b", "", f.handle()))
				wantDelivery(t, "a child after it", err, c.code, c.want)
				promise.Close()
				_ = p.conn.Close()
				s.Close()
				<-drained
				if f.disposed.Load() != 2 {
					t.Errorf("arguments were disposed of %d times", f.disposed.Load())
				}
				empty(t, &s.duplex)
			})
		})
	}
}

// TestParentInQueue cancels a parent that was not written yet: neither it nor its
// child ever is.
func TestParentInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		first := startCall(t.Context(), s, method("a"), nil)
		synctest.Wait() // in Write
		ctx, cancel := context.WithCancel(t.Context())
		promise, parent := start(ctx, s, method("b"))
		child := startChild(t.Context(), promise, target("c", ""))
		synctest.Wait()
		cancel()
		wantDelivery(t, "the parent", (<-parent).err, limpet.CodeCanceled, limpet.DeliveryNone)
		if err := (<-child).err; limpet.CodeOf(err) != limpet.CodeCanceled {
			t.Errorf("the child gives %v", err)
		}
		promise.Close()
		last := startCall(t.Context(), s, method("d"), nil)
		synctest.Wait()
		p.expect(frameCall, 1)
		p.expect(frameCall, 7) // not 3, not 5, no FORGET
		_ = p.conn.Close()
		<-first
		<-last
		s.Close()
		empty(t, &s.duplex)
	})
}

// TestChildrenOfFailures has the real receiver fail a parent: nothing is kept, the
// child learns why; and a child that is canceled itself.
func TestChildrenOfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := serve(t, parcels(func(ctx context.Context, c *Call, _ limpet.Parcel) (limpet.Parcel, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return limpet.Parcel{}, &limpet.Error{Code: "Own", Message: c.Method, Delivery: limpet.DeliveryReceived, Remote: true}
		}), sim.Clock{})
		s, c := w.pair(t)
		promise, parent := start(t.Context(), s, method("m"))
		ctx, cancel := context.WithCancel(t.Context())
		canceled := startChild(ctx, promise, target("a", ""))
		child := startChild(t.Context(), promise, target("b", ""))
		synctest.Wait()
		cancel()
		wantDelivery(t, "a child that is canceled", (<-canceled).err, limpet.CodeCanceled, limpet.DeliveryUncertain)
		close(release)
		wantDelivery(t, "the parent", (<-parent).err, "Own", limpet.DeliveryReceived)
		wantDelivery(t, "its child", (<-child).err, "Own", limpet.DeliveryReceived)
		synctest.Wait()
		empty(t, &s.duplex, &c.duplex)
		promise.Close()
		// The caller of the parent gives up while a child waits.
		release = make(chan struct{})
		ctx, cancel = context.WithCancel(t.Context())
		promise, parent = start(ctx, s, method("m"))
		child = startChild(t.Context(), promise, target("b", ""))
		synctest.Wait()
		cancel()
		<-parent
		<-child
		synctest.Wait()
		promise.Close()
		synctest.Wait()
		empty(t, &s.duplex, &c.duplex)
		s.Close()
		w.close(t)
	})
}

// TestDrainLetsChildrenPass drains a node with a parent under way.
func TestDrainLetsChildrenPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := serve(t, parcels(func(ctx context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
			defer args.Release()
			<-release
			return limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{echoThing().handle(), bytesOf(strings.NewReader("the rest")).handle()}}, nil
		}), sim.Clock{})
		s, c := w.pair(t)
		begun := make(chan *Promise, 1)
		h := method("m")
		h.Ext = &Ext{Pipelinable: true, Begun: func(p *Promise) { begun <- p }}
		result := make(chan limpet.Parcel, 1)
		go func() {
			p, err := s.Call(t.Context(), h, limpet.Parcel{})
			if err != nil {
				t.Error(err)
			}
			result <- p
		}()
		promise := <-begun
		synctest.Wait()
		w.server.Drain()
		synctest.Wait()
		child := startChild(t.Context(), promise, target("0.m", "y"))
		_, err := s.Call(t.Context(), method("new"), limpet.Parcel{})
		wantDelivery(t, "a new call", err, limpet.CodeDraining, limpet.DeliveryNone)
		synctest.Wait()
		close(release)
		if r := <-child; r.err != nil || string(r.v) != "m:y" {
			t.Errorf("the child gives %q, %v", r.v, r.err)
		}
		out := <-result
		time.Sleep(time.Minute)
		// The stream is part of the result: the connection waits for it.
		r, err := out.Caps[1].Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		n, _ := r.Read(buf)
		if string(buf[:n]) != "the rest" {
			t.Errorf("the stream gives %q", buf[:n])
		}
		_ = r.Close()
		if s.Usable() {
			t.Error("the session takes new calls")
		}
		out.Release()
		promise.Close()
		<-s.Ended()
		s.Close()
		synctest.Wait()
		empty(t, &s.duplex, &c.duplex)
		w.close(t)
	})
}

// TestPromisesAreBounded makes more promises than the other side keeps: those
// beyond are made as plain calls.
func TestPromisesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, parcels(func(context.Context, *Call, limpet.Parcel) (limpet.Parcel, error) {
			return limpet.Parcel{Bytes: limpet.Encoded("x")}, nil
		}), sim.Clock{})
		s, c := w.pair(t)
		var got []*Promise
		for range maxCalls + 10 {
			h := method("m")
			h.Ext = &Ext{Pipelinable: true, Begun: func(p *Promise) { got = append(got, p) }}
			if _, err := s.Call(t.Context(), h, limpet.Parcel{}); err != nil {
				t.Fatal(err)
			}
		}
		if len(got) != maxCalls || len(c.in.promised) != maxCalls {
			t.Errorf("%d promises were made and %d are kept, want %d", len(got), len(c.in.promised), maxCalls)
		}
		for _, p := range got {
			p.Close()
		}
		synctest.Wait()
		empty(t, &s.duplex, &c.duplex)
		// Their bytes are bounded too: the result is the caller's, children are
		// refused.
		big := strings.Repeat("x", 15<<20)
		w.server.cfg.Callee.(*callee).parcel = func(context.Context, *Call, limpet.Parcel) (limpet.Parcel, error) {
			return limpet.Parcel{Bytes: limpet.Encoded(big)}, nil
		}
		var refusedCalls atomic.Int64
		got = nil
		for range 6 {
			h := method("m")
			h.Ext = &Ext{Pipelinable: true, Begun: func(p *Promise) { got = append(got, p) }}
			if r, err := s.Call(t.Context(), h, limpet.Parcel{}); err != nil || len(r.Bytes) != len(big) {
				t.Fatal(err)
			}
		}
		for _, p := range got {
			if _, err := p.Child(t.Context(), limpet.TargetCall{Path: []string{"value"}, Property: true}); errors.Is(err, limpet.CodeOverloaded) {
				refusedCalls.Add(1)
			} else if err != nil {
				t.Error(err)
			}
			p.Close()
		}
		if refusedCalls.Load() != 2 {
			t.Errorf("%d of 6 were refused", refusedCalls.Load())
		}
		synctest.Wait()
		empty(t, &s.duplex, &c.duplex)
		s.Close()
		w.close(t)
	})
}
