package dispatch

// Outcome is how a call ended that was retried at least once (SPEC I3, I4).
type Outcome uint8

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
