package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/fxamacker/cbor/v2"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

// This file translates errors to and from bytes, and makes those that the
// transport itself decides on.

// failure is the payload of frameFailure and frameAbort, a CBOR map. An absent
// member is zero; unknown ones are passed over.
type failure struct {
	Code      string `cbor:"1,keyasint,omitempty"`
	Name      string `cbor:"2,keyasint,omitempty"`
	Message   string `cbor:"3,keyasint,omitempty"`
	Delivery  uint8  `cbor:"4,keyasint,omitempty"`
	Bits      uint16 `cbor:"5,keyasint,omitempty"`
	ObjectID  string `cbor:"6,keyasint,omitempty"`
	Attempts  int    `cbor:"7,keyasint,omitempty"`
	Identity  string `cbor:"8,keyasint,omitempty"`
	RequestID string `cbor:"9,keyasint,omitempty"`
	// Fields is a map in limpet's value format.
	Fields []byte `cbor:"10,keyasint,omitempty"`
}

const (
	bitRetryable = 1 << iota
	bitOverloaded
	bitRemote
	bitReset
	bitBreaksStub
	bitByLimpet
	// bitRejected: the object has taken this identity already, or nobody can
	// tell. Only this bit says so, never a code or a text (SPEC F17).
	bitRejected
	// bitUnexpectedEOF: the body ended before its declared length.
	bitUnexpectedEOF
	// bitDeadline: the call was canceled because its deadline passed.
	bitDeadline
)

const (
	maxMessage = 256 << 10
	maxOwn     = 512 << 10
	maxWord    = 4 << 10
)

var (
	cborWrite = mustEnc()
	cborRead  = mustDec()
)

func mustEnc() cbor.EncMode {
	m, err := cbor.CTAP2EncOptions().EncMode()
	if err != nil {
		panic(err) // the options are constant
	}
	return m
}

func mustDec() cbor.DecMode {
	m, err := cbor.DecOptions{
		MaxNestedLevels: 4, MaxArrayElements: 16, MaxMapPairs: 64, DupMapKey: cbor.DupMapKeyEnforcedAPF,
		IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden, UTF8: cbor.UTF8DecodeInvalid,
	}.DecMode()
	if err != nil {
		panic(err) // the options are constant
	}
	return m
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}

// rejected reports whether e refuses a claim.
func rejected(e *limpet.Error) bool { return e.Code == limpet.CodeAlreadyReceived && !e.Remote }

// appendFailure writes an error. What is over a limit is cut or left out: an
// error that says less is better than none.
func appendFailure(b []byte, err error) []byte {
	f := failure{}
	set := func(bit uint16, on bool) {
		if on {
			f.Bits |= bit
		}
	}
	e, ok := errors.AsType[*limpet.Error](err)
	if !ok {
		set(bitUnexpectedEOF, errors.Is(err, io.ErrUnexpectedEOF))
		e = limpet.Errorf(limpet.CodeInternal, "%w", err)
	}
	f.Code, f.Name, f.Message = cut(string(e.Code), maxWord), cut(e.Name, maxWord), cut(e.Error(), maxMessage)
	f.Delivery, f.ObjectID, f.Attempts = uint8(e.Delivery), cut(e.ObjectID, maxWord), max(e.Attempts, 0)
	f.Identity, f.RequestID = cut(e.Identity, maxWord), cut(e.RequestID, maxWord)
	set(bitRetryable, e.Retryable)
	set(bitOverloaded, e.Overloaded)
	set(bitRemote, e.Remote)
	set(bitReset, e.Reset)
	set(bitBreaksStub, limpet.BreaksStub(e))
	set(bitByLimpet, e.ByLimpet())
	set(bitRejected, rejected(e))
	set(bitDeadline, e.Code == limpet.CodeCanceled && !e.Remote && errors.Is(e, context.DeadlineExceeded))
	if len(e.Fields) > 0 {
		if enc, err := value.Marshal(e.Fields); err == nil && len(enc) <= maxOwn {
			f.Fields = enc
		}
	}
	enc, cerr := cborWrite.Marshal(f)
	if cerr != nil {
		panic(fmt.Errorf("wire: a failure can't be written: %w", cerr)) // strings, numbers and bytes always can
	}
	return append(b, enc...)
}

