package limpettest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

type counterFunc = func(context.Context, int) (int, error)

// A caller is an object whose callbacks meet its gates.
type caller struct {
	st    *limpet.State
	n     int
	open  chan struct{} // lets Slow go on
	inFn  chan struct{} // gets one when Slow waits
	stubs []*limpet.Stub[any]
}

func callerClass(open, inFn chan struct{}) *limpet.Class {
	return limpet.NewClass("Caller", func(st *limpet.State) (*caller, error) { return &caller{st: st, open: open, inFn: inFn}, nil })
}

func (c *caller) other(name string) *limpet.Stub[*caller] {
	ns, err := limpet.NamespaceOf[*caller](c.st, "CALLER")
	if err != nil {
		panic(err)
	}
	return ns.Named(name)
}

func (c *caller) add(_ context.Context, n int) (int, error) {
	c.n += n
	return c.n, c.st.KV().Put("n", c.n)
}

// Apply calls fn.
func (c *caller) Apply(ctx context.Context, fn counterFunc) (int, error) { return fn(ctx, 1) }

// Through has another object call back.
func (c *caller) Through(ctx context.Context, name string) (int, error) {
	return limpet.Call1(ctx, c.other(name), (*caller).Apply, c.add)
}

// Blocked does so while it blocks concurrency.
func (c *caller) Blocked(ctx context.Context, name string) (n int, err error) {
	berr := c.st.BlockConcurrencyWhile(ctx, func(ctx context.Context) error {
		n, err = limpet.Call1(ctx, c.other(name), (*caller).Apply, c.add)
		return nil
	})
	return n, errors.Join(err, berr)
}

// Lend gives a function away.
func (c *caller) Lend(context.Context) (counterFunc, error) { return c.add, nil }

// LendStub gives one away as a stub.
func (c *caller) LendStub(context.Context) (any, error) { return c.add, nil }

// Hold keeps a stub and Use calls it.
func (c *caller) Hold(_ context.Context, s *limpet.Stub[any]) error {
	c.stubs = append(c.stubs, s.Dup())
	return nil
}

func (c *caller) Use(ctx context.Context) (any, error) {
	return c.stubs[0].Apply(context.Background(), 1) // not the handler's context: the gates hold all the same
}

// Slow waits, away, and calls back then.
func (c *caller) Slow(ctx context.Context, fn counterFunc) (int, error) {
	c.inFn <- struct{}{}
	if err := c.st.Await(ctx, func(ctx context.Context) error {
		select {
		case <-c.open:
		case <-ctx.Done():
		}
		return nil
	}); err != nil {
		return 0, err
	}
	return fn(ctx, 1)
}

// ThroughSlow has another object call back late.
func (c *caller) ThroughSlow(ctx context.Context, name string) (int, error) {
	return limpet.Call1(ctx, c.other(name), (*caller).Slow, c.add)
}

func (c *caller) Abort(context.Context) error {
	c.st.Abort(errors.New("enough"))
	return nil
}

func (c *caller) InTransaction(_ context.Context, fn counterFunc) error {
	return c.st.Transaction(func() error {
		_, err := fn(context.Background(), 1)
		return err
	})
}

