package limpet

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// Promise is the result of a call that was started and not waited for. Calls and
// property reads on it are sent at once, where the way to the object allows it,
// and run against the result when that is there, so that a chain of calls costs
// one round trip (SPEC B33):
//
//	cart := shop.Start(ctx, "openCart", "ann")
//	defer cart.Close()
//	n, err := cart.Invoke(ctx, "addOne", "tea") // runs on what openCart returns
//
// If the call that it stands for fails, so do calls on it, with the same error
// (SPEC B34). The first one commits that call: it is not retried any more (SPEC
// E53); Result does not (SPEC E56). Calls on a Promise are never retried.
//
// Close must be called: it cancels the call if it has not ended, and gives back
// everything that the result carried. Dup what shall live longer. A Promise is
// safe for concurrent use.
//
// Inside an object, starting a call commits the turn's writes and waits until
// they are durable, as every call does, but the object is given away only while
// Result and calls on the Promise wait.
type Promise struct {
	root *pending
	path []string // what At leads to
}

// pending is the call behind a Promise and all its views.
type pending struct {
	call  PendingCall // nil: it was never made
	err   error       // why
	codec Codec
	b     *Binding // for OriginOf
	name  string
	stub  *stub // broken by a reset, or nil

	mu      sync.Mutex
	decoded bool
	closed  bool
	value   any
	verr    error
	held    *receiver // what value holds
}

// Start makes a call by name and returns at once. What is wrong with the call, if
// it could not even be made, is the error of Result and of calls on the Promise.
// The call ends when ctx does: inside an object with the event, then.
func (s *Stub[T]) Start(ctx context.Context, method string, args ...any) *Promise {
	d, err := s.dynamic(ctx, method, nil, false, args)
	if err != nil {
		return failedPromise(err)
	}
	p, err := s.s.start(ctx, &d.CallSpec)
	if err != nil {
		d.args.Release()
		return failedPromise(err)
	}
	releaseAfter(p.call, d.args)
	return newPromise(p)
}

func failedPromise(err error) *Promise { return &Promise{root: &pending{err: err}} }

// newPromise sees to it that the result is given back when nobody can any more;
// the call goes on to its end.
func newPromise(p *pending) *Promise {
	runtime.AddCleanup(p, closeWhenDone, p.call)
	return &Promise{root: p}
}

func closeWhenDone(c PendingCall) {
	go func() { // ends with the call
		<-c.Done()
		c.Close()
	}()
}

// releaseAfter gives the arguments of a call back when it has ended.
func releaseAfter(c PendingCall, args Parcel) {
	if len(args.Caps) > 0 {
		go func() { // ends with the call
			<-c.Done()
			args.Release()
		}()
	}
}

// start makes a call that is not waited for.
func (s *stub) start(ctx context.Context, c *CallSpec) (*pending, error) {
	var err error
	if c.Key, err = s.key(ctx); err != nil {
		return nil, err
	}
	b := s.ns.binding
	p := &pending{codec: b.Codec, b: b, name: c.Method, stub: s}
	out := ctx
	if out, err = flush(ctx, OriginOf(ctx, b)); err != nil {
		return nil, failed(err)
	}
	if starter, ok := b.Caller.(Starter); ok {
		p.call, err = starter.Start(out, c)
	} else {
		p.call, err = startHere(out, b, c)
	}
	if err != nil {
		return nil, s.note(err)
	}
	return p, nil
}

// flush lets a call leave the object o, or nil, that is not waited for.
func flush(ctx context.Context, o Origin) (context.Context, error) {
	if exp, ok := o.(Exporter); ok {
		out, err := exp.Flush(ctx)
		if err != nil {
			return nil, err
		}
		return exp.Aside(out), nil
	}
	if o == nil {
		return ctx, nil
	}
	out, err := o.Leave(ctx)
	if err == nil {
		err = o.Return(out)
	}
	return out, err
}

// Invoke calls a method of the result by its JavaScript name, or of what At leads
// to. The result is as that of Stub.Invoke.
func (p *Promise) Invoke(ctx context.Context, method string, args ...any) (any, error) {
	return p.dynamic(ctx, append(slices.Clip(p.path), method), false, args)
}

