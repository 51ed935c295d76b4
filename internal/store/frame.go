package store

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// One frame is one piece of a batch within one segment. The drawing is in
// doc.go.
const (
	frameVersion    = 1
	frameHeaderSize = 52
	frameLast       = 1 // flag: the last piece of its batch
)

var (
	frameMagic = []byte("LMPF")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// frame is a decoded frame.
type frame struct {
	version uint16
	flags   uint8
	group   uint32
	part    uint32 // piece of the batch, from 0
	term    uint64
	index   uint64
	time    int64 // Unix ms at which the batch was written; informational
	payload []byte
}

func (f *frame) last() bool { return f.flags&frameLast != 0 }

// size is the bytes of the frame on disk.
func (f *frame) size() int64 { return frameHeaderSize + int64(len(f.payload)) }

// seedAt mixes the place of a frame into its checksums, so that a frame is
// valid only in the segment and at the byte where it was written: a copy of a
// log inside a value, a recycled segment or a file of another disk is not.
func seedAt(segmentSeed uint32, off int64) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(off))
	return crc32.Update(segmentSeed, castagnoli, b[:])
}

// sealFrame writes the header of f into the first frameHeaderSize bytes of b;
// the rest of b is the payload (f.payload is not used).
func sealFrame(b []byte, f *frame, seed uint32) {
	le := binary.LittleEndian
	copy(b, frameMagic)
	le.PutUint16(b[4:], frameVersion)
	b[6] = f.flags
	b[7] = 0
	le.PutUint32(b[8:], f.group)
	le.PutUint32(b[12:], f.part)
	le.PutUint64(b[16:], f.term)
	le.PutUint64(b[24:], f.index)
	le.PutUint64(b[32:], uint64(f.time))
	le.PutUint32(b[40:], uint32(len(b)-frameHeaderSize))
	le.PutUint32(b[44:], crc32.Update(seed, castagnoli, b[frameHeaderSize:]))
	le.PutUint32(b[48:], crc32.Update(seed, castagnoli, b[:48]))
}

// readFrame decodes the frame at the start of b. reason is "" when it is
// whole; otherwise it says what is wrong. The header has a checksum of its
// own, so that a length is believed only when it was written.
func readFrame(b []byte, seed uint32) (f frame, reason string) {
	le := binary.LittleEndian
	if len(b) < frameHeaderSize || !bytes.Equal(b[:4], frameMagic) {
		return f, "no batch header where one must stand"
	}
	if le.Uint32(b[48:]) != crc32.Update(seed, castagnoli, b[:48]) {
		return f, "checksum of the batch header does not match"
	}
	f = frame{
		version: le.Uint16(b[4:]),
		flags:   b[6],
		group:   le.Uint32(b[8:]),
		part:    le.Uint32(b[12:]),
		term:    le.Uint64(b[16:]),
		index:   le.Uint64(b[24:]),
		time:    int64(le.Uint64(b[32:])),
	}
	n := uint64(le.Uint32(b[40:]))
	if n > uint64(len(b)-frameHeaderSize) {
		return f, "batch is longer than its segment"
	}
	f.payload = b[frameHeaderSize : frameHeaderSize+n : frameHeaderSize+n]
	if le.Uint32(b[44:]) != crc32.Update(seed, castagnoli, f.payload) {
		return f, "checksum of the batch does not match"
	}
	return f, ""
}

// findFrame looks for a whole frame anywhere in b from byte off on.
func findFrame(b []byte, off int64, segmentSeed uint32) (frame, int64, bool) {
	for off < int64(len(b)) {
		i := bytes.Index(b[off:], frameMagic)
		if i < 0 {
			break
		}
		off += int64(i)
		if f, reason := readFrame(b[off:], seedAt(segmentSeed, off)); reason == "" {
			return f, off, true
		}
		off++
	}
	return frame{}, 0, false
}

// eachRecord calls fn for every record of a whole batch; from is the record's
// place in the payload.
func eachRecord(payload []byte, fn func(from int, rec []byte) error) (reason string, err error) {
	for from := 0; from < len(payload); {
		n, k := binary.Uvarint(payload[from:])
		if k <= 0 || n > uint64(len(payload)-from-k) {
			return "record lengths in the batch do not add up", nil
		}
		from += k
		to := from + int(n)
		if err := fn(from, payload[from:to:to]); err != nil {
			return "", err
		}
		from = to
	}
	return "", nil
}
