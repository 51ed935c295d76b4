package endtoend

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/node"
)

// seen is all that an object can see of a request.
type seen struct {
	Method, Host, URI, Path, RawPath, Query string
	Header, Trailer                         http.Header
	Length                                  int64
	Sum                                     [32]byte
	Err                                     string
}

func look(r *http.Request, limit int64) seen {
	h := sha256.New()
	var err error
	if limit < 0 {
		_, err = io.Copy(h, r.Body)
	} else {
		_, err = io.CopyN(h, r.Body, limit)
	}
	s := seen{
		Method: r.Method, Host: r.Host, URI: r.RequestURI, Path: r.URL.Path, RawPath: r.URL.RawPath, Query: r.URL.RawQuery,
		Header: r.Header, Trailer: r.Trailer, Length: r.ContentLength, Sum: sha256.Sum256(h.Sum(nil)),
	}
	if err != nil {
		s.Err = err.Error()
	}
	return s
}

// fetches is an object whose handler is the test's. It is marked.
type fetches struct{ serve http.HandlerFunc }

func (f *fetches) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.serve(w, r) }

// openFetches opens a node with such an object behind a proxy, and a stub of it.
func openFetches(t *testing.T, serve http.HandlerFunc, opts ...client.Option) (*proxy, *client.Client, limpet.Namespace[any]) {
	t.Helper()
	class := limpet.NewClass("Fetches", func(*limpet.State) (*fetches, error) { return &fetches{serve}, nil },
		limpet.Retryable((*fetches).ServeHTTP))
	n, err := node.Open(t.Context(), node.Config{
		Dir: filepath.Join(t.TempDir(), "data"), Classes: []*limpet.Class{class}, Wire: node.Wire{Addr: "127.0.0.1:0"},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	p := newProxy(t, n.WireAddr().String())
	c := dial(t, p.addr(), opts...)
	ns, err := limpet.NamespaceOf[any](c, "FETCHES")
	if err != nil {
		t.Fatal(err)
	}
	return p, c, ns
}

// plainReader hides what http.NewRequest could rewind.
func plainReader(b []byte) io.Reader { return io.MultiReader(bytes.NewReader(b)) }

// TestBodiesOverFiveAttempts loses the connection four times when the object has
// read all of a request, and compares what five attempts brought.
func TestBodiesOverFiveAttempts(t *testing.T) {
	const frame, window = 64 << 10, 1 << 20
	sizes := map[string]int{"empty": 0, "1 byte": 1, "a frame and one": frame + 1, "1 MiB": 1 << 20, "windows": 3*window + 17}
	kinds := map[string]func(t *testing.T, b []byte) *http.Request{
		"bytes": func(t *testing.T, b []byte) *http.Request {
			return newRequest(t, "PUT", "http://shop/a", bytes.NewReader(b))
		},
		"GetBody": func(t *testing.T, b []byte) *http.Request {
			req := newRequest(t, "PUT", "http://shop/a", plainReader(b))
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(plainReader(b)), nil }
			return req
		},
		"buffered stream": func(t *testing.T, b []byte) *http.Request {
			return newRequest(t, "PUT", "http://shop/a", iotest.HalfReader(plainReader(b)))
		},
		"buffered stream of known length": func(t *testing.T, b []byte) *http.Request {
			req := newRequest(t, "PUT", "http://shop/a", plainReader(b))
			if len(b) > 0 { // 0 says that it is not known
				req.ContentLength = int64(len(b))
			}
			return req
		},
	}
	var all sync.WaitGroup // of tests that wait most of the time
	run := func(name string, f func(t *testing.T)) { all.Go(func() { t.Run(name, f) }) }
	defer all.Wait()
	for kind, request := range kinds {
		for size, n := range sizes {
			run(kind+", "+size, func(t *testing.T) {
				body := make([]byte, n)
				_, _ = rand.Read(body)
				req := request(t, body)
				fiveAttempts(t, req, body, false)
			})
		}
	}
	run("none", func(t *testing.T) {
		fiveAttempts(t, newRequest(t, "DELETE", "http://shop/a", nil), nil, false)
	})
	run("bytes, redirected", func(t *testing.T) {
		body := bytes.Repeat([]byte("0123456789"), 20_000)
		fiveAttempts(t, newRequest(t, "PUT", "http://shop/a", bytes.NewReader(body)), body, true)
	})
	run("buffered stream, redirected", func(t *testing.T) {
		body := bytes.Repeat([]byte("0123456789"), 200_000)
		fiveAttempts(t, newRequest(t, "PUT", "http://shop/a", plainReader(body)), body, true)
	})
}

func newRequest(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// fiveAttempts sends req with all that a request can carry. With redirect, the
// second attempt answers with a redirect, and three more follow.
func fiveAttempts(t *testing.T, req *http.Request, body []byte, redirect bool) {
	t.Helper()
	var mu sync.Mutex
	var got []seen
	var p *proxy
	p, c, ns := openFetches(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got = append(got, look(r, -1))
		n := len(got)
		mu.Unlock()
		switch {
		case n == 2 && redirect:
			w.Header().Set("Location", "/a;b%2Fc?x=%zz&&y=%2f;z&e=&f")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case n < 5:
			p.cut() // before the answer
		default:
			fmt.Fprint(w, "done")
		}
	})
	req.Header["X-Many"] = []string{"b", "a", "", "b"}
	req.Header["x-oDD-cASE"] = []string{"kept"}
	req.Header["Cookie"] = []string{"a=1; b=2"}
	req.Header["X-Empty"] = []string{""}
	req.Header["X-Latin"] = []string{"caf\xe9"} // no UTF-8
	req.Header.Set("Content-Type", "text/x-odd; charset=\"x\"")
	req.Host = "Other.Example:8080"
	if !redirect {
		req.URL.Path, req.URL.RawPath = "/a;b/c", "/a;b%2Fc"
		req.URL.RawQuery = "x=%zz&&y=%2f;z&e=&f"
	}
	header := req.Header.Clone()
	trailer := http.Header(nil)
	if len(body) > 0 {
		trailer = http.Header{"X-Sum": {"1", "2"}, "X-Late": {"set at the end"}}
		req.Trailer = http.Header{"X-Sum": {"1", "2"}, "X-Late": nil}
		read := req.Body
		req.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(read, atEnd(func() { req.Trailer["X-Late"] = []string{"set at the end"} })), read}
	}
	stub := ns.Named("x", limpet.RetryTimeout(time.Minute), limpet.BufferBody(8<<20))
	resp, err := stub.Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(answer) != "done" || err != nil {
		t.Errorf("the answer is %q, %v", answer, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if strikes := p.strikes.Load(); len(got) != 5 || strikes != map[bool]int64{false: 4, true: 3}[redirect] {
		t.Fatalf("%d attempts reached the object, %d connections were cut", len(got), strikes)
	}
	sum := sha256.Sum256(body)
	want := seen{
		Method: req.Method, Host: "Other.Example:8080", URI: "/a;b%2Fc?x=%zz&&y=%2f;z&e=&f", Path: "/a;b/c", RawPath: "/a;b%2Fc",
		Query: "x=%zz&&y=%2f;z&e=&f", Header: header, Trailer: trailer, Length: got[0].Length, Sum: sha256.Sum256(sum[:]),
	}
	if req.ContentLength > 0 && want.Length != req.ContentLength {
		t.Errorf("the object is told of %d bytes, want %d", want.Length, req.ContentLength)
	}
	for i, s := range got {
		w := want
		if redirect && i < 2 {
			w.URI, w.Path, w.RawPath, w.Query = "/a", "/a", "", ""
		}
		// SPEC E46, E42: every attempt of every hop brings the same bytes
		if diff := cmp.Diff(w, s); diff != "" {
			t.Errorf("attempt %d (- want, + got):\n%s", i+1, diff)
		}
	}
	for _, m := range c.Metrics() {
		if m.Name == "limpet_replay_memory_bytes" && m.Value != 0 {
			t.Errorf("%v bytes of replay memory are still in use", m.Value)
		}
	}
}

type atEnd func()

func (f atEnd) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

// TestBufferedStreamInPieces loses each attempt at another place of the body.
func TestBufferedStreamInPieces(t *testing.T) {
	body := make([]byte, 2<<20)
	_, _ = rand.Read(body)
	var mu sync.Mutex
	var sums []seen
	reads := []int64{0, 1, 1<<20 + 5, 100}
	var p *proxy
	p, _, ns := openFetches(t, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		limit := int64(-1)
		if n := len(sums); n < len(reads) {
			limit = reads[n]
			defer p.cut()
		}
		sums = append(sums, look(r, limit))
	})
	resp, err := ns.Named("x", limpet.RetryTimeout(time.Minute), limpet.BufferBody(2<<20)).Fetch(newRequest(t, "PUT", "http://shop/", plainReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	mu.Lock()
	defer mu.Unlock()
	for i, n := range append(reads, int64(len(body))) {
		sum := sha256.Sum256(body[:n])
		if sums[i].Sum != sha256.Sum256(sum[:]) || sums[i].Err != "" {
			t.Errorf("attempt %d brought other bytes: %q", i+1, sums[i].Err)
		}
	}
}

// TestBufferBodyLimits goes over each limit on bodies that are kept.
func TestBufferBodyLimits(t *testing.T) {
	for _, test := range []struct {
		name   string
		buffer int64
		opts   []client.Option
		length int64
		why    string
	}{
		{"not asked for", 0, nil, 0, "can be read only once"},
		{"over BufferBody", 99_999, nil, 0, "larger than the 99999 bytes of BufferBody"},
		{"known to be over it", 99_999, nil, 100_000, "larger than the 99999 bytes of BufferBody"},
		{"over the limit of a call", 1 << 20, []client.Option{client.ReplayMemory(0, 50_000)}, 0, "50000 bytes of replay memory that a call may have"},
		{"over the pool", 1 << 20, []client.Option{client.ReplayMemory(60_000, 0)}, 0, "replay memory is full"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var runs atomic.Int64
			var p *proxy
			p, c, ns := openFetches(t, func(w http.ResponseWriter, r *http.Request) {
				runs.Add(1)
				n, err := io.Copy(io.Discard, r.Body)
				if r.URL.Path == "/lose" {
					p.cut()
				}
				fmt.Fprint(w, n, err)
			}, test.opts...)
			stub := ns.Named("x", limpet.BufferBody(test.buffer))
			req := newRequest(t, "PUT", "http://shop/keep", plainReader(make([]byte, 100_000)))
			req.ContentLength = test.length
			resp, err := stub.Fetch(req)
			// SPEC G21: the call itself proceeds
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(b) != "100000 <nil>" || err != nil {
				t.Errorf("the answer is %q, %v", b, err)
			}
			req = newRequest(t, "PUT", "http://shop/lose", plainReader(make([]byte, 100_000)))
			req.ContentLength = test.length
			_, err = stub.Fetch(req)
			e := errorOf(t, err)
			if e.Code != limpet.CodeDisconnected || e.Attempts != 1 || e.Delivery != limpet.DeliveryUncertain || runs.Load() != 2 {
				t.Errorf("a lost connection gives %+v after %d runs", e, runs.Load())
			}
			wantIn(t, "the reason", e.NoRetry, test.why)
			wantIn(t, "the text", e.Error(), "Network connection lost", "no further attempt", test.why)
			refused := map[bool]float64{true: 0, false: 2}[test.buffer == 0]
			for _, m := range c.Metrics() {
				// SPEC I7
				if m.Name == "limpet_replay_refused_total" && m.Value != refused || m.Name == "limpet_replay_memory_bytes" && m.Value != 0 {
					t.Errorf("%s is %v", m.Name, m.Value)
				}
			}
		})
	}
}

// TestBufferBodyDefaults sets the limit for a binding, and has it over the wire
// and in sub-namespaces; a stub's own option wins.
func TestBufferBodyDefaults(t *testing.T) {
	w := open(t, func(c *node.Config) {
		c.Namespaces = map[string]node.Namespace{"SHOP": {Class: "Shop", Defaults: []limpet.StubOption{limpet.BufferBody(1000), limpet.MaxRetries(7)}}}
	})
	for name, ns := range map[string]limpet.Namespace[Shop]{
		"in the node": shops(t, w.n), "over the wire": shops(t, dial(t, w.addr)), "in a jurisdiction": shops(t, dial(t, w.addr)).Jurisdiction("eu"),
	} {
		// SPEC D5: field by field
		want := limpet.RetryPolicy{MaxRetries: 7, Timeout: limpet.DefaultRetryTimeout, BufferBody: 1000}
		if p := ns.Named("x").Policy(); p != want {
			t.Errorf("%s: %+v, want %+v", name, p, want)
		}
		want.BufferBody = 5
		if p := ns.Named("x", limpet.BufferBody(5)).Policy(); p != want {
			t.Errorf("%s: %+v, want %+v", name, p, want)
		}
		if err := ns.Named("x", limpet.BufferBody(-1)).Err(); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("%s: -1 is %v", name, err)
		}
	}
	_, err := node.Open(t.Context(), node.Config{
		Dir: t.TempDir() + "/d", Classes: []*limpet.Class{gatedClass}, BufferBody: -1, ReplayMemory: -1, ReplayMemoryPerCall: -1,
		Namespaces: map[string]node.Namespace{"GATED": {Class: "Gated", Defaults: []limpet.StubOption{limpet.BufferBody(-2)}}},
	})
	if err == nil {
		t.Fatal("a node opened with negative limits")
	}
	wantIn(t, "the error", err.Error(), "Config.BufferBody is -1", "Config.ReplayMemory is -1", "Config.ReplayMemoryPerCall is -1", "BufferBody(-2)")
	if _, err := client.Dial(context.Background(), []string{w.addr}, client.ReplayMemory(-1, 0)); err == nil || !strings.Contains(err.Error(), "ReplayMemory(-1, 0)") {
		t.Errorf("a client says %v", err)
	}
}
