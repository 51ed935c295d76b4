package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// baseCase is one implementation of BaseStore.
type baseCase struct {
	BaseStore
	crash func() BaseStore // as after a power cut, or killed and opened again
}

// testBases runs fn with every implementation.
func testBases(t *testing.T, fn func(t *testing.T, b baseCase)) {
	t.Run("memory", func(t *testing.T) {
		m := NewMemBase()
		fn(t, baseCase{m, func() BaseStore { _ = m.Reopen(); return m }})
	})
	t.Run("pebble", func(t *testing.T) {
		d := newCrashableDisk()
		b, err := openPebbleBase(d.fs, "base", true, 1<<20, slog.New(slog.DiscardHandler))
		must(t, err)
		rng := rand.New(rand.NewPCG(1, 2))
		c := baseCase{BaseStore: b}
		c.crash = func() BaseStore {
			after := d.crash(rng.IntN(101), rng)
			_ = c.BaseStore.Close()
			d = after
			b, err := openPebbleBase(d.fs, "base", false, 1<<20, slog.New(slog.DiscardHandler))
			must(t, err)
			c.BaseStore = b
			return b
		}
		fn(t, c)
		must(t, c.BaseStore.Close())
	})
}

func testPage(n byte, size int) []byte { return bytes.Repeat([]byte{n}, size) }

func inlineWrite(n int, txid uint64, image []byte) *BaseWrite {
	id := objectID(n)
	w := &BaseWrite{ID: id, Slot: SlotOf(id), Image: image}
	w.Meta = BaseMeta{Txid: txid, Pos: Pos{1, txid}, Birth: Birth{Class: "Cart", Name: fmt.Sprint(n), Named: true}}
	w.Meta.Pages = BasePages{PageSize: 512, Count: uint32(len(image) / 512), Checksum: 7, Inline: true}
	return w
}

func pagesWrite(n int, txid uint64, count uint32, changed ...BasePage) *BaseWrite {
	w := inlineWrite(n, txid, nil)
	w.Meta.Pages.Inline, w.Meta.Pages.Count = false, count
	w.Changed = changed
	return w
}

func TestBaseStore(t *testing.T) {
	testBases(t, func(t *testing.T, b baseCase) {
		if i, err := b.Info(); err != nil || i != (BaseInfo{}) {
			t.Fatalf("info of a new store: %+v, %v", i, err)
		}
		if _, ok, err := b.Load(objectID(1)); ok || err != nil {
			t.Fatalf("load of nothing: %t, %v", ok, err)
		}
		info := BaseInfo{Pos: Pos{1, 9}, Objects: 2, History: ID{1}, Disk: ID{2}}
		small := inlineWrite(1, 3, append(testPage('a', 512), testPage('b', 512)...))
		small.Claims = []byte("claims")
		must(t, b.Write(&info, small, pagesWrite(2, 4, 3, BasePage{3, testPage('z', 512)}, BasePage{1, testPage('x', 512)}, BasePage{2, testPage(0, 512)})))
		must(t, b.Flush())

		lost := info
		lost.Pos.Index++
		must(t, b.Write(&lost)) // not flushed: a crash may take it
		s := b.crash()
		if i, err := s.Info(); err != nil || i != info && i != lost {
			t.Errorf("info after a crash: %+v, %v", i, err)
		}
		o, ok, err := s.Load(objectID(1))
		if !ok || err != nil || !bytes.Equal(o.Image, small.Image) || o.BaseMeta != small.Meta {
			t.Errorf("object 1: %t, %v, %s", ok, err, cmp.Diff(small.Meta, o.BaseMeta))
		}
		if c, err := s.Claims(objectID(1)); string(c) != "claims" || err != nil {
			t.Errorf("claims %q, %v", c, err)
		}
		if c, err := s.Claims(objectID(2)); c != nil || err != nil {
			t.Errorf("claims %q of an object without, %v", c, err)
		}
		p := make([]byte, 512)
		for pgno, want := range []byte{'x', 0, 'z'} {
			if err := s.ReadPage(objectID(2), uint32(pgno+1), p); err != nil || !bytes.Equal(p, testPage(want, 512)) {
				t.Errorf("page %d: %v", pgno+1, err)
			}
		}
		var damage *DamageError
		if err := s.ReadPage(objectID(2), 4, p); !errors.As(err, &damage) {
			t.Errorf("page that is not there: %v", err)
		}
		if err := s.ReadPage(objectID(2), 1, p[:100]); err == nil {
			t.Error("a page of another size was read")
		}

		// Pages beyond the end go, an object that got small too.
		must(t, s.Write(nil, pagesWrite(2, 5, 1)))
		if err := s.ReadPage(objectID(2), 2, p); !errors.As(err, &damage) {
			t.Errorf("page that was cut off: %v", err)
		}
		must(t, s.ReadPage(objectID(2), 1, p))
		must(t, s.Write(nil, inlineWrite(2, 6, testPage('i', 512))))
		if err := s.ReadPage(objectID(2), 1, p); err == nil {
			t.Error("a page of an object that is one image now")
		}
		if o, ok, err := s.Load(objectID(2)); !ok || err != nil || !bytes.Equal(o.Image, testPage('i', 512)) {
			t.Errorf("object 2 as an image: %t, %v", ok, err)
		}

		// The beginning of a large checkpoint leaves everything else.
		mixed := pagesWrite(1, 3, 2, BasePage{50, testPage('m', 512)})
		mixed.Meta = small.Meta
		mixed.Meta.Mixed = true
		must(t, s.Write(nil, mixed))
		if o, ok, err := s.Load(objectID(1)); !ok || err != nil || !o.Mixed || !bytes.Equal(o.Image, small.Image) {
			t.Errorf("object 1, mixed: %t, %v", ok, err)
		}
		if c, err := s.Claims(objectID(1)); string(c) != "claims" || err != nil {
			t.Errorf("claims %q, %v", c, err)
		}
		fresh := pagesWrite(3, 0, 9, BasePage{1, testPage('f', 512)})
		fresh.Meta.Mixed = true
		must(t, s.Write(nil, fresh))
		if _, ok, err := s.Load(objectID(3)); ok || err != nil {
			t.Errorf("an object of pages alone: %t, %v", ok, err)
		}

		gone := inlineWrite(2, 7, nil)
		gone.Meta.Pages, gone.Meta.Deleted, gone.Image = BasePages{}, true, nil
		must(t, s.Write(nil, gone))
		claimed := map[ObjectID]string{}
		must(t, s.EachClaimed(func(id ObjectID, claims []byte) error {
			claimed[id] = string(claims)
			return nil
		}))
		if diff := cmp.Diff(map[ObjectID]string{objectID(1): "claims", objectID(2): ""}, claimed); diff != "" {
			t.Error(diff)
		}
		must(t, s.Write(nil, &BaseWrite{ID: objectID(2), Slot: SlotOf(objectID(2)), Remove: true}))
		if _, ok, err := s.Load(objectID(2)); ok || err != nil {
			t.Errorf("a removed object: %t, %v", ok, err)
		}
	})
}

