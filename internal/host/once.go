package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/wire"
)

// This file runs calls whose outcomes are kept, and answers their duplicates:
//
//	attempt ──▶ known? ──no──▶ inbox ──▶ claim ──taken──▶ handler ──▶ outcome's record
//	              │                        │    key: its record            │
//	              │                        │    is durable first           ▼
//	              └───────yes────▶ wait until it has ended ◀──joins──── outcome

// asked is what a call says that wants its first outcome, or a question for one.
type asked struct {
	inquiry *inquiry // of eventInquiry; then there is no more than told
	told    Pos      // the answer waits for this too; under inc.storage
	key     claimKey
	bound   [32]byte
	joined  atomic.Pointer[kept] // of the run whose outcome the call gets
}

// asks fills ev.ask, if the attempt can be told from others. An error is of a call
// that is not made.
func (ev *event) asks() error {
	call := ev.attempt.Call
	if call.Key == "" {
		if !ev.attempt.Identity.IsZero() {
			ev.ask = &asked{key: claimKey{object: call.Object.Bytes(), id: ev.attempt.Identity}}
		}
		return nil
	}
	bound, err := ev.bound()
	if err != nil {
		return err
	}
	ev.ask = &asked{key: keyOf(call, call.Key), bound: bound}
	return nil
}

// keyOf is the claim's name of an idempotency key: 192 bits of a hash.
func keyOf(call *limpet.CallSpec, key string) claimKey {
	sum := sha256.Sum256(append([]byte("limpet idempotency key\x00"), key...))
	k := claimKey{object: call.Object.Bytes(), chosen: true}
	copy(k.id.Nonce[:], sum[:])
	k.id.CreatedMS = int64(binary.BigEndian.Uint64(sum[16:])) //nolint:gosec // the bits
	return k
}

// bound is a hash of what an idempotency key belongs to: method and arguments.
// The body of a fetch is read for it.
func (ev *event) bound() (sum [32]byte, err error) {
	call := ev.attempt.Call
	h := sha256.New()
	part := func(b []byte) {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(b)))) // never fails (hash.Hash)
		_, _ = h.Write(b)
	}
	if call.Kind == limpet.KindFetch {
		r := ev.writer.req
		body, err := keyedBody(call.Object, r)
		if err != nil {
			return sum, err
		}
		method := r.Method
		if method == "" {
			method = http.MethodGet
		}
		for _, s := range []string{"fetch", method, r.URL.RequestURI(), r.Header.Get("Content-Type")} {
			part([]byte(s))
		}
		part(body)
		return [32]byte(h.Sum(nil)), nil
	}
	if len(call.Runner.Capabilities()) > 0 {
		return sum, refusal(call.Object, limpet.CodeNotSupported, "not supported: an idempotency key with stubs, functions or streams as arguments, which can't be compared")
	}
	args, err := call.Runner.Args()
	if err != nil {
		e := limpet.Errorf(limpet.CodeOf(err), "call of %s: %w", call.Method, err)
		e.Delivery = limpet.DeliveryNone
		return sum, e
	}
	part([]byte("method"))
	part([]byte(call.Method))
	for _, p := range call.Path {
		part([]byte(p))
	}
	part([]byte(fmt.Sprint(len(call.Path), call.Property)))
	part(args)
	return [32]byte(h.Sum(nil)), nil
}

// keyedBody reads a request's body and puts it back.
func keyedBody(id limpet.ID, r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limpet.MaxKeyedBody+1))
	if err != nil {
		e := limpet.Errorf(limpet.CodeInvalidArgument, "the request's body can't be read: %w", err)
		e.Delivery, e.ObjectID = limpet.DeliveryNone, id.String()
		return nil, e
	}
	if len(body) > limpet.MaxKeyedBody {
		return nil, refusal(id, limpet.CodeTooLarge, fmt.Sprintf("the body of a fetch with an idempotency key is over its limit of %d bytes: the key belongs to the whole body, which must be read before anything runs", limpet.MaxKeyedBody))
	}
	_ = r.Body.Close() // it was read
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return body, nil
}

