package vfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	lib "modernc.org/sqlite/lib"
)

// script is a sink that writes down what it is told.
type script struct {
	told  []string
	onAll func(what string)
}

func (s *script) tell(what string) {
	s.told = append(s.told, what)
	if s.onAll != nil {
		s.onAll(what)
	}
}
func (s *script) Admit(c *Change) error {
	s.tell(fmt.Sprintf("admit %d", c.PageCountAfter))
	return nil
}
func (s *script) Publish() { s.tell("publish") }
func (s *script) Abandon() { s.tell("abandon") }

// page returns page 1 of a database of count pages, or another page.
func testPage(pgno, count uint32, fill byte) []byte {
	b := bytes.Repeat([]byte{fill}, 512)
	if pgno == 1 {
		binary.BigEndian.PutUint16(b[16:], 512)
		b[18], b[19] = 1, 1
		binary.BigEndian.PutUint32(b[28:], count)
	}
	return b
}

func newTestFile() (*file, *Pages, *script) {
	s := &script{}
	p := NewPages(NewAllocator(), 512)
	f := &file{pages: p, sink: s, maxBytes: MaxBytes}
	p.file = f
	return f, p, s
}

func write(t *testing.T, f *file, pages uint32, fill byte) {
	t.Helper()
	for i := uint32(1); i <= pages; i++ {
		if rc := f.write(testPage(i, pages, fill), int64(i-1)*512); rc != lib.SQLITE_OK {
			t.Fatalf("write: %d", rc)
		}
	}
}

func commit(t *testing.T, f *file, pages uint32) {
	t.Helper()
	if rc := f.sync(true, pages); rc != lib.SQLITE_OK {
		t.Fatalf("sync: %d: %v", rc, f.refused)
	}
	f.phaseTwo()
}

// Every way an admitted commit can fail to be published tells the sink so, once,
// and restores the pages.
func TestAbandon(t *testing.T) {
	for name, end := range map[string]func(f *file){
		"rollback":    func(f *file) { f.sync(false, 3) },
		"unlock":      func(f *file) { f.unlock() },
		"close":       func(f *file) { f.close() },
		"read anew":   func(f *file) { f.read(make([]byte, 16), 24) },
		"revert":      func(f *file) { f.pages.Revert() },
		"write panic": func(f *file) { f.pages.slabs = nil; f.pages.class = nil; f.write(make([]byte, 512), 512*100) },
	} {
		t.Run(name, func(t *testing.T) {
			f, p, s := newTestFile()
			write(t, f, 3, 'a')
			commit(t, f, 3)
			sum := p.Checksum()
			write(t, f, 5, 'b')
			if rc := f.sync(true, 5); rc != lib.SQLITE_OK {
				t.Fatal(rc)
			}
			if name == "write panic" {
				class := p.class
				defer func() { p.class = class }()
				if rc := f.read(make([]byte, 512), 0); rc != lib.SQLITE_OK {
					t.Fatal(rc)
				}
				p.alloc = nil // a bug of ours
				if rc := f.write(testPage(9, 9, 'c'), 8*512); rc == lib.SQLITE_OK || f.broken == nil {
					t.Fatal("a panic was not stopped")
				}
				if got := strings.Join(s.told, ", "); got != "admit 3, publish, admit 5" && got != "admit 3, publish, admit 5, abandon" {
					t.Errorf("the sink was told %s", got)
				}
				return
			}
			end(f)
			end(f)
			f.phaseTwo()
			if got, want := strings.Join(s.told, ", "), "admit 3, publish, admit 5, abandon"; got != want {
				t.Errorf("the sink was told %s, want %s", got, want)
			}
			if p.InTransaction() || p.Checksum() != sum || !bytes.Equal(pageOf(p, 3), testPage(3, 3, 'a')) || pageOf(p, 4) != nil {
				t.Error("pages differ from the last commit")
			}
			if p.Bytes() != 3*512 || p.alloc.Bytes() != 3*512 {
				t.Errorf("%d bytes in use, allocator %d", p.Bytes(), p.alloc.Bytes())
			}
		})
	}
}

// A second FCNTL_SYNC of a commit replaces the first; what is published is what was admitted last.
func TestAdmittedAgain(t *testing.T) {
	f, _, s := newTestFile()
	write(t, f, 3, 'a')
	if rc := f.sync(true, 3); rc != lib.SQLITE_OK {
		t.Fatal(rc)
	}
	write(t, f, 4, 'b')
	commit(t, f, 4)
	if got, want := strings.Join(s.told, ", "), "admit 3, abandon, admit 4, publish"; got != want {
		t.Errorf("the sink was told %s, want %s", got, want)
	}
}

