package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/invariant"
)

// run is one call under way: the shell around its machine. It belongs to the
// caller's goroutine; attempts on other goroutines get copies of what they need.
type run struct {
	e     *Engine
	ctx   context.Context // the caller's, for the length of the call
	spec  *limpet.CallSpec
	fetch *fetch // nil for KindMethod
	// promise is what children may be made on; nil for calls that are waited for.
	promise *promise
	m       machine

	replayable bool // the call may carry an identity (SPEC F2)
	retries    bool // the sender will retry (SPEC F2)
	prepared   bool // replay memory was asked for
	reserved   int64
	why        string // the call can't be sent again, or is empty
	sendable   bool   // that was empty when the present attempt began

	first    Transport // of attempt 1 of this hop, if it is known already
	firstErr error     // why there is none
	here     *result   // of an attempt made on this goroutine, not yet looked at
	flight   *flight   // the attempt on another goroutine, or nil

	timer  limpet.Timer
	armed  bool
	onTime eventKind

	id          limpet.Identity
	seenBy      []Boot // where uncertain attempts with id went
	blind       bool   // there is one more of them, and nobody knows where it went
	attempts    int    // of all hops
	hops        int    // redirects followed
	uncertain   bool   // an attempt of this hop may have been taken
	uncertainID limpet.Identity
	failure     *limpet.Error // of the last attempt
	original    *limpet.Error
	abortKnown  *limpet.Error // the transport's word on an attempt that the caller aborted

	value any
	resp  *http.Response
	err   error
}

// result is what an attempt brought.
type result struct {
	value      any
	resp       *http.Response
	err        error
	unsent     bool // it failed before a transport had it
	identified bool // it carried the identity
	boot       Boot
	cancel     context.CancelCauseFunc // of the attempt's context, if it has its own
}

// flight is an attempt on a goroutine of the engine.
type flight struct {
	results chan result
	cancel  context.CancelCauseFunc
}

func newRun(e *Engine, ctx context.Context, c *limpet.CallSpec, replayable bool) *run {
	return &run{
		e: e, ctx: ctx, spec: c, m: newMachine(c.Policy, replayable),
		replayable: replayable, retries: replayable && c.Policy.MaxRetries > 0,
	}
}

// call makes a KindMethod call whose first route was asked for already.
func (r *run) call(start time.Duration) (any, error) {
	if r.firstErr == nil && !r.first.Lossless() && r.replayable {
		if err := r.prepare(); err != nil { // SPEC E51, C32: no attempt is made
			return nil, unsent(err)
		}
		if !r.retries {
			r.step(start, event{kind: evRefused})
		}
	}
	r.do(r.step(start, event{kind: evStart}))
	v, _, err := r.loop()
	return v, err
}

// prepare makes the call ready to be sent again: arguments encoded once, and
// memory reserved for them if there may be retries (SPEC E4, E51, G20). Without
// room there will be none (SPEC G21). An error is one of encoding.
func (r *run) prepare() error {
	if r.fetch != nil {
		if why := r.fetch.spent(); why != "" { // its buffer has become too small
			r.retries, r.why = false, why
		}
		return nil
	}
	if r.prepared {
		return nil
	}
	r.prepared = true
	if _, err := r.spec.Runner.Args(); err != nil {
		return err
	}
	if !r.retries {
		return nil
	}
	n, why := r.e.replay.reserve(r.spec)
	if why != "" {
		r.retries, r.why = false, why
		r.e.replay.refused.Add(1)
		r.e.observer.ReplayRefused(r.spec)
	}
	r.reserved = n
	return nil
}

// loop plays events until the call has ended.
func (r *run) loop() (any, *http.Response, error) {
	for r.m.state != done {
		now, ev := r.wait()
		ran := r.m.state == running
		committed := r.m.committed
		actions := r.step(now, ev)
		if ran && (r.m.state != running || ev.kind == evRedirected) {
			r.ended(ev, committed)
		}
		r.do(actions)
		if ev.kind == evPipelined {
			close(r.promise.committed)
		}
	}
	r.disarm()
	return r.value, r.resp, r.err
}