// TestBaseStoresAgree makes the same random changes to every implementation and
// compares all they have.
func TestBaseStoresAgree(t *testing.T) {
	for seed := range uint64(8) {
		var all [][]string
		testBases(t, func(t *testing.T, b baseCase) {
			all = append(all, playBase(t, b, seed))
		})
		if diff := cmp.Diff(all[0], all[1]); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
	}
}

func playBase(t *testing.T, b baseCase, seed uint64) (seen []string) {
	rng := rand.New(rand.NewPCG(seed, 3))
	s := b.BaseStore
	const objects = 12
	counts := map[int]uint32{}
	alarms := map[int]int64{}
	for range 150 {
		n := rng.IntN(objects)
		var w *BaseWrite
		switch count := uint32(1 + rng.IntN(20)); rng.IntN(8) {
		case 0, 1:
			image := make([]byte, 512*count)
			for i := range image {
				image[i] = byte(rng.Uint32() & 3)
			}
			w = inlineWrite(n, 1+rng.Uint64N(1000), image)
			delete(counts, n)
		case 2:
			w = &BaseWrite{ID: objectID(n), Slot: SlotOf(objectID(n)), Remove: true}
			delete(counts, n)
		case 3:
			w = inlineWrite(n, 1+rng.Uint64N(1000), nil)
			w.Meta.Pages, w.Image, w.Meta.Deleted = BasePages{}, nil, rng.IntN(2) == 0
			delete(counts, n)
		default:
			w = pagesWrite(n, 1+rng.Uint64N(1000), count)
			for pgno := uint32(1); pgno <= count; pgno++ {
				if pgno > counts[n] || rng.IntN(3) == 0 {
					w.Changed = append(w.Changed, BasePage{pgno, testPage(byte(rng.IntN(3)), 512)})
				}
			}
			counts[n] = count
		}
		if rng.IntN(3) == 0 {
			w.Claims = []byte(fmt.Sprint("claims ", rng.IntN(100)))
		}
		w.AlarmWas = alarms[n]
		if !w.Remove && rng.IntN(3) == 0 {
			w.Meta.AlarmMS = rng.Int64N(2000) - 1000
		}
		alarms[n] = w.Meta.AlarmMS
		must(t, s.Write(&BaseInfo{Objects: rng.Int64N(100)}, w))
		if rng.IntN(10) == 0 {
			must(t, s.Flush())
			s = b.crash()
		}
	}
	note := func(format string, args ...any) { seen = append(seen, fmt.Sprintf(format, args...)) }
	i, err := s.Info()
	note("%+v %v", i, err)
	must(t, s.Each(0, 0xffff, func(id ObjectID, m *BaseMeta) error {
		o, ok, err := s.Load(id)
		note("%x %+v %t %v %x", id[:4], *m, ok, err, vfs.PageSum(1, append(o.Image, make([]byte, 64)...)))
		if o.BaseMeta != *m {
			t.Errorf("%+v, listed %+v", o.BaseMeta, *m)
		}
		c, err := s.Claims(id)
		note("%q %v", c, err)
		return s.EachPage(id, m.Pages.Count, func(pgno uint32, sum uint64) error {
			note("%d %x", pgno, sum)
			return nil
		})
	}))
	half := 0
	must(t, s.Each(0, 0x7fff, func(ObjectID, *BaseMeta) error { half++; return nil }))
	must(t, s.Each(0x8000, 0xffff, func(ObjectID, *BaseMeta) error { half++; return nil }))
	note("%d in two halves", half)
	must(t, s.EachAlarm(0, 0xffff, func(ms int64, id ObjectID) error { note("alarm %d %x", ms, id[:4]); return nil }))
	claimed := map[string]string{}
	must(t, s.EachClaimed(func(id ObjectID, claims []byte) error {
		if _, twice := claimed[string(id[:])]; twice {
			t.Errorf("object %x came twice", id)
		}
		claimed[string(id[:])] = string(claims)
		return nil
	}))
	for _, k := range slices.Sorted(maps.Keys(claimed)) {
		note("claimed %x %q", k[:4], claimed[k])
	}
	return seen
}