// Apply calls the result, or what At leads to, which must be a function then.
func (p *Promise) Apply(ctx context.Context, args ...any) (any, error) {
	return p.dynamic(ctx, p.path, false, args)
}

// Get reads a property of the result: the names lead to it, one at least, or
// none on what At leads to.
func (p *Promise) Get(ctx context.Context, path ...string) (any, error) {
	all := append(slices.Clip(p.path), path...)
	if len(all) == 0 {
		return nil, invalid("TypeError", "Get takes the name of a property; the result itself is that of Result")
	}
	return p.dynamic(ctx, all, true, nil)
}

// At is the member of the result to which the names lead, for calls on it. It is
// no handle of its own: its Close is that of the whole Promise, and its Result
// reads the member.
func (p *Promise) At(path ...string) *Promise {
	return &Promise{root: p.root, path: append(slices.Clip(p.path), path...)}
}

// Start is Invoke that returns at once. The call ends when ctx does, and fails
// when p is closed before it has ended.
func (p *Promise) Start(ctx context.Context, method string, args ...any) *Promise {
	t, err := p.target(ctx, append(slices.Clip(p.path), method), false, args)
	if err != nil {
		return failedPromise(err)
	}
	r := p.root
	out := ctx
	if out, err = flush(ctx, OriginOf(ctx, r.b)); err != nil {
		t.Args.Release()
		return failedPromise(failed(err))
	}
	call := goPending(out, func(ctx context.Context) (any, error) {
		out, err := r.call.Child(ctx, t)
		if err != nil {
			return nil, err
		}
		return out.result(), nil
	}, r.codec)
	return newPromise(&pending{call: call, codec: r.codec, b: r.b, name: method})
}

// Result waits for the result, or for ctx to end. It may be asked many times and
// gives the same: its stubs and streams are the Promise's.
func (p *Promise) Result(ctx context.Context) (any, error) {
	if len(p.path) > 0 {
		return p.Get(ctx)
	}
	r := p.root
	if r.err != nil {
		return nil, r.err
	}
	if ctx == nil {
		return nil, invalid("", "the context of a call is nil")
	}
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	return r.result(OriginOf(ctx, r.b))
}

// Close gives everything back. Closing twice is harmless.
func (p *Promise) Close() {
	r := p.root
	if r.call == nil {
		return
	}
	r.mu.Lock()
	r.closed = true
	held := r.held
	r.held, r.value = nil, nil
	r.mu.Unlock()
	r.call.Close()
	if held != nil {
		held.end()
	}
}

// wait returns when the outcome is there. Inside an object, that is given away
// meanwhile.
func (r *pending) wait(ctx context.Context) error {
	select {
	case <-r.call.Done():
		return nil
	default:
	}
	o := OriginOf(ctx, r.b)
	out := ctx
	if o != nil {
		var err error
		if out, err = o.Leave(ctx); err != nil {
			return failed(err)
		}
	}
	var err error
	select {
	case <-r.call.Done():
	case <-out.Done():
		err = CanceledError(out, DeliveryUncertain)
	}
	if o != nil {
		if gone := o.Return(out); gone != nil {
			return notReturned(gone, err)
		}
	}
	return err
}

// result decodes the outcome, once.
func (r *pending) result(o Origin) (any, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, DisposedError()
	case r.decoded:
		return r.value, r.verr
	}
	r.decoded = true
	out, err := r.call.Outcome()
	if err != nil {
		if r.stub != nil {
			_ = r.stub.note(err) // returned below
		}
		r.verr = err
		return nil, err
	}
	p, ok := parcelOf(out)
	switch {
	case !ok:
		r.verr = undecodable(r.name, Errorf(CodeInternal, "unexpected %T", out))
	case len(p.Bytes) > 0:
		held := newReceiver(r.codec, o, dupAll(p.Caps))
		if err := r.codec.With(held).Unmarshal(p.Bytes, &r.value); err != nil {
			held.end()
			r.value, r.verr = nil, undecodable(r.name, err)
			break
		}
		r.held = held
	}
	return r.value, r.verr
}

