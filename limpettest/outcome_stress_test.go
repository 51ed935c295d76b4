package limpettest_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

// outcomeTally adds up what all stories of outcomes met.
type outcomeTally struct {
	crashes, keys, told, notKept, never, unknown int
	replayed                                     float64
}

// TestOutcomesUnderFaults plays random faults, crashes and restarts against calls
// under keys, several for each, and calls that want their outcome kept, with runs
// counted by a witness that never crashes: a key runs once, everybody hears the same
// of it, and what Outcome says is true. LIMPET_SEED plays one story.
func TestOutcomesUnderFaults(t *testing.T) {
	stories := 600
	if testing.Short() {
		stories = 100
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
	total := &outcomeTally{}
	for i := range stories {
		seed := first + uint64(i)
		synctest.Test(t, func(t *testing.T) { outcomeStory(t, seed, total) })
		if t.Failed() {
			t.Fatalf("replay with LIMPET_SEED=%d", seed)
		}
	}
	t.Logf("%d stories from seed %d: %+v", stories, first, *total)
	if least := stories / 20; stories >= 100 && (total.crashes < least || total.told < least || total.notKept < least ||
		total.never < least || total.unknown < least || total.replayed < float64(least)) {
		t.Errorf("proved nothing: %+v", *total)
	}
}

func outcomeStory(t *testing.T, seed uint64, total *outcomeTally) {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &witness{}
	var opts []limpet.ClassOption
	gated := rng.IntN(2) == 0
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
				n.Evict(ns.Named("a").ID())
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

	var mu sync.Mutex
	told := map[string]bool{}         // the call was answered with its result
	barred := map[string]bool{}       // it was said that the call was not received
	kept := map[string]bool{}         // it was never said that its outcome was not kept
	identity := map[string][]string{} // what can be asked with
	var callers sync.WaitGroup
	call := func(name, key string, rng *rand.Rand) {
		stub := ns.Named("a", limpet.ReplayOutcome(), limpet.MaxRetries(rng.IntN(6)))
		p := pace{rng.IntN(300), rng.IntN(300), rng.IntN(3) > 0}
		if key != "" {
			p = pace{100, 100, true} // arguments belong to the key
		}
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		ctx := keyed(t.Context(), key)
		for {
			result, err := limpet.Call2(ctx, stub, (*job).Add, name, p)
			e, _ := errors.AsType[*limpet.Error](err)
			mu.Lock()
			switch {
			case err == nil:
				told[name] = true
				if result != 1 {
					t.Errorf("%s gives %d: it had effects twice", name, result)
				}
			case errors.Is(err, limpet.CodeAlreadyReceived):
				kept[name] = false
			case e.Identity != "":
				identity[name] = append(identity[name], e.Identity)
			}
			mu.Unlock()
			again := errors.Is(err, limpet.CodeDisconnected) && (key != "" || e.Delivery == limpet.DeliveryNone)
			if !again {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	var names []string
	for i := range 1 + rng.IntN(4) {
		name, key := fmt.Sprint("call-", i), ""
		times := 1
		mu.Lock()
		kept[name] = true
		if rng.IntN(3) > 0 {
			key, times = "key "+name, 1+rng.IntN(3)
			identity[name] = []string{limpet.KeyIdentity(key)}
			total.keys++
		}
		mu.Unlock()
		names = append(names, name)
		if key != "" && rng.IntN(3) == 0 { // somebody asks meanwhile
			after := time.Duration(rng.IntN(600)) * time.Millisecond
			callers.Go(func() {
				time.Sleep(after)
				o, err := limpet.Outcome(t.Context(), ns.Named("a"), limpet.KeyIdentity(key))
				mu.Lock()
				defer mu.Unlock()
				if err == nil && o.Kind == limpet.OutcomeNotReceived {
					barred[name] = true
				}
			})
		}
		for range times {
			seed := rng.Uint64()
			callers.Go(func() { call(name, key, rand.New(rand.NewPCG(seed, 1))) })
		}
	}
	callers.Wait()
	close(over)
	fate.Wait()
	net.Heal()
	synctest.Wait()

	stub := ns.Named("a")
	for _, name := range names {
		if runs := w.count(name); barred[name] && (runs > 0 || told[name]) {
			t.Errorf("it was said that %s was not received, and it ran %d times", name, runs)
		}
		for _, id := range identity[name] {
			o, err := limpet.Outcome(t.Context(), stub, id)
			runs := w.count(name)
			switch {
			case errors.Is(err, limpet.CodeOutcomeUnknown):
				total.unknown++
			case err != nil:
				t.Errorf("outcome of %s: %v", name, err)
			case o.Kind == limpet.OutcomeNotReceived:
				total.never++
				if runs > 0 || told[name] {
					t.Errorf("%s was not received, and ran %d times", name, runs)
				}
			case o.Kind == limpet.OutcomeResult:
				total.told++
				var result int
				if err := o.Decode(&result); err != nil || result != 1 || runs == 0 || !kept[name] {
					t.Errorf("%s: the outcome is %d, %v, after %d runs; kept %v", name, result, err, runs, kept[name])
				}
			case o.Kind == limpet.OutcomeNotKept:
				total.notKept++
				if told[name] {
					t.Errorf("%s was answered, and its outcome was not kept", name)
				}
			case o.Kind == limpet.OutcomeError && told[name]:
				t.Errorf("%s was answered with a result, and its outcome is %v", name, o.Err)
			}
		}
	}
	time.Sleep(2 * time.Second) // what nobody waits for any more ends
	total.replayed += metric(n, "limpet_outcomes_replayed_total")
	n.Restart()
	for _, name := range names {
		effects, err := limpet.Call1(t.Context(), stub, (*job).Value, name)
		if err != nil {
			t.Fatal(err)
		}
		runs := w.count(name)
		keyedCall := len(identity[name]) > 0 && identity[name][0] == limpet.KeyIdentity("key "+name)
		if effects > 1 || effects > runs || told[name] && effects != 1 || (keyedCall || !gated) && runs > 1 {
			t.Errorf("%s: %d effects of %d runs, answered: %v, with a key: %v, gated: %v", name, effects, runs, told[name], keyedCall, gated)
		}
	}
}
