package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	diskfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// spillOptions spill what is more than some KiB.
func spillOptions(d *disk) Options {
	opt := testOptions(d)
	opt.SpillAbove = 4 << 10
	return opt
}

// noise is n bytes that differ with seed.
func noise(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 3))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// reserved is the room of admitted records that were not appended.
func (l *segmentLog) reservedRoom() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reserved
}

// TestSpill: a commit of more than a record holds is made and found again, with
// its identities and birth, and never much of it waits for the disk.
func TestSpill(t *testing.T) {
	d := newCrashableDisk()
	opt := testOptions(d)
	opt.SegmentSize = 8 << 20
	s := openStore(t, opt)
	o := openObject(t, s, 1)
	var most int64
	d.setFault(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWriteAt && strings.HasSuffix(op.Path, segmentSuffix) {
			most = max(most, s.Stats().UndurableBytes)
		}
		return nil
	})
	want := map[string]string{}
	for i := range 4 {
		v := noise(uint64(i), 10<<20)
		must(t, o.Put(fmt.Sprint(i), v))
		want[fmt.Sprint(i)] = string(v)
	}
	commit(t, o, identity(1), identity(2))
	if st := s.Stats(); st.Spilled != 1 || st.Records != 42 {
		t.Errorf("40 MiB: %d commits spilled, %d records; want 1 commit of 41 pieces and the last record", st.Spilled, st.Records)
	}
	if most > (spillWindow+1)*(maxPiece+8192) {
		t.Errorf("%d bytes of the commit waited for the disk at once", most)
	}
	// A value as large as can be, with its old one in place.
	large := noise(9, maxEntry-1)
	must(t, o.Put("0", large))
	want["0"] = string(large)
	commit(t, o)
	if n := s.log.reservedRoom(); n != 0 {
		t.Errorf("%d bytes stay reserved", n)
	}
	must(t, o.Close())
	must(t, s.Close())

	opt.FS = d.crash(0, nil).fs
	s = openStore(t, opt)
	o = openObject(t, s, 1)
	if got := contents(t, o); !maps.Equal(got, want) {
		t.Error("other contents after a power cut")
	}
	checkIntegrity(t, o)
	ids, _ := s.RecoveredIdentities()
	if diff := cmp.Diff([]RecoveredIdentity{{objectID(1), identity(1)}, {objectID(1), identity(2)}}, ids); diff != "" {
		t.Error(diff)
	}
	if o.Birth().Name != "object 1" || s.replay.DroppedPieces != 0 || s.spills != nil {
		t.Errorf("birth %+v, %d pieces dropped", o.Birth(), s.replay.DroppedPieces)
	}
}

// TestSpillLimit: a commit over the limit of all is refused before anything of
// it is in the log, and says what the limit is.
func TestSpillLimit(t *testing.T) {
	opt := spillOptions(newCrashableDisk())
	opt.MaxCommit = 200 << 10
	s := openStore(t, opt)
	o := openObject(t, s, 1)
	must(t, o.Put("k", noise(1, 150<<10)))
	p := commit(t, o)
	before := contents(t, o)
	must(t, o.Put("l", noise(2, 210<<10)))
	must(t, o.Put("k", nil))
	_, err := o.Commit([]limpet.Identity{identity(1)})
	var limit *LimitError
	if !errors.As(err, &limit) || !errors.Is(err, ErrTooLarge) || !errors.Is(err, vfs.ErrTooBig) ||
		limit.Limit != 200<<10 || limit.Size < 210<<10 || limit.Size > 230<<10 || limit.Remedy == "" {
		t.Errorf("a commit of 210 KiB: %v", err)
	}
	wantContents(t, o, before)
	if st := s.Stats(); o.LastPos() != p || st.UndurableBytes != 0 || st.Spilled != 1 || s.log.reservedRoom() != 0 {
		t.Errorf("the refused commit left something: %+v", st)
	}
	for _, opt := range []Options{{SpillAbove: MaxRecord + 1}, {SpillAbove: -1}, {MaxCommit: -1}} {
		opt.FS, opt.Dir, opt.Clock = newCrashableDisk().fs, "data", systemClock{}
		if s, err := Open(t.Context(), opt); err == nil {
			_ = s.Close()
			t.Errorf("%+v was accepted", opt)
		}
	}
}

