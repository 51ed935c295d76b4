package store

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/limpet-dev/limpet"
)

// ClaimRetention is how long after its record a claim without an idempotency key
// is carried on by checkpoints; after a restart it is counted from the start. It is
// what package host keeps claims in memory for (DESIGN 5, Retention).
const ClaimRetention = limpet.MaxRetryTimeout + 30*time.Second

// Records of the log say which calls an object has taken. A checkpoint carries
// on what is still to be known of them, so that segments can go:
//
//	record ──> resident.said ──checkpoint──> claims of the base store ─┐
//	  │                                        │   ^                   │
//	  └──Open: from the log                    │   └─ next checkpoint ─┤ what is too
//	                  └─> RecoveredIdentities  │                       │ old is dropped
//	                      RecoveredKept  <─────┘ Open                  v
//
//	value:  u8 version = 1, boot ID
//	        (uvarint ms from that boot's start to the record, uvarint length,
//	         the identity or what a record's section 9 says of one call)*
//
// Times of another boot count as those of this one's start: nothing says how long
// the process was down.
const claimsVersion = 1

// saidOfCall is what a record says of one call.
type saidOfCall struct {
	at   int64 // ms since Open
	id   limpet.Identity
	kept *Kept // nil: id is claimed
}

// sinceOpen is the time in ms.
func (s *Store) sinceOpen() int64 { return s.opt.Clock.Now().Sub(s.opened).Milliseconds() }

// say notes what a record says of calls. e.mu is held.
func (s *Store) say(e *resident, ids []limpet.Identity, kept []Kept) {
	if len(ids) == 0 && len(kept) == 0 {
		return
	}
	at := s.sinceOpen()
	for _, id := range ids {
		e.said = append(e.said, saidOfCall{at: at, id: id})
	}
	for _, k := range kept {
		k.Data = append([]byte(nil), k.Data...)
		e.said = append(e.said, saidOfCall{at: at, kept: &k})
	}
}

// live says whether it is still to be known.
func (c *saidOfCall) live(s *Store, now int64) bool {
	young := now-c.at < ClaimRetention.Milliseconds()
	if c.kept == nil || !c.kept.Keyed {
		return young
	}
	if s.opt.KeyRetention <= 0 {
		return true
	}
	return young || s.opt.Clock.Now().UnixMilli()-c.kept.ClaimedMS < s.opt.KeyRetention.Milliseconds()
}

func encodeClaims(boot ID, said []saidOfCall) []byte {
	b := append([]byte{claimsVersion}, boot[:]...)
	var body []byte
	for i := range said {
		c := &said[i]
		b = binary.AppendUvarint(b, uint64(max(c.at, 0)))
		if c.kept == nil {
			body = appendIdentity(body[:0], &c.id)
		} else {
			body = append(appendKeptHead(body[:0], c.kept), c.kept.Data...)
		}
		b = binary.AppendUvarint(b, uint64(len(body)))
		b = append(b, body...)
	}
	return b
}

func appendIdentity(b []byte, id *limpet.Identity) []byte {
	b = append(b, id.Nonce[:]...)
	return binary.LittleEndian.AppendUint64(b, uint64(id.CreatedMS))
}

// decodeClaims reads claims; what it returns does not point into b.
func decodeClaims(boot ID, b []byte) (said []saidOfCall, err error) {
	bad := fmt.Errorf("%w: claims do not add up", errMalformedBase)
	if len(b) < 17 {
		return nil, bad
	}
	if b[0] != claimsVersion {
		return nil, &FormatError{What: "claims of an object", Found: uint64(b[0]), Max: claimsVersion}
	}
	same := ID(b[1:17]) == boot
	for b = b[17:]; len(b) > 0; {
		at, k := binary.Uvarint(b)
		if k <= 0 {
			return nil, bad
		}
		n, w := binary.Uvarint(b[k:])
		if w <= 0 || n > uint64(len(b)-k-w) {
			return nil, bad
		}
		body := b[k+w : k+w+int(n)]
		b = b[k+w+int(n):]
		c := saidOfCall{}
		if same {
			c.at = int64(at)
		}
		if len(body) == identitySize {
			copy(c.id.Nonce[:], body)
			c.id.CreatedMS = int64(binary.LittleEndian.Uint64(body[16:]))
		} else {
			kept, err := decodeKept(append([]byte(nil), body...))
			if err != nil || len(kept) != 1 {
				return nil, bad
			}
			c.kept = &kept[0]
		}
		said = append(said, c)
	}
	return said, nil
}

// leftover is an object of which the base store may have something that is to
// go: claims when they are too old, or the note that it was deleted.
type leftover struct {
	id ObjectID
	at int64 // ms since Open from which to look
}

// recoverClaims hands over what the base store has of claims.
func (s *Store) recoverClaims() error {
	now := s.sinceOpen()
	return s.base.EachClaimed(func(id ObjectID, b []byte) error {
		s.left = append(s.left, leftover{id, now + ClaimRetention.Milliseconds()})
		if b == nil {
			return nil
		}
		said, err := decodeClaims(s.boot, b)
		if err != nil {
			return fmt.Errorf("object %x: %w", id, err)
		}
		for i := range said {
			if c := &said[i]; c.kept != nil {
				s.kept.add(id, *c.kept)
			} else {
				s.idents.add(RecoveredIdentity{id, c.id})
			}
		}
		return nil
	})
}

// liveClaims is what a checkpoint writes of an object's claims: what the base
// store has of them and what was said since.
func (s *Store) liveClaims(id ObjectID, had bool, since []saidOfCall) ([]byte, error) {
	var all []saidOfCall
	if had {
		b, err := s.base.Claims(id)
		if err != nil {
			return nil, err
		}
		if b != nil {
			if all, err = decodeClaims(s.boot, b); err != nil {
				return nil, fmt.Errorf("object %x: %w", id, err)
			}
		}
	}
	now := s.sinceOpen()
	some := make([]saidOfCall, 0, len(all)+len(since))
	for _, c := range append(all, since...) {
		if c.live(s, now) {
			some = append(some, c)
		}
	}
	if len(some) == 0 {
		return nil, nil
	}
	return encodeClaims(s.boot, some), nil
}
