package store

import (
	"encoding/binary"
	"errors"

	"github.com/limpet-dev/limpet"
)

// Kept is what a record says of one call: that an idempotency key is claimed, the
// outcome, or both.
type Kept struct {
	// Keyed says that the call has an idempotency key, of which ID is a hash; else
	// ID is its identity.
	Keyed bool
	ID    limpet.Identity
	// Claimed says that the key is claimed: at ClaimedMS by this machine's clock,
	// in ms since 1970, for the method and arguments that Print is a hash of.
	Claimed   bool
	Print     [32]byte
	ClaimedMS int64
	// Kind is the caller's word for the outcome that is in Data; 0 for none.
	Kind uint8
	Data []byte
}

const (
	keptKeyed = 1 << iota
	keptClaimed
	keptOutcome
)

// size is at least what it takes in a record.
func (k *Kept) size() int { return 1 + identitySize + 32 + 8 + 1 + binary.MaxVarintLen32 + len(k.Data) }

// appendCalls writes the sections that are not empty.
func appendCalls(b []byte, ids []limpet.Identity, kept []Kept) []byte {
	if len(ids) > 0 {
		b = appendIdentities(b, ids)
	}
	if len(kept) > 0 {
		b = appendKept(b, kept)
	}
	return b
}

// appendKept writes the section of at least one Kept.
func appendKept(b []byte, kept []Kept) []byte {
	n := 0
	for i := range kept {
		n += len(appendKeptHead(nil, &kept[i])) + len(kept[i].Data)
	}
	b = append(b, sectionKept)
	b = binary.AppendUvarint(b, uint64(n)) //nolint:gosec // not negative
	for i := range kept {
		b = append(appendKeptHead(b, &kept[i]), kept[i].Data...)
	}
	return b
}

func appendKeptHead(b []byte, k *Kept) []byte {
	flags := byte(0)
	set := func(on bool, f byte) {
		if on {
			flags |= f
		}
	}
	set(k.Keyed, keptKeyed)
	set(k.Claimed, keptClaimed)
	set(k.Kind != 0, keptOutcome)
	b = append(append(b, flags), k.ID.Nonce[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(k.ID.CreatedMS)) //nolint:gosec // the bits
	if k.Claimed {
		b = append(b, k.Print[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(k.ClaimedMS)) //nolint:gosec // the bits
	}
	if k.Kind != 0 {
		b = binary.AppendUvarint(append(b, k.Kind), uint64(len(k.Data)))
	}
	return b
}

var errMalformedKept = errors.New("what is said of calls does not add up")

// decodeKept reads the body of a section. Data points into b.
func decodeKept(b []byte) (kept []Kept, err error) {
	for len(b) > 0 || kept == nil {
		if len(b) < 1+identitySize || b[0] == 0 || b[0] > keptKeyed|keptClaimed|keptOutcome || b[0]&(keptClaimed|keptOutcome) == 0 {
			return nil, errMalformedKept
		}
		flags := b[0]
		k := Kept{Keyed: flags&keptKeyed != 0, Claimed: flags&keptClaimed != 0}
		copy(k.ID.Nonce[:], b[1:])
		k.ID.CreatedMS = int64(binary.LittleEndian.Uint64(b[17:])) //nolint:gosec // the bits
		b = b[1+identitySize:]
		if k.Claimed {
			if len(b) < len(k.Print)+8 || !k.Keyed {
				return nil, errMalformedKept
			}
			copy(k.Print[:], b)
			k.ClaimedMS = int64(binary.LittleEndian.Uint64(b[32:])) //nolint:gosec // the bits
			b = b[40:]
		}
		if flags&keptOutcome != 0 {
			if len(b) < 2 || b[0] == 0 {
				return nil, errMalformedKept
			}
			n, w := binary.Uvarint(b[1:])
			if w <= 0 || n > uint64(len(b)-1-w) {
				return nil, errMalformedKept
			}
			k.Kind, k.Data = b[0], b[1+w:1+w+int(n)] //nolint:gosec // bounded
			b = b[1+w+int(n):]                       //nolint:gosec // bounded
		}
		kept = append(kept, k)
	}
	return kept, nil
}

// maxRecoveredKeys bounds the claims of keys kept at replay, some 500 MiB.
const maxRecoveredKeys = 4 << 20

// RecoveredKept is a Kept that was found in the commit log.
type RecoveredKept struct {
	Object ObjectID
	Kept
}

// keptRing keeps what replay finds: every claim of a key that is young enough, and
// the newest outcomes.
type keptRing struct {
	after    int64 // ClaimedMS of the oldest claims kept; 0 for all
	budget   int64 // bytes of outcomes
	all      []RecoveredKept
	bytes    int64
	next     int // outcomes before this are dropped
	dead     int // entries before next of which nothing is left to say
	keys     int
	overflow bool
}

func (r *keptRing) add(object ObjectID, k Kept) {
	if k.Claimed && k.ClaimedMS < r.after {
		k.Claimed = false
	}
	if k.Claimed {
		if r.keys == maxRecoveredKeys {
			r.overflow, k.Claimed = true, false
		} else {
			r.keys++
		}
	}
	if !k.Claimed && k.Kind == 0 {
		return
	}
	k.Data = append([]byte(nil), k.Data...) // the record is gone soon
	r.all = append(r.all, RecoveredKept{object, k})
	r.bytes += keptCost(&k)
	for ; r.bytes > r.budget; r.next++ {
		old := &r.all[r.next]
		r.bytes -= keptCost(&old.Kept)
		old.Kind, old.Data = 0, nil
		if !old.Claimed {
			r.dead++
		}
	}
	if r.dead > 1<<16 && r.dead > len(r.all)/2 { // else it would go through the claims each time
		r.compact()
	}
}

// keptCost is what an outcome counts.
func keptCost(k *Kept) int64 {
	if k.Kind == 0 {
		return 0
	}
	return int64(len(k.Data)) + 128
}

// compact forgets entries of which nothing is left to say: the identity of a call
// without a key stands in its own section.
func (r *keptRing) compact() {
	some := r.all[:0]
	for i, k := range r.all[:r.next] {
		if k.Claimed {
			some = append(some, r.all[i])
		}
	}
	n := len(some)
	r.all, r.next, r.dead = append(some, r.all[r.next:]...), n, 0
}

// RecoveredKept hands over what Open found out about calls, oldest first, and
// forgets it: a second call returns none. A later entry of the same call adds to an
// earlier one. Claims of keys are those of the last Options.KeyRetention, outcomes
// the newest of Options.OutcomeMemory bytes together. complete is false when there were more claims of keys than the
// store keeps (4,194,304): then a key that is not among them may be claimed too.
func (s *Store) RecoveredKept() (all []RecoveredKept, complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, complete = s.kept.all, !s.kept.overflow
	s.kept = keptRing{}
	return all, complete
}