// TestSpillFullDisk: a commit that does not fit as a whole writes nothing, so
// that smaller ones still have the room.
func TestSpillFullDisk(t *testing.T) {
	d := newCrashableDisk()
	opt := spillOptions(d)
	opt.Clock = newHandClock()
	s := openStore(t, opt)
	waitReady(s.log)
	o := openObject(t, s, 1)
	must(t, o.Put("k", []byte("before")))
	commit(t, o)
	d.failOn(errorfs.OpCreate, tempSuffix, syscall.ENOSPC)
	written := s.Stats().LogBytes
	must(t, o.Put("k", noise(1, 3*testSegment)))
	_, err := o.Commit(nil)
	if !errors.Is(err, ErrStorageFull) || !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, vfs.ErrFull) {
		t.Fatalf("commit: %v, want ErrStorageFull", err)
	}
	wantContents(t, o, map[string]string{"k": "before"})
	if st := s.Stats(); st.LogBytes != written || st.UndurableBytes != 0 || s.log.reservedRoom() != 0 {
		t.Errorf("a commit without room wrote to the log or holds room: %+v", st)
	}
	must(t, o.Put("k", noise(2, testSegment))) // spilled too, and fits
	commit(t, o)
	if s.Stats().Spilled != 1 {
		t.Error("the smaller commit was not spilled")
	}
}

// TestSpillBackpressure: while the disk hangs, a large commit waits with few
// pieces in memory; an interrupt, the loss of the log and Close end the wait,
// and the object is as before the turn.
func TestSpillBackpressure(t *testing.T) {
	for _, limit := range []int64{DefaultUndurableLimit, 1} { // the window waits, or the full log does
		for name, c := range map[string]struct {
			end  func(s *Store, d *disk, done chan struct{})
			want error
		}{
			"interrupt": {func(_ *Store, _ *disk, done chan struct{}) { close(done) }, vfs.ErrInterrupt},
			"lost": {func(_ *Store, d *disk, _ chan struct{}) {
				d.failOn(errorfs.OpFileSyncData, segmentSuffix, errDisk)
				d.unhold()
			}, ErrLost},
			"nothing": {func(_ *Store, d *disk, _ chan struct{}) { d.unhold() }, nil},
		} {
			t.Run(fmt.Sprintf("%s/%d", name, limit), func(t *testing.T) {
				d := newCrashableDisk()
				opt := spillOptions(d)
				opt.UndurableLimit = limit
				s := openStore(t, opt)
				o := openObject(t, s, 1)
				must(t, o.Put("k", []byte("before")))
				commit(t, o)
				must(t, o.Put("k", noise(1, 200<<10)))
				done := make(chan struct{})
				o.SetInterrupt(done)
				d.hold()
				committed := make(chan error, 1)
				go func() {
					_, err := o.Commit(nil)
					committed <- err
				}()
				for held := false; !held; { // until the flusher hangs in a sync with a piece behind it, or the limit holds the next back
					st := s.Stats()
					s.log.mu.Lock()
					waits := s.log.room != nil
					for _, b := range []*batch{s.log.flying, s.log.open} {
						waits = waits || b != nil && b.done != nil
					}
					s.log.mu.Unlock()
					held = waits && st.UndurableBytes > 0
				}
				pieces := int64(spillWindow)
				if limit == 1 {
					pieces = 1
				}
				if n := s.Stats().UndurableBytes; n > pieces*(5<<10) {
					t.Errorf("%d bytes wait for the disk, want %d pieces at most", n, pieces)
				}
				c.end(s, d, done)
				err := <-committed
				o.SetInterrupt(nil)
				if c.want == nil {
					must(t, err)
					must(t, s.Wait(t.Context(), o.LastPos()))
					wantContents(t, o, map[string]string{"k": string(noise(1, 200<<10))})
					return
				}
				if !errors.Is(err, c.want) {
					t.Errorf("commit: %v, want %v", err, c.want)
				}
				if n := s.log.reservedRoom(); n != 0 {
					t.Errorf("%d bytes stay reserved", n)
				}
				wantContents(t, o, map[string]string{"k": "before"})
				want := "before"
				if name == "interrupt" { // the object goes on
					d.unhold()
					must(t, o.Put("k", []byte("after")))
					commit(t, o)
					want = "after"
				}
				must(t, o.Close())
				_ = s.Close()
				opt.FS = d.crash(0, nil).fs
				s = openStore(t, opt)
				wantContents(t, openObject(t, s, 1), map[string]string{"k": want})
				if s.replay.DroppedPieces == 0 && name == "interrupt" {
					t.Error("no piece was reported as dropped")
				}
			})
		}
	}
}

