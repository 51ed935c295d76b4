package value

import (
	"fmt"
	"reflect"
)

// AppendArgs is [Options.AppendArgs] with the default limits.
func AppendArgs(dst []byte, args ...any) ([]byte, error) { return Options{}.AppendArgs(dst, args...) }

// AppendArgs encodes an argument list behind dst: one value, an array of the
// arguments, so that what two of them share stays shared. An error names the
// argument, from 1, and its Go type; dst comes back unchanged then. See Append.
func (o Options) AppendArgs(dst []byte, args ...any) ([]byte, error) {
	e := newEncoder(dst, o)
	b, err := e.args(args)
	e.free()
	if err != nil {
		return dst, err
	}
	return b, nil
}

func (e *encoder) args(args []any) ([]byte, error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	// Two arguments may be the same pointer even if neither's type can hold one twice.
	sharers := 0
	for _, a := range args {
		if a != nil && !planOf(reflect.TypeOf(a)).plain {
			sharers++
		}
	}
	e.track = sharers > 1
	e.b = appendHead(e.b, majorArray, uint64(len(args)))
	for i, a := range args {
		if err := e.root(a); err != nil {
			return nil, ofArg(err, i+1, reflect.TypeOf(a))
		}
	}
	return e.finish()
}

func ofArg(err error, n int, t reflect.Type) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // made right here, never wrapped
		e.Arg = n
		if t != nil {
			e.ArgType = t.String()
		}
	}
	return err
}

// Args reads an argument list one argument after the other. Whether there are
// too many or too few is the caller's to say: Len tells. Not for concurrent use.
type Args struct {
	d    *decoder // nil after End
	n    int
	next int
	err  error
}

// ReadArgs begins reading with the default limits; see [Options.ReadArgs].
func ReadArgs(b []byte) (*Args, error) { return Options{}.ReadArgs(b) }

// ReadArgs begins reading an argument list that AppendArgs made. The Args keeps
// b; what it decodes does not. Errors as NewReader, and ErrSyntax if the value is no array.
func (o Options) ReadArgs(b []byte) (*Args, error) {
	d, err := newDecoder(b, o)
	if err != nil {
		return nil, err
	}
	n, err := d.list()
	if err != nil {
		d.free()
		return nil, err
	}
	return &Args{d: d, n: n}, nil
}

// Len is the number of arguments.
func (a *Args) Len() int { return a.n }

// Next decodes the next argument into the pointer dst. The error is ErrType
// (does not fit, or no argument is left), or as of Unmarshal, and names the
// argument and the type wanted; it stays, since what follows can't be found.
func (a *Args) Next(dst any) error {
	return a.read(elemType(dst), func() error { return a.d.arg(dst) })
}

// NextValue is Next into a settable reflect.Value.
func (a *Args) NextValue(v reflect.Value) error {
	if !v.CanSet() {
		return fail(ErrType, "can't decode into what is not settable")
	}
	return a.read(v.Type(), func() error { return a.d.top(v.Addr()) })
}

func (a *Args) read(t reflect.Type, decode func() error) error {
	if a.err != nil {
		return a.err
	}
	a.next++
	var err error
	switch {
	case a.d == nil:
		err = fail(ErrType, "argument list has ended")
	case a.next > a.n:
		// Nothing is spoiled by asking for too many.
		return ofArg(fail(ErrType, "%s", countText(a.n, "there is only one argument", "there are only %d arguments", "there are no arguments")), a.next, t)
	default:
		err = decode()
	}
	if err != nil {
		a.err = ofArg(err, a.next, t)
	}
	return a.err
}

// NextAny decodes the next argument as Decode does.
func (a *Args) NextAny() (any, error) {
	var x any
	err := a.NextValue(reflect.ValueOf(&x).Elem())
	return x, err
}

// End ends reading: without it a little memory is allocated anew next time. It
// answers ErrSyntax if bytes follow the argument list, or arguments are left,
// which may still be read then.
func (a *Args) End() error {
	if a.d == nil || a.err != nil {
		return a.err
	}
	if err := a.d.r.End(); err != nil {
		return err
	}
	a.d.free()
	a.d = nil
	return nil
}

// DecodeArgs is [Options.DecodeArgs] with the default limits.
func DecodeArgs(b []byte, into ...any) error { return Options{}.DecodeArgs(b, into...) }

// DecodeArgs decodes a whole argument list into as many pointers. Another number
// of arguments is ErrType and names both; other errors are those of Args.Next.
func (o Options) DecodeArgs(b []byte, into ...any) error {
	d, err := newDecoder(b, o)
	if err != nil {
		return err
	}
	if err = d.args(into); err == nil {
		err = d.r.End()
	}
	d.free()
	return err
}

// countText is the wording for a number of things.
func countText(n int, one, many, none string) string {
	switch n {
	case 0:
		return none
	case 1:
		return one
	}
	return fmt.Sprintf(many, n)
}

// list begins an argument list and gives its length.
func (d *decoder) list() (int, error) {
	t := d.token()
	defer d.done(t)
	if err := d.r.Next(t); err != nil {
		return 0, err
	}
	if t.Kind != KindArray {
		return 0, fail(ErrSyntax, "argument list is %s and no array", t.describe())
	}
	return t.N, nil
}

func (d *decoder) args(into []any) error {
	n, err := d.list()
	if err != nil {
		return err
	}
	if n != len(into) {
		given := countText(n, "1 argument", "%d arguments", "no arguments")
		taken := countText(len(into), "1 is taken", "%d are taken", "none is taken")
		return fail(ErrType, "%s where %s", given, taken)
	}
	for i, dst := range into {
		if err := d.arg(dst); err != nil {
			return ofArg(err, i+1, elemType(dst))
		}
	}
	return nil
}

// arg decodes into one pointer, the commonest without reflection.
func (d *decoder) arg(dst any) error {
	switch p := dst.(type) {
	case *string, *int, *int64, *bool, *float64:
		t := d.token()
		defer d.done(t)
		if err := d.r.Next(t); err != nil {
			return err
		}
		if t.assign(p) {
			return nil
		}
		v := reflect.ValueOf(dst)
		if v.IsNil() {
			return fail(ErrType, "can't decode into %T: need a pointer that is not nil", dst)
		}
		return planOf(v.Type().Elem()).decode(d, t, v.Elem())
	}
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fail(ErrType, "can't decode into %T: need a pointer that is not nil", dst)
	}
	return d.top(v)
}

// assign puts a scalar that is exactly of the type of *p there.
func (t *Token) assign(p any) bool {
	switch p := p.(type) {
	case *string:
		if t.Kind == KindString && p != nil {
			*p = string(t.Str)
			return true
		}
	case *int:
		if t.Kind == KindInt && int64(int(t.Int)) == t.Int && p != nil {
			*p = int(t.Int)
			return true
		}
	case *int64:
		if t.Kind == KindInt && p != nil {
			*p = t.Int
			return true
		}
	case *bool:
		if t.Kind == KindBool && p != nil {
			*p = t.Int != 0
			return true
		}
	case *float64:
		if t.Kind == KindFloat && p != nil {
			*p = t.Float
			return true
		}
	}
	return false
}

func elemType(dst any) reflect.Type {
	t := reflect.TypeOf(dst)
	if t != nil && t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}
