package value

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
)

// version is the first byte of every value.
const version = 1

// CBOR major types (RFC 8949, section 3), already in their place in the byte.
const (
	majorUint   = 0 << 5
	majorNeg    = 1 << 5
	majorBytes  = 2 << 5
	majorText   = 3 << 5
	majorArray  = 4 << 5
	majorMap    = 5 << 5
	majorTag    = 6 << 5
	majorSimple = 7 << 5
)

// Bytes that stand alone.
const (
	byteHole      = 0xe0 // simple(0)
	byteFalse     = 0xf4
	byteTrue      = 0xf5
	byteNull      = 0xf6
	byteUndefined = 0xf7
	byteFloat16   = 0xf9
	byteFloat32   = 0xfa
	byteFloat64   = 0xfb
	bytePending   = 0xff // never left in finished bytes: a reference not yet numbered
)

// Tags. The private ones are 0x4c00 ('L') and up.
const (
	tagBigPos = 2
	tagBigNeg = 3
	tagShared = 28
	tagRef    = 29
	tagSet    = 258
	tagMap    = 259
	tagWTF8   = 273

	tagDate        = 0x4c00
	tagRegExp      = 0x4c01
	tagBoxed       = 0x4c02
	tagError       = 0x4c03
	tagArrayBuffer = 0x4c04
	tagDataView    = 0x4c05
	tagCapability  = 0x4c06
)

// errorItems is the length of an error's array: class, name, message, stack,
// fields, cause, errors.
const errorItems = 7

// maxSafe is the largest integer up to which every integer is a float64 too.
const maxSafe = 1 << 53

// maxDate is the largest time of a JavaScript date, in milliseconds to either side of 1970.
const maxDate = 8.64e15

func appendHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n <= math.MaxUint8:
		return append(b, major|24, byte(n))
	case n <= math.MaxUint16:
		return append(b, major|25, byte(n>>8), byte(n))
	case n <= math.MaxUint32:
		return append(b, major|26, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), n)
}

// appendInt writes an integer: beyond ±2^53 as a big integer, so that a reader
// whose numbers are float64 gets the exact value.
func appendInt(b []byte, i int64) []byte {
	switch {
	case i >= 0:
		return appendUint(b, uint64(i))
	case i >= -maxSafe:
		return appendHead(b, majorNeg, uint64(^i))
	}
	return appendMagnitude(b, tagBigNeg, uint64(^i))
}

func appendUint(b []byte, i uint64) []byte {
	if i <= maxSafe {
		return appendHead(b, majorUint, i)
	}
	return appendMagnitude(b, tagBigPos, i)
}

func appendMagnitude(b []byte, tag, m uint64) []byte {
	n := (bits.Len64(m) + 7) / 8
	b = append(b, majorTag|byte(tag), majorBytes|byte(n))
	for n--; n >= 0; n-- {
		b = append(b, byte(m>>(8*n)))
	}
	return b
}

// appendBigInt writes i as a big integer whatever its size: 5n is no 5.
func appendBigInt(b []byte, i *big.Int) ([]byte, error) {
	if n := i.BitLen(); n > MaxBigIntBits {
		return b, fail(ErrTooLarge, "big integer of %d bits; the limit is %d", n, MaxBigIntBits)
	}
	tag := byte(tagBigPos)
	if i.Sign() < 0 {
		tag = tagBigNeg
		i = new(big.Int).Not(i)
	}
	n := (i.BitLen() + 7) / 8
	b = appendHead(append(b, majorTag|tag), majorBytes, uint64(n))
	b = append(b, make([]byte, n)...)
	i.FillBytes(b[len(b)-n:])
	return b, nil
}

// appendFloat writes f in the shortest of the three widths that keeps it. Every
// NaN becomes the one NaN.
func appendFloat(b []byte, f float64) []byte {
	if f != f {
		return append(b, byteFloat16, 0x7e, 0x00)
	}
	if f32 := float32(f); float64(f32) == f {
		u := math.Float32bits(f32)
		if h, ok := halfBits(u); ok {
			return append(b, byteFloat16, byte(h>>8), byte(h))
		}
		return binary.BigEndian.AppendUint32(append(b, byteFloat32), u)
	}
	return binary.BigEndian.AppendUint64(append(b, byteFloat64), math.Float64bits(f))
}

// halfBits gives the binary16 of a binary32, if it is exact: zeros, infinities,
// normal and subnormal halves.
func halfBits(u uint32) (uint16, bool) {
	sign := uint16(u >> 16 & 0x8000)
	exp := int(u>>23&0xff) - 127
	frac := u & 0x7fffff
	switch {
	case exp == 128 && frac == 0:
		return sign | 0x7c00, true
	case u<<1 == 0:
		return sign, true
	case exp >= -14 && exp <= 15 && frac&0x1fff == 0:
		return sign | uint16(exp+15)<<10 | uint16(frac>>13), true
	case exp >= -24 && exp < -14:
		full := frac | 0x800000
		shift := uint(-exp - 1)
		if full&(1<<shift-1) == 0 {
			return sign | uint16(full>>shift), true
		}
	}
	return 0, false
}

// halfFloat is the value of a binary16.
func halfFloat(h uint16) float64 {
	exp, frac := int(h>>10&0x1f), float64(h&0x3ff)
	var f float64
	switch exp {
	case 0:
		f = math.Ldexp(frac, -24)
	case 31:
		f = math.Inf(1)
		if frac != 0 {
			f = math.NaN()
		}
	default:
		f = math.Ldexp(frac+1024, exp-25)
	}
	if h&0x8000 != 0 {
		f = -f
	}
	return f
}

func appendText(b []byte, s string) []byte {
	b = appendHead(b, majorText, uint64(len(s)))
	return append(b, s...)
}

func appendBytes(b, s []byte) []byte {
	b = appendHead(b, majorBytes, uint64(len(s)))
	return append(b, s...)
}

func appendTag(b []byte, tag uint64) []byte { return appendHead(b, majorTag, tag) }

// appendString writes text; a string with lone surrogates is tagged.
func appendString(b []byte, s string) ([]byte, error) {
	lone, bad := scanString(s)
	if bad >= 0 {
		return b, badString(s, bad)
	}
	if lone {
		b = appendTag(b, tagWTF8)
		b = appendHead(b, majorBytes, uint64(len(s)))
		return append(b, s...), nil
	}
	return appendText(b, s), nil
}
