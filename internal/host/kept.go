package host

import (
	"time"

	"github.com/limpet-dev/limpet"
)

// This file is the part of the table of claims that is about outcomes (DESIGN 5,
// "Opt-in beyond the source"): what became of calls that want their first outcome
// kept, and of those with an idempotency key. Like claim.go it has no clock, lock
// or I/O.
//
//	                 handler returned, or was reset     room is needed
//	claimed ──▶ running ─────────────────▶ outcome kept ─────────────▶ not kept
//	   ▲           │                                                      ▲
//	   │           └─ too large, stubs, the log has no room, a crash ─────┘
//	   └──────────────────── marked handlers run again ◀──────────────────┘
//
//	asked for and not there ──▶ barred: it was told that the call never came; no
//	                            attempt of it runs any more, marked or not

const (
	// defaultKeyRetention is how long idempotency keys are known.
	defaultKeyRetention = 24 * time.Hour
	// defaultKeys is how many are known at most; one costs some 300 bytes.
	defaultKeys = 1 << 20
	// defaultOutcomeBytes is the memory of outcomes.
	defaultOutcomeBytes = 64 << 20
	// outcomeCost is what an outcome costs besides its own bytes.
	outcomeCost = 128
	// maxBars is how many identities without a key may be barred at one time.
	maxBars = 1 << 16
	// youngIdentity is how old an identity may be of which it is told that it was
	// not received, and clockError by how much the clocks of those who made it and
	// who ask may differ: until both have passed its claim would still be there.
	youngIdentity = limpet.MaxRetryTimeout
	clockError    = claimRetention - youngIdentity
)

// kept is what becomes of one run.
type kept struct {
	bound   [32]byte // of method and arguments, with an idempotency key
	settled bool     // the run has ended, or its record is appended; what follows is final, but for drop
	barred  bool     // there is no run and will be none
	data    []byte   // the outcome as package wire writes it; nil if it is not kept
	cost    int64    // what data counts in outcomeMemory
	pos     Pos      // data, and that it is barred, are told when this is durable
	done    chan struct{}
	waiting int // duplicates that wait for done
}

// told reports whether there is an outcome or will be one.
func (k *kept) told() bool { return !k.barred && (!k.settled || k.data != nil) }

// ended is closed when the kept is settled.
func (k *kept) ended() <-chan struct{} {
	if k.done == nil {
		k.done = make(chan struct{})
		if k.settled {
			close(k.done)
		}
	}
	return k.done
}

// settle enters how the claim's run has ended, the first time it is told: data is
// the outcome, nil if it is not kept, which may be told when p is durable.
func (t *claims) settle(c *claim, data []byte, p Pos) {
	k := c.kept
	if k == nil || k.settled {
		return
	}
	k.settled, k.data, k.pos = true, data, p
	if k.done != nil {
		close(k.done)
	}
	if data != nil && !c.expired { // else for those who wait already
		t.outcomes.add(k)
	}
}

// outcomeMemory bounds what outcomes take, dropping the oldest first.
type outcomeMemory struct {
	limit   int64
	used    int64
	count   int // of outcomes
	dropped uint64
	queue   []*kept // oldest first; some have none any more
	next    int     // in queue
}

func (m *outcomeMemory) add(k *kept) {
	k.cost = int64(len(k.data)) + outcomeCost
	m.used += k.cost
	m.count++
	m.queue = append(m.queue, k)
	for m.used > m.limit {
		if old := m.queue[m.next]; old.cost > 0 {
			m.drop(old)
			m.dropped++
		}
		m.queue[m.next] = nil
		m.next++
	}
	if len(m.queue) > 2*m.count+1024 {
		some := m.queue[:0]
		for _, k := range m.queue[m.next:] {
			if k.cost > 0 {
				some = append(some, k)
			}
		}
		clear(m.queue[len(some):])
		m.queue, m.next = some, 0
	}
}

// drop forgets an outcome, if there is one.
func (m *outcomeMemory) drop(k *kept) {
	if k.cost > 0 {
		m.used -= k.cost
		m.count--
		k.cost, k.data = 0, nil
	}
}

// restoreKept enters what the log says of a call; now is 0 at start, at the time
// of the claim of a key.
func (t *claims) restoreKept(r Recovered, at int64) {
	key := claimKey{object: r.Object, id: r.ID, chosen: r.Keyed}
	c := t.byKey[key]
	switch {
	case c == nil && r.Keyed && !r.Claimed:
		return // an outcome of a key that is too old
	case c == nil && r.Keyed:
		c = t.add(0, at, key, &t.chosen)
	case c == nil:
		c = t.add(0, 0, key, &t.claimList)
	}
	c.logged = true
	if c.kept == nil || r.Claimed {
		if c.kept != nil { // the key ran out, and was taken again
			t.outcomes.drop(c.kept)
			list := c.in
			list.unlink(c)
			c.at = at
			list.push(c)
		}
		c.kept = &kept{bound: r.Print, settled: true}
	}
	switch r.Kind {
	case keptBarred:
		c.kept.barred = true
		if !r.Keyed && c.in == &t.claimList {
			c.in.unlink(c)
			t.bars.push(c)
		}
	case keptOutcome:
		if c.kept.data == nil {
			c.kept.data = r.Data
			t.outcomes.add(c.kept)
		}
	}
}

// Kinds of Kept.
const (
	keptOutcome = 1 // Data is an outcome
	keptBarred  = 2 // it was told that the call never came
)

// inquiry is a question for the outcome of a call.
type inquiry struct {
	key  claimKey
	here bool  // no attempt can have reached another process than this
	age  int64 // of the identity, by the clock of who asks
}

// bar decides on a question for a call that the table does not know: it claims the
// identity for good and returns the claim, to be settled when that is in the log
// or given to unbar. A claim that is there already comes with known.
func (t *claims) bar(now int64, q inquiry) (c *claim, known bool, r ruling) {
	t.expire(now)
	if c := t.byKey[q.key]; c != nil {
		return c, true, received
	}
	list := &t.bars
	proven := q.here && now >= t.incompleteUntil && q.age <= int64(youngIdentity) && q.age >= -int64(clockError)
	if q.key.chosen {
		list, proven = &t.chosen, now >= t.keysIncompleteUntil
	}
	switch {
	case !proven:
		return nil, false, unproven
	case list.full():
		return nil, false, full
	}
	c = t.add(now, now, q.key, list)
	c.kept = &kept{barred: true}
	return c, false, taken
}

// withdraw takes back a claim that did not reach the log, with nothing done.
func (t *claims) withdraw(c *claim) {
	t.settle(c, nil, Pos{})
	if !c.expired {
		c.in.unlink(c)
	}
	t.remove(c)
}

// known is what a claim tells of its call. With wait the answer comes when k is
// settled.
func (c *claim) known() (kind limpet.OutcomeKind, k *kept, wait bool) {
	switch k := c.kept; {
	case k == nil && c.running > 0:
		return limpet.OutcomeRunning, nil, false
	case k == nil:
		return limpet.OutcomeNotKept, nil, false
	case k.barred:
		return limpet.OutcomeNotReceived, k, !k.settled
	case !k.settled:
		return limpet.OutcomeRunning, k, false
	case k.data == nil:
		return limpet.OutcomeNotKept, k, false
	default:
		return limpet.OutcomeResult, k, false
	}
}
