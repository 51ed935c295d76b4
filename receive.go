package limpet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"runtime"
	"sync"
)

// This file makes stubs, functions and readers of the capabilities in a value
// that was received.

// receiver is the CapabilityHooks of one value that is decoded.
type receiver struct {
	noExport
	codec  Codec
	origin Origin // the object that receives, for what it keeps; nil outside
	event  Origin // the event that receives, for its streams
	caps   []Capability
	local  []bool // of each capability: it runs code of the receiver; nil for none
	taken  []bool
	made   []Capability
}

var _ CapabilityHooks = (*receiver)(nil)

// newReceiver takes over the handles.
func newReceiver(codec Codec, origin Origin, caps []Capability) *receiver {
	return &receiver{codec: codec, origin: objectOf(origin), event: origin, caps: caps, taken: make([]bool, len(caps))}
}

// dupAll makes handles of its own.
func dupAll(caps []Capability) []Capability {
	own := make([]Capability, len(caps))
	for i, c := range caps {
		own[i] = c.Dup()
	}
	return own
}

// ImportCapability makes a t of one.
func (r *receiver) ImportCapability(kind CapabilityKind, index int, t reflect.Type) (reflect.Value, error) {
	if index >= len(r.caps) {
		return reflect.Value{}, Errorf(CodeInvalidArgument, "the value has %d capabilities and names number %d", len(r.caps), index)
	}
	c := r.caps[index]
	if c.Kind() != kind {
		return reflect.Value{}, Errorf(CodeInvalidArgument, "the value calls a %v a %v", c.Kind(), kind)
	}
	var function functionType
	if t.Kind() == reflect.Func {
		var err error
		if function, err = functionShape(t); err != nil {
			return reflect.Value{}, err
		}
	}
	if r.taken[index] {
		c = c.Dup()
	}
	r.taken[index] = true
	r.made = append(r.made, c)
	if kind == CapabilityStream {
		s := newReceivedStream(c, r.event)
		s.local = r.local != nil && r.local[index]
		return reflect.ValueOf(s), nil
	}
	in := newReceived(c, r.origin, r.codec)
	in.local = r.local != nil && r.local[index]
	switch {
	case function.typ != nil:
		return in.function(function), nil
	case t.Kind() == reflect.Pointer:
		s := reflect.New(t.Elem())
		s.Interface().(adopter).adopt(in)
		return s, nil
	}
	return reflect.ValueOf(stubOf[any](in)), nil
}

// leave gives back what was not made anything of.
func (r *receiver) leave() {
	for i, c := range r.caps {
		if !r.taken[i] {
			c.Release()
		}
	}
}

// end gives everything back: the call whose arguments they are has returned
// (SPEC B39), or the value could not be decoded.
func (r *receiver) end() {
	r.leave()
	Parcel{Caps: r.made}.Release()
}

// receive decodes a value that is given to this program. It takes over p.
func receive(codec Codec, origin Origin, p Parcel, into any) error {
	if len(p.Caps) == 0 {
		return codec.Unmarshal(p.Bytes, into)
	}
	r := newReceiver(codec, origin, p.Caps)
	if err := codec.With(r).Unmarshal(p.Bytes, into); err != nil {
		r.end()
		return err
	}
	r.leave()
	return nil
}

// adopter is a pointer to a Stub.
type adopter interface{ adopt(*received) }

// received is the handle of a stub or function that is no namespace's. It is the
// Caller of its stub.
type received struct {
	c       Capability
	binding Binding
	local   bool // made by NewTarget here, not received
}

// newReceived takes over c. A handle that nobody gives back is given back when
// the garbage collector finds it: a net, and no way to do it.
func newReceived(c Capability, origin Origin, codec Codec) *received {
	r := &received{c: c}
	r.binding = Binding{Name: "received", Caller: r, Codec: codec, Origin: origin}
	runtime.AddCleanup(r, Capability.Release, c)
	return r
}

// stubOf makes the stub of a received handle.
func stubOf[T any](r *received) *Stub[T] {
	s := new(Stub[T])
	s.adopt(r)
	return s
}

