package limpettest

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
)

// Network is what lies between the callers of a test node and its objects, once
// Node.Network was called; see the package comment. It is safe for concurrent
// use.
type Network struct {
	n *Node

	mu      sync.Mutex
	seed    uint64
	random  *rand.Rand
	faults  []*Fault
	counts  [faultKinds]int
	held    map[limpet.Identity]*heldAttempt
	passing int // attempts seen
}

// NetworkOption sets up a Network.
type NetworkOption interface{ applyNetwork(*Network) }

type networkOptionFunc func(*Network)

func (f networkOptionFunc) applyNetwork(w *Network) { f(w) }

// Seed makes what the network draws (probabilities, and the backoffs and
// identities of calls) come from n, so that calls made one after another meet
// the same faults each time. Without it the seed is the environment's
// LIMPET_SEED, or random; a test that fails logs it.
func Seed(n uint64) NetworkOption {
	return networkOptionFunc(func(w *Network) { w.seed = n })
}

// Network puts a network between callers and the node's objects, and gives it;
// from then on every call crosses it as bytes, those of objects to each other
// too, and calls carry identities, are claimed and retried as over a real one.
// Options count only the first time; later ones fail the test.
func (n *Node) Network(opts ...NetworkOption) *Network {
	n.t.Helper()
	n.netMu.Lock()
	defer n.netMu.Unlock()
	if w := n.network.Load(); w != nil {
		if len(opts) > 0 {
			n.t.Fatalf("limpettest: the options of Network must be given when it is called for the first time")
		}
		return w
	}
	w := &Network{n: n, seed: n.random.Uint64(), held: map[limpet.Identity]*heldAttempt{}}
	if s := os.Getenv("LIMPET_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			n.t.Fatalf("limpettest: LIMPET_SEED: %v", err)
		}
		w.seed = seed
	}
	for _, o := range opts {
		o.applyNetwork(w)
	}
	w.random = rand.New(rand.NewPCG(w.seed, 1))
	n.random.set(rand.NewPCG(w.seed, 2))
	n.network.Store(w)
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("limpettest: the network's seed was %d", w.seed)
		}
	})
	return w
}

// Inject adds faults. Each attempt is struck by the first fault that fits, in
// the order of injection. A fault that can't strike as it is written, since a
// number is out of range or no class has such a method, fails the test.
func (w *Network) Inject(faults ...Fault) {
	w.n.t.Helper()
	for _, f := range faults {
		f.wrong = slices.Clone(f.wrong)
		w.check(&f)
		if len(f.wrong) > 0 {
			w.n.t.Fatalf("limpettest: fault %v: %s", f.kind, strings.Join(f.wrong, "; "))
			return
		}
		w.mu.Lock()
		w.faults = append(w.faults, &f)
		w.mu.Unlock()
	}
}

// check finds names that do not exist.
func (w *Network) check(f *Fault) {
	classes := w.n.cfg.Classes
	if slices.Contains(f.given, "Binding") {
		class, known := w.n.classOf(f.binding)
		if !known {
			f.bad("Binding(%q): the node has no such binding", f.binding)
			return
		}
		classes = []*limpet.Class{class}
	}
	if slices.Contains(f.given, "Method") && !slices.ContainsFunc(classes, func(c *limpet.Class) bool {
		return c.Method(f.method) != nil || f.method == "fetch" && c.HasHandler()
	}) {
		f.bad("Method(%q): no class has it", f.method)
	}
}

// Heal takes all faults away. What is under way is not changed by it.
func (w *Network) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = nil
}

// Count is how often faults of a kind have struck.
func (w *Network) Count(k FaultKind) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[k]
}

// Attempts is how many attempts went onto the network, struck or not.
func (w *Network) Attempts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.passing
}

// Seed is the seed of everything the network draws.
func (w *Network) Seed() uint64 { return w.seed }

// strike decides what befalls an attempt: nil, or a copy of the fault, counted
// already. undo takes that back, for a cut that had too few bytes to strike.
func (w *Network) strike(a dispatch.Attempt) (f *Fault, undo func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passing++
	for _, c := range w.faults {
		if c.times == 0 || !c.fits(a) || c.chance > 0 && w.random.Float64() >= c.chance {
			continue
		}
		if c.times > 0 {
			c.times--
		}
		w.counts[c.kind]++
		hit := *c
		return &hit, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.counts[c.kind]--
			if c.times >= 0 {
				c.times++
			}
		}
	}
	return nil, nil
}

func (f *Fault) fits(a dispatch.Attempt) bool {
	method := a.Call.Method
	if a.Call.Kind == limpet.KindFetch {
		method = "fetch"
	}
	return (f.binding == "" || f.binding == a.Call.Binding.Name) &&
		(f.method == "" || f.method == method) &&
		(f.object.IsZero() || f.object.Equal(a.Call.Object)) &&
		(f.number == 0 || f.number == a.Number)
}

// hold keeps a request under way until a retry of its call has arrived.
func (w *Network) hold(h *heldAttempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[h.attempt.Identity] = h
}

// overtaken gives the request that a retry has overtaken, or nil.
func (w *Network) overtaken(retry dispatch.Attempt) *heldAttempt {
	if !retry.Retry {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.held[retry.Identity]
	delete(w.held, retry.Identity)
	return h
}

// drop loses what is held, at the end of the test.
func (w *Network) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		closeRequest(h.attempt)
	}
	clear(w.held)
}

// source makes random numbers for engines: the system's until a seed is set.
type source struct {
	mu     sync.Mutex
	seeded rand.Source
}

func (s *source) set(to rand.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seeded = to
}

func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seeded == nil {
		return systemRandom()
	}
	return s.seeded.Uint64()
}
