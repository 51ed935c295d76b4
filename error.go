package limpet

import (
	"errors"
	"fmt"
	"maps"
	"strings"
)

// Code says what went wrong, in a word that programs may rely on. A Code is
// itself an error, so that it serves as the sentinel of its kind:
//
//	if errors.Is(err, limpet.CodeOverloaded) { … }
//
// A method of an object may return an [*Error] with a code of its own choosing;
// it reaches the caller unchanged.
type Code string

// The codes that limpet itself uses. In brackets: the delivery state it comes
// with, where there is only one.
const (
	// CodeApplication is a method's own error that carries no code [received].
	CodeApplication Code = "Application"
	// CodeInvalidArgument refuses an argument, name, ID, option or JSON text
	// before anything was sent [not delivered], or a method's arguments at the
	// object [received].
	CodeInvalidArgument Code = "InvalidArgument"
	// CodeUnknownNamespace: no namespace is bound to this name [not delivered].
	CodeUnknownNamespace Code = "UnknownNamespace"
	// CodeUnknownMethod: the object's class has no such method [received]
	// (SPEC C30).
	CodeUnknownMethod Code = "UnknownMethod"
	// CodeNoSuchObject: a stub of [Namespace.Existing] names an object that was
	// never created and has no data [not delivered].
	CodeNoSuchObject Code = "NoSuchObject"
	// CodeNotSupported: limpet does not have this yet, or not in Go.
	CodeNotSupported Code = "NotSupported"
	// CodeTooLarge: a value, argument, body or commit is over its limit; the
	// message names the limit.
	CodeTooLarge Code = "TooLarge"
	// CodeOverloaded: a queue is full or waited too long; never retried
	// (SPEC C37, C51).
	CodeOverloaded Code = "Overloaded"
	// CodeDisconnected: the connection to the object was lost; the delivery
	// state says what is known (SPEC C5, C20-C24). Only this code and
	// CodeDraining are retried.
	CodeDisconnected Code = "Disconnected"
	// CodeReset: the object was reset while the call ran or waited: abort,
	// panic, a failed constructor or a failed BlockConcurrencyWhile [received]
	// (SPEC C33-C36).
	CodeReset Code = "Reset"
	// CodeAlreadyReceived refuses an attempt whose identity the object has
	// already taken. Callers see it only for identities that they chose
	// themselves; else the first failure is shown (SPEC E22).
	CodeAlreadyReceived Code = "AlreadyReceived"
	// CodeIdentityReused refuses an idempotency key that was used for another
	// method or other arguments of the object before [not delivered].
	CodeIdentityReused Code = "IdentityReused"
	// CodeOutcomeUnknown: Outcome was asked about a call of which nobody can tell
	// any more whether it was received.
	CodeOutcomeUnknown Code = "OutcomeUnknown"
	// CodeCanceled: the caller's context ended (SPEC C41, E34). The cause is
	// context.Cause of it, so errors.Is with context.Canceled or
	// context.DeadlineExceeded works too.
	CodeCanceled Code = "Canceled"
	// CodeCallCycle: a chain of calls came back to an object that blocks
	// concurrency, so that it could never end, or it has 256 calls.
	CodeCallCycle Code = "CallCycle"
	// CodeStorageFull: the disk has no room; the commit was not made and the
	// object is as before the turn.
	CodeStorageFull Code = "StorageFull"
	// CodeStorageLost: the commit log failed; what was not durable is lost and
	// the node ends [uncertain or received] (SPEC C38).
	CodeStorageLost Code = "StorageLost"
	// CodeNoTurn: a State was used while no event of its object held the turn.
	CodeNoTurn Code = "NoTurn"
	// CodeSQL: SQLite refused a statement of State.SQL; a *SQLError behind it tells
	// why. Also what a query gave is not the one row that was asked for.
	CodeSQL Code = "SQL"
	// CodeDraining: the node is stopping and did not take the call
	// [not delivered] (SPEC C24, F22). It is retried like a lost connection.
	CodeDraining Code = "Draining"
	// CodeDisposed: a received stub, function or stream was used after it was
	// given back: by Close, or because the call that it was an argument of has
	// returned [not delivered] (SPEC C42).
	CodeDisposed Code = "Disposed"
	// CodeInternal: a fault of limpet; the message has a reference to the log.
	CodeInternal Code = "Internal"
)

