package value

import (
	"encoding/base64"
	"math"
	"math/big"
	"strconv"

	"github.com/limpet-dev/limpet"
)

// FromJSON is [Options.FromJSON] with the default limits.
func FromJSON(text []byte) ([]byte, error) { return Options{}.FromJSON(text) }

// FromJSON makes a value of JSON text, with the forms of the package comment for
// what JSON lacks. Numbers are read as JSON.parse does: to the nearest float64;
// whole ones up to ±2^53 become integers. Refused (ErrSyntax): what is no JSON
// or no UTF-8, numbers beyond a float64, integers without point and exponent that
// a float64 would round (JSON.parse changes them in silence), unknown forms. Of members with one name
// the last counts. Others: ErrTooDeep, ErrTooLarge (of the value, not the text:
// its length is the caller's to bound).
func (o Options) FromJSON(text []byte) ([]byte, error) { return o.AppendFromJSON(nil, text) }

// AppendFromJSON is FromJSON behind dst; dst comes back unchanged after an error.
func (o Options) AppendFromJSON(dst, text []byte) ([]byte, error) {
	j := jsonReader{jsonScan: jsonScan{text: text, limit: 4*o.maxDepth() + 4}}
	if err := j.document(); err != nil {
		return dst, err
	}
	j.pos = 0
	j.w.init(dst, o)
	if err := j.value(); err != nil {
		return dst, err
	}
	b, err := j.w.Finish()
	if err != nil {
		return dst, err
	}
	return b, nil
}

// A jsonReader is the second pass: the text is known to be JSON.
type jsonReader struct {
	jsonScan
	next int // of sizes
	w    Writer
}

func (j *jsonReader) size() int {
	j.next++
	return int(j.sizes[j.next-1].n)
}

func (j *jsonReader) value() error {
	if j.w.err != nil {
		return j.w.err
	}
	switch c := j.peek(); c {
	case '"':
		j.put(KindString)
	case '[':
		return j.array()
	case '{':
		return j.object()
	case 'n', 't', 'f':
		_, _ = j.word()
		if c == 'n' {
			j.w.Null()
		} else {
			j.w.Bool(c == 't')
		}
	default:
		return j.num()
	}
	return j.w.err
}

// put reads a string and writes it, as a key or a value. Without escapes it is as
// long as its text, and UTF-8 since all the text is.
func (j *jsonReader) put(k Kind) {
	from := j.pos
	s, _ := j.str()
	if len(s) == j.pos-from-2 {
		if j.w.ok(k, 0) {
			j.w.b = append(appendHead(j.w.b, majorText, uint64(len(s))), s...)
		}
		return
	}
	if j.w.ok(k, 0) {
		j.w.b, j.w.err = appendString(j.w.b, string(s))
	}
}

// text8 reads a string.
func (j *jsonReader) text8() string {
	s, _ := j.str()
	return string(s)
}

func (j *jsonReader) num() error {
	s, _ := j.number()
	if len(s) <= 15 {
		if i, err := strconv.ParseInt(string(s), 10, 64); err == nil && (i != 0 || s[0] != '-') {
			j.w.Int(i)
			return j.w.err
		}
	}
	f, err := strconv.ParseFloat(string(s), 64)
	if err != nil {
		return j.syntax("number %s is beyond a float64", short(string(s), 40))
	}
	if len(s) > 15 && rounded(string(s), f) {
		// A number with a point or an exponent is rounded as everywhere; whoever
		// writes an integer means that one.
		return j.syntax(`integer %s is no float64, it would be rounded to %.0f: write {"$bigint":"…"} for an exact one`, short(string(s), 40), f)
	}
	j.w.Number(f)
	return j.w.err
}

// rounded reports whether s is an integer literal that a float64 changes: it is
// neither the float's own value nor its shortest form, as ToJSON writes it.
func rounded(s string, f float64) bool {
	i, ok := new(big.Int).SetString(s, 10) // at most 309 digits: f is finite
	if !ok || s == strconv.FormatFloat(f, 'f', -1, 64) {
		return false
	}
	exact, _ := big.NewFloat(f).Int(nil) // a float of 16 digits and more is whole
	return exact.Cmp(i) != 0
}

// elements calls f for each element of the array that begins here.
func (j *jsonReader) elements(f func(i int) error) error {
	j.pos++
	for i := 0; ; i++ {
		switch j.peek() {
		case ']':
			j.pos++
			return nil
		case ',':
			j.pos++
		}
		if err := f(i); err != nil {
			return underIndex(err, i)
		}
	}
}

