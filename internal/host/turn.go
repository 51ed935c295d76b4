package host

import (
	"context"
	"runtime/debug"

	"github.com/limpet-dev/limpet"
)

// This file moves the turn: run takes an event from grant to outcome, leave and
// retake give the object away for outside work and take it back. Two locks are
// meant for it, in this order:
//
//	inc.storage   the object's data and ledger; the turn is given up only under it,
//	              so that no commit can meet another event's half-made turn
//	inc.mu        the gate, and what of events more than one goroutine sees
//
// Neither is held while a handler runs or anything waits.

// loop runs an event that was granted the turn and then those that follow it.
func (inc *incarnation) loop(ev *event) {
	for ev != nil {
		ev = inc.run(ev)
	}
}

// follow does a grant: it wakes an event that had begun, and returns one that is
// to be started. inc.mu is held.
func (inc *incarnation) follow(e *entry) *event {
	if e == nil {
		return nil
	}
	ev := e.ev
	if ev.started {
		ev.wakeAll()
		return nil
	}
	ev.started = true
	if !e.internal {
		inc.host.queued.Add(-int64(e.size))
	}
	return ev
}

// start runs an event on a goroutine of the pool, if there is one to run.
func (inc *incarnation) start(ev *event) {
	if ev != nil {
		inc.host.pool.runEvent(ev)
	}
}

// run runs an event that holds the turn to its end and returns the next one to
// start. It returns nothing if the handler panicked.
func (inc *incarnation) run(ev *event) (next *event) {
	defer func() {
		if !ev.returned {
			inc.crashed(ev, recover())
			next = nil
		}
		ev.finish(context.Canceled)
		if ev.writer != nil {
			ev.writer.closeRequest()
		}
	}()
	result, err := inc.handle(ev)
	ev.returned = true
	return inc.conclude(ev, result, err)
}

// crashed resets the object after a panic (r), or after runtime.Goexit (r is
// nil).
func (inc *incarnation) crashed(ev *event, r any) {
	switch r := r.(type) {
	case nil:
		inc.host.log.Error("handler called runtime.Goexit; the object was reset", "object", inc.label(), "event", ev.name())
		inc.reset(inc.resetError(nil, "The object's code called runtime.Goexit and the object was reset."))
	case aborted:
		// Abort has reset the object already.
	case *asidePanic:
		inc.panicked(ev, r, r.stack)
	default:
		inc.panicked(ev, r, debug.Stack())
	}
	inc.released(ev)
}

func (inc *incarnation) panicked(ev *event, r any, stack []byte) {
	inc.host.log.Error("panic in an object's code; the object was reset",
		"object", inc.label(), "event", ev.name(), "panic", r, "stack", string(stack))
	cause, _ := r.(error)
	inc.reset(inc.resetError(cause, "The object's code panicked and the object was reset: %v", r))
}

// released gives up what an event holds outside of the incarnation.
func (inc *incarnation) released(ev *event) {
	if ev.claim != nil {
		inc.host.finishClaim(ev.claim)
	}
	if ev.limit != nil {
		ev.limit.Stop()
	}
}

// conclude ends an event whose handler has returned: its turn is committed, its
// outcome gets the position that it waits for, and the turn goes on.
func (inc *incarnation) conclude(ev *event, result any, failure *limpet.Error) *event {
	if err := inc.take(ev, inConclude); err != nil { // goroutines of the handler may be away still
		inc.released(ev)
		releaseResult(result)
		return nil
	}
	var keep []byte
	asked := ev.ask != nil && ev.claim != nil
	if asked {
		keep = inc.keepable(ev, result, failure)
	}
	inc.storage.Lock()
	inc.endExpired()
	if inc.txDepth > 0 {
		inc.storage.Unlock()
		inc.reset(inc.resetError(nil, "The handler returned while a transaction of it was open (State.Transaction, or Begin of State.DB), and the object was reset."))
		inc.released(ev)
		releaseResult(result)
		return nil
	}
	if !inc.ended.Load() {
		inc.data.EndCursors()
		var err error
		if asked {
			err = inc.commitKept(ev, keep)
		} else {
			err = inc.commit(ev.claim)
		}
		if err != nil {
			inc.storage.Unlock()
			inc.reset(inc.storageReset(err))
			inc.released(ev)
			releaseResult(result)
			return nil
		}
	}
	pos := inc.ledger.output(ev.claim)
	if ev.ask != nil && ev.ask.told.After(pos) {
		pos = ev.ask.told
	}
	if ev.claim != nil {
		inc.ledger.end(ev.claim)
	}
	inc.mu.Lock()
	if inc.gate.ended {
		inc.mu.Unlock()
		inc.storage.Unlock()
		inc.released(ev)
		releaseResult(result)
		return nil
	}
	if ev.rejected || !pos.After(inc.durable) {
		pos = Pos{}
	}
	if ev.writer != nil {
		ev.writer.concluded(failure, pos)
	} else if ev.settle(result, failure, pos) {
		result = nil // its caller takes it
	}
	ev.concluded = true
	inc.unwaitLocked(ev)
	for _, a := range ev.after {
		inc.gate.step(0, inArrive, &a.entry, 0)
	}
	next := inc.follow(inc.gate.step(0, inConclude, &ev.entry, 0).grant)
	inc.lastUsed = inc.host.coarse.Load()
	inc.quietLocked()
	inc.mu.Unlock()
	inc.storage.Unlock()
	if ev.claim != nil || ev.limit != nil {
		inc.released(ev)
	}
	releaseResult(result)
	return next
}

