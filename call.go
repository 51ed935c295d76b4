package limpet

import (
	"context"
	"net/http"
)

// CallKind is what a call asks of an object. For limpet's own packages.
type CallKind uint8

// The kinds of calls (SPEC I1 counts the first two apart).
const (
	// KindMethod runs a method.
	KindMethod CallKind = iota
	// KindFetch runs the class's http.Handler.
	KindFetch
)

// String is the call type of SPEC I1.
func (k CallKind) String() string {
	if k == KindFetch {
		return "fetch"
	}
	return "jsrpc"
}

// Encoded is a value in limpet's format (internal/value), as arguments and
// results travel when they can't be handed over by assignment. For limpet's own packages.
type Encoded []byte

// CallSpec is one request to one object with exactly one outcome, as a stub hands
// it to a Caller. It is built by this package and not changed once the Caller
// has it; several attempts may read it at the same time. For limpet's own
// packages; programs use stubs.
type CallSpec struct {
	Kind CallKind
	// Binding is the namespace that the stub came from.
	Binding *Binding
	Object  ID
	// Method is the name as JavaScript sees it; empty for KindFetch.
	Method string
	// Path leads from the member that Method names to a member of it, and so on
	// (SPEC B25); nearly always nil.
	Path []string
	// Property reads what Method and Path lead to, and does not call it (SPEC B24).
	Property bool
	// Existing refuses to create the object (Namespace.Existing).
	Existing bool
	// Policy is the stub's.
	Policy RetryPolicy
	// Unretryable names why no retry may be made although Policy allows it
	// (SPEC D11, G11), or is empty.
	Unretryable string

	// Key is the idempotency key that the caller chose, or empty: it
	// takes the place of an identity.
	Key string

	// Runner runs a KindMethod call on the object, once per attempt. It is nil
	// for KindFetch.
	Runner Runner
}

// Runner runs one method call. For limpet's own packages.
type Runner interface {
	// Run calls the method on the receiver that the class's constructor made,
	// with arguments of its own for each attempt, and returns the result: nil
	// for none, the value itself if its type shares no memory, Encoded, or a
	// Parcel if there are capabilities in it, which is the caller's.
	// It is called while the object's turn is held and may panic.
	Run(ctx context.Context, receiver any) (result any, err error)
	// Args gives the argument list in limpet's format, encoded once per call
	// (SPEC E51, G12).
	Args() (Encoded, error)
	// Capabilities are those in the arguments, nil for nearly all calls. They
	// belong to whoever made the call, who releases them when it has ended: a
	// transport Dups what it sends, and Run gives the method Dups, released when
	// the method has returned (SPEC B39). A call with any is Unretryable (SPEC G11).
	Capabilities() []Capability
	// Size is the number of bytes the arguments hold, for queue limits and the
	// replay memory (SPEC G20).
	Size() int
}

// Caller carries calls to objects with retries: the engine of internal/dispatch.
// Implementations are safe for concurrent use. For limpet's own packages.
type Caller interface {
	// Call makes a KindMethod call and returns what Runner.Run returned at the
	// object, or Encoded or a Parcel from elsewhere. Every error is an *Error.
	Call(ctx context.Context, c *CallSpec) (result any, err error)
	// Fetch makes a KindFetch call with req, following redirects on the same
	// object if follow is set (SPEC B11). It takes over req.Body and closes it.
	// Every error is an *Error.
	Fetch(ctx context.Context, c *CallSpec, req *http.Request, follow bool) (*http.Response, error)
}

// Starter is a Caller of calls that are not waited for. For limpet's own packages.
type Starter interface {
	Caller
	// Start makes a KindMethod call and returns at once, with an *Error if it was
	// not made. The caller has left its own object already. The call ends with
	// ctx. c's capabilities may be released when it is done.
	Start(ctx context.Context, c *CallSpec) (PendingCall, error)
}

