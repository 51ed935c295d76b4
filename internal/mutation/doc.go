// Package mutation breaks limpet's promise on purpose, in seven ways, so that
// bench/promise can show that its judge would see it: a proof that can't fail
// proves nothing. The zero Set is limpet as it is. Nobody outside of this module
// can set another, and a node that has one says so in its log.
//
//	mutation              what is left out                    where
//	────────────────────  ──────────────────────────────────  ─────────────────
//	claim-refusal-off     a claimed identity is refused       host, claim.go
//	claims-per-incarnation  a claim outlives the incarnation  host, incarnation.go
//	no-record             identities are durable before       host, turn.go
//	                      anything leaves (rule D)
//	writer-only           a record has the identities of all  host, turn.go
//	                      running calls (rule C)
//	unflagged-accepted    a first attempt is refused, too     host, claim.go
//	lost-not-delivered    a lost reply is uncertain           client, transport.go
//	early-acknowledgement outputs wait for the disk           host, host.go
package mutation
