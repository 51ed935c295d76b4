package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// thing is a capability made of functions, which counts its handles' end.
type thing struct {
	kind     limpet.CapabilityKind
	call     func(ctx context.Context, c limpet.TargetCall) (limpet.Parcel, error)
	fetch    func(ctx context.Context, req *http.Request) (*http.Response, error)
	open     func(ctx context.Context) (io.ReadCloser, error)
	disposed atomic.Int64
}

func (x *thing) Call(ctx context.Context, c limpet.TargetCall) (limpet.Parcel, error) {
	return x.call(ctx, c)
}

func (x *thing) Fetch(ctx context.Context, req *http.Request) (*http.Response, error) {
	return x.fetch(ctx, req)
}

func (x *thing) Open(ctx context.Context) (io.ReadCloser, error) { return x.open(ctx) }
func (x *thing) Kind() limpet.CapabilityKind                     { return x.kind }
func (x *thing) Disposed()                                       { x.disposed.Add(1) }

func (x *thing) handle() limpet.Capability { return limpet.NewCapability(x) }

// echoThing answers calls with their arguments, and what was called.
func echoThing() *thing {
	return &thing{call: func(_ context.Context, c limpet.TargetCall) (limpet.Parcel, error) {
		what := strings.Join(c.Path, ".")
		if c.Property {
			what += "?"
		}
		return limpet.Parcel{Bytes: append([]byte(what+":"), c.Args.Bytes...), Caps: c.Args.Caps}, nil
	}}
}

func bytesOf(r io.Reader) *thing {
	return &thing{kind: limpet.CapabilityStream, open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(r), nil }}
}

// parcels is a Callee whose calls take and return capabilities.
func parcels(f func(ctx context.Context, c *Call, args limpet.Parcel) (limpet.Parcel, error)) *callee {
	return &callee{parcel: f, child: walk}
}

// walk is a Child for tests: the path's first name is the index of a capability,
// "value" the bytes.
func walk(ctx context.Context, p limpet.Parcel, c limpet.TargetCall) (limpet.Parcel, error) {
	switch {
	case len(c.Path) == 0 || c.Path[0] == "none":
		c.Args.Release()
		return limpet.Parcel{}, limpet.NoMethodError("none")
	case c.Path[0] == "value":
		c.Args.Release()
		return limpet.Parcel{Bytes: p.Bytes}, nil
	}
	var i int
	if _, err := fmt.Sscan(c.Path[0], &i); err != nil || i >= len(p.Caps) {
		c.Args.Release()
		return limpet.Parcel{}, limpet.NoMethodError(c.Path[0])
	}
	c.Path = c.Path[1:]
	return p.Caps[i].Call(ctx, c)
}

func target(path string, args string, caps ...limpet.Capability) limpet.TargetCall {
	c := limpet.TargetCall{Args: limpet.Parcel{Bytes: limpet.Encoded(args), Caps: caps}}
	if path != "" {
		c.Path = strings.Split(path, ".")
	}
	return c
}

// empty checks that neither side of a connection has anything left.
func empty(t *testing.T, both ...*duplex) {
	t.Helper()
	for _, d := range both {
		d.mu.Lock()
		if n, m, k, p := len(d.caps.exports), len(d.caps.imports), d.caps.streams, len(d.in.promised)+d.out.promised; n+m+k+p > 0 {
			t.Errorf("the side that dials=%v has %d exports, %d imports, %d streams and %d promised results left", d.dialer, n, m, k, p)
		}
		if d.caps.total.used != 0 || d.shares.calls.used != 0 {
			t.Errorf("%d capabilities and %d bytes are still counted", d.caps.total.used, d.shares.calls.used)
		}
		d.mu.Unlock()
	}
}

// TestCallback passes a function as an argument, which is called during the call.
func TestCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, parcels(func(ctx context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
			defer args.Release()
			return args.Caps[0].Call(ctx, target("a.b", string(args.Bytes)))
		}), sim.Clock{})
		s, c := w.pair(t)
		f := echoThing()
		out, err := s.Call(t.Context(), method("m"), limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{f.handle()}})
		if err != nil || string(out.Bytes) != "a.b:x" || len(out.Caps) != 0 {
			t.Errorf("the call gives %q, %v", out.Bytes, err)
		}
		synctest.Wait()
		// SPEC B39: the argument was given back when the call had returned.
		if f.disposed.Load() != 1 {
			t.Errorf("the function was disposed of %d times", f.disposed.Load())
		}
		empty(t, &s.duplex, &c.duplex)
		s.Close()
		w.close(t)
	})
}

