package limpet_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

// Cart is the class of most tests.
type Cart struct {
	st    *limpet.State
	items map[string]int
}

func newCart(st *limpet.State) (*Cart, error) { return &Cart{st, map[string]int{}}, nil }

func (c *Cart) SetQuantity(_ context.Context, item string, n int) error {
	c.items[item] = n
	return nil
}

func (c *Cart) AddOne(_ context.Context, item string) (int, error) {
	c.items[item]++
	return c.items[item], nil
}

func (c *Cart) Quantity(_ context.Context, item string) (int, error) { return c.items[item], nil }

func (c *Cart) ServeHTTP(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, len(c.items)) }

func TestClass(t *testing.T) {
	c := limpet.NewClass("Cart", newCart, limpet.Retryable((*Cart).SetQuantity), limpet.ClassID("shop/cart"), limpet.GatedEffects())
	if err := c.Err(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"addOne", "quantity", "setQuantity"}, c.Methods()); diff != "" {
		t.Error(diff)
	}
	if c.Name() != "Cart" || c.Identity() != "shop/cart" || !c.Gated() || !c.HasHandler() || c.HandlerMarked() {
		t.Errorf("got %s, %s, %v, %v, %v", c.Name(), c.Identity(), c.Gated(), c.HasHandler(), c.HandlerMarked())
	}
	// SPEC F42: unmarked is the default.
	if !c.Method("setQuantity").Marked || c.Method("addOne").Marked {
		t.Error("marked: setQuantity must be, addOne must not")
	}
	if c.Method("setQuantity").GoName != "SetQuantity" {
		t.Errorf("Go name %q", c.Method("setQuantity").GoName)
	}
	// SPEC B19: only methods are seen, by their JavaScript names.
	for _, name := range []string{"SetQuantity", "serveHTTP", "ServeHTTP", "fetch", "items", "", "toString"} {
		if c.Method(name) != nil {
			t.Errorf("%q can be called", name)
		}
	}
	object, err := c.Construct(nil)
	if _, ok := object.(*Cart); !ok || err != nil {
		t.Errorf("constructed %T, %v", object, err)
	}
	plain := limpet.NewClass("Cart", newCart)
	if plain.Identity() != "" || plain.Gated() || plain.Err() != nil {
		t.Errorf("got %q, %v, %v", plain.Identity(), plain.Gated(), plain.Err())
	}
}

// Shapes has one method of each wrong shape, and some that are right.
type Shapes struct{}

func (*Shapes) Right(context.Context) error                             { return nil }
func (*Shapes) Six(context.Context, int, int, int, int, int, int) error { return nil }
func (*Shapes) Any(context.Context, any) (any, error)                   { return nil, nil }
func (*Shapes) NoContext() error                                        { return nil }
func (*Shapes) ContextLast(int, context.Context) error                  { return nil }
func (*Shapes) MyContext(myContext) error                               { return nil }
func (*Shapes) NoError(context.Context)                                 {}
func (*Shapes) OnlyValue(context.Context) int                           { return 0 }

//lint:ignore ST1008 the wrong order is what is tested
func (*Shapes) ErrorFirst(context.Context) (error, int)                        { return nil, 0 }
func (*Shapes) TwoErrors(context.Context) (error, error)                       { return nil, nil }
func (*Shapes) ThreeResults(context.Context) (int, int, error)                 { return 0, 0, nil }
func (*Shapes) Seven(context.Context, int, int, int, int, int, int, int) error { return nil }
func (*Shapes) Variadic(context.Context, ...int) error                         { return nil }
func (*Shapes) MyError(context.Context) *limpet.Error                          { return nil }

type myContext interface{ context.Context }

