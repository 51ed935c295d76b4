package main

import (
	"math/rand/v2"
	"time"
)

// This file is what can happen to a call, and which call it happens to.

// fault is one way to disturb a call.
type fault int

const (
	none fault = iota
	// requestLost: the connection ends and the call never gets to the node.
	requestLost
	// requestLate: the connection ends for the client, and the call, with those
	// that were sent soon after it, gets to the node when the client has long tried
	// again.
	requestLate
	// cutAfter: the connection ends as soon as the node has the call.
	cutAfter
	// replyLost: the connection ends when the answer comes.
	replyLost
	// bodyCut: the connection ends in the middle of a response's body.
	bodyCut
	// freeze: nothing passes for a moment.
	freeze
	// longFreeze: nothing passes for so long that both sides take the connection
	// for lost, and then everything at once.
	longFreeze
	// refuse: a connection is refused.
	refuse
	// kill: kill -9 of the node, and a start on the same directory.
	kill
	// drain: SIGTERM of the node, and a start on the same directory.
	drain
	faults
)

var faultNames = [faults]string{
	"none", "request lost", "request late", "cut after request", "reply lost", "body cut", "freeze", "long freeze",
	"connection refused", "kill -9", "drain",
}

func (f fault) String() string { return faultNames[f] }

// leastStrikes is how many calls each kind of fault must have struck, lest the
// run proves nothing.
const leastStrikes = 100

const (
	longFreezeTime = 14 * time.Second // both sides give up after 10 s
	refuseEvery    = 6                // connections
	mostIced       = 5                // connections that are frozen for long at one time
	lateSpan       = 20 * time.Millisecond
)

// weights of the faults that the proxy chooses for a call. Those of fetches are
// cut in their bodies besides.
var weights = []struct {
	f    fault
	w    int
	body bool
}{
	{requestLost, 5, false}, {requestLate, 5, false}, {cutAfter, 6, false}, {replyLost, 9, false},
	{freeze, 5, false}, {longFreeze, 3, false}, {bodyCut, 40, true},
}

// strikes chooses the faults of one connection: the same for a seed, a
// connection's number and a call's number on it.
type strikes struct {
	rng   *rand.Rand
	every int // one call of so many is struck
}

func newStrikes(seed, connection uint64, every int) *strikes {
	return &strikes{rng: rand.New(rand.NewPCG(seed, connection)), every: every}
}

// refused decides on the connection itself.
func (s *strikes) refused() bool { return s.rng.IntN(refuseEvery) == 0 }

// next decides on the next call.
func (s *strikes) next(body bool) fault {
	every := s.every
	if body { // they are rarer, and have a fault of their own
		every = max(every/8, 1)
	}
	draw, which := s.rng.IntN(every), s.rng.Uint64()
	if draw != 0 {
		return none
	}
	total := 0
	for _, w := range weights {
		if body || !w.body {
			total += w.w
		}
	}
	n := int(which % uint64(total)) //nolint:gosec // small
	for _, w := range weights {
		if !body && w.body {
			continue
		}
		if n -= w.w; n < 0 {
			return w.f
		}
	}
	return none
}

// between is a time from a range.
func (s *strikes) between(from, to time.Duration) time.Duration {
	return from + time.Duration(s.rng.Int64N(int64(to-from)+1))
}
