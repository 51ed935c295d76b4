package limpet

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"sync"
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
	broken   atomic.Pointer[Error]
}

func newStub[T any](ns *namespace, id ID, err error, existing bool, opts []StubOption) *Stub[T] {
	policy, optionErr := ns.binding.Policy.With(opts...)
	if err == nil {
		err = optionErr
	}
	return &Stub[T]{stub{ns: ns, id: id, policy: policy, existing: existing, err: err}}
}

// ID is the object's identity; zero if Err says that there is none.
func (s *Stub[T]) ID() ID { return s.s.id }

// Name is the name the stub was made with, if it was made with one.
func (s *Stub[T]) Name() (name string, ok bool) { return s.s.id.Name() }

// Policy is how calls of the stub are retried: what the options said, and the
// binding's defaults where they said nothing.
func (s *Stub[T]) Policy() RetryPolicy { return s.s.policy }

// Err tells what is wrong with the stub (its name, ID or options, or that its
// object was reset under a call), or nil. With an error every call fails with it
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
	return nil
}

// Invoke calls a method by its JavaScript name. The result is a dynamic value
// (nil for none); see the list at Undefined.
func (s *Stub[T]) Invoke(ctx context.Context, method string, args ...any) (any, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	codec := s.s.ns.binding.Codec
	enc, err := codec.Args(args...)
	if err != nil {
		return nil, failed(Errorf(CodeOf(err), "call of %s: %w", method, err))
	}
	out, err := s.InvokeEncoded(ctx, method, enc)
	if err != nil || out == nil {
		return nil, err
	}
	var v any
	if err := codec.Unmarshal(out, &v); err != nil {
		return nil, undecodable(method, err)
	}
	return v, nil
}

