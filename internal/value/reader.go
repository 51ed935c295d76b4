package value

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"github.com/limpet-dev/limpet"
)

// A Reader gives the tokens of one encoded value. It keeps to the grammar: what
// it gives is always a well-formed value, and containers never promise more
// than the bytes can hold. It allocates only for errors' heads. Not for
// concurrent use.
type Reader struct {
	nest
	b     []byte
	pos   int
	need  int   // items promised by open containers and still to come
	defs  []int // where the content of each shared value begins
	nDefs int   // shared values begun so far; less than len(defs) while reading one again
	again int   // bytes that may yet be read again through references
	// rereads is how many shared values are being read again, one in another.
	rereads int
	err     error
}

// NewReader returns a Reader of b with the default limits; see [Options.NewReader].
func NewReader(b []byte) (*Reader, error) { return Options{}.NewReader(b) }

// NewReader returns a Reader of the value in b. It answers ErrTooLarge if b is
// over the limit, ErrVersion if b is of another version and ErrSyntax if it is
// empty. The Reader keeps b.
func (o Options) NewReader(b []byte) (*Reader, error) {
	r := new(Reader)
	if err := r.init(b, o); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Reader) init(b []byte, o Options) error {
	if len(b) > o.maxSize() {
		return tooLarge(len(b), o.maxSize())
	}
	if len(b) == 0 {
		return fail(ErrSyntax, "no bytes; a value begins with its version")
	}
	if b[0] != version {
		return fail(ErrVersion, "value of format version %d; this build reads version %d", b[0], version)
	}
	r.reset(o.maxDepth())
	r.b, r.pos, r.need, r.defs, r.nDefs, r.err = b, 1, 1, r.defs[:0], 0, nil
	r.rereads = 0
	// Reading a shared value again, because a Go program wants it by value or
	// JSON can't refer, must not make a small input large without end.
	r.again = min(o.maxSize(), 1<<20+16*len(b))
	return nil
}

// Done says that the value is complete; there are no more tokens.
func (r *Reader) Done() bool { return r.done() }

// End answers ErrSyntax unless the value is complete and nothing follows it.
func (r *Reader) End() error {
	switch {
	case r.err != nil:
		return r.err
	case !r.done():
		return fail(ErrSyntax, "value is not read to its end (byte %d)", r.pos)
	case r.pos != len(r.b):
		return fail(ErrSyntax, "%d bytes after the end of the value", len(r.b)-r.pos)
	}
	return nil
}

func (r *Reader) syntax(format string, args ...any) error {
	err := fail(ErrSyntax, format+" (byte %d)", append(args, r.pos)...)
	if r.err == nil {
		r.err = err
	}
	return err
}

// Next reads the next token into t. It must not be called when Done. Errors are
// ErrSyntax, ErrTooDeep and ErrTooLarge (a big integer); they stay.
func (r *Reader) Next(t *Token) error {
	if r.err != nil {
		return r.err
	}
	if r.done() {
		return r.syntax("read past the end of the value")
	}
	from := r.pos
	t.Share, t.N = -1, 0
	if err := r.token(t); err != nil {
		r.err = err
		return err
	}
	if err := r.take(t.Kind, t.N); err != nil {
		r.err = err
		return err
	}
	r.need += t.items() - 1
	if r.need > len(r.b)-r.pos {
		return r.syntax("%s: more items are promised than bytes are left", t.Kind)
	}
	if r.rereads > 0 {
		if r.again -= r.pos - from; r.again < 0 {
			r.err = fail(ErrTooLarge, "shared values repeat too often to be copied out of %d bytes", len(r.b))
			return r.err
		}
	}
	return nil
}

// Skip passes over what stands in t, which must be the token read last.
func (r *Reader) Skip(t *Token) error {
	var inner Token
	for left := t.items(); left > 0; left-- {
		if err := r.Next(&inner); err != nil {
			return err
		}
		left += inner.items()
	}
	return nil
}

// A place is where a reader goes back to after reading a shared value again.
type place struct{ pos, need, nDefs int }