// ended tells of an attempt that is over, after the machine has decided on it.
func (r *run) ended(ev event, committed bool) {
	a := AttemptEnd{
		Replayable: r.sendable, Retryable: r.spec.Policy.MaxRetries > 0, Committed: committed,
	}
	switch ev.kind {
	case evSucceeded, evRedirected:
		a.Result = AttemptSucceeded
	case evFailed, evStartFailed:
		a.Result = AttemptFailed
		if r.m.state == backingOff {
			a.Result = AttemptRetried
		}
	case evStart, evBackoffOver, evCutoff, evAborted, evGone, evPipelined, evRefused:
		a.Result = AttemptCanceled
	}
	r.e.observer.AttemptEnded(r.spec, a)
}

func (r *run) step(now time.Duration, ev event) []action {
	actions := r.m.Step(now, ev)
	if invariant.Enabled {
		invariant.CheckFunc(func() error { return r.m.check(now) })
	}
	return actions
}

// wait is the next event. A result goes before everything else.
func (r *run) wait() (time.Duration, event) {
	if res := r.here; res != nil {
		r.here = nil
		return r.received(*res)
	}
	var results chan result
	if r.flight != nil {
		results = r.flight.results
	}
	var tick <-chan time.Time
	if r.armed {
		tick = r.timer.C()
	}
	select {
	case res := <-results:
		return r.received(res)
	default:
	}
	select {
	case res := <-results:
		return r.received(res)
	case <-tick:
		r.armed = false
		return r.e.now(), event{kind: r.onTime}
	case <-r.ctx.Done():
		return r.e.now(), event{kind: evAborted}
	case <-r.e.closing:
		return r.e.now(), event{kind: evGone}
	case <-r.promise.wanted():
		return r.e.now(), event{kind: evPipelined}
	}
}

// received makes an event of what an attempt brought.
func (r *run) received(res result) (time.Duration, event) {
	r.flight = nil
	r.disarm()
	now := r.e.now()
	if res.err == nil {
		if r.fetch == nil {
			release(res.cancel)
			r.value = res.value
			return now, event{kind: evSucceeded}
		}
		r.resp = bind(res.resp, res.cancel)
		return now, r.answered()
	}
	release(res.cancel)
	if r.ctx.Err() != nil && isCancel(res.err) {
		if res.unsent {
			r.abortKnown = &limpet.Error{Delivery: limpet.DeliveryNone}
		} else {
			r.abortKnown = asError(res.err)
			if res.identified && r.abortKnown.Delivery == limpet.DeliveryUncertain {
				r.sentTo(res.boot)
			}
		}
		return now, event{kind: evAborted}
	}
	e := asError(res.err)
	if res.unsent && e.Delivery != limpet.DeliveryNone {
		e = e.Clone()
		e.Delivery = limpet.DeliveryNone
	}
	r.failure = e
	ev := event{kind: evFailed, failure: classify(e, res.identified)}
	if r.spec.Key != "" && ev.failure == failClaimed {
		ev.failure = failOther // the caller chose the key, and is told (DESIGN 5)
	}
	if res.unsent {
		ev.kind = evStartFailed
	} else if e.Delivery == limpet.DeliveryUncertain {
		r.mayHaveRun(res.identified)
		if res.identified {
			r.sentTo(res.boot)
		}
	}
	if ev.failure.lost() && r.retries {
		if err := r.prepare(); err != nil {
			r.retries, r.why = false, fmt.Sprintf("the arguments can't be kept: %v", err) // sent by reference
		}
		if !r.retries {
			r.do(r.step(now, event{kind: evRefused})) // it may be too late for this attempt, too
		} else {
			ev.draw = r.e.draw()
		}
	}
	return now, ev
}

// sentTo notes which process an uncertain attempt went to.
func (r *run) sentTo(b Boot) {
	if !slices.Contains(r.seenBy, b) {
		r.seenBy = append(slices.Clip(r.seenBy), b) // attempts may hold the old list
	}
}