// InvokeEncoded is Invoke with arguments and result in limpet's format. No result
// is nil. args must not be changed afterwards: an attempt may still read them
// when InvokeEncoded has returned. For limpet's own packages.
func (s *Stub[T]) InvokeEncoded(ctx context.Context, method string, args Encoded) (Encoded, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	c := &dynamicCall{args: Parcel{Bytes: args}}
	s.s.fill(&c.CallSpec, KindMethod, method)
	c.Runner = c
	out, err := s.s.call(ctx, &c.CallSpec)
	if err != nil || out == nil {
		return nil, err
	}
	e, ok := out.(Encoded)
	if !ok {
		return nil, undecodable(method, Errorf(CodeInternal, "unexpected %T", out))
	}
	return e, nil
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
	if err == nil && (req.URL == nil || !received(req) && (req.URL.Scheme == "" || req.URL.Host == "")) {
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

// received reports whether a server received req, so that Host and TLS say what
// its URL lacks.
func received(req *http.Request) bool {
	return req.RequestURI != "" && req.Host != ""
}

func (s *stub) fill(c *CallSpec, kind CallKind, method string) {
	c.Kind, c.Binding, c.Object, c.Method = kind, s.ns.binding, s.id, method
	c.Existing, c.Policy = s.existing, s.policy
}

func (s *stub) call(ctx context.Context, c *CallSpec) (_ any, err error) {
	if c.Key, err = idempotencyKey(ctx); err != nil {
		return nil, err
	}
	out, err := s.ns.binding.Caller.Call(ctx, c)
	if err != nil {
		return nil, s.note(err)
	}
	return out, nil
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
	if c.Binding.Class == nil {
		return nil, refuse(Errorf(CodeInternal, "call of %.200q: the class of namespace %s is not here", c.Method, c.Binding.Name))
	}
	m := c.Binding.Class.Method(c.Method)
	if m == nil {
		return nil, refuse(c.Binding.Class.UnknownMethod(c.Object, c.Method))
	}
	if c.Property || len(c.Path) > 0 || len(c.args.Caps) > 0 {
		return nil, refuse(Errorf(CodeNotSupported, "not supported: property reads, paths, and stubs, functions and streams as arguments (%s)", c.Method))
	}
	out, err := m.call(ctx, receiver, c.args.Bytes, c.Binding.Codec)
	if err != nil || out == nil {
		return nil, err
	}
	return out, nil
}

func (c *dynamicCall) Args() (Encoded, error)     { return c.args.Bytes, nil }
func (c *dynamicCall) Capabilities() []Capability { return c.args.Caps }
func (c *dynamicCall) Size() int                  { return len(c.args.Bytes) }

// typedArgs is the argument list of one arity; *P implements it.
type typedArgs[T, R any] interface {
	// apply calls m, a method expression of the list's shape.
	apply(m any, receiver T, ctx context.Context) (R, error)
	// pointers appends a pointer to each argument, values the arguments.
	pointers(to []any) []any
	values(to []any) []any
}

// typedCall is a call through a method expression.
type typedCall[T, R, P any, A interface {
	*P
	typedArgs[T, R]
}] struct {
	CallSpec
	ref    *methodRef
	method any
	args   P
	size   int // see Size
	encode sync.Once
	enc    Encoded // the arguments: at once if they are not plain, else when asked for
	encErr error
}

func (c *typedCall[T, R, P, A]) Run(ctx context.Context, receiver any) (any, error) {
	object, ok := receiver.(T)
	if !ok {
		return nil, refuse(Errorf(CodeInternal, "call of %s: the object is a %T, not a %v", c.Method, receiver, reflect.TypeFor[T]()))
	}
	args := A(&c.args) // only read: apply passes them by value
	if !c.ref.argsPlain {
		args = new(P) // arguments of its own for each attempt
		if err := c.Binding.Codec.DecodeArgs(c.enc, args.pointers(nil)...); err != nil {
			return nil, refuse(Errorf(CodeOf(err), "%s: %w", c.Method, err))
		}
	}
	r, err := args.apply(c.method, object, ctx)
	switch {
	case err != nil:
		return nil, ownError(c.Binding.Codec, err)
	case c.ref.noResult:
		return nil, nil
	case c.ref.resultPlain:
		if c.ref.resultText {
			if err := checkSize(textIn(reflect.ValueOf(&r).Elem())); err != nil {
				return nil, refuseResult(c.Method, err)
			}
		}
		return r, nil
	}
	// Not "return encodeResult(…)": a nil Encoded in an interface is not nil.
	enc, err := encodeResult(c.Method, c.Binding.Codec, r)
	if err != nil {
		return nil, err
	}
	return enc, nil
}

func (c *typedCall[T, R, P, A]) Args() (Encoded, error) {
	c.encode.Do(func() {
		c.enc, c.encErr = c.Binding.Codec.Args(A(&c.args).values(nil)...)
	})
	return c.enc, c.encErr
}

func (c *typedCall[T, R, P, A]) Capabilities() []Capability { return nil }

func (c *typedCall[T, R, P, A]) Size() int { return c.size }

// measure is the bytes of the arguments: encoded, or as they are held.
func (c *typedCall[T, R, P, A]) measure() (int, error) {
	if !c.ref.argsPlain {
		enc, err := c.Args()
		return len(enc), err
	}
	n := int(reflect.TypeFor[P]().Size())
	if c.ref.argsText {
		n += textIn(reflect.ValueOf(&c.args).Elem())
	}
	return n, checkSize(n)
}

// MaxValueBytes is the largest argument list or result of a call (SPEC B30).
const MaxValueBytes = 32 << 20

// checkSize holds for what is handed over by assignment; a Codec has the same
// limit for what it encodes.
func checkSize(n int) error {
	if n <= MaxValueBytes {
		return nil
	}
	return Errorf(CodeTooLarge, "Serialized RPC arguments or return values are limited to 32MiB, but the size of this value was: %d bytes.", n)
}

// textIn is the bytes of all strings in a plain value: all that it holds outside
// of itself.
func textIn(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Struct:
		for i := range v.NumField() {
			n += textIn(v.Field(i))
		}
	case reflect.Array:
		if k := v.Type().Elem().Kind(); k == reflect.String || k == reflect.Struct || k == reflect.Array {
			for i := range v.Len() {
				n += textIn(v.Index(i))
			}
		}
	}
	return n
}

// invoke makes a typed call.
func invoke[T, R, P any, A interface {
	*P
	typedArgs[T, R]
}](ctx context.Context, s *Stub[T], method any, args P) (r R, err error) {
	if err := s.ready(ctx); err != nil {
		return r, err
	}
	ref := s.s.ns.methodOf(method, describe[T, R, P, A])
	if ref.err != nil {
		return r, failed(ref.err)
	}
	c := &typedCall[T, R, P, A]{ref: ref, method: method, args: args}
	s.s.fill(&c.CallSpec, KindMethod, ref.name)
	c.Runner = c
	if c.size, err = c.measure(); err != nil {
		return r, failed(Errorf(CodeOf(err), "call of %s: %w", ref.name, err))
	}
	out, err := s.s.call(ctx, &c.CallSpec)
	if err != nil || out == nil || ref.noResult {
		return r, err
	}
	if v, ok := out.(R); ok && ref.resultPlain {
		return v, nil
	}
	e, ok := out.(Encoded)
	if !ok {
		return r, undecodable(ref.name, Errorf(CodeInternal, "unexpected %T", out))
	}
	if len(e) == 0 {
		return r, nil
	}
	v := new(R) // a pointer to r would put r on the heap for every call
	if err := s.s.ns.binding.Codec.Unmarshal(e, v); err != nil {
		return r, undecodable(ref.name, err)
	}
	return *v, nil
}

// describe tells what is handed over by assignment.
func describe[T, R, P any, A interface {
	*P
	typedArgs[T, R]
}](ref *methodRef, codec Codec) {
	ref.argsPlain = true
	for _, p := range A(new(P)).pointers(nil) {
		ref.argsPlain = ref.argsPlain && codec.Plain(p)
	}
	_, ref.noResult = any(new(R)).(*none)
	ref.resultPlain = !ref.noResult && codec.Plain(new(R))
	ref.argsText, ref.resultText = holdsText(reflect.TypeFor[P]()), holdsText(reflect.TypeFor[R]())
}

// holdsText reports whether a plain type has strings in it.
func holdsText(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String:
		return true
	case reflect.Array:
		return holdsText(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsText(t.Field(i).Type) {
				return true
			}
		}
	}
	return false
}

// none is the result of a method that returns only an error.
type none struct{}
