package vfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet/internal/store/vfs"
	"zombiezen.com/go/sqlite"
)

// newFixture opens a database of 60 values of 1,000 B, over 70 pages.
func newFixture(t *testing.T, o vfs.Options) (*vfs.Conn, *vfs.Pages, *recorder) {
	t.Helper()
	p := vfs.NewPages(vfs.NewAllocator(), 4096)
	r := newRecorder(4096)
	c := open(t, p, r, o)
	exec(t, c, schemaKV)
	put60(t, c, "a")
	return c, p, r
}

func put60(t testing.TB, c *vfs.Conn, fill string) {
	t.Helper()
	for i := range 60 {
		exec(t, c, upsert, fmt.Sprintf("key%02d", i), strings.Repeat(fill, 1000))
	}
}

func wantSame(t *testing.T, p *vfs.Pages, r *recorder, before []byte) {
	t.Helper()
	if p.InTransaction() {
		t.Error("pages are in a transaction")
	}
	if !bytes.Equal(image(t, p), before) {
		t.Error("pages differ from those before the transaction")
	}
	if !bytes.Equal(image(t, r.replica), before) {
		t.Error("replica differs from the pages before the transaction")
	}
	if p.Checksum() != r.replica.Checksum() {
		t.Error("checksums differ")
	}
}

func TestSecondConnectionIsRefused(t *testing.T) {
	c, p, _ := newFixture(t, vfs.Options{})
	if _, err := vfs.Open(p, newRecorder(4096), vfs.Options{}); !errors.Is(err, vfs.ErrOpen) {
		t.Errorf("second Open: %v, want ErrOpen", err)
	}
	// Past Open, by name: the same VFS opens no database a second time.
	name := vfs.FileName(c)
	if _, err := sqlite.OpenConn("file:"+name+"?vfs="+vfs.DriverName(), sqlite.OpenReadWrite|sqlite.OpenURI); sqlite.ErrCode(err).ToPrimary() != sqlite.ResultCantOpen {
		t.Errorf("open by name: %v, want CANTOPEN", err)
	}
	for _, q := range []string{"ATTACH '" + name + "' AS x", "ATTACH 'o0' AS x", "ATTACH 'o0-0' AS x", "ATTACH '/tmp/x.db' AS x", "VACUUM INTO '/tmp/x.db'"} {
		if err := c.Exec(q); sqlite.ErrCode(err).ToPrimary() != sqlite.ResultCantOpen {
			t.Errorf("%s: %v, want CANTOPEN", q, err)
		}
	}
	if got := text(t, c, "SELECT count(*) FROM kv"); got != "60" {
		t.Errorf("afterwards: %s rows", got)
	}
}

// The order is Admit, then Publish, and what is admitted has the final page
// count although SQLite truncates after FCNTL_SYNC.
func TestAdmitKnowsTheFinalSize(t *testing.T) {
	for _, av := range []vfs.AutoVacuum{vfs.AutoVacuumNone, vfs.AutoVacuumIncremental, vfs.AutoVacuumFull} {
		c, p, r := newFixture(t, vfs.Options{AutoVacuum: av})
		var admitted *vfs.Change
		r.admit = func(ch *vfs.Change) error {
			if admitted != nil {
				t.Error("admitted twice without Publish")
			}
			cp := *ch
			admitted = &cp
			if p.PageCount() != ch.PageCountBefore {
				t.Errorf("%d pages are committed while %d are admitted", p.PageCount(), ch.PageCountBefore)
			}
			return nil
		}
		r.publish = func() {
			if p.PageCount() != admitted.PageCountAfter || vfs.SumOf(p) != admitted.ChecksumAfter {
				t.Errorf("published %d pages, %x; admitted %d, %x", p.PageCount(), vfs.SumOf(p), admitted.PageCountAfter, admitted.ChecksumAfter)
			}
			admitted = nil
		}
		before := p.PageCount()
		exec(t, c, "DELETE FROM kv WHERE key > 'key05'")
		exec(t, c, map[vfs.AutoVacuum]string{vfs.AutoVacuumNone: "VACUUM", vfs.AutoVacuumIncremental: "PRAGMA incremental_vacuum(100)", vfs.AutoVacuumFull: "SELECT 1"}[av])
		if p.PageCount() >= before {
			t.Errorf("auto_vacuum %d: %d pages, %d before", av, p.PageCount(), before)
		}
		wantSame(t, p, r, image(t, p))
	}
}