// reread moves the reader to the shared value number n, to read it once more.
// The caller reads exactly one value and then calls back.
func (r *Reader) reread(n int) (place, error) {
	p := place{pos: r.pos, need: r.need, nDefs: r.nDefs}
	if r.rereads >= r.limit || r.open >= r.limit {
		r.err = tooDeep(r.limit)
		return p, r.err
	}
	// What holds the reference may have ended with it, so that nothing is open
	// on its behalf although its reader still waits: hence rereads has a limit of
	// its own. The frame leaves with its one value.
	r.stack = append(r.stack, frame{kind: inAgain, free: true, left: 1})
	r.pos, r.need, r.nDefs = r.defs[n], 1, n+1
	r.rereads++
	return p, nil
}

// back undoes reread.
func (r *Reader) back(p place) {
	r.pos, r.need, r.nDefs = p.pos, p.need, p.nDefs
	r.rereads--
}

// token parses one token and its tags.
func (r *Reader) token(t *Token) error {
	if r.pos >= len(r.b) {
		return r.syntax("value ends in the middle")
	}
	c := r.b[r.pos]
	// Keys and short text are most of what there is.
	if c >= majorText && c < majorText+24 {
		n := int(c - majorText)
		if n > len(r.b)-r.pos-1 {
			return r.syntax("string of %d bytes goes past the end", n)
		}
		t.Str = r.b[r.pos+1 : r.pos+1+n]
		if !ascii(t.Str) && !utf8.Valid(t.Str) {
			return r.syntax("text is no UTF-8")
		}
		r.pos += 1 + n
		t.Kind = r.stringKind()
		return nil
	}
	major, n, err := r.head()
	if err != nil {
		return err
	}
	if major == majorTag && n == tagShared {
		if r.expectKey() {
			return r.syntax("a key can't be shared")
		}
		if r.nDefs == len(r.defs) {
			r.defs = append(r.defs, r.pos)
		}
		t.Share = r.nDefs
		r.nDefs++
		if major, n, err = r.head(); err != nil {
			return err
		}
		if major == majorTag && (n == tagShared || n == tagRef) || major == majorSimple && n == byteHole {
			return r.syntax("nothing to share after tag 28")
		}
	}
	return r.body(t, major, n)
}

// body reads what stands after a head.
func (r *Reader) body(t *Token, major byte, n uint64) error {
	switch major {
	case majorUint, majorNeg:
		if n > maxSafe || major == majorNeg && n == maxSafe {
			return r.syntax("integer beyond 2^53 is no big integer")
		}
		t.Kind, t.Int = KindInt, int64(n)
		if major == majorNeg {
			t.Int = ^t.Int
		}
	case majorBytes:
		t.Kind = KindBytes
		return r.bytes(t, n)
	case majorText:
		t.Kind = r.stringKind()
		if err := r.bytes(t, n); err != nil {
			return err
		}
		if !utf8.Valid(t.Str) {
			return r.syntax("text is no UTF-8")
		}
	case majorArray:
		t.Kind = KindArray
		return r.count(t, n)
	case majorMap:
		t.Kind = KindObject
		return r.count(t, n)
	case majorTag:
		return r.tagged(t, n)
	case majorSimple:
		return r.simple(t, n)
	}
	return nil
}

// head reads a CBOR head. For simple values and floats n is the byte itself;
// what stands after it is left alone. Heads that are not the shortest, and
// indefinite lengths, are refused: there is one way to write a length.
func (r *Reader) head() (major byte, n uint64, err error) {
	if r.pos >= len(r.b) {
		return 0, 0, r.syntax("value ends in the middle")
	}
	c := r.b[r.pos]
	r.pos++
	major = c & 0xe0
	if major == majorSimple {
		return major, uint64(c), nil
	}
	low := c & 0x1f
	if low < 24 {
		return major, uint64(low), nil
	}
	rest := r.b[r.pos:]
	var least uint64
	switch {
	case low == 24 && len(rest) >= 1:
		n, least = uint64(rest[0]), 24
		r.pos++
	case low == 25 && len(rest) >= 2:
		n, least = uint64(binary.BigEndian.Uint16(rest)), 1<<8
		r.pos += 2
	case low == 26 && len(rest) >= 4:
		n, least = uint64(binary.BigEndian.Uint32(rest)), 1<<16
		r.pos += 4
	case low == 27 && len(rest) >= 8:
		n, least = binary.BigEndian.Uint64(rest), 1<<32
		r.pos += 8
	case low == 31:
		return 0, 0, r.syntax("indefinite length or a break")
	case low > 27:
		return 0, 0, r.syntax("reserved head 0x%02x", c)
	default:
		return 0, 0, r.syntax("value ends in the middle")
	}
	if n < least {
		return 0, 0, r.syntax("head is not in its shortest form")
	}
	return major, n, nil
}