// mayHaveRun notes that the present attempt may have been taken.
func (r *run) mayHaveRun(identified bool) {
	r.uncertain = true
	if identified && !r.id.IsZero() {
		r.uncertainID = r.id
	}
}

// answered looks at a response for a redirect.
func (r *run) answered() event {
	r.resp.Request = r.fetch.req
	next, err := r.fetch.redirect(r.ctx, r.resp)
	switch {
	case err != nil: // the attempt succeeded all the same
		discard(r.resp)
		r.resp, r.err = nil, err
	case next != nil:
		drain(r.resp)
		r.resp, r.fetch = nil, next
		r.hops++
		r.first, r.firstErr = nil, nil
		if r.spec.Key != "" {
			hop := *r.spec
			hop.Key = fmt.Sprintf("%s\x00%d", strings.TrimSuffix(r.spec.Key, fmt.Sprintf("\x00%d", r.hops-1)), r.hops)
			r.spec = &hop
		}
		r.why = cmp.Or(r.spec.Unretryable, next.spent())
		r.replayable = r.why == "" // SPEC E44
		r.retries = r.replayable && r.spec.Policy.MaxRetries > 0
		r.original, r.uncertain, r.uncertainID = nil, false, limpet.Identity{}
		return event{kind: evRedirected, replayable: r.replayable}
	}
	return event{kind: evSucceeded}
}

// do carries out what the machine orders.
func (r *run) do(actions []action) {
	for _, a := range actions {
		switch a.kind {
		case actAttempt:
			r.attempt(a)
		case actCutoff:
			r.arm(a.at, evCutoff)
		case actBackoff:
			r.arm(a.at, evBackoffOver)
		case actCancel:
			r.cancel()
		case actKeepOriginal:
			r.original = r.failure
		case actRelease:
			r.e.replay.release(r.reserved)
			r.reserved = 0
		case actRetryStarted:
			r.e.observer.RetryStarted(r.spec)
		case actOutcome:
			r.e.observer.Outcome(r.spec, a.outcome, a.since)
		case actFinish:
			r.finish(a.verdict, a.outcome)
		}
	}
}

func (r *run) arm(at time.Duration, kind eventKind) {
	d := at - r.e.now()
	if r.timer == nil {
		r.timer = r.e.clock.NewTimer(d)
	} else {
		r.timer.Reset(d)
	}
	r.armed, r.onTime = true, kind
}

func (r *run) disarm() {
	if r.armed {
		r.timer.Stop()
		r.armed = false
	}
}

// attempt starts one, here or on another goroutine.
func (r *run) attempt(a action) {
	r.attempts++
	r.sendable = r.why == ""
	if a.fresh {
		r.id, r.seenBy, r.blind = limpet.Identity{}, nil, false
	}
	j := job{
		e: r.e,
		a: Attempt{
			Call: r.spec, Number: a.n, Retry: a.flag, WillRetry: r.retries, Uncertain: r.seenBy,
		},
	}
	if a.n > 1 {
		e, cutoff := r.e, r.m.cutoff
		j.a.Late = func() bool { return e.now() >= cutoff }
	}
	if a.n == 1 {
		if r.first == nil && r.firstErr == nil {
			r.first, r.firstErr = r.e.router.Route(r.ctx, r.spec)
		}
		if r.firstErr != nil {
			r.here = &result{err: r.firstErr, unsent: true}
			return
		}
		j.t = r.first
	}
	if r.replayable && r.id.IsZero() && r.spec.Key == "" && (j.t == nil || !j.t.Lossless()) {
		r.id = r.e.identity()
	}
	j.a.Identity = r.id
	if r.fetch != nil {
		j.request, j.body, j.trailer = r.fetch.req, r.fetch.takeBody(), r.fetch.trailer
	}
	if r.promise != nil {
		j.a.Pipe = r.promise.begin()
	} else if j.t != nil && (prompt(j.t) || r.ctx.Done() == nil) {
		res := j.run(r.ctx)
		r.here = &res
		return
	}
	r.launch(j)
}

