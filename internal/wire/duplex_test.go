package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// conn is the acceptor's end of the only connection.
func (w *world) conn(t *testing.T) *serverConn {
	t.Helper()
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	for c := range w.server.conns {
		return c
	}
	t.Fatal("nobody is connected")
	return nil
}

// pair is a session and the other end of it.
func (w *world) pair(t *testing.T) (*Session, *serverConn) {
	t.Helper()
	s := w.session(t)
	synctest.Wait() // the acceptor too has greeted
	return s, w.conn(t)
}

func startBack(ctx context.Context, c *serverConn, h *Call, args limpet.Encoded) chan outcome {
	done := make(chan outcome, 1)
	go func() {
		v, err := plainCall(ctx, &c.duplex, h, args)
		done <- outcome{v, err}
	}()
	return done
}

// TestCallsBothWays has the acceptor call the dialer while a call of the dialer
// runs, which is called back itself, and so on; with long arguments and results.
func TestCallsBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *world
		var s *Session
		long := limpet.Encoded(strings.Repeat("0123456789", 30<<10))
		depth := func(args limpet.Encoded) byte { return args[len(args)-1] }
		w = serve(t, &callee{call: func(ctx context.Context, c *Call, args limpet.Encoded) (limpet.Encoded, error) {
			return plainCall(ctx, &w.conn(t).duplex, method(c.Method+"s"), append(args[:len(args)-1:len(args)-1], depth(args)-1))
		}}, sim.Clock{})
		w.dialer.Callee = &callee{call: func(ctx context.Context, c *Call, args limpet.Encoded) (limpet.Encoded, error) {
			if depth(args) == 0 {
				return append(args[:len(args)-1:len(args)-1], c.Method...), nil
			}
			return plainCall(ctx, &s.duplex, method(c.Method+"d"), args)
		}}
		s = w.session(t)
		got, err := plainCall(t.Context(), &s.duplex, method("m"), append(long, 5))
		if want := append(long, "msdsdsdsds"...); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes %q, %v; want %d", len(got), got[max(0, len(got)-20):], err, len(want))
		}
		// An error comes back as one does in the other direction.
		w.dialer.Callee.(*callee).call = func(context.Context, *Call, limpet.Encoded) (limpet.Encoded, error) {
			return nil, &limpet.Error{Code: "Own", Message: "no", Remote: true, Delivery: limpet.DeliveryReceived}
		}
		_, err = plainCall(t.Context(), &s.duplex, method("m"), limpet.Encoded{5})
		wantDelivery(t, "a callback that fails", err, "Own", limpet.DeliveryReceived)
		if s.pool.free != newPool(&newShares(DefaultMaxMemory).lent).free || w.conn(t).pool.free != newPool(&newShares(DefaultMaxMemory).lent).free {
			t.Error("windows were not given back")
		}
		s.Close()
		w.close(t)
		w.nothingHeld(t)
	})
}

// TestNoObjects calls a dialer that runs none.
func TestNoObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, &callee{call: echo}, sim.Clock{})
		s, c := w.pair(t)
		_, err := plainCall(t.Context(), &c.duplex, method("m"), nil)
		wantDelivery(t, "a call", err, limpet.CodeNotSupported, limpet.DeliveryNone)
		if _, err := plainCall(t.Context(), &s.duplex, method("m"), nil); err != nil {
			t.Errorf("the connection has ended: %v", err)
		}
		s.Close()
		w.close(t)
	})
}