// COMMIT_PHASETWO of anything but what was admitted breaks the connection; it must not publish.
func TestUnadmittedCommit(t *testing.T) {
	for name, run := range map[string]func(f *file){
		"no sync":        func(f *file) { f.phaseTwo() },
		"not truncated":  func(f *file) { f.sync(true, 2); f.phaseTwo() },
		"sync too early": func(f *file) { f.sync(false, 3); f.write(testPage(2, 3, 'c'), 512); f.phaseTwo() },
	} {
		t.Run(name, func(t *testing.T) {
			f, p, s := newTestFile()
			write(t, f, 3, 'a')
			commit(t, f, 3)
			sum := p.Checksum()
			f.write(testPage(1, 2, 'b'), 0)
			run(f)
			if f.broken == nil || p.Checksum() != sum || p.InTransaction() {
				t.Errorf("broken: %v, in transaction: %v", f.broken, p.InTransaction())
			}
			for _, w := range s.told[2:] {
				if w == "publish" {
					t.Errorf("the sink was told %v", s.told)
				}
			}
			if rc := f.write(testPage(1, 3, 'x'), 0); rc == lib.SQLITE_OK {
				t.Error("a broken connection writes")
			}
		})
	}
}

func TestTruncateAndGrowInOneTransaction(t *testing.T) {
	f, p, _ := newTestFile()
	write(t, f, 5, 'a')
	commit(t, f, 5)
	sum := p.Checksum()
	f.truncate(2 * 512)
	f.write(testPage(5, 5, 'a'), 4*512) // page 5 as it was, 3 and 4 are holes
	f.truncate(3 * 512)
	f.write(testPage(4, 4, 'z'), 3*512)
	f.sync(false, 0)
	if p.Checksum() != sum || p.Bytes() != 5*512 {
		t.Fatal("not restored")
	}
	f.truncate(2 * 512)
	f.write(testPage(5, 5, 'a'), 4*512)
	commit(t, f, 5)
	if pageOf(p, 3) != nil || pageOf(p, 4) != nil || !bytes.Equal(pageOf(p, 5), testPage(5, 5, 'a')) {
		t.Error("pages differ")
	}
	// Holes and pages of zeroes have one checksum.
	q := NewPages(NewAllocator(), 512)
	var b bytes.Buffer
	if _, err := p.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if err := q.Load(&b, 5); err != nil {
		t.Fatal(err)
	}
	if q.Checksum() != p.Checksum() {
		t.Error("the checksum of a hole is not that of zeroes")
	}
}

func TestWriteBounds(t *testing.T) {
	f, _, _ := newTestFile()
	write(t, f, 1, 'a')
	for name, tc := range map[string]struct {
		n   int
		off int64
		rc  int32
	}{
		"half a page":   {256, 0, lib.SQLITE_IOERR_WRITE},
		"two pages":     {1024, 0, lib.SQLITE_IOERR_WRITE},
		"between pages": {512, 100, lib.SQLITE_IOERR_WRITE},
		"before":        {512, -512, lib.SQLITE_IOERR_WRITE},
		"at the limit":  {512, MaxBytes, lib.SQLITE_FULL},
		"far":           {512, 1 << 62, lib.SQLITE_FULL},
	} {
		if rc := f.write(make([]byte, tc.n), tc.off); rc != tc.rc {
			t.Errorf("%s: code %d, want %d", name, rc, tc.rc)
		}
	}
}

func TestGoexitInSink(t *testing.T) {
	f, p, s := newTestFile()
	write(t, f, 2, 'a')
	commit(t, f, 2)
	sum := p.Checksum()
	s.onAll = func(string) { // what runtime.Goexit does to deferred functions: no panic to recover
		f.stopPanic(new(int32))
	}
	write(t, f, 2, 'b')
	f.sync(true, 2)
	if !errors.Is(f.broken, errGoexit) || !errors.Is(f.broken, ErrBroken) {
		t.Errorf("broken: %v", f.broken)
	}
	if p.Checksum() != sum {
		t.Error("not restored")
	}
}

// Lookaside is two pools of memory per connection; sqlite3_config, which would
// turn it off for the whole process, is not ours to call.
func TestLookasideIsOff(t *testing.T) {
	p := NewPages(NewAllocator(), 4096)
	c, err := Open(p, &script{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.Exec("CREATE TABLE t(x)"); err != nil {
		t.Fatal(err)
	}
	db := (*lib.Tsqlite3)(unsafe.Pointer(c.file.db))
	if db.Flookaside.FnSlot != 0 || db.Flookaside.FpStart != 0 {
		t.Errorf("lookaside of %d slots", db.Flookaside.FnSlot)
	}
}

func TestFileTable(t *testing.T) {
	var tab fileTable
	if tab.get(0) != nil {
		t.Error("an empty table has a file")
	}
	a, b := &file{}, &file{}
	i, j := tab.add(a), tab.add(b)
	if tab.get(i) != a || tab.get(j) != b || tab.get(j+1) != nil {
		t.Error("wrong file")
	}
	tab.remove(i, false)
	if tab.get(i) != nil {
		t.Error("a removed file is found")
	}
	if k := tab.add(a); k == i {
		t.Error("a number that SQLite may hold was given out again")
	}
	tab.remove(j, true)
	if k := tab.add(a); k != j {
		t.Errorf("number %d, want %d again", k, j)
	}
}

func TestFileName(t *testing.T) {
	for _, s := range []string{"", "o", "o-", "-1", "o1", "x1-1", "o4294967296-1", "o1-10000000000000000", "o1-x"} {
		if _, _, ok := parseFileName(s); ok {
			t.Errorf("%q is taken for a name", s)
		}
	}
	n, token, ok := parseFileName(fileName(7, 1<<63))
	if n != 7 || token != 1<<63 || !ok {
		t.Error(n, token, ok)
	}
}
