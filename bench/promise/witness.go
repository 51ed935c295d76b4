package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/node"
)

// This file is the witness: a process that is never killed and remembers what it
// was told of runs. It listens in three ways: as a web server and as a node of its
// own, for what limpet gates, and on a plain socket, for what it does not.

// sight is one run of an operation that somebody saw.
type sight struct {
	Op, Run string
	How     string // fetch, call or socket; the judge adds others
}

// Witness is what the node's objects call.
type Witness interface {
	Hear(ctx context.Context, op, run string) error
}

type memory struct {
	mu     sync.Mutex
	sights []sight
}

func (m *memory) hear(op, run, how string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sights = append(m.sights, sight{op, run, how})
}

func (m *memory) take() []sight {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sights
	m.sights = nil
	return s
}

// ear is an object of the witness's node.
type ear struct{ m *memory }

// Hear is not marked: a caller that is retried must be heard once.
func (e *ear) Hear(_ context.Context, op, run string) error {
	e.m.hear(op, run, "call")
	return nil
}

type witnessConfig struct{ Dir string }

type witnessReady struct{ HTTP, Plain, Wire string }

// witnessCommand has one command: give what was seen, and forget it.
type witnessCommand struct{}

func witnessMain() error {
	var cfg witnessConfig
	if err := childConfig(&cfg); err != nil {
		return err
	}
	m := &memory{}
	class := limpet.NewClass("Witness", func(*limpet.State) (*ear, error) { return &ear{m}, nil }, limpet.GatedEffects())
	n, err := node.Open(context.Background(), node.Config{
		Dir: cfg.Dir, Classes: []*limpet.Class{class}, Wire: node.Wire{Addr: "127.0.0.1:0"},
	}.OnDisk(nil, segmentBytes))
	if err != nil {
		return err
	}
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		m.hear(q.Get("op"), q.Get("run"), "fetch")
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = srv.Serve(web) }() // until the process ends
	go func() {                        // until the process ends
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			go listen(c, m)
		}
	}()
	if err := say(witnessReady{web.Addr().String(), plain.Addr().String(), n.WireAddr().String()}); err != nil {
		return err
	}
	answers(func(witnessCommand) any { return m.take() })
	return nil
}

// listen hears one plain socket to its end, and answers each line with a byte.
func listen(c net.Conn, m *memory) {
	defer c.Close()
	for s := bufio.NewScanner(c); s.Scan(); {
		op, run, ok := strings.Cut(s.Text(), " ")
		if !ok {
			return
		}
		m.hear(op, run, "socket")
		if _, err := fmt.Fprint(c, "."); err != nil {
			return
		}
	}
}