// TestDrainLetsCallbacksPass drains a node whose call has yet to call its caller
// back: the callback passes, and the outcome of the call too.
func TestDrainLetsCallbacksPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *world
		goOn := make(chan struct{})
		w = serve(t, &callee{call: func(ctx context.Context, _ *Call, args limpet.Encoded) (limpet.Encoded, error) {
			<-goOn
			return plainCall(ctx, &w.conn(t).duplex, method("back"), args)
		}}, sim.Clock{})
		var nested error
		var s *Session
		w.dialer.Callee = &callee{call: func(ctx context.Context, _ *Call, args limpet.Encoded) (limpet.Encoded, error) {
			_, nested = plainCall(ctx, &s.duplex, method("new"), nil)
			return args, nil
		}}
		s = w.session(t)
		outer := startCall(t.Context(), s, method("m"), limpet.Encoded("x"))
		synctest.Wait()
		w.server.Drain()
		synctest.Wait()
		if s.Usable() {
			t.Error("the session takes new calls")
		}
		close(goOn)
		if r := <-outer; string(r.v) != "x" || r.err != nil {
			t.Errorf("the call under way gives %q, %v", r.v, r.err)
		}
		// SPEC C24: a new call of an object is refused, inside the callback too.
		wantDelivery(t, "a new call in the callback", nested, limpet.CodeDraining, limpet.DeliveryNone)
		<-s.Ended() // and then nothing keeps the connection
		s.Close()
		w.close(t)
	})
}

// TestDrainWaitsForCallbacks ends the outer call before the callback: the
// connection waits for it, on both sides.
func TestDrainWaitsForCallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := serve(t, &callee{call: echo}, sim.Clock{})
		w.dialer.Callee = &callee{call: func(_ context.Context, _ *Call, args limpet.Encoded) (limpet.Encoded, error) {
			<-release
			return args, nil
		}}
		s, c := w.pair(t)
		back := startBack(t.Context(), c, method("back"), limpet.Encoded("y"))
		synctest.Wait()
		w.server.Drain()
		time.Sleep(time.Hour)
		close(release)
		if r := <-back; string(r.v) != "y" || r.err != nil {
			t.Errorf("the callback gives %q, %v", r.v, r.err)
		}
		<-s.Ended()
		s.Close()
		w.close(t)
	})
}

// TestLostCallback cuts the connection under a callback.
func TestLostCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, &callee{call: echo}, sim.Clock{})
		var cause error
		w.dialer.Callee = &callee{call: func(ctx context.Context, _ *Call, _ limpet.Encoded) (limpet.Encoded, error) {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return nil, ctx.Err()
		}}
		s, c := w.pair(t)
		back := startBack(t.Context(), c, method("back"), nil)
		synctest.Wait()
		s.Close()
		if cause == nil || !strings.Contains(cause.Error(), "connection was lost") {
			t.Errorf("the handler's context ended with %v", cause)
		}
		// SPEC C21
		wantDelivery(t, "the callback", (<-back).err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		w.close(t)
	})
}

// TestCancelCallback cancels one, and one that does not look at its context.
func TestCancelCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var now, most atomic.Int64
		w := serve(t, &callee{call: echo}, sim.Clock{})
		w.dialer.Callee = &callee{call: func(context.Context, *Call, limpet.Encoded) (limpet.Encoded, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-release
			return nil, nil
		}}
		s, c := w.pair(t)
		for range 2 * maxBackCalls {
			ctx, cancel := context.WithCancel(t.Context())
			done := startBack(ctx, c, method("a"), nil)
			synctest.Wait()
			cancel()
			if err := (<-done).err; limpet.CodeOf(err) != limpet.CodeCanceled && limpet.CodeOf(err) != limpet.CodeOverloaded {
				t.Fatal(err)
			}
		}
		if most.Load() > maxBackCalls {
			t.Errorf("%d callbacks ran at one time, the limit is %d", most.Load(), maxBackCalls)
		}
		close(release)
		synctest.Wait()
		if _, err := plainCall(t.Context(), &c.duplex, method("a"), nil); err != nil {
			t.Errorf("after them: %v", err)
		}
		s.Close()
		w.close(t)
	})
}

