package sim

import (
	"time"

	"github.com/limpet-dev/limpet"
)

// Clock is a limpet.Clock over package time. Inside a testing/synctest bubble
// its time is the bubble's, which moves only when every goroutine of the bubble
// waits; outside it is the computer's. The zero value is ready, and safe for
// concurrent use.
type Clock struct{}

// Now is the bubble's time.
func (Clock) Now() time.Time { return time.Now() } //nolint:forbidigo // the clock of tests

// Since is the time that has passed since t, read faster than by Now.
func (Clock) Since(t time.Time) time.Duration { return time.Since(t) } //nolint:forbidigo // the clock of tests

// NewTimer sends the time once after d.
func (Clock) NewTimer(d time.Duration) limpet.Timer { return timer{time.NewTimer(d)} } //nolint:forbidigo // the clock of tests

// AfterFunc calls f on a goroutine of its own after d.
func (Clock) AfterFunc(d time.Duration, f func()) limpet.Timer { return timer{time.AfterFunc(d, f)} } //nolint:forbidigo // the clock of tests

type timer struct{ t *time.Timer }

func (t timer) C() <-chan time.Time        { return t.t.C }
func (t timer) Stop() bool                 { return t.t.Stop() }
func (t timer) Reset(d time.Duration) bool { return t.t.Reset(d) }
