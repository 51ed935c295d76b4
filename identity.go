package limpet

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// Identity is the token of one logical call, the same over all attempts that
// could be duplicates of each other (SPEC F1, E28). The zero Identity means that
// the call has none.
type Identity struct {
	// Nonce is random.
	Nonce [16]byte
	// CreatedMS is the sender's wall clock at creation, in milliseconds since
	// 1970. It is for people to read; no decision compares it between machines.
	CreatedMS int64
}

// IsZero reports whether the call has no identity.
func (i Identity) IsZero() bool { return i == Identity{} }

// Created is CreatedMS as a time in UTC.
func (i Identity) Created() time.Time { return time.UnixMilli(i.CreatedMS).UTC() }

// String is the nonce as 32 hex digits, "-" and the creation time in hex, in
// lower case; empty for the zero Identity. ParseIdentity reads it back.
func (i Identity) String() string {
	if i.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s-%x", hex.EncodeToString(i.Nonce[:]), uint64(i.CreatedMS))
}

// ParseIdentity reads what String wrote, or the Identity of an Error that has no
// idempotency key: what follows an "@" in that is passed over. The empty string
// is the zero Identity. The error is CodeInvalidArgument.
func ParseIdentity(s string) (Identity, error) {
	var id Identity
	var ms uint64
	if s == "" {
		return Identity{}, nil
	}
	s, _, _ = strings.Cut(s, "@")
	if len(s) < 34 || len(s) > 49 || s[32] != '-' {
		return Identity{}, Errorf(CodeInvalidArgument, "invalid call identity %.64q: must be 32 hex digits, \"-\" and a hex time", s)
	}
	if _, err := hex.Decode(id.Nonce[:], []byte(s[:32])); err != nil {
		return Identity{}, Errorf(CodeInvalidArgument, "invalid call identity %q: %w", s, err)
	}
	for _, c := range []byte(s[33:]) {
		d, ok := hexDigit(c)
		if !ok {
			return Identity{}, Errorf(CodeInvalidArgument, "invalid call identity %q: bad digit %q", s, c)
		}
		ms = ms<<4 | uint64(d)
	}
	id.CreatedMS = int64(ms)
	if id.IsZero() {
		return Identity{}, Errorf(CodeInvalidArgument, "invalid call identity %q: all zeros stand for none", s)
	}
	return id, nil
}
