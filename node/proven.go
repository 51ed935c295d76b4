package node

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/wire"
)

// provenIDs remembers IDs of which it was proved that they belong to their
// namespace and name: that takes three HMACs, some microseconds. What was proved
// once stays true, since the key of a namespace never changes. It holds one ID
// for each slot, the last that came; a peer that sends others on purpose makes
// others' calls as slow as they were, no more.
type provenIDs struct {
	slots [4096]atomic.Pointer[provenID]
}

type provenID struct {
	binding *limpet.Binding
	id      limpet.ID // with the name, if the call had one
}

// maxProvenName bounds what the slots hold, to some 5 MiB.
const maxProvenName = 1 << 10

func (p *provenIDs) slot(h *wire.Call) *atomic.Pointer[provenID] {
	return &p.slots[int(binary.BigEndian.Uint16(h.Object[:]))%len(p.slots)]
}

func (p *provenIDs) find(b *limpet.Binding, h *wire.Call) (limpet.ID, bool) {
	e := p.slot(h).Load()
	if e == nil || e.binding != b || e.id.Bytes() != h.Object {
		return limpet.ID{}, false
	}
	if name, named := e.id.Name(); named != h.Named || name != h.Name {
		return limpet.ID{}, false
	}
	return e.id, true
}

func (p *provenIDs) add(b *limpet.Binding, h *wire.Call, id limpet.ID) {
	if len(h.Name) <= maxProvenName {
		p.slot(h).Store(&provenID{b, id})
	}
}
