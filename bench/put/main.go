// Put measures what a durable put costs (DESIGN 13, P3).
//
//	go run ./bench/put
//	go run ./bench/put -dir /mnt/disk -rounds 9
//	go run ./bench/put -quick
//
// Callers in closed loops put a new value of 100 bytes under one of 20 keys of a
// random object out of 1,000, and go on when it is durable. The same callers do
// it on three sides, in turns:
//
//	log     the commit log alone, with records of 136 bytes: the limit
//	limpet  a method that puts, called through a stub of an open node
//	sql     the same put as an upsert through State.SQL, and a SELECT of it in the
//	        same turn; only if -sides names it
//	files   a SQLite file for each object, WAL and synchronous=FULL, opened
//	        once with EXCLUSIVE locking, the statement prepared
//
// Afterwards the node's log is read back: it must hold a record for each put.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/limpet-dev/limpet/bench/measure"
)

func main() {
	measure.Main(run)
}

const (
	keysPerObject = 20
	valueSize     = 100
	recordSize    = 136 // of the bare log: key, value and what a record says besides
)

type options struct {
	dir     string
	objects int
	callers []int
	measure.Rounds
	sides string
}

func parse(args []string, out io.Writer) (o options, err error) {
	o.Rounds = measure.Rounds{N: 15, Time: 500 * time.Millisecond, Max: 2_000_000, QuickN: 2, QuickTime: 20 * time.Millisecond}
	flags := flag.NewFlagSet("put", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.dir, "dir", "", "folder on the disk to measure (default: that of temporary files)")
	flags.IntVar(&o.objects, "objects", 1000, "objects")
	callers := flags.String("callers", "1,16,256", "numbers of callers, separated by commas")
	flags.StringVar(&o.sides, "sides", "log,limpet,files", "the sides to run, of log, limpet, sql, files")
	o.Flags(flags, "20 objects")
	o.ProfileFlag(flags, "limpet's side, with the most callers,")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.Quick {
		o.objects = 20
	}
	if o.callers, err = measure.Numbers("callers", *callers, 1<<16); err != nil {
		return o, err
	}
	if o.objects < 1 {
		return o, errors.New("-objects must be positive")
	}
	return o, o.Check()
}

// side is one way to make a value durable. Put is called by many at once.
type side interface {
	Put(ctx context.Context, object int, key, value string) error
	Close() error
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "limpet-bench-put-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	var sides []*rows
	for name := range strings.SplitSeq(o.sides, ",") {
		folder := filepath.Join(dir, name)
		if err := os.Mkdir(folder, 0o700); err != nil {
			return err
		}
		var s side
		switch name {
		case "log":
			s, err = openLog(ctx, folder)
		case "limpet":
			s, err = openLimpet(ctx, folder, o.objects, false)
		case "sql":
			s, err = openLimpet(ctx, folder, o.objects, true)
		case "files":
			s, err = openFiles(folder, o.objects)
		default:
			return fmt.Errorf("-sides: there is no side %q", name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r := &rows{name: name, side: s, of: map[int]*measure.Figures{}}
		for _, c := range o.callers {
			r.of[c] = &measure.Figures{}
		}
		sides = append(sides, r)
		defer func() { err = errors.Join(err, r.close()) }()
	}

	for round := range o.N {
		for _, callers := range o.callers {
			for _, i := range measure.Order(round, len(sides)) {
				if err := sides[i].round(ctx, o, round, callers); err != nil {
					return fmt.Errorf("%s with %d callers: %w", sides[i].name, callers, err)
				}
			}
		}
	}
	logged, err := checkLog(ctx, sides)
	if err != nil {
		return err
	}
	report(out, o, sides, logged)
	return nil
}

// rows are the figures of a side.
type rows struct {
	name   string
	side   side
	closed bool
	puts   int64
	of     map[int]*measure.Figures // by number of callers
}

func (r *rows) round(ctx context.Context, o options, round, callers int) error {
	if r.name == "limpet" && callers == o.callers[len(o.callers)-1] && round == o.N-1 {
		stop, err := o.Profile()
		if err != nil {
			return err
		}
		defer stop()
	}
	// Values must be new: a put that changes nothing makes no record.
	seed := uint64(round)<<32 | uint64(callers)
	res, err := measure.Load{
		Callers: callers, Time: o.Time, Max: o.Max, Seed: seed,
		Op: func(_ int, r2 *rand.Rand) error {
			return r.side.Put(ctx, r2.IntN(o.objects), key(r2.IntN(keysPerObject)), value(r2))
		},
	}.Run(ctx)
	if err != nil {
		return err
	}
	r.puts += res.Ops
	r.of[callers].Add(res)
	return nil
}

func (r *rows) close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	return r.side.Close()
}

var keyNames = func() (names [keysPerObject]string) {
	for i := range names {
		names[i] = fmt.Sprintf("key-%06d", i)
	}
	return names
}()

func key(i int) string { return keyNames[i] }

// value is text that changes in each of its 100 bytes.
func value(r *rand.Rand) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
	var b [valueSize]byte
	for i := 0; i < len(b); i += 10 {
		n := r.Uint64()
		for j := range 10 {
			b[i+j] = digits[n>>(6*j)&63]
		}
	}
	return string(b[:])
}

