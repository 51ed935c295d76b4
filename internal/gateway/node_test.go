package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// shop is an object of a whole node.
type shop struct {
	st *limpet.State
	at *counter
}

// counter is where the test meets the handlers of its shops.
type counter struct {
	entered chan struct{} // gets one when a handler waits
	left    chan error    // gets why it ended
	next    chan struct{} // lets a stream go on
}

func shopClass(at *counter) *limpet.Class {
	return limpet.NewClass("Shop", func(st *limpet.State) (*shop, error) { return &shop{st, at}, nil })
}

func (s *shop) Put(_ context.Context, v any) error           { return s.st.KV().Put("v", v) }
func (s *shop) Has(context.Context) (bool, error)            { return s.st.KV().Has("v") }
func (s *shop) Len(_ context.Context, v string) (int, error) { return len(v), nil }
func (s *shop) Big(_ context.Context, n int) (string, error) { return strings.Repeat("x", n), nil }
func (s *shop) Channel(context.Context) (any, error)         { return make(chan int), nil }
func (s *shop) Sell(_ context.Context, _ string) (n int, err error) {
	if _, err := s.st.KV().Get("sold", &n); err != nil {
		return 0, err
	}
	return n + 1, s.st.KV().Put("sold", n+1)
}

// Slow says that it runs and goes on when it is told so.
func (s *shop) Slow(ctx context.Context) (string, error) {
	s.at.entered <- struct{}{}
	select {
	case <-s.at.next:
		return "done", nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func (s *shop) Panic(context.Context) error {
	if err := s.st.KV().Put("v", 1); err != nil {
		return err
	}
	panic("spilled")
}

// Wait holds the object until its caller leaves.
func (s *shop) Wait(ctx context.Context) error {
	s.at.entered <- struct{}{}
	<-ctx.Done()
	s.at.left <- context.Cause(ctx)
	return ctx.Err()
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/stream" {
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "%d\n", i)
			w.(http.Flusher).Flush()
			<-s.at.next
		}
		return
	}
	b, err := io.ReadAll(r.Body)
	if err == nil {
		err = s.st.KV().Put("v", b)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "%s %s %d", r.Method, r.RequestURI, len(b))
}

func startNode(t *testing.T) (*fixture, *counter) {
	t.Helper()
	at := &counter{entered: make(chan struct{}, 1), left: make(chan error, 1), next: make(chan struct{})}
	n := limpettest.Start(t, shopClass(at))
	f := &fixture{t: t, srv: httptest.NewServer(n.Handler()), log: &lines{}}
	t.Cleanup(func() {
		f.srv.CloseClientConnections()
		f.srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return f, at
}

func (f *fixture) shop(method, args string) *reply {
	f.t.Helper()
	return f.do("POST", "/v1/objects/SHOP/a/call/"+method, strings.NewReader(args))
}

func TestNode(t *testing.T) {
	f, _ := startNode(t)
	if r := f.shop("put", `[{"deep":[1,{"$date":"2026-11-30T12:00:00.000Z"}]}]`); strings.TrimSpace(r.text) != "{}" {
		t.Fatal(r.text)
	}
	if r := f.shop("has", ""); strings.TrimSpace(r.text) != `{"result":true}` {
		t.Fatal(r.text)
	}
	r := f.do("PUT", "/v1/objects/SHOP/b/fetch/x//y?z=1", strings.NewReader("hello"))
	if r.status != 201 || r.text != "PUT /x//y?z=1 5" {
		t.Errorf("%d %s", r.status, r.text)
	}
	// SPEC B27: a result that can't be carried is the object's fault.
	r = f.shop("channel", "")
	r.wantError(t, 500, limpet.CodeInvalidArgument, limpet.DeliveryReceived, "result of channel")
	if !r.Error.Remote {
		t.Error("not remote")
	}
}

// TestNodeLimits: arguments and results at their limit.
func TestNodeLimits(t *testing.T) {
	f, _ := startNode(t)
	const limit = 32 << 20 // SPEC B30
	fits := `["` + strings.Repeat("x", limit-1000) + `"]`
	if r := f.shop("len", fits); strings.TrimSpace(r.text) != fmt.Sprintf(`{"result":%d}`, limit-1000) {
		t.Fatalf("%d %.300s", r.status, r.text)
	}
	f.shop("len", `["`+strings.Repeat("x", limit-4)+`"]`). // as JSON it fits exactly
								wantError(t, 413, limpet.CodeTooLarge, limpet.DeliveryNone, "limited to 32MiB")
	r := f.shop("big", fmt.Sprintf("[%d]", limit+1))
	r.wantError(t, 500, limpet.CodeTooLarge, limpet.DeliveryReceived, "limited to 32MiB")
	if r := f.shop("len", `["x"]`); r.status != 200 {
		t.Errorf("afterwards: %s", r.text)
	}
}

// TestNodePanic: the call ends with a reset, its turn is rolled back, the node
// goes on.
func TestNodePanic(t *testing.T) {
	f, _ := startNode(t)
	r := f.shop("panic", "")
	r.wantError(t, 500, limpet.CodeReset, limpet.DeliveryReceived, "")
	if !r.Error.Reset {
		t.Error(r.text)
	}
	if r := f.shop("has", ""); strings.TrimSpace(r.text) != `{"result":false}` {
		t.Error(r.text)
	}
}

// TestNodeClientLeaves: the handler's context ends with its client.
func TestNodeClientLeaves(t *testing.T) {
	f, at := startNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", f.srv.URL+"/v1/objects/SHOP/a/call/wait", strings.NewReader("[]"))
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() {
		_, err := http.DefaultTransport.RoundTrip(req)
		gone <- err
	}()
	<-at.entered
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if why := <-at.left; why == nil { // SPEC C41
		t.Error("the handler's context did not end")
	}
}

// TestNodeOverloaded: behind a call that holds the object, 1,000 may wait.
func TestNodeOverloaded(t *testing.T) {
	f, at := startNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	door := f.srv.Config.Handler // without sockets: they are not what is tested here
	call := func(ctx context.Context, method string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		door.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/objects/SHOP/a/call/"+method, nil))
		return w
	}
	var all sync.WaitGroup
	all.Go(func() { call(ctx, "wait") })
	<-at.entered
	// Of 1,100 more, 1,000 wait until they are left alone, the others are refused.
	refused := make(chan *httptest.ResponseRecorder, 1100)
	for range 1100 {
		all.Go(func() {
			if w := call(ctx, "has"); w.Code == 429 {
				refused <- w
			}
		})
	}
	for range 100 {
		w := <-refused
		if w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"overloaded":true`) || !strings.Contains(w.Body.String(), "Too many requests queued") { // SPEC C37
			t.Fatalf("%v %s", w.Header(), w.Body)
		}
	}
	cancel()
	all.Wait()
	if why := <-at.left; why == nil {
		t.Error("the handler's context did not end")
	}
	if len(refused) > 0 {
		t.Errorf("%d more than 100 were refused", len(refused))
	}
}

func TestNodeStream(t *testing.T) {
	f, at := startNode(t)
	resp, err := http.Get(f.srv.URL + "/v1/objects/SHOP/a/fetch/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		line, err := lines.ReadString('\n')
		if want := fmt.Sprintf("%d\n", i); err != nil || line != want {
			t.Fatalf("got %q, %v, want %q", line, err, want)
		}
		at.next <- struct{}{}
	}
	if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