func TestRefusedCommit(t *testing.T) {
	sentinel := errors.New("the log is full of eels")
	for _, tc := range []struct {
		name string
		err  error
		is   error
		code sqlite.ResultCode
	}{
		{"other", sentinel, sentinel, sqlite.ResultIOErr},
		{"full", fmt.Errorf("%w: %w", vfs.ErrFull, sentinel), vfs.ErrFull, sqlite.ResultFull},
		{"too big", fmt.Errorf("%w: %w", vfs.ErrTooBig, sentinel), vfs.ErrTooBig, sqlite.ResultTooBig},
		{"interrupted", fmt.Errorf("%w: %w", vfs.ErrInterrupt, sentinel), vfs.ErrInterrupt, sqlite.ResultInterrupt},
	} {
		for _, cache := range []int{1, 200} {
			t.Run(fmt.Sprintf("%s/cache=%d", tc.name, cache), func(t *testing.T) {
				c, p, r := newFixture(t, vfs.Options{CachePages: cache})
				before := image(t, p)
				r.admit = func(*vfs.Change) error { return tc.err }
				exec(t, c, "BEGIN")
				put60(t, c, "b") // spills with the small cache
				exec(t, c, "DELETE FROM kv WHERE key > 'key40'")
				err := c.Exec("COMMIT")
				if !errors.Is(err, sentinel) || !errors.Is(err, tc.is) {
					t.Errorf("error %v", err)
				}
				var e *vfs.Error
				if !errors.As(err, &e) || e.Code.ToPrimary() != tc.code {
					t.Errorf("code %v, want %v", e, tc.code)
				}
				if c.InTransaction() {
					t.Error("still in a transaction")
				}
				wantSame(t, p, r, before)
				if r.abandoned != 0 {
					t.Error("Abandon after a refusal")
				}
				// The next one goes through, and an error of its own has no cause from before.
				r.admit = nil
				var next *vfs.Error
				if err := c.Exec("INSERT INTO kv VALUES('key00', 'x')"); !errors.As(err, &next) || next.Cause != nil {
					t.Errorf("constraint error: %v", err)
				}
				// Nor has one of the same code, when nobody asked for the first one's cause.
				r.admit = func(*vfs.Change) error { return tc.err }
				st := c.Raw().Prep("DELETE FROM kv")
				if _, err := st.Step(); err == nil {
					t.Error("not refused")
				}
				_ = st.Reset()
				r.admit = nil
				exec(t, c, upsert, "key00", "c")
				if err := c.Explain(fmt.Errorf("later: %w", e.Code.ToError())); errors.Is(err, sentinel) {
					t.Errorf("a later error has the cause of one before: %v", err)
				}
				if got := text(t, c, "PRAGMA integrity_check"); got != "ok" {
					t.Error(got)
				}
				wantSame(t, p, r, image(t, p))
			})
		}
	}
}

