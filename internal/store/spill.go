package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// A commit whose record would be too large for memory is spilled: while SQLite
// still can roll it back, its pages are diffed piece by piece and each piece
// goes into the log as a record of its own. The last record, appended when the
// commit is made, says how many pieces there are, and only it counts.
//
//	FCNTL_SYNC:   plan ─> reserve room for all ─> piece 0 … piece n-1 ─> Admit said yes
//	                │            │                    │                    │
//	                └────────────┴─────── refused ────┘                    │
//	COMMIT_PHASETWO:                                        last record <──┤
//	rolled back:                             nothing; its room given back <┘
//
// Pieces without a last record are garbage, which replay passes over: the
// object's next record, or its next piece 0, says that they are. Records of
// other objects stand between them.

const (
	// DefaultMaxCommit is how many bytes of changes a commit may have.
	DefaultMaxCommit = 1 << 30

	// maxPiece is how many bytes of diff a piece has at most, but for a single
	// page that has more.
	maxPiece = 1 << 20
	// spillWindow is how many pieces of a commit wait for the disk at most, so
	// that a large commit neither fills memory nor stops the turns of others.
	spillWindow = 4
)

// spillPlan says how the pages of a change are divided.
type spillPlan struct {
	ends  []int // index in Change.Pages at which each piece ends
	sizes []int // bytes of diff of each piece
	bytes int64
}

// planSpill diffs a change once without keeping the result, so that what does
// not fit is refused before anything of it is in the log.
func (o *Object) planSpill(c *vfs.Change) (plan spillPlan, err error) {
	most := int(min(o.s.opt.SpillAbove, maxPiece))
	ctx := doneContext{o.done}
	var b []byte
	size, last := 0, uint32(0)
	for i := range c.Pages {
		p := &c.Pages[i]
		b = vfs.AppendPageDiff(b[:0], last, p)
		if size > 0 && size+len(b) > most {
			if err := ctx.Err(); err != nil {
				return plan, err
			}
			plan.ends, plan.sizes = append(plan.ends, i), append(plan.sizes, size)
			plan.bytes += int64(size)
			size = 0
			b = vfs.AppendPageDiff(b[:0], 0, p)
		}
		size += len(b)
		last = p.Pgno
	}
	if size > 0 {
		plan.ends, plan.sizes = append(plan.ends, len(c.Pages)), append(plan.sizes, size)
		plan.bytes += int64(size)
	}
	if plan.bytes > o.s.opt.MaxCommit {
		return plan, &LimitError{
			What: "commit", Size: plan.bytes, Limit: o.s.opt.MaxCommit,
			Remedy: "write less in one turn or transaction",
		}
	}
	return plan, nil
}

