package host

import (
	"flag"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
)

var modelLength = flag.Int("host.model", 4, "longest script of the claims model; 5 takes some seconds, 6 a minute")

// This is an exhaustive model of one call c, unmarked and with an identity, of a
// class whose effects are gated. c is plain, or wants its outcome kept (replay), or
// has an idempotency key. Its script is made of
//
//	W  write and commit         O  something leaves (a call through a stub)
//	M  change memory only       Y  give the object away for a while
//
// Its first attempt and a flagged retry arrive in any order, also after a crash;
// another call d, without an identity, either replies with what it found in
// memory or writes that down. The log is synced, the object evicted and the
// process killed at any moment. What decides is the code of claim.go and
// ledger.go; the model only does what they say.
//
// With kept outcomes a handler's end is a record with its outcome, or the outcome
// is not kept; c's reply and what duplicates get are outputs too; and somebody asks
// what became of c, at any moment and more than once.
//
// Promise: effects of two runs of c are never both to be seen, where an effect
// is a durable record that comes from a run, an output that has left, or a kept
// outcome that was told. When it was told that c was not received, no run of c had started,
// and none ever does. Under a key, only one run ever starts.

// omission is a rule of DESIGN 5 that is left out.
type omission uint8

const (
	nothing omission = iota
	ruleA
	ruleB
	ruleC
	ruleDOwn    // for outputs of c itself
	ruleDOthers // for outputs of d
	keyLate     // the handler starts before its key is durable
	replyEarly  // c's reply does not wait for the record of its outcome
	lastOutcome // a run that starts in spite of a kept outcome; here: outcomes are not looked at
	barEarly    // "not received" is told before it is durable
	barVolatile // and not found again after a crash
	barBlind    // and told whatever process the attempts went to
)

// mode is what c asks for.
type mode uint8

const (
	plain mode = iota
	replay
	key1 // an idempotency key
)

const modelRuns = 3

type modelRecord struct {
	run     uint8 // whose effect it holds; 0 for none
	id      bool  // holds c's identity, or the claim of its key
	outcome uint8 // the run whose outcome it holds; 0 for none
	bar     bool  // says that c was not received
}

type modelOutput struct{ after, run uint8 }

type modelHandler struct {
	run, pc uint8
	start   uint8 // starts when this record is durable
	started bool
}

// modelKept is c.kept of the claim.
type modelKept struct {
	there, settled, barred bool
	run                    uint8 // whose outcome it is; 0 for none
	pos                    uint8
}

// modelState is comparable.
type modelState struct {
	log        [6]modelRecord
	n, durable uint8
	outputs    [5]modelOutput
	waiting    uint8
	left       uint8 // runs of which an output has left, a bit each

	claimed, logged         bool // the claim in memory
	handlers                [2]modelHandler
	holder                  uint8 // 1 + the handler that holds the turn, 0 for none
	runs                    uint8
	memory                  uint8 // run that changed memory last
	arrived                 [2]bool
	crashed, evicted, other bool

	kept    modelKept
	joined  [2]bool        // attempts that wait for the outcome
	replies [2]modelOutput // of the runs that the attempts began
	told    uint8          // runs whose outcome was told, a bit each
	never   bool           // it was told that c was not received
	begun   uint8          // runs whose handlers started, a bit each
}

type model struct {
	t      *testing.T
	mode   mode
	omit   omission
	script string
	seen   map[modelState]bool
	trace  []string
	bad    string
}

func (m *model) boot(s *modelState) dispatch.Boot {
	b := testBoot
	if s.crashed {
		b.Boot[0] = 99
	}
	return b
}

var modelKey = claimKey{object: [32]byte{1}, id: limpet.Identity{CreatedMS: 1}}

func (m *model) key() claimKey {
	k := modelKey
	k.chosen = m.mode == key1
	return k
}

// table is the table of claims in this state.
func (m *model) table(s *modelState) *claims {
	t := newClaims(m.boot(s), 1<<20)
	if !s.claimed {
		return t
	}
	list := &t.claimList
	if m.mode == key1 {
		list = &t.chosen
	}
	c := t.add(0, 0, m.key(), list)
	c.logged = s.logged
	for _, h := range s.handlers {
		if h.run != 0 {
			c.running++
		}
	}
	if s.kept.there {
		c.kept = &kept{settled: s.kept.settled, barred: s.kept.barred}
		if s.kept.run != 0 {
			c.kept.data = []byte{s.kept.run}
		}
	}
	return t
}