// TestKeptArgument keeps a duplicate of an argument after the call.
func TestKeptArgument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept limpet.Capability
		w := serve(t, parcels(func(_ context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
			defer args.Release()
			kept = args.Caps[0].Dup()
			return limpet.Parcel{}, nil
		}), sim.Clock{})
		s, c := w.pair(t)
		f := echoThing()
		if _, err := s.Call(t.Context(), method("m"), limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{f.handle()}}); err != nil {
			t.Fatal(err)
		}
		out, err := kept.Call(t.Context(), target("", "later"))
		if err != nil || string(out.Bytes) != ":later" {
			t.Errorf("after the call: %q, %v", out.Bytes, err)
		}
		second := kept.Dup()
		kept.Release()
		synctest.Wait()
		// SPEC B37: once, after the last duplicate.
		if f.disposed.Load() != 0 {
			t.Error("it was disposed of while there was a duplicate")
		}
		second.Release()
		second.Release() // SPEC B36: harmless
		synctest.Wait()
		if f.disposed.Load() != 1 {
			t.Errorf("it was disposed of %d times", f.disposed.Load())
		}
		_, err = second.Call(t.Context(), target("", ""))
		// SPEC C42
		wantDelivery(t, "a call of a released handle", err, limpet.CodeDisposed, limpet.DeliveryNone)
		empty(t, &s.duplex, &c.duplex)
		s.Close()
		w.close(t)
	})
}

// TestResultCapabilities has a result with a function, a target and a stream.
func TestResultCapabilities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		things := []*thing{echoThing(), echoThing(), bytesOf(strings.NewReader("stream"))}
		w := serve(t, parcels(func(context.Context, *Call, limpet.Parcel) (limpet.Parcel, error) {
			p := limpet.Parcel{Bytes: limpet.Encoded("three")}
			for _, x := range things {
				p.Caps = append(p.Caps, x.handle())
			}
			return p, nil
		}), sim.Clock{})
		s, c := w.pair(t)
		out, err := s.Call(t.Context(), method("m"), limpet.Parcel{})
		if err != nil || string(out.Bytes) != "three" || len(out.Caps) != 3 {
			t.Fatalf("the call gives %q with %d, %v", out.Bytes, len(out.Caps), err)
		}
		if r, err := out.Caps[1].Call(t.Context(), target("m", "1")); err != nil || string(r.Bytes) != "m:1" {
			t.Errorf("a call of it gives %q, %v", r.Bytes, err)
		}
		if r, err := out.Caps[1].Call(t.Context(), limpet.TargetCall{Path: []string{"p"}, Property: true}); err != nil || string(r.Bytes) != "p?:" {
			t.Errorf("a property of it is %q, %v", r.Bytes, err)
		}
		if out.Caps[0].Kind() != limpet.CapabilityTarget || out.Caps[2].Kind() != limpet.CapabilityStream {
			t.Errorf("the kinds are %v and %v", out.Caps[0].Kind(), out.Caps[2].Kind())
		}
		r, err := out.Caps[2].Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); string(b) != "stream" || err != nil {
			t.Errorf("the stream is %q, %v", b, err)
		}
		if _, err := out.Caps[2].Open(t.Context()); err == nil {
			t.Error("a stream is opened twice")
		}
		// SPEC B38: sent twice, it is two things.
		again, err := s.Call(t.Context(), method("m"), limpet.Parcel{})
		if err != nil {
			t.Fatal(err)
		}
		out.Release()
		synctest.Wait()
		for i, x := range things {
			if x.disposed.Load() != 1 {
				t.Errorf("number %d was disposed of %d times", i, x.disposed.Load())
			}
		}
		if r, err := again.Caps[0].Call(t.Context(), target("", "2")); err != nil || string(r.Bytes) != ":2" {
			t.Errorf("the second sending gives %q, %v", r.Bytes, err)
		}
		again.Release()
		synctest.Wait()
		empty(t, &s.duplex, &c.duplex)
		s.Close()
		w.close(t)
	})
}

