package limpet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// Class is the code of one kind of object, written in Go. Make it with NewClass
// and give it to node.Open. It is safe for concurrent use.
type Class struct {
	name      string
	identity  string
	typ       reflect.Type
	construct func(*State) (any, error)
	methods   map[string]*Method // by JavaScript name
	goNames   map[string]*Method

	handler       bool
	handlerMarked bool
	gated         bool
	target        bool // the methods of a target (NewTarget)
	hidden        map[string]bool
	errs          []error
}

// ClassOption sets a property of a class.
type ClassOption interface{ applyClass(*Class) }

type classOptionFunc func(*Class)

func (f classOptionFunc) applyClass(c *Class) { f(c) }

// NewClass makes a class from a constructor. T is what the constructor returns,
// usually a pointer to a struct; every exported method of it can be called:
//
//	func (c *Cart) AddOne(ctx context.Context, item string) (int, error)
//
// A method takes a context and up to six arguments and returns an error, or a
// value and an error. If T implements http.Handler, its ServeHTTP answers
// fetches and can't be called by name. A JavaScript caller knows a method by its
// name with the first word in lower case: SetQuantity is setQuantity, HTTPGet is
// httpGet, ID is id.
//
// construct runs once per incarnation, before the first event, while nothing
// else of the object runs; if it fails the object is reset and the next call
// constructs again (SPEC C34, H7). It gets no context, since no one call is what
// it runs for. For stub calls, Await and the like it takes context.Background(),
// with a deadline of its own where it should not wait for long; whatever context
// it takes ends when the constructor has ended, too. Nothing else of the object
// runs until then, and after 30 s the object is reset (SPEC C36).
//
// What is wrong with the class (a method of another shape, an argument or result
// that can't be carried, no method at all, two methods with one JavaScript name,
// a reserved name, a mark on something that is no method) is told by Err and by
// node.Open; NewClass never panics.
func NewClass[T any](name string, construct func(*State) (T, error), opts ...ClassOption) *Class {
	c := &Class{
		name: name, typ: reflect.TypeFor[T](),
		methods: map[string]*Method{}, goNames: map[string]*Method{}, hidden: map[string]bool{},
	}
	if construct == nil {
		c.fail("constructor is nil")
	} else {
		c.construct = func(s *State) (any, error) {
			t, err := construct(s)
			if err != nil {
				return nil, err
			}
			if isNil(t) {
				return nil, Errorf(CodeApplication, "class %s: the constructor returned nil", name)
			}
			return t, nil
		}
	}
	if !validClassName(name) {
		c.name = fmt.Sprintf("%.64q", name)
		c.fail("a class name is 1 to 128 letters, digits or _, and does not begin with a digit")
		c.name = name
	}
	// Hidden names must be known before the methods are read, marks after it.
	for _, o := range opts {
		if o, ok := o.(hiddenOption); ok {
			o.applyClass(c)
		}
	}
	c.readMethods()
	for _, o := range opts {
		if o == nil {
			c.fail("an option is nil")
		} else if _, ok := o.(hiddenOption); !ok {
			o.applyClass(c)
		}
	}
	return c
}

// ClassID sets the stable identity behind the class, from which all IDs of its
// objects are made; without it, the class's name at its first registration in a
// data directory is kept for ever. 1 to 256 bytes.
func ClassID(identity string) ClassOption {
	return classOptionFunc(func(c *Class) {
		if len(identity) == 0 || len(identity) > 256 {
			c.fail("ClassID of %d bytes: must be 1 to 256 bytes", len(identity))
			return
		}
		c.identity = identity
	})
}

// GatedEffects states that no code of the class has an effect except through its
// State, stubs and Await. limpet then also accepts a retry after a restart of
// the node, since nothing of an earlier run can have been seen. Without it such a
// retry of an unmarked method is refused (SPEC F18; see docs/GUARANTEES.md).
func GatedEffects() ClassOption {
	return classOptionFunc(func(c *Class) { c.gated = true })
}

type hiddenOption []string