func (j *jsonReader) array() error {
	j.w.Array(j.size())
	return j.elements(func(int) error { return j.value() })
}

// plain writes the object here, of n members.
func (j *jsonReader) plain(n int) error {
	j.w.Object(n)
	return j.fields()
}

// fields writes the members of the object here.
func (j *jsonReader) fields() error {
	j.pos++
	for {
		switch j.peek() {
		case '}':
			j.pos++
			return j.w.err
		case ',':
			j.pos++
			j.space()
		}
		at := j.pos
		if j.dropped[at] {
			_, _ = j.str()
			j.peek()
			j.pos++ // the colon
			j.skip()
			continue
		}
		j.put(KindKey)
		j.peek()
		j.pos++
		if err := j.value(); err != nil {
			j.pos = at
			return underKey(err, j.text8())
		}
	}
}

// members calls f for each member of the object that begins here, at its value.
func (j *jsonReader) members(f func(name string) error) error {
	j.pos++
	for {
		switch j.peek() {
		case '}':
			j.pos++
			return nil
		case ',':
			j.pos++
			j.space()
		}
		at := j.pos
		name := j.text8()
		j.peek()
		j.pos++ // the colon
		if j.dropped[at] {
			j.skip()
			continue
		}
		if err := f(name); err != nil {
			return underKey(err, name)
		}
	}
}

// skip passes over a value.
func (j *jsonReader) skip() {
	switch c := j.peek(); c {
	case '"':
		_, _ = j.str()
	case '[', '{':
		size := j.sizes[j.next]
		j.pos, j.next = size.end, int(size.next)
	case 'n', 't', 'f':
		_, _ = j.word()
	default:
		_, _ = j.number()
	}
}

func (j *jsonReader) object() error {
	n := j.size()
	if n == 1 {
		at := j.pos
		// The one member that counts is the last of those that are written.
		name := j.onlyName()
		j.pos = at
		if len(name) > 0 && name[0] == '$' {
			return j.members(j.form)
		}
	}
	return j.plain(n)
}

// onlyName gives the name of the one member of the object here.
func (j *jsonReader) onlyName() []byte {
	j.pos++
	j.space()
	s, _ := j.str()
	return s
}

func (j *jsonReader) wrong(name, wanted string) error {
	return j.syntax("%s takes %s", name, wanted)
}

// form writes what the form called name stands for; its content is here.
func (j *jsonReader) form(name string) error {
	c := j.peek()
	switch name {
	case jsonUndefined, jsonHole:
		if c != 't' {
			return j.wrong(name, "true")
		}
		_, _ = j.word()
		if name == jsonHole {
			j.w.Hole()
		} else {
			j.w.Undefined()
		}
	case jsonBoxed:
		j.w.Boxed()
		return j.value()
	case jsonObject:
		if c != '{' {
			return j.wrong(name, "an object")
		}
		return j.plain(j.size())
	case jsonSet:
		if c != '[' {
			return j.wrong(name, "an array of values")
		}
		j.w.Set(j.size())
		return j.elements(func(int) error { return j.value() })
	case jsonMap:
		return j.mapForm(c)
	case jsonTyped, jsonRegExp:
		return j.pairForm(name, c)
	case jsonError:
		return j.errorForm(c)
	case jsonDate:
		if c == 'n' {
			_, _ = j.word()
			j.w.Date(math.NaN())
			break
		}
		return j.stringForm(name, c)
	case jsonNumber, jsonBigInt, jsonBytes:
		return j.stringForm(name, c)
	default:
		return j.syntax("%q is no form that limpet knows; an object that really has one member of this name is written {%q: {...}}", short(name, 64), jsonObject)
	}
	return j.w.err
}

