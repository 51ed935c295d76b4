package value

import (
	"slices"
	"sort"
)

// References are numbered in the order of the values they name, but a writer
// learns only at the second meeting that a value is shared. So it remembers the
// place of each value that might be, writes one pending byte per reference, and
// number fixes all of it up in one pass when the value is complete: tags 28 go in,
// pending bytes become tag 29 and a number. Counts in heads count items, never
// bytes, so inserting is safe. A value without references costs nothing.

// A ref is a reference at byte `at` to the value that begins at byte `to`.
type ref struct{ at, to int }

// resolve gives the value that a reference to pos means: what stands there may
// be a reference itself.
func resolve(refs []ref, pos int) int {
	i := sort.Search(len(refs), func(i int) bool { return refs[i].at >= pos })
	if i < len(refs) && refs[i].at == pos {
		return refs[i].to
	}
	return pos
}

// number turns pending references in b[base:] into numbered ones.
func number(b []byte, refs []ref) []byte {
	if len(refs) == 0 {
		return b
	}
	defs := make([]int, len(refs))
	for i, r := range refs {
		defs[i] = r.to
	}
	slices.Sort(defs)
	defs = slices.Compact(defs)
	num := make([][]byte, len(refs))
	grow := 2 * len(defs)
	for i, r := range refs { // refs are in the order of at
		n := sort.SearchInts(defs, r.to)
		num[i] = appendHead(appendTag(nil, tagRef), majorUint, uint64(n))
		grow += len(num[i]) - 1
	}
	end := len(b)
	b = append(b, make([]byte, grow)...)
	to := len(b) // what is right of it is finished
	d, r := len(defs)-1, len(refs)-1
	for d >= 0 || r >= 0 {
		if r >= 0 && (d < 0 || refs[r].at >= defs[d]) {
			at := refs[r].at
			to -= copy(b[to-(end-at-1):to], b[at+1:end])
			to -= copy(b[to-len(num[r]):to], num[r])
			end = at
			r--
			continue
		}
		at := defs[d]
		to -= copy(b[to-(end-at):to], b[at:end])
		to -= copy(b[to-2:to], []byte{majorTag | 24, tagShared})
		end = at
		d--
	}
	return b
}
