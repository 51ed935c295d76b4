package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// DefaultListen is where the door of a server listens unless told otherwise.
const DefaultListen = "127.0.0.1:8787"

const (
	// headerTimeout bounds how long a client may take to send a request's header.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a connection without a request stays open.
	idleTimeout = 2 * time.Minute
	// answerTimeout is how long the answers of calls that have ended may still
	// be written when the server stops.
	answerTimeout = 5 * time.Second
)

// Serve opens a node and serves its HTTP door on a TCP address until ctx ends;
// then it drains: new calls are refused with 503, calls that wait are refused
// as not delivered, those that run get Config.DrainTimeout, everything committed
// becomes durable, and the node is closed. An empty address means DefaultListen.
//
// ready, if not nil, is called once when calls can come.
//
// ctx bounds how long Serve serves, and nothing else: its deadline and values do
// not reach the calls, and draining takes what it takes after ctx has ended.
//
// Serve returns nil when ctx ended it, also if calls had to be ended after
// Config.DrainTimeout (which is logged), else what went wrong: an error of Open,
// of listening or of closing.
func Serve(ctx context.Context, cfg Config, listen string, ready func(n *Node, addr net.Addr)) (err error) {
	cfg.defaults()
	if listen == "" {
		listen = DefaultListen
	}
	n, err := Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }() // the same answer if it is closed already
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w (--listen chooses another address)", listen, err)
	}
	if a, ok := ln.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		cfg.Logger.Warn("the HTTP door is open to the network and asks nobody who they are", "address", a.String())
	}
	srv := &http.Server{
		Handler: n.Handler(), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug), // clients that break off
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }() // ends with the srv.Close below
	if ready != nil {
		ready(n, ln.Addr())
	}
	select {
	case err := <-served:
		return errors.Join(fmt.Errorf("serve on %v: %w", ln.Addr(), err), srv.Close())
	case <-ctx.Done():
	}
	cfg.Logger.Info("stopping", "cause", context.Cause(ctx))
	err = errors.Join(stop(n, srv, cfg.Logger), srv.Close())
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

// stop ends the node and lets the answers of its last calls be written.
func stop(n *Node, srv *http.Server, log *slog.Logger) error {
	if err := n.Drain(context.Background()); err != nil {
		log.Warn("some calls had to be ended", "error", err)
	}
	err := n.Close()
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if serr := srv.Shutdown(ctx); serr != nil {
		log.Warn("some clients did not read their answers", "error", serr)
	}
	return err
}
