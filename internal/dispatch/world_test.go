package dispatch

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

const ms = time.Millisecond

// fault is what happens to one attempt.
type fault struct {
	after time.Duration // how long the attempt takes
	kind  faultKind
	err   error // failing, noRoute
}

type faultKind int

const (
	answer      faultKind = iota // arrives, answered
	lostRequest                  // lost on the way there: uncertain
	lostReply                    // arrives, the answer is lost: uncertain
	refused                      // not delivered
	draining                     // refused by a stopping node
	received                     // arrives, then the object's connection breaks
	failing                      // fails with err, without arriving
	hang                         // never answers, but heeds its context
	stuck                        // not even that: until world.unstick
	noRoute                      // the router fails with err
)

// world is one object, the way to it, and a record of what happened. It is a
// Router and its only Transport.
type world struct {
	t        *testing.T
	start    time.Time
	lossless bool
	prompt   bool
	boot     Boot
	marked   bool // the method may run again
	unstick  chan struct{}
	handler  func(Attempt) (any, error)           // nil answers the number of executions
	serve    func(r *http.Request) *http.Response // KindFetch
	faults   func(attempt int) fault              // nil: script
	script   []fault                              // by attempt over all calls, then answer
	routes   func(n int) Transport                // nil: the world itself
	onRetry  func()
	pipe     func(Attempt) Pipeliner // nil: the transport can't pipeline

	mu         sync.Mutex
	routed     int
	attempts   []seen
	claims     map[limpet.Identity]bool
	executions int
	returned   int

	retries  int
	ends     []AttemptEnd
	outcomes []string
	refusals int
}

// seen is one attempt as the transport saw it.
type seen struct {
	at time.Duration
	Attempt
}

func newWorld(t *testing.T, script ...fault) *world {
	return &world{
		t: t, start: time.Now(), script: script, unstick: make(chan struct{}),
		claims: map[limpet.Identity]bool{}, boot: Boot{Boot: [16]byte{1}},
	}
}

func (w *world) Route(_ context.Context, c *limpet.CallSpec) (Transport, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.routed
	w.routed++
	if f := w.fault(n); f.kind == noRoute {
		return nil, f.err
	}
	if w.routes != nil {
		return w.routes(n), nil
	}
	return w, nil
}

func (w *world) Lossless() bool { return w.lossless }
func (w *world) Prompt() bool   { return w.prompt }
func (w *world) Boot() Boot     { return w.boot }

func (w *world) fault(n int) fault {
	switch {
	case w.faults != nil:
		return w.faults(n)
	case n < len(w.script):
		return w.script[n]
	default:
		return fault{}
	}
}

// begin is the way of an attempt to the object.
func (w *world) begin(ctx context.Context, a Attempt) (fault, error) {
	w.mu.Lock()
	w.attempts = append(w.attempts, seen{time.Since(w.start), a})
	f := w.fault(w.routed - 1)
	w.mu.Unlock()
	wait := time.After(f.after)
	switch f.kind {
	case hang:
		wait = nil
	case stuck:
		<-w.unstick
		return f, lost(limpet.DeliveryUncertain)
	}
	select {
	case <-wait:
	case <-ctx.Done():
		return f, ctx.Err()
	}
	switch f.kind {
	case lostRequest:
		return f, lost(limpet.DeliveryUncertain)
	case refused:
		return f, lost(limpet.DeliveryNone)
	case draining:
		return f, limpet.Errorf(limpet.CodeDraining, "going").With(func(e *limpet.Error) { e.Delivery = limpet.DeliveryNone })
	case failing:
		return f, f.err
	}
	return f, w.claim(a)
}

// claim enforces SPEC F13 to F15 and rule B of DESIGN 5.
func (w *world) claim(a Attempt) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !a.Identity.IsZero() {
		if w.claims[a.Identity] && a.WillRetry && !w.marked {
			return &limpet.Error{Code: limpet.CodeAlreadyReceived, Message: "claimed"}
		}
		w.claims[a.Identity] = true
	}
	w.executions++
	return nil
}

// end is the way of its answer.
func (w *world) end(f fault) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.returned++
	switch f.kind {
	case lostReply:
		return lost(limpet.DeliveryUncertain)
	case received:
		return lost(limpet.DeliveryReceived)
	}
	return nil
}

