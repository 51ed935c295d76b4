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
// class whose effects are gated. Its script is made of
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
// Promise: effects of two runs of c are never both to be seen, where an effect
// is a durable record that comes from a run, or an output that has left.

// omission is a rule of DESIGN 5 that is left out.
type omission uint8

const (
	nothing omission = iota
	ruleA
	ruleB
	ruleC
	ruleDOwn    // for outputs of c itself
	ruleDOthers // for outputs of d
)

const modelRuns = 3

type modelRecord struct {
	run uint8 // whose effect it holds; 0 for none
	id  bool  // holds c's identity
}

type modelOutput struct{ after, run uint8 }

type modelHandler struct{ run, pc uint8 }

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
}

type model struct {
	t      *testing.T
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

// ledger is the incarnation's ledger in this state.
func (m *model) ledger(s *modelState) *ledger {
	l := &ledger{data: Pos{1, uint64(s.n)}}
	for _, h := range s.handlers {
		if h.run != 0 {
			l.begin(&claim{key: modelKey, logged: s.logged})
		}
	}
	return l
}

// commit appends a record with the effect of run, as the ledger says.
func (m *model) commit(s *modelState, run uint8, own bool) bool {
	if int(s.n) == len(s.log) {
		return false
	}
	l := m.ledger(s)
	id := len(l.identities()) > 0
	if m.omit == ruleC && !own {
		id = false
	}
	s.log[s.n] = modelRecord{run, id}
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
	v := s.left
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
	if bits.OnesCount8(s.visible()) > 1 {
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
	if s.runs > 0 && s.handlers == [2]modelHandler{} && !s.evicted {
		t := s
		t.evicted, t.memory = true, 0
		if m.omit == ruleA {
			t.claimed, t.logged = false, false
		}
		m.step(t, "evict")
	}
	if !s.crashed {
		t := modelState{log: s.log, n: s.durable, durable: s.durable, left: s.left, runs: s.runs, arrived: s.arrived, other: s.other, crashed: true}
		for i := int(t.n); i < len(t.log); i++ {
			t.log[i] = modelRecord{}
		}
		// What the log holds is claimed before the first call.
		for _, r := range t.log[:t.n] {
			t.claimed = t.claimed || r.id
		}
		t.logged = t.claimed
		m.step(t, "CRASH")
	}
}

// arrive delivers attempt a (0 the first, 1 the flagged retry), which may also
// get lost: that is the same as never arriving.
func (m *model) arrive(s modelState, a int) {
	table := newClaims(m.boot(&s), 1<<20)
	if s.claimed {
		table.restore(modelKey)
	}
	flagged := a == 1
	_, r := table.take(0, arrival{key: modelKey, flagged: flagged, gated: true, uncertain: []dispatch.Boot{testBoot}})
	if m.omit == ruleB && r == received && !flagged {
		r = taken
	}
	t := s
	t.arrived[a] = true
	if r != taken {
		m.step(t, fmt.Sprintf("attempt%d-refused", a+1))
		return
	}
	t.claimed, t.evicted = true, false
	t.runs++
	t.handlers[a] = modelHandler{run: t.runs}
	t.holder = uint8(a + 1)
	m.step(t, fmt.Sprintf("attempt%d=run%d", a+1, t.runs))
}

func (m *model) run(s modelState, i int) {
	h := s.handlers[i]
	t := s
	if s.holder != uint8(i+1) {
		if s.holder == 0 {
			t.holder = uint8(i + 1)
			m.step(t, fmt.Sprint("resume-", h.run))
		}
		return
	}
	if int(h.pc) == len(m.script) {
		t.handlers[i], t.holder = modelHandler{}, 0
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

// check plays all scripts and returns the first violation.
func checkModel(t *testing.T, omit omission, length int) (bad string, states int) {
	for n := 1; n <= length; n++ {
		for x := range 1 << (2 * n) {
			script := make([]byte, n)
			for i := range script {
				script[i] = "WOMY"[x>>(2*i)&3]
			}
			m := &model{t: t, omit: omit, script: string(script), seen: map[modelState]bool{}}
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
	if bad, states := checkModel(t, nothing, *modelLength); bad != "" {
		t.Errorf("two runs of one call are visible: %s", bad)
	} else {
		t.Logf("all rules: %d states", states)
	}
	// The model is worth something only if it sees what each rule is for.
	for omit, name := range map[omission]string{ruleA: "A", ruleB: "B", ruleC: "C", ruleDOwn: "D (own outputs)", ruleDOthers: "D (others' outputs)"} {
		bad, states := checkModel(t, omit, *modelLength)
		if bad == "" {
			t.Errorf("without rule %s nothing goes wrong in %d states", name, states)
		} else {
			t.Logf("without rule %s: %s", name, bad)
		}
	}
}
