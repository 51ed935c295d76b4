package dispatch

import (
	"flag"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

var rewrite = flag.Bool("rewrite", false, "write what the machine does into the scripts of testdata; then read the diff")

// TestScripts plays testdata/*.txt: each line that does not begin with a tab is
// a comment, or an event with its time; the lines after it that begin with a tab
// are what the machine orders.
//
//	call [max-retries=N] [timeout=D] [not-replayable]
//	T start | succeeded | backoff over | cutoff | aborted | gone | pipelined | refused
//	T redirected [not-replayable]
//	T failed FAILURE [delay=D]
//	T start failed FAILURE [delay=D]
//
// FAILURE is other, received, uncertain, not-delivered or claimed; D the wait
// that the shell's draw comes to. Identities are called N1, N2, … in the order
// in which they are made.
func TestScripts(t *testing.T) {
	// timelines.txt: SPEC T1, T2, T3, T4, T5, T6, T7, T8, T9, T10, T11, T12
	// limits.txt: SPEC E5, E22, E23, E24, E26, E27, E28, E30, E31, E32, E33, G21 and C43
	// caller.txt: SPEC E34, E35, E53, E54, G22
	// redirects.txt: SPEC E42, E43, E44
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) != 4 {
		t.Fatalf("%d scripts: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(text), got); diff != "" {
				t.Errorf("%s (- want, + got; -rewrite takes it over):\n%s", file, diff)
			}
		})
	}
}

type player struct {
	m        machine
	names    int // identities made
	original string
}

func play(t *testing.T, script string) string {
	var out strings.Builder
	var p *player
	for i, line := range strings.Split(strings.TrimSuffix(script, "\n"), "\n") {
		if strings.HasPrefix(line, "\t") {
			continue
		}
		fmt.Fprintln(&out, line)
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "call":
			p = &player{m: parseCall(t, words[1:])}
		default:
			now, ev, err := p.parse(words)
			if err != nil {
				t.Fatalf("line %d: %q: %v", i+1, line, err)
			}
			for _, a := range p.m.Step(now, ev) {
				fmt.Fprintf(&out, "\t%s\n", p.tell(a, now, ev))
			}
			if err := p.m.check(now); err != nil {
				t.Errorf("line %d: %q: %v", i+1, line, err)
			}
		}
	}
	return out.String()
}

func parseCall(t *testing.T, words []string) machine {
	policy, replayable := limpet.DefaultRetryPolicy(), true
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		var err error
		switch k {
		case "max-retries":
			policy.MaxRetries, err = strconv.Atoi(v)
		case "timeout":
			policy.Timeout, err = time.ParseDuration(v)
		case "not-replayable":
			replayable = false
		default:
			err = fmt.Errorf("unknown word %q", w)
		}
		if err == nil {
			err = policy.Validate()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return newMachine(policy, replayable)
}

func (p *player) parse(words []string) (now time.Duration, ev event, err error) {
	if now, err = time.ParseDuration(words[0]); err != nil {
		return 0, ev, err
	}
	var name, failed string
	var delay time.Duration
	ev.replayable = true
	for _, w := range words[1:] {
		switch {
		case w == "not-replayable":
			ev.replayable = false
		case strings.HasPrefix(w, "delay="):
			if delay, err = time.ParseDuration(w[len("delay="):]); err != nil {
				return 0, ev, err
			}
		case strings.HasSuffix(name, "failed"):
			failed = strings.ReplaceAll(w, "-", " ")
		default:
			name = strings.TrimSpace(name + " " + w)
		}
	}
	if ev.kind, err = find[eventKind](eventNames[:], name); err != nil {
		return 0, ev, err
	}
	if failed != "" {
		if ev.failure, err = find[failure](failureNames[:], failed); err != nil {
			return 0, ev, err
		}
	}
	ev.draw, err = drawFor(max(1, p.m.attempt), delay)
	return now, ev, err
}

func find[T ~uint8](names []string, name string) (T, error) {
	for i, n := range names {
		if n == name {
			return T(i), nil
		}
	}
	return 0, fmt.Errorf("no %q in %q", name, names)
}

// drawFor is a draw that makes backoff(k, draw) be delay.
func drawFor(k int, delay time.Duration) (uint64, error) {
	w := backoffWindows[min(k, len(backoffWindows))-1]
	if delay < w.from || delay > w.to {
		return 0, fmt.Errorf("delay %v before retry %d is not within %v to %v", delay, k, w.from, w.to)
	}
	if delay == w.from {
		return 0, nil
	}
	draw, rest := bits.Div64(uint64(delay-w.from), 0, uint64(w.to-w.from)+1)
	if rest > 0 {
		draw++
	}
	return draw, nil
}

func (p *player) tell(a action, now time.Duration, ev event) string {
	failed := fmt.Sprintf("%v failure of %v", ev.failure, now)
	switch a.kind {
	case actAttempt:
		if a.fresh {
			p.names++
		}
		return fmt.Sprintf("attempt %d (N%d, flag %d)", a.n, p.names, map[bool]int{true: 1}[a.flag])
	case actCutoff:
		return fmt.Sprintf("cutoff at %v", a.at)
	case actBackoff:
		return fmt.Sprintf("back off until %v", a.at)
	case actCancel:
		return "cancel the attempt"
	case actKeepOriginal:
		p.original = failed
		return "keep the " + failed
	case actRelease:
		return "release the replay memory"
	case actRetryStarted:
		return "count a retry"
	case actOutcome:
		return fmt.Sprintf("outcome %v, %v after the first disconnect", a.outcome, a.since)
	case actFinish:
		switch a.verdict {
		case failureOfEvent:
			return "end with the " + failed
		case originalFailure:
			return "end with the " + p.original
		default:
			return "end with the " + a.verdict.String()
		}
	}
	return fmt.Sprintf("unknown action %d", a.kind)
}
