package limpet

import (
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
// any for dynamic calls only. It is safe for concurrent use.
type Namespace[T any] struct{ ns *namespace }

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
	b, err := r.Binding(binding)
	if err != nil {
		return Namespace[T]{}, err
	}
	t := reflect.TypeFor[T]()
	if b.Class != nil && t != b.Class.typ {
		if t.Kind() != reflect.Interface {
			return Namespace[T]{}, Errorf(CodeInvalidArgument, "namespace %s: its class %s is a %v, not a %v", binding, b.Class.name, b.Class.typ, t)
		}
		if !b.Class.typ.Implements(t) {
			return Namespace[T]{}, Errorf(CodeInvalidArgument, "namespace %s: its class %s (%v) does not implement %v", binding, b.Class.name, b.Class.typ, t)
		}
	}
	return Namespace[T]{&namespace{binding: b, ids: newIDSpace(b.ClassIdentity), receiver: t}}, nil
}

// IDFromName is the ID of a name: the same one for the same name, class and
// jurisdiction for ever (SPEC A3). Names are 0 to 32 KiB of valid UTF-8; another
// one is CodeInvalidArgument.
func (n Namespace[T]) IDFromName(name string) (ID, error) {
	if n.ns.err != nil {
		return ID{}, n.ns.err
	}
	return n.ns.ids.fromName(name, n.ns.jurisdiction)
}

// NewUniqueID is the ID of a new object that has no name (SPEC A4). It is zero
// if the namespace has an error.
func (n Namespace[T]) NewUniqueID() ID {
	if n.ns.err != nil {
		return ID{}
	}
	return n.ns.ids.unique(n.ns.jurisdiction)
}

// IDFromString reads the 64 hex digits of an ID, in either case (SPEC A8). It
// fails with CodeInvalidArgument when they are malformed, or not of this
// namespace. The ID has no name (SPEC A9).
func (n Namespace[T]) IDFromString(digits string) (ID, error) {
	if n.ns.err != nil {
		return ID{}, n.ns.err
	}
	id, err := n.ns.ids.fromString(digits)
	if err != nil {
		return ID{}, err
	}
	return id, n.ns.checkJurisdiction(id.jurisdiction)
}

func (n *namespace) checkJurisdiction(j string) error {
	if n.jurisdiction != "" && j != n.jurisdiction {
		return Errorf(CodeInvalidArgument, "get called on jurisdictional subnamespace with an ID from a different jurisdiction")
	}
	return nil
}

// Jurisdiction is the sub-namespace of a jurisdiction: eu, us, fedramp or
// fedramp-high. One name means another object in each (SPEC A23). Another word,
// or a second jurisdiction on top of a first, is an error of every stub made
// from it. Retry defaults carry over.
func (n Namespace[T]) Jurisdiction(j string) Namespace[T] {
	sub := &namespace{binding: n.ns.binding, ids: n.ns.ids, receiver: n.ns.receiver, jurisdiction: j, err: n.ns.err}
	if sub.err == nil {
		sub.err = checkJurisdiction(j)
	}
	if sub.err == nil && n.ns.jurisdiction != "" && n.ns.jurisdiction != j {
		sub.err = Errorf(CodeInvalidArgument, "jurisdiction %s asked of the sub-namespace of %s", j, n.ns.jurisdiction)
	}
	return Namespace[T]{sub}
}

// Named is a stub of the object with a name, which the first call creates. What
// is wrong with the name or an option is in Stub.Err at once, and every call
// fails with it without an attempt.
func (n Namespace[T]) Named(name string, opts ...StubOption) *Stub[T] {
	id, err := n.IDFromName(name)
	return newStub[T](n.ns, id, err, false, opts)
}

// Get is a stub of the object with an ID. An ID of another namespace or, on a
// sub-namespace, of another jurisdiction is refused (SPEC A20, A23), in Stub.Err
// and by every call.
func (n Namespace[T]) Get(id ID, opts ...StubOption) *Stub[T] {
	return newStub[T](n.ns, id, n.ns.admit(id), false, opts)
}

