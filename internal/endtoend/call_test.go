package endtoend

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
)

func TestCalls(t *testing.T) {
	w := open(t, nil)
	c := dial(t, w.addr)
	s := shops(t, c).Named("user-1")
	if n, err := limpet.Call1(t.Context(), s, Shop.Add, 2); n != 2 || err != nil {
		t.Fatalf("Add gives %d, %v", n, err)
	}
	if err := limpet.Do1(t.Context(), s, Shop.Set, 40); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Invoke(t.Context(), "add", 2); fmt.Sprint(v) != "42" || err != nil {
		t.Fatalf("add gives %v, %v", v, err)
	}
	if name, err := limpet.Call(t.Context(), s, Shop.Whole); name != "user-1" || err != nil {
		t.Errorf("the object's name is %q, %v", name, err)
	}
	// The same objects as inside the node.
	here, err := limpet.NamespaceOf[*shop](w.n, "SHOP")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := limpet.Call(t.Context(), here.Get(s.ID()), (*shop).Get); n != 42 || err != nil {
		t.Errorf("in the node it is %d, %v", n, err)
	}
	if n, err := limpet.Call(t.Context(), shops(t, c).Jurisdiction("eu").Named("user-1"), Shop.Get); n != 0 || err != nil {
		t.Errorf("the object of the same name in a jurisdiction has %d, %v", n, err)
	}
	if _, err := limpet.Call(t.Context(), shops(t, c).Existing(shops(t, c).NewUniqueID()), Shop.Get); !errors.Is(err, limpet.CodeNoSuchObject) || errorOf(t, err).Delivery != limpet.DeliveryNone {
		t.Errorf("an object that does not exist: %v", err)
	}
	if _, err := limpet.NamespaceOf[Shop](c, "CART"); !errors.Is(err, limpet.CodeUnknownNamespace) {
		t.Errorf("an unknown namespace: %v", err)
	} else {
		wantIn(t, "the error", err.Error(), "GATED", "SHOP")
	}
	// A deadline is time left, in the handler too.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if ms, err := limpet.Call(ctx, s, Shop.Left); ms < 1 || ms > 60_000 || err != nil {
		t.Errorf("the handler has %d ms left, %v", ms, err)
	}
}

func TestErrors(t *testing.T) {
	w := open(t, nil)
	c := dial(t, w.addr)
	stub := func() *limpet.Stub[Shop] { return shops(t, c).Named("x") }

	e := errorOf(t, limpet.Do1(t.Context(), stub(), Shop.Fail, "none left"))
	if e.Code != "SoldOut" || e.Name != "ShopError" || e.Message != "none left" || !e.Overloaded || !e.Remote ||
		e.Delivery != limpet.DeliveryReceived || fmt.Sprint(e.Fields["left"]) != "7" || e.Attempts != 1 || e.ByLimpet() {
		t.Errorf("a method's own error arrives as %+v", e)
	}
	// SPEC F17: a refused claim is a marker; an object's own error that looks
	// like one is not, and is shown.
	e = errorOf(t, limpet.Do1(t.Context(), stub(), Shop.Fail, "claimed"))
	if e.Code != limpet.CodeAlreadyReceived || !e.Remote || e.Attempts != 1 {
		t.Errorf("an error that looks like a refused claim arrives as %+v", e)
	}
	// SPEC C50: nor is what looks like a lost connection one.
	e = errorOf(t, limpet.Do1(t.Context(), stub(), Shop.Fail, "lost"))
	if e.Code != limpet.CodeDisconnected || !e.Remote || e.Attempts != 1 || e.Delivery != limpet.DeliveryReceived {
		t.Errorf("an error that looks like a lost connection arrives as %+v", e)
	}
	s := stub()
	e = errorOf(t, limpet.Do1(t.Context(), s, Shop.Fail, "abort"))
	if !e.Reset || !limpet.BreaksStub(e) || s.Err() == nil {
		t.Errorf("an abort arrives as %+v; the stub says %v", e, s.Err())
	}
	_, err := stub().Invoke(t.Context(), "nothing")
	if e = errorOf(t, err); e.Code != limpet.CodeUnknownMethod || !e.ByLimpet() {
		t.Errorf("an unknown method: %+v", e)
	}
	_, err = stub().Invoke(t.Context(), "add", "two")
	if e = errorOf(t, err); e.Code != limpet.CodeInvalidArgument || !e.ByLimpet() || e.Delivery != limpet.DeliveryReceived {
		t.Errorf("a wrong argument: %+v", e)
	}
}

