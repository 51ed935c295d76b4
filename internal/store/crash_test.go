package store

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"zombiezen.com/go/sqlite"

	"github.com/limpet-dev/limpet"
	sqlvfs "github.com/limpet-dev/limpet/internal/store/vfs"
)

var (
	seedsFlag = flag.Int("seeds", 1000, "how many seeds TestCrash plays; 100 with -short")
	seedFlag  = flag.Uint64("seed", 0, "the one seed TestCrash plays")
)

// workload makes random turns and keeps what they should have done.
type workload struct {
	rng       *rand.Rand
	objects   int
	open      map[int]*workObject
	committed map[int]map[string]string // by object, as of its last Commit
}

type workObject struct {
	*Object
	n int
}

func newWorkload(seed uint64, objects int) *workload {
	return &workload{rng: rand.New(rand.NewPCG(seed, 7)), objects: objects, open: map[int]*workObject{}, committed: map[int]map[string]string{}}
}

// pick returns a random object, opened if it is not.
func (w *workload) pick(t testing.TB, s *Store) *workObject {
	n := w.rng.IntN(w.objects)
	o := w.open[n]
	if o == nil {
		o = &workObject{openObject(t, s, n), n}
		w.open[n] = o
	}
	return o
}

func (w *workload) closeAll(t testing.TB) {
	for _, o := range w.open {
		must(t, o.Close())
	}
	clear(w.open)
}

func (w *workload) key() string { return string(rune('a' + w.rng.IntN(20))) }

func (w *workload) value() []byte {
	n := w.rng.IntN(300)
	switch w.rng.IntN(30) {
	case 0:
		n = w.rng.IntN(3 * testSegment)
	case 1, 2, 3, 4, 5:
		n = w.rng.IntN(9000)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(w.rng.Uint32())
	}
	return b
}

var errRollback = error(rollback{})

type rollback struct{}

func (rollback) Error() string { return "roll back" }

// write makes a few random writes and notes them in m.
func (w *workload) write(t testing.TB, o *workObject, m map[string]string, depth int) error {
	for range 1 + w.rng.IntN(4) {
		if w.rng.IntN(12) == 0 {
			if err := w.writeSQL(t, o, m); err != nil {
				return err
			}
			continue
		}
		switch r := w.rng.IntN(20); {
		case r < 11:
			k, v := w.key(), w.value()
			if err := o.Put(k, v); err != nil {
				return err
			}
			m[k] = string(v)
		case r < 14:
			k := w.key()
			ok, err := o.Delete(k)
			if err != nil {
				return err
			}
			if _, had := m[k]; had != ok {
				t.Fatalf("delete %q: %t, want %t", k, ok, had)
			}
			delete(m, k)
		case r < 15 && depth == 0:
			if err := o.DeleteAll(); err != nil {
				return err
			}
			clear(m)
		case r < 18 && depth < 3:
			inner := maps.Clone(m)
			fail := w.rng.IntN(2) == 0
			err := o.Transaction(func() error {
				if err := w.write(t, o, inner, depth+1); err != nil {
					return err
				}
				if fail {
					return errRollback
				}
				return nil
			})
			if fail {
				if err != errRollback { //nolint:errorlint // the very error
					return fmt.Errorf("transaction: %w", err)
				}
				continue
			}
			if err != nil {
				return err
			}
			clear(m)
			maps.Copy(m, inner)
		case r < 19:
			if err := o.PutMany([]Entry{{"x", []byte("1")}, {"y", []byte("2")}}); err != nil {
				return err
			}
			m["x"], m["y"] = "1", "2"
		default:
			k := w.key()
			v, ok, err := o.Get(k)
			if err != nil {
				return err
			}
			if want, had := m[k]; had != ok || want != string(v) {
				t.Fatalf("get %q: %d bytes, %t, want %d, %t", k, len(v), ok, len(want), had)
			}
		}
	}
	return nil
}

