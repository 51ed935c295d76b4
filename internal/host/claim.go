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
	chosen bool // id is a hash of an idempotency key
}

// claim is the object's record that it has taken an identity (SPEC F10, F12).
type claim struct {
	key     claimKey
	at      int64
	running int  // handlers that run for it; more than one only for marked ones
	waived  bool // marked, or never sent again: needs no record in the log
	logged  bool // a commit record holds the identity
	expired bool // out of the list; goes when the last handler has returned
	kept    *kept
	in      *claimList
	prev    *claim
	next    *claim // claimed later
}

// claimList is claims in the order of their times.
type claimList struct {
	limit     int
	listed    int
	retention int64
	oldest    *claim
	newest    *claim
}

// full reports whether there is no room for another claim.
func (l *claimList) full() bool { return l.listed >= l.limit }

func (l *claimList) push(c *claim) {
	c.in, c.prev = l, l.newest
	if l.newest == nil {
		l.oldest = c
	} else {
		l.newest.next = c
	}
	l.newest = c
	l.listed++
}

func (l *claimList) unlink(c *claim) {
	if c.prev == nil {
		l.oldest = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		l.newest = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.in, c.prev, c.next = nil, nil, nil
	l.listed--
}

// arrival is what an attempt says of itself immediately before the handler.
type arrival struct {
	key       claimKey
	flagged   bool            // the retry flag: this may be a duplicate
	marked    bool            // the handler may run again (SPEC F13, F30)
	last      bool            // unflagged, and its sender will not send it again (SPEC F2)
	gated     bool            // the class has no effect except through what limpet gates
	uncertain []dispatch.Boot // of every attempt whose delivery was uncertain
	replay    bool            // the sender wants the first outcome instead of a refusal
	bound     [32]byte        // of method and arguments, with an idempotency key
}

// ruling is the answer to an arrival.
type ruling uint8

const (
	taken    ruling = iota // the handler runs
	received               // the object has taken this identity already (SPEC F13, F15)
	unproven               // nobody can tell whether it has: fail closed (SPEC F18)
	joins                  // the object has received it, and the sender gets the outcome of that
	reused                 // the idempotency key belongs to another method or other arguments
	full                   // there is no room for another idempotency key
	never                  // it was told that the call never came and never runs
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

	replay  bool // the sender wants the first outcome
	told    bool // there is one, or a run goes on that will have one
	barred  bool // it was said that the call never came and never will run
	chosen  bool // the identity is an idempotency key
	other   bool // which belongs to another method or other arguments
	full    bool // there is no room for another one
	foreign bool // an uncertain attempt went to another directory or another history of it
}

// rule is the decision of DESIGN 5. Durable claims of earlier lives of the
// process are in the table before the first call, so that an unclaimed identity
// of the same history had no effect outside memory in a gated class. An
// idempotency key is claimed in the log before its handler starts, so that one
// that is not in the table never began here.
func rule(k knowledge) ruling {
	switch {
	case k.claimed && k.barred:
		return never // marked or not
	case k.claimed && k.other:
		return reused
	case k.claimed && k.replay && k.told:
		return joins // marked or not
	case k.chosen && !k.claimed && k.full:
		return full
	case k.marked:
		return taken
	case k.claimed:
		return received // rule B: flagged or not
	case k.chosen && (k.foreign || !k.complete):
		return unproven
	case k.chosen:
		return taken
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
	byKey  map[claimKey]*claim
	// Every claim that has not expired is in one of these.
	claimList           // of identities
	bars      claimList // of identities of which it was said that they never came
	chosen    claimList // of idempotency keys
	outcomes  outcomeMemory
	// Claims were dropped for want of room; until then the table does not know
	// everything it should.
	incompleteUntil     int64
	keysIncompleteUntil int64
}

func newClaims(boot dispatch.Boot, budget int) *claims {
	return &claims{
		boot: boot, byKey: map[claimKey]*claim{},
		claimList: claimList{limit: max(budget/claimBytes, 1), retention: int64(claimRetention)},
		bars:      claimList{limit: maxBars, retention: int64(claimRetention)},
		chosen:    claimList{limit: defaultKeys, retention: int64(defaultKeyRetention)},
		outcomes:  outcomeMemory{limit: defaultOutcomeBytes},
	}
}

// restore enters a claim that was read from the log at start. It is kept for one
// retention from the start, since nothing says when it was made.
func (t *claims) restore(key claimKey) {
	if t.byKey[key] == nil {
		t.add(0, 0, key, &t.claimList).logged = true
	}
}

// take decides on an arrival and, if its handler is to run, claims the identity
// in the same step (SPEC F10). The claim must be given to finish when the
// handler has returned.
func (t *claims) take(now int64, a arrival) (*claim, ruling) { return t.decide(now, a, false) }

// decide is take, or with look only what that would decide, as far as the table
// knows it already.
func (t *claims) decide(now int64, a arrival, look bool) (*claim, ruling) {
	t.expire(now)
	c := t.byKey[a.key]
	k := knowledge{
		claimed: c != nil, flagged: a.flagged, marked: a.marked, gated: a.gated,
		complete: now >= t.incompleteUntil,
		replay:   a.replay, chosen: a.key.chosen,
	}
	if k.chosen {
		k.complete, k.full = now >= t.keysIncompleteUntil, t.chosen.full()
	}
	if c != nil && c.kept != nil {
		k.barred, k.told = c.kept.barred, c.kept.told()
		k.other = k.chosen && c.kept.bound != a.bound
	}
	k.thisBoot, k.thisHistory = len(a.uncertain) > 0, len(a.uncertain) > 0
	for _, b := range a.uncertain {
		k.thisBoot = k.thisBoot && b == t.boot
		k.thisHistory = k.thisHistory && b.History == t.boot.History
		k.foreign = k.foreign || b.History != t.boot.History
	}
	r := rule(k)
	switch {
	case r == joins:
		return c, r
	case r != taken && !t.broken.ClaimRefusalOff && (k.flagged || !t.broken.UnflaggedAccepted):
		return nil, r
	case look && c == nil:
		return nil, taken
	case look:
		return c, taken
	}
	if c == nil {
		list := &t.claimList
		if k.chosen {
			list = &t.chosen
		}
		c = t.add(now, now, a.key, list)
	}
	c.running++
	c.waived = (a.marked || a.last) && !a.replay
	if a.replay && (c.kept == nil || c.kept.settled) {
		c.kept = &kept{bound: a.bound} // nobody will hear of the one before: it had no outcome
	}
	return c, taken
}

// finish says that a handler of the claim has returned. The claim stays.
func (t *claims) finish(c *claim) {
	c.running--
	if c.running > 0 {
		return
	}
	if c.kept != nil && !c.kept.settled {
		t.settle(c, nil, Pos{})
	}
	if c.expired {
		t.remove(c)
	}
}

// remove takes a claim that is in no list out of the table.
func (t *claims) remove(c *claim) {
	delete(t.byKey, c.key)
	if c.kept != nil {
		t.outcomes.drop(c.kept)
	}
}

// acknowledge removes the claim of a call whose only attempt was answered and
// whose sender says that it has the answer: no other attempt will come.
func (t *claims) acknowledge(key claimKey) {
	if c := t.byKey[key]; c != nil && c.running == 0 && !c.expired {
		if c.kept != nil && c.kept.barred {
			return // an answer to a call that did not come
		}
		c.in.unlink(c)
		t.remove(c)
	}
}

// add enters a claim that was made at a time. Only the list of identities makes
// room for it.
func (t *claims) add(now, at int64, key claimKey, list *claimList) *claim {
	for list == &t.claimList && list.full() {
		t.drop(list.oldest)
		t.incompleteUntil = now + int64(claimRetention)
	}
	c := &claim{key: key, at: at}
	list.push(c)
	t.byKey[key] = c
	return c
}

func (t *claims) expire(now int64) {
	for _, l := range [...]*claimList{&t.claimList, &t.bars, &t.chosen} {
		for l.oldest != nil && now-l.oldest.at >= l.retention {
			t.drop(l.oldest)
		}
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
	c.in.unlink(c)
	c.expired = true
	if c.running == 0 {
		t.remove(c)
	}
}
