package limpet

import (
	"context"
	"runtime"
	"strconv"
)

// CallResult makes a call, or property read, on the value in p: on its own
// members, nested ones too, and on the capabilities in it (SPEC B33, B35). It is
// how a pipelined call runs once the result it waited for is there. p stays the
// caller's; c.Args are taken over, also when it fails. Path may be empty: then the
// value itself is called. Every error is an *Error. For limpet's own packages.
func CallResult(ctx context.Context, codec Codec, p Parcel, c TargetCall) (Parcel, error) {
	if len(c.Path) > MaxPath {
		c.Args.Release()
		return Parcel{}, errTooDeep()
	}
	out, err := walk(ctx, codec, nil, p, nil, c)
	if r, ok := err.(refusal); ok { //nolint:errorlint // exactly what walk returned
		err = r.err
	}
	if err != nil {
		return Parcel{}, failure(err)
	}
	return out, nil
}

// walk is CallResult for an object o, or nil; local says which capabilities run
// code of o, in whose turn they are called then.
func walk(ctx context.Context, codec Codec, o Origin, p Parcel, local []bool, t TargetCall) (Parcel, error) {
	handed := false
	defer func() {
		if !handed {
			t.Args.Release()
		}
	}()
	r := newReceiver(codec, o, dupAll(p.Caps))
	r.local = local
	defer r.end()
	var v any
	if len(p.Bytes) > 0 {
		if err := codec.With(r).Unmarshal(p.Bytes, &v); err != nil {
			return Parcel{}, refuse(Errorf(CodeOf(err), "the result: %w", err).With(func(e *Error) { e.Delivery = DeliveryReceived }))
		}
	}
	for i, name := range t.Path {
		if s, ok := v.(*Stub[any]); ok {
			t.Path = t.Path[i:]
			handed = true
			return s.s.received.within(ctx, o, t)
		}
		next, ok := member(v, name)
		if !ok {
			return Parcel{}, refuse(NoMethodError(name))
		}
		v = next
	}
	if t.Property {
		s := &sender{codec: codec, origin: o}
		e, err := codec.With(s).Marshal(v)
		if err != nil {
			s.drop()
			return Parcel{}, refuse(Errorf(CodeOf(err), "the result: %w", err))
		}
		return s.parcel(e), nil
	}
	s, ok := v.(*Stub[any])
	switch {
	case ok:
		t.Path = nil
		handed = true
		return s.s.received.within(ctx, o, t)
	case len(t.Path) == 0:
		return Parcel{}, refuse(errNoFunction())
	}
	return Parcel{}, refuse(NoMethodError(lastOf(t.Path)))
}

// within calls r in the middle of a path that began at the object o, or at a
// result if o is nil: then whoever walks has left its own object already.
func (r *received) within(ctx context.Context, o Origin, t TargetCall) (Parcel, error) {
	defer runtime.KeepAlive(r) // the handle is given back with it
	if o == nil {
		return r.c.Call(ctx, t)
	}
	if l, ok := r.c.(LocalCapability); ok && r.local {
		return l.Run(ctx, t)
	}
	return r.call(ctx, t)
}

// member is an own property of a value.
func member(v any, name string) (any, bool) {
	switch v := v.(type) {
	case map[string]any:
		x, ok := v[name]
		return x, ok
	case []any:
		i, err := strconv.Atoi(name)
		if err != nil || i < 0 || i >= len(v) || strconv.Itoa(i) != name {
			return nil, false
		}
		if _, hole := v[i].(Hole); hole {
			return nil, false
		}
		return v[i], true
	case *ErrorValue:
		switch name {
		case "name":
			return v.Name, true
		case "message":
			return v.Message, true
		case "stack":
			return v.Stack, true
		case "cause":
			return v.Cause, v.Cause != nil || v.HasCause
		}
		x, ok := v.Fields[name]
		return x, ok
	}
	return nil, false
}