func TestClassRefusesShapes(t *testing.T) {
	make := func(*limpet.State) (*Shapes, error) { return &Shapes{}, nil }
	wrong := map[string]string{
		"NoContext": "context.Context", "ContextLast": "context.Context", "MyContext": "context.Context",
		"NoError": "does not return an error last", "OnlyValue": "does not return an error last",
		"ErrorFirst": "does not return an error last", "MyError": "does not return an error last",
		"TwoErrors": "two errors", "ThreeResults": "2 values", "Seven": "7 arguments", "Variadic": "variadic",
	}
	c := limpet.NewClass("Shapes", make)
	told := map[string]bool{}
	for _, err := range each(c.Err()) {
		refusedClass(t, err, limpet.CodeInvalidArgument, "class Shapes")
		for name, what := range wrong {
			if strings.Contains(err.Error(), "method "+name+" ") {
				told[name] = true
				contains(t, err, what, fmt.Sprintf("limpet.Hidden(%q)", name))
			}
		}
	}
	if len(told) != len(wrong) {
		t.Errorf("told of %v, want %v", told, wrong)
	}
	right := []string{"any", "right", "six"}
	if diff := cmp.Diff(right, c.Methods()); diff != "" {
		t.Error(diff)
	}
	var names []string
	for n := range wrong {
		names = append(names, n)
	}
	c = limpet.NewClass("Shapes", make, limpet.Hidden(names...))
	if err := c.Err(); err != nil {
		t.Errorf("all hidden: %v", err)
	}
	if diff := cmp.Diff(right, c.Methods()); diff != "" {
		t.Error(diff)
	}
}

// each is the errors that errors.Join joined.
func each(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return nil
}

func refusedClass(t *testing.T, err error, code limpet.Code, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("got no error, want one that says %q", words)
		return
	}
	// errors.Is finds the Code through errors.Join.
	if !errors.Is(err, code) {
		t.Errorf("got %s, want %s: %v", limpet.CodeOf(err), code, err)
	}
	contains(t, err, words...)
}

type Reserved struct{}

func (*Reserved) Alarm(context.Context) error            { return nil }
func (*Reserved) Fetch(context.Context) error            { return nil }
func (*Reserved) Connect(context.Context) error          { return nil }
func (*Reserved) Dup(context.Context) error              { return nil }
func (*Reserved) Constructor(context.Context) error      { return nil }
func (*Reserved) WebSocketMessage(context.Context) error { return nil }
func (*Reserved) WebSocketClose(context.Context) error   { return nil }
func (*Reserved) WebSocketError(context.Context) error   { return nil }
func (*Reserved) Tail(context.Context) error             { return nil }
func (*Reserved) Test(context.Context) error             { return nil }

func TestClassReservedNames(t *testing.T) {
	c := limpet.NewClass("Reserved", func(*limpet.State) (*Reserved, error) { return &Reserved{}, nil })
	names := []string{"Alarm", "Fetch", "Connect", "Dup", "Constructor", "WebSocketMessage", "WebSocketClose", "WebSocketError"}
	errs := each(c.Err())
	if len(errs) != len(names) {
		t.Errorf("got %d errors, want %d: %v", len(errs), len(names), c.Err())
	}
	for _, name := range names {
		// SPEC B20
		i := slices.IndexFunc(errs, func(err error) bool { return strings.Contains(err.Error(), "method "+name) })
		if i < 0 {
			t.Errorf("%s is not refused: %v", name, c.Err())
			continue
		}
		code := limpet.CodeInvalidArgument
		if name == "Alarm" {
			code = limpet.CodeNotSupported // what is not built refuses by that name
		}
		refusedClass(t, errs[i], code, "class Reserved", "reserved")
	}
	// SPEC B21: these are ordinary names.
	if diff := cmp.Diff([]string{"tail", "test"}, c.Methods()); diff != "" {
		t.Error(diff)
	}
}

type Twins struct{}

func (*Twins) ID(context.Context) error  { return nil }
func (*Twins) Id(context.Context) error  { return nil }
func (*Twins) URL(context.Context) error { return nil }

