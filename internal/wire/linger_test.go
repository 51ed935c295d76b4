package wire

import (
	"context"
	"errors"
	"net"
	"testing"
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
		_, err := s.Call(t.Context(), method("m"), limpet.Encoded{1})
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
