package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
)

// Limits of a Server.
const (
	// DefaultMaxConns is the number of connections at one time.
	DefaultMaxConns = 1000
	// DefaultMaxArgs is the bytes of arguments that calls of all connections may
	// hold; of one connection half of it, which must have room for the largest
	// call.
	DefaultMaxArgs = 80 << 20
	// DefaultMaxCapabilities is the number of stubs, functions and streams, given
	// and taken, that all connections may have at one time. One connection has at
	// most 10,000 each way.
	DefaultMaxCapabilities = 100_000
	// maxResults is the bytes of results that may wait for one peer.
	maxResults = 64 << 20
	// handshakeTimeout bounds TLS and hellos together.
	handshakeTimeout = 10 * time.Second
	// argsTimeout is how long arguments may stop in the middle.
	argsTimeout = 60 * time.Second
)

// ServerConfig is what a Server needs. Callee, Clock and Hello must be set.
type ServerConfig struct {
	Callee Callee
	Clock  limpet.Clock
	Hello  Hello
	// TLS is the configuration of LoadTLS; nil means plaintext, which is taken
	// from this machine only unless Plaintext is set.
	TLS       *tls.Config
	Plaintext bool
	// MaxConns, MaxArgs and MaxCapabilities are the limits of that name; 0 means
	// the default.
	MaxConns        int
	MaxArgs         int64
	MaxCapabilities int64
	// Logger gets a line for each connection that ends by a fault of the peer;
	// nil means slog.Default().
	Logger *slog.Logger
}

// Server takes connections and hands their calls to a Callee. It is safe for
// concurrent use.
//
//	           Drain                    Close
//	serving ──────────▶ draining ─────────────────▶ closed
//	          GOAWAY     calls end,      what is written
//	                     no new ones     leaves first
type Server struct {
	cfg  ServerConfig
	tls  *tls.Config
	args budget
	caps budget
	ctx  context.Context // of all calls; ends with Close
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	workers workers

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	raw       map[net.Conn]struct{} // handshake not over
	conns     map[*serverConn]struct{}
	draining  bool
	closed    bool
	refusing  bool // connections are refused for their number, and it was logged
}

// NewServer makes a server without listeners. Close must be called.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Callee == nil || cfg.Clock == nil || cfg.Hello.MaxVersion == 0 {
		return nil, errors.New("wire: Callee, Clock and Hello must be set")
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = DefaultMaxConns
	}
	if cfg.MaxArgs == 0 {
		cfg.MaxArgs = DefaultMaxArgs
	}
	if cfg.MaxCapabilities == 0 {
		cfg.MaxCapabilities = DefaultMaxCapabilities
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{
		cfg: cfg, args: budget{limit: cfg.MaxArgs}, caps: budget{limit: cfg.MaxCapabilities},
		listeners: map[net.Listener]struct{}{}, raw: map[net.Conn]struct{}{}, conns: map[*serverConn]struct{}{},
	}
	if cfg.TLS != nil {
		s.tls = strict(cfg.TLS, true)
	}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	return s, nil
}

// ErrServerClosed is what Serve returns after Drain or Close.
var ErrServerClosed = errors.New("the server was closed")

// Serve takes connections until the server drains or closes, which is
// ErrServerClosed, or until the listener fails. It closes ln. An address that
// needs TLS and has none is refused at once.
func (s *Server) Serve(ln net.Listener) error {
	defer ln.Close()
	if s.tls == nil {
		if err := checkPlaintext(ln.Addr(), s.cfg.Plaintext); err != nil {
			return err
		}
	}
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return ErrServerClosed
	}
	s.listeners[ln] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, ln)
		s.mu.Unlock()
	}()
	for {
		conn, err := ln.Accept()
		if err != nil {
			s.mu.Lock()
			draining := s.draining
			s.mu.Unlock()
			if draining {
				return ErrServerClosed
			}
			var temporary interface{ Temporary() bool }
			if !errors.As(err, &temporary) || !temporary.Temporary() {
				return fmt.Errorf("accept on %v: %w", ln.Addr(), err)
			}
			s.cfg.Logger.Warn("a connection could not be accepted", "error", err)
			t := s.cfg.Clock.NewTimer(100 * time.Millisecond) // no file descriptors, mostly
			select {
			case <-t.C():
			case <-s.ctx.Done():
			}
			t.Stop()
			continue
		}
		s.admit(conn)
	}
}

