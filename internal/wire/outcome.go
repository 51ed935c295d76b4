package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/limpet-dev/limpet"
)

// Kinds of a kept outcome's bytes.
const (
	keptNothing  = iota + 1 // a method that returned no value
	keptValue               // the rest is the value
	keptFailure             // the rest is a failure as in frameFailure
	keptResponse            // varint length and head as in frameResponse, trailer names gone; header of trailers; body
)

// AppendOutcome writes an outcome of kind OutcomeResult or OutcomeError, for the
// log and for frames; a response's body is read to its end. The first byte is the
// kind, the rest what stands in the list above. ReadOutcome reads it back. An error
// is one of reading the body.
func AppendOutcome(b []byte, o *limpet.CallOutcome) ([]byte, error) {
	switch {
	case o.Kind == limpet.OutcomeError:
		return appendFailure(append(b, keptFailure), o.Err), nil
	case o.Response != nil:
		body, err := io.ReadAll(o.Response.Body)
		if err != nil {
			return nil, err
		}
		head := appendResponse(nil, &responseHead{
			status: o.Response.StatusCode, length: max(o.Response.ContentLength, -1), header: o.Response.Header,
		})
		b = binary.AppendUvarint(append(b, keptResponse), uint64(len(head)))
		b = appendHeader(append(b, head...), o.Response.Trailer)
		return append(b, body...), nil
	case o.Value == nil:
		return append(b, keptNothing), nil
	}
	return append(append(b, keptValue), o.Value...), nil
}

// ReadOutcome reads what AppendOutcome wrote; a value may share its memory with
// p. The error says what is malformed.
func ReadOutcome(p []byte) (*limpet.CallOutcome, error) {
	if len(p) == 0 {
		return nil, violation("an outcome is empty")
	}
	o := &limpet.CallOutcome{Kind: limpet.OutcomeResult}
	kind, rest := p[0], p[1:]
	switch {
	case kind == keptNothing && len(rest) == 0:
	case kind == keptValue && len(rest) > 0:
		o.Value = rest
	case kind == keptFailure:
		failed, err := readFailure(rest)
		if err != nil {
			return nil, err
		}
		e, ok := errors.AsType[*limpet.Error](failed)
		if !ok {
			return nil, violation("an outcome is %v", failed)
		}
		o.Kind, o.Err = limpet.OutcomeError, e
	case kind == keptResponse:
		cur := cursor{b: rest}
		head, err := readResponse(cur.take(int(cur.varint(maxBlock)))) //nolint:gosec // bounded
		if err != nil {
			return nil, err
		}
		trailer := cur.header()
		if cur.bad {
			return nil, violation("an outcome's response is malformed")
		}
		o.Response = &http.Response{
			Status: strconv.Itoa(head.status) + " " + http.StatusText(head.status), StatusCode: head.status,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: head.header, ContentLength: head.length,
			Body: io.NopCloser(bytes.NewReader(cur.b)),
		}
		if len(trailer) > 0 {
			o.Response.Trailer = trailer
		}
	default:
		return nil, violation("an outcome of kind %d with %d bytes", kind, len(rest))
	}
	return o, nil
}

// appendAnswer writes the result of a KindOutcome call: 1 kind, and AppendOutcome
// for a result or error.
func appendAnswer(b []byte, o *limpet.CallOutcome) ([]byte, error) {
	b = append(b, byte(o.Kind))
	if o.Kind == limpet.OutcomeResult || o.Kind == limpet.OutcomeError {
		return AppendOutcome(b, o)
	}
	return b, nil
}

func readAnswer(p []byte) (*limpet.CallOutcome, error) {
	if len(p) == 0 {
		return nil, violation("an answer about an outcome is empty")
	}
	switch kind := limpet.OutcomeKind(p[0]); kind {
	case limpet.OutcomeResult, limpet.OutcomeError:
		o, err := ReadOutcome(p[1:])
		if err == nil && o.Kind != kind {
			err = violation("an answer of kind %d about an outcome has one of kind %d", kind, o.Kind)
		}
		return o, err
	case limpet.OutcomeNotReceived, limpet.OutcomeRunning, limpet.OutcomeNotKept:
		if len(p) == 1 {
			return &limpet.CallOutcome{Kind: kind}, nil
		}
	}
	return nil, violation("an answer about an outcome of kind %d with %d bytes", p[0], len(p))
}

// Outcome asks what became of a call of c's object. Every error is an
// *limpet.Error with its delivery.
func (s *Session) Outcome(ctx context.Context, c *Call, age time.Duration) (*limpet.CallOutcome, error) {
	return s.out.outcomeOf(ctx, c, age)
}

// outcomeOf is Session.Outcome.
func (o *outgoing) outcomeOf(ctx context.Context, c *Call, age time.Duration) (*limpet.CallOutcome, error) {
	if len(c.Method) > maxMethod {
		return nil, refused(limpet.CodeInvalidArgument, "an identity of %d bytes", len(c.Method))
	}
	c.Kind, c.Length = KindOutcome, ageBytes
	o.left(ctx, c)
	ms := max(min(age.Milliseconds(), maxDeadline), -maxDeadline)                                      // decades are as good as more
	b, err := o.exchange(ctx, c, limpet.Parcel{Bytes: binary.BigEndian.AppendUint64(nil, uint64(ms))}) //nolint:gosec // the bits
	if err != nil {
		return nil, err
	}
	b.Release() // there should be none
	answer, err := readAnswer(b.Bytes)
	if err != nil {
		o.fail(err)
		return nil, lost(err, limpet.DeliveryReceived)
	}
	return answer, nil
}

const ageBytes = 8

// outcome answers a KindOutcome call.
func (ic *inCall) outcome() {
	if len(ic.args) != ageBytes {
		ic.fail(refused(limpet.CodeInvalidArgument, "an age of %d bytes", len(ic.args)))
		return
	}
	ms := int64(binary.BigEndian.Uint64(ic.args)) //nolint:gosec // the bits
	if ms > maxDeadline || ms < -maxDeadline {
		ic.fail(refused(limpet.CodeInvalidArgument, "an age of %d ms", ms))
		return
	}
	o, err := ic.c.callee.Outcome(ic.ctx, ic.head, time.Duration(ms)*time.Millisecond)
	var b []byte
	if err == nil {
		b, err = appendAnswer(nil, o)
	}
	if err != nil {
		ic.fail(err)
		return
	}
	ic.result(limpet.Parcel{Bytes: b})
}
