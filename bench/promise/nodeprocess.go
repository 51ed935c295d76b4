package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/internal/mutation"
	"github.com/limpet-dev/limpet/node"
)

// This file is the node process: the one that is killed.

const (
	// segmentBytes keeps the first start of a directory short.
	segmentBytes = 16 << 20
	// idle is how long an object without a call stays in memory: so short that
	// many of them are evicted.
	idle = 200 * time.Millisecond
	// drainTimeout is what running calls get when the node drains.
	drainTimeout = 5 * time.Second
	// plainSockets is how many objects can tell the witness at one time.
	plainSockets = 32
)

type nodeConfig struct {
	Dir      string
	Life     int // number of the process
	Witness  witnessReady
	Mutation string
}

type nodeReady struct{ Addr string }

func nodeMain() error {
	var cfg nodeConfig
	if err := childConfig(&cfg); err != nil {
		return err
	}
	go func() { // until the process ends, which it does when the parent has gone
		_ = json.NewDecoder(os.Stdin).Decode(new(struct{})) // there are no commands
		os.Exit(3)
	}()
	broken, err := mutation.Named(cfg.Mutation)
	if err != nil {
		return err
	}
	e := &ears{
		life: cfg.Life, url: "http://" + cfg.Witness.HTTP, plain: make(chan *plainConn, plainSockets),
		web: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}},
	}
	for range plainSockets {
		c, err := net.Dial("tcp", cfg.Witness.Plain)
		if err != nil {
			return err
		}
		e.plain <- &plainConn{c, bufio.NewReader(c)}
	}
	ctx := context.Background()
	var c *client.Client
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		// The proxy between may refuse the connection.
		if c, err = client.Dial(ctx, []string{cfg.Witness.Wire}); err == nil {
			break
		}
		if time.Now().After(limit) {
			return err
		}
	}
	defer c.Close() //nolint:errcheck // it never fails
	if e.witness, err = limpet.NamespaceOf[Witness](c, "WITNESS"); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	n, err := node.Open(ctx, node.Config{
		Dir: cfg.Dir, Classes: classes(e), Wire: node.Wire{Addr: "127.0.0.1:0"}, IdleTimeout: idle, DrainTimeout: drainTimeout,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}.OnDisk(nil, segmentBytes).Mutated(broken))
	if err != nil {
		return err
	}
	if err := say(nodeReady{n.WireAddr().String()}); err != nil {
		return err
	}
	<-stop
	if err := n.Drain(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return n.Close()
}
