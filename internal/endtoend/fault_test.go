package endtoend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/node"
)

// TestReplyLost cuts the connection when the answer comes.
func TestReplyLost(t *testing.T) {
	w := open(t, nil)
	p := newProxy(t, w.addr)
	ns := shops(t, dial(t, p.addr()))

	s := ns.Named("unmarked")
	p.cutDown.Store(1)
	_, err := limpet.Call1(t.Context(), s, Shop.Add, 1)
	e := errorOf(t, err)
	// SPEC C21, F13: the retry carries the same identity and is refused, since the
	// object has taken it; the caller gets the first disconnect.
	if e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryUncertain || !e.Retryable || e.Attempts != 2 || e.Identity == "" {
		t.Errorf("a lost reply of an unmarked method gives %+v", e)
	}
	if n := w.g.runs.Load(); n != 1 {
		t.Errorf("the unmarked method ran %d times, want once", n)
	}
	if s.Err() != nil {
		t.Errorf("a lost connection broke the stub: %v", s.Err())
	}
	if n, err := limpet.Call(t.Context(), s, Shop.Get); n != 1 || err != nil {
		t.Errorf("the object has %d, %v", n, err)
	}

	w.g.runs.Store(0)
	p.cutDown.Store(1)
	if err := limpet.Do1(t.Context(), ns.Named("marked"), Shop.Set, 5); err != nil {
		t.Errorf("a lost reply of a marked method gives %v", err)
	}
	if n := w.g.runs.Load(); n != 2 {
		t.Errorf("the marked method ran %d times, want twice", n)
	}

	// Without retries the caller learns what is known.
	p.cutDown.Store(1)
	_, err = limpet.Call1(t.Context(), ns.Named("once", limpet.NoRetries()), Shop.Add, 1)
	if e := errorOf(t, err); e.Delivery != limpet.DeliveryUncertain || e.Attempts != 1 {
		t.Errorf("without retries: %+v", e)
	}
	if p.strikes.Load() != 3 {
		t.Errorf("the proxy cut %d times, want 3", p.strikes.Load())
	}
}

// TestRequestLost cuts the connection when the request comes: it was handed to
// Write, so that nobody knows; the object does.
func TestRequestLost(t *testing.T) {
	w := open(t, nil)
	p := newProxy(t, w.addr)
	s := shops(t, dial(t, p.addr())).Named("x")
	p.cutUp.Store(2)
	// SPEC F14: a flagged retry whose identity is unclaimed runs.
	if n, err := limpet.Call1(t.Context(), s, Shop.Add, 1); n != 1 || err != nil {
		t.Errorf("the call gives %d, %v", n, err)
	}
	if n := w.g.runs.Load(); n != 1 || p.strikes.Load() != 2 {
		t.Errorf("it ran %d times, and the proxy cut %d times; want 1 and 2", n, p.strikes.Load())
	}
}

func TestFetchReplyLost(t *testing.T) {
	w := open(t, nil)
	p := newProxy(t, w.addr)
	s := shops(t, dial(t, p.addr())).Named("x")
	body := bytes.Repeat([]byte("0123456789"), 10_000)
	post := func(r io.Reader) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://shop/echo", r)
		if err != nil {
			t.Fatal(err)
		}
		return s.Fetch(req)
	}
	p.cutDown.Store(1)
	resp, err := post(bytes.NewReader(body))
	if err != nil {
		t.Fatalf("a marked handler with a body that can be sent again: %v", err)
	}
	got, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Equal(got, body) {
		t.Errorf("the retry's answer has %d bytes, %v", len(got), err)
	}
	// SPEC F2: a body that can be read once is sent once, without an identity.
	p.cutDown.Store(1)
	_, err = post(io.MultiReader(bytes.NewReader(body)))
	if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Attempts != 1 || e.Delivery != limpet.DeliveryUncertain || e.Identity != "" {
		t.Errorf("a stream: %+v", e)
	}
}

// TestBodyLost cuts the connection in the middle of a response's body.
func TestBodyLost(t *testing.T) {
	w := open(t, nil)
	p := newProxy(t, w.addr)
	s := shops(t, dial(t, p.addr())).Named("x")
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://shop/flood", nil)
	resp, err := s.Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.CopyN(io.Discard, resp.Body, 1<<20); err != nil {
		t.Fatal(err)
	}
	p.cutDown.Store(1)
	_, err = io.Copy(io.Discard, resp.Body)
	// SPEC C22: the object has it; no retry.
	if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryReceived {
		t.Errorf("the body ends with %+v", e)
	}
	if err := <-w.g.ended; err == nil {
		t.Error("the handler could write for ever")
	}
	if n := w.g.runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
}

// TestRefused calls a node that is not there.
func TestRefused(t *testing.T) {
	w := open(t, nil)
	ns := shops(t, dial(t, w.addr))
	if err := w.n.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := limpet.Call1(t.Context(), ns.Named("x", limpet.MaxRetries(1)), Shop.Add, 1)
	// SPEC C20: certainly not delivered, and tried again.
	if e := errorOf(t, err); !errors.Is(e, limpet.CodeDisconnected) || e.Delivery != limpet.DeliveryNone || !e.Retryable || e.Attempts != 2 || e.Identity != "" {
		t.Errorf("a refused connection gives %+v", e)
	}
	if _, err := client.Dial(t.Context(), []string{w.addr, "127.0.0.1:1"}); !errors.Is(err, limpet.CodeDisconnected) {
		t.Errorf("Dial says %v", err)
	} else {
		wantIn(t, "the error of Dial", err.Error(), w.addr, "127.0.0.1:1")
	}
}

