package dispatch

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
)

// The situations of the transition table: every state, with what makes a
// difference in it. The policy is two retries within 1 s, the start was at 0 s.
var situations = []struct {
	name   string
	events string // leads there, in the words of the scripts
}{
	{"ready", ""},
	{"ready, committed", "0s pipelined"},
	{"first", "0s start"},
	{"first, committed", "0s start; 0s pipelined"},
	{"only", "0s start; 0s refused"}, // no retry allowed
	{"backing off", "0s start; 100ms failed not-delivered delay=100ms"},
	{"backing off again", "0s start; 100ms failed uncertain delay=100ms; 200ms backoff over; 250ms failed uncertain delay=100ms"},
	{"retry", "0s start; 100ms failed not-delivered delay=100ms; 200ms backoff over"},
	{"flagged retry", "0s start; 100ms failed uncertain delay=100ms; 200ms backoff over"},
	{"committed retry", "0s start; 100ms failed uncertain delay=100ms; 200ms backoff over; 210ms pipelined"},
	{"refused retry", "0s start; 100ms failed uncertain delay=100ms; 200ms backoff over; 210ms refused"},
	{"last retry", "0s start; 100ms failed uncertain delay=0s; 100ms backoff over; 110ms failed uncertain delay=100ms; 210ms backoff over"},
	{"done", "0s start; 1ms succeeded"},
}

// The events of the table, at 300 ms unless the words say late (1 s, the cutoff).
var tableEvents = []string{
	"start", "succeeded", "redirected", "redirected not-replayable",
	"failed other", "failed received", "failed claimed",
	"failed uncertain delay=100ms", "failed not-delivered delay=100ms",
	"failed uncertain, late", "failed not-delivered, late", "succeeded, late",
	"start failed other", "start failed not-delivered delay=100ms", "start failed uncertain delay=100ms",
	"start failed received", "start failed claimed",
	"backoff over", "backoff over, late", "cutoff", "cutoff, late",
	"aborted", "gone", "pipelined", "pipelined, late", "refused", "refused, late",
}

func TestTransitions(t *testing.T) {
	// SPEC E5, E20, E21, E22, E23, E24, E25, E26, E27, E28, E30, E31, E32, E33, E34, E35
	// SPEC E42, E43, E44, E53, E54 and C43: the table is each rule in each state.
	want := map[string]string{} // "situation: event" to cell
	var situation string
	for _, line := range strings.Split(strings.Trim(transitions, "\n"), "\n") {
		if !strings.HasPrefix(line, "\t") {
			situation = line
			continue
		}
		name, cell, ok := strings.Cut(strings.TrimSpace(line), ": ")
		key := situation + ": " + name
		if _, twice := want[key]; !ok || twice {
			t.Fatalf("bad line or twice: %q in %q", line, situation)
		}
		want[key] = cell
	}
	var table strings.Builder
	for _, s := range situations {
		fmt.Fprintln(&table, s.name)
		for _, words := range tableEvents {
			got := transition(t, s.events, words)
			fmt.Fprintf(&table, "\t%s: %s\n", words, got)
			key := s.name + ": " + words
			if got != want[key] {
				t.Errorf("%s\n got %q\nwant %q", key, got, want[key])
			}
			delete(want, key)
		}
	}
	for key := range want {
		t.Errorf("no such cell: %s", key)
	}
	if t.Failed() {
		t.Logf("the machine's table:\n%s", &table)
	}
}

// transition brings a machine into a situation and plays one event.
func transition(t *testing.T, lead, words string) string {
	t.Helper()
	p := &player{m: newMachine(limpet.RetryPolicy{MaxRetries: 2, Timeout: time.Second}, true)}
	for _, step := range strings.Split(lead, ";") {
		if strings.TrimSpace(step) == "" {
			continue
		}
		now, ev, err := p.parse(strings.Fields(step))
		if err != nil {
			t.Fatal(err)
		}
		p.m.Step(now, ev)
		if err := p.m.check(now); err != nil {
			t.Fatalf("%q: %v", lead, err)
		}
	}
	at := "300ms "
	if w, late := strings.CutSuffix(words, ", late"); late {
		at, words = "1s ", w
	}
	now, ev, err := p.parse(strings.Fields(at + words))
	if err != nil {
		t.Fatal(err)
	}
	before := p.m
	acts := slices.Clone(p.m.Step(now, ev))
	if p.m.fault != "" {
		before.fault, before.n = p.m.fault, 0
		if p.m != before || len(acts) != 0 {
			t.Errorf("%q in %q: an impossible event changed something: %v", words, lead, acts)
		}
		return "!"
	}
	if err := p.m.check(now); err != nil {
		t.Errorf("%q in %q: %v", words, lead, err)
	}
	var cells []string
	for _, a := range acts {
		cells = append(cells, cell(a))
	}
	if cells == nil {
		cells = []string{"-"}
	}
	return strings.Join(cells, ", ") + " → " + p.m.state.String()
}

