// Package invariant checks, in builds made for tests, what must always hold.
//
// It is on with the build tag limpet_invariants and in every -race build, and
// off otherwise; off, it costs nothing but the evaluation of the arguments.
//
//	go test -tags limpet_invariants ./...
//
// An invariant is about our own code. Bad input, a bad configuration, a bad
// peer and a bad disk are not broken invariants and never come here: they are
// errors. Where a broken invariant could harm an object's data, production code
// must also have its own check that fences the incarnation, since here nothing
// happens in a production build.
package invariant
