package wire

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestFlow plays bodies on one connection and checks that what is granted and
// held never adds up to more than the connection's window, that the books
// balance, and that every new body keeps its initial window.
func TestFlow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPool(&newShares(DefaultMaxMemory).lent)
		full := p.free
		type body struct {
			in  inflow
			out outflow
		}
		var bodies []*body
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if len(bodies) == 0 || rapid.IntRange(0, 9).Draw(t, "what") == 0 && len(bodies) < maxCalls {
				bodies = append(bodies, &body{newInflow(p, initialWindow), initialWindow})
				continue
			}
			i := rapid.IntRange(0, len(bodies)-1).Draw(t, "body")
			b := bodies[i]
			switch rapid.IntRange(0, 5).Draw(t, "do") {
			case 0, 1:
				n := rapid.Int64Range(0, int64(b.out)).Draw(t, "send")
				b.out -= outflow(n)
				if !b.in.arrive(n) {
					t.Fatalf("%d bytes within the window were refused", n)
				}
			case 2, 3:
				n := rapid.Int64Range(0, b.in.held).Draw(t, "read")
				if !b.out.add(b.in.consume(n)) {
					t.Fatal("a grant was beyond all measure")
				}
			case 4:
				b.out.add(b.in.expect(rapid.Int64Range(0, 40<<20).Draw(t, "expect")))
			case 5:
				b.in.close()
				bodies = append(bodies[:i], bodies[i+1:]...)
			}
			if b.in.arrive(b.in.granted + 1) {
				t.Fatal("more was taken than granted")
			}
			sum := int64(0)
			for _, b := range bodies {
				f := &b.in
				switch {
				case f.granted+f.held+f.owed != f.share:
					t.Fatalf("granted %d, held %d, owed %d; the share is %d", f.granted, f.held, f.owed, f.share)
				case f.share < initialWindow || f.share > maxWindow:
					t.Fatalf("a share of %d", f.share)
				case int64(b.out) != f.granted:
					t.Fatalf("the sender may send %d, the receiver expects %d", b.out, f.granted)
				case f.held == 0 && f.granted == 0:
					t.Fatal("a body whose reader has read everything stands still")
				}
				sum += f.share - initialWindow
			}
			if p.free < 0 || p.free+sum != full {
				t.Fatalf("the pool has %d and lent %d of %d", p.free, sum, full)
			}
		}
	})
	// A stalled reader's neighbours: the pool is empty, and they still move.
	p := newPool(&newShares(DefaultMaxMemory).lent)
	for p.free > 0 {
		f := newInflow(p, initialWindow)
		f.expect(maxWindow)
	}
	f := newInflow(p, initialWindow)
	if !f.arrive(initialWindow) || f.consume(initialWindow) != initialWindow {
		t.Error("a body without a loan does not move")
	}
}

func TestKeepalive(t *testing.T) {
	k := keepalive{}
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	if good, stalled := k.tick(at(5)); !good || stalled {
		t.Error("lost after 5 s")
	}
	if good, _ := k.tick(at(10)); !good {
		t.Error("lost after 10 s, want after more")
	}
	if !k.read(at(10)) {
		t.Error("bytes after 10 s were refused")
	}
	if good, _ := k.tick(at(20.1)); good {
		t.Error("not lost after 10.1 s of silence")
	}
	if k.read(at(20.2)) {
		t.Error("bytes of a lost connection were taken")
	}
	k = keepalive{}
	if k.read(at(10.001)) {
		t.Error("stale bytes were taken")
	}
	if k.read(at(10.002)) {
		t.Error("bytes after stale ones were taken")
	}
	k = keepalive{}
	k.writeBegins(at(1))
	for s := 5.0; s <= 30; s += 5 {
		if !k.read(at(s)) {
			t.Fatal("a peer that sends was lost")
		}
		if good, _ := k.tick(at(s)); !good {
			t.Fatalf("a write was given up after %v s", s)
		}
	}
	k.read(at(31))
	if good, stalled := k.tick(at(31.5)); good || !stalled {
		t.Error("a write of 30.5 s was not given up")
	}
	k = keepalive{}
	k.writeBegins(at(1))
	k.writeEnds()
	k.read(at(39))
	if k.lost != true {
		t.Error("a silence of 39 s was fine")
	}
}
