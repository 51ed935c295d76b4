package value

import (
	"bytes"
	"unicode/utf8"
)

// A jsonScan is the first of two passes over JSON text: it checks the syntax
// (RFC 8259) and notes what the second must know before it gets there, since
// the heads of containers count their items.
type jsonScan struct {
	text  []byte
	pos   int
	limit int
	// sizes are the item counts of the containers in the order of their
	// beginnings; of an object's members of one name only the last counts.
	sizes []jsonSize
	// dropped are the places of the names of members that a later one replaces.
	dropped map[int]bool
	names   []jsonName // of the objects that are open
}

// A jsonSize is what is noted of a container: its count, where it ends, and how
// many containers began before its end.
type jsonSize struct {
	n, next uint32
	end     int
}

type jsonName struct {
	s  []byte
	at int
}

func (j *jsonScan) syntax(format string, args ...any) error {
	return fail(ErrSyntax, "JSON: "+format+" (byte %d)", append(args, j.pos)...)
}

func (j *jsonScan) space() {
	for j.pos < len(j.text) {
		switch j.text[j.pos] {
		case ' ', '\t', '\n', '\r':
			j.pos++
		default:
			return
		}
	}
}

// peek gives the next byte after white space, 0 at the end.
func (j *jsonScan) peek() byte {
	j.space()
	if j.pos < len(j.text) {
		return j.text[j.pos]
	}
	return 0
}

func (j *jsonScan) unexpected(wanted string) error {
	if j.pos >= len(j.text) {
		return j.syntax("text ends where %s must stand", wanted)
	}
	r, _ := utf8.DecodeRune(j.text[j.pos:])
	return j.syntax("%q where %s must stand", r, wanted)
}

