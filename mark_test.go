package limpet_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
)

// The types below have tiny methods on purpose: the compiler puts their code
// into the wrappers of promoted methods, where it could be taken for the
// wrapper's own. The table must also pass with
//
//	go test -gcflags=-l -run Mark .
//	go test -race -run Mark .
//	go test -trimpath -ldflags=-s -run Mark .
//
// which .ci/run marks does.

type markBase struct{ n int }

func (b *markBase) Set(_ context.Context, v int) error               { b.n = v; return nil }
func (b *markBase) Other(_ context.Context, v int) error             { b.n = v; return nil } // the code of Set
func (b markBase) Val(context.Context) (int, error)                  { return b.n, nil }
func (b *markBase) ServeHTTP(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(b.n) }

// Promoted.
type (
	markPromValue   struct{ markBase }
	markPromPointer struct{ *markBase }
	markPromBehind  struct {
		_ [3]int
		markBase
	}
	markDeep   struct{ markPromPointer }
	markDeeper struct {
		_ string
		*markDeep
	}
)

// Overridden.
type (
	markOver        struct{ markBase }
	markOverValue   struct{ markBase }
	markOverDeep    struct{ *markOver }
	markOverPointer struct{ *markBase }
	markOverShape   struct{ markBase }
	markOverHandler struct{ markBase }
	markHidesField  struct {
		markBase
		Set func() // a field of this name takes the method away
	}
)

func (o *markOver) Set(ctx context.Context, v int) error     { return o.markBase.Set(ctx, v) }
func (o markOverValue) Set(ctx context.Context, v int) error { return o.markBase.Set(ctx, v) }
func (o *markOverPointer) Set(ctx context.Context, v int) error {
	return (*markPromPointer).Set(&markPromPointer{o.markBase}, ctx, v)
}
func (o *markOverShape) Set(context.Context, string) error              { return nil }
func (o *markOverHandler) ServeHTTP(http.ResponseWriter, *http.Request) {}

// Others.
//
//lint:file-ignore U1000 embedded fields are there for what they promote
type (
	markTwin      struct{ n int } // methods with the code of markBase's
	markAmbiguous struct {
		markBase
		*markTwin
	}
	markDiamond struct {
		markPromValue
		markPromPointer
	}
	markInterface interface {
		Set(context.Context, int) error
	}
	markHoldsInterface struct{ markInterface }
	markGen[T any]     struct{ markBase }
	markGenSet[T any]  struct{ v T }
	markUsesGen        struct{ markGenSet[int] }
	markUsesGenBase    struct{ markGen[int] }
	MarkExported       struct{ markUnexported }
	markUnexported     struct{ n int }
	markNumber         int
	markHoldsNumber    struct{ markNumber }
	markAlias          = markBase
	markFunc           func(*markBase, context.Context, int) error
)

func (b *markTwin) Set(_ context.Context, v int) error       { b.n = v; return nil }
func (g *markGenSet[T]) Put(_ context.Context, v T) error    { g.v = v; return nil }
func (g *markGen[T]) Put(_ context.Context, _ T) error       { return nil }
func (u *markUnexported) Set(_ context.Context, v int) error { u.n = v; return nil }
func (n *markNumber) Set(_ context.Context, v int) error     { *n = markNumber(v); return nil }

func markPlain(b *markBase, _ context.Context, v int) error { b.n = v; return nil }
func markInlined(b *markBase, ctx context.Context, v int) error {
	return b.Set(ctx, v)
}

// Set has the name of a method and its receiver first.
func Set(b *markBase, ctx context.Context, v int) error { return b.Set(ctx, v) }

// markOf is a method expression of a type parameter.
func markOf[T markInterface]() any { return T.Set }

// newMarked makes a class of T with options.
func newMarked[T any](opts ...limpet.ClassOption) *limpet.Class {
	return limpet.NewClass("M", func(*limpet.State) (*T, error) { return new(T), nil }, opts...)
}