// TestComingHome sends an import back where it came from: the exporter gets its
// own, not a way around.
func TestComingHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := echoThing()
		var calls atomic.Int64
		var s *Session
		w := serve(t, parcels(func(_ context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
			return args, nil
		}), sim.Clock{})
		s, c := w.pair(t)
		mine := f.handle()
		out, err := s.Call(t.Context(), method("m"), limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{mine.Dup(), mine}})
		if err != nil || len(out.Caps) != 2 {
			t.Fatalf("%d come back, %v", len(out.Caps), err)
		}
		f.call = func(context.Context, limpet.TargetCall) (limpet.Parcel, error) {
			calls.Add(1)
			return limpet.Parcel{}, nil
		}
		before := s.out.next
		for _, x := range out.Caps {
			if _, err := x.Call(t.Context(), target("", "")); err != nil {
				t.Error(err)
			}
		}
		if s.out.next != before || calls.Load() != 2 {
			t.Errorf("%d calls went over the network, %d arrived", (s.out.next-before)/2, calls.Load())
		}
		synctest.Wait()
		if f.disposed.Load() != 0 {
			t.Error("it was disposed of")
		}
		out.Release()
		synctest.Wait()
		if f.disposed.Load() != 1 {
			t.Errorf("it was disposed of %d times", f.disposed.Load())
		}
		empty(t, &s.duplex, &c.duplex)
		s.Close()
		w.close(t)
	})
}

// TestThirdParty passes what one connection gave to another: it is called through
// the process in the middle.
func TestThirdParty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := echoThing()
		give := serve(t, parcels(func(context.Context, *Call, limpet.Parcel) (limpet.Parcel, error) {
			return limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{f.handle()}}, nil
		}), sim.Clock{})
		take := serve(t, parcels(func(ctx context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
			defer args.Release()
			return args.Caps[0].Call(ctx, target("m", "through"))
		}), sim.Clock{})
		a, ac := give.pair(t)
		b, bc := take.pair(t)
		got, err := a.Call(t.Context(), method("m"), limpet.Parcel{})
		if err != nil {
			t.Fatal(err)
		}
		out, err := b.Call(t.Context(), method("m"), got)
		if err != nil || string(out.Bytes) != "m:through" {
			t.Errorf("through the middle: %q, %v", out.Bytes, err)
		}
		synctest.Wait()
		if f.disposed.Load() != 1 {
			t.Errorf("it was disposed of %d times", f.disposed.Load())
		}
		empty(t, &a.duplex, &ac.duplex, &b.duplex, &bc.duplex)
		a.Close()
		b.Close()
		give.close(t)
		take.close(t)
	})
}

// slowly is a reader of n bytes in all.
type counted struct {
	n, read int64
	ahead   func(int64)
}

func (r *counted) Read(p []byte) (int, error) {
	n := min(int64(len(p)), r.n-r.read)
	for i := range p[:n] {
		p[i] = byte(r.read + int64(i))
	}
	r.read += n
	if r.ahead != nil {
		r.ahead(r.read)
	}
	if n == 0 {
		return 0, io.EOF
	}
	return int(n), nil
}

// TestStreamArgument reads a long stream slowly: the sender is held back, memory
// is bounded, and a second stream and calls go on meanwhile.
func TestStreamArgument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 100 << 20
		stalled, goOn := make(chan struct{}), make(chan struct{})
		w := serve(t, parcels(func(ctx context.Context, c *Call, args limpet.Parcel) (limpet.Parcel, error) {
			defer args.Release()
			r, err := args.Caps[0].Open(ctx)
			if err != nil {
				return limpet.Parcel{}, err
			}
			defer r.Close()
			if c.Method == "slow" {
				if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
					return limpet.Parcel{}, err
				}
				close(stalled)
				<-goOn
			}
			sum, buf := int64(0), make([]byte, 50_000)
			for {
				n, err := r.Read(buf)
				for i := 0; i < n; i += 997 {
					sum += int64(buf[i])
				}
				if errors.Is(err, io.EOF) {
					return limpet.Parcel{Bytes: fmt.Append(nil, sum > 0)}, nil
				}
				if err != nil {
					return limpet.Parcel{}, err
				}
			}
		}), sim.Clock{})
		s, c := w.pair(t)
		slow, fast := &counted{n: size}, &counted{n: size}
		var ahead atomic.Int64
		slow.ahead = ahead.Store
		call := func(name string, r io.Reader) chan error {
			done := make(chan error, 1)
			go func() {
				out, err := s.Call(t.Context(), method(name), limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{bytesOf(r).handle()}})
				if err == nil && string(out.Bytes) != "true" {
					err = fmt.Errorf("the result is %q", out.Bytes)
				}
				done <- err
			}()
			return done
		}
		waits := call("slow", slow)
		<-stalled
		synctest.Wait()
		// SPEC B31; DESIGN 8: a window a stream, whatever the sender has.
		if n := ahead.Load(); n > maxWindow+3*pumpBytes {
			t.Errorf("%d bytes were read ahead of a stalled reader", n)
		}
		if err := <-call("fast", fast); err != nil {
			t.Errorf("the stream beside it: %v", err)
		}
		close(goOn)
		if err := <-waits; err != nil {
			t.Errorf("the slow stream: %v", err)
		}
		if slow.read != size || fast.read != size {
			t.Errorf("%d and %d bytes were read", slow.read, fast.read)
		}
		synctest.Wait()
		empty(t, &s.duplex, &c.duplex)
		s.Close()
		w.close(t)
	})
}

