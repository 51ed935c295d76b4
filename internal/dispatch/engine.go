package dispatch

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
)

// Config is what an Engine needs. Router and Clock must be set.
type Config struct {
	Router Router
	// Clock may also have a method Since like time.Since: it is asked in each
	// call, and reading only the monotonic clock takes half the time of Now.
	Clock limpet.Clock
	// Rand makes identities and backoffs; nil means the system's secure source.
	// It must be safe for concurrent use, and never the same in two processes.
	Rand rand.Source
	// Observer hears of retries; nil means nobody does.
	Observer Observer
	// ReplayMemory and ReplayMemoryPerCall bound the bytes kept for retries, of
	// all calls and of one: arguments of method calls, and bodies of fetches that
	// limpet.BufferBody keeps. 0 means the default; with a negative one no method
	// call finds room, so that none is retried. Bodies that can be had again from
	// the caller are not counted.
	ReplayMemory, ReplayMemoryPerCall int64
}

// Engine carries calls to objects, with retries. It implements limpet.Caller and
// is safe for concurrent use.
type Engine struct {
	router   Router
	clock    limpet.Clock
	rand     rand.Source
	draw     func() uint64 // for backoffs: rand's, except in tests
	observer Observer
	replay   replayPool
	epoch    time.Time // zero of the machines' time
	since    func(time.Time) time.Duration

	closing chan struct{} // closed by Close
	mu      sync.Mutex    // orders adding to flights with closing
	flights sync.WaitGroup
}

var _ limpet.Caller = (*Engine)(nil)

// New returns an engine. Close ends it.
func New(c Config) *Engine {
	if c.Rand == nil {
		c.Rand = systemRand{}
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if c.ReplayMemory == 0 {
		c.ReplayMemory = DefaultReplayMemory
	}
	if c.ReplayMemoryPerCall == 0 {
		c.ReplayMemoryPerCall = DefaultReplayMemoryPerCall
	}
	since := func(t time.Time) time.Duration { return c.Clock.Now().Sub(t) }
	if s, ok := c.Clock.(interface{ Since(time.Time) time.Duration }); ok {
		since = s.Since
	}
	return &Engine{
		router: c.Router, clock: c.Clock, rand: c.Rand, draw: c.Rand.Uint64, observer: c.Observer,
		replay:  replayPool{limit: c.ReplayMemory, perCall: c.ReplayMemoryPerCall},
		epoch:   c.Clock.Now(),
		since:   since,
		closing: make(chan struct{}),
	}
}

// Close refuses new calls (CodeDraining, not delivered), ends retries, backoffs
// and attempts that run on goroutines of the engine, and returns when all of
// these have ended. A call that runs on its caller's goroutine is not waited
// for. Closing twice is harmless.
func (e *Engine) Close() {
	e.mu.Lock()
	if !e.isClosed() {
		close(e.closing)
	}
	e.mu.Unlock()
	e.flights.Wait()
}

func (e *Engine) isClosed() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

// ReplayMemory is what the replay memory holds now (SPEC I7).
func (e *Engine) ReplayMemory() ReplayMemory {
	return ReplayMemory{
		Used: e.replay.used.Load(), Limit: e.replay.limit, PerCall: e.replay.perCall, Refused: e.replay.refused.Load(),
	}
}

// Call makes a KindMethod call. Every error is a *limpet.Error.
func (e *Engine) Call(ctx context.Context, c *limpet.CallSpec) (any, error) {
	if err := e.admit(ctx); err != nil {
		return nil, err
	}
	o := limpet.OriginOf(ctx, c.Binding)
	if o == nil {
		return e.call(ctx, c)
	}
	out, err := o.Leave(ctx) // SPEC E10: before callStart is taken
	if err != nil {
		return nil, unsent(err)
	}
	v, err := e.call(out, c)
	if gone := o.Return(out); gone != nil {
		releaseValue(v)
		return nil, notReturned(gone, err)
	}
	return v, err
}

// Fetch makes a KindFetch call. It closes req.Body in every case; the caller
// closes the response's. Every error is a *limpet.Error.
//
// The URL must be absolute, http or https, and name a host; where the object is
// has nothing to do with it (SPEC B8). A request that a server received may be
// passed on as it is: its URL is made absolute from TLS and Host. GET and HEAD
// have no body (SPEC B10).
//
// With follow, redirects go to the same object (SPEC B11). In the response,
// Request is the last request, and Request.Response the redirect that led to it:
// it is not nil exactly when there was one.
func (e *Engine) Fetch(ctx context.Context, c *limpet.CallSpec, req *http.Request, follow bool) (*http.Response, error) {
	err := e.admit(ctx)
	var f *fetch
	if err == nil {
		f, err = newFetch(ctx, req, follow)
	}
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // nothing was read from it
		}
		return nil, err
	}
	defer f.closeBody()
	o := limpet.OriginOf(ctx, c.Binding)
	if o == nil {
		return e.fetch(ctx, c, f)
	}
	out, err := o.Leave(ctx) // SPEC E45: once, not per hop or retry
	if err != nil {
		return nil, unsent(err)
	}
	resp, err := e.fetch(out, c, f)
	if gone := o.Return(out); gone != nil {
		discard(resp)
		return nil, notReturned(gone, err)
	}
	return resp, err
}

