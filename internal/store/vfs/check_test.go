package vfs_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/limpet-dev/limpet/internal/store/vfs"
)

var (
	checkSeed  = flag.Uint64("seed", 1, "TestCheck: first seed")
	checkSeeds = flag.Int("seeds", 8, "TestCheck: number of seeds")
	checkOps   = flag.Int("ops", 400, "TestCheck: statements per seed")
)

// TestCheck is the VFS check: random SQL with faults, and after every commit
// the pages rebuilt from the diffs alone equal the live ones, whose contents are those
// that a model in Go expects. For long:
//
//	go test ./internal/store/vfs -run TestCheck -seeds 500 -ops 2000 -timeout 0
func TestCheck(t *testing.T) {
	total := tally{}
	for i := range *checkSeeds {
		seed := *checkSeed + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			k := newCheck(t, seed)
			k.run(*checkOps)
			total.add(k.tally)
		})
	}
	t.Logf("%+v", total)
}

type tally struct {
	Commits, Refused, Panics, Reverts, Discards, Interrupts, Full, Reopened, Rollbacks, Checks, Snapshots, Dropped int
}

func (a *tally) add(b tally) {
	a.Commits += b.Commits
	a.Refused += b.Refused
	a.Panics += b.Panics
	a.Snapshots += b.Snapshots
	a.Dropped += b.Dropped
	a.Reverts += b.Reverts
	a.Discards += b.Discards
	a.Interrupts += b.Interrupts
	a.Full += b.Full
	a.Reopened += b.Reopened
	a.Rollbacks += b.Rollbacks
	a.Checks += b.Checks
}

// world is what the database should contain.
type world struct {
	rows  map[int64]row
	byKey map[string]int64
	kv    map[string]string
	extra [5]bool
}

type row struct {
	key, value string
	n          int
}

func (w world) clone() world {
	return world{maps.Clone(w.rows), maps.Clone(w.byKey), maps.Clone(w.kv), w.extra}
}

var (
	errRefused = errors.New("refused by the test")
	errPanic   = errors.New("panic of the test")
)

type check struct {
	tally
	t     *testing.T
	r     *rand.Rand
	alloc *vfs.Allocator
	pages *vfs.Pages
	sink  *recorder
	conn  *vfs.Conn
	opt   vfs.Options

	committed, now world
	saved          []world // at each open savepoint
	keys           int     // key space
	maxBlob        int
	faults         bool
	seen           int // published commits that were compared

	// Pages kept elsewhere, in half of the seeds.
	demand bool
	mu     sync.Mutex
	source *mapSource    // nil: the database is in memory as a whole
	saving *vfs.Snapshot // is being saved to source, or to a new one
	want   []byte        // the image that saving must have
}

// mapSource has the pages of a database.
type mapSource struct {
	pages map[uint32][]byte
	reads int
}

func (m *mapSource) ReadPage(pgno uint32, b []byte) error {
	m.reads++
	p, ok := m.pages[pgno]
	if !ok {
		return fmt.Errorf("page %d is not in the source", pgno)
	}
	copy(b, p)
	return nil
}

// keepElsewhere begins or ends to save a snapshot, drops pages, or opens the
// database anew from what was saved.
func (k *check) keepElsewhere() {
	if !k.demand {
		return
	}
	switch x := k.r.IntN(20); {
	case x < 2 && k.saving == nil:
		k.want = image(k.t, k.sink.replica)
		k.mu.Lock()
		k.saving = k.pages.TakeSnapshot(k.r.IntN(8) == 0)
		k.mu.Unlock()
	case x < 5 && k.saving != nil:
		k.save()
	case x < 9:
		if k.pages.Drop(int64(k.r.IntN(100))*int64(k.pages.PageSize())) > 0 {
			k.Dropped++
		}
	case x == 9 && k.source != nil && k.saving == nil && !k.pages.InTransaction():
		k.mu.Lock()
		err := k.pages.FetchAll()
		k.mu.Unlock()
		if err != nil {
			k.t.Fatal(err)
		}
	}
}

