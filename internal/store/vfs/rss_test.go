package vfs_test

import (
	"fmt"
	"os"
	"runtime/debug"
)

// readRSS returns the resident memory of the process in bytes, on Linux.
func readRSS() (int64, error) {
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0, err
	}
	return resident * int64(os.Getpagesize()), nil
}
