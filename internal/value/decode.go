package value

import (
	"reflect"
	"sync"

	"github.com/limpet-dev/limpet"
)

// A decoder makes Go values of tokens.
type decoder struct {
	r      Reader
	strict bool
	hooks  limpet.CapabilityHooks
	shared map[sharedKey]reflect.Value
	spare  []*Token
}

// token gives a token to read into, and done takes it back: tokens go through
// function values and would be allocated one by one otherwise.
func (d *decoder) token() *Token {
	if n := len(d.spare); n > 0 {
		t := d.spare[n-1]
		d.spare = d.spare[:n-1]
		return t
	}
	return new(Token)
}

func (d *decoder) done(t *Token) {
	if len(d.spare) < 64 {
		t.Str, t.Flags, t.Err = nil, nil, nil
		d.spare = append(d.spare, t)
	}
}

// A sharedKey names what a shared value became for one Go type: two fields of
// different types may hold the same JavaScript object.
type sharedKey struct {
	n   int
	typ reflect.Type
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

func newDecoder(b []byte, o Options) (*decoder, error) {
	d := decoders.Get().(*decoder)
	d.strict, d.hooks = o.Strict, o.Hooks
	if err := d.r.init(b, o); err != nil {
		d.free()
		return nil, err
	}
	return d, nil
}

func (d *decoder) free() {
	d.r.b = nil
	d.r.err = nil
	if cap(d.r.defs) > 1024 {
		d.r.defs = nil
	}
	d.shared, d.hooks = nil, nil
	decoders.Put(d)
}

// Unmarshal decodes with the default limits; see [Options.Unmarshal].
func Unmarshal(b []byte, dst any) error { return Options{}.Unmarshal(b, dst) }

// Unmarshal decodes the value in b into what the pointer dst points to. See the
// package comment for which Go types take which values. Members that the value
// lacks leave a struct's field as it was; everything else is made anew and
// shares nothing with b or with what dst held.
//
// Errors: ErrType (the value does not fit, naming path, value and type; dst is
// no pointer), ErrSyntax, ErrVersion, ErrTooDeep, ErrTooLarge. What dst holds
// after an error is not defined.
func (o Options) Unmarshal(b []byte, dst any) error {
	d, err := newDecoder(b, o)
	if err != nil {
		return err
	}
	if err = d.arg(dst); err == nil {
		err = d.r.End()
	}
	d.free()
	return err
}

// top decodes into the pointer v, which a cycle may lead back to.
func (d *decoder) top(v reflect.Value) error {
	t := d.token()
	defer d.done(t)
	if err := d.r.Next(t); err != nil {
		return err
	}
	if t.Share >= 0 {
		d.register(t.Share, v)
	}
	return planOf(v.Type().Elem()).decode(d, t, v.Elem())
}

// decode decodes the value that begins with t into v.
func (p *plan) decode(d *decoder, t *Token, v reflect.Value) error {
	if t.Kind != KindRef && t.Share < 0 {
		return p.dec(d, t, v)
	}
	return p.decodeShared(d, t, v)
}

func (p *plan) decodeShared(d *decoder, t *Token, v reflect.Value) error {
	n := t.Share
	if t.Kind == KindRef {
		n = t.N
	}
	if x, ok := d.shared[sharedKey{n, p.typ}]; ok {
		v.Set(x)
		if t.Kind != KindRef {
			return d.r.Skip(t)
		}
		return nil
	}
	if t.Kind != KindRef {
		return p.dec(d, t, v)
	}
	if p.typ.Kind() == reflect.Pointer && p.elem != nil && refers(p.elem.typ) {
		// A pointer to what may be the same: its cell is new, the rest is not.
		cell := reflect.New(p.elem.typ)
		if err := p.elem.decodeShared(d, t, cell.Elem()); err != nil {
			return err
		}
		v.Set(cell)
		return nil
	}
	// Nothing of this type yet: read it once more.
	back, err := d.r.reread(n)
	if err != nil {
		return err
	}
	again := d.token()
	defer d.done(again)
	if err := d.r.Next(again); err != nil {
		return err
	}
	again.Share = n
	if err := p.dec(d, again, v); err != nil {
		return err
	}
	d.r.back(back)
	return nil
}

// refers says that values of type t have an identity that references keep.
func refers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return false
}

