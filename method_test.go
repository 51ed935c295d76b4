package limpet_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/limpet-dev/limpet"
)

// Method expressions and what they name. A function that is not exactly a method
// of the stub's type must be refused: the name decides whether a call may run a
// second time.

// Shop promotes methods, by value and by pointer.
type Shop struct {
	Cart
	*Till
}

type Till struct{ sum int }

func (t *Till) Pay(_ context.Context, n int) (int, error) { t.sum += n; return t.sum, nil }
func (t Till) Sum(context.Context) (int, error)           { return t.sum, nil }

// Clear has its receiver's type as an argument.
func (s *Shop) Clear(_ context.Context) error                { s.sum = 0; return nil }
func (s *Shop) MoveTo(_ context.Context, other string) error { s.items[other] = s.sum; return nil }

// Bag is Cart's methods with their own code.
type Bag struct{ Cart }

func (b *Bag) SetQuantity(_ context.Context, item string, n int) error {
	b.items[item] = 2 * n
	return nil
}

// Box is generic.
type Box[T any] struct{ v T }

func (b *Box[T]) Put(_ context.Context, v T) error { b.v = v; return nil }
func (b *Box[T]) Take(context.Context) (T, error)  { return b.v, nil }
func (b Box[T]) Look(context.Context) (T, error)   { return b.v, nil }

type Adder interface {
	AddOne(ctx context.Context, item string) (int, error)
}

// CartAPI is what a caller knows of a cart elsewhere.
type CartAPI interface {
	SetQuantity(ctx context.Context, item string, n int) error
	Adder
}

// OtherAPI has the methods of CartAPI.
type OtherAPI interface {
	SetQuantity(ctx context.Context, item string, n int) error
	AddOne(ctx context.Context, item string) (int, error)
}

type BoxAPI[T any] interface {
	Put(ctx context.Context, v T) error
}

func setQuantityLiteral(c *Cart, ctx context.Context, item string, n int) error {
	return c.SetQuantity(ctx, item, n)
}

// AddOne has the name of an interface's method, and what its expression takes.
func AddOne(c CartAPI, ctx context.Context, item string) (int, error) { return c.AddOne(ctx, item) }

// SetQuantity has the name of a method, and what a method expression takes.
func SetQuantity(c *Cart, ctx context.Context, item string, n int) error {
	return c.SetQuantity(ctx, item, n+1)
}

func setThrough[T interface {
	SetQuantity(context.Context, string, int) error
}](ctx context.Context, s *limpet.Stub[T]) error {
	return limpet.Do2(ctx, s, T.SetQuantity, "item", 1)
}

func putThrough[T any](ctx context.Context, s *limpet.Stub[*Box[T]], v T) error {
	return limpet.Do1(ctx, s, (*Box[T]).Put, v)
}

func shopNode(t *testing.T) (*fakeNode, *limpet.Stub[*Shop], *Shop) {
	t.Helper()
	shop := &Shop{Cart{items: map[string]int{}}, &Till{}}
	class := limpet.NewClass("Shop", func(*limpet.State) (*Shop, error) { return shop, nil })
	if err := class.Err(); err != nil {
		t.Fatal(err)
	}
	n := nodeOf(class, shop)
	return n, namespace[*Shop](t, n).Named("s"), shop
}

