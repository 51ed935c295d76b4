package dispatch

import (
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
)

// Counters counts what an Engine tells its Observer, as limpet.Metric lists it.
// The zero value is ready for use, by one engine or several.
type Counters struct {
	mu       sync.Mutex
	attempts map[attemptLabels]uint64
	retries  map[labels]uint64
	outcomes map[outcomeLabels]ended
}

var _ Observer = (*Counters)(nil)

// labels are bounded in number: see labelsOf.
type labels struct{ kind, binding, method string }

type attemptLabels struct {
	labels
	end AttemptEnd
}

type outcomeLabels struct {
	labels
	outcome Outcome
}

type ended struct {
	calls uint64
	since time.Duration
}

// labelsOf names the method only if the class has it: callers from outside may
// ask for any.
func labelsOf(c *limpet.CallSpec) labels {
	l := labels{kind: c.Kind.String()}
	if c.Binding != nil {
		l.binding = c.Binding.Name
	}
	switch {
	case c.Kind == limpet.KindFetch:
		l.method = "fetch"
	case c.Binding != nil && c.Binding.Class != nil && c.Binding.Class.Method(c.Method) != nil:
		l.method = c.Method
	}
	return l
}

func (l labels) metric(name string, v float64) limpet.Metric {
	return limpet.Metric{Name: name, Value: v, Labels: map[string]string{"type": l.kind, "binding": l.binding, "method": l.method}}
}

// RetryStarted counts a retry.
func (k *Counters) RetryStarted(c *limpet.CallSpec) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.retries == nil {
		k.retries = map[labels]uint64{}
	}
	k.retries[labelsOf(c)]++
}

// AttemptEnded counts an attempt.
func (k *Counters) AttemptEnded(c *limpet.CallSpec, a AttemptEnd) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.attempts == nil {
		k.attempts = map[attemptLabels]uint64{}
	}
	k.attempts[attemptLabels{labelsOf(c), a}]++
}

// Outcome counts how a retried call ended.
func (k *Counters) Outcome(c *limpet.CallSpec, o Outcome, since time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.outcomes == nil {
		k.outcomes = map[outcomeLabels]ended{}
	}
	l := outcomeLabels{labelsOf(c), o}
	e := k.outcomes[l]
	k.outcomes[l] = ended{e.calls + 1, e.since + since}
}

// ReplayRefused does nothing: the engine counts these itself.
func (k *Counters) ReplayRefused(*limpet.CallSpec) {}

// Metrics are those of callers, with the replay memory of the engine e, in no
// particular order.
func (k *Counters) Metrics(e *Engine) []limpet.Metric {
	r := e.ReplayMemory()
	out := []limpet.Metric{
		{Name: "limpet_replay_memory_bytes", Value: float64(r.Used)},
		{Name: "limpet_replay_memory_limit_bytes", Value: float64(r.Limit)},
		{Name: "limpet_replay_memory_call_limit_bytes", Value: float64(r.PerCall)},
		{Name: "limpet_replay_refused_total", Value: float64(r.Refused)},
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for l, n := range maps.All(k.attempts) {
		m := l.metric("limpet_call_attempts_total", float64(n))
		m.Labels["replayable"], m.Labels["retryable"] = strconv.FormatBool(l.end.Replayable), strconv.FormatBool(l.end.Retryable)
		m.Labels["committed"], m.Labels["result"] = strconv.FormatBool(l.end.Committed), l.end.Result.String()
		out = append(out, m)
	}
	for l, n := range maps.All(k.retries) {
		out = append(out, l.metric("limpet_call_retries_total", float64(n)))
	}
	for l, n := range maps.All(k.outcomes) {
		calls := l.metric("limpet_call_retry_outcomes_total", float64(n.calls))
		since := l.metric("limpet_call_retry_seconds_total", n.since.Seconds())
		calls.Labels["outcome"], since.Labels["outcome"] = l.outcome.String(), l.outcome.String()
		out = append(out, calls, since)
	}
	return out
}
