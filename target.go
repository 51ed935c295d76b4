package limpet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// This file is what capabilities lead to in the process that made them: a
// function, the methods of a value, one method, a reader, the stub of an object.

// NewTarget makes a stub of v's methods, to be sent in a call or returned by a
// method (SPEC B28). v is usually a pointer to a struct; its exported methods can
// be called, and their shape and JavaScript names are those of a class's (see
// NewClass). Getter and Hidden may be given, other options are refused. v is not
// copied: whoever has a handle calls it.
//
// The stub is a handle like those that arrive in calls: Close it. Sending it in
// arguments sends a Dup, returning it gives it away. If v has a method Dispose
// without parameters and results, it runs once, when the last handle is closed
// (SPEC B37), and can't be called by name.
//
// Made and sent by an object, the target is part of it: its methods and Dispose
// run as events of the object, and a panic resets that. Elsewhere its methods run
// on the goroutine of whoever calls, several at once, and a panic becomes the
// caller's error; Dispose has a goroutine of its own, and a panic in it goes to
// slog's default logger (SPEC B39).
//
// The target can be called through its own stub only once it was sent: before
// that, call v. Errors are CodeInvalidArgument or CodeNotSupported and name what
// is wrong with v's methods.
func NewTarget(v any, opts ...ClassOption) (*Stub[any], error) {
	if v == nil || isNil(v) {
		return nil, invalid("TypeError", "the target is nil")
	}
	if _, ok := v.(CapabilityValue); ok {
		return nil, invalid("TypeError", "the target is a stub already: send its Dup")
	}
	t := &targetCore{v: v}
	c, err := targetClass(v, opts)
	if err != nil {
		return nil, err
	}
	t.class = c
	r := newReceived(NewCapability(t), nil, &lateCodec{t})
	r.local = true
	return stubOf[any](r), nil
}

// disposer is a target that wants to know when nobody can call it any more.
type disposer interface{ Dispose() }

// targetClass reads v's methods.
func targetClass(v any, opts []ClassOption) (*Class, error) {
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Func {
		return nil, invalid("TypeError", "the target is a function: send it as it is")
	}
	c := &Class{
		name: "target " + t.String(), typ: t, target: true,
		methods: map[string]*Method{}, goNames: map[string]*Method{}, hidden: map[string]bool{},
	}
	if _, ok := v.(disposer); ok {
		c.hidden["Dispose"] = true
	}
	if _, ok := v.(http.Handler); ok {
		c.hidden["ServeHTTP"] = true
	}
	for _, o := range opts {
		if o, ok := o.(hiddenOption); ok {
			o.applyClass(c)
		}
	}
	c.readMethods()
	for _, o := range opts {
		switch o := o.(type) {
		case hiddenOption:
		case getterOption:
			o.applyClass(c)
		default:
			c.fail("a target takes the options Getter and Hidden only")
		}
	}
	if err := c.Err(); err != nil {
		return nil, failed(&Error{Code: codeOfClass(c), Message: err.Error(), Cause: err})
	}
	return c, nil
}

// codeOfClass is the code of the first error of a class.
func codeOfClass(c *Class) Code { return CodeOf(c.errs[0]) }

// outside runs code of this process that belongs to no object: ctx keeps its end
// and its call chain, and a panic is an error.
func outside(ctx context.Context, run func(context.Context) (Parcel, error)) (p Parcel, err error) {
	defer func() {
		if r := recover(); r != nil {
			p, err = Parcel{}, &Error{
				Code: CodeApplication, Delivery: DeliveryReceived, Remote: true,
				Message: bounded(fmt.Sprintf("the function that was called panicked: %v", r)),
			}
		}
	}()
	p, err = run(bareContext{asideContext(ctx)})
	if err != nil {
		e := MethodError(ID{}, err)
		e.ObjectID = ""
		return Parcel{}, e
	}
	return p, nil
}

// bareContext has the end of another context, and none of its values but the
// call chain, as over a wire.
type bareContext struct{ context.Context }

func (c bareContext) Value(key any) any {
	if _, ours := key.(originKey); ours {
		return c.Context.Value(key)
	}
	if _, own := key.(*int); own { // package context's own, for causes and derived contexts
		return c.Context.Value(key)
	}
	return nil
}

// noFetch and noStream are the parts of a core that it has not.
type noFetch struct{}

func (noFetch) Fetch(_ context.Context, req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close() // nothing was read from it
	}
	return nil, NoTargetFetchError()
}

type noStream struct{}

func (noStream) Open(context.Context) (io.ReadCloser, error) {
	return nil, Errorf(CodeInternal, "a stub was opened as a stream")
}
func (noStream) Kind() CapabilityKind { return CapabilityTarget }

// lastOf is the name that an error about a path tells.
func lastOf(path []string) string {
	if len(path) == 0 {
		return ""
	}
	return path[len(path)-1]
}

// targetCore is the methods of a value.
type targetCore struct {
	noFetch
	noStream
	v     any
	class *Class
	codec atomic.Pointer[Codec] // set when the target is sent
}

