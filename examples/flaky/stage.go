package main

import (
	"fmt"
	"os"
	"slices"
)

// stage is what limpettest needs of a test, for a program that is none.
type stage struct {
	cleanups []func()
	failed   bool
}

// Helper does nothing: there is no test to be named.
func (s *stage) Helper() {}

// Cleanup keeps f for close.
func (s *stage) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

// Failed reports whether Errorf was called.
func (s *stage) Failed() bool { return s.failed }

// Logf tells something on the standard error.
func (s *stage) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Errorf tells a failure; the program ends with exit code 1.
func (s *stage) Errorf(format string, args ...any) {
	s.failed = true
	s.Logf(format, args...)
}

// Fatalf tells a failure and ends the program.
func (s *stage) Fatalf(format string, args ...any) {
	s.Logf(format, args...)
	os.Exit(1)
}

// close stops the nodes, the newest first.
func (s *stage) close() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}
