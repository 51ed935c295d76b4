package limpet

import (
	"context"
	"io"
	"net/http"
	"reflect"
	"sync/atomic"
)

// This file is how capabilities travel: what limpet's own packages hand each
// other when a value has a stub, a function or a byte stream in it.

// CapabilityKind is what can be done with a Capability. For limpet's own packages.
type CapabilityKind uint8

const (
	// CapabilityTarget is called: a function, the methods of a target or object.
	CapabilityTarget CapabilityKind = iota
	// CapabilityStream is read, once.
	CapabilityStream
)

// String names the kind for people.
func (k CapabilityKind) String() string {
	switch k {
	case CapabilityTarget:
		return "stub"
	case CapabilityStream:
		return "byte stream"
	}
	return "nothing"
}

// MaxPath is how many names the path of a call or property read may have
// (SPEC B25).
const MaxPath = 64

// MaxCapabilities is how many stubs, functions and streams one value may hold.
const MaxCapabilities = 1000

// CapabilityValue is what a Stub is to a Codec: no data, but a capability. For
// limpet's own packages.
type CapabilityValue interface{ isCapability() }

// CapabilityHooks puts the capabilities of one value aside and back. For limpet's
// own packages.
type CapabilityHooks interface {
	// ExportCapability takes up v, a function, a stub or an io.Reader, and says
	// where in the list it stands.
	ExportCapability(v reflect.Value) (kind CapabilityKind, index int, err error)
	// ImportCapability makes a t of the capability at index: t is a function's
	// type, a *Stub, io.Reader, io.ReadCloser, or any for whatever it is.
	ImportCapability(kind CapabilityKind, index int, t reflect.Type) (reflect.Value, error)
}

// noImport and noExport are the hooks that are not called.
type noImport struct{}

func (noImport) ImportCapability(CapabilityKind, int, reflect.Type) (reflect.Value, error) {
	return reflect.Value{}, Errorf(CodeInternal, "a capability was read while a value was written")
}

type noExport struct{}

func (noExport) ExportCapability(reflect.Value) (CapabilityKind, int, error) {
	return 0, 0, Errorf(CodeInternal, "a capability was written while a value was read")
}

// Parcel is a value with the capabilities that are in it. Whoever holds one must
// Release it, or hand it on. For limpet's own packages.
type Parcel struct {
	// Bytes is the value, or empty for none. A capability stands in it as its
	// kind and its index in Caps.
	Bytes Encoded
	Caps  []Capability
}

// Release gives all capabilities back. Releasing again is harmless.
func (p Parcel) Release() {
	for _, c := range p.Caps {
		c.Release()
	}
}

// Capability is one handle to something that can be called or read.
// Implementations are safe for concurrent use. For limpet's own packages;
// programs meet stubs, functions and readers.
type Capability interface {
	// Call calls it. It takes over c.Args, also when it fails; the result is the
	// caller's. Every error is an *Error with its delivery. Nothing is ever
	// retried (SPEC E58). After Release it is DisposedError.
	Call(ctx context.Context, c TargetCall) (Parcel, error)
	// Fetch sends a request to what answers fetches: the stub of an object. It
	// takes over and closes req.Body. Redirects are not followed. Another target
	// answers NoTargetFetchError.
	Fetch(ctx context.Context, req *http.Request) (*http.Response, error)
	// Open starts a CapabilityStream, once; a second Open is an error. The reader
	// is the caller's to close, and ends when the handle is released or ctx ends.
	Open(ctx context.Context) (io.ReadCloser, error)
	Kind() CapabilityKind
	// Dup is another handle to the same thing (SPEC B37), with a Release of its
	// own. The Dup of a released handle is released.
	Dup() Capability
	// Release gives the handle back; twice is harmless. What is under way goes
	// on. The last handle's Release disposes of the thing.
	Release()
	// Released reports whether this handle was given back.
	Released() bool
}

// TargetCall is one call, or property read, on a capability. For limpet's own
// packages.
type TargetCall struct {
	// Path leads to what is called: empty is the target itself, a function; one
	// name a method; more a member of a member (SPEC B25). At most MaxPath.
	Path []string
	// Property reads what Path leads to and does not call it (SPEC B24).
	Property bool
	// Args is the argument list, as Codec.Args makes it; empty for a Property.
	Args Parcel
}

