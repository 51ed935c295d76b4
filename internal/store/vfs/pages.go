package vfs

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
)

// MaxBytes is the largest database in bytes (SPEC H70). A transaction that
// would pass it fails with ErrFull.
const MaxBytes = 10 << 30

// Pages holds the page images of one database. It is empty at first; a
// connection (Open), the diffs of commits (Apply) or an image (Load) fill it.
//
// A Pages is used by one goroutine at a time, except for PageSize, Bytes, Drop
// and a Snapshot, for which there is a mutex (see Share). While a connection is
// open, all methods but Apply, Load and Release may be called between its
// statements.
type Pages struct {
	mu  *sync.Mutex // own, or that of Share
	own sync.Mutex

	alloc    *Allocator
	class    *class
	slabs    []*slab // copy of class.slabs; refreshed when a newer page needs it
	pageSize int
	shift    int // pageSize = 1 << shift

	table     []entry // by pgno-1; pages at its end or beyond are holes
	count     uint32  // pages now, the running transaction included
	committed uint32  // pages after the last commit
	sum       uint64  // of the pages after the last commit, without countSum
	undo      []undo  // one for each dirty entry, in order of the first change
	held      int     // pages in use, those of undo included
	stale     bool    // some entries are
	kept              // pages that are elsewhere: see source.go

	file *file // the open connection, or nil
}

// entry is one page. Sum belongs to the committed image; it is renewed when a
// commit is prepared, and undo has the old one.
type entry struct {
	ref   ref // 0: a hole, which reads as zeroes, or a page of the source (Pages.absent)
	flags flags
	sum   uint64
}

// flags of an entry.
type flags uint8

const (
	dirty   flags = 1 << iota // changed by the running transaction: undo has what was before
	stale                     // sum is that of an image before: Apply changed the page since
	changed                   // committed since the last snapshot that was saved: not what the source has
	after                     // changed since the snapshot that is being saved
	used                      // read or written since the clock hand passed
	summed                    // sum is known though the page is in the source
)

func (e *entry) is(f flags) bool { return e.flags&f != 0 }

// undo is a page as the last commit left it.
type undo struct {
	pgno  uint32
	ref   ref
	flags flags
	sum   uint64
}

// NewPages returns an empty database. It panics if pageSize is none of
// 512, 1024 … 65536 bytes (see ValidPageSize).
func NewPages(a *Allocator, pageSize int) *Pages {
	if !ValidPageSize(pageSize) {
		panic(fmt.Sprintf("vfs: page size %d is no power of two from %d to %d", pageSize, MinPageSize, MaxPageSize))
	}
	p := &Pages{alloc: a, class: a.classOf(pageSize), pageSize: pageSize}
	p.mu = &p.own
	for 1<<p.shift < pageSize {
		p.shift++
	}
	return p
}

// PageSize returns the size of a page in bytes.
func (p *Pages) PageSize() int { return p.pageSize }

// PageCount returns the number of pages after the last commit.
func (p *Pages) PageCount() uint32 { return p.committed }

// Bytes returns the bytes of the allocator in use by this database, images
// before the running transaction included.
func (p *Pages) Bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.held) * int64(p.pageSize)
}

// Checksum returns the checksum of the database as of the last commit: the
// XOR of one hash per page and one of the page count. It costs nothing but the
// hashes of pages that Apply changed since the last call, does not depend on
// the history of the pages, and is stable across processes, machines and
// versions. An empty database has 0.
func (p *Pages) Checksum() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checksum()
}

func (p *Pages) checksum() uint64 {
	p.settle()
	return p.sum ^ countSum(p.committed)
}

// settle hashes the pages that Apply changed.
func (p *Pages) settle() {
	if !p.stale {
		return
	}
	p.stale = false
	for i := range p.table {
		e := &p.table[i]
		if e.is(stale) {
			s := pageSum(uint32(i+1), p.view(e.ref))
			p.sum ^= e.sum ^ s
			e.sum = s
			e.flags &^= stale
		}
	}
}