func (r *Reader) bytes(t *Token, n uint64) error {
	if n > uint64(len(r.b)-r.pos) {
		return r.syntax("%s of %d bytes goes past the end", t.Kind, n)
	}
	t.Str = r.b[r.pos : r.pos+int(n) : r.pos+int(n)]
	r.pos += int(n)
	return nil
}

// count admits n items; Next checks that the bytes can hold them.
func (r *Reader) count(t *Token, n uint64) error {
	if n > uint64(len(r.b)-r.pos) {
		return r.syntax("%s of %d items goes past the end", t.Kind, n)
	}
	t.N = int(n)
	return nil
}

func (r *Reader) simple(t *Token, c uint64) error {
	rest := r.b[r.pos:]
	switch {
	case c == byteNull:
		t.Kind = KindNull
	case c == byteUndefined:
		t.Kind = KindUndefined
	case c == byteFalse || c == byteTrue:
		t.Kind, t.Int = KindBool, int64(c-byteFalse)
	case c == byteHole:
		t.Kind = KindHole
	case c == byteFloat16 && len(rest) >= 2:
		t.Kind, t.Float = KindFloat, halfFloat(binary.BigEndian.Uint16(rest))
		r.pos += 2
	case c == byteFloat32 && len(rest) >= 4:
		t.Kind, t.Float = KindFloat, float64(math.Float32frombits(binary.BigEndian.Uint32(rest)))
		r.pos += 4
	case c == byteFloat64 && len(rest) >= 8:
		t.Kind, t.Float = KindFloat, math.Float64frombits(binary.BigEndian.Uint64(rest))
		r.pos += 8
	case c >= byteFloat16 && c <= byteFloat64:
		return r.syntax("value ends in the middle")
	default:
		return r.syntax("byte 0x%02x begins nothing", c)
	}
	return nil
}

// raw reads a head of the given major type and its bytes, inside of a tag.
func (r *Reader) raw(t *Token, major byte) error {
	m, n, err := r.head()
	if err != nil {
		return err
	}
	if m != major {
		return r.syntax("tag of %s has wrong content", t.Kind)
	}
	return r.bytes(t, n)
}

func (r *Reader) tagged(t *Token, tag uint64) error {
	switch tag {
	case tagBigPos, tagBigNeg:
		t.Kind, t.neg = KindBigInt, tag == tagBigNeg
		if err := r.raw(t, majorBytes); err != nil {
			return err
		}
		if len(t.Str) > 0 && t.Str[0] == 0 {
			return r.syntax("big integer begins with a zero byte")
		}
		if len(t.Str) > MaxBigIntBits/8 {
			return fail(ErrTooLarge, "big integer of %d bytes; the limit is %d", len(t.Str), MaxBigIntBits/8)
		}
	case tagWTF8:
		t.Kind = r.stringKind()
		if err := r.raw(t, majorBytes); err != nil {
			return err
		}
		if lone, bad := scanString(string(t.Str)); bad >= 0 || !lone {
			return r.syntax("tag 273 on what is no WTF-8 with a lone surrogate")
		}
	case tagRef:
		m, n, err := r.head()
		if err != nil {
			return err
		}
		if m != majorUint || n >= uint64(r.nDefs) {
			return r.syntax("reference to a shared value that is not there")
		}
		t.Kind, t.N = KindRef, int(n)
	case tagMap:
		t.Kind = KindMap
		return r.counted(t, majorMap)
	case tagSet:
		t.Kind = KindSet
		return r.counted(t, majorArray)
	case tagDate:
		return r.date(t)
	case tagRegExp:
		t.Kind = KindRegExp
		if m, n, err := r.head(); err != nil {
			return err
		} else if m != majorArray || n != 2 {
			return r.syntax("RegExp is no pair")
		}
		source, err := r.text()
		if err != nil {
			return err
		}
		t.Flags, err = r.text()
		t.Str = source
		return err
	case tagBoxed:
		t.Kind = KindBoxed
	case tagCapability:
		return r.capability(t)
	case tagError:
		return r.errorHead(t)
	default:
		t.Elem = typedKind(tag)
		if t.Elem == 0 {
			return r.syntax("tag %d means nothing in format version %d", tag, version)
		}
		t.Kind = KindTyped
		if err := r.raw(t, majorBytes); err != nil {
			return err
		}
		if len(t.Str)%t.Elem.ElementSize() != 0 {
			return r.syntax("%d bytes are no whole %s", len(t.Str), t.Elem)
		}
	}
	return nil
}

