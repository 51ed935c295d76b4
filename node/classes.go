package node

import (
	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store"
)

// register gives the classes their identities in the directory, by name. An
// identity is on record for ever, so that nothing is recorded before all of them
// are known to fit together.
func register(s *store.Store, classes []*limpet.Class) (map[string]string, error) {
	recorded := s.Classes()
	identities, owner := map[string]string{}, map[string]string{}
	for _, class := range classes {
		name := class.Name()
		id := class.Identity()
		if id == "" {
			id = name
		}
		if _, ok := recorded[name]; ok {
			var err error // another identity than that on record
			if id, err = s.RegisterClass(name, class.Identity()); err != nil {
				return nil, err
			}
		}
		if other, taken := owner[id]; taken {
			return nil, limpet.Errorf(limpet.CodeInvalidArgument, "classes %s and %s have the same identity %q: their objects would be the same", other, name, id)
		}
		identities[name], owner[id] = id, name
	}
	for name, id := range identities {
		if _, err := s.RegisterClass(name, id); err != nil {
			return nil, err
		}
	}
	return identities, nil
}
