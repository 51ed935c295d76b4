package endtoend

import (
	"testing"

	"github.com/limpet-dev/limpet"
)

func (w *deskWorld) any(t *testing.T, name string, opts ...limpet.StubOption) *limpet.Stub[any] {
	t.Helper()
	ns, err := limpet.NamespaceOf[any](w.c, "DESK")
	if err != nil {
		t.Fatal(err)
	}
	return ns.Named(name, opts...)
}

type outcome struct {
	v   any
	err error
}

func child(t *testing.T, p *limpet.Promise, method string, args ...any) chan outcome {
	t.Helper()
	done := make(chan outcome, 1)
	go func() {
		v, err := p.Invoke(t.Context(), method, args...)
		done <- outcome{v, err}
	}()
	return done
}

// TestPipeliningOverWire has a child run at the node while nothing that the node
// says comes back: it was on the wire before the result of its parent.
func TestPipeliningOverWire(t *testing.T) {
	w := openDesks(t)
	d := w.any(t, "a")
	if _, err := d.Invoke(t.Context(), "add", 1); err != nil {
		t.Fatal(err)
	}
	goOn := w.proxy.hold()
	defer goOn()
	p := d.Start(t.Context(), "meter")
	// SPEC B33
	slow := child(t, p, "slow", 2)
	<-w.all.entered // the child runs
	select {
	case r := <-slow:
		t.Errorf("the child has ended: %v, %v", r.v, r.err)
	default:
	}
	goOn()
	close(w.all.goOn)
	if r := <-slow; r.v != int64(3) || r.err != nil {
		t.Errorf("the child gives %v, %v", r.v, r.err)
	}
	// The result is the promise's, however often it is asked for.
	v, err := p.Result(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := v.(*limpet.Stub[any]).Invoke(t.Context(), "add", 4); got != int64(7) || err != nil {
		t.Errorf("the result gives %v, %v", got, err)
	}
	if got, err := p.Invoke(t.Context(), "add", 1); got != int64(8) || err != nil {
		t.Errorf("a child after the result gives %v, %v", got, err)
	}
	p.Close()
	w.empty(t)
	eventually(t, "the target's Dispose", func() bool { return w.all.disposed.Load() == 1 })
	_, err = p.Invoke(t.Context(), "add", 1)
	if e := errorOf(t, err); e.Code != limpet.CodeDisposed { // SPEC C42
		t.Errorf("after Close: %+v", e)
	}
}

// TestPipelinedMembers goes into values that are results.
func TestPipelinedMembers(t *testing.T) {
	w := openDesks(t)
	for _, wait := range []bool{false, true} {
		p := w.any(t, "a").Start(t.Context(), "nested")
		if wait {
			if _, err := p.Result(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		// SPEC B33: own properties, nested paths, functions.
		if v, err := p.Get(t.Context(), "n"); v != int64(7) || err != nil {
			t.Errorf("a property is %v, %v", v, err)
		}
		if v, err := p.At("deep", "list", "0").Invoke(t.Context(), "add", 0); v != int64(0) || err != nil {
			t.Errorf("a target deep in it gives %v, %v", v, err)
		}
		if v, err := p.At("deep").Invoke(t.Context(), "double", 21); v != int64(42) || err != nil {
			t.Errorf("a function deep in it gives %v, %v", v, err)
		}
		// SPEC B35
		for _, path := range [][]string{{"n"}, {"missing"}, {"deep", "list", "1"}, {}} {
			_, err := p.At(path...).Invoke(t.Context(), "nothing")
			e := errorOf(t, err)
			if e.Name != "TypeError" || !e.Remote {
				t.Errorf("%v: %+v", path, e)
			}
			wantIn(t, "the error", e.Error(), "The RPC receiver does not implement the method")
		}
		// SPEC B34
		broken := w.any(t, "a").Start(t.Context(), "broken")
		_, err := broken.Invoke(t.Context(), "add", 1)
		if e := errorOf(t, err); e.Code != "Broken" || e.Message != "no meter" {
			t.Errorf("a call on what failed: %+v", e)
		}
		broken.Close()
		// A function of the client as a child's argument.
		mine := &counter{}
		target := must(limpet.NewTarget(mine))
		relay := w.any(t, "a").Start(t.Context(), "meter")
		if _, err := relay.Invoke(t.Context(), "add", target); err == nil {
			t.Error("a number that is a stub was taken")
		}
		relay.Close()
		target.Close()
		eventually(t, "the client's Dispose", func() bool { return mine.disposed.Load() == 1 })
		p.Close()
		w.empty(t)
	}
}

// TestPipeliningCommits loses connections under a parent and its child.
func TestPipeliningCommits(t *testing.T) {
	t.Run("before a failure", func(t *testing.T) {
		w := openDesks(t)
		d := w.any(t, "a", patient...)
		p := d.Start(t.Context(), "later")
		defer p.Close()
		<-w.all.entered
		before := w.proxy.up.Load()
		c := child(t, p, "add", 1)
		eventually(t, "the child on its way", func() bool { return w.proxy.up.Load() > before+24 }) // more than a ping
		w.proxy.cut()
		// SPEC E53: both reject, and no retry is made.
		r := <-c
		e := errorOf(t, r.err)
		if e.Code != limpet.CodeDisconnected || e.Attempts != 1 {
			t.Errorf("the child: %+v", e)
		}
		_, err := p.Result(t.Context())
		if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Attempts != 1 || e.Delivery != limpet.DeliveryUncertain {
			t.Errorf("the parent: %+v", e)
		}
		if w.all.runs.Load() != 1 {
			t.Errorf("it ran %d times", w.all.runs.Load())
		}
	})
	t.Run("during a retry", func(t *testing.T) {
		w := openDesks(t)
		d := w.any(t, "a", patient...)
		if _, err := d.Invoke(t.Context(), "add", 1); err != nil {
			t.Fatal(err)
		}
		w.proxy.cutUp.Store(1)
		p := d.Start(t.Context(), "later")
		defer p.Close()
		<-w.all.entered // the second attempt
		c := child(t, p, "add", 5)
		close(w.all.goOn)
		// SPEC E53: that retry decides; SPEC E52: the stubs are those of the attempt
		// that succeeded.
		if r := <-c; r.v != int64(6) || r.err != nil {
			t.Errorf("the child gives %v, %v", r.v, r.err)
		}
		if _, err := p.Result(t.Context()); err != nil {
			t.Errorf("the parent gives %v", err)
		}
		if w.all.runs.Load() != 1 || w.proxy.strikes.Load() != 1 {
			t.Errorf("it ran %d times after %d cuts", w.all.runs.Load(), w.proxy.strikes.Load())
		}
	})
	t.Run("a retry that fails", func(t *testing.T) {
		w := openDesks(t)
		d := w.any(t, "a", patient...)
		if _, err := d.Invoke(t.Context(), "add", 1); err != nil {
			t.Fatal(err)
		}
		w.proxy.cutUp.Store(1)
		p := d.Start(t.Context(), "later")
		defer p.Close()
		<-w.all.entered
		before := w.proxy.up.Load()
		c := child(t, p, "add", 5)
		eventually(t, "the child on its way", func() bool { return w.proxy.up.Load() > before+24 })
		w.proxy.cut()
		// SPEC E54: it was the last attempt, and the child fails with the same.
		_, err := p.Result(t.Context())
		e := errorOf(t, err)
		if e.Code != limpet.CodeDisconnected || e.Attempts != 2 {
			t.Errorf("the parent: %+v", e)
		}
		if r := <-c; r.err == nil || errorOf(t, r.err).Attempts != 2 || errorOf(t, r.err).Error() != e.Error() {
			t.Errorf("the child: %v, want %v", r.err, e)
		}
	})
}