// admit refuses calls that need not begin.
func (e *Engine) admit(ctx context.Context) error {
	if e.isClosed() {
		return closed(limpet.DeliveryNone)
	}
	if ctx.Err() != nil {
		return canceled(ctx, limpet.DeliveryNone)
	}
	return nil
}

// notReturned is the failure of a call that ended, with err, when its own object
// was gone.
func notReturned(gone, err error) error {
	d := limpet.DeliveryReceived
	if err != nil {
		d = limpet.DeliveryOf(err)
	}
	return notOfTarget(gone, d)
}

// call is Call without the output gate.
func (e *Engine) call(ctx context.Context, c *limpet.CallSpec) (any, error) {
	replayable := c.Unretryable == "" // SPEC D11, G11
	retries := replayable && c.Policy.MaxRetries > 0
	var start time.Duration
	if retries {
		start = e.now()
	}
	t, err := e.router.Route(ctx, c)
	if err != nil || !t.Lossless() || (!prompt(t) && ctx.Done() != nil) {
		r := newRun(e, ctx, c, replayable)
		r.first, r.firstErr, r.why = t, err, c.Unretryable
		return r.call(start)
	}
	// The short way: nothing can be lost, nothing must be waited for. The machine
	// need not hear of a first attempt that succeeds (SPEC E20, E21).
	v, err := t.Do(ctx, Attempt{Call: c, Number: 1, WillRetry: retries})
	if err == nil {
		return v, nil
	}
	r := newRun(e, ctx, c, replayable)
	r.attempts, r.why, r.sendable = 1, c.Unretryable, replayable
	r.step(start, event{kind: evStart}) // orders the attempt that was made
	r.here = &result{err: err}
	v, _, err = r.loop()
	return v, err
}

// fetch is Fetch without the output gate.
func (e *Engine) fetch(ctx context.Context, c *limpet.CallSpec, f *fetch) (*http.Response, error) {
	e.buffer(c, f)
	why := cmp.Or(c.Unretryable, f.spent())
	r := newRun(e, ctx, c, why == "")
	r.fetch, r.why = f, why
	r.do(r.step(e.now(), event{kind: evStart}))
	_, resp, err := r.loop()
	return resp, err
}

// buffer keeps the body of a fetch for retries and redirects, if it can be read
// only once and the stub says so (G.1).
func (e *Engine) buffer(c *limpet.CallSpec, f *fetch) {
	limit := c.Policy.BufferBody
	if limit <= 0 || f.body == nil || !f.once || c.Unretryable != "" {
		return
	}
	refused := func() {
		e.replay.refused.Add(1)
		e.observer.ReplayRefused(c)
	}
	if f.long = tooLong(f.req.ContentLength, limit, &e.replay); f.long != "" {
		refused()
		return
	}
	f.keep(&e.replay, limit, refused)
}

// now is the machines' time.
func (e *Engine) now() time.Duration { return e.since(e.epoch) }

// identity makes the token of a call (SPEC F1).
func (e *Engine) identity() (id limpet.Identity) {
	binary.BigEndian.PutUint64(id.Nonce[:8], e.rand.Uint64())
	binary.BigEndian.PutUint64(id.Nonce[8:], e.rand.Uint64())
	id.CreatedMS = e.clock.Now().UnixMilli()
	return id
}

// spawn runs f on a goroutine that Close waits for; false after Close.
func (e *Engine) spawn(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isClosed() {
		return false
	}
	e.flights.Go(f)
	return true
}

type systemRand struct{}

func (systemRand) Uint64() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails (crypto/rand)
	return binary.BigEndian.Uint64(b[:])
}