// TestLargeValues sends what fits into no frame, no window and no connection's
// window.
func TestLargeValues(t *testing.T) {
	w := open(t, nil)
	s := shops(t, dial(t, w.addr)).Named("x")
	for _, size := range []int{0, 1, 4 << 10, 64 << 10, 1 << 20, 31 << 20} {
		v := make([]byte, size)
		_, _ = rand.Read(v)
		got, err := limpet.Call1(t.Context(), s, Shop.Echo, v)
		if err != nil || !bytes.Equal(got, v) {
			t.Errorf("%d bytes come back as %d, %v", size, len(got), err)
		}
	}
}

func TestManyCallers(t *testing.T) {
	w := open(t, nil)
	c := dial(t, w.addr)
	ns := shops(t, c)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			s := ns.Named(fmt.Sprint("o", i%8))
			for k := range 50 {
				if _, err := limpet.Call1(t.Context(), s, Shop.Add, 1); err != nil {
					t.Errorf("caller %d, call %d: %v", i, k, err)
					return
				}
			}
		})
	}
	all.Wait()
	for i := range 8 {
		if n, err := limpet.Call(t.Context(), ns.Named(fmt.Sprint("o", i)), Shop.Get); n != 400 || err != nil {
			t.Errorf("object %d has %d, %v, want 400", i, n, err)
		}
	}
}

func TestFetch(t *testing.T) {
	w := open(t, nil)
	s := shops(t, dial(t, w.addr)).Named("x")
	body := make([]byte, 3<<20)
	_, _ = rand.Read(body)
	want := sha256.Sum256(body)
	for name, r := range map[string]io.Reader{"buffered": bytes.NewReader(body), "stream": io.MultiReader(bytes.NewReader(body))} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://shop/echo?a=b", r)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.Fetch(req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil || sha256.Sum256(got) != want {
			t.Errorf("%s: %d bytes come back, %v, want %d", name, len(got), err, len(body))
		}
		resp.Body.Close()
		if resp.StatusCode != 202 || resp.Header.Get("X-Method") != "POST" || len(resp.Header["X-Many"]) != 2 ||
			resp.Trailer.Get("X-Sum") != fmt.Sprint(len(body), " ", nil) {
			t.Errorf("%s: status %d, header %v, trailer %v", name, resp.StatusCode, resp.Header, resp.Trailer)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://shop/again", bytes.NewReader([]byte("hi")))
	resp, err := s.Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); string(b) != "hi" || err != nil {
		t.Errorf("after a redirect: %q, %v", b, err)
	}
}

// TestFetchBothWays sends a byte only when the answer to the one before has
// come: nothing is held back on the way.
func TestFetchBothWays(t *testing.T) {
	w := open(t, nil)
	s := shops(t, dial(t, w.addr)).Named("x")
	r, pw := io.Pipe()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://shop/step", r)
	resp, err := s.Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, c := range "limpet" {
		if _, err := pw.Write([]byte{byte(c)}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 1)
		if _, err := io.ReadFull(resp.Body, got); err != nil || got[0] != byte(c)-32 {
			t.Fatalf("%q comes back as %q, %v", c, got, err)
		}
	}
	_ = pw.Close()
	if b, err := io.ReadAll(resp.Body); len(b) != 0 || err != nil {
		t.Errorf("at the end: %q, %v", b, err)
	}
}

