// Remote measures a call over loopback TCP against grpc-go and connect-go
// (DESIGN 13, P2), and
// beside them the same call within one process (P1).
//
//	go -C bench/rivals run ./remote
//	go -C bench/rivals run ./remote -callers 1 -rounds 31
//	go -C bench/rivals run ./remote -quick
//
// Callers in closed loops, in this process, call a method with a text and a
// number that answers a number, on a server that is a process of its own, over
// one connection in plaintext:
//
//	limpet   a method of a Go object that is not marked, called through the stub
//	         of a client with retries on: each call has an identity that the node
//	         claims; an object for each caller
//	one      the same with one object for all callers
//	grpc     a unary method of grpc-go, protobuf
//	near     the call of limpet with node and callers in this process
//	connect  a unary method of connect-go over HTTP/2 without TLS, protobuf
//
// No side stores anything; all are as they come, without options for speed.
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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/limpet-dev/limpet/bench/measure"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == serveCommand {
		serveMain(os.Args[2:])
		return
	}
	measure.Main(run)
}

// Names of the sides.
const (
	sideLimpet  = "limpet"
	sideOne     = "one"
	sideNear    = "near"
	sideGRPC    = "grpc"
	sideConnect = "connect"
)

type options struct {
	measure.Rounds
	callers       []int
	sides         []string
	serverProfile string
}

func parse(args []string, out io.Writer) (o options, err error) {
	o.Rounds = measure.Rounds{N: 15, Time: 500 * time.Millisecond, Max: 10_000_000, QuickN: 2, QuickTime: 20 * time.Millisecond}
	flags := flag.NewFlagSet("remote", flag.ContinueOnError)
	flags.SetOutput(out)
	callers := flags.String("callers", "1,64", "numbers of callers, separated by commas")
	sides := flags.String("sides", strings.Join([]string{sideLimpet, sideOne, sideNear, sideGRPC, sideConnect}, ","), "the sides to run")
	flags.StringVar(&o.serverProfile, "server-profile", "", "write a CPU profile of each server to this file with the side's name appended")
	o.Flags(flags, "")
	o.ProfileFlag(flags, "this process, the callers',")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.sides = strings.Split(*sides, ",")
	if o.callers, err = measure.Numbers("callers", *callers, 10_000); err != nil {
		return o, err
	}
	return o, o.Check()
}

// callFunc makes one call and checks its answer.
type callFunc func(ctx context.Context, caller int) error

// side is a server with the connection to it.
type side struct {
	name    string
	server  *measure.Server // nil: this process
	call    callFunc
	close   func() error
	figures map[int]*measure.Figures // by number of callers
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "limpet-bench-remote-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var sides []*side
	for _, name := range o.sides {
		s, err := open(ctx, name, filepath.Join(dir, name), o)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		sides = append(sides, s)
		defer func() { err = errors.Join(err, s.stop()) }()
	}
	stop, err := o.Profile()
	if err != nil {
		return err
	}
	defer stop()
	for round := range o.N {
		for _, callers := range o.callers {
			for _, i := range measure.Order(round, len(sides)) {
				if err := sides[i].round(ctx, o, callers); err != nil {
					return fmt.Errorf("%s with %d callers: %w", sides[i].name, callers, err)
				}
			}
		}
	}
	report(out, o, sides)
	return nil
}

func open(ctx context.Context, name, dir string, o options) (*side, error) {
	connect := map[string]func(ctx context.Context, addr string, callers int) (callFunc, func() error, error){
		sideLimpet: dialLimpet, sideOne: dialOne, sideNear: nil, sideGRPC: dialGRPC, sideConnect: dialConnect,
	}[name]
	if connect == nil && name != sideNear {
		return nil, fmt.Errorf("-sides: there is no side %q", name)
	}
	s := &side{name: name, figures: map[int]*measure.Figures{}}
	for _, c := range o.callers {
		s.figures[c] = &measure.Figures{}
	}
	if name == sideNear {
		var err error
		s.call, s.close, err = openNear(ctx, dir, slices.Max(o.callers))
		return s, err
	}
	profile := ""
	if o.serverProfile != "" {
		profile = o.serverProfile + "." + name
	}
	server, err := measure.StartServer(ctx, serveCommand, name, dir, profile)
	if err != nil {
		return nil, err
	}
	s.server = server
	if s.call, s.close, err = connect(ctx, server.Addr, slices.Max(o.callers)); err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return s, nil
}

