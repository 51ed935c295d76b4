package vfs_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// recorder is a sink that keeps a replica of the database from diffs alone.
type recorder struct {
	replica   *vfs.Pages
	diff      []byte
	count     uint32
	sum       uint64
	published int
	abandoned int
	admit     func(c *vfs.Change) error // asked first
	publish   func()
}

func newRecorder(pageSize int) *recorder {
	return &recorder{replica: vfs.NewPages(vfs.NewAllocator(), pageSize)}
}

func (r *recorder) Admit(c *vfs.Change) error {
	if r.admit != nil {
		if err := r.admit(c); err != nil {
			return err
		}
	}
	r.diff = vfs.AppendDiff(r.diff[:0], c)
	r.count, r.sum = c.PageCountAfter, c.ChecksumAfter
	return nil
}

func (r *recorder) Publish() {
	r.published++
	if r.publish != nil {
		r.publish()
	}
	if err := r.replica.Apply(r.diff, r.count); err != nil {
		panic(err)
	}
	if r.replica.Checksum() != r.sum {
		panic("checksum of the replica differs")
	}
}

func (r *recorder) Abandon() { r.abandoned++ }

func open(t testing.TB, p *vfs.Pages, s vfs.Sink, o vfs.Options) *vfs.Conn {
	t.Helper()
	c, err := vfs.Open(p, s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, vfs.ErrClosed) {
			t.Error(err)
		}
	})
	return c
}

func exec(t testing.TB, c *vfs.Conn, q string, args ...any) {
	t.Helper()
	if err := c.Exec(q, args...); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

// text returns the first column of the first row.
func text(t testing.TB, c *vfs.Conn, q string) string {
	t.Helper()
	st, _, err := c.Raw().PrepareTransient(q)
	if err != nil {
		t.Fatalf("%s: %v", q, c.Explain(err))
	}
	defer func() { _ = st.Finalize() }()
	if ok, err := st.Step(); err != nil || !ok {
		t.Fatalf("%s: row %v, error %v", q, ok, c.Explain(err))
	}
	return st.ColumnText(0)
}

func image(t testing.TB, p *vfs.Pages) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := p.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCommit(t *testing.T) {
	a := vfs.NewAllocator()
	p := vfs.NewPages(a, 4096)
	r := newRecorder(4096)
	c := open(t, p, r, vfs.Options{})
	exec(t, c, "CREATE TABLE kv(k TEXT PRIMARY KEY, v BLOB) WITHOUT ROWID")
	exec(t, c, "INSERT INTO kv VALUES(?1, ?2)", "a", "b")
	if r.published != 2 {
		t.Errorf("%d commits published, want 2", r.published)
	}
	if !bytes.Equal(image(t, p), image(t, r.replica)) {
		t.Error("replica differs")
	}
	for q, want := range map[string]string{
		"PRAGMA journal_mode": "memory", "PRAGMA locking_mode": "exclusive", "PRAGMA synchronous": "0", "PRAGMA temp_store": "2",
		"PRAGMA page_size": "4096", "PRAGMA auto_vacuum": "0", "PRAGMA foreign_keys": "1", "PRAGMA trusted_schema": "0",
		"PRAGMA recursive_triggers": "0", "PRAGMA integrity_check": "ok",
	} {
		if got := text(t, c, q); got != want {
			t.Errorf("%s: %q, want %q", q, got, want)
		}
	}
	t.Log("memory used", c.MemoryUsed(), "pages", p.Bytes())
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = open(t, p, r, vfs.Options{})
	if got := text(t, c, "SELECT v FROM kv"); got != "b" {
		t.Errorf("after reopening: %q", got)
	}
}