// InTransaction reports whether there are changes that no commit made final.
func (p *Pages) InTransaction() bool { return len(p.undo) > 0 || p.count != p.committed }

// Page returns the image of page pgno (from 1) as of the last commit, or nil
// for a page that was never written (it reads as zeroes) or does not exist. It is
// valid until the next call or statement that changes the database. The error is
// the source's.
func (p *Pages) Page(pgno uint32) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pgno == 0 || pgno > p.committed {
		return nil, nil
	}
	if g := p.committedPage(pgno, p.before()); g.absent {
		b := make([]byte, p.pageSize)
		return b, p.src.ReadPage(pgno, b)
	} else if g.ref != 0 {
		return p.view(g.ref), nil
	}
	return nil, nil
}

// before finds the undo of dirty pages; it is nil without a transaction.
func (p *Pages) before() map[uint32]*undo {
	if len(p.undo) == 0 {
		return nil
	}
	m := make(map[uint32]*undo, len(p.undo))
	for i := range p.undo {
		m[p.undo[i].pgno] = &p.undo[i]
	}
	return m
}

// committedPage says where the image of a page is as of the last commit.
func (p *Pages) committedPage(pgno uint32, before map[uint32]*undo) snapPage {
	var r ref
	var f flags
	if int(pgno) <= len(p.table) {
		r, f = p.table[pgno-1].ref, p.table[pgno-1].flags
	}
	if u := before[pgno]; u != nil {
		r, f = u.ref, u.flags
	}
	return snapPage{pgno, r, p.absent(pgno, r, f)}
}

// WriteTo writes the database as of the last commit to w: the bytes of a plain
// SQLite file. Pages of the source pass through without staying in memory.
func (p *Pages) WriteTo(w io.Writer) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.before()
	buf := make([]byte, p.pageSize)
	var n int64
	for pgno := uint32(1); pgno <= p.committed; pgno++ {
		b := zeroes[:p.pageSize]
		if g := p.committedPage(pgno, before); g.absent {
			if err := p.src.ReadPage(pgno, buf); err != nil {
				return n, fmt.Errorf("read page %d: %w", pgno, err)
			}
			b = buf
		} else if g.ref != 0 {
			b = p.view(g.ref)
		}
		m, err := w.Write(b)
		n += int64(m)
		if err != nil {
			return n, fmt.Errorf("write page %d: %w", pgno, err)
		}
	}
	return n, nil
}

// Load replaces the database by pageCount pages read from r, the bytes of a
// plain SQLite file. It returns ErrOpen while a connection is open and
// ErrMalformed when pageCount passes MaxBytes; after an error of r the database is empty.
func (p *Pages) Load(r io.Reader, pageCount uint32) error {
	if p.file != nil {
		return fmt.Errorf("load image: %w", ErrOpen)
	}
	if err := p.checkCount(pageCount); err != nil {
		return err
	}
	p.Release()
	p.mu.Lock()
	defer p.mu.Unlock()
	for pgno := uint32(1); pgno <= pageCount; pgno++ {
		b := p.newPage(pgno)
		p.count, p.committed = pgno, pgno
		if _, err := io.ReadFull(r, b); err != nil {
			p.release()
			return fmt.Errorf("load page %d of %d: %w", pgno, pageCount, err)
		}
		s := pageSum(pgno, b)
		p.table[pgno-1].sum = s
		p.sum ^= s
	}
	return nil
}