func TestClassTwins(t *testing.T) {
	c := limpet.NewClass("Twins", func(*limpet.State) (*Twins, error) { return &Twins{}, nil })
	refusedClass(t, c.Err(), limpet.CodeInvalidArgument, "class Twins", "ID", "Id", "both called id")
	if len(each(c.Err())) != 1 {
		t.Errorf("got %v", c.Err())
	}
}

func TestJSName(t *testing.T) {
	for goName, want := range map[string]string{
		"URL": "url", "ID": "id", "HTTPGet": "httpGet", "SetQuantity": "setQuantity", "X": "x", "V2Get": "v2Get",
		"XRay": "xRay", "GetURL": "getURL", "HTTP2Get": "http2Get", "A1": "a1", "ABC1": "abc1", "OK": "ok",
		"OAuth": "oAuth", "Set_X": "set_X", "URL_": "url_", "IsOK": "isOK", "XY": "xy", "XYz": "xYz",
		"Ärger": "ärger", "ÄÖÜ": "äöü", "ÄÖü": "äÖü", "Über2": "über2", "already": "already", "": "",
	} {
		if got := limpet.JSName(goName); got != want {
			t.Errorf("%s: got %q, want %q", goName, got, want)
		}
	}
}

func TestClassNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"Cart": true, "cart_2": true, "_": true, strings.Repeat("C", 128): true,
		"": false, "2Cart": false, "Shop Cart": false, "Größe": false, "a-b": false, "a\x00": false, "\xff": false,
		strings.Repeat("C", 129): false, strings.Repeat("/", 1<<20): false,
	} {
		c := limpet.NewClass(name, newCart)
		if ok != (c.Err() == nil) {
			t.Errorf("%.20q: %v", name, c.Err())
		}
		if c.Name() != name {
			t.Errorf("%.20q: the name is %.20q", name, c.Name())
		}
		if !ok {
			refusedClass(t, c.Err(), limpet.CodeInvalidArgument, "128")
			if len(c.Err().Error()) > 400 {
				t.Errorf("%.20q: the error has %d bytes", name, len(c.Err().Error()))
			}
		}
	}
	for id, ok := range map[string]bool{"": false, "x": true, strings.Repeat("i", 256): true, strings.Repeat("i", 257): false} {
		c := limpet.NewClass("Cart", newCart, limpet.ClassID(id))
		if ok != (c.Err() == nil) {
			t.Errorf("identity of %d bytes: %v", len(id), c.Err())
		}
		if !ok {
			refusedClass(t, c.Err(), limpet.CodeInvalidArgument, "class Cart", "ClassID", "256")
		}
	}
}

// Odd receivers: NewClass says what is wrong with them, or takes them.
type (
	oddInt    int
	oddFunc   func()
	oddMap    map[string]int
	oddSlice  []int
	oddStruct struct{ _ int }
	oddAny    interface {
		Get(context.Context) (int, error)
	}
	oddGen[T any] struct{ v T }
)

func (oddInt) Get(context.Context) (int, error)       { return 1, nil }
func (oddFunc) Get(context.Context) (int, error)      { return 2, nil }
func (oddMap) Get(context.Context) (int, error)       { return 3, nil }
func (oddSlice) Get(context.Context) (int, error)     { return 4, nil }
func (oddStruct) Get(context.Context) (int, error)    { return 5, nil }
func (*oddGen[T]) Get(context.Context) (T, error)     { var v T; return v, nil }
func (*oddGen[T]) Put(_ context.Context, v T) error   { _ = v; return nil }
func (g oddGen[T]) Look(context.Context) (int, error) { _ = g.v; return 6, nil }

type oddHandler struct{}

func (*oddHandler) ServeHTTP(http.ResponseWriter, *http.Request) {}

func oddClass[T any](v T, opts ...limpet.ClassOption) *limpet.Class {
	return limpet.NewClass("Odd", func(*limpet.State) (T, error) { return v, nil }, opts...)
}