// arrival is what the event's attempt says of itself.
func (ev *event) arrival(marked bool) arrival {
	a := &ev.attempt
	r := arrival{
		flagged: a.Retry, marked: marked, last: !a.Retry && !a.WillRetry,
		gated: a.Call.Binding.Class.Gated(), uncertain: a.Uncertain,
	}
	if ev.ask == nil {
		r.key = claimKey{object: a.Call.Object.Bytes(), id: a.Identity}
	} else {
		r.key, r.bound, r.replay = ev.ask.key, ev.ask.bound, true
	}
	return r
}

// marked reports whether the handler that the event asks for may run again.
func (ev *event) marked() bool {
	class := ev.attempt.Call.Binding.Class
	if ev.kind == eventFetch {
		return class.HandlerMarked()
	}
	return mayRepeat(class.Method(ev.attempt.Call.Method), ev.attempt.Call)
}

// methodOnce is Do for a call that wants its first outcome.
func (h *Host) methodOnce(ctx context.Context, ev *event) (any, error) {
	result, first, err := h.once(ctx, ev)
	switch {
	case err != nil || first == nil:
		return result, err
	case first.Response != nil:
		return nil, refusal(ev.attempt.Call.Object, limpet.CodeInternal, "the kept outcome of a method is a response")
	case first.Value == nil:
		return nil, nil
	}
	return first.Value, nil
}

// fetchOnce is Fetch for a call that wants its first outcome, without what Fetch
// does after a failure.
func (h *Host) fetchOnce(ctx context.Context, ev *event) (any, error) {
	ev.writer.tee = new([]byte)
	result, first, err := h.once(ctx, ev)
	switch {
	case err != nil || first == nil:
		return result, err
	case first.Response == nil:
		return nil, refusal(ev.attempt.Call.Object, limpet.CodeInternal, "the kept outcome of a fetch is no response")
	}
	ev.writer.closeRequest()
	first.Response.Request = ev.attempt.Request
	return first.Response, nil
}

// once runs the call or answers it with the outcome of the run that there was.
func (h *Host) once(ctx context.Context, ev *event) (result any, first *limpet.CallOutcome, err error) {
	if b := ev.attempt.Call.Binding; b == nil || b.Class == nil {
		return nil, nil, h.deliver(ctx, ev) // says what is wrong
	}
	// What is known already needs no turn of the object, and does not load it.
	h.claimMu.Lock()
	c, r := h.claims.decide(h.now(), ev.arrival(ev.marked()), true)
	if r == joins {
		ev.ask.joined.Store(c.kept)
	}
	h.claimMu.Unlock()
	switch r {
	case taken:
		err = h.deliver(ctx, ev)
	case joins:
	default:
		h.stats.claimsRejected.Add(1)
		return nil, nil, h.refused(ev, r)
	}
	if k := ev.ask.joined.Load(); k != nil {
		first, err = h.join(ctx, ev, k)
		return nil, first, err
	}
	if err == nil {
		result, err = h.collect(ctx, ev)
	}
	return result, nil, err
}