func (h hiddenOption) applyClass(c *Class) {
	for _, n := range h {
		if _, ok := c.typ.MethodByName(n); !ok {
			c.fail("Hidden(%q): %v has no such method", n, c.typ)
			continue
		}
		c.hidden[n] = true
	}
}

// Hidden names exported methods (as in Go) that can't be called from outside,
// and may so have any signature: those of an embedded type, say. Hiding
// ServeHTTP leaves the class without fetch.
func Hidden(names ...string) ClassOption { return hiddenOption(names) }

type getterOption []any

func (g getterOption) applyClass(c *Class) {
	for _, f := range g {
		t := c.typ
		name, err := markedMethod(t, f)
		m := c.goNames[name]
		switch {
		case err != nil:
			c.fail("Getter: %v", err)
		case m == nil:
			c.fail("Getter: %v has no callable method %s", t, name)
		case len(m.in) > 0 || m.out == nil:
			c.fail("Getter: method %s is no property: it must take a context.Context only and return a value and an error", name)
		default:
			m.Getter = true
		}
	}
}

// Getter makes properties of methods that take nothing and return a value, given
// as method expressions such as (*Cart).Total: callers read them by Stub.Get, as
// JavaScript callers read a getter (SPEC B24), and paths lead on into their
// values. In Go they can be called as well.
func Getter(methods ...any) ClassOption { return getterOption(methods) }

// Err tells everything that is wrong with the class, or nil. The errors are
// CodeInvalidArgument or CodeNotSupported and name the class and the offender.
func (c *Class) Err() error { return errors.Join(c.errs...) }

func (c *Class) fail(format string, args ...any) { c.failCode(CodeInvalidArgument, format, args...) }

func (c *Class) failCode(code Code, format string, args ...any) {
	c.errs = append(c.errs, Errorf(code, "class %s: %s", c.name, fmt.Sprintf(format, args...)))
}

// Name is the class's name in code.
func (c *Class) Name() string { return c.name }

// Identity is what ClassID set, or empty.
func (c *Class) Identity() string { return c.identity }

// Gated is what GatedEffects set.
func (c *Class) Gated() bool { return c.gated }

// Construct makes an object's receiver: it runs the class's constructor, which
// may panic. For limpet's own packages.
func (c *Class) Construct(s *State) (any, error) {
	if c.construct == nil {
		return nil, c.Err()
	}
	return c.construct(s)
}

// isNil reports whether an object would be nothing: its methods could only panic.
func isNil(receiver any) bool {
	switch v := reflect.ValueOf(receiver); v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Map, reflect.Func, reflect.Chan, reflect.Interface, reflect.UnsafePointer:
		return v.IsNil()
	}
	return false
}

// UnknownMethod is UnknownMethodError for the class, and names the method that
// was meant if the name is another spelling of it. For limpet's own packages.
func (c *Class) UnknownMethod(object ID, method string) *Error {
	e := UnknownMethodError(object, method)
	if _, ok := reserved[method]; ok {
		return e
	}
	if m := c.meant(method); m != nil {
		e.Message += fmt.Sprintf(" Did you mean %q?", m.Name)
	}
	return e
}

// meant finds the method that a name stands for in another spelling: the Go or
// the JavaScript name, in any case.
func (c *Class) meant(name string) *Method {
	for _, js := range c.Methods() {
		if m := c.methods[js]; strings.EqualFold(name, js) || strings.EqualFold(name, m.GoName) {
			return m
		}
	}
	return nil
}

// Method finds a method by its JavaScript name, or nil.
func (c *Class) Method(name string) *Method { return c.methods[name] }

