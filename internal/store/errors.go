package store

import (
	"errors"
	"fmt"
)

// Sentinels of this package, matched with errors.Is.
var (
	// ErrStorageFull says that the disk has no room for the next segment of
	// the commit log. The commit that got it was not made; the object is as it
	// was before its turn. The log tries again every second.
	ErrStorageFull = errors.New("storage full")

	// ErrLost says that a write or sync of the commit log failed. What was
	// appended and is not durable may or may not be on the disk; only a
	// restart, which reads the disk, can tell. It stays until the process ends.
	ErrLost = errors.New("commit log lost")

	// ErrClosed comes from a log or store after Close.
	ErrClosed = errors.New("store is closed")

	// ErrTooLarge is matched by every *LimitError.
	ErrTooLarge = errors.New("over a size limit")
)

// LimitError says that something is larger than a limit of the store. Nothing
// was written. It matches ErrTooLarge.
type LimitError struct {
	What   string // "commit record", "key"
	Size   int64  // bytes it has; negative if nobody knows
	Limit  int64  // bytes it may have
	Remedy string // what to do instead
}

func (e *LimitError) Error() string {
	if e.Size < 0 {
		return fmt.Sprintf("%s is over the limit of %d bytes: %s", e.What, e.Limit, e.Remedy)
	}
	return fmt.Sprintf("%s of %d bytes is over the limit of %d bytes: %s", e.What, e.Size, e.Limit, e.Remedy)
}

// Is makes errors.Is(err, ErrTooLarge) true.
func (e *LimitError) Is(target error) bool { return target == ErrTooLarge }

// DamageError says that a file of the data directory does not hold what was
// written to it. The store does not open: it never guesses what was there.
type DamageError struct {
	File   string // path as given to the file system
	Offset int64  // byte in File where the damage was met; -1 when it is the file as a whole
	Reason string
	Remedy string
}

func (e *DamageError) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("%s is damaged: %s; %s", e.File, e.Reason, e.Remedy)
	}
	return fmt.Sprintf("%s is damaged at byte %d: %s; %s", e.File, e.Offset, e.Reason, e.Remedy)
}

// remedyRestore is what an operator does about damage that no rule can repair.
const remedyRestore = "restore the data directory from a backup, or put back the file as it was"

// FormatError says that a file was written by a newer limpet than this one.
type FormatError struct {
	File  string
	What  string // "segment", "record section 12"
	Found uint64 // format number in the file
	Max   uint64 // newest this limpet reads
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s was written by a newer limpet: %s has format %d, this one reads up to %d; use that limpet or a newer one", e.File, e.What, e.Found, e.Max)
}