func TestMarks(t *testing.T) {
	bound := &markBase{}
	type class = func(...limpet.ClassOption) *limpet.Class
	base, promValue, promPointer, promBehind := newMarked[markBase], newMarked[markPromValue], newMarked[markPromPointer], newMarked[markPromBehind]
	deep, deeper := newMarked[markDeep], newMarked[markDeeper]
	over, overValue, overDeep, overPointer := newMarked[markOver], newMarked[markOverValue], newMarked[markOverDeep], newMarked[markOverPointer]
	for _, c := range []struct {
		what  string
		class class
		mark  any
		holds string // the method that is marked; empty: refused
		words []string
	}{
		// SPEC F30, F41: the function of the class, and only what is named.
		{"own", base, (*markBase).Set, "set", nil},
		{"own, another one with the same code", base, (*markBase).Other, "other", nil},
		{"value receiver, by pointer", base, (*markBase).Val, "val", nil},
		{"value receiver", base, markBase.Val, "val", nil},
		{"by an alias", base, (*markAlias).Set, "set", nil},

		// SPEC F34: a promoted method keeps the mark.
		{"promoted by value", promValue, (*markBase).Set, "set", nil},
		{"promoted by value, named so", promValue, (*markPromValue).Set, "set", nil},
		{"promoted by value, value receiver", promValue, markBase.Val, "val", nil},
		{"promoted by value, value receiver, named so", promValue, markPromValue.Val, "val", nil},
		{"promoted by pointer", promPointer, (*markBase).Set, "set", nil},
		{"promoted by pointer, named so", promPointer, markPromPointer.Set, "set", nil},
		{"promoted by pointer, by pointer", promPointer, (*markPromPointer).Set, "set", nil},
		{"promoted from behind", promBehind, (*markBase).Set, "set", nil},
		{"promoted from behind, named so", promBehind, (*markPromBehind).Set, "set", nil},
		{"promoted twice", deep, (*markBase).Set, "set", nil},
		{"promoted twice, named half way", deep, (*markPromPointer).Set, "set", nil},
		{"promoted twice, named at the end", deep, (*markDeep).Val, "val", nil},
		{"promoted three times", deeper, (*markBase).Other, "other", nil},
		{"promoted three times, named half way", deeper, markDeep.Set, "set", nil},
		{"promoted three times, named at the end", deeper, markDeeper.Set, "set", nil},
		{"of an unexported type", newMarked[MarkExported], (*MarkExported).Set, "set", nil},
		{"of an unexported type, named there", newMarked[MarkExported], (*markUnexported).Set, "set", nil},
		{"of a type that is no struct", newMarked[markHoldsNumber], (*markNumber).Set, "set", nil},
		{"out of a generic type's embedded one", newMarked[markUsesGenBase], (*markBase).Other, "", []string{"generic", `RetryableNamed("Other")`}},

		// SPEC F34: an override does not.
		{"overridden", over, (*markBase).Set, "", []string{"markOver overrides Set of limpet_test.markBase", "(*markOver).Set"}},
		{"the override", over, (*markOver).Set, "set", nil},
		{"beside the override", over, (*markBase).Val, "val", nil},
		{"overridden by a value receiver", overValue, (*markBase).Set, "", []string{"markOverValue overrides Set"}},
		{"the value override", overValue, markOverValue.Set, "set", nil},
		{"the value override, by pointer", overValue, (*markOverValue).Set, "set", nil},
		{"overridden half way", overDeep, (*markBase).Set, "", []string{"markOver overrides Set"}},
		{"the override half way", overDeep, (*markOver).Set, "set", nil},
		{"the override half way, named at the end", overDeep, (*markOverDeep).Set, "set", nil},
		{"an override that runs a wrapper", overPointer, (*markBase).Set, "", []string{"markOverPointer overrides Set"}},
		{"the override that runs a wrapper", overPointer, (*markOverPointer).Set, "set", nil},
		{"an override of another shape", newMarked[markOverShape], (*markBase).Set, "", []string{"markOverShape overrides Set"}},
		{"hidden by a field", newMarked[markHidesField], (*markBase).Set, "", []string{"no callable method Set"}},

		// SPEC F33, F34: a bound copy or a wrapper is another function.
		{"bound method", base, bound.Set, "", []string{"no method of"}},
		{"function literal", base, func(b *markBase, ctx context.Context, v int) error { return b.Set(ctx, v) }, "", []string{"no method of"}},
		{"function with the receiver first", base, markPlain, "", []string{"markPlain", "no method of"}},
		{"function that is the method, inlined", base, markInlined, "", []string{"markInlined"}},
		{"function of the method's name", base, Set, "", []string{"no method of"}},
		{"another function type", base, markFunc((*markBase).Set), "", []string{"no method of"}},

		// SPEC F32
		{"nil", base, nil, "", []string{"only functions"}},
		{"nil function", base, (func(*markBase, context.Context, int) error)(nil), "", []string{"only functions"}},
		{"number", base, 3, "", []string{"only functions", "int"}},
		{"string", base, "Set", "", []string{"only functions", "string"}},
		{"slice", base, []any{(*markBase).Set}, "", []string{"only functions"}},
		{"object", base, bound, "", []string{"only functions", "*limpet_test.markBase"}},

		{"another type's, with the same code", base, (*markTwin).Set, "", []string{"markTwin", "no method of"}},
		{"one that embeds the class", base, (*markPromValue).Set, "", []string{"markPromValue"}},
		{"an interface's", base, markInterface.Set, "", []string{"markInterface"}},
		{"of a type parameter", base, markOf[*markBase](), "set", nil},
		{"of a type parameter, an interface", base, markOf[markInterface](), "", []string{"markInterface"}},
		{"of a type parameter, promoted", promValue, markOf[*markPromValue](), "set", nil},

		// SPEC F35: what counts is the function that runs; where that can't be
		// told, nothing is marked.
		{"embedded interface", newMarked[markHoldsInterface], (*markBase).Set, "", []string{"no method of"}},
		{"embedded interface, named so", newMarked[markHoldsInterface], markHoldsInterface.Set, "", []string{"embedded interface", `RetryableNamed("Set")`}},
		{"embedded interface, by pointer", newMarked[markHoldsInterface], (*markHoldsInterface).Set, "", []string{"embedded interface", `RetryableNamed("Set")`}},
		{"generic", newMarked[markGenSet[int]], (*markGenSet[int]).Put, "", []string{"generic", `RetryableNamed("Put")`}},
		{"generic, another one", newMarked[markGenSet[int]], (*markGenSet[string]).Put, "", []string{"no method of"}},
		{"generic, embedded", newMarked[markUsesGen], (*markUsesGen).Put, "", []string{"generic", `RetryableNamed("Put")`}},
		{"generic, embedded, named there", newMarked[markUsesGen], (*markGenSet[int]).Put, "", []string{"generic"}},
		{"embedded in a generic type", newMarked[markGen[int]], (*markBase).Set, "", []string{"generic", `RetryableNamed("Set")`}},
		{"ambiguous", newMarked[markAmbiguous], (*markBase).Set, "", []string{"ambiguous"}},
		{"ambiguous, the other", newMarked[markAmbiguous], (*markTwin).Set, "", []string{"ambiguous"}},
		{"beside the ambiguous", newMarked[markAmbiguous], (*markBase).Val, "val", nil},
		{"embedded twice", newMarked[markDiamond], (*markBase).Set, "", []string{"no callable method Set"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			cl := c.class(limpet.Retryable(c.mark))
			marked := markedMethods(cl)
			if c.holds == "" {
				refusedClass(t, cl.Err(), limpet.CodeInvalidArgument, append(c.words, "class M", "Retryable")...)
				if len(marked) != 0 {
					t.Errorf("%v is marked by doubt", marked)
				}
				return
			}
			if err := cl.Err(); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(marked, []string{c.holds}) {
				t.Errorf("marked %v, want %s: %v", marked, c.holds, cl.Err())
			}
		})
	}
}

