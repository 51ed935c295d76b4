package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/bench/measure"
)

// This file is what people read.

// snapshot is a run at one moment.
type snapshot struct {
	sums                              sums
	tally, beyond                     tally
	round, life                       int
	histories, unknown, judged, wrong int
	took                              time.Duration
}

func (r *run) snapshot() snapshot {
	r.mu.Lock()
	s := snapshot{
		tally: r.tally, beyond: r.tallyBeyond, round: r.round, life: r.life, histories: r.histories, unknown: r.unknown,
		judged: r.judged, wrong: len(r.violations), took: time.Since(r.begun),
	}
	r.mu.Unlock()
	r.callers.mu.Lock()
	defer r.callers.mu.Unlock()
	s.sums = r.callers.sum
	s.sums.Asked = maps.Clone(s.sums.Asked)
	s.sums.Ended = map[string]*endings{}
	for k, v := range r.callers.sum.Ended {
		e := *v
		s.sums.Ended[k] = &e
	}
	return s
}

func whole(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// headline is the state in one line.
func (s *snapshot) headline() string {
	strikes := int64(0)
	for f := requestLost; f < faults; f++ {
		strikes += s.tally.Struck[f]
	}
	return fmt.Sprintf("%6.1f s  round %d, node process %d  %s calls (%s/s)  %s struck  %s retries: %s ran, %s refused  %s judged, %d violations",
		s.took.Seconds(), s.round, s.life, whole(s.sums.Calls), whole(int64(float64(s.sums.Calls)/s.took.Seconds())), whole(strikes),
		whole(s.tally.Retries.Sent), whole(s.tally.Retries.Accepted), whole(s.tally.Retries.Refused), whole(int64(s.judged)), s.wrong)
}

// tables writes all there is.
func (s *snapshot) tables(w io.Writer) {
	fmt.Fprintln(w, s.headline())
	fmt.Fprintln(w)
	t := measure.Table{Head: []string{"method", "answered", "its own error", "not delivered", "uncertain", "received", "canceled"}}
	for _, name := range slices.SortedFunc(maps.Keys(s.sums.Ended), func(a, b string) int { return cmp.Compare(order(a), order(b)) }) {
		e := s.sums.Ended[name]
		t.Row(name, whole(e.Answered), whole(e.Failed), whole(e.None), whole(e.Uncertain), whole(e.Received), whole(e.Canceled))
	}
	t.Write(w)
	t = measure.Table{Head: []string{"fault", "times", "calls struck", "calls cut along"}}
	for f := requestLost; f < faults; f++ {
		t.Row(f.String(), whole(s.tally.Events[f]), whole(s.tally.Struck[f]), whole(s.tally.Along[f]))
	}
	t.Write(w)
	t = measure.Table{Head: []string{"retries that might be a second run", "sent", "ran", "with a result", "refused"}}
	for _, row := range []struct {
		name string
		r    retries
	}{{"all", s.tally.Retries}, {"over a restart of the node", s.tally.OverRestart}, {"from node to witness", s.beyond.Retries}} {
		t.Row(row.name, whole(row.r.Sent), whole(row.r.Accepted), whole(row.r.Answered), whole(row.r.Refused))
	}
	t.Write(w)
	var asked []string
	for k := range limpet.OutcomeNotKept + 1 {
		name := k.String()
		if k == 0 {
			name = "nobody can tell"
		}
		asked = append(asked, fmt.Sprintf("%s %s", name, whole(s.sums.Asked[k])))
	}
	fmt.Fprintf(w, "%s calls had a key, and %s further tries were made with it. What became of lost calls was asked: %s.\n",
		whole(s.sums.Keyed), whole(s.sums.Again), strings.Join(asked, ", "))
	fmt.Fprintf(w, "%s attempts of %s calls; the slowest call took %v. %d histories were checked, %d of them undecided.\n",
		whole(s.tally.Attempts), whole(s.sums.Calls), s.sums.Slowest.Round(time.Millisecond), s.histories, s.unknown)
}

// order is a method's place in the table.
func order(name string) int {
	for i, m := range slices.Concat(methods, []*method{add, put, getCounter}) {
		if m.name == name {
			return i
		}
	}
	return len(methods) + 10
}

// nothing says what the run did not prove, if so.
func (s *snapshot) nothing() (why []string) {
	for f := requestLost; f < faults; f++ {
		if n := s.tally.Struck[f]; n < leastStrikes {
			why = append(why, fmt.Sprintf("%v struck %d calls; it must strike %d", f, n, leastStrikes))
		}
	}
	for _, x := range []struct {
		n    int64
		what string
	}{
		{s.tally.Retries.Accepted, "no retry was accepted"},
		{s.tally.Retries.Refused, "no retry was refused"},
		{s.tally.OverRestart.Answered, "no retry recovered its call over a restart"},
		{s.tally.OverRestart.Refused, "no retry was refused after a restart"},
		{int64(s.histories - s.unknown), "no history was decided on"},
	} {
		if x.n == 0 {
			why = append(why, x.what)
		}
	}
	return why
}

// screen redraws a text in place.
type screen struct {
	w     io.Writer
	lines int
}

func (s *screen) draw(text string) {
	if s.lines > 0 {
		fmt.Fprintf(s.w, "\x1b[%dA\x1b[J", s.lines)
	}
	fmt.Fprint(s.w, text)
	s.lines = strings.Count(text, "\n")
}
