// Promise shows that limpet keeps its promise under faults, or that it does not:
// a method never runs twice because of a retry unless it was marked, and what was
// acknowledged is there.
//
//	go run ./bench/promise -seconds 60
//	go run ./bench/promise -calls 1000000
//	go run ./bench/promise -mutate no-record     must find violations
//
// It runs real processes that talk over TCP:
//
//	callers ───▶ proxy ───▶ node ───────▶ proxy ───▶ witness
//	(this one)   drops      is killed     also       is never killed, and is told by
//	             and cuts   and drained              each method which run it is
//
// Each call has a name of its own, and each run of a method a token of its own,
// which the run leaves wherever it has an effect. In the end a judge that knows
// nothing of limpet compares: what callers were told, what the witness heard, what
// is in the objects. The command exits with 1 if a promise was broken, or if the
// run proved nothing, since too few faults struck or no retry was accepted,
// refused, or recovered over a restart.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/limpet-dev/limpet/bench/measure"
	"github.com/limpet-dev/limpet/internal/mutation"
)

func main() {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(childMain(role))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once, and with it its children
	err := prove(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "promise:", err)
		os.Exit(1)
	}
}

type options struct {
	seconds  float64
	calls    int64
	seed     uint64
	clients  int
	workers  int
	objects  int
	every    int
	round    time.Duration
	dir      string
	mutation string
	broken   mutation.Set
}

func parse(args []string, out io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("promise", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Float64Var(&o.seconds, "seconds", 0, "how long to go on (60 if neither -seconds nor -calls is given)")
	flags.Int64Var(&o.calls, "calls", 0, "how many calls to make")
	flags.Uint64Var(&o.seed, "seed", 0, "of all choices: calls, faults, kills (0: any; it is printed)")
	flags.IntVar(&o.clients, "clients", 48, "connections to the node")
	flags.IntVar(&o.workers, "callers", 960, "calls at one time")
	flags.IntVar(&o.objects, "objects", 400, "objects in each round")
	flags.IntVar(&o.every, "every", 60, "the proxy strikes one call of so many")
	flags.DurationVar(&o.round, "round", 30*time.Second, "after this long everything is judged, and a fresh directory begins")
	flags.StringVar(&o.dir, "dir", "", "folder for the data of nodes (default: that of temporary files)")
	flags.StringVar(&o.mutation, "mutate", "", "break the promise on purpose: "+strings.Join(mutation.Names(), ", "))
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.seconds == 0 && o.calls == 0 {
		o.seconds = 60
	}
	if o.seconds < 0 || o.calls < 0 || o.clients < 1 || o.workers < 1 || o.objects < 2 || o.every < 1 || o.round <= 0 {
		return o, errors.New("-seconds, -calls, -clients, -callers, -every and -round must be positive, -objects 2 or more")
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	}
	o.broken, err = mutation.Named(o.mutation)
	return o, err
}

// errBroken says that the run found violations, errNothing that it proved nothing.
var (
	errBroken  = errors.New("the promise was broken")
	errNothing = errors.New("the run proved nothing")
)

// prove is the command.
func prove(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "limpet-bench-promise-")
	if err != nil {
		return err
	}
	keep := false
	defer func() {
		if keep {
			fmt.Fprintf(out, "kept: %s\n", dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	fmt.Fprintf(out, "%s; seed %d\n", measure.Machine(), o.seed)
	if o.mutation != "" {
		fmt.Fprintf(out, "mutation %s: limpet breaks its promise on purpose, and this must be found out\n", o.mutation)
	}
	r, err := newRun(ctx, o, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	quiet := r.show(out)
	err = r.all(ctx)
	quiet()
	s := r.snapshot()
	s.tables(out)
	switch {
	case err != nil:
		keep = ctx.Err() == nil
		return err
	case len(r.violations) > 0:
		keep = o.mutation == ""
		r.accuse(out)
		return fmt.Errorf("%w: %d violations", errBroken, len(r.violations))
	case ctx.Err() != nil:
		return errors.New("interrupted; no violation until then")
	}
	if why := s.nothing(); len(why) > 0 {
		return fmt.Errorf("%w: %s", errNothing, strings.Join(why, "; "))
	}
	fmt.Fprintln(out, "no violation")
	return nil
}

// all plays rounds until the time or the calls are used up, or a promise was
// broken.
func (r *run) all(ctx context.Context) error {
	end := r.begun.Add(time.Duration(r.o.seconds * float64(time.Second)))
	for {
		length := r.o.round
		if r.o.seconds > 0 {
			length = min(length, time.Until(end))
		}
		if err := r.play(ctx, length); err != nil {
			return err
		}
		used := r.left.Load() <= 0 || r.o.seconds > 0 && time.Until(end) < time.Second
		if len(r.violations) > 0 || used || ctx.Err() != nil {
			return nil
		}
		if err := r.closeRound(); err != nil {
			return err
		}
		if err := r.openRound(); err != nil {
			return err
		}
	}
}

// show prints how it goes until the function that it returns is called: the whole
// table on a terminal, else a line from time to time.
func (r *run) show(out io.Writer) func() {
	every := 5 * time.Second
	f, ok := out.(*os.File)
	terminal := false
	if ok {
		st, err := f.Stat()
		terminal = err == nil && st.Mode()&os.ModeCharDevice != 0
	}
	if terminal {
		every = time.Second
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	last := time.Now()
	go func() {
		defer close(stopped)
		t := time.NewTicker(every)
		defer t.Stop()
		sc := screen{w: out}
		for {
			select {
			case <-t.C:
			case <-stop:
				sc.draw("")
				return
			}
			_ = r.tell(proxyCommand{}) // the next one tells what is wrong
			s := r.snapshot()
			if !terminal {
				if time.Since(last) > s.took/25 { // in a long run more rarely
					last = time.Now()
					fmt.Fprintln(out, s.headline())
				}
				continue
			}
			var b strings.Builder
			s.tables(&b)
			sc.draw(b.String())
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// most violations that are told one by one.
const mostTold = 5

// accuse tells of violations, with all attempts of their calls.
func (r *run) accuse(out io.Writer) {
	var journal []byte
	for _, path := range []string{r.journal(), beyond(r.journal())} {
		b, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(out, "no journal of attempts:", err)
		}
		journal = append(journal, b...)
	}
	for i, v := range r.violations {
		if i == mostTold {
			fmt.Fprintf(out, "… and %d more\n", len(r.violations)-i)
			break
		}
		fmt.Fprintf(out, "VIOLATION %s: %s\n", v.Op, v.What)
		if v.Op == "" {
			continue
		}
		for line := range strings.Lines(string(journal)) {
			if strings.HasPrefix(line, v.Op) {
				fmt.Fprintf(out, "    %s", line)
			}
		}
	}
	var b strings.Builder
	for _, v := range r.violations {
		fmt.Fprintf(&b, "%s\t%s\n", v.Op, v.What)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "violations.txt"), []byte(b.String()), 0o600); err != nil {
		fmt.Fprintln(out, err)
	}
}