func callers(t *testing.T, n limpet.Resolver) limpet.Namespace[*caller] {
	t.Helper()
	ns, err := limpet.NamespaceOf[*caller](n, "CALLER")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// TestCallbackChain goes around in circles.
func TestCallbackChain(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ns := callers(t, limpettest.Start(t, callerClass(nil, nil)))
	a := ns.Named("a")
	// SPEC H6: a → b → a is no deadlock while a is away; nor is a → a → a.
	for _, other := range []string{"b", "a"} {
		if _, err := limpet.Call1(ctx, a, (*caller).Through, other); err != nil {
			t.Fatal(err)
		}
	}
	// While a blocks concurrency it can never end, and that is told at once.
	_, err := limpet.Call1(ctx, a, (*caller).Blocked, "b")
	if e := asError(t, err); e.Code != limpet.CodeCallCycle || !strings.Contains(e.Message, "Caller/a.blocked → Caller/b.apply → Caller/a.callback") {
		t.Fatalf("got %v", err)
	}
	// The object goes on.
	if n, err := limpet.Call1(ctx, a, (*caller).Through, "b"); err != nil || n != 3 {
		t.Fatalf("got %d, %v", n, err)
	}
	// A transaction can't be left for a callback.
	err = limpet.Do1(ctx, a, (*caller).InTransaction, func(context.Context, int) (int, error) { return 0, nil })
	if limpet.CodeOf(err) != limpet.CodeInvalidArgument || !strings.Contains(err.Error(), "inside State.Transaction") {
		t.Fatalf("got %v", err)
	}
	// The program's own function calls the object that calls it.
	n, err := limpet.Call1(ctx, a, (*caller).Apply, func(ctx context.Context, n int) (int, error) {
		return limpet.Call1(ctx, ns.Named("a"), (*caller).Through, "b")
	})
	if err != nil || n != 4 {
		t.Fatalf("got %d, %v", n, err)
	}
}

// TestCallbackGate lets nothing of a callback out before it is durable.
func TestCallbackGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		n := limpettest.Start(t, callerClass(nil, nil))
		ns := callers(t, n)
		fn, err := limpet.Call(ctx, ns.Named("a"), (*caller).Lend)
		if err != nil {
			t.Fatal(err)
		}
		v, err := limpet.Call(ctx, ns.Named("a"), (*caller).LendStub)
		if err != nil {
			t.Fatal(err)
		}
		s := v.(*limpet.Stub[any])
		defer s.Close()
		if err := limpet.Do1(ctx, ns.Named("b"), (*caller).Hold, s); err != nil {
			t.Fatal(err)
		}
		release := n.HoldSyncs()
		var came atomic.Bool
		done := make(chan error, 1)
		go func() {
			_, err := fn(ctx, 1)
			came.Store(true)
			done <- err
		}()
		synctest.Wait()
		if came.Load() {
			t.Fatal("SPEC H2: the result left before the write was durable") // SPEC H2
		}
		release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		// A call through a kept stub, with any context, leaves and returns.
		if v, err := limpet.Call(ctx, ns.Named("b"), (*caller).Use); err != nil || v != int64(2) {
			t.Fatalf("got %v, %v", v, err)
		}
		// A reset ends what is lent; the writes that were answered stay.
		if err := limpet.Do(ctx, ns.Named("a"), (*caller).Abort); limpet.CodeOf(err) != limpet.CodeReset {
			t.Fatal(err)
		}
		_, err = fn(ctx, 1)
		if e := asError(t, err); e.Code != limpet.CodeReset || e.Delivery != limpet.DeliveryNone || !strings.Contains(e.Message, "enough") {
			t.Fatalf("got %+v", e)
		}
		if _, err := limpet.Call(ctx, ns.Named("b"), (*caller).Use); limpet.CodeOf(err) != limpet.CodeReset {
			t.Fatalf("got %v", err)
		}
	})
}

// TestCallbackWhileDraining lets calls that run end, with what they lent.
func TestCallbackWhileDraining(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	open, inFn := make(chan struct{}), make(chan struct{})
	n := limpettest.Start(t, callerClass(open, inFn))
	ns := callers(t, n)
	fn, err := limpet.Call(ctx, ns.Named("a"), (*caller).Lend)
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		n   int
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		n, err := limpet.Call1(ctx, ns.Named("a"), (*caller).ThroughSlow, "b")
		answers <- answer{n, err}
	}()
	<-inFn
	drained := make(chan error, 1)
	go func() { drained <- n.Drain(ctx) }()
	// SPEC F22: from outside it is refused, not delivered.
	for {
		_, err := fn(ctx, 1)
		if err == nil {
			continue // not yet draining
		}
		if e := asError(t, err); e.Code != limpet.CodeDraining || e.Delivery != limpet.DeliveryNone {
			t.Fatalf("got %+v", e)
		}
		break
	}
	close(open)
	if a := <-answers; a.err != nil || a.n < 1 {
		t.Fatalf("got %+v", a)
	}
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
}

// TestIdleUnderHandle keeps an object as long as somebody holds what it lent.
func TestIdleUnderHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		n := limpettest.StartConfig(t, node.Config{Classes: []*limpet.Class{callerClass(nil, nil)}, IdleTimeout: time.Second})
		a := callers(t, n).Named("a")
		v, err := limpet.Call(ctx, a, (*caller).LendStub)
		if err != nil {
			t.Fatal(err)
		}
		s := v.(*limpet.Stub[any])
		time.Sleep(time.Minute)
		// SPEC B40: its memory is still there.
		for want := int64(1); want < 3; want++ {
			if v, err := s.Apply(ctx, 1); err != nil || v != want {
				t.Fatalf("got %v, %v", v, err)
			}
			time.Sleep(time.Minute)
		}
		s.Close()
		time.Sleep(time.Minute)
		if n.Evict(a.ID()) {
			t.Fatal("it was in memory still")
		}
	})
}