// identities are none, mostly, or one or two new ones.
func (w *workload) identities() (ids []limpet.Identity) {
	for range max(0, w.rng.IntN(6)-3) {
		var id limpet.Identity
		for i := range id.Nonce {
			id.Nonce[i] = byte(w.rng.Uint32())
		}
		ids = append(ids, id)
	}
	return ids
}

// madeCommit is a commit that the log was given.
type madeCommit struct {
	n     int
	pos   Pos
	state map[string]string // contents of object n after it; nil: destroyed
	ids   []limpet.Identity
}

// turn makes one turn and commits it or rolls it back. ok is false when there
// is no new record.
func (w *workload) turn(t testing.TB, o *workObject) (c madeCommit, ok bool, err error) {
	if w.rng.IntN(40) == 0 {
		ids, txid := w.identities(), o.e.txid
		p, err := o.Destroy(ids)
		if err != nil {
			return c, false, err
		}
		w.committed[o.n] = map[string]string{}
		return madeCommit{o.n, p, nil, ids}, o.e.txid != txid, nil
	}
	m := maps.Clone(w.committed[o.n])
	if m == nil {
		m = map[string]string{}
	}
	if w.rng.IntN(20) == 0 { // as when SQLite rolls back after all
		if err := abandon(o.Object, 1+w.rng.IntN(4)); err != nil {
			return c, false, err
		}
	}
	if err := w.write(t, o, m, 0); err != nil {
		return c, false, errors.Join(err, o.Rollback())
	}
	if w.rng.IntN(8) == 0 {
		must(t, o.Rollback())
		return c, false, nil
	}
	ids, txid := w.identities(), o.e.txid
	p, err := o.Commit(ids)
	if err != nil {
		if !errors.Is(err, errDisk) && !errors.Is(err, errBaseFailed) {
			if got := everything(t, o.Object); !maps.Equal(got, w.committed[o.n]) {
				t.Errorf("a failed commit changed object %d", o.n)
			}
		}
		return c, false, err
	}
	w.committed[o.n] = m
	if w.rng.IntN(10) == 0 {
		must(t, o.Sleep())
	}
	return madeCommit{o.n, p, m, ids}, o.e.txid != txid, nil
}

// TestCrash plays random workloads over many objects on a disk whose power is
// cut, or whose process is killed, at a random operation; opens the store
// again, now and then with another cut during that; and compares with what was
// acknowledged. What is found must be exactly the commits up to one position,
// at or after the last acknowledged one: nothing lost, nothing half, nothing
// out of order, nothing that was not sent.
func TestCrash(t *testing.T) {
	if *seedFlag != 0 {
		crashSeed(t, *seedFlag)
		return
	}
	seeds := *seedsFlag
	if testing.Short() {
		seeds = min(seeds, 100)
	}
	var total crashCounts
	var mu sync.Mutex
	t.Run("seeds", func(t *testing.T) {
		shards := runtime.GOMAXPROCS(0)
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				for seed := shard + 1; seed <= seeds && !t.Failed(); seed += shards {
					t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
						c := crashSeed(t, uint64(seed))
						mu.Lock()
						total.add(c)
						mu.Unlock()
					})
				}
			})
		}
	})
	t.Logf("%d seeds: %+v", seeds, total)
	if !t.Failed() && (total.Lost == 0 || total.Kept == 0 || total.Torn == 0 || total.DuringOpen == 0 || total.Spilled == 0 || total.Dropped == 0 || total.Checkpointed == 0 || total.Recycled == 0 || total.PageReads == 0) {
		t.Errorf("the workloads do not reach everything: %+v", total)
	}
}

// crashCounts tell what the seeds reached.
type crashCounts struct {
	Cuts, Kills, DuringOpen int
	Commits, Acknowledged   int
	Lost, Kept              int // commits that were not acknowledged
	Torn                    int // tails that were cut
	Spilled, Dropped        int // large commits; pieces of those that came to nothing
	Checkpointed, Recycled  int // objects; segments
	PageReads               int // pages that were read when they were needed
}

