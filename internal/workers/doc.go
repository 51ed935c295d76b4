// Package workers runs work on goroutines that are used again: those have the
// stack already that handlers and SQLite need, which a new one must grow into.
//
//	open ──Close──▶ closed ──last goroutine ended──▶ over
package workers
