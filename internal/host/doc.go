// Package host runs the objects that live on this node: it loads them, gives
// each one event at a time, claims the identities of calls, and holds back
// everything that leaves an object until what it rests on is durable.
//
// An attempt of a call passes
//
//	Do ─▶ table of live objects ─▶ inbox ─▶ turn ─▶ room in the log? ─▶ claim ─▶ handler
//	            │ none: load, construct     (gate.go)                  (claim.go)   │
//	            ▼                                                                   ▼
//	      incarnation                         outcome ◀─ durable? ◀─ position ◀─ commit
//
// and the handler runs on its caller's goroutine if the object is free and nobody
// outside of objects can end the call, else on one of a pool, so that a caller that gives
// up, the cutoff of a retry and a reset end the call at once. A handler that
// goes on after that keeps the turn until it returns, or, if the incarnation has
// ended, gets that error from everything limpet gave it.
//
// An incarnation is one life of an object in memory:
//
//	          load, constructor                 idle, Evict
//	(nothing) ────────────────▶ live ─────────────────────────▶ evicted
//	              │              │ Abort, panic, Goexit, blocked for more than 30 s,
//	              │ fails        │ failed BlockConcurrencyWhile, failed commit
//	              ▼              ▼
//	             ended: turn rolled back, all in flight fail after what was
//	             committed is durable; the next call begins the next incarnation,
//	             which waits until this one has let go of its data
//
// The decisions are pure and each in one file: gate.go (who has the turn; its
// states are drawn there), claim.go (which attempts run, rules A and B of
// DESIGN 5) and ledger.go (which identities are written when, rules C and D).
// Around them: incarnation.go (a life), turn.go (a turn), state.go (what the
// object sees), fetch.go (http.Handlers), export.go
// (what an object gives away), host.go and stop.go (all objects).
//
// A turn is what an event does between taking and giving back the object. Its
// writes are one commit. It ends when the handler returns, when it calls through
// a stub, with Await and Sync, and, for a response that is sent in parts, with
// each part. An event whose goroutines have left the object several times at
// once takes it back when the last of them has returned.
package host