// join waits for the end of a run and until that may be told. The outcome is the
// caller's own; that of a run which failed is the error.
func (h *Host) join(ctx context.Context, ev *event, k *kept) (*limpet.CallOutcome, error) {
	call := ev.attempt.Call
	if err := h.wouldWaitForItself(ctx, ev, k); err != nil {
		return nil, err
	}
	h.claimMu.Lock()
	ended := k.ended()
	crowded := k.waiting >= h.limits.QueueEvents && !k.settled
	if !crowded {
		k.waiting++
		defer func() {
			h.claimMu.Lock()
			defer h.claimMu.Unlock()
			k.waiting--
		}()
	}
	h.claimMu.Unlock()
	if crowded {
		h.stats.overloads.Add(1)
		e := refusal(call.Object, limpet.CodeOverloaded, fmt.Sprintf("%sthe call runs, and %d duplicates of it wait for its outcome, the limit; ask again later", textOverloaded, h.limits.QueueEvents))
		e.Overloaded, e.Delivery = true, limpet.DeliveryReceived
		return nil, e
	}
	select {
	case <-ended:
	case <-ctx.Done():
		return nil, canceled(ctx, call.Object, limpet.DeliveryReceived)
	}
	o, err := h.read(ctx, call.Object, k)
	switch {
	case err != nil:
		return nil, err
	case o == nil:
		h.stats.claimsRejected.Add(1)
		return nil, h.refused(ev, received)
	}
	h.stats.replayed.Add(1)
	if o.Kind == limpet.OutcomeError {
		return nil, o.Err
	}
	return o, nil
}

// read gives a kept outcome once it is durable, or nil if there is none (any
// more).
func (h *Host) read(ctx context.Context, id limpet.ID, k *kept) (*limpet.CallOutcome, error) {
	h.claimMu.Lock()
	data, pos := k.data, k.pos
	h.claimMu.Unlock()
	if data == nil {
		return nil, nil
	}
	if err := h.storage.Wait(ctx, pos); err != nil {
		return nil, waitError(ctx, id, err, limpet.DeliveryReceived)
	}
	o, err := wire.ReadOutcome(slices.Clone(data))
	if err != nil {
		e := limpet.Errorf(limpet.CodeInternal, "a kept outcome: %w", err)
		e.Delivery, e.ObjectID = limpet.DeliveryReceived, id.String()
		return nil, e
	}
	return o, nil
}

// wouldWaitForItself finds a call that comes out of the very run that it would
// wait for.
func (h *Host) wouldWaitForItself(ctx context.Context, ev *event, k *kept) error {
	caller := eventOf(ctx)
	if caller == nil {
		return nil
	}
	for e := &caller.entry; e != nil; e = e.parent {
		if e.ev.ask == nil || e.ev.inc == nil {
			continue
		}
		e.ev.inc.storage.Lock()
		c := e.ev.claim
		e.ev.inc.storage.Unlock()
		h.claimMu.Lock()
		same := c != nil && c.kept == k
		h.claimMu.Unlock()
		if same {
			err := refusal(ev.attempt.Call.Object, limpet.CodeCallCycle, fmt.Sprintf("call cycle: %s; it waits for the outcome of a call with the same idempotency key that it is made from, so that neither could ever end", chain(&caller.entry)))
			return err
		}
	}
	return nil
}

// refused is the refusal of an attempt.
func (h *Host) refused(ev *event, r ruling) *limpet.Error {
	call := ev.attempt.Call
	e := &limpet.Error{Code: limpet.CodeAlreadyReceived, Delivery: limpet.DeliveryReceived, ObjectID: call.Object.String()}
	what := "call " + ev.attempt.Identity.String()
	e.Identity = ev.attempt.Identity.String()
	if call.Key != "" {
		e.Identity = limpet.KeyIdentity(call.Key)
		what = fmt.Sprintf("the call with idempotency key %q", call.Key)
	}
	switch r {
	case reused:
		e.Code, e.Delivery = limpet.CodeIdentityReused, limpet.DeliveryNone
		e.Message = what + " was refused: the key was used for another method or other arguments of this object"
	case full:
		e.Code, e.Delivery, e.Overloaded = limpet.CodeOverloaded, limpet.DeliveryNone, true
		e.Message = fmt.Sprintf("%s was refused: %d keys are known, the limit, each for %v", what, h.limits.Keys, h.limits.KeyRetention)
	case never:
		e.Message = what + " was refused: its outcome was asked for before it came, and told to be that it was not received and never runs"
	case unproven:
		e.Message = what + " was refused: nobody can tell whether the object has received it already"
	default:
		e.Message = what + " was refused: the object has received it already"
		if ev.ask != nil {
			e.Message += ", and its outcome was not kept"
		}
	}
	return e
}