// TestStreamEnds ends streams in every other way.
func TestStreamEnds(t *testing.T) {
	own := &limpet.Error{Code: "Own", Message: "broken pipe", Delivery: limpet.DeliveryReceived, Remote: true}
	for name, f := range map[string]func(t *testing.T, s *Session, c *serverConn, x limpet.Capability, r io.ReadCloser, cancel func()) error{
		"the reader closes": func(t *testing.T, _ *Session, _ *serverConn, _ limpet.Capability, r io.ReadCloser, _ func()) error {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			_, err := r.Read(make([]byte, 1))
			return err
		},
		"the handle is released": func(_ *testing.T, _ *Session, _ *serverConn, x limpet.Capability, r io.ReadCloser, _ func()) error {
			x.Release()
			_, err := r.Read(make([]byte, 1))
			return err
		},
		"the context ends": func(_ *testing.T, _ *Session, _ *serverConn, _ limpet.Capability, r io.ReadCloser, cancel func()) error {
			cancel()
			synctest.Wait() // else the whole stream may come first
			_, err := io.Copy(io.Discard, r)
			return err
		},
		"the connection ends": func(_ *testing.T, s *Session, _ *serverConn, _ limpet.Capability, r io.ReadCloser, _ func()) error {
			s.fail(errClosed)
			_, err := io.Copy(io.Discard, r)
			return err
		},
		"the source fails": func(_ *testing.T, _ *Session, _ *serverConn, _ limpet.Capability, r io.ReadCloser, _ func()) error {
			_, err := io.Copy(io.Discard, r)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var closed atomic.Bool
				source, sink := io.Pipe()
				x := &thing{kind: limpet.CapabilityStream, open: func(ctx context.Context) (io.ReadCloser, error) {
					context.AfterFunc(ctx, func() { _ = source.CloseWithError(context.Cause(ctx)) })
					return &closer{source, &closed}, nil
				}}
				w := serve(t, parcels(func(context.Context, *Call, limpet.Parcel) (limpet.Parcel, error) {
					return limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{x.handle()}}, nil
				}), sim.Clock{})
				s, c := w.pair(t)
				out, err := s.Call(t.Context(), method("m"), limpet.Parcel{})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r, err := out.Caps[0].Open(ctx)
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					_, _ = sink.Write(make([]byte, 100_000)) // as much as is taken
					_ = sink.CloseWithError(own)
				}()
				synctest.Wait()
				got := f(t, s, c, out.Caps[0], r, cancel)
				want := map[string]limpet.Code{
					"the handle is released": limpet.CodeDisposed, "the context ends": limpet.CodeCanceled,
					"the connection ends": limpet.CodeDisconnected, "the source fails": "Own",
				}[name]
				if got == nil || want != "" && limpet.CodeOf(got) != want {
					t.Errorf("reading ends with %v, want %v", got, want)
				}
				if want != "" && limpet.DeliveryOf(got) == limpet.DeliveryUncertain {
					t.Errorf("the delivery of %v is uncertain", got) // SPEC C22: it was open
				}
				_ = r.Close()
				out.Release()
				synctest.Wait()
				if !closed.Load() {
					t.Error("the source was not closed")
				}
				if x.disposed.Load() != 1 {
					t.Errorf("it was disposed of %d times", x.disposed.Load())
				}
				empty(t, &s.duplex, &c.duplex)
				s.Close()
				w.close(t)
			})
		})
	}
}

