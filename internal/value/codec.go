package value

import (
	"errors"
	"reflect"

	"github.com/limpet-dev/limpet"
)

// Codec is this package as the root package sees it: a limpet.Codec.
type Codec struct{}

var _ limpet.Codec = Codec{}

// Plain reports whether values may be handed over by assignment.
func (Codec) Plain(pointerToType any) bool {
	return Plain(reflect.TypeOf(pointerToType).Elem())
}

// Args encodes an argument list.
func (Codec) Args(args ...any) (limpet.Encoded, error) {
	b, err := AppendArgs(nil, args...)
	return b, coded(err)
}

// DecodeArgs decodes an argument list into pointers.
func (Codec) DecodeArgs(e limpet.Encoded, into ...any) error {
	return coded(DecodeArgs(e, into...))
}

// Marshal encodes one value.
func (Codec) Marshal(v any) (limpet.Encoded, error) {
	b, err := Marshal(v)
	return b, coded(err)
}

// Unmarshal decodes one value.
func (Codec) Unmarshal(e limpet.Encoded, into any) error { return coded(Unmarshal(e, into)) }

// coded gives an error of this package its code.
func coded(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrTooLarge):
		return limpet.Errorf(limpet.CodeTooLarge, "%w", err)
	default:
		return limpet.Errorf(limpet.CodeInvalidArgument, "%w", err)
	}
}
