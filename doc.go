// Package limpet runs durable objects: named units of state and code that live
// on one's own machines, each with a private SQLite database, each running one
// event at a time, each existing once.
//
// A class is written as a Go type with methods; a stub is a caller's handle to
// one object of it:
//
//	stub ──call──▶ engine ──attempt──▶ transport ──▶ object's inbox
//	  ▲                │  retries, one identity          │ claim
//	  │                ▼                                 ▼ handler (one at a time)
//	outcome ◀── delivery decides ◀── output gate ◀── commit, one shared fsync
//
// limpet retries a failed call by itself under one promise: a method never runs
// twice because of a retry, unless its author marked it with [Retryable].
//
// This package holds the words and the public API: classes ([NewClass]),
// namespaces ([NamespaceOf]), typed calls ([Do1], [Call1] and their sisters),
// what an object sees of its own state ([State]), identities ([ID]) and the one
// error type ([Error]). A program opens a node with package node.
//
// Numbers such as "SPEC E27" name the rules listed in docs/spec-rules.txt. How
// Go values are carried is told in docs/VALUES.md, the HTTP door in docs/HTTP.md.
//
// What is marked "For limpet's own packages" is exported because they need it;
// programs do not, and it may change.
package limpet
