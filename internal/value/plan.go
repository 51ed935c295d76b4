package value

import (
	"encoding"
	"math/big"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
)

// A plan is what the package knows about a Go type. Plans are made once per
// type and never change after they are published; they point at each other, so
// recursive types are no trouble.
type plan struct {
	typ reflect.Type
	enc func(*encoder, reflect.Value) error
	dec func(*decoder, *Token, reflect.Value) error

	elem   *plan // pointer, slice, array, map
	key    *plan // map
	fields *structPlan
	// keySlice and elemSlice are slices of a map's keys and elements.
	keySlice, elemSlice reflect.Type
	// plain: see Plain.
	plain bool
	// track: a value of the type may hold the same pointer, map or slice twice,
	// so encoding needs the identity table.
	track bool
	// reads: a value of the type can be read from.
	reads bool
}

var (
	plans   sync.Map // reflect.Type -> *plan
	plansMu sync.Mutex
)

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	plansMu.Lock()
	defer plansMu.Unlock()
	b := planner{}
	p := b.plan(t)
	for _, q := range b {
		q.track = tracks(q.typ, false, map[reflect.Type]int{}, map[reflect.Type]bool{})
		q.plain = plainType(q.typ)
		q.reads = q.typ.Kind() != reflect.Interface && q.typ.Implements(readerType) && !q.typ.Implements(errorType)
	}
	for t, q := range b {
		plans.Store(t, q)
	}
	return p
}

// Plain reports whether a value of type t can be given to somebody else by
// assignment: it holds nothing that two holders could change under each other.
// That is so for bools, numbers, strings, and arrays and structs of them. Copies
// by assignment must not differ from what the wire would give, so a time.Time is
// not plain (its nanoseconds and location are not carried), and neither is a
// struct with an unexported or excluded field. One difference stays: a string
// that is no UTF-8 is not refused. Safe for concurrent use.
func Plain(t reflect.Type) bool { return t != nil && planOf(t).plain }

var (
	timeType       = reflect.TypeFor[time.Time]()
	bigIntType     = reflect.TypeFor[big.Int]()
	errorType      = reflect.TypeFor[error]()
	errorValueType = reflect.TypeFor[limpet.ErrorValue]()
	mapType        = reflect.TypeFor[limpet.Map]()
	setType        = reflect.TypeFor[limpet.Set]()
	typedType      = reflect.TypeFor[limpet.TypedArray]()
	regExpType     = reflect.TypeFor[limpet.RegExp]()
	boxedType      = reflect.TypeFor[limpet.Boxed]()
	undefinedType  = reflect.TypeFor[limpet.Undefined]()
	holeType       = reflect.TypeFor[limpet.Hole]()
	noDateType     = reflect.TypeFor[limpet.InvalidDate]()
	marshalerType  = reflect.TypeFor[encoding.TextMarshaler]()
	requestType    = reflect.TypeFor[http.Request]()
	responseType   = reflect.TypeFor[http.Response]()
	unmarshalType  = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func plainType(t reflect.Type) bool {
	if t == timeType || t.Implements(errorType) {
		return false
	}
	switch t.Kind() {
	case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	case reflect.Array:
		return plainType(t.Elem())
	case reflect.Struct:
		if special(t) {
			return false
		}
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() || !plainType(f.Type) {
				return false
			}
			if _, skip, _ := fieldName(f); skip {
				return false
			}
		}
		// Two fields of one name are both left out on the wire.
		return len(fieldsOf(t)) == leaves(t)
	}
	return false
}

// leaves counts the fields of t, those of embedded structs in place of these.
func leaves(t reflect.Type) int {
	n := 0
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := fieldName(f); f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct && !whole(f.Type) {
			n += leaves(f.Type)
		} else {
			n++
		}
	}
	return n
}

// special says that the struct type t has a form of its own.
func special(t reflect.Type) bool {
	switch t {
	case bigIntType, errorValueType, mapType, setType, typedType, regExpType, boxedType, undefinedType, holeType, noDateType:
		return true
	}
	return false
}

// tracks says whether a value of type t may hold one pointer, map or slice
// twice. Count is how often each type of them may occur, many that t itself does.
func tracks(t reflect.Type, many bool, count map[reflect.Type]int, open map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if open[t] {
			return true
		}
		count[t]++
		if many || count[t] > 1 {
			return true
		}
		open[t] = true
		defer delete(open, t)
		many = t.Kind() != reflect.Pointer
		if t.Kind() == reflect.Map && tracks(t.Key(), true, count, open) {
			return true
		}
		return tracks(t.Elem(), many, count, open)
	case reflect.Array:
		return tracks(t.Elem(), many || t.Len() > 1, count, open)
	case reflect.Struct:
		if t == timeType || t == bigIntType {
			return false
		}
		for i := range t.NumField() {
			if f := t.Field(i); (f.IsExported() || f.Anonymous) && tracks(f.Type, many, count, open) {
				return true
			}
		}
	}
	return false
}

