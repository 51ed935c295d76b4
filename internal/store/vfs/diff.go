package vfs

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// gap is the run of equal bytes that ends a range: below it the bytes are
// cheaper than the two numbers of another range.
const gap = 8

var zeroes [MaxPageSize]byte

// AppendDiff appends what turns the images before into those after to dst and
// returns it. The format is drawn in the package documentation.
func AppendDiff(dst []byte, c *Change) []byte {
	last := uint32(0)
	for i := range c.Pages {
		dst = AppendPageDiff(dst, last, &c.Pages[i])
		last = c.Pages[i].Pgno
	}
	return dst
}

// AppendPageDiff appends one page of a diff; last is the number of the page
// before it in the same diff, 0 for none. The pages of a change may be spread
// over several diffs, which are applied one after the other.
func AppendPageDiff(dst []byte, last uint32, p *PageChange) []byte {
	head := uint64(p.Pgno-last) << 1
	before := p.Before
	if before == nil {
		head |= 1
		before = zeroes[:len(p.After)]
	}
	dst = binary.AppendUvarint(dst, head)
	return appendRanges(dst, before, p.After)
}

// MaxDiff is an upper bound of what AppendDiff appends for c, in bytes.
func MaxDiff(c *Change) int64 { return int64(len(c.Pages)) * int64(c.PageSize+12) }

// appendRanges appends the ranges of one page and the zero that ends them.
// len(before) == len(after), a multiple of 64.
func appendRanges(dst, before, after []byte) []byte {
	before = before[:len(after)]
	end := 0 // of the last range
	for i := nextDiff(before, after, 0); i < len(after); {
		start := i
		j := start + 1
		for {
			for j < len(after) && before[j] != after[j] {
				j++
			}
			i = nextDiff(before, after, j)
			if i-j >= gap || i == len(after) {
				break
			}
			j = i
		}
		dst = binary.AppendUvarint(dst, uint64(j-start))
		dst = binary.AppendUvarint(dst, uint64(start-end))
		dst = append(dst, after[start:j]...)
		end = j
	}
	return append(dst, 0)
}

// nextDiff returns the first index >= i at which a and b differ, or their length.
func nextDiff(a, b []byte, i int) int {
	const block = 128
	for i < len(b) && i&7 != 0 {
		if a[i] != b[i] {
			return i
		}
		i++
	}
	for i+block <= len(b) && string(a[i:i+block]) == string(b[i:i+block]) {
		i += block
	}
	for i+8 <= len(b) {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
		i += 8
	}
	return len(b)
}

// A malformedError says where a diff is malformed; it is an ErrMalformed.
type malformedError struct {
	offset int
	what   string
}

func (e *malformedError) Error() string {
	return fmt.Sprintf("malformed page diff: byte %d: %s", e.offset, e.what)
}

func (e *malformedError) Is(target error) bool { return target == ErrMalformed }

// diffReader walks a diff. It never allocates and never reads past the end.
type diffReader struct {
	b         []byte
	off       int
	pageSize  int
	pageCount uint32
	pgno      uint32
	pos       int // in the page, end of the last range
}

func (d *diffReader) fail(what string) error { return &malformedError{d.off, what} }

func (d *diffReader) uvarint() (uint64, error) {
	v, n := binary.Uvarint(d.b[d.off:])
	if n <= 0 {
		return 0, d.fail("cut or oversized number")
	}
	d.off += n
	return v, nil
}

// page reads the head of the next page; pgno 0 is the end of the diff.
func (d *diffReader) page() (pgno uint32, fresh bool, err error) {
	if d.off == len(d.b) {
		return 0, false, nil
	}
	h, err := d.uvarint()
	if err != nil {
		return 0, false, err
	}
	delta := h >> 1
	if delta == 0 {
		return 0, false, d.fail("pages do not ascend")
	}
	if delta > uint64(d.pageCount-d.pgno) {
		return 0, false, d.fail(fmt.Sprintf("page beyond the %d pages of the database", d.pageCount))
	}
	d.pgno += uint32(delta)
	d.pos = 0
	return d.pgno, h&1 != 0, nil
}

// ranges reads the next range of the page: data belongs at pos. No data is
// the end of the page.
func (d *diffReader) ranges() (pos int, data []byte, err error) {
	n, err := d.uvarint()
	if err != nil || n == 0 {
		return 0, nil, err
	}
	skip, err := d.uvarint()
	if err != nil {
		return 0, nil, err
	}
	room := uint64(d.pageSize - d.pos)
	if skip > room || n > room-skip {
		return 0, nil, d.fail(fmt.Sprintf("range passes the end of page %d", d.pgno))
	}
	if n > uint64(len(d.b)-d.off) {
		return 0, nil, d.fail("cut range")
	}
	pos = d.pos + int(skip)
	d.pos = pos + int(n)
	data = d.b[d.off : d.off+int(n)]
	d.off += int(n)
	return pos, data, nil
}

// checkDiff walks the whole diff, so that applying it afterwards cannot fail.
func checkDiff(diff []byte, pageSize int, pageCount uint32) error {
	d := diffReader{b: diff, pageSize: pageSize, pageCount: pageCount}
	for {
		pgno, _, err := d.page()
		if err != nil || pgno == 0 {
			return err
		}
		for {
			_, data, err := d.ranges()
			if err != nil {
				return err
			}
			if data == nil {
				break
			}
		}
	}
}
