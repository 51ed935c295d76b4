package limpettest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

// job is the object of the random stories: its methods take time before and
// after their effect, so that crashes and cuts find them anywhere.
type job struct {
	st *limpet.State
	w  *witness
}

// pace is how long a method takes, in milliseconds.
type pace struct {
	Before, After int
	Give          bool // give the object up meanwhile
}

// pause takes ms milliseconds. If it gives the object up, it also does something
// outside of it, of which the witness knows under the name what.
func (j *job) pause(ctx context.Context, what string, ms int, give bool) error {
	d := time.Duration(ms) * time.Millisecond
	if !give {
		time.Sleep(d)
		return nil
	}
	return j.st.Await(ctx, func(ctx context.Context) error {
		j.w.ran(what)
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// effect adds a run to those the object itself knows of.
func (j *job) effect(ctx context.Context, key string, p pace) (int, error) {
	j.w.ran(key)
	if err := j.pause(ctx, key+" before", p.Before, p.Give); err != nil {
		return 0, err
	}
	var n int
	if _, err := j.st.KV().Get(key, &n); err != nil {
		return 0, err
	}
	n++
	if err := j.st.KV().Put(key, n); err != nil {
		return 0, err
	}
	return n, j.pause(ctx, key+" after", p.After, p.Give)
}

func (j *job) Add(ctx context.Context, key string, p pace) (int, error) { return j.effect(ctx, key, p) }

// Set is marked.
func (j *job) Set(ctx context.Context, key string, p pace, v int) error {
	j.w.ran(key)
	if err := j.pause(ctx, key+" before", p.Before, p.Give); err != nil {
		return err
	}
	if err := j.st.KV().Put("value", v); err != nil {
		return err
	}
	return j.pause(ctx, key+" after", p.After, p.Give)
}

func (j *job) Value(_ context.Context, key string) (n int, err error) {
	_, err = j.st.KV().Get(key, &n)
	return n, err
}

func (j *job) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		j.w.ran(r.URL.Path[1:])
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if _, err := j.effect(r.Context(), r.URL.Path[1:], pace{Before: 10}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, "done")
}

// tally adds up what all stories met.
type tally struct {
	faults           map[limpettest.FaultKind]int
	crashes          int
	calls, acked     int
	accepted         float64 // retried calls that a retry brought through
	refused          float64 // retries refused as already received
	uncertain, never int
}

// TestNeverTwice plays random faults, crashes and restarts against objects, and
// holds every call against the promise, with runs counted by a witness that
// never crashes and effects counted by the objects. LIMPET_SEED plays one story.
func TestNeverTwice(t *testing.T) {
	// SPEC E28, F13, F14, F18, F21, F41, C50
	stories := 2000
	if testing.Short() {
		stories = 150
	}
	if scale, err := strconv.Atoi(os.Getenv("LIMPET_TEST_SCALE")); err == nil {
		stories *= max(scale, 1)
	}
	first := uint64(time.Now().UnixNano())
	if s := os.Getenv("LIMPET_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, stories = n, 1
	}
	total := &tally{faults: map[limpettest.FaultKind]int{}}
	for i := range stories {
		seed := first + uint64(i)
		synctest.Test(t, func(t *testing.T) { story(t, seed, total) })
		if t.Failed() {
			t.Fatalf("replay with LIMPET_SEED=%d", seed)
		}
	}
	t.Logf("%d stories from seed %d: %+v", stories, first, *total)
	if stories < 100 {
		return
	}
	for k := limpettest.FaultDropRequest; k <= limpettest.FaultReorder; k++ {
		if total.faults[k] < stories/20 {
			t.Errorf("proved nothing: %v struck %d times", k, total.faults[k])
		}
	}
	if least := stories / 20; total.crashes < least || total.accepted < float64(least) || total.refused < float64(least) ||
		total.uncertain < least || total.never < least || total.acked < least {
		t.Errorf("proved nothing: %+v", *total)
	}
}

func story(t *testing.T, seed uint64, total *tally) {
	rng := rand.New(rand.NewPCG(seed, 0))
	gated := rng.IntN(2) == 0
	w := &witness{}
	opts := []limpet.ClassOption{limpet.Retryable((*job).Set)}
	if gated {
		opts = append(opts, limpet.GatedEffects())
	}
	n := limpettest.StartConfig(t, node.Config{
		Logger:  slog.New(slog.DiscardHandler),
		Classes: []*limpet.Class{limpet.NewClass("Job", func(st *limpet.State) (*job, error) { return &job{st, w}, nil }, opts...)},
	})
	net := n.Network(limpettest.Seed(seed))
	for range 1 + rng.IntN(3) {
		net.Inject(randomFault(rng))
	}
	ns, err := limpet.NamespaceOf[*job](n, "JOB")
	if err != nil {
		t.Fatal(err)
	}
	stub := ns.Named("a", limpet.MaxRetries(rng.IntN(6)), limpet.RetryTimeout(time.Duration(500+rng.IntN(10_000))*time.Millisecond))

	// What befalls the node meanwhile.
	over := make(chan struct{})
	var fate sync.WaitGroup
	events := rand.New(rand.NewPCG(seed, 3))
	times := rng.IntN(4)
	fate.Go(func() {
		for range times {
			select {
			case <-time.After(time.Duration(events.IntN(1500)) * time.Millisecond):
			case <-over:
				return
			}
			switch events.IntN(4) {
			case 0:
				n.Evict(stub.ID())
			case 1:
				n.Restart()
			default:
				total.crashes++
				n.Crash(limpettest.KeepUnsynced(events.IntN(101), seed))
				time.Sleep(time.Duration(events.IntN(1000)) * time.Millisecond)
				n.Restart()
			}
		}
	})

	type call struct {
		key    string
		marked bool
		value  int
		err    error
	}
	calls := make([]call, 1+rng.IntN(4))
	together := rng.IntN(2) == 0
	var callers sync.WaitGroup
	for i := range calls {
		c := call{key: fmt.Sprintf("call-%d", i), value: i + 1}
		p := pace{rng.IntN(300), rng.IntN(300), rng.IntN(3) > 0}
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if rng.IntN(5) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(4000))*time.Millisecond)
		}
		kind, start := rng.IntN(4), time.Duration(rng.IntN(400))*time.Millisecond
		make := func() {
			defer cancel()
			switch kind {
			case 0:
				c.marked = true
				c.err = limpet.Do3(ctx, stub, (*job).Set, c.key, p, c.value)
			case 1:
				var status int
				if status, c.err = fetch(ctx, stub, c.key); c.err == nil && status != http.StatusOK {
					c.err = &limpet.Error{Message: "the handler says it failed", Delivery: limpet.DeliveryReceived}
				}
			default:
				_, c.err = limpet.Call2(ctx, stub, (*job).Add, c.key, p)
			}
			calls[i] = c
		}
		if together {
			callers.Go(func() {
				time.Sleep(start)
				make()
			})
		} else {
			make()
		}
	}
	callers.Wait()
	close(over)
	fate.Wait()
	net.Heal()
	synctest.Wait()
	time.Sleep(2 * time.Second) // handlers that nobody waits for any more end
	n.Restart()                 // what is there is on the disk

	value, possible := 0, map[int]bool{0: true}
	fresh := ns.Named("a")
	for _, c := range calls {
		runs := w.count(c.key)
		effects, err := limpet.Call1(t.Context(), fresh, (*job).Value, c.key)
		if err != nil {
			t.Fatalf("%s: %v", c.key, err)
		}
		total.calls++
		d := limpet.DeliveryOf(c.err)
		tell := func(what string) {
			t.Errorf("%s of %+v (gated %v): %d runs, %d effects, error %v", what, c, gated, runs, effects, c.err)
		}
		switch {
		case !c.marked && !gated && runs > 1:
			tell("a second run")
		case !c.marked && max(effects, w.count(c.key+" before"), w.count(c.key+" after")) > 1:
			tell("a second effect")
		case c.err == nil && runs == 0:
			tell("no run")
		case c.err == nil && !c.marked && effects != 1:
			tell("an acknowledged effect is lost")
		case c.err != nil && d == limpet.DeliveryNone && runs > 0:
			tell("a false \"not delivered\"")
		case c.err != nil && d == limpet.DeliveryReceived && runs == 0:
			tell("a false \"received\"")
		case c.err != nil && limpet.CodeOf(c.err) == limpet.CodeAlreadyReceived:
			tell("a claim rejection")
		}
		switch {
		case c.err == nil:
			total.acked++
			if c.marked {
				if !together {
					clear(possible)
				}
				value, possible[c.value] = c.value, true
			}
		default:
			if d == limpet.DeliveryUncertain {
				total.uncertain++
			}
			if d == limpet.DeliveryNone {
				total.never++
			} else if c.marked {
				possible[c.value] = true
			}
		}
	}
	if got, err := limpet.Call1(t.Context(), fresh, (*job).Value, "value"); err != nil || !possible[got] {
		t.Errorf("the marked setter left %d (%v), last acknowledged %d, possible %v: %+v", got, err, value, possible, calls)
	}
	for k := limpettest.FaultDropRequest; k <= limpettest.FaultReorder; k++ {
		total.faults[k] += net.Count(k)
	}
	retried := metric(n, "limpet_call_retry_outcomes_total")
	if max := float64(len(calls)); retried > max { // SPEC I3
		t.Errorf("%v outcomes of %v calls", retried, max)
	}
	total.accepted += metric(n, "limpet_call_retry_outcomes_total", "outcome", "recovered")
	total.refused += metric(n, "limpet_call_retry_outcomes_total", "outcome", "claim_rejected")
}

