package vfs

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// file is the main database of one connection, the Go side of a sqlite3_file.
// After the connection is open it belongs to the goroutine that uses the connection.
type file struct {
	pages    *Pages
	sink     Sink
	maxBytes int64

	token  uint64      // part of the file's name
	opened atomic.Bool // xOpen took it; there is no second time
	closed bool        // xClose came
	broken error       // all I/O fails from now on

	admitted bool // Admit said yes, and neither Publish nor Abandon followed
	prepared bool // change is what PHASETWO makes final
	change   Change

	inSink bool // a method of the sink is running

	refused     error // what the last callback failed with
	refusedCode int32 // and the code SQLite was given for it

	done      <-chan struct{}      // statements stop when it is closed
	watch     func() bool          // or when this says so; nil never does
	authorize func(Action) Verdict // what statements may do

	// Set by callbacks while the connection opens.
	tls   *libc.TLS
	db    uintptr // sqlite3*
	pager uintptr // Pager*
}

// refuse keeps err for Explain and returns the code for SQLite.
func (f *file) refuse(err error, code int32) int32 {
	f.refused, f.refusedCode = err, code
	return code
}

// fail restores the pages as of the last commit and lets no I/O through from now on.
func (f *file) fail(err error) {
	if f.broken != nil {
		return
	}
	f.broken = err
	f.pages.mu.Lock()
	defer f.pages.mu.Unlock()
	f.giveUp()
}

// abandon tells the sink that an admitted commit is not made. A sink that
// panics here has been told. The pages' mutex is held.
func (f *file) abandon() {
	if !f.admitted {
		return
	}
	f.admitted = false
	f.inSink = true
	f.sink.Abandon()
	f.inSink = false
}

// stopPanic is deferred in each callback that runs Go code which may panic.
func (f *file) stopPanic(rc *int32) {
	v := recover()
	if v == nil {
		if !f.inSink {
			return
		}
		v = errGoexit // goes on unwinding, through SQLite too: Discard is left
	}
	f.inSink = false
	err := &PanicError{Value: v, Stack: debug.Stack()}
	func() {
		defer func() { _ = recover() }() // Abandon of a sink that has panicked already
		f.fail(err)
	}()
	*rc = f.refuse(err, lib.SQLITE_IOERR)
}

func (f *file) read(b []byte, off int64) (rc int32) {
	if f.broken != nil {
		clear(b)
		return f.refuse(f.broken, lib.SQLITE_IOERR_READ)
	}
	defer f.stopPanic(&rc)
	f.pages.mu.Lock()
	defer f.pages.mu.Unlock()
	if off == 24 && len(b) == 16 && f.pages.InTransaction() {
		// SQLite begins to read anew, as it does at first and when a rollback failed:
		// it has dropped its cache and wants to know from these bytes if the file changed.
		f.giveUp()
	}
	n, err := f.pages.readAt(b, off)
	if err != nil {
		clear(b)
		return f.refuse(err, lib.SQLITE_IOERR_READ)
	}
	if n < len(b) {
		clear(b[n:])
		return lib.SQLITE_IOERR_SHORT_READ
	}
	return lib.SQLITE_OK
}

