package value

import (
	"reflect"
	"slices"
	"strings"
)

// A structPlan lists the members of the object that a struct becomes.
type structPlan struct {
	list  []field
	index map[string]int
}

// A field is one of them.
type field struct {
	name      string
	head      []byte // the name, encoded
	index     []int
	typ       reflect.Type
	tagged    bool
	omitEmpty bool
	omitZero  bool
	plan      *plan
}

// fieldName reads a field's tag: `limpet:"name,omitempty"`, else the json tag.
// An empty name means the field's own name; "-" leaves the field out.
func fieldName(f reflect.StructField) (name string, skip bool, options string) {
	tag, ok := f.Tag.Lookup("limpet")
	if !ok {
		tag = f.Tag.Get("json")
	}
	if tag == "-" {
		return "", true, ""
	}
	name, options, _ = strings.Cut(tag, ",")
	return name, false, options
}

// whole says that an embedded struct type is a value of its own, so that its
// fields are not taken into the outer struct.
func whole(t reflect.Type) bool {
	return t == timeType || special(t) || t.Implements(errorType) || (t.Kind() == reflect.Struct && !hasExported(t) && t.Implements(marshalerType))
}

func hasExported(t reflect.Type) bool {
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() || f.Anonymous {
			return true
		}
	}
	return false
}

// fieldsOf lists the carried fields of t by the rules of encoding/json: fields
// of embedded structs count as fields of t; of several with one name the least
// nested wins, among these a tagged one; if that leaves more than one, none.
func fieldsOf(t reflect.Type) []field {
	type level struct {
		typ   reflect.Type
		index []int
	}
	var all []field
	seen := map[reflect.Type]bool{t: true}
	for next := []level{{typ: t}}; len(next) > 0; {
		this := next
		next = nil
		count := map[reflect.Type]int{}
		for _, l := range this {
			for i := range l.typ.NumField() {
				sf := l.typ.Field(i)
				name, skip, options := fieldName(sf)
				if skip {
					continue
				}
				inner := sf.Type
				if inner.Kind() == reflect.Pointer {
					inner = inner.Elem()
				}
				embedded := sf.Anonymous && inner.Kind() == reflect.Struct && !whole(inner)
				if !sf.IsExported() && !embedded {
					continue
				}
				index := append(slices.Clone(l.index), i)
				if embedded && name == "" {
					// Twice on one level hides the fields of both, as below.
					if count[inner]++; count[inner] <= 2 && !seen[inner] {
						next = append(next, level{inner, index})
					}
					continue
				}
				if !sf.IsExported() {
					continue
				}
				f := field{name: name, index: index, typ: sf.Type, tagged: name != ""}
				if name == "" {
					f.name = sf.Name
				}
				for o := range strings.SplitSeq(options, ",") {
					f.omitEmpty = f.omitEmpty || o == "omitempty"
					f.omitZero = f.omitZero || o == "omitzero"
				}
				all = append(all, f)
			}
		}
		for _, l := range next {
			seen[l.typ] = true
		}
	}
	return dominant(all)
}

// dominant keeps for each name the one field that Go's rules pick, in the order
// of the struct.
func dominant(all []field) []field {
	best := map[string][]field{}
	for _, f := range all {
		b := best[f.name]
		switch {
		case len(b) == 0 || better(f, b[0]):
			best[f.name] = []field{f}
		case !better(b[0], f):
			best[f.name] = append(b, f)
		}
	}
	var list []field
	for _, b := range best {
		if len(b) == 1 {
			list = append(list, b[0])
		}
	}
	slices.SortFunc(list, func(a, b field) int { return slices.Compare(a.index, b.index) })
	return list
}

func better(a, b field) bool {
	if len(a.index) != len(b.index) {
		return len(a.index) < len(b.index)
	}
	return a.tagged && !b.tagged
}

// get gives the field's value in v; false if an embedded pointer on the way is nil.
func (f *field) get(v reflect.Value) (reflect.Value, bool) {
	if len(f.index) == 1 {
		return v.Field(f.index[0]), true
	}
	for i, x := range f.index {
		if i > 0 && v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return v, false
			}
			v = v.Elem()
		}
		v = v.Field(x)
	}
	return v, true
}

// make gives the field's value in v for writing, making embedded structs on the way.
func (f *field) make(v reflect.Value) (reflect.Value, error) {
	for i, x := range f.index {
		if i > 0 && v.Kind() == reflect.Pointer {
			if v.IsNil() {
				if !v.CanSet() {
					return v, fail(ErrType, "embedded pointer to the unexported type %s can't be set", v.Type().Elem())
				}
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(x)
	}
	return v, nil
}

// omitted says that the field is left out when it has the value v.
func (f *field) omitted(v reflect.Value) bool {
	if f.omitZero && isZero(v) {
		return true
	}
	if !f.omitEmpty {
		return false
	}
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// isZero asks the type's own IsZero method, if it has one.
func isZero(v reflect.Value) bool {
	if k := v.Kind(); k != reflect.Pointer && k != reflect.Interface {
		if z, ok := reflect.TypeAssert[interface{ IsZero() bool }](v); ok {
			return z.IsZero()
		}
	}
	return v.IsZero()
}