type closer struct {
	*io.PipeReader
	closed *atomic.Bool
}

func (c *closer) Close() error {
	c.closed.Store(true)
	return c.PipeReader.Close()
}

// TestCapabilityFetch sends a request to a capability, in both directions.
func TestCapabilityFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		site := &thing{fetch: func(_ context.Context, req *http.Request) (*http.Response, error) {
			b, err := io.ReadAll(req.Body)
			if err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: 201, Header: http.Header{"X": {req.URL.Path}}, ContentLength: -1, Body: io.NopCloser(io.MultiReader(strings.NewReader("got "), bytes.NewReader(b)))}, nil
		}}
		post := func(ctx context.Context, x limpet.Capability) string {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://x/path", strings.NewReader(strings.Repeat("y", 100_000)))
			if err != nil {
				return err.Error()
			}
			resp, err := x.Fetch(ctx, req)
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			return fmt.Sprint(resp.StatusCode, resp.Header["X"], len(b), err)
		}
		const want = "201 [/path] 100004 <nil>"
		w := serve(t, parcels(func(ctx context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
			defer args.Release()
			return limpet.Parcel{Bytes: limpet.Encoded(post(ctx, args.Caps[0])), Caps: []limpet.Capability{site.handle()}}, nil
		}), sim.Clock{})
		s, c := w.pair(t)
		out, err := s.Call(t.Context(), method("m"), limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{site.handle()}})
		if err != nil || string(out.Bytes) != want {
			t.Errorf("the node's fetch gives %q, %v", out.Bytes, err)
		}
		if got := post(t.Context(), out.Caps[0]); got != want {
			t.Errorf("the client's fetch gives %q", got)
		}
		out.Release()
		synctest.Wait()
		empty(t, &s.duplex, &c.duplex)
		s.Close()
		w.close(t)
	})
}

// TestTooManyExports exceeds what one connection may have, which is no harm but to
// the call that does it; and memory is bounded.
func TestTooManyExports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, parcels(func(_ context.Context, c *Call, args limpet.Parcel) (limpet.Parcel, error) {
			defer args.Release()
			if c.Method == "keep" {
				for _, x := range args.Caps {
					x.Dup() // and forgets it
				}
				return limpet.Parcel{}, nil
			}
			p := limpet.Parcel{Bytes: limpet.Encoded("x")}
			for range 1000 {
				p.Caps = append(p.Caps, echoThing().handle())
			}
			return p, nil
		}), sim.Clock{})
		s, c := w.pair(t)
		for range maxExports / 1000 {
			if _, err := s.Call(t.Context(), method("give"), limpet.Parcel{}); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.Call(t.Context(), method("give"), limpet.Parcel{})
		wantDelivery(t, "a result too much", err, limpet.CodeOverloaded, limpet.DeliveryReceived)
		if err == nil || !strings.Contains(err.Error(), "the limit is 10000") || !strings.Contains(err.Error(), "1000 stubs") {
			t.Errorf("the error is %v", err)
		}
		// The other direction.
		var many []limpet.Capability
		f := echoThing()
		for range maxExports {
			many = append(many, f.handle())
		}
		if _, err := s.Call(t.Context(), method("keep"), limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: many}); err != nil {
			t.Fatal(err)
		}
		g := echoThing()
		_, err = s.Call(t.Context(), method("keep"), limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{g.handle()}})
		wantDelivery(t, "an argument too much", err, limpet.CodeOverloaded, limpet.DeliveryNone)
		if g.disposed.Load() != 1 {
			t.Errorf("it was disposed of %d times", g.disposed.Load())
		}
		if f.disposed.Load() != 0 {
			t.Errorf("%d are disposed of", f.disposed.Load())
		}
		if _, err := s.Call(t.Context(), method("keep"), limpet.Parcel{}); err != nil {
			t.Errorf("a plain call: %v", err)
		}
		s.Close()
		synctest.Wait()
		if f.disposed.Load() != maxExports {
			t.Errorf("%d of %d were disposed of with the connection", f.disposed.Load(), maxExports)
		}
		empty(t, &s.duplex, &c.duplex)
		w.close(t)
	})
}