func (inc *incarnation) refused(ev *event, r ruling) *limpet.Error { return inc.host.refused(ev, r) }

// recordKey makes the claim of an idempotency key durable before the handler
// starts. The object is free meanwhile.
func (inc *incarnation) recordKey(ev *event, c *claim) *limpet.Error {
	h := inc.host
	inc.storage.Lock()
	p, err := inc.data.Note(nil, Kept{
		Keyed: true, ID: c.key.id, Claimed: true, Print: ev.ask.bound, ClaimedMS: h.clock.Now().UnixMilli(),
	})
	if err != nil {
		ev.claim = nil
		inc.storage.Unlock()
		h.withdraw(c)
		e := limpet.Errorf(storageCode(err), "the idempotency key could not be recorded, and nothing ran: %w", err)
		e.Delivery, e.ObjectID = limpet.DeliveryNone, inc.id.String()
		return e
	}
	c.logged = true
	if inc.giveAway(ev) == refusedEnded {
		return inc.cause
	}
	// Not bound to the caller: a claim that may be on disk is carried out.
	err = inc.waitDurable(context.Background(), p, 0)
	if gone := inc.take(ev, inReturn); gone != nil {
		if e, ok := errors.AsType[*limpet.Error](gone); ok {
			return e
		}
		return limpet.Errorf(limpet.CodeInternal, "%w", gone)
	}
	if err != nil {
		return waitError(context.Background(), inc.id, err, limpet.DeliveryReceived)
	}
	return nil
}

func (h *Host) withdraw(c *claim) {
	h.claimMu.Lock()
	defer h.claimMu.Unlock()
	h.claims.withdraw(c)
}

func (h *Host) settleClaim(c *claim, data []byte, p Pos) {
	h.claimMu.Lock()
	defer h.claimMu.Unlock()
	h.claims.settle(c, data, p)
}

// keepable is the outcome of a handler that has returned, or nil if it is not one
// that is kept.
func (inc *incarnation) keepable(ev *event, result any, failure *limpet.Error) []byte {
	o := &limpet.CallOutcome{Kind: limpet.OutcomeResult}
	switch {
	case failure != nil && failure.Code == limpet.CodeStorageLost:
		return nil
	case failure != nil:
		o.Kind, o.Err = limpet.OutcomeError, failure
	case ev.writer != nil:
		if o.Response = ev.writer.whole(); o.Response == nil {
			return nil
		}
	default:
		switch v := result.(type) {
		case nil:
		case limpet.Encoded:
			if len(v) > 0 {
				o.Value = v
			}
		case limpet.Parcel:
			if len(v.Caps) > 0 {
				return nil
			}
			o.Value = v.Bytes
		default:
			var err error
			if o.Value, err = inc.codec.Marshal(v); err != nil {
				return nil
			}
		}
	}
	if len(o.Value) > limpet.MaxKeptOutcome {
		return nil
	}
	data, err := wire.AppendOutcome(nil, o)
	if err != nil || len(data) > limpet.MaxKeptOutcome {
		return nil
	}
	return data
}

