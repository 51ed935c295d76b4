package value

import (
	"reflect"
	"sync"
)

// Copy gives v as the one on the other side of a call would get it: what holds
// nothing that could be shared (see Plain) is v itself, all else is encoded and
// decoded, and then shares nothing with v. Errors are those of Append and
// Unmarshal. A T that is an interface gets what Decode makes.
func Copy[T any](v T) (T, error) {
	if t := reflect.TypeFor[T](); planOf(t).plain {
		return v, nil
	}
	var out T
	p := buffers.Get().(*[]byte)
	b, err := Append((*p)[:0], v)
	if err == nil {
		err = Unmarshal(b, &out)
	}
	if cap(b) <= 64<<10 {
		*p = b
		buffers.Put(p)
	}
	return out, err
}

// buffers are for bytes that live within one call.
var buffers = sync.Pool{New: func() any { return new([]byte) }}