// TestTooManyOnNode exceeds what all connections of a node may have.
func TestTooManyOnNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, parcels(func(_ context.Context, c *Call, args limpet.Parcel) (limpet.Parcel, error) {
			if c.Method == "take" {
				return args, nil
			}
			defer args.Release()
			p := limpet.Parcel{Bytes: limpet.Encoded("x")}
			for range 9000 {
				p.Caps = append(p.Caps, echoThing().handle())
			}
			return p, nil
		}), sim.Clock{})
		var all []*Session
		var err error
		for len(all) < DefaultMaxCapabilities/9000+1 {
			s := w.session(t)
			all = append(all, s)
			if _, err = s.Call(t.Context(), method("give"), limpet.Parcel{}); err != nil {
				break
			}
		}
		wantDelivery(t, "a result too much", err, limpet.CodeOverloaded, limpet.DeliveryReceived)
		f := echoThing()
		var many []limpet.Capability
		for range 1001 {
			many = append(many, f.handle())
		}
		s := all[len(all)-1]
		_, err = s.Call(t.Context(), method("take"), limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: many})
		wantDelivery(t, "arguments too many", err, limpet.CodeOverloaded, limpet.DeliveryNone)
		synctest.Wait()
		if f.disposed.Load() != 1001 {
			t.Errorf("%d of 1001 were disposed of", f.disposed.Load())
		}
		for _, s := range all {
			s.Close()
		}
		synctest.Wait()
		if w.server.caps.used != 0 {
			t.Errorf("%d are still counted", w.server.caps.used)
		}
		w.close(t)
	})
}

// TestAbandonedResult gives up a call whose result has capabilities: they go back,
// whenever it comes.
func TestAbandonedResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := echoThing()
		release := make(chan struct{})
		w := serve(t, parcels(func(context.Context, *Call, limpet.Parcel) (limpet.Parcel, error) {
			<-release
			return limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{f.handle()}}, nil
		}), sim.Clock{})
		s, c := w.pair(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := startCall(ctx, s, method("m"), nil)
		synctest.Wait()
		cancel()
		<-done
		synctest.Wait()
		close(release)
		synctest.Wait()
		if f.disposed.Load() != 1 {
			t.Errorf("it was disposed of %d times", f.disposed.Load())
		}
		empty(t, &s.duplex, &c.duplex)
		s.Close()
		w.close(t)

		// On the wire already when the caller gives up.
		s2, p := newScript(t)
		ctx, cancel = context.WithCancel(t.Context())
		done = startCall(ctx, s2, method("m"), nil)
		p.expect(frameCall, 1)
		cancel()
		<-done
		p.expect(frameCancel, 1)
		p.write(appendFrame(nil, frameResult, 0, 1, appendResult(nil, limpet.Encoded("x"), []descriptor{{0, false, 7}})))
		if fr := p.expect(frameRelease, 0); !bytes.Equal(fr.payload, []byte{7}) {
			t.Errorf("given back is %v", fr.payload)
		}
		empty(t, &s2.duplex)
		s2.Close()
		_ = p.conn.Close()
	})
}

// TestArgumentsNeverTaken sends functions in calls that never reach anybody: the
// caller's table has nothing left.
func TestArgumentsNeverTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		f := echoThing()
		call := func(ctx context.Context) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := s.Call(ctx, method("m"), limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{f.handle()}})
				done <- err
			}()
			synctest.Wait()
			return done
		}
		first := call(t.Context()) // in Write
		ctx, cancel := context.WithCancel(t.Context())
		second := call(ctx) // in the queue
		cancel()
		if err := <-second; err == nil { // what it says was tested above
			t.Error("a canceled call went well")
		}
		synctest.Wait()
		if f.disposed.Load() != 1 {
			t.Errorf("disposed of %d times after the call in the queue", f.disposed.Load())
		}
		p.expect(frameCall, 1)
		p.expect(frameData, 1)
		third := call(t.Context())
		p.expect(frameCall, 5)
		p.expect(frameData, 5)
		p.write(appendGoAway(nil, 1, "going"))
		// SPEC C24
		wantDelivery(t, "above GOAWAY", <-third, limpet.CodeDraining, limpet.DeliveryNone)
		synctest.Wait()
		if f.disposed.Load() != 2 {
			t.Errorf("disposed of %d times after GOAWAY", f.disposed.Load())
		}
		// A new one is not even queued.
		wantDelivery(t, "after GOAWAY", <-call(t.Context()), limpet.CodeDraining, limpet.DeliveryNone)
		if f.disposed.Load() != 3 {
			t.Errorf("disposed of %d times", f.disposed.Load())
		}
		_ = p.conn.Close()
		wantDelivery(t, "the lost one", <-first, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		synctest.Wait()
		// Lost with the connection.
		if f.disposed.Load() != 4 {
			t.Errorf("disposed of %d times in the end", f.disposed.Load())
		}
		empty(t, &s.duplex)
		wantDelivery(t, "of an ended session", <-call(t.Context()), limpet.CodeDisconnected, limpet.DeliveryNone)
		s.Close()
		if f.disposed.Load() != 5 {
			t.Errorf("disposed of %d times in the very end", f.disposed.Load())
		}
	})
}

