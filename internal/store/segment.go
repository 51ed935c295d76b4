package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Segments are the files of the commit log: of fixed size, filled with zeros
// before use, so that a sync writes data in place and no file system metadata.
const (
	// A segment of version 2 was used before: its bytes after the last frame are
	// rests of that, not zeros.
	segmentVersion         = 1
	segmentVersionRecycled = 2
	// segmentHeaderSize is a block of its own, so that no later write of the
	// file can tear the header.
	segmentHeaderSize = 4096
	segmentHeaderUsed = 68
	segmentSuffix     = ".seg"
	tempSuffix        = ".tmp"
	// freeSuffix is added to the name of a segment that is no part of the log any
	// more and waits to be used again.
	freeSuffix = ".free"

	// DefaultSegmentSize is the size of a segment in bytes.
	DefaultSegmentSize = 64 << 20
	// MinSegmentSize is the smallest size that can be asked for.
	MinSegmentSize = 2 * segmentHeaderSize
	// maxSegmentSize bounds what is read into memory at recovery.
	maxSegmentSize = 1 << 30
)

var segmentMagic = "LMPETSEG"

// ID is a random 128-bit number that names a node, a disk, a history or a boot.
type ID [16]byte

func (id ID) String() string { return fmt.Sprintf("%x", id[:]) }

// logIdentity is what every segment of a log carries, so that files of another
// disk or history are told apart.
type logIdentity struct{ history, disk ID }

// segment is an open file of the log. The flusher alone writes it.
type segment struct {
	number uint64
	path   string
	size   int64
	seed   uint32 // for the checksums of its frames
	off    int64  // where the next frame goes
	f      vfs.File
}

func segmentName(number uint64) string { return fmt.Sprintf("%08d%s", number, segmentSuffix) }

// parseSegmentName is the inverse of segmentName.
func parseSegmentName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) < 8 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n == 0 || segmentName(n) != name {
		return 0, false
	}
	return n, true
}

func (id logIdentity) seed(number uint64) uint32 {
	c := crc32.Update(0, castagnoli, id.history[:])
	c = crc32.Update(c, castagnoli, id.disk[:])
	return seedAt(c, int64(number))
}

func encodeSegmentHeader(version uint32, number uint64, size int64, id logIdentity) []byte {
	b := make([]byte, segmentHeaderSize)
	le := binary.LittleEndian
	copy(b, segmentMagic)
	le.PutUint32(b[8:], version)
	le.PutUint32(b[12:], segmentHeaderSize)
	le.PutUint64(b[16:], number)
	le.PutUint64(b[24:], uint64(size))
	copy(b[32:], id.history[:])
	copy(b[48:], id.disk[:])
	le.PutUint32(b[64:], crc32.Checksum(b[:64], castagnoli))
	return b
}

// checkSegmentHeader refuses a file that is not segment number of this log.
func checkSegmentHeader(path string, b []byte, fileSize int64, number uint64, id logIdentity) error {
	damage := func(off int64, format string, args ...any) error {
		return &DamageError{File: path, Offset: off, Reason: fmt.Sprintf(format, args...), Remedy: remedyRestore}
	}
	le := binary.LittleEndian
	if len(b) < segmentHeaderUsed || string(b[:8]) != segmentMagic {
		return damage(0, "it does not begin as a segment of the commit log")
	}
	if v := le.Uint32(b[8:]); v > segmentVersionRecycled {
		return &FormatError{File: path, What: "the segment", Found: uint64(v), Max: segmentVersionRecycled}
	}
	if le.Uint32(b[64:]) != crc32.Checksum(b[:64], castagnoli) {
		return damage(0, "checksum of the segment header does not match")
	}
	if n := le.Uint64(b[16:]); n != number {
		return damage(16, "it is segment %d under another name", n)
	}
	if ID(b[32:48]) != id.history {
		return damage(32, "it belongs to history %v, this directory is history %v", ID(b[32:48]), id.history)
	}
	if ID(b[48:64]) != id.disk {
		return damage(48, "it belongs to disk %v, this directory is disk %v", ID(b[48:64]), id.disk)
	}
	if n := le.Uint64(b[24:]); n != uint64(fileSize) {
		return damage(-1, "it has %d bytes and must have %d", fileSize, n)
	}
	return nil
}