func (s *Stub[T]) adopt(r *received) {
	s.s.ns = &namespace{binding: &r.binding, receiver: reflect.TypeFor[T]()}
	s.s.received = r
}

// function makes a function that calls r.
func (r *received) function(f functionType) reflect.Value {
	return reflect.MakeFunc(f.typ, func(in []reflect.Value) []reflect.Value {
		ctx, _ := in[0].Interface().(context.Context)
		args := make([]any, len(in)-1)
		for i := range args {
			args[i] = in[i+1].Interface()
		}
		var out []reflect.Value
		var into any
		if f.out != nil {
			p := reflect.New(f.out)
			into, out = p.Interface(), append(out, p.Elem())
		}
		err := r.apply(ctx, f.in, args, into)
		if err != nil && f.out != nil {
			out[0] = reflect.Zero(f.out)
		}
		return append(out, reflect.ValueOf(&err).Elem())
	})
}

// apply calls r, a function.
func (r *received) apply(ctx context.Context, static []reflect.Type, args []any, into any) error {
	if ctx == nil {
		return invalid("", "the context of a call is nil")
	}
	p, _, err := sendArgs(r.binding.Codec, OriginOf(ctx, &r.binding), static, args)
	if err != nil {
		return failed(Errorf(CodeOf(err), "call of a function: %w", err))
	}
	out, err := r.call(ctx, TargetCall{Args: p})
	if err != nil {
		return err
	}
	if into == nil || len(out.Bytes) == 0 {
		out.Release()
		return nil
	}
	if err := receive(r.binding.Codec, OriginOf(ctx, &r.binding), out, into); err != nil {
		return undecodable("a function", err)
	}
	return nil
}

// call makes one call through the handle: if an object holds it, the call leaves
// the object and returns, as one through a stub does.
func (r *received) call(ctx context.Context, c TargetCall) (Parcel, error) {
	defer runtime.KeepAlive(r) // the handle is given back with it
	if ctx.Err() != nil {
		c.Args.Release()
		return Parcel{}, CanceledError(ctx, DeliveryNone)
	}
	o := OriginOf(ctx, &r.binding)
	if o == nil {
		return r.c.Call(ctx, c)
	}
	out, err := o.Leave(ctx)
	if err != nil {
		c.Args.Release()
		return Parcel{}, failed(err)
	}
	p, err := r.c.Call(out, c)
	if gone := o.Return(out); gone != nil {
		p.Release()
		return Parcel{}, notReturned(gone, err)
	}
	return p, err
}

// notReturned is the failure of a call that ended, with err, when its own object
// was gone.
func notReturned(gone, err error) error {
	e := failed(gone)
	e.Delivery, e.breaksStub = DeliveryReceived, false
	if err != nil {
		e.Delivery = DeliveryOf(err)
	}
	return e
}

var _ Caller = (*received)(nil)

// Fetch sends a request through the stub. Redirects are not followed.
func (r *received) Fetch(ctx context.Context, _ *CallSpec, req *http.Request, _ bool) (*http.Response, error) {
	defer runtime.KeepAlive(r)
	o := OriginOf(ctx, &r.binding)
	if o == nil {
		return r.c.Fetch(ctx, req)
	}
	out, err := o.Leave(ctx)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // nothing was read from it
		}
		return nil, failed(err)
	}
	resp, err := r.c.Fetch(out, req)
	if gone := o.Return(out); gone != nil {
		if err == nil {
			_ = resp.Body.Close() // nobody wants it
		}
		return nil, notReturned(gone, err)
	}
	return resp, err
}

// Call makes a call of the stub. There are no retries (SPEC D11, E58).
func (r *received) Call(ctx context.Context, c *CallSpec) (any, error) {
	t, err := targetCall(c)
	if err != nil {
		return nil, err
	}
	p, err := r.call(ctx, t)
	if err != nil {
		return nil, err
	}
	return p.result(), nil
}

// targetCall is the call of a stub as one on a capability, with handles of its own.
func targetCall(c *CallSpec) (TargetCall, error) {
	e, err := c.Runner.Args()
	if err != nil {
		return TargetCall{}, failed(about("call of "+c.Method, err))
	}
	t := TargetCall{Property: c.Property, Args: Parcel{Bytes: e, Caps: dupAll(c.Runner.Capabilities())}}
	if c.Method != "" {
		t.Path = append([]string{c.Method}, c.Path...)
	}
	return t, nil
}

