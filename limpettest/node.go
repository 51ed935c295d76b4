package limpettest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/sim"
	"github.com/limpet-dev/limpet/node"
)

// segmentSize keeps a node of a test small: the disk is in memory. Commits of
// any size fit, since a record may span segments.
const segmentSize = 1 << 20

// Node is a node for a test. It is a limpet.Resolver and safe for concurrent
// use.
type Node struct {
	t   TB
	cfg node.Config

	random  *source
	client  *dispatch.Engine // of callers outside, once there is a network
	calls   dispatch.Counters
	netMu   sync.Mutex // held while the network is made
	network atomic.Pointer[Network]

	ops  sync.Mutex // held by what starts or stops the node, also while handlers end
	disk *sim.Disk  // guarded by ops

	dying sync.WaitGroup // crashed nodes whose handlers have not all returned

	mu   sync.RWMutex // guards what follows, never while waiting
	up   *node.Node   // nil while down
	link *link        // to up's objects, or those of the life before
	life int          // counts starts
}

// TB is what a Node needs of the test it runs in: a *testing.T, *testing.B or
// *testing.F, or something of a program's own that shows a class without a test.
// Fatalf must not return.
type TB interface {
	Helper()
	Cleanup(f func())
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Start starts a node with classes, each bound to its name in upper snake case
// (ChatRoom is CHAT_ROOM). It fails the test if the node does not start, and
// stops the node when the test ends.
func Start(t TB, classes ...*limpet.Class) *Node {
	t.Helper()
	return StartConfig(t, node.Config{Classes: classes})
}

// StartConfig is Start with a configuration of one's own. Dir and Fatal are not
// used: the disk is in memory, and a test does not end the process.
func StartConfig(t TB, cfg node.Config) *Node {
	t.Helper()
	n := &Node{t: t, cfg: cfg, disk: sim.NewDisk(), random: &source{}}
	n.cfg.Dir = "data"
	n.client = dispatch.New(dispatch.Config{
		Router: router{n}, Clock: n.clock(), Rand: n.random, Observer: &n.calls,
		ReplayMemory: cfg.ReplayMemory, ReplayMemoryPerCall: cfg.ReplayMemoryPerCall,
	})
	if err := n.start(); err != nil {
		t.Fatalf("limpettest: %v", err)
	}
	t.Cleanup(func() {
		n.ops.Lock()
		defer n.ops.Unlock()
		n.client.Close()
		if err := n.stop(); err != nil {
			t.Errorf("limpettest: stop the node: %v", err)
		}
		n.dying.Wait()
		if w := n.network.Load(); w != nil {
			w.drop()
		}
	})
	return n
}

// start opens the node on the disk; the caller holds ops or is alone.
func (n *Node) start() error {
	cfg := n.cfg
	cfg.Fatal = func(error) {} // the gates are broken; the test goes on
	var l *link
	cfg = cfg.OnDisk(n.disk, segmentSize).OnNetwork(func(objects dispatch.Transport) dispatch.Transport {
		l = newLink(n, objects)
		return l
	}, n.random)
	opened, err := node.Open(context.Background(), cfg)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.up, n.link, n.life = opened, l, n.life+1
	n.mu.Unlock()
	return nil
}

// down takes the node away from callers and returns it, or nil.
func (n *Node) down() *node.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.up
	n.up = nil
	return was
}

func (n *Node) stop() error {
	was := n.down()
	if was == nil {
		return nil
	}
	err := was.Close() // what runs is answered before the connections end
	n.link.lose(errCrashed)
	return err
}

// way is the link to the objects, or nil while the node is down.
func (n *Node) way() *link {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.up == nil {
		return nil
	}
	return n.link
}

func (n *Node) clock() limpet.Clock {
	if n.cfg.Clock != nil {
		return n.cfg.Clock
	}
	return node.SystemClock()
}

