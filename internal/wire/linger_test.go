package wire

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// TestDrainDeliversLongAnswers has a caller that still sends windows for an
// answer when the server has written the last of it: TCP must not drop the rest.
func TestDrainDeliversLongAnswers(t *testing.T) {
	started, open := make(chan struct{}), make(chan struct{})
	c := &callee{call: func(context.Context, *Call, limpet.Encoded) (limpet.Encoded, error) {
		close(started)
		<-open
		return make(limpet.Encoded, 4<<20), nil
	}}
	srv, err := NewServer(ServerConfig{Callee: c, Clock: sim.Clock{}, Hello: NewHello([16]byte{1}, [16]byte{2}, [16]byte{3}, "server")})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	d := &Dialer{Clock: sim.Clock{}, Hello: NewHello([16]byte{}, [16]byte{}, [16]byte{}, "dialer"), Net: func(_ context.Context, addr string) (net.Conn, error) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
		}
		return slowConn{conn}, err
	}}
	s, err := d.Dial(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	done := make(chan error, 1)
	go func() {
		_, err := plainCall(t.Context(), &s.duplex, method("m"), limpet.Encoded{1})
		done <- err
	}()
	<-started
	srv.Drain()
	close(open)
	if err := <-done; err != nil {
		t.Errorf("the answer of a call that was taken before the drain: %v", err)
	}
	if err := srv.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := <-served; !errors.Is(err, ErrServerClosed) {
		t.Errorf("Serve returned %v", err)
	}
}

// slowConn is read slowly.
type slowConn struct{ net.Conn }

func (c slowConn) Read(p []byte) (int, error) {
	time.Sleep(time.Millisecond)
	return c.Conn.Read(p[:min(len(p), 32<<10)])
}

// TestDrainOnSlowLink has a link that takes longer for the last answer than any
// last word may: the drain's own context bounds it, nothing else.
func TestDrainOnSlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &callee{call: func(context.Context, *Call, limpet.Encoded) (limpet.Encoded, error) {
			return make(limpet.Encoded, 2<<20), nil
		}}
		w := serve(t, c, sim.Clock{})
		w.dialer.Net = func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := w.pipes.dial(ctx, addr)
			return &tricklingConn{conn}, err
		}
		s := w.session(t)
		begun := time.Now()
		done := startCall(t.Context(), s, method("m"), nil)
		time.Sleep(time.Second)
		w.server.Drain()
		if err := w.server.Flushed(t.Context()); err != nil {
			t.Error(err)
		}
		if got := <-done; len(got.v) != 2<<20 || got.err != nil {
			t.Errorf("%d bytes, %v", len(got.v), got.err)
		}
		if took := time.Since(begun); took < 3*finishTimeout {
			t.Errorf("the link took only %v: proved nothing", took)
		}
		s.Close()
		w.close(t)
	})
}

// TestDrainGivesUp has a peer that takes nothing: the drain's context ends it.
func TestDrainGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &callee{call: echo}
		w := serve(t, c, sim.Clock{})
		p := newDialerScript(t, w)
		p.write(appendFrame(nil, frameCall, flagEnd, 1, appendCall(nil, method("m"))))
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		time.AfterFunc(5*time.Second, func() { cancel(why) })
		begun := time.Now()
		w.server.Drain()
		if err := w.server.Flushed(ctx); !errors.Is(err, why) || time.Since(begun) != 5*time.Second {
			t.Errorf("Flushed returns %v after %v", err, time.Since(begun))
		}
		if err := w.server.Close(ctx); !errors.Is(err, why) {
			t.Errorf("Close returns %v", err)
		}
		if err := <-w.served; !errors.Is(err, ErrServerClosed) {
			t.Errorf("Serve returned %v", err)
		}
		_ = p.conn.Close()
	})
}

// tricklingConn reads some KiB and then waits.
type tricklingConn struct{ net.Conn }

func (c tricklingConn) Read(p []byte) (int, error) {
	time.Sleep(100 * time.Millisecond)
	return c.Conn.Read(p[:min(len(p), 16<<10)])
}