// TestLostCapability cuts the connection in each phase of a call of a capability.
func TestLostCapability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		got := startCall(t.Context(), s, method("m"), nil)
		p.expect(frameCall, 1)
		go func() {
			out, err := s.Call(t.Context(), method("n"), limpet.Parcel{})
			if err != nil || len(out.Caps) != 1 {
				t.Errorf("%d, %v", len(out.Caps), err)
				got <- outcome{}
				return
			}
			x := out.Caps[0]
			var all sync.WaitGroup
			var attempts atomic.Int64
			// SPEC C21: handed to Write.
			all.Go(func() {
				attempts.Add(1)
				_, err := x.Call(t.Context(), target("a", ""))
				wantDelivery(t, "a call in Write", err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
				if e, ok := errors.AsType[*limpet.Error](err); !ok || !e.Retryable {
					t.Errorf("%v is not retryable", err)
				}
			})
			synctest.Wait()
			// SPEC C20: in the queue.
			all.Go(func() {
				_, err := x.Call(t.Context(), target("b", ""))
				wantDelivery(t, "a call in the queue", err, limpet.CodeDisconnected, limpet.DeliveryNone)
			})
			synctest.Wait()
			_ = p.conn.Close()
			all.Wait()
			_, err = x.Call(t.Context(), target("c", ""))
			wantDelivery(t, "a call after the connection", err, limpet.CodeDisconnected, limpet.DeliveryNone)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
			if err != nil {
				t.Error(err)
			}
			_, err = x.Fetch(t.Context(), req)
			wantDelivery(t, "a fetch after the connection", err, limpet.CodeDisconnected, limpet.DeliveryNone)
			got <- outcome{}
		}()
		p.expect(frameCall, 3)
		p.write(appendFrame(nil, frameResult, 0, 3, appendResult(nil, limpet.Encoded("x"), []descriptor{{0, false, 1}})))
		p.write(appendFrame(nil, frameData, flagEnd, 3, []byte("x")))
		<-got
		<-got
		s.Close()
		empty(t, &s.duplex)
	})
}

