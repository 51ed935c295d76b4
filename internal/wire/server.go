package wire

import (
	"cmp"
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
	"github.com/limpet-dev/limpet/internal/workers"
)

// Limits of a Server.
const (
	// DefaultMaxConns is the number of connections at one time.
	DefaultMaxConns = 1000
	// DefaultMaxCapabilities is the number of stubs, functions and streams, given
	// and taken, that all connections may have at one time. One connection has at
	// most 10,000 each way.
	DefaultMaxCapabilities = 100_000
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
	// MaxConns and MaxCapabilities are the limits of that name; 0 means the
	// default.
	MaxConns        int
	MaxCapabilities int64
	// MaxMemory is about the bytes that calls of all connections may hold; 0 means
	// DefaultMaxMemory.
	MaxMemory int64
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
	cfg    ServerConfig
	tls    *tls.Config
	shares *shares
	caps   *budget
	ctx    context.Context // of all calls; ends with Close
	stop   context.CancelCauseFunc
	wg     sync.WaitGroup

	workers workers.Pool[*inCall]

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	raw       []net.Conn // handshake not over, the oldest first
	conns     map[*serverConn]struct{}
	draining  bool
	closed    bool
	refusing  bool // connections are refused for their number, and it was logged
	refused   int64
}

// NewServer makes a server without listeners. Close must be called.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Callee == nil || cfg.Clock == nil || cfg.Hello.MaxVersion == 0 {
		return nil, errors.New("wire: Callee, Clock and Hello must be set")
	}
	cfg.MaxConns = cmp.Or(cfg.MaxConns, DefaultMaxConns)
	cfg.MaxMemory = cmp.Or(cfg.MaxMemory, DefaultMaxMemory)
	cfg.MaxCapabilities = cmp.Or(cfg.MaxCapabilities, DefaultMaxCapabilities)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{
		cfg: cfg, shares: newShares(cfg.MaxMemory), caps: newBudget(cfg.MaxCapabilities),
		listeners: map[net.Listener]struct{}{}, conns: map[*serverConn]struct{}{},
	}
	if cfg.TLS != nil {
		s.tls = strict(cfg.TLS, true)
	}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	return s, nil
}

// errCrowdedOut ends a handshake for the sake of a newer connection.
var errCrowdedOut = errors.New("closed before its handshake, for newer connections")

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
	full := len(s.raw)+len(s.conns) >= s.cfg.MaxConns
	if full && !s.draining {
		s.refused++
		if !s.refusing {
			s.refusing = true
			s.cfg.Logger.Warn("too many connections: those that have not said who they are are closed, then new ones are refused",
				"limit", s.cfg.MaxConns, "peers", len(s.conns), "unknown", len(s.raw), "peer", conn.RemoteAddr())
		}
	}
	if s.draining || full && len(s.raw) == 0 {
		_ = conn.Close() // nothing was promised
		return
	}
	if full { // those who say nothing keep nobody out
		_ = s.raw[0].Close() // greet ends
		s.raw = slices.Delete(s.raw, 0, 1)
	} else {
		s.refusing = false
	}
	s.raw = append(s.raw, conn)
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
	if i := slices.Index(s.raw, conn); i >= 0 {
		s.raw = slices.Delete(s.raw, i, i+1)
	} else {
		err = errCrowdedOut
	}
	if err == nil && s.closed {
		err = ErrServerClosed
	}
	if err != nil {
		s.mu.Unlock()
		if s.ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, errCrowdedOut) { // that was logged
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
	return s.caps.inUse()
}

// Stats is what a Server counts.
type Stats struct {
	Conns          int   // connections now, also those that have not said hello
	ConnsRefused   int64 // connections closed because there were too many
	HeldBytes      int64 // by calls and results, also what connections have of their own
	HeldLimit      int64
	CallsRefused   int64 // calls for which there was no room
	ResultsDropped int64 // results for which there was no room
}

// Stats reads the counters.
func (s *Server) Stats() Stats {
	sh := s.shares
	held := sh.lent.inUse()
	s.mu.Lock()
	conns, refused := len(s.raw)+len(s.conns), s.refused
	for c := range s.conns {
		c.mu.Lock()
		held += c.in.held + c.in.results + c.out.held + int64(c.queued)
		c.mu.Unlock()
	}
	s.mu.Unlock()
	return Stats{
		Conns: conns, ConnsRefused: refused, HeldBytes: held,
		HeldLimit: s.cfg.MaxMemory, CallsRefused: sh.refused.Load(), ResultsDropped: sh.dropped.Load(),
	}
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
	for _, conn := range s.raw {
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
	s.workers.Close()
	s.workers.Wait()
	return err
}
