package endtoend

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/node"
)

// Desk is an object that takes and gives stubs, functions and streams, as a client
// knows it.
type Desk interface {
	Twice(ctx context.Context, n int, fn func(context.Context, int) (int, error)) (int, error)
	Keep(ctx context.Context, s *limpet.Stub[any]) error
	UseKept(ctx context.Context, n int) (any, error)
	DropKept(ctx context.Context) error
	Relay(ctx context.Context, to string, s *limpet.Stub[any], n int) (any, error)
	Call(ctx context.Context, s *limpet.Stub[any], n int) (any, error)
	Sum(ctx context.Context, r io.Reader) (Sum, error)
	First(ctx context.Context, r io.Reader) (int, error)
	Text(ctx context.Context, n int) (io.ReadCloser, error)
	Meter(ctx context.Context) (*limpet.Stub[any], error)
	Meters(ctx context.Context, n int) ([]*limpet.Stub[any], error)
	Adder(ctx context.Context, by int) (func(context.Context, int) (int, error), error)
	Total(ctx context.Context) (int, error)
	Add(ctx context.Context, n int) (int, error)
	Level(ctx context.Context) (int, error)
}

// Sum tells of a stream that was read.
type Sum struct {
	Bytes int64
	CRC   uint32
}

// desks are what the tests see of all desks of a process.
type desks struct {
	disposed, runs atomic.Int64
	entered, goOn  chan struct{}
}

func newDesks() *desks {
	return &desks{entered: make(chan struct{}, 100), goOn: make(chan struct{})}
}

type desk struct {
	st   *limpet.State
	all  *desks
	kept *limpet.Stub[any]
}

func deskClass(all *desks) *limpet.Class {
	return limpet.NewClass("Desk", func(st *limpet.State) (*desk, error) { return &desk{st: st, all: all}, nil },
		limpet.Getter((*desk).Level))
}

func (d *desk) Twice(ctx context.Context, n int, fn func(context.Context, int) (int, error)) (int, error) {
	a, err := fn(ctx, n)
	if err != nil {
		return 0, err
	}
	b, err := fn(ctx, a)
	return a + b, err
}

func (d *desk) Keep(_ context.Context, s *limpet.Stub[any]) error {
	d.kept = s.Dup()
	return nil
}

func (d *desk) UseKept(ctx context.Context, n int) (any, error) { return d.kept.Invoke(ctx, "add", n) }

func (d *desk) DropKept(context.Context) error {
	d.kept.Close()
	return nil
}

func (d *desk) Relay(ctx context.Context, to string, s *limpet.Stub[any], n int) (any, error) {
	ns, err := limpet.NamespaceOf[*desk](d.st, "DESK")
	if err != nil {
		return nil, err
	}
	return limpet.Call2(ctx, ns.Named(to), (*desk).Call, s, n)
}

func (d *desk) Call(ctx context.Context, s *limpet.Stub[any], n int) (any, error) {
	return s.Invoke(ctx, "add", n)
}

func (d *desk) Sum(_ context.Context, r io.Reader) (s Sum, err error) {
	h := crc32.NewIEEE()
	s.Bytes, err = io.Copy(h, r)
	s.CRC = h.Sum32()
	return s, err
}

// First reads one byte, and no more until the test lets it.
func (d *desk) First(_ context.Context, r io.Reader) (int, error) {
	b := make([]byte, 1)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, err
	}
	d.all.entered <- struct{}{}
	<-d.all.goOn
	n, err := io.Copy(io.Discard, r)
	return int(n), err
}

func (d *desk) Text(_ context.Context, n int) (io.ReadCloser, error) {
	return io.NopCloser(&numbers{left: int64(n)}), nil
}

func (d *desk) Meter(context.Context) (*limpet.Stub[any], error) {
	return limpet.NewTarget(&deskMeter{d})
}

