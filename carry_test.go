package limpet_test

import (
	"context"
	"math/big"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
)

// An oddTree leads to itself, and to a channel that is not carried.
type oddTree struct {
	Left, Right *oddTree
	Kids        map[string][]oddTree
	hidden      chan int
	Skipped     chan int `json:"-"`
	Empty       func()   `limpet:",omitempty"`
	oddLeaf
}

type oddLeaf struct{ When time.Time }

// An oddFailure is carried as an error.
type oddFailure struct{ Done chan int }

func (oddFailure) Error() string { return "odd" }

// carried has methods whose types can all be carried.
type carried struct{}

func (carried) Tree(_ context.Context, t *oddTree) (map[string]any, error) {
	_ = t.hidden
	return nil, nil
}
func (carried) Addr(context.Context, *big.Int, netip.Addr) ([]error, error) { return nil, nil }
func (carried) Fail(context.Context, oddFailure) (struct{}, error)          { return struct{}{}, nil }

// takes has one method, whose argument and result are a T.
type takes[T any] struct{}

func (takes[T]) Take(context.Context, int, T) error { return nil }

type gives[T any] struct{}

func (gives[T]) Give(context.Context) (v T, err error) { return v, nil }

func TestUncarriableTypes(t *testing.T) {
	if err := oddClass(carried{}).Err(); err != nil {
		t.Errorf("refused: %v", err)
	}
	type deep struct {
		Tree  *oddTree
		Items []struct{ C chan<- int }
	}
	type recursive struct {
		Next *recursive
		F    map[string]func()
	}
	for _, c := range []struct {
		class *limpet.Class
		code  limpet.Code
		words []string
	}{
		{oddClass(takes[chan int]{}), limpet.CodeInvalidArgument, []string{"class Odd: method Take: its argument 2 is a chan int, which limpet does not carry"}},
		{oddClass(gives[*http.Response]{}), limpet.CodeInvalidArgument, []string{"its result is a *http.Response with the http.Response in it, which limpet does not carry as a value"}},
		{oddClass(takes[*http.Request]{}), limpet.CodeInvalidArgument, []string{"*http.Request", "Stub.Fetch"}},
		{oddClass(gives[http.Header]{}), "", nil},
		{oddClass(gives[complex128]{}), limpet.CodeInvalidArgument, []string{"method Give: its result is a complex128"}},
		{oddClass(gives[uintptr]{}), limpet.CodeInvalidArgument, []string{"uintptr"}},
		{oddClass(takes[func()]{}), limpet.CodeInvalidArgument, []string{"method Take: its argument 2 is a func(); a func() does not take a context.Context first; a function that is carried takes a context.Context and up to 6 arguments"}},
		{oddClass(gives[[]func() error]{}), limpet.CodeInvalidArgument, []string{"its result is a []func() error with the func() error in it; a func() error does not take a context.Context first"}},
		{oddClass(takes[func(context.Context, ...int) error]{}), limpet.CodeInvalidArgument, []string{"is variadic"}},
		{oddClass(takes[func(context.Context)]{}), limpet.CodeInvalidArgument, []string{"does not return an error last"}},
		{oddClass(takes[func(context.Context) (int, int, error)]{}), limpet.CodeInvalidArgument, []string{"returns 2 values beside the error"}},
		{oddClass(takes[func(context.Context) (error, error)]{}), limpet.CodeInvalidArgument, []string{"returns two errors"}},
		{oddClass(takes[func(a context.Context, b, c, d, e, f, g, h int) error]{}), limpet.CodeInvalidArgument, []string{"takes 7 arguments"}},
		{oddClass(takes[func(context.Context, chan int) error]{}), limpet.CodeInvalidArgument, []string{"with the chan int in it, which limpet does not carry"}},
		{oddClass(gives[func(context.Context) (func(), error)]{}), limpet.CodeInvalidArgument, []string{"with the func() in it; a func() does not"}},
		{oddClass(takes[struct{ S limpet.Stub[any] }]{}), limpet.CodeInvalidArgument, []string{"limpet.Stub[interface {}] (field S of", "a stub is carried as a *limpet.Stub"}},
		{oddClass(takes[struct {
			F func(context.Context, *limpet.Stub[any]) (func(context.Context) error, error)
		}]{}), "", nil},
		{oddClass(takes[*[2]map[chan int]string]{}), limpet.CodeInvalidArgument, []string{"*[2]map[chan int]string with the chan int in it"}},
		{oddClass(takes[deep]{}), limpet.CodeInvalidArgument, []string{"limpet_test.deep with the chan<- int (field C of struct { C chan<- int }) in it"}},
		{oddClass(gives[*recursive]{}), limpet.CodeInvalidArgument, []string{"func()", "(field F of limpet_test.recursive)"}},
		{oddClass(takes[any]{}, limpet.RetryableNamed("Take")), "", nil},
		{oddClass(gives[chan int]{}, limpet.Hidden("Give")), limpet.CodeInvalidArgument, []string{"no method that can be called"}},
	} {
		if c.code != "" {
			refusedClass(t, c.class.Err(), c.code, c.words...)
		} else if err := c.class.Err(); err != nil {
			t.Errorf("refused: %v", err)
		}
	}
}

func TestCodeText(t *testing.T) {
	for code, want := range map[limpet.Code]string{
		limpet.CodeOverloaded: "limpet: Overloaded", limpet.CodeInternal: "limpet: Internal", "OutOfStock": "OutOfStock", "": "",
	} {
		if got := code.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	e := limpet.Error{Message: "Network connection lost.", Cause: limpet.Code("why")}
	if got := e.Error(); got != "Network connection lost: why" {
		t.Errorf("got %q", got)
	}
}
