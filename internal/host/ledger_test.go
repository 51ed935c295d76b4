package host

import (
	"testing"

	"github.com/limpet-dev/limpet"
)

// TestLedgerOutput is rule D: a record that holds only the identity of a call does
// not hold back that call's own reply, but everything else.
func TestLedgerOutput(t *testing.T) {
	// SPEC F21
	at := func(n uint64) (p Pos) { p.Index = n; return p }
	a, b := &claim{key: claimKey{id: limpet.Identity{CreatedMS: 1}}}, &claim{key: claimKey{id: limpet.Identity{CreatedMS: 2}}}
	check := func(l *ledger, what string, own *claim, want Pos) {
		t.Helper()
		if got := l.output(own); got != want {
			t.Errorf("%s waits for %v, want %v", what, got, want)
		}
	}
	var l ledger
	l.begin(a)
	l.committed(at(1), false)
	check(&l, "the reply of the recorded call", a, Pos{})
	check(&l, "the reply of another call", b, at(1))
	check(&l, "an outgoing call", nil, at(1))
	l.begin(b)
	l.committed(at(2), false)
	check(&l, "the reply of the first call", a, at(2))
	check(&l, "the reply of the second call", b, at(1))

	a.logged, b.logged = false, false
	var both ledger
	both.begin(a)
	both.begin(b)
	both.committed(at(3), false)
	check(&both, "a reply after a record of two calls", a, at(3))
}

// TestWaived is which calls need no record: a marked one and one that is never sent
// again, unless its sender wants the outcome, which must not be another one after
// a restart.
func TestWaived(t *testing.T) {
	// SPEC F21
	for _, tt := range []struct {
		a    arrival
		want bool
	}{
		{arrival{}, false},
		{arrival{marked: true}, true},
		{arrival{last: true}, true},
		{arrival{marked: true, replay: true}, false},
		{arrival{last: true, replay: true}, false},
	} {
		table := newClaims(testBoot, 1<<20)
		c, r := table.take(0, tt.a)
		if r != taken || c.waived != tt.want {
			t.Errorf("%+v: ruling %v, waived %v, want %v", tt.a, r, c.waived, tt.want)
		}
	}
}
