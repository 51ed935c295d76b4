package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// BaseStore keeps an image of each object as of one of its commits, so that the
// segments of the commit log before that can go. It is behind the log: what is
// written to it was durable there. Safe for concurrent use, but for Write, Flush
// and Reopen, which one goroutine calls.
//
// Write makes changes visible, all of one call or none; Flush makes all that was
// written before durable, in order: after a crash there is a beginning of it. An
// error of any method but a damaged value may be passing; after one of Write or
// Flush only Reopen helps, which goes back to what is durable.
type BaseStore interface {
	// Info is what was written of the store as a whole; zero for a new one.
	Info() (BaseInfo, error)
	// Load finds an object; ok is false when there is nothing of it.
	Load(id ObjectID) (o BaseObject, ok bool, err error)
	// ReadPage reads one page of an object that is kept in pages; one that is
	// missing is a *DamageError.
	ReadPage(id ObjectID, pgno uint32, b []byte) error
	// EachPage calls fn with the checksum (vfs.PageSum) of every page kept of an
	// object, up to page count.
	EachPage(id ObjectID, count uint32, fn func(pgno uint32, sum uint64) error) error
	// Claims returns what was written of an object's claims, nil for nothing.
	Claims(id ObjectID) ([]byte, error)
	// EachClaimed calls fn for every object that has claims, and for every one
	// that is deleted, without claims too.
	EachClaimed(fn func(id ObjectID, claims []byte) error) error
	// Each calls fn for the objects with slots from to through, by slot and ID,
	// those that are deleted too.
	Each(from, through uint16, fn func(id ObjectID, m *BaseMeta) error) error
	// EachAlarm calls fn for the alarms of objects with these slots, by slot and time.
	EachAlarm(from, through uint16, fn func(ms int64, id ObjectID) error) error
	// Write writes objects, and info if it is not nil.
	Write(info *BaseInfo, objects ...*BaseWrite) error
	// Flush returns when everything that was written is durable.
	Flush() error
	// Snapshot writes what is durable to a directory that does not exist.
	Snapshot(dir string) error
	// Failed says why only Reopen helps, nil when all is well.
	Failed() error
	// Reopen drops what is not durable.
	Reopen() error
	// Close drops what is not durable.
	Close() error
}

// BaseInfo is of the store as a whole.
type BaseInfo struct {
	// Pos is where replay begins: everything before it is in the store.
	Pos Pos
	// Objects with data.
	Objects int64
	// History and Disk are those of the directory.
	History, Disk ID
}

// BaseMeta is what is kept of an object besides its pages.
type BaseMeta struct {
	Txid    uint64 // of the last commit that is in the pages
	Pos     Pos    // of that commit
	Deleted bool   // it has no data; its numbers go on
	Birth   Birth
	Pages   BasePages
	AlarmMS int64 // reserved: when its alarm is due in Unix ms, 0 for none
	// Mixed says that some pages may be newer than Txid: a checkpoint too large
	// for one Write was cut short. Replay of the log from Txid makes them equal,
	// since a page diff says what bytes are and not how they change.
	Mixed bool
}

// BasePages is the size of a database. PageSize 0 is none.
type BasePages struct {
	PageSize int
	Count    uint32
	Checksum uint64 // vfs.Pages.Checksum
	Inline   bool   // kept as one image, else in pages
}

// BaseObject is a found object.
type BaseObject struct {
	BaseMeta
	Image []byte // if it is Inline: the pages in order
}

// BaseWrite changes what is kept of one object.
type BaseWrite struct {
	ID   ObjectID
	Slot uint16
	// Remove removes everything, and nothing else counts.
	Remove bool
	Meta   BaseMeta
	// Image is the whole image if Meta.Pages is Inline.
	Image []byte
	// Changed are pages in any order, else. Pages above Meta.Pages.Count go
	// unless Meta is Mixed, which leaves all there is: so a checkpoint too large
	// for one Write begins. Meta.Txid 0 then leaves Meta too.
	Changed []BasePage
	// Claims replace what there is, nil removes it; KeepClaims leaves it.
	Claims     []byte
	KeepClaims bool
	// ClaimsOnly changes nothing but the claims.
	ClaimsOnly bool
	// AlarmWas is Meta.AlarmMS as it was written last.
	AlarmWas int64
}