// TestBadCapabilities plays peers that use capabilities against the protocol.
func TestBadCapabilities(t *testing.T) {
	call := func(n uint64, c *Call) []byte { return appendFrame(nil, frameCall, flagEnd, n, appendCall(nil, c)) }
	of := func(k Kind, id, parent uint64) *Call {
		c := &Call{Kind: k, Ext: &Ext{capability: id, parent: parent}}
		if k == KindTargetFetch {
			c.Method, c.URL = "GET", "http://x/"
		}
		return c
	}
	with := func(d ...descriptor) *Call { return &Call{Method: "m", Ext: &Ext{caps: d}} }
	pipelinable := &Call{Method: "m", Ext: &Ext{Pipelinable: true}}
	many := []byte(nil)
	for i := range uint64(maxCalls + 1) {
		many = append(many, call(1+2*i, pipelinable)...)
	}
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"a call of nothing given":    {call(1, of(KindTarget, 5, 0)), "capability 5, which was never given"},
		"a stream never given":       {call(1, of(KindStream, 5, 0)), "never given"},
		"a fetch of nothing given":   {call(1, of(KindTargetFetch, 5, 0)), "never given"},
		"its own never given":        {call(1, with(descriptor{0, true, 5})), "never given"},
		"one given twice":            {append(call(1, with(descriptor{0, false, 5})), call(3, with(descriptor{0, false, 5}))...), "given twice"},
		"one given twice at once":    {call(1, with(descriptor{0, false, 5}, descriptor{0, false, 5})), "given twice"},
		"a release of nothing":       {appendFrame(nil, frameRelease, 0, 0, []byte{5}), "never given"},
		"a malformed release":        {appendFrame(nil, frameRelease, 0, 0, []byte{0x80}), "malformed"},
		"a release for a call":       {appendFrame(nil, frameRelease, 0, 1, []byte{5}), "names call 1"},
		"a result of a later call":   {call(1, of(KindTarget, 0, 3)), "was not made before"},
		"a result of itself":         {call(1, of(KindTarget, 0, 1)), "was not made before"},
		"a result of ours":           {call(5, of(KindTarget, 0, 2)), "was not made before"},
		"forgetting nothing":         {appendFrame(nil, frameForget, 0, 9, nil), "never made"},
		"forgetting with words":      {append(call(1, pipelinable), appendFrame(nil, frameForget, 0, 1, []byte("x"))...), "FORGET of 1 bytes"},
		"forgetting ours":            {appendFrame(nil, frameForget, 0, 2, nil), "call 2"},
		"a promise too many":         {many, "more than"},
		"ten thousand and one, kept": {bytes.Join([][]byte{appendBlock(nil, frameCall, flagEnd, 1, appendCall(nil, with(lots(1, 6000)...))), appendBlock(nil, frameCall, flagEnd, 3, appendCall(nil, with(lots(6001, 6000)...)))}, nil), "more than 10000"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := serve(t, parcels(func(ctx context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
					<-ctx.Done()
					args.Release()
					return limpet.Parcel{}, ctx.Err()
				}), sim.Clock{})
				p := newDialerScript(t, w)
				go func() { _, _ = io.Copy(io.Discard, p.conn) }()
				_, _ = p.conn.Write(c.b) // the server may hang up in the middle
				time.Sleep(time.Second)
				_ = p.conn.Close()
				synctest.Wait() // for the log
				w.close(t)
				if !strings.Contains(w.log.String(), "protocol error") || !strings.Contains(w.log.String(), c.want) {
					t.Errorf("the log is %q, want %q", w.log, c.want)
				}
				if w.server.caps.used != 0 {
					t.Errorf("%d are still counted", w.server.caps.used)
				}
			})
		})
	}
}

// lots is n descriptors from an id on.
func lots(id uint64, n int) (all []descriptor) {
	for i := range uint64(n) {
		all = append(all, descriptor{0, false, id + i})
	}
	return all
}

// TestReleasedByPeer uses what was released: an error, not the end of the
// connection, since the two may cross.
func TestReleasedByPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, parcels(func(_ context.Context, _ *Call, args limpet.Parcel) (limpet.Parcel, error) {
			args.Release()
			return limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{echoThing().handle()}}, nil
		}), sim.Clock{})
		p := newDialerScript(t, w)
		p.write(appendFrame(nil, frameCall, flagEnd, 1, appendCall(nil, method("m"))))
		if h, err := readResult(p.expect(frameResult, 1).payload); err != nil || len(h.caps) != 1 || h.caps[0] != (descriptor{0, false, 1}) {
			t.Fatalf("%v, %v", h, err)
		}
		p.expect(frameData, 1)
		p.write(appendFrame(nil, frameRelease, 0, 0, []byte{1, 1}))
		for i, k := range []Kind{KindTarget, KindStream, KindTargetFetch} {
			c := &Call{Kind: k, Ext: &Ext{capability: 1}}
			if k == KindTargetFetch {
				c.Method, c.URL = "GET", "http://x/"
			}
			n := uint64(3 + 2*i)
			p.write(appendFrame(nil, frameCall, flagEnd, n, appendCall(nil, c)))
			e, err := readFailure(p.expect(frameFailure, n).payload)
			if err != nil {
				t.Fatal(err)
			}
			wantDelivery(t, fmt.Sprint("kind ", k), e, limpet.CodeDisposed, limpet.DeliveryNone)
		}
		// Coming home after its release: a handle of no use.
		p.write(appendFrame(nil, frameCall, flagEnd, 9, appendCall(nil, &Call{Method: "m", Ext: &Ext{caps: []descriptor{{0, true, 1}}}})))
		p.expect(frameResult, 9)
		_ = p.conn.Close()
		w.close(t)
	})
}
