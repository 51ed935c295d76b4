package vfs

import (
	"fmt"
	"sync"
)

// A database need not be in memory as a whole: pages that did not change since a
// snapshot of them was saved can be dropped and come back from a Source when
// they are read.
//
//	             write, commit                     Snapshot … Done(true)
//	absent ──read──> clean ──write, commit──> changed ──────────────────> clean
//	  ^                │
//	  └── Drop ────────┘     only clean pages, those not used lately first
//
// A page is absent when it has no image here, was not changed, and its number is
// not above floor: the fewest pages that the database had since the snapshot that
// was saved last.

// Source has the pages of the snapshot that was saved last. It is called with
// the mutex of Pages held, or by a Snapshot without.
type Source interface {
	// ReadPage reads page pgno into b, which has the size of a page.
	ReadPage(pgno uint32, b []byte) error
}

// kept is what Pages knows of its pages in the Source.
type kept struct {
	src     Source
	floor   uint32
	list    []uint32 // pages that became changed, once each, while src is set
	hand    uint32   // of the clock: the page looked at last by Drop
	snap    *Snapshot
	low     uint32   // fewest pages since snap was taken
	newList []uint32 // pages that became after, once each
}

// Share makes mu the mutex of p. It must come before p is used. Whoever holds it
// sees no commit half made, and may call TakeSnapshot.
func (p *Pages) Share(mu *sync.Mutex) { p.mu = mu }

// Attach makes p, which is empty and unused, the database that src has:
// pageCount pages with this checksum. They are read when they are needed. It
// returns ErrMalformed when pageCount passes MaxBytes.
func (p *Pages) Attach(src Source, pageCount uint32, checksum uint64) error {
	if err := p.checkCount(pageCount); err != nil {
		return err
	}
	p.src, p.floor = src, pageCount
	p.count, p.committed = pageCount, pageCount
	p.sum = checksum ^ countSum(pageCount)
	return nil
}

// Attached says whether p has a Source.
func (p *Pages) Attached() bool { return p.src != nil }

func (p *Pages) absent(pgno uint32, r ref, f flags) bool {
	return r == 0 && f&(dirty|changed) == 0 && pgno <= p.floor
}

// fetch brings page pgno into memory if it is in the source.
func (p *Pages) fetch(pgno uint32) error {
	if p.src == nil {
		return nil
	}
	if int(pgno) > len(p.table) {
		if pgno > p.floor {
			return nil
		}
		p.entryOf(pgno)
	}
	e := &p.table[pgno-1]
	e.flags |= used
	if !p.absent(pgno, e.ref, e.flags) {
		return nil
	}
	r := p.alloc.alloc(p.class)
	if err := p.src.ReadPage(pgno, p.view(r)); err != nil {
		p.alloc.release(p.class, r)
		return fmt.Errorf("read page %d: %w", pgno, err)
	}
	p.held++
	e.ref = r
	e.sum = pageSum(pgno, p.view(r))
	e.flags &^= summed
	return nil
}

// sumOf returns the sum of a page, which need not be in memory.
func (p *Pages) sumOf(pgno uint32) (uint64, error) {
	if int(pgno) > len(p.table) {
		if pgno > p.floor {
			return 0, nil
		}
		p.entryOf(pgno)
	}
	e := &p.table[pgno-1]
	if p.absent(pgno, e.ref, e.flags) && !e.is(summed) {
		b := make([]byte, p.pageSize)
		if err := p.src.ReadPage(pgno, b); err != nil {
			return 0, fmt.Errorf("read page %d: %w", pgno, err)
		}
		e.sum = pageSum(pgno, b)
		e.flags |= summed
	}
	return e.sum, nil
}

// mark notes that a commit changed page pgno.
func (p *Pages) mark(pgno uint32) {
	e := &p.table[pgno-1]
	if p.src != nil && !e.is(changed) {
		p.list = append(p.list, pgno)
		e.flags |= changed
	}
	if p.snap != nil && !e.is(after) {
		p.newList = append(p.newList, pgno)
		e.flags |= after
	}
}

// grew notes that a commit leaves n pages: those it adds without writing them
// are holes, whatever the source has under their numbers.
func (p *Pages) grew(n uint32) {
	if p.src == nil && p.snap == nil {
		return
	}
	for pgno := p.committed + 1; pgno <= n; pgno++ {
		p.entryOf(pgno)
		p.mark(pgno)
	}
}

// fell notes that a commit leaves n pages.
func (p *Pages) fell(n uint32) {
	p.floor, p.low = min(p.floor, n), min(p.low, n)
}

// FetchAll brings all pages into memory. The mutex given to Share is held.
func (p *Pages) FetchAll() error {
	for pgno := uint32(1); pgno <= p.committed; pgno++ {
		if err := p.fetch(pgno); err != nil {
			return err
		}
	}
	for i := range p.undo { // those that the transaction cut off
		u := &p.undo[i]
		if !p.absent(u.pgno, u.ref, u.flags) {
			continue
		}
		r := p.alloc.alloc(p.class)
		if err := p.src.ReadPage(u.pgno, p.view(r)); err != nil {
			p.alloc.release(p.class, r)
			return fmt.Errorf("read page %d: %w", u.pgno, err)
		}
		p.held++
		u.ref = r
	}
	return nil
}

