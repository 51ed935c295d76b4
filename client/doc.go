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
// Not supported in this version: stubs, functions and streams as arguments and
// results, pipelining (Stub.Start), WebSocket upgrades.
package client
