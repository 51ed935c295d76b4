package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// callee is a Callee made of functions.
type callee struct {
	call  func(ctx context.Context, c *Call, args limpet.Encoded) (limpet.Encoded, error)
	fetch func(ctx context.Context, c *Call, req *http.Request) (*http.Response, error)
	tell  func(query string, age time.Duration) (*limpet.CallOutcome, error)
	// parcel comes before call, if it is there.
	parcel func(ctx context.Context, c *Call, args limpet.Parcel) (limpet.Parcel, error)
	child  func(ctx context.Context, result limpet.Parcel, c limpet.TargetCall) (limpet.Parcel, error)
	mu     sync.Mutex
	acks   []limpet.Identity
}

func (c *callee) Outcome(_ context.Context, h *Call, age time.Duration) (*limpet.CallOutcome, error) {
	return c.tell(h.Method, age)
}

func (c *callee) Call(ctx context.Context, h *Call, args limpet.Parcel) (limpet.Parcel, error) {
	if c.parcel != nil {
		return c.parcel(ctx, h, args)
	}
	args.Release()
	b, err := c.call(ctx, h, args.Bytes)
	return limpet.Parcel{Bytes: b}, err
}

func (c *callee) Child(ctx context.Context, result limpet.Parcel, t limpet.TargetCall) (limpet.Parcel, error) {
	return c.child(ctx, result, t)
}

// plainCall makes a call without capabilities.
func plainCall(ctx context.Context, d *duplex, c *Call, args limpet.Encoded) (limpet.Encoded, error) {
	p, err := d.out.call(ctx, c, limpet.Parcel{Bytes: args})
	return p.Bytes, err
}

func (c *callee) Fetch(ctx context.Context, h *Call, req *http.Request) (*http.Response, error) {
	return c.fetch(ctx, h, req)
}

func (c *callee) Describe(context.Context, string) (BindingInfo, error) {
	return BindingInfo{"Thing", limpet.DefaultRetryPolicy()}, nil
}

func (c *callee) Acknowledge(_ [32]byte, id limpet.Identity) {
	c.mu.Lock()
	c.acks = append(c.acks, id)
	c.mu.Unlock()
}

// pipes is a listener of connections in memory.
type pipes struct {
	ch   chan net.Conn
	once sync.Once
	done chan struct{}
}

func newPipes() *pipes { return &pipes{ch: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.ch:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.done) }); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial(context.Context, string) (net.Conn, error) {
	a, b := net.Pipe()
	p.ch <- b
	return a, nil
}

type world struct {
	server *Server
	pipes  *pipes
	dialer *Dialer
	log    *bytes.Buffer // read it after close
	served chan error
}

