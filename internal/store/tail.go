package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// logTail is where the records lie that Open found in the log, by object: bytes
// are read again when an object is used for the first time. An entry takes 16
// bytes, whatever the record's size.
type logTail struct {
	recs []tailRecord
	long []Place // of records that cross segments
}

type tailRecord struct {
	file uint32 // segment; 0: long[off]
	off  uint32
	size uint32
	next uint32 // index in recs of the object's next record, plus 1; 0 is none
}

// add appends a record to the chain of e.
func (t *logTail) add(e *resident, p Place) {
	r := tailRecord{}
	if len(p) == 1 && p[0].file < 1<<32 {
		r.file, r.off, r.size = uint32(p[0].file), uint32(p[0].off), uint32(p[0].size)
	} else {
		r.off = uint32(len(t.long))
		t.long = append(t.long, p)
	}
	t.recs = append(t.recs, r)
	n := uint32(len(t.recs))
	if e.tailLast == 0 {
		e.tailFirst = n
	} else {
		t.recs[e.tailLast-1].next = n
	}
	e.tailLast = n
}

// place returns the place of entry n and the entry after it.
func (t *logTail) place(n uint32) (p Place, next uint32) {
	r := &t.recs[n-1]
	if r.file == 0 {
		return t.long[r.off], r.next
	}
	return Place{{uint64(r.file), int64(r.off), int(r.size)}}, r.next
}

// scan takes note of one record that Open finds. It looks at what can be seen
// without the object's pages; load looks at the rest.
func (s *Store) scan(rp Replayed) error {
	damage := func(format string, args ...any) error {
		return &DamageError{Reason: fmt.Sprintf(format, args...), Remedy: remedyRestore}
	}
	r, err := decodeRecord(rp.Rec)
	if errors.Is(err, errMalformedRecord) {
		return damage("%v", err)
	}
	if err != nil {
		return err
	}
	if rp.Pos.Compare(s.from) < 0 {
		return nil // the base store has it, and its segment may go at any time
	}
	e := s.objects[r.id]
	if e == nil || e.slot != r.slot {
		if err := r.checkSlot(); err != nil {
			return damage("%v", err)
		}
	}
	if e == nil {
		e = &resident{id: r.id, slot: r.slot}
		s.objects[r.id] = e
	}
	known := e.txid > 0 || s.from.Index <= 1 // what was before the record
	if e.txid > 0 && r.txid <= e.txid {
		return nil // had before
	}
	if known && r.prev != e.txid {
		return damage("object %x: transaction %d follows %d, but the last one is %d", r.id, r.txid, r.prev, e.txid)
	}
	if e.first == 0 {
		s.enlist(e, rp.Pos.Index)
	}
	if r.piece != nil {
		return s.addPiece(&r, &rp)
	}
	if r.birth != nil && e.tailBorn == bornYes {
		return damage("object %x is born again in transaction %d", r.id, r.txid)
	}
	if r.birth == nil && !r.deleted && (e.tailBorn == bornNo || known && e.tailBorn == bornUnknown && r.prev == 0) {
		return damage("object %x: transaction %d of an object that was not born", r.id, r.txid)
	}
	switch {
	case r.birth != nil:
		e.tailBorn = bornYes
	case r.deleted:
		e.tailBorn = bornNo
	}
	if r.spilled != nil {
		if err := s.takePieces(e, &r); err != nil {
			return damage("object %x: transaction %d: %v", r.id, r.txid, err)
		}
	} else if len(s.spills) > 0 {
		s.dropSpill(r.id)
	}
	s.scanned.add(e, rp.Place())
	for _, k := range r.kept {
		s.kept.add(r.id, k)
	}
	for _, id := range r.identities {
		s.idents.add(RecoveredIdentity{r.id, id})
	}
	e.txid, e.pos = r.txid, rp.Pos
	return nil
}

// What the tail of the log says of an object's life at its end.
const (
	bornUnknown = iota
	bornYes
	bornNo
)

// pageSource reads an object's pages from the base store.
type pageSource struct {
	s  *Store
	id ObjectID
}

// ReadPage implements vfs.Source.
func (p pageSource) ReadPage(pgno uint32, b []byte) error {
	p.s.pageReads.Add(1)
	p.s.lookAtMemory()
	return p.s.base.ReadPage(p.id, pgno, b)
}

