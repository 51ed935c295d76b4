package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/wire"
)

type proven struct{}

// Nothing does nothing.
func (*proven) Nothing(context.Context) error { return nil }

// TestProvenIDs brings IDs with right and wrong names in every order: a memory of
// what was proved must not let pass what was not.
func TestProvenIDs(t *testing.T) {
	make1 := func(*limpet.State) (*proven, error) { return &proven{}, nil }
	a, b := limpet.NewClass("A", make1), limpet.NewClass("B", make1)
	n, err := Open(t.Context(), Config{Dir: t.TempDir(), Classes: []*limpet.Class{a, b}, Wire: Wire{Addr: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	c := callee{n: n, spaces: map[string]limpet.Namespace[any]{}, proven: &provenIDs{}}
	for _, name := range []string{"A", "B"} {
		if c.spaces[name], err = limpet.NamespaceOf[any](n, name); err != nil {
			t.Fatal(err)
		}
	}
	space := c.spaces["A"]
	id := func(s limpet.Namespace[any], name string) limpet.ID {
		id, err := s.IDFromName(name)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	long := strings.Repeat("x", maxProvenName+1)
	eu := id(space.Jurisdiction("eu"), "one")
	calls := []struct {
		call wire.Call
		ok   bool
	}{
		{wire.Call{Binding: "A", Object: id(space, "one").Bytes(), Named: true, Name: "one"}, true},
		{wire.Call{Binding: "A", Object: id(space, "one").Bytes(), Named: true, Name: "two"}, false},
		{wire.Call{Binding: "A", Object: id(space, "one").Bytes(), Named: true, Name: ""}, false},
		{wire.Call{Binding: "A", Object: id(space, "one").Bytes()}, true},
		{wire.Call{Binding: "B", Object: id(space, "one").Bytes(), Named: true, Name: "one"}, false},
		{wire.Call{Binding: "B", Object: id(space, "one").Bytes()}, false},
		{wire.Call{Binding: "A", Object: eu.Bytes(), Named: true, Name: "one"}, true},
		{wire.Call{Binding: "A", Object: id(space, long).Bytes(), Named: true, Name: long}, true},
		{wire.Call{Binding: "A", Object: [32]byte{1}}, false},
	}
	for i := range 3 * len(calls) * len(calls) {
		x := calls[(i*i/len(calls)+i)%len(calls)]
		b, got, err := c.find(&x.call)
		if (err == nil) != x.ok || err != nil && !errors.Is(err, limpet.CodeInvalidArgument) {
			t.Fatalf("step %d: %s %x %q: %v, want ok %v", i, x.call.Binding, x.call.Object, x.call.Name, err, x.ok)
		}
		if err != nil {
			continue
		}
		if name, named := got.Name(); got.Bytes() != x.call.Object || named != x.call.Named || name != x.call.Name || b.Name != x.call.Binding {
			t.Fatalf("step %d: found %v %q in %s for %x %q", i, got, name, b.Name, x.call.Object, x.call.Name)
		}
	}
	if got := c.proven.slot(&calls[6].call).Load().id.Jurisdiction(); got != "eu" {
		t.Errorf("the jurisdiction of a remembered ID is %q", got)
	}
	if e := c.proven.slot(&calls[7].call).Load(); e != nil && e.id.Bytes() == calls[7].call.Object {
		t.Error("a long name is remembered")
	}
}