// TestSpillClose closes the store while a large commit is being written: it ends,
// and is there whole if it was acknowledged.
func TestSpillClose(t *testing.T) {
	refused := 0
	for i := range 40 {
		d := newCrashableDisk()
		s := openStore(t, spillOptions(d))
		o := openObject(t, s, 1)
		must(t, o.Put("k", []byte("before")))
		commit(t, o)
		must(t, o.Put("k", noise(1, 60_000)))
		reached, closing := make(chan struct{}), make(chan struct{})
		writes := 0
		d.setFault(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpFileWriteAt {
				if writes++; writes == 1+i%12 {
					close(reached)
					<-closing
				}
			}
			return nil
		})
		var acknowledged bool
		ended := make(chan error, 1)
		go func() {
			p, err := o.Commit(nil)
			if err == nil {
				err = s.log.Wait(context.Background(), p)
				acknowledged = err == nil
			}
			ended <- err
		}()
		var err error
		select {
		case <-reached: // the write waits until Close has begun
			closed := make(chan error, 1)
			go func() { closed <- s.Close() }()
			for begun := false; !begun; runtime.Gosched() {
				s.log.mu.Lock()
				begun = s.log.closing
				s.log.mu.Unlock()
			}
			close(closing)
			if <-closed == nil {
				t.Error("the store was closed while an object was open, and says nothing")
			}
			err = <-ended
		case err = <-ended: // in fewer writes
		}
		if err != nil && !errors.Is(err, ErrClosed) {
			t.Fatalf("commit: %v", err)
		}
		if err != nil {
			refused++
		}
		_ = o.Close()
		_ = s.Close()
		s = openStore(t, spillOptions(d.crash(0, nil)))
		o = openObject(t, s, 1)
		got := contents(t, o)["k"]
		if got != string(noise(1, 60_000)) && (got != "before" || acknowledged) {
			t.Errorf("acknowledged %t, then %d bytes", acknowledged, len(got))
		}
	}
	if refused == 0 {
		t.Error("no commit was refused")
	}
}

// abandon spills pages that are no good and takes the commit back, as when
// SQLite rolls back after it was admitted.
func abandon(o *Object, pages int) error {
	c := sampleChange(pages)
	if err := (*objectSink)(o).Admit(c); err != nil {
		return err
	}
	o.e.mu.Lock()
	defer o.e.mu.Unlock()
	(*objectSink)(o).Abandon()
	return nil
}

