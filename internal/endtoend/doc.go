// Package endtoend has only tests: programs that call a node over real sockets, with
// real processes that are killed, and proxies that cut connections. They stand
// apart because they need both node and client, which must not know each other.
//
//	client ──▶ proxy (cuts at a byte) ──▶ node, in this process or a child
package endtoend