// TestBadCallerBehindAcceptor plays acceptors whose calls break the protocol.
func TestBadCallerBehindAcceptor(t *testing.T) {
	call := func(n uint64, length int64) []byte {
		c := method("m")
		c.Length = length
		return appendFrame(nil, frameCall, 0, n, appendCall(nil, c))
	}
	many := []byte(nil)
	for i := range uint64(maxBackCalls + 1) {
		many = append(many, call(2+2*i, 5)...)
	}
	for name, b := range map[string][]byte{
		"a number of the dialer": call(1, 0),
		"a number twice":         append(call(4, 5), call(4, 5)...),
		"a number that falls":    append(call(4, 5), call(2, 5)...),
		"too many calls":         many,
		"arguments too long":     call(2, maxBody+1),
		"more than was said":     append(call(2, 3), appendFrame(nil, frameData, 0, 2, []byte("more"))...),
		"less than was said":     append(call(2, 3), appendFrame(nil, frameData, flagEnd, 2, []byte("l"))...),
		"no arguments":           appendFrame(nil, frameCall, flagEnd, 2, call(2, 3)[headerBytes:]),
		"malformed head":         appendFrame(nil, frameCall, 0, 2, []byte{9}),
		"data never announced":   appendFrame(nil, frameData, 0, 2, []byte("x")),
		"a cancel never made":    appendFrame(nil, frameCancel, 0, 2, []byte{0}),
		"malformed cancel":       append(call(2, 3), appendFrame(nil, frameCancel, 0, 2, []byte{9})...),
		"a cancel of our call":   appendFrame(nil, frameCancel, 0, 1, []byte{0}),
		"an outcome of its own":  append(call(2, 3), appendFrame(nil, frameResult, flagEnd, 2, []byte{0, 0})...),
		"endless windows":        append(call(2, 3), bytes.Repeat(appendWindow(nil, 2, 1<<31), 2)...),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newScript(t)
				done := startCall(t.Context(), s, method("a"), nil)
				p.expect(frameCall, 1)
				var told atomic.Bool
				go func() {
					for {
						f, err := p.fr.next()
						if err != nil {
							return
						}
						told.Store(told.Load() || f.typ == frameGoAway)
					}
				}()
				go func() { _, _ = p.conn.Write(b) }() // the session may hang up in the middle
				wantDelivery(t, "the call", (<-done).err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
				synctest.Wait()
				if !told.Load() {
					t.Error("the peer was not told why")
				}
				s.Close()
				_ = p.conn.Close()
			})
		})
	}
}

// newDialerScript is the dialer's side of a connection played by a test.
func newDialerScript(t *testing.T, w *world) *script {
	t.Helper()
	conn, err := w.pipes.dial(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	p := &script{t: t, conn: conn, fr: newFrameReader(conn)}
	greeted := make(chan struct{})
	go func() {
		defer close(greeted)
		h := w.dialer.Hello
		h.MaxCalls = maxBackCalls
		p.write(appendHello(nil, h))
	}()
	if _, err := peerHello(p.fr); err != nil {
		t.Fatal(err)
	}
	<-greeted
	synctest.Wait()
	return p
}

// TestBadRunnerBehindDialer plays dialers that answer calls against the protocol.
func TestBadRunnerBehindDialer(t *testing.T) {
	for name, b := range map[string][]byte{
		"data before the outcome": appendFrame(nil, frameData, 0, 2, []byte("x")),
		"a response to a method":  appendFrame(nil, frameResponse, 0, 2, appendResponse(nil, &responseHead{status: 200})),
		"a call never made":       appendFrame(nil, frameResult, 0, 8, appendResult(nil, nil, nil)),
		"malformed failure":       appendFrame(nil, frameFailure, 0, 2, []byte{0xff}),
		"a result too long":       append(appendFrame(nil, frameResult, 0, 2, []byte{1, 1}), appendFrame(nil, frameData, flagEnd, 2, []byte("xx"))...),
		"a result too short":      append(appendFrame(nil, frameResult, 0, 2, []byte{1, 3}), appendFrame(nil, frameData, flagEnd, 2, []byte("xx"))...),
		"beyond the window":       append(appendFrame(nil, frameResult, 0, 2, binary.AppendUvarint([]byte{1}, 32<<20)), bytes.Repeat(appendFrame(nil, frameData, 0, 2, make([]byte, 60000)), 300)...),
		"a huge result":           appendFrame(nil, frameResult, 0, 2, binary.AppendUvarint([]byte{1}, 1<<40)),
		"two outcomes":            bytes.Repeat(appendFrame(nil, frameResult, 0, 2, []byte{1, 1}), 2),
		"a number of the server":  appendFrame(nil, frameCall, 0, 4, appendCall(nil, method("m"))),
		"a cancel":                appendFrame(nil, frameCancel, 0, 2, []byte{0}),
		"endless windows":         bytes.Repeat(appendWindow(nil, 2, 1<<31), 2),
		"half a frame":            appendFrame(nil, frameResult, 0, 2, []byte{1, 1})[:13],
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := serve(t, &callee{call: echo}, sim.Clock{})
				p := newDialerScript(t, w)
				done := startBack(t.Context(), w.conn(t), method("a"), nil)
				p.expect(frameCall, 2)
				go func() { _, _ = io.Copy(io.Discard, p.conn) }()
				go func() {
					_, _ = p.conn.Write(b) // the server may hang up in the middle
					if name == "half a frame" || name == "a result too short" {
						_ = p.conn.Close()
					}
				}()
				err := (<-done).err
				if limpet.CodeOf(err) != limpet.CodeDisconnected || limpet.DeliveryOf(err) == limpet.DeliveryNone {
					t.Errorf("the call gives %v, %v", err, limpet.DeliveryOf(err))
				}
				_ = p.conn.Close()
				w.close(t)
			})
		})
	}
}