func serve(t *testing.T, c *callee, clock limpet.Clock) *world {
	t.Helper()
	w := &world{pipes: newPipes(), log: &bytes.Buffer{}, served: make(chan error, 1)}
	var err error
	w.server, err = NewServer(ServerConfig{
		Callee: c, Clock: clock, Hello: NewHello([16]byte{1}, [16]byte{2}, [16]byte{3}, "server"), Plaintext: true,
		Logger: slog.New(slog.NewTextHandler(w.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { w.served <- w.server.Serve(w.pipes) }()
	w.dialer = &Dialer{Clock: sim.Clock{}, Hello: NewHello([16]byte{}, [16]byte{}, [16]byte{}, "dialer"), Plaintext: true, Net: w.pipes.dial}
	return w
}

func (w *world) session(t *testing.T) *Session {
	t.Helper()
	s, err := w.dialer.Dial(t.Context(), "pipe")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *world) close(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("at once"))
	_ = w.server.Close(ctx) // it says what was cut off
	if err := <-w.served; !errors.Is(err, ErrServerClosed) {
		t.Errorf("Serve returned %v", err)
	}
}

// nothingHeld checks that everything that was counted was given back.
func (w *world) nothingHeld(t *testing.T) {
	t.Helper()
	s := w.server.shares
	if c, r, l, q := s.calls.inUse(), s.results.inUse(), s.lent.inUse(), s.queue.Load(); c != 0 || r != 0 || l != 0 || q != 0 {
		t.Errorf("calls still hold %d bytes, results %d, windows %d, queues %d", c, r, l, q)
	}
}

func echo(_ context.Context, _ *Call, args limpet.Encoded) (limpet.Encoded, error) { return args, nil }

func method(name string) *Call { return &Call{Binding: "B", Method: name, Attempt: 1} }

func identity(n byte) limpet.Identity {
	return limpet.Identity{Nonce: [16]byte{n}, CreatedMS: int64(n)}
}

// script is the acceptor's side of a connection played by a test.
type script struct {
	t    *testing.T
	conn net.Conn
	fr   *frameReader
}

func newScript(t *testing.T) (*Session, *script) {
	t.Helper()
	a, b := net.Pipe()
	p := &script{t: t, conn: b, fr: newFrameReader(b)}
	greeted := make(chan struct{})
	go func() {
		defer close(greeted)
		if _, err := peerHello(p.fr); err != nil {
			t.Error(err)
		}
		p.write(appendHello(nil, NewHello([16]byte{}, [16]byte{8}, [16]byte{9}, "script")))
	}()
	s, err := NewSession(t.Context(), a, NewHello([16]byte{}, [16]byte{}, [16]byte{}, "x"), sim.Clock{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-greeted
	if s.Peer().Process() != (Boot{History: [16]byte{8}, Boot: [16]byte{9}}) {
		t.Errorf("the peer is %+v", s.Peer())
	}
	return s, p
}

func (p *script) write(b []byte) {
	if _, err := p.conn.Write(b); err != nil {
		p.t.Error(err)
	}
}

// expect reads the next frame, passing over pings.
func (p *script) expect(typ frameType, call uint64) frame {
	p.t.Helper()
	for {
		f, err := p.fr.next()
		if err != nil {
			p.t.Fatal(err)
		}
		if f.typ == framePing {
			continue
		}
		if f.typ != typ || f.call != call {
			p.t.Fatalf("%v of call %d, want %v of call %d", f.typ, f.call, typ, call)
		}
		return f
	}
}

type outcome struct {
	v   limpet.Encoded
	err error
}

func startCall(ctx context.Context, s *Session, c *Call, args limpet.Encoded) chan outcome {
	done := make(chan outcome, 1)
	go func() {
		v, err := plainCall(ctx, &s.duplex, c, args)
		done <- outcome{v, err}
	}()
	return done
}

func wantDelivery(t *testing.T, what string, err error, code limpet.Code, d limpet.Delivery) {
	t.Helper()
	if limpet.CodeOf(err) != code || limpet.DeliveryOf(err) != d {
		t.Errorf("%s: %v, %v (%v), want %v, %v", what, limpet.CodeOf(err), limpet.DeliveryOf(err), err, code, d)
	}
}

// TestDeliveryByWrite cuts a connection whose writer is in the middle of Write.
func TestDeliveryByWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		handed := startCall(t.Context(), s, method("a"), nil)
		synctest.Wait() // the writer is in Write, which nobody reads
		queued := startCall(t.Context(), s, method("b"), nil)
		ctx, cancel := context.WithCancel(t.Context())
		gone := startCall(ctx, s, method("c"), nil)
		synctest.Wait()
		cancel()
		// SPEC C41: a call whose frames were not handed to Write never left.
		wantDelivery(t, "a queued call that is canceled", (<-gone).err, limpet.CodeCanceled, limpet.DeliveryNone)
		_ = p.conn.Close()
		// SPEC C21: whatever Write returned, it may have arrived.
		wantDelivery(t, "the call in Write", (<-handed).err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		// SPEC C20: the one behind it has not.
		wantDelivery(t, "the queued call", (<-queued).err, limpet.CodeDisconnected, limpet.DeliveryNone)
		_, err := plainCall(t.Context(), &s.duplex, method("d"), nil)
		wantDelivery(t, "a call of an ended session", err, limpet.CodeDisconnected, limpet.DeliveryNone)
		s.Close()
	})
}

// TestCanceledInQueue checks that a call canceled in the queue is never written.
func TestCanceledInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		a := startCall(t.Context(), s, method("a"), nil)
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		b := startCall(ctx, s, method("b"), limpet.Encoded("args"))
		synctest.Wait()
		cancel()
		<-b
		c := startCall(t.Context(), s, method("c"), nil)
		synctest.Wait()
		p.expect(frameCall, 1)
		p.expect(frameCall, 5) // not 3
		p.write(appendFrame(nil, frameResult, flagEnd, 5, appendResult(nil, nil, nil)))
		if r := <-c; r.err != nil || r.v != nil {
			t.Errorf("call c gives %v, %v", r.v, r.err)
		}
		p.write(appendFrame(nil, frameResult, 0, 1, appendResult(nil, limpet.Encoded("ok"), nil)))
		p.write(appendFrame(nil, frameData, flagEnd, 1, []byte("ok")))
		if r := <-a; r.err != nil || string(r.v) != "ok" {
			t.Errorf("call a gives %q, %v", r.v, r.err)
		}
		s.Close()
		_ = p.conn.Close()
	})
}

func TestGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		a, b, c := startCall(t.Context(), s, method("a"), nil), (chan outcome)(nil), (chan outcome)(nil)
		p.expect(frameCall, 1)
		b = startCall(t.Context(), s, method("b"), nil)
		p.expect(frameCall, 3)
		c = startCall(t.Context(), s, method("c"), nil)
		p.expect(frameCall, 5)
		p.write(appendGoAway(nil, 3, "going"))
		// SPEC C24: above the last call taken, certainly not delivered.
		wantDelivery(t, "the call above", (<-c).err, limpet.CodeDraining, limpet.DeliveryNone)
		if s.Usable() {
			t.Error("the session takes calls")
		}
		_, err := plainCall(t.Context(), &s.duplex, method("d"), nil)
		wantDelivery(t, "a new call", err, limpet.CodeDraining, limpet.DeliveryNone)
		p.write(appendFrame(nil, frameResult, flagEnd, 1, appendResult(nil, nil, nil)))
		if r := <-a; r.err != nil {
			t.Errorf("a call below gives %v", r.err)
		}
		_ = p.conn.Close()
		wantDelivery(t, "one without outcome", (<-b).err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		s.Close()
	})
}

// TestBadAcceptor plays acceptors that break the protocol: the session ends, its
// calls fail, nothing panics.
func TestBadAcceptor(t *testing.T) {
	for name, b := range map[string][]byte{
		"data before the outcome": appendFrame(nil, frameData, 0, 1, []byte("x")),
		"a response to a method":  appendFrame(nil, frameResponse, 0, 1, appendResponse(nil, &responseHead{status: 200})),
		"a call never made":       appendFrame(nil, frameResult, 0, 9, appendResult(nil, nil, nil)),
		"a call by the acceptor":  appendFrame(nil, frameCall, 0, 2, nil),
		"an acknowledgement":      appendAcks(nil, nil),
		"malformed failure":       appendFrame(nil, frameFailure, 0, 1, []byte{0xff}),
		"a result too long":       append(appendFrame(nil, frameResult, 0, 1, []byte{1, 1}), appendFrame(nil, frameData, flagEnd, 1, []byte("xx"))...),
		"a result too short":      append(appendFrame(nil, frameResult, 0, 1, []byte{1, 3}), appendFrame(nil, frameData, flagEnd, 1, []byte("xx"))...),
		"beyond the window":       append(appendFrame(nil, frameResult, 0, 1, binary.AppendUvarint([]byte{1}, 32<<20)), bytes.Repeat(appendFrame(nil, frameData, 0, 1, make([]byte, 60000)), 300)...),
		"a huge result":           appendFrame(nil, frameResult, 0, 1, binary.AppendUvarint([]byte{1}, 1<<40)),
		"two outcomes":            bytes.Repeat(appendFrame(nil, frameResult, 0, 1, []byte{1, 1}), 2),
		"half a frame":            appendFrame(nil, frameResult, 0, 1, []byte{1, 1})[:13],
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newScript(t)
				done := startCall(t.Context(), s, method("a"), nil)
				p.expect(frameCall, 1)
				go func() { _, _ = io.Copy(io.Discard, p.conn) }()
				go func() {
					_, _ = p.conn.Write(b) // the session may hang up in the middle
					if name == "half a frame" || name == "a result too short" {
						_ = p.conn.Close()
					}
				}()
				err := (<-done).err
				if err == nil || limpet.CodeOf(err) != limpet.CodeDisconnected || limpet.DeliveryOf(err) == limpet.DeliveryNone {
					t.Errorf("the call gives %v, %v", err, limpet.DeliveryOf(err))
				}
				s.Close()
				_ = p.conn.Close()
			})
		})
	}
}

func TestSilentPeerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		go func() { _, _ = io.Copy(io.Discard, p.conn) }() // it reads and says nothing
		begun := time.Now()
		_, err := plainCall(t.Context(), &s.duplex, method("a"), nil)
		wantDelivery(t, "a call of a frozen peer", err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		if took := time.Since(begun); took <= lostAfter || took > lostAfter+pingEvery {
			t.Errorf("it was lost after %v", took)
		}
		s.Close()
		_ = p.conn.Close()
	})
}

func TestIdleStaysConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, &callee{call: echo}, sim.Clock{})
		s := w.session(t)
		time.Sleep(24 * time.Hour)
		if v, err := plainCall(t.Context(), &s.duplex, method("a"), limpet.Encoded("x")); string(v) != "x" || err != nil {
			t.Errorf("after a day: %q, %v", v, err)
		}
		s.Close()
		w.close(t)
	})
}

func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, &callee{call: echo}, sim.Clock{})
		conn, err := w.pipes.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if _, err := conn.Read(make([]byte, 1)); err == nil || time.Since(begun) != handshakeTimeout {
			t.Errorf("a connection that says nothing ends after %v, %v", time.Since(begun), err)
		}
		synctest.Wait() // for the log
		w.close(t)
		if !strings.Contains(w.log.String(), "not over within 10s") {
			t.Errorf("the log is %q", w.log)
		}
		// The other way round.
		d := *w.dialer
		d.Net = func(context.Context, string) (net.Conn, error) {
			a, b := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, b) }()
			return a, nil
		}
		begun = time.Now()
		_, err = d.Dial(t.Context(), "x")
		wantDelivery(t, "Dial", err, limpet.CodeDisconnected, limpet.DeliveryNone)
		if time.Since(begun) != handshakeTimeout {
			t.Errorf("Dial took %v", time.Since(begun))
		}
	})
}

// TestNeverReads has a peer that goes on sending and never reads.
func TestNeverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, &callee{call: echo}, sim.Clock{})
		conn, err := w.pipes.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = conn.Write(appendHello(nil, w.dialer.Hello)) }()
		fr := newFrameReader(conn)
		if _, err := peerHello(fr); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for i := uint64(1); ; i++ {
			if _, err := conn.Write(appendPing(nil, framePing, i)); err != nil {
				break
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(begun); took < stallAfter || took > stallAfter+2*pingEvery+time.Second {
			t.Errorf("it was given up after %v", took)
		}
		synctest.Wait() // for the log
		w.close(t)
		if !strings.Contains(w.log.String(), errStalled.Error()) {
			t.Errorf("the log is %q", w.log)
		}
	})
}

// jumpy is a clock that a test can set forward, as a frozen process sees it.
type jumpy struct {
	sim.Clock
	ahead atomic.Int64
}

func (j *jumpy) Now() time.Time { return j.Clock.Now().Add(time.Duration(j.ahead.Load())) }

// TestFrozenReceiver thaws a server: what waited for it is stale and must not be
// acted on.
func TestFrozenReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ran atomic.Int64
		clock := &jumpy{}
		w := serve(t, &callee{call: func(context.Context, *Call, limpet.Encoded) (limpet.Encoded, error) {
			ran.Add(1)
			return nil, nil
		}}, clock)
		s := w.session(t)
		if _, err := plainCall(t.Context(), &s.duplex, method("a"), nil); err != nil {
			t.Fatal(err)
		}
		clock.ahead.Add(int64(lostAfter + time.Second))
		_, err := plainCall(t.Context(), &s.duplex, method("a"), nil)
		wantDelivery(t, "a call to a frozen process", err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		if ran.Load() != 1 {
			t.Errorf("the stale call ran")
		}
		s.Close()
		w.close(t)
	})
}

func TestArgumentsThatStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := serve(t, &callee{call: echo}, sim.Clock{})
		conn, err := w.pipes.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			c := method("a")
			c.Length = 100
			_, _ = conn.Write(appendHello(nil, w.dialer.Hello))
			_, _ = conn.Write(appendFrame(nil, frameCall, 0, 1, appendCall(nil, c)))
			_, _ = conn.Write(appendFrame(nil, frameData, 0, 1, []byte("half")))
			for i := uint64(1); ; i++ {
				if _, err := conn.Write(appendPing(nil, framePing, i)); err != nil {
					return
				}
				time.Sleep(pingEvery)
			}
		}()
		fr := newFrameReader(conn)
		if _, err := peerHello(fr); err != nil {
			t.Fatal(err)
		}
		for {
			f, err := fr.next()
			if err != nil {
				t.Fatal(err)
			}
			if f.typ != frameFailure {
				continue
			}
			e, err := readFailure(f.payload)
			if err != nil {
				t.Fatal(err)
			}
			wantDelivery(t, "the call", e, limpet.CodeInvalidArgument, limpet.DeliveryNone)
			if !strings.Contains(e.Error(), "4 of 100 bytes") {
				t.Errorf("the error is %v", e)
			}
			break
		}
		w.nothingHeld(t)
		_ = conn.Close()
		<-wrote
		w.close(t)
	})
}