func (w *world) Do(ctx context.Context, a Attempt) (any, error) {
	if w.pipe != nil && a.Pipe != nil {
		a.Pipe.Attach(w.pipe(a))
	}
	f, err := w.begin(ctx, a)
	if err != nil {
		return nil, err
	}
	var v any
	if w.handler != nil {
		v, err = w.handler(a)
	} else {
		w.mu.Lock()
		v = w.executions
		w.mu.Unlock()
	}
	if lost := w.end(f); lost != nil {
		return nil, lost
	}
	return v, err
}

func (w *world) Fetch(ctx context.Context, a Attempt) (*http.Response, error) {
	defer a.Request.Body.Close()
	f, err := w.begin(ctx, a)
	if err != nil {
		return nil, err
	}
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}
	if w.serve != nil {
		resp = w.serve(a.Request)
	}
	if lost := w.end(f); lost != nil {
		discard(resp)
		return nil, lost
	}
	return resp, nil
}

func (w *world) AttemptEnded(_ *limpet.CallSpec, a AttemptEnd) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = append(w.ends, a)
}

func (w *world) RetryStarted(*limpet.CallSpec) {
	w.mu.Lock()
	w.retries++
	f := w.onRetry
	w.mu.Unlock()
	if f != nil {
		f()
	}
}

func (w *world) Outcome(c *limpet.CallSpec, o Outcome, since time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outcomes = append(w.outcomes, fmt.Sprintf("%v %v %v", c.Kind, o, since))
}

func (w *world) ReplayRefused(*limpet.CallSpec) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusals++
}

func lost(d limpet.Delivery) *limpet.Error {
	return &limpet.Error{Code: limpet.CodeDisconnected, Message: "Network connection lost.", Delivery: d, Retryable: true}
}

func code(c limpet.Code, d limpet.Delivery) *limpet.Error {
	return &limpet.Error{Code: c, Message: string(c), Delivery: d}
}

// engine over the world; delays are the backoffs to come, 100 ms after them.
func (w *world) engine(delays ...time.Duration) *Engine {
	e := New(Config{Router: w, Clock: sim.Clock{}, Observer: w})
	e.setDelays(w.t, delays...)
	return e
}

func (e *Engine) setDelays(t *testing.T, delays ...time.Duration) {
	k := 0
	e.draw = func() uint64 {
		k++
		delay := 100 * ms
		if k <= len(delays) {
			delay = delays[k-1]
		}
		draw, err := drawFor(max(1, min(k, 4)), delay)
		if err != nil {
			t.Error(err)
		}
		return draw
	}
}

// flags tells the attempts: time, identity by its first attempt, retry flag.
func (w *world) flags() (out []string) {
	var ids []limpet.Identity
	for _, a := range w.attempts {
		i := slices.Index(ids, a.Identity)
		if i < 0 {
			i = len(ids)
			ids = append(ids, a.Identity)
		}
		flag := 0
		if a.Retry {
			flag = 1
		}
		name := fmt.Sprintf("N%d", i+1)
		if a.Identity.IsZero() {
			name = "none"
		}
		out = append(out, fmt.Sprintf("%v #%d (%s,%d)", a.at, a.Number, name, flag))
	}
	return out
}

var testBinding = &limpet.Binding{Name: "CART"}

func newCall(change ...func(*limpet.CallSpec)) *limpet.CallSpec {
	c := &limpet.CallSpec{
		Binding: testBinding, Method: "addOne", Policy: limpet.DefaultRetryPolicy(), Runner: &args{},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func policy(retries int, timeout time.Duration) func(*limpet.CallSpec) {
	return func(c *limpet.CallSpec) { c.Policy = limpet.RetryPolicy{MaxRetries: retries, Timeout: timeout} }
}

// args is a Runner of which only the arguments matter.
type args struct {
	size    int
	err     error
	encoded int
}

func (a *args) Run(context.Context, any) (any, error) { panic("not in these tests") }
func (a *args) Capabilities() []limpet.Capability     { return nil }
func (a *args) Size() int                             { return a.size }
func (a *args) Args() (limpet.Encoded, error) {
	a.encoded++
	return nil, a.err
}

// bubble runs a test in virtual time; it fails if a goroutine stays.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func asLimpet(t *testing.T, err error) *limpet.Error {
	t.Helper()
	e, ok := err.(*limpet.Error) //nolint:errorlint // calls fail with nothing else, not even wrapped
	if !ok {
		t.Fatalf("error is a %T (%v), want *limpet.Error", err, err)
	}
	return e
}
