// Package limpettest gives the tests of a program that uses limpet a whole node
// in one line: the same engine, host and store as in production, on a disk in
// memory that remembers what was synced.
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
// A node also runs inside a testing/synctest bubble, where its ten seconds of
// idleness or its minute of retries take no time.
//
// Namespaces and stubs of the node stay good over all of them; calls made while
// it is down fail as calls to a node that is not there.
package limpettest
