package limpet

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Namespace is the objects of one class that share one space of names. It makes
// IDs and stubs; making them starts no object (SPEC A5). T is the receiver's own
// type (*Cart), an interface of its methods for code that lives elsewhere, or
// any for dynamic calls only. It is safe for concurrent use. What is made from
// the zero Namespace has an error that says so.
type Namespace[T any] struct{ ns *namespace }

// in is what a Namespace stands for, also if it is the zero one.
func (n Namespace[T]) in() *namespace {
	if n.ns == nil {
		return &namespace{binding: &Binding{}, err: invalid("", "the Namespace is zero: take one from limpet.NamespaceOf and look at its error")}
	}
	return n.ns
}

type namespace struct {
	binding      *Binding
	ids          idSpace
	jurisdiction string
	receiver     reflect.Type // T
	err          error

	methods atomic.Pointer[map[uintptr]*methodRef] // by address of the method expression; copied on write
	writing sync.Mutex                             // guards changes of methods
}

// NamespaceOf finds the namespace bound to a name, as a T. It fails with
// CodeUnknownNamespace, and with CodeInvalidArgument when the class is written in
// Go and T is neither its type, nor an interface that it implements, nor any.
func NamespaceOf[T any](r Resolver, binding string) (Namespace[T], error) {
	if r == nil {
		return Namespace[T]{}, invalid("", "namespace %.200q: the Resolver is nil", binding)
	}
	b, err := r.Binding(binding)
	if err != nil {
		return Namespace[T]{}, err
	}
	t := reflect.TypeFor[T]()
	if err := fits(b, t); err != nil {
		return Namespace[T]{}, err
	}
	return Namespace[T]{&namespace{binding: b, ids: newIDSpace(b.ClassIdentity), receiver: t}}, nil
}

// fits says why a namespace can't be taken as a t, or nil.
func fits(b *Binding, t reflect.Type) error {
	if b.Class == nil || t == b.Class.typ {
		return nil
	}
	if t.Kind() != reflect.Interface {
		return invalid("", "namespace %s: its class %s is a %v, not a %v", b.Name, b.Class.name, b.Class.typ, t)
	}
	if !b.Class.typ.Implements(t) {
		return invalid("", "namespace %s: its class %s (%v) does not implement %v: %s", b.Name, b.Class.name, b.Class.typ, t, missing(b.Class.typ, t))
	}
	return nil
}

// missing says which method keeps t from being an i.
func missing(t, i reflect.Type) string {
	for k := range i.NumMethod() {
		want := i.Method(k)
		m, ok := t.MethodByName(want.Name)
		if !ok {
			return "it has no method " + want.Name
		}
		if !sameCall(m.Type, want.Type, t) {
			return fmt.Sprintf("its method %s is a %v, not a %v", want.Name, t.Method(m.Index).Type, want.Type)
		}
	}
	return "its unexported methods are others"
}

// IDFromName is the ID of a name: the same one for the same name, class and
// jurisdiction for ever (SPEC A3). Names are 0 to 32 KiB of valid UTF-8; another
// one is CodeInvalidArgument.
func (n Namespace[T]) IDFromName(name string) (ID, error) {
	ns := n.in()
	if ns.err != nil {
		return ID{}, ns.err
	}
	return ns.ids.fromName(name, ns.jurisdiction)
}

// NewUniqueID is the ID of a new object that has no name (SPEC A4). It is zero
// if the namespace has an error.
func (n Namespace[T]) NewUniqueID() ID {
	ns := n.in()
	if ns.err != nil {
		return ID{}
	}
	return ns.ids.unique(ns.jurisdiction)
}

// IDFromString reads the 64 hex digits of an ID, in either case (SPEC A8). It
// fails with CodeInvalidArgument when they are malformed, or not of this
// namespace. The ID has no name (SPEC A9).
func (n Namespace[T]) IDFromString(digits string) (ID, error) {
	ns := n.in()
	if ns.err != nil {
		return ID{}, ns.err
	}
	id, err := ns.ids.fromString(digits)
	if err == nil {
		err = ns.checkJurisdiction(id.jurisdiction)
	}
	if err != nil {
		return ID{}, err
	}
	return id, nil
}

