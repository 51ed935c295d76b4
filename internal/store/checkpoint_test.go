package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/limpet-dev/limpet"
)

func checkpointOptions(d *disk) Options {
	opt := testOptions(d)
	opt.LogLimit, opt.LogMax, opt.NoCheckpoints = 4*opt.SegmentSize, 64*opt.SegmentSize, true
	return opt
}

// TestCheckpoint: an object that is not in use is in the base store alone after its
// checkpoint, the log gives its segments back and uses them again, and all of it
// is there after a restart, which opens no object.
func TestCheckpoint(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, checkpointOptions(d))
	want := map[int]map[string]string{}
	for round := range 6 {
		for n := range 20 {
			o := openObject(t, s, n)
			k, v := fmt.Sprint("k", round), noise(uint64(round*100+n), 1+n*500)
			must(t, o.Put(k, v))
			commit(t, o)
			must(t, o.Close())
			if want[n] == nil {
				want[n] = map[string]string{}
			}
			want[n][k] = string(v)
		}
		must(t, s.Checkpoint(t.Context()))
		if st := s.Stats(); len(s.objects) != 0 || st.PageBytes != 0 || st.Waiting != 0 || st.Objects != 20 {
			t.Fatalf("round %d: %d objects in memory, %+v", round, len(s.objects), st)
		}
	}
	st := s.Stats()
	if st.Recycled == 0 || st.LogSize > 3*s.opt.SegmentSize || st.CheckpointFailures != 0 {
		t.Errorf("the log did not get shorter: %+v", st)
	}
	must(t, s.Close())
	s = openStore(t, checkpointOptions(d.crash(0, nil)))
	if st := s.Stats(); st.OpenObjects != 0 || st.PageBytes != 0 || st.Objects != 20 || len(s.objects) != 0 {
		t.Errorf("after a start: %+v", st)
	}
	for n := range 20 {
		if !exists(t, s, objectID(n)) {
			t.Errorf("object %d does not exist", n)
		}
		o := openObject(t, s, n)
		wantContents(t, o, want[n])
		if b := o.Birth(); b.Class != "Cart" {
			t.Errorf("object %d was born as %+v", n, b)
		}
		checkIntegrity(t, o)
		must(t, o.Close())
	}
	must(t, s.Close())
}

// TestCheckpointInTurn: a checkpoint while a turn goes on has what was committed
// before, and the turn does not notice.
func TestCheckpointInTurn(t *testing.T) {
	for _, size := range []int{10, 20_000, 200_000} {
		d := newCrashableDisk()
		s := openStore(t, checkpointOptions(d))
		o := openObject(t, s, 1)
		must(t, o.Put("before", noise(1, size)))
		commit(t, o)
		must(t, o.Put("before", noise(2, size)))
		must(t, o.Put("in", noise(3, size)))
		must(t, s.Checkpoint(t.Context()))
		after := d.crash(0, nil)
		must(t, o.Rollback())
		wantContents(t, o, map[string]string{"before": string(noise(1, size))})
		must(t, o.Put("next", []byte("n")))
		p := commit(t, o)
		must(t, s.Wait(t.Context(), p))
		must(t, s.Checkpoint(t.Context()))
		must(t, o.Close())
		must(t, s.Close())
		for disk, want := range map[*disk]map[string]string{
			after:           {"before": string(noise(1, size))},
			d.crash(0, nil): {"before": string(noise(1, size)), "next": "n"},
		} {
			s := openStore(t, checkpointOptions(disk))
			o := openObject(t, s, 1)
			wantContents(t, o, want)
			must(t, o.Close())
			must(t, s.Close())
		}
	}
}

