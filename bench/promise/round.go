package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
)

// This file is a run: processes, rounds, kills. A round has a data directory of
// its own, so that logs stay short and the judge's memory small:
//
//	start ──▶ call, strike, kill, drain ──▶ come to rest ──▶ read everything ──▶ judge

type run struct {
	o       options
	dir     string // of everything that the run writes
	rng     *rand.Rand
	proxy   *child
	beyond  *child // the proxy between node and witness
	witness *child
	where   witnessReady // as the node knows it: behind that proxy
	callers callers
	begun   time.Time

	left atomic.Int64 // calls

	mu          sync.Mutex
	node        *child // nil while none runs
	addr        string
	life        int
	tally       tally
	tallyBeyond tally // of the proxy between node and witness
	round       int
	histories   int
	unknown     int // histories that nobody could decide on in time
	judged      int
	violations  []violation
}

// newRun starts the processes that live as long as the run.
func newRun(ctx context.Context, o options, dir string) (*run, error) {
	r := &run{o: o, dir: dir, rng: rand.New(rand.NewPCG(o.seed, 1)), begun: time.Now()}
	r.left.Store(o.calls)
	if o.calls == 0 {
		r.left.Store(1 << 60)
	}
	var err error
	r.witness, err = spawn("witness", witnessConfig{filepath.Join(dir, "witness")}, &r.where, filepath.Join(dir, "witness.log"))
	if err != nil {
		return nil, err
	}
	var ready proxyReady
	r.proxy, err = spawn("proxy", proxyConfig{Seed: o.seed, Every: o.every}, &ready, filepath.Join(dir, "proxy.log"))
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	var beyond proxyReady
	r.beyond, err = spawn("proxy", proxyConfig{Seed: ^o.seed, Every: 2 * o.every, Short: true}, &beyond, filepath.Join(dir, "beyond.log"))
	if err == nil {
		err = r.beyond.ask(proxyCommand{Target: r.where.Wire}, new(tally))
		r.where.Wire = beyond.Addr
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	if err := r.first(ctx, ready.Addr); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// first opens the first round's node and connects the clients.
func (r *run) first(ctx context.Context, proxy string) error {
	r.callers.objects = r.o.objects
	if err := r.openRound(); err != nil {
		return err
	}
	for range r.o.clients {
		c, err := client.Dial(ctx, []string{proxy}, client.Mutated(r.o.broken))
		if err != nil {
			return err
		}
		r.callers.clients = append(r.callers.clients, c)
		var spaces [2]limpet.Namespace[Object]
		for i, binding := range []string{"GATED", "FREE"} {
			if spaces[i], err = limpet.NamespaceOf[Object](c, binding); err != nil {
				return err
			}
		}
		r.callers.spaces = append(r.callers.spaces, spaces)
	}
	return nil
}

// close ends everything. It may be called in any state.
func (r *run) close() error {
	for _, c := range r.callers.clients {
		_ = c.Close() // it never fails
	}
	for _, c := range []*child{r.node, r.proxy, r.beyond, r.witness} {
		if c != nil {
			c.kill()
		}
	}
	return nil
}

func (r *run) data() string { return filepath.Join(r.dir, fmt.Sprintf("data-%03d", r.round)) }

func (r *run) journal() string {
	return filepath.Join(r.dir, fmt.Sprintf("attempts-%03d.log", r.round))
}

// openRound begins a round.
func (r *run) openRound() error {
	r.round++
	r.callers.newRound(r.round)
	if err := r.tell(proxyCommand{Journal: r.journal()}); err != nil {
		return err
	}
	return r.start()
}

// start starts the node on the round's directory.
func (r *run) start() error {
	r.mu.Lock()
	r.life++
	cfg := nodeConfig{Dir: r.data(), Life: r.life, Witness: r.where, Mutation: r.o.mutation}
	r.mu.Unlock()
	var ready nodeReady
	n, err := spawn("node", cfg, &ready, filepath.Join(r.dir, "node.log"))
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.node, r.addr = n, ready.Addr
	r.mu.Unlock()
	return r.tell(proxyCommand{Target: ready.Addr})
}

// tell commands the proxy, and keeps its tally.
func (r *run) tell(c proxyCommand) error {
	var t, b tally
	if err := r.proxy.ask(c, &t); err != nil {
		return err
	}
	// Beyond the node there are other calls, and their own journal.
	far := proxyCommand{Faults: c.Faults, Quiet: c.Quiet}
	if c.Journal != "" {
		far.Journal = beyond(c.Journal)
	}
	if err := r.beyond.ask(far, &b); err != nil {
		return err
	}
	r.mu.Lock()
	r.tally, r.tallyBeyond = t, b
	r.mu.Unlock()
	return nil
}

// beyond is the journal of the proxy beyond the node.
func beyond(journal string) string { return journal + ".beyond" }

// end ends the node, by kill or drain.
func (r *run) end(how fault) error {
	r.mu.Lock()
	n := r.node
	r.mu.Unlock()
	select {
	case <-n.ended:
		return fmt.Errorf("the node ended by itself: %w: %s", n.err, tail(n.log))
	default:
	}
	if err := r.tell(proxyCommand{Why: how, Target: "-"}); err != nil {
		return err
	}
	if how == kill {
		n.kill()
	} else if err := n.stop(drainTimeout + 15*time.Second); err != nil {
		return err
	}
	r.mu.Lock()
	r.node = nil
	r.mu.Unlock()
	return nil
}

// torment kills and drains until ctx ends, and leaves the node running.
func (r *run) torment(ctx context.Context) error {
	for {
		up := 200*time.Millisecond + time.Duration(r.rng.Int64N(int64(1600*time.Millisecond)))
		how := kill
		if r.rng.IntN(3) == 0 {
			how = drain
		}
		t := time.NewTimer(up)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		if err := r.end(how); err != nil {
			return err
		}
		if r.rng.IntN(2) == 0 {
			time.Sleep(time.Duration(r.rng.Int64N(int64(200 * time.Millisecond))))
		}
		if err := r.start(); err != nil {
			return err
		}
	}
}

// take takes a call from those that are left.
func (r *run) take() bool { return r.left.Add(-1) >= 0 }

// play is one round. It ends early when ctx does.
func (r *run) play(ctx context.Context, length time.Duration) error {
	if err := r.tell(proxyCommand{Faults: true}); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	over := time.AfterFunc(length, func() { stop(errRoundOver) })
	defer over.Stop()

	var torment sync.WaitGroup
	var failed error
	torment.Go(func() {
		if failed = r.torment(ctx); failed != nil {
			stop(failed)
		}
	})
	hs := &histories{c: &r.callers}
	var all sync.WaitGroup
	for i := range r.o.workers {
		c := caller{&r.callers, i % len(r.callers.clients), rand.New(rand.NewPCG(r.o.seed, uint64(r.round)<<32|uint64(i)))}
		all.Go(func() { c.run(ctx, r.take) })
	}
	for line := range historyLines {
		all.Go(func() { hs.run(ctx, line, r.o.seed^uint64(r.round)) })
	}
	all.Go(func() { // the histories end when the calls are used up
		t := time.NewTicker(50 * time.Millisecond)
		defer t.Stop()
		for ctx.Err() == nil {
			<-t.C
			if r.left.Load() <= 0 {
				stop(errRoundOver)
			}
		}
	})
	<-ctx.Done()
	torment.Wait()
	if err := r.tell(proxyCommand{Quiet: true}); err != nil {
		return errors.Join(failed, err)
	}
	all.Wait()
	if failed != nil {
		return failed
	}
	return r.judge(hs)
}

var errRoundOver = errors.New("the round is over")

// judge reads everything, and lets the judge see it.
func (r *run) judge(hs *histories) error {
	if err := r.tell(proxyCommand{Quiet: true}); err != nil { // now nothing is under way
		return err
	}
	var e evidence
	var err error
	if e.objects, err = r.read(); err != nil {
		return err
	}
	if err := r.witness.ask(witnessCommand{}, &e.witness); err != nil {
		return err
	}
	found := judge(r.callers.ops, e)
	unknown := 0
	var mu sync.Mutex
	var all sync.WaitGroup
	room := make(chan struct{}, 2)
	for _, h := range hs.done {
		all.Go(func() {
			room <- struct{}{}
			v, u := h.check()
			<-room
			mu.Lock()
			defer mu.Unlock()
			found = append(found, v...)
			if u {
				unknown++
			}
		})
	}
	all.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, found...)
	r.histories += len(hs.done)
	r.unknown += unknown
	r.judged += len(r.callers.ops)
	return nil
}

// read reads all objects of the mix, past the proxy.
func (r *run) read() ([]contents, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, []string{r.addr})
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // it never fails
	out := make([]contents, r.o.objects)
	var spaces [2]limpet.Namespace[Object]
	for i, binding := range []string{"GATED", "FREE"} {
		if spaces[i], err = limpet.NamespaceOf[Object](c, binding); err != nil {
			return nil, err
		}
	}
	for i := range out {
		out[i].entries = map[string]string{}
		s := spaces[i%2].Named(objectName(i))
		for after := ""; ; {
			page, err := limpet.Call1(ctx, s, Object.Dump, after)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", objectName(i), err)
			}
			for _, line := range page {
				key, value, _ := strings.Cut(line, "\t")
				out[i].entries[key] = value
				after = key
			}
			if len(page) < dumpPage {
				break
			}
		}
	}
	return out, nil
}

// closeRound ends the round's node and throws its data away.
func (r *run) closeRound() error {
	if err := r.end(drain); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(r.data()), os.Remove(r.journal()), os.Remove(beyond(r.journal())))
}