// load brings an object into memory, as of its last record: from the base store,
// and what the log has after that. It does nothing if it is there. Damage is
// found here, and is a *DamageError.
func (s *Store) load(e *resident) error {
	e.loading.Lock()
	defer e.loading.Unlock()
	if e.loaded {
		return nil
	}
	l, err := s.loadObject(e, false)
	if errors.Is(err, errPages) {
		// Once more, to say which record it was: time does not matter any more.
		if _, again := s.loadObject(e, true); again != nil {
			err = again
		}
	}
	if err != nil {
		return fmt.Errorf("load object %x: %w", e.id, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.base, e.pages, e.said = l.base, l.pages, append(l.said, e.said...)
	e.txid, e.pos, e.birth = l.txid, l.pos, l.birth
	e.born.Store(l.born)
	if inBase := l.base.there && !l.base.meta.Deleted; !e.counted && inBase != l.born {
		if l.born {
			s.withData.Add(1)
		} else {
			s.withData.Add(-1)
		}
	}
	e.counted = true
	e.loaded = true
	e.tailFirst, e.tailLast = 0, 0
	if l.applied && s.unread.Add(-1) == 0 {
		// The last one: nobody needs the places any more.
		s.tail.Store(nil)
		s.doneReading()
	}
	return nil
}

// loader is an object while it is loaded.
type loader struct {
	base    inBase
	pages   *vfs.Pages
	sum     uint64 // that the last record says
	txid    uint64
	pos     Pos
	birth   Birth
	born    bool
	said    []saidOfCall
	applied bool
}

var errPages = errors.New("an object's pages are not what its last record says")

func (s *Store) loadObject(e *resident, strict bool) (l *loader, err error) {
	l = &loader{}
	defer func() {
		if err != nil && l.pages != nil {
			l.pages.Release()
		}
	}()
	damage := func(format string, args ...any) error {
		return &DamageError{File: s.baseDir(), Offset: -1, Reason: fmt.Sprintf("object %x: ", e.id) + fmt.Sprintf(format, args...), Remedy: remedyRestore}
	}
	o, ok, err := s.base.Load(e.id)
	if err != nil {
		return l, err
	}
	if ok {
		l.base = inBase{there: true, meta: o.BaseMeta, claims: true}
		l.txid, l.pos, l.birth, l.born = o.Txid, o.Pos, o.Birth, !o.Deleted
		if p := &o.Pages; p.PageSize > 0 && p.Count > 0 {
			l.pages = vfs.NewPages(s.alloc, p.PageSize)
			l.pages.Share(&e.mu)
			l.sum = p.Checksum
			switch {
			case p.Inline:
				if err := l.pages.Load(bytes.NewReader(o.Image), p.Count); err != nil {
					return l, err
				}
				if l.pages.Checksum() != p.Checksum {
					return l, damage("its image has checksum %016x and must have %016x", l.pages.Checksum(), p.Checksum)
				}
			default:
				sum := p.Checksum
				if o.Mixed {
					if sum, err = s.mixedSum(e.id, p.Count); err != nil {
						return l, err
					}
				}
				if err := l.pages.Attach(pageSource{s, e.id}, p.Count, sum); err != nil {
					return l, damage("%v", err)
				}
			}
		}
	}
	if e.tailFirst > 0 {
		l.applied = true
		if err := s.applyTail(e, l, strict); err != nil {
			return l, err
		}
	}
	if l.pages != nil && l.pages.Checksum() != l.sum {
		return l, errors.Join(errPages, damage("after transaction %d the pages have checksum %016x and must have %016x", l.txid, l.pages.Checksum(), l.sum))
	}
	return l, nil
}

// mixedSum is the checksum of the pages that are kept of an object.
func (s *Store) mixedSum(id ObjectID, count uint32) (uint64, error) {
	n, sum := uint32(0), uint64(0)
	if err := s.base.EachPage(id, count, func(_ uint32, page uint64) error {
		n++
		sum ^= page
		return nil
	}); err != nil {
		return 0, err
	}
	if n != count {
		return 0, &DamageError{File: s.baseDir(), Offset: -1, Reason: fmt.Sprintf("object %x has %d of its %d pages", id, n, count), Remedy: remedyRestore}
	}
	return vfs.WithCount(sum, count), nil
}

// applyTail applies the records that the log has of an object.
func (s *Store) applyTail(e *resident, l *loader, strict bool) error {
	tail := s.tail.Load()
	var buf []byte
	var pieces []Place
	for n := e.tailFirst; n > 0; {
		var p Place
		p, n = tail.place(n)
		var err error
		if buf, err = s.reread(p, buf); err != nil {
			return fmt.Errorf("read a record again: %w", err)
		}
		damage := func(format string, args ...any) error {
			return &DamageError{
				File: s.opt.FS.PathJoin(s.opt.Dir, logName, segmentName(p[0].file)), Offset: p[0].off,
				Reason: fmt.Sprintf("object %x: ", e.id) + fmt.Sprintf(format, args...), Remedy: remedyRestore,
			}
		}
		r, err := decodeRecord(buf)
		if err != nil || r.id != e.id {
			return damage("the record was changed after it was read: %v", err)
		}
		if r.txid <= l.txid {
			pieces = nil
			continue // had before
		}
		if r.prev != l.txid {
			return damage("transaction %d follows %d, but the last one is %d", r.txid, r.prev, l.txid)
		}
		if r.piece != nil {
			pieces = append(pieces, p)
			continue
		}
		switch {
		case r.birth != nil && l.born:
			return damage("it is born again in transaction %d", r.txid)
		case r.birth == nil && !l.born && !r.deleted:
			return damage("transaction %d of an object that was not born", r.txid)
		}
		if r.birth != nil {
			l.birth, l.born = *r.birth, true
		}
		if r.pages != nil {
			err := l.apply(s, e, &r, pieces)
			if errors.Is(err, vfs.ErrMalformed) || errors.Is(err, errMalformedRecord) {
				return damage("transaction %d: %v", r.txid, err)
			}
			if err != nil {
				return err
			}
			if strict && l.pages.Checksum() != l.sum {
				return damage("after transaction %d the pages have checksum %016x and must have %016x", r.txid, l.pages.Checksum(), l.sum)
			}
		}
		pieces = nil
		for _, id := range r.identities {
			l.said = append(l.said, saidOfCall{id: id})
		}
		for _, k := range r.kept {
			k.Data = append([]byte(nil), k.Data...)
			l.said = append(l.said, saidOfCall{kept: &k})
		}
		if r.deleted {
			if l.pages != nil {
				l.pages.Release()
				l.pages = nil
			}
			l.birth, l.born = Birth{}, false
		}
		l.txid = r.txid
	}
	l.pos = e.pos
	return nil
}

// apply applies the pages of a record, with the pieces that came before it.
func (l *loader) apply(s *Store, e *resident, r *record, pieces []Place) error {
	p := r.pages
	if l.pages == nil {
		l.pages = vfs.NewPages(s.alloc, p.pageSize)
		l.pages.Share(&e.mu)
	}
	if l.pages.PageSize() != p.pageSize {
		return fmt.Errorf("%w: pages of %d bytes, of %d bytes before", errMalformedRecord, p.pageSize, l.pages.PageSize())
	}
	l.sum = p.checksum
	if r.spilled == nil {
		return l.pages.Apply(p.diff, p.pageCount)
	}
	if uint64(len(pieces)) != r.spilled.pieces {
		return fmt.Errorf("%w: the log has %d of its %d pieces", errMalformedRecord, len(pieces), r.spilled.pieces)
	}
	sum := uint32(0)
	var buf []byte
	for i, at := range pieces {
		var err error
		if buf, err = s.reread(at, buf); err != nil {
			return fmt.Errorf("read piece %d again: %w", i, err)
		}
		q, err := decodeRecord(buf)
		if err != nil || q.piece == nil || q.piece.number != uint64(i) {
			return fmt.Errorf("%w: piece %d is another", errMalformedRecord, i)
		}
		sum = crc32.Update(sum, castagnoli, q.piece.diff)
		if err := l.pages.Apply(q.piece.diff, p.pageCount); err != nil {
			return fmt.Errorf("piece %d: %w", i, err)
		}
	}
	if sum != r.spilled.checksum {
		return fmt.Errorf("%w: the pieces have checksum %08x and must have %08x", errMalformedRecord, sum, r.spilled.checksum)
	}
	return nil
}