func (t *targetCore) Call(ctx context.Context, c TargetCall) (Parcel, error) {
	return outside(ctx, func(ctx context.Context) (Parcel, error) { return t.run(ctx, c, nil) })
}

func (t *targetCore) run(ctx context.Context, c TargetCall, o Origin) (Parcel, error) {
	codec := t.codec.Load()
	if codec == nil {
		c.Args.Release()
		return Parcel{}, refuse(errUnsent())
	}
	if len(c.Path) == 0 {
		c.Args.Release()
		return Parcel{}, refuse(errNoFunction())
	}
	return t.class.serve(ctx, t.v, c, *codec, o)
}

func (t *targetCore) dispose() {
	if d, ok := t.v.(disposer); ok {
		d.Dispose()
	}
}

func (t *targetCore) disposes() bool { _, ok := t.v.(disposer); return ok }

// Disposed runs Dispose beside whoever gave the last handle back: that may be an
// object in its turn, which Dispose may want to call.
func (t *targetCore) Disposed() {
	if !t.disposes() {
		return
	}
	go func() { // ends with Dispose
		defer func() {
			if r := recover(); r != nil {
				slog.Default().Error("panic in the Dispose of a limpet target", "type", fmt.Sprintf("%T", t.v), "panic", r, "stack", string(debug.Stack()))
			}
		}()
		t.dispose()
	}()
}

func errUnsent() *Error {
	return Errorf(CodeNotSupported, "not supported: calling a target through its own stub before it was sent; call the value itself").With(func(e *Error) { e.Delivery = DeliveryNone })
}

func errNoFunction() *Error {
	return Errorf(CodeUnknownMethod, "The RPC receiver is not a function.").With(func(e *Error) { e.Name, e.Remote = "TypeError", true })
}

// methodCore is a function, or one method of an object or target that was read as a
// property (SPEC B24).
type methodCore struct {
	noFetch
	noStream
	m        *Method
	receiver any // nil for a function
	codec    Codec
}

func (f *methodCore) Call(ctx context.Context, c TargetCall) (Parcel, error) {
	return outside(ctx, func(ctx context.Context) (Parcel, error) { return f.run(ctx, c, nil) })
}

func (f *methodCore) run(ctx context.Context, c TargetCall, o Origin) (Parcel, error) {
	if len(c.Path) > 0 || c.Property {
		c.Args.Release()
		return Parcel{}, refuse(NoMethodError(lastOf(c.Path)))
	}
	return f.m.call(ctx, reflect.ValueOf(f.receiver), c.Args, f.codec, o)
}

func (f *methodCore) Disposed() {}

// streamCore is a reader.
type streamCore struct {
	noFetch
	r      io.Reader
	closed atomic.Bool
	once   sync.Once
}

func (s *streamCore) Kind() CapabilityKind { return CapabilityStream }

func (s *streamCore) Call(_ context.Context, c TargetCall) (Parcel, error) {
	c.Args.Release()
	return Parcel{}, Errorf(CodeInternal, "a stream was called")
}

func (s *streamCore) Open(ctx context.Context) (io.ReadCloser, error) {
	return &openStream{s: s, stop: context.AfterFunc(ctx, s.close)}, nil
}

// close ends the stream: a Read that waits in the reader's own code ends too, if
// its Close does that.
func (s *streamCore) close() {
	s.closed.Store(true)
	s.once.Do(func() {
		defer func() { _ = recover() }() // of Close: there is nobody to tell
		if c, ok := s.r.(io.Closer); ok {
			_ = c.Close() // everything was read, or nobody wants the rest
		}
	})
}

func (s *streamCore) Disposed() { s.close() }

// openStream is what reads it.
type openStream struct {
	s    *streamCore
	stop func() bool
	done atomic.Bool
}

// Read keeps to io.Reader whatever the reader does. An error but io.EOF arrives as
// its text, as over a wire.
func (o *openStream) Read(b []byte) (n int, err error) {
	if o.done.Load() || o.s.closed.Load() {
		return 0, DisposedError()
	}
	defer func() {
		if r := recover(); r != nil {
			n, err = 0, streamError(fmt.Errorf("its reader panicked: %v", r))
		}
	}()
	n, err = o.s.r.Read(b)
	if n < 0 || n > len(b) {
		return 0, streamError(fmt.Errorf("its reader says that it read %d bytes into %d", n, len(b)))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = streamError(err)
	} else if err != nil {
		err = io.EOF
	}
	return n, err
}

func (o *openStream) Close() error {
	o.done.Store(true)
	o.stop()
	o.s.close()
	return nil
}

// streamError is a reader's failure as its reader sees it (SPEC B31).
func streamError(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	e := Errorf(CodeApplication, "ReadableStream received over RPC disconnected prematurely: %v", err)
	e.Delivery, e.Remote = DeliveryReceived, true
	return e
}

// stubCore is a namespace's stub that was sent: a plain stub, without identity,
// name and retries (SPEC B32, D11).
type stubCore struct {
	noStream
	binding  Binding
	id       ID
	existing bool
}

// receivedUnretryable is why calls of a stub that was received are not retried.
const receivedUnretryable = "the stub was received over a call"

