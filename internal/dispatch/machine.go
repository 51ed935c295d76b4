package dispatch

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/limpet-dev/limpet"
)

// This file is the retry state machine of one call: all of SPEC E.4, the
// redirects of E42-E44 and the commitment of E53-E54. It has no clock, no
// randomness, no I/O, no goroutine and no error values: time, draws and kinds of
// failure come in with the events, orders to the shell (engine.go) go out as
// actions. Read it from top to bottom.

// backoffWindows are the bounds of the wait before retry 1, 2, …; the last one
// is repeated (SPEC E.2, J27). The wait is uniform over the window, bounds
// included, in nanoseconds.
var backoffWindows = [...]struct{ from, to time.Duration }{
	{0, 500 * time.Millisecond},
	{0, 1000 * time.Millisecond},
	{0, 2000 * time.Millisecond},
}

// backoff turns a draw, uniform over all of uint64, into the wait before retry k
// (k = 1, 2, …).
func backoff(k int, draw uint64) time.Duration {
	w := backoffWindows[min(k, len(backoffWindows))-1]
	above, _ := bits.Mul64(draw, uint64(w.to-w.from)+1)
	return w.from + time.Duration(above)
}

type state uint8

const (
	ready      state = iota // nothing was tried yet
	running                 // attempt number m.attempt is under way
	backingOff              // attempt number m.attempt failed; the next one waits for m.until
	done                    // the call has its outcome; nothing happens any more
)

var stateNames = [...]string{"ready", "running", "backing off", "done"}

func (s state) String() string { return stateNames[s] }

// failure is all that the machine knows of why an attempt failed.
type failure uint8

const (
	failOther        failure = iota // no lost connection: never retried (E23, C50, C51)
	failReceived                    // connection lost; the object had taken the attempt (E24)
	failUncertain                   // connection lost; nobody knows whether it was taken
	failNotDelivered                // connection lost, or refused by a draining node; certainly not taken
	failClaimed                     // the object refused the attempt: it has its identity already (E22)
)

var failureNames = [...]string{"other", "received", "uncertain", "not delivered", "claimed"}

func (f failure) String() string { return failureNames[f] }

// lost reports whether the failure may be answered by a retry (E25).
func (f failure) lost() bool { return f == failUncertain || f == failNotDelivered }

type eventKind uint8

const (
	evStart       eventKind = iota // the call begins; now is its callStart (E10)
	evSucceeded                    // the running attempt brought its result
	evRedirected                   // the running attempt brought a redirect that is followed (E42)
	evFailed                       // the running attempt failed
	evStartFailed                  // the running attempt failed before anything was sent (E33, C43)
	evBackoffOver                  // the time of the last actBackoff has come
	evCutoff                       // the time of the last actCutoff has come
	evAborted                      // the caller wants no result any more (E34)
	evGone                         // the caller's world ended (E35)
	evPipelined                    // the result is used as a pipeline (E53)
	evRefused                      // it can't be sent again any more: no other attempt (G21, G1)
)

var eventNames = [...]string{
	"start", "succeeded", "redirected", "failed", "start failed", "backoff over", "cutoff",
	"aborted", "gone", "pipelined", "refused",
}

func (k eventKind) String() string { return eventNames[k] }

type event struct {
	kind       eventKind
	failure    failure // evFailed, evStartFailed
	draw       uint64  // evFailed, evStartFailed: uniform, for the backoff that may follow
	replayable bool    // evRedirected: the next hop's request can be sent again (E44)
}

type actionKind uint8

const (
	actAttempt      actionKind = iota // start attempt number n with flag; fresh: make a new identity, else keep it
	actCutoff                         // raise evCutoff at the time at, unless the attempt ends before
	actBackoff                        // raise evBackoffOver at the time at
	actCancel                         // cancel the running attempt; its result is of no interest
	actKeepOriginal                   // the failure of this event is the call's first disconnect
	actRelease                        // give the replay memory back (G22)
	actRetryStarted                   // count a retry (I2)
	actOutcome                        // count outcome, since the first disconnect (I3, I4)
	actFinish                         // the call ends with verdict
)

