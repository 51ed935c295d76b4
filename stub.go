package limpet

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"sync/atomic"
)

// Stub is a caller's handle to one object, with its retry policy. It outlives
// eviction and restarts of the object (SPEC B7); a call under which the object
// was reset breaks it, and then every call fails with that error at once: make
// a fresh one (SPEC B5). It is safe for concurrent use. Stubs come from a
// Namespace; calls of a nil or zero Stub fail.
type Stub[T any] struct{ s stub }

type stub struct {
	ns       *namespace
	id       ID
	policy   RetryPolicy
	existing bool
	err      error
	received *received // nil for the stub of a namespace
	broken   atomic.Pointer[Error]
}

func newStub[T any](ns *namespace, id ID, err error, existing bool, opts []StubOption) *Stub[T] {
	policy, optionErr := ns.binding.Policy.With(opts...)
	if err == nil {
		err = optionErr
	}
	return &Stub[T]{stub{ns: ns, id: id, policy: policy, existing: existing, err: err}}
}

func (*Stub[T]) isCapability() {}

// ID is the object's identity; zero if Err says that there is none.
func (s *Stub[T]) ID() ID { return s.s.id }

// Name is the name the stub was made with, if it was made with one.
func (s *Stub[T]) Name() (name string, ok bool) { return s.s.id.Name() }

// Policy is how calls of the stub are retried: what the options said, and the
// binding's defaults where they said nothing.
func (s *Stub[T]) Policy() RetryPolicy { return s.s.policy }

// Err tells what is wrong with the stub (its name, ID or options, that its object
// was reset under a call, or that it was closed), or nil. With an error every call fails with it
// and nothing is sent.
func (s *Stub[T]) Err() error {
	if s == nil || s.s.ns == nil {
		return invalid("", "the Stub is nil or zero: make one with Namespace.Named, Get or Existing")
	}
	if s.s.err != nil {
		return s.s.err
	}
	if e := s.s.broken.Load(); e != nil {
		return e
	}
	if s.s.received != nil && s.s.received.c.Released() {
		return DisposedError()
	}
	return nil
}

// Invoke calls a method by its JavaScript name. The result is a dynamic value
// (nil for none); see the list at Undefined. Stubs and streams in it are the
// caller's to close (docs/CAPABILITIES.md).
func (s *Stub[T]) Invoke(ctx context.Context, method string, args ...any) (any, error) {
	d, err := s.dynamic(ctx, method, nil, false, args)
	if err != nil {
		return nil, err
	}
	return s.dynamicResult(ctx, d)
}

// Get reads a property by the JavaScript names that lead to it: a getter of the
// object's class (Getter), and behind that the members of its value (SPEC B24,
// B25). A method read as a property is a *Stub[any] of that method; see Apply.
// Reads are retried like calls (SPEC E57); Get takes 1 to 64 names.
func (s *Stub[T]) Get(ctx context.Context, path ...string) (any, error) {
	if len(path) == 0 {
		return nil, invalid("TypeError", "Get takes the name of a property")
	}
	d, err := s.dynamic(ctx, path[0], path[1:], true, nil)
	if err != nil {
		return nil, err
	}
	return s.dynamicResult(ctx, d)
}

// Apply calls a stub that is a function: one that was received as a *Stub, or a
// method that was read as a property.
func (s *Stub[T]) Apply(ctx context.Context, args ...any) (any, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	if s.s.received == nil {
		return nil, errNoFunction().With(func(e *Error) { e.Delivery, e.Remote = DeliveryNone, false })
	}
	var out any
	if err := s.s.received.apply(ctx, nil, args, &out); err != nil {
		return nil, s.s.note(err)
	}
	return out, nil
}

// dynamic makes a call by name. Whoever makes it releases the arguments in the end.
func (s *Stub[T]) dynamic(ctx context.Context, method string, path []string, property bool, args []any) (*dynamicCall, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	switch {
	case len(path)+1 > MaxPath:
		return nil, errTooDeep()
	case method == "" && s.s.received != nil:
		e := NoMethodError("")
		e.Delivery, e.Remote = DeliveryNone, false
		return nil, e
	}
	d := &dynamicCall{}
	s.s.fill(&d.CallSpec, KindMethod, method)
	d.Runner = d
	if d.Property = property; property {
		if len(path) > 0 {
			d.Path = slices.Clone(path)
		}
		return d, nil
	}
	codec := s.s.ns.binding.Codec
	var err error
	if slices.ContainsFunc(args, func(a any) bool { return !isData(a) }) {
		var what string
		if d.args, what, err = sendArgs(codec, OriginOf(ctx, s.s.ns.binding), nil, args); what != "" {
			d.Unretryable = unretryableArgs(what)
		}
	} else {
		d.args.Bytes, err = codec.Args(args...)
	}
	if err != nil {
		return nil, failed(about("call of "+method, err))
	}
	return d, nil
}

// unretryableArgs says why a call is not retried (SPEC G11).
func unretryableArgs(what string) string { return "its arguments hold " + what }