// register notes what the shared value n became.
func (d *decoder) register(n int, v reflect.Value) {
	if n < 0 {
		return
	}
	k := sharedKey{n, v.Type()}
	if _, ok := d.shared[k]; ok {
		return
	}
	if d.shared == nil {
		d.shared = map[sharedKey]reflect.Value{}
	}
	d.shared[k] = v
}

// next reads a token and decodes it into v.
func (p *plan) next(d *decoder, v reflect.Value) error {
	t := d.token()
	defer d.done(t)
	if err := d.r.Next(t); err != nil {
		return err
	}
	return p.decode(d, t, v)
}

// absent says that t is what a nil of Go takes.
func (t *Token) absent() bool {
	return t.Kind == KindNull || t.Kind == KindUndefined || t.Kind == KindHole
}

func decInterface(d *decoder, t *Token, v reflect.Value) error {
	typ := v.Type()
	if typ.NumMethod() == 0 {
		x, err := d.any(t)
		if err != nil {
			return err
		}
		if x == nil {
			v.SetZero()
		} else {
			v.Set(reflect.ValueOf(x))
		}
		return nil
	}
	if t.absent() {
		v.SetZero()
		return nil
	}
	if typ != errorType {
		return fail(ErrType, "%s can't be made a %s: an interface with methods does not say which type to make", t.describe(), typ)
	}
	if t.Kind != KindError {
		return mismatch(t, typ)
	}
	x, err := d.any(t)
	if err != nil {
		return err
	}
	v.Set(reflect.ValueOf(x))
	return nil
}

func (p *plan) decPointer(d *decoder, t *Token, v reflect.Value) error {
	if t.absent() {
		v.SetZero()
		return nil
	}
	x := reflect.New(p.elem.typ)
	v.Set(x)
	if t.Share >= 0 {
		if v.Type() != x.Type() {
			x = x.Convert(v.Type())
		}
		d.register(t.Share, x)
	}
	return p.elem.decode(d, t, x.Elem())
}

// binary gives the bytes of binary data that is bytes, or as elements of type elem.
func (t *Token) binary(elem reflect.Kind) bool {
	switch {
	case t.Kind == KindBytes:
		return elem == reflect.Uint8
	case t.Kind == KindTyped:
		return t.Elem.ElementSize() == 1 && t.Elem != limpet.Int8Array && elem == reflect.Uint8
	}
	return false
}

// bigElement is the size of an element beyond which a slice grows as its elements come.
const bigElement = 64

func (p *plan) decSlice(d *decoder, t *Token, v reflect.Value) error {
	if t.absent() {
		v.SetZero()
		return nil
	}
	if t.binary(p.elem.typ.Kind()) {
		x := reflect.MakeSlice(v.Type(), len(t.Str), len(t.Str))
		copy(x.Bytes(), t.Str)
		v.Set(x)
		d.register(t.Share, x)
		return nil
	}
	if t.Kind == KindTyped {
		return p.decElements(d, t, v)
	}
	if t.Kind != KindArray && t.Kind != KindSet {
		return mismatch(t, v.Type())
	}
	n := t.N
	room := n
	if p.elem.typ.Size() > bigElement {
		room = min(n, max(len(d.r.b)/int(p.elem.typ.Size()), 16))
	}
	x := reflect.MakeSlice(v.Type(), room, room)
	if room == n {
		v.Set(x)
		d.register(t.Share, x)
	}
	for i := range n {
		if i == room {
			room = min(n, 2*room)
			y := reflect.MakeSlice(v.Type(), room, room)
			reflect.Copy(y, x)
			x = y
		}
		if err := p.elem.next(d, x.Index(i)); err != nil {
			return underIndex(err, i)
		}
	}
	v.Set(x)
	d.register(t.Share, x)
	return nil
}

func (p *plan) decArray(d *decoder, t *Token, v reflect.Value) error {
	n := v.Len()
	got := t.N
	switch {
	case t.binary(p.elem.typ.Kind()):
		got = len(t.Str)
	case t.Kind == KindTyped:
		return p.decElements(d, t, v)
	case t.Kind != KindArray:
		return mismatch(t, v.Type())
	}
	if got != n {
		return fail(ErrType, "%d elements do not fit the Go type %s", got, v.Type())
	}
	if t.Kind != KindArray {
		copy(v.Bytes(), t.Str)
		return nil
	}
	for i := range n {
		if err := p.elem.next(d, v.Index(i)); err != nil {
			return underIndex(err, i)
		}
	}
	return nil
}

