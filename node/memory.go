package node

import (
	"math"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// memoryBytes is the memory this process may use: the machine's, or the Go
// memory limit if that is lower.
func memoryBytes() int64 {
	total := int64(8 << 30) // where the machine does not say
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		total = int64(info.Totalram) * int64(info.Unit) //nolint:gosec // below 2^63 on any machine
	}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		total = min(total, limit)
	}
	return total
}