func (c *crashCounts) add(d crashCounts) {
	c.Cuts += d.Cuts
	c.Kills += d.Kills
	c.DuringOpen += d.DuringOpen
	c.Commits += d.Commits
	c.Acknowledged += d.Acknowledged
	c.Lost += d.Lost
	c.Kept += d.Kept
	c.Torn += d.Torn
	c.Spilled += d.Spilled
	c.Dropped += d.Dropped
	c.Checkpointed += d.Checkpointed
	c.Recycled += d.Recycled
	c.PageReads += d.PageReads
}

// world is one seed of TestCrash.
type world struct {
	t    *testing.T
	rng  *rand.Rand
	disk *disk
	opt  Options
	crashCounts

	mu           sync.Mutex
	cut          bool  // the power is gone, or the process is killed
	after        *disk // what the next process finds
	acknowledged uint64
	classes      map[string]bool // registered; true: acknowledged
	made         []madeCommit    // in the log, of all lives
}

func crashSeed(t *testing.T, seed uint64) crashCounts {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &world{t: t, rng: rng, disk: newCrashableDisk(), classes: map[string]bool{}}
	w.opt = testOptions(w.disk)
	w.opt.SegmentSize = int64(testSegment + rng.IntN(3)*5000)
	w.opt.SpillAbove = []int64{0, 300, 3000, 9000}[rng.IntN(4)]
	w.opt.LogLimit = w.opt.SegmentSize * int64(1+rng.IntN(6))
	if w.opt.NoCheckpoints = rng.IntN(3) == 0; !w.opt.NoCheckpoints {
		w.opt.CheckpointAge = time.Duration(1+rng.IntN(20)) * time.Millisecond
	}
	w.opt.LogMax = 4 << 20
	w.opt.PageMemory = []int64{0, 1, 100 << 10, 500 << 10}[rng.IntN(4)]
	defer func() {
		if t.Failed() {
			t.Logf("again with: go test ./internal/store -run TestCrash -seed %d", seed)
		}
	}()
	lives := 2 + rng.IntN(3)
	for range lives {
		s := w.reopen()
		if s == nil {
			return w.crashCounts
		}
		w.check(s)
		if t.Failed() {
			_ = s.Close()
			return w.crashCounts
		}
		w.live(s)
	}
	if s := w.reopen(); s != nil {
		w.check(s)
		must(t, s.Close())
	}
	return w.crashCounts
}

// arm makes the disk end at a random one of its next operations. It is dead for
// the running process from then on.
func (w *world) arm(within int) {
	n := 1 + w.rng.IntN(within)
	kill := w.rng.IntN(4) == 0
	percent := []int{0, 100, w.rng.IntN(101), w.rng.IntN(101)}[w.rng.IntN(4)]
	crashRNG := rand.New(rand.NewPCG(w.rng.Uint64(), 1))
	d := w.disk
	ops := 0
	w.cut, w.after = false, nil
	d.setFault(func(errorfs.Op) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.cut {
			return errDisk
		}
		if ops++; ops < n {
			return nil
		}
		w.endLocked(d, kill, percent, crashRNG)
		return errDisk
	})
}

func (w *world) endLocked(d *disk, kill bool, percent int, rng *rand.Rand) {
	w.cut = true
	if kill {
		w.Kills++
		w.after = d.kill()
	} else {
		w.Cuts++
		w.after = d.crash(percent, rng)
	}
}