// classOf is the class behind a binding.
func (n *Node) classOf(binding string) (*limpet.Class, bool) {
	up, _ := n.current()
	if up == nil {
		return nil, false
	}
	b, err := up.Binding(binding)
	if err != nil {
		return nil, false
	}
	return b.Class, true
}

// Metrics are what limpet.Metric lists: of callers since the start of the test,
// of objects since the node's last start.
func (n *Node) Metrics() []limpet.Metric {
	out := n.calls.Metrics(n.client)
	up, _ := n.current()
	if up == nil {
		return out
	}
	for _, m := range up.Metrics() {
		i := slices.IndexFunc(out, func(c limpet.Metric) bool { return c.Name == m.Name && maps.Equal(c.Labels, m.Labels) })
		if i >= 0 {
			out[i].Value += m.Value
		} else {
			out = append(out, m)
		}
	}
	return out
}

// Evict drops an object from memory as if it had been idle for long: the next
// call constructs it again from its data. It reports whether there was an
// incarnation to drop; an object at work is left alone, and one of which somebody
// holds a function, target or stream.
func (n *Node) Evict(id limpet.ID) bool {
	up, _ := n.current()
	return up != nil && up.Evict(id)
}

// CrashOption sets what a crash leaves.
type CrashOption interface{ applyCrash(*crashOptions) }

type crashOptions struct {
	keep int
	seed uint64
}

type crashOptionFunc func(*crashOptions)

func (f crashOptionFunc) applyCrash(o *crashOptions) { f(o) }

// KeepUnsynced makes a crash keep each block that was written and not synced
// with a probability of percent, 0 to 100, drawn from seed. Without it nothing
// unsynced is kept.
func KeepUnsynced(percent int, seed uint64) CrashOption {
	return crashOptionFunc(func(o *crashOptions) { o.keep, o.seed = percent, seed })
}

// Crash cuts the node's power: memory, and whatever was not durable, is gone.
// Calls in flight fail, as when the connection to a machine is lost; handlers
// that do not look at their context go on, without effect, and the test ends
// only when they have returned. The node is down afterwards, until Restart; Crash
// of a node that is down already fails the test at once.
func (n *Node) Crash(opts ...CrashOption) {
	n.t.Helper()
	var o crashOptions
	for _, f := range opts {
		f.applyCrash(&o)
	}
	n.ops.Lock()
	defer n.ops.Unlock()
	if up, _ := n.current(); up == nil {
		n.t.Fatalf("limpettest: Crash of a node that is down")
	}
	n.link.lose(errCrashed)
	after := n.disk.CutPower(o.keep, o.seed)
	dead := n.down()
	n.disk = after
	n.dying.Go(func() { _ = dead.Close() }) // that its log is lost is the point
}

// Restart starts the node again on what its disk holds: after a Crash, or, if
// the node is up, after stopping it properly.
func (n *Node) Restart() {
	n.t.Helper()
	n.ops.Lock()
	defer n.ops.Unlock()
	if err := n.stop(); err != nil {
		n.t.Fatalf("limpettest: stop the node: %v", err)
	}
	if err := n.start(); err != nil {
		n.t.Fatalf("limpettest: restart: %v", err)
	}
}

// Handler is the node's HTTP door (docs/HTTP.md). While the node is down it
// answers 503.
func (n *Node) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		up, _ := n.current()
		if up == nil {
			http.Error(w, errDown().Error(), http.StatusServiceUnavailable)
			return
		}
		up.Handler().ServeHTTP(w, r)
	})
}

func (n *Node) current() (up *node.Node, life int) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.up, n.life
}

// Binding makes the node a limpet.Resolver.
func (n *Node) Binding(name string) (*limpet.Binding, error) {
	up, _ := n.current()
	if up == nil {
		return nil, errDown()
	}
	b, err := up.Binding(name)
	if err != nil {
		return nil, err
	}
	lasting := *b
	lasting.Caller = &caller{n: n, binding: name}
	return &lasting, nil
}

