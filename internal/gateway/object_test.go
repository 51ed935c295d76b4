package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

// thing is the object of these tests.
type thing struct {
	id    limpet.ID
	total int
	got   chan *http.Request // the last fetch
	block chan struct{}
}

func newThing(s *limpet.State) (*thing, error) { return &thing{got: make(chan *http.Request, 1)}, nil }

var thingClass = limpet.NewClass("Thing", newThing)

func (x *thing) Add(_ context.Context, n int) (int, error)              { x.total += n; return x.total, nil }
func (x *thing) Reset(context.Context) error                            { x.total = 0; return nil }
func (x *thing) Echo(_ context.Context, v any) (any, error)             { return v, nil }
func (x *thing) Two(_ context.Context, a string, b int) (string, error) { return fmt.Sprint(a, b), nil }
func (x *thing) Name(ctx context.Context) (string, error) {
	name, ok := x.id.Name()
	return fmt.Sprintf("%q %v", name, ok), nil
}
func (x *thing) Address(context.Context) (string, error) { return x.id.String(), nil }
func (x *thing) Fail(_ context.Context, code string) error {
	return &limpet.Error{
		Code: limpet.Code(code), Name: "CartError", Message: "no such item", Retryable: true,
		Delivery: limpet.DeliveryNone, RequestID: "forged", Fields: map[string]any{"item": "x", "delivery": "forged"},
	}
}
func (x *thing) Plain(context.Context) error { return errors.New("just a text") }

// ServeHTTP is the thing's fetch.
func (x *thing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/stream":
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "chunk %d\n", i)
			w.(http.Flusher).Flush()
			<-x.block
		}
		w.Header().Set(http.TrailerPrefix+"X-Sum", "3")
	case "/break":
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic("broken")
	case "/redirect":
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	case "/teapot":
		w.Header().Set("X-Request-Id", "the object's")
		w.Header().Set("Limpet-Error", "forged")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.WriteHeader(http.StatusTeapot)
	default:
		b, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		_, _ = fmt.Fprintf(w, "%s %s %q %v", r.Method, r.URL, b, r.Trailer.Get("X-Check"))
		x.got <- r
	}
}

// world is a Resolver and a Caller of things in memory.
type world struct {
	binding *limpet.Binding
	block   chan struct{} // of streaming things
	waiting chan struct{} // gets one when a call of wait has begun

	mu     sync.Mutex
	things map[[32]byte]*thing          // guarded by mu
	calls  int                          // guarded by mu
	fail   func(*limpet.CallSpec) error // guarded by mu; what calls end with instead
}

func newWorld() *world {
	w := &world{things: map[[32]byte]*thing{}, block: make(chan struct{}), waiting: make(chan struct{}, 1)}
	w.binding = &limpet.Binding{
		Name: "THING", Class: thingClass, ClassIdentity: "Thing", Policy: limpet.DefaultRetryPolicy(), Caller: w, Codec: codec{},
	}
	return w
}

func (w *world) Binding(name string) (*limpet.Binding, error) {
	if name != w.binding.Name {
		return nil, limpet.UnknownNamespace(name, []string{w.binding.Name})
	}
	return w.binding, nil
}

func (w *world) failWith(f func(*limpet.CallSpec) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = f
}

func (w *world) made() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

func (w *world) enter(c *limpet.CallSpec) (*thing, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if w.fail != nil {
		return nil, w.fail(c)
	}
	x := w.things[c.Object.Bytes()]
	if x == nil {
		receiver, err := c.Binding.Class.Construct(nil)
		if err != nil {
			return nil, err
		}
		x = receiver.(*thing)
		x.id, x.block = c.Object, w.block
		w.things[c.Object.Bytes()] = x
	}
	return x, nil
}