// admit starts a connection, if there is room for it.
func (s *Server) admit(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining || len(s.raw)+len(s.conns) >= s.cfg.MaxConns {
		_ = conn.Close() // nothing was promised
		if !s.draining && !s.refusing {
			s.refusing = true
			s.cfg.Logger.Warn("too many connections: new ones are refused", "limit", s.cfg.MaxConns, "peer", conn.RemoteAddr())
		}
		return
	}
	s.refusing = false
	s.raw[conn] = struct{}{}
	s.wg.Go(func() { s.greet(conn) })
}

// greet does the handshake and runs the connection to its end.
func (s *Server) greet(conn net.Conn) {
	peer := conn.RemoteAddr()
	ctx, cancel := context.WithCancelCause(s.ctx)
	limit := s.cfg.Clock.AfterFunc(handshakeTimeout, func() {
		cancel(fmt.Errorf("not over within %v", handshakeTimeout))
	})
	c, err := s.handshake(ctx, conn)
	limit.Stop()
	cancel(nil)

	s.mu.Lock()
	delete(s.raw, conn)
	if err == nil && s.closed {
		err = ErrServerClosed
	}
	if err != nil {
		s.mu.Unlock()
		if s.ctx.Err() == nil && !errors.Is(err, io.EOF) {
			s.cfg.Logger.Warn("a connection was refused", "peer", peer, "error", err)
		}
		_ = conn.Close() // nothing was promised
		return
	}
	s.conns[c] = struct{}{}
	c.run(c)
	if s.draining {
		c.drain()
	}
	s.mu.Unlock()

	c.wait()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	if why := c.err; !harmless(why) && s.ctx.Err() == nil { // set before wait returned
		s.cfg.Logger.Warn("a connection was ended", "peer", peer, "software", c.peer.Software, "error", why)
	}
}

// harmless reports whether a connection may end so every day.
func harmless(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, errClosed) || errors.Is(err, net.ErrClosed)
}

func (s *Server) handshake(ctx context.Context, conn net.Conn) (*serverConn, error) {
	if s.tls != nil {
		t := tls.Server(conn, s.tls)
		if err := t.HandshakeContext(ctx); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		conn = t
	} else if err := checkPlaintext(conn.RemoteAddr(), s.cfg.Plaintext); err != nil {
		return nil, err
	}
	c := newServerConn(s, conn)
	peer, err := c.greet(ctx, s.cfg.Hello, false)
	c.peer = peer
	return c, err
}

// Drain takes no new connections and calls: every peer learns which of its
// calls is the last one, and gets the outcomes of those that were taken. It
// returns at once.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for ln := range s.listeners {
		_ = ln.Close() // Serve returns
	}
	for c := range s.conns {
		c.drain()
	}
}

// Capabilities is the number of stubs, functions and streams that all connections
// have given and taken and that were not released.
func (s *Server) Capabilities() int64 {
	s.caps.mu.Lock()
	defer s.caps.mu.Unlock()
	return s.caps.used
}

// Flushed waits until the answers of all calls that were taken before Drain are
// on their way, or until ctx ends, whose cause it then returns.
func (s *Server) Flushed(ctx context.Context) error {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		select {
		case <-c.closed:
		case <-c.flushed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Close ends the server: it drains, waits until the calls that were taken have
// their outcomes and these are written, but no longer than ctx, then ends what is
// left, whose contexts are cancelled with ctx's cause. It returns when all
// goroutines have ended. Closing again is harmless.
func (s *Server) Close(ctx context.Context) error {
	s.Drain()
	s.mu.Lock()
	s.closed = true
	conns := slices.Collect(maps.Keys(s.conns))
	for conn := range s.raw {
		_ = conn.Close() // nothing was promised
	}
	s.mu.Unlock()
	var err error
	for _, c := range conns {
		select {
		case <-c.closed:
		case <-ctx.Done():
			err = fmt.Errorf("some answers were not read: %w", context.Cause(ctx))
		}
		if err != nil {
			break
		}
	}
	s.stop(ErrServerClosed)
	for _, c := range conns {
		c.fail(errClosed)
	}
	s.wg.Wait()
	s.workers.close()
	return err
}

// budget counts bytes that many connections share.
type budget struct {
	mu    sync.Mutex
	limit int64
	used  int64
}

func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.limit {
		return false
	}
	b.used += n
	return true
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	b.used -= n
	b.mu.Unlock()
}
