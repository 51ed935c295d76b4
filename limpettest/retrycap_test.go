package limpettest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// A lane is an object behind a bad network.
type lane struct {
	st   *limpet.State
	runs map[string]int
}

func (l *lane) Plain(context.Context, int) (int, error) {
	l.runs["plain"]++
	return l.runs["plain"], nil
}
func (l *lane) Safe(context.Context) (int, error) { l.runs["safe"]++; return l.runs["safe"], nil }
func (l *lane) Take(_ context.Context, v any) (int, error) {
	l.runs["take"]++
	return l.runs["take"], nil
}
func (l *lane) TakeFn(_ context.Context, fn counterFunc) error    { l.runs["takeFn"]++; return nil }
func (l *lane) Level(context.Context) (int, error)                { l.runs["level"]++; return l.runs["level"], nil }
func (l *lane) Ticket(context.Context) (*limpet.Stub[any], error) { return limpet.NewTarget(&gauge{}) }
func (l *lane) ByStub(ctx context.Context, s *limpet.Stub[any]) (any, error) {
	return s.Invoke(ctx, "plain", 1)
}

// inLane runs a test on an object behind a network, in virtual time.
func inLane(t *testing.T, f func(t *testing.T, w *limpettest.Network, s *limpet.Stub[*lane], ns limpet.Namespace[any], runs map[string]int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		runs := map[string]int{}
		class := limpet.NewClass("Lane", func(st *limpet.State) (*lane, error) { return &lane{st, runs}, nil },
			limpet.Retryable((*lane).Safe), limpet.Getter((*lane).Level))
		n := limpettest.Start(t, class)
		w := n.Network(limpettest.Seed(1))
		ns, err := limpet.NamespaceOf[*lane](n, "LANE")
		if err != nil {
			t.Fatal(err)
		}
		dynamic, err := limpet.NamespaceOf[any](n, "LANE")
		if err != nil {
			t.Fatal(err)
		}
		f(t, w, ns.Named("a"), dynamic, runs)
	})
}

// TestCapabilitiesAreNotRetried loses requests of calls that hold what can't be
// sent twice, and of calls through what was received.
func TestCapabilitiesAreNotRetried(t *testing.T) {
	t.Parallel()
	fn := func(context.Context, int) (int, error) { return 0, nil }
	for what, test := range map[string]struct {
		call     func(ctx context.Context, s *limpet.Stub[*lane], ns limpet.Namespace[any]) error
		attempts int
	}{
		"data": {func(ctx context.Context, s *limpet.Stub[*lane], _ limpet.Namespace[any]) error {
			return second(limpet.Call1(ctx, s, (*lane).Take, any(map[string]any{"a": 1})))
		}, 2},
		// SPEC G11: at any depth.
		"a function": {func(ctx context.Context, s *limpet.Stub[*lane], _ limpet.Namespace[any]) error {
			return limpet.Do1(ctx, s, (*lane).TakeFn, fn)
		}, 1},
		"a function inside": {func(ctx context.Context, s *limpet.Stub[*lane], _ limpet.Namespace[any]) error {
			return second(limpet.Call1(ctx, s, (*lane).Take, any([]any{1, map[string]any{"fn": fn}})))
		}, 1},
		"by name": {func(ctx context.Context, s *limpet.Stub[*lane], _ limpet.Namespace[any]) error {
			return second(s.Invoke(ctx, "take", []counterFunc{fn}))
		}, 1},
		"a stream": {func(ctx context.Context, s *limpet.Stub[*lane], _ limpet.Namespace[any]) error {
			return second(s.Invoke(ctx, "take", strings.NewReader("x")))
		}, 1},
		"a stub": {func(ctx context.Context, s *limpet.Stub[*lane], ns limpet.Namespace[any]) error {
			return second(s.Invoke(ctx, "take", map[string]any{"s": ns.Named("b")}))
		}, 1},
		"a target": {func(ctx context.Context, s *limpet.Stub[*lane], _ limpet.Namespace[any]) error {
			target, err := limpet.NewTarget(&gauge{})
			if err != nil {
				return err
			}
			defer target.Close()
			return second(s.Invoke(ctx, "take", target))
		}, 1},
		"no function": {func(ctx context.Context, s *limpet.Stub[*lane], _ limpet.Namespace[any]) error {
			return limpet.Do1(ctx, s, (*lane).TakeFn, nil)
		}, 2},
		// SPEC E57: property reads are retried.
		"a property": {func(ctx context.Context, s *limpet.Stub[*lane], _ limpet.Namespace[any]) error {
			return second(s.Get(ctx, "level"))
		}, 2},
	} {
		inLane(t, func(t *testing.T, w *limpettest.Network, s *limpet.Stub[*lane], ns limpet.Namespace[any], _ map[string]int) {
			w.Inject(limpettest.DropRequest(limpettest.Times(1)))
			err := test.call(t.Context(), s, ns)
			if w.Attempts() != test.attempts || (err == nil) != (test.attempts == 2) {
				t.Errorf("%s: %d attempts, %v", what, w.Attempts(), err)
			}
			if test.attempts == 1 {
				if e := asError(t, err); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryUncertain || !strings.HasPrefix(e.NoRetry, "its arguments hold a") {
					t.Errorf("%s: got %#v", what, *e)
				}
			}
		})
	}
}