// PendingCall is a call under way. Implementations are safe for concurrent use.
// For limpet's own packages.
type PendingCall interface {
	// Done is closed when the outcome is there.
	Done() <-chan struct{}
	// Outcome is what Caller.Call would have returned; call it after Done. The
	// result stays the PendingCall's until Close.
	Outcome() (result any, err error)
	// Child makes a call, or property read, on the result, at once if it can
	// (SPEC B33). From the first one on the call is not retried any more (SPEC
	// E53). It takes over c.Args; the result is the caller's. If the call fails,
	// its error is Child's too (SPEC B34).
	Child(ctx context.Context, c TargetCall) (Parcel, error)
	// Close cancels the call if it has not ended, and releases its result. Twice
	// is harmless.
	Close()
}

// Codec writes and reads limpet's one value format: internal/value, behind an
// interface because this package imports nothing. For limpet's own packages.
type Codec interface {
	// Plain reports whether values of the type named by this pointer may be
	// handed over by assignment, since they share no memory that could change.
	Plain(pointerToType any) bool
	// Args encodes an argument list. An error is CodeInvalidArgument or
	// CodeTooLarge and names the argument.
	Args(args ...any) (Encoded, error)
	// DecodeArgs decodes an argument list into the pointers; another number of
	// arguments is CodeInvalidArgument naming both numbers.
	DecodeArgs(e Encoded, into ...any) error
	// With is the same codec with hooks for capabilities; without them a stub,
	// function or stream is refused.
	With(h CapabilityHooks) Codec
	// Marshal encodes one value; Unmarshal decodes it into a pointer.
	Marshal(v any) (Encoded, error)
	Unmarshal(e Encoded, into any) error
}

// Binding is what a Resolver knows of one namespace. It is not changed once it
// is made. For limpet's own packages; programs hand a Resolver to NamespaceOf.
type Binding struct {
	// Name is the binding, such as "CART".
	Name string
	// Class runs the objects. It is nil when they are not run by this process;
	// then ClassIdentity alone says whose they are.
	Class *Class
	// ClassIdentity is the stable identity behind the class (SPEC A2): the key
	// of all its IDs.
	ClassIdentity string
	// Policy is the default of every stub.
	Policy RetryPolicy
	Caller Caller
	Codec  Codec
	// Origin is the object that the stubs of this binding belong to; nil outside
	// of objects.
	Origin Origin
}

// Origin is the object out of which a call is made. For limpet's own packages.
type Origin interface {
	// Leave is called before anything leaves the object: an outgoing call, an
	// outside fetch, the function of Await. It ends the running turn (commits
	// its writes), waits until that and the identities of the object's running
	// calls are durable, and opens the input gate (SPEC E10, H2), so that a crash
	// can't take back what others have heard of. The context it returns is the
	// outgoing call's: it carries the call chain. It fails with CodeNoTurn, CodeReset or a storage error; then
	// nothing may leave and Return must not be called.
	Leave(ctx context.Context) (context.Context, error)
	// Return takes the object again before the handler goes on. It waits as
	// long as it must; it fails with CodeReset when the incarnation has ended
	// meanwhile.
	Return(ctx context.Context) error
}

// Resolver finds namespaces, for NamespaceOf: a *node.Node, and inside an object
// its *State.
type Resolver interface {
	// Binding finds a namespace by the name it is bound to. An unknown one is
	// CodeUnknownNamespace, naming those that there are.
	Binding(name string) (*Binding, error)
}

type originKey struct{}

// WithOrigin returns a context for a handler of the object o: calls made with
// it are calls made out of o. For limpet's own packages.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginKey is the key under which a handler's context holds its Origin, for
// contexts that answer it themselves. For limpet's own packages.
func OriginKey() any { return originKey{} }

// OriginOf is the object out of which a call with this context and binding is
// made, or nil: a stub that came from a State belongs to that object, else the
// context says. For limpet's own packages.
func OriginOf(ctx context.Context, b *Binding) Origin {
	if b != nil && b.Origin != nil {
		return b.Origin
	}
	o, _ := ctx.Value(originKey{}).(Origin)
	return o
}
