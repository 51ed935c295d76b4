package value

import (
	"cmp"
	"encoding"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
)

// An encoder writes one Go value. It does not go through a Writer, since the Go
// types already keep the grammar; it shares all that writes bytes.
type encoder struct {
	b        []byte
	base     int
	size     int
	maxDepth int
	depth    int
	hops     int // pointers and interfaces that are open
	track    bool
	hooks    limpet.CapabilityHooks
	refs     []ref
	seen     []sighting
	index    map[identity]int // of seen, once it is long
	keys     []mapKey
	// held keeps alive what a method made for us: the identity table holds mere
	// addresses, and those of garbage are given out again.
	held []any
}

// An identity is what makes two pointers, maps or slices the same.
type identity struct {
	typ reflect.Type
	ptr uintptr
	len int
}

type sighting struct {
	identity
	pos int
}

// linear is how many sightings are searched one by one.
const linear = 16

var encoders = sync.Pool{New: func() any { return new(encoder) }}

func newEncoder(dst []byte, o Options) *encoder {
	e := encoders.Get().(*encoder)
	e.base, e.size, e.maxDepth, e.depth, e.hops, e.track = len(dst), o.maxSize(), o.maxDepth(), 0, 0, false
	e.hooks = o.Hooks
	e.b = append(dst, version)
	return e
}

func (e *encoder) free() {
	e.b = nil
	e.refs = e.refs[:0]
	clear(e.seen)
	e.seen = e.seen[:0]
	if cap(e.seen) > 1024 {
		e.seen = nil
	}
	e.index, e.held, e.hooks = nil, nil, nil
	clear(e.keys)
	e.keys = e.keys[:0]
	if cap(e.keys) > 1024 {
		e.keys = nil
	}
	encoders.Put(e)
}

// finish numbers the references and applies the size limit.
func (e *encoder) finish() ([]byte, error) {
	b := number(e.b, e.refs)
	if n := len(b) - e.base; n > e.size {
		return b[:e.base], tooLarge(n, e.size)
	}
	return b, nil
}

// Marshal encodes v with the default limits; see [Options.Append].
func Marshal(v any) ([]byte, error) { return Options{}.Append(nil, v) }

// Append is [Options.Append] with the default limits.
func Append(dst []byte, v any) ([]byte, error) { return Options{}.Append(dst, v) }

// Append encodes v behind dst, which may be nil. See the package comment for
// what Go types become. Errors are ErrType (what can't be carried, naming type
// and path), ErrTooDeep and ErrTooLarge; dst comes back unchanged then. Nothing
// reachable from v may change meanwhile.
func (o Options) Append(dst []byte, v any) ([]byte, error) {
	e := newEncoder(dst, o)
	err := e.root(v)
	b := e.b
	if err == nil {
		b, err = e.finish()
	}
	e.free()
	if err != nil {
		return dst, err
	}
	return b, nil
}

// root encodes v with the identity table only if its type may need it.
func (e *encoder) root(v any) error {
	if done, err := e.simple(v); done {
		return err
	}
	rv := reflect.ValueOf(v)
	p := planOf(rv.Type())
	e.track = e.track || p.track
	return p.enc(e, rv)
}

// simple encodes values of the commonest types without reflection.
func (e *encoder) simple(v any) (done bool, err error) {
	switch v := v.(type) {
	case nil:
		e.b = append(e.b, byteNull)
	case string:
		e.b, err = appendString(e.b, v)
	case int:
		e.b = appendInt(e.b, int64(v))
	case int64:
		e.b = appendInt(e.b, v)
	case float64:
		e.b = appendFloat(e.b, v)
	case bool:
		e.b = appendBool(e.b, v)
	default:
		return false, nil
	}
	return true, err
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, byteTrue)
	}
	return append(b, byteFalse)
}

// enter opens a container.
func (e *encoder) enter() error {
	if e.depth++; e.depth > e.maxDepth {
		return tooDeep(e.maxDepth)
	}
	if n := len(e.b) - e.base; n > e.size+hardSlack {
		return tooLarge(n, e.size)
	}
	return nil
}

func (e *encoder) leave() { e.depth-- }

// hop follows a pointer or interface, which nests Go calls but no container.
func (e *encoder) hop() error {
	if e.hops++; e.hops > 2*e.maxDepth+16 {
		return tooDeep(e.maxDepth)
	}
	return nil
}

// again writes a reference if the same pointer, map or slice was met before,
// else notes that it begins here.
func (e *encoder) again(v reflect.Value, n int) (bool, error) {
	if !e.track {
		return false, nil
	}
	id := identity{v.Type(), v.Pointer(), n}
	at := -1
	if e.index == nil {
		for i := range e.seen {
			if e.seen[i].identity == id {
				at = i
				break
			}
		}
	} else if i, ok := e.index[id]; ok {
		at = i
	}
	if at >= 0 {
		pos := resolve(e.refs, e.seen[at].pos)
		if pos == len(e.b) {
			return true, fail(ErrType, "%s leads to itself without a value between", v.Type())
		}
		e.refs = append(e.refs, ref{at: len(e.b), to: pos})
		e.b = append(e.b, bytePending)
		return true, nil
	}
	if e.index != nil {
		e.index[id] = len(e.seen)
	}
	e.seen = append(e.seen, sighting{id, len(e.b)})
	if e.index == nil && len(e.seen) > linear {
		e.index = make(map[identity]int, 4*linear)
		for i := range e.seen {
			e.index[e.seen[i].identity] = i
		}
	}
	return false, nil
}

