package limpet

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
)

// Retryable marks methods as safe to run again when limpet can't tell whether a
// call was received (SPEC F30, F41): setting a value is, adding one or charging
// is not. Pass method expressions, such as (*Cart).SetQuantity; passing
// (*Cart).ServeHTTP marks the fetch handler (SPEC F36).
//
// A mark names a function and holds when that is what the class runs: a promoted
// method keeps the mark of the embedded type's, an override does not (SPEC F34).
// A mark that reaches nothing, or of which that can't be told, is an error of
// the class, and then none of this call's marks holds (SPEC F32).
func Retryable(methods ...any) ClassOption {
	return classOptionFunc(func(c *Class) {
		names := make([]string, 0, len(methods))
		for _, f := range methods {
			name, err := markedMethod(c.typ, f)
			if err != nil {
				c.fail("Retryable: %v", err)
				return
			}
			names = append(names, name)
		}
		c.mark("Retryable", names)
	})
}

// RetryableNamed marks methods by their Go names, for those whose function can't
// be told: methods of generic types and of embedded interfaces.
func RetryableNamed(names ...string) ClassOption {
	return classOptionFunc(func(c *Class) { c.mark("RetryableNamed", names) })
}

func (c *Class) mark(option string, names []string) {
	for _, n := range names {
		if c.goNames[n] == nil && (n != "ServeHTTP" || !c.handler) {
			text := fmt.Sprintf("%s: %v has no callable method %s", option, c.typ, n)
			if m := c.meant(n); m != nil {
				text += fmt.Sprintf(". Did you mean %q?", m.GoName)
			}
			c.fail("%s", text)
			return
		}
	}
	for _, n := range names {
		if m := c.goNames[n]; m != nil {
			m.Marked = true
		} else {
			c.handlerMarked = true
		}
	}
}

// markedMethod names the method of class type t that the mark f covers. Where
// the function that f names and the one that t runs differ, or can't be told, it
// is an error: nothing is marked by doubt.
func markedMethod(t reflect.Type, f any) (string, error) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	home, name, err := methodHome(t, f)
	if err != nil {
		return "", err
	}
	runs, err := homeOf(t, name)
	if err != nil {
		return "", err
	}
	if runs != home {
		return "", fmt.Errorf("%v overrides %s of %v: the mark does not reach it; mark (*%s).%s itself", runs, name, home, runs.Name(), name)
	}
	return name, nil
}

// methodHome finds the method that the method expression f stands for, among
// those of t and of all it embeds, by address and type together.
func methodHome(t reflect.Type, f any) (home reflect.Type, name string, err error) {
	v := reflect.ValueOf(f)
	if v.Kind() != reflect.Func || v.IsNil() {
		return nil, "", fmt.Errorf("accepts only functions, got %T", f)
	}
	address := v.Pointer()
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type) (reflect.Type, string)
	walk = func(e reflect.Type) (reflect.Type, string) {
		if seen[e] || e.Kind() == reflect.Interface {
			return nil, ""
		}
		seen[e] = true
		for _, x := range []reflect.Type{reflect.PointerTo(e), e} {
			for i := range x.NumMethod() {
				if m := x.Method(i); m.Func.Pointer() == address && m.Type == v.Type() {
					return e, m.Name
				}
			}
		}
		for _, ft := range embedded(e) {
			if a, b := walk(ft); a != nil {
				return a, b
			}
		}
		return nil, ""
	}
	e, name := walk(t)
	if e == nil {
		return nil, "", fmt.Errorf("%s is no method of %v (pass a method expression such as (*%s).Method; RetryableNamed marks by name)", functionName(address), t, t.Name())
	}
	home, err = homeOf(e, name)
	return home, name, err
}

func functionName(address uintptr) string {
	if f := runtime.FuncForPC(address); f != nil {
		return f.Name()
	}
	return "the function"
}

// homeOf is the named type on which the method that *t runs under name is
// written, found as the compiler finds it: at the shallowest depth, where it must
// be the only one.
func homeOf(t reflect.Type, name string) (reflect.Type, error) {
	level, seen := []reflect.Type{t}, map[reflect.Type]bool{}
	for len(level) > 0 {
		var hits, next []reflect.Type
		for _, e := range level {
			if seen[e] {
				continue
			}
			seen[e] = true
			if e.Kind() == reflect.Interface {
				if _, ok := e.MethodByName(name); ok {
					return nil, fmt.Errorf("%v.%s comes from the embedded interface %v: which function runs is not known; use RetryableNamed(%q)", t, name, e, name)
				}
				continue
			}
			if generic(e) {
				if _, ok := reflect.PointerTo(e).MethodByName(name); ok {
					return nil, fmt.Errorf("%v.%s: %v is generic, its functions can't be told apart; use RetryableNamed(%q)", t, name, e, name)
				}
			} else if declares(e, name) {
				hits = append(hits, e)
			}
			next = append(next, embedded(e)...)
		}
		switch len(hits) {
		case 0:
			level = next
		case 1:
			return hits[0], nil
		default:
			return nil, fmt.Errorf("%v.%s is ambiguous", t, name)
		}
	}
	return nil, fmt.Errorf("%v has no method %s", t, name)
}

// declares reports whether the method is written on t itself: a promoted one is
// a wrapper in the file "<autogenerated>", and so is (*T).M of a method written
// on the value T, for which T's own set tells.
func declares(t reflect.Type, name string) bool {
	for _, x := range []reflect.Type{reflect.PointerTo(t), t} {
		if m, ok := x.MethodByName(name); ok {
			address := m.Func.Pointer()
			if file, _ := runtime.FuncForPC(address).FileLine(address); file != "<autogenerated>" {
				return true
			}
		}
	}
	return false
}

func generic(t reflect.Type) bool { return strings.Contains(t.Name(), "[") }

func embedded(t reflect.Type) []reflect.Type {
	if t.Kind() != reflect.Struct {
		return nil
	}
	var out []reflect.Type
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous {
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			out = append(out, ft)
		}
	}
	return out
}
