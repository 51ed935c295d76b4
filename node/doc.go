// Package node opens a limpet node: one data directory, the classes of one
// program, and everything that runs their objects. It wires the packages below
// and owns the order in which they start and stop.
//
//	n, err := node.Open(ctx, node.Config{Dir: "data", Classes: []*limpet.Class{CartClass}})
//	carts, err := limpet.NamespaceOf[*Cart](n, "CART")
//
// Start: directory locked ─▶ log replayed ─▶ classes registered ─▶ host ─▶ engine ─▶ doors.
// Stop (Close, or Serve on SIGTERM):
//
//	open ──Drain──▶ draining ──────────────▶ drained ──Close──▶ closed
//	                the door answers 503               log flushed, directory unlocked
//	                queued calls refused, not delivered
//	                claimed calls get 30 s, then WaitUntil what is left
package node
