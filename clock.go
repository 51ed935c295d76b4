package limpet

import "time"

// Clock is where all of limpet's waiting and reading of time goes through, so
// that tests can own time. Implementations are safe for concurrent use.
//
// Now carries a monotonic reading; differences of two Now values of one process
// do not jump when the wall clock is set.
type Clock interface {
	// Now is the current time.
	Now() time.Time
	// NewTimer sends the time once on its channel after d; a d of zero or less
	// fires at once.
	NewTimer(d time.Duration) Timer
	// AfterFunc calls f on a goroutine of its own after d.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is one pending wait of a Clock.
type Timer interface {
	// C is the channel of a NewTimer timer, nil for AfterFunc.
	C() <-chan time.Time
	// Stop ends the wait; false when it has fired or was stopped. After Stop
	// returns nothing is received from C, as with time.Timer.
	Stop() bool
	// Reset starts the wait anew with d, as time.Timer's does.
	Reset(d time.Duration) bool
}
