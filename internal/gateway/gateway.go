package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/limpet-dev/limpet"
)

// Defaults of Config.
const (
	DefaultMaxBody   = 32 << 20
	DefaultMaxBodies = 256 << 20
)

// Config is what a door needs. Only Resolver is required.
type Config struct {
	// Resolver finds the namespaces.
	Resolver limpet.Resolver
	// MaxBody is the largest request body in bytes, of calls and fetches; 0 means
	// DefaultMaxBody. (The limit on the encoded arguments, SPEC B30, comes on top.)
	MaxBody int64
	// BufferBody is how many bytes of the body of a fetch are kept, so that it can
	// be sent again; 0 leaves it to the binding.
	BufferBody int64
	// MaxBodies is how many bytes of bodies of calls may be in memory at once,
	// over all requests; 0 means DefaultMaxBodies. Beyond it calls are
	// Overloaded.
	MaxBodies int64
	// Hosts are host names (without port) that are accepted in Host besides
	// loopback ones on connections to a loopback address: those that a proxy on
	// this machine passes on. "*" accepts all.
	Hosts []string
	// Clock measures how long a client may stop in the middle of a body or an
	// answer; nil means for ever.
	Clock limpet.Clock
	// Draining reports whether new requests are to be refused; nil means never.
	Draining func() bool
	// Logger gets what ends in a 5xx; nil means slog.Default().
	Logger *slog.Logger
}

// door is the handler. It is safe for concurrent use.
type door struct {
	resolver limpet.Resolver
	maxBody  int64
	options  []limpet.StubOption // of every stub
	bodies   budget
	guard    *guard
	clock    limpet.Clock
	draining func() bool
	log      *slog.Logger
}

// New makes the handler of the door. It holds nothing that must be closed.
func New(c Config) http.Handler {
	d := &door{
		resolver: c.Resolver, maxBody: c.MaxBody, guard: newGuard(c.Hosts), clock: c.Clock,
		draining: c.Draining, log: c.Logger,
	}
	if c.BufferBody > 0 {
		d.options = append(d.options, limpet.BufferBody(c.BufferBody))
	}
	if d.maxBody == 0 {
		d.maxBody = DefaultMaxBody
	}
	d.bodies.limit = c.MaxBodies
	if d.bodies.limit == 0 {
		d.bodies.limit = DefaultMaxBodies
	}
	if d.draining == nil {
		d.draining = func() bool { return false }
	}
	if d.log == nil {
		d.log = slog.Default()
	}
	return d
}

// A client may take answerIdle, and one second more for each answerRate bytes,
// to read an answer of the door itself that does not fit what the connection
// buffers (answerBuffered bytes at least).
const (
	answerIdle     = 30 * time.Second
	answerRate     = 64 << 10
	answerBuffered = 64 << 10
)

// answer is the writing side of one request.
type answer struct {
	w         http.ResponseWriter
	r         *http.Request
	clock     limpet.Clock // nil: no limit on reading
	body      *clientBody  // of the request; nil: there is none, or no limit on it
	requestID string
	key       string // Idempotency-Key; empty for none
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r, body := patience(d.clock, w, r)
	a := &answer{w: w, r: r, clock: d.clock, body: body, requestID: newRequestID()}
	w.Header().Set("X-Request-Id", a.requestID)
	if err := d.guard.check(r); err != nil {
		d.fail(a, nil, err)
		return
	}
	escaped := r.URL.EscapedPath()
	if escaped == "/" {
		d.index(a)
		return
	}
	route, err := splitPath(escaped)
	if err != nil {
		d.fail(a, nil, err)
		return
	}
	if d.draining() {
		w.Header().Set("Connection", "close")
		d.fail(a, nil, refusal(limpet.CodeDraining, "this node is stopping and takes no new calls"))
		return
	}
	b, bindErr := d.resolver.Binding(route.binding)
	if bindErr != nil {
		d.fail(a, nil, bindErr)
		return
	}
	if a.key, err = idempotencyKey(r); err != nil {
		d.fail(a, b, err)
		return
	}
	switch {
	case route.asks:
		d.outcome(a, b, route)
	case route.method != "":
		d.call(a, b, route)
	default:
		d.fetch(a, b, route)
	}
}

// idempotencyKey is the request's, or empty.
func idempotencyKey(r *http.Request) (string, *limpet.Error) {
	values, ok := r.Header["Idempotency-Key"]
	if !ok {
		return "", nil
	}
	if len(values) > 1 {
		return "", refusal(limpet.CodeInvalidArgument, "the header Idempotency-Key is there %d times", len(values))
	}
	if err := limpet.CheckIdempotencyKey(values[0]); err != nil {
		return "", refusal(limpet.CodeInvalidArgument, "the header Idempotency-Key: %w", err)
	}
	return values[0], nil
}

