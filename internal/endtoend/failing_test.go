package endtoend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/internal/sim"
	"github.com/limpet-dev/limpet/node"
)

// Failing is what callers know of an object that fails in every way there is.
type Failing interface {
	Do(ctx context.Context, what string) error
	Marked(ctx context.Context, what string) error
}

// failures is what the objects of a node have in common with the test.
type failures struct {
	cut     func()             // ends all connections of callers
	dead    *limpet.Stub[Shop] // of a node that is gone
	disk    *sim.Disk          // of the node
	entered chan struct{}      // a method that holds has begun
	release chan struct{}      // closed: it may end
	mu      sync.Mutex
	ran     map[string]int // by the object's name: methods begun
}

func (f *failures) begin(st *limpet.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name, _ := st.ID().Name()
	f.ran[name]++
}

func (f *failures) runs(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ran[name]
}

type failing struct {
	st *limpet.State
	f  *failures
}

var errConstructor = &limpet.Error{Name: "RangeError", Message: "no such object"}

func failingClass(f *failures) *limpet.Class {
	return limpet.NewClass("Failing", func(st *limpet.State) (*failing, error) {
		if name, _ := st.ID().Name(); strings.HasPrefix(name, "constructor") {
			return nil, errConstructor
		}
		return &failing{st, f}, nil
	}, limpet.Retryable((*failing).Marked))
}

func (x *failing) Do(ctx context.Context, what string) error {
	x.f.begin(x.st)
	switch what {
	case "nothing":
		return nil
	case "cut":
		x.f.cut()
		return nil
	case "error":
		return &limpet.Error{Code: "SoldOut", Name: "ShopError", Message: "none left", Fields: map[string]any{"left": 7}}
	case "forged":
		return &limpet.Error{
			Code: limpet.CodeDisconnected, Message: "Network connection lost.", Retryable: true, Overloaded: true,
			Delivery: limpet.DeliveryNone, Attempts: 9, Identity: "x",
		}
	case "pass on":
		return limpet.Do1(ctx, x.f.dead, Shop.Set, 1)
	case "abort with that":
		x.st.Abort(limpet.Do1(ctx, x.f.dead, Shop.Set, 1))
	case "abort":
		x.st.Abort(&limpet.Error{Name: "TypeError", Message: "x"})
	case "abort without a reason":
		x.st.Abort(nil)
	case "block":
		_ = x.st.BlockConcurrencyWhile(ctx, func(context.Context) error { return &limpet.Error{Name: "RangeError", Message: "blocked and failed"} })
	case "block for ever":
		return x.st.BlockConcurrencyWhile(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
	case "hold": // the object stays free for others
		return x.st.Await(ctx, func(ctx context.Context) error {
			x.f.entered <- struct{}{}
			select {
			case <-x.f.release:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	case "hog": // and here it does not
		x.f.entered <- struct{}{}
		select {
		case <-x.f.release:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case "key":
		return x.st.KV().Put("a\xff", 1)
	case "large":
		return x.st.KV().Put("k", strings.Repeat("x", 40<<20))
	case "power", "power, and an error":
		if err := x.st.KV().Put("k", 1); err != nil {
			return err
		}
		x.f.disk.CutPower(0, 0)
		if what == "power" {
			return nil
		}
		return errors.New("the method's own")
	default:
		return fmt.Errorf("unknown: %s", what)
	}
	return nil
}

// Marked is Do, and may run again.
func (x *failing) Marked(ctx context.Context, what string) error {
	if name, _ := x.st.ID().Name(); x.f.runs(name) > 0 && what == "cut" { // once is enough
		what = "nothing"
	}
	return x.Do(ctx, what)
}

// Large can't be carried.
func (x *failing) Large(context.Context) (string, error) {
	x.f.begin(x.st)
	return strings.Repeat("x", limpet.MaxValueBytes), nil
}

//nolint:unused // it is called by name, in vain
//lint:ignore U1000 it is called by name, in vain
func (x *failing) secret(context.Context) error { return nil }

// ServeHTTP does what Do does, and panics where that returns an error.
func (x *failing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	what := strings.ReplaceAll(strings.Trim(r.URL.Path, "/"), "-", " ")
	switch what {
	case "status":
		x.f.begin(x.st)
		w.WriteHeader(http.StatusServiceUnavailable)
	case "break off":
		x.f.begin(x.st)
		panic(http.ErrAbortHandler)
	case "cut later":
		x.f.begin(x.st)
		fmt.Fprint(w, "half")
		_ = http.NewResponseController(w).Flush()
		x.f.entered <- struct{}{}
		<-r.Context().Done()
	default:
		if err := x.Do(r.Context(), what); err != nil {
			panic(err)
		}
	}
}

// way is how the calls of a row go.
type way struct {
	t    *testing.T
	f    *failures
	n    *node.Node
	c    *client.Client // nil in process
	p    *proxy         // nil in process
	ns   limpet.Namespace[Failing]
	name string // of the row's object
}

func (w *way) stub(opts ...limpet.StubOption) *limpet.Stub[Failing] {
	return w.ns.Named(w.name, opts...)
}

// do calls the row's object.
func (w *way) do(what string, opts ...limpet.StubOption) error {
	return limpet.Do1(w.t.Context(), w.stub(opts...), Failing.Do, what)
}

// fetch asks the row's object and throws the answer away.
func (w *way) fetch(path string) error {
	resp, err := w.stub().Fetch(newRequest(w.t, "GET", "http://x/"+path, nil))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		w.t.Logf("status %d", resp.StatusCode)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// later makes a call, and returns how to get its error.
func later(f func() error) (wait func() error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() error { return <-done }
}

// metric is one without labels.
func (w *way) metric(name string) (v float64) {
	for _, m := range w.n.Metrics() {
		if m.Name == name {
			v += m.Value
		}
	}
	return v
}

// until waits until something holds, which nobody tells of.
func (w *way) until(what string, holds func() bool) {
	w.t.Helper()
	for limit := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			w.t.Fatalf("never: %s", what)
		}
	}
}

// openFailing opens a node with such objects, and the way to it.
func openFailing(t *testing.T, overWire bool) *way {
	t.Helper()
	f := &failures{
		disk: sim.NewDisk(), entered: make(chan struct{}, 10), release: make(chan struct{}), ran: map[string]int{},
		cut: func() { t.Error("there is no connection to cut") },
	}
	cfg := node.Config{
		Dir: "data", Classes: []*limpet.Class{failingClass(f)}, Wire: node.Wire{Addr: "127.0.0.1:0"},
		Logger: slog.New(slog.DiscardHandler), Fatal: func(error) {},
	}.OnDisk(f.disk, 1<<20)
	n, err := node.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() }) // rows break it
	gone := open(t, nil)
	f.dead = shops(t, dial(t, gone.addr)).Named("x", limpet.NoRetries())
	if err := gone.n.Close(); err != nil {
		t.Fatal(err)
	}
	w := &way{t: t, f: f, n: n}
	var r limpet.Resolver = n
	if overWire {
		w.p = newProxy(t, n.WireAddr().String())
		w.c = dial(t, w.p.addr())
		f.cut = w.p.cut
		r = w.c
	}
	if w.ns, err = limpet.NamespaceOf[Failing](r, "FAILING"); err != nil {
		t.Fatal(err)
	}
	return w
}
