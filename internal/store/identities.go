package store

import (
	"slices"

	"github.com/limpet-dev/limpet"
)

// RecoveredIdentity is a claim that was found in the commit log: the object has
// taken a call with this identity.
type RecoveredIdentity struct {
	Object   ObjectID
	Identity limpet.Identity
}

// maxRecovered bounds the claims kept at replay: the newest, 56 MiB of them.
const maxRecovered = 1 << 20

// identityRing keeps the newest.
type identityRing struct {
	max     int // 0 means maxRecovered
	kept    []RecoveredIdentity
	next    int // the oldest, once max are kept
	dropped bool
}

func (r *identityRing) add(id RecoveredIdentity) {
	limit := r.max
	if limit == 0 {
		limit = maxRecovered
	}
	if len(r.kept) < limit {
		r.kept = append(r.kept, id)
		return
	}
	r.kept[r.next] = id
	r.next = (r.next + 1) % limit
	r.dropped = true
}

// RecoveredIdentities hands over the claims that Open found, oldest first, and
// forgets them: a second call returns none. complete is false when there were
// more than the store keeps (1,048,576): then an identity that is not among
// them may have been claimed too.
func (s *Store) RecoveredIdentities() (ids []RecoveredIdentity, complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.idents
	ids, complete = r.kept, !r.dropped
	if r.next > 0 {
		ids = slices.Concat(r.kept[r.next:], r.kept[:r.next])
	}
	*r = identityRing{}
	return ids, complete
}
