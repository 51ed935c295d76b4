package dispatch

import (
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// clock is the bubble's, counting timers if asked to.
type clock struct {
	sim.Clock
	timers *int
}

func (c clock) NewTimer(d time.Duration) limpet.Timer {
	if c.timers != nil {
		*c.timers++
	}
	return c.Clock.NewTimer(d)
}

func (c clock) AfterFunc(d time.Duration, f func()) limpet.Timer {
	if c.timers != nil {
		*c.timers++
	}
	return c.Clock.AfterFunc(d, f)
}
