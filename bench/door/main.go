// Door measures HTTP requests that call an object (DESIGN 13, P5 and the Go side
// of P4).
//
//	go run ./bench/door -workerd PATH
//	go run ./bench/door               limpet alone: no ratios
//	go run ./bench/door -quick
//
// The load comes from this process, over 1, 16 or 64 keep-alive connections on
// loopback, each sending its next request when it has the answer. The servers are
// processes of their own:
//
//	handler  a Go program with an http.Handler that calls the object through a
//	         typed stub, as a worker does:          GET /rpc?o=NAME, /put?o=NAME
//	door     limpet's own door, JSON in and out:    POST /v1/objects/BENCH/NAME/call/…
//	workerd  a JavaScript worker that calls a Durable Object stored in SQLite
//	         (npm package workerd):                 GET /rpc?o=NAME, /put?o=NAME
//
// rpc calls a method that returns 1; put stores 100 bytes that change each time
// and is answered when that is durable.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
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

type options struct {
	workerd     string
	dir         string
	connections []int
	objects     int
	measure.Rounds
}

func parse(args []string, out io.Writer) (o options, err error) {
	o.Rounds = measure.Rounds{N: 9, Time: 500 * time.Millisecond, Max: 500_000, QuickN: 2, QuickTime: 20 * time.Millisecond}
	flags := flag.NewFlagSet("door", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.workerd, "workerd", "", "the workerd binary to compare with")
	flags.StringVar(&o.dir, "dir", "", "folder on the disk to measure (default: that of temporary files)")
	connections := flags.String("connections", "1,16,64", "numbers of connections, separated by commas")
	flags.IntVar(&o.objects, "objects", 1000, "objects of the measurements that use many")
	o.Flags(flags, "20 objects")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.Quick {
		o.objects = 20
	}
	if o.connections, err = measure.Numbers("connections", *connections, 1024); err != nil {
		return o, err
	}
	if o.objects < 1 {
		return o, errors.New("-objects must be positive")
	}
	return o, o.Check()
}

// side is a way into a server.
type side struct {
	name   string
	server *server
	// request makes the request of a measurement.
	request func(m *measurement, object int, r *rand.Rand) request
	clients []*client                   // of the round that runs
	figures map[string]*measure.Figures // by measurement and connections
}

// measurement is what is asked of the objects.
type measurement struct {
	name    string
	put     bool
	objects func(o options) int
}

var measurements = []*measurement{
	{name: "rpc, one object", objects: func(options) int { return 1 }},
	{name: "rpc", objects: func(o options) int { return o.objects }},
	{name: "put", put: true, objects: func(o options) int { return o.objects }},
}

// get is a request to a program in front of the objects.
func get(m *measurement, object int, _ *rand.Rand) request {
	if m.put {
		return request{path: "/put?o=w" + strconv.Itoa(object)}
	}
	return request{path: "/rpc?o=w" + strconv.Itoa(object)}
}

// post is a request to limpet's door.
func post(m *measurement, object int, r *rand.Rand) request {
	path := "/v1/objects/BENCH/w" + strconv.Itoa(object) + "/call/"
	if !m.put {
		return request{path: path + "noop", body: []byte("[]")}
	}
	const before, after = `["k","`, `"]`
	body := make([]byte, len(before)+100+len(after))
	copy(body, before)
	fill(body[len(before):len(before)+100], r.Uint64)
	copy(body[len(before)+100:], after)
	return request{path: path + "write", body: body}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "limpet-bench-door-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	limpet, err := startLimpet(ctx, filepath.Join(dir, "limpet"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limpet.stop()) }()
	sides := []*side{{name: sideHandler, server: limpet, request: get}, {name: sideDoor, server: limpet, request: post}}
	if o.workerd != "" {
		folder := filepath.Join(dir, "workerd")
		if err := os.Mkdir(folder, 0o700); err != nil {
			return err
		}
		workerd, err := startWorkerd(ctx, o.workerd, folder)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, workerd.stop()) }()
		sides = append(sides, &side{name: sideWorkerd, server: workerd, request: get})
	}
	for _, s := range sides {
		s.figures = map[string]*measure.Figures{}
	}
	// A measurement of all sides after the other, so that those compared are close
	// in time.
	for round := range o.N {
		for _, m := range measurements {
			for _, c := range o.connections {
				for _, i := range measure.Order(round, len(sides)) {
					if err := sides[i].round(ctx, o, round, m, c); err != nil {
						return fmt.Errorf("%s, %s over %d connections: %w", sides[i].name, m.name, c, err)
					}
				}
			}
		}
	}
	report(out, o, sides)
	return nil
}

