//go:build !linux

package node

// machineMemory is the machine's memory in bytes, 0 where it does not say.
func machineMemory() int64 { return 0 }