func errDown() *limpet.Error {
	return limpet.Errorf(limpet.CodeDisconnected, "Network connection lost.").With(func(e *limpet.Error) {
		e.Delivery, e.Retryable = limpet.DeliveryNone, true
		e.Cause = errors.New("the test node is down: call Restart")
	})
}

// caller passes calls on to the node of the moment.
type caller struct {
	n       *Node
	binding string
}

// engine is that of the node of the moment.
func (c *caller) engine() (e limpet.Caller, life int, err error) {
	if c.n.network.Load() != nil {
		return c.n.client, 0, nil
	}
	up, life := c.n.current()
	if up == nil {
		return nil, life, errDown()
	}
	b, err := up.Binding(c.binding)
	if err != nil {
		return nil, life, err
	}
	return b.Caller, life, nil
}

func (c *caller) Call(ctx context.Context, spec *limpet.CallSpec) (any, error) {
	e, life, err := c.engine()
	if err != nil {
		return nil, err
	}
	out, err := e.Call(ctx, spec)
	return out, c.seen(life, err)
}

var _ limpet.Starter = (*caller)(nil)

// Start passes a call on that is not waited for.
func (c *caller) Start(ctx context.Context, spec *limpet.CallSpec) (limpet.PendingCall, error) {
	e, life, err := c.engine()
	if err != nil {
		return nil, err
	}
	starter, ok := e.(limpet.Starter)
	if !ok {
		return nil, limpet.Errorf(limpet.CodeNotSupported, "not supported: to start a call on this node")
	}
	p, err := starter.Start(ctx, spec)
	if err != nil {
		return nil, c.seen(life, err)
	}
	return &pendingCall{p, c, life}, nil
}

// pendingCall is a call of one life.
type pendingCall struct {
	limpet.PendingCall
	c    *caller
	life int
}

func (p *pendingCall) Outcome() (any, error) {
	out, err := p.PendingCall.Outcome()
	return out, p.c.seen(p.life, err)
}

func (p *pendingCall) Child(ctx context.Context, t limpet.TargetCall) (limpet.Parcel, error) {
	out, err := p.PendingCall.Child(ctx, t)
	return out, p.c.seen(p.life, err)
}

// Outcome passes a question on.
func (c *caller) Outcome(ctx context.Context, spec *limpet.CallSpec, q limpet.OutcomeQuery) (*limpet.CallOutcome, error) {
	e, life, err := c.engine()
	if err != nil {
		return nil, err
	}
	teller, ok := e.(limpet.OutcomeTeller)
	if !ok {
		return nil, limpet.Errorf(limpet.CodeNotSupported, "not supported: to ask this node for outcomes")
	}
	o, err := teller.Outcome(ctx, spec, q)
	return o, c.seen(life, err)
}

func (c *caller) Fetch(ctx context.Context, spec *limpet.CallSpec, req *http.Request, follow bool) (*http.Response, error) {
	e, life, err := c.engine()
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // the contract of http.RoundTripper; nothing was read
		}
		return nil, err
	}
	resp, err := e.Fetch(ctx, spec, req, follow)
	return resp, c.seen(life, err)
}

// seen is what the caller sees of a failure: after a crash, a lost connection
// and nothing else, since a machine without power says nothing more. What the
// object itself had answered before stays.
func (c *caller) seen(life int, err error) error {
	if err == nil || life == 0 { // a network says by itself what was lost
		return err
	}
	if up, now := c.n.current(); up != nil && now == life {
		return err
	}
	if e, ok := errors.AsType[*limpet.Error](err); ok && (e.Remote && !e.Reset || e.Delivery == limpet.DeliveryNone) {
		return err
	}
	return limpet.Errorf(limpet.CodeDisconnected, "Network connection lost.").With(func(e *limpet.Error) {
		e.Retryable = true
		e.Cause = fmt.Errorf("the test node crashed: %w", err)
	})
}
