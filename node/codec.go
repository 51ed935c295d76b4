package node

import (
	"errors"
	"reflect"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

// codec is internal/value as the root package sees it.
type codec struct{}

func (codec) Plain(pointerToType any) bool {
	return value.Plain(reflect.TypeOf(pointerToType).Elem())
}

func (codec) Args(args ...any) (limpet.Encoded, error) {
	b, err := value.AppendArgs(nil, args...)
	return b, coded(err)
}

func (codec) DecodeArgs(e limpet.Encoded, into ...any) error {
	return coded(value.DecodeArgs(e, into...))
}

func (codec) Marshal(v any) (limpet.Encoded, error) {
	b, err := value.Marshal(v)
	return b, coded(err)
}

func (codec) Unmarshal(e limpet.Encoded, into any) error { return coded(value.Unmarshal(e, into)) }

// coded gives an error of internal/value its code.
func coded(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, value.ErrTooLarge):
		return limpet.Errorf(limpet.CodeTooLarge, "%w", err)
	default:
		return limpet.Errorf(limpet.CodeInvalidArgument, "%w", err)
	}
}