func (f *file) write(b []byte, off int64) (rc int32) {
	if f.broken != nil {
		return f.refuse(f.broken, lib.SQLITE_IOERR_WRITE)
	}
	defer f.stopPanic(&rc)
	p := f.pages
	if len(b) != p.pageSize || off < 0 || off&int64(p.pageSize-1) != 0 {
		return f.refuse(fmt.Errorf("write of %d bytes at %d: the page size of a database cannot change, it is %d", len(b), off, p.pageSize), lib.SQLITE_IOERR_WRITE)
	}
	pgno := uint32(off>>p.shift) + 1
	if off+int64(len(b)) > f.maxBytes && pgno > p.committed {
		return f.refuse(fmt.Errorf("%w: %d bytes is the largest this database may be", ErrFull, f.maxBytes), lib.SQLITE_FULL)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.writePage(pgno, b); err != nil {
		return f.refuse(err, lib.SQLITE_IOERR_WRITE)
	}
	return lib.SQLITE_OK
}

func (f *file) truncate(n int64) (rc int32) {
	if f.broken != nil {
		return f.refuse(f.broken, lib.SQLITE_IOERR_TRUNCATE)
	}
	defer f.stopPanic(&rc)
	p := f.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.truncate(uint32((n + int64(p.pageSize) - 1) >> p.shift)); err != nil {
		return f.refuse(err, lib.SQLITE_IOERR_TRUNCATE)
	}
	return lib.SQLITE_OK
}

// sync is FCNTL_SYNC: all pages of the transaction were written. At a commit
// it admits; the file is still to be truncated to dbSize pages, after which
// COMMIT_PHASETWO follows. At the end of a rollback SQLite sends it too, if pages
// had been written: it has restored what it needs from its journal, but not
// the content of pages that were free before the transaction. Those are put
// back here, so that they do not count as changes of the next commit.
func (f *file) sync(commit bool, dbSize uint32) (rc int32) {
	if f.broken != nil {
		return f.refuse(f.broken, lib.SQLITE_IOERR_FSYNC)
	}
	defer f.stopPanic(&rc)
	p := f.pages
	ask := false
	if rc = func() int32 {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !commit {
			f.giveUp()
			return lib.SQLITE_OK
		}
		f.prepared = false
		f.abandon()
		f.refused, f.refusedCode = nil, 0
		if dbSize > 0 {
			b, err := p.first()
			if err == nil {
				err = p.header(b, dbSize)
			}
			if err != nil {
				return f.refuse(fmt.Errorf("commit refused: %w", err), lib.SQLITE_IOERR_FSYNC)
			}
		}
		if p.count < dbSize {
			return f.refuse(fmt.Errorf("%w: commit at %d pages, the file has %d", ErrCorrupt, dbSize, p.count), lib.SQLITE_CORRUPT)
		}
		if err := p.prepare(&f.change, dbSize); err != nil {
			return f.refuse(fmt.Errorf("commit refused: %w", err), lib.SQLITE_IOERR_FSYNC)
		}
		ask = len(f.change.Pages) > 0 || f.change.PageCountAfter != f.change.PageCountBefore
		f.prepared = !ask
		return lib.SQLITE_OK
	}(); !ask {
		return rc
	}
	f.inSink = true
	err := f.sink.Admit(&f.change)
	f.inSink = false
	if err != nil {
		return f.refuse(fmt.Errorf("commit refused: %w", err), refusalCode(err))
	}
	f.admitted, f.prepared = true, true
	return lib.SQLITE_OK
}

// refusalCode is the code of SQLite nearest to why a sink refused.
func refusalCode(err error) int32 {
	switch {
	case errors.Is(err, ErrFull):
		return lib.SQLITE_FULL
	case errors.Is(err, ErrTooBig):
		return lib.SQLITE_TOOBIG
	case errors.Is(err, ErrInterrupt):
		return lib.SQLITE_INTERRUPT
	}
	return lib.SQLITE_IOERR_FSYNC
}

// phaseTwo is COMMIT_PHASETWO: the commit has been made, an error would be ignored.
func (f *file) phaseTwo() {
	if f.broken != nil {
		return
	}
	var rc int32
	defer f.stopPanic(&rc)
	p := f.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	if !f.prepared {
		if p.InTransaction() {
			panic("SQLite commits pages that were never admitted")
		}
		return
	}
	if p.count != f.change.PageCountAfter {
		panic(fmt.Sprintf("SQLite commits %d pages, %d were admitted", p.count, f.change.PageCountAfter))
	}
	p.finish(&f.change)
	f.prepared = false
	if cap(f.change.Pages) > 64 {
		f.change.Pages = nil
	}
	clear(f.change.Pages)
	f.change.Pages = f.change.Pages[:0]
	if f.admitted {
		f.admitted = false
		f.inSink = true
		f.sink.Publish()
		f.inSink = false
	}
}

// unlock is xUnlock to no lock at all: no transaction goes on. In exclusive
// locking mode SQLite does not call it before it closes.
func (f *file) unlock() (rc int32) {
	defer f.stopPanic(&rc)
	f.pages.mu.Lock()
	defer f.pages.mu.Unlock()
	f.giveUp()
	return lib.SQLITE_OK
}

// giveUp drops what SQLite left of a transaction that is over. The pages' mutex
// is held.
func (f *file) giveUp() {
	f.prepared = false
	f.pages.restore()
	f.abandon()
}

func (f *file) close() {
	f.closed = true
	f.unlock()
}

// interrupted is asked every few thousand steps of a statement.
func (f *file) interrupted() bool {
	select {
	case <-f.done:
		return true
	default:
		return f.watch != nil && f.watch()
	}
}

// fileTable finds the file of a sqlite3_file by a small number, without a lock.
type fileTable struct {
	tab atomic.Pointer[[]*slot]

	mu   sync.Mutex
	free []uint32
}

type slot struct{ f atomic.Pointer[file] }

// add gives f a number.
func (t *fileTable) add(f *file) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var n uint32
	if k := len(t.free); k > 0 {
		n = t.free[k-1]
		t.free = t.free[:k-1]
	} else {
		var old []*slot
		if p := t.tab.Load(); p != nil {
			old = *p
		}
		n = uint32(len(old))
		grown := append(old, &slot{})
		t.tab.Store(&grown)
	}
	(*t.tab.Load())[n].f.Store(f)
	return n
}

// get returns the file with number n, or nil.
func (t *fileTable) get(n uint32) *file {
	p := t.tab.Load()
	if p == nil || int64(n) >= int64(len(*p)) {
		return nil
	}
	return (*p)[n].f.Load()
}

// remove makes the number n unknown. It is given out again only if reuse is set, which
// is wrong when SQLite may still hold the number.
func (t *fileTable) remove(n uint32, reuse bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	(*t.tab.Load())[n].f.Store(nil)
	if reuse {
		t.free = append(t.free, n)
	}
}