// TestSpillAbandoned: pieces of a commit that was rolled back count for nothing,
// whatever the object does next.
func TestSpillAbandoned(t *testing.T) {
	for name, next := range map[string]struct {
		do   func(t *testing.T, o *Object)
		want map[string]string
	}{
		"nothing": {func(*testing.T, *Object) {}, map[string]string{"k": "before"}},
		"a commit": {func(t *testing.T, o *Object) {
			must(t, o.Put("k", []byte("after")))
			commit(t, o)
		}, map[string]string{"k": "after"}},
		"a spilled commit": {func(t *testing.T, o *Object) {
			must(t, o.Put("k", noise(1, 50_000)))
			commit(t, o)
		}, map[string]string{"k": string(noise(1, 50_000))}},
		"identities": {func(t *testing.T, o *Object) { commit(t, o, identity(1)) }, map[string]string{"k": "before"}},
		"deletion": {func(t *testing.T, o *Object) {
			p, err := o.Destroy(nil)
			must(t, err)
			must(t, o.s.Wait(t.Context(), p))
		}, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newCrashableDisk()
			s := openStore(t, spillOptions(d))
			o := openObject(t, s, 1)
			must(t, o.Put("k", []byte("before")))
			commit(t, o)
			must(t, abandon(o, 9))
			must(t, abandon(o, 5))
			if n := s.log.reservedRoom(); n != 0 {
				t.Errorf("%d bytes stay reserved", n)
			}
			next.do(t, o)
			stranger := openObject(t, s, 2) // that never commits
			must(t, abandon(stranger, 3))
			must(t, o.Close())
			must(t, stranger.Close())
			must(t, s.Close())
			for range 2 {
				s = openStore(t, spillOptions(d))
				o = openObject(t, s, 1)
				wantContents(t, o, next.want)
				if n := s.replay.DroppedPieces; n < 9+5+3 || s.replay.DroppedBytes < 17*4096 || s.replay.CutBytes != 0 {
					t.Errorf("replay: %+v, want 17 pieces dropped at least", s.replay)
				}
				if exists(t, s, objectID(2)) || len(s.objects) > 1 {
					t.Error("pieces alone made an object")
				}
				must(t, o.Put("k", []byte("later"))) // the numbers go on
				commit(t, o)
				next.want = map[string]string{"k": "later"}
				must(t, o.Close())
				must(t, s.Close())
			}
		})
	}
}

// TestSpillInterleaved: large commits of several objects and small ones of
// others stand between each other.
func TestSpillInterleaved(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, spillOptions(d))
	want := make([]map[string]string, 6)
	var wg sync.WaitGroup
	for n := range want {
		o := openObject(t, s, n)
		want[n] = map[string]string{}
		wg.Go(func() {
			for i := range 12 {
				size := 100
				if n < 3 {
					size = 30_000 + 1000*i
				}
				v := noise(uint64(100*n+i), size)
				key := fmt.Sprint(i % 5)
				err := o.Put(key, v)
				want[n][key] = string(v)
				var p Pos
				if err == nil {
					p, err = o.Commit(nil)
				}
				if err == nil && i%3 == 0 {
					err = s.Wait(t.Context(), p)
				}
				if err != nil {
					t.Error(err)
				}
			}
			if err := o.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.Stats().Spilled; n != 36 {
		t.Errorf("%d commits were spilled, want 36", n)
	}
	must(t, s.Close())
	s = openStore(t, spillOptions(d.crash(0, nil)))
	for n := range want {
		wantContents(t, openObject(t, s, n), want[n])
	}
}

// TestSpillCrash cuts the power at every operation of a disk that takes a large
// commit: it is there whole or not at all, and the rest goes on.
func TestSpillCrash(t *testing.T) {
	kept, lost, dropped := 0, 0, 0
	const seeds = 4 // for each operation
	for run := 0; ; run++ {
		at := run / seeds
		rng := rand.New(rand.NewPCG(uint64(run), 5))
		d := newCrashableDisk()
		opt := spillOptions(d)
		s := openStore(t, opt)
		waitReady(s.log)
		o := openObject(t, s, 1)
		must(t, o.Put("k", []byte("before")))
		commit(t, o)
		must(t, o.Put("k", noise(1, 40_000)))
		var mu sync.Mutex
		var after *disk
		n := 0
		d.setFault(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if after != nil {
				return errDisk
			}
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				if n++; n > at {
					after = d.crash(rng.IntN(101), rng)
					return errDisk
				}
			}
			return nil
		})
		p, err := o.Commit([]limpet.Identity{identity(1)})
		acknowledged := err == nil && s.Wait(t.Context(), p) == nil
		mu.Lock()
		reached := after != nil
		if !reached {
			after = d.crash(0, nil)
		}
		mu.Unlock()
		_ = o.Close()
		_ = s.Close()
		opt.FS = after.fs
		s = openStore(t, opt)
		o = openObject(t, s, 1)
		got := contents(t, o)
		ids, _ := s.RecoveredIdentities()
		switch {
		case got["k"] == "before" && len(ids) == 0 && !acknowledged:
			lost++
		case got["k"] == string(noise(1, 40_000)) && len(ids) == 1:
			kept++
		default:
			t.Fatalf("run %d, acknowledged %t: %d bytes, %d identities", run, acknowledged, len(got["k"]), len(ids))
		}
		if s.replay.DroppedPieces > 0 {
			dropped++
		}
		must(t, o.Put("k", noise(2, 20_000)))
		commit(t, o)
		must(t, o.Close())
		must(t, s.Close())
		if !reached {
			break
		}
	}
	if kept == 0 || lost < 10*seeds || dropped < 5*seeds {
		t.Errorf("%d kept, %d lost, %d with pieces dropped: the test does not reach all", kept, lost, dropped)
	}
}

