package dispatch

import (
	"sync/atomic"

	"github.com/limpet-dev/limpet"
)

// Defaults of the replay memory (SPEC G23).
const (
	DefaultReplayMemory        = 64 << 20
	DefaultReplayMemoryPerCall = 32 << 20
)

// replayOverhead is what a reservation counts beside the arguments (SPEC G20).
const replayOverhead = 1 << 10

// ReplayMemory is the state of the memory that holds arguments for retries, in
// bytes (SPEC I7).
type ReplayMemory struct {
	Used, Limit int64
	// Refused counts the calls that found no room since the engine was made.
	Refused int64
}

// replayPool counts the memory that keeps arguments for retries.
type replayPool struct {
	limit, perCall int64
	used           atomic.Int64
	refused        atomic.Int64
}

// reserve takes room for a call's arguments: their size, 1 KiB and the name
// (SPEC G20). ok is false when there is none; then nothing was taken.
func (p *replayPool) reserve(c *limpet.CallSpec) (n int64, ok bool) {
	size := int64(c.Runner.Size())
	n = size + replayOverhead + int64(len(c.Method))
	for size <= p.perCall {
		used := p.used.Load()
		if used+n > p.limit {
			break
		}
		if p.used.CompareAndSwap(used, used+n) {
			return n, true
		}
	}
	p.refused.Add(1)
	return 0, false
}

func (p *replayPool) release(n int64) { p.used.Add(-n) }
