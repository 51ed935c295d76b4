package limpet

import "context"

// Do calls a method that takes nothing and returns an error only. It is the first
// of the typed calls: Do to Do6 call a method that returns an error, Call to Call6
// one that returns a value and an error; the digit is the number of arguments.
// The method is a method expression of the stub's own type, so that a wrong
// argument does not compile:
//
//	err := limpet.Do2(ctx, cart, (*Cart).SetQuantity, "item-1", 3)
//	n, err := limpet.Call1(ctx, cart, (*Cart).AddOne, "item-1")
//
// Arguments and result are copied as if they had crossed a network, unless their
// types hold no memory that could be shared: what a pointer leads to, unexported
// fields and the nanoseconds of a time do not reach the other side as they were
// (docs/VALUES.md).
//
// Every error is an *Error: the method's own (Remote is set, the text, code and
// fields are the method's, but what it wrapped stays behind, so that errors.Is
// finds codes and no other sentinels), or limpet's. Where it has an error, the
// value that comes with it is zero.
//
// When ctx ends, the call ends at once with CodeCanceled, and the method's own
// context ends too. The method may have run, or still run: Error.Delivery says
// what is known. A context that has ended already makes no call.
func Do[T any](ctx context.Context, s *Stub[T], method func(T, context.Context) error) error {
	_, err := invoke[T, none](ctx, s, method, doArgs0[T]{})
	return err
}

type doArgs0[T any] struct{}

func (*doArgs0[T]) apply(m any, receiver T, ctx context.Context) (none, error) {
	return none{}, m.(func(T, context.Context) error)(receiver, ctx)
}

func (*doArgs0[T]) pointers(to []any) []any { return to }
func (*doArgs0[T]) values(to []any) []any   { return to }

// Do1 calls a method that takes one argument and returns an error only. See Do.
func Do1[T, A any](ctx context.Context, s *Stub[T], method func(T, context.Context, A) error, a A) error {
	_, err := invoke[T, none](ctx, s, method, doArgs1[T, A]{a})
	return err
}

type doArgs1[T, A any] struct {
	a A
}

func (p *doArgs1[T, A]) apply(m any, receiver T, ctx context.Context) (none, error) {
	return none{}, m.(func(T, context.Context, A) error)(receiver, ctx, p.a)
}

func (p *doArgs1[T, A]) pointers(to []any) []any { return append(to, &p.a) }
func (p *doArgs1[T, A]) values(to []any) []any   { return append(to, p.a) }

// Do2 calls a method that takes two arguments and returns an error only. See Do.
func Do2[T, A, B any](ctx context.Context, s *Stub[T], method func(T, context.Context, A, B) error, a A, b B) error {
	_, err := invoke[T, none](ctx, s, method, doArgs2[T, A, B]{a, b})
	return err
}

type doArgs2[T, A, B any] struct {
	a A
	b B
}

func (p *doArgs2[T, A, B]) apply(m any, receiver T, ctx context.Context) (none, error) {
	return none{}, m.(func(T, context.Context, A, B) error)(receiver, ctx, p.a, p.b)
}

func (p *doArgs2[T, A, B]) pointers(to []any) []any { return append(to, &p.a, &p.b) }
func (p *doArgs2[T, A, B]) values(to []any) []any   { return append(to, p.a, p.b) }

// Do3 calls a method that takes three arguments and returns an error only. See Do.
func Do3[T, A, B, C any](ctx context.Context, s *Stub[T], method func(T, context.Context, A, B, C) error, a A, b B, c C) error {
	_, err := invoke[T, none](ctx, s, method, doArgs3[T, A, B, C]{a, b, c})
	return err
}

type doArgs3[T, A, B, C any] struct {
	a A
	b B
	c C
}

func (p *doArgs3[T, A, B, C]) apply(m any, receiver T, ctx context.Context) (none, error) {
	return none{}, m.(func(T, context.Context, A, B, C) error)(receiver, ctx, p.a, p.b, p.c)
}

func (p *doArgs3[T, A, B, C]) pointers(to []any) []any { return append(to, &p.a, &p.b, &p.c) }
func (p *doArgs3[T, A, B, C]) values(to []any) []any   { return append(to, p.a, p.b, p.c) }

// Do4 calls a method that takes four arguments and returns an error only. See Do.
func Do4[T, A, B, C, D any](ctx context.Context, s *Stub[T], method func(T, context.Context, A, B, C, D) error, a A, b B, c C, d D) error {
	_, err := invoke[T, none](ctx, s, method, doArgs4[T, A, B, C, D]{a, b, c, d})
	return err
}

type doArgs4[T, A, B, C, D any] struct {
	a A
	b B
	c C
	d D
}