func cell(a action) string {
	switch a.kind {
	case actAttempt:
		switch {
		case a.fresh && a.flag:
			return "a fresh identity with the flag on"
		case a.fresh:
			return fmt.Sprintf("attempt %d (fresh)", a.n)
		case a.flag:
			return fmt.Sprintf("attempt %d (kept, flag)", a.n)
		}
		return fmt.Sprintf("attempt %d (kept)", a.n)
	case actCutoff:
		return fmt.Sprintf("cutoff %v", a.at)
	case actBackoff:
		return fmt.Sprintf("back off %v", a.at)
	case actCancel:
		return "cancel"
	case actKeepOriginal:
		return "keep"
	case actRelease:
		return "release"
	case actRetryStarted:
		return "count"
	case actOutcome:
		return fmt.Sprintf("%v %v", a.outcome, a.since)
	case actFinish:
		return "end with " + a.verdict.String()
	}
	return "unknown action"
}

func TestBackoffWindows(t *testing.T) {
	for k, window := range map[int]time.Duration{
		1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second, 4: 2 * time.Second, 10: 2 * time.Second,
	} {
		if got := backoff(k, 0); got != 0 {
			t.Errorf("backoff %d: shortest %v, want 0", k, got)
		}
		if got := backoff(k, math.MaxUint64); got != window {
			t.Errorf("backoff %d: longest %v, want %v", k, got, window)
		}
		if got, want := backoff(k, 1<<63), window/2; got != want {
			t.Errorf("backoff %d: middle %v, want %v", k, got, want)
		}
	}
}

func TestDrawFor(t *testing.T) { // the scripts' delays are what the machine waits
	for k := 1; k < 5; k++ {
		for _, d := range []time.Duration{0, 1, 2, 304 * time.Millisecond, 499999999, 500 * time.Millisecond} {
			draw, err := drawFor(k, d)
			if got := backoff(k, draw); err != nil || got != d {
				t.Errorf("backoff %d: got %v, want %v (%v)", k, got, d, err)
			}
		}
	}
}

// FuzzMachine plays any events at any times. What a machine has done so far is
// held against the rules, not against a second machine.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{2, 10, 0, 0, 3, 2, 100, 5, 0, 200, 1, 0, 10})
	f.Add([]byte{4, 100, 0, 0, 3, 3, 1, 5, 0, 1, 3, 2, 1, 5, 0, 1, 3, 4, 1})
	f.Add([]byte("00700$0\xbb100A0\xff")) // a retry past its cutoff is refused
	f.Add([]byte{10, 255, 0, 0, 2, 1, 1, 3, 3, 3, 5, 0, 3, 8, 0, 9})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) < 2 {
			return
		}
		policy := limpet.RetryPolicy{
			MaxRetries: int(script[0]) % (limpet.MaxMaxRetries + 1),
			Timeout:    limpet.MinRetryTimeout + time.Duration(script[1])*20*time.Millisecond,
		}
		replayable := script[0]&0x80 == 0
		m := newMachine(policy, replayable)
		h := history{policy: policy, limit: 1}
		if replayable {
			h.limit += policy.MaxRetries
		}
		var now time.Duration
		for s := script[2:]; len(s) >= 3; s = s[3:] {
			now += time.Duration(s[2]) * 3 * time.Millisecond
			ev := event{
				kind:       eventKind(s[0] % uint8(len(eventNames))),
				failure:    failure(s[1] % uint8(len(failureNames))),
				draw:       uint64(s[1]) << 56,
				replayable: s[1]&1 == 0,
			}
			before := m
			acts := m.Step(now, ev)
			if m.fault != "" {
				before.fault, before.n = m.fault, 0
				if m != before || len(acts) != 0 {
					t.Fatalf("impossible event %v changed %+v to %+v", ev, before, m)
				}
				m.fault = ""
				continue
			}
			if err := m.check(now); err != nil {
				t.Fatalf("%v at %v: %v", ev, now, err)
			}
			if err := h.see(now, ev, acts); err != nil {
				t.Fatalf("%v at %v: %v; machine %+v", ev, now, err, m)
			}
		}
	})
}

// history is what can be seen of a machine from outside, and the rules over it.
type history struct {
	policy   limpet.RetryPolicy
	limit    int
	start    time.Duration
	started  bool
	attempts int
	flag     bool
	inflight bool
	loss     failure // of the last failed attempt
	original bool
	retries  int
	outcomes int
	released int
	finished bool
}

