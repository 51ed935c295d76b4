// Package value carries values between objects, processes and languages: the
// one format of stored data, call arguments and results, for Go and JavaScript
// alike. It holds what JavaScript's structured clone holds (SPEC B26).
//
// # Bytes
//
// A value is one version byte and one CBOR item (RFC 8949) with nothing behind it:
//
//	+------+----------------+      01 83 01 f6 61 78     [1, null, "x"]
//	|  01  | one CBOR item  |      |  |  |  |  +--+-- text of 1 byte
//	+------+----------------+      |  |  |  +-------- null
//	                               |  |  +----------- integer 1
//	                               |  +-------------- array of 3
//	                               +----------------- version 1
//
// Only a part of CBOR is used, and every value has one spelling: heads in their
// shortest form, lengths definite, floats in the shortest width that keeps them
// (readers take any width), big integers without leading zeros. Anything else is
// ErrSyntax. What stands for what:
//
//	null, undefined         f6, f7
//	false, true             f4, f5
//	number, whole, ±2^53    major 0 or 1             Go integers, whole JavaScript numbers
//	number, other           f9 / fa / fb             -0 and whole Go floats too; one NaN: f9 7e00
//	big integer             tag 2 or 3, byte string  up to 131,072 bits; Go integers beyond ±2^53 too
//	string                  text (major 3)
//	  with lone surrogates  tag 273, byte string     WTF-8
//	Uint8Array              byte string (major 2)    Go []byte
//	typed arrays            RFC 8746, little endian, byte string
//	    68 Uint8Clamped  72 Int8   77 Int16  69 Uint16  78 Int32  70 Uint32
//	    79 BigInt64  71 BigUint64  84 Float16  85 Float32  86 Float64
//	array                   array (major 4)
//	  missing element       e0 (simple 0)            in arrays and errors only
//	plain object            map (major 5)            keys are strings, in the order of insertion
//	Map                     tag 259, map             any keys
//	Set                     tag 258, array
//	Date                    tag 19456 (4c00)         milliseconds since 1970: major 0/1, or NaN
//	RegExp                  tag 19457 (4c01)         [source, flags]
//	boxed primitive         tag 19458 (4c02)         boolean, number, big integer or string
//	error                   tag 19459 (4c03)         see below
//	ArrayBuffer             tag 19460 (4c04)         byte string
//	DataView                tag 19461 (4c05)         byte string: what it shows
//	capability              tag 19462 (4c06)         see below
//	shared value            tag 28, the value        numbered 0, 1, ... in the order of tags 28
//	  once more             tag 29, its number       also from inside of it: a cycle
//
// Tags from 19456 ('L' 00) are this format's own. A new kind of value gets a new
// tag and keeps the version, since readers refuse tags that they do not know; the
// version changes when something old changes its meaning.
//
// A date, an error and a cycle:
//
//	d9 4c00 19 03e8                     new Date(1000)
//	|       +------ 1000
//	+-------------- tag 19456
//
//	d9 4c03 87 65 Error 65 Error 62 no 60 a1 64 code 07 e0 e0
//	|       |  |        |        |     |  |             |  +-- errors of an AggregateError: none (e0) or an array
//	|       |  |        |        |     |  |             +----- cause: none (e0) or a value
//	|       |  |        |        |     |  +-------------------- own enumerable properties {code: 7}
//	|       |  |        |        |     +----------------------- stack; empty is none
//	|       |  |        |        +----------------------------- message
//	|       |  |        +-------------------------------------- name
//	|       |  +----------------------------------------------- class: the built-in class to make of it
//	|       +-------------------------------------------------- array of 7, always
//	+---------------------------------------------------------- tag 19459
//
//	d8 1c a1 64 self d8 1d 00           o = {}; o.self = o
//	|     |          +------- shared value 0 once more
//	|     +------------------ object of one member
//	+------------------------ tag 28: shared value 0
//
// A capability is something that can be called or read: a stub, a function, a byte
// stream. Only its place is in the bytes; the thing itself travels in a list beside
// them, as limpet.Parcel has it. Such values are arguments and results of calls;
// stored values and JSON have none.
//
//	d9 4c06 82 00 01                    the second one in the list: a stub
//	|       |  |  +-- index in the list, 0 to 999
//	|       |  +----- kind: 0 is called, 1 is a byte stream
//	|       +-------- array of 2, always
//	+---------------- tag 19462
//
// A writer learns that a value is shared only when it meets it again; it goes
// back and puts the tags in when all is written (share.go).
//
// Not carried: symbols, promises, weak maps (SPEC B27), properties of
// an array besides its elements, prototypes, and that two views show one buffer.
//
// # Go
//
// Encoding, by type:
//
//	nil pointer, slice, map, interface      null
//	bool, integers, floats, string          as above; a string must be UTF-8 or WTF-8
//	[]byte, [n]byte                         Uint8Array
//	slice, array                            array
//	struct                                  object of its exported fields
//	struct without exported fields          its MarshalText, if it has one
//	map with string keys                    object, by key
//	map with other keys                     Map, by key if these are integers
//	time.Time                               Date: UTC, cut to milliseconds (the rest is lost)
//	big.Int, *big.Int                       big integer
//	error                                   error; name: the type's if exported; message: Error();
//	                                        own fields: exported fields; cause: Unwrap()
//	limpet.Undefined, Map, Set, ...         see the root package's values.go
//	*limpet.Stub, func, io.Reader           capability, if the caller gives hooks for it
//	pointer                                 what it points to
//
// A field's name is the name in its limpet tag, else in its json tag, else its
// own. "-" leaves it out; "omitempty" and "omitzero" mean what they mean to
// encoding/json, and so do embedded structs. Unlike there, names are compared
// exactly. Unexported fields are never carried. Channels, functions, complex
// numbers, uintptr and structs that have only unexported fields are refused.
//
// The same pointer, map or slice met twice is one shared value, so that cycles
// are no trouble. Slices that overlap without being the same, and pointers into
// the middle of something, come out as copies of their own.
//
// Decoding gives each Go type what it can hold without loss: integers and floats
// take integers, whole floats and big integers that fit exactly (a float32
// rounds), string takes strings, time.Time dates, a slice arrays, sets and typed
// arrays, a struct objects and an error's own fields, a map objects and Maps,
// pointers and interfaces also null and undefined. A boxed primitive is as good as
// the primitive. A struct's field whose member is undefined stays as it was; null
// for what can't be nil is an error. An error becomes *limpet.ErrorValue.
//
// # JSON
//
// The HTTP door and the command line speak JSON. What it has no form for is an
// object with one member whose name begins with "$":
//
//	{"$undefined": true}                 {"$map": [[key, value], ...]}
//	{"$number": "NaN"}                   also "Infinity", "-Infinity", "-0"
//	{"$bigint": "123"}                   {"$set": [value, ...]}
//	{"$date": "2026-01-31T12:00:00.000Z"}  null for an invalid date
//	{"$bytes": "AQI="}                   base64 with padding
//	{"$typed": ["Int16Array", "AQI="]}   little endian
//	{"$regexp": ["a+", "gi"]}            {"$boxed": 1}
//	{"$error": {"class": ..., "name": ..., "message": ..., "stack": ..., "fields": {...}, "cause": ..., "errors": [...]}}
//	{"$hole": true}                      a missing array element
//	{"$object": {"$date": 1}}            an object that really has one such member
//
// Other such names are refused. An object with two or more members is always a
// plain one. Numbers are float64, as to JSON.parse, and 3.0 is the integer 3; but an
// integer that a float64 would change, such as 9007199254740993, is refused:
// {"$bigint": "9007199254740993"} is exact. A value that contains itself has no
// JSON.
package value