// ledger is the incarnation's ledger in this state.
func (m *model) ledger(s *modelState) *ledger {
	l := &ledger{data: Pos{1, uint64(s.n)}}
	for _, h := range s.handlers {
		if h.run != 0 && m.mode != key1 {
			l.begin(&claim{key: modelKey, logged: s.logged})
		}
	}
	return l
}

// commit appends a record with the effect of run, as the ledger says.
func (m *model) commit(s *modelState, run uint8, own bool) bool {
	return m.record(s, modelRecord{run: run}, own)
}

// record appends a record, with c's identity if the ledger says so.
func (m *model) record(s *modelState, r modelRecord, own bool) bool {
	if int(s.n) == len(s.log) {
		return false
	}
	l := m.ledger(s)
	id := len(l.identities()) > 0
	if m.omit == ruleC && !own {
		id = false
	}
	r.id = r.id || id
	s.log[s.n] = r
	s.n++
	s.logged = s.logged || id
	return true
}

// output lets an output wait for the record that the ledger asks for.
func (m *model) output(s *modelState, run uint8, own bool) bool {
	if int(s.waiting) == len(s.outputs) {
		return false
	}
	omitted := m.omit == ruleDOwn && own || m.omit == ruleDOthers && !own
	if !omitted && m.ledger(s).owed(nil) && !m.commit(s, 0, true) {
		return false
	}
	s.outputs[s.waiting] = modelOutput{uint8(m.ledger(s).output(nil).Index), run}
	s.waiting++
	return true
}

func (s *modelState) visible() uint8 {
	v := s.left | s.told
	for _, r := range s.log[:s.durable] {
		if r.run != 0 {
			v |= 1 << r.run
		}
	}
	return v
}

func (m *model) step(s modelState, what string) {
	m.trace = append(m.trace, what)
	m.explore(s)
	m.trace = m.trace[:len(m.trace)-1]
}

func (m *model) explore(s modelState) {
	if m.bad != "" || m.seen[s] {
		return
	}
	m.seen[s] = true
	if bits.OnesCount8(s.visible()) > 1 || s.never && s.begun != 0 || m.mode == key1 && bits.OnesCount8(s.begun) > 1 {
		m.bad = m.script + ": " + strings.Join(m.trace, " ")
		return
	}
	if s.holder == 0 {
		for a := range s.arrived {
			if !s.arrived[a] && s.runs < modelRuns {
				m.arrive(s, a)
			}
		}
		if !s.other && s.memory != 0 {
			t := s
			t.other = true
			if m.output(&t, t.memory, false) {
				m.step(t, "d-replies")
			}
			t = s
			t.other = true
			if m.commit(&t, t.memory, false) {
				m.step(t, "d-writes")
			}
		}
	}
	for i := range s.handlers {
		if s.handlers[i].run != 0 {
			m.run(s, i)
		}
	}
	if s.durable < s.n {
		t := s
		t.durable++
		m.step(t, "sync")
	}
	for i := range int(s.waiting) {
		if o := s.outputs[i]; o.after <= s.durable {
			t := s
			t.left |= 1 << o.run
			copy(t.outputs[i:], t.outputs[i+1:])
			t.waiting--
			t.outputs[t.waiting] = modelOutput{}
			m.step(t, fmt.Sprint("leaves-", o.run))
		}
	}
	m.answer(s)
	if m.mode != plain {
		m.ask(s)
	}
	if s.runs > 0 && s.handlers == [2]modelHandler{} && !s.evicted {
		t := s
		t.evicted, t.memory = true, 0
		if m.omit == ruleA {
			t.claimed, t.logged = false, false
		}
		m.step(t, "evict")
	}
	if !s.crashed {
		t := modelState{
			log: s.log, n: s.durable, durable: s.durable, left: s.left, runs: s.runs, arrived: s.arrived, other: s.other, crashed: true,
			told: s.told, never: s.never, begun: s.begun,
		}
		for i := int(t.n); i < len(t.log); i++ {
			t.log[i] = modelRecord{}
		}
		// What the log holds is claimed before the first call.
		for _, r := range t.log[:t.n] {
			r.bar = r.bar && m.omit != barVolatile
			if r.id || r.outcome != 0 || r.bar {
				t.claimed = true
			}
			if r.outcome != 0 || r.bar || r.id && m.mode == key1 {
				t.kept.there, t.kept.settled = true, true
			}
			t.kept.barred = t.kept.barred || r.bar
			if t.kept.run == 0 {
				t.kept.run = r.outcome
			}
		}
		t.logged = t.claimed
		m.step(t, "CRASH")
	}
}