// A checkpoint is what rollback goes back to.
type checkpoint struct{ b, refs, seen, depth, hops int }

func (e *encoder) checkpoint() checkpoint {
	return checkpoint{len(e.b), len(e.refs), len(e.seen), e.depth, e.hops}
}

func (e *encoder) rollback(c checkpoint) {
	e.b, e.refs, e.depth, e.hops = e.b[:c.b], e.refs[:c.refs], c.depth, c.hops
	if e.index != nil {
		for _, s := range e.seen[c.seen:] {
			delete(e.index, s.identity)
		}
	}
	e.seen = e.seen[:c.seen]
}

func encRefuse(_ *encoder, v reflect.Value) error {
	t := v.Type()
	if t.Kind() == reflect.Struct && opaque(t) {
		return refuse(t.String(), " It has only unexported fields: export those to carry, or give it MarshalText and UnmarshalText.")
	}
	if t == requestType || t == responseType {
		return refuse(t.String(), " Send it with Stub.Fetch, or carry what you need of it.")
	}
	return refuse(t.String(), "")
}

func encBool(e *encoder, v reflect.Value) error {
	e.b = appendBool(e.b, v.Bool())
	return nil
}

func encInt(e *encoder, v reflect.Value) error {
	e.b = appendInt(e.b, v.Int())
	return nil
}

func encUint(e *encoder, v reflect.Value) error {
	e.b = appendUint(e.b, v.Uint())
	return nil
}

func encFloat(e *encoder, v reflect.Value) error {
	e.b = appendFloat(e.b, v.Float())
	return nil
}

func encString(e *encoder, v reflect.Value) (err error) {
	e.b, err = appendString(e.b, v.String())
	return err
}

func encTime(e *encoder, v reflect.Value) (err error) {
	t, _ := reflect.TypeAssert[time.Time](v)
	e.b, err = appendTime(e.b, t)
	return err
}

func appendTime(b []byte, t time.Time) ([]byte, error) {
	ms := t.UnixMilli()
	if y := t.Year(); y < -271822 || y > 275761 || ms > maxDate || ms < -maxDate {
		return b, fail(ErrType, "time in the year %d: a date reaches from the year -271821 to 275760", y)
	}
	return appendDate(b, float64(ms)), nil
}

func encBigInt(e *encoder, v reflect.Value) (err error) {
	if v.CanAddr() {
		i, _ := reflect.TypeAssert[*big.Int](v.Addr())
		e.b, err = appendBigInt(e.b, i)
		return err
	}
	i, _ := reflect.TypeAssert[big.Int](v)
	e.b, err = appendBigInt(e.b, &i)
	return err
}

func encText(e *encoder, v reflect.Value) error {
	m, ok := reflect.TypeAssert[encoding.TextMarshaler](v)
	if !ok {
		return refuse(v.Type().String(), "")
	}
	text, err := m.MarshalText()
	if err != nil {
		return fail(ErrType, "%s has no text: %v", v.Type(), err)
	}
	e.b, err = appendString(e.b, string(text))
	return err
}

func encByteSlice(e *encoder, v reflect.Value) error {
	if v.IsNil() {
		e.b = append(e.b, byteNull)
		return nil
	}
	if v.Len() > 0 {
		if done, err := e.again(v, v.Len()); done {
			return err
		}
	}
	e.b = appendBytes(e.b, v.Bytes())
	return nil
}

func encByteArray(e *encoder, v reflect.Value) error {
	n := v.Len()
	e.b = appendHead(e.b, majorBytes, uint64(n))
	if v.CanAddr() {
		e.b = append(e.b, v.Bytes()...)
		return nil
	}
	for i := range n {
		e.b = append(e.b, byte(v.Index(i).Uint()))
	}
	return nil
}

func encInterface(e *encoder, v reflect.Value) error {
	if v.IsNil() {
		e.b = append(e.b, byteNull)
		return nil
	}
	if err := e.hop(); err != nil {
		return err
	}
	v = v.Elem()
	err := e.inside(planOf(v.Type()), v)
	e.hops--
	return err
}

func (p *plan) encPointer(e *encoder, v reflect.Value) error {
	if v.IsNil() {
		e.b = append(e.b, byteNull)
		return nil
	}
	if p.typ.Elem().Size() > 0 {
		if done, err := e.again(v, 0); done {
			return err
		}
	}
	if err := e.hop(); err != nil {
		return err
	}
	err := p.elem.enc(e, v.Elem())
	e.hops--
	return err
}