// A rollback after a spill sends FCNTL_SYNC as well: nobody may be asked then,
// and pages that were free before, which SQLite does not restore, are put back.
func TestRollbackAfterSpillAsksNobody(t *testing.T) {
	c, p, r := newFixture(t, vfs.Options{CachePages: 1})
	exec(t, c, "DELETE FROM kv WHERE key > 'key10'") // a free list
	before := image(t, p)
	r.admit = func(*vfs.Change) error { t.Error("Admit"); return errors.New("no") }
	for _, end := range []string{"ROLLBACK", "failing statement", "close"} {
		exec(t, c, "BEGIN")
		put60(t, c, "z")
		if !p.InTransaction() {
			t.Fatal("the transaction did not spill: this test shows nothing")
		}
		switch end {
		case "ROLLBACK":
			exec(t, c, "ROLLBACK")
		case "failing statement":
			if err := c.Exec("INSERT OR ROLLBACK INTO kv VALUES('key00', 'x')"); err == nil {
				t.Fatal("no constraint error")
			}
		case "close":
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		wantSame(t, p, r, before)
	}
	c = open(t, p, r, vfs.Options{})
	if got := text(t, c, "PRAGMA integrity_check"); got != "ok" {
		t.Error(got)
	}
}

func TestNoChangeNoCommit(t *testing.T) {
	c, p, r := newFixture(t, vfs.Options{})
	n := r.published
	r.admit = func(*vfs.Change) error { t.Error("Admit"); return nil }
	for _, q := range []string{"BEGIN IMMEDIATE", "COMMIT", "BEGIN EXCLUSIVE", "COMMIT", "SELECT * FROM kv",
		"UPDATE kv SET value=value", "SAVEPOINT a", "RELEASE a", "BEGIN", "UPDATE kv SET value='x'", "ROLLBACK"} {
		exec(t, c, q)
	}
	if r.published != n {
		t.Errorf("%d commits published", r.published-n)
	}
	wantSame(t, p, r, image(t, p))
	// Opening an empty database commits nothing either.
	q := vfs.NewPages(vfs.NewAllocator(), 4096)
	for _, av := range []vfs.AutoVacuum{vfs.AutoVacuumNone, vfs.AutoVacuumIncremental, vfs.AutoVacuumFull} {
		c := open(t, q, r, vfs.Options{AutoVacuum: av})
		if got := text(t, c, "SELECT count(*) FROM sqlite_schema"); got != "0" {
			t.Error(got)
		}
		_ = c.Close()
		if q.PageCount() != 0 || q.Bytes() != 0 {
			t.Errorf("%d pages after opening", q.PageCount())
		}
	}
}

func TestPanicInSink(t *testing.T) {
	boom := errors.New("boom")
	t.Run("admit", func(t *testing.T) {
		c, p, r := newFixture(t, vfs.Options{CachePages: 1})
		before := image(t, p)
		r.admit = func(*vfs.Change) error { panic(boom) }
		exec(t, c, "BEGIN")
		put60(t, c, "b")
		err := c.Exec("COMMIT")
		var pe *vfs.PanicError
		if !errors.As(err, &pe) || !errors.Is(err, boom) || !errors.Is(err, vfs.ErrBroken) || len(pe.Stack) == 0 {
			t.Errorf("error %v", err)
		}
		wantSame(t, p, r, before)
		wantBroken(t, c, p, r, before)
	})
	t.Run("publish", func(t *testing.T) {
		c, p, r := newFixture(t, vfs.Options{})
		r.publish = func() { panic(boom) }
		if err := c.Exec(upsert, "key00", "b"); !errors.Is(err, boom) {
			t.Errorf("error %v", err)
		}
		after := image(t, p)
		r.publish = nil
		if err := r.replica.Apply(r.diff, r.count); err != nil { // what Publish would have done
			t.Fatal(err)
		}
		if !bytes.Equal(image(t, r.replica), after) {
			t.Error("the commit does not stand")
		}
		wantBroken(t, c, p, r, after)
	})
}

func TestRevert(t *testing.T) {
	for _, cache := range []int{1, 200} {
		c, p, r := newFixture(t, vfs.Options{CachePages: cache})
		before := image(t, p)
		exec(t, c, "BEGIN")
		put60(t, c, "b")
		p.Revert()
		wantBroken(t, c, p, r, before)
	}
}

// wantBroken checks that nothing gets through a broken connection, and that
// the pages are usable by the next one.
func wantBroken(t *testing.T, c *vfs.Conn, p *vfs.Pages, r *recorder, before []byte) {
	t.Helper()
	if c.Broken() == nil {
		t.Error("connection is not broken")
	}
	n := r.published
	r.admit = func(*vfs.Change) error { t.Error("Admit on a broken connection"); return nil }
	err := c.Exec(upsert, "key00", "c")
	if err == nil && c.InTransaction() {
		err = c.Exec("COMMIT")
	}
	if !errors.Is(err, vfs.ErrBroken) {
		t.Errorf("write: %v, want ErrBroken", err)
	}
	if r.published != n {
		t.Error("published on a broken connection")
	}
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	wantSame(t, p, r, before)
	r.admit = nil
	next := open(t, p, r, vfs.Options{})
	exec(t, next, upsert, "key00", "d")
	if got := text(t, next, "PRAGMA integrity_check"); got != "ok" {
		t.Error(got)
	}
	wantSame(t, p, r, image(t, p))
}

// A panic that unwinds SQLite itself: nothing of the connection is touched any more.
func TestDiscard(t *testing.T) {
	c, p, r := newFixture(t, vfs.Options{CachePages: 1})
	before := image(t, p)
	err := c.Raw().CreateFunction("boom", &sqlite.FunctionImpl{Scalar: func(sqlite.Context, []sqlite.Value) (sqlite.Value, error) { panic("boom") }})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, c, "BEGIN")
	put60(t, c, "b")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_ = c.Exec("UPDATE kv SET value=boom()")
	}()
	if !p.InTransaction() {
		t.Fatal("nothing to restore: this test shows nothing")
	}
	raw := c.Raw()
	c.Discard()
	wantSame(t, p, r, before)
	if err := c.Exec("SELECT 1"); !errors.Is(err, vfs.ErrClosed) {
		t.Errorf("after Discard: %v, want ErrClosed", err)
	}
	next := open(t, p, r, vfs.Options{})
	put60(t, next, "c")
	// The discarded connection cannot reach the pages, nor those of the next one.
	after := image(t, p)
	st, _, err := raw.PrepareTransient("INSERT INTO kv VALUES('ghost', 'x')")
	if err == nil {
		_, err = st.Step()
	}
	if err == nil {
		st, _, err = raw.PrepareTransient("COMMIT")
		if err == nil {
			_, err = st.Step()
		}
	}
	if err == nil {
		t.Error("a discarded connection committed")
	}
	wantSame(t, p, r, after)
}

