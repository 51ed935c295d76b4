package store

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// Sections of a record. The drawing is in doc.go.
const (
	sectionTxid       = 1
	sectionBirth      = 2
	sectionPages      = 3
	sectionIdentities = 4
	sectionDeletion   = 5
	sectionPiece      = 6
	sectionSpilled    = 7
	sectionAlarm      = 8 // reserved
	sectionKept       = 9

	sectionMax = sectionKept // newest section this limpet reads

	recordHeaderSize = 2 + 32
	// maxSectionHeads is more than what the sections of pages and identities have
	// besides diff and identities.
	maxSectionHeads = 64
	identitySize    = 16 + 8
	// maxBirthText bounds the class identity and the name of an object in bytes.
	maxBirthText = 64 << 10
)

// ObjectID names an object. It is the ID of SPEC A as bytes.
type ObjectID = [32]byte

// SlotOf is the slot of an object: groups of a cluster will be ranges of slots,
// so it stands first in every key and record.
func SlotOf(id ObjectID) uint16 {
	h := sha256.Sum256(id[:])
	return binary.BigEndian.Uint16(h[:])
}

// Birth says what an object is. It stands in the object's first record.
type Birth struct {
	Class string // identity of the class, as RegisterClass gave it
	Name  string // of the object, at most 60 KiB
	Named bool   // false for an object that is addressed by ID only; a Name that is not empty counts as true
}

// record is one commit of one object: redo that needs nothing but the object's
// state before.
type record struct {
	slot uint16 // as it is written, see checkSlot
	id   ObjectID
	txid uint64 // of this commit, from 1
	prev uint64 // of the object's commit before, 0 for none

	birth      *Birth
	pages      *pagesSection
	identities []limpet.Identity
	kept       []Kept
	deleted    bool // the object is as if it never was, until its next record

	piece   *pieceSection   // the record is no commit, but a piece of one
	spilled *spilledSection // the diff of pages came in pieces before
}

// pagesSection is the change of the database.
type pagesSection struct {
	pageSize  int
	pageCount uint32 // after the commit
	checksum  uint64 // of the pages after the commit
	diff      []byte
}

// pieceSection is a part of a spilled commit.
type pieceSection struct {
	number uint64 // from 0
	diff   []byte
}

// spilledSection says what the pieces of a commit are together.
type spilledSection struct {
	pieces   uint64 // at least 1
	bytes    uint64 // of all diffs
	checksum uint32 // CRC-32C of all diffs
}

// appendRecordStart begins a record.
func appendRecordStart(b []byte, slot uint16, id *ObjectID, txid, prev uint64) []byte {
	b = binary.BigEndian.AppendUint16(b, slot)
	b = append(b, id[:]...)
	b = append(b, sectionTxid, 0)
	at := len(b)
	b = binary.AppendUvarint(b, txid)
	b = binary.AppendUvarint(b, prev)
	b[at-1] = byte(len(b) - at)
	return b
}

