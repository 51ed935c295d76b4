package limpet

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
)

// Stub is a caller's handle to one object, with its retry policy. It outlives
// eviction and restarts of the object (SPEC B7); a call under which the object
// was reset breaks it, and then every call fails with that error at once: make
// a fresh one (SPEC B5). It is safe for concurrent use.
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
	if err := s.Err(); err != nil {
		return nil, failed(err)
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

// InvokeEncoded is Invoke with arguments and result in limpet's format; for
// limpet's doors. No result is nil.
func (s *Stub[T]) InvokeEncoded(ctx context.Context, method string, args Encoded) (Encoded, error) {
	if err := s.Err(); err != nil {
		return nil, failed(err)
	}
	c := &dynamicCall{args: args}
	s.s.fill(&c.CallSpec, KindMethod, method)
	c.Runner = c
	out, err := s.s.call(ctx, &c.CallSpec)
	if err != nil || out == nil {
		return nil, err
	}
	if e, ok := out.(Encoded); ok {
		return e, nil
	}
	return encodeResult(method, s.s.ns.binding.Codec, out)
}

// Fetch sends a request to the object's http.Handler and follows redirects on
// the same object, as SPEC B11 to B15 say; Response.Request is then the last
// request. The context is the request's, its URL must be absolute and says
// nothing of where the object is. A 4xx or 5xx answer is a result, not an error
// (SPEC B17). The caller closes the response's body.
//
// The call is retried only if the body can be sent again: there is none, or
// Request.GetBody is set, as http.NewRequest does for byte and string readers
// (SPEC G.1).
func (s *Stub[T]) Fetch(req *http.Request) (*http.Response, error) { return s.s.fetch(req, true) }

// RoundTrip is Fetch without following redirects, and makes a stub an
// http.RoundTripper.
func (s *Stub[T]) RoundTrip(req *http.Request) (*http.Response, error) {
	return s.s.fetch(req, false)
}

func (s *stub) fetch(req *http.Request, follow bool) (*http.Response, error) {
	if s.err == nil {
		if e := s.broken.Load(); e == nil {
			c := &CallSpec{}
			s.fill(c, KindFetch, "")
			resp, err := s.ns.binding.Caller.Fetch(req.Context(), c, req, follow)
			if err != nil {
				return nil, s.note(err)
			}
			return resp, nil
		}
	}
	if req.Body != nil {
		_ = req.Body.Close() // the contract of http.RoundTripper; nothing was read
	}
	if s.err != nil {
		return nil, failed(s.err)
	}
	return nil, failed(s.broken.Load())
}

func (s *stub) fill(c *CallSpec, kind CallKind, method string) {
	c.Kind, c.Binding, c.Object, c.Method = kind, s.ns.binding, s.id, method
	c.Existing, c.Policy = s.existing, s.policy
}

func (s *stub) call(ctx context.Context, c *CallSpec) (any, error) {
	out, err := s.ns.binding.Caller.Call(ctx, c)
	if err != nil {
		return nil, s.note(err)
	}
	return out, nil
}

// note breaks the stub if the failure is one that does.
func (s *stub) note(err error) error {
	if BreaksStub(err) {
		if e, ok := errors.AsType[*Error](err); ok {
			s.broken.CompareAndSwap(nil, e)
		}
	}
	return err
}

// failed is the error of a call that was not even tried.
func failed(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return Errorf(CodeInternal, "%w", err).With(func(e *Error) { e.Delivery = DeliveryNone })
	}
	e = e.Clone()
	e.Delivery, e.Attempts = DeliveryNone, 0
	return e
}

func undecodable(method string, err error) error {
	return Errorf(CodeOf(err), "result of %s: %w", method, err).With(func(e *Error) { e.Delivery = DeliveryReceived })
}

// dynamicCall is a call by name with encoded arguments.
type dynamicCall struct {
	CallSpec
	args Encoded
}

func (c *dynamicCall) Run(ctx context.Context, receiver any) (any, error) {
	m := c.Binding.Class.Method(c.Method)
	if m == nil {
		return nil, refuse(UnknownMethodError(c.Object, c.Method))
	}
	out, err := m.call(ctx, receiver, c.args, c.Binding.Codec)
	if err != nil || out == nil {
		return nil, err
	}
	return out, nil
}

func (c *dynamicCall) Args() (Encoded, error) { return c.args, nil }
func (c *dynamicCall) Size() int              { return len(c.args) }

// typedArgs is the argument list of one arity; *P implements it.
type typedArgs[T, R any] interface {
	// apply calls m, a method expression of the list's shape.
	apply(m any, receiver T, ctx context.Context) (R, error)
	// pointers appends a pointer to each argument.
	pointers(to []any) []any
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
	encode sync.Once
	enc    Encoded // the arguments: at once if they are not plain, else when asked for
	encErr error
}

func (c *typedCall[T, R, P, A]) Run(ctx context.Context, receiver any) (any, error) {
	args := c.args
	if !c.ref.argsPlain {
		var fresh P // arguments of its own for each attempt
		if err := c.Binding.Codec.DecodeArgs(c.enc, A(&fresh).pointers(nil)...); err != nil {
			return nil, refuse(Errorf(CodeOf(err), "%s: %w", c.Method, err))
		}
		args = fresh
	}
	r, err := A(&args).apply(c.method, receiver.(T), ctx)
	if err != nil {
		return nil, err
	}
	if c.ref.resultPlain {
		return r, nil
	}
	return encodeResult(c.Method, c.Binding.Codec, r)
}

func (c *typedCall[T, R, P, A]) Args() (Encoded, error) {
	c.encode.Do(func() {
		values := A(&c.args).pointers(nil)
		c.enc, c.encErr = c.Binding.Codec.Args(values...)
	})
	return c.enc, c.encErr
}

func (c *typedCall[T, R, P, A]) Size() int {
	if !c.ref.argsPlain {
		return len(c.enc)
	}
	return 0 // plain arguments are held by value in the call itself
}

// invoke makes a typed call.
func invoke[T, R, P any, A interface {
	*P
	typedArgs[T, R]
}](ctx context.Context, s *Stub[T], method any, args P) (r R, err error) {
	if err := s.Err(); err != nil {
		return r, failed(err)
	}
	ref := s.s.ns.methodOf(method, func(codec Codec) (argsPlain, resultPlain bool) {
		argsPlain = true
		for _, p := range A(new(P)).pointers(nil) {
			argsPlain = argsPlain && codec.Plain(p)
		}
		return argsPlain, codec.Plain(new(R))
	})
	if ref.err != nil {
		return r, failed(ref.err)
	}
	c := &typedCall[T, R, P, A]{ref: ref, method: method, args: args}
	s.s.fill(&c.CallSpec, KindMethod, ref.name)
	c.Runner = c
	if !ref.argsPlain {
		if _, err := c.Args(); err != nil {
			return r, failed(Errorf(CodeOf(err), "call of %s: %w", ref.name, err))
		}
	}
	out, err := s.s.call(ctx, &c.CallSpec)
	if err != nil || out == nil {
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
	if err := s.s.ns.binding.Codec.Unmarshal(e, &r); err != nil {
		return r, undecodable(ref.name, err)
	}
	return r, nil
}

// none is the result of a method that returns only an error.
type none struct{}