// TestFrozenDialer never answers a callback.
func TestFrozenDialer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, &callee{call: echo}, sim.Clock{})
		p := newDialerScript(t, w)
		go func() { _, _ = io.Copy(io.Discard, p.conn) }() // it reads and says nothing
		begun := time.Now()
		_, err := plainCall(t.Context(), &w.conn(t).duplex, method("a"), nil)
		wantDelivery(t, "a callback of a frozen peer", err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		if took := time.Since(begun); took > lostAfter+pingEvery {
			t.Errorf("it was lost after %v", took)
		}
		_ = p.conn.Close()
		w.close(t)
	})
}

// TestResultsOfDialersAreBounded has dialers that announce large results: a node
// holds no more of them than of arguments.
func TestResultsOfDialersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, &callee{call: echo}, sim.Clock{})
		p := newDialerScript(t, w)
		c := w.conn(t)
		var over, waits atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		const calls = 200
		for range calls {
			done := startBack(ctx, c, method("a"), nil)
			go func() {
				err := (<-done).err
				if limpet.CodeOf(err) == limpet.CodeOverloaded && limpet.DeliveryOf(err) == limpet.DeliveryReceived {
					over.Add(1)
				} else if ctx.Err() != nil {
					waits.Add(1)
				}
				ended <- struct{}{}
			}()
		}
		go func() { _, _ = io.Copy(io.Discard, p.conn) }()
		synctest.Wait()
		for i := range uint64(calls) {
			p.write(appendFrame(nil, frameResult, 0, 2+2*i, binary.AppendUvarint([]byte{1}, 32<<20)))
			p.write(appendFrame(nil, frameData, 0, 2+2*i, make([]byte, initialWindow)))
		}
		synctest.Wait()
		if used := w.server.shares.results.inUse(); used > maxOfResults || used < 30<<20 {
			t.Errorf("%d bytes are held", used)
		}
		cancel()
		for range calls {
			<-ended
		}
		if over.Load() != calls-32 || waits.Load() != 32 {
			t.Errorf("%d were refused and %d waited", over.Load(), waits.Load())
		}
		_ = p.conn.Close()
		w.close(t)
		w.nothingHeld(t)
	})
}

// delayed is a network that takes its time, each way.
func delayed(dial func(context.Context, string) (net.Conn, error), d time.Duration) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		far, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		near, mid := net.Pipe()
		go late(mid, far, d)
		go late(far, mid, d)
		return near, nil
	}
}

// late copies bytes, each d after it came.
func late(from, to net.Conn, d time.Duration) {
	type piece struct {
		at time.Time
		b  []byte
	}
	pieces := make(chan piece, 1000)
	go func() {
		defer to.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.at))
			if _, err := to.Write(p.b); err != nil {
				_ = from.Close() // the other way ends too
			}
		}
	}()
	defer close(pieces)
	for {
		b := make([]byte, 32<<10)
		n, err := from.Read(b)
		if err != nil {
			return
		}
		pieces <- piece{time.Now().Add(d), b[:n]}
	}
}