// TestCutoffReachesTheHandler lets a retry hang until the retry timeout.
func TestCutoffReachesTheHandler(t *testing.T) {
	w := open(t, nil)
	p := newProxy(t, w.addr)
	s := shops(t, dial(t, p.addr())).Named("x", limpet.RetryTimeout(1500*time.Millisecond))
	p.cutUp.Store(1)
	start := time.Now()
	e := errorOf(t, limpet.Do(t.Context(), s, Shop.Wait))
	// SPEC E31: the cutoff ends the retry, and its handler's context.
	if e.Code != limpet.CodeDisconnected || e.Attempts != 2 || e.Delivery != limpet.DeliveryUncertain {
		t.Errorf("the call gives %+v", e)
	}
	if took := time.Since(start); took < 1500*time.Millisecond {
		t.Errorf("it ended after %v, before the cutoff", took)
	}
	<-w.g.entered
	if err := <-w.g.ended; err == nil {
		t.Error("the handler's context did not end")
	}
}

// TestDrain drains a node while one call runs, with a second node to go to, which
// takes the address over.
func TestDrain(t *testing.T) {
	w := open(t, nil)
	other := open(t, nil)
	c, err := client.Dial(t.Context(), []string{"shops:7070"}, client.Network(func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", w.addr)
		if err != nil {
			conn, err = d.DialContext(ctx, "tcp", other.addr)
		}
		return conn, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ns := shops(t, c)
	running := make(chan error, 1)
	go func() { running <- limpet.Do(t.Context(), ns.Named("busy"), Shop.Wait) }()
	<-w.g.entered
	queued := make(chan error, 1)
	go func() { // behind the one that runs
		_, err := limpet.Call1(t.Context(), ns.Named("busy"), Shop.Add, 1)
		queued <- err
	}()
	// Whether it is queued at the object or still on its way when the node begins
	// to drain, it must not be lost and not run there.
	drained := make(chan error, 1)
	go func() { drained <- w.n.Drain(t.Context()) }()
	// SPEC C24, F22, E29: the queued call was refused as not delivered, and the
	// next attempt finds the other node.
	if err := <-queued; err != nil {
		t.Errorf("the queued call gives %v", err)
	}
	if n, err := limpet.Call1(t.Context(), ns.Named("new"), Shop.Add, 1); n != 1 || err != nil {
		t.Errorf("a call while the node drains gives %d, %v", n, err)
	}
	if n := w.g.runs.Load(); n != 0 {
		t.Errorf("the draining node ran %d calls", n)
	}
	if n := other.g.runs.Load(); n != 2 {
		t.Errorf("the other node ran %d calls, want 2", n)
	}
	close(w.g.open)
	if err := <-running; err != nil {
		t.Errorf("the call that ran gives %v", err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// TestCloseAnswers closes a node while a call runs.
func TestCloseAnswers(t *testing.T) {
	w := open(t, nil)
	s := shops(t, dial(t, w.addr)).Named("x")
	done := make(chan error, 1)
	go func() { done <- limpet.Do(t.Context(), s, Shop.Wait) }()
	<-w.g.entered
	if err := w.n.Close(); err != nil {
		t.Fatal(err)
	}
	// SPEC C52: what fails after it was accepted was received.
	if e := errorOf(t, <-done); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryReceived || e.Attempts != 1 {
		t.Errorf("the call gives %+v", e)
	}
}

// TestClientClose closes the client while calls run.
func TestClientClose(t *testing.T) {
	w := open(t, nil)
	c := dial(t, w.addr)
	s := shops(t, c).Named("x")
	done := make(chan error, 1)
	go func() { done <- limpet.Do(context.Background(), s, Shop.Wait) }()
	<-w.g.entered
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the call ended without an error")
	}
	if err := <-w.g.ended; err == nil {
		t.Error("the handler's context did not end")
	}
	if _, err := limpet.Call(t.Context(), s, Shop.Get); limpet.DeliveryOf(err) != limpet.DeliveryNone || err == nil {
		t.Errorf("a call of a closed client: %v", err)
	}
}

func TestWireConfig(t *testing.T) {
	for name, c := range map[string]struct {
		wire node.Wire
		want string
	}{
		"another machine":      {node.Wire{Addr: "0.0.0.0:0"}, "--wire-plaintext"},
		"half":                 {node.Wire{Addr: "127.0.0.1:0", CertFile: "x"}, "belong together"},
		"nowhere":              {node.Wire{Plaintext: true}, "without Addr"},
		"no such file":         {node.Wire{Addr: "127.0.0.1:0", CertFile: "x", KeyFile: "y", CAFile: "z"}, "load certificate x"},
		"address that is none": {node.Wire{Addr: "nonsense"}, "nonsense"},
	} {
		n, err := node.Open(t.Context(), node.Config{Dir: t.TempDir() + "/d", Classes: []*limpet.Class{gatedClass}, Wire: c.wire})
		if err == nil {
			t.Errorf("%s: opened", name)
			_ = n.Close()
			continue
		}
		wantIn(t, name, err.Error(), c.want)
	}
}