func TestClassOfOddTypes(t *testing.T) {
	i := 1
	for what, c := range map[string]struct {
		class   *limpet.Class
		methods []string
		refused string
	}{
		"a number":                         {oddClass(oddInt(1)), []string{"get"}, ""},
		"a function":                       {oddClass(oddFunc(func() {})), []string{"get"}, ""},
		"a map":                            {oddClass(oddMap{}), []string{"get"}, ""},
		"a slice":                          {oddClass(oddSlice(nil)), []string{"get"}, ""},
		"a struct":                         {oddClass(oddStruct{}), []string{"get"}, ""},
		"a pointer to a struct":            {oddClass(&oddStruct{}), []string{"get"}, ""},
		"a generic type":                   {oddClass(&oddGen[string]{}), []string{"get", "look", "put"}, ""},
		"an unnamed struct":                {oddClass(struct{ oddStruct }{}), []string{"get"}, ""},
		"int":                              {oddClass(1), nil, "int has no method that can be called"},
		"a pointer to a pointer":           {oddClass(new(*oddStruct)), nil, "; *limpet_test.oddStruct has some: return that from the constructor"},
		"a pointer to int":                 {oddClass(&i), nil, "*int has no method that can be called"},
		"a channel":                        {oddClass(make(chan int)), nil, "chan int has no method that can be called"},
		"an interface":                     {oddClass[oddAny](oddInt(1)), nil, "not the interface limpet_test.oddAny"},
		"any":                              {oddClass[any](1), nil, "not the interface interface {}"},
		"error":                            {oddClass[error](limpet.CodeReset), nil, "not the interface error"},
		"a pointer to an interface":        {oddClass(new(oddAny)), nil, "*limpet_test.oddAny has no method that can be called"},
		"the value of a pointer's methods": {oddClass(Cart{}), nil, "; *limpet_test.Cart has some: return a pointer from the constructor"},
		"the value of a pointer's handler": {oddClass(oddHandler{}), nil, "; *limpet_test.oddHandler has some: return a pointer from the constructor"},
	} {
		t.Run(what, func(t *testing.T) {
			if c.refused != "" {
				refusedClass(t, c.class.Err(), limpet.CodeInvalidArgument, "class Odd", c.refused)
				return
			}
			if err := c.class.Err(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.methods, c.class.Methods(), equateEmpty); diff != "" {
				t.Error(diff)
			}
			if object, err := c.class.Construct(nil); err != nil || object == nil {
				t.Errorf("constructed %v, %v", object, err)
			}
		})
	}
}

var equateEmpty = cmp.Comparer(func(a, b []string) bool { return slices.Equal(a, b) })

func TestNewClassNeverPanics(t *testing.T) {
	var nilOption limpet.ClassOption
	options := map[string]limpet.ClassOption{
		"nil option":           nilOption,
		"Hidden of nothing":    limpet.Hidden("Nope"),
		"Hidden of empty":      limpet.Hidden(""),
		"Retryable(nil)":       limpet.Retryable(nil),
		"Retryable(number)":    limpet.Retryable(1),
		"Retryable(string)":    limpet.Retryable("SetQuantity"),
		"Retryable(func)":      limpet.Retryable(func() {}),
		"Retryable(nil func)":  limpet.Retryable((func(*Cart, context.Context) error)(nil)),
		"Retryable(foreign)":   limpet.Retryable((*Shapes).Right),
		"Retryable(interface)": limpet.Retryable(oddAny.Get),
		"RetryableNamed":       limpet.RetryableNamed("Nope"),
		"ClassID":              limpet.ClassID(""),
	}
	for what, option := range options {
		for kind, c := range map[string]*limpet.Class{
			"pointer":              limpet.NewClass("Cart", newCart, option),
			"number":               oddClass(oddInt(1), option),
			"interface":            oddClass[oddAny](oddInt(1), option),
			"any":                  oddClass[any](nil, option),
			"generic":              oddClass(&oddGen[int]{}, option),
			"function":             oddClass(oddFunc(nil), option),
			"pointer to pointer":   oddClass(new(*Cart), option),
			"pointer to interface": oddClass(new(oddAny), option),
			"unnamed":              oddClass(struct{ *Cart }{}, option),
			"no constructor":       limpet.NewClass[*Cart]("Cart", nil, option),
		} {
			refusedClass(t, c.Err(), limpet.CodeInvalidArgument, "class ")
			if t.Failed() {
				t.Fatalf("%s of a class of %s", what, kind)
			}
		}
	}
	c := limpet.NewClass[*Cart]("Cart", nil)
	refusedClass(t, c.Err(), limpet.CodeInvalidArgument, "class Cart", "constructor is nil")
	if object, err := c.Construct(nil); object != nil || err == nil {
		t.Errorf("a class without constructor made %v, %v", object, err)
	}
}