// arrive delivers attempt a (0 the first, 1 the flagged retry), which may also
// get lost: that is the same as never arriving.
func (m *model) arrive(s modelState, a int) {
	table := m.table(&s)
	flagged := a == 1
	c, r := table.take(0, arrival{key: m.key(), flagged: flagged, gated: true, replay: m.mode != plain, uncertain: []dispatch.Boot{testBoot}})
	if m.omit == lastOutcome && r == joins && c.kept.settled {
		r = taken
	}
	if m.omit == ruleB && r == received && !flagged {
		r = taken
	}
	t := s
	t.arrived[a] = true
	if r == joins {
		t.joined[a] = true
		m.step(t, fmt.Sprintf("attempt%d-joins", a+1))
		return
	}
	if r != taken {
		m.step(t, fmt.Sprintf("attempt%d-refused", a+1))
		return
	}
	t.claimed, t.evicted = true, false
	t.runs++
	t.handlers[a] = modelHandler{run: t.runs}
	t.holder = uint8(a + 1)
	if m.mode != plain {
		t.kept = modelKept{there: true}
	}
	if m.mode == key1 && !t.logged {
		// The claim's record; the object is free until it is durable.
		if !m.record(&t, modelRecord{id: true}, true) {
			return
		}
		t.logged, t.holder = true, 0
		if m.omit != keyLate {
			t.handlers[a].start = t.n
		}
	}
	m.step(t, fmt.Sprintf("attempt%d=run%d", a+1, t.runs))
}

func (m *model) run(s modelState, i int) {
	h := s.handlers[i]
	t := s
	if !h.started && h.start <= s.durable {
		t.handlers[i].started = true
		t.begun |= 1 << h.run
		m.step(t, fmt.Sprint("starts-", h.run))
		return
	}
	if !h.started {
		return
	}
	if s.holder != uint8(i+1) {
		if s.holder == 0 {
			t.holder = uint8(i + 1)
			m.step(t, fmt.Sprint("resume-", h.run))
		}
		return
	}
	if int(h.pc) == len(m.script) {
		t.handlers[i], t.holder = modelHandler{}, 0
		if m.mode == plain {
			m.step(t, fmt.Sprint("end-", h.run))
			return
		}
		if u := t; s.logged || m.recordIn(&u, &s, modelRecord{}) { // not kept
			u.kept.settled = true
			m.step(u, fmt.Sprint("end-unkept-", h.run))
		}
		// Kept: in a record, with c's identity if that is owed (rule C).
		if !m.recordIn(&t, &s, modelRecord{outcome: h.run}) {
			return
		}
		if t.kept.run == 0 || m.omit == lastOutcome {
			t.kept.run = h.run
		}
		t.kept.settled, t.kept.pos = true, t.n
		t.replies[i] = modelOutput{t.n, h.run}
		if m.omit == replyEarly {
			t.replies[i].after = 0
		}
		m.step(t, fmt.Sprint("end-", h.run))
		return
	}
	t.handlers[i].pc++
	op := m.script[h.pc]
	ok := true
	switch op {
	case 'W':
		ok = m.commit(&t, h.run, true)
	case 'O':
		ok = m.output(&t, h.run, true)
		t.holder = 0
	case 'M':
		t.memory = h.run
	case 'Y':
		t.holder = 0
	}
	if ok {
		m.step(t, fmt.Sprintf("%c%d", op, h.run))
	}
}

// recordIn appends to t what the ledger of s, before the handler returned, says.
func (m *model) recordIn(t, s *modelState, r modelRecord) bool {
	u := *s
	if !m.record(&u, r, true) {
		return false
	}
	t.log, t.n, t.logged = u.log, u.n, u.logged
	return true
}

