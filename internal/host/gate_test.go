package host

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func testLimits() gateLimits {
	return gateLimits{events: 5, bytes: 100, age: 10 * time.Second, block: 30 * time.Second}
}

// put brings an entry of a new gate into a state. Another entry holds the turn
// where the state asks for that.
func gateWith(s entryState) (g *gate, e *entry) {
	g, e = &gate{limits: testLimits()}, &entry{size: 1}
	other := &entry{size: 1}
	switch s {
	case fresh:
		g.step(0, inArrive, other, 0)
	case queued:
		g.step(0, inArrive, other, 0)
		g.step(0, inArrive, e, 0)
	case holding:
		g.step(0, inArrive, e, 0)
	case away:
		g.step(0, inArrive, e, 0)
		g.step(0, inLeave, e, 0)
		g.step(0, inArrive, other, 0)
	case wanting:
		g.step(0, inArrive, e, 0)
		g.step(0, inLeave, e, 0)
		g.step(0, inArrive, other, 0)
		g.step(0, inReturn, e, 0)
	case done:
		g.step(0, inArrive, e, 0)
		g.step(0, inConclude, e, 0)
		g.step(0, inArrive, other, 0)
	}
	if e.state != s {
		panic(fmt.Sprintf("entry is %v, want %v", e.state, s))
	}
	return g, e
}

// Every state of an entry with every input about it, while somebody else holds
// the turn (except in the state holding).
func TestGateTransitions(t *testing.T) {
	type cell struct {
		verdict verdict
		state   entryState
	}
	no := func(s entryState) cell { return cell{notNow, s} }
	table := map[inputKind]map[entryState]cell{
		inArrive:   {fresh: {waits, queued}}, // an entry arrives once
		inCancel:   {fresh: no(fresh), queued: {accepted, done}, holding: no(holding), away: no(away), wanting: no(wanting), done: no(done)},
		inLeave:    {fresh: no(fresh), queued: no(queued), holding: {accepted, away}, away: {accepted, away}, wanting: {accepted, away}, done: no(done)},
		inReturn:   {fresh: no(fresh), queued: no(queued), holding: {accepted, holding}, away: {waits, wanting}, wanting: {waits, wanting}, done: no(done)},
		inConclude: {fresh: no(fresh), queued: no(queued), holding: {accepted, done}, away: {waits, wanting}, wanting: {waits, wanting}, done: no(done)},
		inBlock:    {fresh: no(fresh), queued: no(queued), holding: {accepted, holding}, away: no(away), wanting: no(wanting), done: no(done)},
		inUnblock:  {fresh: no(fresh), queued: no(queued), holding: no(holding), away: no(away), wanting: no(wanting), done: no(done)},
		inDetach:   {fresh: no(fresh), queued: no(queued), holding: no(holding), away: {accepted, done}, wanting: {accepted, done}, done: no(done)},
		inDrain:    {fresh: {accepted, fresh}, queued: {accepted, done}, holding: {accepted, holding}, away: {accepted, away}, wanting: {accepted, wanting}, done: {accepted, done}},
		inEvict:    {fresh: no(fresh), queued: no(queued), holding: no(holding), away: no(away), wanting: no(wanting), done: no(done)},
		inEnd:      {fresh: {accepted, fresh}, queued: {accepted, done}, holding: {accepted, done}, away: {accepted, done}, wanting: {accepted, done}, done: {accepted, done}},
	}
	for in, row := range table {
		for s, want := range row {
			t.Run(fmt.Sprintf("%v/%v", s, in), func(t *testing.T) {
				g, e := gateWith(s)
				got := g.step(0, in, e, 0)
				if got.verdict != want.verdict || e.state != want.state {
					t.Errorf("%v and then %v, want %v and %v", got.verdict, e.state, want.verdict, want.state)
				}
				if err := g.check(); err != nil {
					t.Error(err)
				}
				if in == inEnd {
					// Once ended nothing begins, whatever comes.
					for k := inArrive; k <= inDetach; k++ {
						if k == inHold || k == inRelease {
							continue
						}
						if v := g.step(0, k, &entry{}, 0).verdict; v != refusedEnded {
							t.Errorf("%v after the end: %v, want %v", k, v, refusedEnded)
						}
					}
				}
			})
		}
	}
}

