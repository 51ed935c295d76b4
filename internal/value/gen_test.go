package value_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/limpet-dev/limpet"
)

// A generator makes dynamic values of every kind out of a random source.
type generator struct {
	r *rand.Rand
	// json keeps to what JSON gives back byte for byte: nothing shared, and no
	// whole floats.
	json bool
	// oracle keeps to what fxamacker/cbor can decode without being told: map
	// keys that Go can hash.
	oracle bool
	made   []any // containers that may be met again
}

func newGenerator(seed uint64) *generator {
	return &generator{r: rand.New(rand.NewPCG(seed, 1))}
}

func (g *generator) text() string {
	const letters = "ab$_ \"\\\n\x00\x7f\u00e9\u20ac\U0001f600\ufffd\u2028"
	runes := []rune(letters)
	s := ""
	for range g.r.IntN(6) {
		s += string(runes[g.r.IntN(len(runes))])
	}
	if g.r.IntN(8) == 0 {
		// A lone surrogate, low before high so that no pair comes about.
		s += []string{"\xed\xb0\x80", "\xed\xa0\xbd!"}[g.r.IntN(2)]
	}
	return s
}

// key makes a member's name; Go's CBOR maps can't have tagged ones.
func (g *generator) key() string {
	s := g.text()
	if g.oracle {
		s = strings.ToValidUTF8(s, "?")
	}
	return s
}

func (g *generator) float() float64 {
	f := []float64{
		math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 0.1, 1.5, -2.25, 65504.5, 1e300, 5e-324,
		math.SmallestNonzeroFloat32, math.Ldexp(1, -24), math.Ldexp(1, -15), 3.4028234663852886e38, 1e21, math.Float64frombits(g.r.Uint64()),
	}[g.r.IntN(16)]
	if !g.json && g.r.IntN(4) == 0 {
		f = float64(g.r.IntN(1 << 20))
	}
	if g.json && f == math.Trunc(f) && math.Abs(f) <= 1<<53 && (f != 0 || !math.Signbit(f)) {
		f += 0.5
	}
	return f
}

func (g *generator) integer() int64 {
	return []int64{0, -1, 23, 24, -24, -25, 255, 256, 65535, 65536, 1 << 32, 1<<53 - 1, 1 << 53, -1 << 53, g.r.Int64N(1 << 53)}[g.r.IntN(15)]
}

func (g *generator) bigInt() *big.Int {
	i := new(big.Int).Lsh(big.NewInt(g.r.Int64()), uint(g.r.IntN(300)))
	if g.r.IntN(2) == 0 {
		i.Neg(i)
	}
	if g.r.IntN(6) == 0 {
		i = big.NewInt(int64(g.r.IntN(3) - 1))
	}
	return i
}

func (g *generator) bytes() []byte {
	b := make([]byte, g.r.IntN(30))
	for i := range b {
		b[i] = byte(g.r.Uint32())
	}
	return b
}

func (g *generator) keep(v any) any {
	g.made = append(g.made, v)
	return v
}

func (g *generator) primitive() any {
	switch g.r.IntN(5) {
	case 0:
		return g.r.IntN(2) == 0
	case 1:
		return g.integer()
	case 2:
		return g.float()
	case 3:
		return g.bigInt()
	}
	return g.text()
}

// value makes a value with at most depth levels of containers.
func (g *generator) value(depth int) any {
	if !g.json && !g.oracle && len(g.made) > 0 && g.r.IntN(6) == 0 {
		return g.made[g.r.IntN(len(g.made))]
	}
	n := 18
	if depth <= 0 {
		n = 12
	}
	switch g.r.IntN(n) {
	case 0:
		return nil
	case 1:
		return limpet.Undefined{}
	case 2, 3, 4, 5:
		return g.primitive()
	case 6:
		return g.text()
	case 7:
		if b := g.bytes(); len(b) > 0 {
			return g.keep(b)
		}
		return []byte{}
	case 8:
		k := limpet.TypedArrayKind(1 + g.r.IntN(13))
		data := g.bytes()
		return g.keep(&limpet.TypedArray{Kind: k, Data: append([]byte{}, data[:len(data)/k.ElementSize()*k.ElementSize()]...)})
	case 9:
		if g.r.IntN(5) == 0 {
			return limpet.InvalidDate{}
		}
		return time.UnixMilli(g.r.Int64N(2*864e13) - 864e13).UTC()
	case 10:
		return limpet.RegExp{Source: g.text(), Flags: "gi"}
	case 11:
		return limpet.Boxed{Value: g.primitive()}
	case 12, 13:
		list := make([]any, g.r.IntN(5))
		if len(list) > 0 {
			g.keep(list)
		}
		for i := range list {
			if list[i] = g.value(depth - 1); g.r.IntN(6) == 0 {
				list[i] = limpet.Hole{}
			}
		}
		return list
	case 14:
		m := map[string]any{}
		g.keep(m)
		for range g.r.IntN(4) {
			m[g.key()] = g.value(depth - 1)
		}
		return m
	case 15:
		m := &limpet.Map{Entries: []limpet.MapEntry{}}
		g.keep(m)
		for i := range g.r.IntN(4) {
			key := any(fmt.Sprint(i))
			if !g.oracle {
				key = g.value(depth - 1)
			}
			m.Entries = append(m.Entries, limpet.MapEntry{Key: key, Value: g.value(depth - 1)})
		}
		return m
	case 16:
		s := &limpet.Set{Values: []any{}}
		g.keep(s)
		for range g.r.IntN(4) {
			s.Values = append(s.Values, g.value(depth-1))
		}
		return s
	}
	e := &limpet.ErrorValue{Class: "TypeError", Name: g.text() + "x", Message: g.text(), Stack: g.text()}
	g.keep(e)
	for range g.r.IntN(3) {
		if e.Fields == nil {
			e.Fields = map[string]any{}
		}
		e.Fields[g.key()] = g.value(depth - 1)
	}
	if e.HasCause = g.r.IntN(2) == 0; e.HasCause {
		e.Cause = g.value(depth - 1)
	}
	if g.r.IntN(3) == 0 {
		e.Errors = []any{g.value(depth - 1)}
	}
	return e
}
