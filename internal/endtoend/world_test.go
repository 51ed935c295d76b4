package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/node"
)

// TestMain is a node process when the environment says so, else the tests.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LIMPET_ENDTOEND_STORE"); dir != "" {
		fmt.Fprintln(os.Stderr, killedStore(dir))
		os.Exit(1)
	}
	if dir := os.Getenv("LIMPET_ENDTOEND_NODE"); dir != "" {
		os.Exit(node.Main([]string{
			"--dir", dir, "--listen", "127.0.0.1:0", "--wire", os.Getenv("LIMPET_ENDTOEND_ADDR"),
		}, node.Config{Classes: []*limpet.Class{shopClass(&gates{}), gatedClass, deskClass(newDesks()), sinkClass}}, nil))
	}
	goleak.VerifyTestMain(m)
}

// gates lets tests see and hold methods of shops in this process.
type gates struct {
	entered chan struct{}
	open    chan struct{}
	ended   chan error
	runs    atomic.Int64
}

func newGates() *gates {
	return &gates{entered: make(chan struct{}, 100), open: make(chan struct{}), ended: make(chan error, 100)}
}

// Shop is what the tests call, as a client knows it.
type Shop interface {
	Add(ctx context.Context, n int) (int, error)
	Set(ctx context.Context, n int) error
	Get(ctx context.Context) (int, error)
	Wait(ctx context.Context) error
	Echo(ctx context.Context, v []byte) ([]byte, error)
	Fail(ctx context.Context, how string) error
	Left(ctx context.Context) (int64, error)
	Whole(ctx context.Context) (string, error)
	Slow(ctx context.Context, n int) (int, error)
}

type shop struct {
	st *limpet.State
	g  *gates
}

func shopClass(g *gates) *limpet.Class {
	return limpet.NewClass("Shop", func(st *limpet.State) (*shop, error) { return &shop{st, g}, nil },
		limpet.Retryable((*shop).Set, (*shop).Get, (*shop).ServeHTTP))
}

// gatedClass is a shop whose effects limpet gates, so that a retry after a
// restart can be accepted.
var gatedClass = limpet.NewClass("Gated", func(st *limpet.State) (*gated, error) { return &gated{st}, nil }, limpet.GatedEffects())

type gated struct{ st *limpet.State }

// Add is not marked: each run adds.
func (s *gated) Add(_ context.Context, n int) (int, error) { return add(s.st, n) }

// Slow says that it has begun, takes its time and adds.
func (s *gated) Slow(_ context.Context, n int) (int, error) {
	fmt.Println("slow has begun")
	time.Sleep(300 * time.Millisecond)
	return add(s.st, n)
}

func (s *gated) Get(context.Context) (int, error) { return get(s.st) }

func get(st *limpet.State) (n int, err error) {
	_, err = st.KV().Get("n", &n)
	return n, err
}

func add(st *limpet.State, n int) (int, error) {
	old, err := get(st)
	if err != nil {
		return 0, err
	}
	return old + n, st.KV().Put("n", old+n)
}

// Add is not marked: each run adds.
func (s *shop) Add(_ context.Context, n int) (int, error) {
	s.g.runs.Add(1)
	return add(s.st, n)
}

// Set is marked.
func (s *shop) Set(_ context.Context, n int) error {
	s.g.runs.Add(1)
	return s.st.KV().Put("n", n)
}

// Get is marked.
func (s *shop) Get(context.Context) (int, error) { return get(s.st) }

// Wait runs until the test lets it, or its context ends.
func (s *shop) Wait(ctx context.Context) error {
	s.g.entered <- struct{}{}
	select {
	case <-s.g.open:
		s.g.ended <- nil
		return nil
	case <-ctx.Done():
		s.g.ended <- context.Cause(ctx)
		return context.Cause(ctx)
	}
}

// Slow says that it has begun, and takes its time.
func (s *shop) Slow(_ context.Context, n int) (int, error) {
	fmt.Println("slow has begun")
	time.Sleep(300 * time.Millisecond)
	return add(s.st, n)
}