func (p *doArgs4[T, A, B, C, D]) apply(m any, receiver T, ctx context.Context) (none, error) {
	return none{}, m.(func(T, context.Context, A, B, C, D) error)(receiver, ctx, p.a, p.b, p.c, p.d)
}

func (p *doArgs4[T, A, B, C, D]) pointers(to []any) []any { return append(to, &p.a, &p.b, &p.c, &p.d) }
func (p *doArgs4[T, A, B, C, D]) values(to []any) []any   { return append(to, p.a, p.b, p.c, p.d) }

// Do5 calls a method that takes five arguments and returns an error only. See Do.
func Do5[T, A, B, C, D, E any](ctx context.Context, s *Stub[T], method func(T, context.Context, A, B, C, D, E) error, a A, b B, c C, d D, e E) error {
	_, err := invoke[T, none](ctx, s, method, doArgs5[T, A, B, C, D, E]{a, b, c, d, e})
	return err
}

type doArgs5[T, A, B, C, D, E any] struct {
	a A
	b B
	c C
	d D
	e E
}

func (p *doArgs5[T, A, B, C, D, E]) apply(m any, receiver T, ctx context.Context) (none, error) {
	return none{}, m.(func(T, context.Context, A, B, C, D, E) error)(receiver, ctx, p.a, p.b, p.c, p.d, p.e)
}

func (p *doArgs5[T, A, B, C, D, E]) pointers(to []any) []any {
	return append(to, &p.a, &p.b, &p.c, &p.d, &p.e)
}
func (p *doArgs5[T, A, B, C, D, E]) values(to []any) []any {
	return append(to, p.a, p.b, p.c, p.d, p.e)
}

// Do6 calls a method that takes six arguments and returns an error only. See Do.
func Do6[T, A, B, C, D, E, F any](ctx context.Context, s *Stub[T], method func(T, context.Context, A, B, C, D, E, F) error, a A, b B, c C, d D, e E, f F) error {
	_, err := invoke[T, none](ctx, s, method, doArgs6[T, A, B, C, D, E, F]{a, b, c, d, e, f})
	return err
}

type doArgs6[T, A, B, C, D, E, F any] struct {
	a A
	b B
	c C
	d D
	e E
	f F
}

func (p *doArgs6[T, A, B, C, D, E, F]) apply(m any, receiver T, ctx context.Context) (none, error) {
	return none{}, m.(func(T, context.Context, A, B, C, D, E, F) error)(receiver, ctx, p.a, p.b, p.c, p.d, p.e, p.f)
}

func (p *doArgs6[T, A, B, C, D, E, F]) pointers(to []any) []any {
	return append(to, &p.a, &p.b, &p.c, &p.d, &p.e, &p.f)
}
func (p *doArgs6[T, A, B, C, D, E, F]) values(to []any) []any {
	return append(to, p.a, p.b, p.c, p.d, p.e, p.f)
}

// Call calls a method that takes nothing and returns a value and an error. See Do.
func Call[T, R any](ctx context.Context, s *Stub[T], method func(T, context.Context) (R, error)) (R, error) {
	return invoke[T, R](ctx, s, method, callArgs0[T, R]{})
}

type callArgs0[T, R any] struct{}

func (*callArgs0[T, R]) apply(m any, receiver T, ctx context.Context) (R, error) {
	return m.(func(T, context.Context) (R, error))(receiver, ctx)
}

func (*callArgs0[T, R]) pointers(to []any) []any { return to }
func (*callArgs0[T, R]) values(to []any) []any   { return to }

// Call1 calls a method that takes one argument and returns a value and an error. See Do.
func Call1[T, A, R any](ctx context.Context, s *Stub[T], method func(T, context.Context, A) (R, error), a A) (R, error) {
	return invoke[T, R](ctx, s, method, callArgs1[T, A, R]{a})
}

type callArgs1[T, A, R any] struct {
	a A
}

func (p *callArgs1[T, A, R]) apply(m any, receiver T, ctx context.Context) (R, error) {
	return m.(func(T, context.Context, A) (R, error))(receiver, ctx, p.a)
}

func (p *callArgs1[T, A, R]) pointers(to []any) []any { return append(to, &p.a) }
func (p *callArgs1[T, A, R]) values(to []any) []any   { return append(to, p.a) }

// Call2 calls a method that takes two arguments and returns a value and an error. See Do.
func Call2[T, A, B, R any](ctx context.Context, s *Stub[T], method func(T, context.Context, A, B) (R, error), a A, b B) (R, error) {
	return invoke[T, R](ctx, s, method, callArgs2[T, A, B, R]{a, b})
}

type callArgs2[T, A, B, R any] struct {
	a A
	b B
}

func (p *callArgs2[T, A, B, R]) apply(m any, receiver T, ctx context.Context) (R, error) {
	return m.(func(T, context.Context, A, B) (R, error))(receiver, ctx, p.a, p.b)
}