// BasePage is one page of a database.
type BasePage struct {
	Pgno uint32
	Data []byte
}

// Keys of the base store begin with the object's slot, so that a range of slots
// can be listed, exported and deleted. The drawing is in doc.go.
const (
	baseMeta    = 0
	baseImage   = 1
	basePage    = 2
	baseAlarm   = 3
	baseClaims  = 4
	baseDeleted = 5
	baseMarks   = 6
	baseInfo    = 7

	baseVersion = 1
)

// baseKey is the key of one thing of an object.
func baseKey(slot uint16, kind byte, id *ObjectID) []byte {
	b := make([]byte, 0, 3+32+4)
	b = binary.BigEndian.AppendUint16(b, slot)
	b = append(b, kind)
	return append(b, id[:]...)
}

func basePageKey(slot uint16, id *ObjectID, pgno uint32) []byte {
	return binary.BigEndian.AppendUint32(baseKey(slot, basePage, id), pgno)
}

func baseAlarmKey(slot uint16, ms int64, id *ObjectID) []byte {
	b := make([]byte, 0, 3+8+32)
	b = binary.BigEndian.AppendUint16(b, slot)
	b = append(b, baseAlarm)
	b = binary.BigEndian.AppendUint64(b, uint64(ms)^1<<63)
	return append(b, id[:]...)
}

// baseMarksKey is the key of the marks of the 256 slots from hi<<8 on: one bit
// for each slot that may have objects with claims, or deleted ones.
func baseMarksKey(hi byte) []byte { return []byte{hi, 0, baseMarks} }

var baseInfoKey = []byte{0, 0, baseInfo}

// errMalformedBase is wrapped by what a decoder of the base store finds wrong.
var errMalformedBase = errors.New("malformed value")

const (
	metaDeleted = 1 << iota
	metaNamed
	metaInline
	metaMixed
)

func (m *BaseMeta) encode() []byte {
	b := make([]byte, 0, 64+len(m.Birth.Class)+len(m.Birth.Name))
	flags := byte(0)
	for _, f := range []struct {
		on  bool
		bit byte
	}{{m.Deleted, metaDeleted}, {m.Birth.Named, metaNamed}, {m.Pages.Inline, metaInline}, {m.Mixed, metaMixed}} {
		if f.on {
			flags |= f.bit
		}
	}
	b = append(b, baseVersion, flags, 0)
	if m.Pages.PageSize > 0 {
		b[2] = byte(bits.TrailingZeros(uint(m.Pages.PageSize)))
	}
	b = binary.AppendUvarint(b, m.Txid)
	b = binary.AppendUvarint(b, m.Pos.Term)
	b = binary.AppendUvarint(b, m.Pos.Index)
	b = binary.AppendUvarint(b, uint64(m.Pages.Count))
	b = binary.LittleEndian.AppendUint64(b, m.Pages.Checksum)
	b = binary.AppendVarint(b, m.AlarmMS)
	b = binary.AppendUvarint(b, uint64(len(m.Birth.Class)))
	b = append(b, m.Birth.Class...)
	return append(b, m.Birth.Name...)
}

