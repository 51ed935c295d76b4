package node

import (
	"math"
	"runtime/debug"
)

// unknownMemory is assumed of a machine that does not say how much it has.
const unknownMemory = 8 << 30

// memoryBytes is the memory this process may use: the machine's, or the Go
// memory limit if that is lower.
func memoryBytes() int64 {
	total := machineMemory()
	if total <= 0 {
		total = unknownMemory
	}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		total = min(total, limit)
	}
	return total
}