// LocalCapability is a Capability that runs code of this process. For limpet's
// own packages.
type LocalCapability interface {
	Capability
	// Run is Call, except that a panic of the code called is the caller's. Call
	// makes an error of it.
	Run(ctx context.Context, c TargetCall) (Parcel, error)
	// Disposes reports whether the last Release runs code: a target's Dispose.
	Disposes() bool
	// Dispose is Release, except that a panic of what runs is the caller's; with
	// run false a target's Dispose does not run. A stream is closed.
	Dispose(run bool)
}

// Exporter is an Origin whose object gives capabilities away. For limpet's own
// packages.
type Exporter interface {
	Origin
	// Export takes over c, which runs code of the object, and returns what
	// leaves the object in its place: every call of it is an event of this
	// incarnation and holds the turn, reads of a stream run while the object is
	// away; all that comes out of it waits at the output gate. It fails with the
	// reset error once the incarnation has ended. While a handle lives the object
	// is not evicted for being idle (SPEC B40).
	Export(c Capability) Capability
	// Account puts on record and makes durable what must be before anybody hears
	// that the object does something (SPEC H2), as Leave does, but does not give
	// the object away.
	Account(ctx context.Context) error
	// Flush is Leave for what is sent and not waited for: the object is not given
	// away, and Return must not be called.
	Flush(ctx context.Context) (context.Context, error)
	// Object is the Origin of what the object keeps beyond the running event.
	Object() Origin
	// Aside is ctx, which Leave returned, for code that is not the object's but
	// runs while it is away: calls made with it stay in the call chain, and
	// neither leave the object nor return.
	Aside(ctx context.Context) context.Context
}

// CapabilityCore is what the handles that NewCapability makes lead to; its
// methods are those of Capability. For limpet's own packages.
type CapabilityCore interface {
	Call(ctx context.Context, c TargetCall) (Parcel, error)
	Fetch(ctx context.Context, req *http.Request) (*http.Response, error)
	Open(ctx context.Context) (io.ReadCloser, error)
	Kind() CapabilityKind
	// Disposed is called once, when the last handle was released.
	Disposed()
}

// NewCapability makes the first handle to core. It counts the handles, refuses
// the use of released ones and a second Open. For limpet's own packages.
func NewCapability(core CapabilityCore) Capability {
	s := &sharedCore{core: core}
	s.handles.Store(1)
	return &handle{shared: s}
}

// sharedCore is a core with the number of its handles.
type sharedCore struct {
	core    CapabilityCore
	handles atomic.Int64
	opened  atomic.Bool
}

// handle is one of them.
type handle struct {
	shared   *sharedCore
	released atomic.Bool
}

func (h *handle) Call(ctx context.Context, c TargetCall) (Parcel, error) {
	if err := h.usable(ctx, c); err != nil {
		c.Args.Release()
		return Parcel{}, err
	}
	return h.shared.core.Call(ctx, c)
}

// localCore is a core that runs code of this process.
type localCore interface {
	CapabilityCore
	// run makes a call for the object o that the code belongs to, or nil. The
	// error is what a Runner returns.
	run(ctx context.Context, c TargetCall, o Origin) (Parcel, error)
}

var _ LocalCapability = (*handle)(nil)

// Run makes every handle a LocalCapability.
func (h *handle) Run(ctx context.Context, c TargetCall) (Parcel, error) {
	if err := h.usable(ctx, c); err != nil {
		c.Args.Release()
		return Parcel{}, refuse(err)
	}
	if core, ok := h.shared.core.(localCore); ok {
		return core.run(ctx, c, OriginOf(ctx, nil))
	}
	return h.shared.core.Call(ctx, c)
}

// Disposes tells of a target's Dispose.
func (h *handle) Disposes() bool {
	t, ok := h.shared.core.(*targetCore)
	return ok && t.disposes()
}

