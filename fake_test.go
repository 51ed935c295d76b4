package limpet_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"sync"
	"testing"

	"github.com/limpet-dev/limpet"
)

// jsonCodec stands for limpet's codec in these tests: everything is copied
// through JSON, and it counts how often.
type jsonCodec struct {
	mu      sync.Mutex
	args    int // argument lists encoded
	decoded int // argument lists decoded
	plain   int // types looked at
}

func (c *jsonCodec) With(limpet.CapabilityHooks) limpet.Codec { return c }

func (c *jsonCodec) Plain(pointer any) bool {
	c.mu.Lock()
	c.plain++
	c.mu.Unlock()
	return plainType(reflect.TypeOf(pointer).Elem())
}

func plainType(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Slice, reflect.Map, reflect.Pointer, reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return false
	case reflect.Array:
		return plainType(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if !plainType(t.Field(i).Type) {
				return false
			}
		}
	}
	return true
}

func (c *jsonCodec) Args(args ...any) (limpet.Encoded, error) {
	c.mu.Lock()
	c.args++
	c.mu.Unlock()
	if args == nil {
		args = []any{}
	}
	b, err := json.Marshal(args)
	if err != nil {
		return nil, limpet.Errorf(limpet.CodeInvalidArgument, "argument: %w", err)
	}
	return b, nil
}

func (c *jsonCodec) DecodeArgs(e limpet.Encoded, into ...any) error {
	c.mu.Lock()
	c.decoded++
	c.mu.Unlock()
	var raw []json.RawMessage
	if err := json.Unmarshal(e, &raw); err != nil {
		return limpet.Errorf(limpet.CodeInvalidArgument, "argument list: %w", err)
	}
	if len(raw) != len(into) {
		return limpet.Errorf(limpet.CodeInvalidArgument, "got %d arguments, want %d", len(raw), len(into))
	}
	for i, r := range raw {
		if err := json.Unmarshal(r, into[i]); err != nil {
			return limpet.Errorf(limpet.CodeInvalidArgument, "argument %d: %w", i+1, err)
		}
	}
	return nil
}

func (c *jsonCodec) Marshal(v any) (limpet.Encoded, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, limpet.Errorf(limpet.CodeInvalidArgument, "value: %w", err)
	}
	return b, nil
}

func (c *jsonCodec) Unmarshal(e limpet.Encoded, into any) error {
	if err := json.Unmarshal(e, into); err != nil {
		return limpet.Errorf(limpet.CodeInvalidArgument, "value: %w", err)
	}
	return nil
}

// fakeNode is a Resolver and Caller over one receiver: it runs each call at
// once, without retries, and remembers it.
type fakeNode struct {
	binding  limpet.Binding
	receiver any
	// intercept, if not nil, answers in place of the object unless ok is false.
	intercept func(c *limpet.CallSpec) (result any, err error, ok bool)
	// runs is how often each call runs on the receiver; 0 means once. The last
	// run gives the result.
	runs int

	mu      sync.Mutex
	methods []string // of each call that arrived
	fetches []*http.Request
	follow  []bool
}

// nodeOf is a node with one namespace, CART, of a class (nil: the class is
// elsewhere) and its one object.
func nodeOf(class *limpet.Class, receiver any) *fakeNode {
	n := &fakeNode{receiver: receiver}
	n.binding = limpet.Binding{
		Name: "CART", Class: class, ClassIdentity: "Cart", Policy: limpet.DefaultRetryPolicy(),
		Caller: n, Codec: &jsonCodec{},
	}
	return n
}

func (n *fakeNode) codec() *jsonCodec { return n.binding.Codec.(*jsonCodec) }

func (n *fakeNode) Binding(name string) (*limpet.Binding, error) {
	if name != n.binding.Name {
		return nil, limpet.UnknownNamespace(name, []string{n.binding.Name})
	}
	b := n.binding
	return &b, nil
}

func (n *fakeNode) Call(ctx context.Context, c *limpet.CallSpec) (any, error) {
	n.mu.Lock()
	n.methods = append(n.methods, c.Method)
	n.mu.Unlock()
	if n.intercept != nil {
		if result, err, ok := n.intercept(c); ok {
			return result, err
		}
	}
	var result any
	var err error
	for range max(n.runs, 1) {
		if result, err = c.Runner.Run(ctx, n.receiver); err != nil {
			return nil, limpet.MethodError(c.Object, err)
		}
	}
	return result, nil
}

func (n *fakeNode) Fetch(_ context.Context, c *limpet.CallSpec, req *http.Request, follow bool) (*http.Response, error) {
	n.mu.Lock()
	n.fetches, n.follow = append(n.fetches, req), append(n.follow, follow)
	n.mu.Unlock()
	if n.intercept != nil {
		if result, err, ok := n.intercept(c); ok {
			resp, _ := result.(*http.Response)
			return resp, err
		}
	}
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: req}, nil
}

// attempts is how many calls arrived.
func (n *fakeNode) attempts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.methods) + len(n.fetches)
}

// last is the method of the last call that arrived.
func (n *fakeNode) last() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.methods) == 0 {
		return ""
	}
	return n.methods[len(n.methods)-1]
}

// namespace finds the namespace CART of a node as a T.
func namespace[T any](t testing.TB, n *fakeNode) limpet.Namespace[T] {
	t.Helper()
	ns, err := limpet.NamespaceOf[T](n, "CART")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// asError gives the *Error that every failed call is.
func asError(t testing.TB, err error) *limpet.Error {
	t.Helper()
	if err == nil {
		t.Fatal("got no error")
	}
	e, ok := err.(*limpet.Error) //nolint:errorlint // the call itself, nothing around it, must be one
	if !ok {
		t.Fatalf("got a %T, want a *limpet.Error: %v", err, err)
	}
	return e
}

// refused checks an error that limpet made before anything was sent, and that
// its text names what a person needs.
func refused(t testing.TB, err error, code limpet.Code, names ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want %s", code)
	}
	if !errors.Is(err, code) {
		t.Errorf("got code %s, want %s: %v", limpet.CodeOf(err), code, err)
	}
	if d := limpet.DeliveryOf(err); d != limpet.DeliveryNone {
		t.Errorf("got delivery %q, want %q: %v", d, limpet.DeliveryNone, err)
	}
	contains(t, err, names...)
}
