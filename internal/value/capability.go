package value

import (
	"io"
	"reflect"

	"github.com/limpet-dev/limpet"
)

// This file carries what is no data: stubs, functions and byte streams. Only
// their places are in the bytes; Options.Hooks has the things themselves.

var (
	capabilityType = reflect.TypeFor[limpet.CapabilityValue]()
	readerType     = reflect.TypeFor[io.Reader]()
	readCloserType = reflect.TypeFor[io.ReadCloser]()
)

// isStream says that the interface type t takes a byte stream.
func isStream(t reflect.Type) bool {
	return t.Kind() == reflect.Interface && t.Implements(readerType) && readCloserType.Implements(t)
}

// isCapability says that a value of type t is called or read, and is no data.
func isCapability(t reflect.Type) bool {
	return t.Kind() == reflect.Func || isStream(t) || t.Kind() != reflect.Interface && t.Implements(capabilityType)
}

// inside encodes what an interface holds: with hooks, a reader is a stream.
func (e *encoder) inside(p *plan, v reflect.Value) error {
	if p.reads && e.hooks != nil {
		return encCapability(e, v)
	}
	return p.enc(e, v)
}

func encCapability(e *encoder, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Func, reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			e.b = append(e.b, byteNull)
			return nil
		}
	}
	if e.hooks == nil {
		if v.Kind() == reflect.Func && v.Type().NumOut() == 0 { // never could be
			return refuse(v.Type().String(), "")
		}
		return refuse(v.Type().String(), " Stubs, functions and streams travel as arguments and results of calls only; they can't be stored.")
	}
	if v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() == reflect.Pointer { // the address of a function's code says nothing
		if done, err := e.again(v, 0); done {
			return err
		}
	}
	kind, index, err := e.hooks.ExportCapability(v)
	if err != nil {
		return &Error{Reason: short(err.Error(), maxReason), Err: err}
	}
	e.b, err = appendCapability(e.b, kind, index)
	return err
}

func decCapability(d *decoder, t *Token, v reflect.Value) error {
	switch {
	case t.absent():
		v.SetZero()
		return nil
	case t.Kind != KindCapability:
		return mismatch(t, v.Type())
	}
	x, err := d.capability(t, v.Type())
	if err != nil {
		return err
	}
	v.Set(x)
	d.register(t.Share, x)
	return nil
}

// capability makes what t stands for as a typ.
func (d *decoder) capability(t *Token, typ reflect.Type) (reflect.Value, error) {
	if d.hooks == nil {
		return reflect.Value{}, fail(ErrCapability, "a %s where there can be none", t.Capability())
	}
	want := limpet.CapabilityTarget
	if isStream(typ) {
		want = limpet.CapabilityStream
	}
	if typ != anyType && want != t.Capability() {
		return reflect.Value{}, mismatch(t, typ)
	}
	x, err := d.hooks.ImportCapability(t.Capability(), t.N, typ)
	if err != nil {
		return reflect.Value{}, &Error{Reason: short(err.Error(), maxReason), Err: err}
	}
	return x, nil
}