// room is the bytes left for frames.
func (s *segment) room() int64 { return s.size - s.off }

// usableCurrent is how much of the reserved cost of records surely fits into
// what is left of the segment in use. A piece needs its header and at least one
// byte; less is left empty.
func (s *segment) usableCurrent() int64 {
	if r := s.room(); r > frameHeaderSize {
		return r
	}
	return 0
}

// usableReady is the same for a segment not yet in use: one header for the rest
// of a batch begun before, and at most one header's room left empty at the end.
func (s *segment) usableReady() int64 { return s.size - segmentHeaderSize - 2*frameHeaderSize }

// prepareSegment makes the file of a segment: filled under a temporary name,
// synced, renamed, directory synced. It may fail without harm.
func prepareSegment(fs vfs.FS, dir string, number uint64, size int64, id logIdentity) (s *segment, err error) {
	path := fs.PathJoin(dir, segmentName(number))
	temp := path + tempSuffix
	f, err := fs.Create(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", temp, err)
	}
	defer func() {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			_ = fs.Remove(temp) // what is left over goes at the next start
		}
	}()
	const chunk, syncEvery = 1 << 20, 8 << 20 // small syncs, so that those of the segment in use need not wait behind a large one
	b := encodeSegmentHeader(segmentVersion, number, size, id)
	var unsynced int64
	for off := int64(0); off < size; {
		if off > 0 {
			b = make([]byte, min(chunk, size-off)) // afresh: Write may change what it is given
		}
		n, err := f.Write(b)
		if err != nil {
			return nil, fmt.Errorf("fill %s: %w", temp, err)
		}
		off += int64(n)
		if unsynced += int64(n); unsynced >= syncEvery {
			unsynced = 0
			if err := f.SyncData(); err != nil {
				return nil, fmt.Errorf("sync %s: %w", temp, err)
			}
		}
	}
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("sync %s: %w", temp, err)
	}
	err = f.Close()
	f = nil
	if err != nil {
		return nil, fmt.Errorf("close %s: %w", temp, err)
	}
	if err := fs.Rename(temp, path); err != nil {
		return nil, fmt.Errorf("rename %s: %w", temp, err)
	}
	if err := syncDir(fs, dir); err != nil {
		return nil, err
	}
	w, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &segment{number: number, path: path, size: size, seed: id.seed(number), off: segmentHeaderSize, f: w}, nil
}

// recycled says whether a segment, given from its start, was used before.
func recycled(b []byte) bool { return binary.LittleEndian.Uint32(b[8:]) == segmentVersionRecycled }

// recycleSegment makes a segment of the file free, which has size bytes and is no
// part of the log. Nothing but its header is written: what the file holds was
// valid under another number only. It may fail without harm.
func recycleSegment(fs vfs.FS, dir, free string, number uint64, size int64, id logIdentity) (s *segment, err error) {
	path := fs.PathJoin(dir, segmentName(number))
	f, err := fs.OpenReadWrite(free, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", free, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if _, err := f.WriteAt(encodeSegmentHeader(segmentVersionRecycled, number, size, id), 0); err != nil {
		return nil, fmt.Errorf("write %s: %w", free, err)
	}
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("sync %s: %w", free, err)
	}
	if err := fs.Rename(free, path); err != nil {
		return nil, fmt.Errorf("rename %s: %w", free, err)
	}
	if err := syncDir(fs, dir); err != nil {
		return nil, err
	}
	return &segment{number: number, path: path, size: size, seed: id.seed(number), off: segmentHeaderSize, f: f}, nil
}

// syncDir makes the names in dir durable.
func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("open directory %s: %w", dir, err)
	}
	err = d.Sync()
	if err2 := d.Close(); err == nil {
		err = err2
	}
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// syncData is fdatasync. A call that a signal interrupted has not answered, so
// it is made again; any other failure is final.
func syncData(f vfs.File) error {
	for {
		err := f.SyncData()
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
