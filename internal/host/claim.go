package host

import (
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/mutation"
)

// This file is the node-wide table of claims: rules A and B of DESIGN 5, what a
// retry must prove after a restart, and how long claims are kept. It has no
// clock, lock or I/O; time comes in as nanoseconds since the node started. That
// the table belongs to the node and not to an incarnation is rule A.
//
// Rules C and D, about what is written when, are in ledger.go.

// claimRetention is how long a claim is kept, counted on this node's monotonic
// clock from the claim: the longest retry timeout, two ping deadlines and a
// margin, after which no attempt of the call can arrive any more.
const claimRetention = limpet.MaxRetryTimeout + 2*10*time.Second + 10*time.Second

// claimBytes is what one claim costs in memory, map and list included.
const claimBytes = 256

// claimKey is a claim's name: identities are bound to one object (SPEC F3).
type claimKey struct {
	object [32]byte
	id     limpet.Identity
}

// claim is the object's record that it has taken an identity (SPEC F10, F12).
type claim struct {
	key     claimKey
	at      int64
	running int  // handlers that run for it; more than one only for marked ones
	waived  bool // marked, or never sent again: needs no record in the log
	logged  bool // a commit record holds the identity
	expired bool // out of the list; goes when the last handler has returned
	prev    *claim
	next    *claim // claimed later
}

// arrival is what an attempt says of itself immediately before the handler.
type arrival struct {
	key       claimKey
	flagged   bool            // the retry flag: this may be a duplicate
	marked    bool            // the handler may run again (SPEC F13, F30)
	last      bool            // unflagged, and its sender will not send it again (SPEC F2)
	gated     bool            // the class has no effect except through what limpet gates
	uncertain []dispatch.Boot // of every attempt whose delivery was uncertain
}

// ruling is the answer to an arrival.
type ruling uint8

const (
	taken    ruling = iota // the handler runs
	received               // the object has taken this identity already (SPEC F13, F15)
	unproven               // nobody can tell whether it has: fail closed (SPEC F18)
)

// knowledge is all that the decision rests on.
type knowledge struct {
	claimed     bool // the table has the identity
	flagged     bool
	marked      bool
	complete    bool // the table has not dropped claims that could be this one
	thisBoot    bool // every uncertain attempt went to this very process
	thisHistory bool // every uncertain attempt went to this directory's present history
	gated       bool
}

// rule is the decision of DESIGN 5. Durable claims of earlier lives of the
// process are in the table before the first call, so that an unclaimed identity
// of the same history had no effect outside memory in a gated class.
func rule(k knowledge) ruling {
	switch {
	case k.marked:
		return taken
	case k.claimed:
		return received // rule B: flagged or not
	case !k.flagged:
		return taken // SPEC F15
	case !k.complete:
		return unproven
	case k.thisBoot:
		return taken // SPEC F14
	case k.thisHistory && k.gated:
		return taken
	}
	return unproven
}

// claims is the table.
type claims struct {
	boot   dispatch.Boot
	broken mutation.Set // none, except in bench/promise
	limit  int          // claims
	listed int          // claims in the list
	byKey  map[claimKey]*claim
	oldest *claim
	newest *claim
	// Claims were dropped for want of room; until then the table does not know
	// everything it should.
	incompleteUntil int64
}

func newClaims(boot dispatch.Boot, budget int) *claims {
	return &claims{boot: boot, limit: max(budget/claimBytes, 1), byKey: map[claimKey]*claim{}}
}

// restore enters a claim that was read from the log at start. It is kept for one
// retention from the start, since nothing says when it was made.
func (t *claims) restore(key claimKey) {
	if t.byKey[key] == nil {
		t.add(0, key).logged = true
	}
}

// take decides on an arrival and, if its handler is to run, claims the identity
// in the same step (SPEC F10). The claim must be given to finish when the
// handler has returned.
func (t *claims) take(now int64, a arrival) (*claim, ruling) {
	t.expire(now)
	c := t.byKey[a.key]
	k := knowledge{
		claimed: c != nil, flagged: a.flagged, marked: a.marked, gated: a.gated,
		complete: now >= t.incompleteUntil,
	}
	k.thisBoot, k.thisHistory = len(a.uncertain) > 0, len(a.uncertain) > 0
	for _, b := range a.uncertain {
		k.thisBoot = k.thisBoot && b == t.boot
		k.thisHistory = k.thisHistory && b.History == t.boot.History
	}
	if r := rule(k); r != taken && !t.broken.ClaimRefusalOff && (k.flagged || !t.broken.UnflaggedAccepted) {
		return nil, r
	}
	if c == nil {
		c = t.add(now, a.key)
	}
	c.running++
	c.waived = a.marked || a.last
	return c, taken
}

// finish says that a handler of the claim has returned. The claim stays.
func (t *claims) finish(c *claim) {
	c.running--
	if c.expired && c.running == 0 {
		delete(t.byKey, c.key)
	}
}

// acknowledge removes the claim of a call whose only attempt was answered and
// whose sender says that it has the answer: no other attempt will come.
func (t *claims) acknowledge(key claimKey) {
	if c := t.byKey[key]; c != nil && c.running == 0 && !c.expired {
		t.unlink(c)
		delete(t.byKey, key)
	}
}

func (t *claims) add(now int64, key claimKey) *claim {
	for t.listed >= t.limit {
		t.drop(t.oldest)
		t.incompleteUntil = now + int64(claimRetention)
	}
	c := &claim{key: key, at: now, prev: t.newest}
	if t.newest == nil {
		t.oldest = c
	} else {
		t.newest.next = c
	}
	t.newest = c
	t.listed++
	t.byKey[key] = c
	return c
}

func (t *claims) expire(now int64) {
	for t.oldest != nil && now-t.oldest.at >= int64(claimRetention) {
		t.drop(t.oldest)
	}
}

// forget removes the claims of an object; only a mutation does so.
func (t *claims) forget(object [32]byte) {
	for c := t.oldest; c != nil; {
		following := c.next
		if c.key.object == object {
			t.drop(c)
		}
		c = following
	}
}

// drop takes a claim out of the list, and out of the table unless its handler
// still runs.
func (t *claims) drop(c *claim) {
	t.unlink(c)
	c.expired = true
	if c.running == 0 {
		delete(t.byKey, c.key)
	}
}

func (t *claims) unlink(c *claim) {
	if c.prev == nil {
		t.oldest = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		t.newest = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
	t.listed--
}
