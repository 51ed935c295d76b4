package host

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/limpet-dev/limpet"
)

// incarnation is one life of an object in memory, from load to eviction, reset
// or the end of the node. It is what State talks to.
type incarnation struct {
	host     *Host
	id       limpet.ID
	class    *limpet.Class
	birth    Birth
	codec    limpet.Codec
	epoch    uint64 // rises with every incarnation of the node, so with every one of the object
	prev     *incarnation
	dead     chan struct{} // closed when the incarnation has ended
	loaded   chan struct{} // closed when it has its data or will not get it
	closed   chan struct{} // closed when it has also let go of its data
	ended    atomic.Bool   // gate.ended, for readers without mu
	cause    *limpet.Error // why it ended; set before dead is closed
	receiver any           // what the constructor made

	learned atomic.Pointer[limpet.ID] // id with the name that a later call used, if id has none

	storage   sync.Mutex // guards the fields below
	data      Object     // nil before load
	ledger    ledger
	confirmed bool           // the turn has a write that outputs must wait for
	txDepth   int            // transactions that are open
	kept      chan struct{}  // closed when the turn's writes were committed; nil if nobody waits for that
	txBegun   []*transaction // those of BeginTransaction

	mu       sync.Mutex // guards the fields below, and events as said there
	gate     gate
	durable  Pos   // known to be durable
	lastUsed int64 // coarse time of the last event's end
	blocked  limpet.Timer
	waits    int                  // functions of WaitUntil that wait or run
	atEnd    []func()             // to call when the incarnation has ended
	exports  map[*export]struct{} // what was given away and is held
	quiet    chan struct{}        // closed once nothing runs or waits; nil if nobody waits for that
}

// newIncarnation makes the next life of an object; load must be called. prev is
// the one before if it may not have let go of the data yet.
func newIncarnation(h *Host, call *limpet.CallSpec, prev *incarnation) *incarnation {
	inc := &incarnation{
		host: h, id: call.Object, class: call.Binding.Class, codec: call.Binding.Codec, epoch: h.epochs.Add(1),
		prev: prev, dead: make(chan struct{}), loaded: make(chan struct{}), closed: make(chan struct{}), lastUsed: h.coarse.Load(),
	}
	inc.birth.Class = call.Binding.ClassIdentity
	inc.birth.Name, inc.birth.Named = call.Object.Name()
	inc.gate.limits = gateLimits{
		events: h.limits.QueueEvents, bytes: h.limits.QueueBytes, age: h.limits.QueueAge, block: h.limits.Block,
	}
	inc.gate.draining = h.draining.Load()
	return inc
}

// label names the object for people: its class, and its name or ID.
func (inc *incarnation) label() string { return labelOf(inc.class, inc.ID()) }

// learn keeps the name of an object that was loaded by its digits and is now
// called by its name (SPEC A11).
func (inc *incarnation) learn(called limpet.ID) {
	if inc.birth.Named || inc.learned.Load() != nil {
		return
	}
	if _, named := called.Name(); named {
		id := called // a pointer to called would put it on the heap for every call
		inc.learned.Store(&id)
	}
}

func labelOf(class *limpet.Class, id limpet.ID) string {
	if name, ok := id.Name(); ok {
		return class.Name() + "/" + name
	}
	return class.Name() + "/id:" + id.String()
}

// load opens the object's data and runs the constructor, as the first event: the
// turn is taken before anybody else can see the incarnation.
func (inc *incarnation) load(ctor *event) {
	if inc.prev != nil {
		<-inc.prev.closed
		inc.prev = nil
	}
	data, err := inc.host.storage.Object(inc.id.Bytes(), inc.birth)
	if err != nil {
		close(inc.loaded)
		e := inc.newError(storageCode(err), limpet.DeliveryNone, "open %s: %w", inc.label(), err)
		inc.end(e, e)
		return
	}
	inc.storage.Lock()
	inc.data = data
	inc.ledger.data = data.LastPos() // outputs may show what an earlier incarnation wrote
	data.SetInterrupt(inc.dead)
	inc.storage.Unlock()
	close(inc.loaded)
	inc.host.stats.loads.Add(1)
	inc.loop(ctor)
}

// handle runs the handler of an event that was granted the turn.
func (inc *incarnation) handle(ev *event) (any, *limpet.Error) {
	if err := inc.host.storage.WaitRoom(ev); err != nil {
		return nil, waitError(ev, inc.id, err, limpet.DeliveryNone)
	}
	switch ev.kind {
	case eventConstruct:
		return nil, inc.construct(ev)
	case eventWaitUntil:
		if err := ev.fn(ev); err != nil {
			inc.host.log.Error("a function given to WaitUntil failed", "object", inc.label(), "error", err)
		}
		return nil, nil
	case eventFetch:
		return nil, inc.serve(ev)
	case eventInquiry:
		return inc.inquire(ev)
	case eventCallback:
		return ev.back.x.run(ev)
	}

	call := ev.attempt.Call
	m := inc.class.Method(call.Method)
	if err := inc.claim(ev, mayRepeat(m, call)); err != nil {
		return nil, err
	}
	if m == nil { // a missing handler has claimed nevertheless (SPEC F11)
		e := inc.class.UnknownMethod(inc.id, call.Method)
		if reservedMethods[call.Method] {
			e.Message = "'" + call.Method + "' is a reserved method and cannot be called over RPC."
		}
		return nil, e
	}
	result, err := call.Runner.Run(ev, inc.receiver)
	if err != nil {
		return nil, limpet.MethodError(inc.id, err)
	}
	return result, nil
}