// A database that may not grow fails with ErrFull, also in the middle of a
// transaction that spilled, where SQLite gives up its own rollback.
func TestFull(t *testing.T) {
	for _, cache := range []int{1, 500} {
		c, p, r := newFixture(t, vfs.Options{CachePages: cache, MaxBytes: 100 * 4096})
		before := image(t, p)
		exec(t, c, "BEGIN")
		put60(t, c, "b")
		var err error
		for i := 0; err == nil && i < 500; i++ {
			err = c.Exec(upsert, fmt.Sprintf("more%d", i), strings.Repeat("x", 1000))
		}
		if err == nil {
			err = c.Exec("COMMIT")
		}
		if !errors.Is(err, vfs.ErrFull) {
			t.Errorf("error %v, want ErrFull", err)
		}
		if c.InTransaction() {
			exec(t, c, "ROLLBACK")
		}
		if got := text(t, c, "PRAGMA integrity_check"); got != "ok" {
			t.Error(got)
		}
		if got := text(t, c, "SELECT count(*) FROM kv WHERE substr(value,1,1)='a'"); got != "60" {
			t.Errorf("%s values as before, want 60", got)
		}
		wantSame(t, p, r, before)
		exec(t, c, upsert, "key00", "c")
		wantSame(t, p, r, image(t, p))
	}
}

// SQLite's own rollback may fail (out of memory, here all I/O fails for a while).
func TestFailedRollback(t *testing.T) {
	for _, end := range []string{"go on", "close", "revert"} {
		c, p, r := newFixture(t, vfs.Options{CachePages: 1})
		before := image(t, p)
		exec(t, c, "BEGIN")
		put60(t, c, "b")
		vfs.FailIO(c, errors.New("no I/O today"))
		_ = c.Exec("ROLLBACK")
		if !p.InTransaction() {
			t.Error("the rollback did not fail: this test shows nothing")
		}
		if err := c.Exec("SELECT * FROM kv"); err == nil {
			t.Error("a statement worked without I/O")
		}
		switch end {
		case "go on":
			vfs.FailIO(c, nil)
		case "close":
			_ = c.Close()
			c = open(t, p, r, vfs.Options{})
		case "revert":
			vfs.FailIO(c, nil)
			p.Revert()
			_ = c.Close()
			c = open(t, p, r, vfs.Options{})
		}
		if got := text(t, c, "PRAGMA integrity_check"); got != "ok" {
			t.Errorf("%s: %s", end, got)
		}
		if got := text(t, c, "SELECT count(*) FROM kv WHERE substr(value,1,1)='a'"); got != "60" {
			t.Errorf("%s: %s values as before, want 60", end, got)
		}
		wantSame(t, p, r, before)
	}
}

