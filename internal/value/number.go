package value

import (
	"encoding/binary"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/limpet-dev/limpet"
)

var nan = math.NaN()

// element makes t the first element of the little endian bytes p.
func (t *Token) element(kind limpet.TypedArrayKind, p []byte) {
	le := binary.LittleEndian
	*t = Token{Kind: KindInt, Share: -1}
	switch kind {
	case limpet.Uint8ClampedArray:
		t.Int = int64(p[0])
	case limpet.Int8Array:
		t.Int = int64(int8(p[0]))
	case limpet.Int16Array:
		t.Int = int64(int16(le.Uint16(p)))
	case limpet.Uint16Array:
		t.Int = int64(le.Uint16(p))
	case limpet.Int32Array:
		t.Int = int64(int32(le.Uint32(p)))
	case limpet.Uint32Array:
		t.Int = int64(le.Uint32(p))
	case limpet.BigInt64Array:
		t.Int = int64(le.Uint64(p))
	case limpet.BigUint64Array:
		u := le.Uint64(p)
		if t.Int = int64(u); t.Int < 0 {
			t.Kind, t.Str = KindBigInt, binary.BigEndian.AppendUint64(nil, u)
		}
	case limpet.Float16Array:
		t.Kind, t.Float = KindFloat, halfFloat(le.Uint16(p))
	case limpet.Float32Array:
		t.Kind, t.Float = KindFloat, float64(math.Float32frombits(le.Uint32(p)))
	case limpet.Float64Array:
		t.Kind, t.Float = KindFloat, math.Float64frombits(le.Uint64(p))
	}
}

// parseNumber turns a string token into the number it spells in decimal, if it
// is the one spelling that JavaScript gives the number as a key.
func (t *Token) parseNumber() bool {
	s := string(t.Str)
	if i, err := strconv.ParseInt(s, 10, 64); err == nil && strconv.FormatInt(i, 10) == s {
		if i > maxSafe || i < -maxSafe {
			t.setBig(big.NewInt(i))
			return true
		}
		t.Kind, t.Int = KindInt, i
		return true
	}
	if u, err := strconv.ParseUint(s, 10, 64); err == nil && strconv.FormatUint(u, 10) == s {
		t.setBig(new(big.Int).SetUint64(u))
		return true
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && formatNumber(f) == s {
		t.Kind, t.Float = KindFloat, f
		return true
	}
	return false
}

func (t *Token) setBig(i *big.Int) {
	t.Kind, t.neg = KindBigInt, i.Sign() < 0
	if t.neg {
		i = i.Not(i)
	}
	t.Str = i.Bytes()
}

// formatNumber writes f as JavaScript does.
func formatNumber(f float64) string {
	switch {
	case f != f:
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	case f == 0:
		return "0"
	}
	return string(appendNumber(nil, f))
}

// appendNumber writes a finite f as JavaScript does: digits up to 1e21, then
// with an exponent; the shortest that reads back as f.
func appendNumber(b []byte, f float64) []byte {
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		s := strconv.FormatFloat(f, 'e', -1, 64) // 1e-07: JavaScript has no zero there
		mantissa, exp, _ := strings.Cut(s, "e")
		b = append(append(b, mantissa...), 'e', exp[0])
		return append(b, strings.TrimLeft(exp[1:], "0")...)
	}
	return strconv.AppendFloat(b, f, 'f', -1, 64)
}

// scalarText is a scalar for an error's text.
func (t *Token) scalarText() string {
	switch t.Kind {
	case KindBool:
		return strconv.FormatBool(t.Int != 0)
	case KindInt:
		return strconv.FormatInt(t.Int, 10)
	case KindFloat:
		if t.Float == 0 && math.Signbit(t.Float) {
			return "-0"
		}
		return formatNumber(t.Float)
	case KindBigInt:
		if len(t.Str) > 40 {
			return "of " + strconv.Itoa(8*len(t.Str)) + " bits"
		}
		return t.BigInt().String()
	}
	return ""
}

func quote(s string) string { return strconv.Quote(s) }