func (d *desk) Meters(ctx context.Context, n int) (all []*limpet.Stub[any], err error) {
	for range n {
		s, err := d.Meter(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// Later is Meter when the test lets it.
func (d *desk) Later(ctx context.Context) (*limpet.Stub[any], error) {
	d.all.runs.Add(1)
	d.all.entered <- struct{}{}
	select {
	case <-d.all.goOn:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return d.Meter(ctx)
}

// Nested is a value with a target and a function deep in it.
func (d *desk) Nested(ctx context.Context) (map[string]any, error) {
	m, err := d.Meter(ctx)
	if err != nil {
		return nil, err
	}
	fn := func(_ context.Context, n int) (int, error) { return n * 2, nil }
	return map[string]any{"n": 7, "deep": map[string]any{"list": []any{m}, "double": fn}}, nil
}

func (d *desk) Broken(context.Context) (*limpet.Stub[any], error) {
	return nil, &limpet.Error{Code: "Broken", Message: "no meter"}
}

func (d *desk) Adder(_ context.Context, by int) (func(context.Context, int) (int, error), error) {
	return func(_ context.Context, n int) (int, error) { return add(d.st, n*by) }, nil
}

func (d *desk) Total(context.Context) (int, error) { return get(d.st) }

func (d *desk) Add(_ context.Context, n int) (int, error) { return add(d.st, n) }

// Level is a property.
func (d *desk) Level(context.Context) (int, error) {
	d.all.runs.Add(1)
	return get(d.st)
}

// ServeHTTP answers with what was sent.
func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.Copy(w, r.Body)
}

// deskMeter is a target of a desk.
type deskMeter struct{ d *desk }

func (m *deskMeter) Add(_ context.Context, n int) (int, error) { return add(m.d.st, n) }

func (m *deskMeter) Slow(_ context.Context, n int) (int, error) {
	m.d.all.entered <- struct{}{}
	<-m.d.all.goOn
	return add(m.d.st, n)
}

func (m *deskMeter) Dispose() { m.d.all.disposed.Add(1) }

// numbers is a reader of bytes that can be checked.
type numbers struct{ at, left int64 }

func (r *numbers) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), r.left)
	for i := range p[:n] {
		p[i] = byte((r.at + int64(i)) % 251)
	}
	r.at += n
	r.left -= n
	return int(n), nil
}

func sumOf(n int64) Sum {
	h := crc32.NewIEEE()
	_, _ = io.Copy(h, &numbers{left: n})
	return Sum{n, h.Sum32()}
}

// counter is a target of the client.
type counter struct {
	n, disposed atomic.Int64
}

func (c *counter) Add(_ context.Context, n int) (int, error) { return int(c.n.Add(int64(n))), nil }
func (c *counter) Dispose()                                  { c.disposed.Add(1) }

// deskWorld is a node with desks, and a client of it through a proxy.
type deskWorld struct {
	*world
	all   *desks
	proxy *proxy
	c     *client.Client
	ns    limpet.Namespace[Desk]
}

func openDesks(t *testing.T) *deskWorld {
	t.Helper()
	all := newDesks()
	w := &deskWorld{all: all, world: open(t, func(c *node.Config) { c.Classes = []*limpet.Class{deskClass(all)} })}
	w.proxy = newProxy(t, w.addr)
	w.c = dial(t, w.proxy.addr())
	var err error
	if w.ns, err = limpet.NamespaceOf[Desk](w.c, "DESK"); err != nil {
		t.Fatal(err)
	}
	return w
}

// held is how many stubs, functions and streams the node has given and taken.
func (w *deskWorld) held() int {
	for _, m := range w.n.Metrics() {
		if m.Name == "limpet_wire_capabilities" {
			return int(m.Value)
		}
	}
	return -1
}