// launch makes an attempt on another goroutine, which ends when its result is
// taken or nobody wants it any more, and the transport has returned.
func (r *run) launch(j job) {
	ctx, cancel := context.WithCancelCause(r.ctx)
	f := &flight{results: make(chan result), cancel: cancel}
	if !r.e.spawn(func() {
		res := j.run(ctx)
		res.cancel = cancel
		select {
		case f.results <- res:
		case <-ctx.Done():
			discard(res.resp)
			releaseValue(res.value)
			release(cancel)
		}
	}) { // the engine was closed: wait will say so
		cancel(errClosed)
		j.drop()
		return
	}
	r.flight = f
}

// cancel ends the attempt that runs elsewhere. Nobody will know whether the
// object took it.
func (r *run) cancel() {
	r.disarm()
	if r.flight == nil {
		return
	}
	cause := errCutoff
	if r.ctx.Err() != nil {
		cause = context.Cause(r.ctx)
	} else if r.e.isClosed() {
		cause = errClosed
	}
	if r.spec.Key != "" && r.ctx.Err() == nil {
		// Not the caller's wish: the run goes on, since its outcome is the key's for
		// good and somebody will ask for it. The code tells that (internal/host).
		cause = limpet.Errorf(limpet.CodeDisconnected, "%w", cause)
	}
	r.flight.cancel(cause)
	r.flight = nil
	r.blind = true
	r.mayHaveRun(true)
}

// finish makes what the caller gets.
func (r *run) finish(v verdict, o Outcome) {
	switch v {
	case resultOfEvent:
		if r.err != nil { // a redirect that can't be followed
			r.err = r.fail(asError(r.err))
		}
	case failureOfEvent:
		r.err = r.final(r.failure, o)
	case originalFailure:
		r.err = r.final(r.original, o)
	case abortReason:
		d := limpet.DeliveryNone
		if r.abortKnown != nil {
			d = r.abortKnown.Delivery
			if d == limpet.DeliveryUncertain {
				r.mayHaveRun(true)
			}
		}
		r.err = r.fail(canceled(r.ctx, r.whole(d)))
	case callerGone:
		r.err = r.fail(closed(r.whole(limpet.DeliveryNone)))
	case claimBug:
		r.err = r.fail(&limpet.Error{
			Code: limpet.CodeInternal, Message: "call claim rejected before a retry was attempted",
			Delivery: limpet.DeliveryUncertain, Cause: r.failure,
		})
	}
}

// whole is what is known of the call as a whole when d is known of its end.
func (r *run) whole(d limpet.Delivery) limpet.Delivery {
	switch {
	case d != limpet.DeliveryNone:
		return d
	case r.uncertain:
		return limpet.DeliveryUncertain
	case r.hops > 0: // the object answered the first hop
		return limpet.DeliveryReceived
	default:
		return d
	}
}

// final is a failed attempt's error as the call's caller gets it.
func (r *run) final(e *limpet.Error, o Outcome) error {
	err := r.fail(e)
	if isLost(err) {
		err.NoRetry = r.noRetry(err, o)
	}
	return err
}

// noRetry tells people why a lost connection was not answered by another attempt.
func (r *run) noRetry(e *limpet.Error, o Outcome) string {
	switch o {
	case OutcomeClaimRejected:
		return "the object refused a retry: it has received the call, or can't tell"
	case OutcomeRetryBudgetExhausted:
		return fmt.Sprintf("no time for another attempt within the retry timeout of %v", r.spec.Policy.Timeout)
	case OutcomeAttemptsExhausted, OutcomeUnableToRetry:
		switch {
		case r.spec.Policy.MaxRetries == 0: // as the caller wanted
			return ""
		case r.m.committed:
			return "its result was used before it came"
		case r.why != "":
			return r.why
		case o == OutcomeAttemptsExhausted:
			return fmt.Sprintf("all %d attempts failed", r.m.attempt)
		case e.Delivery == limpet.DeliveryReceived:
			return "the object has received the call"
		}
	}
	return ""
}