func find(sides []*rows, name string) *rows {
	for _, r := range sides {
		if r.name == name {
			return r
		}
	}
	return nil
}

// logged is what limpet's log holds of a put.
type logged struct {
	known  bool
	record float64 // bytes of a record
}

// checkLog closes limpet's side and reads its log back.
func checkLog(ctx context.Context, sides []*rows) (logged, error) {
	r := find(sides, "limpet")
	if r == nil {
		return logged{}, nil
	}
	l := r.side.(*limpetSide)
	if err := r.close(); err != nil {
		return logged{}, err
	}
	stats, err := replay(ctx, l.dir)
	if err != nil {
		return logged{}, err
	}
	records, bytes := stats.Records-l.before.Records, stats.Bytes-l.before.Bytes
	if records != r.puts {
		return logged{}, fmt.Errorf("%d puts were acknowledged, but the log has %d new records", r.puts, records)
	}
	return logged{known: records > 0, record: float64(bytes) / float64(max(records, 1))}, nil
}

func report(out io.Writer, o options, sides []*rows, lg logged) {
	fmt.Fprintf(out, "Durable puts of %d changing bytes to %d objects. %s. %d rounds of %v, median (range).\n\n",
		valueSize, o.objects, measure.Machine(), o.N, o.Time)
	limpet, log, files := find(sides, "limpet"), find(sides, "log"), find(sides, "files")
	t := measure.Table{Head: []string{"callers", "side", "puts/s", "p50 us", "p99 us", "CPU us a put", "of the log", "times files", "others' cores"}}
	for _, c := range o.callers {
		for _, r := range sides {
			f := r.of[c]
			cells := []string{strconv.Itoa(c), r.name, f.Rate.Text(measure.Whole), f.P50.Text(measure.Number), f.P99.Text(measure.Number),
				f.CPU.Text(measure.Number), "", "", measure.Number(f.Others.Median())}
			if log != nil && r != log {
				cells[6] = measure.Ratio(f.Rate, log.of[c].Rate).Text(measure.Number)
			}
			if files != nil && r == limpet {
				cells[7] = measure.Ratio(f.Rate, files.of[c].Rate).Text(measure.Number)
			}
			t.Row(cells...)
		}
	}
	t.Write(out)
	if limpet == nil {
		return
	}
	var targets []measure.Target
	for _, x := range []struct {
		callers int
		least   float64
	}{{1, 0.85}, {16, 0.75}, {256, 0.20}} {
		if f := limpet.of[x.callers]; f != nil && log != nil {
			targets = append(targets, measure.Target{What: fmt.Sprintf("P3 of the log, %d callers", x.callers),
				Got: measure.Ratio(f.Rate, log.of[x.callers].Rate).Median(), Limit: x.least, AtLeast: true})
		}
	}
	if f := limpet.of[256]; f != nil {
		if files != nil {
			targets = append(targets, measure.Target{What: "P3 times files, 256 callers",
				Got: measure.Ratio(f.Rate, files.of[256].Rate).Median(), Limit: 10, AtLeast: true})
		}
		targets = append(targets, measure.Target{What: "CPU a put, 256 callers", Got: f.CPU.Median(), Limit: 12, Unit: "us"})
	}
	if lg.known {
		targets = append(targets, measure.Target{What: "bytes of a record", Got: lg.record, Limit: 150, Unit: "bytes"})
	}
	measure.Targets(out, targets...)
}
