package value

import (
	"encoding/base64"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// Names of the members that stand for what JSON has no form for. An object is
// such a form if it has exactly one member whose name begins with "$".
const (
	jsonUndefined = "$undefined" // true
	jsonHole      = "$hole"      // true; only in arrays
	jsonNumber    = "$number"    // "NaN", "Infinity", "-Infinity", "-0"
	jsonBigInt    = "$bigint"    // decimal digits in a string
	jsonDate      = "$date"      // RFC 3339 with milliseconds; null is an invalid date
	jsonBytes     = "$bytes"     // base64
	jsonTyped     = "$typed"     // [kind, base64]
	jsonRegExp    = "$regexp"    // [source, flags]
	jsonBoxed     = "$boxed"     // a primitive
	jsonMap       = "$map"       // [[key, value], ...]
	jsonSet       = "$set"       // [value, ...]
	jsonError     = "$error"     // {class, name, message, stack, fields, cause, errors}
	jsonObject    = "$object"    // a plain object that looks like one of these
)

// ToJSON is [Options.ToJSON] with the default limits.
func ToJSON(b []byte) ([]byte, error) { return Options{}.ToJSON(b) }

// ToJSON tells the value in b as JSON, as the HTTP door and the command line
// show it; the package comment has the table. Numbers are written as JavaScript
// writes them. A shared value is written at each place; one that contains itself
// has no JSON and is refused (ErrType). Other errors: ErrSyntax, ErrVersion,
// ErrTooDeep; ErrTooLarge also if shared values make the text too long.
func (o Options) ToJSON(b []byte) ([]byte, error) { return o.AppendJSON(nil, b) }

// AppendJSON is ToJSON behind dst; dst comes back unchanged after an error.
func (o Options) AppendJSON(dst []byte, b []byte) ([]byte, error) {
	j := jsonWriter{b: dst}
	if err := j.r.init(b, o); err != nil {
		return dst, err
	}
	err := j.next()
	if err == nil {
		err = j.r.End()
	}
	if err != nil {
		return dst, err
	}
	return j.b, nil
}

type jsonWriter struct {
	r    Reader
	b    []byte
	open []int // numbers of the shared values that are being written
}

func (j *jsonWriter) str(s string) { j.b = append(j.b, s...) }

// form begins {"name":
func (j *jsonWriter) form(name string) {
	j.str(`{"`)
	j.str(name)
	j.str(`":`)
}

func (j *jsonWriter) next() error {
	var t Token
	if err := j.r.Next(&t); err != nil {
		return err
	}
	return j.value(&t)
}

func (j *jsonWriter) value(t *Token) error {
	if t.Kind == KindRef {
		return j.again(t.N)
	}
	if t.Share >= 0 {
		j.open = append(j.open, t.Share)
		defer func() { j.open = j.open[:len(j.open)-1] }()
	}
	switch t.Kind {
	case KindNull:
		j.str("null")
	case KindUndefined:
		j.str(`{"$undefined":true}`)
	case KindHole:
		j.str(`{"$hole":true}`)
	case KindBool, KindInt:
		j.str(t.scalarText())
	case KindFloat:
		j.number(t)
	case KindBigInt:
		j.form(jsonBigInt)
		j.b = append(t.BigInt().Append(append(j.b, '"'), 10), `"}`...)
	case KindString:
		j.b = appendJSONString(j.b, t.Str)
	case KindBytes:
		j.form(jsonBytes)
		j.base64(t.Str)
		j.str("}")
	case KindTyped:
		j.form(jsonTyped)
		j.str(`["` + t.Elem.String() + `",`)
		j.base64(t.Str)
		j.str("]}")
	case KindDate:
		j.form(jsonDate)
		if t.Float != t.Float {
			j.str("null}")
			break
		}
		j.b = append(appendISO(append(j.b, '"'), int64(t.Float)), `"}`...)
	case KindRegExp:
		j.form(jsonRegExp)
		j.b = appendJSONString(append(j.b, '['), t.Str)
		j.b = appendJSONString(append(j.b, ','), t.Flags)
		j.str("]}")
	case KindCapability:
		return fail(ErrCapability, "a %s has no JSON form", t.Capability())
	case KindBoxed:
		j.form(jsonBoxed)
		if err := j.next(); err != nil {
			return err
		}
		j.str("}")
	case KindArray:
		return j.list(t.N)
	case KindSet:
		j.form(jsonSet)
		if err := j.list(t.N); err != nil {
			return err
		}
		j.str("}")
	case KindMap:
		return j.pairs(t.N)
	case KindObject:
		return j.object(t.N)
	case KindError:
		return j.error(t)
	}
	return nil
}

// again writes a shared value at another place.
func (j *jsonWriter) again(n int) error {
	for _, o := range j.open {
		if o == n {
			return fail(ErrType, "value contains itself, and JSON has no form for cycles")
		}
	}
	back, err := j.r.reread(n)
	if err != nil {
		return err
	}
	var t Token
	if err := j.r.Next(&t); err != nil {
		return err
	}
	t.Share = n
	if err := j.value(&t); err != nil {
		return err
	}
	j.r.back(back)
	return nil
}

func (j *jsonWriter) number(t *Token) {
	if f := t.Float; f != f || math.IsInf(f, 0) || f == 0 && math.Signbit(f) {
		j.form(jsonNumber)
		j.str(`"` + t.scalarText() + `"}`)
		return
	}
	j.b = appendNumber(j.b, t.Float)
}

func (j *jsonWriter) base64(p []byte) {
	j.b = append(base64.StdEncoding.AppendEncode(append(j.b, '"'), p), '"')
}

func (j *jsonWriter) list(n int) error {
	j.str("[")
	for i := range n {
		if i > 0 {
			j.str(",")
		}
		if err := j.next(); err != nil {
			return underIndex(err, i)
		}
	}
	j.str("]")
	return nil
}

func (j *jsonWriter) pairs(n int) error {
	j.form(jsonMap)
	j.str("[")
	for i := range n {
		if i > 0 {
			j.str(",")
		}
		if err := j.list(2); err != nil {
			return underIndex(err, i)
		}
	}
	j.str("]}")
	return nil
}

func (j *jsonWriter) object(n int) error {
	return j.members(n, n == 1)
}

// members writes n members. If there is only one and its name begins with "$",
// the object is wrapped, so that it is not taken for another thing.
func (j *jsonWriter) members(n int, only bool) error {
	var t Token
	wrapped := false
	from := len(j.b)
	j.str("{")
	for i := range n {
		if err := j.r.Next(&t); err != nil {
			return err
		}
		if only && len(t.Str) > 0 && t.Str[0] == '$' {
			wrapped = true
			j.b = j.b[:from]
			j.form(jsonObject)
			j.str("{")
		}
		if i > 0 {
			j.str(",")
		}
		j.b = append(appendJSONString(j.b, t.Str), ':')
		name := t.Str
		if err := j.next(); err != nil {
			return underKey(err, string(name))
		}
	}
	j.str("}")
	if wrapped {
		j.str("}")
	}
	return nil
}

func (j *jsonWriter) error(t *Token) error {
	j.form(jsonError)
	for i, part := range [...]struct{ name, text string }{
		{"class", t.Err.Class}, {"name", t.Err.Name}, {"message", t.Err.Message}, {"stack", t.Err.Stack},
	} {
		if i == 3 && part.text == "" {
			break
		}
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		j.b = append(j.b, sep)
		j.str(`"` + part.name + `":`)
		j.b = appendJSONString(j.b, []byte(part.text))
	}
	fields := t.N
	if fields > 0 {
		j.str(`,"fields":`)
		if err := j.members(fields, false); err != nil {
			return err
		}
	}
	for _, name := range [...]string{"cause", "errors"} {
		var tail Token
		if err := j.r.Next(&tail); err != nil {
			return err
		}
		if tail.Kind == KindHole {
			continue
		}
		j.str(`,"` + name + `":`)
		from := len(j.b)
		if err := j.value(&tail); err != nil {
			return under(err, "."+name)
		}
		if name == "errors" && j.b[from] != '[' {
			return fail(ErrSyntax, "errors of an AggregateError are no array")
		}
	}
	j.str("}}")
	return nil
}

// appendISO writes a time as JavaScript's toISOString does: RFC 3339 with
// milliseconds, and six digits and a sign for years beyond 0..9999.
func appendISO(b []byte, ms int64) []byte {
	t := time.UnixMilli(ms).UTC()
	y := t.Year()
	if y >= 0 && y <= 9999 {
		return t.AppendFormat(b, "2006-01-02T15:04:05.000Z")
	}
	sign := byte('+')
	if y < 0 {
		sign, y = '-', -y
	}
	b = append(b, sign)
	s := strconv.Itoa(y)
	for range 6 - len(s) {
		b = append(b, '0')
	}
	b = append(b, s...)
	return t.AppendFormat(b, "-01-02T15:04:05.000Z")
}

// parseISO reads what appendISO writes, and RFC 3339 with any zone and precision,
// which is cut to milliseconds.
func parseISO(s string) (int64, bool) {
	if len(s) > 7 && (s[0] == '+' || s[0] == '-') {
		y, err := strconv.Atoi(s[1:7])
		if err != nil || s[1] == '+' || s[1] == '-' || s[0] == '-' && y == 0 {
			return 0, false
		}
		if s[0] == '-' {
			y = -y
		}
		// The Gregorian calendar repeats after 400 years.
		const cycle = 400
		shift := y / cycle
		if y%cycle < 0 {
			shift--
		}
		short := y - shift*cycle + 2000
		t, err := time.Parse(time.RFC3339Nano, strconv.Itoa(short)+s[7:])
		if err != nil {
			return 0, false
		}
		ms := t.UnixMilli() + int64(shift-2000/cycle)*146097*86400_000
		return ms, ms <= maxDate && ms >= -maxDate
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	return t.UnixMilli(), err == nil
}

const hexDigits = "0123456789abcdef"

// appendJSONString writes WTF-8 as a JSON string; lone surrogates are escaped.
func appendJSONString(b, s []byte) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			if c == 0xed && i+2 < len(s) && s[i+1] >= 0xa0 {
				u, _ := surrogateAt(string(s[i:i+3]), 0)
				b = append(b, s[from:i]...)
				b = append(b, '\\', 'u', hexDigits[u>>12], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
				i += 3
				from = i
				continue
			}
			i++
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f {
			i++
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}
