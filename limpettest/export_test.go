package limpettest

import "context"

// HoldSyncs lets no sync of the disk of this life return until release.
func (n *Node) HoldSyncs() (release func()) {
	n.ops.Lock()
	defer n.ops.Unlock()
	return n.disk.HoldSyncs()
}

// Drain stops the node's work.
func (n *Node) Drain(ctx context.Context) error {
	up, _ := n.current()
	return up.Drain(ctx)
}