// Error makes a Code usable as a sentinel of errors.Is. It gives the word, and
// "limpet: " in front if the code is one of limpet's own.
func (c Code) Error() string {
	switch c {
	case CodeApplication, CodeInvalidArgument, CodeUnknownNamespace, CodeUnknownMethod, CodeNoSuchObject,
		CodeNotSupported, CodeTooLarge, CodeOverloaded, CodeDisconnected, CodeReset, CodeAlreadyReceived, CodeIdentityReused, CodeOutcomeUnknown,
		CodeCanceled, CodeCallCycle, CodeStorageFull, CodeStorageLost, CodeNoTurn, CodeSQL, CodeDraining, CodeDisposed, CodeInternal:
		return "limpet: " + string(c)
	}
	return string(c)
}

// Delivery is what is known about an attempt that failed: whether the object's
// code may have run (SPEC C3).
type Delivery uint8

const (
	// DeliveryUncertain says that the attempt may have reached the object, or not.
	// It is the zero value: who knows nothing must assume this.
	DeliveryUncertain Delivery = iota
	// DeliveryNone ("not delivered") says that the object's code certainly did not run.
	DeliveryNone
	// DeliveryReceived says that the object took the attempt; its code may have run
	// to any point.
	DeliveryReceived
)

var deliveryNames = [...]string{"uncertain", "not delivered", "received"}

// String gives "uncertain", "not delivered" or "received".
func (d Delivery) String() string {
	if int(d) < len(deliveryNames) {
		return deliveryNames[d]
	}
	return fmt.Sprintf("Delivery(%d)", uint8(d))
}

// MarshalText gives the words of String, for JSON.
func (d Delivery) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the words of String; another word is an error.
func (d *Delivery) UnmarshalText(b []byte) error {
	for i, n := range deliveryNames {
		if n == string(b) {
			*d = Delivery(i)
			return nil
		}
	}
	return fmt.Errorf("unknown delivery state %.64q", b)
}

// Error is the one error type of limpet. Calls fail with nothing else. An Error
// is not changed after it was returned and so is safe for concurrent reading.
//
// A method of an object may return an *Error to give the caller a Code, a Name
// and Fields; Delivery, Remote, Reset, ObjectID, Attempts, Identity and
// RequestID are then set by limpet, whatever the method put there. Retryable
// and Overloaded set by a method do arrive, and change nothing about retries
// (SPEC C7).
type Error struct {
	// Code is the kind of failure; empty means CodeApplication.
	Code Code
	// Name is the error class a JavaScript caller sees ("Error", "TypeError",
	// …); empty means "Error".
	Name string
	// Message is the text for the caller.
	Message string
	// Delivery says whether the object's code may have run.
	Delivery Delivery
	// Retryable is true exactly for lost connections and the refusals of a node
	// that stops (SPEC C2, C24), and where a method set it (SPEC C7); limpet has
	// then already retried as far as the stub's policy and the promise allow.
	Retryable bool
	// Overloaded is true when a limit of the object or node was hit: try later,
	// not at once.
	Overloaded bool
	// Remote is true when the error came out of the object's own code.
	Remote bool
	// Reset is true when the object was reset by this failure: its memory is
	// gone, its durable data is not.
	Reset bool
	// ObjectID is the 64 hex digits of the object that produced the failure, or
	// empty.
	ObjectID string
	// Attempts counts the attempts made, 0 when none was.
	Attempts int
	// NoRetry tells people why limpet made no further attempt after a lost
	// connection: "the request body can be read only once …". It is empty after
	// other failures, and when the stub's policy allows no retries. Error adds it
	// to the text. The text may change; programs look at the other fields.
	NoRetry string
	// Identity names the call at the receiver (of the last attempt whose
	// delivery was uncertain), or is empty. It is what Outcome takes: KeyIdentity
	// of the idempotency key if the call has one; else an Identity's text, and "@"
	// with the process that it went to if that is known.
	Identity string
	// RequestID is the reference under which the node's log knows the failure,
	// or empty.
	RequestID string
	// Fields are the own properties of a method's error that are not covered by
	// the fields above; nil when there are none. They arrive as dynamic values
	// (see Undefined); one that can't be carried is left out.
	Fields map[string]any
	// Cause is what led to the failure, or nil; Unwrap returns it. It does not
	// cross the border between caller and object.
	Cause error

	breaksStub bool // the object was reset under this call: the stub is broken (SPEC B5)
	byLimpet   bool // made by limpet at the object, not by the method
}