// empty waits until the tables are: what a client's table has is in the node's.
func (w *deskWorld) empty(t *testing.T) {
	t.Helper()
	eventually(t, "capabilities left", func() bool { return w.held() == 0 })
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestCallbackOverWire lets the node call the client's function during a call.
func TestCallbackOverWire(t *testing.T) {
	w := openDesks(t)
	d := w.ns.Named("x")
	var seen []int
	// SPEC B28
	n, err := limpet.Call2(t.Context(), d, Desk.Twice, 5, func(ctx context.Context, n int) (int, error) {
		seen = append(seen, n)
		// And calls the node from within.
		_, err := limpet.Call1(ctx, w.ns.Named("other"), Desk.Add, n)
		return n + 1, err
	})
	if n != 13 || err != nil || fmt.Sprint(seen) != "[5 6]" {
		t.Errorf("the call gives %d, %v; the function saw %v", n, err, seen)
	}
	if n, err := limpet.Call(t.Context(), w.ns.Named("other"), Desk.Total); n != 11 || err != nil {
		t.Errorf("the other object has %d, %v", n, err)
	}
	_, err = limpet.Call2(t.Context(), d, Desk.Twice, 5, func(context.Context, int) (int, error) {
		return 0, &limpet.Error{Code: "Mine", Message: "no more", Fields: map[string]any{"left": 0}}
	})
	if e := errorOf(t, err); e.Code != "Mine" || e.Message != "no more" || !e.Remote || fmt.Sprint(e.Fields["left"]) != "0" || e.Attempts != 1 {
		t.Errorf("the function's error arrives as %+v", e)
	}
	_, err = limpet.Call2(t.Context(), d, Desk.Twice, 5, func(context.Context, int) (int, error) { panic("mine") })
	if e := errorOf(t, err); !strings.Contains(e.Error(), "panicked: mine") || e.Reset {
		t.Errorf("its panic arrives as %+v", e)
	}
	// Many at once, each with a function of its own.
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			n, err := limpet.Call2(t.Context(), w.ns.Named(fmt.Sprint("many", i%10)), Desk.Twice, i, func(_ context.Context, n int) (int, error) { return n + i, nil })
			if n != 2*i+3*i || err != nil {
				t.Errorf("number %d gives %d, %v", i, n, err)
			}
		})
	}
	all.Wait()
	w.empty(t)
}

// TestStubsOverWire passes stubs around: the client's target, an object's stub,
// through one object to another.
func TestStubsOverWire(t *testing.T) {
	w := openDesks(t)
	a := w.ns.Named("a")
	mine := &counter{}
	target, err := limpet.NewTarget(mine)
	if err != nil {
		t.Fatal(err)
	}
	// Client to object to another object, which calls the client.
	if v, err := limpet.Call3(t.Context(), a, Desk.Relay, "b", target, 3); v != int64(3) || err != nil {
		t.Errorf("the client's target through two objects gives %v, %v", v, err)
	}
	// SPEC B32: an object's stub arrives as a plain stub, and works.
	any1, err := limpet.NamespaceOf[any](w.c, "DESK")
	if err != nil {
		t.Fatal(err)
	}
	if v, err := limpet.Call3(t.Context(), a, Desk.Relay, "b", any1.Named("c"), 4); v != int64(4) || err != nil {
		t.Errorf("an object's stub through two objects gives %v, %v", v, err)
	}
	if n, err := limpet.Call(t.Context(), w.ns.Named("c"), Desk.Total); n != 4 || err != nil {
		t.Errorf("that object has %d, %v", n, err)
	}
	// SPEC B37, B39: kept beyond the call only by Dup.
	if err := limpet.Do1(t.Context(), a, Desk.Keep, target); err != nil {
		t.Fatal(err)
	}
	if v, err := limpet.Call1(t.Context(), a, Desk.UseKept, 10); v != int64(13) || err != nil {
		t.Errorf("a kept stub gives %v, %v", v, err)
	}
	target.Close()
	target.Close()
	// SPEC C42
	_, err = target.Invoke(t.Context(), "add", 1)
	if e := errorOf(t, err); e.Code != limpet.CodeDisposed || e.Message != "RPC stub used after being disposed." {
		t.Errorf("a closed stub: %+v", e)
	}
	if mine.disposed.Load() != 0 {
		t.Error("the target was disposed of while the object has it")
	}
	if err := limpet.Do(t.Context(), a, Desk.DropKept); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client's Dispose", func() bool { return mine.disposed.Load() == 1 })
	_, err = limpet.Call1(t.Context(), a, Desk.UseKept, 1)
	if e := errorOf(t, err); e.Code != limpet.CodeDisposed {
		t.Errorf("a stub that the object has closed: %+v", e)
	}
	w.empty(t)
	if mine.disposed.Load() != 1 {
		t.Errorf("disposed of %d times", mine.disposed.Load())
	}
}

