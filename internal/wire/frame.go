package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/limpet-dev/limpet"
)

// This file is every frame and its bytes. Numbers are big-endian; "varint" is
// the unsigned one of encoding/binary; "text" is a varint length and that many
// bytes.
//
//	byte 0      1       2         4                          12
//	     ├──────┼───────┼─────────┼──────────────────────────┼────────────┤
//	     │ type │ flags │ length  │ call                     │ payload    │
//	     └──────┴───────┴─────────┴──────────────────────────┴────────────┘
//
// length is the payload's, so that a frame has at most 64 KiB. call is 0 for
// frames about the connection.
const (
	headerBytes = 12
	// MaxFrame is the most bytes of one frame.
	MaxFrame   = 64 << 10
	maxPayload = MaxFrame - headerBytes
	// maxBlock bounds what a block adds up to over its frames.
	maxBlock = 1 << 20
)

// Flags of a frame.
const (
	// flagMore: the payload is a block that goes on in the very next frame, which
	// is a frameMore of the same call.
	flagMore = 1 << iota
	// flagEnd: the sender's body of this call ends with this frame. On a block it
	// stands on the first frame.
	flagEnd
)

type frameType uint8

// The types of frames. [B] marks payloads that are blocks.
const (
	// frameHello is the first frame of both sides, the dialer's first: "limpet"
	// and a CBOR map (Hello).
	frameHello frameType = iota + 1
	// frameCall [B] begins a call: appendCall. Numbers of calls rise; the dialer's
	// are odd, the acceptor's even.
	frameCall
	// frameResult [B] is the outcome of a method: appendResult. Its value follows
	// as the body.
	frameResult
	// frameResponse [B] is the outcome of a fetch: appendResponse.
	frameResponse
	// frameFailure [B] is the outcome of a call that failed, and ends it: a CBOR
	// map (failure.go).
	frameFailure
	// frameData is a piece of a body, within its window.
	frameData
	// frameTrailer [B] ends a body with HTTP trailers: appendHeader.
	frameTrailer
	// frameAbort [B] ends a body with a failure instead of its end: a CBOR map.
	frameAbort
	// frameWindow lets the peer send 4-byte number more bytes of the call's body.
	frameWindow
	// frameCancel says that nobody waits for the call any more; one byte is the
	// cancelReason. The sender has forgotten the call.
	frameCancel
	// framePing asks for a framePong with the same 8 bytes.
	framePing
	framePong
	// frameGoAway refuses new calls of objects: 8 bytes are the number of the last
	// one that was or will be answered; those above it never reached anybody. Then
	// text that says why. Calls of capabilities go on while the connection lasts.
	frameGoAway
	// frameAck gives claims back whose only attempt was answered: entries of 32
	// bytes of object, 16 of nonce and 8 of creation time.
	frameAck
	// frameMore is the next part of a block.
	frameMore
	// frameRelease gives capabilities back that the peer exported: readReleases.
	frameRelease
	// frameForget says that no more calls come on the promised result of a call
	// that the sender made as pipelinable. It has no payload.
	frameForget

	lastFrame = frameForget
)

var frameNames = [...]string{"", "HELLO", "CALL", "RESULT", "RESPONSE", "FAILURE", "DATA", "TRAILER", "ABORT",
	"WINDOW", "CANCEL", "PING", "PONG", "GOAWAY", "ACK", "MORE", "RELEASE", "FORGET"}

func (t frameType) String() string {
	if 0 < t && t <= lastFrame {
		return frameNames[t]
	}
	return fmt.Sprintf("frame type %d", uint8(t))
}

// isBlock reports whether the payload may go on in frameMore frames.
func (t frameType) isBlock() bool {
	switch t {
	case frameCall, frameResult, frameResponse, frameFailure, frameTrailer, frameAbort, frameMore:
		return true
	}
	return false
}

type cancelReason uint8

const (
	cancelAborted  cancelReason = iota // the caller's context ended
	cancelDeadline                     // the caller's deadline passed
	cancelClosed                       // the response's body was closed
	cancelLost                         // the caller waits no longer, by no wish of its own: a run whose outcome is kept goes on
	lastReason     = cancelLost
)