// Error gives the message, the cause's where the message lacks it, and NoRetry.
func (e *Error) Error() string {
	msg := e.Message
	if msg == "" {
		msg = string(e.CodeOrDefault())
	}
	if e.Cause != nil {
		if c := e.Cause.Error(); c != "" && !strings.Contains(msg, c) {
			msg = strings.TrimSuffix(msg, ".") + ": " + c
		}
	}
	if e.NoRetry != "" {
		msg += " (no further attempt: " + e.NoRetry + ")"
	}
	return msg
}

// Unwrap returns Cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is the Code of e.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.CodeOrDefault()
}

// CodeOrDefault is Code, or CodeApplication when that is empty.
func (e *Error) CodeOrDefault() Code {
	if e.Code == "" {
		return CodeApplication
	}
	return e.Code
}

// CodeOf is the code of the first *Error in err's chain, CodeInternal for any
// other error, and empty for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.CodeOrDefault()
	}
	return CodeInternal
}

// DeliveryOf is the delivery state of the first *Error in err's chain; other
// errors are uncertain.
func DeliveryOf(err error) Delivery {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Delivery
	}
	return DeliveryUncertain
}

// Errorf makes an *Error with a code; the message is formatted as by fmt.Errorf,
// and an operand of %w becomes the cause (of several, a cause that wraps all).
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	cause := errors.Unwrap(err)
	if _, several := err.(interface{ Unwrap() []error }); several {
		cause = err
	}
	return &Error{Code: code, Message: err.Error(), Cause: cause}
}

// about is err with what it is about in front, under its own code and class.
func about(what string, err error) *Error {
	out := Errorf(CodeOf(err), "%s: %w", what, err)
	if e, ok := errors.AsType[*Error](err); ok {
		out.Name = e.Name
	}
	return out
}

// invalid refuses what a caller gave before anything was sent. name is the error
// class that JavaScript has for it.
func invalid(name, format string, args ...any) *Error {
	e := Errorf(CodeInvalidArgument, format, args...)
	e.Name, e.Delivery = name, DeliveryNone
	return e
}

// With returns e after change was applied to it. It exists so that an error can
// be built in one expression and is for errors that nobody else holds yet.
func (e *Error) With(change func(*Error)) *Error {
	change(e)
	return e
}

// Clone returns a copy that may be changed; Fields is copied one level deep.
func (e *Error) Clone() *Error {
	c := *e
	c.Fields = maps.Clone(e.Fields)
	return &c
}

// BreaksStub reports whether a call that fails with err breaks its stub: the
// object was reset under it, and every later call on the same stub fails with
// an error that tells it (SPEC B5). For limpet's own packages; programs look at
// Stub.Err.
func BreaksStub(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.breaksStub
}

// ResetError is the failure of a call whose object was reset: by abort, panic,
// a failed constructor or a failed BlockConcurrencyWhile. It is received and
// breaks the stub. A cause whose Error panics is left out: it would panic at
// whoever reads the result. For limpet's own packages.
func ResetError(object ID, message string, cause error) *Error {
	if cause != nil && !readable(cause) {
		cause = nil
	}
	return &Error{
		Code: CodeReset, Message: message, Delivery: DeliveryReceived, Reset: true,
		ObjectID: object.String(), Cause: cause, breaksStub: true,
	}
}

// readable reports whether err's text can be had.
func readable(err error) (ok bool) {
	defer func() { _ = recover() }()
	_ = err.Error()
	return true
}

// ReceivedError is e as another process sent it, with what its other fields do
// not say: whether BreaksStub and ByLimpet hold for it. It changes e. Packages of
// limpet use it; programs meet the result.
func ReceivedError(e *Error, breaksStub, byLimpet bool) *Error {
	e.breaksStub, e.byLimpet = breaksStub, byLimpet
	return e
}

// ByLimpet reports whether limpet itself refused the call at the object (its
// arguments do not fit, the method is unknown, the result can't be carried), as
// opposed to an error that the method returned, whatever its code. For limpet's
// own packages.
func (e *Error) ByLimpet() bool { return e.byLimpet || !e.Remote }

