package value

import (
	"errors"
	"fmt"
	"strings"

	"github.com/limpet-dev/limpet"
)

// What can be wrong with a value. Every error of this package is an *Error that
// wraps exactly one of
// them, or an error of Options.Hooks.
var (
	// ErrTooLarge: the bytes are more than Options.MaxSize, or decoding them
	// would make more than the input can account for (SPEC B30).
	ErrTooLarge = errors.New("value too large")
	// ErrTooDeep: containers are nested deeper than Options.MaxDepth.
	ErrTooDeep = errors.New("value nested too deep")
	// ErrSyntax: the bytes are no value of this format, or the text is no JSON.
	ErrSyntax = errors.New("malformed value")
	// ErrVersion: the bytes are of a version of the format that this build does
	// not read.
	ErrVersion = errors.New("unknown version of the value format")
	// ErrType: the value can't be carried at all, or does not fit the Go type it
	// is decoded into, or can't be told in JSON (SPEC B27).
	ErrType = errors.New("value of a wrong type")
	// ErrCapability: there is a stub, function or byte stream in what is JSON or
	// was stored, where none can be.
	ErrCapability = errors.New("capability in plain data")
)

// Default limits.
const (
	// DefaultMaxSize is the limit of SPEC B30: 32 MiB.
	DefaultMaxSize = 32 << 20
	// DefaultMaxDepth is the number of containers that may be nested in each
	// other. Readers and writers recurse, in Go and over a JavaScript engine's
	// values, and the engine's stack is the narrow one: 1,000 levels fit it.
	DefaultMaxDepth = 1000
	// MaxBigIntBits is the longest big integer. Turning a longer one into
	// decimal text takes too long to do for a stranger.
	MaxBigIntBits = 1 << 17
)

// Options are the limits of one operation and how strict it is. The zero value
// is the default. The functions of the package are its methods with the
// default; an Options may be used concurrently.
type Options struct {
	// MaxSize is the largest encoded value in bytes, version byte included;
	// 0 or less means DefaultMaxSize.
	MaxSize int
	// MaxDepth is how many containers (arrays, objects, maps, sets, errors,
	// boxes) may be nested; 0 or less means DefaultMaxDepth, and more than
	// 10,000 means 10,000, which a goroutine's stack holds easily.
	MaxDepth int
	// Strict makes decoding into a struct refuse members that it has no field
	// for, naming the member (ErrType). Otherwise they are ignored.
	Strict bool
	// Hooks carries stubs, functions and byte streams; nil means that there can
	// be none, and they are refused.
	Hooks limpet.CapabilityHooks
}

func (o Options) maxSize() int {
	if o.MaxSize <= 0 {
		return DefaultMaxSize
	}
	return o.MaxSize
}

func (o Options) maxDepth() int {
	if o.MaxDepth <= 0 {
		return DefaultMaxDepth
	}
	return min(o.MaxDepth, 10_000)
}

// An Error says what is wrong with a value, and where in it.
type Error struct {
	// Path leads from the whole value to the offender: ".items[3].price". Empty
	// is the whole value.
	Path string
	// Reason is for people and names the value, the type or the limit.
	Reason string
	// Err is the sentinel: ErrTooLarge, ErrTooDeep, ErrSyntax, ErrVersion, ErrType
	// or ErrCapability; or the error of Options.Hooks.
	Err error
	// Arg is the number of the argument from 1, 0 if the value is no argument
	// list, and ArgType the Go type that was asked for or given there.
	Arg     int
	ArgType string
	// Size and Limit are bytes, of ErrTooLarge; else 0.
	Size, Limit int
}

// Over gives Size and Limit, for those who tell it in their own words.
func (e *Error) Over() (size, limit int) { return e.Size, e.Limit }

// Error gives argument, path and reason in one line.
func (e *Error) Error() string {
	s := e.Reason
	if e.Path != "" {
		s = e.Path + ": " + s
	}
	switch {
	case e.Arg == 0:
	case e.ArgType == "":
		s = fmt.Sprintf("argument %d: %s", e.Arg, s)
	default:
		s = fmt.Sprintf("argument %d (%s): %s", e.Arg, e.ArgType, s)
	}
	return s
}

// Unwrap gives the sentinel.
func (e *Error) Unwrap() error { return e.Err }

func fail(sentinel error, format string, args ...any) error {
	return &Error{Reason: short(fmt.Sprintf(format, args...), maxReason), Err: sentinel}
}

// maxReason bounds the text of an error, which may quote names and types from outside.
const maxReason = 500

// short cuts s to about n bytes.
func short(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}

// tooLarge has the text of SPEC B30.
func tooLarge(n, limit int) error {
	unit := fmt.Sprintf("%d bytes", limit)
	if limit%(1<<20) == 0 {
		unit = fmt.Sprintf("%dMiB", limit>>20)
	}
	return &Error{
		Reason: fmt.Sprintf("Serialized RPC arguments or return values are limited to %s, but the size of this value was: %d bytes.", unit, n),
		Err:    ErrTooLarge, Size: n, Limit: limit,
	}
}

func tooDeep(limit int) error {
	return fail(ErrTooDeep, "more than %d containers are nested in each other; the limit is %d", limit, limit)
}

// refuse has the text of SPEC B27, and behind it why.
func refuse(what, why string) error {
	return fail(ErrType, "Could not serialize object of type %q. This type does not support serialization.%s", what, why)
}

// maxPath keeps the path of an error readable, and bounded for a hostile key.
const maxPath = 200

// under puts a step in front of the path of an error that comes up from inside.
func under(err error, step string) error {
	if e, ok := errors.AsType[*Error](err); ok {
		switch {
		case len(e.Path)+len(step) <= maxPath:
			e.Path = step + e.Path
		case !strings.HasPrefix(e.Path, "..."):
			e.Path = "..." + e.Path
		}
	}
	return err
}

func underIndex(err error, i int) error { return under(err, fmt.Sprintf("[%d]", i)) }

func underKey(err error, key string) error {
	key = short(key, 64)
	if plainName(key) {
		return under(err, "."+key)
	}
	return under(err, fmt.Sprintf("[%q]", key))
}

func plainName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && c != '$' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return s != "" && (s[0] < '0' || s[0] > '9')
}