// save ends the snapshot.
func (k *check) save() {
	s := k.saving
	k.saving = nil
	if k.r.IntN(5) == 0 {
		s.Done(false)
		return
	}
	size := k.pages.PageSize()
	next := &mapSource{pages: map[uint32][]byte{}}
	if k.source != nil {
		maps.Copy(next.pages, k.source.pages)
	}
	buf := make([]byte, size)
	for i := range s.Pages() {
		b, err := s.Page(i, buf)
		if err != nil {
			k.t.Fatal(err)
		}
		next.pages[s.Number(i)] = bytes.Clone(b)
	}
	maps.DeleteFunc(next.pages, func(pgno uint32, _ []byte) bool { return pgno > s.PageCount })
	for i := 0; i < len(k.want); i += size {
		if pgno := uint32(i/size + 1); !bytes.Equal(next.pages[pgno], k.want[i:i+size]) {
			k.t.Fatalf("page %d of a snapshot differs", pgno)
		}
	}
	if len(next.pages)*size != len(k.want) {
		k.t.Fatalf("%d pages in the snapshot, %d wanted", len(next.pages), len(k.want)/size)
	}
	k.Snapshots++
	if k.source == nil {
		k.source = next
		s.SavedIn(next)
		return
	}
	k.source.pages = next.pages
	s.Done(true)
}

func newCheck(t *testing.T, seed uint64) *check {
	r := rand.New(rand.NewPCG(seed, 7))
	size := 512 << r.IntN(8)
	k := &check{
		t: t, r: r, alloc: vfs.NewAllocator(), keys: 20 + r.IntN(500), maxBlob: 20000, faults: r.IntN(5) > 0,
		opt: vfs.Options{CachePages: []int{1, 5, 20, 500}[r.IntN(4)], AutoVacuum: vfs.AutoVacuum(r.IntN(3))},
	}
	if r.IntN(3) == 0 {
		k.opt.MaxBytes = int64(size) * int64(60+r.IntN(400))
	}
	k.pages = vfs.NewPages(k.alloc, size)
	k.pages.Share(&k.mu)
	k.demand = seed%2 == 0
	k.sink = newRecorder(size)
	k.sink.admit = func(*vfs.Change) error {
		switch x := k.r.IntN(100); {
		case !k.faults:
		case x < 6:
			return fmt.Errorf("no luck: %w", errRefused)
		case x < 7:
			panic(errPanic)
		}
		return nil
	}
	k.now = world{rows: map[int64]row{}, byKey: map[string]int64{}, kv: map[string]string{}}
	k.committed = k.now.clone()
	t.Logf("page size %d, %+v, %d keys, faults %v", size, k.opt, k.keys, k.faults)
	return k
}

func (k *check) run(ops int) {
	t := k.t
	k.open()
	faults := k.faults
	k.faults = false
	for _, q := range []string{
		"CREATE TABLE t(id INTEGER PRIMARY KEY, k TEXT UNIQUE, v BLOB, n INT CHECK(n<1000))",
		"CREATE INDEX tn ON t(n, k)",
		"CREATE TABLE kv(key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID",
	} {
		exec(t, k.conn, q)
	}
	k.faults = faults
	k.afterCommit()
	for range ops {
		k.op()
		k.keepElsewhere()
		k.compare()
		if t.Failed() {
			return
		}
	}
	if k.conn.InTransaction() {
		k.do("COMMIT", nil)
	}
	k.contents()
	k.rebuilt()
	if err := k.conn.Close(); err != nil {
		t.Fatal(err)
	}
	k.pages.Release()
	if k.saving != nil {
		k.saving.Done(true)
	}
	if n := k.alloc.Bytes(); n != 0 {
		t.Errorf("%d bytes of pages in use after Release", n)
	}
}

func (k *check) open() {
	k.t.Helper()
	c, err := vfs.Open(k.pages, k.sink, k.opt)
	if err != nil {
		k.t.Fatal(err)
	}
	k.conn = c
}

