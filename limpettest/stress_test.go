package limpettest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

// runs counts how often the handler of each call began.
type runs struct {
	mu sync.Mutex
	of map[string]int // guarded by mu
}

func (r *runs) began(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[id]++
}

// beast is an object that keeps a mark and a count of the calls that it took, and
// does all that an object can do to itself and others.
type beast struct {
	st   *limpet.State
	runs *runs
}

// mark counts the call id in the turn of the event that runs.
func (b *beast) mark(id string) error {
	var total, own int
	if _, err := b.st.KV().Get("total", &total); err != nil {
		return err
	}
	if _, err := b.st.KV().Get("id/"+id, &own); err != nil {
		return err
	}
	if err := b.st.KV().Put("total", total+1); err != nil {
		return err
	}
	return b.st.KV().Put("id/"+id, own+1)
}

func (b *beast) call(ctx context.Context, r *rand.Rand, id string, ways ...string) error {
	ns, err := limpet.NamespaceOf[*beast](b.st, "BEAST")
	if err != nil {
		return err
	}
	other := ns.Named(strconv.Itoa(r.IntN(beasts)))
	_, err = limpet.Call3(ctx, other, (*beast).Take, id, ways[r.IntN(len(ways))], r.Uint64())
	return err
}

const beasts = 4

// ways are what Take can do. Those in dropped leave no mark of their own.
var ways = []string{
	"mark", "mark", "mark", "transaction", "failed transaction", "panicked transaction", "transaction with a call",
	"error", "await", "await", "call", "call", "fan", "block", "later", "leak", "threads",
	"panic", "abort", "goexit", "abort in transaction", "goexit in transaction",
}

// Take is not marked retryable. It answers with id when it has left its mark.
func (b *beast) Take(ctx context.Context, id, way string, seed uint64) (string, error) {
	b.runs.began(id)
	r := rand.New(rand.NewPCG(seed, 1))
	dropped := func() { _ = b.mark("dropped/" + id) }
	switch way {
	case "transaction":
		return id, b.st.Transaction(func() error { return b.mark(id) })
	case "failed transaction":
		_ = b.st.Transaction(func() error {
			dropped()
			_ = b.st.Transaction(func() error { dropped(); return nil })
			return errors.New("failed")
		})
	case "panicked transaction":
		func() {
			defer func() { _ = recover() }()
			_ = b.st.Transaction(func() error { dropped(); panic(way) })
		}()
	case "transaction with a call":
		if b.st.Transaction(func() error { dropped(); return b.call(ctx, r, id+"/never", "mark") }) == nil {
			return "", errors.New("a call inside a transaction was made")
		}
	case "abort in transaction":
		_ = b.st.Transaction(func() error { dropped(); b.st.Abort(nil); return nil })
	case "goexit in transaction":
		_ = b.st.Transaction(func() error { dropped(); runtime.Goexit(); return nil })
	case "panic":
		dropped()
		panic(way)
	case "abort":
		dropped()
		b.st.Abort(errors.New(way))
	case "goexit":
		dropped()
		runtime.Goexit()
	case "error":
		return "", errors.Join(b.mark(id), errOwn)
	case "await":
		if err := b.mark(id); err != nil {
			return "", err
		}
		if err := b.st.Await(ctx, func(context.Context) error {
			time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond) // others meet it here
			return nil
		}); err != nil {
			return "", err
		}
		return id, b.st.KV().Put("late/"+id, 1)
	case "call":
		if err := b.mark(id); err != nil {
			return "", err
		}
		_ = b.call(ctx, r, id+"/"+strconv.FormatUint(r.Uint64(), 36), "mark", "call", "await", "error", "panic", "block")
		return id, b.st.KV().Put("late/"+id, 1)
	case "fan":
		var wg sync.WaitGroup
		for i := range 4 {
			s := rand.New(rand.NewPCG(seed, uint64(i)+2))
			wg.Go(func() { _ = b.call(ctx, s, fmt.Sprint(id, "/", i), "mark") })
		}
		wg.Wait()
	case "block":
		return id, b.st.BlockConcurrencyWhile(ctx, func(ctx context.Context) error {
			if err := b.mark(id); err != nil {
				return err
			}
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if err := b.call(short, r, id+"/blocked", "mark"); r.IntN(4) == 0 {
				return err
			}
			return nil
		})
	case "later":
		b.st.WaitUntil(func(context.Context) error { return b.mark("later/" + id) })
	case "leak":
		go func() { // uses the State when it should not
			for range 10 {
				_, _ = b.st.KV().Has("total")
				runtime.Gosched()
			}
			b.st.WaitUntil(func(context.Context) error { return nil })
		}()
	case "threads":
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() { _ = b.st.KV().Put(fmt.Sprint("thread/", i), 1) })
		}
		wg.Wait()
	}
	return id, b.mark(id)
}

var errOwn = errors.New("the beast's own error")

// All is everything that the object has.
func (b *beast) All(context.Context) (map[string]int, error) {
	all := map[string]int{}
	for e, err := range b.st.KV().List(limpet.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		var n int
		if err := e.Decode(&n); err != nil {
			return nil, err
		}
		all[e.Key] = n
	}
	return all, nil
}