// commitKept is commit with the outcome of ev's call in the record, which ev.ask.told
// then names. Without an outcome that is kept (data is nil) there is a record all
// the same, if none has the call's identity: no run of it that has ended starts
// again after a crash. If the log refuses a record that would be for this alone,
// the outcome is not kept, and the call is none the worse. inc.storage is held.
func (inc *incarnation) commitKept(ev *event, data []byte) error {
	dirty := inc.data.Dirty()
	owed := dirty || inc.ledger.owed(ev.claim)
	if data == nil && (ev.claim.logged || ev.claim.waived) {
		return inc.commit(ev.claim)
	}
	var kept []Kept
	if data != nil {
		kept = append(kept, keptOf(ev.claim, keptOutcome, data))
	}
	p, err := inc.data.Commit(inc.ledger.identities(), kept...)
	switch {
	case err != nil && owed:
		return err
	case err != nil:
		inc.host.log.Warn("the outcome of a call could not be kept", "object", inc.label(), "error", err)
		return nil
	}
	inc.ledger.committed(p, dirty && inc.confirmed)
	inc.confirmed = false
	inc.keptLocked()
	ev.ask.told = p
	if data != nil {
		// Here, since the incarnation may have ended, and what is in the log counts.
		inc.host.settleClaim(ev.claim, data, p)
	}
	return nil
}

func keptOf(c *claim, kind uint8, data []byte) Kept {
	return Kept{Keyed: c.key.chosen, ID: c.key.id, Kind: kind, Data: data}
}

// keepReset makes e, with which the incarnation ends, the outcome of ev's call: the
// method ran, what it wrote last was rolled back, and its caller is told so. If that
// can't be kept, nothing is, and who waits for it does not wait for a handler that
// outlives its incarnation. inc.storage is held, the turn is rolled back.
func (inc *incarnation) keepReset(ev *event, e *limpet.Error) (p Pos) {
	defer func() { inc.host.settleClaim(ev.claim, nil, Pos{}) }() // unless it is settled
	if !e.Reset || e.Code == limpet.CodeStorageLost || !ev.ask.told.IsZero() {
		return ev.ask.told // how the call ends is not known to whoever asks later
	}
	data, err := wire.AppendOutcome(nil, &limpet.CallOutcome{Kind: limpet.OutcomeError, Err: ev.seen(e)})
	if err != nil || len(data) > limpet.MaxKeptOutcome {
		return p
	}
	var ids []limpet.Identity
	if !ev.claim.logged && !ev.claim.key.chosen {
		ids = append(ids, ev.claim.key.id)
	}
	if p, err = inc.data.Commit(ids, keptOf(ev.claim, keptOutcome, data)); err != nil {
		inc.host.log.Warn("the outcome of a call could not be kept", "object", inc.label(), "error", err)
		return Pos{}
	}
	inc.host.settleClaim(ev.claim, data, p)
	return p
}

// shielded reports whether the end of a context, the caller's, is none of the
// run's: the connection was lost, and somebody else may ask for the outcome.
func (ev *event) shielded(ctx context.Context) bool {
	return ev.ask != nil && errors.Is(context.Cause(ctx), limpet.CodeDisconnected)
}

// Outcome tells what became of a call of c's object; see limpet.Outcome. age is the
// time since the identity was made, by the asker's clock. Errors are as those of
// Do.
func (h *Host) Outcome(ctx context.Context, call *limpet.CallSpec, q limpet.OutcomeQuery, age time.Duration) (*limpet.CallOutcome, error) {
	in := &inquiry{age: int64(age), here: q.Process == limpet.ProcessText(h.boot.Boot)}
	if q.Key != "" {
		in.key = keyOf(call, q.Key)
	} else {
		in.key = claimKey{object: call.Object.Bytes(), id: q.Identity}
	}
	for {
		h.claimMu.Lock()
		h.claims.expire(h.now())
		c := h.claims.byKey[in.key]
		h.claimMu.Unlock()
		if c != nil {
			if o, err := h.tell(ctx, call.Object, c); o != nil || err != nil {
				return o, err
			}
			continue // it was withdrawn
		}
		ev := &event{kind: eventInquiry, attempt: dispatch.Attempt{Call: call}, ask: &asked{inquiry: in}, parent: ctx}
		if err := h.deliver(ctx, ev); err != nil {
			return nil, err
		}
		r, err := h.collect(ctx, ev)
		if err != nil {
			return nil, err
		}
		if c, ok := r.(*claim); ok {
			if o, err := h.tell(ctx, call.Object, c); o != nil || err != nil {
				return o, err
			}
			continue
		}
		return &limpet.CallOutcome{Kind: limpet.OutcomeNotReceived}, nil
	}
}

