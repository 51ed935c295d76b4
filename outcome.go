package limpet

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
)

// MaxKeptOutcome is the largest outcome that is kept, in bytes of limpet's
// format; of a fetch, head and body together.
const MaxKeptOutcome = 64 << 10

// MaxKeyedBody is the largest body of a fetch with an idempotency key, in bytes.
const MaxKeyedBody = 1 << 20

// OutcomeKind is what Outcome found out about a call.
type OutcomeKind uint8

// The answers of Outcome.
const (
	// OutcomeNotReceived: the object has not received the call and never will: an
	// attempt that arrives late is refused.
	OutcomeNotReceived OutcomeKind = iota + 1
	// OutcomeRunning: the method runs. Ask again.
	OutcomeRunning
	// OutcomeResult: the method returned a result, which was kept.
	OutcomeResult
	// OutcomeError: the method returned an error, or the object was reset under
	// it, and that was kept.
	OutcomeError
	// OutcomeNotKept: the object has received the call, and how it ended was not
	// kept.
	OutcomeNotKept
)

var outcomeKinds = [...]string{"", "not received", "running", "result", "error", "received, not kept"}

// String gives "not received", "running", "result", "error" or "received, not
// kept".
func (k OutcomeKind) String() string {
	if 0 < k && int(k) < len(outcomeKinds) {
		return outcomeKinds[k]
	}
	return fmt.Sprintf("OutcomeKind(%d)", uint8(k))
}

// CallOutcome is the answer of Outcome.
type CallOutcome struct {
	// Kind says which of the others is set.
	Kind OutcomeKind
	// Value is the result of a method for OutcomeResult, in limpet's format, or
	// nil for none. Decode reads it.
	Value Encoded
	// Response is the response of a fetch for OutcomeResult, or nil. Its body is
	// there entirely and need not be closed.
	Response *http.Response
	// Err is the error for OutcomeError, as the call's caller gets it.
	Err *Error

	codec Codec
}

// Decode reads the result into a pointer. A method without a result leaves that
// as it is. It fails if there is no result of a method.
func (o *CallOutcome) Decode(into any) error {
	switch {
	case o.Kind != OutcomeResult:
		return invalid("", "the outcome is %q: there is no result to decode", o.Kind)
	case o.Response != nil:
		return invalid("", "the outcome is a response: read CallOutcome.Response")
	case o.Value == nil:
		return nil
	}
	return o.codec.Unmarshal(o.Value, into)
}

// OutcomeQuery is what Outcome asks of a Caller. For limpet's own packages.
type OutcomeQuery struct {
	// Key is the idempotency key, or empty.
	Key string
	// Identity is the call's if there is no Key.
	Identity Identity
	// Process is the 16 hex digits of the one process that the call's attempts
	// can have reached, or empty if that is not known (ProcessText).
	Process string
}

// String is the query as it is given to Outcome.
func (q OutcomeQuery) String() string {
	switch {
	case q.Key != "":
		return KeyIdentity(q.Key)
	case q.Process != "":
		return q.Identity.String() + "@" + q.Process
	}
	return q.Identity.String()
}

// ProcessText is how an identity names a process. For limpet's own packages.
func ProcessText(boot [16]byte) string { return hex.EncodeToString(boot[:8]) }

// ParseOutcomeQuery reads the Identity of an Error. The error is
// CodeInvalidArgument. For limpet's own packages.
func ParseOutcomeQuery(identity string) (OutcomeQuery, error) {
	if key, ok := cutKey(identity); ok {
		return OutcomeQuery{Key: key}, CheckIdempotencyKey(key)
	}
	id, err := ParseIdentity(identity)
	if err != nil {
		return OutcomeQuery{}, failed(err)
	}
	if id.IsZero() {
		return OutcomeQuery{}, invalid("", "the identity is empty: no attempt of the call can have been received, or the error is not of a call")
	}
	q := OutcomeQuery{Identity: id}
	if _, process, ok := strings.Cut(identity, "@"); ok {
		if _, err := hex.DecodeString(process); err != nil || len(process) != 16 || strings.ToLower(process) != process {
			return OutcomeQuery{}, invalid("", "invalid call identity %.100q: \"@\" must be followed by 16 hex digits", identity)
		}
		q.Process = process
	}
	return q, nil
}

// OutcomeTeller is a Caller that can be asked for the outcomes of calls. For
// limpet's own packages.
type OutcomeTeller interface {
	// Outcome asks the object of c, which has no method. Every error is an *Error.
	Outcome(ctx context.Context, c *CallSpec, q OutcomeQuery) (*CallOutcome, error)
}

// Outcome asks the stub's object what became of a call. identity is Error.Identity
// of a call that failed with an uncertain delivery, or KeyIdentity of an
// idempotency key. The answer is one of five (OutcomeKind), and true:
//
//	not received        and it never will be: this is made durable before it is
//	                    told, and an attempt on its way is refused when it arrives
//	running
//	result, error       that of the first run; kept for calls of stubs with
//	                    ReplayOutcome and for those with idempotency keys
//	received, not kept  it may have run to any point, or have ended in any way
//
// Claims of calls without a key are kept for 90 s. If that may be over, or the
// process that the call was sent to has ended since and has left no trace of it,
// nobody can tell: Outcome fails with CodeOutcomeUnknown, which says why. The age of
// an identity is told by the clock of the machine that asks: ask on the one that
// made the call, or on one whose clock differs by less than 30 s. A key is known
// for as long as node.Config.KeyRetention; one that is older counts as not
// received, as for a call with it.
//
// Asking is repeated when the connection is lost, as the stub's policy says. It
// may create the object. Every error is an *Error.
func Outcome[T any](ctx context.Context, s *Stub[T], identity string) (*CallOutcome, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	q, err := ParseOutcomeQuery(identity)
	if err != nil {
		return nil, err
	}
	b := s.s.ns.binding
	teller, ok := b.Caller.(OutcomeTeller)
	if !ok {
		return nil, failed(Errorf(CodeNotSupported, "not supported: to ask this namespace for outcomes"))
	}
	c := &CallSpec{}
	s.s.fill(c, KindMethod, "")
	o, err := teller.Outcome(ctx, c, q)
	if err != nil {
		return nil, err
	}
	o.codec = b.Codec
	return o, nil
}