// TestStress calls from many goroutines, with contexts that end at any moment,
// objects that panic, abort, call each other and fail in their constructors,
// while they are evicted, and the node loses its power and restarts. What must
// hold for every call: its handler begins at most once; its mark is there once if
// it succeeded, and at most once in any case; neither has it begun nor is its
// mark there if it was not delivered; what was rolled back is gone.
// LIMPET_SEED=n plays one seed.
func TestStress(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv("LIMPET_SEED"), 10, 64)
	rounds := 1
	if err != nil {
		seed = uint64(time.Now().UnixNano())
		rounds = 12
		if testing.Short() {
			rounds = 4
		}
		if scale, err := strconv.Atoi(os.Getenv("LIMPET_TEST_SCALE")); err == nil {
			rounds *= max(scale, 1)
		}
	}
	for i := range rounds {
		t.Run(fmt.Sprint("seed", seed+uint64(i)), func(t *testing.T) { stress(t, seed+uint64(i)) })
	}
}

func stress(t *testing.T, seed uint64) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	began := &runs{of: map[string]int{}}
	var constructed atomic.Int64
	class := limpet.NewClass("Beast", func(st *limpet.State) (*beast, error) {
		switch n := constructed.Add(1); {
		case n%37 == 0:
			return nil, errors.New("constructor fails")
		case n%41 == 0:
			panic("constructor panics")
		}
		return &beast{st, began}, nil
	})
	n := limpettest.StartConfig(t, node.Config{Classes: []*limpet.Class{class}, Logger: slog.New(slog.DiscardHandler)})
	ns, err := limpet.NamespaceOf[*beast](n, "BEAST")
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		way    string
		object int
		err    error
	}
	var (
		mu       sync.Mutex
		outcomes = map[string]outcome{}
		callers  sync.WaitGroup
	)
	for c := range 16 {
		callers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			for i := range 100 {
				id, way, object := fmt.Sprint(c, ".", i), ways[r.IntN(len(ways))], r.IntN(beasts)
				ctx, cancel := context.WithCancel(context.Background())
				switch r.IntN(6) {
				case 0:
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(3000)-100)*time.Microsecond)
				case 1, 2:
					if !strings.Contains(way, "goexit") { // it would end this goroutine
						ctx = context.Background()
					}
				}
				got, err := limpet.Call3(ctx, ns.Named(strconv.Itoa(object)), (*beast).Take, id, way, r.Uint64())
				cancel()
				if err == nil && got != id {
					t.Errorf("call %s was answered %q", id, got)
				}
				if err != nil && limpet.DeliveryOf(err) == limpet.DeliveryNone {
					time.Sleep(time.Millisecond) // leave a node that is down the time to restart
				}
				mu.Lock()
				outcomes[id] = outcome{way, object, err}
				mu.Unlock()
			}
		})
	}
	stop := make(chan struct{})
	var faults sync.WaitGroup
	faults.Go(func() {
		r := rand.New(rand.NewPCG(seed, 1000))
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(r.IntN(8000)) * time.Microsecond):
			}
			switch r.IntN(40) {
			case 0:
				n.Crash(limpettest.KeepUnsynced(r.IntN(101), r.Uint64()))
				n.Restart()
			case 1:
				n.Restart()
			default:
				n.Evict(ns.Named(strconv.Itoa(r.IntN(beasts))).ID())
			}
		}
	})
	callers.Wait()
	close(stop)
	faults.Wait()
	n.Restart()

	all := make([]map[string]int, beasts)
	for o := range all {
		for range 3 { // a constructor may fail
			if all[o], err = limpet.Call(t.Context(), ns.Named(strconv.Itoa(o)), (*beast).All); err == nil {
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		marks := 0
		for k, v := range all[o] {
			if strings.HasPrefix(k, "id/") {
				if marks += v; v != 1 {
					t.Errorf("object %d: %s was marked %d times", o, k, v)
				}
			}
			if strings.HasPrefix(k, "id/dropped/") || strings.HasSuffix(k, "/never") {
				t.Errorf("object %d: %s was rolled back, or never made", o, k)
			}
		}
		if marks != all[o]["total"] {
			t.Errorf("object %d: the total is %d, there are %d marks", o, all[o]["total"], marks)
		}
	}
	var done, none, other int
	for id, out := range outcomes {
		there := all[out.object]["id/"+id]
		e, _ := errors.AsType[*limpet.Error](out.err)
		switch {
		case out.err == nil:
			done++
			if there != 1 {
				t.Errorf("call %s (%s) succeeded, and its mark is missing", id, out.way)
			}
			if (out.way == "await" || out.way == "call") && all[out.object]["late/"+id] != 1 {
				t.Errorf("call %s (%s) succeeded, and its second turn is missing", id, out.way)
			}
		case e == nil:
			t.Errorf("call %s: an error without delivery: %v", id, out.err)
		case e.Delivery == limpet.DeliveryNone:
			none++
			if there != 0 || began.of[id] != 0 {
				t.Errorf("call %s (%s) was not delivered, but began %d times: %v", id, out.way, began.of[id], out.err)
			}
		default:
			other++
			if e.Remote && e.Message == errOwn.Error() && there != 1 {
				t.Errorf("call %s failed by its own error, and its mark is missing", id)
			}
			if strings.Contains(e.Message, "inside a transaction") {
				t.Errorf("call %s: %v", id, e)
			}
		}
	}
	for id, k := range began.of {
		if k > 1 {
			t.Errorf("the handler of call %s began %d times", id, k)
		}
	}
	t.Logf("%d succeeded, %d were not delivered, %d failed", done, none, other)
}