// TestPagesOnDemand: a database much larger than the memory for pages works, and is
// never in memory as a whole.
func TestPagesOnDemand(t *testing.T) {
	d := newCrashableDisk()
	opt := checkpointOptions(d)
	opt.SegmentSize, opt.LogLimit, opt.LogMax, opt.NoCheckpoints = 1<<20, 4<<20, 64<<20, false
	opt.PageMemory = 1 << 20
	s := openStore(t, opt)
	o := openObject(t, s, 1)
	const rows, size = 4000, 4000
	for i := range rows {
		must(t, o.Put(fmt.Sprintf("%05d", i), noise(uint64(i), size)))
		if i%50 == 49 {
			must(t, s.Wait(t.Context(), commit(t, o)))
			if i%500 == 499 {
				must(t, s.Checkpoint(t.Context()))
			}
		}
	}
	most := int64(0)
	for i := 0; i < rows; i += 7 {
		v, ok, err := o.Get(fmt.Sprintf("%05d", i))
		if err != nil || !ok || !bytes.Equal(v, noise(uint64(i), size)) {
			t.Fatalf("row %d: %t, %v", i, ok, err)
		}
		if i%91 == 0 {
			must(t, s.Checkpoint(t.Context())) // it looks after memory too
			most = max(most, s.Stats().PageBytes)
		}
	}
	if st := s.Stats(); most > 2*opt.PageMemory || st.PageReads == 0 || st.DroppedPages == 0 {
		t.Errorf("%d bytes in memory at most, %+v", most, st)
	}
	checkIntegrity(t, o)
	if n, err := o.DeleteMany([]string{"00001", "03999"}); n != 2 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
	commit(t, o)
	must(t, o.Close())
	must(t, s.Close())
	opt.FS = d.crash(0, nil).fs
	s = openStore(t, opt)
	o = openObject(t, s, 1)
	n := 0
	for e, err := range o.List(ListOptions{}) {
		must(t, err)
		if len(e.Value) != size {
			t.Fatalf("%s has %d bytes", e.Key, len(e.Value))
		}
		n++
	}
	if n != rows-2 {
		t.Errorf("%d rows, want %d", n, rows-2)
	}
	must(t, o.Close())
	must(t, s.Close())
}

// TestCheckpointFails: a base store that cannot write is seen, loses nothing, lets
// the log grow to its bound and no further, and goes on when it can write.
func TestCheckpointFails(t *testing.T) {
	d := newCrashableDisk()
	opt := checkpointOptions(d)
	opt.LogLimit, opt.LogMax = opt.SegmentSize, 6*opt.SegmentSize
	s := openStore(t, opt)
	full := errors.New("no space left on device")
	d.setFault(func(op errorfs.Op) error {
		if strings.Contains(op.Path, "base/") && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return full
		}
		return nil
	})
	o := openObject(t, s, 1)
	want := map[string]string{}
	var err error
	for i := range 1000 {
		k := fmt.Sprint("k", i%10)
		v := noise(uint64(i), 1000)
		must(t, o.Put(k, v))
		var p Pos
		if p, err = o.Commit(nil); err != nil {
			break
		}
		must(t, s.Wait(t.Context(), p))
		want[k] = string(v)
	}
	if !errors.Is(err, ErrStorageFull) || !strings.Contains(err.Error(), "waits for checkpoints") {
		t.Fatalf("a log that has its full size: %v", err)
	}
	wantContents(t, o, want)
	if err := s.Checkpoint(t.Context()); !errors.Is(err, full) {
		t.Errorf("checkpoint: %v", err)
	}
	st := s.Stats()
	if st.CheckpointError == "" || st.CheckpointFailures == 0 || st.Checkpointed != 0 || st.LogSize > opt.LogMax {
		t.Errorf("%+v", st)
	}
	d.setFault(nil)
	must(t, s.Checkpoint(t.Context()))
	if st := s.Stats(); st.CheckpointError != "" || st.Checkpointed != 1 || st.LogSize > 2*opt.SegmentSize {
		t.Errorf("after the disk has room: %+v", st)
	}
	must(t, o.Put("again", []byte("a")))
	must(t, s.Wait(t.Context(), commit(t, o)))
	want["again"] = "a"
	must(t, o.Close())
	must(t, s.Close())
	opt.FS = d.crash(0, nil).fs
	s = openStore(t, opt)
	o = openObject(t, s, 1)
	wantContents(t, o, want)
	must(t, o.Close())
	must(t, s.Close())
}

// laterClock is a clock that can be put forward.
type laterClock struct {
	systemClock
	by time.Duration
}

func (c *laterClock) Now() time.Time { return time.Now().Add(c.by) }

