package limpet_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/limpet-dev/limpet"
)

// Counter is the smallest class: it keeps a number.
type Counter struct{ st *limpet.State }

func NewCounter(st *limpet.State) (*Counter, error) { return &Counter{st}, nil }

// Set may run twice: the second run changes nothing.
func (c *Counter) Set(_ context.Context, n int) error { return c.st.KV().Put("n", n) }

// Add must not.
func (c *Counter) Add(_ context.Context, n int) (int, error) {
	var sum int
	if _, err := c.st.KV().Get("n", &sum); err != nil {
		return 0, err
	}
	sum += n
	return sum, c.st.KV().Put("n", sum)
}

func ExampleNewClass() {
	class := limpet.NewClass("Counter", NewCounter, limpet.Retryable((*Counter).Set))
	fmt.Println(class.Err())
	for _, name := range class.Methods() {
		fmt.Println(name, class.Method(name).Marked)
	}
	// Output:
	// <nil>
	// add false
	// set true
}

// Robot's methods are wrong in several ways.
type Robot struct{}

func (*Robot) Move(x, y int) error                            { return nil }
func (*Robot) Say(ctx context.Context, words ...string) error { return nil }
func (*Robot) Connect(ctx context.Context) error              { return nil }

func ExampleClass_Err() {
	class := limpet.NewClass("Robot", func(*limpet.State) (*Robot, error) { return &Robot{}, nil },
		limpet.Hidden("Say"),
		limpet.Retryable((*Counter).Set))
	fmt.Println(class.Err())
	// Output:
	// class Robot: method Connect: the name connect is reserved (sockets)
	// class Robot: method Move does not take a context.Context first; a method takes a context.Context and up to 6 arguments and returns an error, or a value and an error (limpet.Hidden("Move") keeps it off the callable ones)
	// class Robot: Retryable: github.com/limpet-dev/limpet_test.(*Counter).Set is no method of limpet_test.Robot (pass a method expression such as (*Robot).Method; RetryableNamed marks by name)
}

// BigCounter runs Counter's Add, and its own Set.
type BigCounter struct{ *Counter }

func (b *BigCounter) Set(ctx context.Context, n int) error { return b.Counter.Set(ctx, n*1000) }

func ExampleRetryable() {
	newBig := func(st *limpet.State) (*BigCounter, error) { return &BigCounter{&Counter{st}}, nil }
	// The mark names Counter's function, which is not what a BigCounter runs.
	fmt.Println(limpet.NewClass("BigCounter", newBig, limpet.Retryable((*Counter).Set)).Err())
	class := limpet.NewClass("BigCounter", newBig, limpet.Retryable((*BigCounter).Set))
	fmt.Println(class.Err(), class.Method("set").Marked, class.Method("add").Marked)
	// Output:
	// class BigCounter: Retryable: limpet_test.BigCounter overrides Set of limpet_test.Counter: the mark does not reach it; mark (*BigCounter).Set itself
	// <nil> true false
}

func ExampleError() {
	// What a method returns…
	err := error(&limpet.Error{Code: "OutOfStock", Message: "no shoes", Fields: map[string]any{"left": 0}})
	// … and how its caller tells it from others.
	err = fmt.Errorf("buy: %w", err)
	fmt.Println(errors.Is(err, limpet.Code("OutOfStock")), errors.Is(err, limpet.CodeOverloaded))
	if e, ok := errors.AsType[*limpet.Error](err); ok {
		fmt.Println(e.Message, e.Fields["left"])
	}
	// Output:
	// true false
	// no shoes 0
}

func ExampleRetryPolicy_With() {
	p, err := limpet.DefaultRetryPolicy().With(limpet.MaxRetries(1), limpet.RetryTimeout(2*time.Second))
	fmt.Println(p.MaxRetries, p.Timeout, err)
	_, err = limpet.DefaultRetryPolicy().With(limpet.RetryTimeout(100 * time.Millisecond))
	fmt.Println(err)
	// Output:
	// 1 2s <nil>
	// RetryTimeout(100ms): must be whole milliseconds from 500ms to 60s
}
