package limpet

import "strconv"

// Undefined is JavaScript's undefined, as Undefined{}. Nil stands for null.
//
// # What a dynamic value is in Go
//
// A value that is decoded without a Go type to go by (into an any) is one of
//
//	nil               JavaScript's null
//	Undefined{}       undefined
//	bool
//	int64             a number that was written as an integer, |n| <= 2^53
//	float64           any other number (a float64 of 3 that Go wrote stays a float64)
//	*big.Int          a big integer
//	string            text; lone surrogates stand as their three WTF-8 bytes
//	[]byte            a Uint8Array
//	*TypedArray       every other typed array, an ArrayBuffer, a DataView
//	time.Time         a date, in UTC, to the millisecond
//	InvalidDate{}     a date that has no time
//	RegExp
//	Boxed             new Number(1) and the like
//	[]any             an array; a missing element is Hole{}
//	map[string]any    a plain object
//	*Map, *Set        in the order of insertion
//	*Stub[any]        a stub, a target or a function, in arguments and results
//	io.ReadCloser     a byte stream, there too
//	*ErrorValue       an error
//
// and all of them may be given as arguments, results and stored values too.
// Objects that are met twice in one value are one object after decoding too,
// cycles included; for that maps, pointers and slices that are not empty count
// as objects. SPEC B26. (Mind that package fmt does not end on a cycle of maps
// or slices: print values from strangers as JSON, or by their parts.)
type Undefined struct{}

// String gives "undefined".
func (Undefined) String() string { return "undefined" }

// Hole is an array element that does not exist (SPEC B26), as Hole{}. It is
// allowed as an element of a []any only.
type Hole struct{}

// String gives "hole".
func (Hole) String() string { return "hole" }

// InvalidDate is a JavaScript date whose time is NaN.
type InvalidDate struct{}

// String gives "Invalid Date", as JavaScript does.
func (InvalidDate) String() string { return "Invalid Date" }

// A Map is a JavaScript Map. Entries stand in the order of insertion. Two
// entries with equal keys are not checked for: a JavaScript reader keeps the
// last. Go maps whose keys are no strings are carried as a Map too.
type Map struct {
	Entries []MapEntry
}

// A MapEntry is one entry of a [Map].
type MapEntry struct {
	Key, Value any
}

// A Set is a JavaScript Set, its members in the order of insertion.
type Set struct {
	Values []any
}

// A RegExp is a regular expression of JavaScript. Source and Flags are carried
// as they are; Go does not run them.
type RegExp struct {
	Source, Flags string
}

// Boxed is a primitive wrapped in an object, as new Number(1) makes it. Value
// is a bool, a number, a *big.Int or a string.
type Boxed struct {
	Value any
}

// A TypedArrayKind says which kind of binary data a [TypedArray] is. Zero is no kind.
type TypedArrayKind uint8

// The kinds of binary data. A Uint8Array is a []byte in Go.
const (
	ArrayBuffer TypedArrayKind = iota + 1
	DataView
	Uint8ClampedArray
	Int8Array
	Int16Array
	Uint16Array
	Int32Array
	Uint32Array
	BigInt64Array
	BigUint64Array
	Float16Array
	Float32Array
	Float64Array
)

var typedArrayKinds = [...]struct {
	name string
	size int
}{
	ArrayBuffer:       {"ArrayBuffer", 1},
	DataView:          {"DataView", 1},
	Uint8ClampedArray: {"Uint8ClampedArray", 1},
	Int8Array:         {"Int8Array", 1},
	Int16Array:        {"Int16Array", 2},
	Uint16Array:       {"Uint16Array", 2},
	Int32Array:        {"Int32Array", 4},
	Uint32Array:       {"Uint32Array", 4},
	BigInt64Array:     {"BigInt64Array", 8},
	BigUint64Array:    {"BigUint64Array", 8},
	Float16Array:      {"Float16Array", 2},
	Float32Array:      {"Float32Array", 4},
	Float64Array:      {"Float64Array", 8},
}

// String gives the name of the JavaScript class.
func (k TypedArrayKind) String() string {
	if k == 0 || int(k) >= len(typedArrayKinds) {
		return "TypedArrayKind(" + strconv.Itoa(int(k)) + ")"
	}
	return typedArrayKinds[k].name
}

// ElementSize is the number of bytes of an element: 1, 2, 4 or 8, and 0 for
// what is no kind.
func (k TypedArrayKind) ElementSize() int {
	if int(k) >= len(typedArrayKinds) {
		return 0
	}
	return typedArrayKinds[k].size
}

// A TypedArray is binary data of JavaScript: a typed array other than
// Uint8Array, an ArrayBuffer or a DataView. Data holds the elements in little
// endian order; its length is a multiple of Kind.ElementSize(). Views of one
// buffer are carried as values of their own, each with the bytes it shows.
type TypedArray struct {
	Kind TypedArrayKind
	Data []byte
}

// An ErrorValue is an error as it travels between objects (SPEC C9). A Go error
// arrives as one: Name is the name of its type if that is exported (else
// "Error"), Message its text, Fields its exported fields, Cause what it wraps.
type ErrorValue struct {
	// Class is the built-in class that a JavaScript reader makes of it: "Error",
	// "TypeError", "AggregateError", "DOMException". Empty means Name if that
	// is a built-in class, else "Error".
	Class string
	// Name is the error's name property. Empty means Class.
	Name    string
	Message string
	// Stack is the text of the stack; empty means that none is carried.
	Stack string
	// Fields are the error's own enumerable properties; nil means none.
	Fields map[string]any
	// Cause is the error's cause. An error whose cause is null has HasCause set
	// and Cause nil.
	Cause    any
	HasCause bool
	// Errors are the errors property of an AggregateError; nil means none.
	Errors []any
}

// Error gives "Name: Message", as JavaScript's toString does, and the message
// alone if the name says nothing ("Error" or empty).
func (e *ErrorValue) Error() string {
	switch {
	case e.Name == "" || e.Name == "Error":
		return e.Message
	case e.Message == "":
		return e.Name
	}
	return e.Name + ": " + e.Message
}

// Unwrap gives the cause if it is an error. Errors arrive from peers and may
// form a cycle; Unwrap gives nil for a cause that leads round in one, or on for
// more than 1,000 errors, so that errors.Is and errors.As always end. The
// errors of an AggregateError are not unwrapped for the same reason: the same
// error may stand in it many times, at every level.
func (e *ErrorValue) Unwrap() error {
	next, ok := e.Cause.(error)
	if !ok {
		return nil
	}
	at := next
	for range maxCauses {
		v, ok := at.(*ErrorValue) //nolint:errorlint // each error of the chain by itself is what is counted
		if !ok || v == nil {
			return next
		}
		if at, ok = v.Cause.(error); !ok {
			return next
		}
	}
	return nil
}

const maxCauses = 1000
