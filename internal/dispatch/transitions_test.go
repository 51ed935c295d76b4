package dispatch

// transitions is the whole table of the machine: each situation of
// machine_test.go with each event. A line is an event, what is ordered, and the
// state after it; "!" is an event that no correct shell sends in that state, "-"
// one that orders nothing.
const transitions = `
ready
	start: attempt 1 (fresh) → running
	succeeded: !
	redirected: !
	redirected not-replayable: !
	failed other: !
	failed received: !
	failed claimed: !
	failed uncertain delay=100ms: !
	failed not-delivered delay=100ms: !
	failed uncertain, late: !
	failed not-delivered, late: !
	succeeded, late: !
	start failed other: !
	start failed not-delivered delay=100ms: !
	start failed uncertain delay=100ms: !
	start failed received: !
	start failed claimed: !
	backoff over: !
	backoff over, late: !
	cutoff: !
	cutoff, late: !
	aborted: release, end with abort reason → done
	gone: release, end with caller gone → done
	pipelined: release → ready
	pipelined, late: release → ready
	refused: - → ready
	refused, late: - → ready
ready, committed
	start: attempt 1 (fresh) → running
	succeeded: !
	redirected: !
	redirected not-replayable: !
	failed other: !
	failed received: !
	failed claimed: !
	failed uncertain delay=100ms: !
	failed not-delivered delay=100ms: !
	failed uncertain, late: !
	failed not-delivered, late: !
	succeeded, late: !
	start failed other: !
	start failed not-delivered delay=100ms: !
	start failed uncertain delay=100ms: !
	start failed received: !
	start failed claimed: !
	backoff over: !
	backoff over, late: !
	cutoff: !
	cutoff, late: !
	aborted: end with abort reason → done
	gone: end with caller gone → done
	pipelined: - → ready
	pipelined, late: - → ready
	refused: - → ready
	refused, late: - → ready
first
	start: !
	succeeded: release, end with result → done
	redirected: attempt 1 (fresh) → running
	redirected not-replayable: attempt 1 (fresh) → running
	failed other: release, end with this failure → done
	failed received: release, end with this failure → done
	failed claimed: release, end with claim bug → done
	failed uncertain delay=100ms: keep, back off 400ms → backing off
	failed not-delivered delay=100ms: keep, back off 400ms → backing off
	failed uncertain, late: keep, release, end with original failure → done
	failed not-delivered, late: keep, release, end with original failure → done
	succeeded, late: release, end with result → done
	start failed other: release, end with this failure → done
	start failed not-delivered delay=100ms: release, end with this failure → done
	start failed uncertain delay=100ms: release, end with this failure → done
	start failed received: release, end with this failure → done
	start failed claimed: release, end with this failure → done
	backoff over: !
	backoff over, late: !
	cutoff: - → running
	cutoff, late: - → running
	aborted: cancel, release, end with abort reason → done
	gone: cancel, release, end with caller gone → done
	pipelined: release → running
	pipelined, late: release → running
	refused: - → running
	refused, late: - → running
first, committed
	start: !
	succeeded: end with result → done
	redirected: attempt 1 (fresh) → running
	redirected not-replayable: attempt 1 (fresh) → running
	failed other: end with this failure → done
	failed received: end with this failure → done
	failed claimed: end with claim bug → done
	failed uncertain delay=100ms: end with this failure → done
	failed not-delivered delay=100ms: end with this failure → done
	failed uncertain, late: end with this failure → done
	failed not-delivered, late: end with this failure → done
	succeeded, late: end with result → done
	start failed other: end with this failure → done
	start failed not-delivered delay=100ms: end with this failure → done
	start failed uncertain delay=100ms: end with this failure → done
	start failed received: end with this failure → done
	start failed claimed: end with this failure → done
	backoff over: !
	backoff over, late: !
	cutoff: - → running
	cutoff, late: - → running
	aborted: cancel, end with abort reason → done
	gone: cancel, end with caller gone → done
	pipelined: - → running
	pipelined, late: - → running
	refused: - → running
	refused, late: - → running
only
	start: !
	succeeded: release, end with result → done
	redirected: attempt 1 (fresh) → running
	redirected not-replayable: attempt 1 (fresh) → running
	failed other: release, end with this failure → done
	failed received: release, end with this failure → done
	failed claimed: release, end with claim bug → done
	failed uncertain delay=100ms: keep, release, end with original failure → done
	failed not-delivered delay=100ms: keep, release, end with original failure → done
	failed uncertain, late: keep, release, end with original failure → done
	failed not-delivered, late: keep, release, end with original failure → done
	succeeded, late: release, end with result → done
	start failed other: release, end with this failure → done
	start failed not-delivered delay=100ms: release, end with this failure → done
	start failed uncertain delay=100ms: release, end with this failure → done
	start failed received: release, end with this failure → done
	start failed claimed: release, end with this failure → done
	backoff over: !
	backoff over, late: !
	cutoff: - → running
	cutoff, late: - → running
	aborted: cancel, release, end with abort reason → done
	gone: cancel, release, end with caller gone → done
	pipelined: release → running
	pipelined, late: release → running
	refused: - → running
	refused, late: - → running
backing off
	start: !
	succeeded: !
	redirected: !
	redirected not-replayable: !
	failed other: !
	failed received: !
	failed claimed: !
	failed uncertain delay=100ms: !
	failed not-delivered delay=100ms: !
	failed uncertain, late: !
	failed not-delivered, late: !
	succeeded, late: !
	start failed other: !
	start failed not-delivered delay=100ms: !
	start failed uncertain delay=100ms: !
	start failed received: !
	start failed claimed: !
	backoff over: count, cutoff 1s, attempt 2 (fresh) → running
	backoff over, late: release, end with original failure → done
	cutoff: release, end with original failure → done
	cutoff, late: release, end with original failure → done
	aborted: release, end with abort reason → done
	gone: release, end with caller gone → done
	pipelined: release, end with original failure → done
	pipelined, late: release, end with original failure → done
	refused: !
	refused, late: !
backing off again
	start: !
	succeeded: !
	redirected: !
	redirected not-replayable: !
	failed other: !
	failed received: !
	failed claimed: !
	failed uncertain delay=100ms: !
	failed not-delivered delay=100ms: !
	failed uncertain, late: !
	failed not-delivered, late: !
	succeeded, late: !
	start failed other: !
	start failed not-delivered delay=100ms: !
	start failed uncertain delay=100ms: !
	start failed received: !
	start failed claimed: !
	backoff over: count, cutoff 1s, attempt 3 (kept, flag) → running
	backoff over, late: release, retry_budget_exhausted 900ms, end with original failure → done
	cutoff: release, retry_budget_exhausted 200ms, end with original failure → done
	cutoff, late: release, retry_budget_exhausted 900ms, end with original failure → done
	aborted: release, canceled 200ms, end with abort reason → done
	gone: release, other 200ms, end with caller gone → done
	pipelined: release, unable_to_retry 200ms, end with original failure → done
	pipelined, late: release, unable_to_retry 900ms, end with original failure → done
	refused: !
	refused, late: !
retry
	start: !
	succeeded: release, recovered 200ms, end with result → done
	redirected: recovered 200ms, attempt 1 (fresh) → running
	redirected not-replayable: recovered 200ms, attempt 1 (fresh) → running
	failed other: release, unable_to_retry 200ms, end with this failure → done
	failed received: release, unable_to_retry 200ms, end with this failure → done
	failed claimed: release, claim_rejected 200ms, end with original failure → done
	failed uncertain delay=100ms: back off 400ms → backing off
	failed not-delivered delay=100ms: back off 400ms → backing off
	failed uncertain, late: release, retry_budget_exhausted 900ms, end with original failure → done
	failed not-delivered, late: release, retry_budget_exhausted 900ms, end with original failure → done
	succeeded, late: release, recovered 900ms, end with result → done
	start failed other: release, other 200ms, end with this failure → done
	start failed not-delivered delay=100ms: back off 400ms → backing off
	start failed uncertain delay=100ms: back off 400ms → backing off
	start failed received: release, other 200ms, end with this failure → done
	start failed claimed: release, other 200ms, end with this failure → done
	backoff over: !
	backoff over, late: !
	cutoff: cutoff 1s → running
	cutoff, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
	aborted: cancel, release, canceled 200ms, end with abort reason → done
	gone: cancel, release, other 200ms, end with caller gone → done
	pipelined: release → running
	pipelined, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
	refused: - → running
	refused, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
flagged retry
	start: !
	succeeded: release, recovered 200ms, end with result → done
	redirected: recovered 200ms, attempt 1 (fresh) → running
	redirected not-replayable: recovered 200ms, attempt 1 (fresh) → running
	failed other: release, unable_to_retry 200ms, end with this failure → done
	failed received: release, unable_to_retry 200ms, end with this failure → done
	failed claimed: release, claim_rejected 200ms, end with original failure → done
	failed uncertain delay=100ms: back off 400ms → backing off
	failed not-delivered delay=100ms: back off 400ms → backing off
	failed uncertain, late: release, retry_budget_exhausted 900ms, end with original failure → done
	failed not-delivered, late: release, retry_budget_exhausted 900ms, end with original failure → done
	succeeded, late: release, recovered 900ms, end with result → done
	start failed other: release, other 200ms, end with this failure → done
	start failed not-delivered delay=100ms: back off 400ms → backing off
	start failed uncertain delay=100ms: back off 400ms → backing off
	start failed received: release, other 200ms, end with this failure → done
	start failed claimed: release, other 200ms, end with this failure → done
	backoff over: !
	backoff over, late: !
	cutoff: cutoff 1s → running
	cutoff, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
	aborted: cancel, release, canceled 200ms, end with abort reason → done
	gone: cancel, release, other 200ms, end with caller gone → done
	pipelined: release → running
	pipelined, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
	refused: - → running
	refused, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
committed retry
	start: !
	succeeded: recovered 200ms, end with result → done
	redirected: recovered 200ms, attempt 1 (fresh) → running
	redirected not-replayable: recovered 200ms, attempt 1 (fresh) → running
	failed other: unable_to_retry 200ms, end with this failure → done
	failed received: unable_to_retry 200ms, end with this failure → done
	failed claimed: claim_rejected 200ms, end with original failure → done
	failed uncertain delay=100ms: unable_to_retry 200ms, end with this failure → done
	failed not-delivered delay=100ms: unable_to_retry 200ms, end with this failure → done
	failed uncertain, late: unable_to_retry 900ms, end with this failure → done
	failed not-delivered, late: unable_to_retry 900ms, end with this failure → done
	succeeded, late: recovered 900ms, end with result → done
	start failed other: other 200ms, end with this failure → done
	start failed not-delivered delay=100ms: unable_to_retry 200ms, end with this failure → done
	start failed uncertain delay=100ms: unable_to_retry 200ms, end with this failure → done
	start failed received: other 200ms, end with this failure → done
	start failed claimed: other 200ms, end with this failure → done
	backoff over: !
	backoff over, late: !
	cutoff: cutoff 1s → running
	cutoff, late: cancel, retry_budget_exhausted 900ms, end with original failure → done
	aborted: cancel, canceled 200ms, end with abort reason → done
	gone: cancel, canceled 200ms, end with caller gone → done
	pipelined: - → running
	pipelined, late: cancel, retry_budget_exhausted 900ms, end with original failure → done
	refused: - → running
	refused, late: cancel, retry_budget_exhausted 900ms, end with original failure → done
refused retry
	start: !
	succeeded: release, recovered 200ms, end with result → done
	redirected: recovered 200ms, attempt 1 (fresh) → running
	redirected not-replayable: recovered 200ms, attempt 1 (fresh) → running
	failed other: release, unable_to_retry 200ms, end with this failure → done
	failed received: release, unable_to_retry 200ms, end with this failure → done
	failed claimed: release, claim_rejected 200ms, end with original failure → done
	failed uncertain delay=100ms: release, unable_to_retry 200ms, end with original failure → done
	failed not-delivered delay=100ms: release, unable_to_retry 200ms, end with original failure → done
	failed uncertain, late: release, unable_to_retry 900ms, end with original failure → done
	failed not-delivered, late: release, unable_to_retry 900ms, end with original failure → done
	succeeded, late: release, recovered 900ms, end with result → done
	start failed other: release, other 200ms, end with this failure → done
	start failed not-delivered delay=100ms: release, unable_to_retry 200ms, end with original failure → done
	start failed uncertain delay=100ms: release, unable_to_retry 200ms, end with original failure → done
	start failed received: release, other 200ms, end with this failure → done
	start failed claimed: release, other 200ms, end with this failure → done
	backoff over: !
	backoff over, late: !
	cutoff: cutoff 1s → running
	cutoff, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
	aborted: cancel, release, canceled 200ms, end with abort reason → done
	gone: cancel, release, other 200ms, end with caller gone → done
	pipelined: release → running
	pipelined, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
	refused: - → running
	refused, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
last retry
	start: !
	succeeded: release, recovered 200ms, end with result → done
	redirected: recovered 200ms, attempt 1 (fresh) → running
	redirected not-replayable: recovered 200ms, attempt 1 (fresh) → running
	failed other: release, unable_to_retry 200ms, end with this failure → done
	failed received: release, unable_to_retry 200ms, end with this failure → done
	failed claimed: release, claim_rejected 200ms, end with original failure → done
	failed uncertain delay=100ms: release, attempts_exhausted 200ms, end with original failure → done
	failed not-delivered delay=100ms: release, attempts_exhausted 200ms, end with original failure → done
	failed uncertain, late: release, attempts_exhausted 900ms, end with original failure → done
	failed not-delivered, late: release, attempts_exhausted 900ms, end with original failure → done
	succeeded, late: release, recovered 900ms, end with result → done
	start failed other: release, other 200ms, end with this failure → done
	start failed not-delivered delay=100ms: release, attempts_exhausted 200ms, end with original failure → done
	start failed uncertain delay=100ms: release, attempts_exhausted 200ms, end with original failure → done
	start failed received: release, other 200ms, end with this failure → done
	start failed claimed: release, other 200ms, end with this failure → done
	backoff over: !
	backoff over, late: !
	cutoff: cutoff 1s → running
	cutoff, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
	aborted: cancel, release, canceled 200ms, end with abort reason → done
	gone: cancel, release, other 200ms, end with caller gone → done
	pipelined: release → running
	pipelined, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
	refused: - → running
	refused, late: cancel, release, retry_budget_exhausted 900ms, end with original failure → done
done
	start: !
	succeeded: - → done
	redirected: - → done
	redirected not-replayable: - → done
	failed other: - → done
	failed received: - → done
	failed claimed: - → done
	failed uncertain delay=100ms: - → done
	failed not-delivered delay=100ms: - → done
	failed uncertain, late: - → done
	failed not-delivered, late: - → done
	succeeded, late: - → done
	start failed other: - → done
	start failed not-delivered delay=100ms: - → done
	start failed uncertain delay=100ms: - → done
	start failed received: - → done
	start failed claimed: - → done
	backoff over: - → done
	backoff over, late: - → done
	cutoff: - → done
	cutoff, late: - → done
	aborted: - → done
	gone: - → done
	pipelined: - → done
	pipelined, late: - → done
	refused: - → done
	refused, late: - → done
`