func TestMethodExpressions(t *testing.T) {
	ctx := t.Context()
	cart := &Cart{items: map[string]int{}}
	class := limpet.NewClass("Cart", newCart)
	node := nodeOf(class, cart)
	stub := namespace[*Cart](t, node).Named("c")
	shops, shop, shopObject := shopNode(t)
	bagNode := nodeOf(limpet.NewClass("Bag", func(*limpet.State) (*Bag, error) { return nil, nil }), &Bag{Cart{items: map[string]int{}}})
	bag := namespace[*Bag](t, bagNode).Named("b")
	boxNode := nodeOf(limpet.NewClass("Box", func(*limpet.State) (*Box[int], error) { return nil, nil }), &Box[int]{})
	box := namespace[*Box[int]](t, boxNode).Named("b")
	valueNode := nodeOf(limpet.NewClass("Till", func(*limpet.State) (Till, error) { return Till{}, nil }), Till{7})
	till := namespace[Till](t, valueNode).Named("t")
	far := nodeOf(nil, cart) // the class is not here: nothing is known but the type
	farStub := namespace[*Cart](t, far).Named("c")
	apiNode := nodeOf(class, cart)
	api := namespace[CartAPI](t, apiNode).Named("c")
	farAPI := namespace[CartAPI](t, far).Named("c")
	type Local interface {
		SetQuantity(ctx context.Context, item string, n int) error
	}
	type Alias = CartAPI
	local := namespace[Local](t, node).Named("c")
	boxAPI := namespace[BoxAPI[int]](t, boxNode).Named("b")

	for _, c := range []struct {
		what string
		node *fakeNode
		call func() error
		want string
	}{
		{"own", node, func() error { return limpet.Do2(ctx, stub, (*Cart).SetQuantity, "item", 1) }, "setQuantity"},
		{"own with result", node, func() error { _, err := limpet.Call1(ctx, stub, (*Cart).AddOne, "item"); return err }, "addOne"},
		{"through a type parameter", node, func() error { return setThrough(ctx, stub) }, "setQuantity"},
		{"promoted by value", shops, func() error { return limpet.Do2(ctx, shop, (*Shop).SetQuantity, "item", 1) }, "setQuantity"},
		{"promoted by pointer", shops, func() error { _, err := limpet.Call1(ctx, shop, (*Shop).Pay, 5); return err }, "pay"},
		{"promoted, value receiver", shops, func() error { _, err := limpet.Call(ctx, shop, (*Shop).Sum); return err }, "sum"},
		{"beside promoted", shops, func() error { return limpet.Do(ctx, shop, (*Shop).Clear) }, "clear"},
		{"overriding", bagNode, func() error { return limpet.Do2(ctx, bag, (*Bag).SetQuantity, "item", 1) }, "setQuantity"},
		{"generic", boxNode, func() error { return limpet.Do1(ctx, box, (*Box[int]).Put, 9) }, "put"},
		{"generic with result", boxNode, func() error { _, err := limpet.Call(ctx, box, (*Box[int]).Take); return err }, "take"},
		{"generic, value receiver", boxNode, func() error { _, err := limpet.Call(ctx, box, (*Box[int]).Look); return err }, "look"},
		{"value class", valueNode, func() error { _, err := limpet.Call(ctx, till, Till.Sum); return err }, "sum"},
		{"class elsewhere, type known", far, func() error { return limpet.Do2(ctx, farStub, (*Cart).SetQuantity, "item", 1) }, "setQuantity"},
		{"interface", apiNode, func() error { return limpet.Do2(ctx, api, CartAPI.SetQuantity, "item", 1) }, "setQuantity"},
		{"interface, embedded", apiNode, func() error { _, err := limpet.Call1(ctx, api, CartAPI.AddOne, "item"); return err }, "addOne"},
		{"interface, class elsewhere", far, func() error { return limpet.Do2(ctx, farAPI, CartAPI.SetQuantity, "item", 1) }, "setQuantity"},
		{"interface, by an alias", apiNode, func() error { return limpet.Do2(ctx, api, Alias.SetQuantity, "item", 1) }, "setQuantity"},
		{"interface through a type parameter", apiNode, func() error { return setThrough(ctx, api) }, "setQuantity"},
		{"interface of a function", node, func() error { return limpet.Do2(ctx, local, Local.SetQuantity, "item", 1) }, "setQuantity"},
		{"generic interface", boxNode, func() error { return limpet.Do1(ctx, boxAPI, BoxAPI[int].Put, 3) }, "put"},
	} {
		t.Run(c.what, func(t *testing.T) {
			for range 2 { // the second time it is remembered
				before := c.node.attempts()
				if err := c.call(); err != nil {
					t.Fatal(err)
				}
				if got := c.node.last(); got != c.want || c.node.attempts() != before+1 {
					t.Errorf("called %q, want %q", got, c.want)
				}
			}
		})
	}
	if shopObject.items["item"] != 1 {
		t.Errorf("the shop has %v", shopObject.items)
	}
}