func fetch(ctx context.Context, stub *limpet.Stub[*job], key string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://job/"+key, strings.NewReader("a body of some length"))
	if err != nil {
		return 0, err
	}
	resp, err := stub.Fetch(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	if err != nil && !errors.As(err, new(*limpet.Error)) {
		err = fmt.Errorf("a body that breaks without saying why: %w", err)
	}
	return resp.StatusCode, err
}

func randomFault(rng *rand.Rand) limpettest.Fault {
	opts := []limpettest.FaultOption{limpettest.Probability(0.2 + 0.6*rng.Float64())}
	if rng.IntN(2) == 0 {
		opts = append(opts, limpettest.Times(1+rng.IntN(3)))
	}
	later := opts
	if rng.IntN(2) == 0 {
		later = append(later, limpettest.OnReply())
	}
	switch rng.IntN(8) {
	case 0:
		return limpettest.DropRequest(opts...)
	case 1, 2:
		return limpettest.DropReply(opts...)
	case 3:
		return limpettest.Refuse(opts...)
	case 4:
		return limpettest.CutAfter(int64(rng.IntN(40)), opts...)
	case 5:
		return limpettest.Freeze(time.Duration(1+rng.IntN(12_000))*time.Millisecond, later...)
	case 6:
		return limpettest.Delay(time.Duration(1+rng.IntN(3000))*time.Millisecond, later...)
	default:
		return limpettest.Reorder(opts...)
	}
}
