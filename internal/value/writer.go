package value

import (
	"math"
	"math/big"

	"github.com/limpet-dev/limpet"
)

// A Writer encodes one value token by token, for a caller that walks values
// which are not Go's (a JavaScript engine's, JSON). Containers are announced
// with the number of their items and end by themselves. The first error stays
// and comes back from Finish; a call that breaks the grammar is one too
// (ErrSyntax), so that the bytes are always well-formed. Not for concurrent use.
type Writer struct {
	nest
	b    []byte
	base int
	size int
	refs []ref
	err  error
}

// NewWriter returns a Writer with the default limits; see [Options.NewWriter].
func NewWriter(dst []byte) *Writer { return Options{}.NewWriter(dst) }

// NewWriter returns a Writer that appends to dst, which may be nil.
func (o Options) NewWriter(dst []byte) *Writer {
	w := new(Writer)
	w.init(dst, o)
	return w
}

func (w *Writer) init(dst []byte, o Options) {
	w.reset(o.maxDepth())
	w.base, w.size, w.refs, w.err = len(dst), o.maxSize(), w.refs[:0], nil
	w.b = append(dst, version)
}

// Finish returns dst with the value's bytes behind it. Errors: the first one of
// a call before; ErrSyntax if the value is not complete; ErrTooLarge.
func (w *Writer) Finish() ([]byte, error) {
	if w.err == nil && !w.done() {
		w.err = fail(ErrSyntax, "value is not complete")
	}
	if w.err != nil {
		return w.b[:w.base], w.err
	}
	w.b = number(w.b, w.refs)
	if n := len(w.b) - w.base; n > w.size {
		return w.b[:w.base], tooLarge(n, w.size)
	}
	return w.b, nil
}

// Err is the first error, nil if there is none yet.
func (w *Writer) Err() error { return w.err }

// Pos is where the next value will begin: what Ref takes.
func (w *Writer) Pos() int { return len(w.b) }

// ok admits a token.
func (w *Writer) ok(k Kind, n int) bool {
	switch {
	case w.err != nil:
	case n < 0:
		w.err = fail(ErrSyntax, "%s of %d items", k, n)
	case len(w.b)-w.base > w.size+hardSlack:
		// Finish would refuse it; don't eat memory until then.
		w.err = tooLarge(len(w.b)-w.base, w.size)
	default:
		w.err = w.take(k, n)
	}
	return w.err == nil
}

// hardSlack is how far a value may pass its size limit before encoding stops:
// far enough that the error can nearly always tell its whole size (SPEC B30).
const hardSlack = 64 << 20

func (w *Writer) one(k Kind, c byte) {
	if w.ok(k, 0) {
		w.b = append(w.b, c)
	}
}

// Null writes null.
func (w *Writer) Null() { w.one(KindNull, byteNull) }

// Undefined writes undefined.
func (w *Writer) Undefined() { w.one(KindUndefined, byteUndefined) }

// Hole writes an array element that does not exist; as an error's last two
// tokens it says that there is no cause or that there are no errors.
func (w *Writer) Hole() { w.one(KindHole, byteHole) }

// Bool writes a boolean.
func (w *Writer) Bool(v bool) {
	c := byte(byteFalse)
	if v {
		c = byteTrue
	}
	w.one(KindBool, c)
}

// Int writes an integer: a big integer beyond ±2^53.
func (w *Writer) Int(i int64) {
	k := KindInt
	if i > maxSafe || i < -maxSafe {
		k = KindBigInt
	}
	if w.ok(k, 0) {
		w.b = appendInt(w.b, i)
	}
}

// Float writes a number as a float, also when it is whole.
func (w *Writer) Float(f float64) {
	if w.ok(KindFloat, 0) {
		w.b = appendFloat(w.b, f)
	}
}

// Number writes a JavaScript number: as an integer if it is one up to ±2^53 (and
// not -0), else as a float.
func (w *Writer) Number(f float64) {
	if i := int64(f); float64(i) == f && i >= -maxSafe && i <= maxSafe && (i != 0 || !math.Signbit(f)) {
		w.Int(i)
		return
	}
	w.Float(f)
}

// BigInt writes a big integer, ErrTooLarge beyond MaxBigIntBits.
func (w *Writer) BigInt(i *big.Int) {
	if w.ok(KindBigInt, 0) {
		w.b, w.err = appendBigInt(w.b, i)
	}
}

// String writes text: UTF-8, or WTF-8 with lone surrogates. ErrType on other bytes, naming the place.
func (w *Writer) String(s string) {
	if w.ok(KindString, 0) {
		w.b, w.err = appendString(w.b, s)
	}
}

// Bytes writes a Uint8Array.
func (w *Writer) Bytes(p []byte) {
	if w.ok(KindBytes, 0) {
		w.b = appendBytes(w.b, p)
	}
}

// TypedArray writes other binary data; p holds little endian elements. ErrType
// on a kind that is none or bytes that are no whole elements.
func (w *Writer) TypedArray(kind limpet.TypedArrayKind, p []byte) {
	if w.ok(KindTyped, 0) {
		w.b, w.err = appendTyped(w.b, kind, p)
	}
}