func (n *namespace) checkJurisdiction(j string) error {
	if n.jurisdiction != "" && j != n.jurisdiction {
		return invalid("TypeError", "get called on jurisdictional subnamespace with an ID from a different jurisdiction")
	}
	return nil
}

// Jurisdiction is the sub-namespace of a jurisdiction: eu, us, fedramp or
// fedramp-high. One name means another object in each (SPEC A23). Another word,
// or a second jurisdiction on top of a first, is an error of every stub made
// from it. Retry defaults carry over.
func (n Namespace[T]) Jurisdiction(j string) Namespace[T] {
	ns := n.in()
	sub := &namespace{binding: ns.binding, ids: ns.ids, receiver: ns.receiver, jurisdiction: j, err: ns.err}
	if sub.err == nil {
		sub.err = checkJurisdiction(j)
	}
	if sub.err == nil && ns.jurisdiction != "" && ns.jurisdiction != j {
		sub.err = invalid("TypeError", "jurisdiction %s asked of the sub-namespace of %s", j, ns.jurisdiction)
	}
	return Namespace[T]{sub}
}

// Named is a stub of the object with a name, which the first call creates. What
// is wrong with the name or an option is in Stub.Err at once, and every call
// fails with it without an attempt.
func (n Namespace[T]) Named(name string, opts ...StubOption) *Stub[T] {
	id, err := n.IDFromName(name)
	return newStub[T](n.in(), id, err, false, opts)
}

// Get is a stub of the object with an ID. An ID of another namespace or, on a
// sub-namespace, of another jurisdiction is refused (SPEC A20, A23), in Stub.Err
// and by every call.
func (n Namespace[T]) Get(id ID, opts ...StubOption) *Stub[T] {
	ns := n.in()
	return newStub[T](ns, id, ns.admit(id), false, opts)
}

// Existing is Get for an object that must be there: if it was never created
// and has no data, calls fail with CodeNoSuchObject and nothing is created.
func (n Namespace[T]) Existing(id ID, opts ...StubOption) *Stub[T] {
	ns := n.in()
	return newStub[T](ns, id, ns.admit(id), true, opts)
}

func (n *namespace) admit(id ID) error {
	if n.err != nil {
		return n.err
	}
	if id.IsZero() {
		return invalid("TypeError", "namespace %s: the ID is zero; take one from the namespace", n.binding.Name)
	}
	j, ok := n.ids.owns(id.raw)
	if !ok {
		return errForeignID()
	}
	return n.checkJurisdiction(j)
}

// methodRef is what a namespace knows of one method expression.
type methodRef struct {
	name string // JavaScript name
	err  error  // the expression is no method of T
	// argsPlain and resultPlain: handed over by assignment, no copy needed.
	argsPlain, resultPlain bool
	// argsText and resultText: a plain one that has strings in it.
	argsText, resultText bool
	noResult             bool // the method returns an error only
	// argsHold are the types of the arguments, if they may hold capabilities.
	argsHold    []reflect.Type
	resultHolds bool // so may the result
}

// methodOf finds the method that a method expression names. describe, called once
// per method, tells whether its arguments and result share memory.
func (n *namespace) methodOf(m any, describe func(*methodRef, Codec)) *methodRef {
	address := reflect.ValueOf(m).Pointer()
	if known := n.methods.Load(); known != nil {
		if ref := (*known)[address]; ref != nil {
			return ref
		}
	}
	ref := &methodRef{}
	ref.name, ref.err = n.nameOf(m, address)
	if ref.err == nil {
		describe(ref, n.binding.Codec)
	}
	n.writing.Lock()
	defer n.writing.Unlock()
	next := map[uintptr]*methodRef{}
	if known := n.methods.Load(); known != nil {
		next = maps.Clone(*known)
	}
	next[address] = ref
	n.methods.Store(&next)
	return ref
}

