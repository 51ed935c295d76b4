package invariant_test

import (
	"errors"
	"testing"

	"github.com/limpet-dev/limpet/internal/invariant"
)

// caught returns what f panics with, or nil.
func caught(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

func TestCheck(t *testing.T) {
	if v := caught(func() { invariant.Check(true, "never seen") }); v != nil {
		t.Fatalf("Check(true) panicked with %v", v)
	}
	v := caught(func() { invariant.Check(false, "applied %d > committed %d", 3, 2) })
	if !invariant.Enabled {
		if v != nil {
			t.Fatalf("checks are off, yet Check(false) panicked with %v", v)
		}
		return
	}
	b, ok := v.(*invariant.Broken)
	if !ok {
		t.Fatalf("Check(false) panicked with %T, want *Broken", v)
	}
	if got, want := b.Error(), "invariant broken: applied 3 > committed 2"; got != want {
		t.Errorf("text is %q, want %q", got, want)
	}
}

func TestCheckFunc(t *testing.T) {
	errBad := errors.New("bad")
	calls := 0
	v := caught(func() { invariant.CheckFunc(func() error { calls++; return errBad }) })
	if !invariant.Enabled {
		if v != nil || calls != 0 {
			t.Fatalf("checks are off, yet CheckFunc called its function %d times and panicked with %v", calls, v)
		}
		return
	}
	err, ok := v.(error)
	if !ok || !errors.Is(err, errBad) {
		t.Fatalf("CheckFunc panicked with %v, want a *Broken that wraps %v", v, errBad)
	}
	if v := caught(func() { invariant.CheckFunc(func() error { return nil }) }); v != nil {
		t.Fatalf("CheckFunc of a check that holds panicked with %v", v)
	}
}