// stop ends the side.
func (s *side) stop() error {
	err := s.close()
	if s.server != nil {
		err = errors.Join(err, s.server.Stop())
	}
	return err
}

// round measures the side once, after a tenth of the time to warm it up.
func (s *side) round(ctx context.Context, o options, callers int) error {
	// A context that can't end, as a program has that sets no deadline.
	calls := context.WithoutCancel(ctx)
	load := measure.Load{
		Callers: callers, Time: o.Time / 10, Max: o.Max,
		Op: func(caller int, _ *rand.Rand) error { return s.call(calls, caller) },
	}
	if s.server != nil {
		load.PID = s.server.PID
	}
	if _, err := load.Run(ctx); err != nil {
		return err
	}
	load.Time = o.Time
	res, err := load.Run(ctx)
	if err != nil {
		return err
	}
	s.figures[callers].Add(res)
	return nil
}

func report(out io.Writer, o options, sides []*side) {
	fmt.Fprintf(out, "A call over loopback TCP, one connection, a text and a number there and a number back, nothing stored. %s; callers and server share the cores. %d rounds of %v, median (range).\n\n",
		measure.Machine(), o.N, o.Time)
	find := func(name string) *side {
		if i := slices.IndexFunc(sides, func(s *side) bool { return s.name == name }); i >= 0 {
			return sides[i]
		}
		return nil
	}
	rival, limpet := find(sideGRPC), find(sideLimpet)
	t := measure.Table{Head: []string{"callers", "side", "calls/s", "p50 us", "p99 us", "server CPU us", "CPU us", "p50 / grpc's", "p99 / grpc's", "calls/s / grpc's", "grpc's CPU / its", "others' cores"}}
	for _, c := range o.callers {
		for _, s := range sides {
			f := s.figures[c]
			cells := []string{strconv.Itoa(c), s.name, f.Rate.Text(measure.Whole), f.P50.Text(measure.Number), f.P99.Text(measure.Number),
				measure.Number(f.CPU.Median()), measure.Number(f.Both.Median()), "", "", "", "", measure.Number(f.Others.Median())}
			if rival != nil && s != rival {
				r := rival.figures[c]
				cells[7] = measure.Ratio(f.P50, r.P50).Text(measure.Number)
				cells[8] = measure.Ratio(f.P99, r.P99).Text(measure.Number)
				cells[9] = measure.Ratio(f.Rate, r.Rate).Text(measure.Number)
				cells[10] = measure.Ratio(r.Both, f.Both).Text(measure.Number)
			}
			t.Row(cells...)
		}
	}
	t.Write(out)
	if rival == nil || limpet == nil {
		fmt.Fprintln(out, "No targets: they need the sides limpet and grpc.")
		return
	}
	var targets []measure.Target
	if s := find(sideNear); s != nil && s.figures[1] != nil {
		us := s.figures[1].P50.Median()
		targets = append(targets, measure.Target{What: "P1 within one process, 1 caller", Got: us, Limit: 1, Unit: "us"})
	}
	if l, r := limpet.figures[1], rival.figures[1]; l != nil {
		targets = append(targets, measure.Target{What: "P2 p50 of grpc-go's, 1 caller", Got: measure.Ratio(l.P50, r.P50).Median(), Limit: 1})
	}
	if l, r := limpet.figures[64], rival.figures[64]; l != nil {
		targets = append(targets, measure.Target{What: "P2 calls/s of grpc-go's, 64 callers", Got: measure.Ratio(l.Rate, r.Rate).Median(), Limit: 2, AtLeast: true})
	}
	measure.Targets(out, targets...)
}