func (r *Reader) counted(t *Token, major byte) error {
	m, n, err := r.head()
	if err != nil {
		return err
	}
	if m != major {
		return r.syntax("tag of %s has wrong content", t.Kind)
	}
	return r.count(t, n)
}

// date reads the milliseconds: an integer, or the NaN of an invalid date.
func (r *Reader) date(t *Token) error {
	m, n, err := r.head()
	if err != nil {
		return err
	}
	switch {
	case m == majorUint && n <= maxDate:
		t.Float = float64(n)
	case m == majorNeg && n < maxDate:
		t.Float = float64(^int64(n))
	case m == majorSimple && n == byteFloat16 && len(r.b)-r.pos >= 2 && r.b[r.pos] == 0x7e && r.b[r.pos+1] == 0:
		t.Float = math.NaN()
		r.pos += 2
	default:
		return r.syntax("Date is no whole number of milliseconds within 8.64e15 of 1970")
	}
	t.Kind = KindDate
	return nil
}

// capability reads kind and index.
func (r *Reader) capability(t *Token) error {
	var part [3]uint64
	for i, want := range [...]byte{majorArray, majorUint, majorUint} {
		m, n, err := r.head()
		if err != nil {
			return err
		}
		if m != want {
			return r.syntax("capability is no pair of numbers")
		}
		part[i] = n
	}
	if part[0] != 2 || part[1] > uint64(limpet.CapabilityStream) || part[2] >= limpet.MaxCapabilities {
		return r.syntax("capability of kind %d with index %d", part[1], part[2])
	}
	t.Kind, t.Int, t.N = KindCapability, int64(part[1]), int(part[2])
	return nil
}

// text reads a string inside of a tag: text, or tagged WTF-8.
func (r *Reader) text() ([]byte, error) {
	var t Token
	m, n, err := r.head()
	if err != nil {
		return nil, err
	}
	if m == majorText || m == majorTag && n == tagWTF8 {
		if err := r.body(&t, m, n); err != nil {
			return nil, err
		}
		return t.Str, nil
	}
	return nil, r.syntax("no string where one must stand")
}

// errorHead reads the array's head, class, name, message, stack, and the head
// of the fields.
func (r *Reader) errorHead(t *Token) error {
	t.Kind = KindError
	if m, n, err := r.head(); err != nil {
		return err
	} else if m != majorArray || n != errorItems {
		return r.syntax("error is no array of %d", errorItems)
	}
	var part [4][]byte
	for i := range part {
		var err error
		if part[i], err = r.text(); err != nil {
			return err
		}
	}
	t.Err = &ErrorHead{string(part[0]), string(part[1]), string(part[2]), string(part[3])}
	return r.counted(t, majorMap)
}

// stringKind is what a string here is.
func (r *Reader) stringKind() Kind {
	if r.expectKey() {
		return KindKey
	}
	return KindString
}

func (r *Reader) expectKey() bool {
	if len(r.stack) == 0 {
		return false
	}
	f := &r.stack[len(r.stack)-1]
	return f.kind == inObject && f.key
}

func ascii(b []byte) bool {
	var or byte
	for _, c := range b {
		or |= c
	}
	return or < 0x80
}
