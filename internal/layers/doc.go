// Package layers holds the tests that keep the tree in order. It has no code
// for programs.
//
//	5  cmd/limpet   examples/*   limpettest   bench/*
//	4  node   client
//	3  internal/host   internal/gateway   internal/admin
//	2  internal/dispatch  internal/wire  internal/store  internal/js  internal/config  internal/cluster
//	1  internal/value   internal/sim
//	0  limpet (root)   internal/invariant   internal/layers
//
// Imports go strictly down, never sideways. A package below another one's
// folder (internal/store/vfs) has its parent's layer and serves its parent
// only. The rules, each with a test that shows it caught:
//
//   - a package stands in the table of table_test.go, or the test fails;
//   - imports go to lower layers, or from a parent to its own subpackage;
//   - code for tests (internal/sim) is imported by tests, limpettest and bench;
//   - root, dispatch and invariant import no third party, the others only
//     those that the table gives them; tests may use the test libraries;
//   - unsafe stands in internal/store/vfs and internal/js/qjs only, cgo nowhere;
//   - a package has one package comment, in doc.go (a program may have it in
//     main.go), with no blank line before the package clause;
//   - nothing is called util, common, manager or helper.
//
// Files are read with go/parser and not by a child `go list`, which the test
// cache would not see.
//
// TestSpecRules compares docs/spec-rules.txt with the rules that tests cite
// (`// SPEC E27`): run it with -v to see which rules have no test yet.
package layers