// nameOf resolves a method expression to the JavaScript name, or refuses it: a
// function that is not exactly a method of T must not pass for one, since the
// name decides whether a call may run twice.
func (n *namespace) nameOf(m any, address uintptr) (string, error) {
	if reflect.ValueOf(m).IsNil() {
		return "", invalid("", "the method of a call is nil: pass a method expression such as (%v).Method", n.receiver)
	}
	if n.receiver.Kind() == reflect.Interface && n.receiver.NumMethod() == 0 {
		return "", invalid("", "the namespace %s was taken as %v, which has no methods: use Stub.Invoke, or take it as the class's own type or an interface of its methods", n.binding.Name, n.receiver)
	}
	goName := n.goNameOf(reflect.TypeOf(m), address)
	if goName == "" {
		return "", invalid("", "%s is no method of %v: pass a method expression such as (%v).Method", functionName(address), n.receiver, n.receiver)
	}
	c := n.binding.Class
	if c == nil {
		return jsName(goName), nil
	}
	method := c.goNames[goName]
	if method == nil {
		return "", invalid("", "%v.%s can't be called: the class %s hides it (limpet.Hidden)", n.receiver, goName, c.name)
	}
	return method.Name, nil
}

// goNameOf is the name of the method of T that the function of type t at an
// address is, or empty. Methods of types have addresses that can be compared.
// The method expressions of an interface are functions that only their names
// tell apart; a literal has another name, and t says which interface it is.
func (n *namespace) goNameOf(t reflect.Type, address uintptr) string {
	if n.receiver.Kind() != reflect.Interface {
		for i := range n.receiver.NumMethod() {
			if m := n.receiver.Method(i); m.Func.Pointer() == address && m.Type == t {
				return m.Name
			}
		}
		return ""
	}
	full := functionName(address)
	i := strings.LastIndexByte(full, '.')
	if i < 0 {
		return ""
	}
	decl, ok := n.receiver.MethodByName(full[i+1:])
	if !ok || !ownerIs(full[:i], n.receiver) || !sameCall(t, decl.Type, n.receiver) {
		return ""
	}
	return decl.Name
}

// ownerIs reports whether the owner part of a function's name ("path/pkg.T",
// "path/pkg.T[...]", "path/pkg.T·1" of a type declared in a function) is the
// interface type t.
func ownerIs(owner string, t reflect.Type) bool {
	name := t.Name()
	if i := strings.IndexByte(name, '['); i >= 0 {
		name = name[:i] + "[...]"
	}
	owner = owner[strings.LastIndexByte(owner, '/')+1:]
	_, owner, _ = strings.Cut(owner, ".")
	if i := strings.LastIndex(owner, "·"); i >= 0 {
		owner = owner[:i]
	}
	return name != "" && owner == name
}

// sameCall reports whether the method expression type expr is the method decl,
// which has no receiver of its own, of the interface type receiver.
func sameCall(expr, decl, receiver reflect.Type) bool {
	if expr.NumIn() != decl.NumIn()+1 || expr.NumOut() != decl.NumOut() || expr.In(0) != receiver {
		return false
	}
	for i := 1; i < expr.NumIn(); i++ {
		if expr.In(i) != decl.In(i-1) {
			return false
		}
	}
	for i := range expr.NumOut() {
		if expr.Out(i) != decl.Out(i) {
			return false
		}
	}
	return true
}

// UnknownNamespace is the failure to find a binding among those known. For
// limpet's own packages.
func UnknownNamespace(name string, known []string) *Error {
	known = slices.Sorted(slices.Values(known))
	has := "there are none"
	if len(known) > 0 {
		has = "there are " + strings.Join(known, ", ")
	}
	return Errorf(CodeUnknownNamespace, "no namespace is bound to %.200q: %s", name, has).With(func(e *Error) { e.Delivery = DeliveryNone })
}
