package host

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/mutation"
)

// Limits bound what the host holds. A zero field takes its default; negative
// ones are errors of New.
type Limits struct {
	// QueueEvents also bounds the duplicates that wait for one run's outcome.
	// QueueEvents, QueueBytes and QueueAge bound one object's inbox: calls that
	// are queued and replies that wait for the log, their bytes, and how long
	// the oldest queued call has waited when another one arrives. Beyond them a
	// call is refused as overloaded (SPEC C37). 1,000; 32 MiB; 10 s.
	QueueEvents int
	QueueBytes  int
	QueueAge    time.Duration
	// NodeBytes bounds the bytes of all queued calls of the node. 1 GiB; the
	// node sets an eighth of its memory.
	NodeBytes int64
	// Block is how long BlockConcurrencyWhile and a constructor may take before
	// the object is reset. 30 s (SPEC C36).
	Block time.Duration
	// Idle is how long an object without an event stays in memory, to within a
	// tenth more. 10 s (SPEC H60).
	Idle time.Duration
	// ClaimBytes bounds the memory of the claim table. 64 MiB.
	ClaimBytes int
	// OutcomeBytes bounds the memory of kept outcomes. 64 MiB.
	OutcomeBytes int64
	// Keys is how many idempotency keys are known at one time; beyond them calls
	// with new ones are refused as overloaded. 1,048,576, each some 300 bytes.
	Keys int
	// KeyRetention is how long a key is known. 24 h.
	KeyRetention time.Duration
	// Stall is how long a write to a response body waits for its reader, while
	// the object's turn is held, before it fails. 30 s.
	Stall time.Duration
}

func (l *Limits) defaults() error {
	if l.QueueEvents < 0 || l.QueueBytes < 0 || l.QueueAge < 0 || l.NodeBytes < 0 || l.Block < 0 || l.Idle < 0 || l.ClaimBytes < 0 || l.Stall < 0 ||
		l.OutcomeBytes < 0 || l.Keys < 0 || l.KeyRetention < 0 {
		return errors.New("host: a limit is negative")
	}
	l.QueueEvents = cmp.Or(l.QueueEvents, 1000)
	l.QueueBytes = cmp.Or(l.QueueBytes, 32<<20)
	l.QueueAge = cmp.Or(l.QueueAge, 10*time.Second)
	l.NodeBytes = cmp.Or(l.NodeBytes, 1<<30)
	l.Block = cmp.Or(l.Block, 30*time.Second)
	l.Idle = cmp.Or(l.Idle, 10*time.Second)
	l.ClaimBytes = cmp.Or(l.ClaimBytes, 64<<20)
	l.Stall = cmp.Or(l.Stall, 30*time.Second)
	l.OutcomeBytes = cmp.Or(l.OutcomeBytes, defaultOutcomeBytes)
	l.Keys = cmp.Or(l.Keys, defaultKeys)
	l.KeyRetention = cmp.Or(l.KeyRetention, defaultKeyRetention)
	return nil
}

// Config is what a Host needs. Storage, Clock and Bindings must be set.
type Config struct {
	Storage Storage
	Clock   limpet.Clock
	// Bindings finds the namespaces that State.Binding asks for. An unknown one
	// is CodeUnknownNamespace.
	Bindings func(name string) (*limpet.Binding, error)
	// Boot names this process and the history of its data directory.
	Boot dispatch.Boot
	// Claims are the identities that the log held at start, oldest first.
	Claims []Claim
	// ClaimsIncomplete says that the log held more than Claims has: then retries
	// of unknown identities are refused for one retention.
	ClaimsIncomplete bool
	// Kept is what the log said of calls at start, oldest first.
	Kept []Recovered
	// KeptIncomplete says that the log held claims of idempotency keys that Kept
	// does not have: then unknown keys are refused for one retention.
	KeptIncomplete bool
	Limits         Limits
	// Logger gets what nobody else is told. Nil discards it.
	Logger *slog.Logger
	// Mutations break the promise on purpose, for bench/promise; zero is none.
	Mutations mutation.Set
}

// Claim is an identity that an object has taken.
type Claim struct {
	Object   [32]byte
	Identity limpet.Identity
}

// Recovered is a Kept of an object.
type Recovered struct {
	Object [32]byte
	Kept
}

