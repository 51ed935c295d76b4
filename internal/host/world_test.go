package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// jsonCodec is enough of a codec for tests.
type jsonCodec struct{}

func (c jsonCodec) With(limpet.CapabilityHooks) limpet.Codec { return c }

func (jsonCodec) Plain(p any) bool {
	switch reflect.TypeOf(p).Elem().Kind() {
	case reflect.Int, reflect.String, reflect.Bool, reflect.Struct:
		return true
	}
	return false
}
func (jsonCodec) Args(args ...any) (limpet.Encoded, error) { return json.Marshal(args) }
func (jsonCodec) DecodeArgs(e limpet.Encoded, into ...any) error {
	var raw []json.RawMessage
	if err := json.Unmarshal(e, &raw); err != nil {
		return err
	}
	if len(raw) != len(into) {
		return limpet.Errorf(limpet.CodeInvalidArgument, "takes %d arguments, got %d", len(into), len(raw))
	}
	for i := range into {
		if err := json.Unmarshal(raw[i], into[i]); err != nil {
			return limpet.Errorf(limpet.CodeInvalidArgument, "%w", err)
		}
	}
	return nil
}
func (jsonCodec) Marshal(v any) (limpet.Encoded, error)      { return json.Marshal(v) }
func (jsonCodec) Unmarshal(e limpet.Encoded, into any) error { return json.Unmarshal(e, into) }

// world is a host with an engine and classes.
type world struct {
	t      testing.TB
	mem    *memory
	host   *Host
	engine *dispatch.Engine
	names  map[string]*limpet.Binding
	log    *logBook
}

type router struct{ t dispatch.Transport }

func (r router) Route(context.Context, *limpet.CallSpec) (dispatch.Transport, error) { return r.t, nil }

// logBook collects the host's log.
type logBook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logBook) Enabled(context.Context, slog.Level) bool { return true }
func (l *logBook) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "stack" {
			line += " " + a.String()
		}
		return true
	})
	l.lines = append(l.lines, line)
	return nil
}
func (l *logBook) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *logBook) WithGroup(string) slog.Handler      { return l }

var testBoot = dispatch.Boot{History: [16]byte{1}, Boot: [16]byte{2}}

func newWorld(t testing.TB, limits Limits, classes ...*limpet.Class) *world {
	t.Helper()
	return newWorldOn(t, newMemory(), limits, classes...)
}

func newWorldOn(t testing.TB, s Storage, limits Limits, classes ...*limpet.Class) *world {
	t.Helper()
	w := &world{t: t, names: map[string]*limpet.Binding{}, log: &logBook{}}
	w.mem, _ = s.(*memory)
	h, err := New(Config{
		Storage: s, Clock: sim.Clock{}, Bindings: w.Binding, Boot: testBoot, Limits: limits, Logger: slog.New(w.log),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.host = h
	w.engine = dispatch.New(dispatch.Config{Router: router{h}, Clock: sim.Clock{}})
	for _, c := range classes {
		if err := c.Err(); err != nil {
			t.Fatal(err)
		}
		w.names[c.Name()] = &limpet.Binding{
			Name: c.Name(), Class: c, ClassIdentity: c.Name(), Policy: limpet.DefaultRetryPolicy(), Caller: w.engine, Codec: jsonCodec{},
		}
	}
	return w
}

func (w *world) close() {
	w.t.Helper()
	w.engine.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.host.Close(ctx); err != nil {
		w.t.Errorf("close: %v", err)
	}
	if n := w.host.queued.Load(); n != 0 {
		w.t.Errorf("%d bytes are counted as queued at the end", n)
	}
	if n := w.host.count.Load(); n != 0 {
		w.t.Errorf("%d incarnations are counted as live at the end", n)
	}
}

func (w *world) Binding(name string) (*limpet.Binding, error) {
	b := w.names[name]
	if b == nil {
		return nil, limpet.UnknownNamespace(name, nil)
	}
	return b, nil
}

func stubOf[T any](w *world, class, name string) *limpet.Stub[T] {
	w.t.Helper()
	ns, err := limpet.NamespaceOf[T](w, class)
	if err != nil {
		w.t.Fatal(err)
	}
	return ns.Named(name)
}

// inBubble runs f with a world in virtual time.
func inBubble(t *testing.T, limits Limits, classes func() []*limpet.Class, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, limits, classes()...)
		defer w.close()
		f(t, w)
	})
}