// Existing is Get for an object that must be there: if it was never created
// and has no data, calls fail with CodeNoSuchObject and nothing is created.
func (n Namespace[T]) Existing(id ID, opts ...StubOption) *Stub[T] {
	return newStub[T](n.ns, id, n.ns.admit(id), true, opts)
}

func (n *namespace) admit(id ID) error {
	if n.err != nil {
		return n.err
	}
	if id.IsZero() {
		return Errorf(CodeInvalidArgument, "namespace %s: the ID is zero", n.binding.Name)
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
}

// methodOf finds the method that a method expression names. plain tells, once
// per method, whether its arguments and result share memory.
func (n *namespace) methodOf(m any, plain func(Codec) (args, result bool)) *methodRef {
	address := reflect.ValueOf(m).Pointer()
	if known := n.methods.Load(); known != nil {
		if ref := (*known)[address]; ref != nil {
			return ref
		}
	}
	ref := &methodRef{}
	ref.name, ref.err = n.nameOf(m, address)
	if ref.err == nil {
		ref.argsPlain, ref.resultPlain = plain(n.binding.Codec)
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

// nameOf resolves a method expression: by address among the class's methods, or
// by the function's own name for interfaces and generic types, whose functions
// are wrappers.
func (n *namespace) nameOf(m any, address uintptr) (string, error) {
	t := reflect.TypeOf(m)
	if reflect.ValueOf(m).IsNil() {
		return "", Errorf(CodeInvalidArgument, "the method of a call is nil")
	}
	if c := n.binding.Class; c != nil && n.receiver == c.typ {
		if method := c.byAddress[address]; method != nil && method.fn.Type() == t {
			return method.Name, nil
		}
	}
	full := functionName(address)
	owner, goName := full, ""
	if i := strings.LastIndexByte(full, '.'); i >= 0 {
		owner, goName = full[:i], full[i+1:]
	}
	notMethod := func() error {
		return Errorf(CodeInvalidArgument, "%s is no method of %v: pass a method expression such as (%v).Method", full, n.receiver, n.receiver)
	}
	decl, ok := n.receiver.MethodByName(goName)
	if !ok || !ownerIs(owner, n.receiver) || !sameCall(t, decl.Type, n.receiver) {
		return "", notMethod()
	}
	if c := n.binding.Class; c != nil {
		method := c.goNames[goName]
		if method == nil {
			return "", Errorf(CodeInvalidArgument, "%v.%s can't be called (limpet.Hidden)", n.receiver, goName)
		}
		return method.Name, nil
	}
	return jsName(goName), nil
}

// ownerIs reports whether a function name's owner part ("pkg.(*T)", "pkg.T",
// "pkg.(*T[...])") is the type t.
func ownerIs(owner string, t reflect.Type) bool {
	star := t.Kind() == reflect.Pointer
	if star {
		t = t.Elem()
	}
	name := t.Name()
	if i := strings.IndexByte(name, '['); i >= 0 {
		name = name[:i] + "[...]"
	}
	if star {
		return strings.HasSuffix(owner, ".(*"+name+")")
	}
	return strings.HasSuffix(owner, "."+name)
}

// sameCall reports whether the method expression type expr is the method type
// decl on receiver; decl has no receiver if that is an interface.
func sameCall(expr, decl, receiver reflect.Type) bool {
	skip := 1
	if receiver.Kind() == reflect.Interface {
		skip = 0
	}
	if expr.NumIn() != decl.NumIn()-skip+1 || expr.NumOut() != decl.NumOut() || expr.In(0) != receiver {
		return false
	}
	for i := 1; i < expr.NumIn(); i++ {
		if expr.In(i) != decl.In(i-1+skip) {
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

// UnknownNamespace is the failure to find a binding among those known; for
// implementations of Resolver.
func UnknownNamespace(name string, known []string) *Error {
	known = slices.Sorted(slices.Values(known))
	has := "there are none"
	if len(known) > 0 {
		has = "there are " + strings.Join(known, ", ")
	}
	return Errorf(CodeUnknownNamespace, "no namespace is bound to %.200q: %s", name, has).With(func(e *Error) { e.Delivery = DeliveryNone })
}