// TestResultsOverWire calls what a result holds, after the call has returned.
func TestResultsOverWire(t *testing.T) {
	w := openDesks(t)
	a := w.ns.Named("a")
	meter, err := limpet.Call(t.Context(), a, Desk.Meter)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := meter.Invoke(t.Context(), "add", 2); v != int64(2) || err != nil {
		t.Errorf("the target gives %v, %v", v, err)
	}
	adder, err := limpet.Call1(t.Context(), a, Desk.Adder, 10)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := adder(t.Context(), 3); n != 32 || err != nil {
		t.Errorf("the function gives %d, %v", n, err)
	}
	// It comes home: to its object, through another one.
	if v, err := limpet.Call3(t.Context(), w.ns.Named("b"), Desk.Relay, "c", meter, 8); v != int64(40) || err != nil {
		t.Errorf("the target through two objects gives %v, %v", v, err)
	}
	// SPEC B38: each sending is its own.
	again, err := limpet.Call(t.Context(), a, Desk.Meter)
	if err != nil {
		t.Fatal(err)
	}
	dup := meter.Dup()
	meter.Close()
	if _, err := dup.Invoke(t.Context(), "add", 0); err != nil {
		t.Errorf("the Dup of a closed one: %v", err)
	}
	if w.all.disposed.Load() != 0 {
		t.Error("it was disposed of while there is a Dup")
	}
	dup.Close()
	eventually(t, "the object's Dispose", func() bool { return w.all.disposed.Load() == 1 })
	again.Close()
	eventually(t, "the second Dispose", func() bool { return w.all.disposed.Load() == 2 })
	// The function has no Close: the garbage collector is the net.
	adder = nil
	eventually(t, "the function's release", func() bool { runtime.GC(); return w.held() == 0 })
}

// TestStreamsOverWire sends long streams both ways, and reads them slowly.
func TestStreamsOverWire(t *testing.T) {
	w := openDesks(t)
	const size = 100 << 20
	want := sumOf(size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	// SPEC B28, B31
	got, err := limpet.Call1(t.Context(), w.ns.Named("sum"), Desk.Sum, io.Reader(&numbers{left: size}))
	if err != nil || got != want {
		t.Errorf("the object read %+v, %v; want %+v", got, err, want)
	}
	r, err := limpet.Call1(t.Context(), w.ns.Named("text"), Desk.Text, size)
	if err != nil {
		t.Fatal(err)
	}
	h := crc32.NewIEEE()
	if n, err := io.Copy(h, r); n != size || err != nil || h.Sum32() != want.CRC {
		t.Errorf("the client read %d bytes with %x, %v", n, h.Sum32(), err)
	}
	_ = r.Close()
	runtime.ReadMemStats(&after)
	t.Logf("the heap has grown from %d to %d KiB", before.HeapSys>>10, after.HeapSys>>10)
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 64<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	w.empty(t)

	// A reader that stalls holds back its own stream alone.
	slow := &numbers{left: size}
	stalled := make(chan error, 1)
	var n int
	go func() {
		var err error
		n, err = limpet.Call1(t.Context(), w.ns.Named("slow"), Desk.First, io.Reader(slow))
		stalled <- err
	}()
	<-w.all.entered
	if got, err := limpet.Call1(t.Context(), w.ns.Named("sum"), Desk.Sum, io.Reader(&numbers{left: 8 << 20})); err != nil || got != sumOf(8<<20) {
		t.Errorf("a stream beside it: %+v, %v", got, err)
	}
	close(w.all.goOn)
	if err := <-stalled; err != nil || n != size-1 {
		t.Errorf("the slow one gives %d, %v", n, err)
	}
	// A source that fails, and one that is closed early.
	_, err = limpet.Call1(t.Context(), w.ns.Named("sum"), Desk.Sum, io.MultiReader(&numbers{left: 1000}, brokenReader{}))
	if e := errorOf(t, err); !strings.Contains(e.Error(), "disconnected prematurely") || !strings.Contains(e.Error(), "torn") {
		t.Errorf("a source that fails: %+v", e)
	}
	if r, err = limpet.Call1(t.Context(), w.ns.Named("text"), Desk.Text, size); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
		t.Error(err)
	}
	_ = r.Close()
	w.empty(t)
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("torn") }

