// Package dispatch carries a call from a stub to its outcome: it finds the
// object, makes attempts, and retries under one promise: a method never runs
// twice because of a retry, unless its author marked it.
//
// # The machine
//
// machine.go decides everything (SPEC E.4); it has no clock, no randomness and
// does no I/O:
//
//	        start                 failed, connection lost: not delivered or uncertain,
//	          │                   attempts left, backoff ends before the cutoff
//	┌───────┐ │ attempt 1   ┌───────────┐ ──────────────────────────▶ ┌─────────────┐
//	│ ready │ ┴───────────▶ │ running n │                             │ backing off │
//	└───┬───┘               └─┬───┬───▲─┘ ◀────────────────────────── └──────┬──────┘
//	    │       redirected:   │   │   │  backoff over, before the cutoff:    │
//	    │       attempt 1, a  └───│───┘  attempt n+1, identity kept with     │
//	    │       new identity      │      the flag on if an attempt with it   │
//	    │                         │      was uncertain, else a new one       │
//	    │ aborted, gone           │                                          │
//	    ▼                         ▼                                          ▼
//	┌────────────────────────────────────────────────────────────────────────────┐
//	│ done                                                                       │
//	└────────────────────────────────────────────────────────────────────────────┘
//
// What ends a call, and what its caller gets:
//
//	succeeded                                     the result
//	attempts used up; backoff does not fit;       the first disconnect
//	  cutoff while backing off or in a retry;
//	  claim rejected after a retry
//	any other failure of any attempt; a lost      that failure
//	  connection known to be received; a retry
//	  that can't be started
//	aborted                                       the caller's reason
//	pipelined                                     the running attempt decides;
//	                                              backing off: the first disconnect
//
// The cutoff is callStart plus the policy's timeout. It ends retries and
// backoffs, never a first attempt, and is one for all redirect hops.
//
// # The engine
//
// [Engine] drives a machine per call: it owns the timers, cancels attempts, draws
// identities, keeps the replay memory and turns failures into *limpet.Error.
// A first attempt over a lossless transport needs none of this: it runs on the
// caller's goroutine, and the machine hears of it only when it fails.
//
//	stub ─▶ Engine.Call ─▶ output gate of the calling object (Origin.Leave)
//	                         │
//	                         ▼ per attempt
//	                       Router.Route ─▶ Transport.Do / Fetch ─▶ object
//
// The delivery state of the error that a caller gets speaks of the whole call:
// if any attempt was uncertain, it never says "not delivered".
package dispatch
