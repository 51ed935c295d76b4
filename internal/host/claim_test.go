package host

import (
	"fmt"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
)

// Every combination of what can be known, against the rules in words.
func TestClaimRule(t *testing.T) {
	for bits := range 1 << 7 {
		bit := func(i int) bool { return bits>>i&1 == 1 }
		k := knowledge{
			claimed: bit(0), flagged: bit(1), marked: bit(2), complete: bit(3),
			thisBoot: bit(4), thisHistory: bit(5), gated: bit(6),
		}
		var want ruling
		switch {
		case k.marked: // SPEC F13, F30: only a mark lets a claimed one run again
			want = taken
		case k.claimed && k.flagged: // SPEC F12, F13
			want = received
		case k.claimed: // SPEC F15, F16: a first attempt overtaken by its own retry
			want = received
		case !k.flagged: // SPEC F15
			want = taken
		case k.complete && k.thisBoot: // SPEC F14
			want = taken
		case k.complete && k.thisHistory && k.gated: // SPEC F21
			want = taken
		default: // SPEC F18: fail closed
			want = unproven
		}
		if got := rule(k); got != want {
			t.Errorf("%+v: %v, want %v", k, got, want)
		}
	}
}

func key(n int) claimKey {
	return claimKey{object: [32]byte{1}, id: limpet.Identity{Nonce: [16]byte{byte(n), byte(n >> 8), 1}, CreatedMS: 5}}
}

func TestClaimTable(t *testing.T) {
	here := testBoot
	sameHistory := dispatch.Boot{History: here.History, Boot: [16]byte{9}}
	elsewhere := dispatch.Boot{History: [16]byte{7}, Boot: here.Boot}
	type arrive struct {
		n    int
		a    arrival
		want ruling
	}
	retry := func(boots ...dispatch.Boot) arrival { return arrival{flagged: true, uncertain: boots} }
	for _, test := range []struct {
		name string
		seq  []arrive
	}{
		{"first, then its retry", []arrive{{1, arrival{}, taken}, {1, retry(here), received}}},                    // SPEC F13
		{"retry of one that never came", []arrive{{1, retry(here), taken}, {1, retry(here), received}}},           // SPEC F14
		{"first overtaken by its retry", []arrive{{1, retry(here), taken}, {1, arrival{}, received}}},             // SPEC F16
		{"another call", []arrive{{1, arrival{}, taken}, {2, retry(here), taken}}},                                // SPEC F3
		{"marked", []arrive{{1, arrival{marked: true}, taken}, {1, arrival{flagged: true, marked: true}, taken}}}, // SPEC F38
		{"marked needs no proof", []arrive{{1, arrival{flagged: true, marked: true}, taken}}},
		{"no proof", []arrive{{1, retry(), unproven}}}, // SPEC F18
		{"restart, class not gated", []arrive{{1, retry(sameHistory), unproven}, {1, retry(here, sameHistory), unproven}}},
		{"restart, gated", []arrive{{1, arrival{flagged: true, gated: true, uncertain: []dispatch.Boot{sameHistory, here}}, taken}}},
		{"another history, gated", []arrive{{1, arrival{flagged: true, gated: true, uncertain: []dispatch.Boot{here, elsewhere}}, unproven}}},
		{"refused ones do not claim", []arrive{{1, retry(), unproven}, {1, arrival{}, taken}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			table := newClaims(here, 1<<20)
			for i, s := range test.seq {
				s.a.key = key(s.n)
				c, got := table.take(0, s.a)
				if got != s.want || (c != nil) != (got == taken) {
					t.Fatalf("arrival %d: %v (claim %v), want %v", i+1, got, c != nil, s.want)
				}
			}
		})
	}
}