// Drop gives back memory of clean pages that come back from the source when they
// are read: those that were not used since the last time it came by, up to
// limit bytes. It returns how many bytes it gave back.
func (p *Pages) Drop(limit int64) (freed int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.src == nil || p.snap != nil && p.snap.all {
		return 0
	}
	n := min(uint32(len(p.table)), p.floor)
	for range 2 * n {
		if freed >= limit {
			break
		}
		p.hand++
		if p.hand > n {
			p.hand = 1
		}
		e := &p.table[p.hand-1]
		switch {
		case e.ref == 0 || e.is(dirty|changed|stale):
		case e.is(used):
			e.flags &^= used
		default:
			p.free(e.ref)
			e.ref = 0
			e.flags |= summed
			freed += int64(p.pageSize)
		}
	}
	return freed
}

// Snapshot is the database as of one commit, while it goes on. It holds the
// memory of the pages it has.
type Snapshot struct {
	// PageSize, PageCount and Checksum are those of the database.
	PageSize  int
	PageCount uint32
	Checksum  uint64

	p        *Pages
	src      Source
	all      bool
	pages    []snapPage
	deferred []ref // committed pages that were given up since
	orphan   bool  // the database was released
	done     bool
}

type snapPage struct {
	pgno   uint32
	ref    ref
	absent bool
}

// TakeSnapshot returns the database as of its last commit: all pages, or those that
// changed since the last snapshot that was saved, if there was one and all is
// false. The mutex given to Share is held, and there is no other snapshot. It
// takes some ns for each page, and Done must follow.
func (p *Pages) TakeSnapshot(all bool) *Snapshot {
	all = all || p.src == nil
	if p.snap != nil {
		panic("vfs: a second snapshot")
	}
	s := &Snapshot{PageSize: p.pageSize, PageCount: p.committed, Checksum: p.checksum(), p: p, src: p.src, all: all}
	before := p.before()
	if all {
		s.pages = make([]snapPage, 0, p.committed)
		for pgno := uint32(1); pgno <= p.committed; pgno++ {
			s.pages = append(s.pages, p.committedPage(pgno, before))
		}
	} else {
		list := p.list[:0]
		for _, pgno := range p.list {
			if pgno <= p.committed {
				list = append(list, pgno)
				s.pages = append(s.pages, p.committedPage(pgno, before))
			}
		}
		p.list = list
	}
	p.snap, p.low, p.newList = s, p.committed, nil
	return s
}

// Pages is how many pages the snapshot has.
func (s *Snapshot) Pages() int { return len(s.pages) }

// Number returns the page number of page i, from 0. A snapshot of all pages
// has them in order.
func (s *Snapshot) Number(i int) uint32 { return s.pages[i].pgno }

// Page returns the image of page i, from 0: it is in buf, which has the size of
// a page, when it had to be read. No mutex is held; the image is valid until
// Done.
func (s *Snapshot) Page(i int, buf []byte) ([]byte, error) {
	g := &s.pages[i]
	switch {
	case g.absent:
		if err := s.src.ReadPage(g.pgno, buf); err != nil {
			return nil, fmt.Errorf("read page %d: %w", g.pgno, err)
		}
		return buf, nil
	case g.ref == 0:
		return zeroes[:s.PageSize], nil
	}
	c := s.p.class
	return c.at((*c.slabs.Load())[int(g.ref-1)>>c.shift], g.ref), nil
}

// Done ends the snapshot, without the mutex. saved says that it is in the
// source that p has, or was given by SavedIn: its pages are clean now, unless they
// changed since. A second Done does nothing.
func (s *Snapshot) Done(saved bool) { s.end(s.src, saved) }

// SavedIn is Done(true) when the source is another one than before; nil means
// that the database is to stay in memory as a whole.
func (s *Snapshot) SavedIn(src Source) { s.end(src, true) }

func (s *Snapshot) end(src Source, saved bool) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.done {
		return
	}
	s.done = true
	if len(s.deferred) > 0 {
		p.alloc.release(p.class, s.deferred...)
		s.deferred = nil
	}
	if s.orphan {
		return
	}
	p.snap = nil
	flagsOf := func(pgno uint32, do func(*flags)) {
		if int(pgno) <= len(p.table) {
			do(&p.table[pgno-1].flags)
		}
	}
	if saved {
		was := p.src
		p.src = src
		switch {
		case src == nil:
			// Nothing is absent any more: the caller has seen to that.
			p.floor, p.list = 0, nil
			for i := range p.table {
				p.table[i].flags &^= changed
			}
			for i := range p.undo {
				p.undo[i].flags &^= changed
			}
		default:
			p.floor = min(s.PageCount, p.low)
			if was == nil || s.all {
				for i := range p.table {
					p.table[i].flags &^= changed
				}
			} else {
				for _, g := range s.pages {
					flagsOf(g.pgno, func(f *flags) { *f &^= changed })
				}
			}
			p.list = p.list[:0:0]
			for _, pgno := range p.newList {
				flagsOf(pgno, func(f *flags) {
					if *f&after != 0 {
						*f |= changed
						p.list = append(p.list, pgno)
					}
				})
			}
			for i := range p.undo {
				u := &p.undo[i]
				if u.flags&after == 0 {
					u.flags &^= changed
				} else {
					u.flags |= changed
				}
			}
		}
	}
	for _, pgno := range p.newList {
		flagsOf(pgno, func(f *flags) { *f &^= after })
	}
	for i := range p.undo {
		p.undo[i].flags &^= after
	}
	p.newList = nil
}
