// Restart measures a store with many objects: what they take on disk and in memory
// when none is in use (DESIGN 13, P6), and how long a start takes with a long log
// that no checkpoint has seen (P7).
//
//	go run ./bench/restart
//	go run ./bench/restart -objects 1000000 -log 0
//	go run ./bench/restart -quick
//
// It creates the objects with one value each and checkpoints them all. Then they
// are written by turns until the log has its size, without checkpoints, and the store is closed. A
// process of its own opens it again: the first answer is a value read from one of the
// objects that the log has, everything is the same of all objects.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/limpet-dev/limpet/bench/measure"
	"github.com/limpet-dev/limpet/internal/store"
	"github.com/limpet-dev/limpet/node"
)

// againCommand is the first argument of the process that opens the store again.
const againCommand = "again"

func main() {
	if len(os.Args) > 1 && os.Args[1] == againCommand {
		againMain(os.Args[2:])
		return
	}
	measure.Main(run)
}

// work is what is measured.
type work struct {
	Dir     string
	Objects int
	Log     int64 // bytes
	Value   int   // bytes
}

func (w work) open(ctx context.Context) (*store.Store, error) {
	return store.Open(ctx, store.Options{Dir: w.Dir, Clock: node.SystemClock(), NoCheckpoints: true, PageMemory: 1 << 40, LogLimit: 1 << 40, LogMax: 1 << 42})
}

func objectID(n int) (id store.ObjectID) {
	binary.LittleEndian.PutUint64(id[:], uint64(n)+1) //nolint:gosec // not negative
	return id
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("restart", flag.ContinueOnError)
	flags.SetOutput(out)
	w := work{}
	flags.IntVar(&w.Objects, "objects", 100_000, "objects")
	flags.Int64Var(&w.Log, "log", 1<<10, "MiB of log that a start reads")
	flags.IntVar(&w.Value, "value", 100, "bytes of a value")
	quick := flags.Bool("quick", false, "1,000 objects and 10 MiB, to see that it works")
	dir := flags.String("dir", "", "folder for the data (default: that of temporary files)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *quick {
		w.Objects, w.Log = 1000, 10
	}
	if w.Objects < 1 || w.Log < 0 || w.Value < 1 {
		return fmt.Errorf("%d objects, %d MiB of log, %d bytes: must be positive", w.Objects, w.Log, w.Value)
	}
	w.Log <<= 20
	temp, err := os.MkdirTemp(*dir, "limpet-restart-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	w.Dir = filepath.Join(temp, "data")

	fmt.Fprintf(out, "%s\n%d objects, values of %d bytes, %d MiB of log\n\n", measure.Machine(), w.Objects, w.Value, w.Log>>20)
	made, err := w.fill(ctx)
	if err != nil {
		return err
	}
	again, err := w.again(ctx)
	if err != nil {
		return err
	}
	evicted := float64(made.evicted-made.empty) / float64(w.Objects)
	t := measure.Table{Head: []string{"figure", "measured"}}
	t.Row("create one, us", measure.Number(measure.Micros(made.create)/float64(w.Objects)))
	t.Row("checkpoint of one, us", measure.Number(measure.Micros(made.checkpoint)/float64(w.Objects)))
	t.Row("base store on disk, bytes an object", measure.Number(float64(made.disk)/float64(w.Objects)))
	t.Row("RSS of an object that is not in use, bytes", measure.Number(evicted))
	t.Row("records in the log", measure.Number(float64(again.Records)))
	t.Row("open, s", measure.Number(again.Open.Seconds()))
	t.Row("first answer, s", measure.Number(again.First.Seconds()))
	t.Row("every object read once, s", measure.Number(again.All.Seconds()))
	t.Row("RSS after open, MiB", measure.Number(float64(again.RSSOpen)/(1<<20)))
	t.Row("RSS after all were read, MiB", measure.Number(float64(again.RSSAll)/(1<<20)))
	t.Row("file descriptors", measure.Whole(float64(again.Files)))
	t.Write(out)
	measure.Targets(out,
		measure.Target{What: "P6 evicted object", Got: evicted, Limit: 150, Unit: "bytes"},
		measure.Target{What: "P6 file descriptors", Got: float64(again.Files), Limit: 50},
		measure.Target{What: "P7 first answer", Got: again.First.Seconds(), Limit: 1, Unit: "s"},
		measure.Target{What: "P7 everything", Got: again.All.Seconds(), Limit: 10, Unit: "s"},
	)
	return nil
}

// filled is what making the data took.
type filled struct {
	create, checkpoint time.Duration
	empty, evicted     int64 // RSS
	disk               int64
}

// fill makes the directory.
func (w work) fill(ctx context.Context) (f filled, err error) {
	s, err := w.open(ctx)
	if err != nil {
		return f, err
	}
	defer func() {
		if err2 := s.Close(); err == nil {
			err = err2
		}
	}()
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // not for secrets
	value := make([]byte, w.Value)
	put := func(n int) (p store.Pos, err error) {
		o, err := s.Object(objectID(n), store.Birth{Class: "Bench"})
		if err != nil {
			return p, err
		}
		for i := range value {
			value[i] = byte(rng.Uint32())
		}
		if err = o.Put("key", value); err == nil {
			p, err = o.Commit(nil)
		}
		if err2 := o.Close(); err == nil {
			err = err2
		}
		return p, err
	}
	f.empty = rss()
	const group = 10_000 // objects in memory at a time
	var last store.Pos
	for n := 0; n < w.Objects; {
		began := time.Now()
		for range group {
			if n == w.Objects {
				break
			}
			if last, err = put(n); err != nil {
				return f, err
			}
			n++
		}
		if err := s.Wait(ctx, last); err != nil {
			return f, err
		}
		f.create += time.Since(began)
		began = time.Now()
		if err := s.Checkpoint(ctx); err != nil {
			return f, err
		}
		f.checkpoint += time.Since(began)
	}
	f.evicted = rss()
	f.disk = sizeOf(filepath.Join(w.Dir, "base"))
	for first := 0; s.Stats().LogSize < w.Log; first = (first + together) % w.Objects {
		if err := w.write(ctx, s, rng, first); err != nil {
			return f, err
		}
	}
	return f, nil
}

// together is how many objects are written by turns, some hundred times each.
const together = 500

func (w work) write(ctx context.Context, s *store.Store, rng *rand.Rand, first int) (err error) {
	var open []*store.Object
	defer func() {
		for _, o := range open {
			err = errors.Join(err, o.Close())
		}
	}()
	for n := first; n < min(first+together, w.Objects); n++ {
		o, err := s.Object(objectID(n), store.Birth{Class: "Bench"})
		if err != nil {
			return err
		}
		open = append(open, o)
	}
	value := make([]byte, w.Value)
	for range 1 + min(80, w.Log/int64(w.Objects)/int64(w.Value+40)) {
		for _, o := range open {
			for i := range value {
				value[i] = byte(rng.Uint32())
			}
			if err := o.Put("key", value); err != nil {
				return err
			}
			if _, err := o.Commit(nil); err != nil {
				return err
			}
		}
		if err := s.WaitRoom(ctx); err != nil {
			return err
		}
	}
	return s.Wait(ctx, open[len(open)-1].LastPos())
}

func rss() int64 {
	debug.FreeOSMemory()
	return measure.RSS()
}

func sizeOf(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if info, err := e.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}

// opened is what opening again took, from the start.
type opened struct {
	Open, First, All time.Duration
	RSSOpen, RSSAll  int64
	Records          int64
	Files            int
}

// again opens the directory in a process of its own.
func (w work) again(ctx context.Context) (o opened, err error) {
	self, err := os.Executable()
	if err != nil {
		return o, err
	}
	arg, err := json.Marshal(w)
	if err != nil {
		return o, err
	}
	cmd := exec.CommandContext(ctx, self, againCommand, string(arg)) //nolint:gosec // itself
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return o, fmt.Errorf("open again: %w", err)
	}
	return o, json.Unmarshal(b, &o)
}