// spill writes the pieces of a change to the log and completes the last record,
// which begins in buf: its place is reserved then. On an error buf is freed and
// what was written counts for nothing.
func (o *Object) spill(buf *[]byte, c *vfs.Change, plan spillPlan) (err error) {
	log := o.s.log
	b := appendPages(*buf, &vfs.Change{PageSize: c.PageSize, PageCountAfter: c.PageCountAfter, ChecksumAfter: c.ChecksumAfter})
	b = appendCalls(b, o.ids, nil)
	b = appendSpilled(b, spilledSection{pieces: uint64(len(plan.sizes)), bytes: uint64(plan.bytes)})
	sumAt := len(b) - 4
	b = appendCalls(b, nil, o.kept)
	*buf = b

	piece := o.startRecord()
	head := len(*piece)
	sizes := make([]int, 0, len(plan.sizes)+1)
	for i, n := range plan.sizes {
		body := uvarintLen(uint64(i)) + n
		sizes = append(sizes, head+1+uvarintLen(uint64(body))+body)
	}
	sizes = append(sizes, len(b))
	ctx := doneContext{o.done}
	if err := log.Admit(ctx, sizes...); err != nil {
		o.freeRecord(piece)
		o.freeRecord(buf)
		return fmt.Errorf("reserve room for %d bytes in %d pieces: %w", plan.bytes, len(plan.sizes), err)
	}
	written, done := 0, false
	defer func() { // also when it panics
		o.freeRecord(piece)
		if !done {
			log.Release(sizes[written:]...)
			o.freeRecord(buf)
			o.e.mu.Lock()
			o.e.spilling = 0
			o.e.mu.Unlock()
		}
		if err != nil {
			err = fmt.Errorf("write %d bytes in %d pieces, after %d of them: %w", plan.bytes, len(plan.sizes), written, err)
		}
	}()
	o.e.mu.Lock()
	o.s.note(o.e)
	o.e.spilling = log.Next().Index // checkpoints must leave the pieces in the log
	o.e.mu.Unlock()
	var pos [spillWindow]Pos
	sum := uint32(0)
	from := 0
	for i, to := range plan.ends {
		// No more than the window wait for the disk, and none while the log is full.
		if err := log.Wait(ctx, pos[i%spillWindow]); err != nil {
			return err
		}
		if err := log.WaitRoom(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		p := appendPiece((*piece)[:head], uint64(i), plan.sizes[i])
		at := len(p)
		p = vfs.AppendDiff(p, &vfs.Change{PageSize: c.PageSize, Pages: c.Pages[from:to]})
		*piece = p
		if len(p) != sizes[i] {
			return fmt.Errorf("piece %d has %d bytes, %d were planned", i, len(p), sizes[i])
		}
		sum = crc32.Update(sum, castagnoli, p[at:])
		pos[i%spillWindow] = log.Append(p)
		written++
		from = to
	}
	binary.LittleEndian.PutUint32(b[sumAt:], sum)
	o.s.spilled.Add(1)
	done = true
	return nil
}

// spill is a commit of which replay has seen pieces and not the last record. It
// keeps where they are, not what they are.
type spill struct {
	txid   uint64
	pieces []Place
	bytes  int64
	// cut is how many pieces came before the log begins: the commit came to nothing,
	// or the base store has it.
	cut uint64
}

// addPiece replays a piece: it notes the place.
func (s *Store) addPiece(r *record, at *Replayed) error {
	if r.piece.number == 0 {
		s.dropSpill(r.id) // that commit was rolled back
		s.spills[r.id] = &spill{txid: r.txid}
	}
	sp := s.spills[r.id]
	if sp == nil && r.piece.number > 0 && s.from.Index > 1 && s.objects[r.id].txid == 0 {
		sp = &spill{txid: r.txid, cut: r.piece.number}
		s.spills[r.id] = sp
	}
	if sp == nil || sp.txid != r.txid || uint64(len(sp.pieces))+sp.cut != r.piece.number {
		return &DamageError{
			Reason: fmt.Sprintf("object %x: piece %d of transaction %d does not follow the piece before", r.id, r.piece.number, r.txid),
			Remedy: remedyRestore,
		}
	}
	sp.pieces = append(sp.pieces, at.Place())
	sp.bytes += int64(len(r.piece.diff))
	return nil
}

// takePieces puts the pieces of the commit whose last record is r before it in the
// chain of its object.
func (s *Store) takePieces(e *resident, r *record) error {
	sp := s.spills[r.id]
	if sp == nil && s.from.Index > 1 && e.txid == 0 {
		return nil // all pieces came before the log begins
	}
	if sp != nil && sp.cut > 0 && sp.txid == r.txid && uint64(len(sp.pieces))+sp.cut == r.spilled.pieces {
		delete(s.spills, r.id)
		return nil // load sees whether the base store has it
	}
	if sp == nil || sp.txid != r.txid || uint64(len(sp.pieces)) != r.spilled.pieces || uint64(sp.bytes) != r.spilled.bytes {
		return fmt.Errorf("%w: the log does not have its %d pieces of %d bytes", errMalformedRecord, r.spilled.pieces, r.spilled.bytes)
	}
	delete(s.spills, r.id)
	for _, at := range sp.pieces {
		s.scanned.add(e, at)
	}
	return nil
}

// dropSpill passes over the pieces of a commit that was not made.
func (s *Store) dropSpill(id ObjectID) {
	if sp := s.spills[id]; sp != nil {
		s.dropped.pieces += int64(len(sp.pieces))
		s.dropped.bytes += sp.bytes
		delete(s.spills, id)
	}
}
