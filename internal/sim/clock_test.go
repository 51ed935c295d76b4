package sim_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

func TestClockInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c limpet.Clock = sim.Clock{}
		start := c.Now()
		tm := c.NewTimer(time.Hour)
		at := <-tm.C()
		if got := at.Sub(start); got != time.Hour {
			t.Errorf("timer sent %v after the start, want 1h", got)
		}
		if tm.Stop() {
			t.Error("Stop of a timer that has fired: got true")
		}
		if got := (sim.Clock{}).Since(start); got != time.Hour {
			t.Errorf("Since the start: %v, want 1h", got)
		}
		tm.Reset(time.Minute)
		if !tm.Stop() {
			t.Error("Stop of a running timer: got false")
		}
		fired := make(chan time.Time, 1)
		f := c.AfterFunc(time.Second, func() { fired <- c.Now() })
		if f.C() != nil {
			t.Error("AfterFunc's timer has a channel")
		}
		if got := (<-fired).Sub(at); got != time.Second {
			t.Errorf("AfterFunc ran after %v, want 1s", got)
		}
		select {
		case <-tm.C():
			t.Error("a stopped timer fired")
		default:
		}
	})
}
