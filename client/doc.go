// Package client calls the objects of a node from a program that is none: over
// the network, with the same namespaces, stubs and retries as inside the node.
//
//	c, err := client.Dial(ctx, []string{"10.0.0.7:7070"}, client.TLSFiles("me.pem", "me.key", "ca.pem"))
//	carts, err := limpet.NamespaceOf[Cart](c, "CART") // an interface of the methods, or *Cart
//	n, err := limpet.Call1(ctx, carts.Named("user-123"), Cart.AddOne, "item-1")
//
// A Client holds one connection, to the first of its addresses that answers, and
// makes a new one when that is lost or the node drains:
//
//	             a call needs it, connected            lost, or GOAWAY
//	┌─────────┐ ─────────────────────────▶ ┌───────────┐ ─────────────▶ not connected
//	│ not     │                            │ connected │    calls under way end as
//	│ connect-│ ◀── nobody answers: the    └───────────┘    internal/wire says; calls
//	│ ed      │     attempt was not                         that the node took before
//	└─────────┘     delivered, and is                       GOAWAY get their outcome
//	                retried
//
// The addresses are of one node. One that turns out to lead to another node, with
// other data, is refused, with an error that names both.
//
// Stubs, functions and byte streams may be arguments and results, and calls may be
// made on a result that is not there yet (Stub.Start): they go out behind the call
// that brings it, without a round trip. What the program passes on is called back
// over the same connection, on goroutines of the client; Close waits for them, so
// that a function which the node calls must not call Close. What a node has given
// lives as long as the connection it came by: when that is lost, stubs fail with
// CodeDisconnected and are never retried (SPEC E58), and what the program gave is
// disposed of. A connection carries at most 10,000 of them each way that were not
// closed; a call that needs more fails with CodeOverloaded.
//
// Not supported in this version: WebSocket upgrades.
package client