// decElements puts the elements of a typed array into a slice or array of numbers.
func (p *plan) decElements(d *decoder, t *Token, v reflect.Value) error {
	size := t.Elem.ElementSize()
	n := len(t.Str) / size
	if t.Elem == limpet.ArrayBuffer || t.Elem == limpet.DataView {
		return mismatch(t, v.Type())
	}
	x := v
	if v.Kind() == reflect.Slice {
		x = reflect.MakeSlice(v.Type(), n, n)
		v.Set(x)
		d.register(t.Share, x)
	} else if v.Len() != n {
		return fail(ErrType, "%d elements do not fit the Go type %s", n, v.Type())
	}
	el := d.token()
	defer d.done(el)
	for i := range n {
		el.element(t.Elem, t.Str[i*size:])
		if err := p.elem.decode(d, el, x.Index(i)); err != nil {
			return underIndex(err, i)
		}
	}
	return nil
}

func (p *plan) decMap(d *decoder, t *Token, v reflect.Value) error {
	if t.absent() {
		v.SetZero()
		return nil
	}
	if t.Kind != KindObject && t.Kind != KindMap {
		return mismatch(t, v.Type())
	}
	n := t.N
	room := n
	if size := int(p.elem.typ.Size() + p.key.typ.Size()); size > bigElement {
		room = min(n, 16)
	}
	m := reflect.MakeMapWithSize(v.Type(), room)
	v.Set(m)
	d.register(t.Share, m)
	kind := t.Kind
	key := reflect.New(p.key.typ).Elem()
	x := reflect.New(p.elem.typ).Elem()
	for range n {
		key.SetZero() // SetMapIndex copies
		step, err := p.decKey(d, kind, key)
		if err != nil {
			return err
		}
		x.SetZero()
		if err := p.elem.next(d, x); err != nil {
			return underKey(err, step)
		}
		m.SetMapIndex(key, x)
	}
	return nil
}

// decKey reads a key of an object or Map into a Go map's key, and gives the step
// that it is in the path of an error.
func (p *plan) decKey(d *decoder, kind Kind, key reflect.Value) (string, error) {
	t := d.token()
	defer d.done(t)
	if err := d.r.Next(t); err != nil {
		return "", err
	}
	step := "map value"
	if kind == KindObject {
		t.Kind = KindString
		step = string(t.Str)
		if key.CanInt() || key.CanUint() || key.CanFloat() {
			// JavaScript has no other keys than strings in an object.
			if !t.parseNumber() {
				return step, under(mismatch(t, p.key.typ), "[key]")
			}
		}
	} else if t.Kind == KindString {
		step = string(t.Str)
	}
	if err := p.key.decode(d, t, key); err != nil {
		return step, under(err, "[key]")
	}
	if !key.Comparable() {
		return step, under(fail(ErrType, "%s can't be the key of a Go map", t.Kind), "[key]")
	}
	return step, nil
}

func (p *plan) decStruct(d *decoder, t *Token, v reflect.Value) error {
	if t.Kind != KindObject && t.Kind != KindError {
		return mismatch(t, v.Type())
	}
	isError := t.Kind == KindError
	list := p.fields.list
	k := d.token()
	defer d.done(k)
	for i := range t.N {
		if err := d.r.Next(k); err != nil {
			return err
		}
		at := i
		if i >= len(list) || list[i].name != string(k.Str) {
			var ok bool
			if at, ok = p.fields.index[string(k.Str)]; !ok {
				if err := p.unknown(d, k); err != nil {
					return err
				}
				continue
			}
		}
		f := &list[at]
		if err := d.r.Next(k); err != nil {
			return underKey(err, f.name)
		}
		if k.Kind == KindUndefined && f.typ.Kind() != reflect.Interface && f.typ != undefinedType {
			continue // as if the member were not there
		}
		x, err := f.make(v)
		if err == nil {
			err = f.plan.decode(d, k, x)
		}
		if err != nil {
			return underKey(err, f.name)
		}
	}
	if isError { // cause and errors
		for range 2 {
			if err := d.r.Next(k); err != nil {
				return err
			}
			if err := d.r.Skip(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// unknown passes over a member that the struct has no field for.
func (p *plan) unknown(d *decoder, t *Token) error {
	if d.strict {
		return fail(ErrType, "%s has no field for the member %q", p.typ, short(string(t.Str), 64))
	}
	if err := d.r.Next(t); err != nil {
		return err
	}
	return d.r.Skip(t)
}