type action struct {
	kind    actionKind
	n       int           // actAttempt: from 1
	fresh   bool          // actAttempt
	flag    bool          // actAttempt: this may be a duplicate; the object must look (E28)
	at      time.Duration // actCutoff, actBackoff
	outcome Outcome       // actOutcome, actFinish
	since   time.Duration // actOutcome
	verdict verdict       // actFinish
}

// verdict is what the caller gets (the table at the end of SPEC E.4).
type verdict uint8

const (
	resultOfEvent   verdict = iota // the result that came with evSucceeded
	failureOfEvent                 // the failure that came with this event
	originalFailure                // the first disconnect
	abortReason                    // the caller's own reason
	callerGone                     // nobody is there to see it
	claimBug                       // a claim rejection without a retry: a fault of limpet (E22)
)

var verdictNames = [...]string{"result", "this failure", "original failure", "abort reason", "caller gone", "claim bug"}

func (v verdict) String() string { return verdictNames[v] }

// maxActions is the most that one step orders.
const maxActions = 4

// machine is the retry state of one call. Times are durations on one monotonic
// scale of the shell's choice.
type machine struct {
	state state

	maxRetries int           // the policy's
	timeout    time.Duration // the policy's
	limit      int           // attempts this hop may make: 1 + maxRetries, or 1 if it can't be sent again (E5)

	attempt   int           // number of the attempt that runs or ran last in this hop; 0 before the first
	original  bool          // there was a first disconnect in this hop
	firstLoss time.Duration // when that was
	flag      bool          // an attempt with the present identity was uncertain
	committed bool          // the result is used as a pipeline (E53)
	refused   bool          // the call can't be sent again, which was found out on the way
	released  bool          // the replay memory was given back
	started   bool          // evStart has come
	cutoff    time.Duration // callStart + timeout, for all hops (E11, E43)
	until     time.Duration // end of the backoff

	outcomes int    // outcomes recorded in this hop, for check
	fault    string // an event that can't be in its state, for check

	n   int // actions in buf
	buf [maxActions]action
}

// newMachine is for a call that may be sent again (E1, E2, E4) or not.
func newMachine(p limpet.RetryPolicy, replayable bool) machine {
	m := machine{maxRetries: p.MaxRetries, timeout: p.Timeout}
	m.limit = m.attempts(replayable)
	return m
}

func (m *machine) attempts(replayable bool) int {
	if replayable {
		return 1 + m.maxRetries
	}
	return 1
}

// Step takes one event and returns what to do, in order. The slice is valid
// until the next Step.
func (m *machine) Step(now time.Duration, ev event) []action {
	m.n = 0
	switch m.state {
	case ready:
		m.stepReady(now, ev)
	case running:
		m.stepRunning(now, ev)
	case backingOff:
		m.stepBackingOff(now, ev)
	case done:
		if ev.kind == evStart {
			m.impossible(ev)
		}
		// Everything else comes too late and changes nothing.
	}
	return m.buf[:m.n]
}

func (m *machine) stepReady(now time.Duration, ev event) {
	switch ev.kind {
	case evStart: // E20: never checked against the cutoff
		m.started = true
		m.cutoff = now + m.timeout
		m.firstAttempt()
	case evAborted:
		m.finish(now, abortReason, OutcomeCanceled)
	case evGone:
		m.finish(now, callerGone, m.goneOutcome())
	case evPipelined:
		m.commit()
	case evRefused:
		m.limit = 1
	case evSucceeded, evRedirected, evFailed, evStartFailed, evBackoffOver, evCutoff:
		m.impossible(ev)
	}
}