// TestClaimsOfCheckpoints: claims and outcomes outlive the segments they were
// written to, also over several starts, and go when they are too old.
func TestClaimsOfCheckpoints(t *testing.T) {
	d := newCrashableDisk()
	opt := checkpointOptions(d)
	opt.KeyRetention, opt.OutcomeMemory = time.Hour, 1<<20
	s := openStore(t, opt)
	o := openObject(t, s, 1)
	key := Kept{Keyed: true, ID: identity(9), Claimed: true, ClaimedMS: time.Now().UnixMilli(), Kind: 3, Data: []byte("outcome")}
	_, err := o.Commit([]limpet.Identity{identity(1)}, key)
	must(t, err)
	must(t, o.Put("k", []byte("v")))
	p, err := o.Commit([]limpet.Identity{identity(2)})
	must(t, err)
	must(t, s.Wait(t.Context(), p))
	must(t, s.Checkpoint(t.Context()))
	must(t, o.Put("k", []byte("w")))
	p, err = o.Commit([]limpet.Identity{identity(3)})
	must(t, err)
	must(t, s.Wait(t.Context(), p))
	must(t, s.Checkpoint(t.Context()))
	fill := openObject(t, s, 2) // so that the segments of those records go
	for i := range 40 {
		must(t, fill.Put("k", noise(uint64(i), 3000)))
		must(t, s.Wait(t.Context(), commit(t, fill)))
	}
	must(t, s.Checkpoint(t.Context()))
	must(t, fill.Close())
	must(t, o.Close())
	if s.Stats().Recycled == 0 && s.log.Gone() < p.Index {
		t.Fatal("the segments are still there")
	}
	must(t, s.Close())

	clock := &laterClock{}
	opt.Clock = clock
	check := func(s *Store, wantIDs, wantKept int) {
		t.Helper()
		ids, complete := s.RecoveredIdentities()
		kept, keptComplete := s.RecoveredKept()
		if len(ids) != wantIDs || len(kept) != wantKept || !complete || !keptComplete {
			t.Errorf("%d identities, %d kept, want %d and %d", len(ids), len(kept), wantIDs, wantKept)
		}
		for _, k := range kept {
			if k.Object != objectID(1) || k.ID != key.ID || string(k.Data) != "outcome" || k.Print != key.Print {
				t.Errorf("kept %+v", k)
			}
		}
	}
	for range 2 {
		d = d.crash(0, nil)
		opt.FS = d.fs
		s = openStore(t, opt)
		check(s, 3, 1)
		must(t, s.Close())
	}
	// A checkpoint after the retention leaves the key, another after its own none.
	d = d.crash(0, nil)
	opt.FS = d.fs
	s = openStore(t, opt)
	check(s, 3, 1)
	clock.by += ClaimRetention + time.Second
	must(t, s.Checkpoint(t.Context()))
	must(t, s.Close())
	d = d.crash(0, nil)
	opt.FS = d.fs
	s = openStore(t, opt)
	check(s, 0, 1)
	clock.by += 2 * time.Hour
	must(t, s.Checkpoint(t.Context()))
	must(t, s.base.Flush())
	if c, err := s.base.Claims(objectID(1)); c != nil || err != nil {
		t.Errorf("claims %x, %v", c, err)
	}
	must(t, s.Close())
}

// TestDeletedForGood: when the log has nothing of a deleted object any more and its
// claims are too old, the base store has nothing either; a new life begins anew.
func TestDeletedForGood(t *testing.T) {
	d := newCrashableDisk()
	opt := checkpointOptions(d)
	clock := &laterClock{}
	opt.Clock = clock
	s := openStore(t, opt)
	o := openObject(t, s, 1)
	must(t, o.Put("k", noise(1, 100_000)))
	commit(t, o)
	must(t, s.Checkpoint(t.Context()))
	p, err := o.Destroy([]limpet.Identity{identity(1)})
	must(t, err)
	must(t, s.Wait(t.Context(), p))
	must(t, o.Close())
	must(t, s.Checkpoint(t.Context()))
	if _, ok, err := s.base.Load(objectID(1)); !ok || err != nil {
		t.Errorf("the note of the deletion is there: %t, %v", ok, err)
	}
	clock.by += ClaimRetention + time.Second
	must(t, s.Checkpoint(t.Context()))
	if _, ok, err := s.base.Load(objectID(1)); !ok || err != nil {
		t.Errorf("while the log has its records, the note is there: %t, %v", ok, err)
	}
	fill := openObject(t, s, 2)
	for i := range 80 {
		must(t, fill.Put("k", noise(uint64(i), 3000)))
		must(t, s.Wait(t.Context(), commit(t, fill)))
	}
	must(t, s.Checkpoint(t.Context()))
	clock.by += ClaimRetention + time.Second
	must(t, s.Checkpoint(t.Context()))
	if o, ok, err := s.base.Load(objectID(1)); ok || err != nil {
		t.Errorf("nothing is left: %+v, %v (gone %d)", o, err, s.log.Gone())
	}
	must(t, fill.Close())
	o = openObject(t, s, 1)
	must(t, o.Put("new", []byte("life")))
	must(t, s.Wait(t.Context(), commit(t, o)))
	if o.e.txid != 1 {
		t.Errorf("transaction %d, want 1", o.e.txid)
	}
	must(t, o.Close())
	must(t, s.Close())
	opt.FS = d.crash(0, nil).fs
	s = openStore(t, opt)
	o = openObject(t, s, 1)
	wantContents(t, o, map[string]string{"new": "life"})
	must(t, o.Close())
	must(t, s.Close())
}