func (j *jsonScan) document() error {
	if !utf8.Valid(j.text) {
		for j.pos < len(j.text) {
			r, n := utf8.DecodeRune(j.text[j.pos:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			j.pos += n
		}
		return j.syntax("text is no UTF-8")
	}
	if err := j.value(0); err != nil {
		return err
	}
	if j.peek() != 0 || j.pos < len(j.text) {
		return j.unexpected("the end")
	}
	return nil
}

func (j *jsonScan) value(depth int) error {
	if depth > j.limit {
		return fail(ErrTooDeep, "JSON: nested deeper than %d (byte %d)", j.limit, j.pos)
	}
	switch c := j.peek(); {
	case c == '"':
		_, err := j.str()
		return err
	case c == '[':
		return j.array(depth)
	case c == '{':
		return j.object(depth)
	case c == '-' || c >= '0' && c <= '9':
		_, err := j.number()
		return err
	}
	_, err := j.word()
	return err
}

func (j *jsonScan) word() (byte, error) {
	for _, w := range [...]string{"null", "true", "false"} {
		if bytes.HasPrefix(j.text[j.pos:], []byte(w)) {
			j.pos += len(w)
			return w[0], nil
		}
	}
	return 0, j.unexpected("a value")
}

func (j *jsonScan) array(depth int) error {
	me := len(j.sizes)
	j.sizes = append(j.sizes, jsonSize{})
	j.pos++
	if j.peek() == ']' {
		j.end(me)
		return nil
	}
	for {
		if err := j.value(depth + 1); err != nil {
			return err
		}
		j.sizes[me].n++
		switch j.peek() {
		case ',':
			j.pos++
		case ']':
			j.end(me)
			return nil
		default:
			return j.unexpected("',' or ']'")
		}
	}
}

// end closes the container number me.
func (j *jsonScan) end(me int) {
	j.pos++
	j.sizes[me].end, j.sizes[me].next = j.pos, uint32(len(j.sizes))
}

func (j *jsonScan) object(depth int) error {
	me := len(j.sizes)
	j.sizes = append(j.sizes, jsonSize{})
	from := len(j.names)
	var index map[string]int // of names, once there are many
	j.pos++
	if j.peek() == '}' {
		j.end(me)
		return nil
	}
	for {
		if j.peek() != '"' {
			return j.unexpected("a member's name")
		}
		name := jsonName{at: j.pos}
		var err error
		if name.s, err = j.str(); err != nil {
			return err
		}
		mine := j.names[from:]
		old := -1
		switch {
		case index != nil:
			if i, ok := index[string(name.s)]; ok {
				old = i
			}
		default:
			for i := range mine {
				if bytes.Equal(mine[i].s, name.s) {
					old = i
					break
				}
			}
		}
		switch {
		case old >= 0:
			if j.dropped == nil {
				j.dropped = map[int]bool{}
			}
			j.dropped[mine[old].at] = true
			mine[old].at = name.at
		default:
			j.names = append(j.names, name)
			j.sizes[me].n++
			if index != nil {
				index[string(name.s)] = len(mine)
			} else if len(mine) == linear {
				index = make(map[string]int, 4*linear)
				for i, n := range j.names[from:] {
					index[string(n.s)] = i
				}
			}
		}
		if j.peek() != ':' {
			return j.unexpected("':'")
		}
		j.pos++
		if err := j.value(depth + 1); err != nil {
			return err
		}
		switch j.peek() {
		case ',':
			j.pos++
		case '}':
			j.end(me)
			j.names = j.names[:from]
			return nil
		default:
			return j.unexpected("',' or '}'")
		}
	}
}

// number passes over a number and gives its text.
func (j *jsonScan) number() ([]byte, error) {
	from := j.pos
	if j.text[j.pos] == '-' {
		j.pos++
	}
	switch {
	case j.digit() == '0':
		j.pos++
	case !j.digits():
		return nil, j.unexpected("a digit")
	}
	if j.pos < len(j.text) && j.text[j.pos] == '.' {
		j.pos++
		if !j.digits() {
			return nil, j.unexpected("a digit")
		}
	}
	if j.pos < len(j.text) && j.text[j.pos]|0x20 == 'e' {
		j.pos++
		if j.pos < len(j.text) && (j.text[j.pos] == '+' || j.text[j.pos] == '-') {
			j.pos++
		}
		if !j.digits() {
			return nil, j.unexpected("a digit")
		}
	}
	return j.text[from:j.pos], nil
}

func (j *jsonScan) digit() byte {
	if j.pos < len(j.text) && j.text[j.pos] >= '0' && j.text[j.pos] <= '9' {
		return j.text[j.pos]
	}
	return 0
}

func (j *jsonScan) digits() bool {
	from := j.pos
	for j.digit() != 0 {
		j.pos++
	}
	return j.pos > from
}

// str passes over a string and gives it in WTF-8. The bytes are part of the text
// unless something was escaped.
func (j *jsonScan) str() (s []byte, err error) {
	j.pos++
	from := j.pos
	for j.pos < len(j.text) {
		switch c := j.text[j.pos]; {
		case c == '"':
			s = j.text[from:j.pos]
			j.pos++
			return s, nil
		case c == '\\':
			return j.escaped(from)
		case c < 0x20:
			return nil, j.syntax("control character 0x%02x in a string", c)
		}
		j.pos++
	}
	return nil, j.unexpected("the end of a string")
}

// escaped goes on with a string that begins at from, at its first escape.
func (j *jsonScan) escaped(from int) (s []byte, err error) {
	s = append(make([]byte, 0, j.pos-from+32), j.text[from:j.pos]...)
	for j.pos < len(j.text) {
		c := j.text[j.pos]
		j.pos++
		switch {
		case c == '"':
			return s, nil
		case c < 0x20:
			j.pos--
			return nil, j.syntax("control character 0x%02x in a string", c)
		case c != '\\':
			s = append(s, c)
			continue
		}
		if j.pos >= len(j.text) {
			break
		}
		c = j.text[j.pos]
		j.pos++
		switch c {
		case '"', '\\', '/':
			s = append(s, c)
		case 'b':
			s = append(s, '\b')
		case 'f':
			s = append(s, '\f')
		case 'n':
			s = append(s, '\n')
		case 'r':
			s = append(s, '\r')
		case 't':
			s = append(s, '\t')
		case 'u':
			u, ok := j.hex4(j.pos)
			if !ok {
				return nil, j.syntax("\\u without four hexadecimal digits")
			}
			j.pos += 4
			if u < 0xd800 || u > 0xdfff {
				s = utf8.AppendRune(s, rune(u))
				continue
			}
			if u < 0xdc00 && bytes.HasPrefix(j.text[j.pos:], []byte(`\u`)) {
				if low, ok := j.hex4(j.pos + 2); ok && low >= 0xdc00 && low <= 0xdfff {
					j.pos += 6
					s = utf8.AppendRune(s, 0x10000+rune(u-0xd800)<<10+rune(low-0xdc00))
					continue
				}
			}
			s = append(s, 0xe0|byte(u>>12), 0x80|byte(u>>6)&0x3f, 0x80|byte(u)&0x3f)
		default:
			j.pos--
			return nil, j.syntax("unknown escape in a string")
		}
	}
	return nil, j.unexpected("the end of a string")
}

func (j *jsonScan) hex4(at int) (u uint32, ok bool) {
	if len(j.text)-at < 4 {
		return 0, false
	}
	for _, c := range j.text[at : at+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = (c | 0x20) - 'a' + 10
		default:
			return 0, false
		}
		u = u<<4 | uint32(c)
	}
	return u, true
}