// context is that of the call that the request asks for. A call under a key goes
// on when the client leaves: it will come again and ask for the outcome.
func (a *answer) context(ctx context.Context) context.Context {
	if a.key == "" {
		return ctx
	}
	return limpet.WithIdempotencyKey(context.WithoutCancel(ctx), a.key)
}

// index tells who comes by what there is.
func (d *door) index(a *answer) {
	if a.r.Method != http.MethodGet && a.r.Method != http.MethodHead {
		d.methodNotAllowed(a, nil, "GET, HEAD")
		return
	}
	a.json(http.StatusOK, map[string]any{"server": "limpet", "paths": paths})
}

// stub finds the object of a route. What is wrong with its name or ID is in
// the error.
func (d *door) stub(b *limpet.Binding, t target) (*limpet.Stub[any], error) {
	ns, err := limpet.NamespaceOf[any](bound{b}, b.Name)
	if err != nil {
		return nil, err
	}
	if !t.byID {
		s := ns.Named(t.name, d.options...)
		return s, s.Err()
	}
	id, err := ns.IDFromString(t.name)
	if err != nil {
		return nil, err
	}
	s := ns.Get(id, d.options...)
	return s, s.Err()
}

// bound resolves to the one binding it holds.
type bound struct{ b *limpet.Binding }

func (r bound) Binding(string) (*limpet.Binding, error) { return r.b, nil }

func (d *door) methodNotAllowed(a *answer, b *limpet.Binding, allow string) {
	a.w.Header().Set("Allow", allow)
	d.fail(a, b, refusal(codeMethodNotAllowed, "%.32s is not possible here, only %s", a.r.Method, allow))
}

// fail answers with an error and logs it if it is a 5xx. b may be nil.
func (d *door) fail(a *answer, b *limpet.Binding, err error) {
	e := asError(err)
	body := bodyOf(e, a.requestID, d.fields(b, e))
	status := statusOf(e)
	if status == http.StatusTooManyRequests {
		a.w.Header().Set("Retry-After", "1")
	}
	a.w.Header().Set("Limpet-Error", headerText(string(body.Code)))
	if status >= 500 {
		d.logFailure(a, b, e, status, body)
	}
	a.json(status, map[string]errorBody{"error": body})
}

func (d *door) logFailure(a *answer, b *limpet.Binding, e *limpet.Error, status int, body errorBody) {
	level := slog.LevelWarn
	switch {
	case context.Cause(a.r.Context()) != nil:
		level = slog.LevelDebug // the client left: nobody reads the answer
	case !e.ByLimpet():
		level = slog.LevelInfo // the method's own business
	case body.Code == limpet.CodeInternal || body.Code == limpet.CodeStorageLost:
		level = slog.LevelError
	}
	namespace := ""
	if b != nil {
		namespace = b.Name
	}
	d.log.LogAttrs(context.WithoutCancel(a.r.Context()), level, "request failed",
		slog.String("requestId", body.RequestID), slog.Int("status", status),
		slog.String("namespace", namespace), slog.String("object", body.ObjectID),
		slog.String("code", forLog(string(body.Code))), slog.String("delivery", body.Delivery.String()),
		slog.Int("attempts", body.Attempts), slog.String("identity", body.Identity), slog.String("error", forLog(e.Error())))
}

// maxLogText is how much of a text that a method has chosen goes into the log:
// it may quote an argument of many MiB.
const maxLogText = 4 << 10

func forLog(s string) string {
	if len(s) <= maxLogText {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(s[:maxLogText], ""), len(s))
}

// json writes an answer of the door itself.
func (a *answer) json(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // only errorBody.Fields could be wrong, and fields checked it
		status, b = http.StatusInternalServerError, []byte(`{"error":{"code":"Internal"}}`)
	}
	a.raw(status, append(b, '\n'))
}

func (a *answer) raw(status int, body []byte) {
	a.body.rest()
	h := a.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if a.clock != nil && len(body) > answerBuffered {
		// A client that does not read must not hold the answer for ever.
		control := http.NewResponseController(a.w)
		limit := answerIdle + time.Duration(len(body)/answerRate)*time.Second
		if control.SetWriteDeadline(a.clock.Now().Add(limit)) == nil {
			defer func() {
				_ = control.Flush() // within the limit, not after it
				_ = control.SetWriteDeadline(time.Time{})
			}()
		}
	}
	a.w.WriteHeader(status)
	if a.r.Method != http.MethodHead {
		_, _ = a.w.Write(body) // the client left: the server ends the connection
	}
}

func asError(err error) *limpet.Error {
	if e, ok := err.(*limpet.Error); ok { //nolint:errorlint // what wraps an Error is another failure than it
		return e
	}
	return limpet.Errorf(limpet.CodeOf(err), "%w", err).With(func(e *limpet.Error) { e.Delivery = limpet.DeliveryOf(err) })
}

// headerText keeps a code that a method chose from breaking the header.
func headerText(s string) string {
	b := []byte(s)
	if len(b) > 128 {
		b = b[:128]
	}
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

// newRequestID is 128 random bits in hex.
func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}