// commit appends what the turn wrote, and the identities of the running calls,
// if an output may not leave without it. own is the call whose reply the output
// is, or nil. inc.storage is held.
func (inc *incarnation) commit(own *claim) error {
	dirty := inc.data.Dirty()
	if !dirty && (!inc.ledger.owed(own) || inc.host.broken.NoRecord) {
		inc.keptLocked() // what it wrote was taken back
		return nil
	}
	ids := inc.ledger.identities()
	if inc.host.broken.WriterOnly {
		ids = inc.writerOnly(dirty)
	}
	p, err := inc.data.Commit(ids)
	if err != nil {
		return err
	}
	inc.ledger.committed(p, dirty && inc.confirmed)
	inc.confirmed = false
	inc.keptLocked()
	return nil
}

// account appends what must be on record before an output may leave. An event
// that does not hold the turn (another goroutine of its handler is away with it)
// may not end the turn of whoever holds it now: then it is the identities alone.
// inc.storage is held.
func (inc *incarnation) account(own *claim, holds bool) error {
	if holds {
		return inc.commit(own)
	}
	if !inc.ledger.owed(own) || inc.host.broken.NoRecord || inc.host.broken.WriterOnly {
		return nil
	}
	p, err := inc.data.Note(inc.ledger.identities())
	if err != nil {
		return err
	}
	inc.ledger.committed(p, false)
	return nil
}

// writerOnly is what a record holds under the mutation of that name: the identity
// of the call that holds the turn, if it wrote. inc.storage is held.
func (inc *incarnation) writerOnly(dirty bool) []limpet.Identity {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	if h := inc.gate.holder; dirty && h != nil && h.ev.claim != nil && !h.ev.claim.waived {
		return []limpet.Identity{h.ev.claim.key.id}
	}
	return nil
}

// take waits until ev holds the turn: again, after a goroutine of it was away
// (inReturn), or to conclude (inConclude). It waits as long as it must.
func (inc *incarnation) take(ev *event, in inputKind) error {
	inc.mu.Lock()
	if ev.entry.state == holding {
		inc.mu.Unlock()
		return nil
	}
	out := inc.gate.step(0, in, &ev.entry, 0)
	switch out.verdict {
	case refusedEnded:
		inc.mu.Unlock()
		return inc.cause
	case notNow:
		inc.mu.Unlock()
		return inc.noTurn()
	}
	next := inc.follow(out.grant)
	if ev.entry.state == holding {
		inc.mu.Unlock()
		return nil
	}
	c := make(chan struct{})
	ev.resume = append(ev.resume, c)
	inc.mu.Unlock()
	inc.start(next)
	<-c
	inc.mu.Lock()
	defer inc.mu.Unlock()
	switch {
	case inc.gate.ended:
		return inc.cause
	case ev.entry.state == done:
		return inc.noTurn()
	}
	return nil
}

// retake is take for a handler that goes on: that begins a turn.
func (inc *incarnation) retake(ev *event) error {
	if err := inc.take(ev, inReturn); err != nil {
		return err
	}
	if err := inc.host.storage.WaitRoom(ev); err != nil && !inc.ended.Load() && ev.Err() == nil {
		return waitError(ev, inc.id, err, limpet.DeliveryReceived)
	}
	return nil
}