// Dispose releases in its own way.
func (h *handle) Dispose(run bool) {
	if h.released.Swap(true) || h.shared.handles.Add(-1) > 0 {
		return
	}
	t, ok := h.shared.core.(*targetCore)
	switch {
	case !ok:
		h.shared.core.Disposed()
	case run:
		t.dispose()
	}
}

// Released reports whether the handle was given back.
func (h *handle) Released() bool { return h.released.Load() }

func (h *handle) usable(ctx context.Context, c TargetCall) *Error {
	switch {
	case h.released.Load():
		return DisposedError()
	case len(c.Path) > MaxPath:
		return errTooDeep()
	case h.shared.core.Kind() != CapabilityTarget:
		return Errorf(CodeNotSupported, "a byte stream was called; it can only be read").With(func(e *Error) { e.Name, e.Delivery = "TypeError", DeliveryNone })
	case ctx.Err() != nil:
		return CanceledError(ctx, DeliveryNone)
	}
	return nil
}

func (h *handle) Fetch(ctx context.Context, req *http.Request) (*http.Response, error) {
	var err error
	switch {
	case h.released.Load():
		err = DisposedError()
	case h.shared.core.Kind() != CapabilityTarget:
		err = NoTargetFetchError()
	case ctx.Err() != nil:
		err = CanceledError(ctx, DeliveryNone)
	default:
		return h.shared.core.Fetch(ctx, req)
	}
	if req.Body != nil {
		_ = req.Body.Close() // nothing was read from it
	}
	return nil, err
}

func (h *handle) Open(ctx context.Context) (io.ReadCloser, error) {
	switch {
	case h.released.Load():
		return nil, DisposedError()
	case h.shared.core.Kind() != CapabilityStream:
		return nil, Errorf(CodeNotSupported, "a stub was read; only byte streams can be").With(func(e *Error) { e.Name, e.Delivery = "TypeError", DeliveryNone })
	case h.shared.opened.Swap(true):
		return nil, Errorf(CodeInvalidArgument, "the byte stream is being read already: it can be read once").With(func(e *Error) { e.Name, e.Delivery = "TypeError", DeliveryNone })
	}
	return h.shared.core.Open(ctx)
}

func (h *handle) Kind() CapabilityKind { return h.shared.core.Kind() }

func (h *handle) Dup() Capability {
	d := &handle{shared: h.shared}
	for {
		n := h.shared.handles.Load()
		if n == 0 || h.released.Load() {
			d.released.Store(true)
			return d
		}
		if h.shared.handles.CompareAndSwap(n, n+1) {
			return d
		}
	}
}

func (h *handle) Release() {
	if !h.released.Swap(true) && h.shared.handles.Add(-1) == 0 {
		h.shared.core.Disposed()
	}
}

// DisposedError is the failure of using a handle that was released (SPEC C42).
// For limpet's own packages.
func DisposedError() *Error {
	return &Error{Code: CodeDisposed, Message: "RPC stub used after being disposed.", Delivery: DeliveryNone}
}

// NoTargetFetchError is the failure of a fetch on a capability that answers none.
// For limpet's own packages.
func NoTargetFetchError() *Error {
	return &Error{
		Code: CodeNotSupported, Name: "TypeError", Delivery: DeliveryNone,
		Message: "The RPC receiver does not implement the method \"fetch\".",
	}
}

// NoMethodError is the failure of a call whose path leads to nothing that can be
// called or read (SPEC B35). For limpet's own packages.
func NoMethodError(name string) *Error {
	e := Errorf(CodeUnknownMethod, "The RPC receiver does not implement the method %.200q.", name)
	e.Name, e.Delivery, e.Remote, e.byLimpet = "TypeError", DeliveryReceived, true, true
	return e
}

// CanceledError is the failure of what was not done, or not to its end, because
// ctx ended (SPEC C41). For limpet's own packages.
func CanceledError(ctx context.Context, d Delivery) *Error {
	cause := context.Cause(ctx)
	e := Errorf(CodeCanceled, "The operation was aborted: %w", cause)
	e.Delivery = d
	return e
}

func errTooDeep() *Error {
	return invalid("TypeError", "RPC pipelined property path is too deep (max %d).", MaxPath)
}
