package limpet

import (
	"context"
	"reflect"
	"sync"
)

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
	enc    Encoded      // the arguments: at once if they are not plain, else when asked for
	caps   []Capability // those in enc
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
		codec := c.Binding.Codec
		if len(c.caps) > 0 {
			r := newReceiver(codec, OriginOf(ctx, nil), dupAll(c.caps))
			defer r.end()
			codec = codec.With(r)
		}
		if err := codec.DecodeArgs(c.enc, args.pointers(nil)...); err != nil {
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
	var p Parcel
	if c.ref.resultHolds {
		p, err = sendResult(c.Binding.Codec, OriginOf(ctx, nil), reflect.TypeFor[R](), r)
	} else {
		p.Bytes, err = c.Binding.Codec.Marshal(r)
	}
	if err != nil {
		return nil, refuseResult(c.Method, err)
	}
	return p.result(), nil
}

func (c *typedCall[T, R, P, A]) Args() (Encoded, error) {
	c.encode.Do(func() {
		c.enc, c.encErr = c.Binding.Codec.Args(A(&c.args).values(nil)...)
	})
	return c.enc, c.encErr
}

func (c *typedCall[T, R, P, A]) Capabilities() []Capability { return c.caps }

func (c *typedCall[T, R, P, A]) Size() int { return c.size }

// send encodes arguments that may hold capabilities.
func (c *typedCall[T, R, P, A]) send(ctx context.Context) {
	c.encode.Do(func() {
		p, what, err := sendArgs(c.Binding.Codec, OriginOf(ctx, c.Binding), c.ref.argsHold, A(&c.args).values(nil))
		c.enc, c.caps, c.encErr = p.Bytes, p.Caps, err
		if what != "" {
			c.Unretryable = unretryableArgs(what)
		}
	})
}

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
	if ref.argsHold != nil {
		c.send(ctx)
	}
	if c.size, err = c.measure(); err != nil {
		Parcel{Caps: c.caps}.Release()
		return r, failed(about("call of "+ref.name, err))
	}
	out, err := s.s.call(ctx, &c.CallSpec)
	if len(c.caps) > 0 {
		Parcel{Caps: c.caps}.Release()
	}
	if err != nil || out == nil || ref.noResult {
		return r, err
	}
	if v, ok := out.(R); ok && ref.resultPlain {
		return v, nil
	}
	p, ok := parcelOf(out)
	if !ok {
		return r, undecodable(ref.name, Errorf(CodeInternal, "unexpected %T", out))
	}
	if len(p.Bytes) == 0 {
		return r, nil
	}
	v := new(R) // a pointer to r would put r on the heap for every call
	if err := receive(s.s.ns.binding.Codec, OriginOf(ctx, s.s.ns.binding), p, v); err != nil {
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
	var types []reflect.Type
	for _, p := range A(new(P)).pointers(nil) {
		ref.argsPlain = ref.argsPlain && codec.Plain(p)
		types = append(types, reflect.TypeOf(p).Elem())
	}
	if anyHolds(types) {
		ref.argsHold = types
	}
	_, ref.noResult = any(new(R)).(*none)
	ref.resultPlain = !ref.noResult && codec.Plain(new(R))
	ref.resultHolds = !ref.noResult && !ref.resultPlain && holdsCapabilities(reflect.TypeFor[R]())
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
