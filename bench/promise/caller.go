package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
)

// This file is the callers and what they call: operations, each one call with a
// name of its own, which no other call has.

const (
	opPrefix = "op_"
	opLength = len("op_001-00000001")
)

func opName(round int, n int64) string { return fmt.Sprintf("%s%03d-%08d", opPrefix, round, n) }

// method is one kind of operation.
type method struct {
	name   string
	weight int
	marked bool
	tells  bool     // tells the witness by a call out of the object
	says   bool     // its result is text that begins with its run
	stages []string // what an answered one has written, of its one run
	call   func(ctx context.Context, s *limpet.Stub[Object], o *op) error
}

// op is one operation and how it ended.
type op struct {
	ID     string
	Object int // even ones are gated
	Method *method
	Start  time.Duration // since the round began
	End    time.Duration
	Tries  []try
	Err    error // of the last try
	// Keyed operations are called under an idempotency key, again if need be.
	Keyed bool
	// Told is what the object answered when it was asked what became of the
	// operation, nil if it was not asked.
	Told *told
	// Run is what the result said of the run, in part perhaps if Err is set.
	Run string
	// Saw are runs of other operations that the result told of.
	Saw []sight
	// Read, Low and High are what a read gave, and its bounds; Value is what a put
	// puts.
	Read, Low, High, Value int64
}

func (o *op) gated() bool { return o.Object%2 == 0 }

// try is one call. An operation has one, or several under one key.
type try struct {
	Took, Bound time.Duration // and how long it may take
	Delivery    limpet.Delivery
}

// told is the answer of limpet.Outcome.
type told struct {
	Kind limpet.OutcomeKind // 0: it failed with Err
	Run  string             // of a result that says it
	Err  error
}

// methods is the mix.
var methods = []*method{
	{name: "write", weight: 20, stages: []string{"w"}, says: true, call: text(Object.Write)},
	{name: "call, then write", weight: 10, tells: true, stages: []string{"w"}, says: true, call: text(Object.CallFirst)},
	{name: "call only", weight: 10, tells: true, says: true, call: text(Object.CallOnly)},
	{name: "write, call, write", weight: 10, tells: true, stages: []string{"a", "b"}, says: true, call: text(Object.WriteCallWrite)},
	field,
	{name: "read", weight: 12, call: func(ctx context.Context, s *limpet.Stub[Object], o *op) (err error) {
		o.Read, err = limpet.Call1(ctx, s, Object.Read, o.ID)
		return err
	}},
	{name: "stream", weight: 8, stages: []string{"a", "b"}, call: stream},
	abort,
	{name: "set (marked)", weight: 10, marked: true, tells: true, call: func(ctx context.Context, s *limpet.Stub[Object], o *op) error {
		return limpet.Do2(ctx, s, Object.Set, o.ID, valueOf(o.ID))
	}},
	publish,
}

// These are looked for by name.
var (
	field = &method{name: "field, Await", weight: 10, stages: []string{"w"}, says: true, call: text(Object.Field)}
	abort = &method{name: "abort after write", weight: 2, call: func(ctx context.Context, s *limpet.Stub[Object], o *op) error {
		return limpet.Do1(ctx, s, Object.Abort, o.ID)
	}}
	publish = &method{name: "publish", says: true, call: func(ctx context.Context, s *limpet.Stub[Object], o *op) error {
		if err := text(Object.Publish)(ctx, s, o); err != nil {
			return err
		}
		words := strings.Fields(o.Run)
		o.Run = words[0]
		for _, w := range words[1:] {
			other, run, _ := strings.Cut(w, "=")
			o.Saw = append(o.Saw, sight{other, run, "published to " + o.ID})
		}
		return nil
	}}
	add = &method{name: "add", call: func(ctx context.Context, s *limpet.Stub[Object], o *op) (err error) {
		o.Read, err = limpet.Call1(ctx, s, Object.Add, o.ID)
		return err
	}}
	put = &method{name: "put", call: func(ctx context.Context, s *limpet.Stub[Object], o *op) error {
		return limpet.Do2(ctx, s, Object.Put, o.ID, o.Value)
	}}
	getCounter  = &method{name: "get", call: get("c")}
	getRegister = &method{name: "get", call: get("r")}
)

func get(key string) func(context.Context, *limpet.Stub[Object], *op) error {
	return func(ctx context.Context, s *limpet.Stub[Object], o *op) (err error) {
		o.Read, err = limpet.Call2(ctx, s, Object.Get, o.ID, key)
		return err
	}
}