// spilledRecords are those of one commit of object 1 whose diff has the pages
// of c, one to a piece.
func spilledRecords(last record, c *vfs.Change) (records [][]byte) {
	sp := spilledSection{}
	for i := range c.Pages {
		diff := vfs.AppendPageDiff(nil, 0, &c.Pages[i])
		sp.pieces++
		sp.bytes += uint64(len(diff))
		sp.checksum = crc32.Update(sp.checksum, castagnoli, diff)
		piece := record{id: last.id, txid: last.txid, prev: last.prev, piece: &pieceSection{number: uint64(i), diff: diff}}
		records = append(records, piece.encode(nil))
	}
	last.spilled = &sp
	rest := *c
	rest.Pages = nil
	return append(records, last.encode(&rest))
}

// TestSpillReplay: what replay accepts of spilled commits, and what it refuses.
func TestSpillReplay(t *testing.T) {
	birth := &Birth{Class: "Cart"}
	c := sampleChange(3)
	pages := vfs.NewPages(vfs.NewAllocator(), 4096)
	must(t, pages.Apply(vfs.AppendDiff(nil, c), 3))
	c.ChecksumAfter = pages.Checksum()
	first := record{id: objectID(1), txid: 1, birth: birth}
	r := spilledRecords(first, c)
	other := record{id: objectID(2), txid: 1, birth: birth}
	second := record{id: objectID(1), txid: 2, prev: 1}
	for name, records := range map[string][][]byte{
		"plain":       r,
		"interleaved": {r[0], other.encode(nil), r[1], r[2], r[3]},
		"begun anew":  {r[0], r[1], r[0], r[1], r[2], r[0], r[1], r[2], r[3]},
		"again":       append(append([][]byte{}, r...), append(append([][]byte{}, r...), r[1], r[3], second.encode(nil))...),
	} {
		s, err := replayRecords(t, records...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if e := s.objects[objectID(1)]; e == nil || e.pages.Checksum() != c.ChecksumAfter || !e.born.Load() {
			t.Errorf("%s: other pages", name)
		}
	}
	last := func(change func(*record)) []byte {
		l, err := decodeRecord(r[3])
		must(t, err)
		change(&l)
		return l.encode(nil)
	}
	wrongPage := sampleChange(4)
	wrongPage.PageCountAfter = 3
	for name, c := range map[string]struct {
		records [][]byte
		reason  string
	}{
		"no pieces":           {r[3:], "does not have its 3 pieces of"},
		"first piece missing": {r[1:], "piece 1 of transaction 1 does not follow"},
		"piece missing":       {[][]byte{r[0], r[2], r[3]}, "piece 2 of transaction 1 does not follow"},
		"last piece missing":  {[][]byte{r[0], r[1], r[3]}, "does not have its 3 pieces"},
		"piece twice":         {[][]byte{r[0], r[1], r[1]}, "piece 1 of transaction 1 does not follow"},
		"other commit between": {[][]byte{r[0], r[1], r[2], first.encode(nil),
			(&record{id: objectID(1), txid: 2, prev: 1, pages: &pagesSection{pageSize: 4096}, spilled: &spilledSection{pieces: 3, bytes: 1}}).encode(nil)}, "does not have its 3 pieces"},
		"piece of another commit": {[][]byte{r[0], (&record{id: objectID(1), txid: 2, piece: &pieceSection{number: 1, diff: []byte{1}}}).encode(nil)}, "piece 1 of transaction 2 does not follow"},
		"last of another commit":  {[][]byte{r[0], r[1], r[2], last(func(l *record) { l.txid++ })}, "does not have its 3 pieces"},
		"piece after a gap":       {[][]byte{(&record{id: objectID(1), txid: 2, prev: 1, piece: &pieceSection{diff: []byte{1}}}).encode(nil)}, "transaction 2 follows 1, but the last one is 0"},
		"checksum of pieces":      {[][]byte{r[0], r[1], r[2], last(func(l *record) { l.spilled.checksum++ })}, "the pieces have checksum"},
		"bytes of pieces":         {[][]byte{r[0], r[1], r[2], last(func(l *record) { l.spilled.bytes++ })}, "does not have its 3 pieces"},
		"number of pieces":        {[][]byte{r[0], r[1], r[2], last(func(l *record) { l.spilled.pieces-- })}, "does not have its 2 pieces"},
		"checksum of pages":       {[][]byte{r[0], r[1], r[2], last(func(l *record) { l.pages.checksum++ })}, "the pages have checksum"},
		"page beyond the rest":    {spilledRecords(first, wrongPage), "piece 3: malformed page diff"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := replayRecords(t, c.records...)
			var damage *DamageError
			if !errors.As(err, &damage) || !strings.Contains(err.Error(), c.reason) {
				t.Fatalf("got %v, want damage: %s", err, c.reason)
			}
			if damage.File != "data/log/00000001.seg" && damage.File != "data/log/00000002.seg" || damage.Offset < segmentHeaderSize || damage.Remedy == "" {
				t.Errorf("file %q, offset %d, remedy %q", damage.File, damage.Offset, damage.Remedy)
			}
		})
	}
}

