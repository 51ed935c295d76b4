package host

import (
	"slices"

	"github.com/limpet-dev/limpet"
)

// This file holds rules C and D of DESIGN 5: which identities go into a commit
// record, when a record must be appended for them alone, and which position an
// output waits for. It has no lock and no I/O.
//
// A call that runs and is claimed is pending until a record holds its identity:
//
//	claim ──▶ pending ──record──▶ logged
//	             └──handler returned, nothing written──▶ forgotten (its claim stays in memory)
//
//	output             a record is appended first when …
//	─────────────────  ───────────────────────────────────────────
//	own reply of c     another call than c is pending, or the turn wrote
//	anything else      any call is pending, or the turn wrote

// ledger is an incarnation's account of running calls and positions. An output
// that is given to an event waits for what reply or other answers.
type ledger struct {
	pending []*claim
	scratch []limpet.Identity

	// data is the last record that an output must wait for because of what it
	// holds; AllowUnconfirmed does not move it (SPEC H3).
	data Pos
	// marks is the last record that holds identities, of more calls than lone
	// if that is nil; before is the one before it. AllowUnconfirmed never lifts
	// the wait for it (rule D).
	marks, before Pos
	lone          *claim
}

// begin enters a claimed call whose handler starts.
func (l *ledger) begin(c *claim) {
	if !c.waived && !c.logged && !slices.Contains(l.pending, c) {
		l.pending = append(l.pending, c)
	}
}

// end takes out a call whose handler has returned.
func (l *ledger) end(c *claim) {
	if i := slices.Index(l.pending, c); i >= 0 {
		l.pending = slices.Delete(l.pending, i, i+1)
	}
}

// owed reports whether a record must be appended before an output may leave
// although the turn wrote nothing (rule D). own is the call whose reply the
// output is, nil for any other output.
func (l *ledger) owed(own *claim) bool {
	for _, c := range l.pending {
		if c != own {
			return true
		}
	}
	return false
}

// identities are what the next record must hold (rule C). The slice is good
// until the next call.
func (l *ledger) identities() []limpet.Identity {
	l.scratch = l.scratch[:0]
	for _, c := range l.pending {
		l.scratch = append(l.scratch, c.key.id)
	}
	return l.scratch
}

// committed enters a record that was appended with identities; waits says that
// outputs must wait for its data.
func (l *ledger) committed(p Pos, waits bool) {
	if len(l.pending) > 0 {
		l.before, l.lone = l.marks, nil
		if len(l.pending) == 1 {
			l.lone = l.pending[0]
		}
		l.marks = p
		for _, c := range l.pending {
			c.logged = true
		}
		l.pending = l.pending[:0]
	}
	if waits {
		l.data = p
	}
}

// output is the position that an output waits for; own as for owed.
func (l *ledger) output(own *claim) Pos {
	marks := l.marks
	if own != nil && l.lone == own {
		marks = l.before
	}
	if marks.After(l.data) {
		return marks
	}
	return l.data
}