// text calls a method whose result is its run.
func text(m func(Object, context.Context, string) (string, error)) func(context.Context, *limpet.Stub[Object], *op) error {
	return func(ctx context.Context, s *limpet.Stub[Object], o *op) (err error) {
		o.Run, err = limpet.Call1(ctx, s, m, o.ID)
		return err
	}
}

// valueOf is what a Set of an operation sets.
func valueOf(op string) string { return "value of " + op }

// errShort says that a body ended as if it was whole, and is not.
var errShort = errors.New("the body ended too early, and said nothing of it")

// stream fetches. The operation is answered when the last word of its body is.
func stream(ctx context.Context, s *limpet.Stub[Object], o *op) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://object/stream?op="+o.ID, nil)
	if err != nil {
		return err
	}
	resp, err := s.Fetch(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if o.Run = resp.Header.Get("Run"); resp.StatusCode != http.StatusOK || o.Run == "" {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		return &limpet.Error{Code: limpet.CodeApplication, Delivery: limpet.DeliveryReceived, Remote: true, Message: resp.Status + ": " + string(b)}
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if string(b) != strings.Repeat(".", streamBytes)+o.Run {
		return fmt.Errorf("%w: it has %d bytes", errShort, len(b))
	}
	return nil
}

// pick chooses a method of the mix.
func pick(rng *rand.Rand) *method {
	total := 0
	for _, m := range methods {
		total += m.weight
	}
	n := rng.IntN(total)
	for _, m := range methods {
		if n -= m.weight; n < 0 {
			return m
		}
	}
	return methods[0]
}

const (
	// attemptBound is how long one attempt can take: a connection that is frozen
	// is lost after 10 s, at the next of the pings that come every 5 s.
	attemptBound = 16 * time.Second
	// slack is what the machine may add.
	slack = 5 * time.Second
	// mostTries are made under one key.
	mostTries = 4
)

// callers are all who call, and what they have called in this round.
type callers struct {
	clients []*client.Client
	spaces  [][2]limpet.Namespace[Object] // of each client: gated, free
	objects int
	round   int
	began   time.Time

	next    atomic.Int64
	started []atomic.Int64 // operations of each object that may count
	counted []atomic.Int64 // those that were answered and did

	mu  sync.Mutex
	ops []*op
	sum sums
}

// sums are for people.
type sums struct {
	Calls   int64
	Ended   map[string]*endings // by method
	Slowest time.Duration
	Keyed   int64                        // under an idempotency key
	Again   int64                        // further tries of those
	Asked   map[limpet.OutcomeKind]int64 // by answer; 0: none
}

// endings counts how the calls of a method ended.
type endings struct{ Answered, Failed, None, Uncertain, Received, Canceled int64 }

// newRound forgets the operations of the last one.
func (c *callers) newRound(round int) {
	c.round, c.began, c.ops = round, time.Now(), nil
	c.next.Store(0)
	c.started, c.counted = make([]atomic.Int64, c.objects), make([]atomic.Int64, c.objects)
}

// objectName is the name of object i; its class is by i's parity.
func objectName(i int) string { return "object-" + strconv.Itoa(i) }

// caller is one goroutine that calls.
type caller struct {
	*callers
	client int
	rng    *rand.Rand
}

// run calls until stop, or until all operations have been taken.
func (c *caller) run(ctx context.Context, take func() bool) {
	var aside sync.WaitGroup
	defer aside.Wait()
	for ctx.Err() == nil && take() {
		i := c.rng.IntN(c.objects)
		if c.rng.IntN(2) == 0 { // some are used much
			i = c.rng.IntN(max(c.objects/10, 2))
		}
		m := pick(c.rng)
		if m == field && take() {
			wait := time.Duration(c.rng.Int64N(int64(6 * time.Millisecond)))
			rng := rand.New(rand.NewPCG(c.rng.Uint64(), 0))
			aside.Go(func() {
				time.Sleep(wait)
				other := caller{c.callers, (c.client + 1) % len(c.clients), rng}
				other.do(publish, i)
			})
		}
		c.do(m, i)
	}
}

// do makes one operation.
func (c *caller) do(m *method, object int) {
	o := &op{ID: opName(c.round, c.next.Add(1)), Object: object, Method: m}
	c.make(o, c.spaces[c.client][object%2], objectName(object))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ops = append(c.ops, o)
	c.sum.add(o)
}

// make calls.
func (c *caller) make(o *op, space limpet.Namespace[Object], name string) {
	counts := len(o.Method.stages) > 0 || o.Method == abort
	if counts {
		c.started[o.Object].Add(1)
	}
	history := o.Object >= c.objects
	o.Keyed = !history && c.rng.IntN(8) == 0
	opts := []limpet.StubOption{
		limpet.MaxRetries([...]int{0, 2, 4, 6, 8, 10}[c.rng.IntN(6)]),
	}
	if c.rng.IntN(4) == 0 {
		opts = append(opts, limpet.ReplayOutcome())
	}
	o.Low = c.countedOf(o.Object)
	o.Start = time.Since(c.began)
	for {
		c.try(o, space, name, opts)
		if !o.Keyed || len(o.Tries) == mostTries || !isLost(o.Err) {
			break
		}
	}
	o.End = time.Since(c.began)
	if o.Object < len(c.started) {
		o.High = c.started[o.Object].Load()
		if counts && o.Err == nil {
			c.counted[o.Object].Add(1)
		}
	}
	if e, ok := errors.AsType[*limpet.Error](o.Err); ok && !history && e.Identity != "" && e.Delivery == limpet.DeliveryUncertain && c.rng.IntN(2) == 0 {
		c.ask(o, space.Named(name), e.Identity)
	}
}

// isLost reports whether calling again under the same key is worth a try.
func isLost(err error) bool {
	switch limpet.CodeOf(err) {
	case limpet.CodeDisconnected, limpet.CodeDraining, limpet.CodeCanceled:
		return true
	}
	return false
}

// try makes one call.
func (c *caller) try(o *op, space limpet.Namespace[Object], name string, opts []limpet.StubOption) {
	timeout := [...]time.Duration{time.Second, 3 * time.Second, 8 * time.Second}[c.rng.IntN(3)]
	ctx := context.Background()
	t := try{Bound: max(timeout, attemptBound) + slack}
	if c.rng.IntN(40) == 0 {
		d := 200*time.Millisecond + time.Duration(c.rng.Int64N(int64(time.Second)))
		t.Bound = d + slack
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	if o.Keyed {
		ctx = limpet.WithIdempotencyKey(ctx, o.ID)
	}
	start := time.Now()
	o.Err = o.Method.call(ctx, space.Named(name, append(opts, limpet.RetryTimeout(timeout))...), o)
	t.Took, t.Delivery = time.Since(start), limpet.DeliveryReceived
	if o.Err != nil {
		t.Delivery = limpet.DeliveryOf(o.Err)
	}
	o.Tries = append(o.Tries, t)
}

// ask asks what became of an operation.
func (c *caller) ask(o *op, s *limpet.Stub[Object], identity string) {
	ctx, cancel := context.WithTimeout(context.Background(), attemptBound+slack)
	defer cancel()
	out, err := limpet.Outcome(ctx, s, identity)
	o.Told = &told{Err: err}
	if err != nil {
		return
	}
	o.Told.Kind = out.Kind
	switch {
	case out.Kind == limpet.OutcomeError:
		o.Told.Err = out.Err
	case out.Kind != limpet.OutcomeResult:
	case out.Response != nil:
		o.Told.Run = out.Response.Header.Get("Run")
	case o.Method.says:
		if err := out.Decode(&o.Told.Run); err != nil {
			o.Told.Err = err
		}
		o.Told.Run, _, _ = strings.Cut(o.Told.Run, " ")
	}
}

func (c *callers) countedOf(object int) int64 {
	if object < 0 || object >= len(c.counted) {
		return 0
	}
	return c.counted[object].Load()
}

func (s *sums) add(o *op) {
	s.Calls++
	for _, t := range o.Tries {
		s.Slowest = max(s.Slowest, t.Took)
	}
	if s.Ended == nil {
		s.Ended, s.Asked = map[string]*endings{}, map[limpet.OutcomeKind]int64{}
	}
	if o.Keyed {
		s.Keyed++
		s.Again += int64(len(o.Tries) - 1)
	}
	if o.Told != nil {
		s.Asked[o.Told.Kind]++
	}
	e := s.Ended[o.Method.name]
	if e == nil {
		e = &endings{}
		s.Ended[o.Method.name] = e
	}
	failure, _ := errors.AsType[*limpet.Error](o.Err)
	switch {
	case o.Err == nil:
		e.Answered++
	case failure == nil || failure.Remote || failure.Reset:
		e.Failed++
	case failure.Code == limpet.CodeCanceled:
		e.Canceled++
	case failure.Delivery == limpet.DeliveryNone:
		e.None++
	case failure.Delivery == limpet.DeliveryUncertain:
		e.Uncertain++
	default:
		e.Received++
	}
}