func TestClaimRetention(t *testing.T) {
	// SPEC F19, as DESIGN 5 has it: counted on the receiver's own clock.
	table := newClaims(testBoot, 1<<20)
	table.restore(key(1))
	c2, _ := table.take(0, arrival{key: key(2)})
	table.finish(c2)
	c3, _ := table.take(0, arrival{key: key(3)}) // its handler goes on
	end := int64(90 * time.Second)
	retry := func(now int64, n int) ruling {
		_, r := table.take(now, arrival{key: key(n), flagged: true, uncertain: []dispatch.Boot{testBoot}})
		return r
	}
	for n := 1; n <= 3; n++ {
		if got := retry(end-1, n); got != received {
			t.Errorf("retry of %d within the retention: %v, want %v", n, got, received)
		}
	}
	if got := retry(end, 3); got != received {
		t.Errorf("retry of a call that still runs: %v, want %v", got, received)
	}
	table.finish(c3)
	if len(table.byKey) != 0 || table.oldest != nil || table.listed != 0 {
		t.Errorf("%d claims are kept after the retention", len(table.byKey))
	}

	c4, _ := table.take(end, arrival{key: key(4)})
	table.acknowledge(key(4))
	if table.byKey[key(4)] == nil {
		t.Error("the claim of a running call was removed")
	}
	table.finish(c4)
	table.acknowledge(key(4))
	if len(table.byKey) != 0 || table.listed != 0 {
		t.Error("an acknowledged claim is kept")
	}
}

func TestClaimBudget(t *testing.T) {
	table := newClaims(testBoot, 3*claimBytes)
	take := func(now int64, n int, flagged, marked bool) ruling {
		_, r := table.take(now, arrival{key: key(n), flagged: flagged, marked: marked, uncertain: []dispatch.Boot{testBoot}})
		return r
	}
	now := int64(time.Second)
	for n := 1; n <= 4; n++ {
		if r := take(now, n, false, false); r != taken {
			t.Fatalf("claim %d: %v", n, r)
		}
	}
	if table.listed != 3 {
		t.Fatalf("%d claims are listed, the budget is 3", table.listed)
	}
	// Number 1 was dropped: from now on nobody can tell it from a new one.
	for _, test := range []struct {
		at   int64
		n    int
		flag bool
		mark bool
		want ruling
	}{
		{now, 99, true, false, unproven}, // SPEC F18
		{now, 98, true, true, taken},
		{now, 4, true, false, received},
		{now + int64(claimRetention) - 1, 97, true, false, unproven},
		{now + int64(claimRetention), 99, true, false, taken},
	} {
		if got := take(test.at, test.n, test.flag, test.mark); got != test.want {
			t.Errorf("%d flagged %v marked %v at %v: %v, want %v", test.n, test.flag, test.mark, time.Duration(test.at), got, test.want)
		}
	}
}

func TestLedger(t *testing.T) {
	pos := func(n uint64) Pos { return Pos{1, n} }
	c, d := &claim{key: key(1)}, &claim{key: key(2)}
	var l ledger
	want := func(when string, owedC, owed bool, outC, out Pos) {
		t.Helper()
		if got := l.owed(c); got != owedC {
			t.Errorf("%s: a record is owed for c's own reply: %v, want %v", when, got, owedC)
		}
		if got := l.owed(nil); got != owed {
			t.Errorf("%s: a record is owed for other outputs: %v, want %v", when, got, owed)
		}
		if got := l.output(c); got != outC {
			t.Errorf("%s: c's reply waits for %v, want %v", when, got, outC)
		}
		if got := l.output(nil); got != out {
			t.Errorf("%s: other outputs wait for %v, want %v", when, got, out)
		}
	}
	want("nothing runs", false, false, Pos{}, Pos{})
	l.begin(c)
	want("c runs", false, true, Pos{}, Pos{})
	l.committed(pos(1), false) // for an output of c, or an unconfirmed write
	want("c is recorded", false, false, Pos{}, pos(1))
	l.begin(c)
	want("a recorded call is not pending", false, false, Pos{}, pos(1))
	l.begin(d)
	want("d runs too", true, true, Pos{}, pos(1))
	if ids := fmt.Sprint(l.identities()); ids != fmt.Sprint([]limpet.Identity{d.key.id}) {
		t.Errorf("identities %v", ids)
	}
	l.committed(pos(2), true)
	want("a write", false, false, pos(2), pos(2))
	marked := &claim{key: key(3), waived: true}
	l.begin(marked)
	want("marked calls need no record", false, false, pos(2), pos(2))
	e := &claim{key: key(4)}
	l.begin(e)
	l.end(e)
	want("ended without a trace", false, false, pos(2), pos(2))
}