// readFailure reads an error that a peer sent as an outcome. What it says of
// claims counts only by its mark, and that it came means that it was received,
// unless it says that it was not delivered.
func readFailure(p []byte) (failed, err error) {
	var f failure
	if err = cborRead.Unmarshal(p, &f); err != nil {
		return nil, violation("a failure is malformed: %v", err)
	}
	has := func(bit uint16) bool { return f.Bits&bit != 0 }
	if has(bitUnexpectedEOF) {
		return io.ErrUnexpectedEOF, nil
	}
	e := &limpet.Error{
		Code: limpet.Code(f.Code), Name: f.Name, Message: f.Message, Delivery: limpet.DeliveryReceived,
		Retryable: has(bitRetryable), Overloaded: has(bitOverloaded), Remote: has(bitRemote), Reset: has(bitReset),
		ObjectID: f.ObjectID, Attempts: f.Attempts, Identity: f.Identity, RequestID: f.RequestID,
	}
	// That a call was refused before anything of it ran is the peer's word, as its
	// results are. But what a method says has run, a refusal of a claim tells of a
	// call that was received, and a connection that the peer lost is one behind it
	// (SPEC C52): answered never writes these.
	if limpet.Delivery(f.Delivery) == limpet.DeliveryNone && !e.Remote && !has(bitRejected) && e.Code != limpet.CodeDisconnected {
		e.Delivery = limpet.DeliveryNone
	}
	switch {
	case has(bitRejected):
		e.Code, e.Remote = limpet.CodeAlreadyReceived, false
	case rejected(e):
		e.Code = limpet.CodeInternal
	}
	if has(bitDeadline) && e.Code == limpet.CodeCanceled {
		e.Cause = context.DeadlineExceeded
	}
	if len(f.Fields) > 0 {
		var v map[string]any
		if err := value.Unmarshal(f.Fields, &v); err != nil {
			return nil, violation("the fields of a failure are malformed: %v", err)
		}
		e.Fields = v
	}
	return limpet.ReceivedError(e, has(bitBreaksStub), has(bitByLimpet)), nil
}

// lost is the failure of a call whose connection ended (SPEC C20-C22).
func lost(why error, d limpet.Delivery) *limpet.Error {
	e := limpet.Errorf(limpet.CodeDisconnected, "Network connection lost: %w", why)
	e.Delivery, e.Retryable = d, true
	return e
}

// draining is the failure of a call that the peer refused because it stops
// (SPEC C24).
func draining(why string) *limpet.Error {
	return &limpet.Error{
		Code: limpet.CodeDraining, Delivery: limpet.DeliveryNone, Retryable: true,
		Message: cut("Network connection lost: the node is stopping and did not take the call: "+why, maxWord),
	}
}

// answered is err as it travels back from a call that was accepted: a lost
// connection is then always received (SPEC C52), except a draining refusal (C24).
func answered(err error) *limpet.Error {
	e, ok := errors.AsType[*limpet.Error](err)
	if !ok {
		e = limpet.Errorf(limpet.CodeInternal, "%w", err)
	}
	wrong := e.Delivery == limpet.DeliveryUncertain ||
		e.Delivery == limpet.DeliveryNone && (e.Code == limpet.CodeDisconnected || e.Remote || rejected(e))
	if error(e) == err && !wrong { //nolint:errorlint // is it the chain's head?
		return e
	}
	e = e.Clone()
	if wrong {
		e.Delivery = limpet.DeliveryReceived
	}
	return e
}

// refused is an error of a call that was not delivered.
func refused(code limpet.Code, format string, args ...any) *limpet.Error {
	e := limpet.Errorf(code, format, args...)
	e.Delivery = limpet.DeliveryNone
	return e
}