// A limit lowered below the size only stops growth.
func TestLoweredLimit(t *testing.T) {
	c, p, r := newFixture(t, vfs.Options{})
	_ = c.Close()
	c = open(t, p, r, vfs.Options{MaxBytes: 4096})
	put60(t, c, "b")
	if err := c.Exec(upsert, "new", make([]byte, 5000)); !errors.Is(err, vfs.ErrFull) {
		t.Errorf("error %v, want ErrFull", err)
	}
	exec(t, c, "DELETE FROM kv WHERE key>'key50'")
	exec(t, c, "VACUUM")
	wantSame(t, p, r, image(t, p))
}

func TestPageSizeCannotChange(t *testing.T) {
	for _, size := range []int{1024, 65536} {
		c, p, r := newFixture(t, vfs.Options{})
		before := image(t, p)
		exec(t, c, fmt.Sprintf("PRAGMA page_size=%d", size))
		if err := c.Exec("VACUUM"); err == nil || !strings.Contains(err.Error(), "page size") {
			t.Errorf("VACUUM to pages of %d: %v", size, err)
		}
		wantSame(t, p, r, before)
		if got := text(t, c, "PRAGMA integrity_check"); got != "ok" {
			t.Error(got)
		}
		put60(t, c, "b")
		wantSame(t, p, r, image(t, p))
	}
}

// Settings that a statement could change do not let a commit pass unseen.
func TestHostilePragmas(t *testing.T) {
	for _, q := range []string{"PRAGMA journal_mode=DELETE", "PRAGMA journal_mode=WAL", "PRAGMA journal_mode=OFF",
		"PRAGMA locking_mode=NORMAL", "PRAGMA synchronous=FULL", "PRAGMA temp_store=FILE", "PRAGMA mmap_size=1000000", "PRAGMA writable_schema=ON",
		"PRAGMA cache_spill=OFF", "PRAGMA secure_delete=ON", "PRAGMA schema_version=99", "PRAGMA user_version=7", "PRAGMA max_page_count=30", "PRAGMA cache_size=0"} {
		for _, cache := range []int{1, 200} {
			c, p, r := newFixture(t, vfs.Options{CachePages: cache})
			_ = c.Exec(q)
			for i, stmt := range []string{"BEGIN", "UPDATE kv SET value=value||'1'", "ROLLBACK", "UPDATE kv SET value=value||'2'", "DELETE FROM kv WHERE key<'key30'", "VACUUM", "DELETE FROM sqlite_schema"} {
				if err := c.Exec(stmt); err != nil {
					t.Logf("%s, %s: %v", q, stmt, err)
				} else if i == 6 {
					t.Errorf("%s: the schema can be written", q)
				}
				if c.InTransaction() != (i < 2) && i != 0 {
					_ = c.Exec("ROLLBACK")
				}
				if !p.InTransaction() {
					wantSame(t, p, r, image(t, p))
				}
			}
			if got := text(t, c, "PRAGMA integrity_check"); got != "ok" {
				t.Errorf("%s: %s", q, got)
			}
		}
	}
}

func TestInterrupt(t *testing.T) {
	c, p, r := newFixture(t, vfs.Options{CachePages: 1})
	before := image(t, p)
	done := make(chan struct{})
	c.SetInterrupt(done)
	exec(t, c, "BEGIN")
	put60(t, c, "b")
	close(done)
	err := c.Exec("WITH RECURSIVE x(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM x) INSERT INTO kv SELECT 'n'||i, i FROM x")
	if !errors.Is(err, vfs.ErrInterrupt) {
		t.Errorf("error %v, want ErrInterrupt", err)
	}
	if c.InTransaction() {
		t.Error("still in a transaction")
	}
	wantSame(t, p, r, before)
	if err := c.Exec("WITH RECURSIVE x(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM x) SELECT count(*) FROM x"); !errors.Is(err, vfs.ErrInterrupt) {
		t.Errorf("read: %v, want ErrInterrupt", err)
	}
	c.SetInterrupt(nil)
	put60(t, c, "c")
	wantSame(t, p, r, image(t, p))
}

