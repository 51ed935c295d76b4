package limpettest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
	"github.com/limpet-dev/limpet/node"
)

// segmentSize keeps a node of a test small: the disk is in memory. Commits of
// any size fit, since a record may span segments.
const segmentSize = 1 << 20

// Node is a node for a test. It is a limpet.Resolver and safe for concurrent
// use.
type Node struct {
	t   testing.TB
	cfg node.Config

	ops  sync.Mutex // held by what starts or stops the node, also while handlers end
	disk *sim.Disk  // guarded by ops

	dying sync.WaitGroup // crashed nodes whose handlers have not all returned

	mu   sync.RWMutex // guards what follows, never while waiting
	up   *node.Node   // nil while down
	life int          // counts starts
}

// Start starts a node with classes, each bound to its name in upper snake case
// (ChatRoom is CHAT_ROOM). It fails the test if the node does not start, and
// stops the node when the test ends.
func Start(t testing.TB, classes ...*limpet.Class) *Node {
	t.Helper()
	return StartConfig(t, node.Config{Classes: classes})
}

// StartConfig is Start with a configuration of one's own. Dir and Fatal are not
// used: the disk is in memory, and a test does not end the process.
func StartConfig(t testing.TB, cfg node.Config) *Node {
	t.Helper()
	n := &Node{t: t, cfg: cfg, disk: sim.NewDisk()}
	n.cfg.Dir = "data"
	if err := n.start(); err != nil {
		t.Fatalf("limpettest: %v", err)
	}
	t.Cleanup(func() {
		n.ops.Lock()
		defer n.ops.Unlock()
		if err := n.stop(); err != nil {
			t.Errorf("limpettest: stop the node: %v", err)
		}
		n.dying.Wait()
	})
	return n
}

// start opens the node on the disk; the caller holds ops or is alone.
func (n *Node) start() error {
	cfg := n.cfg
	cfg.Fatal = func(error) {} // the gates are broken; the test goes on
	opened, err := node.Open(context.Background(), cfg.OnDisk(n.disk, segmentSize))
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.up, n.life = opened, n.life+1
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
	if was := n.down(); was != nil {
		return was.Close()
	}
	return nil
}

// Evict drops an object from memory as if it had been idle for long: the next
// call constructs it again from its data. It reports whether there was an
// incarnation to drop; an object at work is left alone.
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
	after := n.disk.CutPower(o.keep, o.seed)
	dead := n.down()
	if dead == nil {
		n.t.Fatal("limpettest: Crash of a node that is down")
	}
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
	if err == nil {
		return nil
	}
	if up, now := c.n.current(); up != nil && now == life {
		return err
	}
	if e, ok := errors.AsType[*limpet.Error](err); ok && (e.Remote || e.Delivery == limpet.DeliveryNone) {
		return err
	}
	return limpet.Errorf(limpet.CodeDisconnected, "Network connection lost.").With(func(e *limpet.Error) {
		e.Retryable = true
		e.Cause = fmt.Errorf("the test node crashed: %w", err)
	})
}