// leave ends ev's turn before something leaves the object (limpet.Origin), and
// names in errors what that is. When it fails, ev holds the turn again, unless
// the incarnation has ended.
func (inc *incarnation) leave(ctx context.Context, ev *event, what string) (context.Context, error) {
	pos, err := inc.depart(ev, what)
	if err != nil {
		return nil, err
	}
	if what == leaveSync {
		pos = inc.data.LastPos()
	}
	if inc.giveAway(ev) == refusedEnded {
		return nil, inc.cause
	}

	octx := outgoingContext(ctx, ev)
	if err := inc.waitDurable(octx, pos, 0); err != nil {
		if terr := inc.take(ev, inReturn); terr != nil {
			return nil, terr
		}
		return nil, waitError(octx, inc.id, err, limpet.DeliveryNone)
	}
	return octx, nil
}

// depart puts on record what must be there before something of ev leaves the
// object, and names in errors what that is. It returns the position to wait for, and
// holds inc.storage then.
func (inc *incarnation) depart(ev *event, what string) (Pos, error) {
	inc.storage.Lock()
	inc.mu.Lock()
	state, ended := ev.entry.state, inc.gate.ended
	inc.mu.Unlock()
	switch {
	case ended:
		inc.storage.Unlock()
		return Pos{}, inc.cause
	case !begun(state):
		inc.storage.Unlock()
		return Pos{}, inc.noTurn()
	case state == holding && inc.txDepth > 0:
		inc.storage.Unlock()
		return Pos{}, inc.inTransaction(what)
	}
	if state == holding {
		inc.data.EndCursors()
	}
	return inc.record(nil, state == holding)
}

// record is account, and returns the position that the output waits for.
// inc.storage is held; when record fails it is given back, and the object was reset.
func (inc *incarnation) record(own *claim, holds bool) (Pos, error) {
	if err := inc.account(own, holds); err != nil {
		inc.storage.Unlock()
		e := inc.storageReset(err)
		inc.reset(e)
		return Pos{}, e
	}
	return inc.ledger.output(own), nil
}

// giveAway lets the next event have the turn of ev, which is away. It gives
// inc.storage back.
func (inc *incarnation) giveAway(ev *event) verdict {
	inc.mu.Lock()
	out := inc.gate.step(0, inLeave, &ev.entry, 0)
	next := inc.follow(out.grant)
	inc.mu.Unlock()
	inc.storage.Unlock()
	inc.start(next)
	return out.verdict
}

// waitDurable holds an output of size bytes back until p is durable.
func (inc *incarnation) waitDurable(ctx context.Context, p Pos, size int) error {
	inc.mu.Lock()
	if !p.After(inc.durable) {
		inc.mu.Unlock()
		return nil
	}
	inc.gate.step(0, inHold, nil, size)
	inc.mu.Unlock()
	inc.host.stats.gateWaits.Add(1)
	err := inc.host.storage.Wait(ctx, p)
	inc.mu.Lock()
	defer inc.mu.Unlock()
	inc.gate.step(0, inRelease, nil, size)
	if err == nil && p.After(inc.durable) {
		inc.durable = p
	}
	return err
}

// noTurn refuses the use of a State outside of the object's turn.
func (inc *incarnation) noTurn() *limpet.Error {
	return inc.newError(limpet.CodeNoTurn, limpet.DeliveryNone,
		"the State of %s was used while no event of the object holds the turn; work that goes on after a handler has returned belongs into State.WaitUntil", inc.label())
}

// noTurnNow is noTurn, and knows that an event of the object may have been the
// user. inc.mu is held.
func (inc *incarnation) noTurnNow() *limpet.Error {
	if len(inc.gate.running) == 0 {
		return inc.noTurn()
	}
	return inc.newError(limpet.CodeNoTurn, limpet.DeliveryNone,
		"the State of %s was used while no event of the object holds the turn; inside Await (and while a call through a stub or Sync runs) the object is given away: read before it and write after it; work that goes on after a handler has returned belongs into State.WaitUntil", inc.label())
}

// noTurnInAwait refuses a use of the State by the function of an Await.
func (inc *incarnation) noTurnInAwait() *limpet.Error {
	return inc.newError(limpet.CodeNoTurn, limpet.DeliveryNone,
		"the State of %s was used inside State.Await, where the object is given away: read before it and write after it", inc.label())
}

// inTransaction refuses to give the object away inside Transaction.
func (inc *incarnation) inTransaction(what string) *limpet.Error {
	return inc.newError(limpet.CodeInvalidArgument, limpet.DeliveryNone,
		"%s inside State.Transaction is not allowed: it would give the object away with the transaction half-done; end the transaction first", what)
}