// A planner holds the plans being made.
type planner map[reflect.Type]*plan

func (b planner) plan(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	if p := b[t]; p != nil {
		return p
	}
	p := &plan{typ: t}
	b[t] = p
	b.fill(p)
	return p
}

func (b planner) fill(p *plan) {
	t := p.typ
	switch t {
	case timeType:
		p.enc, p.dec = encTime, decTime
		return
	case bigIntType:
		p.enc, p.dec = encBigInt, decBigInt
		return
	case mapType, setType, typedType, regExpType, boxedType, undefinedType, holeType, noDateType:
		p.enc, p.dec = encDynamic, decDynamic
		return
	case errorValueType:
		p.enc, p.dec = encErrorValue, decDynamic
		return
	case requestType, responseType: // their fields alone would say something else
		p.enc, p.dec = encRefuse, decRefuse
		return
	}
	if isCapability(t) {
		p.enc, p.dec = encCapability, decCapability
		return
	}
	switch t.Kind() {
	case reflect.Bool:
		p.enc, p.dec = encBool, decBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.enc, p.dec = encInt, decInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		p.enc, p.dec = encUint, decUint
	case reflect.Float32, reflect.Float64:
		p.enc, p.dec = encFloat, decFloat
	case reflect.String:
		p.enc, p.dec = encString, decString
	case reflect.Interface:
		p.enc, p.dec = encInterface, decInterface
	case reflect.Pointer:
		if endless(t) {
			p.enc, p.dec = encRefuse, decRefuse
			break
		}
		p.elem = b.plan(t.Elem())
		p.enc, p.dec = p.encPointer, p.decPointer
		switch t.Elem() {
		case mapType, setType, typedType, errorValueType:
			if t.Name() == "" {
				p.dec = decDynamicPointer
			}
		}
	case reflect.Slice:
		p.elem = b.plan(t.Elem())
		p.dec = p.decSlice
		p.enc = p.encSlice
		if t.Elem().Kind() == reflect.Uint8 {
			p.enc = encByteSlice
		}
	case reflect.Array:
		p.elem = b.plan(t.Elem())
		p.enc, p.dec = p.encArray, p.decArray
		if t.Elem().Kind() == reflect.Uint8 {
			p.enc = encByteArray
		}
	case reflect.Map:
		p.key, p.elem = b.plan(t.Key()), b.plan(t.Elem())
		p.keySlice, p.elemSlice = reflect.SliceOf(t.Key()), reflect.SliceOf(t.Elem())
		p.enc, p.dec = p.encMap, p.decMap
	case reflect.Struct:
		b.fillStruct(p)
	default:
		p.enc, p.dec = encRefuse, decRefuse
	}
	// Go errors keep what they are, whatever they are made of.
	if t.Kind() != reflect.Interface && t.Implements(errorType) {
		p.enc = encGoError
	}
}

// fillStruct plans a struct: an object of its fields or, if none is exported,
// its text.
func (b planner) fillStruct(p *plan) {
	t := p.typ
	p.fields = &structPlan{index: map[string]int{}}
	for _, f := range fieldsOf(t) {
		f.plan = b.plan(f.typ)
		f.head, _ = appendString(nil, f.name)
		p.fields.index[f.name] = len(p.fields.list)
		p.fields.list = append(p.fields.list, f)
	}
	p.enc, p.dec = p.encStruct, p.decStruct
	if !opaque(t) {
		return
	}
	p.enc, p.dec = encRefuse, decRefuse
	if t.Implements(marshalerType) {
		p.enc = encText
	}
	if reflect.PointerTo(t).Implements(unmarshalType) {
		p.dec = decText
	}
}

// opaque says that t has fields, and none that is exported.
func opaque(t reflect.Type) bool { return t.NumField() > 0 && !exported(t) }

// exported says that t has an exported field, be it one that is not carried.
func exported(t reflect.Type) bool {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.IsExported() {
			return true
		}
	}
	return len(fieldsOf(t)) > 0
}

// endless says that t is a pointer type that leads to nothing but itself.
func endless(t reflect.Type) bool {
	seen := map[reflect.Type]bool{}
	for ; t.Kind() == reflect.Pointer; t = t.Elem() {
		if seen[t] {
			return true
		}
		seen[t] = true
	}
	return false
}