// errProtocol is what every violation of the protocol by the peer wraps.
var errProtocol = errors.New("protocol error")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errProtocol}, args...)...)
}

// frame is one frame, or one whole block, as it was read.
type frame struct {
	typ     frameType
	flags   uint8
	call    uint64
	payload []byte // valid until the next read
}

func (f frame) ends() bool { return f.flags&flagEnd != 0 }

func appendHead(b []byte, t frameType, flags uint8, call uint64, length int) []byte {
	b = append(b, byte(t), flags)
	b = binary.BigEndian.AppendUint16(b, uint16(length)) //nolint:gosec // at most maxPayload
	return binary.BigEndian.AppendUint64(b, call)
}

// appendFrame writes one frame; the payload has at most maxPayload bytes.
func appendFrame(b []byte, t frameType, flags uint8, call uint64, payload []byte) []byte {
	return append(appendHead(b, t, flags, call, len(payload)), payload...)
}

// appendBlock writes a block as one frame or several.
func appendBlock(b []byte, t frameType, flags uint8, call uint64, block []byte) []byte {
	for len(block) > maxPayload {
		b = appendFrame(b, t, flags|flagMore, call, block[:maxPayload])
		block = block[maxPayload:]
		t, flags = frameMore, 0
	}
	return appendFrame(b, t, flags, call, block)
}

// frameReader reads frames and puts blocks together. It holds at most one frame
// and one block, whatever the peer sends.
type frameReader struct {
	r     *bufio.Reader
	took  int    // bytes of r's buffer that the last frame's payload is
	buf   []byte // for payloads that are longer than that buffer; nil until there is one
	block []byte
}

// readBuffer is what a connection keeps to read into.
const readBuffer = 16 << 10

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, readBuffer)}
}

// next reads a frame or block. The error is io.EOF only between frames.
func (fr *frameReader) next() (frame, error) {
	f, err := fr.one()
	if err != nil {
		return frame{}, err
	}
	if f.typ == frameMore {
		return frame{}, violation("%v of call %d without a block before it", f.typ, f.call)
	}
	if f.flags&flagMore == 0 {
		return f, nil
	}
	whole := frame{typ: f.typ, flags: f.flags &^ flagMore, call: f.call}
	fr.block = append(fr.block[:0], f.payload...)
	for f.flags&flagMore != 0 {
		if f, err = fr.one(); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return frame{}, err
		}
		if f.typ != frameMore || f.call != whole.call {
			return frame{}, violation("%v of call %d inside a block of call %d", f.typ, f.call, whole.call)
		}
		if len(fr.block)+len(f.payload) > maxBlock {
			return frame{}, violation("a block of %v is over the limit of %d bytes", whole.typ, maxBlock)
		}
		if len(f.payload) == 0 {
			return frame{}, violation("an empty part of a block of %v", whole.typ)
		}
		fr.block = append(fr.block, f.payload...)
	}
	whole.payload = fr.block
	if cap(fr.block) > 2*MaxFrame { // blocks are rarely long: don't keep the room of one
		fr.block = nil
	}
	return whole, nil
}

