package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// recovery reads the segments of a log in order and finds its end.
//
// What a crash can leave, and what it cannot: one batch at a time is under way,
// and each of its pieces is synced before the next is written. So after the
// first bad place there is nothing but zeros and rests of that one batch, and
// all of it in the segment of the bad place. Anything else was durable once and
// has been damaged since.
//
//	good frames ─> bad place ─┬─ zeros to the end of the log ──────> clean end
//	                          ├─ a whole frame anywhere later ─────> damage
//	                          ├─ other bytes in a later segment ───> damage
//	                          └─ other bytes in this segment only ─> torn tail: cut
//
// In a segment that was used before other bytes say nothing, since rests of that
// use may be anywhere: there only the header of the batch that comes next tells a
// torn tail. No rest of an earlier use is a whole frame: the number of the segment
// is in the checksums.
//
// The log need not begin with its first batch. It must begin with one that the
// base store does not need, or with the one after those that the base store has;
// pieces of a batch that began in a segment before are passed over.
//
// The cut bytes are overwritten with zeros, last segment first, before anything
// is appended: a batch that was cut can never become valid again.
type recovery struct {
	opt logOptions
	fn  func(Replayed) error

	stats ReplayStats
	tail  []*segment // from the one to append to on, open; the caller's to close
	// sealed are the segments before.
	sealed []sealedSegment

	index uint64            // of the batch that comes next; 0 before the first
	rest  uint64            // of the batch whose last pieces stand first
	begin uint64            // of the first batch
	used  map[uint64]uint64 // by segment: index of the last batch that has a frame there
	part  uint32            // of its piece that comes next
	acc   []byte            // payload of its pieces so far
	// pieces are the frames of the batch so far; last those of the last whole one.
	pieces, last []framePlace
}

type framePlace struct {
	number uint64
	off    int64
	size   int64
}

func (r *recovery) run(ctx context.Context) (ReplayStats, error) {
	numbers, err := r.list()
	if err != nil || len(numbers) == 0 {
		return r.stats, err
	}
	r.used = map[uint64]uint64{}
	var buf []byte
	var end framePlace // where good frames end
	var torn int64     // bytes of the segment of end that are not zero
	stopped := false
	sizes := make(map[uint64]int64, len(numbers))
	for i, number := range numbers {
		if err := ctx.Err(); err != nil {
			return r.stats, context.Cause(ctx)
		}
		if r.opt.progress != nil {
			r.opt.progress(i+1, len(numbers), &r.stats)
		}
		if buf, err = r.load(number, buf); err != nil {
			return r.stats, err
		}
		r.stats.Segments++
		sizes[number] = int64(len(buf))
		if stopped {
			if err := r.mustBeUnused(number, buf, end); err != nil {
				return r.stats, err
			}
			continue
		}
		off, reason, err := r.walk(number, buf)
		if err != nil {
			return r.stats, err
		}
		end = framePlace{number: number, off: off}
		if reason == "" {
			continue // the segment is full
		}
		stopped = true
		seed := r.opt.identity.seed(number)
		if f, at, found := findFrame(buf, off, seed); found {
			return r.stats, r.damage(number, off, "%s, and batch %d follows whole at byte %d", reason, f.index, at)
		}
		if recycled(buf) {
			torn = r.tornFrame(buf, off, seed)
		} else {
			torn = lastNonZero(buf[off:])
		}
	}
	from := max(r.opt.from.Index, 1)
	if r.index == 0 {
		r.index = from
	}
	if r.index < from {
		return r.stats, r.damage(end.number, end.off, "the log ends with batch %d, and the base store has batches up to %d", r.index-1, from-1)
	}
	if r.index > 1 { // also if the first batch was not whole
		r.stats.Last = Pos{localTerm, r.index - 1}
	}
	return r.stats, r.finish(numbers, sizes, end, torn)
}

// list names the segments on disk, in order, and removes what preparing one
// left behind.
func (r *recovery) list() ([]uint64, error) {
	fs, dir := r.opt.fs, r.opt.dir
	// A killed process may have renamed a segment and not synced the name.
	if err := syncDir(fs, dir); err != nil {
		return nil, err
	}
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	var numbers []uint64
	for _, name := range names {
		if n, ok := parseSegmentName(name); ok {
			numbers = append(numbers, n)
		} else if base, ok := strings.CutSuffix(name, tempSuffix); ok || strings.HasSuffix(name, freeSuffix) {
			base = strings.TrimSuffix(base, freeSuffix)
			if _, ok := parseSegmentName(base); ok {
				if err := fs.Remove(fs.PathJoin(dir, name)); err != nil {
					return nil, fmt.Errorf("remove %s: %w", name, err)
				}
			}
		}
	}
	slices.Sort(numbers)
	if len(numbers) == 0 {
		if r.opt.started {
			return nil, r.missing(r.opt.first, "the commit log has no segment at all")
		}
		return nil, nil
	}
	first := r.opt.first
	if r.opt.from.Index > 1 {
		first = numbers[0] // its first batch says whether one is missing before
	}
	for i, n := range numbers {
		if want := first + uint64(i); n != want {
			return nil, r.missing(want, fmt.Sprintf("segment %d is there", n))
		}
	}
	return numbers, nil
}