// refusal is how a Runner tells an error of limpet's from the method's own.
type refusal struct{ err *Error }

func refuse(err *Error) error   { return refusal{err} }
func (r refusal) Error() string { return r.err.Error() }
func (r refusal) Unwrap() error { return r.err }

// UnknownMethodError is the failure of a call for which the object's class has
// no method, or whose name is reserved (SPEC B20, C30, C31). For limpet's own
// packages.
func UnknownMethodError(object ID, method string) *Error {
	text := fmt.Sprintf("The RPC receiver does not implement the method %.200q.", method)
	if _, ok := reserved[method]; ok {
		text = fmt.Sprintf("'%s' is a reserved method and cannot be called over RPC.", method)
	}
	return &Error{
		Code: CodeUnknownMethod, Name: "TypeError", Message: text,
		Delivery: DeliveryReceived, Remote: true, byLimpet: true, ObjectID: object.String(),
	}
}

// ownError is what a Runner returns for an error of the method: err itself, or,
// if it has fields, err with a copy of them, made as if they had crossed a
// network. A field that can't be carried is left out: an error that says less is
// better than none.
func ownError(codec Codec, err error) (own error) {
	defer func() {
		if recover() != nil { // a method of err itself, as in MethodError
			own = err
		}
	}()
	e, ok := errors.AsType[*Error](err)
	if !ok || e == nil || len(e.Fields) == 0 {
		return err
	}
	copies := make(map[string]any, len(e.Fields))
	for k, v := range e.Fields {
		enc, failure := codec.Marshal(v)
		if failure != nil {
			continue
		}
		var c any
		if codec.Unmarshal(enc, &c) == nil {
			copies[k] = c
		}
	}
	return fieldsCopied{err, copies}
}

// fieldsCopied is a method's error with fields that nobody else holds.
type fieldsCopied struct {
	error
	fields map[string]any
}

func (f fieldsCopied) Unwrap() error { return f.error }

// NoFetchError is the failure of a fetch whose object's class has no http.Handler
// (SPEC B16). For limpet's own packages.
func NoFetchError(object ID) *Error {
	return &Error{
		Code: CodeUnknownMethod, Delivery: DeliveryReceived, Remote: true, byLimpet: true, ObjectID: object.String(),
		Message: "Handler does not export a fetch() function.",
	}
}

// maxErrorText is the longest text of a method's error, in bytes.
const maxErrorText = 1 << 20

// bounded cuts a text that is too long for an error, and says so.
func bounded(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	return fmt.Sprintf("%s… (cut: the text has %d bytes, the limit is %d)", strings.ToValidUTF8(text[:maxErrorText], ""), len(text), maxErrorText)
}

// MethodError turns the error that a Runner returned into what its caller sees
// (SPEC C26, C7): the text, code, name and fields are the method's own, the
// delivery is received and Remote is set. A text of more than 1 MiB is cut. The
// cause stays behind. Nothing is shared with an error that a Runner of this
// package returned; of another, the values in Fields are. An error whose own
// methods panic gives that as its text.
// For limpet's own packages.
func MethodError(object ID, err error) (out *Error) {
	if r, ok := err.(refusal); ok { //nolint:errorlint // exactly what the Runner returned, not what the method wrapped
		e := r.err.Clone()
		e.Delivery, e.ObjectID, e.byLimpet = DeliveryReceived, object.String(), true
		return e
	}
	out = &Error{Code: CodeApplication, Delivery: DeliveryReceived, Remote: true, ObjectID: object.String()}
	defer func() {
		if p := recover(); p != nil { // a nil pointer in an error interface, mostly
			out.Message = fmt.Sprintf("error of type %T, which can't be read: %v", err, p)
		}
	}()
	fields, copied := err.(fieldsCopied) //nolint:errorlint // as above
	if copied {
		err = fields.error
	}
	out.Message = bounded(err.Error())
	if e, ok := errors.AsType[*Error](err); ok {
		out.Code, out.Name = e.CodeOrDefault(), e.Name
		out.Retryable, out.Overloaded = e.Retryable, e.Overloaded
		if out.Fields = fields.fields; !copied {
			out.Fields = maps.Clone(e.Fields)
		}
	}
	return out
}
