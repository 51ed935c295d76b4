package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/mutation"
	"github.com/limpet-dev/limpet/internal/wire"
)

// Option sets a property of a Client.
type Option interface{ apply(*config) error }

type config struct {
	dialer wire.Dialer
	trace  func(context.Context) (traceparent, tracestate string)
	broken mutation.Set // none, except in bench/promise

	replay, replayPerCall int64
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// TLSFiles speaks TLS 1.3 with the certificate and key in PEM files, to nodes
// whose certificate the CA has signed and that names the host which was dialed.
func TLSFiles(certFile, keyFile, caFile string) Option {
	return option(func(c *config) (err error) {
		c.dialer.TLS, err = wire.LoadTLS(certFile, keyFile, caFile)
		return err
	})
}

// TLS is TLSFiles with a configuration of one's own. Nodes ask for a certificate;
// versions below 1.3 are not spoken, whatever the configuration says.
func TLS(cfg *tls.Config) Option {
	return option(func(c *config) error {
		c.dialer.TLS = cfg
		return nil
	})
}

// Plaintext allows connections without TLS to other machines. Everybody on the
// way can then read and change what is said. Without TLS and Plaintext only
// addresses of this machine can be dialed.
func Plaintext() Option {
	return option(func(c *config) error {
		c.dialer.Plaintext = true
		return nil
	})
}

// Clock is where all waiting goes through; the default is the computer's. For
// tests.
func Clock(clock limpet.Clock) Option {
	return option(func(c *config) error {
		c.dialer.Clock = clock
		return nil
	})
}

// Network opens connections instead of package net, TCP. For tests and proxies.
func Network(open func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return option(func(c *config) error {
		c.dialer.Net = open
		return nil
	})
}

// Mutated breaks limpet's promise on purpose. It is for bench/promise.
func Mutated(m mutation.Set) Option {
	return option(func(c *config) error {
		c.broken = m
		return nil
	})
}

// Trace reads the W3C trace context out of the context of a call, to be sent
// along with it: the values of the headers traceparent and tracestate, or "".
func Trace(from func(context.Context) (traceparent, tracestate string)) Option {
	return option(func(c *config) error {
		c.trace = from
		return nil
	})
}

// ReplayMemory bounds the bytes of arguments and buffered bodies kept for retries:
// of all calls together, and of one. 0 means the defaults, 64 MiB and 32 MiB;
// negative ones are refused. A call that finds no room runs, and is not retried
// (SPEC G21); Metrics counts it, and Error.NoRetry says so.
func ReplayMemory(pool, perCall int64) Option {
	return option(func(c *config) error {
		if pool < 0 || perCall < 0 {
			return fmt.Errorf("ReplayMemory(%d, %d): must not be negative; 0 means the default", pool, perCall)
		}
		c.replay, c.replayPerCall = pool, perCall
		return nil
	})
}
