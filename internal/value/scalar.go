package value

import (
	"encoding"
	"math"
	"math/big"
	"reflect"
	"time"
)

// mismatch says that t does not fit the type.
func mismatch(t *Token, typ reflect.Type) error {
	return fail(ErrType, "%s does not fit the Go type %s%s", t.describe(), typ, hint(t, typ))
}

// hint says how the value would have been written in JSON, which has strings
// and numbers for everything, or why nothing fits the type.
func hint(t *Token, typ reflect.Type) string {
	if typ.Kind() == reflect.Struct && opaque(typ) && !special(typ) && typ != timeType && !reflect.PointerTo(typ).Implements(unmarshalType) {
		return ", which has only unexported fields"
	}
	switch t.Kind {
	case KindString, KindInt, KindFloat, KindBigInt:
	default:
		return ""
	}
	switch {
	case typ == timeType:
		return ` (in JSON a date is {"$date": "2026-01-31T12:00:00Z"})`
	case typ == bigIntType:
		return ` (in JSON a big integer is {"$bigint": "123"})`
	case (typ.Kind() == reflect.Slice || typ.Kind() == reflect.Array) && typ.Elem().Kind() == reflect.Uint8:
		return ` (in JSON bytes are {"$bytes": "AQI="}, in base64)`
	}
	return ""
}

// describe tells a token to a person: kind and, if it is short, value.
func (t *Token) describe() string {
	switch t.Kind {
	case KindBool, KindInt, KindFloat, KindBigInt:
		return t.Kind.String() + " " + t.scalarText()
	case KindString:
		return "string " + quote(short(string(t.Str[:min(len(t.Str), 41)]), 40))
	case KindTyped:
		return t.Elem.String()
	case KindCapability:
		return t.Capability().String()
	case KindError:
		return "error " + quote(short(t.Err.Name, 40))
	}
	return t.Kind.String()
}

func decRefuse(_ *decoder, t *Token, v reflect.Value) error { return mismatch(t, v.Type()) }

// unbox replaces a boxed primitive by the primitive.
func (d *decoder) unbox(t *Token) error {
	if t.Kind == KindBoxed {
		return d.r.Next(t)
	}
	return nil
}

func decBool(d *decoder, t *Token, v reflect.Value) error {
	if err := d.unbox(t); err != nil {
		return err
	}
	if t.Kind != KindBool {
		return mismatch(t, v.Type())
	}
	v.SetBool(t.Int != 0)
	return nil
}

// integer gives a number that is whole and fits an int64.
func (t *Token) integer() (int64, bool) {
	switch t.Kind {
	case KindInt:
		return t.Int, true
	case KindFloat:
		if t.Float >= -1<<63 && t.Float < 1<<63 && t.Float == math.Trunc(t.Float) {
			return int64(t.Float), true
		}
	case KindBigInt:
		if len(t.Str) <= 8 {
			if i := t.BigInt(); i.IsInt64() {
				return i.Int64(), true
			}
		}
	}
	return 0, false
}

func decInt(d *decoder, t *Token, v reflect.Value) error {
	if err := d.unbox(t); err != nil {
		return err
	}
	i, ok := t.integer()
	if !ok || v.OverflowInt(i) {
		return mismatch(t, v.Type())
	}
	v.SetInt(i)
	return nil
}

func decUint(d *decoder, t *Token, v reflect.Value) error {
	if err := d.unbox(t); err != nil {
		return err
	}
	var u uint64
	if i, ok := t.integer(); ok {
		if i < 0 {
			return mismatch(t, v.Type())
		}
		u = uint64(i)
	} else {
		switch {
		case t.Kind == KindBigInt && !t.neg && len(t.Str) <= 8:
			u = t.BigInt().Uint64()
		case t.Kind == KindFloat && t.Float >= 0 && t.Float < 1<<64 && t.Float == math.Trunc(t.Float):
			u = uint64(t.Float)
		default:
			return mismatch(t, v.Type())
		}
	}
	if v.OverflowUint(u) {
		return mismatch(t, v.Type())
	}
	v.SetUint(u)
	return nil
}

// float gives a number as a float64, if that is exact.
func (t *Token) float() (float64, bool) {
	switch t.Kind {
	case KindInt:
		return float64(t.Int), true
	case KindFloat:
		return t.Float, true
	case KindBigInt:
		if len(t.Str) <= 128 {
			i := t.BigInt()
			f, acc := new(big.Float).SetInt(i).Float64()
			return f, acc == big.Exact
		}
	}
	return 0, false
}

// decFloat takes numbers that a float64 holds exactly. A float32 is rounded to,
// since hardly any number would fit it otherwise, but not beyond its range.
func decFloat(d *decoder, t *Token, v reflect.Value) error {
	if err := d.unbox(t); err != nil {
		return err
	}
	f, ok := t.float()
	if !ok || v.OverflowFloat(f) {
		return mismatch(t, v.Type())
	}
	v.SetFloat(f)
	return nil
}

func decString(d *decoder, t *Token, v reflect.Value) error {
	if err := d.unbox(t); err != nil {
		return err
	}
	if t.Kind != KindString {
		return mismatch(t, v.Type())
	}
	v.SetString(string(t.Str))
	return nil
}

func decTime(_ *decoder, t *Token, v reflect.Value) error {
	if t.Kind != KindDate {
		return mismatch(t, v.Type())
	}
	if t.Float != t.Float {
		return fail(ErrType, "invalid date does not fit the Go type %s", v.Type())
	}
	at, _ := reflect.TypeAssert[*time.Time](v.Addr())
	*at = time.UnixMilli(int64(t.Float)).UTC()
	return nil
}

func decBigInt(d *decoder, t *Token, v reflect.Value) error {
	if err := d.unbox(t); err != nil {
		return err
	}
	i := new(big.Int)
	switch t.Kind {
	case KindInt:
		i.SetInt64(t.Int)
	case KindBigInt:
		i = t.BigInt()
	case KindFloat:
		if t.Float != math.Trunc(t.Float) || math.IsInf(t.Float, 0) {
			return mismatch(t, v.Type())
		}
		big.NewFloat(t.Float).Int(i)
	default:
		return mismatch(t, v.Type())
	}
	v.Set(reflect.ValueOf(i).Elem())
	return nil
}

func decText(_ *decoder, t *Token, v reflect.Value) error {
	if t.Kind != KindString {
		return mismatch(t, v.Type())
	}
	u, _ := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr())
	if err := u.UnmarshalText(t.Str); err != nil {
		return fail(ErrType, "%s does not fit the Go type %s: %v", t.describe(), v.Type(), err)
	}
	return nil
}