// Stats counts since the host was made.
type Stats struct {
	Loads       uint64 // incarnations that were given their data
	Resets      uint64
	Evictions   uint64
	Overloads   uint64 // calls refused as overloaded
	GateWaits   uint64 // outputs that had to wait for the log
	ClaimsTaken uint64
	// ClaimsTakenMarked are those of ClaimsTaken whose handlers are marked.
	ClaimsTakenMarked uint64
	ClaimsRejected    uint64
	// OutcomesReplayed are answers to attempts with the outcome of another one;
	// OutcomesKept and OutcomeBytes are outcomes kept now, OutcomesDropped those
	// that made room; Keys are idempotency keys known now.
	OutcomesReplayed uint64
	OutcomesDropped  uint64
	OutcomesKept     int
	OutcomeBytes     int64
	Keys             int
	Live             int // incarnations in memory
	QueuedBytes      int64
}

// shards of the table of live objects; a power of two.
const shards = 64

// Host is the objects that live on this node. It is safe for concurrent use.
type Host struct {
	storage  Storage
	clock    limpet.Clock
	bindings func(string) (*limpet.Binding, error)
	limits   Limits
	log      *slog.Logger
	origin   time.Time
	boot     dispatch.Boot
	broken   mutation.Set // Config.Mutations
	pool     pool
	stop     chan struct{} // closed by Close
	draining atomic.Bool
	epochs   atomic.Uint64
	queued   atomic.Int64 // bytes in all inboxes
	piped    atomic.Int64 // bytes in the pipes of all responses
	count    atomic.Int64 // incarnations in the shards

	coarse   atomic.Int64 // now, as of the last sweep
	sweepMu  sync.Mutex
	sweep    limpet.Timer // nil while no object is live
	closed   bool
	sweepRun sync.Mutex // held during a sweep
	swept    bool       // under sweepRun: none begins any more

	claimMu sync.Mutex
	claims  *claims

	stats struct {
		loads, resets, evictions, overloads, gateWaits, claimsTaken, claimsTakenMarked, claimsRejected, replayed atomic.Uint64
	}

	shards [shards]struct {
		mu   sync.Mutex
		live map[[32]byte]*incarnation
	}
}

var _ dispatch.Transport = (*Host)(nil)

