package vfs

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// MaxBytes is the largest database in bytes (SPEC H70). A transaction that
// would pass it fails with ErrFull.
const MaxBytes = 10 << 30

// Pages holds the page images of one database. It is empty at first; a
// connection (Open), the diffs of commits (Apply) or an image (Load) fill it.
//
// A Pages is not safe for concurrent use, except for PageSize. While a
// connection is open, all methods but Apply, Load and Release may be called
// between its statements.
type Pages struct {
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

	file *file // the open connection, or nil
}

// entry is one page. Sum belongs to the committed image; it is renewed when a
// commit is prepared, and undo has the old one.
type entry struct {
	ref   ref // 0: a hole, which reads as zeroes
	dirty bool
	stale bool // sum is that of an image before: Apply changed the page since
	sum   uint64
}

// undo is a page as the last commit left it.
type undo struct {
	pgno uint32
	ref  ref
	sum  uint64
}

// NewPages returns an empty database. It panics if pageSize is none of
// 512, 1024 … 65536 bytes (see ValidPageSize).
func NewPages(a *Allocator, pageSize int) *Pages {
	if !ValidPageSize(pageSize) {
		panic(fmt.Sprintf("vfs: page size %d is no power of two from %d to %d", pageSize, MinPageSize, MaxPageSize))
	}
	p := &Pages{alloc: a, class: a.classOf(pageSize), pageSize: pageSize}
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
func (p *Pages) Bytes() int64 { return int64(p.held) * int64(p.pageSize) }

// Checksum returns the checksum of the database as of the last commit: the
// XOR of one hash per page and one of the page count. It costs nothing but the
// hashes of pages that Apply changed since the last call, does not depend on
// the history of the pages, and is stable across processes, machines and
// versions. An empty database has 0.
func (p *Pages) Checksum() uint64 {
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
		if e.stale {
			s := pageSum(uint32(i+1), p.view(e.ref))
			p.sum ^= e.sum ^ s
			e.sum, e.stale = s, false
		}
	}
}

// InTransaction reports whether there are changes that no commit made final.
func (p *Pages) InTransaction() bool { return len(p.undo) > 0 || p.count != p.committed }

// Page returns the image of page pgno (from 1) as of the last commit, or nil
// for a page that was never written (it reads as zeroes) or does not exist. It is
// valid until the next call or statement that changes the database.
func (p *Pages) Page(pgno uint32) []byte {
	if pgno == 0 || pgno > p.committed || int(pgno) > len(p.table) {
		return nil
	}
	r := p.table[pgno-1].ref
	if p.table[pgno-1].dirty {
		for i := range p.undo {
			if p.undo[i].pgno == pgno {
				r = p.undo[i].ref
			}
		}
	}
	if r == 0 {
		return nil
	}
	return p.view(r)
}

