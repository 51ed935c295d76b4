package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// leaves returns the processes below pid that have no children, or pid itself:
// below `go run` that is the program, and a signal to it is what a service
// manager would send to an installed binary. (go run does not pass SIGTERM on.)
// Where there is no /proc, it returns -pid, the process group.
func leaves(pid int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return []int{-pid}
	}
	children := map[int][]int{}
	for _, s := range stats {
		text, err := os.ReadFile(s)
		if err != nil {
			continue // it has ended meanwhile
		}
		// "pid (name) state ppid ...", and the name may hold anything.
		i := strings.LastIndexByte(string(text), ')')
		f := strings.Fields(string(text[i+1:]))
		if i < 0 || len(f) < 2 || f[0] == "Z" {
			continue
		}
		child, err1 := strconv.Atoi(filepath.Base(filepath.Dir(s)))
		parent, err2 := strconv.Atoi(f[1])
		if err1 == nil && err2 == nil {
			children[parent] = append(children[parent], child)
		}
	}
	var found []int
	var walk func(int)
	walk = func(p int) {
		if len(children[p]) == 0 {
			found = append(found, p)
		}
		for _, c := range children[p] {
			walk(c)
		}
	}
	walk(pid)
	return found
}