func (fr *frameReader) one() (frame, error) {
	_, _ = fr.r.Discard(fr.took) // it was peeked
	fr.took = 0
	head, err := fr.r.Peek(headerBytes)
	if err != nil {
		if len(head) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	f, n, err := parseHead(head)
	if err != nil {
		return frame{}, err
	}
	_, _ = fr.r.Discard(headerBytes) // it was peeked
	if n <= readBuffer {
		fr.buf = nil
		f.payload, err = fr.r.Peek(n)
		fr.took = len(f.payload)
	} else {
		if fr.buf == nil {
			fr.buf = make([]byte, maxPayload)
		}
		f.payload = fr.buf[:n]
		_, err = io.ReadFull(fr.r, f.payload)
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	return f, nil
}

// parseHead reads and checks the 12 bytes before a payload of n bytes.
func parseHead(b []byte) (f frame, n int, err error) {
	f = frame{typ: frameType(b[0]), flags: b[1], call: binary.BigEndian.Uint64(b[4:])}
	n = int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case f.typ == 0 || f.typ > lastFrame:
		return f, n, violation("%v is unknown", f.typ)
	case f.flags&^(flagMore|flagEnd) != 0:
		return f, n, violation("%v has unknown flags %#x", f.typ, f.flags)
	case f.flags&flagMore != 0 && !f.typ.isBlock():
		return f, n, violation("%v can't go on in another frame", f.typ)
	case n > maxPayload:
		return f, n, violation("%v of %d bytes; the limit is %d", f.typ, n, maxPayload)
	}
	switch f.typ {
	case frameHello, framePing, framePong, frameGoAway, frameAck, frameRelease:
		if f.call != 0 {
			return f, n, violation("%v names call %d", f.typ, f.call)
		}
	default:
		if f.call == 0 {
			return f, n, violation("%v names no call", f.typ)
		}
	}
	return f, n, nil
}

// cursor reads fields; after the first that is not there, bad stays set and all
// others are zero.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || n < 0 || n > len(c.b) {
		c.bad = true
		return nil
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *cursor) u8() uint8 {
	if p := c.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if p := c.take(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if p := c.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

// varint reads a number of at most max.
func (c *cursor) varint(most uint64) uint64 {
	if c.bad {
		return 0
	}
	v, n := binary.Uvarint(c.b)
	if n <= 0 || v > most {
		c.bad = true
		return 0
	}
	c.b = c.b[n:]
	return v
}

// text reads a text of at most max bytes.
func (c *cursor) text(most int) string {
	return string(c.take(int(c.varint(uint64(most))))) //nolint:gosec // most is small
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Bounds of the fields of a call.
const (
	maxBinding   = 256
	maxMethod    = 4 << 10
	maxKey       = limpet.MaxIdempotencyKeyBytes + 16 // the keys of redirects are longer
	maxURL       = 64 << 10
	maxUncertain = 16      // SPEC D2 allows 11 attempts
	maxDeadline  = 1 << 40 // milliseconds
	maxLength    = 1 << 62
	maxFields    = 8 << 10 // of an HTTP header
)

// MaxTrace is the longest TraceParent or TraceState.
const MaxTrace = 1 << 10

// Flags of a call.
const (
	callExisting = 1 << iota
	callNamed
	callIdentity
	callRetry
	callWillRetry
	callDeadline
	callTrace
	callMore     // a second byte of flags follows
	lastCallFlag = callMore
)

// More flags of a call.
const (
	callReplay   = 1 << iota // Call.Replay
	callKey                  // Call.Key
	callExt                  // Call.Ext
	lastMoreFlag = callExt
)

// appendCall writes the payload of frameCall:
//
//	1 kind   0 method, 1 fetch, 2 describe a binding, 3 ask for an outcome; of a
//	         capability: 4 call, 5 fetch, 6 stream
//	1 flags  existing, named, identity, retry, will retry, deadline, trace, more
//	more: 1 flags  replay the outcome, key, ext
//	of an object:
//	  text binding
//	    a description of a binding ends here
//	  32 object; named: text name
//	  varint attempt
//	  identity: 16 nonce, 8 creation time in ms
//	  varint count, each 16 history and 16 boot: processes that may have received
//	    an earlier attempt
//	  key: text idempotency key
//	of a capability:
//	  varint id that the receiver exported, or 0
//	  varint number of the call on whose result it is made, or 0
//	deadline: varint ms left, rounded up
//	trace: text traceparent, text tracestate
//	ext: appendExt
//	  a stream ends here
//	varint length of the body + 1, 0 if it is not known
//	method: text name; outcome: text query, the body is 8 bytes of age in ms
//	fetch: text method, text URL, text host, header, trailer names as a header
//	  without values
func appendCall(b []byte, c *Call) []byte {
	flags := uint8(0)
	set := func(f uint8, on bool) {
		if on {
			flags |= f
		}
	}
	set(callExisting, c.Existing)
	set(callNamed, c.Named)
	set(callIdentity, !c.Identity.IsZero())
	set(callRetry, c.Retry)
	set(callWillRetry, c.WillRetry)
	set(callDeadline, c.HasTimeLeft)
	set(callTrace, c.TraceParent != "")
	more := uint8(0)
	if c.Replay {
		more |= callReplay
	}
	if c.Key != "" {
		more |= callKey
	}
	if c.Ext != nil && c.Ext.more() {
		more |= callExt
	}
	set(callMore, more != 0)
	b = append(b, byte(c.Kind), flags)
	if more != 0 {
		b = append(b, more)
	}
	if c.Kind.ofObject() {
		if b = appendText(b, c.Binding); c.Kind == KindDescribe {
			return b
		}
		b = appendObject(b, c)
	} else {
		b = binary.AppendUvarint(binary.AppendUvarint(b, c.Ext.capability), c.Ext.parent)
	}
	if c.HasTimeLeft {
		b = binary.AppendUvarint(b, uint64(max((c.TimeLeft+time.Millisecond-1).Milliseconds(), 0)))
	}
	if flags&callTrace != 0 {
		b = appendText(appendText(b, c.TraceParent), c.TraceState)
	}
	if more&callExt != 0 {
		b = appendExt(b, c.Ext)
	}
	if c.Kind == KindStream {
		return b
	}
	b = binary.AppendUvarint(b, uint64(c.Length+1)) //nolint:gosec // at least 0
	switch c.Kind {
	case KindMethod, KindOutcome:
		return appendText(b, c.Method)
	case KindTarget:
		return b
	}
	b = appendText(appendText(appendText(b, c.Method), c.URL), c.Host)
	return appendTrailerNames(appendHeader(b, c.Header), c.Trailer)
}

func appendObject(b []byte, c *Call) []byte {
	b = append(b, c.Object[:]...)
	if c.Named {
		b = appendText(b, c.Name)
	}
	b = binary.AppendUvarint(b, uint64(max(c.Attempt, 0)))
	if !c.Identity.IsZero() {
		b = append(b, c.Identity.Nonce[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(c.Identity.CreatedMS)) //nolint:gosec // the bits
	}
	b = binary.AppendUvarint(b, uint64(len(c.Uncertain)))
	for _, boot := range c.Uncertain {
		b = append(append(b, boot.History[:]...), boot.Boot[:]...)
	}
	if c.Key != "" {
		b = appendText(b, c.Key)
	}
	return b
}

func readCall(p []byte) (*Call, error) {
	cur := cursor{b: p}
	c := &Call{Kind: Kind(cur.u8())}
	flags, more := cur.u8(), uint8(0)
	if flags&callMore != 0 {
		more = cur.u8()
	}
	if c.Kind > lastKind || more >= lastMoreFlag<<1 || flags&callMore != 0 && more == 0 {
		return nil, violation("a call of kind %d with flags %#x, %#x", c.Kind, flags, more)
	}
	if c.Kind.ofObject() {
		c.Binding = cur.text(maxBinding)
	}
	if c.Kind != KindDescribe {
		cur.call(c, flags, more)
	}
	if cur.bad || len(cur.b) != 0 {
		return nil, violation("a call's head is malformed")
	}
	return c, nil
}

func (c *cursor) call(to *Call, flags, more uint8) {
	if to.Kind.ofObject() {
		c.object(to, flags, more)
	} else {
		to.Ext = &Ext{capability: c.varint(math.MaxUint64), parent: c.varint(math.MaxUint64)}
		// One or the other, and only calls are made on results.
		c.bad = c.bad || (to.Ext.capability == 0) == (to.Ext.parent == 0) || to.Ext.parent != 0 && to.Kind != KindTarget || more&^callExt != 0
	}
	if to.HasTimeLeft = flags&callDeadline != 0; to.HasTimeLeft {
		to.TimeLeft = milliseconds(c.varint(maxDeadline))
	}
	if flags&callTrace != 0 {
		to.TraceParent, to.TraceState = c.text(MaxTrace), c.text(MaxTrace)
	}
	if more&callExt != 0 {
		if to.Ext == nil {
			to.Ext = &Ext{}
		}
		c.ext(to.Ext)
		c.bad = c.bad || to.Kind != KindMethod && to.Kind != KindTarget || !to.Ext.more()
	}
	if to.Kind == KindStream {
		return
	}
	to.Length = int64(c.varint(maxLength)) - 1 //nolint:gosec // bounded
	switch to.Kind {
	case KindMethod, KindOutcome:
		to.Method = c.text(maxMethod)
		return
	case KindTarget:
		return
	}
	to.Method, to.URL, to.Host = c.text(maxMethod), c.text(maxURL), c.text(maxURL)
	to.Header, to.Trailer = c.header(), c.trailerNames()
}

func (c *cursor) object(to *Call, flags, more uint8) {
	copy(to.Object[:], c.take(len(to.Object)))
	to.Existing = flags&callExisting != 0
	if to.Named = flags&callNamed != 0; to.Named {
		to.Name = c.text(limpet.MaxNameBytes)
	}
	to.Attempt = int(c.varint(1 << 20)) //nolint:gosec // bounded
	if flags&callIdentity != 0 {
		copy(to.Identity.Nonce[:], c.take(len(to.Identity.Nonce)))
		to.Identity.CreatedMS = int64(c.u64()) //nolint:gosec // the bits
	}
	to.Retry, to.WillRetry = flags&callRetry != 0, flags&callWillRetry != 0
	if n := c.varint(maxUncertain); n > 0 && !c.bad {
		to.Uncertain = make([]Boot, n)
		for i := range to.Uncertain {
			copy(to.Uncertain[i].History[:], c.take(16))
			copy(to.Uncertain[i].Boot[:], c.take(16))
		}
	}
	to.Replay = more&callReplay != 0
	if more&callKey != 0 {
		if to.Key = c.text(maxKey); to.Key == "" || !utf8.ValidString(to.Key) {
			c.bad = true
		}
	}
}

// appendHeader writes HTTP fields: varint count, each text name and text value.
func appendHeader(b []byte, h http.Header) []byte {
	b = binary.AppendUvarint(b, uint64(fields(h)))
	for k, vs := range h {
		for _, v := range vs {
			b = appendText(appendText(b, k), v)
		}
	}
	return b
}

// fields is the number of fields that a header has.
func fields(h http.Header) (n int) {
	for _, vs := range h {
		n += len(vs)
	}
	return n
}

func (c *cursor) header() http.Header {
	n := c.varint(maxFields)
	h := http.Header{}
	for ; n > 0 && !c.bad; n-- {
		k := c.text(maxBlock)
		h[k] = append(h[k], c.text(maxBlock))
	}
	return h
}

func appendTrailerNames(b []byte, h http.Header) []byte {
	b = binary.AppendUvarint(b, uint64(len(h)))
	for k := range h {
		b = appendText(b, k)
	}
	return b
}

// trailerNames is nil if there are none.
func (c *cursor) trailerNames() http.Header {
	var h http.Header
	for n := c.varint(maxFields); n > 0 && !c.bad; n-- {
		if h == nil {
			h = http.Header{}
		}
		h[c.text(maxBlock)] = nil
	}
	return h
}

func readTrailer(p []byte) (http.Header, error) {
	cur := cursor{b: p}
	h := cur.header()
	if cur.bad || len(cur.b) != 0 {
		return nil, violation("trailers are malformed")
	}
	return h, nil
}

// resultHead is the head of the result of a call.
type resultHead struct {
	has    bool // a value follows
	length int
	caps   []descriptor
}

// appendResult writes the payload of frameResult: 1 byte of bits, 1 a value
// follows and 2 with capabilities; varint length of the value; capabilities.
func appendResult(b []byte, v limpet.Encoded, caps []descriptor) []byte {
	if v == nil {
		return append(b, 0, 0)
	}
	if len(caps) == 0 {
		return binary.AppendUvarint(append(b, 1), uint64(len(v)))
	}
	return appendDescriptors(binary.AppendUvarint(append(b, 3), uint64(len(v))), caps)
}

func readResult(p []byte) (h resultHead, err error) {
	cur := cursor{b: p}
	bits := cur.u8()
	h.has, h.length = bits&1 != 0, int(cur.varint(maxBody)) //nolint:gosec // bounded
	if bits&2 != 0 {
		h.caps = cur.descriptors()
		cur.bad = cur.bad || len(h.caps) == 0
	}
	if cur.bad || len(cur.b) != 0 || bits > 3 || bits == 2 || !h.has && h.length != 0 {
		return resultHead{}, violation("a result's head is malformed or over %d bytes", maxBody)
	}
	return h, nil
}

// minStatus and maxStatus bound the status of a response.
const minStatus, maxStatus = 200, 999

// responseHead is the head of a fetch's response.
type responseHead struct {
	status  int
	length  int64 // -1: not known
	header  http.Header
	trailer http.Header // names only
}

// appendResponse writes the payload of frameResponse: 2 status, varint length
// of the body + 1 or 0 if it is not known, header, names of trailers.
func appendResponse(b []byte, r *responseHead) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(r.status)) //nolint:gosec // below 1000
	b = binary.AppendUvarint(b, uint64(r.length+1))        //nolint:gosec // at least 0
	return appendTrailerNames(appendHeader(b, r.header), r.trailer)
}

func readResponse(p []byte) (*responseHead, error) {
	cur := cursor{b: p}
	r := &responseHead{status: int(cur.u16()), length: int64(cur.varint(maxLength)) - 1} //nolint:gosec // bounded
	r.header, r.trailer = cur.header(), cur.trailerNames()
	if cur.bad || len(cur.b) != 0 || r.status < minStatus || r.status > maxStatus {
		return nil, violation("a response's head is malformed")
	}
	return r, nil
}

func appendWindow(b []byte, call uint64, n int64) []byte {
	return binary.BigEndian.AppendUint32(appendHead(b, frameWindow, 0, call, 4), uint32(n)) //nolint:gosec // at most a window
}

func readWindow(p []byte) (int64, error) {
	if len(p) != 4 {
		return 0, violation("WINDOW of %d bytes", len(p))
	}
	return int64(binary.BigEndian.Uint32(p)), nil
}

func readPing(p []byte) (uint64, error) {
	if len(p) != 8 {
		return 0, violation("PING of %d bytes", len(p))
	}
	return binary.BigEndian.Uint64(p), nil
}

func appendPing(b []byte, t frameType, nonce uint64) []byte {
	return binary.BigEndian.AppendUint64(appendHead(b, t, 0, 0, 8), nonce)
}

const maxReason = 1 << 10

func appendGoAway(b []byte, last uint64, why string) []byte {
	why = why[:min(len(why), maxReason)]
	b = appendHead(b, frameGoAway, 0, 0, 8+len(why))
	return append(binary.BigEndian.AppendUint64(b, last), why...)
}

func readGoAway(p []byte) (last uint64, why string, err error) {
	if len(p) < 8 || len(p) > 8+maxReason {
		return 0, "", violation("GOAWAY of %d bytes", len(p))
	}
	return binary.BigEndian.Uint64(p), string(p[8:]), nil
}

func readCancel(p []byte) (cancelReason, error) {
	if len(p) != 1 || cancelReason(p[0]) > lastReason {
		return 0, violation("CANCEL is malformed")
	}
	return cancelReason(p[0]), nil
}

// ack is an entry of frameAck.
type ack struct {
	object [32]byte
	id     limpet.Identity
}

const (
	ackBytes = 56
	maxAcks  = maxPayload / ackBytes
)

func appendAcks(b []byte, acks []ack) []byte {
	b = appendHead(b, frameAck, 0, 0, len(acks)*ackBytes)
	for _, a := range acks {
		b = append(append(b, a.object[:]...), a.id.Nonce[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(a.id.CreatedMS)) //nolint:gosec // the bits
	}
	return b
}

func readAcks(p []byte, each func(ack)) error {
	if len(p)%ackBytes != 0 {
		return violation("ACK of %d bytes", len(p))
	}
	for cur := (cursor{b: p}); len(cur.b) > 0; {
		var a ack
		copy(a.object[:], cur.take(32))
		copy(a.id.Nonce[:], cur.take(16))
		a.id.CreatedMS = int64(cur.u64()) //nolint:gosec // the bits
		each(a)
	}
	return nil
}