// reopen opens the store, now and then with cuts during it.
func (w *world) reopen() *Store {
	for w.rng.IntN(3) == 0 {
		w.arm(25)
		s, err := Open(context.Background(), w.options())
		w.mu.Lock()
		cut := w.cut
		w.mu.Unlock()
		if err == nil {
			// What it showed is not used, so it counts for nothing.
			_ = s.Close()
		}
		if err != nil && !cut {
			w.t.Fatalf("open: %v", err)
		}
		if !cut {
			w.disk.setFault(nil)
			continue
		}
		w.DuringOpen++
		w.disk = w.after
	}
	w.disk.setFault(nil)
	s, err := Open(context.Background(), w.options())
	if err != nil {
		w.t.Errorf("open after a crash: %v", err)
		return nil
	}
	return s
}

func (w *world) options() Options {
	opt := w.opt
	opt.FS = w.disk.fs
	return opt
}

// check compares what is there with what was made.
func (w *world) check(s *Store) {
	t := w.t
	last := s.replay.Last
	if s.replay.CutBytes > 0 {
		w.Torn++
	}
	w.Dropped += int(s.replay.DroppedPieces)
	if last.Index < w.acknowledged {
		t.Errorf("the log ends at batch %d, acknowledged was %d", last.Index, w.acknowledged)
	}
	slices.SortStableFunc(w.made, func(a, b madeCommit) int { return a.pos.Compare(b.pos) })
	want := map[int]map[string]string{}
	ids := map[RecoveredIdentity]bool{}
	var kept []madeCommit
	for _, c := range w.made {
		if c.pos.Compare(last) > 0 {
			w.Lost++
			continue
		}
		if c.pos.Index > w.acknowledged {
			w.Kept++
		}
		kept = append(kept, c)
		want[c.n] = c.state
		for _, id := range c.ids {
			ids[RecoveredIdentity{objectID(c.n), id}] = true
		}
	}
	w.made = kept
	w.acknowledged = last.Index // what Open shows is durable

	got, complete := s.RecoveredIdentities()
	found := map[RecoveredIdentity]bool{}
	for _, id := range got {
		found[id] = true
	}
	if diff := cmp.Diff(ids, found); diff != "" || !complete {
		t.Errorf("identities, complete %t: %s", complete, diff)
	}
	classes := s.Classes()
	for name, acknowledged := range w.classes {
		if _, ok := classes[name]; !ok && acknowledged {
			t.Errorf("class %s is missing", name)
		} else if !ok {
			delete(w.classes, name)
		}
		delete(classes, name)
	}
	if len(classes) > 0 {
		t.Errorf("classes %v were never registered", classes)
	}
	data := int64(0)
	for n := range crashObjects {
		exists := exists(t, s, objectID(n))
		if state := want[n]; (state != nil) != exists {
			t.Errorf("object %d exists: %t, want %t", n, exists, state != nil)
			continue
		}
		if exists {
			data++
		}
		o, err := s.Object(objectID(n), Birth{Class: "Cart"})
		if err != nil {
			t.Error(err)
			continue
		}
		if o.Exists() != exists {
			t.Errorf("object %d exists when it is open: %t", n, o.Exists())
		}
		if got := everything(t, o); !maps.Equal(got, want[n]) {
			t.Errorf("object %d, last of %v: %s", n, last, cmp.Diff(want[n], got))
		}
		if w.rng.IntN(8) == 0 {
			checkIntegrity(t, o)
		}
		must(t, o.Close())
	}
	if st := s.Stats(); st.Objects != data {
		t.Errorf("%d objects with data counted, %d found", st.Objects, data)
	}
}

func checkIntegrity(t testing.TB, o *Object) {
	t.Helper()
	must(t, o.connect())
	st, _, err := o.conn.Raw().PrepareTransient("PRAGMA integrity_check")
	must(t, err)
	if _, err := st.Step(); err != nil || st.ColumnText(0) != "ok" {
		t.Errorf("integrity_check: %q, %v", st.ColumnText(0), err)
	}
	must(t, st.Finalize())
}

const (
	crashObjects = 24
	crashWorkers = 3
)

