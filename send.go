package limpet

import (
	"context"
	"io"
	"reflect"
	"runtime"
)

// This file puts capabilities into a value that is sent: the arguments of a call
// or its result.

// sender is the CapabilityHooks of one value that is encoded.
type sender struct {
	noImport
	codec  Codec
	origin Origin // the object that sends, nil outside of objects
	result bool   // what is sent is given away
	caps   []Capability
	local  []bool      // of each capability: it runs code of the sender
	given  []*received // of a result: handles that went with it
	what   string      // the first one, for people
}

var _ CapabilityHooks = (*sender)(nil)

// ExportCapability takes up one.
func (s *sender) ExportCapability(v reflect.Value) (CapabilityKind, int, error) {
	if len(s.caps) >= MaxCapabilities {
		return 0, 0, Errorf(CodeTooLarge, "a value may hold %d stubs, functions and streams", MaxCapabilities)
	}
	c, local, err := s.take(v)
	if err != nil {
		return 0, 0, err
	}
	s.caps, s.local = append(s.caps, c), append(s.local, local)
	return c.Kind(), len(s.caps) - 1, nil
}

func (s *sender) take(v reflect.Value) (c Capability, local bool, err error) {
	x := v.Interface()
	switch x := x.(type) {
	case sendable:
		s.tell("a stub")
		return x.send(s)
	case *receivedStream:
		return s.passOn(x)
	case streamArgument:
		if r, ok := x.Reader.(*receivedStream); ok {
			return s.passOn(r)
		}
		s.tell("a byte stream")
		return NewCapability(&streamCore{r: x.Reader}), true, nil
	}
	if v.Kind() == reflect.Func {
		s.tell("a function")
		shape, err := functionShape(v.Type())
		if err != nil {
			return nil, false, err
		}
		return NewCapability(&methodCore{m: &Method{Name: functionText, fn: v, in: shape.in, out: shape.out}, codec: s.codec}), true, nil
	}
	r, ok := x.(io.Reader)
	if !ok {
		return nil, false, Errorf(CodeInternal, "a %T was taken for a capability", x)
	}
	s.tell("a byte stream")
	return NewCapability(&streamCore{r: r}), true, nil
}

// passOn sends a stream that was received.
func (s *sender) passOn(r *receivedStream) (Capability, bool, error) {
	s.tell("a byte stream")
	defer runtime.KeepAlive(r) // the handle is given back with it
	if r.c.Released() {
		return nil, false, DisposedError()
	}
	return r.c.Dup(), r.local, nil
}

func (s *sender) tell(what string) {
	if s.what == "" {
		s.what = what
	}
}

// sendable is a Stub.
type sendable interface {
	send(s *sender) (c Capability, local bool, err error)
}

// streamArgument is a reader that is an argument or result by itself: its own
// type says nothing, since the Codec does not see that of the parameter.
type streamArgument struct{ io.Reader }

func (streamArgument) isCapability() {}

// parcel is the encoded value with what belongs to it.
func (s *sender) parcel(e Encoded) Parcel {
	if exp, ok := s.origin.(Exporter); ok {
		for i, local := range s.local {
			if local {
				s.caps[i] = exp.Export(s.caps[i])
			}
		}
	}
	s.handOver()
	return Parcel{Bytes: e, Caps: s.caps}
}

// drop gives everything back because the value can't be sent.
func (s *sender) drop() {
	Parcel{Caps: s.caps}.Release()
	s.handOver()
}

// handOver lets go of handles whose place others have taken.
func (s *sender) handOver() {
	if s.result {
		for _, r := range s.given {
			r.c.Release()
		}
	}
}

// sendArgs encodes an argument list. static are the types of the parameters, nil
// for a call by name. The error names the argument.
func sendArgs(codec Codec, origin Origin, static []reflect.Type, args []any) (p Parcel, what string, err error) {
	s := &sender{codec: codec, origin: origin}
	wrapped := args
	for i, a := range args {
		var t reflect.Type
		if static != nil {
			t = static[i]
		}
		if w := wrapStream(t, a); w != nil {
			if &wrapped[0] == &args[0] {
				wrapped = append([]any(nil), args...)
			}
			wrapped[i] = w
		}
	}
	e, err := codec.With(s).Args(wrapped...)
	if err != nil {
		s.drop()
		return Parcel{}, "", err
	}
	return s.parcel(e), s.what, nil
}

// sendResult encodes a result, which is given away. It is given back if it can't
// be sent.
func sendResult(codec Codec, origin Origin, static reflect.Type, v any) (Parcel, error) {
	s := &sender{codec: codec, origin: origin, result: true}
	if w := wrapStream(static, v); w != nil {
		v = w
	}
	e, err := codec.With(s).Marshal(v)
	if err != nil {
		s.drop()
		return Parcel{}, err
	}
	return s.parcel(e), nil
}

// wrapStream is v as a stream, if it is an argument or result that is one: its
// type is an interface, or not known, and v can be read.
func wrapStream(static reflect.Type, v any) any {
	if static != nil && static.Kind() != reflect.Interface {
		return nil
	}
	r, ok := v.(io.Reader)
	if !ok || isNil(v) {
		return nil
	}
	switch v.(type) {
	case CapabilityValue, error:
		return nil
	}
	return streamArgument{r}
}

// objectOf is the origin of what is kept beyond the running event.
func objectOf(o Origin) Origin {
	if exp, ok := o.(Exporter); ok {
		return exp.Object()
	}
	return o
}

// asideContext is ctx for code that does not belong to the object out of which
// ctx comes.
func asideContext(ctx context.Context) context.Context {
	if exp, ok := OriginOf(ctx, nil).(Exporter); ok {
		return exp.Aside(ctx)
	}
	return ctx
}

// holdsCapabilities reports whether a value of type t may have a capability in it.
func holdsCapabilities(t reflect.Type) bool { return mayHold(t, map[reflect.Type]bool{}) }

var capabilityValueType = reflect.TypeFor[CapabilityValue]()

func mayHold(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == nil || seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Func, reflect.Interface:
		return t != errorType
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return t.Implements(capabilityValueType) || mayHold(t.Elem(), seen)
	case reflect.Map:
		return mayHold(t.Key(), seen) || mayHold(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); (f.IsExported() || f.Anonymous) && mayHold(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

func anyHolds(types []reflect.Type) bool {
	for _, t := range types {
		if holdsCapabilities(t) {
			return true
		}
	}
	return false
}

// isData reports that an argument of a call by name surely holds no capability.
func isData(v any) bool {
	switch v.(type) {
	case nil, bool, string, []byte, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64, []string, []int:
		return true
	}
	return false
}
