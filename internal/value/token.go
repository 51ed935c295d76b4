package value

import (
	"math/big"

	"github.com/limpet-dev/limpet"
)

// A Kind says what a token is.
type Kind uint8

// The kinds of tokens.
const (
	KindNull Kind = iota + 1
	KindUndefined
	KindBool   // Int is 0 or 1
	KindInt    // Int, |Int| <= 2^53
	KindFloat  // Float
	KindBigInt // BigInt()
	KindString // Str: UTF-8, or WTF-8 with lone surrogates
	KindBytes  // Str: the bytes of a Uint8Array
	KindTyped  // Elem and Str: the bytes of another kind of binary data
	KindDate   // Float: milliseconds since 1970, whole; NaN is an invalid date
	KindRegExp // Str is the source, Flags the flags
	KindBoxed  // a primitive follows
	KindArray  // N elements follow, each a value or a hole
	KindObject // N times a key and a value follow
	KindMap    // N times a value (the key) and a value follow
	KindSet    // N values follow
	KindError  // Err; N times a key and a value follow (own fields), then the cause or a hole, then an array (errors) or a hole
	KindKey    // Str: the name of an object's member or of an error's field
	KindHole   // an array element that does not exist; no cause; no errors
	KindRef    // N: the shared value of that number once more

	KindCapability // Capability() and N: its index in the list beside the bytes
)

var kindNames = [...]string{
	KindNull: "null", KindUndefined: "undefined", KindBool: "boolean", KindInt: "number", KindFloat: "number",
	KindBigInt: "bigint", KindString: "string", KindBytes: "Uint8Array", KindTyped: "typed array", KindDate: "Date",
	KindRegExp: "RegExp", KindBoxed: "boxed primitive", KindArray: "array", KindObject: "object", KindMap: "Map", KindSet: "Set",
	KindError: "error", KindKey: "key", KindHole: "hole", KindRef: "shared reference",
	KindCapability: "capability",
}

// String gives the name by which a user knows the kind.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return "nothing"
	}
	return kindNames[k]
}

// A Token is one step of a value. Which fields count stands at its Kind; the
// others are stale. Str and Flags are part of the input and must not be changed
// or kept.
type Token struct {
	Kind Kind
	// Elem is the kind of binary data of a KindTyped.
	Elem limpet.TypedArrayKind
	// neg tells a negative big integer; Str is its magnitude then, as CBOR has it.
	neg bool
	// Share is the number of the value if it is one that references may name,
	// else -1. Numbers count up from 0 in the order of the values' beginnings.
	Share int
	N     int
	Int   int64
	Float float64
	Str   []byte
	Flags []byte
	Err   *ErrorHead
}

// An ErrorHead is what an error begins with. The strings are as in limpet.ErrorValue, but none is defaulted.
type ErrorHead struct {
	Class, Name, Message, Stack string
}

// BigInt is the integer of a KindBigInt.
func (t *Token) BigInt() *big.Int {
	i := new(big.Int).SetBytes(t.Str)
	if t.neg {
		i.Not(i)
	}
	return i
}

// Capability is what kind of thing a KindCapability is.
func (t *Token) Capability() limpet.CapabilityKind { return limpet.CapabilityKind(t.Int) }

// items is how many tokens stand directly in the container t: 0 for a scalar.
func (t *Token) items() int {
	switch t.Kind {
	case KindBoxed:
		return 1
	case KindArray, KindSet:
		return t.N
	case KindObject, KindMap:
		return 2 * t.N
	case KindError:
		return 2*t.N + 2
	}
	return 0
}

// typedTags has the RFC 8746 tag of each typed array (the little endian ones;
// there is no other in this format), and private tags for the two kinds it has none for.
var typedTags = [...]uint16{
	limpet.ArrayBuffer:       tagArrayBuffer,
	limpet.DataView:          tagDataView,
	limpet.Uint8ClampedArray: 68,
	limpet.Int8Array:         72,
	limpet.Int16Array:        77,
	limpet.Uint16Array:       69,
	limpet.Int32Array:        78,
	limpet.Uint32Array:       70,
	limpet.BigInt64Array:     79,
	limpet.BigUint64Array:    71,
	limpet.Float16Array:      84,
	limpet.Float32Array:      85,
	limpet.Float64Array:      86,
}

func typedKind(tag uint64) limpet.TypedArrayKind {
	for k, t := range typedTags {
		if uint64(t) == tag && t != 0 {
			return limpet.TypedArrayKind(k)
		}
	}
	return 0
}
