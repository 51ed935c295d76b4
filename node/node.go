package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/gateway"
	"github.com/limpet-dev/limpet/internal/host"
	"github.com/limpet-dev/limpet/internal/mutation"
	"github.com/limpet-dev/limpet/internal/store"
	"github.com/limpet-dev/limpet/internal/value"
)

// Node is an open data directory with the objects that live on it. It is a
// limpet.Resolver and safe for concurrent use.
type Node struct {
	cfg      Config
	store    *store.Store
	host     *host.Host
	engine   *dispatch.Engine
	calls    dispatch.Counters
	bindings map[string]*limpet.Binding
	door     http.Handler
	wire     *wireDoor // nil: none

	relief atomic.Pointer[host.Host] // host, once it is there

	draining atomic.Bool
	closing  sync.Once
	closeErr error
}

// Open opens a node on Config.Dir. It fails with everything that is wrong with
// the configuration or the classes (CodeInvalidArgument, CodeNotSupported), or
// with an error of the directory: it is in use by another process, is no limpet
// directory, is damaged, or was written by a newer limpet. Objects are loaded
// when they are called. Close must be called.
func Open(ctx context.Context, cfg Config) (_ *Node, err error) {
	cfg.defaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	spaces, err := cfg.namespaces()
	if err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	n := &Node{cfg: cfg, bindings: map[string]*limpet.Binding{}}
	if cfg.mutations != (mutation.Set{}) {
		cfg.Logger.Error("this node breaks its promise on purpose: calls may run twice and answers may be lost", "mutation", cfg.mutations.String())
	}
	n.store, err = store.Open(ctx, store.Options{
		FS: cfg.disk, Dir: cfg.Dir, Clock: cfg.Clock, Logger: cfg.Logger, SegmentSize: cfg.segmentSize, Fatal: n.fatal,
		KeyRetention: cfg.KeyRetention, OutcomeMemory: cfg.OutcomeMemory,
		Limits:     cfg.Limits.store(),
		PageMemory: cfg.PageMemory, Connections: int64(cfg.Connections), LogLimit: cfg.LogSize, Pressure: n.relieve,
	})
	if err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open node: %w", err), n.store.Close())
		}
	}()
	identities, err := register(n.store, cfg.Classes)
	if err != nil {
		return nil, err
	}
	recovered, complete := n.store.RecoveredIdentities()
	claims := make([]host.Claim, len(recovered))
	for i, c := range recovered {
		claims[i] = host.Claim(c)
	}
	said, keysComplete := n.store.RecoveredKept()
	kept := make([]host.Recovered, len(said))
	for i, k := range said {
		kept[i] = host.Recovered{Object: k.Object, Kept: host.Kept(k.Kept)}
	}
	n.host, err = host.New(host.Config{
		Storage: host.FromStore(n.store), Clock: cfg.Clock, Bindings: n.Binding, Logger: cfg.Logger,
		Boot:   dispatch.Boot{History: n.store.HistoryID(), Boot: n.store.BootID()},
		Claims: claims, ClaimsIncomplete: !complete, Kept: kept, KeptIncomplete: !keysComplete,
		Limits: host.Limits{
			Idle: cfg.IdleTimeout, NodeBytes: memoryBytes() / 8,
			OutcomeBytes: cfg.OutcomeMemory, Keys: cfg.MaxKeys, KeyRetention: cfg.KeyRetention,
		},
		Mutations: cfg.mutations,
	})
	if err != nil {
		return nil, err
	}
	n.relief.Store(n.host)
	var objects dispatch.Transport = n.host
	if cfg.network != nil {
		objects = cfg.network(objects)
	}
	n.engine = dispatch.New(dispatch.Config{
		Router: localRouter{objects}, Clock: cfg.Clock, Rand: cfg.random, Observer: &n.calls,
		ReplayMemory: cfg.ReplayMemory, ReplayMemoryPerCall: cfg.ReplayMemoryPerCall,
	})
	byName := map[string]*limpet.Class{}
	for _, class := range cfg.Classes {
		byName[class.Name()] = class
	}
	for binding, ns := range spaces {
		policy, err := limpet.DefaultRetryPolicy().With(ns.Defaults...)
		if err != nil {
			return nil, err // validated above
		}
		n.bindings[binding] = &limpet.Binding{
			Name: binding, Class: byName[ns.Class], ClassIdentity: identities[ns.Class],
			Policy: policy, Caller: n.engine, Codec: value.Codec{},
		}
	}
	n.door = gateway.New(gateway.Config{
		Resolver: n, MaxBody: cfg.MaxBody, BufferBody: cfg.BufferBody, Hosts: cfg.Hosts, Clock: cfg.Clock, Draining: n.draining.Load, Logger: cfg.Logger,
	})
	if n.wire, err = n.openWire(); err != nil {
		n.engine.Close()
		return nil, errors.Join(err, n.host.Close(ctx))
	}
	return n, nil
}

