package store

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// workload makes random turns and keeps what they should have done.
type workload struct {
	rng       *rand.Rand
	objects   int
	open      map[int]*workObject
	committed map[int]map[string]string // by object, as of its last Commit
}

type workObject struct {
	*Object
	n int
}

func newWorkload(seed uint64, objects int) *workload {
	return &workload{rng: rand.New(rand.NewPCG(seed, 7)), objects: objects, open: map[int]*workObject{}, committed: map[int]map[string]string{}}
}

// pick returns a random object, opened if it is not.
func (w *workload) pick(t testing.TB, s *Store) *workObject {
	n := w.rng.IntN(w.objects)
	o := w.open[n]
	if o == nil {
		o = &workObject{openObject(t, s, n), n}
		w.open[n] = o
	}
	return o
}

func (w *workload) closeAll(t testing.TB) {
	for _, o := range w.open {
		must(t, o.Close())
	}
	clear(w.open)
}

func (w *workload) key() string { return string(rune('a' + w.rng.IntN(20))) }

func (w *workload) value() []byte {
	n := w.rng.IntN(300)
	switch w.rng.IntN(40) {
	case 0:
		n = w.rng.IntN(3 * testSegment)
	case 1, 2, 3:
		n = w.rng.IntN(5000)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(w.rng.Uint32())
	}
	return b
}

var errRollback = error(rollback{})

type rollback struct{}

func (rollback) Error() string { return "roll back" }

// write makes a few random writes and notes them in m.
func (w *workload) write(t testing.TB, o *workObject, m map[string]string, depth int) {
	for range 1 + w.rng.IntN(4) {
		switch r := w.rng.IntN(20); {
		case r < 11:
			k, v := w.key(), w.value()
			must(t, o.Put(k, v))
			m[k] = string(v)
		case r < 14:
			k := w.key()
			ok, err := o.Delete(k)
			must(t, err)
			if _, had := m[k]; had != ok {
				t.Fatalf("delete %q: %t, want %t", k, ok, had)
			}
			delete(m, k)
		case r < 15 && depth == 0:
			must(t, o.DeleteAll())
			clear(m)
		case r < 18 && depth < 3:
			inner := maps.Clone(m)
			fail := w.rng.IntN(2) == 0
			err := o.Transaction(func() error {
				w.write(t, o, inner, depth+1)
				if fail {
					return errRollback
				}
				return nil
			})
			if fail {
				if err != errRollback { //nolint:errorlint // the very error
					t.Fatalf("transaction: %v", err)
				}
				continue
			}
			must(t, err)
			clear(m)
			maps.Copy(m, inner)
		case r < 19:
			must(t, o.PutMany([]Entry{{"x", []byte("1")}, {"y", []byte("2")}}))
			m["x"], m["y"] = "1", "2"
		default:
			k := w.key()
			v, ok, err := o.Get(k)
			must(t, err)
			if want, had := m[k]; had != ok || want != string(v) {
				t.Fatalf("get %q: %d bytes, %t, want %d, %t", k, len(v), ok, len(want), had)
			}
		}
	}
}

// turn makes one turn and commits it or rolls it back.
func (w *workload) turn(t testing.TB, o *workObject) (committed bool, p Pos) {
	m := maps.Clone(w.committed[o.n])
	if m == nil {
		m = map[string]string{}
	}
	w.write(t, o, m, 0)
	if w.rng.IntN(8) == 0 {
		must(t, o.Rollback())
		return false, Pos{}
	}
	p, err := o.Commit(nil)
	must(t, err)
	w.committed[o.n] = m
	if w.rng.IntN(10) == 0 {
		must(t, o.Sleep())
	}
	return true, p
}