func (m *machine) stepRunning(now time.Duration, ev event) {
	switch ev.kind {
	case evSucceeded: // E21; a result that has come is given, whatever the time
		m.finish(now, resultOfEvent, OutcomeRecovered)
	case evRedirected: // E42: the next hop is a call of its own, except for the cutoff (E43)
		m.record(now, OutcomeRecovered)
		m.original, m.refused, m.outcomes = false, false, 0
		m.limit = m.attempts(ev.replayable)
		m.firstAttempt()
	case evFailed:
		m.failed(now, ev)
	case evStartFailed:
		switch {
		case m.attempt == 1: // C43
			m.finish(now, failureOfEvent, OutcomeOther)
		case ev.failure.lost(): // nothing was sent, so it can't be uncertain
			ev.failure = failNotDelivered
			m.failed(now, ev)
		default: // E33
			m.finish(now, failureOfEvent, OutcomeOther)
		}
	case evCutoff:
		switch {
		case m.attempt == 1: // E32: never cancelled by the policy
		case now < m.cutoff: // a timer that fired early
			m.do(action{kind: actCutoff, at: m.cutoff})
		default: // E31
			m.cancelAtCutoff(now)
		}
	case evAborted: // E34
		m.do(action{kind: actCancel})
		m.finish(now, abortReason, OutcomeCanceled)
	case evGone: // E35
		m.do(action{kind: actCancel})
		m.finish(now, callerGone, m.goneOutcome())
	case evPipelined, evRefused: // the running attempt decides (E53)
		switch {
		case m.attempt > 1 && now >= m.cutoff:
			m.cancelAtCutoff(now)
		case ev.kind == evPipelined:
			m.commit()
		default: // in a retry: of a body that did not fit into its buffer
			m.refused = true
			m.limit = m.attempt
		}
	case evStart, evBackoffOver:
		m.impossible(ev)
	}
}

func (m *machine) stepBackingOff(now time.Duration, ev event) {
	switch ev.kind {
	case evBackoffOver: // E30: the timer may have fired late
		if now >= m.cutoff {
			m.finish(now, originalFailure, OutcomeRetryBudgetExhausted)
			return
		}
		m.retry()
	case evCutoff: // E12
		m.finish(now, originalFailure, OutcomeRetryBudgetExhausted)
	case evAborted: // E34
		m.finish(now, abortReason, OutcomeCanceled)
	case evGone: // E35
		m.finish(now, callerGone, m.goneOutcome())
	case evPipelined: // E53, E54
		m.finish(now, originalFailure, OutcomeUnableToRetry)
	case evStart, evSucceeded, evRedirected, evFailed, evStartFailed, evRefused:
		m.impossible(ev)
	}
}

// failed decides what follows the failure of the running attempt.
func (m *machine) failed(now time.Duration, ev event) {
	switch ev.failure {
	case failClaimed: // E22, also after commitment (E54)
		if !m.original {
			m.finish(now, claimBug, OutcomeOther)
			return
		}
		m.finish(now, originalFailure, OutcomeClaimRejected)
		return
	case failOther, failReceived: // E23, E24
		m.finish(now, failureOfEvent, OutcomeUnableToRetry)
		return
	case failUncertain, failNotDelivered:
	}
	if m.committed { // E53, E54
		m.finish(now, failureOfEvent, OutcomeUnableToRetry)
		return
	}
	if !m.original { // E25
		m.original, m.firstLoss = true, now
		m.do(action{kind: actKeepOriginal})
	}
	if ev.failure == failUncertain { // E28
		m.flag = true
	}
	if m.attempt >= m.limit { // E26: no final wait
		o := OutcomeAttemptsExhausted
		if m.refused {
			o = OutcomeUnableToRetry
		}
		m.finish(now, originalFailure, o)
		return
	}
	until := now + backoff(m.attempt, ev.draw)
	if until >= m.cutoff { // E27: neither shortened nor redrawn
		m.finish(now, originalFailure, OutcomeRetryBudgetExhausted)
		return
	}
	m.state, m.until = backingOff, until
	m.do(action{kind: actBackoff, at: until})
}

