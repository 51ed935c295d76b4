package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	diskfs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
	"github.com/limpet-dev/limpet/internal/store"
)

// openStore opens the real storage on a disk in memory.
func openStore(t testing.TB, fs diskfs.FS) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{FS: fs, Dir: "data", Clock: sim.Clock{}, SegmentSize: store.MinSegmentSize})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStorage is what the host relies on, for every Storage there is.
func TestStorage(t *testing.T) {
	for _, kind := range []struct {
		name string
		open func(t *testing.T) Storage
	}{
		{"memory", func(*testing.T) Storage { return newMemory() }},
		{"store", func(t *testing.T) Storage {
			s := openStore(t, diskfs.NewMem())
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			return FromStore(s)
		}},
	} {
		for name, f := range storageCases {
			t.Run(kind.name+"/"+name, func(t *testing.T) { f(t, kind.open(t)) })
		}
	}
}

var (
	storageID    = [32]byte{1, 2, 3}
	storageBirth = Birth{Class: "Thing", Name: "o", Named: true}
)

func openObject(t *testing.T, s Storage) Object {
	t.Helper()
	o, err := s.Object(storageID, storageBirth)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func wantValue(t *testing.T, o Object, key, want string) {
	t.Helper()
	v, ok, err := o.Get(key)
	if err != nil || string(v) != want || ok != (want != "") {
		t.Errorf("%q is %q (%v, %v), want %q", key, v, ok, err, want)
	}
}

func commit(t *testing.T, o Object, ids ...limpet.Identity) Pos {
	t.Helper()
	p, err := o.Commit(ids)
	must(t, err)
	if p != o.LastPos() || o.Dirty() {
		t.Errorf("commit at %v, last %v, dirty %v", p, o.LastPos(), o.Dirty())
	}
	return p
}

var storageCases = map[string]func(t *testing.T, s Storage){
	"positions": func(t *testing.T, s Storage) {
		o := openObject(t, s)
		if !o.LastPos().IsZero() || o.Dirty() || s.Exists(storageID) {
			t.Error("a new object has a past")
		}
		wantValue(t, o, "a", "")
		if p := commit(t, o); !p.IsZero() || s.Exists(storageID) {
			t.Errorf("a commit of nothing is at %v", p)
		}
		must(t, s.Wait(t.Context(), Pos{}))
		must(t, o.Put("a", []byte("1")))
		if !o.Dirty() {
			t.Error("a write does not make the object dirty")
		}
		wantValue(t, o, "a", "1")
		p := commit(t, o)
		if p.IsZero() || !s.Exists(storageID) {
			t.Errorf("a commit at %v, exists %v", p, s.Exists(storageID))
		}
		if q := commit(t, o); q != p {
			t.Errorf("a commit of nothing is at %v, want the last %v", q, p)
		}
		q := commit(t, o, key(1).id)
		if p.After(q) { // one batch may hold several
			t.Errorf("a commit of an identity is at %v, before it %v", q, p)
		}
		must(t, o.Put("a", []byte("2")))
		if r := commit(t, o, key(2).id, key(3).id); q.After(r) {
			t.Errorf("a commit is at %v, before it %v", r, q)
		}
		must(t, s.Wait(t.Context(), o.LastPos()), s.WaitRoom(t.Context()))
	},
	"note": func(t *testing.T, s Storage) {
		o := openObject(t, s)
		if p, err := o.Note(nil); err != nil || !p.IsZero() || s.Exists(storageID) {
			t.Errorf("a note of nothing is at %v, %v", p, err)
		}
		must(t, o.Put("a", []byte("1")))
		p, err := o.Note([]limpet.Identity{key(1).id})
		must(t, err)
		if p.IsZero() || p != o.LastPos() || !o.Dirty() || !s.Exists(storageID) {
			t.Errorf("a note at %v, last %v, dirty %v", p, o.LastPos(), o.Dirty())
		}
		must(t, o.Rollback())
		wantValue(t, o, "a", "") // the note did not commit the turn
		must(t, o.Transaction(func() error {
			must(t, o.Put("a", []byte("2")))
			_, err := o.Note([]limpet.Identity{key(2).id})
			return err
		}))
		q := commit(t, o)
		if p.After(q) {
			t.Errorf("a commit at %v, the note before it at %v", q, p)
		}
		must(t, o.Close())
		wantValue(t, openObject(t, s), "a", "2")
	},
	"rollback": func(t *testing.T, s Storage) {
		o := openObject(t, s)
		must(t, o.Put("a", []byte("1")))
		commit(t, o)
		must(t, o.Put("a", []byte("2")), o.Put("b", []byte("2")), o.Rollback())
		wantValue(t, o, "a", "1")
		wantValue(t, o, "b", "")
		if o.Dirty() {
			t.Error("dirty after a rollback")
		}
		must(t, o.DeleteAll(), o.Rollback(), o.Rollback())
		wantValue(t, o, "a", "1")
	},
	"delete": func(t *testing.T, s Storage) {
		o := openObject(t, s)
		must(t, o.Put("", []byte("empty key")), o.Put("a", []byte("1"))) // SPEC H22
		wantValue(t, o, "", "empty key")
		for _, want := range []bool{true, false} {
			if got, err := o.Delete("a"); got != want || err != nil {
				t.Errorf("delete: %v %v, want %v", got, err, want)
			}
		}
		must(t, o.DeleteAll())
		wantValue(t, o, "", "")
	},
	"list": func(t *testing.T, s Storage) {
		o := openObject(t, s)
		for _, k := range []string{"", "a", "aa", "ab", "b", "c"} {
			must(t, o.Put(k, []byte("v"+k)))
		}
		list := func(opt limpet.ListOptions, stop int) string {
			var got []string
			must(t, o.List(opt, func(k string, v []byte) bool {
				if string(v) != "v"+k {
					t.Errorf("%q has value %q", k, v)
				}
				got = append(got, k)
				return len(got) != stop
			}))
			return strings.Join(got, ",")
		}
		for _, test := range []struct {
			o    limpet.ListOptions
			stop int
			want string
		}{
			{limpet.ListOptions{}, 0, ",a,aa,ab,b,c"}, {limpet.ListOptions{}, 3, ",a,aa"},
			{limpet.ListOptions{Reverse: true}, 0, "c,b,ab,aa,a,"},
			{limpet.ListOptions{Start: "aa", End: "c"}, 0, "aa,ab,b"}, {limpet.ListOptions{StartAfter: "aa"}, 0, "ab,b,c"},
			{limpet.ListOptions{Start: "aa\x00"}, 0, "ab,b,c"},
			{limpet.ListOptions{Prefix: "a", Limit: 2}, 0, "a,aa"}, {limpet.ListOptions{Prefix: "a", Reverse: true, End: "ab"}, 0, "aa,a"},
		} {
			if got := list(test.o, test.stop); got != test.want {
				t.Errorf("%+v: %s, want %s", test.o, got, test.want)
			}
		}
	},
	"transaction": func(t *testing.T, s Storage) {
		o := openObject(t, s)
		boom := errors.New("boom")
		must(t, o.Put("a", []byte("1")))
		err := o.Transaction(func() error {
			must(t, o.Put("a", []byte("2")), o.Put("b", []byte("2")))
			if err := o.Transaction(func() error { must(t, o.Put("c", []byte("3"))); return boom }); err != boom { //nolint:errorlint // the very error
				t.Errorf("inner: %v", err)
			}
			wantValue(t, o, "c", "")
			return o.Transaction(func() error { return o.Put("d", []byte("4")) })
		})
		must(t, err)
		func() {
			defer func() {
				if r := recover(); r != "out" {
					t.Errorf("recovered %v", r)
				}
			}()
			_ = o.Transaction(func() error { must(t, o.Put("a", []byte("9"))); panic("out") })
		}()
		commit(t, o)
		for k, want := range map[string]string{"a": "2", "b": "2", "c": "", "d": "4"} {
			wantValue(t, o, k, want)
		}
		if _, err := o.Commit(nil); err != nil {
			t.Errorf("after transactions: %v", err)
		}
	},
	"closed within a transaction": func(t *testing.T, s Storage) {
		o := openObject(t, s)
		must(t, o.Put("a", []byte("1")))
		commit(t, o)
		err := o.Transaction(func() error {
			must(t, o.Put("a", []byte("2")), o.Rollback(), o.Close())
			return nil
		})
		if err == nil {
			t.Error("a transaction of a closed object went through")
		}
		o = openObject(t, s)
		wantValue(t, o, "a", "1")
	},
	"close and open": func(t *testing.T, s Storage) {
		o := openObject(t, s)
		must(t, o.Put("a", []byte("1")))
		p := commit(t, o)
		if _, err := s.Object(storageID, storageBirth); err == nil {
			t.Error("an object was opened twice")
		}
		must(t, o.Put("a", []byte("2")), o.Close())
		for name, err := range map[string]error{"get": third(o.Get("a")), "put": o.Put("a", nil), "commit": second(o.Commit(nil)), "rollback": o.Rollback()} {
			if err == nil {
				t.Errorf("%s of a closed object went through", name)
			}
		}
		o = openObject(t, s)
		wantValue(t, o, "a", "1")
		if o.LastPos() != p {
			t.Errorf("last position %v, want %v", o.LastPos(), p)
		}
	},
	"interrupt": func(t *testing.T, s Storage) {
		o := openObject(t, s)
		must(t, o.Put("a", []byte("1")))
		commit(t, o)
		stop := make(chan struct{})
		o.SetInterrupt(stop)
		must(t, o.Put("a", []byte("2")))
		close(stop)
		_ = o.Put("a", []byte("3")) // may be through before it notices
		o.SetInterrupt(nil)
		must(t, o.Rollback())
		wantValue(t, o, "a", "1")
		must(t, o.Put("a", []byte("4")))
		commit(t, o)
	},
	"contexts": func(t *testing.T, s Storage) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		must(t, s.Wait(ctx, Pos{}), s.WaitRoom(ctx)) // nothing to wait for
		if err := s.Wait(ctx, Pos{Term: 1, Index: 1 << 40}); err == nil {
			t.Error("a position that never was is durable")
		}
		select {
		case <-s.Lost():
			t.Error("lost")
		default:
		}
	},
}