func (s *shop) Echo(_ context.Context, v []byte) ([]byte, error) { return v, nil }

func (s *shop) Fail(_ context.Context, how string) error {
	switch how {
	case "abort":
		s.st.Abort(errors.New("sold out"))
	case "claimed":
		return &limpet.Error{Code: limpet.CodeAlreadyReceived, Message: "call was refused: the object has received it already", Retryable: true}
	case "lost":
		return &limpet.Error{Code: limpet.CodeDisconnected, Message: "Network connection lost.", Retryable: true}
	}
	return &limpet.Error{Code: "SoldOut", Name: "ShopError", Message: how, Overloaded: true, Fields: map[string]any{"left": 7}}
}

// Left is the milliseconds until the caller's deadline, -1 without one.
func (s *shop) Left(ctx context.Context) (int64, error) {
	at, ok := ctx.Deadline()
	if !ok {
		return -1, nil
	}
	return time.Until(at).Milliseconds(), nil
}

// Whole is the object's own name.
func (s *shop) Whole(context.Context) (string, error) {
	name, _ := s.st.ID().Name()
	return name, nil
}

// ServeHTTP answers fetches; it is marked.
func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.g.runs.Add(1)
	switch r.URL.Path {
	case "/echo":
		w.Header().Set("X-Method", r.Method)
		w.Header()["X-Many"] = []string{"a", "b"}
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusAccepted)
		n, err := io.Copy(w, r.Body)
		w.Header().Set("X-Sum", fmt.Sprint(n, " ", err))
	case "/step": // answers each piece as it comes
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		buf := make([]byte, 1)
		for {
			n, err := r.Body.Read(buf)
			if n > 0 {
				_, _ = w.Write(bytes.ToUpper(buf[:n]))
				_ = rc.Flush()
			}
			if err != nil {
				return
			}
		}
	case "/flood": // writes until nobody reads
		buf := make([]byte, 64<<10)
		for {
			if _, err := w.Write(buf); err != nil {
				s.g.ended <- err
				return
			}
		}
	case "/again":
		http.Redirect(w, r, "/echo", http.StatusTemporaryRedirect)
	default:
		http.NotFound(w, r)
	}
}

// logs is a log that tests read.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// wait waits until the log has a text: it is written when the peer may know
// already.
func (l *logs) wait(t *testing.T, want string) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); !strings.Contains(l.String(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the log is %q, want %q in it", l.String(), want)
		}
	}
}

type world struct {
	n    *node.Node
	g    *gates
	log  *logs
	addr string
}

// open opens a node in this process that listens on loopback.
func open(t *testing.T, change func(*node.Config)) *world {
	t.Helper()
	w := &world{g: newGates(), log: &logs{}}
	cfg := node.Config{
		Dir: filepath.Join(t.TempDir(), "data"), Classes: []*limpet.Class{shopClass(w.g), gatedClass},
		Wire: node.Wire{Addr: "127.0.0.1:0"}, Logger: slog.New(slog.NewTextHandler(w.log, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	n, err := node.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.n, w.addr = n, n.WireAddr().String()
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return w
}

func dial(t *testing.T, addr string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), []string{addr}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func shops(t *testing.T, r limpet.Resolver) limpet.Namespace[Shop] {
	t.Helper()
	ns, err := limpet.NamespaceOf[Shop](r, "SHOP")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// errorOf is err as the one type there is.
func errorOf(t *testing.T, err error) *limpet.Error {
	t.Helper()
	e, ok := errors.AsType[*limpet.Error](err)
	if !ok {
		t.Fatalf("error is %v of type %T, want *limpet.Error", err, err)
	}
	return e
}

func wantIn(t *testing.T, what, got string, wants ...string) {
	t.Helper()
	for _, w := range wants {
		if !strings.Contains(got, w) {
			t.Errorf("%s is %q, want %q in it", what, got, w)
		}
	}
}