// live runs workers until the disk ends, or they are done and it ends then.
func (w *world) live(s *Store) {
	w.arm(20 + w.rng.IntN(400))
	workers := 1
	if w.rng.IntN(2) == 0 {
		workers = crashWorkers
	}
	state := map[int]map[string]string{}
	for _, c := range w.made {
		state[c.n] = c.state
	}
	var wg sync.WaitGroup
	for k := range workers {
		load := newWorkload(w.rng.Uint64(), crashObjects)
		for n, m := range state {
			if n%workers == k && m != nil {
				load.committed[n] = m
			}
		}
		wg.Go(func() { w.work(s, load, k, workers) })
	}
	wg.Wait()
	w.mu.Lock()
	if !w.cut {
		w.endLocked(w.disk, w.rng.IntN(2) == 0, w.rng.IntN(101), w.rng)
	}
	w.mu.Unlock()
	st := s.Stats()
	w.Spilled += int(st.Spilled)
	w.Checkpointed += int(st.Checkpointed)
	w.Recycled += int(st.Recycled)
	w.PageReads += int(st.PageReads)
	_ = s.Close() // writes what it has to a disk nobody reads any more, or fails
	w.disk = w.after
}

func (w *world) work(s *Store, load *workload, k, workers int) {
	t := w.t
	for i := range 40 {
		w.mu.Lock()
		cut := w.cut
		w.mu.Unlock()
		if cut {
			break
		}
		if load.rng.IntN(15) == 0 {
			if err := s.Checkpoint(context.Background()); err != nil {
				w.mu.Lock()
				if !w.cut {
					t.Errorf("checkpoint: %v", err)
				}
				w.mu.Unlock()
			}
		}
		if load.rng.IntN(12) == 0 {
			w.register(s, fmt.Sprintf("class %d %d %d", k, i, load.rng.IntN(1000)))
		}
		n := load.rng.IntN(crashObjects/workers)*workers + k
		o := load.open[n]
		if o == nil {
			h, err := s.Object(objectID(n), Birth{Class: "Cart", Name: fmt.Sprint(n)})
			if err != nil {
				w.mu.Lock()
				var damage *DamageError
				if !w.cut || errors.As(err, &damage) {
					t.Error(err)
				}
				w.mu.Unlock()
				break
			}
			o = &workObject{h, n}
			load.open[n] = o
		}
		c, ok, err := load.turn(t, o)
		if err != nil {
			w.mu.Lock()
			var unread *sqlvfs.Error // a page could not be read, or the rollback after that
			if !w.cut || !errors.Is(err, ErrLost) && !errors.Is(err, ErrStorageFull) && !errors.Is(err, errDisk) && !errors.Is(err, errBaseFailed) &&
				(!errors.As(err, &unread) || unread.Code.ToPrimary() != sqlite.ResultIOErr) {
				t.Errorf("commit: %v", err)
			}
			w.mu.Unlock()
			break
		}
		if ok {
			w.mu.Lock()
			w.made = append(w.made, c)
			w.Commits++
			w.mu.Unlock()
		}
		if load.rng.IntN(2) == 0 {
			p := o.LastPos()
			if err := s.Wait(context.Background(), p); err == nil {
				w.mu.Lock()
				if !w.cut {
					w.Acknowledged++
					w.acknowledged = max(w.acknowledged, p.Index)
				}
				w.mu.Unlock()
			} else if !errors.Is(err, ErrLost) {
				t.Errorf("wait: %v", err)
			}
		}
		if load.rng.IntN(4) == 0 {
			if err := o.Close(); err != nil {
				t.Error(err)
			}
			delete(load.open, n)
		}
	}
	load.closeAll(t)
}

func (w *world) register(s *Store, name string) {
	w.mu.Lock()
	w.classes[name] = false
	w.mu.Unlock()
	_, err := s.RegisterClass(name, "")
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && !w.cut {
		w.classes[name] = true
	} else if err != nil && !w.cut {
		w.t.Errorf("register: %v", err)
	}
}