// mayRepeat reports whether a call may run again: its method is marked, or it
// reads a method, which runs nothing. What a path leads to is not the method.
func mayRepeat(m *limpet.Method, c *limpet.CallSpec) bool {
	switch {
	case m == nil:
		return false
	case !c.Property:
		return m.Marked && len(c.Path) == 0
	}
	return m.Marked || !m.Getter
}

// construct runs the class's constructor. It blocks concurrency, so that it may
// use stubs and Await; its failure resets the object (SPEC C34, H7).
func (inc *incarnation) construct(ev *event) *limpet.Error {
	inc.mu.Lock()
	inc.block(ev)
	inc.mu.Unlock()
	r, err := inc.class.Construct(limpet.NewState(inc))
	if err != nil {
		e := inc.failureReset(err, "the constructor of class "+inc.class.Name())
		inc.reset(e)
		return e
	}
	inc.receiver = r
	inc.mu.Lock()
	inc.unblock(ev)
	inc.mu.Unlock()
	return nil
}

// claim takes the attempt's identity, immediately before the handler (SPEC F10).
// An attempt without one came over a transport that can't lose an answer.
func (inc *incarnation) claim(ev *event, marked bool) *limpet.Error {
	a := &ev.attempt
	if a.Identity.IsZero() && ev.ask == nil {
		return nil
	}
	c, k, r := inc.host.takeClaim(ev.arrival(marked))
	switch r {
	case taken:
	case joins:
		ev.rejected = true
		ev.ask.joined.Store(k)
		return inc.refused(ev, received) // the caller's goroutine waits for the outcome instead
	default:
		ev.rejected = true
		return inc.refused(ev, r)
	}
	inc.storage.Lock()
	ev.claim = c
	if !c.key.chosen {
		inc.ledger.begin(c)
	}
	record := c.key.chosen && !c.logged
	inc.storage.Unlock()
	if record {
		return inc.recordKey(ev, c)
	}
	return nil
}

// serve runs the class's http.Handler.
func (inc *incarnation) serve(ev *event) *limpet.Error {
	if err := inc.claim(ev, inc.class.HandlerMarked()); err != nil {
		return err
	}
	handler, ok := inc.receiver.(http.Handler)
	if !ok || !inc.class.HasHandler() {
		return limpet.NoFetchError(inc.id)
	}
	return ev.writer.serve(handler)
}

// block begins a BlockConcurrencyWhile of ev; inc.mu is held. It fails queued
// calls that come from ev itself: they could never run (DESIGN 6).
func (inc *incarnation) block(ev *event) bool {
	now := inc.host.now()
	out := inc.gate.step(now, inBlock, &ev.entry, 0)
	if out.verdict != accepted {
		return false
	}
	for _, e := range out.failed {
		inc.unqueued(e)
		e.ev.settle(nil, inc.cycle(e), Pos{})
	}
	if inc.gate.depth == 1 {
		n := int(inc.gate.blocks)
		inc.blocked = inc.host.clock.AfterFunc(inc.gate.limits.block, func() { inc.blockLimit(n) })
	}
	return true
}

// unblock ends a BlockConcurrencyWhile of ev; inc.mu is held.
func (inc *incarnation) unblock(ev *event) {
	inc.gate.step(0, inUnblock, &ev.entry, 0) // ev holds the turn: nobody is granted it
	if inc.gate.depth == 0 && inc.blocked != nil {
		inc.blocked.Stop()
		inc.blocked = nil
	}
}

// blockLimit resets the object when its block number n lasts too long (SPEC C36).
func (inc *incarnation) blockLimit(n int) {
	inc.mu.Lock()
	out := inc.gate.step(inc.host.now(), inBlockLimit, nil, n)
	inc.mu.Unlock()
	if out.verdict == blockedTooLong {
		e := inc.resetError(fmt.Errorf("a function given to State.BlockConcurrencyWhile may take %v", inc.gate.limits.block), "%s", textBlocked)
		e.Overloaded = true
		inc.reset(e)
	}
}

// cycle is the failure of a call that comes from the event which blocks
// concurrency. Nothing ran.
func (inc *incarnation) cycle(e *entry) *limpet.Error {
	return inc.newError(limpet.CodeCallCycle, limpet.DeliveryNone,
		"call cycle: %s; %s blocks concurrency and waits for this call, so that neither could ever end", chain(e), inc.label())
}

// unqueued corrects the node's count after an entry left an inbox unrun.
func (inc *incarnation) unqueued(e *entry) {
	if !e.internal {
		inc.host.queued.Add(-int64(e.size))
	}
}