func (s *stubCore) spec(kind CallKind) *CallSpec {
	return &CallSpec{
		Kind: kind, Binding: &s.binding, Object: s.id, Existing: s.existing, Policy: s.binding.Policy,
		Unretryable: receivedUnretryable,
	}
}

func (s *stubCore) Call(ctx context.Context, c TargetCall) (Parcel, error) {
	defer c.Args.Release()
	if len(c.Path) == 0 {
		return Parcel{}, errNoFunction().With(func(e *Error) { e.Delivery, e.Remote = DeliveryNone, false })
	}
	d := &dynamicCall{CallSpec: *s.spec(KindMethod), args: c.Args}
	d.Method, d.Path, d.Property = c.Path[0], c.Path[1:], c.Property
	if len(d.Path) == 0 {
		d.Path = nil
	}
	d.Runner = d
	out, err := s.binding.Caller.Call(asideContext(ctx), &d.CallSpec)
	if err != nil {
		return Parcel{}, failure(err)
	}
	p, ok := parcelOf(out)
	if !ok {
		return Parcel{}, undecodable(c.Path[0], Errorf(CodeInternal, "unexpected %T", out))
	}
	return p, nil
}

func (s *stubCore) Fetch(ctx context.Context, req *http.Request) (*http.Response, error) {
	return s.binding.Caller.Fetch(asideContext(ctx), s.spec(KindFetch), req, false)
}

func (s *stubCore) Disposed() {}

// failure is err as the *Error that it should be.
func failure(err error) error {
	if _, ok := err.(*Error); ok { //nolint:errorlint // itself, nothing around it
		return err
	}
	return failed(err)
}

// serve runs a call, or property read, on the members of a receiver: an object or
// a target. It takes over c.Args. o is the object that it belongs to, or nil.
func (c *Class) serve(ctx context.Context, receiver any, t TargetCall, codec Codec, o Origin) (Parcel, error) {
	name, rest := t.Path[0], t.Path[1:]
	m := c.Method(name)
	switch {
	case m == nil:
		t.Args.Release()
		return Parcel{}, refuse(c.UnknownMethod(ID{}, name))
	case len(rest) == 0 && !t.Property:
		return m.call(ctx, reflect.ValueOf(receiver), t.Args, codec, o)
	case !m.Getter && len(rest) == 0:
		return (&sender{origin: o, caps: []Capability{NewCapability(&methodCore{m: m, receiver: receiver, codec: codec})}, local: []bool{true}}).single(codec)
	case !m.Getter:
		t.Args.Release()
		return Parcel{}, refuse(NoMethodError(rest[0]))
	}
	args, err := codec.Args()
	if err != nil {
		t.Args.Release()
		return Parcel{}, refuse(Errorf(CodeOf(err), "%s: %w", name, err))
	}
	if len(rest) == 0 {
		t.Args.Release()
		return m.call(ctx, reflect.ValueOf(receiver), Parcel{Bytes: args}, codec, o)
	}
	// What is inside of the value is called in this turn: nothing has left yet.
	v, local, err := m.value(ctx, reflect.ValueOf(receiver), Parcel{Bytes: args}, codec)
	if err != nil {
		t.Args.Release()
		return Parcel{}, err
	}
	defer v.Release()
	return walk(ctx, codec, o, v, local, TargetCall{Path: rest, Property: t.Property, Args: t.Args})
}

// single is a value that is nothing but the one capability in s.
func (s *sender) single(codec Codec) (Parcel, error) {
	hook := &singleHook{}
	e, err := codec.With(hook).Marshal(stubOf[any](&received{}))
	if err != nil {
		s.drop()
		return Parcel{}, refuse(Errorf(CodeOf(err), "%w", err))
	}
	return s.parcel(e), nil
}

// singleHook encodes any capability as the first one.
type singleHook struct{ noImport }

func (*singleHook) ExportCapability(reflect.Value) (CapabilityKind, int, error) {
	return CapabilityTarget, 0, nil
}

// lateCodec is the codec of a target's own stub: that of the call it was sent in.
type lateCodec struct{ t *targetCore }

func (l *lateCodec) codec() (Codec, error) {
	if c := l.t.codec.Load(); c != nil {
		return *c, nil
	}
	return nil, errUnsent()
}

func (l *lateCodec) Plain(any) bool { return false }

func (l *lateCodec) With(h CapabilityHooks) Codec {
	if c, err := l.codec(); err == nil {
		return c.With(h)
	}
	return l
}

func (l *lateCodec) Args(args ...any) (Encoded, error) {
	c, err := l.codec()
	if err != nil {
		return nil, err
	}
	return c.Args(args...)
}

func (l *lateCodec) DecodeArgs(e Encoded, into ...any) error {
	c, err := l.codec()
	if err != nil {
		return err
	}
	return c.DecodeArgs(e, into...)
}

func (l *lateCodec) Marshal(v any) (Encoded, error) {
	c, err := l.codec()
	if err != nil {
		return nil, err
	}
	return c.Marshal(v)
}

func (l *lateCodec) Unmarshal(e Encoded, into any) error {
	c, err := l.codec()
	if err != nil {
		return err
	}
	return c.Unmarshal(e, into)
}
