package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/node"
)

// gates opens the methods of waiting objects.
type gates struct {
	entered chan struct{}
	open    chan struct{}
}

func (g *gates) class() *limpet.Class {
	return limpet.NewClass("Gate", func(st *limpet.State) (*waiting, error) { return &waiting{st: st, gates: g}, nil })
}

// waiting is an object whose method takes its time, as work does that a drain
// must let end.
type waiting struct {
	st    *limpet.State
	gates *gates
}

// Wait writes, waits without giving the object away, and writes again.
func (w *waiting) Wait(ctx context.Context) (string, error) {
	if err := w.st.KV().Put("begun", true); err != nil {
		return "", err
	}
	w.gates.entered <- struct{}{}
	select {
	case <-w.gates.open:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	return "done", w.st.KV().Put("ended", true)
}

func (w *waiting) Has(_ context.Context, key string) (bool, error) { return w.st.KV().Has(key) }

type served struct {
	url  string
	stop context.CancelCauseFunc
	done chan error
}

func serve(t *testing.T, cfg node.Config) *served {
	t.Helper()
	ctx, stop := context.WithCancelCause(context.Background())
	s := &served{stop: stop, done: make(chan error, 1)}
	ready := make(chan string, 1)
	go func() {
		s.done <- node.Serve(ctx, cfg, "127.0.0.1:0", func(_ *node.Node, addr net.Addr) { ready <- "http://" + addr.String() })
	}()
	select {
	case s.url = <-ready:
	case err := <-s.done:
		t.Fatal(err)
	}
	return s
}

type answer struct {
	status int
	text   string
	err    error
}

func (s *served) call(client *http.Client, path, args string) answer {
	resp, err := client.Post(s.url+"/v1/objects/GATE/"+path, "application/json", strings.NewReader(args))
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, strings.TrimSpace(string(b)), err}
}

func newClient(t *testing.T) *http.Client {
	c := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// TestServeDrains: the call that runs ends with its result and its writes, the
// one behind it is refused as not delivered (SPEC F22), and so is a new one.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	g := &gates{entered: make(chan struct{}, 1), open: make(chan struct{})}
	cfg := node.Config{Dir: filepath.Join(t.TempDir(), "d"), Classes: []*limpet.Class{g.class()}, Logger: slog.New(slog.DiscardHandler)}
	s := serve(t, cfg)
	client := newClient(t)
	running, queued := make(chan answer, 1), make(chan answer, 1)
	go func() { running <- s.call(client, "a/call/wait", "[]") }()
	<-g.entered
	go func() { queued <- s.call(client, "a/call/has", `["begun"]`) }()
	s.stop(errors.New("told to"))
	q := <-queued // SPEC F22: in the queue, or at the door
	notDelivered(t, q)
	for {
		// Until the node has heard of it, another object still works.
		late := s.call(client, "b/call/has", `["begun"]`)
		if late.status == 200 {
			continue
		}
		notDelivered(t, late)
		break
	}
	close(g.open)
	if a := <-running; a.status != 200 || a.text != `{"result":"done"}` { // SPEC H62
		t.Errorf("the running call: %+v", a)
	}
	if err := <-s.done; err != nil {
		t.Fatal(err)
	}
	if a := s.call(client, "a/call/has", `["begun"]`); a.err == nil {
		t.Errorf("still listening: %+v", a)
	}
	s = serve(t, cfg) // the directory was given back
	if a := s.call(client, "a/call/has", `["ended"]`); a.text != `{"result":true}` {
		t.Errorf("after a restart: %+v", a)
	}
	s.stop(nil)
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}

func notDelivered(t *testing.T, a answer) {
	t.Helper()
	var body struct {
		Error struct{ Code, Delivery string }
	}
	if a.err != nil || a.status != 503 || json.Unmarshal([]byte(a.text), &body) != nil || body.Error.Delivery != "not delivered" || body.Error.Code != "Draining" {
		t.Errorf("got %+v, want 503 Draining, not delivered", a)
	}
}

// TestServeEndsWhatDoesNotEnd: after the drain timeout a call is ended, its
// turn rolled back, and Serve returns.
func TestServeEndsWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	g := &gates{entered: make(chan struct{}, 1), open: make(chan struct{})}
	cfg := node.Config{
		Dir: filepath.Join(t.TempDir(), "d"), Classes: []*limpet.Class{g.class()}, Logger: slog.New(slog.DiscardHandler),
		DrainTimeout: time.Millisecond,
	}
	s := serve(t, cfg)
	client := newClient(t)
	running := make(chan answer, 1)
	go func() { running <- s.call(client, "a/call/wait", "[]") }()
	<-g.entered
	s.stop(nil)
	if err := <-s.done; err != nil {
		t.Fatal(err)
	}
	if a := <-running; a.err == nil && a.status == 200 {
		t.Errorf("the call has a result: %+v", a)
	}
	s = serve(t, cfg)
	if a := s.call(client, "a/call/has", `["begun"]`); a.text != `{"result":false}` {
		t.Errorf("the turn was not rolled back: %+v", a)
	}
	s.stop(nil)
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}

func TestServeFails(t *testing.T) {
	t.Parallel()
	g := &gates{}
	cfg := node.Config{Dir: filepath.Join(t.TempDir(), "d"), Classes: []*limpet.Class{g.class()}, Logger: slog.New(slog.DiscardHandler)}
	s := serve(t, cfg)
	second := cfg
	if err := node.Serve(t.Context(), second, "127.0.0.1:0", nil); err == nil || !strings.Contains(err.Error(), cfg.Dir) {
		t.Errorf("a second server on one directory: %v", err)
	}
	second.Dir = filepath.Join(t.TempDir(), "e")
	for range 2 { // the directory is given back after the failure
		if err := node.Serve(t.Context(), second, strings.TrimPrefix(s.url, "http://"), nil); err == nil || !strings.Contains(err.Error(), "--listen") {
			t.Errorf("a second server on one port: %v", err)
		}
	}
	s.stop(nil)
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}