func (r *recovery) path(number uint64) string {
	return r.opt.fs.PathJoin(r.opt.dir, segmentName(number))
}

func (r *recovery) missing(number uint64, but string) error {
	return &DamageError{File: r.path(number), Offset: -1, Reason: "the segment is missing (" + but + ")", Remedy: remedyRestore}
}

func (r *recovery) damage(number uint64, off int64, format string, args ...any) error {
	return &DamageError{File: r.path(number), Offset: off, Reason: fmt.Sprintf(format, args...), Remedy: remedyRestore}
}

// load reads a whole segment and checks its header.
func (r *recovery) load(number uint64, buf []byte) ([]byte, error) {
	path := r.path(number)
	f, err := r.opt.fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return buf, fmt.Errorf("open %s: %w", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return buf, fmt.Errorf("stat %s: %w", path, err)
	}
	size := info.Size()
	head := make([]byte, min(size, segmentHeaderSize))
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return buf, fmt.Errorf("read %s: %w", path, err)
	}
	if err := checkSegmentHeader(path, head, size, number, r.opt.identity); err != nil {
		return buf, err
	}
	if size < MinSegmentSize || size > maxSegmentSize {
		return buf, r.damage(number, -1, "its size of %d bytes is not between %d and %d", size, MinSegmentSize, maxSegmentSize)
	}
	buf = slices.Grow(buf[:0], int(size))[:size]
	if n, err := f.ReadAt(buf, 0); n < len(buf) {
		return buf, fmt.Errorf("read %s: %d of %d bytes: %w", path, n, len(buf), err)
	}
	return buf, nil
}

// walk follows the frames of a segment and gives whole batches to fn. It ends
// at the end of the segment with reason "", or at the first bad place.
func (r *recovery) walk(number uint64, buf []byte) (off int64, reason string, err error) {
	seed := r.opt.identity.seed(number)
	for off = segmentHeaderSize; int64(len(buf))-off > frameHeaderSize; {
		f, reason := readFrame(buf[off:], seedAt(seed, off))
		if reason != "" {
			return off, reason, nil
		}
		if f.version > frameVersion {
			return off, "", &FormatError{File: r.path(number), What: fmt.Sprintf("batch %d", f.index), Found: uint64(f.version), Max: frameVersion}
		}
		if f.flags&^frameLast != 0 || f.group != 0 || f.term != localTerm {
			return off, "", r.damage(number, off, "batch %d has flags %#x, group %d, term %d, which this limpet does not write", f.index, f.flags, f.group, f.term)
		}
		r.used[number] = f.index
		if r.index == 0 {
			if f.part > 0 && f.index < r.opt.from.Index && (r.rest == 0 || r.rest == f.index) {
				r.rest = f.index
				off += f.size()
				continue
			}
			if f.index > max(r.opt.from.Index, 1) || r.rest > 0 && f.index != r.rest+1 {
				return off, "", r.damage(number, off, "the log begins with batch %d, and the base store has only those before batch %d: segments before are missing", f.index, max(r.opt.from.Index, 1))
			}
			r.index, r.begin = f.index, f.index
		}
		if f.index != r.index || f.part != r.part {
			return off, "", r.damage(number, off, "piece %d of batch %d stands where piece %d of batch %d must", f.part, f.index, r.part, r.index)
		}
		r.pieces = append(r.pieces, framePlace{number, off, f.size()})
		off += f.size()
		if !f.last() {
			r.acc = append(r.acc, f.payload...)
			r.part++
			continue
		}
		payload := f.payload
		if r.part > 0 {
			r.acc = append(r.acc, f.payload...)
			payload = r.acc
		}
		if err := r.batch(number, payload); err != nil {
			return off, "", err
		}
	}
	return off, "", nil
}

// batch hands over a whole batch.
func (r *recovery) batch(number uint64, payload []byte) error {
	p := Pos{localTerm, r.index}
	at := r.pieces[len(r.pieces)-1].off
	reason, err := eachRecord(payload, func(from int, rec []byte) error {
		r.stats.Records++
		r.stats.Bytes += int64(len(rec))
		return r.fn(Replayed{Pos: p, Rec: rec, from: from, in: r})
	})
	if reason != "" {
		return r.damage(number, at, "%s", reason)
	}
	if err != nil {
		// A record that does not decode or follow was written by someone else
		// or damaged before it was written: the caller says what, we say where.
		var damage *DamageError
		if errors.As(err, &damage) && damage.File == "" {
			damage.File, damage.Offset = r.path(number), at
		}
		var format *FormatError
		if errors.As(err, &format) && format.File == "" {
			format.File = r.path(number)
		}
		return fmt.Errorf("replay batch %d: %w", r.index, err)
	}
	r.stats.Batches++
	r.stats.Last = p
	r.last, r.pieces = r.pieces, r.last[:0]
	r.index++
	r.part = 0
	if cap(r.acc) > maxSpare {
		r.acc = nil
	}
	r.acc = r.acc[:0]
	return nil
}

