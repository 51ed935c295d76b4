package limpettest

// HoldSyncs lets no sync of the disk of this life return until release.
func (n *Node) HoldSyncs() (release func()) {
	n.ops.Lock()
	defer n.ops.Unlock()
	return n.disk.HoldSyncs()
}
