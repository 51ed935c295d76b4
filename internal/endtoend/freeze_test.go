package endtoend

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/node"
)

// jump is the computer's clock, ahead; timers do not know: they fire late.
type jump struct{ ahead atomic.Int64 }

func (j *jump) Now() time.Time                                   { return time.Now().Add(time.Duration(j.ahead.Load())) }
func (j *jump) Since(t time.Time) time.Duration                  { return j.Now().Sub(t) }
func (j *jump) NewTimer(d time.Duration) limpet.Timer            { return jt{time.NewTimer(d)} }
func (j *jump) AfterFunc(d time.Duration, f func()) limpet.Timer { return jt{time.AfterFunc(d, f)} }

type jt struct{ t *time.Timer }

func (t jt) C() <-chan time.Time        { return t.t.C }
func (t jt) Stop() bool                 { return t.t.Stop() }
func (t jt) Reset(d time.Duration) bool { return t.t.Reset(d) }

// TestFrozenWhileDialing stops the world for two minutes while a retry connects:
// the node has forgotten the claim then, and the retry must not be sent.
func TestFrozenWhileDialing(t *testing.T) {
	clock := &jump{}
	w := open(t, func(c *node.Config) { c.Clock = clock })
	p := newProxy(t, w.addr)
	var dials atomic.Int64
	c := dial(t, p.addr(), client.Clock(clock), client.Network(func(_ context.Context, a string) (net.Conn, error) {
		if dials.Add(1) == 2 {
			clock.ahead.Store(int64(2 * time.Minute))
		}
		return net.Dial("tcp", a)
	}))
	s := shops(t, c).Named("x")
	p.cutDown.Store(1)
	_, err := limpet.Call1(t.Context(), s, Shop.Add, 1)
	// SPEC E12
	if limpet.DeliveryOf(err) != limpet.DeliveryUncertain || dials.Load() != 2 || w.g.runs.Load() != 1 {
		t.Errorf("the call gives %v after %d connections and %d runs", err, dials.Load(), w.g.runs.Load())
	}
}
