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

// Observer hears what is worth counting. Its methods are called on callers'
// goroutines, must return fast, and are safe for concurrent use. The call gives
// the labels: Kind, Binding and Method; each redirect hop is a call of its own.
type Observer interface {
	// RetryStarted is called for each retry that starts (SPEC I2).
	RetryStarted(c *limpet.CallSpec)
	// Outcome is called once for each call that had a retry, with the time since
	// its first disconnect (SPEC I3).
	Outcome(c *limpet.CallSpec, o Outcome, since time.Duration)
	// ReplayRefused is called for each call that will not be retried because its
	// arguments found no room in the replay memory (SPEC G21, I7).
	ReplayRefused(c *limpet.CallSpec)
}

type noObserver struct{}

func (noObserver) RetryStarted(*limpet.CallSpec)                    {}
func (noObserver) Outcome(*limpet.CallSpec, Outcome, time.Duration) {}
func (noObserver) ReplayRefused(*limpet.CallSpec)                   {}