// place implements placer for the batch that is handed over.
func (r *recovery) place(from, size int) (p Place) {
	for _, f := range r.pieces {
		n := int(f.size) - frameHeaderSize
		if from < n && size > 0 {
			k := min(size, n-from)
			p = append(p, extent{f.number, f.off + frameHeaderSize + int64(from), k})
			from, size = 0, size-k
		} else {
			from -= n
		}
		if size == 0 {
			break
		}
	}
	return p
}

// mustBeUnused refuses a segment after the end of the log that is not empty.
func (r *recovery) mustBeUnused(number uint64, buf []byte, end framePlace) error {
	what := "bytes are written"
	if f, at, found := findFrame(buf, segmentHeaderSize, r.opt.identity.seed(number)); found {
		what = fmt.Sprintf("batch %d is whole at byte %d", f.index, at)
	} else if recycled(buf) || lastNonZero(buf[segmentHeaderSize:]) == 0 {
		return nil
	}
	return r.damage(end.number, end.off, "the log ends here, but in the later segment %d %s", number, what)
}

// finish cuts the torn tail, makes sure that what was replayed is on the disk,
// and opens the segments to append to.
func (r *recovery) finish(numbers []uint64, sizes map[uint64]int64, end framePlace, torn int64) (err error) {
	var cut []framePlace
	if len(r.pieces) > 0 { // earlier pieces of a batch that was never whole
		cut = slices.Clone(r.pieces)
	}
	if torn > 0 {
		cut = append(cut, framePlace{end.number, end.off, torn})
	}
	if len(cut) > 0 {
		r.stats.CutFile, r.stats.CutAt = r.path(cut[0].number), cut[0].off
		for _, c := range cut {
			r.stats.CutBytes += c.size
		}
		end = framePlace{number: cut[0].number, off: cut[0].off}
	}
	// Pieces go last first: a crash in between leaves the beginning of a batch,
	// never its end.
	for _, c := range slices.Backward(cut) {
		if err := r.rewrite(c, true); err != nil {
			return err
		}
	}
	// A killed process may have written the last batch and not synced it; after
	// a failed sync the kernel may even hold it as clean. Written again and
	// synced, it is durable before anyone sees it.
	if len(r.last) > 0 {
		if err := r.rewrite(r.last[len(r.last)-1], false); err != nil {
			return err
		}
	}
	for _, number := range numbers {
		path := r.path(number)
		if number < end.number {
			r.sealed = append(r.sealed, sealedSegment{number: number, path: path, size: sizes[number], last: r.used[number]})
			continue
		}
		f, err := r.opt.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		s := &segment{number: number, path: path, size: sizes[number], seed: r.opt.identity.seed(number), off: segmentHeaderSize, f: f}
		if number == end.number {
			s.off = end.off
		}
		r.tail = append(r.tail, s)
	}
	return nil
}

// tornFrame is how many bytes a frame that was being written takes at off, 0 when
// there is no sign of one: its header must be whole, and the next that comes.
func (r *recovery) tornFrame(buf []byte, off int64, seed uint32) int64 {
	b := buf[off:]
	if len(b) < frameHeaderSize || !bytes.Equal(b[:4], frameMagic) || binary.LittleEndian.Uint32(b[48:]) != crc32.Update(seedAt(seed, off), castagnoli, b[:48]) {
		return 0
	}
	return min(int64(len(b)), frameHeaderSize+int64(binary.LittleEndian.Uint32(b[40:])))
}

// rewrite writes the place anew, with zeros or with what it has, and syncs it.
func (r *recovery) rewrite(p framePlace, zero bool) (err error) {
	path := r.path(p.number)
	f, err := r.opt.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b := make([]byte, p.size)
	if !zero {
		if _, err := f.ReadAt(b, p.off); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
	}
	if _, err := f.WriteAt(b, p.off); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := syncData(f); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

// lastNonZero is the length of b without the zeros at its end.
func lastNonZero(b []byte) int64 {
	const block = 4096
	for len(b) > 0 {
		k := (len(b) - 1) / block * block
		if !bytes.Equal(b[k:], zeros[:len(b)-k]) {
			for i := len(b); i > k; i-- {
				if b[i-1] != 0 {
					return int64(i)
				}
			}
		}
		b = b[:k]
	}
	return 0
}

var zeros [4096]byte
