// Memory measures what an object costs while it is in memory with its storage
// (DESIGN 13, P6), and, as information, after it was evicted.
//
//	go run ./bench/memory
//	go run ./bench/memory -objects 100000 -rounds 1
//	go run ./bench/memory -quick
//
// Each round is a process of its own: it opens a node, warms it up, creates the
// objects with a value of 100 bytes each, then evicts them. Figures are the
// growth of resident memory (RSS), after a garbage collection that gives free
// memory back to the system, divided by the number of objects.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/bench/measure"
	"github.com/limpet-dev/limpet/node"
)

// roundCommand is the first argument that makes this program one round.
const roundCommand = "round"

func main() {
	if len(os.Args) > 1 && os.Args[1] == roundCommand {
		roundMain(os.Args[2:])
		return
	}
	measure.Main(run)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("memory", flag.ContinueOnError)
	flags.SetOutput(out)
	objects := flags.Int("objects", 20_000, "objects in memory at once")
	rounds := measure.Rounds{N: 3, QuickN: 1}
	rounds.Flags(flags, "300 objects")
	dir := flags.String("dir", "", "folder for the data (default: that of temporary files)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if rounds.Quick {
		*objects = 300
	}
	if *objects < 1 {
		return errors.New("-objects must be positive")
	}
	if err := rounds.Check(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var figures []figure
	for range rounds.N {
		f, err := oneRound(ctx, self, *dir, *objects)
		if err != nil {
			return err
		}
		figures = append(figures, f)
	}
	report(out, *objects, figures)
	return nil
}

func oneRound(ctx context.Context, self, parent string, objects int) (f figure, err error) {
	dir, err := os.MkdirTemp(parent, "limpet-bench-memory-")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, self, roundCommand, dir, strconv.Itoa(objects))
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return f, err
	}
	return f, json.Unmarshal(stdout.Bytes(), &f)
}

// figure is what one round found.
type figure struct {
	Base, Resident, Evicted snapshot
	// Raw is RSS in bytes before the garbage collection that Resident follows.
	Raw int64
	// Create is the time in nanoseconds to create all objects, 16 at a time.
	Create time.Duration
}

// snapshot is the process at one time. Sizes are in bytes.
type snapshot struct {
	RSS        int64
	Heap       int64 // of Go, live
	Files      int
	Goroutines int
}

func roundMain(args []string) {
	err := func() error {
		if len(args) != 2 {
			return errors.New("needs a folder and the number of objects")
		}
		objects, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		f, err := measureRound(args[0], objects)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(f)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "memory round:", err)
		os.Exit(1)
	}
}

// keeper is the object: it keeps a value in storage and nothing else.
type keeper struct{ st *limpet.State }

var keeperClass = limpet.NewClass("Keeper", func(st *limpet.State) (*keeper, error) { return &keeper{st}, nil },
	limpet.Retryable((*keeper).Put))

// Put stores a value.
func (k *keeper) Put(_ context.Context, key, value string) error { return k.st.KV().Put(key, value) }

// warm is the number of objects created before the first figure: code, pools and
// connections that do not grow with the objects are then there.
const warm = 100

func measureRound(dir string, objects int) (f figure, err error) {
	ctx := context.Background()
	n, err := node.Open(ctx, node.Config{Dir: dir, Classes: []*limpet.Class{keeperClass}, IdleTimeout: 24 * time.Hour})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	keepers, err := limpet.NamespaceOf[*keeper](n, "KEEPER")
	if err != nil {
		return f, err
	}
	put := func(kind string, i int) error {
		value := strings.Repeat("v", 90) + fmt.Sprintf("%010d", i)
		return limpet.Do2(ctx, keepers.Named(kind+strconv.Itoa(i)), (*keeper).Put, "key", value)
	}
	if err := each(warm, func(i int) error { return put("warm-", i) }); err != nil {
		return f, err
	}
	f.Base = settle()
	start := time.Now()
	if err := each(objects, func(i int) error { return put("object-", i) }); err != nil {
		return f, err
	}
	f.Create = time.Since(start)
	f.Raw = measure.RSS()
	f.Resident = settle()
	for i := range objects {
		id, err := keepers.IDFromName("object-" + strconv.Itoa(i))
		if err != nil {
			return f, err
		}
		if !n.Evict(id) {
			return f, fmt.Errorf("object %d was not in memory any more", i)
		}
	}
	f.Evicted = settle()
	return f, nil
}

// settle gives free memory back and looks.
func settle() snapshot {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return snapshot{RSS: measure.RSS(), Heap: int64(m.HeapAlloc), Files: measure.Files(), Goroutines: runtime.NumGoroutine()}
}

// each runs f for 0 to n-1, 16 at a time.
func each(n int, f func(int) error) error {
	const workers = 16
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += workers {
				errs[w] = f(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func report(out io.Writer, objects int, figures []figure) {
	fmt.Fprintf(out, "Memory of an object with one stored value of 100 bytes, %d objects. %s. %d rounds, median (range).\n\n",
		objects, measure.Machine(), len(figures))
	of := func(f func(figure) float64) measure.Spread {
		var s measure.Spread
		for _, x := range figures {
			s.Add(f(x))
		}
		return s
	}
	kib := func(s func(figure) int64) measure.Spread {
		return of(func(f figure) float64 { return float64(s(f)) / float64(objects) / 1024 })
	}
	resident := kib(func(f figure) int64 { return f.Resident.RSS - f.Base.RSS })
	files := of(func(f figure) float64 { return float64(f.Resident.Files) })
	t := measure.Table{Head: []string{"figure", "in memory", "evicted"}}
	t.Row("RSS, KiB an object", resident.Text(measure.Number), kib(func(f figure) int64 { return f.Evicted.RSS - f.Base.RSS }).Text(measure.Number))
	t.Row("  of it live Go heap, KiB", kib(func(f figure) int64 { return f.Resident.Heap - f.Base.Heap }).Text(measure.Number),
		kib(func(f figure) int64 { return f.Evicted.Heap - f.Base.Heap }).Text(measure.Number))
	t.Row("RSS before collection, KiB an object", kib(func(f figure) int64 { return f.Raw - f.Base.RSS }).Text(measure.Number))
	t.Row("file descriptors, of all", files.Text(measure.Whole), of(func(f figure) float64 { return float64(f.Evicted.Files) }).Text(measure.Whole))
	t.Row("goroutines, of all", of(func(f figure) float64 { return float64(f.Resident.Goroutines) }).Text(measure.Whole),
		of(func(f figure) float64 { return float64(f.Evicted.Goroutines) }).Text(measure.Whole))
	t.Row("RSS of the node without objects, MiB", of(func(f figure) float64 { return float64(f.Base.RSS) / (1 << 20) }).Text(measure.Number))
	t.Row("time to create one durably, us", of(func(f figure) float64 { return measure.Micros(f.Create) / float64(objects) }).Text(measure.Number))
	t.Write(out)
	measure.Targets(out,
		measure.Target{What: "P6 resident object with storage", Got: resident.Median(), Limit: 80, Unit: "KiB"},
		measure.Target{What: "P6 file descriptors", Got: files.Median(), Limit: 50},
	)
	fmt.Fprintln(out, "An evicted object keeps its pages until its checkpoint, within a minute; bench/restart measures it after that.")
}
