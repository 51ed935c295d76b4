package measure

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
)

// Main is the main function of a program that compares sides: run until it ends
// or the user interrupts it. -h exits with 2, a failure with 1.
func Main(run func(ctx context.Context, args []string, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

// Rounds is how often and for how long sides are measured. What it holds when
// Flags is called are the defaults.
type Rounds struct {
	N    int           // rounds; each side runs once in each
	Time time.Duration // how long a side runs in a round; 0 if that is no flag
	Max  int64         // operations after which a side stops before its time; 0 if that is no flag
	// Quick is set by -quick, which makes the rounds those of QuickN and
	// QuickTime.
	Quick     bool
	QuickN    int
	QuickTime time.Duration

	timed, counted bool
	profile        string
}

// Flags declares -rounds, -time, -max and -quick. quick says what else -quick
// makes smaller, or is "".
func (r *Rounds) Flags(flags *flag.FlagSet, quick string) {
	r.timed, r.counted = r.Time > 0, r.Max > 0
	flags.IntVar(&r.N, "rounds", r.N, "rounds; each side runs once in each")
	if r.timed {
		flags.DurationVar(&r.Time, "time", r.Time, "how long a side runs in a round")
	}
	if r.counted {
		flags.Int64Var(&r.Max, "max", r.Max, "operations after which a side stops before its time")
	}
	what := fmt.Sprintf("%d rounds", r.QuickN)
	if r.timed {
		what += fmt.Sprintf(" of %v", r.QuickTime)
	}
	if quick != "" {
		what += " with " + quick
	}
	flags.BoolVar(&r.Quick, "quick", false, what+", to see that it works")
}

// ProfileFlag declares -profile; what is the part of the program it is about.
func (r *Rounds) ProfileFlag(flags *flag.FlagSet, what string) {
	flags.StringVar(&r.profile, "profile", "", "write a CPU profile of "+what+" to this file")
}

// Check applies -quick and refuses what can't be measured.
func (r *Rounds) Check() error {
	if r.Quick {
		r.N, r.Time = r.QuickN, r.QuickTime
	}
	if r.N < 1 || r.timed && r.Time <= 0 || r.counted && r.Max < 1 {
		return errors.New("-rounds, -time and -max must be positive")
	}
	return nil
}

// Each runs do for every side in every round, in the order of Order, until ctx
// ends or do fails.
func (r *Rounds) Each(ctx context.Context, sides int, do func(round, side int) error) error {
	for round := range r.N {
		for _, side := range Order(round, sides) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := do(round, side); err != nil {
				return err
			}
		}
	}
	return nil
}

// Profile begins a CPU profile if -profile was given; stop ends it.
func (r *Rounds) Profile() (stop func(), err error) {
	if r.profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(r.profile)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close() // a profile that is cut short says so itself
	}, nil
}

// Numbers reads the value of a flag that lists numbers from 1 to most.
func Numbers(name, list string, most int) (numbers []int, err error) {
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("-%s: %q is not a number from 1 to %d", name, s, most)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// Figures are those of a side over the rounds: operations a second, latencies and
// CPU of an operation in microseconds, that of both processes if the work is done
// by another one, and the cores that others kept busy.
type Figures struct{ Rate, P50, P99, CPU, Both, Others Spread }

// Add appends a round.
func (f *Figures) Add(r Result) {
	f.Rate.Add(r.Rate())
	f.P50.Add(Micros(r.Latency.Quantile(0.5)))
	f.P99.Add(Micros(r.Latency.Quantile(0.99)))
	f.CPU.Add(Micros(r.CPUPerOp()))
	f.Both.Add(Micros((r.CPU + r.Own) / time.Duration(max(r.Ops, 1))))
	f.Others.Add(r.Others)
}

// Server is this program run again as the process under load.
type Server struct {
	Addr  string // what it printed
	PID   int
	cmd   *exec.Cmd
	stdin io.Closer
}

// StartServer runs this program again with args. The process prints its address
// in a line of its own once it serves, and ends when its standard input does.
func StartServer(ctx context.Context, args ...string) (*Server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &Server{PID: cmd.Process.Pid, cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the server did not say its address: %w", err), s.Stop())
	}
	s.Addr = strings.TrimSpace(line)
	return s, nil
}

// Stop ends the process and waits for it.
func (s *Server) Stop() error {
	_ = s.stdin.Close()
	return s.cmd.Wait()
}
