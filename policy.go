package limpet

import "time"

// Bounds and defaults of a retry policy (SPEC D2, D3).
const (
	DefaultMaxRetries   = 4
	MaxMaxRetries       = 10
	DefaultRetryTimeout = 10 * time.Second
	MinRetryTimeout     = 500 * time.Millisecond
	MaxRetryTimeout     = 60 * time.Second
)

// RetryPolicy limits how limpet retries the calls of a stub. It bounds retrying,
// never the call: a first attempt is not cancelled by it (SPEC D10).
type RetryPolicy struct {
	// MaxRetries is the number of attempts after the first, 0 to 10. 0 means no
	// retries.
	MaxRetries int
	// Timeout, counted from the start of the call, is when the last retry must
	// have ended: 500 ms to 60 s in whole milliseconds (SPEC E11, E12).
	Timeout time.Duration
	// BufferBody is how many bytes of a fetch's body that can be read only once
	// are kept, so that it can be sent again; 0 means none.
	BufferBody int64
	// ReplayOutcome asks for the first outcome when the object refuses a call
	// because it has received it already; see the option of that name.
	ReplayOutcome bool
}

// DefaultRetryPolicy is four retries within ten seconds.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{MaxRetries: DefaultMaxRetries, Timeout: DefaultRetryTimeout}
}

// Validate refuses a policy out of bounds with CodeInvalidArgument, MaxRetries
// before Timeout (SPEC D21) before BufferBody.
func (p RetryPolicy) Validate() error {
	if p.MaxRetries < 0 || p.MaxRetries > MaxMaxRetries {
		return invalid("RangeError", "MaxRetries(%d): must be from 0 to %d", p.MaxRetries, MaxMaxRetries)
	}
	if p.Timeout < MinRetryTimeout || p.Timeout > MaxRetryTimeout || p.Timeout%time.Millisecond != 0 {
		return invalid("RangeError", "RetryTimeout(%v): must be whole milliseconds from %v to %ds",
			p.Timeout, MinRetryTimeout, MaxRetryTimeout/time.Second)
	}
	if p.BufferBody < 0 {
		return invalid("RangeError", "BufferBody(%d): must be 0 or more bytes", p.BufferBody)
	}
	return nil
}

// With is the policy with options on top of it, checked by Validate.
func (p RetryPolicy) With(opts ...StubOption) (RetryPolicy, error) {
	o := stubOptions{policy: p}
	for _, opt := range opts {
		if opt == nil {
			return p, invalid("TypeError", "a stub option is nil")
		}
		opt.applyStub(&o)
	}
	return o.policy, o.policy.Validate()
}

// StubOption sets a property of one stub. An option that is not given leaves the
// binding's default, field by field (SPEC D5).
type StubOption interface{ applyStub(*stubOptions) }

type stubOptions struct {
	policy RetryPolicy
}

type stubOptionFunc func(*stubOptions)

func (f stubOptionFunc) applyStub(o *stubOptions) { f(o) }

// MaxRetries sets the number of retries after the first attempt, 0 to 10
// (default 4, SPEC D2). Another value is an error of the stub.
func MaxRetries(n int) StubOption {
	return stubOptionFunc(func(o *stubOptions) { o.policy.MaxRetries = n })
}

// RetryTimeout sets when the last retry must have ended, counted from the start
// of the call: 500 ms to 60 s in whole milliseconds (default 10 s, SPEC D3).
// Another value is an error of the stub.
func RetryTimeout(d time.Duration) StubOption {
	return stubOptionFunc(func(o *stubOptions) { o.policy.Timeout = d })
}

// ReplayOutcome makes objects keep the outcome of each call that carries an
// identity, for 90 s: a retry that the object refuses, since it has received the
// call already, then brings the first run's result or error instead of the lost
// connection, and waits for it if that run goes on; [Outcome] can ask for it too.
// Keeping an outcome costs a record in the log for each call, also for reads. It
// is as durable as the reply, and survives kill -9.
//
// Kept are results and errors of at most 64 KiB (MaxKeptOutcome), with stubs,
// functions and streams none; other calls fail as without the option. A handler
// marked retryable runs again only if no outcome was kept and none is to come. The
// end of a connection does not end the context of the run: only the caller's own
// cancellation does. Default: off, or what the binding says.
func ReplayOutcome() StubOption {
	return stubOptionFunc(func(o *stubOptions) { o.policy.ReplayOutcome = true })
}

// NoRetries is MaxRetries(0).
func NoRetries() StubOption { return MaxRetries(0) }

// BufferBody lets bodies of Fetch and RoundTrip that can be read only once (those
// of requests without GetBody) be sent again, to a retry or a redirect: up to n
// bytes are kept while they are read. A body that is longer, or finds no room in
// the replay memory, goes on as if there were no BufferBody; that is counted in
// limpet_replay_refused_total, and Error.NoRetry says so if a retry would have
// been made. n is 0, the default, to keep none, or more; another value is an error
// of the stub.
func BufferBody(n int64) StubOption {
	return stubOptionFunc(func(o *stubOptions) { o.policy.BufferBody = n })
}
