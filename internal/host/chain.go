package host

import "github.com/limpet-dev/limpet"

// maxChain is how many calls may stand in one chain, each made by the handler of
// the one before. Objects that call each other without end would use up the
// memory of the node otherwise: every call of a chain waits for the next, and
// looks through all contexts before it.
const maxChain = 256

// link makes ev a call out of caller's handler, unless the chain gets too long.
func (ev *event) link(caller *event) *limpet.Error {
	ev.entry.parent, ev.entry.depth = &caller.entry, caller.entry.depth+1
	if ev.entry.depth < maxChain {
		return nil
	}
	return caller.inc.newError(limpet.CodeCallCycle, limpet.DeliveryNone,
		"a chain of %d calls is taken for one without end: %s calls %s", maxChain, chain(&caller.entry), ev.name())
}