func markedMethods(c *limpet.Class) (names []string) {
	for _, n := range c.Methods() {
		if c.Method(n).Marked {
			names = append(names, n)
		}
	}
	if c.HandlerMarked() {
		names = append(names, "fetch")
	}
	return names
}

func TestMarkHandler(t *testing.T) {
	for what, c := range map[string]struct {
		class *limpet.Class
		ok    bool
	}{
		// SPEC F36
		"own":            {newMarked[markBase](limpet.Retryable((*markBase).ServeHTTP)), true},
		"promoted":       {newMarked[markDeeper](limpet.Retryable((*markBase).ServeHTTP)), true},
		"overridden":     {newMarked[markOverHandler](limpet.Retryable((*markBase).ServeHTTP)), false},
		"the override":   {newMarked[markOverHandler](limpet.Retryable((*markOverHandler).ServeHTTP)), true},
		"by name":        {newMarked[markOverHandler](limpet.RetryableNamed("ServeHTTP")), true},
		"without one":    {newMarked[markTwin](limpet.RetryableNamed("ServeHTTP")), false},
		"hidden":         {newMarked[markBase](limpet.Hidden("ServeHTTP"), limpet.RetryableNamed("ServeHTTP")), false},
		"of the library": {limpet.NewClass("Site", func(*limpet.State) (*Site, error) { return nil, nil }, limpet.Hidden("Handle", "HandleFunc", "Handler"), limpet.Retryable((*http.ServeMux).ServeHTTP)), true},
	} {
		if c.ok != (c.class.Err() == nil) || c.class.HandlerMarked() != c.ok {
			t.Errorf("%s: marked %v, %v", what, c.class.HandlerMarked(), c.class.Err())
		}
	}
}