// tell is what a claim tells of its call; nil if it was withdrawn.
func (h *Host) tell(ctx context.Context, id limpet.ID, c *claim) (*limpet.CallOutcome, error) {
	for {
		h.claimMu.Lock()
		kind, k, wait := c.known()
		gone := h.claims.byKey[c.key] != c && !c.expired
		var ended <-chan struct{}
		var pos Pos
		if k != nil {
			ended, pos = k.ended(), k.pos
		}
		h.claimMu.Unlock()
		switch {
		case gone:
			return nil, nil
		case wait:
			select {
			case <-ended:
			case <-ctx.Done():
				return nil, canceled(ctx, id, limpet.DeliveryReceived)
			}
		case kind == limpet.OutcomeResult:
			o, err := h.read(ctx, id, k)
			if o != nil || err != nil {
				return o, err
			}
		case kind == limpet.OutcomeNotReceived:
			if err := h.storage.Wait(ctx, pos); err != nil {
				return nil, waitError(ctx, id, err, limpet.DeliveryReceived)
			}
			return &limpet.CallOutcome{Kind: kind}, nil
		default:
			return &limpet.CallOutcome{Kind: kind}, nil
		}
	}
}

// inquire answers a question for a call that was not known: with the claim if it
// is known now, else it bars the call.
func (inc *incarnation) inquire(ev *event) (any, *limpet.Error) {
	h, q := inc.host, ev.ask.inquiry
	h.claimMu.Lock()
	c, known, r := h.claims.bar(h.now(), *q)
	h.claimMu.Unlock()
	switch {
	case known:
		return c, nil
	case r == full:
		e := inc.newError(limpet.CodeOverloaded, limpet.DeliveryReceived, "too many calls that never came were asked for, or too many idempotency keys are known; the outcome could not be noted")
		e.Overloaded = true
		return nil, e
	case r != taken:
		return nil, inc.newError(limpet.CodeOutcomeUnknown, limpet.DeliveryReceived, "nobody can tell whether the call was received: %s", q.why())
	}
	k := Kept{Keyed: q.key.chosen, ID: q.key.id, Kind: keptBarred}
	var ids []limpet.Identity
	if q.key.chosen {
		k.Claimed, k.ClaimedMS = true, h.clock.Now().UnixMilli()
	} else {
		ids = append(ids, q.key.id)
	}
	inc.storage.Lock()
	p, err := inc.data.Note(ids, k)
	if err == nil {
		ev.ask.told = p
	}
	inc.storage.Unlock()
	if err != nil {
		h.withdraw(c)
		e := limpet.Errorf(storageCode(err), "that the call was not received could not be recorded: %w", err)
		e.Delivery, e.ObjectID = limpet.DeliveryReceived, inc.id.String()
		return nil, e
	}
	h.claimMu.Lock()
	c.logged = true
	h.claims.settle(c, nil, p)
	h.claimMu.Unlock()
	return nil, nil
}

// why says what is missing for an answer.
func (q *inquiry) why() string {
	switch {
	case q.key.chosen:
		return "too many idempotency keys were in the log to remember all"
	case q.age > int64(youngIdentity):
		return fmt.Sprintf("it was made %v ago, and claims are kept for %v", time.Duration(q.age).Round(time.Second), claimRetention)
	case q.age < -int64(clockError):
		return fmt.Sprintf("by the clock of who asks it will be made in %v; ask where it was made", -time.Duration(q.age).Round(time.Second))
	case !q.here:
		return "its identity does not say that no other process of the node can have received it (the node was restarted since, or an attempt ended before it was connected)"
	}
	return "too many calls were claimed of late to remember all"
}
