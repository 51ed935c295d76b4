package wire

import (
	"context"
	"net/http"
	"time"

	"github.com/limpet-dev/limpet"
)

// maxBody bounds the arguments and the result of a method call: a little more
// than the value format's own limit (SPEC B30), whose refusal says more.
const maxBody = limpet.MaxValueBytes + 1<<10

// Kind is what a call asks for.
type Kind uint8

// The kinds of calls.
const (
	// KindMethod runs a method of an object, KindFetch its http.Handler.
	KindMethod Kind = iota
	KindFetch
	// KindDescribe asks about a binding.
	KindDescribe
	// KindOutcome asks for the outcome of a call of an object; Method is the
	// limpet.OutcomeQuery as text.
	KindOutcome
	lastKind = KindOutcome
)

// Boot names one life of one process over one data directory.
type Boot struct {
	History [16]byte
	Boot    [16]byte
}

// Call is the head of a call: one attempt of it.
type Call struct {
	Kind    Kind
	Binding string
	Object  [32]byte
	// Name is the object's name, if Named; the receiver must check that it
	// belongs to Object.
	Name     string
	Named    bool
	Existing bool

	// Identity, Attempt, Retry, WillRetry and Uncertain are those of
	// dispatch.Attempt.
	Identity  limpet.Identity
	Attempt   int
	Retry     bool
	WillRetry bool
	Uncertain []Boot // at most 16
	// Replay says that the caller wants the first outcome instead of a refusal
	// (limpet.ReplayOutcome), and Key is the idempotency key, or empty.
	Replay bool
	Key    string

	// TimeLeft is the time until the caller's deadline, if HasTimeLeft; to whole
	// milliseconds. Wall clocks are not compared.
	TimeLeft    time.Duration
	HasTimeLeft bool

	// TraceParent and TraceState are the W3C trace context, or empty.
	TraceParent, TraceState string

	// Length is the bytes of the body, -1 if it is not known. For a method it is
	// known.
	Length int64

	// Method is the object's method, or for KindFetch the request's.
	Method string
	// URL, Host, Header and Trailer (names only) are the request's of KindFetch.
	URL, Host string
	Header    http.Header
	Trailer   http.Header
}

// BindingInfo is what a caller must know of a binding.
type BindingInfo struct {
	ClassIdentity string
	Policy        limpet.RetryPolicy
}

// Callee is what a Server hands calls to. It is safe for concurrent use. When
// ctx ends, its methods return soon.
type Callee interface {
	// Call runs a method with arguments that are there entirely. The result is
	// nil for none. Errors are *limpet.Error as a dispatch.Transport gives them.
	Call(ctx context.Context, c *Call, args limpet.Encoded) (limpet.Encoded, error)
	// Fetch runs an object's http.Handler as a dispatch.Transport does: ctx
	// bounds the body too.
	Fetch(ctx context.Context, c *Call, req *http.Request) (*http.Response, error)
	// Describe tells of a binding; an unknown one is CodeUnknownNamespace.
	Describe(ctx context.Context, binding string) (BindingInfo, error)
	// Outcome tells what became of a call: c.Method is the limpet.OutcomeQuery, age
	// the time since the identity was made, by the asker's clock.
	Outcome(ctx context.Context, c *Call, age time.Duration) (*limpet.CallOutcome, error)
	// Acknowledge says that the caller has the answer of a call of which there
	// was one attempt only. It returns at once.
	Acknowledge(object [32]byte, id limpet.Identity)
}

func milliseconds(n uint64) time.Duration { return time.Duration(n) * time.Millisecond } //nolint:gosec // bounded
