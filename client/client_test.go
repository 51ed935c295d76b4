package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// elsewhere is a connection to another machine, as its address says.
type elsewhere struct {
	net.Conn
	wrote bool
}

func (c *elsewhere) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7070}
}

func (c *elsewhere) Write(p []byte) (int, error) {
	c.wrote = true
	return len(p), nil
}

func TestDialRefuses(t *testing.T) {
	conn := &elsewhere{}
	conn.Conn, _ = net.Pipe()
	network := client.Network(func(context.Context, string) (net.Conn, error) { return conn, nil })
	for name, c := range map[string]struct {
		addrs []string
		opts  []client.Option
		code  limpet.Code
		want  string
	}{
		"no address":      {nil, nil, limpet.CodeInvalidArgument, "no address"},
		"nil option":      {[]string{"x:1"}, []client.Option{nil}, limpet.CodeInvalidArgument, "option 0 is nil"},
		"no such file":    {[]string{"x:1"}, []client.Option{client.TLSFiles("a", "b", "c")}, limpet.CodeInvalidArgument, "load certificate a"},
		"no port":         {[]string{"localhost:7070", "localhost"}, nil, limpet.CodeInvalidArgument, `address "localhost" is not host:port`},
		"a URL":           {[]string{"http://localhost:7070"}, nil, limpet.CodeInvalidArgument, `"http://localhost:7070" is not host:port`},
		"port 0":          {[]string{"localhost:0"}, nil, limpet.CodeInvalidArgument, "must be a number from 1 to 65535"},
		"another machine": {[]string{"x:1"}, []client.Option{network}, limpet.CodeDisconnected, "not on this machine"},
	} {
		cl, err := client.Dial(t.Context(), c.addrs, c.opts...)
		if err == nil {
			t.Errorf("%s: connected", name)
			_ = cl.Close()
			continue
		}
		if !errors.Is(err, c.code) || limpet.DeliveryOf(err) != limpet.DeliveryNone || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (%v, %v), want %v and %q", name, err, limpet.CodeOf(err), limpet.DeliveryOf(err), c.code, c.want)
		}
	}
	if conn.wrote {
		t.Error("something was said in plaintext to another machine")
	}
}

// TestSilentAddress has a first address where nobody answers: the next one is
// tried soon.
func TestSilentAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		begun := time.Now()
		_, err := client.Dial(t.Context(), []string{"silent:1", "off:1"}, client.Plaintext(), client.Network(func(ctx context.Context, addr string) (net.Conn, error) {
			asked = append(asked, addr)
			if addr == "off:1" {
				return nil, errors.New("connection refused")
			}
			a, b := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, b) }() // ends with the connection
			return a, nil
		}))
		if took := time.Since(begun); took != 3*time.Second || strings.Join(asked, " ") != "silent:1 off:1" {
			t.Errorf("asked %v within %v", asked, took)
		}
		if err == nil || !strings.Contains(err.Error(), "silent:1") || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("Dial says %v", err)
		}
		// Dial gives up when its context does.
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		time.AfterFunc(time.Second, func() { cancel(why) })
		_, err = client.Dial(ctx, []string{"silent:1"}, client.Plaintext(), client.Network(func(context.Context, string) (net.Conn, error) {
			a, b := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, b) }() // as above
			return a, nil
		}))
		if !errors.Is(err, why) || limpet.DeliveryOf(err) != limpet.DeliveryNone {
			t.Errorf("Dial says %v", err)
		}
	})
}