func againMain(args []string) {
	var w work
	err := json.Unmarshal([]byte(args[0]), &w)
	var o opened
	if err == nil {
		o, err = w.measure(context.Background())
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (w work) measure(ctx context.Context) (o opened, err error) {
	began := time.Now()
	s, err := w.open(ctx)
	if err != nil {
		return o, err
	}
	o.Open = time.Since(began)
	o.Records = s.Stats().Replay.Records
	get := func(n int) error {
		h, err := s.Object(objectID(n), store.Birth{Class: "Bench"})
		if err != nil {
			return err
		}
		v, ok, err := h.Get("key")
		if err == nil && (!ok || len(v) != w.Value) {
			err = fmt.Errorf("object %d has a value of %d bytes", n, len(v))
		}
		if err2 := h.Close(); err == nil {
			err = err2
		}
		return err
	}
	if err := get(w.Objects / 2); err != nil {
		return o, err
	}
	o.First = time.Since(began)
	o.RSSOpen = measure.RSS()
	var wg sync.WaitGroup
	errs := make([]error, runtime.GOMAXPROCS(0))
	for k := range errs {
		wg.Go(func() {
			for n := k; n < w.Objects && errs[k] == nil; n += len(errs) {
				errs[k] = get(n)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return o, err
	}
	o.All = time.Since(began)
	o.RSSAll, o.Files = measure.RSS(), measure.Files()
	return o, s.Close()
}
