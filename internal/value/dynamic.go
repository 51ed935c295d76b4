package value

import (
	"bytes"
	"math/big"
	"reflect"
	"strconv"
	"time"

	"github.com/limpet-dev/limpet"
)

// anyType is under what key shared values are kept for dynamic decoding.
var anyType = reflect.TypeFor[any]()

// Decode decodes with the default limits; see [Options.Decode].
func Decode(b []byte) (any, error) { return Options{}.Decode(b) }

// Decode decodes the value in b without a Go type to go by, into what the root
// package's values.go lists. Errors are those of Unmarshal.
func (o Options) Decode(b []byte) (any, error) {
	d, err := newDecoder(b, o)
	if err != nil {
		return nil, err
	}
	defer d.free()
	x, err := d.nextAny()
	if err == nil {
		err = d.r.End()
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

func (d *decoder) nextAny() (any, error) {
	t := d.token()
	defer d.done(t)
	if err := d.r.Next(t); err != nil {
		return nil, err
	}
	return d.any(t)
}

// keep notes what the shared value n became, for dynamic readers and for those
// that ask for the very type.
func (d *decoder) keep(n int, x any) {
	if n < 0 {
		return
	}
	v := reflect.ValueOf(x)
	if d.shared == nil {
		d.shared = map[sharedKey]reflect.Value{}
	}
	d.shared[sharedKey{n, anyType}] = v
	d.register(n, v)
}

// any makes the dynamic value that begins with t.
func (d *decoder) any(t *Token) (any, error) {
	if t.Kind == KindRef {
		return d.anyRef(t.N)
	}
	if t.Share >= 0 {
		if x, ok := d.shared[sharedKey{t.Share, anyType}]; ok {
			return x.Interface(), d.r.Skip(t)
		}
	}
	switch t.Kind {
	case KindNull:
		return nil, nil
	case KindUndefined:
		return limpet.Undefined{}, nil
	case KindHole:
		return limpet.Hole{}, nil
	case KindBool:
		return t.Int != 0, nil
	case KindInt:
		return t.Int, nil
	case KindFloat:
		return t.Float, nil
	case KindString:
		return string(t.Str), nil
	case KindRegExp:
		return limpet.RegExp{Source: string(t.Str), Flags: string(t.Flags)}, nil
	case KindDate:
		if t.Float != t.Float {
			return limpet.InvalidDate{}, nil
		}
		return time.UnixMilli(int64(t.Float)).UTC(), nil
	case KindBigInt:
		x := t.BigInt()
		d.keep(t.Share, x)
		return x, nil
	case KindBytes:
		x := append(make([]byte, 0, len(t.Str)), t.Str...)
		d.keep(t.Share, x)
		return x, nil
	case KindTyped:
		x := &limpet.TypedArray{Kind: t.Elem, Data: bytes.Clone(t.Str)}
		d.keep(t.Share, x)
		return x, nil
	case KindCapability:
		x, err := d.capability(t, anyType)
		if err != nil {
			return nil, err
		}
		d.keep(t.Share, x.Interface())
		return x.Interface(), nil
	case KindBoxed:
		x, err := d.nextAny()
		return limpet.Boxed{Value: x}, err
	case KindArray:
		return d.anyArray(t)
	case KindObject:
		m := make(map[string]any, t.N)
		d.keep(t.Share, m)
		return m, d.members(t.N, m)
	case KindMap:
		return d.anyMap(t)
	case KindSet:
		return d.anySet(t)
	case KindError:
		return d.anyError(t)
	}
	return nil, fail(ErrSyntax, "%s where a value must stand", t.Kind)
}

func (d *decoder) anyRef(n int) (any, error) {
	if x, ok := d.shared[sharedKey{n, anyType}]; ok {
		return x.Interface(), nil
	}
	back, err := d.r.reread(n)
	if err != nil {
		return nil, err
	}
	t := d.token()
	defer d.done(t)
	if err := d.r.Next(t); err != nil {
		return nil, err
	}
	t.Share = n
	x, err := d.any(t)
	if err != nil {
		return nil, err
	}
	d.r.back(back)
	return x, nil
}

func (d *decoder) anyArray(t *Token) (any, error) {
	list := make([]any, t.N)
	d.keep(t.Share, list)
	for i := range list {
		x, err := d.nextAny()
		if err != nil {
			return nil, underIndex(err, i)
		}
		list[i] = x
	}
	return list, nil
}

// members reads n members into m. Of two with one name the last stays.
func (d *decoder) members(n int, m map[string]any) error {
	var t Token
	for range n {
		if err := d.r.Next(&t); err != nil {
			return err
		}
		name := string(t.Str)
		x, err := d.nextAny()
		if err != nil {
			return underKey(err, name)
		}
		m[name] = x
	}
	return nil
}

func (d *decoder) anyMap(t *Token) (any, error) {
	m := &limpet.Map{Entries: make([]limpet.MapEntry, t.N)}
	d.keep(t.Share, m)
	for i := range m.Entries {
		var err error
		if m.Entries[i].Key, err = d.nextAny(); err != nil {
			return nil, under(err, "[key]")
		}
		if m.Entries[i].Value, err = d.nextAny(); err != nil {
			return nil, under(err, "[map value]")
		}
	}
	return m, nil
}

func (d *decoder) anySet(t *Token) (any, error) {
	s := &limpet.Set{Values: make([]any, t.N)}
	d.keep(t.Share, s)
	for i := range s.Values {
		var err error
		if s.Values[i], err = d.nextAny(); err != nil {
			return nil, under(err, "[set value]")
		}
	}
	return s, nil
}

func (d *decoder) anyError(t *Token) (any, error) {
	e := &limpet.ErrorValue{Class: t.Err.Class, Name: t.Err.Name, Message: t.Err.Message, Stack: t.Err.Stack}
	d.keep(t.Share, e)
	if t.N > 0 {
		e.Fields = make(map[string]any, t.N)
		if err := d.members(t.N, e.Fields); err != nil {
			return nil, err
		}
	}
	cause, err := d.nextAny()
	if err != nil {
		return nil, under(err, ".cause")
	}
	if _, none := cause.(limpet.Hole); !none {
		e.Cause, e.HasCause = cause, true
	}
	list, err := d.nextAny()
	if err != nil {
		return nil, under(err, ".errors")
	}
	switch list := list.(type) {
	case limpet.Hole:
	case []any:
		e.Errors = list
	default:
		return nil, under(fail(ErrSyntax, "errors of an AggregateError are no array"), ".errors")
	}
	return e, nil
}

// decDynamic decodes into the types of package limpet.
func decDynamic(d *decoder, t *Token, v reflect.Value) error {
	if v.Type() == typedType && t.Kind == KindBytes {
		// A Uint8Array has no kind of its own in Go; it is []byte.
		return mismatch(t, v.Type())
	}
	x, err := d.any(t)
	if err != nil {
		return err
	}
	got := reflect.ValueOf(x)
	if got.IsValid() && got.Kind() == reflect.Pointer && got.Type().Elem() == v.Type() {
		v.Set(got.Elem())
		return nil
	}
	if !got.IsValid() || got.Type() != v.Type() {
		return mismatch(t, v.Type())
	}
	v.Set(got)
	return nil
}

// decDynamicPointer decodes into a pointer to one of the types of package limpet
// that have an identity.
func decDynamicPointer(d *decoder, t *Token, v reflect.Value) error {
	if t.absent() {
		v.SetZero()
		return nil
	}
	x, err := d.any(t)
	if err != nil {
		return err
	}
	got := reflect.ValueOf(x)
	if !got.IsValid() || got.Type() != v.Type() {
		return mismatch(t, v.Type())
	}
	v.Set(got)
	return nil
}

// encDynamic writes the types of package limpet that stand for what Go has no type for.
func encDynamic(e *encoder, v reflect.Value) (err error) {
	switch v.Type() {
	case undefinedType:
		e.b = append(e.b, byteUndefined)
	case holeType:
		return fail(ErrType, "hole outside of a []any")
	case noDateType:
		e.b = appendDate(e.b, nan)
	case regExpType:
		x, _ := reflect.TypeAssert[limpet.RegExp](v)
		e.b, err = appendRegExp(e.b, x.Source, x.Flags)
	case typedType:
		x, _ := reflect.TypeAssert[limpet.TypedArray](v)
		e.b, err = appendTyped(e.b, x.Kind, x.Data)
	case boxedType:
		x, _ := reflect.TypeAssert[limpet.Boxed](v)
		return e.boxed(x)
	case mapType:
		x, _ := reflect.TypeAssert[limpet.Map](v)
		return e.mapValue(x)
	case setType:
		x, _ := reflect.TypeAssert[limpet.Set](v)
		return e.setValue(x)
	}
	return err
}

func (e *encoder) boxed(x limpet.Boxed) error {
	if err := e.enter(); err != nil {
		return err
	}
	e.b = appendTag(e.b, tagBoxed)
	switch i := x.Value.(type) {
	case *big.Int:
		if i == nil {
			return fail(ErrType, "nil *big.Int in a Boxed")
		}
		var err error
		if e.b, err = appendBigInt(e.b, i); err != nil {
			return err
		}
		e.leave()
		return nil
	}
	v := reflect.ValueOf(x.Value)
	switch k := v.Kind(); {
	case k >= reflect.Bool && k <= reflect.Uint64, k == reflect.Float32, k == reflect.Float64, k == reflect.String:
		if err := planOf(v.Type()).enc(e, v); err != nil {
			return err
		}
		e.leave()
		return nil
	}
	return fail(ErrType, "%T in a Boxed, which is for primitives", x.Value)
}

func (e *encoder) mapValue(x limpet.Map) error {
	if err := e.enter(); err != nil {
		return err
	}
	e.b = appendHead(appendTag(e.b, tagMap), majorMap, uint64(len(x.Entries)))
	for i := range x.Entries {
		if err := e.any(x.Entries[i].Key); err != nil {
			return under(err, "[key "+strconv.Itoa(i)+"]")
		}
		if err := e.any(x.Entries[i].Value); err != nil {
			return under(err, "[value "+strconv.Itoa(i)+"]")
		}
	}
	e.leave()
	return nil
}

func (e *encoder) setValue(x limpet.Set) error {
	if err := e.enter(); err != nil {
		return err
	}
	e.b = appendHead(appendTag(e.b, tagSet), majorArray, uint64(len(x.Values)))
	for i := range x.Values {
		if err := e.any(x.Values[i]); err != nil {
			return under(err, "[value "+strconv.Itoa(i)+"]")
		}
	}
	e.leave()
	return nil
}

// any encodes the value of an interface inside of a tracked value.
func (e *encoder) any(v any) error {
	if done, err := e.simple(v); done {
		return err
	}
	if err := e.hop(); err != nil {
		return err
	}
	rv := reflect.ValueOf(v)
	err := e.inside(planOf(rv.Type()), rv)
	e.hops--
	return err
}