// TestTooManyArguments fills the node's budget for arguments.
func TestTooManyArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := serve(t, &callee{call: func(context.Context, *Call, limpet.Encoded) (limpet.Encoded, error) {
			<-release
			return nil, nil
		}}, sim.Clock{})
		a, b := w.session(t), w.session(t)
		big := make(limpet.Encoded, 30<<20)
		first := []chan outcome{startCall(t.Context(), a, method("x"), big)}
		synctest.Wait()
		_, err := plainCall(t.Context(), &a.duplex, method("x"), big)
		wantDelivery(t, "one more on this connection", err, limpet.CodeOverloaded, limpet.DeliveryNone)
		_, err = plainCall(t.Context(), &b.duplex, method("x"), big)
		wantDelivery(t, "one more on this node", err, limpet.CodeOverloaded, limpet.DeliveryNone)
		if e, ok := errors.AsType[*limpet.Error](err); !ok || !e.Overloaded || !strings.Contains(err.Error(), "Config.Wire.MaxMemory") {
			t.Errorf("the refusal does not say what to do: %v", err)
		}
		// Those who take all there is of the common part leave the others theirs.
		for full := false; !full; {
			done := startCall(t.Context(), b, method("x"), big[:3<<20])
			synctest.Wait()
			select {
			case r := <-done:
				wantDelivery(t, "beyond the common part", r.err, limpet.CodeOverloaded, limpet.DeliveryNone)
				full = true
			default:
				first = append(first, done)
			}
		}
		c := w.session(t)
		small := startCall(t.Context(), c, method("x"), big[:20_000])
		synctest.Wait()
		close(release)
		for _, done := range append(first, small) {
			if r := <-done; r.err != nil {
				t.Errorf("a call within the limits: %v", r.err)
			}
		}
		if _, err := plainCall(t.Context(), &c.duplex, method("x"), big); err != nil {
			t.Errorf("after them: %v", err)
		}
		for _, s := range []*Session{a, b, c} {
			s.Close()
		}
		w.close(t)
	})
}

func TestAcknowledgements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &callee{call: func(_ context.Context, c *Call, _ limpet.Encoded) (limpet.Encoded, error) {
			switch c.Method {
			case "fail":
				return nil, &limpet.Error{Code: "X", Delivery: limpet.DeliveryReceived, Remote: true}
			case "drain":
				return nil, &limpet.Error{Code: limpet.CodeDraining, Delivery: limpet.DeliveryNone}
			}
			return nil, nil
		}}
		w := serve(t, k, sim.Clock{})
		s := w.session(t)
		for i, c := range []*Call{method("ok"), method("fail"), method("drain"), method("ok"), method("ok")} {
			c.Identity = identity(byte(i + 1))
			c.Retry = i == 3
			if i == 4 {
				c.Identity = limpet.Identity{}
			}
			_, _ = plainCall(t.Context(), &s.duplex, c, nil) // what comes of it was said above
		}
		time.Sleep(pingEvery) // they ride with the next frame
		synctest.Wait()
		k.mu.Lock()
		// Only a first attempt that was answered: a retry's twin may still be on its
		// way.
		if got, want := fmt.Sprint(k.acks), fmt.Sprint([]limpet.Identity{identity(1), identity(2)}); got != want {
			t.Errorf("acknowledged were %v, want %v", got, want)
		}
		k.mu.Unlock()
		s.Close()
		w.close(t)
	})
}