// Apply replays one commit: diff as AppendDiff made it, pageCount as the
// commit left it. The database must be in the state before that commit; that
// it was shows in Checksum afterwards. It returns ErrMalformed, with nothing
// changed, if the diff does not follow the format, and ErrOpen while a
// connection is open.
func (p *Pages) Apply(diff []byte, pageCount uint32) error {
	if p.file != nil {
		return fmt.Errorf("apply page diff: %w", ErrOpen)
	}
	if err := p.checkCount(pageCount); err != nil {
		return err
	}
	if err := checkDiff(diff, p.pageSize, pageCount); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.snap != nil {
		panic("vfs: Apply while a snapshot is being saved")
	}
	if err := p.cut(pageCount); err != nil {
		return err
	}
	p.grew(pageCount)
	p.count, p.committed = pageCount, pageCount
	d := diffReader{b: diff, pageSize: p.pageSize, pageCount: pageCount}
	for {
		pgno, fresh, _ := d.page()
		if pgno == 0 {
			break
		}
		if err := p.applyPage(&d, pgno, fresh); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pages) applyPage(d *diffReader, pgno uint32, fresh bool) error {
	pos, data, _ := d.ranges()
	if data == nil && !fresh {
		return nil // unchanged
	}
	if fresh {
		if _, err := p.sumOf(pgno); err != nil {
			return err
		}
	} else if err := p.fetch(pgno); err != nil {
		return err
	}
	if data == nil { // all zeroes: no page is needed
		if int(pgno) <= len(p.table) {
			e := &p.table[pgno-1]
			p.free(e.ref)
			p.sum ^= e.sum
			*e = entry{flags: e.flags & changed}
			p.mark(pgno)
		}
		return nil
	}
	var b []byte
	if int(pgno) <= len(p.table) && p.table[pgno-1].ref != 0 {
		b = p.view(p.table[pgno-1].ref)
		if fresh {
			clear(b)
		}
	} else {
		b = p.newPage(pgno)
		clear(b)
	}
	for ; data != nil; pos, data, _ = d.ranges() {
		copy(b[pos:], data)
	}
	p.table[pgno-1].flags |= stale
	p.stale = true
	p.mark(pgno)
	return nil
}

// Revert restores the images before the running transaction and ends the use
// of the connection, if one is open: all it can do then is close. It is for
// when SQLite cannot be asked to roll back, because it panicked or because
// the turn was fenced.
func (p *Pages) Revert() {
	if f := p.file; f != nil {
		f.fail(fmt.Errorf("%w: its transaction was reverted", ErrBroken))
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restore()
}

// Release gives all pages back to the allocator and leaves an empty database.
// It panics while a connection is open.
func (p *Pages) Release() {
	if p.file != nil {
		panic("vfs: Release of pages with an open connection")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release()
}

func (p *Pages) release() {
	p.restore()
	refs := make([]ref, 0, len(p.table))
	for i := range p.table {
		if r := p.table[i].ref; r != 0 {
			refs = append(refs, r)
		}
	}
	p.drop(refs...)
	if p.snap != nil { // it goes on with what it has
		p.snap.orphan = true
	}
	p.table, p.undo, p.slabs = nil, nil, nil
	p.count, p.committed, p.sum, p.stale = 0, 0, 0, false
	p.kept = kept{}
}

func (p *Pages) checkCount(pageCount uint32) error {
	if int64(pageCount)<<p.shift > MaxBytes {
		return fmt.Errorf("%w: %d pages of %d bytes pass the limit of %d bytes", ErrMalformed, pageCount, p.pageSize, int64(MaxBytes))
	}
	return nil
}

// cut ends the committed database at page n; there is no transaction.
func (p *Pages) cut(n uint32) error {
	if n >= p.committed {
		return nil
	}
	for pgno := n + 1; pgno <= p.committed; pgno++ {
		sum, err := p.sumOf(pgno)
		if err != nil {
			return err
		}
		p.sum ^= sum
	}
	if int(n) < len(p.table) {
		refs := make([]ref, 0, len(p.table)-int(n))
		for i := int(n); i < len(p.table); i++ {
			if r := p.table[i].ref; r != 0 {
				refs = append(refs, r)
			}
		}
		p.drop(refs...)
		clear(p.table[n:])
		p.table = p.table[:n]
	}
	p.fell(n)
	return nil
}

func (p *Pages) view(r ref) []byte {
	num := int(r-1) >> p.class.shift
	if num >= len(p.slabs) {
		p.slabs = *p.class.slabs.Load()
	}
	s := p.slabs[num]
	i := (int(r-1) & (p.class.perSlab - 1)) << p.shift
	return s.mem[i : i+p.pageSize : i+p.pageSize]
}

// entryOf returns the entry of pgno, growing the table up to it.
func (p *Pages) entryOf(pgno uint32) *entry {
	if n := int(pgno); n > len(p.table) {
		p.table = slices.Grow(p.table, n-len(p.table))
		old := len(p.table)
		p.table = p.table[:n]
		clear(p.table[old:])
	}
	return &p.table[pgno-1]
}

// newPage gives the hole pgno a page with undefined content.
func (p *Pages) newPage(pgno uint32) []byte {
	e := p.entryOf(pgno)
	e.ref = p.alloc.alloc(p.class)
	p.held++
	return p.view(e.ref)
}

// free gives back a page that no snapshot can have.
func (p *Pages) free(r ref) {
	if r != 0 {
		p.held--
		p.alloc.release(p.class, r)
	}
}

// drop gives back committed pages, after the snapshot that may have them.
func (p *Pages) drop(refs ...ref) {
	p.held -= len(refs)
	if p.snap != nil {
		p.snap.deferred = append(p.snap.deferred, refs...)
		return
	}
	if len(refs) > 0 {
		p.alloc.release(p.class, refs...)
	}
}

// The rest is the side of the VFS: reads and writes of the running transaction.
// mu is held.

// readAt fills b from offset off and returns how many bytes exist there.
func (p *Pages) readAt(b []byte, off int64) (int, error) {
	size := int64(p.count) << p.shift
	n := 0
	for n < len(b) && off < size {
		i := int(off >> p.shift)
		in := int(off) & (p.pageSize - 1)
		m := min(len(b)-n, p.pageSize-in)
		if err := p.fetch(uint32(i + 1)); err != nil {
			return n, err
		}
		if i < len(p.table) && p.table[i].ref != 0 {
			copy(b[n:n+m], p.view(p.table[i].ref)[in:])
		} else {
			clear(b[n : n+m])
		}
		n += m
		off += int64(m)
	}
	return n, nil
}

// writePage sets page pgno; the first write since the last commit keeps the
// image before.
func (p *Pages) writePage(pgno uint32, b []byte) error {
	if err := p.fetch(pgno); err != nil {
		return err
	}
	e := p.entryOf(pgno)
	if !e.is(dirty) {
		p.undo = append(p.undo, undo{pgno, e.ref, e.flags, e.sum})
		e.flags |= dirty
		e.ref = 0
	}
	if e.ref == 0 {
		e.ref = p.alloc.alloc(p.class)
		p.held++
	}
	copy(p.view(e.ref), b)
	p.count = max(p.count, pgno)
	return nil
}

// truncate ends the database at page n.
func (p *Pages) truncate(n uint32) error {
	if n < p.committed {
		p.entryOf(p.committed)
	}
	for i := int(n); i < len(p.table); i++ {
		e := &p.table[i]
		switch {
		case e.is(dirty):
			p.free(e.ref)
			e.ref = 0
		case e.ref != 0 || p.absent(uint32(i+1), e.ref, e.flags):
			if _, err := p.sumOf(uint32(i + 1)); err != nil {
				return err
			}
			p.undo = append(p.undo, undo{uint32(i + 1), e.ref, e.flags, e.sum})
			e.flags |= dirty
			e.ref = 0
		}
	}
	p.count = n
	return nil
}

// prepare makes the change that a commit at n pages would be, in c: c.Pages is
// sorted and has only pages that differ. The page count may still be larger than n.
func (p *Pages) prepare(c *Change, n uint32) error {
	c.PageSize = p.pageSize
	c.PageCountBefore, c.PageCountAfter = p.committed, n
	c.ChecksumBefore = p.checksum()
	c.Pages = c.Pages[:0]
	sum := p.sum
	for i := range p.undo {
		u := &p.undo[i]
		sum ^= u.sum
		if u.pgno > n {
			continue
		}
		e := &p.table[u.pgno-1]
		after, before := zeroes[:p.pageSize], []byte(nil)
		e.sum = 0
		if e.ref != 0 {
			after = p.view(e.ref)
			e.sum = pageSum(u.pgno, after)
		}
		sum ^= e.sum
		if u.ref != 0 {
			before = p.view(u.ref)
			if e.sum == u.sum && string(before) == string(after) {
				continue
			}
		} else if u.sum == e.sum && string(after) == string(zeroes[:p.pageSize]) {
			continue
		}
		c.Pages = append(c.Pages, PageChange{Pgno: u.pgno, Before: before, After: after})
	}
	for pgno := n + 1; pgno <= p.committed; pgno++ {
		if int(pgno) > len(p.table) || !p.table[pgno-1].is(dirty) {
			s, err := p.sumOf(pgno)
			if err != nil {
				return err
			}
			sum ^= s
		}
	}
	byPgno := func(a, b PageChange) int { return int(a.Pgno) - int(b.Pgno) }
	if !slices.IsSortedFunc(c.Pages, byPgno) {
		slices.SortFunc(c.Pages, byPgno)
	}
	c.sum = sum
	c.ChecksumAfter = sum ^ countSum(n)
	return nil
}

// finish makes the prepared change final. The page count must be the change's.
func (p *Pages) finish(c *Change) {
	var few [16]ref
	refs := few[:0]
	p.grew(p.count)
	for i := range p.undo {
		u := &p.undo[i]
		if u.ref != 0 {
			refs = append(refs, u.ref)
		}
		e := &p.table[u.pgno-1]
		e.flags &^= dirty | summed
		if u.pgno > p.count {
			e.sum = 0
		} else {
			p.mark(u.pgno)
		}
	}
	p.drop(refs...)
	if int(p.count) < len(p.table) {
		clear(p.table[p.count:])
		p.table = p.table[:p.count]
	}
	p.forgetUndo()
	p.fell(p.count)
	p.committed, p.sum = p.count, c.sum
}

// restore puts all back as the last commit left it.
func (p *Pages) restore() {
	for i := range p.undo {
		u := &p.undo[i]
		e := &p.table[u.pgno-1]
		p.free(e.ref)
		*e = entry{ref: u.ref, flags: u.flags, sum: u.sum}
	}
	if int(p.committed) < len(p.table) {
		clear(p.table[p.committed:])
		p.table = p.table[:p.committed]
	}
	p.forgetUndo()
	p.count = p.committed
}

// forgetUndo empties the undo list; a big one goes back to Go.
func (p *Pages) forgetUndo() {
	if cap(p.undo) > 64 {
		p.undo = nil
	}
	p.undo = p.undo[:0]
}

// header checks what page 1 says of the database, b being its image: the page
// size, the journal mode, and the page count, which must be count.
func (p *Pages) header(b []byte, count uint32) error {
	size := int(binary.BigEndian.Uint16(b[16:]))
	if size == 1 {
		size = MaxPageSize
	}
	if size != p.pageSize {
		return fmt.Errorf("page size %d in the header, %d in the store: the page size of a database cannot change", size, p.pageSize)
	}
	if b[18] != 1 || b[19] != 1 { // would be there for good, and no connection could open it
		return fmt.Errorf("file format %d/%d in bytes 18 and 19 of the header, must be 1: a database cannot be in WAL mode", b[18], b[19])
	}
	if n := binary.BigEndian.Uint32(b[28:]); n != count {
		return fmt.Errorf("%w: %d pages in the header, %d in the database", ErrCorrupt, n, count)
	}
	return nil
}