// answer lets replies and outcomes leave.
func (m *model) answer(s modelState) {
	for i, r := range s.replies {
		if r.run != 0 && r.after <= s.durable {
			t := s
			t.replies[i] = modelOutput{}
			t.told |= 1 << r.run
			m.step(t, fmt.Sprint("reply-", r.run))
		}
	}
	for i := range s.joined {
		if !s.joined[i] || !s.kept.settled || s.kept.pos > s.durable {
			continue
		}
		t := s
		t.joined[i] = false
		if s.kept.run != 0 {
			t.told |= 1 << s.kept.run
		}
		m.step(t, fmt.Sprintf("attempt%d-gets-%d", i+1, s.kept.run))
	}
}

// ask plays a question for what became of c.
func (m *model) ask(s modelState) {
	table := m.table(&s)
	c, known, r := table.bar(0, inquiry{key: m.key(), here: !s.crashed || m.omit == barBlind})
	switch {
	case !known && r != taken:
		return // nobody can tell
	case !known: // barred from now on, told once that is durable
		t := s
		t.claimed, t.logged = true, true
		t.kept = modelKept{there: true, settled: true, barred: true}
		if !m.record(&t, modelRecord{id: m.mode != key1, bar: true}, true) {
			return
		}
		t.kept.pos = t.n
		m.step(t, "asked-bars")
		return
	}
	t := s
	kind, _, wait := c.known()
	switch {
	case wait:
	case kind == limpet.OutcomeNotReceived && (s.kept.pos <= s.durable || m.omit == barEarly):
		t.never = true
		m.step(t, "told-never")
	case kind == limpet.OutcomeResult && s.kept.pos <= s.durable:
		t.told |= 1 << s.kept.run
		m.step(t, fmt.Sprint("told-", s.kept.run))
	}
}

// check plays all scripts and returns the first violation.
func checkModel(t *testing.T, what mode, omit omission, length int) (bad string, states int) {
	for n := 1; n <= length; n++ {
		for x := range 1 << (2 * n) {
			script := make([]byte, n)
			for i := range script {
				script[i] = "WOMY"[x>>(2*i)&3]
			}
			m := &model{t: t, mode: what, omit: omit, script: string(script), seen: map[modelState]bool{}}
			m.explore(modelState{})
			states += len(m.seen)
			if m.bad != "" {
				return m.bad, states
			}
		}
	}
	return "", states
}

// SPEC F16: attempts in any order; F20, F21: restarts.
func TestClaimsModel(t *testing.T) {
	for what, name := range []string{plain: "plain", replay: "with its outcome kept", key1: "with a key"} {
		length := *modelLength
		if mode(what) != plain {
			length-- // there are more states
		}
		if bad, states := checkModel(t, mode(what), nothing, length); bad != "" {
			t.Errorf("%s: %s", name, bad)
		} else {
			t.Logf("%s: %d states", name, states)
		}
	}
	// The model is worth something only if it sees what each rule is for.
	for _, c := range []struct {
		what mode
		omit omission
		name string
	}{
		{plain, ruleA, "rule A"}, {plain, ruleB, "rule B"}, {plain, ruleC, "rule C"},
		{plain, ruleDOwn, "rule D (own outputs)"}, {plain, ruleDOthers, "rule D (others' outputs)"},
		{replay, ruleA, "rule A"}, {replay, ruleB, "rule B"}, {replay, ruleC, "rule C"},
		{replay, ruleDOwn, "rule D (own outputs)"}, {replay, ruleDOthers, "rule D (others' outputs)"},
		{replay, replyEarly, "a reply that waits for its outcome"},
		{replay, lastOutcome, "a look at the first outcome"},
		{replay, barEarly, "a durable bar"}, {replay, barBlind, "the process's name"},
		{key1, keyLate, "a claim that is durable first"}, {key1, lastOutcome, "a look at the first outcome"},
		{key1, barEarly, "a durable bar"}, {key1, barVolatile, "a bar that is found again"},
	} {
		bad, states := checkModel(t, c.what, c.omit, 3)
		if bad == "" {
			t.Errorf("mode %d: without %s nothing goes wrong in %d states", c.what, c.name, states)
		} else {
			t.Logf("mode %d: without %s: %s", c.what, c.name, bad)
		}
	}
}
