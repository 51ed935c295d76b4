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
	// KindTarget calls a capability that the receiver exported, or a member of the
	// promised result of an earlier call; KindTargetFetch sends it a request;
	// KindStream reads it.
	KindTarget
	KindTargetFetch
	KindStream
	lastKind = KindStream
)

// ofObject reports whether a call is of an object, or of a binding: a node that
// drains takes no more of these.
func (k Kind) ofObject() bool { return k != KindTarget && k != KindTargetFetch && k != KindStream }

// hasResponse reports whether the outcome is that of a fetch.
func (k Kind) hasResponse() bool { return k == KindFetch || k == KindTargetFetch }

// Boot names one life of one process over one data directory.
type Boot struct {
	History [16]byte
	Boot    [16]byte
}

// Call is the head of a call: one attempt of it.
type Call struct {
	Kind Kind
	// These belong to the fields below.
	Named, Existing, Retry, WillRetry, Replay, HasTimeLeft bool

	Binding string
	Object  [32]byte
	// Name is the object's name, if Named; the receiver must check that it
	// belongs to Object.
	Name string

	// Identity, Attempt, Retry, WillRetry and Uncertain are those of
	// dispatch.Attempt.
	Identity  limpet.Identity
	Attempt   int
	Uncertain []Boot // at most 16
	// Key is the idempotency key, or empty. Replay says that the caller wants the
	// first outcome instead of a refusal (limpet.ReplayOutcome).
	Key string

	// TimeLeft is the time until the caller's deadline, if HasTimeLeft; to whole
	// milliseconds. Wall clocks are not compared.
	TimeLeft time.Duration

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

	// Ext is nil for plain calls.
	Ext *Ext
}

// Ext is what a call has beyond plain ones.
type Ext struct {
	// Path leads from the object's member that Method names, or from the
	// capability, to what is called (SPEC B25); at most limpet.MaxPath. Property
	// reads it and does not call it (SPEC B24).
	Path     []string
	Property bool
	// Pipelinable asks the receiver to keep the result for calls on it until
	// Promise.Close. Begun gets the Promise, on the caller's goroutine, when the
	// call is about to be sent; it is not called if this connection has too many
	// results kept already, and then Pipelinable is cleared.
	Pipelinable bool
	Begun       func(*Promise)

	capability, parent uint64 // of KindTarget and so on
	caps               []descriptor
	// On the caller's side: the parent, and the call's own promise if it is
	// pipelinable.
	of      *outCall
	promise *outPromise
}

// more reports whether there is something for appendExt.
func (x *Ext) more() bool {
	return x.Property || x.Pipelinable || len(x.Path) > 0 || len(x.caps) > 0
}

// BindingInfo is what a caller must know of a binding.
type BindingInfo struct {
	ClassIdentity string
	Policy        limpet.RetryPolicy
}

// Callee is what a Server hands calls to. It is safe for concurrent use. When
// ctx ends, its methods return soon.
type Callee interface {
	// Call runs a method with arguments that are there entirely and belong to the
	// callee, also when it fails. Errors are *limpet.Error as a dispatch.Transport
	// gives them.
	Call(ctx context.Context, c *Call, args limpet.Parcel) (limpet.Parcel, error)
	// Fetch runs an object's http.Handler as a dispatch.Transport does: ctx
	// bounds the body too.
	Fetch(ctx context.Context, c *Call, req *http.Request) (*http.Response, error)
	// Child makes a call on a result, which is not the callee's to release:
	// through members of the value to a capability in it (SPEC B33, B35). It takes
	// over c.Args, also when it fails.
	Child(ctx context.Context, result limpet.Parcel, c limpet.TargetCall) (limpet.Parcel, error)
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