func (w *world) Call(ctx context.Context, c *limpet.CallSpec) (any, error) {
	x, err := w.enter(c)
	if err != nil {
		return nil, err
	}
	if c.Method == "wait" {
		w.waiting <- struct{}{}
		<-ctx.Done()
		return nil, limpet.Errorf(limpet.CodeCanceled, "the caller gave up: %w", context.Cause(ctx)).With(func(e *limpet.Error) { e.Delivery = limpet.DeliveryReceived })
	}
	out, err := c.Runner.Run(ctx, x)
	if err != nil {
		return nil, limpet.MethodError(c.Object, err).With(func(e *limpet.Error) { e.Attempts = 1 })
	}
	return out, nil
}

func (w *world) Fetch(_ context.Context, c *limpet.CallSpec, req *http.Request, follow bool) (*http.Response, error) {
	if follow {
		return nil, errors.New("the door must not follow redirects")
	}
	x, err := w.enter(c)
	if err != nil {
		return nil, err
	}
	r, pw := io.Pipe()
	s := &stream{header: http.Header{}, body: pw, ready: make(chan struct{}), resp: &http.Response{Request: req, ContentLength: -1, ProtoMajor: 1, ProtoMinor: 1}}
	s.resp.Body = &streamBody{r, s}
	if req.Body == nil {
		req.Body = http.NoBody
	}
	go s.serve(x, req)
	<-s.ready
	return s.resp, nil
}

// stream is a ResponseWriter whose response can be read meanwhile.
type stream struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	ready  chan struct{}
	resp   *http.Response
}

func (s *stream) serve(h http.Handler, req *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			_ = s.body.CloseWithError(fmt.Errorf("panic: %v", p))
		}
	}()
	h.ServeHTTP(s, req)
	s.WriteHeader(http.StatusOK)
	_ = s.body.Close()
}

// streamBody sets the trailer when the body has been read, as net/http does.
type streamBody struct {
	*io.PipeReader
	s *stream
}

func (b *streamBody) Read(p []byte) (int, error) {
	n, err := b.PipeReader.Read(p)
	if errors.Is(err, io.EOF) {
		b.s.resp.Trailer = http.Header{}
		for k, v := range b.s.header {
			if name, ok := strings.CutPrefix(k, http.TrailerPrefix); ok {
				b.s.resp.Trailer[name] = v
			}
		}
	}
	return n, err
}

func (s *stream) Header() http.Header { return s.header }
func (s *stream) Flush()              {}
func (s *stream) WriteHeader(code int) {
	s.once.Do(func() {
		s.resp.StatusCode, s.resp.Header = code, maps.Clone(s.header)
		close(s.ready)
	})
}

func (s *stream) Write(b []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	return s.body.Write(b)
}

// codec is package value behind limpet.Codec.
type codec struct{}

func (codec) Plain(any) bool                             { return false }
func (codec) With(h limpet.CapabilityHooks) limpet.Codec { return value.Codec{}.With(h) }
func (codec) Args(args ...any) (limpet.Encoded, error) {
	b, err := value.AppendArgs(nil, args...)
	return b, coded(err)
}
func (codec) DecodeArgs(e limpet.Encoded, into ...any) error {
	a, err := value.ReadArgs(e)
	if err != nil {
		return coded(err)
	}
	if a.Len() != len(into) {
		return limpet.Errorf(limpet.CodeInvalidArgument, "takes %d arguments, got %d", len(into), a.Len())
	}
	for _, p := range into {
		if err := a.Next(p); err != nil {
			return coded(err)
		}
	}
	return nil
}
func (codec) Marshal(v any) (limpet.Encoded, error) {
	b, err := value.Marshal(v)
	return b, coded(err)
}
func (codec) Unmarshal(e limpet.Encoded, into any) error { return coded(value.Unmarshal(e, into)) }

func coded(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, value.ErrTooLarge):
		return limpet.Errorf(limpet.CodeTooLarge, "%w", err)
	}
	return limpet.Errorf(limpet.CodeInvalidArgument, "%w", err)
}

func TestThingClass(t *testing.T) {
	if err := thingClass.Err(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(thingClass.Methods(), "add") {
		t.Fatal(thingClass.Methods())
	}
}
