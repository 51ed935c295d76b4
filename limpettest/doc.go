// Package limpettest gives the tests of a program that uses limpet a whole node
// in one line: the same engine, host and store as in production, on a disk in
// memory that remembers what was synced, and a network that fails when told to.
//
//	n := limpettest.Start(t, CartClass)
//	carts, err := limpet.NamespaceOf[*Cart](n, "CART")
//
// The node ends with the test. Tests may run in parallel, each with nodes of its
// own. Evict drops an object from memory, Crash cuts the node's power, Restart
// stops it properly and starts it again:
//
//	Start ──▶ up ──Crash──▶ down ──Restart──▶ up
//	          │  ▲
//	          └──┘ Restart, Evict
//
// # Time
//
// The virtual clock is the bubble of testing/synctest: a node that is started inside
// synctest.Test takes all its time from there, so that its ten seconds of idleness,
// a minute of retries or 15 minutes of WaitUntil take none, and always the same.
// Outside of a bubble it runs on the computer's clock.
//
//	synctest.Test(t, func(t *testing.T) {
//		n := limpettest.Start(t, CartClass)
//		…
//		time.Sleep(time.Hour) // passes at once
//	})
//
// Namespaces and stubs of the node stay good over all of them; calls made while
// it is down fail as calls to a node that is not there.
//
// # The network
//
// Callers and objects share a process, where no answer can be lost. Node.Network
// puts a network between them, with faults that strike chosen attempts:
//
//	net := n.Network()
//	net.Inject(limpettest.DropReply(limpettest.Method("addOne"), limpettest.Times(1)))
//
//	             caller                network                 object    the caller knows
//	Refuse         ✗                                                     not delivered
//	Drain          ──────────────────────▶ ✗ "the node is stopping"      not delivered
//	DropRequest    ──────────────────────▶ ✗                             uncertain
//	DropReply      ─────────────────────────────────────────────▶ runs
//	                                       ✗ ◀─────────────────────      uncertain
//	CutAfter       ── so many bytes ─▶ ✗   either way                    uncertain, or a body that breaks
//	Freeze, Delay  ────────── … ────────────────────────────────▶ runs   late; uncertain after PingDeadline of Freeze
//	CutConnection  ──────────────────────▶ ✗ and so do all others        uncertain, each of them
//	Reorder        ──────── ✗ … its retry ─────────────────────▶ runs    uncertain, then the retry's answer
//	                          … ───────────────────────────────▶ refused
//
// Each attempt is as if on a connection of its own, but for CutConnection. Arguments, results and
// errors cross as bytes, calls carry identities that objects claim, and retries
// happen as SPEC E says, also over a Crash and Restart: a call to a node that is
// down is not delivered and tried again. Calls of objects to each other and those
// of the HTTP door cross the network too.
package limpettest
