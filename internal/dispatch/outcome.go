package dispatch

import (
	"time"

	"github.com/limpet-dev/limpet"
)

// Outcome is how a call ended that was retried at least once (SPEC I3, I4).
type Outcome uint8

// The outcomes of SPEC I4.
const (
	OutcomeRecovered            Outcome = iota // a retry brought the result
	OutcomeAttemptsExhausted                   // the last attempt allowed was lost too
	OutcomeRetryBudgetExhausted                // the retry timeout was over, or the next backoff did not fit in it
	OutcomeUnableToRetry                       // a retry failed in a way that is not retried, or the call was committed
	OutcomeClaimRejected                       // the object had already received the call
	OutcomeCanceled                            // the caller ended the call
	OutcomeOther                               // a retry could not be started, or the caller's world ended
)

var outcomeNames = [...]string{
	"recovered", "attempts_exhausted", "retry_budget_exhausted", "unable_to_retry",
	"claim_rejected", "canceled", "other",
}

// String is the name of SPEC I4, such as "attempts_exhausted".
func (o Outcome) String() string { return outcomeNames[o] }

// AttemptEnd is how an attempt ended (SPEC I5, I6).
type AttemptEnd struct {
	// Replayable: the request can be sent again, as far as was known when the
	// attempt began.
	Replayable bool
	// Retryable: the stub allows retries.
	Retryable bool
	// Committed: the result was used as a pipeline before the attempt ended.
	Committed bool
	Result    AttemptResult
}

// AttemptResult is the end of an attempt, once it is decided whether another one
// follows.
type AttemptResult uint8

// The results of attempts.
const (
	AttemptSucceeded AttemptResult = iota // it brought the result, or a redirect that is followed
	AttemptFailed                         // it failed, and so did the call
	AttemptRetried                        // it failed, and another one was decided on
	AttemptCanceled                       // the caller, the cutoff or the engine's end ended it
)

var resultNames = [...]string{"succeeded", "failed", "retried", "canceled"}

// String is "succeeded", "failed", "retried" or "canceled".
func (r AttemptResult) String() string { return resultNames[r] }

// Observer hears what is worth counting. Its methods are called on callers'
// goroutines, must return fast, and are safe for concurrent use. The call gives
// the labels: Kind, Binding and Method; each redirect hop is a call of its own.
type Observer interface {
	// RetryStarted is called for each retry that starts (SPEC I2).
	RetryStarted(c *limpet.CallSpec)
	// AttemptEnded is called once for each attempt that could be lost (SPEC I5,
	// I6): not for one over a lossless transport that succeeds at once.
	AttemptEnded(c *limpet.CallSpec, a AttemptEnd)
	// Outcome is called once for each call that had a retry, with the time since
	// its first disconnect (SPEC I3).
	Outcome(c *limpet.CallSpec, o Outcome, since time.Duration)
	// ReplayRefused is called for each call that will not be retried because its
	// arguments found no room in the replay memory, or its body none in its buffer
	// (SPEC G21, I7).
	ReplayRefused(c *limpet.CallSpec)
}

type noObserver struct{}

func (noObserver) RetryStarted(*limpet.CallSpec)                    {}
func (noObserver) AttemptEnded(*limpet.CallSpec, AttemptEnd)        {}
func (noObserver) Outcome(*limpet.CallSpec, Outcome, time.Duration) {}
func (noObserver) ReplayRefused(*limpet.CallSpec)                   {}