// TestCapabilityFetchOverWire sends a request through a stub that was passed on.
func TestCapabilityFetchOverWire(t *testing.T) {
	w := openDesks(t)
	meter, err := limpet.Call(t.Context(), w.ns.Named("a"), Desk.Meter)
	if err != nil {
		t.Fatal(err)
	}
	defer meter.Close()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://desk/", strings.NewReader("x"))
	_, err = meter.Fetch(req)
	if e := errorOf(t, err); !strings.Contains(e.Error(), `does not implement the method "fetch"`) {
		t.Errorf("a target without a handler: %+v", e)
	}
}

// TestPropertiesOverWire reads properties, and a method as one.
func TestPropertiesOverWire(t *testing.T) {
	w := openDesks(t)
	any1, err := limpet.NamespaceOf[any](w.c, "DESK")
	if err != nil {
		t.Fatal(err)
	}
	d := any1.Named("a")
	if _, err := limpet.Call1(t.Context(), w.ns.Named("a"), Desk.Add, 7); err != nil {
		t.Fatal(err)
	}
	// SPEC B24
	if v, err := d.Get(t.Context(), "level"); v != int64(7) || err != nil {
		t.Errorf("the property is %v, %v", v, err)
	}
	v, err := d.Get(t.Context(), "add")
	if err != nil {
		t.Fatal(err)
	}
	m, ok := v.(*limpet.Stub[any])
	if !ok {
		t.Fatalf("a method read as a property is a %T", v)
	}
	if v, err := m.Apply(t.Context(), 3); v != int64(10) || err != nil {
		t.Errorf("it gives %v, %v", v, err)
	}
	m.Close()
	// SPEC B25, B35
	_, err = d.Get(t.Context(), "level", "deeper")
	if e := errorOf(t, err); !strings.Contains(e.Error(), "does not implement") || !e.Remote {
		t.Errorf("a member of a number: %+v", e)
	}
	_, err = d.Get(t.Context(), make([]string, limpet.MaxPath+1)...)
	if e := errorOf(t, err); !strings.Contains(e.Error(), "too deep (max 64)") || e.Delivery != limpet.DeliveryNone {
		t.Errorf("a path too deep: %+v", e)
	}
	w.empty(t)

	// SPEC E57: a read is retried on a fresh connection, with the same identity
	// when it may have arrived.
	w.all.runs.Store(0)
	w.proxy.cutUp.Store(2)
	if v, err := d.Get(t.Context(), "level"); v != int64(10) || err != nil {
		t.Errorf("after two requests that were lost: %v, %v", v, err)
	}
	if w.all.runs.Load() != 1 || w.proxy.strikes.Load() != 2 {
		t.Errorf("it ran %d times after %d cuts", w.all.runs.Load(), w.proxy.strikes.Load())
	}
	w.proxy.cutDown.Store(1)
	_, err = d.Get(t.Context(), "level")
	// The object has taken the identity, and a getter is not marked.
	if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Attempts != 2 || e.Identity == "" || e.Delivery != limpet.DeliveryUncertain {
		t.Errorf("a read whose reply was lost: %+v", e)
	}
	if w.all.runs.Load() != 2 {
		t.Errorf("it ran %d times", w.all.runs.Load())
	}
}