func (j *jsonReader) stringForm(name string, c byte) error {
	if c != '"' {
		return j.wrong(name, "a string")
	}
	s := j.text8()
	switch name {
	case jsonDate:
		ms, ok := parseISO(s)
		if !ok {
			return j.wrong(name, "a time like \"2026-01-31T12:00:00.000Z\" (RFC 3339)")
		}
		j.w.Date(float64(ms))
	case jsonNumber:
		f, ok := map[string]float64{"NaN": nan, "Infinity": math.Inf(1), "-Infinity": math.Inf(-1), "-0": math.Copysign(0, -1)}[s]
		if !ok {
			return j.wrong(name, `"NaN", "Infinity", "-Infinity" or "-0"`)
		}
		j.w.Float(f)
	case jsonBigInt:
		if len(s) > maxBigDigits {
			return fail(ErrTooLarge, "big integer of %d digits; the limit is %d bits", len(s), MaxBigIntBits)
		}
		i, ok := new(big.Int).SetString(s, 10)
		if !ok || s[0] == '+' {
			return j.wrong(name, "decimal digits in a string")
		}
		j.w.BigInt(i)
	case jsonBytes:
		p, err := base64.StdEncoding.Strict().DecodeString(s)
		if err != nil {
			return j.wrong(name, "base64 with padding (RFC 4648, section 4)")
		}
		j.w.Bytes(p)
	}
	return j.w.err
}

// maxBigDigits is more than the decimal digits of MaxBigIntBits, with a sign.
const maxBigDigits = MaxBigIntBits*30103/100000 + 3

func (j *jsonReader) mapForm(c byte) error {
	const want = "an array of [key, value] pairs"
	if c != '[' {
		return j.wrong(jsonMap, want)
	}
	j.w.Map(j.size())
	return j.elements(func(int) error {
		if j.peek() != '[' || j.size() != 2 {
			return j.wrong(jsonMap, want)
		}
		return j.elements(func(int) error { return j.value() })
	})
}

// pairForm reads two strings.
func (j *jsonReader) pairForm(name string, c byte) error {
	want := "[source, flags]"
	if name == jsonTyped {
		want = `[kind, base64], with a kind like "Float64Array"`
	}
	if c != '[' || j.size() != 2 {
		return j.wrong(name, want)
	}
	var s [2]string
	if err := j.elements(func(i int) error {
		if j.peek() != '"' {
			return j.wrong(name, want)
		}
		s[i] = j.text8()
		return nil
	}); err != nil {
		return err
	}
	if name == jsonRegExp {
		j.w.RegExp(s[0], s[1])
		return j.w.err
	}
	p, err := base64.StdEncoding.Strict().DecodeString(s[1])
	for k := limpet.ArrayBuffer; k <= limpet.Float64Array; k++ {
		if k.String() == s[0] && err == nil {
			j.w.TypedArray(k, p)
			return j.w.err
		}
	}
	return j.wrong(name, want)
}

// jsonErrorParts are the members of the error form, in the order in which the
// value has them; the first four are strings.
var jsonErrorParts = [...]string{"class", "name", "message", "stack", "fields", "cause", "errors"}

// errorForm reads the members in any order and writes them in theirs.
func (j *jsonReader) errorForm(c byte) error {
	if c != '{' {
		return j.wrong(jsonError, "an object")
	}
	j.size()
	type spot struct{ pos, next int }
	var parts [len(jsonErrorParts)]spot
	if err := j.members(func(name string) error {
		for i, p := range jsonErrorParts {
			if p != name {
				continue
			}
			c := j.peek()
			switch {
			case i < 4 && c != '"':
				return j.wrong(name, "a string")
			case p == "fields" && c != '{':
				return j.wrong(name, "an object")
			case p == "errors" && c != '[':
				return j.wrong(name, "an array")
			}
			parts[i] = spot{j.pos, j.next}
			j.skip()
			return nil
		}
		return j.syntax("%s has no member %q", jsonError, short(name, 64))
	}); err != nil {
		return err
	}
	end := spot{j.pos, j.next}
	var head [4]string
	for i := range head {
		if parts[i].pos > 0 {
			j.pos = parts[i].pos
			head[i] = j.text8()
		}
	}
	h := ErrorHead{head[0], head[1], head[2], head[3]}
	h.fill()
	n := 0
	if parts[4].pos > 0 {
		j.pos, j.next = parts[4].pos, parts[4].next
		n = j.size()
	}
	j.w.Error(h, n)
	if n > 0 {
		if err := j.fields(); err != nil {
			return underKey(err, "fields")
		}
	}
	for i := 5; i < len(parts); i++ {
		if parts[i].pos == 0 {
			j.w.Hole()
			continue
		}
		j.pos, j.next = parts[i].pos, parts[i].next
		if err := j.value(); err != nil {
			return underKey(err, jsonErrorParts[i])
		}
	}
	j.pos, j.next = end.pos, end.next
	return j.w.err
}