// SQLite asks its progress handler also after a statement has committed. What is
// done must not be told as interrupted.
func TestInterruptedIsNotDone(t *testing.T) {
	p := vfs.NewPages(vfs.NewAllocator(), 4096)
	r := newRecorder(4096)
	c := open(t, p, r, vfs.Options{})
	exec(t, c, "CREATE TABLE n(i INTEGER PRIMARY KEY)")
	done := make(chan struct{})
	close(done)
	c.SetInterrupt(done)
	ok, interrupted, published := 0, 0, r.published
	for range 5000 {
		switch err := c.Exec("INSERT INTO n VALUES(NULL)"); {
		case err == nil:
			ok++
		case errors.Is(err, vfs.ErrInterrupt):
			interrupted++
		default:
			t.Fatal(err)
		}
	}
	c.SetInterrupt(nil)
	if got := text(t, c, "SELECT count(*) FROM n"); got != fmt.Sprint(ok) || r.published-published != ok {
		t.Errorf("%s rows and %d commits after %d successes and %d interrupts", got, r.published-published, ok, interrupted)
	}
}

func TestForeignImageIsRefused(t *testing.T) {
	c, p, r := newFixture(t, vfs.Options{})
	_ = c.Close()
	for name, change := range map[string]func([]byte){
		"page size":  func(b []byte) { b[16], b[17] = 0x20, 0 },
		"page count": func(b []byte) { b[31]++ },
		"zeroes":     func(b []byte) { clear(b[:100]) },
	} {
		b := image(t, p)
		change(b)
		q := vfs.NewPages(vfs.NewAllocator(), 4096)
		if err := q.Load(bytes.NewReader(b), p.PageCount()); err != nil {
			t.Fatal(err)
		}
		if _, err := vfs.Open(q, r, vfs.Options{}); err == nil {
			t.Errorf("%s: opened", name)
		}
		if err := q.Load(bytes.NewReader(b[:len(b)-1]), p.PageCount()); err == nil || q.PageCount() != 0 || q.Bytes() != 0 {
			t.Errorf("%s: cut image: %v, %d pages", name, err, q.PageCount())
		}
	}
}

func TestTrim(t *testing.T) {
	c, p, r := newFixture(t, vfs.Options{CachePages: 50})
	before := c.MemoryUsed()
	c.Trim()
	if after := c.MemoryUsed(); after > before-20*4096 {
		t.Errorf("%d bytes used, %d before", after, before)
	}
	exec(t, c, "BEGIN")
	put60(t, c, "b")
	c.Trim() // pages of a running transaction stay
	if got := text(t, c, "SELECT count(*) FROM kv WHERE substr(value,1,1)='b'"); got != "60" {
		t.Errorf("%s values, want 60", got)
	}
	exec(t, c, "COMMIT")
	wantSame(t, p, r, image(t, p))
}

func TestClosed(t *testing.T) {
	c, p, _ := newFixture(t, vfs.Options{})
	if n := c.MemoryUsed(); n < 4096 || n > 200<<10 {
		t.Errorf("MemoryUsed %d", n)
	}
	if err := c.Exec("SELECT ?1", struct{}{}); err == nil {
		t.Error("an argument of a strange type was bound")
	}
	st, _, err := c.Raw().PrepareTransient("SELECT 1") // keeps sqlite3_close from closing
	if err != nil {
		t.Fatal(err)
	}
	_ = st
	before := image(t, p)
	if err := c.Close(); err == nil {
		t.Error("no error although a statement is open")
	}
	if !bytes.Equal(image(t, p), before) {
		t.Error("pages differ")
	}
	if err := c.Close(); !errors.Is(err, vfs.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if c.MemoryUsed() != 0 || c.InTransaction() || !errors.Is(c.Broken(), vfs.ErrClosed) {
		t.Error("a closed connection answers")
	}
	c.Discard()
	c.SetInterrupt(nil)
	p.Release()
	if p.Bytes() != 0 || p.PageCount() != 0 || p.Checksum() != 0 {
		t.Error("Release left pages")
	}
}
