package measure

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of CPU times in /proc.
const tick = 10 * time.Millisecond

// usage is CPU time spent so far.
type usage struct {
	worker  time.Duration // by the process that does the work
	own     time.Duration // by this process, if it is another one
	machine time.Duration // by all, not idle
	known   bool          // machine is known
}

func readUsage(pid int) usage {
	var u usage
	if pid == 0 || pid == os.Getpid() {
		u.worker = CPU()
	} else {
		u.worker, u.own = processCPU(pid), CPU()
	}
	u.machine, u.known = machineCPU()
	return u
}

func (u usage) others(before usage, elapsed time.Duration) float64 {
	if !u.known || !before.known {
		return -1
	}
	spent := (u.machine - before.machine) - (u.worker - before.worker) - (u.own - before.own)
	return max(0, spent.Seconds()/elapsed.Seconds())
}

// CPU is the CPU time that this process has spent so far on all cores.
func CPU() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// processCPU is the CPU time of a process, 0 if the system does not tell.
func processCPU(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * tick
}

func machineCPU() (time.Duration, bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var busy int64
	for i, v := range strings.Fields(line)[1:] {
		if i == 3 || i == 4 || i >= 8 { // idle, waiting for the disk, guests
			continue
		}
		n, _ := strconv.ParseInt(v, 10, 64)
		busy += n
	}
	return time.Duration(busy) * tick, true
}

// RSS is the resident memory of this process in bytes, 0 if the system does not
// tell.
func RSS() int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

// Files is the number of file descriptors that this process has open, 0 if the
// system does not tell.
func Files() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries) - 1 // the one of ReadDir
}

// Machine says what the numbers were made on, in one line.
func Machine() string {
	return fmt.Sprintf("%s, %d cores, %s/%s, %s", runtime.Version(), runtime.GOMAXPROCS(0), runtime.GOOS, runtime.GOARCH,
		time.Now().Format(time.DateOnly))
}