// TestServerClose waits for answers, and then does not wait any more.
func TestServerClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := serve(t, &callee{call: func(ctx context.Context, c *Call, _ limpet.Encoded) (limpet.Encoded, error) {
			if c.Method == "forever" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			<-release
			return limpet.Encoded("answer"), nil
		}}, sim.Clock{})
		s := w.session(t)
		answered, cut := startCall(t.Context(), s, method("a"), nil), startCall(t.Context(), s, method("forever"), nil)
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		closed := make(chan error, 1)
		go func() { closed <- w.server.Close(ctx) }()
		synctest.Wait()
		close(release)
		if r := <-answered; string(r.v) != "answer" || r.err != nil {
			t.Errorf("the call that ended gives %q, %v", r.v, r.err)
		}
		enough := errors.New("enough")
		cancel(enough)
		if err := <-closed; !errors.Is(err, enough) {
			t.Errorf("Close says %v", err)
		}
		wantDelivery(t, "the call that did not", (<-cut).err, limpet.CodeDisconnected, limpet.DeliveryUncertain)
		s.Close()
		if err := w.server.Close(t.Context()); err != nil {
			t.Errorf("Close again says %v", err)
		}
		if err := <-w.served; !errors.Is(err, ErrServerClosed) {
			t.Errorf("Serve returned %v", err)
		}
	})
}

// TestManyCalls has more callers than a connection takes calls.
func TestManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		w := serve(t, &callee{call: func(context.Context, *Call, limpet.Encoded) (limpet.Encoded, error) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Second)
			now.Add(-1)
			return nil, nil
		}}, sim.Clock{})
		s := w.session(t)
		var all sync.WaitGroup
		for range 3 * maxCalls {
			all.Go(func() {
				if _, err := plainCall(t.Context(), &s.duplex, method("a"), nil); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if most.Load() != maxCalls {
			t.Errorf("%d calls ran at one time, want %d", most.Load(), maxCalls)
		}
		s.Close()
		w.close(t)
	})
}

// TestRapidCancel cancels calls as fast as it makes them, whose handlers do not
// look at their contexts.
func TestRapidCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var now, most atomic.Int64
		w := serve(t, &callee{call: func(context.Context, *Call, limpet.Encoded) (limpet.Encoded, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-release
			return nil, nil
		}}, sim.Clock{})
		s := w.session(t)
		for range 2 * maxCalls {
			ctx, cancel := context.WithCancel(t.Context())
			done := startCall(ctx, s, method("a"), nil)
			synctest.Wait()
			cancel()
			<-done
		}
		_, err := plainCall(t.Context(), &s.duplex, method("a"), nil)
		wantDelivery(t, "one more", err, limpet.CodeOverloaded, limpet.DeliveryNone)
		if most.Load() > maxCalls {
			t.Errorf("%d handlers ran at one time, the limit is %d", most.Load(), maxCalls)
		}
		close(release)
		synctest.Wait()
		if _, err := plainCall(t.Context(), &s.duplex, method("a"), nil); err != nil {
			t.Errorf("after them: %v", err)
		}
		s.Close()
		w.close(t)
	})
}

// TestLongHeads sends more names and headers than a connection may hold.
func TestLongHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := serve(t, &callee{fetch: func(context.Context, *Call, *http.Request) (*http.Response, error) {
			<-release
			return &http.Response{StatusCode: 204, Body: http.NoBody}, nil
		}}, sim.Clock{})
		s := w.session(t)
		var all sync.WaitGroup
		var refused, done atomic.Int64
		for range 60 {
			all.Go(func() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("X", strings.Repeat("x", 900<<10))
				resp, err := s.Fetch(t.Context(), &Call{Kind: KindFetch, Binding: "B"}, req)
				if err != nil {
					wantDelivery(t, "a fetch too many", err, limpet.CodeOverloaded, limpet.DeliveryNone)
					refused.Add(1)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				done.Add(1)
			})
		}
		synctest.Wait()
		close(release)
		all.Wait()
		synctest.Wait() // the server gives room back after the last byte
		if refused.Load() == 0 || done.Load() < 20 {
			t.Errorf("%d were refused and %d done", refused.Load(), done.Load())
		}
		w.nothingHeld(t)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
		for i := range maxFields + 1 {
			req.Header.Set(fmt.Sprint("X-", i), "")
		}
		_, err := s.Fetch(t.Context(), &Call{Kind: KindFetch, Binding: "B"}, req)
		wantDelivery(t, "too many fields", err, limpet.CodeTooLarge, limpet.DeliveryNone)
		s.Close()
		w.close(t)
	})
}
