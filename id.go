package limpet

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"unicode/utf8"
)

// MaxNameBytes is the longest name an object may have. The empty name is valid
// (SPEC A7).
const MaxNameBytes = 32 << 10

// ID names one object for ever: 32 bytes, of which the second 16 prove which
// namespace and jurisdiction it belongs to without a lookup (SPEC A1, A2).
//
//	byte  0        16                    32
//	      ├─────────┼─────────────────────┤
//	      │ head    │ HMAC-SHA-256(K, head ‖ J)[:16]
//	      └─────────┴─────────────────────┘
//	head  of a name:  HMAC-SHA-256(K, name ‖ J)[:16]     (SPEC A3)
//	      unique:     16 random bytes                     (SPEC A4)
//	K     SHA-256 of the class's identity
//	J     nothing, or 0x00 and the jurisdiction (SPEC A23)
//
// Two IDs that name one object may differ in Name, so compare with Equal, not
// with ==. The zero ID names nothing.
type ID struct {
	raw          [32]byte
	name         string
	named        bool
	jurisdiction string
}

// String is exactly 64 lowercase hex digits (SPEC A1).
func (id ID) String() string { return hex.EncodeToString(id.raw[:]) }

// Bytes is the 32 bytes of the ID.
func (id ID) Bytes() [32]byte { return id.raw }

// IsZero reports whether id names nothing.
func (id ID) IsZero() bool { return id.raw == [32]byte{} }

// Equal reports whether both name the same object; names and jurisdictions are
// part of the bytes (SPEC A10).
func (id ID) Equal(other ID) bool { return id.raw == other.raw }

// Name is the name the ID was made from. ok is false for a unique ID and for one
// rebuilt from its digits, since a name can't be read out of an ID (SPEC A9,
// A11).
func (id ID) Name() (name string, ok bool) { return id.name, id.named }

// Jurisdiction is "eu", "us", "fedramp", "fedramp-high", or empty (SPEC A11).
func (id ID) Jurisdiction() string { return id.jurisdiction }

// MarshalText gives the digits of String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// jurisdictions are those of SPEC A24.
var jurisdictions = [...]string{"eu", "us", "fedramp", "fedramp-high"}

func checkJurisdiction(j string) error {
	for _, k := range jurisdictions {
		if j == k {
			return nil
		}
	}
	return invalid("TypeError", "unknown jurisdiction %.64q: must be eu, us, fedramp or fedramp-high", j)
}

// idSpace makes and checks the IDs of one namespace.
type idSpace struct {
	key [32]byte // SHA-256 of the class's identity (SPEC A2)
}

func newIDSpace(classIdentity string) idSpace {
	return idSpace{key: sha256.Sum256([]byte(classIdentity))}
}

func (s *idSpace) mac(data []byte, jurisdiction string) (half [16]byte) {
	h := hmac.New(sha256.New, s.key[:])
	h.Write(data)
	if jurisdiction != "" {
		h.Write([]byte{0})
		h.Write([]byte(jurisdiction))
	}
	copy(half[:], h.Sum(nil))
	return half
}

func (s *idSpace) complete(head [16]byte, jurisdiction string) ID {
	id := ID{jurisdiction: jurisdiction}
	tail := s.mac(head[:], jurisdiction)
	copy(id.raw[:16], head[:])
	copy(id.raw[16:], tail[:])
	return id
}

func (s *idSpace) fromName(name, jurisdiction string) (ID, error) {
	if len(name) > MaxNameBytes {
		return ID{}, invalid("TypeError", "object name of %d bytes is too long: the limit is %d bytes", len(name), MaxNameBytes)
	}
	if !utf8.ValidString(name) {
		return ID{}, invalid("TypeError", "object name %.64q is not valid UTF-8", name)
	}
	id := s.complete(s.mac([]byte(name), jurisdiction), jurisdiction)
	id.name, id.named = name, true
	return id, nil
}

func (s *idSpace) unique(jurisdiction string) ID {
	var head [16]byte
	_, _ = rand.Read(head[:]) // never fails (crypto/rand)
	return s.complete(head, jurisdiction)
}

// fromString reads 64 hex digits of either case (SPEC A8).
func (s *idSpace) fromString(text string) (ID, error) {
	var raw [32]byte
	if len(text) != 64 {
		return ID{}, errMalformedID()
	}
	if _, err := hex.Decode(raw[:], []byte(text)); err != nil {
		return ID{}, errMalformedID()
	}
	j, ok := s.owns(raw)
	if !ok {
		return ID{}, errForeignID()
	}
	return ID{raw: raw, jurisdiction: j}, nil
}

// owns reports whether raw was made in this namespace, and in which jurisdiction.
func (s *idSpace) owns(raw [32]byte) (jurisdiction string, ok bool) {
	for i := -1; i < len(jurisdictions); i++ {
		j := ""
		if i >= 0 {
			j = jurisdictions[i]
		}
		tail := s.mac(raw[:16], j)
		if hmac.Equal(tail[:], raw[16:]) {
			return j, true
		}
	}
	return "", false
}

func errMalformedID() error {
	return invalid("TypeError", "Invalid Durable Object ID: must be 64 hex digits")
}

func errForeignID() error {
	return invalid("TypeError", "Durable Object ID is not valid for this namespace.")
}

func hexDigit(c byte) (d byte, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
