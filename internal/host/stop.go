package host

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// sweepOn starts the scanner for idle objects, which runs while there are any.
func (h *Host) sweepOn() {
	h.sweepMu.Lock()
	defer h.sweepMu.Unlock()
	if h.sweep == nil && !h.closed {
		h.coarse.Store(h.now())
		h.sweep = h.clock.AfterFunc(h.limits.Idle/20, h.sweepOnce)
	}
}

// sweepOnce evicts what has been idle for long enough. The time of an event's
// end is known to within one round, so that one round more makes it enough.
func (h *Host) sweepOnce() {
	h.sweepRun.Lock() // Close waits for it
	defer h.sweepRun.Unlock()
	if h.swept {
		return
	}
	now := h.now()
	h.coarse.Store(now)
	round := h.limits.Idle / 20
	h.each(func(inc *incarnation) { inc.evict(now, int64(h.limits.Idle+round)) })
	h.sweepMu.Lock()
	defer h.sweepMu.Unlock()
	switch {
	case h.closed:
	case h.count.Load() == 0:
		h.sweep = nil
	default:
		h.sweep.Reset(round)
	}
}

// Relieve evicts a quarter of the objects in memory, or more of them while there are
// few, as far as they have nothing to do: those that were used longest ago. It is
// for when memory is short.
func (h *Host) Relieve() {
	h.sweepRun.Lock()
	defer h.sweepRun.Unlock()
	if h.swept {
		return
	}
	type idle struct {
		inc  *incarnation
		last int64
	}
	var all []idle
	h.each(func(inc *incarnation) {
		inc.mu.Lock()
		all = append(all, idle{inc, inc.lastUsed})
		inc.mu.Unlock()
	})
	slices.SortFunc(all, func(a, b idle) int { return cmp.Compare(a.last, b.last) })
	left := len(all)/4 + 16
	for _, i := range all {
		if left == 0 {
			break
		}
		if i.inc.evict(0, 0) {
			left--
		}
	}
}

// watchLost ends every incarnation when the log has failed: what they have in
// memory rests on what may be lost.
func (h *Host) watchLost() {
	select {
	case <-h.storage.Lost():
		h.log.Error("the commit log failed; every object is dropped from memory")
		h.each(func(inc *incarnation) {
			e := inc.lostError()
			inc.end(e, e)
		})
	case <-h.stop:
	}
}

// Drain refuses calls that were not claimed yet, and new ones from outside, as
// not delivered (SPEC F22), and waits for those that run, for the calls they
// make, and for functions given to WaitUntil. It returns when nothing runs any
// more, or with the cause of ctx and the number of objects that are at work.
func (h *Host) Drain(ctx context.Context) error {
	h.draining.Store(true)
	h.each(func(inc *incarnation) { inc.drain() })
	for {
		busy := 0
		var err error
		h.each(func(inc *incarnation) {
			if err != nil {
				return
			}
			inc.mu.Lock()
			if inc.gate.ended || inc.gate.quiet() {
				inc.mu.Unlock()
				return
			}
			busy++
			if inc.quiet == nil {
				inc.quiet = make(chan struct{})
			}
			quiet := inc.quiet
			inc.mu.Unlock()
			select {
			case <-quiet:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		})
		if err != nil {
			return fmt.Errorf("%w (objects still at work: %d)", err, h.busy())
		}
		if busy == 0 {
			return nil
		}
	}
}

// busy counts the objects at which something runs or waits.
func (h *Host) busy() (n int) {
	h.each(func(inc *incarnation) {
		inc.mu.Lock()
		defer inc.mu.Unlock()
		if !inc.gate.ended && !inc.gate.quiet() {
			n++
		}
	})
	return n
}

func (inc *incarnation) drain() {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	for _, e := range inc.gate.step(0, inDrain, nil, 0).failed {
		inc.unqueued(e)
		e.ev.settle(nil, drainError(inc.id), Pos{})
	}
	inc.quietLocked()
}

// Close ends everything: what still runs is rolled back and fails as received,
// what is queued as not delivered. It returns when no goroutine of the host is
// left, or with the cause of ctx: Go can't stop a handler that does not look at
// its context. Calls fail from now on.
func (h *Host) Close(ctx context.Context) error {
	h.draining.Store(true)
	h.sweepMu.Lock()
	if !h.closed {
		h.closed = true
		close(h.stop)
		if h.sweep != nil {
			h.sweep.Stop()
		}
	}
	h.sweepMu.Unlock()
	h.sweepRun.Lock() // waits for a sweep under way
	h.swept = true
	h.sweepRun.Unlock()
	for n := 1; n > 0; {
		n = 0
		h.each(func(inc *incarnation) {
			n++
			if !inc.evict(0, 0) {
				inc.end(stopError(inc.id), drainError(inc.id))
			}
			select {
			case <-inc.closed:
			case <-ctx.Done():
			}
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	h.pool.Close()
	over := make(chan struct{})
	go func() { // ends with the last goroutine of the pool
		h.pool.Wait()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *Host) isStopped() bool {
	select {
	case <-h.stop:
		return true
	default:
		return false
	}
}