// TestPebbleBaseFails: whatever operation of the disk fails, what was flushed is
// there after Reopen, and nothing hangs.
func TestPebbleBaseFails(t *testing.T) {
	for n := range 60 {
		d := newCrashableDisk()
		b, err := openPebbleBase(d.fs, "base", true, 1<<20, slog.New(slog.DiscardHandler))
		must(t, err)
		must(t, b.Write(&BaseInfo{Objects: 1}, inlineWrite(1, 1, testPage('a', 512))))
		must(t, b.Flush())
		ops := 0
		d.setFault(func(op errorfs.Op) error {
			switch op.Kind.ReadOrWrite() {
			case errorfs.OpIsWrite:
				if ops++; ops > n {
					return errDisk
				}
			}
			return nil
		})
		must(t, b.Write(&BaseInfo{Objects: 2}, inlineWrite(2, 1, testPage('b', 512))))
		flushed := b.Flush()
		if flushed != nil && (b.Failed() == nil || !errors.Is(flushed, errBaseFailed)) {
			t.Errorf("%d operations: %v, failed %v", n, flushed, b.Failed())
		}
		d.setFault(nil)
		must(t, b.Reopen())
		if _, ok, err := b.Load(objectID(1)); !ok || err != nil {
			t.Errorf("%d operations: object 1 is there: %t, %v", n, ok, err)
		}
		_, ok, err := b.Load(objectID(2))
		if err != nil || flushed == nil && !ok {
			t.Errorf("%d operations: object 2 is there: %t, %v", n, ok, err)
		}
		must(t, b.Write(nil, inlineWrite(3, 1, testPage('c', 512))))
		must(t, b.Flush())
		must(t, b.Close())
	}
}

func FuzzBaseValues(f *testing.F) {
	m := inlineWrite(1, 2, nil).Meta
	f.Add(m.encode())
	f.Add((&BaseInfo{Pos: Pos{1, 2}}).encode())
	f.Add(encodePage(nil, 1, testPage('a', 512)))
	coder, err := newImageCoder()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(coder.close)
	f.Add(coder.encode(testPage('a', 512)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeBaseMeta(b); err == nil {
			if again, err := decodeBaseMeta(m.encode()); err != nil || again != m {
				t.Errorf("%+v, again %+v, %v", m, again, err)
			}
		}
		if i, err := decodeBaseInfo(b); err == nil {
			if again, err := decodeBaseInfo(i.encode()); err != nil || again != i {
				t.Errorf("%+v, again %+v, %v", i, again, err)
			}
		}
		_, _ = decodePage(b, 1, make([]byte, 512))
		_, _ = coder.decode(b, 512)
	})
}