func third[A, B any](_ A, _ B, err error) error { return err }

// The whole host on the real storage: concurrent increments, evictions and
// resets in between, and everything acknowledged is there after a restart.
func TestOnStore(t *testing.T) {
	fs := diskfs.NewMem()
	b := new(box).standard()
	b.on("abort", func(_ context.Context, th *thing, _ string) (string, error) {
		put(th.st, "n", 1<<20)
		th.st.Abort(nil)
		return "", nil
	}).on("abort in transaction", func(_ context.Context, th *thing, _ string) (string, error) {
		return "", th.st.Transaction(func() error { put(th.st, "n", 1<<20); th.st.Abort(nil); return nil })
	})
	const objects, calls = 4, 60
	run := func(f func(w *world)) {
		s := openStore(t, fs)
		w := newWorldOn(t, FromStore(s), Limits{}, b.class("Thing"))
		f(w)
		w.close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	run(func(w *world) {
		var wg sync.WaitGroup
		for o := range objects {
			name := fmt.Sprint("o", o)
			for c := range calls {
				wg.Go(func() {
					what := "put"
					if c%20 == 7 {
						what = "abort"
					}
					if c%20 == 13 {
						what = "abort in transaction"
					}
					for {
						_, err := w.callOf(t.Context(), name, what, "n")
						if what == "put" && errors.Is(err, limpet.CodeReset) {
							continue // its turn was rolled back, or it never ran
						}
						if what == "put" && err != nil {
							t.Errorf("%s: %v", what, err)
						}
						break
					}
				})
			}
		}
		for range 20 {
			for o := range objects {
				w.host.Evict(stubOf[*thing](w, "Thing", fmt.Sprint("o", o)).ID())
			}
			time.Sleep(time.Millisecond) // lets calls go on; nothing depends on it
		}
		wg.Wait()
	})
	run(func(w *world) {
		for o := range objects {
			v, err := w.callOf(t.Context(), fmt.Sprint("o", o), "get", "n")
			// A put that was reset after its commit may have been made again.
			n := 0
			_, _ = fmt.Sscan(v, &n)
			if err != nil || n < calls*18/20 || n > calls {
				t.Errorf("object %d: %q %v, want at least %d puts", o, v, err, calls*18/20)
			}
		}
	})
}
