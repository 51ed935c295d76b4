package dispatch

import (
	"context"
	"net/http"

	"github.com/limpet-dev/limpet"
)

// Attempt is one try to bring a call to its object.
type Attempt struct {
	// Call is the call; it is not changed by anybody.
	Call *limpet.CallSpec
	// Identity is the call's token, or zero: the transport is lossless, or the
	// call can't be sent again (SPEC F2).
	Identity limpet.Identity
	// Number counts from 1, per redirect hop. Only number 1 counts as a request
	// of the caller (SPEC E60).
	Number int
	// Retry is the retry flag: an attempt with this Identity may have reached
	// the object before. The object must refuse it then, unless the handler is
	// marked (SPEC F13, F14).
	Retry bool
	// WillRetry is false when the call will not be sent again whatever happens;
	// the object then observes the identity but refuses nothing (SPEC F2).
	WillRetry bool
	// Uncertain names the processes that may have received an earlier attempt
	// with this Identity; empty unless Retry.
	Uncertain []Boot
	// Late reports whether the time for retries is over (SPEC E12); nil for a
	// first attempt. A transport that had to connect asks before it sends: a
	// process that was frozen meanwhile could send a retry when the object has
	// forgotten the claim, before a timer tells of the cutoff.
	Late func() bool
	// Pipe is where the transport says how calls on the promised result reach the
	// object before the result is there; nil if nobody can make any. Attaching is
	// a transport's choice.
	Pipe *Pipe
	// Request is this attempt's own for KindFetch, else nil: absolute URL, its
	// body never nil and byte for byte the caller's (SPEC E46). The transport
	// may change it, and closes its body as an http.RoundTripper does.
	Request *http.Request
}

// Boot names one life of one process over one data directory. Two attempts that
// met the same Boot met the same table of claims (DESIGN 5).
type Boot struct {
	History [16]byte // of the directory: new after a restore or an import
	Boot    [16]byte // of the process
}

// Transport brings attempts to objects in one process. Implementations are safe
// for concurrent use.
//
// When ctx ends, Do and Fetch return soon; the caller of the engine does not
// wait for that, Engine.Close does. A transport that returns at once by itself
// may have a method Prompt() bool that says so: then calls with a context that
// can end need no goroutine.
type Transport interface {
	// Do makes one attempt of a KindMethod call. Errors are *limpet.Error with
	// Delivery set. A lost connection is CodeDisconnected, a node that is
	// stopping CodeDraining, a claim rejection CodeAlreadyReceived without
	// Remote; these three alone concern retries. Any other type of error counts
	// as CodeInternal and uncertain.
	Do(ctx context.Context, a Attempt) (any, error)
	// Fetch makes one attempt of a KindFetch call. It returns when the response
	// headers are there (SPEC E40); ctx goes on to bound the body. Errors are as
	// those of Do.
	Fetch(ctx context.Context, a Attempt) (*http.Response, error)
	// Lossless reports that no answer can be lost on the way, so that attempts
	// need no identity (DESIGN 5, rule B). Such a transport never reports a lost
	// connection as uncertain; if it did, that call would not be retried.
	Lossless() bool
	// Boot is the process at the other end. It is asked when Do or Fetch has
	// returned; if they sent nothing, the answer does not matter.
	Boot() Boot
}

// Router finds the transport to an object. It is asked afresh for every attempt
// (SPEC E29) and is safe for concurrent use.
type Router interface {
	// Route returns as soon as ctx ends. An error says that nothing was sent: on
	// a first attempt it is the call's (SPEC C43); on a retry it is too, unless
	// it is CodeDisconnected or CodeDraining (SPEC E33).
	Route(ctx context.Context, c *limpet.CallSpec) (Transport, error)
}

func prompt(t Transport) bool {
	p, ok := t.(interface{ Prompt() bool })
	return ok && p.Prompt()
}
