package client

import (
	"time"

	"github.com/limpet-dev/limpet"
)

// systemClock is the computer's own clock. Inside a testing/synctest bubble it
// is the bubble's.
type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

// Since reads the monotonic clock alone, which costs half of Now.
func (systemClock) Since(t time.Time) time.Duration { return time.Since(t) }

func (systemClock) NewTimer(d time.Duration) limpet.Timer { return systemTimer{time.NewTimer(d)} }

func (systemClock) AfterFunc(d time.Duration, f func()) limpet.Timer {
	return systemTimer{time.AfterFunc(d, f)}
}

type systemTimer struct{ t *time.Timer }

func (t systemTimer) C() <-chan time.Time        { return t.t.C }
func (t systemTimer) Stop() bool                 { return t.t.Stop() }
func (t systemTimer) Reset(d time.Duration) bool { return t.t.Reset(d) }
