// Package wire is the protocol between processes: calls both ways over one TCP
// connection to a node. frame.go tells every frame and its bytes.
//
// # A connection
//
//	dialer (Session)                         acceptor (Server)
//	   │ TLS 1.3, both with certificates; or plaintext on one machine
//	   │ HELLO ───────────────────────────────────▶ │  versions, process, limits
//	   │ ◀─────────────────────────────────── HELLO │
//	   │ CALL 1 ──────────────────────────────────▶ │
//	   │ DATA 1 (arguments) END ──────────────────▶ │  the method runs
//	   │ CALL 3 (fetch) ──────────────────────────▶ │  the handler runs
//	   │ ◀───────────── RESULT 1, DATA 1 (value) END │
//	   │ DATA 3 … ────────────────────────────────▶ │
//	   │ ◀──────────────────────────────── WINDOW 3 │
//	   │ ACK 1 ───────────────────────────────────▶ │  its claim may go
//	   │ ◀───────────────── RESPONSE 3, DATA 3 … END │
//	   │ ◀────────────────────────────────── CALL 2 │  the acceptor calls back
//	   │ RESULT 2, DATA 2 END ────────────────────▶ │
//	   │ PING, PONG both ways every 5 s             │
//	   │ ◀──────────────────────────────── GOAWAY 3 │  drain: 3 is the last
//
// Both sides make calls (duplex.go): the dialer's have odd numbers. A drain ends
// new calls of objects; calls under way, and those they lead to in the other
// direction, go on, and with the last of them the connection ends.
//
// Calls are independent of each other: each has its own windows (flow.go), and
// what a peer makes the other side hold is bounded whatever it sends. CANCEL ends
// a call whose caller has gone.
//
// # Capabilities
//
// Stubs, functions and byte streams travel as descriptors beside a value
// (descriptor.go). Whoever sends one keeps it in the table of exports until the
// other side gives it back; the other side calls it as it calls an object, reads
// it as it reads a body, and never again (capability.go):
//
//	caller                                            node
//	   │ CALL 1 with export 1 ───────────────────────▶ │
//	   │ ◀────────────────────── CALL 2 of your 1 ──── │  the argument is called
//	   │ RESULT 2 ───────────────────────────────────▶ │
//	   │ ◀──────────── RESULT 1 with export 1, a stream│
//	   │ ◀──────────────────────────────── RELEASE 1 ─ │  the argument, SPEC B39
//	   │ CALL 3, read your 1 ────────────────────────▶ │
//	   │ ◀───────────────────── RESULT 3, DATA 3 … END │
//	   │ RELEASE 1 ──────────────────────────────────▶ │
//
// RELEASE goes behind everything that was sent before and may name it; when the
// connection ends everything is released. An id is never given twice. One that
// was never given ends the connection; one that was given back is answered with
// CodeDisposed, since the two may have crossed. Both tables are bounded, for a
// connection and for all of a node.
//
// A call can be made on the result of one that is under way (promise.go).
//
// # What is known when a call fails
//
// The transport decides, not a text:
//
//	nothing of it was handed to Write            not delivered
//	above the number of a GOAWAY                 not delivered
//	handed to Write, connection ended, no        uncertain
//	  outcome
//	an outcome's frame came                      received, unless it says that the
//	                                             call was refused before it was taken
//	a body that was begun can't be read on       received
//
// A connection has ended when a read or write fails, when nothing was heard for
// 10 s (keepalive.go), or when the peer breaks the protocol. Nothing that was read
// after such a silence is looked at: a process that was frozen does not act on
// what waited for it.
//
// # A claim's refusal
//
// is a bit of a failure, never a code or text that an object could produce
// (SPEC F17).
package wire