func TestGateLimits(t *testing.T) {
	full := func(n, size int) *gate {
		g := &gate{limits: testLimits()}
		for range n + 1 { // one holds the turn
			g.step(0, inArrive, &entry{size: size}, 0)
		}
		return g
	}
	now := int64(10 * time.Second)
	for _, test := range []struct {
		name string
		g    *gate
		now  int64
		e    entry
		want verdict
	}{
		{"below all", full(4, 10), now - 1, entry{size: 60}, waits},
		{"count", full(5, 1), 0, entry{}, refusedCount}, // SPEC C37
		{"bytes", full(4, 10), 0, entry{size: 61}, refusedBytes},
		{"bytes, but nothing is queued", full(0, 0), 0, entry{size: 1000}, waits},
		{"age of the oldest", full(1, 1), now, entry{}, refusedAge},
		{"the object's own event", full(5, 20), now, entry{internal: true}, waits},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.g.step(test.now, inArrive, &test.e, 0).verdict; got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
			if err := test.g.check(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("outputs count", func(t *testing.T) {
		g := &gate{limits: testLimits()}
		for range 5 {
			g.step(0, inHold, nil, 10)
		}
		if g.free() {
			t.Error("the gate is free with a full inbox")
		}
		if got := g.step(0, inArrive, &entry{}, 0).verdict; got != refusedCount {
			t.Errorf("%v, want %v", got, refusedCount)
		}
		g.step(0, inRelease, nil, 10)
		if got := g.step(0, inArrive, &entry{size: 61}, 0).verdict; got != refusedBytes {
			t.Errorf("%v, want %v", got, refusedBytes)
		}
		if got := g.step(0, inArrive, &entry{size: 60}, 0).verdict; got != accepted {
			t.Errorf("%v, want %v", got, accepted)
		}
	})
}

func TestGateBlock(t *testing.T) {
	g := &gate{limits: testLimits()}
	a, b, back := &entry{}, &entry{}, &entry{}
	g.step(0, inArrive, back, 0)
	g.step(0, inLeave, back, 0)
	g.step(0, inArrive, a, 0)
	child := &entry{parent: &entry{parent: a}} // of another object, called by a
	g.step(0, inArrive, child, 0)
	g.step(0, inArrive, b, 0)
	if out := g.step(1, inBlock, a, 0); len(out.failed) != 1 || out.failed[0] != child {
		t.Fatalf("a block failed %v, want the queued call that comes from it", out.failed)
	}
	g.step(1, inBlock, a, 0) // nested
	g.step(1, inReturn, back, 0)
	if out := g.step(1, inLeave, a, 0); out.grant != nil || g.holder != nil {
		t.Fatal("somebody got the turn of a blocked object") // SPEC H4
	}
	if v := g.step(1, inArrive, &entry{parent: a}, 0).verdict; v != refusedCycle {
		t.Errorf("a call from the blocking event: %v, want %v", v, refusedCycle)
	}
	if out := g.step(1, inReturn, a, 0); out.grant != a {
		t.Fatal("the blocking event did not get the turn back")
	}
	limit := 1 + int64(30*time.Second)
	for _, test := range []struct {
		now  int64
		n    uint64
		want verdict
	}{{limit - 1, g.blocks, notNow}, {limit, g.blocks + 1, notNow}, {limit, g.blocks, blockedTooLong}} {
		if v := g.step(test.now, inBlockLimit, nil, int(test.n)).verdict; v != test.want {
			t.Errorf("limit of block %d at %d: %v, want %v", test.n, test.now, v, test.want)
		}
	}
	g.step(1, inUnblock, a, 0)
	if g.blocker != a {
		t.Fatal("the inner block's end ended the outer one")
	}
	g.step(1, inUnblock, a, 0)
	if v := g.step(limit, inBlockLimit, nil, int(g.blocks)).verdict; v != notNow {
		t.Errorf("limit of a block that has ended: %v", v)
	}
	if out := g.step(1, inConclude, a, 0); out.grant != b {
		t.Error("the turn did not go to the one who asked first")
	}
	if out := g.step(1, inConclude, b, 0); out.grant != back {
		t.Error("the turn did not go on to the one who asked next")
	}
}

// FuzzGate plays random inputs and compares who gets the turn with a plain
// model: a list of those who asked, in order.
func FuzzGate(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, 4, 3, 4, 4})
	f.Add([]byte{0, 0, 5, 2, 0, 3, 6, 4, 7, 8})
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := make([]byte, 200)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		g := &gate{limits: testLimits()}
		var all, line []*entry // line: those who asked for the turn and do not have it
		now := int64(0)
		drop := func(e *entry) {
			for i, q := range line {
				if q == e {
					line = append(line[:i:i], line[i+1:]...)
					return
				}
			}
		}
		finished := map[*entry]bool{}
		for i := 0; i < len(script); i++ {
			in := inputKind(script[i]&15) % (inDetach + 1)
			now += int64(script[i]>>4) * int64(time.Second/2)
			var e *entry
			if in == inArrive || len(all) == 0 {
				in, e = inArrive, &entry{size: int(script[i] >> 3), internal: script[i]&0x60 == 0x60}
				if script[i]&0x90 == 0x90 && len(all) > 0 {
					e.parent = all[i%len(all)]
				}
				all = append(all, e)
			} else {
				e = all[int(script[i]>>4)*7%len(all)]
			}
			if (in == inEnd || in == inEvict || in == inDrain) && script[i] < 0xc0 {
				continue // not too often
			}
			if in == inRelease && g.outputs == 0 || in == inHold && g.outputs > 3 {
				continue
			}
			blocked, before := g.blocker, e.state
			n := 0
			if in == inBlockLimit {
				n = int(g.blocks)
			}
			out := g.step(now, in, e, n)
			if err := g.check(); err != nil {
				t.Fatalf("input %d, %v in state %v: %v", i, in, before, err)
			}
			switch {
			case e.state == queued && before == fresh, e.state == wanting && before == away,
				before == away && out.grant == e, in == inArrive && out.grant == e:
				line = append(line, e)
			case before == wanting && e.state != wanting, before == queued && e.state == done:
				drop(e)
			}
			for _, q := range append(out.failed, out.running...) {
				if finished[q] {
					t.Fatalf("input %d: an entry ended twice", i)
				}
				if q.state != done {
					t.Fatalf("input %d: a failed entry is %v", i, q.state)
				}
				drop(q)
				finished[q] = true
			}
			if w := out.grant; w != nil {
				if w != g.holder || w.state != holding {
					t.Fatalf("input %d: granted to one who does not hold the turn", i)
				}
				if b := g.blocker; b != nil {
					if w != b {
						t.Fatalf("input %d: a blocked object delivered something else", i)
					}
				} else if line[0] != w && blocked == nil {
					t.Fatalf("input %d, %v: the turn did not go to the one who asked first", i, in)
				}
				drop(w)
			}
			// Nobody is lost: who asked and did not get the turn is still there.
			if !g.ended && len(line) != count(&g.inbox)+count(&g.back) {
				t.Fatalf("input %d, %v in state %v: %d wait, the gate knows %d", i, in, before, len(line), count(&g.inbox)+count(&g.back))
			}
			if g.ended {
				for _, q := range all {
					if q.state != done && q.state != fresh {
						t.Fatalf("input %d: an entry is %v after the end", i, q.state)
					}
				}
				return
			}
		}
	})
}

func count(l *line) (n int) {
	for e := l.head; e != nil; e = e.next {
		n++
	}
	return n
}
