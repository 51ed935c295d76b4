package dispatch

import (
	"fmt"
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

// ReplayMemory is the state of the memory that holds arguments and buffered
// bodies for retries, in bytes (SPEC I7).
type ReplayMemory struct {
	Used, Limit, PerCall int64
	// Refused counts the calls that found no room since the engine was made.
	Refused int64
}

// replayPool counts the memory that keeps arguments and bodies for retries.
type replayPool struct {
	limit, perCall int64
	used           atomic.Int64
	refused        atomic.Int64
}

// reserve takes room for a call's arguments: their size, 1 KiB, the name and the
// path (SPEC G20). why says that there is none, and why; then nothing was taken.
func (p *replayPool) reserve(c *limpet.CallSpec) (n int64, why string) {
	size := int64(c.Runner.Size())
	n = size + replayOverhead + int64(len(c.Method))
	for _, name := range c.Path {
		n += int64(len(name))
	}
	switch {
	case size > p.perCall:
		why = fmt.Sprintf("the arguments of %d bytes are larger than the %d bytes of replay memory that a call may have", size, p.perCall)
	case !p.take(n):
		why = p.full()
	default:
		return n, ""
	}
	return 0, why
}

// take takes n bytes, if there are so many.
func (p *replayPool) take(n int64) bool {
	for {
		used := p.used.Load()
		if used+n > p.limit {
			return false
		}
		if p.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

func (p *replayPool) full() string {
	return fmt.Sprintf("the replay memory is full: %d of %d bytes are in use", p.used.Load(), p.limit)
}

func (p *replayPool) release(n int64) { p.used.Add(-n) }