func TestCancelReachesTheHandler(t *testing.T) {
	w := open(t, nil)
	s := shops(t, dial(t, w.addr)).Named("x")
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("changed my mind")
	done := make(chan error, 1)
	go func() { done <- limpet.Do(ctx, s, Shop.Wait) }()
	<-w.g.entered
	cancel(reason)
	e := errorOf(t, <-done)
	if e.Code != limpet.CodeCanceled || !errors.Is(e, reason) || e.Delivery != limpet.DeliveryUncertain {
		t.Errorf("the caller gets %+v", e)
	}
	if err := <-w.g.ended; err == nil {
		t.Error("the handler's context did not end")
	}
	// A deadline ends the handler as one.
	ctx2, cancel2 := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel2()
	if err := limpet.Do(ctx2, s, Shop.Wait); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller gets %v", err)
	}
	<-w.g.entered
	if err := <-w.g.ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the handler's context ended with %v", err)
	}
	// So does the end of interest in a response.
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://shop/flood", nil)
	resp, err := s.Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if err := <-w.g.ended; err == nil {
		t.Error("the handler could write for ever")
	}
}

// TestSlowReader lets one response stand unread: other calls go on, and what is
// held for it is bounded.
func TestSlowReader(t *testing.T) {
	w := open(t, nil)
	c := dial(t, w.addr)
	ns := shops(t, c)
	var stalled []*http.Response
	for i := range 20 { // more than fill the connection's window
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://shop/flood", nil)
		resp, err := ns.Named(fmt.Sprint("slow", i)).Fetch(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, resp.Body, 4<<20); err != nil { // its window grows
			t.Fatal(err)
		}
		stalled = append(stalled, resp)
	}
	v := make([]byte, 8<<20)
	if got, err := limpet.Call1(t.Context(), ns.Named("fast"), Shop.Echo, v); len(got) != len(v) || err != nil {
		t.Errorf("a call beside it gives %d bytes, %v", len(got), err)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://shop/echo", bytes.NewReader(v))
	resp, err := ns.Named("fast").Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); n != int64(len(v)) || err != nil {
		t.Errorf("a fetch beside it gives %d bytes, %v", n, err)
	}
	resp.Body.Close()
	for _, r := range stalled {
		r.Body.Close()
		if err := <-w.g.ended; err == nil {
			t.Error("a handler could write for ever")
		}
	}
}

// TestNotSupported passes what can't be carried: each is refused, by name.
func TestNotSupported(t *testing.T) {
	w := open(t, nil)
	s := shops(t, dial(t, w.addr)).Named("x")
	for name, v := range map[string]any{
		"func()": func() {}, "chan": make(chan int),
	} {
		_, err := s.Invoke(t.Context(), "echo", v)
		if e := errorOf(t, err); e.Delivery != limpet.DeliveryNone || e.Attempts != 0 {
			t.Errorf("%s: %+v", name, e)
		} else {
			wantIn(t, "the refusal", e.Error(), name)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://shop/echo", nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "websocket")
	_, err := s.Fetch(req)
	if e := errorOf(t, err); e.Code != limpet.CodeNotSupported {
		t.Errorf("an upgrade: %+v", e)
	} else {
		wantIn(t, "the refusal", e.Error(), "not supported", "WebSocket")
	}
}

// TestTwoNodes gives a client the addresses of two nodes that share nothing: when
// the first goes, the second is refused by name, and a retry finds the first
// again.
func TestTwoNodes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	one, other := start(t, dir, ""), open(t, nil)
	c, err := client.Dial(t.Context(), []string{one.addr, other.addr})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ns := shops(t, c)
	if n, err := limpet.Call1(t.Context(), ns.Named("x"), Shop.Add, 1); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	one.kill()
	for range 2 {
		// SPEC C20: nothing was sent.
		_, err = limpet.Call1(t.Context(), ns.Named("x", limpet.NoRetries()), Shop.Add, 1)
		if e := errorOf(t, err); e.Code == limpet.CodeDisconnected && e.Delivery == limpet.DeliveryUncertain {
			continue // sent before the client heard of the end
		}
		if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryNone {
			t.Errorf("%+v", e)
		}
		wantIn(t, "the error", err.Error(), one.addr, "connect to "+other.addr+": it is another node, with other data, than "+one.addr)
	}
	if n := other.g.runs.Load(); n != 0 {
		t.Errorf("the other node ran %d calls", n)
	}
	start(t, dir, one.addr)
	if n, err := limpet.Call(t.Context(), ns.Named("x", patient...), Shop.Get); n < 1 || err != nil {
		t.Errorf("after the restart: %d, %v", n, err)
	}
}
