package limpet

import (
	"encoding"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"
)

// This file finds, when a class is made, what no call of a method could carry.

// uncarriable checks a method's arguments and result, and gives the error of the
// first whose type has something in it that limpet never carries, or nil.
func (m *Method) uncarriable() *Error {
	for i, t := range m.in {
		if e := uncarriable(t, fmt.Sprintf("argument %d", i+1)); e != nil {
			return e
		}
	}
	if m.out != nil {
		return uncarriable(m.out, "result")
	}
	return nil
}

func uncarriable(t reflect.Type, which string) *Error {
	path, bad := findUncarriable(t, map[reflect.Type]bool{})
	if bad == nil {
		return nil
	}
	where := fmt.Sprintf("its %s is a %v", which, t)
	if bad != t {
		where += fmt.Sprintf(" with the %v%s in it", bad, path)
	}
	if bad.Kind() == reflect.Func {
		return Errorf(CodeInvalidArgument, "%s; %s", where, wrongFunction(bad))
	}
	if bad.PkgPath() == "net/http" {
		return Errorf(CodeInvalidArgument, "%s, which limpet does not carry as a value: ServeHTTP answers Stub.Fetch, and http.Header is carried", where)
	}
	if bad.Kind() == reflect.Struct {
		return Errorf(CodeInvalidArgument, "%s; a stub is carried as a *%v", where, bad)
	}
	return Errorf(CodeInvalidArgument, "%s, which limpet does not carry between caller and object (docs/VALUES.md)", where)
}

var textMarshalerType = reflect.TypeFor[encoding.TextMarshaler]()

// findUncarriable looks for a channel, function, complex number or pointer
// without a type in what is carried of t: not in unexported fields, nor in those
// that a tag leaves out, or leaves out when they are empty.
func findUncarriable(t reflect.Type, seen map[reflect.Type]bool) (path string, bad reflect.Type) {
	if seen[t] || t.Implements(errorType) || t == reflect.TypeFor[time.Time]() {
		return "", nil // an error is carried by its text
	}
	seen[t] = true
	if t.Implements(capabilityValueType) && t.Kind() != reflect.Interface {
		return "", nil // a *Stub
	}
	switch t.Kind() {
	case reflect.Func:
		if wrongFunction(t) != "" {
			return "", t
		}
		for i := 1; i < t.NumIn(); i++ {
			if path, bad := findUncarriable(t.In(i), seen); bad != nil {
				return path, bad
			}
		}
		if t.NumOut() == 2 {
			return findUncarriable(t.Out(0), seen)
		}
		return "", nil
	case reflect.Chan, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer, reflect.Uintptr:
		return "", t
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return findUncarriable(t.Elem(), seen)
	case reflect.Map:
		if path, bad := findUncarriable(t.Key(), seen); bad != nil {
			return path, bad
		}
		return findUncarriable(t.Elem(), seen)
	case reflect.Struct:
		if t == reflect.TypeFor[http.Request]() || t == reflect.TypeFor[http.Response]() {
			return "", t
		}
		if reflect.PointerTo(t).Implements(capabilityValueType) {
			return "", t
		}
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() && (!f.Anonymous || f.Type.Implements(textMarshalerType)) || leftOut(f) {
				continue
			}
			if path, bad := findUncarriable(f.Type, seen); bad != nil {
				if path == "" {
					path = fmt.Sprintf(" (field %s of %v)", f.Name, t)
				}
				return path, bad
			}
		}
	}
	return "", nil
}

// leftOut reports whether the tag of a field can leave it out.
func leftOut(f reflect.StructField) bool {
	tag, ok := f.Tag.Lookup("limpet")
	if !ok {
		tag = f.Tag.Get("json")
	}
	_, options, _ := strings.Cut(tag, ",")
	return tag == "-" || strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
}