// TestCapabilityCallsAreNotRetried cuts the connection in each phase of a call of
// a stub that was received: exactly one attempt, and the truth about it.
func TestCapabilityCallsAreNotRetried(t *testing.T) {
	w := openDesks(t)
	meterOf := func(name string) *limpet.Stub[any] {
		t.Helper()
		m, err := limpet.Call(t.Context(), w.ns.Named(name, patient...), Desk.Meter)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	total := func(name string) int {
		t.Helper()
		n, err := limpet.Call(t.Context(), w.ns.Named(name, patient...), Desk.Total)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// SPEC D11, E58, C21: the request was lost, or not: nobody knows.
	m := meterOf("up")
	w.proxy.cutUp.Store(1)
	_, err := m.Invoke(t.Context(), "add", 1)
	if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryUncertain || e.Attempts > 1 || !e.Retryable {
		t.Errorf("a lost request: %+v", e)
	}
	if n := total("up"); n != 0 {
		t.Errorf("the object has %d", n)
	}
	// SPEC C20: the connection is gone before.
	_, err = m.Invoke(t.Context(), "add", 1)
	if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryNone || e.Attempts > 1 {
		t.Errorf("on an ended connection: %+v", e)
	}
	// The reply is lost: it ran, once.
	m = meterOf("down")
	w.proxy.cutDown.Store(1)
	_, err = m.Invoke(t.Context(), "add", 1)
	if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryUncertain || e.Attempts > 1 {
		t.Errorf("a lost reply: %+v", e)
	}
	if n := total("down"); n != 1 {
		t.Errorf("the object has %d", n)
	}
	// While it runs.
	m = meterOf("slow")
	done := make(chan error, 1)
	go func() {
		_, err := m.Invoke(t.Context(), "slow", 1)
		done <- err
	}()
	<-w.all.entered
	w.proxy.cut()
	if e := errorOf(t, <-done); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryUncertain {
		t.Errorf("while it runs: %+v", e)
	}
	close(w.all.goOn)
	// SPEC C22: a stream breaks where it is.
	r, err := limpet.Call1(t.Context(), w.ns.Named("text", patient...), Desk.Text, 100<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	w.proxy.cut()
	_, err = io.Copy(io.Discard, r)
	if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryReceived {
		t.Errorf("the stream ends with %+v", e)
	}
	_ = r.Close()
	// A callback whose connection is lost: the object's call of it fails, and so
	// does the client's, once.
	var calls atomic.Int64
	_, err = limpet.Call2(t.Context(), w.ns.Named("back", patient...), Desk.Twice, 1, func(context.Context, int) (int, error) {
		calls.Add(1)
		w.proxy.cut()
		return 1, nil
	})
	// SPEC G11: its arguments hold a function.
	if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryUncertain || e.Attempts != 1 {
		t.Errorf("a call with a function: %+v", e)
	}
	if calls.Load() != 1 {
		t.Errorf("the function ran %d times", calls.Load())
	}
	w.empty(t)
	eventually(t, "the Dispose of what was lost", func() bool { return w.all.disposed.Load() == 3 })
}

// TestKilledWithCapabilities kills the node under a client that has stubs of it,
// and that it has stubs of.
func TestKilledWithCapabilities(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir, "")
	c := dial(t, p.addr)
	ns, err := limpet.NamespaceOf[Desk](c, "DESK")
	if err != nil {
		t.Fatal(err)
	}
	mine := &counter{}
	target, err := limpet.NewTarget(mine)
	if err != nil {
		t.Fatal(err)
	}
	if err := limpet.Do1(t.Context(), ns.Named("a"), Desk.Keep, target); err != nil {
		t.Fatal(err)
	}
	target.Close()
	meter, err := limpet.Call(t.Context(), ns.Named("a"), Desk.Meter)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := meter.Invoke(t.Context(), "add", 5); err != nil {
		t.Fatal(err)
	}
	p.kill()
	// The client's own is released with the connection.
	eventually(t, "the client's Dispose", func() bool { return mine.disposed.Load() == 1 })
	_, err = meter.Invoke(t.Context(), "add", 1)
	if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Delivery == limpet.DeliveryReceived || e.Attempts > 1 {
		t.Errorf("a stub of a dead process: %+v", e)
	}
	meter.Close()
	p = start(t, dir, p.addr)
	// What was acknowledged is there; the new life knows of no stubs.
	if n, err := limpet.Call(t.Context(), ns.Named("a", patient...), Desk.Total); n != 5 || err != nil {
		t.Errorf("after the restart: %d, %v", n, err)
	}
	// The other way round: the client goes, the object's next use of it fails.
	if err := limpet.Do1(t.Context(), ns.Named("a"), Desk.Keep, must(limpet.NewTarget(&counter{}))); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	second, err := limpet.NamespaceOf[Desk](dial(t, p.addr), "DESK")
	if err != nil {
		t.Fatal(err)
	}
	_, err = limpet.Call1(t.Context(), second.Named("a"), Desk.UseKept, 1)
	if e := errorOf(t, err); !strings.Contains(e.Error(), "Network connection lost") || e.Delivery != limpet.DeliveryReceived {
		t.Errorf("a stub of a client that has gone: %+v", e)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestUnreleased never closes what it is given: the call that goes too far fails,
// and says what to do.
func TestUnreleased(t *testing.T) {
	w := openDesks(t)
	var all [][]*limpet.Stub[any]
	for range 10 {
		m, err := limpet.Call1(t.Context(), w.ns.Named("a"), Desk.Meters, 1000)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	if w.held() != 10_000 {
		t.Errorf("the node has %d", w.held())
	}
	_, err := limpet.Call1(t.Context(), w.ns.Named("a"), Desk.Meters, 1)
	e := errorOf(t, err)
	if e.Code != limpet.CodeOverloaded || e.Delivery != limpet.DeliveryReceived || !e.Overloaded {
		t.Errorf("one more: %+v", e)
	}
	wantIn(t, "the error", e.Error(), "10000", "close stubs that are not needed any more")
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	t.Logf("with 10,000 stubs in a client and its node the heap is %d KiB", mem.HeapAlloc>>10)
	for _, m := range all {
		for _, s := range m {
			s.Close()
		}
	}
	w.empty(t)
	if m, err := limpet.Call1(t.Context(), w.ns.Named("a"), Desk.Meters, 1); err != nil {
		t.Errorf("after they were closed: %v", err)
	} else {
		m[0].Close()
	}
	// Those of the result that was dropped too.
	eventually(t, "all Disposes", func() bool { return w.all.disposed.Load() == 10_002 })
}

// TestDrainWithCapabilities drains a node while it waits for a client's function:
// the callback passes, and so does the answer.
func TestDrainWithCapabilities(t *testing.T) {
	w := openDesks(t)
	began, goOn, closed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	go func() {
		var once sync.Once
		n, err := limpet.Call2(t.Context(), w.ns.Named("a"), Desk.Twice, 1, func(_ context.Context, n int) (int, error) {
			once.Do(func() { close(began) })
			<-goOn
			return n + 1, nil
		})
		done <- result{n, err}
	}()
	<-began
	go func() { closed <- w.n.Drain(t.Context()) }()
	eventually(t, "the drain", func() bool {
		_, err := limpet.Call(t.Context(), w.ns.Named("b", limpet.NoRetries()), Desk.Total)
		return err != nil
	})
	close(goOn)
	// The second callback comes after GOAWAY.
	if r := <-done; r.n != 5 || r.err != nil {
		t.Errorf("the call under way gives %d, %v", r.n, r.err)
	}
	if err := <-closed; err != nil {
		t.Errorf("drain: %v", err)
	}
	w.empty(t)
}