// result is p as a Caller returns it.
func (p Parcel) result() any {
	switch {
	case len(p.Caps) > 0:
		return p
	case len(p.Bytes) > 0:
		return p.Bytes
	}
	return nil
}

// parcelOf is what a Caller returned as a Parcel, if it is encoded.
func parcelOf(v any) (Parcel, bool) {
	switch v := v.(type) {
	case nil:
		return Parcel{}, true
	case Encoded:
		return Parcel{Bytes: v}, true
	case Parcel:
		return v, true
	}
	return Parcel{}, false
}

// receivedStream reads a stream that was received.
type receivedStream struct {
	c      Capability
	origin Origin
	local  bool // its reader is code of this object
	cancel context.CancelCauseFunc
	ctx    context.Context

	mu sync.Mutex
	r  io.ReadCloser
	e  error
}

func newReceivedStream(c Capability, origin Origin) *receivedStream {
	s := &receivedStream{c: c, origin: origin}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	runtime.AddCleanup(s, Capability.Release, c)
	return s
}

// Read begins reading at its first call. An object's own data and the identities
// of its running calls are durable before that, since the other side hears of it.
func (s *receivedStream) Read(b []byte) (n int, err error) {
	defer runtime.KeepAlive(s)
	s.mu.Lock()
	if s.r == nil && s.e == nil {
		s.r, s.e = s.open()
	}
	r, e := s.r, s.e
	s.mu.Unlock()
	if e != nil {
		return 0, e
	}
	n, err = r.Read(b)
	runtime.KeepAlive(s) // else the handle may be given back meanwhile
	return n, err
}

func (s *receivedStream) open() (io.ReadCloser, error) {
	if exp, ok := s.origin.(Exporter); ok {
		if err := exp.Account(s.ctx); err != nil {
			return nil, err
		}
	}
	return s.c.Open(s.ctx)
}

// Close gives the stream back. Closing again is harmless.
func (s *receivedStream) Close() error {
	s.cancel(DisposedError())
	s.mu.Lock()
	r := s.r
	s.r = nil
	if s.e == nil {
		s.e = DisposedError()
	}
	s.mu.Unlock()
	s.c.Release()
	if r != nil {
		return r.Close()
	}
	return nil
}

// functionType is a function's type that calls can be made of.
type functionType struct {
	typ reflect.Type
	in  []reflect.Type
	out reflect.Type // nil: error only
}

// functionText stands for a function's name.
const functionText = "function"

// functionShape reads the type of a function that is an argument, a result or in
// one.
func functionShape(t reflect.Type) (functionType, error) {
	if what := wrongFunction(t); what != "" {
		return functionType{}, invalid("TypeError", "%s", what)
	}
	f := functionType{typ: t}
	for i := 1; i < t.NumIn(); i++ {
		f.in = append(f.in, t.In(i))
	}
	if t.NumOut() == 2 {
		f.out = t.Out(0)
	}
	return f, nil
}

// wrongFunction says what keeps a function's type from being carried, or nothing.
func wrongFunction(t reflect.Type) string {
	what := ""
	switch {
	case t.IsVariadic():
		what = "is variadic"
	case t.NumIn() < 1 || t.In(0) != contextType:
		what = "does not take a context.Context first"
	case t.NumIn() > 1+maxArguments:
		what = fmt.Sprintf("takes %d arguments", t.NumIn()-1)
	case t.NumOut() == 0 || t.Out(t.NumOut()-1) != errorType:
		what = "does not return an error last"
	case t.NumOut() > 2:
		what = fmt.Sprintf("returns %d values beside the error", t.NumOut()-1)
	case t.NumOut() == 2 && t.Out(0) == errorType:
		what = "returns two errors"
	default:
		return ""
	}
	return fmt.Sprintf("a %v %s; a function that is carried takes a context.Context and up to %d arguments and returns an error, or a value and an error", t, what, maxArguments)
}
