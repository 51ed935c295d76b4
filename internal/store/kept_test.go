package store

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func claimOf(n int, at time.Time) Kept {
	return Kept{Keyed: true, ID: identity(byte(n)), Claimed: true, Print: [32]byte{byte(n)}, ClaimedMS: at.UnixMilli()}
}

// TestKept: what is said of calls is found again, whatever kind of record says it.
func TestKept(t *testing.T) {
	d := newCrashableDisk()
	opt := testOptions(d)
	opt.OutcomeMemory, opt.KeyRetention, opt.SpillAbove = 1<<20, 24*time.Hour, 256<<10
	now := opt.Clock.Now()
	s := openStore(t, opt)
	o, err := s.Object(objectID(1), Birth{Class: "C"})
	must(t, err)
	want := []RecoveredKept{
		{objectID(1), claimOf(1, now)},
		{objectID(1), Kept{Keyed: true, ID: identity(1), Kind: 1, Data: []byte("first")}},
		{objectID(1), Kept{ID: identity(2), Kind: 2, Data: bytes.Repeat([]byte("y"), 64<<10)}},
		{objectID(1), Kept{ID: identity(3), Kind: 3, Data: []byte{}}},
	}
	_, err = o.Note(nil, want[0].Kept) // in the object's first record
	must(t, err)
	must(t, o.Put("k", []byte("v")))
	_, err = o.Commit(nil, want[1].Kept)
	must(t, err)
	must(t, o.Put("large", bytes.Repeat([]byte("0123456789abcdef"), 64<<10))) // spilled
	p, err := o.Commit(nil, want[2].Kept, want[3].Kept)
	must(t, err)
	if s.Stats().Spilled != 1 {
		t.Error("the large commit was not spilled")
	}
	_, err = o.Note(nil, claimOf(9, now.Add(-25*time.Hour))) // too old at the next start
	must(t, err)
	must(t, s.Wait(t.Context(), p))
	must(t, o.Close())
	must(t, s.Close())

	s = openStore(t, opt)
	defer s.Close()
	got, complete := s.RecoveredKept()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || !complete {
		t.Errorf("complete %v, differs (-want +got):\n%s", complete, diff)
	}
	if got, _ := s.RecoveredKept(); got != nil {
		t.Errorf("a second call gives %d", len(got))
	}
}

// TestKeptBound: the newest outcomes are kept, and every claim of a key.
func TestKeptBound(t *testing.T) {
	r := keptRing{budget: 10 * (100 + 128)}
	const n = 300_000
	for i := range n {
		k := Kept{ID: identity(byte(i)), Kind: 1, Data: make([]byte, 100)}
		if i%1000 == 0 {
			k = claimOf(i, time.UnixMilli(int64(i)))
			k.Kind, k.Data = 1, make([]byte, 100)
		}
		r.add(objectID(i), k)
		if len(r.all) > 1<<18 {
			t.Fatalf("after %d, %d entries are held", i, len(r.all))
		}
	}
	claims, outcomes := 0, 0
	for i, k := range r.all {
		if k.Claimed {
			claims++
		}
		if k.Kind != 0 {
			outcomes++
			if want := objectID(n - len(r.all) + i); k.Object != want {
				t.Errorf("the outcome at %d is not one of the newest", i)
			}
		} else if k.Data != nil {
			t.Fatal("a dropped outcome still holds its data")
		}
	}
	if claims != n/1000 || outcomes != 10 || r.bytes != r.budget {
		t.Errorf("%d claims, %d outcomes of %d bytes; want %d, 10, %d", claims, outcomes, r.bytes, n/1000, r.budget)
	}
}

// TestKeptOfManyKeys: claims that stay do not make each outcome after them go
// through all of them again; that would take hours at a restart.
func TestKeptOfManyKeys(t *testing.T) {
	r := keptRing{budget: 10 * (100 + 128)}
	const n = 500_000
	for i := range n {
		r.add(objectID(i), claimOf(i, time.UnixMilli(int64(i)))) // before the handler …
		r.add(objectID(i), Kept{Keyed: true, ID: identity(byte(i)), Kind: 1, Data: make([]byte, 100)})
		if len(r.all) > 2*(i+1)+1<<17 {
			t.Fatalf("after %d, %d entries are held", i, len(r.all))
		}
	}
	claims, outcomes := 0, 0
	for _, k := range r.all {
		if k.Claimed {
			claims++
		}
		if k.Kind != 0 {
			outcomes++
		}
	}
	if claims != n || outcomes != 10 {
		t.Errorf("%d claims, %d outcomes; want %d, 10", claims, outcomes, n)
	}
}