// quietLocked tells who waits for it that nothing runs any more.
func (inc *incarnation) quietLocked() {
	if inc.quiet != nil && inc.gate.quiet() {
		close(inc.quiet)
		inc.quiet = nil
	}
}

// reset ends the incarnation because the object failed: everything in flight
// fails with e (SPEC C33).
func (inc *incarnation) reset(e *limpet.Error) {
	if inc.end(e, e) {
		inc.host.stats.resets.Add(1)
	}
}

// end ends the incarnation in any state: the running turn is rolled back, calls
// that had begun fail with running and queued ones with waiting, both after what
// was committed is durable. Handlers that go on get running from everything. It
// is false when the incarnation had ended before.
func (inc *incarnation) end(running, waiting *limpet.Error) bool {
	inc.mu.Lock()
	if inc.gate.ended {
		inc.mu.Unlock()
		return false
	}
	out := inc.gate.step(0, inEnd, nil, 0)
	inc.cause = running
	inc.ended.Store(true)
	close(inc.dead)
	if inc.blocked != nil {
		inc.blocked.Stop()
	}
	for _, e := range out.failed {
		inc.unqueued(e)
	}
	for _, e := range out.running {
		e.ev.wakeAll()
	}
	atEnd := inc.atEnd
	inc.mu.Unlock()
	for _, fn := range atEnd {
		fn()
	}
	for _, e := range out.running {
		e.ev.finish(running)
	}

	<-inc.loaded
	inc.storage.Lock()
	kept := inc.rollback(out, running)
	pos := inc.ledger.output(nil)
	if len(out.running)+len(out.failed) == 1 && len(out.running) == 1 {
		pos = inc.ledger.output(out.running[0].ev.claim)
	}
	if kept.After(pos) {
		pos = kept
	}
	inc.storage.Unlock()

	inc.mu.Lock()
	for _, e := range out.running {
		err := e.ev.seen(running)
		if e.ev.writer != nil {
			e.ev.writer.fail(err, pos)
		}
		e.ev.settle(nil, err, pos)
	}
	for _, e := range out.failed {
		e.ev.settle(nil, e.ev.seen(waiting), pos)
	}
	inc.quietLocked()
	inc.mu.Unlock()
	inc.gone()
	inc.dropExports()
	return true
}

// rollback takes back the running turn and lets go of the data. The failures
// that the other calls are about to get may tell of a running one: its identity
// must be on record first (rule D). It also keeps e as the outcome of the running
// calls that want it kept, and returns the position of that. inc.storage is held.
func (inc *incarnation) rollback(out outcome, e *limpet.Error) (kept Pos) {
	if inc.data == nil {
		return kept
	}
	inc.data.SetInterrupt(nil)
	if err := inc.data.Rollback(); err != nil {
		inc.host.log.Error("roll back a turn", "object", inc.label(), "error", err)
	} else if n := len(out.running) + len(out.failed); n > 1 && inc.ledger.owed(nil) {
		if p, err := inc.data.Commit(inc.ledger.identities()); err != nil {
			inc.host.log.Error("record the identities of running calls", "object", inc.label(), "error", err)
		} else {
			inc.ledger.committed(p, false)
		}
	}
	for _, entry := range out.running {
		if ev := entry.ev; ev.ask != nil && ev.claim != nil {
			if p := inc.keepReset(ev, e); p.After(kept) {
				kept = p
			}
		}
	}
	inc.letGo()
	return kept
}

func (inc *incarnation) letGo() {
	if err := inc.data.Close(); err != nil {
		inc.host.log.Error("close an object's data", "object", inc.label(), "error", err)
	}
}

// evict ends the incarnation if it has nothing to do, nobody holds what it gave
// away (SPEC B40), and, for idle > 0, had
// nothing for that long (SPEC H60).
func (inc *incarnation) evict(now, idle int64) bool {
	inc.mu.Lock()
	if idle > 0 && now-inc.lastUsed < idle {
		inc.mu.Unlock()
		return false
	}
	if len(inc.exports) > 0 || inc.gate.ended || inc.gate.step(0, inEvict, nil, 0).verdict != accepted {
		inc.mu.Unlock()
		return false
	}
	inc.cause = inc.newError(limpet.CodeReset, limpet.DeliveryNone, "this incarnation of %s was evicted", inc.label())
	inc.ended.Store(true)
	close(inc.dead)
	atEnd := inc.atEnd
	inc.mu.Unlock()
	for _, fn := range atEnd {
		fn()
	}

	inc.storage.Lock()
	inc.data.SetInterrupt(nil)
	inc.letGo()
	inc.storage.Unlock()
	inc.gone()
	inc.host.stats.evictions.Add(1)
	return true
}

// gone says that the data may be opened by the next incarnation.
func (inc *incarnation) gone() {
	if inc.host.broken.ClaimsPerIncarnation {
		inc.host.claimMu.Lock()
		inc.host.claims.forget(inc.id.Bytes())
		inc.host.claimMu.Unlock()
	}
	close(inc.closed)
	inc.host.forget(inc)
}