func TestClassTellsAllMistakes(t *testing.T) {
	c := limpet.NewClass("2 Twins", (func(*limpet.State) (*Twins, error))(nil),
		limpet.Hidden("Nope"), limpet.ClassID(""), nil, limpet.RetryableNamed("Gone"))
	errs := each(c.Err())
	if len(errs) != 7 {
		t.Errorf("got %d errors, want 7: %v", len(errs), c.Err())
	}
	for _, err := range errs {
		refusedClass(t, err, limpet.CodeInvalidArgument)
	}
	contains(t, c.Err(), "constructor", "128", "Nope", "256", "option is nil", "Gone", "both called id")
}

func TestConstructorFailures(t *testing.T) {
	oops := errors.New("oops")
	c := limpet.NewClass("Cart", func(*limpet.State) (*Cart, error) { return &Cart{}, oops })
	if object, err := c.Construct(nil); object != nil || !errors.Is(err, oops) {
		t.Errorf("got %v, %v", object, err)
	}
	for what, c := range map[string]*limpet.Class{
		"nil pointer":  oddClass[*Cart](nil),
		"nil map":      oddClass[oddMap](nil),
		"nil function": oddClass[oddFunc](nil),
	} {
		if object, err := c.Construct(nil); object != nil || err == nil || !strings.Contains(err.Error(), "constructor returned nil") {
			t.Errorf("%s: got %v, %v", what, object, err)
		}
	}
}

// Site embeds a type with methods that are none of an object.
type Site struct{ *http.ServeMux }

func TestHidden(t *testing.T) {
	newSite := func(*limpet.State) (*Site, error) { return &Site{http.NewServeMux()}, nil }
	others := []string{"Handle", "HandleFunc", "Handler"}
	c := limpet.NewClass("Site", newSite)
	refusedClass(t, c.Err(), limpet.CodeInvalidArgument, "class Site", "method Handle ", "method HandleFunc ", "method Handler ")

	c = limpet.NewClass("Site", newSite, limpet.Hidden(others...))
	if err := c.Err(); err != nil {
		t.Fatal(err)
	}
	if !c.HasHandler() || len(c.Methods()) != 0 {
		t.Errorf("got %v, %v", c.HasHandler(), c.Methods())
	}
	c = limpet.NewClass("Site", newSite, limpet.Hidden("ServeHTTP"), limpet.Hidden(others...))
	refusedClass(t, c.Err(), limpet.CodeInvalidArgument, "class Site", "no method that can be called", "Hidden")
	if c.HasHandler() {
		t.Error("a hidden handler answers")
	}
	c = limpet.NewClass("Cart", newCart, limpet.Retryable((*Cart).AddOne), limpet.Hidden("AddOne"))
	refusedClass(t, c.Err(), limpet.CodeInvalidArgument, "class Cart", "AddOne")
	if c.Method("addOne") != nil {
		t.Error("a hidden method can be called")
	}
}