func (p *callArgs2[T, A, B, R]) pointers(to []any) []any { return append(to, &p.a, &p.b) }
func (p *callArgs2[T, A, B, R]) values(to []any) []any   { return append(to, p.a, p.b) }

// Call3 calls a method that takes three arguments and returns a value and an error. See Do.
func Call3[T, A, B, C, R any](ctx context.Context, s *Stub[T], method func(T, context.Context, A, B, C) (R, error), a A, b B, c C) (R, error) {
	return invoke[T, R](ctx, s, method, callArgs3[T, A, B, C, R]{a, b, c})
}

type callArgs3[T, A, B, C, R any] struct {
	a A
	b B
	c C
}

func (p *callArgs3[T, A, B, C, R]) apply(m any, receiver T, ctx context.Context) (R, error) {
	return m.(func(T, context.Context, A, B, C) (R, error))(receiver, ctx, p.a, p.b, p.c)
}

func (p *callArgs3[T, A, B, C, R]) pointers(to []any) []any { return append(to, &p.a, &p.b, &p.c) }
func (p *callArgs3[T, A, B, C, R]) values(to []any) []any   { return append(to, p.a, p.b, p.c) }

// Call4 calls a method that takes four arguments and returns a value and an error. See Do.
func Call4[T, A, B, C, D, R any](ctx context.Context, s *Stub[T], method func(T, context.Context, A, B, C, D) (R, error), a A, b B, c C, d D) (R, error) {
	return invoke[T, R](ctx, s, method, callArgs4[T, A, B, C, D, R]{a, b, c, d})
}

type callArgs4[T, A, B, C, D, R any] struct {
	a A
	b B
	c C
	d D
}

func (p *callArgs4[T, A, B, C, D, R]) apply(m any, receiver T, ctx context.Context) (R, error) {
	return m.(func(T, context.Context, A, B, C, D) (R, error))(receiver, ctx, p.a, p.b, p.c, p.d)
}

func (p *callArgs4[T, A, B, C, D, R]) pointers(to []any) []any {
	return append(to, &p.a, &p.b, &p.c, &p.d)
}
func (p *callArgs4[T, A, B, C, D, R]) values(to []any) []any {
	return append(to, p.a, p.b, p.c, p.d)
}

// Call5 calls a method that takes five arguments and returns a value and an error. See Do.
func Call5[T, A, B, C, D, E, R any](ctx context.Context, s *Stub[T], method func(T, context.Context, A, B, C, D, E) (R, error), a A, b B, c C, d D, e E) (R, error) {
	return invoke[T, R](ctx, s, method, callArgs5[T, A, B, C, D, E, R]{a, b, c, d, e})
}

type callArgs5[T, A, B, C, D, E, R any] struct {
	a A
	b B
	c C
	d D
	e E
}

func (p *callArgs5[T, A, B, C, D, E, R]) apply(m any, receiver T, ctx context.Context) (R, error) {
	return m.(func(T, context.Context, A, B, C, D, E) (R, error))(receiver, ctx, p.a, p.b, p.c, p.d, p.e)
}

func (p *callArgs5[T, A, B, C, D, E, R]) pointers(to []any) []any {
	return append(to, &p.a, &p.b, &p.c, &p.d, &p.e)
}
func (p *callArgs5[T, A, B, C, D, E, R]) values(to []any) []any {
	return append(to, p.a, p.b, p.c, p.d, p.e)
}

// Call6 calls a method that takes six arguments and returns a value and an error. See Do.
func Call6[T, A, B, C, D, E, F, R any](ctx context.Context, s *Stub[T], method func(T, context.Context, A, B, C, D, E, F) (R, error), a A, b B, c C, d D, e E, f F) (R, error) {
	return invoke[T, R](ctx, s, method, callArgs6[T, A, B, C, D, E, F, R]{a, b, c, d, e, f})
}

type callArgs6[T, A, B, C, D, E, F, R any] struct {
	a A
	b B
	c C
	d D
	e E
	f F
}

func (p *callArgs6[T, A, B, C, D, E, F, R]) apply(m any, receiver T, ctx context.Context) (R, error) {
	return m.(func(T, context.Context, A, B, C, D, E, F) (R, error))(receiver, ctx, p.a, p.b, p.c, p.d, p.e, p.f)
}

func (p *callArgs6[T, A, B, C, D, E, F, R]) pointers(to []any) []any {
	return append(to, &p.a, &p.b, &p.c, &p.d, &p.e, &p.f)
}
func (p *callArgs6[T, A, B, C, D, E, F, R]) values(to []any) []any {
	return append(to, p.a, p.b, p.c, p.d, p.e, p.f)
}