// Methods lists the JavaScript names of the methods in order.
func (c *Class) Methods() []string {
	names := make([]string, 0, len(c.methods))
	for n := range c.methods {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// HasHandler reports whether objects of the class answer fetches.
func (c *Class) HasHandler() bool { return c.handler }

// HandlerMarked reports whether answering fetches is marked retryable (SPEC F36).
func (c *Class) HandlerMarked() bool { return c.handlerMarked }

// Method is one method of a class.
type Method struct {
	// Name is the JavaScript name, GoName the Go one.
	Name, GoName string
	// Marked reports whether the author allowed a second run (Retryable).
	Marked bool
	// Getter reports whether it is a property, read by its name (Getter).
	Getter bool

	fn  reflect.Value // the method expression: receiver, context, arguments
	in  []reflect.Type
	out reflect.Type // nil: error only
	// outHolds: the result may have capabilities in it.
	outHolds bool
}

// signature is the argument types as a person reads them.
func (m *Method) signature() string {
	s := ""
	for i, t := range m.in {
		if i > 0 {
			s += ", "
		}
		s += t.String()
	}
	return "(" + s + ")"
}

// call runs the method with encoded arguments, which it takes over, for the
// object o, or nil. receiver is the zero Value for a function.
func (m *Method) call(ctx context.Context, receiver reflect.Value, args Parcel, codec Codec, o Origin) (p Parcel, err error) {
	err = m.run(ctx, receiver, args, codec, o, func(v any) (err error) {
		if m.outHolds {
			p, err = sendResult(codec, o, m.out, v)
		} else {
			p.Bytes, err = codec.Marshal(v)
		}
		return err
	})
	return p, err
}

// value is call, except that nothing has left the object yet: local says which
// capabilities of the result run its code.
func (m *Method) value(ctx context.Context, receiver reflect.Value, args Parcel, codec Codec) (p Parcel, local []bool, err error) {
	err = m.run(ctx, receiver, args, codec, nil, func(v any) error {
		s := &sender{codec: codec, result: true}
		if w := wrapStream(m.out, v); w != nil {
			v = w
		}
		e, err := codec.With(s).Marshal(v)
		if err != nil {
			s.drop()
			return err
		}
		p, local = s.parcel(e), s.local
		return nil
	})
	return p, local, err
}

// run decodes the arguments, calls and has the result encoded. What the
// arguments hold is given back when the method has returned (SPEC B39).
func (m *Method) run(ctx context.Context, receiver reflect.Value, args Parcel, codec Codec, o Origin, encode func(any) error) error {
	in := make([]reflect.Value, 0, 2+len(m.in))
	if receiver.IsValid() {
		in = append(in, receiver)
	}
	in = append(in, reflect.ValueOf(&ctx).Elem())
	var room [6]any
	into := room[:0]
	for _, t := range m.in {
		p := reflect.New(t)
		into = append(into, p.Interface())
		in = append(in, p.Elem())
	}
	read := codec
	if len(args.Caps) > 0 {
		r := newReceiver(codec, o, args.Caps)
		defer r.end()
		read = codec.With(r)
	}
	if err := read.DecodeArgs(args.Bytes, into...); err != nil {
		return refuse(Errorf(CodeOf(err), "%s%s: %w", m.Name, m.signature(), err))
	}
	out := m.fn.Call(in)
	if err, _ := out[len(out)-1].Interface().(error); err != nil {
		return ownError(codec, err)
	}
	if m.out == nil {
		return nil
	}
	if err := encode(out[0].Interface()); err != nil {
		return refuseResult(m.Name, err)
	}
	return nil
}

// refuseResult is a result that can't be carried. It comes out of the object's
// code, unlike arguments that don't fit (SPEC B27).
func refuseResult(method string, err error) error {
	return refuse(about("result of "+method, err).With(func(e *Error) { e.Remote = true }))
}

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
	handlerType = reflect.TypeFor[http.Handler]()
)

// maxArguments is the number of arguments that Do6 and Call6 take.
const maxArguments = 6

// reserved are the names that may not be methods (SPEC B20); the value says what
// the name is for.
var reserved = map[string]string{
	"alarm": "alarms", "fetch": "ServeHTTP answers fetches", "connect": "sockets",
	"dup": "stub handles", "constructor": "NewClass's constructor",
	"webSocketMessage": "WebSocket events", "webSocketClose": "WebSocket events", "webSocketError": "WebSocket events",
}

func (c *Class) readMethods() {
	t := c.typ
	if t.Kind() == reflect.Interface {
		c.fail("the constructor must return a type of its own, not the interface %v", t)
		return
	}
	c.handler = t.Implements(handlerType) && !c.hidden["ServeHTTP"] && !c.target
	for i := range t.NumMethod() {
		m := t.Method(i)
		if (m.Name == "ServeHTTP" && c.handler) || c.hidden[m.Name] {
			continue
		}
		if what := wrongShape(m.Type); what != "" {
			c.fail("method %s %s; a method takes a context.Context and up to %d arguments and returns an error, or a value and an error (limpet.Hidden(%q) keeps it off the callable ones)",
				m.Name, what, maxArguments, m.Name)
			continue
		}
		js := jsName(m.Name)
		what, isReserved := reserved[js]
		if c.target { // SPEC B20
			isReserved = js == "dup" || js == "constructor"
		}
		if isReserved {
			if js == "alarm" {
				c.failCode(CodeNotSupported, "not supported: alarms (method %s is reserved for them)", m.Name)
			} else {
				c.fail("method %s: the name %s is reserved (%s)", m.Name, js, what)
			}
			continue
		}
		if twin, ok := c.methods[js]; ok {
			c.fail("methods %s and %s are both called %s", twin.GoName, m.Name, js)
			continue
		}
		method := &Method{Name: js, GoName: m.Name, fn: m.Func}
		for k := 2; k < m.Type.NumIn(); k++ {
			method.in = append(method.in, m.Type.In(k))
		}
		if m.Type.NumOut() == 2 {
			method.out = m.Type.Out(0)
		}
		method.outHolds = holdsCapabilities(method.out)
		if err := method.uncarriable(); err != nil {
			c.failCode(err.Code, "method %s: %v (limpet.Hidden(%q) keeps it off the callable ones)", m.Name, err, m.Name)
			continue
		}
		c.methods[js], c.goNames[m.Name] = method, method
	}
	if len(c.methods) == 0 && !c.handler && len(c.errs) == 0 {
		c.fail("%s", c.nothingToCall())
	}
}

// nothingToCall says why no call could ever reach an object, and what to do.
func (c *Class) nothingToCall() string {
	t := c.typ
	text := fmt.Sprintf("%v has no method that can be called (exported, taking a context.Context and returning an error) and no ServeHTTP", t)
	switch p := reflect.PointerTo(t); {
	case t.Kind() != reflect.Pointer && callable(p):
		text += fmt.Sprintf("; %v has some: return a pointer from the constructor", p)
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Pointer && callable(t.Elem()):
		text += fmt.Sprintf("; %v has some: return that from the constructor", t.Elem())
	}
	if len(c.hidden) > 0 {
		text += "; limpet.Hidden hides what there is"
	}
	return text
}

// callable reports whether calls could reach an object of type t.
func callable(t reflect.Type) bool {
	for i := range t.NumMethod() {
		if m := t.Method(i); wrongShape(m.Type) == "" {
			return true
		}
	}
	return t.Implements(handlerType)
}

// wrongShape says what is wrong with a method expression's type, or nothing.
func wrongShape(t reflect.Type) string {
	switch {
	case t.IsVariadic():
		return "is variadic"
	case t.NumIn() < 2 || t.In(1) != contextType:
		return "does not take a context.Context first"
	case t.NumIn() > 2+maxArguments:
		return fmt.Sprintf("takes %d arguments", t.NumIn()-2)
	case t.NumOut() == 0 || t.Out(t.NumOut()-1) != errorType:
		return "does not return an error last"
	case t.NumOut() > 2:
		return fmt.Sprintf("returns %d values beside the error", t.NumOut()-1)
	case t.NumOut() == 2 && t.Out(0) == errorType:
		return "returns two errors"
	}
	return ""
}

// jsName lowers the leading run of capitals, except one that starts a word.
func jsName(goName string) string {
	r := []rune(goName)
	for i := 0; i < len(r) && unicode.IsUpper(r[i]); i++ {
		if i > 0 && i+1 < len(r) && unicode.IsLower(r[i+1]) {
			break
		}
		r[i] = unicode.ToLower(r[i])
	}
	return string(r)
}

func validClassName(s string) bool {
	if len(s) == 0 || len(s) > 128 {
		return false
	}
	for i, c := range []byte(s) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}
