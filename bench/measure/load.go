package measure

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Load is a closed loop: each caller starts its next operation when the last one
// has ended. It ends after Time or after Max operations, whichever is first.
type Load struct {
	Callers int
	Time    time.Duration
	Max     int64  // 0 means no bound by count
	Seed    uint64 // of the callers' random numbers
	// PID is the process that does the work, for Result.CPU; 0 means this one.
	PID int
	// Op does one operation for a caller, 0 to Callers-1; r is that caller's own.
	Op func(caller int, r *rand.Rand) error
}

// Result is what one Load gave.
type Result struct {
	Ops     int64
	Elapsed time.Duration
	Latency *Latencies
	// CPU is the time that all cores together spent in the process of Load.PID.
	CPU time.Duration
	// Own is that of this process, if the work is done by another one.
	Own time.Duration
	// Others is how many cores were kept busy by other processes than this one
	// and that of Load.PID; negative if the system does not tell.
	Others float64
}

// Rate is operations a second.
func (r Result) Rate() float64 { return float64(r.Ops) / r.Elapsed.Seconds() }

// CPUPerOp is CPU for each operation.
func (r Result) CPUPerOp() time.Duration { return r.CPU / time.Duration(max(r.Ops, 1)) }

// Run runs the loop. The first failed operation ends it and is returned.
func (l Load) Run(ctx context.Context) (Result, error) {
	if l.Callers < 1 || l.Time <= 0 {
		return Result{}, errors.New("a load needs at least one caller and some time")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var stop atomic.Bool
	var taken atomic.Int64
	parts := make([]Latencies, l.Callers)
	var wg sync.WaitGroup
	before := readUsage(l.PID)
	start := time.Now()
	timer := time.AfterFunc(l.Time, func() { stop.Store(true) })
	defer timer.Stop()
	for caller := range l.Callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(l.Seed, uint64(caller)))
			part := &parts[caller]
			for !stop.Load() && ctx.Err() == nil {
				if l.Max > 0 && taken.Add(1) > l.Max {
					return
				}
				t := time.Now()
				if err := l.Op(caller, r); err != nil {
					cancel(err)
					return
				}
				part.Add(time.Since(t))
			}
		})
	}
	wg.Wait()
	res := Result{Elapsed: time.Since(start), Latency: &Latencies{}}
	after := readUsage(l.PID)
	if err := context.Cause(ctx); err != nil {
		return Result{}, err
	}
	for i := range parts {
		res.Latency.Merge(&parts[i])
	}
	res.Ops = int64(res.Latency.Count())
	res.CPU, res.Own = after.worker-before.worker, after.own-before.own
	res.Others = after.others(before, res.Elapsed)
	return res, nil
}

// Order is the order of n sides in a round: each round begins with another one,
// and every other one goes backwards, so that no side always follows the same.
func Order(round, n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = (round + i) % n
	}
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}