// WriteTo writes the database as of the last commit to w: the bytes of a plain
// SQLite file.
func (p *Pages) WriteTo(w io.Writer) (int64, error) {
	before := map[uint32]ref{}
	for i := range p.undo {
		before[p.undo[i].pgno] = p.undo[i].ref
	}
	var n int64
	for pgno := uint32(1); pgno <= p.committed; pgno++ {
		b := zeroes[:p.pageSize]
		r, ok := before[pgno]
		if !ok && int(pgno) <= len(p.table) {
			r = p.table[pgno-1].ref
		}
		if r != 0 {
			b = p.view(r)
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
	for pgno := uint32(1); pgno <= pageCount; pgno++ {
		b := p.newPage(pgno)
		p.count, p.committed = pgno, pgno
		if _, err := io.ReadFull(r, b); err != nil {
			p.Release()
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
	p.cut(pageCount)
	d := diffReader{b: diff, pageSize: p.pageSize, pageCount: pageCount}
	for {
		pgno, fresh, _ := d.page()
		if pgno == 0 {
			break
		}
		p.applyPage(&d, pgno, fresh)
	}
	p.count, p.committed = pageCount, pageCount
	return nil
}

func (p *Pages) applyPage(d *diffReader, pgno uint32, fresh bool) {
	pos, data, _ := d.ranges()
	if data == nil { // all zeroes if fresh, unchanged otherwise: no page is needed
		if fresh && int(pgno) <= len(p.table) {
			e := &p.table[pgno-1]
			p.free(e.ref)
			p.sum ^= e.sum
			*e = entry{}
		}
		return
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
	p.table[pgno-1].stale, p.stale = true, true
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
	p.restore()
}

// Release gives all pages back to the allocator and leaves an empty database.
// It panics while a connection is open.
func (p *Pages) Release() {
	if p.file != nil {
		panic("vfs: Release of pages with an open connection")
	}
	p.restore()
	p.cut(0)
	p.table, p.undo, p.slabs = nil, nil, nil
	p.count, p.committed, p.sum, p.stale = 0, 0, 0, false
}

func (p *Pages) checkCount(pageCount uint32) error {
	if int64(pageCount)<<p.shift > MaxBytes {
		return fmt.Errorf("%w: %d pages of %d bytes pass the limit of %d bytes", ErrMalformed, pageCount, p.pageSize, int64(MaxBytes))
	}
	return nil
}

// cut ends the committed database at page n; there is no transaction.
func (p *Pages) cut(n uint32) {
	if int(n) >= len(p.table) {
		return
	}
	refs := make([]ref, 0, len(p.table)-int(n))
	for i := int(n); i < len(p.table); i++ {
		if r := p.table[i].ref; r != 0 {
			refs = append(refs, r)
		}
		p.sum ^= p.table[i].sum
	}
	p.held -= len(refs)
	p.alloc.release(p.class, refs...)
	clear(p.table[n:])
	p.table = p.table[:n]
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

func (p *Pages) free(r ref) {
	if r != 0 {
		p.held--
		p.alloc.release(p.class, r)
	}
}

// The rest is the side of the VFS: reads and writes of the running transaction.

// readAt fills b from offset off and returns how many bytes exist there.
func (p *Pages) readAt(b []byte, off int64) int {
	size := int64(p.count) << p.shift
	n := 0
	for n < len(b) && off < size {
		i := int(off >> p.shift)
		in := int(off) & (p.pageSize - 1)
		m := min(len(b)-n, p.pageSize-in)
		if i < len(p.table) && p.table[i].ref != 0 {
			copy(b[n:n+m], p.view(p.table[i].ref)[in:])
		} else {
			clear(b[n : n+m])
		}
		n += m
		off += int64(m)
	}
	return n
}

// writePage sets page pgno; the first write since the last commit keeps the
// image before.
func (p *Pages) writePage(pgno uint32, b []byte) {
	e := p.entryOf(pgno)
	if !e.dirty {
		p.undo = append(p.undo, undo{pgno, e.ref, e.sum})
		e.dirty = true
		e.ref = 0
	}
	if e.ref == 0 {
		e.ref = p.alloc.alloc(p.class)
		p.held++
	}
	copy(p.view(e.ref), b)
	p.count = max(p.count, pgno)
}

// truncate ends the database at page n.
func (p *Pages) truncate(n uint32) {
	for i := int(n); i < len(p.table); i++ {
		e := &p.table[i]
		switch {
		case e.dirty:
			p.free(e.ref)
			e.ref = 0
		case e.ref != 0:
			p.undo = append(p.undo, undo{uint32(i + 1), e.ref, e.sum})
			e.dirty = true
			e.ref = 0
		}
	}
	p.count = n
}

// prepare makes the change that a commit at n pages would be, in c: c.Pages is
// sorted and has only pages that differ. The page count may still be larger than n.
func (p *Pages) prepare(c *Change, n uint32) {
	c.PageSize = p.pageSize
	c.PageCountBefore, c.PageCountAfter = p.committed, n
	c.ChecksumBefore = p.Checksum()
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
	for i := int(n); i < len(p.table); i++ {
		if !p.table[i].dirty {
			sum ^= p.table[i].sum
		}
	}
	byPgno := func(a, b PageChange) int { return int(a.Pgno) - int(b.Pgno) }
	if !slices.IsSortedFunc(c.Pages, byPgno) {
		slices.SortFunc(c.Pages, byPgno)
	}
	c.sum = sum
	c.ChecksumAfter = sum ^ countSum(n)
}

// finish makes the prepared change final. The page count must be the change's.
func (p *Pages) finish(c *Change) {
	var few [16]ref
	refs := few[:0]
	for i := range p.undo {
		u := &p.undo[i]
		if u.ref != 0 {
			refs = append(refs, u.ref)
		}
		e := &p.table[u.pgno-1]
		e.dirty = false
		if u.pgno > p.count {
			e.sum = 0
		}
	}
	p.held -= len(refs)
	if len(refs) > 0 {
		p.alloc.release(p.class, refs...)
	}
	if int(p.count) < len(p.table) {
		p.table = p.table[:p.count]
	}
	p.forgetUndo()
	p.committed, p.sum = p.count, c.sum
}

// restore puts all back as the last commit left it.
func (p *Pages) restore() {
	for i := range p.undo {
		u := &p.undo[i]
		e := &p.table[u.pgno-1]
		p.free(e.ref)
		*e = entry{ref: u.ref, sum: u.sum}
	}
	if int(p.committed) < len(p.table) {
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