// dynamicResult makes the call and decodes its result.
func (s *Stub[T]) dynamicResult(ctx context.Context, d *dynamicCall) (any, error) {
	p, err := s.parcel(ctx, d)
	if err != nil || len(p.Bytes) == 0 {
		return nil, err
	}
	var v any
	if err := receive(s.s.ns.binding.Codec, OriginOf(ctx, s.s.ns.binding), p, &v); err != nil {
		return nil, undecodable(d.Method, err)
	}
	return v, nil
}

// parcel makes the call and releases its arguments.
func (s *Stub[T]) parcel(ctx context.Context, d *dynamicCall) (Parcel, error) {
	out, err := s.s.call(ctx, &d.CallSpec)
	d.args.Release()
	if err != nil {
		return Parcel{}, err
	}
	p, ok := parcelOf(out)
	if !ok {
		return Parcel{}, undecodable(d.Method, Errorf(CodeInternal, "unexpected %T", out))
	}
	return p, nil
}

// InvokeParcel is Invoke with arguments, which it takes over, and result in
// limpet's format; the result is the caller's to release. The bytes of args must
// not be changed afterwards: an attempt may still read them when InvokeParcel has
// returned. For limpet's own packages.
func (s *Stub[T]) InvokeParcel(ctx context.Context, method string, args Parcel) (Parcel, error) {
	if err := s.ready(ctx); err != nil {
		args.Release()
		return Parcel{}, err
	}
	d := &dynamicCall{args: args}
	s.s.fill(&d.CallSpec, KindMethod, method)
	if len(args.Caps) > 0 {
		d.Unretryable = unretryableArgs("a " + args.Caps[0].Kind().String())
	}
	d.Runner = d
	return s.parcel(ctx, d)
}

// ready refuses a call that can't even be tried. The error is an *Error.
func (s *Stub[T]) ready(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return unusable(err)
	}
	if ctx == nil {
		return invalid("", "the context of a call is nil")
	}
	return nil
}

// Dup is another handle to the same thing, with a Close of its own: for a stub
// that was received in a call, which is closed when the call returns, to keep it
// longer (SPEC B37, B39). The stub of a namespace is its own Dup.
func (s *Stub[T]) Dup() *Stub[T] {
	if s == nil || s.s.received == nil {
		return s
	}
	r := s.s.received
	defer runtime.KeepAlive(r) // the handle is given back with it
	d := newReceived(r.c.Dup(), r.binding.Origin, r.binding.Codec)
	d.local = r.local
	return stubOf[T](d)
}

// Close gives a received stub, or that of a target, back: its calls fail with
// CodeDisposed from now on (SPEC B36, C42). The last handle's Close ends the
// thing: a target's Dispose runs. Closing twice, and closing the stub of a
// namespace, is harmless.
func (s *Stub[T]) Close() {
	if s != nil && s.s.received != nil {
		s.s.received.c.Release()
	}
}

// As is a stub as that of a T, for typed calls: T is a type of the receiver's,
// or an interface with its methods. It is the same handle: closing one closes
// both. A T that the class of a namespace's stub does not fit is an error of the
// new stub, as of NamespaceOf; of a received stub nobody can tell, and calls of
// methods that it does not have fail with CodeUnknownMethod.
func As[T any](s *Stub[any]) *Stub[T] {
	t := new(Stub[T])
	if err := s.Err(); err != nil {
		t.s.ns, t.s.err = &namespace{binding: &Binding{}}, err
		return t
	}
	t.s.ns = &namespace{binding: s.s.ns.binding, ids: s.s.ns.ids, jurisdiction: s.s.ns.jurisdiction, receiver: reflect.TypeFor[T]()}
	t.s.id, t.s.policy, t.s.existing, t.s.received = s.s.id, s.s.policy, s.s.existing, s.s.received
	if s.s.received == nil {
		t.s.err = fits(t.s.ns.binding, t.s.ns.receiver)
	}
	return t
}

// send is the stub in a value that is sent.
func (s *Stub[T]) send(to *sender) (c Capability, local bool, err error) {
	if err := s.Err(); err != nil {
		return nil, false, err
	}
	r := s.s.received
	if r == nil {
		b := *s.s.ns.binding
		b.Origin = nil // calls are made by who holds it then
		return NewCapability(&stubCore{binding: b, id: s.s.id, existing: s.s.existing}), false, nil
	}
	defer runtime.KeepAlive(r)
	if l, ok := r.binding.Codec.(*lateCodec); ok {
		l.t.codec.CompareAndSwap(nil, &to.codec)
	}
	if to.result {
		to.given = append(to.given, r)
	}
	return r.c.Dup(), r.local, nil
}

// Fetch sends a request to the object's http.Handler and follows redirects on
// the same object, as SPEC B11 to B15 say; Response.Request is then the last
// request. The context is the request's, its URL must be absolute and says
// nothing of where the object is. A 4xx or 5xx answer is a result, not an error
// (SPEC B17); the error of a call that failed is an *Error. Fetch closes
// Request.Body, also when it fails; the caller closes the response's body.
//
// A request that a server received can be passed on as it is: its URL is made
// absolute from Host and TLS.
//
// The call is retried only if the body can be sent again: there is none, or
// Request.GetBody is set, as http.NewRequest does for byte and string readers
// (SPEC G.1).
func (s *Stub[T]) Fetch(req *http.Request) (*http.Response, error) { return s.fetch(req, true) }