// reopen goes on with the committed state.
func (k *check) reopen() {
	k.t.Helper()
	if err := k.conn.Close(); err != nil && !errors.Is(err, vfs.ErrClosed) {
		k.t.Fatal(err)
	}
	k.rolledBack()
	k.open()
}

func (k *check) rolledBack() {
	k.now = k.committed.clone()
	k.saved = nil
}

// do runs one statement. effect applies it to the world and reports whether
// it succeeds; nil is a statement without effect that must succeed.
func (k *check) do(q string, effect func(w *world) bool, args ...any) {
	k.t.Helper()
	before := k.now.clone()
	want := effect == nil || effect(&k.now)
	if !want {
		k.now = before
	}
	err := k.conn.Exec(q, args...)
	switch {
	case err == nil && want:
	case err == nil:
		k.t.Fatalf("%s: no error, the model expects one", q)
	case errors.Is(err, errPanic):
		k.Panics++
		if !errors.Is(err, vfs.ErrBroken) || k.conn.Broken() == nil {
			k.t.Fatalf("%s: panic without a broken connection: %v", q, err)
		}
		k.reopen()
	case errors.Is(err, errRefused):
		k.Refused++
		if k.conn.InTransaction() {
			if q != "RELEASE s" {
				k.t.Fatalf("%s: still in a transaction after a refused commit", q)
			}
			exec(k.t, k.conn, "ROLLBACK")
		}
		k.rolledBack()
	case errors.Is(err, vfs.ErrFull) && k.opt.MaxBytes > 0:
		k.Full++
		if k.conn.InTransaction() {
			if err := k.conn.Exec("ROLLBACK"); err != nil {
				k.t.Fatal(err)
			}
		}
		k.rolledBack()
	case errors.Is(err, vfs.ErrInterrupt):
		k.Interrupts++
		if k.conn.InTransaction() {
			k.t.Fatalf("%s: still in a transaction after an interrupt", q)
		}
		k.rolledBack()
	case want:
		k.t.Fatalf("%s: %v", q, err)
	}
	if !k.conn.InTransaction() {
		k.committed = k.now.clone()
		k.saved = nil
	}
}

func (k *check) blob() string {
	n := k.r.IntN(200)
	if k.r.IntN(10) == 0 {
		n = k.r.IntN(k.maxBlob)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(k.r.Uint32())
	}
	return string(b)
}

func (k *check) key() string { return fmt.Sprintf("k%d", k.r.IntN(k.keys)) }

