package wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/limpet-dev/limpet"
)

// Dialer makes Sessions. Clock and Hello must be set; it is not changed once in
// use, and then safe for concurrent use.
type Dialer struct {
	Clock limpet.Clock
	Hello Hello
	// TLS is the configuration of LoadTLS; nil means plaintext, to this machine
	// only unless Plaintext is set. The host that is dialed is the name that the
	// peer's certificate must have, unless TLS.ServerName is set.
	TLS       *tls.Config
	Plaintext bool
	// Callee runs what the acceptor calls; nil means that this process has no
	// objects.
	Callee Callee
	// Net opens connections; nil means TCP by package net.
	Net func(ctx context.Context, addr string) (net.Conn, error)
}

// CheckAddr says what is wrong with an address that is not "host:port". To listen,
// the host may be empty and the port 0.
func CheckAddr(addr string, listen bool) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("address %.300q is not host:port: %w", addr, err)
	}
	if host == "" && !listen || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("/\\?#@\"", r) }) {
		return fmt.Errorf("address %.300q is not host:port: the host is not a name or an IP address", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 && !listen {
		least := 1
		if listen {
			least = 0
		}
		return fmt.Errorf("address %.300q is not host:port: the port must be a number from %d to 65535", addr, least)
	}
	return nil
}

// Dial connects, within ctx and 10 s. The error is an *limpet.Error: nothing was
// delivered, and trying again is all right (SPEC C20).
func (d *Dialer) Dial(ctx context.Context, addr string) (*Session, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := d.Clock.AfterFunc(handshakeTimeout, func() {
		cancel(fmt.Errorf("no connection to %s within %v", addr, handshakeTimeout))
	})
	defer limit.Stop()
	s, err := d.dial(ctx, addr)
	if err != nil {
		return nil, lost(fmt.Errorf("connect to %s: %w", addr, err), limpet.DeliveryNone)
	}
	return s, nil
}

func (d *Dialer) dial(ctx context.Context, addr string) (*Session, error) {
	open := d.Net
	if open == nil {
		var nd net.Dialer
		open = func(ctx context.Context, addr string) (net.Conn, error) { return nd.DialContext(ctx, "tcp", addr) }
	}
	conn, err := open(ctx, addr)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	if d.TLS == nil {
		if err := checkPlaintext(conn.RemoteAddr(), d.Plaintext); err != nil {
			_ = conn.Close() // nothing was promised
			return nil, err
		}
		return NewSession(ctx, conn, d.Hello, d.Clock, d.Callee)
	}
	cfg := strict(d.TLS, false)
	if cfg.ServerName == "" {
		if cfg.ServerName, _, err = net.SplitHostPort(addr); err != nil {
			_ = conn.Close() // nothing was promised
			return nil, err
		}
	}
	t := tls.Client(conn, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // nothing was promised
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return NewSession(ctx, t, d.Hello, d.Clock, d.Callee)
}
