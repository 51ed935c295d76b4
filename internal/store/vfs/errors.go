package vfs

import (
	"errors"
	"fmt"

	"zombiezen.com/go/sqlite"
)

var (
	// ErrFull says that there is no room for the pages or the record. SQLITE_FULL.
	ErrFull = errors.New("database or disk is full")
	// ErrTooBig says that a string, blob, statement or commit exceeds a limit. SQLITE_TOOBIG.
	ErrTooBig = errors.New("value or commit is too big")
	// ErrInterrupt says that the channel given to Conn.SetInterrupt was closed. SQLITE_INTERRUPT.
	ErrInterrupt = errors.New("interrupted")
	// ErrCorrupt says that SQLite or this package found the pages inconsistent. SQLITE_CORRUPT, SQLITE_NOTADB.
	ErrCorrupt = errors.New("database is corrupt")
	// ErrOpen says that the pages have an open connection; a second one would silently diverge.
	ErrOpen = errors.New("database is already open")
	// ErrBroken says that the connection was reverted, or a callback panicked; only Close is left.
	ErrBroken = errors.New("connection is broken, only Close is left")
	// ErrClosed says that the connection is closed.
	ErrClosed = errors.New("connection is closed")
	// ErrMalformed says that a page diff or an image does not follow the format.
	ErrMalformed = errors.New("malformed page diff or image")

	errGoexit = errors.New("runtime.Goexit")
)

// Error is an error of SQLite with the reason that this package or the Sink
// had for it. errors.Is finds ErrFull, ErrTooBig, ErrInterrupt and ErrCorrupt by the
// code, and whatever the Sink returned by the cause.
type Error struct {
	Code  sqlite.ResultCode // extended result code
	Err   error             // as SQLite told it
	Cause error             // what a Sink or this package refused with; nil when SQLite failed by itself
}

func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%v: %v", e.Err, e.Cause)
	}
	return e.Err.Error()
}

// Unwrap returns the error of SQLite and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// Is reports whether the result code stands for target.
func (e *Error) Is(target error) bool {
	switch e.Code.ToPrimary() {
	case sqlite.ResultFull:
		return target == ErrFull
	case sqlite.ResultTooBig:
		return target == ErrTooBig
	case sqlite.ResultInterrupt:
		return target == ErrInterrupt
	case sqlite.ResultCorrupt, sqlite.ResultNotADB:
		return target == ErrCorrupt
	}
	return false
}

// PanicError is a panic of a Sink, or of this package, inside a callback of
// SQLite. It was stopped there, since it must not unwind transpiled code that
// may hold locks; the transaction was reverted and the connection is broken.
type PanicError struct {
	Value any    // what was given to panic
	Stack []byte // of the goroutine, as debug.Stack prints it
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic in a storage callback: %v", e.Value) }

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() []error {
	if err, ok := e.Value.(error); ok {
		return []error{ErrBroken, err}
	}
	return []error{ErrBroken}
}