func (k *check) op() {
	in := k.conn.InTransaction()
	r := k.r
	switch x := r.IntN(1000); {
	case x < 70:
		if !in {
			k.do("BEGIN IMMEDIATE", nil)
		}
	case x < 140:
		if in {
			k.do("COMMIT", nil)
		}
	case x < 175:
		if in {
			k.Rollbacks++
			if err := k.conn.Exec("ROLLBACK"); err != nil {
				k.t.Fatal(err)
			}
			k.rolledBack()
		}
	case x < 215:
		if len(k.saved) < 4 {
			w := k.now.clone()
			k.do("SAVEPOINT s", nil)
			k.saved = append(k.saved, w)
		}
	case x < 235:
		if n := len(k.saved); n > 0 {
			k.do("ROLLBACK TO s", func(w *world) bool { *w = k.saved[n-1].clone(); return true })
		}
	case x < 265:
		if n := len(k.saved); n > 0 {
			k.do("RELEASE s", nil)
			k.saved = k.saved[:min(len(k.saved), n-1)]
		}
	case x < 465:
		k.insert()
	case x < 500: // fails midway when a row passes 1000
		d := r.IntN(600)
		k.do("UPDATE t SET n=n+?1", func(w *world) bool {
			for id, o := range w.rows {
				if o.n += d; o.n >= 1000 {
					return false
				}
				w.rows[id] = o
			}
			return true
		}, d)
	case x < 530:
		k.do("UPDATE t SET n=n/2", func(w *world) bool {
			for id, o := range w.rows {
				o.n /= 2
				w.rows[id] = o
			}
			return true
		})
	case x < 590:
		m := int64(2 + r.IntN(40))
		k.do("DELETE FROM t WHERE id%?1=0", func(w *world) bool {
			for id, o := range w.rows {
				if id%m == 0 {
					delete(w.rows, id)
					delete(w.byKey, o.key)
				}
			}
			return true
		}, m)
	case x < 730:
		key, v := k.key(), k.blob()
		k.do(upsert, func(w *world) bool { w.kv[key] = v; return true }, key, []byte(v))
	case x < 800:
		key, v, n := k.key(), k.blob(), r.IntN(1000)
		k.do("UPDATE t SET v=?1, n=?2 WHERE k=?3", func(w *world) bool {
			if id, ok := w.byKey[key]; ok {
				w.rows[id] = row{key, v, n}
			}
			return true
		}, []byte(v), n, key)
	case x < 820:
		i := r.IntN(5)
		k.do(fmt.Sprintf("CREATE TABLE x%d AS SELECT * FROM t", i), func(w *world) bool {
			ok := !w.extra[i]
			w.extra[i] = true
			return ok
		})
	case x < 845:
		i := r.IntN(5)
		k.do(fmt.Sprintf("DROP TABLE IF EXISTS x%d", i), func(w *world) bool { w.extra[i] = false; return true })
	case x < 860:
		if !in {
			if r.IntN(4) == 0 {
				k.do(fmt.Sprintf("PRAGMA auto_vacuum=%d", r.IntN(3)), nil)
			}
			k.do("VACUUM", nil)
		}
	case x < 880:
		k.do(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", 1+r.IntN(20)), nil)
	case x < 900:
		k.do("DELETE FROM kv WHERE key>=?1 AND key<?2", func(w *world) bool {
			maps.DeleteFunc(w.kv, func(key, _ string) bool { return key >= "k2" && key < "k3" })
			return true
		}, "k2", "k3")
	case x < 910:
		if r.IntN(4) == 0 { // all pages become free ones
			k.do("DELETE FROM kv", func(w *world) bool { clear(w.kv); return true })
			k.do("DELETE FROM t", func(w *world) bool { clear(w.rows); clear(w.byKey); return true })
		}
	case x < 925: // also in the middle of a transaction
		k.Reopened++
		k.reopen()
	case x < 935:
		k.Reverts++
		k.pages.Revert()
		// SQLite may answer from its cache, but no commit gets through.
		err := k.conn.Exec("CREATE TABLE broken(x)")
		if err == nil && in {
			err = k.conn.Exec("COMMIT")
		}
		if !errors.Is(err, vfs.ErrBroken) {
			k.t.Fatalf("commit after Revert: %v, want ErrBroken", err)
		}
		k.reopen()
	case x < 936:
		k.Discards++
		k.conn.Discard()
		k.reopen()
	case x < 945:
		k.interrupt()
	case x < 960:
		k.contents()
	case x < 965:
		k.rebuilt()
	case x < 975:
		k.conn.Trim()
	case x < 978:
		if !in {
			k.do("REINDEX", nil)
		}
	default:
		// A transaction that ends where it began, pages and all.
		key, v := k.key(), k.now.kv
		if old, ok := v[key]; ok {
			k.do(upsert, nil, key, []byte(old))
		}
	}
}

func (k *check) insert() {
	id, key, v, n := int64(k.r.IntN(2*k.keys)), k.key(), k.blob(), k.r.IntN(1003)
	k.do("INSERT INTO t VALUES(?1,?2,?3,?4)", func(w *world) bool {
		if _, ok := w.rows[id]; ok {
			return false
		}
		if _, ok := w.byKey[key]; ok || n >= 1000 {
			return false
		}
		w.rows[id] = row{key, v, n}
		w.byKey[key] = id
		return true
	}, id, key, []byte(v), n)
}

// interrupt runs a statement that would take long with a channel that is closed.
func (k *check) interrupt() {
	done := make(chan struct{})
	close(done)
	k.conn.SetInterrupt(done)
	k.do("INSERT INTO kv SELECT 'long'||i, randomblob(100) FROM (WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c LIMIT 1000000) SELECT i FROM c)", nil)
	k.conn.SetInterrupt(nil)
}

// compare is made after each statement: live pages as of the last commit
// against the replica.
func (k *check) compare() {
	p, q := k.pages, k.sink.replica
	if p.PageCount() != q.PageCount() || p.Checksum() != q.Checksum() {
		k.t.Fatalf("%d pages, checksum %x; replica %d, %x", p.PageCount(), p.Checksum(), q.PageCount(), q.Checksum())
	}
	if k.sink.published == k.seen && !p.InTransaction() {
		return
	}
	if !p.InTransaction() {
		k.afterCommit()
	}
}

func (k *check) afterCommit() {
	k.Commits += k.sink.published - k.seen
	k.seen = k.sink.published
	p, q := k.pages, k.sink.replica
	zero := make([]byte, p.PageSize())
	for pgno := uint32(1); pgno <= p.PageCount(); pgno++ {
		a, b := vfs.PageOf(p, pgno), vfs.PageOf(q, pgno)
		if a == nil {
			a = zero
		}
		if b == nil {
			b = zero
		}
		if !bytes.Equal(a, b) {
			k.t.Fatalf("commit %d: page %d of %d differs", k.seen, pgno, p.PageCount())
		}
	}
}

// contents compares what SQL answers with the model.
func (k *check) contents() {
	k.Checks++
	k.match(k.conn, &k.now)
}

func (k *check) match(c *vfs.Conn, w *world) {
	t := k.t
	t.Helper()
	if got := text(t, c, "PRAGMA integrity_check"); got != "ok" {
		t.Fatalf("integrity_check: %s", got)
	}
	st, _, err := c.Raw().PrepareTransient("SELECT id, k, v, n FROM t")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		ok, err := st.Step()
		if err != nil {
			t.Fatal(c.Explain(err))
		}
		if !ok {
			break
		}
		n++
		got := row{st.ColumnText(1), columnBytes(st, 2), st.ColumnInt(3)}
		if want := w.rows[st.ColumnInt64(0)]; got != want {
			t.Fatalf("row %d differs: n %d, want %d; %d bytes, want %d", st.ColumnInt64(0), got.n, want.n, len(got.value), len(want.value))
		}
	}
	if n != len(w.rows) {
		t.Fatalf("%d rows, want %d", n, len(w.rows))
	}
	_ = st.Finalize()
	st, _, err = c.Raw().PrepareTransient("SELECT key, value FROM kv")
	if err != nil {
		t.Fatal(err)
	}
	n = 0
	for {
		ok, err := st.Step()
		if err != nil {
			t.Fatal(c.Explain(err))
		}
		if !ok {
			break
		}
		n++
		if want, ok := w.kv[st.ColumnText(0)]; !ok || columnBytes(st, 1) != want {
			t.Fatalf("value of %s differs", st.ColumnText(0))
		}
	}
	if n != len(w.kv) {
		t.Fatalf("%d values, want %d", n, len(w.kv))
	}
	_ = st.Finalize()
}

// rebuilt opens a database made of the replica's image and compares it with the model.
func (k *check) rebuilt() {
	k.Checks++
	t := k.t
	p := vfs.NewPages(k.alloc, k.pages.PageSize())
	if err := p.Load(bytes.NewReader(image(t, k.sink.replica)), k.sink.replica.PageCount()); err != nil {
		t.Fatal(err)
	}
	if p.Checksum() != k.pages.Checksum() {
		t.Fatalf("checksum %x after Load, %x before", p.Checksum(), k.pages.Checksum())
	}
	c, err := vfs.Open(p, newRecorder(p.PageSize()), k.opt)
	if err != nil {
		t.Fatal(err)
	}
	k.match(c, &k.committed)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	p.Release()
}

func columnBytes(st interface {
	ColumnLen(int) int
	ColumnBytes(int, []byte) int
}, i int) string {
	b := make([]byte, st.ColumnLen(i))
	st.ColumnBytes(i, b)
	return string(b)
}
