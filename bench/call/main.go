// Call measures what a call of a Go object costs in one process, without
// storage (DESIGN 13, P1).
//
//	go run ./bench/call
//	go run ./bench/call -quick
//
// It calls a method that adds a number to a field: directly, through an
// interface, as a typed call with retries on and off, by name, and from inside
// another object. The rows of a round follow each other within a second, in
// another order each time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/bench/measure"
	"github.com/limpet-dev/limpet/node"
)

func main() { measure.Main(run) }

type options struct {
	measure.Rounds
	only string
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	o := options{Rounds: measure.Rounds{N: 60, Time: 30 * time.Millisecond, QuickN: 3, QuickTime: 5 * time.Millisecond}}
	flags := flag.NewFlagSet("call", flag.ContinueOnError)
	flags.SetOutput(out)
	o.Flags(flags, "")
	o.ProfileFlag(flags, "the rounds")
	flags.StringVar(&o.only, "only", "", "the one row to run, for -profile")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := o.Check(); err != nil {
		return err
	}

	dir, err := os.MkdirTemp("", "limpet-bench-call-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n, err := node.Open(ctx, node.Config{Dir: dir, Classes: []*limpet.Class{adderClass}, IdleTimeout: time.Hour})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	adders, err := limpet.NamespaceOf[*adder](n, "ADDER")
	if err != nil {
		return err
	}
	rows := rowsOf(ctx, adders)
	if o.only != "" {
		var kept []*row
		for _, r := range rows {
			if r.name == o.only {
				kept = append(kept, r)
			}
		}
		if rows = kept; len(rows) == 0 {
			return fmt.Errorf("-only: no row is called %q", o.only)
		}
	}

	for _, r := range rows {
		if err := r.calibrate(o.Time); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	stop, err := o.Profile()
	if err != nil {
		return err
	}
	defer stop()
	err = o.Each(ctx, len(rows), func(_, i int) error {
		if err := rows[i].round(); err != nil {
			return fmt.Errorf("%s: %w", rows[i].name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	report(out, o, rows)
	return nil
}

// adder is the object: memory only.
type adder struct {
	st  *limpet.State
	sum int
}

var adderClass = limpet.NewClass("Adder", func(st *limpet.State) (*adder, error) { return &adder{st: st}, nil },
	limpet.Retryable((*adder).Set))

// Add is not marked.
//
//go:noinline
func (a *adder) Add(_ context.Context, n int) (int, error) {
	a.sum += n
	return a.sum, nil
}

// Set is marked, and takes a string, which is not copied.
func (a *adder) Set(_ context.Context, _ string, n int) error {
	a.sum = n
	return nil
}

// Relay makes n calls out of this object to the one with that name.
func (a *adder) Relay(ctx context.Context, to string, n int, retries bool) error {
	adders, err := limpet.NamespaceOf[*adder](a.st, "ADDER")
	if err != nil {
		return err
	}
	stub := adders.Named(to)
	if !retries {
		stub = adders.Named(to, limpet.NoRetries())
	}
	for range n {
		if _, err := limpet.Call1(ctx, stub, (*adder).Add, 1); err != nil {
			return err
		}
	}
	return nil
}

type directAdder interface {
	Add(ctx context.Context, n int) (int, error)
}

// Names of the rows that ratios and targets are made of.
const (
	rowDirect    = "direct method call"
	rowCall      = "Call1, retries on"
	rowCallOff   = "Call1, NoRetries"
	rowInner     = "object to object, retries on"
	rowInnerOff  = "object to object, NoRetries"
	rowDo        = "Do2, marked method"
	rowDoOff     = "Do2, NoRetries"
	rowInvoke    = "Invoke by name"
	rowCancel    = "Call1, context that can be cancelled"
	rowManyCalls = "Call1, all cores, an object each"
)

// row is one way to call.
type row struct {
	name string
	// do makes n calls.
	do func(n int) error

	n      int // calls in a round
	ns     measure.Spread
	cpu    measure.Spread // ns of all threads, the garbage collector's among them
	allocs measure.Spread
	bytes  measure.Spread
}

// rowsOf makes the rows; cancellable is a context that can end.
func rowsOf(cancellable context.Context, adders limpet.Namespace[*adder]) []*row {
	ctx := context.Background()
	var direct directAdder = &adder{}
	on, off := adders.Named("one"), adders.Named("one", limpet.NoRetries())
	relay := adders.Named("relay")
	call := func(ctx context.Context, stub *limpet.Stub[*adder]) func(int) error {
		return func(n int) error {
			for range n {
				if _, err := limpet.Call1(ctx, stub, (*adder).Add, 1); err != nil {
					return err
				}
			}
			return nil
		}
	}
	do := func(stub *limpet.Stub[*adder]) func(int) error {
		return func(n int) error {
			for i := range n {
				if err := limpet.Do2(ctx, stub, (*adder).Set, "item-1", i); err != nil {
					return err
				}
			}
			return nil
		}
	}
	inner := func(retries bool) func(int) error {
		return func(n int) error { return limpet.Do3(ctx, relay, (*adder).Relay, "one", n, retries) }
	}
	var own []*limpet.Stub[*adder]
	for i := range runtime.GOMAXPROCS(0) {
		own = append(own, adders.Named(fmt.Sprintf("own-%d", i)))
	}
	return []*row{
		{name: rowDirect, do: func(n int) error {
			for range n {
				if _, err := direct.Add(ctx, 1); err != nil {
					return err
				}
			}
			return nil
		}},
		{name: rowCall, do: call(ctx, on)},
		{name: rowCallOff, do: call(ctx, off)},
		{name: rowDo, do: do(on)},
		{name: rowDoOff, do: do(off)},
		{name: rowInner, do: inner(true)},
		{name: rowInnerOff, do: inner(false)},
		{name: rowInvoke, do: func(n int) error {
			for range n {
				if _, err := on.Invoke(ctx, "add", 1); err != nil {
					return err
				}
			}
			return nil
		}},
		{name: rowCancel, do: call(cancellable, on)},
		{name: rowManyCalls, do: func(n int) error {
			errs := make([]error, len(own))
			var wg sync.WaitGroup
			for i, stub := range own {
				wg.Go(func() { errs[i] = call(ctx, stub)(n / len(own)) })
			}
			wg.Wait()
			return errors.Join(errs...)
		}},
	}
}

// calibrate warms the row up and finds how many calls take about d.
func (r *row) calibrate(d time.Duration) error {
	const most = 1 << 30
	for r.n = 256; r.n < most; {
		start := time.Now()
		if err := r.do(r.n); err != nil {
			return err
		}
		took := time.Since(start)
		if took >= d/2 {
			r.n = max(int(float64(r.n)*float64(d)/float64(took)), 1)
			return nil
		}
		r.n *= 2
	}
	return nil
}

func (r *row) round() error {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, start := measure.CPU(), time.Now()
	err := r.do(r.n)
	took, spent := time.Since(start), measure.CPU()-cpu
	runtime.ReadMemStats(&after)
	n := float64(r.n)
	r.ns.Add(float64(took.Nanoseconds()) / n)
	r.cpu.Add(float64(spent.Nanoseconds()) / n)
	r.allocs.Add(float64(after.Mallocs-before.Mallocs) / n)
	r.bytes.Add(float64(after.TotalAlloc-before.TotalAlloc) / n)
	return err
}

func report(out io.Writer, o options, rows []*row) {
	by := map[string]*row{}
	for _, r := range rows {
		by[r.name] = r
	}
	fmt.Fprintf(out, "A call in one process, no storage. %s. %d rounds, median (range).\n\n", measure.Machine(), o.N)
	t := measure.Table{Head: []string{"call", "ns a call", "CPU ns", "allocations", "bytes", "times a direct call"}}
	for _, r := range rows {
		times := "-"
		if d := by[rowDirect]; d != nil {
			times = measure.Number(measure.Ratio(r.ns, d.ns).Median())
		}
		t.Row(r.name, r.ns.Text(measure.Number), measure.Number(r.cpu.Median()), measure.Number(round2(r.allocs.Median())), measure.Whole(r.bytes.Median()), times)
	}
	t.Write(out)
	if o.only != "" {
		return
	}
	ratio := func(on, off string) float64 { return measure.Ratio(by[on].ns, by[off].ns).Median() }
	measure.Targets(out,
		measure.Target{What: "P1 " + rowCall, Got: by[rowCall].ns.Median() / 1e3, Limit: 1, Unit: "us"},
		measure.Target{What: "P1 " + rowCall, Got: round2(by[rowCall].allocs.Median()), Limit: 3, Unit: "allocations"},
		measure.Target{What: "P1 " + rowInner, Got: by[rowInner].ns.Median() / 1e3, Limit: 1, Unit: "us"},
		measure.Target{What: "P1 " + rowInner, Got: round2(by[rowInner].allocs.Median()), Limit: 3, Unit: "allocations"},
		measure.Target{What: "P1 Call1, retries on / off", Got: ratio(rowCall, rowCallOff), Limit: 1.1},
		measure.Target{What: "P1 Do2, retries on / off", Got: ratio(rowDo, rowDoOff), Limit: 1.1},
		measure.Target{What: "P1 object to object, retries on / off", Got: ratio(rowInner, rowInnerOff), Limit: 1.1},
	)
}

// round2 drops the rest that the runtime's own allocations leave.
func round2(v float64) float64 { return float64(int(v*100+0.5)) / 100 }