func (p *plan) encSlice(e *encoder, v reflect.Value) error {
	if v.IsNil() {
		e.b = append(e.b, byteNull)
		return nil
	}
	if v.Len() > 0 && p.elem.typ.Size() > 0 {
		if done, err := e.again(v, v.Len()); done {
			return err
		}
	}
	return p.encArray(e, v)
}

func (p *plan) encArray(e *encoder, v reflect.Value) error {
	if err := e.enter(); err != nil {
		return err
	}
	n := v.Len()
	e.b = appendHead(e.b, majorArray, uint64(n))
	for i := range n {
		x := v.Index(i)
		if p.elem.typ.Kind() == reflect.Interface && !x.IsNil() && x.Elem().Type() == holeType {
			e.b = append(e.b, byteHole)
			continue
		}
		if err := p.elem.enc(e, x); err != nil {
			return underIndex(err, i)
		}
	}
	e.leave()
	return nil
}

func (p *plan) encStruct(e *encoder, v reflect.Value) error {
	if err := e.enter(); err != nil {
		return err
	}
	n := len(p.fields.list)
	for i := range p.fields.list {
		f := &p.fields.list[i]
		if f.omitEmpty || f.omitZero || len(f.index) > 1 {
			if x, ok := f.get(v); !ok || f.omitted(x) {
				n--
			}
		}
	}
	e.b = appendHead(e.b, majorMap, uint64(n))
	for i := range p.fields.list {
		f := &p.fields.list[i]
		x, ok := f.get(v)
		if !ok || f.omitted(x) {
			continue
		}
		e.b = append(e.b, f.head...)
		if err := f.plan.enc(e, x); err != nil {
			return underKey(err, f.name)
		}
	}
	e.leave()
	return nil
}

// A mapKey is a key of a Go map while it is put in order.
type mapKey struct {
	s string
	n uint64
	i int // its place in the order of Go's iteration
}

func (k mapKey) compare(l mapKey) int {
	if c := cmp.Compare(k.n, l.n); c != 0 {
		return c
	}
	return strings.Compare(k.s, l.s)
}

// encMap writes a map: an object if its keys are strings, else a Map. Entries
// are in the order of the keys if these are strings or integers, so that equal
// maps are equal bytes; in no order otherwise.
func (p *plan) encMap(e *encoder, v reflect.Value) error {
	if v.IsNil() {
		e.b = append(e.b, byteNull)
		return nil
	}
	if done, err := e.again(v, 0); done {
		return err
	}
	if err := e.enter(); err != nil {
		return err
	}
	n := v.Len()
	object := p.key.typ.Kind() == reflect.String
	if !object {
		e.b = appendTag(e.b, tagMap)
	}
	e.b = appendHead(e.b, majorMap, uint64(n))
	from := len(e.keys)
	if m, ok := reflect.TypeAssert[map[string]any](v); ok {
		for k := range m {
			e.keys = append(e.keys, mapKey{s: k})
		}
		for _, k := range e.sorted(from) {
			if err := e.key(k.s); err != nil {
				return err
			}
			if err := e.any(m[k.s]); err != nil {
				return underKey(err, k.s)
			}
		}
		clear(e.keys[from:])
		e.keys = e.keys[:from]
		e.leave()
		return nil
	}
	keys, values := reflect.MakeSlice(p.keySlice, n, n), reflect.MakeSlice(p.elemSlice, n, n)
	it := v.MapRange()
	for i := 0; i < n && it.Next(); i++ {
		x := keys.Index(i)
		x.SetIterKey(it)
		values.Index(i).SetIterValue(it)
		k := mapKey{i: i}
		switch {
		case object:
			k.s = x.String()
		case x.CanInt():
			k.n = uint64(x.Int()) ^ 1<<63
		case x.CanUint():
			k.n = x.Uint()
		}
		e.keys = append(e.keys, k)
	}
	for _, k := range e.sorted(from) {
		x := values.Index(k.i)
		if object {
			if err := e.key(k.s); err != nil {
				return err
			}
			if err := p.elem.enc(e, x); err != nil {
				return underKey(err, k.s)
			}
			continue
		}
		if err := p.key.enc(e, keys.Index(k.i)); err != nil {
			return under(err, "[key]")
		}
		if err := p.elem.enc(e, x); err != nil {
			return under(err, "[map value]")
		}
	}
	clear(e.keys[from:])
	e.keys = e.keys[:from]
	e.leave()
	return nil
}

func (e *encoder) sorted(from int) []mapKey {
	keys := e.keys[from:]
	slices.SortFunc(keys, mapKey.compare)
	return keys
}

// key writes the name of a member.
func (e *encoder) key(s string) (err error) {
	if e.b, err = appendString(e.b, s); err != nil {
		return under(err, "[key "+strconv.Quote(short(s, 64))+"]")
	}
	return nil
}