func appendBirth(b []byte, birth *Birth) []byte {
	n := uvarintLen(uint64(len(birth.Class))) + len(birth.Class) + 1 + len(birth.Name)
	b = append(b, sectionBirth)
	b = binary.AppendUvarint(b, uint64(n))
	b = binary.AppendUvarint(b, uint64(len(birth.Class)))
	b = append(b, birth.Class...)
	if birth.Named {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return append(b, birth.Name...)
}

func appendIdentities(b []byte, ids []limpet.Identity) []byte {
	b = append(b, sectionIdentities)
	b = binary.AppendUvarint(b, uint64(len(ids)*identitySize))
	for i := range ids {
		b = append(b, ids[i].Nonce[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(ids[i].CreatedMS))
	}
	return b
}

func appendDeletion(b []byte) []byte { return append(b, sectionDeletion, 0) }

// appendPages puts the section together in place: its length is known only
// after the diff was made, so room for it is left and closed up.
func appendPages(b []byte, c *vfs.Change) []byte {
	const room = binary.MaxVarintLen32
	b = append(b, sectionPages)
	lengthAt := len(b)
	b = append(b, make([]byte, room)...)
	b = append(b, byte(bits.TrailingZeros(uint(c.PageSize))))
	b = binary.AppendUvarint(b, uint64(c.PageCountAfter))
	b = binary.LittleEndian.AppendUint64(b, c.ChecksumAfter)
	b = vfs.AppendDiff(b, c)
	body := b[lengthAt+room:]
	n := binary.PutUvarint(b[lengthAt:lengthAt+room], min(uint64(len(body)), math.MaxUint32))
	copy(b[lengthAt+n:], body)
	return b[:lengthAt+n+len(body)]
}

// appendPiece begins the section of a piece; size bytes of diff are to follow.
func appendPiece(b []byte, number uint64, size int) []byte {
	b = append(b, sectionPiece)
	b = binary.AppendUvarint(b, uint64(uvarintLen(number)+size))
	return binary.AppendUvarint(b, number)
}

// appendSpilled ends with the checksum, which is known last.
func appendSpilled(b []byte, s spilledSection) []byte {
	b = append(b, sectionSpilled)
	b = binary.AppendUvarint(b, uint64(uvarintLen(s.pieces)+uvarintLen(s.bytes)+4))
	b = binary.AppendUvarint(b, s.pieces)
	b = binary.AppendUvarint(b, s.bytes)
	return binary.LittleEndian.AppendUint32(b, s.checksum)
}

func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// errMalformedRecord is wrapped by all that decodeRecord finds wrong, except a
// newer format.
var errMalformedRecord = errors.New("malformed record")

// checkSlot refuses a slot that is not the object's. It is not part of
// decodeRecord since it need be done once for an object only.
func (r *record) checkSlot() error {
	if r.slot != SlotOf(r.id) {
		return fmt.Errorf("%w: slot %#04x is not that of object %x", errMalformedRecord, r.slot, r.id)
	}
	return nil
}

// decodeRecord reads a record. What it returns points into b. A section that
// it does not know is a *FormatError: nothing is skipped, since it could matter.
func decodeRecord(b []byte) (r record, err error) {
	bad := func(format string, args ...any) (record, error) {
		return record{}, fmt.Errorf("%w: %s", errMalformedRecord, fmt.Sprintf(format, args...))
	}
	if len(b) < recordHeaderSize {
		return bad("%d bytes are too few", len(b))
	}
	r.slot = binary.BigEndian.Uint16(b)
	copy(r.id[:], b[2:])
	b = b[recordHeaderSize:]
	last := byte(0)
	for len(b) > 0 {
		section := b[0]
		n, k := binary.Uvarint(b[1:])
		if k <= 0 || n > uint64(len(b)-1-k) {
			return bad("section %d is longer than the record", section)
		}
		body := b[1+k : 1+k+int(n)]
		b = b[1+k+int(n):]
		if section == 0 || section <= last {
			return bad("section %d follows section %d", section, last)
		}
		if last == 0 && section != sectionTxid {
			return bad("it begins with section %d", section)
		}
		if section == sectionPiece && last != sectionTxid || last == sectionPiece {
			return bad("section %d in a piece of a commit", section)
		}
		last = section
		switch section {
		case sectionTxid:
			r.txid, k = binary.Uvarint(body)
			if k <= 0 {
				return bad("no transaction number")
			}
			body = body[k:]
			r.prev, k = binary.Uvarint(body)
			if k <= 0 || k != len(body) {
				return bad("no previous transaction number")
			}
			if r.txid <= r.prev {
				return bad("transaction %d follows transaction %d", r.txid, r.prev)
			}
		case sectionBirth:
			m, k := binary.Uvarint(body)
			if k <= 0 || n > maxBirthText || m >= uint64(len(body)-k) {
				return bad("class and name of the object do not add up")
			}
			class, named, name := body[k:k+int(m)], body[k+int(m)], body[k+int(m)+1:]
			if named > 1 || named == 0 && len(name) > 0 {
				return bad("a name of an object without one")
			}
			r.birth = &Birth{Class: string(class), Name: string(name), Named: named == 1}
		case sectionPages:
			if len(body) < 1 || body[0] > 16 || !vfs.ValidPageSize(1<<body[0]) {
				return bad("no valid page size")
			}
			p := &pagesSection{pageSize: 1 << body[0]}
			count, k := binary.Uvarint(body[1:])
			if k <= 0 || count > math.MaxUint32 || len(body) < 1+k+8 {
				return bad("no page count and checksum")
			}
			p.pageCount = uint32(count)
			p.checksum = binary.LittleEndian.Uint64(body[1+k:])
			p.diff = body[1+k+8:]
			r.pages = p
		case sectionIdentities:
			if n == 0 || n%identitySize != 0 {
				return bad("identities of %d bytes", n)
			}
			r.identities = make([]limpet.Identity, n/identitySize)
			for i := range r.identities {
				e := body[i*identitySize:]
				copy(r.identities[i].Nonce[:], e)
				r.identities[i].CreatedMS = int64(binary.LittleEndian.Uint64(e[16:]))
			}
		case sectionKept:
			if r.kept, err = decodeKept(body); err != nil {
				return bad("%v", err)
			}
		case sectionDeletion:
			if n != 0 || r.pages != nil || r.birth != nil {
				return bad("a deletion that also writes")
			}
			r.deleted = true
		case sectionPiece:
			number, k := binary.Uvarint(body)
			if k <= 0 || len(body) == k {
				return bad("a piece of a commit without number or bytes")
			}
			r.piece = &pieceSection{number, body[k:]}
		case sectionSpilled:
			var s spilledSection
			if s.pieces, k = binary.Uvarint(body); k > 0 {
				body = body[k:]
				s.bytes, k = binary.Uvarint(body)
			}
			if k <= 0 || len(body) != k+4 || s.pieces == 0 || r.pages == nil || len(r.pages.diff) > 0 {
				return bad("what is said of the commit's pieces does not add up")
			}
			s.checksum = binary.LittleEndian.Uint32(body[k:])
			r.spilled = &s
		default:
			return record{}, &FormatError{What: fmt.Sprintf("a record of object %x", r.id), Found: uint64(section), Max: sectionMax}
		}
	}
	if r.txid == 0 {
		return bad("no transaction number")
	}
	return r, nil
}