// firstAttempt starts attempt 1 of a hop.
func (m *machine) firstAttempt() {
	m.state, m.attempt, m.flag = running, 1, false
	m.do(action{kind: actAttempt, n: 1, fresh: true})
}

// retry starts the next attempt, with the identity of E28: kept while the object
// may have seen it, renewed when it certainly has not.
func (m *machine) retry() {
	m.state = running
	m.attempt++
	m.do(action{kind: actRetryStarted})
	m.do(action{kind: actCutoff, at: m.cutoff})
	m.do(action{kind: actAttempt, n: m.attempt, fresh: !m.flag, flag: m.flag})
}

// cancelAtCutoff ends a running retry (E31).
func (m *machine) cancelAtCutoff(now time.Duration) {
	m.do(action{kind: actCancel})
	m.finish(now, originalFailure, OutcomeRetryBudgetExhausted)
}

// commit binds the call to its current attempt (E53).
func (m *machine) commit() {
	m.committed = true
	m.release()
}

// finish ends the call; o counts if a retry had started.
func (m *machine) finish(now time.Duration, v verdict, o Outcome) {
	m.state = done
	m.release()
	m.record(now, o)
	m.do(action{kind: actFinish, verdict: v, outcome: o})
}

func (m *machine) release() {
	if !m.released {
		m.released = true
		m.do(action{kind: actRelease})
	}
}

// record counts the outcome of this hop, if a retry had started (I3).
func (m *machine) record(now time.Duration, o Outcome) {
	if m.attempt > 1 {
		m.outcomes++
		m.do(action{kind: actOutcome, outcome: o, since: now - m.firstLoss})
	}
}

func (m *machine) goneOutcome() Outcome {
	if m.committed {
		return OutcomeCanceled
	}
	return OutcomeOther
}

func (m *machine) do(a action) {
	m.buf[m.n] = a
	m.n++
}

// impossible notes an event that a correct shell never sends; it changes nothing
// else.
func (m *machine) impossible(ev event) {
	m.fault = fmt.Sprintf("event %q in state %q", ev.kind, m.state)
}

// check is the invariants that hold after every Step at time now.
func (m *machine) check(now time.Duration) error {
	switch {
	case m.fault != "":
		return fmt.Errorf("impossible: %s", m.fault)
	case m.state != ready && m.state != done && !m.started:
		return fmt.Errorf("%v without a start", m.state)
	case m.attempt > 1+m.maxRetries:
		return fmt.Errorf("attempt %d of at most %d", m.attempt, 1+m.maxRetries)
	case m.attempt > 1 && !m.original:
		return fmt.Errorf("attempt %d without a first disconnect", m.attempt)
	case m.flag && !m.original:
		return fmt.Errorf("flag without a first disconnect")
	case m.state == running && m.attempt > 1 && now >= m.cutoff:
		return fmt.Errorf("retry %d runs at %v, cutoff %v", m.attempt-1, now, m.cutoff)
	case m.state == backingOff && (m.committed || m.attempt >= m.limit || m.until >= m.cutoff):
		return fmt.Errorf("backing off after attempt %d of %d until %v, cutoff %v, committed %v",
			m.attempt, m.limit, m.until, m.cutoff, m.committed)
	case m.released != (m.state == done || m.committed):
		return fmt.Errorf("replay memory released: %v; state %v, committed: %v", m.released, m.state, m.committed)
	case m.state != done && m.outcomes != 0:
		return fmt.Errorf("%d outcomes of a call that is %v", m.outcomes, m.state)
	case m.state == done && m.outcomes != min(1, max(0, m.attempt-1)):
		return fmt.Errorf("%d outcomes after %d attempts", m.outcomes, m.attempt)
	}
	return nil
}