func appendTyped(b []byte, kind limpet.TypedArrayKind, p []byte) ([]byte, error) {
	size := kind.ElementSize()
	if size == 0 {
		return b, fail(ErrType, "%s is no kind of typed array", kind)
	}
	if len(p)%size != 0 {
		return b, fail(ErrType, "%s of %d bytes: no whole elements of %d bytes", kind, len(p), size)
	}
	return appendBytes(appendTag(b, uint64(typedTags[kind])), p), nil
}

// Date writes a date of ms milliseconds since 1970, cut to whole ones as
// JavaScript's own TimeClip does; what is NaN or beyond ±8.64e15 is an invalid date.
func (w *Writer) Date(ms float64) {
	if w.ok(KindDate, 0) {
		w.b = appendDate(w.b, ms)
	}
}

func appendDate(b []byte, ms float64) []byte {
	b = appendTag(b, tagDate)
	if !(math.Abs(ms) <= maxDate) {
		return appendFloat(b, math.NaN())
	}
	return appendInt(b, int64(ms))
}

// RegExp writes a regular expression.
func (w *Writer) RegExp(source, flags string) {
	if w.ok(KindRegExp, 0) {
		w.b, w.err = appendRegExp(w.b, source, flags)
	}
}

func appendRegExp(b []byte, source, flags string) ([]byte, error) {
	b, err := appendString(append(appendTag(b, tagRegExp), majorArray|2), source)
	if err != nil {
		return b, err
	}
	return appendString(b, flags)
}

// Capability writes the capability that stands at index in the list beside the
// bytes. ErrSyntax on a kind that is none, or an index beyond limpet.MaxCapabilities.
func (w *Writer) Capability(kind limpet.CapabilityKind, index int) {
	if w.ok(KindCapability, 0) {
		w.b, w.err = appendCapability(w.b, kind, index)
	}
}

func appendCapability(b []byte, kind limpet.CapabilityKind, index int) ([]byte, error) {
	if kind > limpet.CapabilityStream || index < 0 || index >= limpet.MaxCapabilities {
		return b, fail(ErrSyntax, "capability of kind %d with index %d", kind, index)
	}
	b = append(appendTag(b, tagCapability), majorArray|2)
	return appendHead(appendHead(b, majorUint, uint64(kind)), majorUint, uint64(index)), nil
}

// Boxed begins a boxed primitive: one boolean, number, big integer or string follows.
func (w *Writer) Boxed() {
	if w.ok(KindBoxed, 0) {
		w.b = appendTag(w.b, tagBoxed)
	}
}

// Array begins an array of n elements, each a value or a Hole.
func (w *Writer) Array(n int) {
	if w.ok(KindArray, n) {
		w.b = appendHead(w.b, majorArray, uint64(n))
	}
}

// Object begins a plain object of n members, each a Key and a value. Names must
// differ; the Writer does not check it, and a reader keeps the last.
func (w *Writer) Object(n int) {
	if w.ok(KindObject, n) {
		w.b = appendHead(w.b, majorMap, uint64(n))
	}
}

// Key writes a member's name; strings are as in String.
func (w *Writer) Key(s string) {
	if w.ok(KindKey, 0) {
		w.b, w.err = appendString(w.b, s)
	}
}

// Map begins a Map of n entries, each two values.
func (w *Writer) Map(n int) {
	if w.ok(KindMap, n) {
		w.b = appendHead(appendTag(w.b, tagMap), majorMap, uint64(n))
	}
}

// Set begins a Set of n values.
func (w *Writer) Set(n int) {
	if w.ok(KindSet, n) {
		w.b = appendHead(appendTag(w.b, tagSet), majorArray, uint64(n))
	}
}

// Error begins an error with n own fields: n times Key and value follow, then
// the cause or a Hole, then an Array of errors or a Hole.
func (w *Writer) Error(h ErrorHead, n int) {
	if w.ok(KindError, n) {
		w.b, w.err = appendErrorHead(w.b, h, n)
	}
}

func appendErrorHead(b []byte, h ErrorHead, n int) ([]byte, error) {
	b = append(appendTag(b, tagError), majorArray|errorItems)
	var err error
	for _, s := range [...]string{h.Class, h.Name, h.Message, h.Stack} {
		if b, err = appendString(b, s); err != nil {
			return b, err
		}
	}
	return appendHead(b, majorMap, uint64(n)), nil
}

// Ref writes the value that began at pos (see Pos) once more, as the same
// object. It may be one that is still open: a cycle. The one that begins right
// here can't be meant (ErrSyntax).
func (w *Writer) Ref(pos int) {
	if pos <= w.base || pos >= len(w.b) {
		if w.err == nil {
			w.err = fail(ErrSyntax, "reference to byte %d, where no value began", pos)
		}
		return
	}
	if w.ok(KindRef, 0) {
		w.refs = append(w.refs, ref{at: len(w.b), to: resolve(w.refs, pos)})
		w.b = append(w.b, bytePending)
	}
}