// fail is e as the call's caller gets it.
func (r *run) fail(e *limpet.Error) *limpet.Error {
	e = e.Clone()
	e.Delivery = r.whole(e.Delivery)
	e.Retryable = e.Retryable && e.Remote || isLost(e)
	e.Attempts = r.attempts
	if r.firstErr != nil {
		e.Attempts-- // there was nobody to make the last one with
	}
	e.Identity = r.identityText(e.Delivery)
	return e
}

// identityText is what Outcome can be asked with.
func (r *run) identityText(d limpet.Delivery) string {
	q := limpet.OutcomeQuery{Key: r.spec.Key, Identity: r.uncertainID}
	switch {
	case q.Key != "" && d == limpet.DeliveryNone, q.Key == "" && q.Identity.IsZero():
		return ""
	case r.uncertainID == r.id && !r.blind && len(r.seenBy) == 1:
		q.Process = limpet.ProcessText(r.seenBy[0].Boot)
	}
	return q.String()
}

// job is one attempt, with copies of all it needs.
type job struct {
	e       *Engine
	t       Transport // nil: ask the router
	a       Attempt
	request *http.Request // KindFetch
	body    bodySource    // KindFetch
	trailer http.Header   // KindFetch: the caller's
}

// run makes the attempt.
func (j *job) run(ctx context.Context) (res result) {
	if j.t == nil { // SPEC E29
		if j.t, res.err = j.e.router.Route(ctx, j.a.Call); res.err != nil {
			j.drop()
			res.unsent = true
			return res
		}
	}
	if j.t.Lossless() && !j.a.Retry {
		j.a.Identity = limpet.Identity{}
	}
	res.identified = !j.a.Identity.IsZero() || j.a.Call.Key != ""
	defer func() { res.boot = j.t.Boot() }() // a transport that connects in Do knows it only now
	if j.a.Call.Kind == limpet.KindMethod {
		res.value, res.err = j.t.Do(ctx, j.a)
		return res
	}
	body, err := j.body.open()
	if err != nil {
		res.err = limpet.Errorf(limpet.CodeInvalidArgument, "request body can't be sent again: GetBody: %w", err)
		res.unsent = true
		return res
	}
	j.a.Request = j.request.Clone(ctx) // SPEC E46
	j.a.Request.Body = body
	if len(j.trailer) > 0 && body != http.NoBody {
		j.a.Request.Body = trailerBody{body, j.trailer, j.a.Request.Trailer}
	}
	res.resp, res.err = j.t.Fetch(ctx, j.a)
	if res.err == nil && res.resp == nil {
		res.err = limpet.Errorf(limpet.CodeInternal, "transport returned neither a response nor an error")
	}
	return res
}

// drop gives up an attempt that was not made.
func (j *job) drop() {
	if j.body.once != nil {
		_ = j.body.once.Close() // nothing was read from it
	}
}

// release ends the context of an attempt that is over.
func release(cancel context.CancelCauseFunc) {
	if cancel != nil {
		cancel(nil)
	}
}

// bind keeps the attempt's context until the response's body is closed.
func bind(resp *http.Response, cancel context.CancelCauseFunc) *http.Response {
	if resp.Body == nil {
		resp.Body = http.NoBody
	}
	if cancel == nil {
		return resp
	}
	b := boundBody{resp.Body, cancel}
	if w, ok := resp.Body.(io.Writer); ok { // 101 Switching Protocols
		resp.Body = boundConn{b, w}
	} else {
		resp.Body = b
	}
	return resp
}

type boundBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b boundBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

type boundConn struct {
	boundBody
	io.Writer
}

// releaseValue gives up a result that nobody takes.
func releaseValue(v any) {
	if p, ok := v.(limpet.Parcel); ok {
		p.Release()
	}
}