// TestSpillReread: a failure to read a piece again is what it is, not damage.
func TestSpillReread(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, spillOptions(d))
	o := openObject(t, s, 1)
	must(t, o.Put("k", noise(1, 50_000)))
	commit(t, o)
	must(t, o.Close())
	must(t, s.Close())
	opens := 0
	d.setFault(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, segmentName(1)) {
			if opens++; opens == 5 { // first those of the replay
				return errDisk
			}
		}
		return nil
	})
	s, err := Open(context.Background(), spillOptions(d))
	must(t, err)
	defer func() { must(t, s.Close()) }()
	_, err = s.Object(objectID(1), Birth{Class: "Cart"})
	var damage *DamageError
	if !errors.Is(err, errDisk) || errors.As(err, &damage) || !strings.Contains(err.Error(), "again") {
		t.Errorf("got %v", err)
	}
}

// FuzzSpill replays commits, pieces and last records in any order against a
// model: replay never panics, refuses with damage what cannot be, and what it
// accepts has exactly the commits whose pieces were all there.
func FuzzSpill(f *testing.F) {
	f.Add([]byte{0x10, 0x11, 0x12, 0x30, 0x10, 0x10, 0x11, 0x31, 0x20})
	f.Add([]byte{0x20, 0x14, 0x34, 0x04, 0x20, 0x24})
	f.Fuzz(func(t *testing.T, ops []byte) {
		type object struct {
			txid   uint64 // of the last commit
			pages  *vfs.Pages
			pieces [][]byte
		}
		objects := [3]object{}
		s := &Store{alloc: vfs.NewAllocator(), objects: map[ObjectID]*resident{}, spills: map[ObjectID]*spill{}, base: NewMemBase()}
		s.opt.Clock, s.opt.FS, s.kick = systemClock{}, diskfs.Default, make(chan struct{}, 1)
		for i := range objects {
			objects[i].pages = vfs.NewPages(s.alloc, 512)
		}
		mem := NewMemLog(0)
		must(t, func() error { _, err := mem.Replay(t.Context(), nil); return err }())
		defer mem.Close()
		valid := true
		for i, op := range ops[:min(len(ops), 40)] {
			n := int(op & 3)
			if n == 3 {
				continue
			}
			o := &objects[n]
			r := record{id: objectID(n), txid: o.txid + 1, prev: o.txid}
			number := uint64(op >> 2 & 3)
			page := vfs.PageChange{Pgno: uint32(i%7 + 1), After: bytes.Repeat([]byte{byte(i)}, 512)}
			var b []byte
			switch op >> 4 & 3 {
			case 0: // the piece that follows, or one that does not
				if number == 3 {
					number = uint64(len(o.pieces))
				}
				if number == 0 {
					o.pieces = nil
				}
				valid = valid && number == uint64(len(o.pieces))
				diff := vfs.AppendPageDiff(nil, 0, &page)
				o.pieces = append(o.pieces, diff)
				r.piece = &pieceSection{number, diff}
				b = r.encode(nil)
			case 1, 2: // the last record
				c := &vfs.Change{PageSize: 512, PageCountAfter: 7}
				sp := spilledSection{pieces: uint64(len(o.pieces)) + number/3, checksum: 0}
				after := vfs.NewPages(s.alloc, 512)
				var image bytes.Buffer
				_, err := o.pages.WriteTo(&image)
				must(t, err)
				must(t, after.Load(&image, o.pages.PageCount()))
				for _, diff := range o.pieces {
					sp.bytes += uint64(len(diff))
					sp.checksum = crc32.Update(sp.checksum, castagnoli, diff)
					must(t, after.Apply(diff, 7))
				}
				if sp.pieces == 0 || number == 3 {
					valid = false
				}
				if sp.pieces == 0 {
					sp.pieces = 1
				}
				c.ChecksumAfter = after.Checksum()
				o.pages, o.pieces = after, nil
				o.txid++
				if o.txid == 1 {
					r.birth = &Birth{Class: "C"}
				}
				r.spilled = &sp
				b = r.encode(c)
			case 3: // a commit in one record
				c := &vfs.Change{PageSize: 512, PageCountAfter: 7, Pages: []vfs.PageChange{page}}
				must(t, o.pages.Apply(vfs.AppendDiff(nil, c), 7))
				c.ChecksumAfter = o.pages.Checksum()
				o.pieces = nil
				o.txid++
				if o.txid == 1 {
					r.birth = &Birth{Class: "C"}
				}
				b = r.encode(c)
			}
			must(t, mem.Wait(t.Context(), mem.Append(b)))
		}
		found := mem.Crash()
		defer found.Close()
		s.reread = found.Reread
		_, err := found.Replay(t.Context(), s.scan)
		spills := maps.Clone(s.spills)
		if err == nil {
			s.keepTail()
			for _, e := range s.objects {
				err = errors.Join(err, s.load(e))
			}
		}
		if !valid {
			var damage *DamageError
			if !errors.As(err, &damage) {
				t.Fatalf("replay of what cannot be: %v", err)
			}
			return
		}
		must(t, err)
		for n := range objects {
			e, o := s.objects[objectID(n)], &objects[n]
			if e == nil && o.txid > 0 || e != nil && (e.txid != o.txid || e.pages.Checksum() != o.pages.Checksum()) {
				t.Errorf("object %d: %+v, want transaction %d", n, e, o.txid)
			}
			sp := spills[objectID(n)]
			if got := sp != nil; got != (len(o.pieces) > 0) || got && len(sp.pieces) != len(o.pieces) {
				t.Errorf("object %d: pieces open %t, want %d", n, got, len(o.pieces))
			}
		}
	})
}