// target makes a call on the result.
func (p *Promise) target(ctx context.Context, path []string, property bool, args []any) (TargetCall, error) {
	r := p.root
	switch {
	case r.err != nil:
		return TargetCall{}, r.err
	case ctx == nil:
		return TargetCall{}, invalid("", "the context of a call is nil")
	case len(path) > MaxPath:
		return TargetCall{}, errTooDeep()
	case ctx.Err() != nil:
		return TargetCall{}, CanceledError(ctx, DeliveryNone)
	}
	t := TargetCall{Path: path, Property: property}
	if !property {
		var err error
		if t.Args, _, err = sendArgs(r.codec, OriginOf(ctx, r.b), nil, args); err != nil {
			return TargetCall{}, failed(Errorf(CodeOf(err), "call of %s: %w", lastOf(path), err))
		}
	}
	return t, nil
}

// dynamic makes a call on the result and waits for it.
func (p *Promise) dynamic(ctx context.Context, path []string, property bool, args []any) (any, error) {
	t, err := p.target(ctx, path, property, args)
	if err != nil {
		return nil, err
	}
	r := p.root
	o := OriginOf(ctx, r.b)
	out := ctx
	if o != nil {
		if out, err = o.Leave(ctx); err != nil {
			t.Args.Release()
			return nil, failed(err)
		}
	}
	parcel, err := r.call.Child(out, t)
	if o != nil {
		if gone := o.Return(out); gone != nil {
			parcel.Release()
			return nil, notReturned(gone, err)
		}
	}
	if err != nil || len(parcel.Bytes) == 0 {
		return nil, err
	}
	var v any
	if err := receive(r.codec, o, parcel, &v); err != nil {
		return nil, undecodable(lastOf(path), err)
	}
	return v, nil
}

// local is a PendingCall for callers that can't make one: a goroutine waits.
type local struct {
	cancel context.CancelCauseFunc
	codec  Codec
	done   chan struct{}

	mu     sync.Mutex
	closed bool
	value  any
	err    error
}

// startHere makes the call of a received stub.
func startHere(ctx context.Context, b *Binding, c *CallSpec) (PendingCall, error) {
	if ctx.Err() != nil {
		return nil, CanceledError(ctx, DeliveryNone)
	}
	call := func(ctx context.Context) (any, error) { return b.Caller.Call(ctx, c) }
	if r, ok := b.Caller.(*received); ok { // the object was left already
		t, err := targetCall(c)
		if err != nil {
			return nil, err
		}
		call = func(ctx context.Context) (any, error) {
			p, err := r.c.Call(ctx, t)
			runtime.KeepAlive(r)
			if err != nil {
				return nil, err
			}
			return p.result(), nil
		}
	}
	return goPending(ctx, call, b.Codec), nil
}

func goPending(ctx context.Context, call func(context.Context) (any, error), codec Codec) *local {
	ctx, cancel := context.WithCancelCause(ctx)
	l := &local{cancel: cancel, codec: codec, done: make(chan struct{})}
	go func() { // ends with the call, which Close ends
		v, err := call(ctx)
		l.mu.Lock()
		l.value, l.err = v, err
		drop := l.closed
		close(l.done)
		l.mu.Unlock()
		cancel(nil)
		if drop {
			l.drop()
		}
	}()
	return l
}

func (l *local) Done() <-chan struct{} { return l.done }
func (l *local) Outcome() (any, error) { return l.value, l.err }
func (l *local) drop() {
	if p, ok := l.value.(Parcel); ok {
		p.Release()
	}
}

func (l *local) Close() {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	over := false
	select {
	case <-l.done:
		over = true
	default:
	}
	l.mu.Unlock()
	l.cancel(context.Canceled)
	if over {
		l.drop()
	}
}

func (l *local) Child(ctx context.Context, c TargetCall) (Parcel, error) {
	select {
	case <-l.done:
	case <-ctx.Done():
		c.Args.Release()
		return Parcel{}, CanceledError(ctx, DeliveryNone)
	}
	if l.err != nil {
		c.Args.Release()
		return Parcel{}, l.err
	}
	p, ok := parcelOf(l.value)
	if !ok {
		c.Args.Release()
		return Parcel{}, Errorf(CodeInternal, "a call by name returned a %T", l.value)
	}
	return CallResult(ctx, l.codec, p, c)
}