// localRouter finds every object in this process.
type localRouter struct{ objects dispatch.Transport }

func (r localRouter) Route(context.Context, *limpet.CallSpec) (dispatch.Transport, error) {
	return r.objects, nil
}

// relieve makes objects that have nothing to do give their memory back.
func (n *Node) relieve() {
	if h := n.relief.Load(); h != nil {
		h.Relieve()
	}
}

func (n *Node) fatal(err error) {
	if n.cfg.Fatal != nil {
		n.cfg.Fatal(err)
		return
	}
	n.cfg.Logger.Error("the commit log failed; the process ends", "exit", ExitLogFailed, "error", err)
	os.Exit(ExitLogFailed)
}

// Binding finds a namespace by its binding; an unknown one is
// CodeUnknownNamespace, naming those that there are.
func (n *Node) Binding(name string) (*limpet.Binding, error) {
	if b := n.bindings[name]; b != nil {
		return b, nil
	}
	return nil, limpet.UnknownNamespace(name, slices.Collect(maps.Keys(n.bindings)))
}

// Handler is the HTTP door (docs/HTTP.md), to be mounted at the root of a server.
// It is what Serve serves.
func (n *Node) Handler() http.Handler { return n.door }

// Dir is the data directory.
func (n *Node) Dir() string { return n.cfg.Dir }

// Evict ends the incarnation of an object that has nothing to do: its data
// stays, and the next call constructs it again. It reports whether there was
// one to end; false means that the object is not in memory or is at work, or that
// somebody holds what it gave away (docs/CAPABILITIES.md).
func (n *Node) Evict(id limpet.ID) bool { return n.host.Evict(id) }

// Drain stops the node's work: calls that have not started are refused, not
// delivered, and other processes are told to go elsewhere (GOAWAY); those that run
// get Config.DrainTimeout, and functions of WaitUntil and other processes that are
// slow to take their answers what is left of it. It returns when all have ended,
// or with an error that says at how many objects something still runs: at the end
// of the drain timeout, or of ctx. The node then only waits for Close: what still runs goes on until that, and
// nothing new begins. Draining again waits in the same way, with a drain timeout
// of its own. The door answers 503.
func (n *Node) Drain(ctx context.Context) error {
	n.draining.Store(true)
	if n.wire != nil {
		n.wire.server.Drain()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := n.cfg.Clock.AfterFunc(n.cfg.DrainTimeout, func() {
		cancel(fmt.Errorf("not ended within the drain timeout of %v", n.cfg.DrainTimeout))
	})
	defer limit.Stop()
	if err := n.host.Drain(ctx); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if n.wire != nil {
		if err := n.wire.server.Flushed(ctx); err != nil {
			return fmt.Errorf("drain: some callers in other processes have not taken their answers: %w", err)
		}
	}
	return nil
}

// closeTimeout is how long Close waits for handlers that do not return although
// their context was cancelled. Go can't stop them.
const closeTimeout = 10 * time.Second

// Close ends the node at once: calls that run fail and their contexts are
// cancelled, what was committed becomes durable, the directory is given back.
// Call Drain before to let calls end. Close returns when every goroutine of the
// node has ended; if a handler does not return within 10 s, with an error that
// says so (it can have no effect any more). Closing again gives the same answer.
func (n *Node) Close() error {
	n.closing.Do(func() {
		n.draining.Store(true)
		if n.wire != nil {
			n.wire.server.Drain()
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		limit := n.cfg.Clock.AfterFunc(closeTimeout, func() {
			cancel(fmt.Errorf("a handler did not return within %v of the end of its context", closeTimeout))
		})
		hostErr := n.host.Close(ctx)
		limit.Stop()
		cancel(nil)
		n.engine.Close()
		if n.wire != nil {
			if err := n.wire.close(n.cfg.Clock); err != nil {
				n.cfg.Logger.Warn("some callers did not read their answers", "error", err)
			}
		}
		n.closeErr = errors.Join(hostErr, n.store.Close())
	})
	return n.closeErr
}