func TestMethodExpressionsRefused(t *testing.T) {
	ctx := t.Context()
	cart := &Cart{items: map[string]int{}}
	class := limpet.NewClass("Cart", newCart, limpet.Hidden("Quantity"))
	node := nodeOf(class, cart)
	stub := namespace[*Cart](t, node).Named("c")
	api := namespace[CartAPI](t, node).Named("c")
	far := namespace[*Cart](t, nodeOf(nil, cart)).Named("c")
	farAPI := namespace[CartAPI](t, nodeOf(nil, cart)).Named("c")
	anon := namespace[interface {
		SetQuantity(ctx context.Context, item string, n int) error
	}](t, node).Named("c")
	all := namespace[any](t, node).Named("c")
	box := namespace[*Box[int]](t, nodeOf(nil, nil)).Named("b")
	captured := 5
	literal := func(c *Cart, ctx context.Context, item string, n int) error { return c.SetQuantity(ctx, item, n) }
	closure := func(c *Cart, ctx context.Context, item string, n int) error {
		return c.SetQuantity(ctx, item, n+captured)
	}
	// Its bound method takes what a method expression of Cart takes.
	var binder cartBinder
	made := reflect.MakeFunc(reflect.TypeFor[func(*Cart, context.Context, string, int) error](), func([]reflect.Value) []reflect.Value {
		return []reflect.Value{reflect.Zero(reflect.TypeFor[error]())}
	}).Interface().(func(*Cart, context.Context, string, int) error)
	reflected := reflect.ValueOf(binder).Method(0).Interface().(func(*Cart, context.Context, string, int) error)

	for _, c := range []struct {
		what  string
		call  func() error
		words []string
	}{
		{"nil", func() error { return limpet.Do2(ctx, stub, nil, "item", 1) }, []string{"nil", "*limpet_test.Cart"}},
		{"nil of an interface", func() error { return limpet.Do2(ctx, api, nil, "item", 1) }, []string{"nil"}},
		{"function literal", func() error { return limpet.Do2(ctx, stub, literal, "item", 1) }, []string{"TestMethodExpressionsRefused.func", "no method of *limpet_test.Cart"}},
		{"function literal, class elsewhere", func() error { return limpet.Do2(ctx, far, literal, "item", 1) }, []string{"no method of *limpet_test.Cart"}},
		{"closure", func() error { return limpet.Do2(ctx, stub, closure, "item", 1) }, []string{"no method of"}},
		{"function of the method's name", func() error { return limpet.Do2(ctx, stub, SetQuantity, "item", 1) }, []string{"limpet_test.SetQuantity", "no method of"}},
		{"function of the method's name, class elsewhere", func() error { return limpet.Do2(ctx, far, SetQuantity, "item", 1) }, []string{"limpet_test.SetQuantity"}},
		{"function that is the method, inlined", func() error { return limpet.Do2(ctx, stub, setQuantityLiteral, "item", 1) }, []string{"setQuantityLiteral"}},
		{"bound method", func() error { return limpet.Do2(ctx, stub, binder.SetQuantity, "item", 1) }, []string{"cartBinder.SetQuantity-fm"}},
		{"bound method by reflection", func() error { return limpet.Do2(ctx, stub, reflected, "item", 1) }, []string{"no method of"}},
		{"function by reflection", func() error { return limpet.Do2(ctx, stub, made, "item", 1) }, []string{"no method of"}},
		// There the compiler makes a closure of it, which nothing tells from others.
		{"generic type's, in a generic function", func() error { return putThrough(ctx, box, 9) }, []string{"putThrough[...].func1", "no method of *limpet_test.Box[int]"}},
		{"hidden method", func() error { _, err := limpet.Call1(ctx, stub, (*Cart).Quantity, "item"); return err }, []string{"*limpet_test.Cart.Quantity", "Hidden", "class Cart"}},
		{"literal for an interface", func() error {
			return limpet.Do2(ctx, api, func(c CartAPI, ctx context.Context, item string, n int) error { return c.SetQuantity(ctx, item, n) }, "item", 1)
		}, []string{"no method of limpet_test.CartAPI"}},
		{"function of an interface method's name", func() error { _, err := limpet.Call1(ctx, farAPI, AddOne, "item"); return err }, []string{"limpet_test.AddOne", "no method of limpet_test.CartAPI"}},
		{"another interface's", func() error {
			return limpet.Do2(ctx, farAPI, func(c CartAPI, ctx context.Context, item string, n int) error {
				return OtherAPI.SetQuantity(c, ctx, item, n)
			}, "item", 1)
		}, []string{"no method of limpet_test.CartAPI"}},
		{"interface without a name", func() error {
			return limpet.Do2(ctx, anon, func(c interface {
				SetQuantity(ctx context.Context, item string, n int) error
			}, ctx context.Context, item string, n int) error {
				return c.SetQuantity(ctx, item, n)
			}, "item", 1)
		}, []string{"no method of interface"}},
		{"literal for any", func() error {
			return limpet.Do(ctx, all, func(any, context.Context) error { return nil })
		}, []string{"CART", "interface {}", "no methods", "use Stub.Invoke"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			for range 2 { // a refusal is remembered too
				err := c.call()
				refused(t, err, limpet.CodeInvalidArgument, c.words...)
				_ = asError(t, err)
			}
		})
	}
	if node.attempts() != 0 || len(cart.items) != 0 {
		t.Errorf("%d calls were made: %v", node.attempts(), cart.items)
	}
}

type cartBinder struct{}

func (cartBinder) SetQuantity(*Cart, context.Context, string, int) error { return nil }