// New makes a host without objects. Close must be called.
func New(c Config) (*Host, error) {
	if c.Storage == nil || c.Clock == nil || c.Bindings == nil {
		return nil, errors.New("host: Storage, Clock and Bindings must be set")
	}
	if err := c.Limits.defaults(); err != nil {
		return nil, err
	}
	h := &Host{
		storage: c.Storage, clock: c.Clock, bindings: c.Bindings, limits: c.Limits, log: c.Logger,
		origin: c.Clock.Now(), boot: c.Boot, stop: make(chan struct{}), claims: newClaims(c.Boot, c.Limits.ClaimBytes),
		broken: c.Mutations,
	}
	h.claims.broken = c.Mutations
	if c.Mutations.EarlyAcknowledgement {
		h.storage = earlyStorage{c.Storage}
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	for i := range h.shards {
		h.shards[i].live = map[[32]byte]*incarnation{}
	}
	for _, k := range c.Claims {
		h.claims.restore(claimKey{object: k.Object, id: k.Identity})
	}
	h.claims.chosen.limit, h.claims.chosen.retention = c.Limits.Keys, int64(c.Limits.KeyRetention)
	h.claims.outcomes.limit = c.Limits.OutcomeBytes
	start := h.origin.UnixMilli()
	for _, k := range c.Kept {
		h.claims.restoreKept(k, int64(time.Duration(min(k.ClaimedMS-start, 0))*time.Millisecond))
	}
	if c.KeptIncomplete {
		h.claims.keysIncompleteUntil = int64(c.Limits.KeyRetention)
	}
	if c.ClaimsIncomplete {
		h.claims.incompleteUntil = int64(claimRetention)
	}
	h.pool.run(h.watchLost)
	return h, nil
}

// now is nanoseconds since New.
func (h *Host) now() int64 { return int64(h.clock.Now().Sub(h.origin)) }

// Lossless says that calls of this process need no identity: no answer gets lost
// (DESIGN 5, rule B).
func (h *Host) Lossless() bool { return true }

// Prompt says that Do and Fetch return at once when their context ends, as far as
// anybody waits for that (unstoppable).
func (h *Host) Prompt() bool { return true }

// Boot is Config.Boot.
func (h *Host) Boot() dispatch.Boot { return h.boot }

// Stats reads the counters.
func (h *Host) Stats() Stats {
	marked := h.stats.claimsTakenMarked.Load() // before ClaimsTaken, which is never less
	h.claimMu.Lock()
	outcomes, keys := h.claims.outcomes, h.claims.chosen.listed
	h.claimMu.Unlock()
	return Stats{
		OutcomesReplayed: h.stats.replayed.Load(), OutcomesDropped: outcomes.dropped, OutcomesKept: outcomes.count,
		OutcomeBytes: outcomes.used, Keys: keys,
		Loads: h.stats.loads.Load(), Resets: h.stats.resets.Load(), Evictions: h.stats.evictions.Load(),
		Overloads: h.stats.overloads.Load(), GateWaits: h.stats.gateWaits.Load(),
		ClaimsTaken: h.stats.claimsTaken.Load(), ClaimsTakenMarked: marked, ClaimsRejected: h.stats.claimsRejected.Load(),
		Live: int(h.count.Load()), QueuedBytes: h.queued.Load(),
	}
}

// Do makes one attempt of a method call; see dispatch.Transport. Every error is
// an *limpet.Error with its delivery.
func (h *Host) Do(ctx context.Context, a dispatch.Attempt) (any, error) {
	if a.Call.Runner == nil {
		return nil, refusal(a.Call.Object, limpet.CodeInternal, "a method call has no runner")
	}
	ev := &event{kind: eventMethod, attempt: a, parent: ctx}
	if a.Call.Key != "" || a.Call.Policy.ReplayOutcome {
		if err := ev.asks(); err != nil {
			return nil, err
		}
		if ev.ask != nil {
			return h.methodOnce(ctx, ev)
		}
	}
	if err := h.deliver(ctx, ev); err != nil {
		return nil, err
	}
	return h.collect(ctx, ev)
}

// Fetch makes one attempt of a fetch and returns when the response's head may
// leave the object; the body follows. ctx must live until the body is closed.
// It takes over the request's body and closes it.
func (h *Host) Fetch(ctx context.Context, a dispatch.Attempt) (*http.Response, error) {
	ev := &event{kind: eventFetch, attempt: a, parent: ctx}
	w, ferr := newResponseWriter(ev)
	if ferr != nil {
		if a.Request != nil && a.Request.Body != nil {
			_ = a.Request.Body.Close() // nothing was read from it
		}
		return nil, ferr
	}
	ev.writer = w
	if a.Call.Key != "" || a.Call.Policy.ReplayOutcome {
		if err := ev.asks(); err != nil {
			w.closeRequest()
			return nil, err
		}
	}
	var r any
	var err error
	if ev.ask == nil {
		if err = h.deliver(ctx, ev); err == nil {
			r, err = h.collect(ctx, ev)
		}
	} else {
		r, err = h.fetchOnce(ctx, ev)
	}
	if err != nil {
		w.abandon(err)
		w.closeRequest()
		return nil, err
	}
	return r.(*http.Response), nil
}

// callBytes is what a queued call costs beside its arguments.
const callBytes = 512

// deliver brings an event to its object and returns when it is settled.
func (h *Host) deliver(ctx context.Context, ev *event) error {
	call := ev.attempt.Call
	if ctx.Err() != nil {
		return canceled(ctx, call.Object, limpet.DeliveryNone)
	}
	if caller := eventOf(ctx); caller != nil {
		if err := ev.link(caller); err != nil {
			return err
		}
	}
	ev.here = ev.kind == eventMethod && unstoppable(ctx)
	ev.entry.ev, ev.entry.size = ev, callBytes
	if call.Runner != nil {
		ev.entry.size += call.Runner.Size()
	}
	for {
		inc, ctor, err := h.live(ev)
		if err != nil {
			return err
		}
		inc.learn(call.Object)
		if delivered, err := inc.deliver(ctx, ev, ctor); delivered || err != nil {
			return err
		}
	}
}

// deliver does one try; delivered is false when the incarnation has ended
// meanwhile and nothing was done. With ctor it begins to load the object.
func (inc *incarnation) deliver(ctx context.Context, ev, ctor *event) (delivered bool, err error) {
	h := inc.host
	ev.inc = inc
	inc.mu.Lock()
	if ctor != nil {
		// Under the lock: the constructor can't fail before ev is queued, so that
		// ev fails with it and does not construct again.
		h.pool.run(func() { inc.load(ctor) })
	}
	var now int64
	queue := !inc.gate.free()
	if queue {
		now = h.now()
		if h.queued.Add(int64(ev.entry.size)) > h.limits.NodeBytes && !inc.gate.ended {
			err := inc.overloaded(refusedNode, &ev.entry, now)
			inc.unqueued(&ev.entry)
			inc.mu.Unlock()
			h.stats.overloads.Add(1)
			return false, err
		}
	}
	v := inc.gate.step(now, inArrive, &ev.entry, 0)
	if queue && v.verdict != waits {
		inc.unqueued(&ev.entry)
	}
	switch v.verdict {
	case accepted:
		ev.started = true
		if ev.here {
			inc.mu.Unlock()
			inc.start(inc.run(ev))
			if !ev.concluded {
				<-inc.closed // reset: it has settled the event, or is about to
			}
			return inc.answered(ctx, ev)
		}
		ev.wake = make(chan struct{})
		inc.mu.Unlock()
		inc.start(ev)
	case waits:
		ev.wake = make(chan struct{})
		inc.mu.Unlock()
	case refusedEnded:
		inc.mu.Unlock()
		return false, nil
	case refusedDrain:
		inc.mu.Unlock()
		return false, drainError(inc.id)
	case refusedCycle:
		err := inc.cycle(&ev.entry)
		inc.mu.Unlock()
		return false, err
	default:
		err := inc.overloaded(v.verdict, &ev.entry, now)
		inc.mu.Unlock()
		h.stats.overloads.Add(1)
		return false, err
	}
	select {
	case <-ev.wake:
	case <-ctx.Done():
		inc.abandon(ctx, ev)
	}
	return inc.answered(ctx, ev)
}

// answered is what deliver returns of a settled event. The handler may have ended
// because its caller did: what counts is that nobody waits any more (SPEC E34).
func (inc *incarnation) answered(ctx context.Context, ev *event) (delivered bool, err error) {
	if ctx.Err() != nil && (ev.err == nil || ev.err.Remote) {
		releaseResult(ev.result)
		return false, canceled(ctx, inc.id, limpet.DeliveryReceived)
	}
	return true, nil
}

// unstoppable reports whether nobody outside can end a call with this context:
// then its handler may run on the caller's goroutine, since there is nobody who
// would have to be answered earlier. That also holds for the context of a handler
// that was itself called so. Such a context ends only with its incarnation: then
// the handler learns it from its own context, and the one that called it, which
// could do nothing any more but return, waits for it.
func unstoppable(ctx context.Context) bool {
	if ev, ok := ctx.(*event); ok {
		return ev.here
	}
	return ctx.Done() == nil
}

// abandon settles an event whose caller has gone: a queued one never runs, the
// handler of a running one learns it from its context and keeps the turn until
// it returns.
func (inc *incarnation) abandon(ctx context.Context, ev *event) {
	inc.mu.Lock()
	if ev.settled {
		inc.mu.Unlock()
		return
	}
	d := limpet.DeliveryReceived // SPEC C52
	if inc.gate.step(0, inCancel, &ev.entry, 0).verdict == accepted {
		d = limpet.DeliveryNone
		inc.unqueued(&ev.entry)
		inc.quietLocked()
	}
	ev.settle(nil, canceled(ctx, inc.id, d), Pos{})
	inc.mu.Unlock()
	if !ev.shielded(ctx) {
		ev.cancel(context.Cause(ctx))
	}
}

// collect waits at the output gate and returns the outcome. A failure of the
// gate replaces the handler's (SPEC C54).
func (h *Host) collect(ctx context.Context, ev *event) (any, error) {
	if !ev.pos.IsZero() {
		size := callBytes
		switch v := ev.result.(type) {
		case limpet.Encoded:
			size += len(v)
		case limpet.Parcel:
			size += len(v.Bytes)
		}
		if err := ev.inc.waitDurable(ctx, ev.pos, size); err != nil {
			releaseResult(ev.result)
			return nil, waitError(ctx, ev.inc.id, err, limpet.DeliveryReceived)
		}
	}
	if ev.err != nil {
		return nil, ev.err
	}
	return ev.result, nil
}

// live finds the event's object in memory, or enters it, and then returns the
// event with which the caller must load it.
func (h *Host) live(ev *event) (_ *incarnation, ctor *event, _ error) {
	call := ev.attempt.Call
	key := call.Object.Bytes()
	s := &h.shards[key[0]%shards]
	s.mu.Lock()
	inc := s.live[key]
	if inc != nil && !inc.ended.Load() {
		s.mu.Unlock()
		return inc, nil, nil
	}
	defer s.mu.Unlock()
	switch {
	case call.Object.IsZero():
		return nil, nil, refusal(call.Object, limpet.CodeInvalidArgument, "the call names no object")
	case call.Binding == nil || call.Binding.Class == nil:
		return nil, nil, refusal(call.Object, limpet.CodeInternal, "the call's namespace has no class in this process")
	case h.draining.Load() && ev.entry.outside():
		return nil, nil, drainError(call.Object)
	case h.isStopped():
		return nil, nil, drainError(call.Object)
	case call.Existing && !h.storage.Exists(key):
		return nil, nil, refusal(call.Object, limpet.CodeNoSuchObject, "the object "+labelOf(call.Binding.Class, call.Object)+" does not exist: it has no data and is not in memory")
	}
	inc = newIncarnation(h, call, inc)
	ctor = &event{inc: inc, kind: eventConstruct, parent: context.Background(), started: true}
	ctor.entry.ev, ctor.entry.internal = ctor, true
	inc.gate.step(0, inArrive, &ctor.entry, 0)
	s.live[key] = inc
	h.count.Add(1)
	h.sweepOn()
	return inc, ctor, nil
}

// refusal is an error of a call that was not delivered.
func refusal(id limpet.ID, code limpet.Code, text string) *limpet.Error {
	return &limpet.Error{Code: code, Message: text, Delivery: limpet.DeliveryNone, ObjectID: id.String()}
}

// forget takes an ended incarnation out of the table, unless the next one stands
// there already.
func (h *Host) forget(inc *incarnation) {
	key := inc.id.Bytes()
	s := &h.shards[key[0]%shards]
	s.mu.Lock()
	if s.live[key] == inc {
		delete(s.live, key)
	}
	s.mu.Unlock()
	h.count.Add(-1)
}

// each calls f with every incarnation there is; f may end it.
func (h *Host) each(f func(*incarnation)) {
	var some []*incarnation
	for i := range h.shards {
		s := &h.shards[i]
		some = some[:0]
		s.mu.Lock()
		for _, inc := range s.live {
			some = append(some, inc)
		}
		s.mu.Unlock()
		for _, inc := range some {
			f(inc)
		}
	}
}

// Acknowledge removes the claim of a call whose only attempt was answered, once
// its sender says that it has the answer.
func (h *Host) Acknowledge(object [32]byte, id limpet.Identity) {
	h.claimMu.Lock()
	defer h.claimMu.Unlock()
	h.claims.acknowledge(claimKey{object: object, id: id})
}

// takeClaim decides on an arrival; the kept is that of the claim for joins.
func (h *Host) takeClaim(a arrival) (c *claim, k *kept, r ruling) {
	now := h.now()
	h.claimMu.Lock()
	c, r = h.claims.take(now, a)
	if r == joins {
		k = c.kept
	}
	h.claimMu.Unlock()
	switch r {
	case taken:
		h.stats.claimsTaken.Add(1)
		if a.marked {
			h.stats.claimsTakenMarked.Add(1)
		}
	case joins:
	default:
		h.stats.claimsRejected.Add(1)
	}
	return c, k, r
}

func (h *Host) finishClaim(c *claim) {
	h.claimMu.Lock()
	defer h.claimMu.Unlock()
	h.claims.finish(c)
}

// Evict ends the object's incarnation if it is in memory, has nothing to do and
// nobody holds what it gave away, and reports whether it did.
func (h *Host) Evict(object limpet.ID) bool {
	key := object.Bytes()
	s := &h.shards[key[0]%shards]
	s.mu.Lock()
	inc := s.live[key]
	s.mu.Unlock()
	return inc != nil && inc.evict(0, 0)
}