// TestReceivedStubsAreNotRetried loses requests of calls through them.
func TestReceivedStubsAreNotRetried(t *testing.T) {
	t.Parallel()
	inLane(t, func(t *testing.T, w *limpettest.Network, s *limpet.Stub[*lane], ns limpet.Namespace[any], runs map[string]int) {
		ctx := t.Context()
		// SPEC D11, E58: the stub that was sent had a policy; the one that came has none.
		w.Inject(limpettest.DropRequest(limpettest.Method("plain")))
		_, err := limpet.Call1(ctx, s, (*lane).ByStub, ns.Named("b"))
		if e := asError(t, err); e.Code != limpet.CodeDisconnected || runs["plain"] != 0 || w.Attempts() != 2 {
			t.Errorf("%d runs, %d attempts, %+v", runs["plain"], w.Attempts(), e)
		}
		// Through the namespace's own stub it is.
		w.Heal()
		w.Inject(limpettest.DropRequest(limpettest.Method("plain"), limpettest.Times(1)))
		if _, err := ns.Named("b").Invoke(ctx, "plain", 1); err != nil || runs["plain"] != 1 {
			t.Errorf("%d runs, %v", runs["plain"], err)
		}
	})
}

// TestPropertiesAndClaims reads a getter whose answer is lost: it has run, and does
// not run again unless it is marked. A method that is read runs nothing.
func TestPropertiesAndClaims(t *testing.T) {
	t.Parallel()
	inLane(t, func(t *testing.T, w *limpettest.Network, s *limpet.Stub[*lane], _ limpet.Namespace[any], runs map[string]int) {
		ctx := t.Context()
		w.Inject(limpettest.DropReply(limpettest.Method("level"), limpettest.Times(1)))
		if _, err := s.Get(ctx, "level"); limpet.CodeOf(err) != limpet.CodeDisconnected || runs["level"] != 1 {
			t.Errorf("%d runs, %v", runs["level"], err)
		}
		w.Inject(limpettest.DropReply(limpettest.Method("plain"), limpettest.Times(1)))
		v, err := s.Get(ctx, "plain")
		if err != nil {
			t.Fatal(err)
		}
		plain := v.(*limpet.Stub[any])
		defer plain.Close()
		if v, err := plain.Apply(ctx, 1); err != nil || v != int64(1) {
			t.Errorf("got %v, %v", v, err)
		}
		// SPEC F40, C44: here every call has a claim of its own, so that an unmarked
		// call after a marked one is no matter.
		if _, err := limpet.Call(ctx, s, (*lane).Safe); err != nil {
			t.Error(err)
		}
		if _, err := limpet.Call1(ctx, s, (*lane).Plain, 1); err != nil {
			t.Error(err)
		}
	})
}

// TestResultHandles disposes of what results hold.
func TestResultHandles(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, deskClass)
	a := desks(t, n).Named("a")
	// SPEC B38: each target has a life of its own, also of one value; sending one
	// stub twice is sending two handles to it.
	g := &gauge{}
	one, err := limpet.NewTarget(g)
	if err != nil {
		t.Fatal(err)
	}
	two, err := limpet.NewTarget(g)
	if err != nil {
		t.Fatal(err)
	}
	v := must[any](t)(limpet.Call1(ctx, a, (*desk).Echo, any([]any{one, two, one}))).([]any)
	one.Close()
	two.Close()
	if g.disposed.Load() != 0 {
		t.Fatal("disposed under the result")
	}
	// SPEC B36: what a result holds is given back by closing it, twice is harmless.
	first := v[0].(*limpet.Stub[any])
	for range 2 {
		first.Close()
	}
	if _, err := first.Invoke(ctx, "add", 1); !errors.Is(err, limpet.CodeDisposed) || err.Error() != "RPC stub used after being disposed." {
		t.Fatalf("got %v", err)
	}
	eventually(t, "Dispose", func() bool { return g.disposed.Load() == 1 })
	if got := must[any](t)(v[1].(*limpet.Stub[any]).Invoke(ctx, "add", 1)); got != int64(1) {
		t.Fatalf("got %v", got)
	}
	// A disposer that panics is nobody's error (SPEC B39).
	g.panics.Store(true)
	v[1].(*limpet.Stub[any]).Close()
	eventually(t, "Dispose", func() bool { return g.disposed.Load() == 2 })
}