// TestLargeCheckpointCut: a checkpoint that takes several writes is cut at every
// place by a power cut; what is found is the same.
func TestLargeCheckpointCut(t *testing.T) {
	step := 4
	if testing.Short() {
		step = 15
	}
	for cut := 0; cut < 60; cut += step {
		d := newCrashableDisk()
		opt := checkpointOptions(d)
		opt.SegmentSize, opt.LogLimit, opt.LogMax = 4<<20, 16<<20, 256<<20
		s := openStore(t, opt)
		o := openObject(t, s, 1)
		want := map[string]string{}
		put := func(from, to int, seed uint64) {
			for i := from; i < to; i++ {
				k, v := fmt.Sprint("k", i), noise(seed+uint64(i), 300_000)
				must(t, o.Put(k, v))
				want[k] = string(v)
			}
			must(t, s.Wait(t.Context(), commit(t, o)))
		}
		put(0, 20, 0)
		if cut%2 == 0 {
			must(t, s.Checkpoint(t.Context()))
		}
		put(5, 30, 1000)
		must(t, o.Put("k1", []byte("short")))
		want["k1"] = "short"
		must(t, s.Wait(t.Context(), commit(t, o)))
		ops := 0
		var after *disk
		var mu sync.Mutex
		d.setFault(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || !strings.Contains(op.Path, "base/") {
				return nil
			}
			if ops++; ops == 1+cut*2 {
				after = d.crash(100*(cut%3/2), rand.New(rand.NewPCG(uint64(cut), 1)))
			}
			if after != nil {
				return errDisk
			}
			return nil
		})
		_ = s.Checkpoint(context.Background())
		d.setFault(nil)
		must(t, o.Close())
		_ = s.Close()
		if after == nil {
			break
		}
		opt.FS = after.fs
		s = openStore(t, opt)
		o = openObject(t, s, 1)
		if got := contents(t, o); !maps.Equal(got, want) {
			t.Errorf("cut %d: other contents", cut)
		}
		checkIntegrity(t, o)
		must(t, o.Close())
		must(t, s.Checkpoint(t.Context()))
		must(t, s.Close())
	}
}

// TestDamagedObject: what the base store has of an object is damaged: it does not
// open, others do, and the log keeps its records.
func TestDamagedObject(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, checkpointOptions(d))
	for n := range 2 {
		o := openObject(t, s, n)
		must(t, o.Put("k", noise(uint64(n), 1000)))
		commit(t, o)
		must(t, o.Close())
	}
	must(t, s.Checkpoint(t.Context()))
	found, ok, err := s.base.Load(objectID(0))
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	found.Image[700] ^= 1
	must(t, s.base.Write(nil, &BaseWrite{ID: objectID(0), Slot: SlotOf(objectID(0)), Meta: found.BaseMeta, Image: found.Image}))
	var damage *DamageError
	if _, err := s.Object(objectID(0), Birth{Class: "Cart"}); !errors.As(err, &damage) || !strings.Contains(err.Error(), "checksum") || damage.Remedy == "" {
		t.Errorf("a damaged object opens: %v", err)
	}
	o := openObject(t, s, 1)
	wantContents(t, o, map[string]string{"k": string(noise(1, 1000))})
	must(t, o.Close())
	must(t, s.Close())
}