// Method expressions of two methods whose code is the same are two methods.
func TestMethodExpressionsOfEqualCode(t *testing.T) {
	ctx := t.Context()
	node := nodeOf(newMarked[markBase](), &markBase{})
	stub := namespace[*markBase](t, node).Named("c")
	for range 2 {
		if err := limpet.Do1(ctx, stub, (*markBase).Set, 1); err != nil || node.last() != "set" {
			t.Errorf("called %q, %v", node.last(), err)
		}
		if err := limpet.Do1(ctx, stub, (*markBase).Other, 1); err != nil || node.last() != "other" {
			t.Errorf("called %q, %v", node.last(), err)
		}
	}
}

// What is found out about a method is found out once.
func TestMethodExpressionsAreRemembered(t *testing.T) {
	ctx := t.Context()
	node := nodeOf(newMarked[markBase](), &markBase{})
	stub := namespace[*markBase](t, node).Named("c")
	var looked []int
	for range 3 {
		for _, err := range []error{limpet.Do1(ctx, stub, (*markBase).Set, 1), limpet.Do1(ctx, stub, (*markBase).Other, 1)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		looked = append(looked, node.codec().plain)
	}
	if looked[0] != 2 || looked[2] != 2 {
		t.Errorf("the types of two arguments were looked at %v times", looked)
	}
}

func TestMethodExpressionsConcurrently(t *testing.T) {
	ctx := t.Context()
	node := nodeOf(limpet.NewClass("Shop", func(*limpet.State) (*Shop, error) { return nil, nil }), nil)
	node.intercept = func(c *limpet.CallSpec) (any, error, bool) {
		return nil, limpet.Errorf(limpet.CodeApplication, "%s", c.Method), true
	}
	ns := namespace[*Shop](t, node)
	literal := func(*Shop, context.Context) error { return nil }
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				stub := ns.Named("s")
				var err error
				var want string
				switch (g + i) % 5 {
				case 0:
					err, want = limpet.Do2(ctx, stub, (*Shop).SetQuantity, "item", 1), "setQuantity"
				case 1:
					_, err = limpet.Call1(ctx, stub, (*Shop).Pay, 1)
					want = "pay"
				case 2:
					_, err = limpet.Call(ctx, stub, (*Shop).Sum)
					want = "sum"
				case 3:
					err, want = limpet.Do(ctx, stub, (*Shop).Clear), "clear"
				case 4:
					err, want = limpet.Do(ctx, stub, literal), "no method of"
				}
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("called %v, want %s", err, want)
				}
			}
		})
	}
	wg.Wait()
}

func TestNamespaceOf(t *testing.T) {
	node := nodeOf(limpet.NewClass("Cart", newCart), nil)
	_, err := limpet.NamespaceOf[*Cart](node, "SHOP")
	refused(t, err, limpet.CodeUnknownNamespace, "SHOP", "CART")
	_, err = limpet.NamespaceOf[*Cart](nil, "CART")
	refused(t, err, limpet.CodeInvalidArgument, "CART", "Resolver is nil")
	_, err = limpet.NamespaceOf[*Bag](node, "CART")
	refused(t, err, limpet.CodeInvalidArgument, "CART", "class Cart", "*limpet_test.Cart", "*limpet_test.Bag")
	_, err = limpet.NamespaceOf[Cart](node, "CART")
	refused(t, err, limpet.CodeInvalidArgument, "CART", "limpet_test.Cart")
	_, err = limpet.NamespaceOf[BoxAPI[int]](node, "CART")
	refused(t, err, limpet.CodeInvalidArgument, "CART", "class Cart", "does not implement", "BoxAPI", "it has no method Put")
	_, err = limpet.NamespaceOf[interface {
		AddOne(context.Context, int) (int, error)
	}](node, "CART")
	refused(t, err, limpet.CodeInvalidArgument, "its method AddOne is a func(*limpet_test.Cart, context.Context, string) (int, error), not a func(context.Context, int) (int, error)")
	_, err = limpet.NamespaceOf[interface{ unexported() }](node, "CART")
	refused(t, err, limpet.CodeInvalidArgument, "it has no method unexported")
	if _, err = limpet.NamespaceOf[CartAPI](node, "CART"); err != nil {
		t.Error(err)
	}
	if _, err = limpet.NamespaceOf[any](node, "CART"); err != nil {
		t.Error(err)
	}
	if _, err = limpet.NamespaceOf[*Bag](nodeOf(nil, nil), "CART"); err != nil {
		t.Errorf("a class elsewhere can be known by any type: %v", err)
	}
	if e := limpet.UnknownNamespace(strings.Repeat("n", 1<<20), nil); len(e.Error()) > 300 || !strings.Contains(e.Error(), "there are none") {
		t.Errorf("%.300s", e.Error())
	}
	if !errors.Is(limpet.UnknownNamespace("a", []string{"C", "B"}), limpet.CodeUnknownNamespace) {
		t.Error("wrong code")
	}
	contains(t, limpet.UnknownNamespace("a", []string{"C", "B"}), "B, C")
}
