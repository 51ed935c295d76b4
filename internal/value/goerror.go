package value

import (
	"errors"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/limpet-dev/limpet"
)

// builtinErrors are the classes that a JavaScript reader makes by name.
var builtinErrors = []string{
	"Error", "EvalError", "RangeError", "ReferenceError", "SyntaxError", "TypeError", "URIError", "AggregateError", "DOMException",
}

// fill gives class and name their defaults.
func (h *ErrorHead) fill() {
	if h.Class == "" {
		h.Class = "Error"
		if slices.Contains(builtinErrors, h.Name) {
			h.Class = h.Name
		}
	}
	if h.Name == "" {
		h.Name = h.Class
	}
}

// encErrorValue writes a limpet.ErrorValue (by value or behind its pointer).
func encErrorValue(e *encoder, v reflect.Value) error {
	var x *limpet.ErrorValue
	if v.CanAddr() {
		x, _ = reflect.TypeAssert[*limpet.ErrorValue](v.Addr())
	} else {
		c, _ := reflect.TypeAssert[limpet.ErrorValue](v)
		x = &c
	}
	h := ErrorHead{x.Class, x.Name, x.Message, x.Stack}
	h.fill()
	if err := e.enter(); err != nil {
		return err
	}
	var err error
	if e.b, err = appendErrorHead(e.b, h, len(x.Fields)); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(x.Fields)) {
		if e.b, err = appendString(e.b, k); err != nil {
			return underKey(err, k)
		}
		if err = e.any(x.Fields[k]); err != nil {
			return underKey(err, k)
		}
	}
	if x.Cause == nil && !x.HasCause {
		e.b = append(e.b, byteHole)
	} else if err = e.any(x.Cause); err != nil {
		return under(err, ".cause")
	}
	if x.Errors == nil {
		e.b = append(e.b, byteHole)
	} else if err = planOf(anySliceType).enc(e, reflect.ValueOf(x.Errors)); err != nil {
		return under(err, ".errors")
	}
	e.leave()
	return nil
}

var anySliceType = reflect.TypeFor[[]any]()

// encGoError writes any other Go error: the name of its type if that is
// exported, its text, its exported fields, and what it wraps. A field that can't be
// carried is left out: an error that says less is better than none.
func encGoError(e *encoder, v reflect.Value) error {
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Map || v.Kind() == reflect.Slice {
		if v.IsNil() {
			e.b = append(e.b, byteNull)
			return nil
		}
		if v.Type() == reflect.PointerTo(errorValueType) {
			if done, err := e.again(v, 0); done {
				return err
			}
			return encErrorValue(e, v.Elem())
		}
		if v.Kind() == reflect.Pointer && v.Type().Elem().Size() > 0 {
			if done, err := e.again(v, 0); done {
				return err
			}
		}
	}
	x, ok := reflect.TypeAssert[error](v)
	if !ok {
		return refuse(v.Type().String(), "")
	}
	if err := e.enter(); err != nil {
		return err
	}
	message, err := errorText(x)
	if err != nil {
		return err
	}
	h := ErrorHead{Class: "Error", Name: "Error", Message: message}
	base := v
	if base.Kind() == reflect.Pointer {
		base = base.Elem()
	}
	if n := base.Type().Name(); token.IsExported(n) && n != "Error" {
		h.Name = n
	}
	list, joined := x.(interface{ Unwrap() []error })
	if joined {
		h.Class = "AggregateError"
		if h.Name == "Error" {
			h.Name = h.Class
		}
	}
	cause := errors.Unwrap(x)
	if err := e.errorFields(base, h, joined || cause != nil); err != nil {
		return err
	}
	if cause == nil {
		e.b = append(e.b, byteHole)
	} else if err := e.tracked(cause); err != nil {
		return under(err, ".cause")
	}
	if !joined {
		e.b = append(e.b, byteHole)
		e.leave()
		return nil
	}
	all := list.Unwrap()
	e.b = appendHead(e.b, majorArray, uint64(len(all)))
	if err := e.enter(); err != nil {
		return err
	}
	for i, c := range all {
		if err := e.tracked(c); err != nil {
			return under(underIndex(err, i), ".errors")
		}
	}
	e.leave()
	e.leave()
	return nil
}

// errorText calls Error, which is the user's code and may panic (a typed nil inside).
func errorText(x error) (s string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fail(ErrType, "Error of %T panics: %v", x, r)
		}
	}()
	s = x.Error()
	if _, bad := scanString(s); bad >= 0 {
		// A text that quotes bytes must not cost the whole error.
		s = strings.ToValidUTF8(s, "\ufffd")
	}
	return s, nil
}

// tracked encodes a value found by calling a method, which the type does not show.
func (e *encoder) tracked(v any) error {
	was := e.track
	e.track = true
	e.held = append(e.held, v)
	err := e.any(v)
	e.track = was
	return err
}

// errorFields writes the head and the exported fields of the struct v. With
// wraps, fields of type error are left out: they come as the cause.
func (e *encoder) errorFields(v reflect.Value, h ErrorHead, wraps bool) (err error) {
	var fields []field
	if v.Kind() == reflect.Struct {
		for _, f := range fieldsOf(v.Type()) {
			x, ok := f.get(v)
			if !ok || f.omitted(x) || wraps && f.typ == errorType {
				continue
			}
			fields = append(fields, f)
		}
	}
	c := e.checkpoint()
again:
	if e.b, err = appendErrorHead(e.b, h, len(fields)); err != nil {
		return err
	}
	for i := range fields {
		f := &fields[i]
		x, _ := f.get(v)
		if e.b, err = appendString(e.b, f.name); err == nil {
			was := e.track
			e.track = true
			err = planOf(f.typ).enc(e, x)
			e.track = was
		}
		if errors.Is(err, ErrType) {
			e.rollback(c)
			fields = slices.Delete(fields, i, i+1)
			goto again
		}
		if err != nil {
			return underKey(err, f.name)
		}
	}
	return nil
}