func decodeBaseMeta(b []byte) (m BaseMeta, err error) {
	bad := func(what string) (BaseMeta, error) {
		return BaseMeta{}, fmt.Errorf("%w: %s", errMalformedBase, what)
	}
	if len(b) < 3 {
		return bad("an object of too few bytes")
	}
	if b[0] != baseVersion {
		return m, &FormatError{What: "an object", Found: uint64(b[0]), Max: baseVersion}
	}
	flags := b[1]
	if flags >= metaMixed<<1 {
		return bad("an object with unknown flags")
	}
	m.Deleted, m.Birth.Named = flags&metaDeleted != 0, flags&metaNamed != 0
	m.Pages.Inline, m.Mixed = flags&metaInline != 0, flags&metaMixed != 0
	if b[2] != 0 {
		if b[2] > 16 || !vfs.ValidPageSize(1<<b[2]) {
			return bad("no valid page size")
		}
		m.Pages.PageSize = 1 << b[2]
	}
	b = b[3:]
	var count, n uint64
	for _, v := range []*uint64{&m.Txid, &m.Pos.Term, &m.Pos.Index, &count} {
		k := 0
		if *v, k = binary.Uvarint(b); k <= 0 {
			return bad("a cut number")
		}
		b = b[k:]
	}
	if count > math.MaxUint32 || count > 0 && m.Pages.PageSize == 0 || m.Txid == 0 || len(b) < 8 {
		return bad("numbers of an object do not add up")
	}
	m.Pages.Count = uint32(count)
	m.Pages.Checksum = binary.LittleEndian.Uint64(b)
	b = b[8:]
	k := 0
	if m.AlarmMS, k = binary.Varint(b); k <= 0 {
		return bad("a cut number")
	}
	b = b[k:]
	if n, k = binary.Uvarint(b); k <= 0 || n > uint64(len(b)-k) {
		return bad("class and name do not add up")
	}
	b = b[k:]
	m.Birth.Class, m.Birth.Name = string(b[:n]), string(b[n:])
	if !m.Birth.Named && m.Birth.Name != "" {
		return bad("a name of an object without one")
	}
	return m, nil
}

func (i *BaseInfo) encode() []byte {
	b := []byte{baseVersion}
	b = append(append(b, i.History[:]...), i.Disk[:]...)
	b = binary.AppendUvarint(b, i.Pos.Term)
	b = binary.AppendUvarint(b, i.Pos.Index)
	return binary.AppendVarint(b, i.Objects)
}

func decodeBaseInfo(b []byte) (i BaseInfo, err error) {
	if len(b) > 0 && b[0] != baseVersion {
		return i, &FormatError{What: "the base store", Found: uint64(b[0]), Max: baseVersion}
	}
	if len(b) < 1+32 {
		return i, fmt.Errorf("%w: no history and disk", errMalformedBase)
	}
	copy(i.History[:], b[1:])
	copy(i.Disk[:], b[17:])
	b = b[33:]
	for _, v := range []*uint64{&i.Pos.Term, &i.Pos.Index} {
		k := 0
		if *v, k = binary.Uvarint(b); k <= 0 {
			return i, fmt.Errorf("%w: no position", errMalformedBase)
		}
		b = b[k:]
	}
	k := 0
	if i.Objects, k = binary.Varint(b); k <= 0 || k != len(b) {
		return i, fmt.Errorf("%w: no number of objects", errMalformedBase)
	}
	return i, nil
}

// Forms of a page.
const (
	pageZeroes = 0
	pageWhole  = 1
)

// encodePage puts the page's checksum before it; a page of zeroes is one byte.
func encodePage(b []byte, pgno uint32, page []byte) []byte {
	sum := vfs.PageSum(pgno, page)
	if sum == 0 {
		return append(b, pageZeroes)
	}
	b = append(b, pageWhole)
	b = binary.LittleEndian.AppendUint64(b, sum)
	return append(b, page...)
}

// decodePage reads a page into page, or only its checksum if page is nil.
func decodePage(b []byte, pgno uint32, page []byte) (sum uint64, err error) {
	switch {
	case len(b) == 1 && b[0] == pageZeroes:
		clear(page)
		return 0, nil
	case len(b) < 9 || b[0] != pageWhole:
		return 0, fmt.Errorf("%w: page %d has no known form", errMalformedBase, pgno)
	}
	sum = binary.LittleEndian.Uint64(b[1:])
	if page == nil {
		return sum, nil
	}
	if len(b)-9 != len(page) {
		return 0, fmt.Errorf("%w: page %d has %d bytes and must have %d", errMalformedBase, pgno, len(b)-9, len(page))
	}
	copy(page, b[9:])
	if got := vfs.PageSum(pgno, page); got != sum {
		return 0, fmt.Errorf("%w: page %d has checksum %016x and must have %016x", errMalformedBase, pgno, got, sum)
	}
	return sum, nil
}
