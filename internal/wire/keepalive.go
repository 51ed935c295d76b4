package wire

import "time"

// Times of a connection, on the monotonic clock.
const (
	// pingEvery is how often each side asks whether the other is there.
	pingEvery = 5 * time.Second
	// lostAfter is how long a peer may be silent.
	lostAfter = 10 * time.Second
	// stallAfter is how long one write may take: a peer that sends but never
	// reads is no use either.
	stallAfter = 30 * time.Second
)

// keepalive decides when a peer is gone. It has no clock: now is a time of one
// monotonic scale.
//
//	         anything read                    nothing read for 10 s, or a write
//	       ┌───────────────┐                  that takes 30 s, at a read or a tick
//	       ▼               │
//	┌────────────┐   every 5 s: ping   ┌─────────────┐            ┌──────┐
//	│ heard      │ ──────────────────▶ │ waiting     │ ─────────▶ │ lost │
//	└────────────┘                     └─────────────┘            └──────┘
type keepalive struct {
	heard   time.Duration // when something was read last
	writing time.Duration // since when a write is under way
	inWrite bool
	lost    bool
}

// read is called when bytes have come, before anybody looks at them: if the last
// ones came too long ago, this process was frozen, and what waited in the
// meantime is stale. It reports whether the connection is still good.
func (k *keepalive) read(now time.Duration) bool {
	if k.lost || now-k.heard > lostAfter {
		k.lost = true
		return false
	}
	k.heard = now
	return true
}

func (k *keepalive) writeBegins(now time.Duration) { k.inWrite, k.writing = true, now }
func (k *keepalive) writeEnds()                    { k.inWrite = false }

// tick is called every pingEvery; it reports whether the connection is still
// good, and a ping is then due.
func (k *keepalive) tick(now time.Duration) (good, stalled bool) {
	stalled = k.inWrite && now-k.writing > stallAfter
	if now-k.heard > lostAfter || stalled {
		k.lost = true
	}
	return !k.lost, stalled
}