// RoundTrip is Fetch without following redirects, and makes a stub an
// http.RoundTripper.
func (s *Stub[T]) RoundTrip(req *http.Request) (*http.Response, error) {
	return s.fetch(req, false)
}

func (s *Stub[T]) fetch(req *http.Request, follow bool) (*http.Response, error) {
	if req == nil {
		return nil, invalid("", "the request of a fetch is nil")
	}
	err := s.Err()
	if err == nil && (req.URL == nil || !served(req) && (req.URL.Scheme == "" || req.URL.Host == "")) {
		err = invalid("TypeError", "Invalid URL: %.200q: must be absolute, as in http://object/path", req.URL)
	}
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // the contract of http.RoundTripper; nothing was read
		}
		return nil, unusable(err)
	}
	c := &CallSpec{}
	s.s.fill(c, KindFetch, "")
	if c.Key, err = idempotencyKey(req.Context()); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // as above
		}
		return nil, err
	}
	resp, err := s.s.ns.binding.Caller.Fetch(req.Context(), c, req, follow)
	if err != nil {
		return nil, s.s.note(err)
	}
	return resp, nil
}

// served reports whether a server received req, so that Host and TLS say what
// its URL lacks.
func served(req *http.Request) bool {
	return req.RequestURI != "" && req.Host != ""
}

func (s *stub) fill(c *CallSpec, kind CallKind, method string) {
	c.Kind, c.Binding, c.Object, c.Method = kind, s.ns.binding, s.id, method
	c.Existing, c.Policy = s.existing, s.policy
}

func (s *stub) call(ctx context.Context, c *CallSpec) (_ any, err error) {
	if c.Key, err = s.key(ctx); err != nil {
		return nil, err
	}
	out, err := s.ns.binding.Caller.Call(ctx, c)
	if err != nil {
		return nil, s.note(err)
	}
	return out, nil
}

// key is the idempotency key that ctx holds for a call of the stub. Only objects
// keep any.
func (s *stub) key(ctx context.Context) (string, error) {
	k, err := idempotencyKey(ctx)
	if err == nil && k != "" && s.received != nil {
		err = Errorf(CodeNotSupported, "not supported: an idempotency key on a stub that was received").With(func(e *Error) { e.Delivery = DeliveryNone })
	}
	return k, err
}

// note breaks the stub if the failure is one that does. The first one stays.
func (s *stub) note(err error) error {
	if BreaksStub(err) {
		if e, ok := errors.AsType[*Error](err); ok {
			s.broken.CompareAndSwap(nil, e.Clone())
		}
	}
	return err
}

// unusable is what a call through a stub with an error fails with. On a broken
// stub that is the failure that broke it (SPEC B5), and it says so, lest it be
// taken for news.
func unusable(err error) *Error {
	e := failed(err)
	if BreaksStub(e) {
		e.Message = e.Error() + " (this call was not made: the object was reset under an earlier one; make a fresh stub)"
	}
	return e
}

// failed is the error of a call that was not even tried. What it says of delivery
// is about this call: nothing was sent.
func failed(err error) *Error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return Errorf(CodeInternal, "%w", err).With(func(e *Error) { e.Delivery = DeliveryNone })
	}
	e = e.Clone()
	e.Delivery, e.Attempts, e.Identity = DeliveryNone, 0, ""
	return e
}

func undecodable(method string, err error) error {
	return Errorf(CodeOf(err), "result of %s: %w", method, err).With(func(e *Error) { e.Delivery = DeliveryReceived })
}

// dynamicCall is a call by name with encoded arguments.
type dynamicCall struct {
	CallSpec
	args Parcel
}

func (c *dynamicCall) Run(ctx context.Context, receiver any) (any, error) {
	class, codec := c.Binding.Class, c.Binding.Codec
	if class == nil {
		return nil, refuse(Errorf(CodeInternal, "call of %.200q: the class of namespace %s is not here", c.Method, c.Binding.Name))
	}
	args := Parcel{Bytes: c.args.Bytes}
	if len(c.args.Caps) > 0 {
		args.Caps = dupAll(c.args.Caps)
	}
	var p Parcel
	var err error
	if m := class.Method(c.Method); m != nil && !c.Property && len(c.Path) == 0 {
		p, err = m.call(ctx, reflect.ValueOf(receiver), args, codec, OriginOf(ctx, nil))
	} else {
		t := TargetCall{Path: append([]string{c.Method}, c.Path...), Property: c.Property, Args: args}
		p, err = class.serve(ctx, receiver, t, codec, OriginOf(ctx, nil))
	}
	if err != nil {
		return nil, err
	}
	return p.result(), nil
}

func (c *dynamicCall) Args() (Encoded, error)     { return c.args.Bytes, nil }
func (c *dynamicCall) Capabilities() []Capability { return c.args.Caps }
func (c *dynamicCall) Size() int                  { return len(c.args.Bytes) }