// Names of the sides.
const (
	sideHandler = "handler"
	sideDoor    = "door"
	sideWorkerd = "workerd"
)

// connect opens the connections of a round: workerd closes those that are idle
// for some seconds.
func (s *side) connect(connections int) error {
	for range connections {
		c, err := dial(s.server.addr)
		if err != nil {
			return err
		}
		s.clients = append(s.clients, c)
	}
	return nil
}

// warm does the measurement once for each object: those that were idle while
// the other sides ran are back in memory then.
func (s *side) warm(o options, m *measurement, connections int) error {
	objects := m.objects(o)
	errs := make([]error, connections)
	var wg sync.WaitGroup
	for c := range connections {
		wg.Go(func() {
			// Other values than those of a round.
			r := rand.New(rand.NewPCG(math.MaxUint64, uint64(c)))
			for object := c; object < objects && errs[c] == nil; object += connections {
				errs[c] = s.clients[c].do(s.request(m, object, r))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *side) disconnect() {
	for _, c := range s.clients {
		_ = c.Close()
	}
	s.clients = s.clients[:0]
}

func figureKey(m *measurement, connections int) string {
	return m.name + " " + strconv.Itoa(connections)
}

func (s *side) round(ctx context.Context, o options, round int, m *measurement, connections int) error {
	defer s.disconnect()
	if err := s.connect(connections); err != nil {
		return err
	}
	if err := s.warm(o, m, connections); err != nil {
		return err
	}
	// Values must be new: a put that changes nothing commits nothing.
	seed := uint64(round)<<32 | uint64(connections)
	res, err := measure.Load{
		Callers: connections, Time: o.Time, Max: o.Max, Seed: seed, PID: s.server.pid,
		Op: func(caller int, r *rand.Rand) error {
			return s.clients[caller].do(s.request(m, r.IntN(m.objects(o)), r))
		},
	}.Run(ctx)
	if err != nil {
		return err
	}
	f := s.figures[figureKey(m, connections)]
	if f == nil {
		f = &measure.Figures{}
		s.figures[figureKey(m, connections)] = f
	}
	f.Add(res)
	return nil
}

func report(out io.Writer, o options, sides []*side) {
	fmt.Fprintf(out, "HTTP requests that call an object, %d objects unless it says one. %s; the load runs on the same cores. %d rounds of %v, median (range).\n\n",
		o.objects, measure.Machine(), o.N, o.Time)
	var rival *side
	for _, s := range sides {
		if s.name == sideWorkerd {
			rival = s
		}
	}
	t := measure.Table{Head: []string{"measurement", "connections", "side", "requests/s", "p50 us", "p99 us", "server CPU us", "times workerd", "workerd's CPU / its", "others' cores"}}
	for _, m := range measurements {
		for _, c := range o.connections {
			for _, s := range sides {
				f := s.figures[figureKey(m, c)]
				cells := []string{m.name, strconv.Itoa(c), s.name, f.Rate.Text(measure.Whole), f.P50.Text(measure.Number), f.P99.Text(measure.Number),
					measure.Number(f.CPU.Median()), "", "", measure.Number(f.Others.Median())}
				if rival != nil && s != rival {
					b := rival.figures[figureKey(m, c)]
					cells[7] = measure.Ratio(f.Rate, b.Rate).Text(measure.Number)
					cells[8] = measure.Number(measure.Ratio(b.CPU, f.CPU).Median())
				}
				t.Row(cells...)
			}
		}
	}
	t.Write(out)
	if rival == nil {
		fmt.Fprintln(out, "No ratio: give the path of a workerd binary with -workerd.")
		return
	}
	var targets []measure.Target
	for _, m := range measurements {
		what, least := "P5 times workerd, ", 3.0
		if m.put {
			what, least = "P4 times workerd, ", 10
		}
		for _, s := range sides {
			f, b := s.figures[figureKey(m, 64)], rival.figures[figureKey(m, 64)]
			if s == rival || f == nil || b == nil {
				continue
			}
			targets = append(targets, measure.Target{What: what + m.name + ", 64 connections, " + s.name,
				Got: measure.Ratio(f.Rate, b.Rate).Median(), Limit: least, AtLeast: true})
		}
	}
	measure.Targets(out, targets...)
}