func TestMarksAllOrNothing(t *testing.T) {
	for _, wrong := range []any{nil, 3, "Set", []int{}, markPlain, (*markTwin).Set} {
		for _, marks := range [][]any{
			{(*markBase).Set, wrong}, {wrong, (*markBase).Set}, {(*markBase).Set, wrong, (*markBase).Other}, {(*markBase).ServeHTTP, wrong},
		} {
			// SPEC F32: all are checked first; one that is wrong marks none.
			c := newMarked[markBase](limpet.Retryable(marks...))
			refusedClass(t, c.Err(), limpet.CodeInvalidArgument, "class M", "Retryable")
			if m := markedMethods(c); len(m) != 0 {
				t.Errorf("%v: %v is marked", marks, m)
			}
			// Another call's marks hold.
			c = newMarked[markBase](limpet.Retryable((*markBase).Val), limpet.Retryable(marks...))
			if m := markedMethods(c); !slices.Equal(m, []string{"val"}) {
				t.Errorf("%v: %v is marked, want val", marks, m)
			}
		}
	}
	c := newMarked[markBase](limpet.RetryableNamed("Set", "Nope"))
	refusedClass(t, c.Err(), limpet.CodeInvalidArgument, "class M", "RetryableNamed", "Nope")
	if m := markedMethods(c); len(m) != 0 {
		t.Errorf("%v is marked", m)
	}
}

func TestMarksHarmless(t *testing.T) {
	// SPEC F31: none and the same twice are harmless.
	c := newMarked[markBase](limpet.Retryable(), limpet.RetryableNamed(),
		limpet.Retryable((*markBase).Set, (*markBase).Set), limpet.Retryable((*markBase).Set), limpet.RetryableNamed("Set", "Set"))
	if err := c.Err(); err != nil {
		t.Fatal(err)
	}
	if m := markedMethods(c); !slices.Equal(m, []string{"set"}) {
		t.Errorf("%v is marked, want set", m)
	}
}

func TestMarksByName(t *testing.T) {
	for what, c := range map[string]struct {
		class *limpet.Class
		want  string
	}{
		"own":                {newMarked[markBase](limpet.RetryableNamed("Set")), "set"},
		"promoted":           {newMarked[markDeeper](limpet.RetryableNamed("Val")), "val"},
		"overridden":         {newMarked[markOver](limpet.RetryableNamed("Set")), "set"},
		"generic":            {newMarked[markGenSet[int]](limpet.RetryableNamed("Put")), "put"},
		"embedded interface": {newMarked[markHoldsInterface](limpet.RetryableNamed("Set")), "set"},
		"JavaScript name":    {newMarked[markBase](limpet.RetryableNamed("set")), ""},
		"ambiguous":          {newMarked[markAmbiguous](limpet.RetryableNamed("Set")), ""},
	} {
		got := strings.Join(markedMethods(c.class), ",")
		if got != c.want || (c.want != "") != (c.class.Err() == nil) {
			t.Errorf("%s: got %q, %v", what, got, c.class.Err())
		}
	}
	for name, want := range map[string]string{"set": ` no callable method set. Did you mean "Set"?`, "SET": `Did you mean "Set"?`} {
		refusedClass(t, newMarked[markBase](limpet.RetryableNamed(name)).Err(), limpet.CodeInvalidArgument, want)
	}
	if err := newMarked[markBase](limpet.RetryableNamed("Nope")).Err(); strings.Contains(err.Error(), "mean") {
		t.Errorf("a guess from nothing: %v", err)
	}
}

// A class that is a value and no pointer has only the methods of values.
func TestMarksOfValueClass(t *testing.T) {
	value := func(opts ...limpet.ClassOption) *limpet.Class {
		return limpet.NewClass("M", func(*limpet.State) (markOverValue, error) { return markOverValue{}, nil }, opts...)
	}
	for what, c := range map[string]struct {
		mark any
		want string
	}{
		"own":             {markOverValue.Set, "set"},
		"own, by pointer": {(*markOverValue).Set, "set"},
		"promoted":        {markBase.Val, "val"},
		"overridden":      {(*markBase).Set, ""},
		"not in the set":  {(*markBase).Other, ""},
	} {
		cl := value(limpet.Retryable(c.mark))
		if got := strings.Join(markedMethods(cl), ","); got != c.want || (c.want != "") != (cl.Err() == nil) {
			t.Errorf("%s: got %q, %v", what, got, cl.Err())
		}
	}
}