func (h *history) see(now time.Duration, ev event, acts []action) error {
	if h.finished && len(acts) > 0 {
		return fmt.Errorf("%d actions after the end", len(acts))
	}
	switch ev.kind {
	case evStart:
		h.start, h.started = now, true
	case evFailed, evStartFailed, evSucceeded:
		h.inflight = false
		h.loss = ev.failure
		if ev.kind == evStartFailed && ev.failure == failUncertain {
			h.loss = failNotDelivered
		}
	case evRedirected:
		if h.finished {
			break
		}
		for _, a := range acts { // outcomes of the hop that ends
			if a.kind == actOutcome {
				h.outcomes++
			}
		}
		if want := min(1, h.retries); h.outcomes != want {
			return fmt.Errorf("hop ended with %d outcomes after %d retries", h.outcomes, h.retries)
		}
		h.attempts, h.retries, h.outcomes, h.flag, h.original, h.inflight = 0, 0, 0, false, false, false
		h.limit = 1
		if ev.replayable {
			h.limit += h.policy.MaxRetries
		}
		acts = acts[len(acts)-1:]
	case evRefused:
		h.limit = max(1, h.attempts)
	}
	cutoff := h.start + h.policy.Timeout
	for _, a := range acts {
		switch a.kind {
		case actAttempt:
			if h.inflight {
				return fmt.Errorf("two attempts at once")
			}
			h.inflight = true
			h.attempts++
			switch {
			case a.n != h.attempts || a.n > h.limit:
				return fmt.Errorf("attempt %d after %d of at most %d", a.n, h.attempts-1, h.limit)
			case a.n > 1 && now >= cutoff:
				return fmt.Errorf("retry started at %v, cutoff %v", now, cutoff)
			case a.n > 1 && a.fresh && (h.flag || h.loss != failNotDelivered):
				return fmt.Errorf("fresh identity after %v, flag %v", h.loss, h.flag)
			case a.n > 1 && h.flag && !a.flag:
				return fmt.Errorf("the flag went off")
			case a.n > 1 && !a.fresh && !a.flag:
				return fmt.Errorf("identity kept without the flag")
			case a.n == 1 && (!a.fresh || a.flag):
				return fmt.Errorf("first attempt %+v", a)
			case a.n > 1 && h.retries != a.n-1:
				return fmt.Errorf("%d retries counted before attempt %d", h.retries, a.n)
			}
			h.flag = a.flag
		case actCancel:
			if h.attempts < 2 && ev.kind != evAborted && ev.kind != evGone {
				return fmt.Errorf("first attempt cancelled by %v", ev.kind)
			}
			h.inflight = false
		case actKeepOriginal:
			if h.original {
				return fmt.Errorf("a second original")
			}
			h.original = true
		case actRelease:
			h.released++
		case actRetryStarted:
			h.retries++
		case actOutcome:
			h.outcomes++
		case actFinish:
			h.finished = true
			if want := min(1, h.retries); h.outcomes != want || h.released != 1 || h.inflight {
				return fmt.Errorf("end with %d outcomes after %d retries, %d releases, in flight %v",
					h.outcomes, h.retries, h.released, h.inflight)
			}
			if err := h.ending(ev, a.verdict); err != nil {
				return err
			}
		}
	}
	if h.inflight && h.attempts > 1 && !h.finished && now >= cutoff {
		return fmt.Errorf("a retry runs at %v, cutoff %v", now, cutoff)
	}
	if h.started && !h.finished && !h.inflight && len(acts) == 0 && (ev.kind == evFailed || ev.kind == evSucceeded) {
		return fmt.Errorf("nothing follows %v", ev.kind)
	}
	return nil
}

// ending is the table at the end of SPEC E.4.
func (h *history) ending(ev event, v verdict) error {
	want := originalFailure
	switch ev.kind {
	case evSucceeded:
		want = resultOfEvent
	case evAborted:
		want = abortReason
	case evGone:
		want = callerGone
	case evFailed:
		switch {
		case ev.failure == failOther || ev.failure == failReceived:
			want = failureOfEvent
		case ev.failure == failClaimed && !h.original:
			want = claimBug
		case v == failureOfEvent && h.released == 1 && ev.failure.lost():
			return nil // committed: the attempt decides (E53)
		}
	case evStartFailed:
		if !ev.failure.lost() || h.attempts == 1 {
			want = failureOfEvent
		} else if v == failureOfEvent {
			return nil // committed, as above
		}
	}
	if v != want {
		return fmt.Errorf("ends with %v, want %v", v, want)
	}
	return nil
}
