package value

import (
	"errors"
	"reflect"

	"github.com/limpet-dev/limpet"
)

// Codec is this package as the root package sees it: a limpet.Codec.
type Codec struct{ hooks limpet.CapabilityHooks }

var _ limpet.Codec = Codec{}

// With is the codec with hooks.
func (Codec) With(h limpet.CapabilityHooks) limpet.Codec { return Codec{hooks: h} }

// Plain reports whether values may be handed over by assignment.
func (Codec) Plain(pointerToType any) bool {
	return Plain(reflect.TypeOf(pointerToType).Elem())
}

// Args encodes an argument list.
func (c Codec) Args(args ...any) (limpet.Encoded, error) {
	b, err := c.options().AppendArgs(nil, args...)
	return b, uncarried(err)
}

// DecodeArgs decodes an argument list into pointers.
func (c Codec) DecodeArgs(e limpet.Encoded, into ...any) error {
	return coded(c.options().DecodeArgs(e, into...))
}

// Marshal encodes one value.
func (c Codec) Marshal(v any) (limpet.Encoded, error) {
	b, err := c.options().Append(nil, v)
	return b, uncarried(err)
}

// Unmarshal decodes one value.
func (c Codec) Unmarshal(e limpet.Encoded, into any) error {
	return coded(c.options().Unmarshal(e, into))
}

func (c Codec) options() Options { return Options{Hooks: c.hooks} }

// uncarried is coded for values that are not written: those of a type that can't
// be have the class that JavaScript gives them (SPEC B27, C32).
func uncarried(err error) error {
	out := coded(err)
	if e, ok := errors.AsType[*limpet.Error](out); ok && errors.Is(err, ErrType) {
		e.Name = "DataCloneError"
	}
	return out
}

// coded gives an error of this package its code.
func coded(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrTooLarge):
		return limpet.Errorf(limpet.CodeTooLarge, "%w", err)
	case errors.Is(err, ErrCapability):
		return limpet.Errorf(limpet.CodeNotSupported, "%w", err)
	case errors.Is(err, limpet.CodeDisposed):
		return limpet.Errorf(limpet.CodeDisposed, "%w", err)
	default:
		return limpet.Errorf(limpet.CodeInvalidArgument, "%w", err)
	}
}