// thing is an object whose methods are made up by the test.
type thing struct {
	st  *limpet.State
	box *box
	mem int // memory that a reset loses
}

// box is what a test puts into thing's class.
type box struct {
	mu        sync.Mutex
	construct func(th *thing) error
	do        map[string]func(ctx context.Context, th *thing, arg string) (string, error)
	serve     func(th *thing, w http.ResponseWriter, r *http.Request)
	made      int // constructors run
}

func (b *box) on(name string, f func(ctx context.Context, th *thing, arg string) (string, error)) *box {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.do == nil {
		b.do = map[string]func(context.Context, *thing, string) (string, error){}
	}
	b.do[name] = f
	return b
}

func (b *box) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.made
}

func (th *thing) Do(ctx context.Context, what, arg string) (string, error) {
	th.box.mu.Lock()
	f := th.box.do[what]
	th.box.mu.Unlock()
	if f == nil {
		return "", fmt.Errorf("the test knows no %q", what)
	}
	return f(ctx, th, arg)
}

// Marked is Do with a mark.
func (th *thing) Marked(ctx context.Context, what, arg string) (string, error) {
	return th.Do(ctx, what, arg)
}

// servingThing has a handler too.
type servingThing struct{ thing }

func (th *servingThing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	th.box.serve(&th.thing, w, r)
}

func (b *box) class(name string, opts ...limpet.ClassOption) *limpet.Class {
	return limpet.NewClass(name, func(st *limpet.State) (*thing, error) {
		th := &thing{st: st, box: b}
		return th, b.begin(th)
	}, append(opts, limpet.Retryable((*thing).Marked))...)
}

func (b *box) servingClass(name string, opts ...limpet.ClassOption) *limpet.Class {
	return limpet.NewClass(name, func(st *limpet.State) (*servingThing, error) {
		th := &servingThing{thing{st: st, box: b}}
		return th, b.begin(&th.thing)
	}, opts...)
}

func (b *box) begin(th *thing) error {
	b.mu.Lock()
	b.made++
	f := b.construct
	b.mu.Unlock()
	if f != nil {
		return f(th)
	}
	return nil
}

// call calls Do of the object "o" of class "Thing".
func (w *world) call(ctx context.Context, what, arg string) (string, error) {
	return w.callOf(ctx, "o", what, arg)
}

func (w *world) callOf(ctx context.Context, object, what, arg string) (string, error) {
	return limpet.Call2(ctx, stubOf[*thing](w, "Thing", object), (*thing).Do, what, arg)
}

// pending is a call on a goroutine of its own.
type pending struct {
	done chan struct{}
	v    string
	err  error
}

func async(f func() (string, error)) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.v, p.err = f()
	}()
	return p
}

func (w *world) start(ctx context.Context, what, arg string) *pending {
	return async(func() (string, error) { return w.call(ctx, what, arg) })
}

func (p *pending) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *pending) wait() (string, error) {
	<-p.done
	return p.v, p.err
}

// wantError checks the code and delivery of an error.
func wantError(t testing.TB, err error, code limpet.Code, d limpet.Delivery) {
	t.Helper()
	_ = failureOf(t, err, code, d) // checked
}

// failureOf does so too and returns it.
func failureOf(t testing.TB, err error, code limpet.Code, d limpet.Delivery) *limpet.Error {
	t.Helper()
	e, ok := errors.AsType[*limpet.Error](err)
	if !ok {
		t.Fatalf("error %v (%T), want a *limpet.Error with code %s", err, err, code)
	}
	if e.CodeOrDefault() != code || e.Delivery != d {
		t.Fatalf("error %q has code %s, %v; want %s, %v", e, e.Code, e.Delivery, code, d)
	}
	return e
}

func get(st *limpet.State, key string) int {
	n := 0
	if _, err := st.KV().Get(key, &n); err != nil {
		panic(err)
	}
	return n
}

func put(st *limpet.State, key string, n int, opts ...limpet.PutOption) {
	if err := st.KV().Put(key, n, opts...); err != nil {
		panic(err)
	}
}
