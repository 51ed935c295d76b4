package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
)

// editFile changes the bytes of a file on the disk, durably.
func editFile(t testing.TB, fs vfs.FS, path string, edit func([]byte) []byte) {
	t.Helper()
	b := edit(readFile(t, fs, path))
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(bytes.Clone(b))
	}
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), syncDir(fs, fs.PathDir(path)))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// frameOffsets are the places of the frames in a segment.
func frameOffsets(b []byte, seed uint32) (offs []int64) {
	for off := int64(segmentHeaderSize); ; {
		f, at, ok := findFrame(b, off, seed)
		if !ok {
			return offs
		}
		offs = append(offs, at)
		off = at + f.size()
	}
}

const seg1, seg2, seg3 = "log/00000001.seg", "log/00000002.seg", "log/00000003.seg"

// sampleLog is a closed log of about three segments, ten records each durable
// alone.
func sampleLog(t testing.TB) (*disk, logOptions, []string) {
	d := newCrashableDisk()
	opt := testLogOptions(d)
	l, _, _ := openSegmentLog(t, opt)
	var want []string
	for i := range 10 {
		rec := fmt.Sprintf("record %d %s", i, strings.Repeat(string(rune('a'+i)), 3000))
		want = append(want, rec)
		putDurable(t, l, rec)
	}
	waitReady(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	opt.started = true
	return d, opt, want
}

// TestDamage checks that everything that a crash cannot leave is refused with
// the file and the place.
func TestDamage(t *testing.T) {
	flip := func(off int64) func([]byte) []byte {
		return func(b []byte) []byte { b[off] ^= 0x40; return b }
	}
	clean, opt0, _ := sampleLog(t)
	first := readFile(t, clean.fs, seg1)
	offs := frameOffsets(first, opt0.identity.seed(1))
	if len(offs) < 4 {
		t.Fatalf("%d frames in the first segment", len(offs))
	}
	newer := func(b []byte, off, crcAt int64, set func([]byte), seed uint32) []byte {
		set(b[off:])
		binary.LittleEndian.PutUint32(b[crcAt:], crc32.Update(seed, castagnoli, b[off:crcAt]))
		return b
	}
	cases := map[string]struct {
		damage func(t *testing.T, fs vfs.FS)
		file   string
		offset int64
		reason string
		format bool
	}{
		"batch header": {
			damage: func(t *testing.T, fs vfs.FS) { editFile(t, fs, seg1, flip(offs[1]+20)) },
			file:   seg1, offset: offs[1], reason: "header does not match, and batch 3 follows whole",
		},
		"batch length": {
			damage: func(t *testing.T, fs vfs.FS) { editFile(t, fs, seg1, flip(offs[1]+43)) },
			file:   seg1, offset: offs[1], reason: "batch 3 follows whole",
		},
		"batch payload": {
			damage: func(t *testing.T, fs vfs.FS) { editFile(t, fs, seg1, flip(offs[0]+1000)) },
			file:   seg1, offset: offs[0], reason: "checksum of the batch does not match, and batch 2 follows whole",
		},
		"batch zeroed": {
			damage: func(t *testing.T, fs vfs.FS) {
				editFile(t, fs, seg1, func(b []byte) []byte { clear(b[offs[1]:offs[2]]); return b })
			},
			file: seg1, offset: offs[1], reason: "batch 3 follows whole",
		},
		"last batch of a segment that is not the last": {
			damage: func(t *testing.T, fs vfs.FS) {
				editFile(t, fs, seg1, func(b []byte) []byte { clear(b[offs[len(offs)-1]:]); return b })
			},
			file: seg1, offset: offs[len(offs)-1], reason: "in the later segment 2 batch",
		},
		"bytes in an unused segment": {
			damage: func(t *testing.T, fs vfs.FS) {
				names, _ := fs.List("log")
				editFile(t, fs, "log/"+segmentName(uint64(len(names))), flip(9000))
			},
			file: seg3, offset: -2, reason: "bytes are written",
		},
		"segment header": {
			damage: func(t *testing.T, fs vfs.FS) { editFile(t, fs, seg2, flip(30)) },
			file:   seg2, offset: 0, reason: "segment header does not match",
		},
		"segment emptied": {
			damage: func(t *testing.T, fs vfs.FS) { editFile(t, fs, seg2, func([]byte) []byte { return nil }) },
			file:   seg2, offset: 0, reason: "does not begin as a segment",
		},
		"segment shorter": {
			damage: func(t *testing.T, fs vfs.FS) {
				editFile(t, fs, seg2, func(b []byte) []byte { return b[:len(b)-1] })
			},
			file: seg2, offset: -1, reason: "has 16383 bytes and must have 16384",
		},
		"segment missing": {
			damage: func(t *testing.T, fs vfs.FS) { _ = fs.Remove(seg2) },
			file:   seg2, offset: -1, reason: "segment is missing (segment 3 is there)",
		},
		"first segment missing": {
			damage: func(t *testing.T, fs vfs.FS) { _ = fs.Remove(seg1) },
			file:   seg1, offset: -1, reason: "segment is missing (segment 2 is there)",
		},
		"all segments missing": {
			damage: func(t *testing.T, fs vfs.FS) { _ = fs.RemoveAll("log"); _ = fs.MkdirAll("log", 0o755) },
			file:   seg1, offset: -1, reason: "no segment at all",
		},
		"segments exchanged": {
			damage: func(t *testing.T, fs vfs.FS) {
				a, b := readFile(t, fs, seg1), readFile(t, fs, seg2)
				editFile(t, fs, seg1, func([]byte) []byte { return b })
				editFile(t, fs, seg2, func([]byte) []byte { return a })
			},
			file: seg1, offset: 16, reason: "it is segment 2 under another name",
		},
		"segment of another history": {
			damage: func(t *testing.T, fs vfs.FS) {
				id := testIdentity
				id.history[5]++
				editFile(t, fs, seg2, func(b []byte) []byte { copy(b, encodeSegmentHeader(segmentVersion, 2, testSegment, id)); return b })
			},
			file: seg2, offset: 32, reason: "belongs to history 010000000001",
		},
		"segment of another disk": {
			damage: func(t *testing.T, fs vfs.FS) {
				id := testIdentity
				id.disk[5]++
				editFile(t, fs, seg2, func(b []byte) []byte { copy(b, encodeSegmentHeader(segmentVersion, 2, testSegment, id)); return b })
			},
			file: seg2, offset: 48, reason: "belongs to disk",
		},
		"newer segment format": {
			damage: func(t *testing.T, fs vfs.FS) {
				editFile(t, fs, seg2, func(b []byte) []byte {
					return newer(b, 0, 64, func(b []byte) { binary.LittleEndian.PutUint32(b[8:], 7) }, 0)
				})
			},
			file: seg2, format: true, reason: "written by a newer limpet: the segment has format 7, this one reads up to 2",
		},
		"newer batch format": {
			damage: func(t *testing.T, fs vfs.FS) {
				editFile(t, fs, seg1, func(b []byte) []byte {
					return newer(b, offs[1], offs[1]+48, func(b []byte) { binary.LittleEndian.PutUint16(b[4:], 2) }, seedAt(testIdentity.seed(1), offs[1]))
				})
			},
			file: seg1, format: true, reason: "written by a newer limpet: batch 2 has format 2, this one reads up to 1",
		},
		"unknown batch flags": {
			damage: func(t *testing.T, fs vfs.FS) {
				editFile(t, fs, seg1, func(b []byte) []byte {
					return newer(b, offs[1], offs[1]+48, func(b []byte) { b[6] |= 0x10 }, seedAt(testIdentity.seed(1), offs[1]))
				})
			},
			file: seg1, offset: offs[1], reason: "flags 0x11",
		},
		"number skipped": {
			damage: func(t *testing.T, fs vfs.FS) {
				editFile(t, fs, seg1, func(b []byte) []byte {
					return newer(b, offs[1], offs[1]+48, func(b []byte) { binary.LittleEndian.PutUint64(b[24:], 3) }, seedAt(testIdentity.seed(1), offs[1]))
				})
			},
			file: seg1, offset: offs[1], reason: "piece 0 of batch 3 stands where piece 0 of batch 2 must",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := clean.crash(0, nil)
			c.damage(t, d.fs)
			opt := opt0
			opt.fs = d.fs
			_, _, _, err := tryOpenSegmentLog(opt)
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Fatalf("got %v, want %q", err, c.reason)
			}
			if c.format {
				var f *FormatError
				if !errors.As(err, &f) || f.File != c.file {
					t.Errorf("got %#v, want a FormatError of %s", err, c.file)
				}
				return
			}
			var e *DamageError
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want a DamageError", err)
			}
			if e.File != c.file || c.offset != -2 && e.Offset != c.offset || e.Remedy == "" {
				t.Errorf("got file %s, offset %d, remedy %q, want %s, %d", e.File, e.Offset, e.Remedy, c.file, c.offset)
			}
		})
	}
}

// TestTornTail tears the last batch in every way the disk can, and checks that
// the rest is there, that the batch is there whole or not at all, and that a
// cut batch does not come back after others were written over it and cut again.
func TestTornTail(t *testing.T) {
	cuts, whole := 0, 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		d := newCrashableDisk()
		opt := testLogOptions(d)
		l, _, _ := openSegmentLog(t, opt)
		var durable []string
		for range rng.IntN(4) {
			rec := fmt.Sprintf("durable %d %s", len(durable), strings.Repeat("d", rng.IntN(4000)))
			putDurable(t, l, rec)
			durable = append(durable, rec)
		}
		// Three times: one batch that is not acknowledged, then a power cut.
		for round := range 3 {
			failAfter := rng.IntN(3) // pieces whose sync works
			d.setFault(func(op errorfs.Op) error {
				if op.Kind != errorfs.OpFileSyncData || !strings.HasSuffix(op.Path, segmentSuffix) {
					return nil
				}
				if failAfter--; failAfter < 0 {
					return errDisk
				}
				return nil
			})
			rec := fmt.Sprintf("round %d %s", round, strings.Repeat(string(rune('A'+round)), rng.IntN(50_000)))
			p := put(t, l, rec)
			acknowledged := l.Wait(t.Context(), p) == nil
			_ = l.Close()
			d = d.crash(rng.IntN(101), rng)
			opt.fs, opt.started = d.fs, true
			var recs []loggedRecord
			var stats ReplayStats
			l, recs, stats = openSegmentLog(t, opt)
			got := texts(recs)
			switch {
			case len(got) == len(durable)+1 && got[len(durable)] == rec:
				durable = append(durable, rec)
				whole++
			case acknowledged:
				t.Fatalf("seed %d round %d: an acknowledged record is missing", seed, round)
			case stats.CutBytes > 0:
				cuts++
				if stats.CutFile == "" {
					t.Errorf("seed %d: cut %d bytes of no file", seed, stats.CutBytes)
				}
			}
			if diff := cmp.Diff(durable, got); diff != "" {
				t.Fatalf("seed %d round %d: %s", seed, round, diff)
			}
			if rng.IntN(2) == 0 {
				rec := fmt.Sprintf("between %d", round)
				putDurable(t, l, rec)
				durable = append(durable, rec)
			}
		}
		_ = l.Close()
	}
	if cuts < 100 || whole < 100 {
		t.Errorf("%d tails cut and %d found whole: the test does not reach both", cuts, whole)
	}
}

// TestCrashDuringRecovery cuts the power at every operation of a recovery that
// has a batch over three segments to cut, and recovers again.
func TestCrashDuringRecovery(t *testing.T) {
	for at := 0; ; at++ {
		reached := false
		for seed := range uint64(8) {
			rng := rand.New(rand.NewPCG(seed, uint64(at)))
			d := newCrashableDisk()
			opt := testLogOptions(d)
			l, _, _ := openSegmentLog(t, opt)
			putDurable(t, l, "durable")
			syncs := 0
			d.setFault(func(op errorfs.Op) error {
				if op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, segmentSuffix) {
					if syncs++; syncs == 3 {
						return errDisk
					}
				}
				return nil
			})
			lost := strings.Repeat("L", 3*testSegment)
			if err := l.Wait(t.Context(), put(t, l, lost)); !errors.Is(err, ErrLost) {
				t.Fatalf("Wait: %v, want ErrLost", err)
			}
			_ = l.Close()

			d = d.crash(60, rng)
			n := 0
			d.setFault(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
					if n++; n > at {
						reached = true
						return errDisk // this and all that follow: the power is gone
					}
				}
				return nil
			})
			opt.fs, opt.started = d.fs, true
			if l, _, _, err := tryOpenSegmentLog(opt); l != nil {
				_ = l.Close()
				_ = err
			}
			d = d.crash(50, rng)
			opt.fs = d.fs
			l, recs, _ := openSegmentLog(t, opt)
			if diff := cmp.Diff([]string{"durable"}, texts(recs)); diff != "" {
				t.Fatalf("seed %d, power cut at operation %d: %s", seed, at, diff)
			}
			putDurable(t, l, "after")
			_ = l.Close()
		}
		if !reached {
			if at < 6 {
				t.Errorf("recovery had only %d writes", at)
			}
			return
		}
	}
}

// TestKilledProcess: what a killed process wrote and did not sync is seen after
// the restart, so it must survive a power cut from then on, even though a sync
// of it failed before.
func TestKilledProcess(t *testing.T) {
	for size, pieces := range map[int]int{100: 1, 3 * testSegment: 5} {
		d := newCrashableDisk()
		opt := testLogOptions(d)
		l, _, _ := openSegmentLog(t, opt)
		rec := strings.Repeat("k", size)
		writes := 0
		d.setFault(func(op errorfs.Op) error {
			// The sync of the last piece fails; the kernel keeps its bytes.
			if op.Kind == errorfs.OpFileWriteAt {
				writes++
			}
			if op.Kind == errorfs.OpFileSyncData && writes == pieces {
				return errDisk
			}
			return nil
		})
		if err := l.Wait(t.Context(), put(t, l, rec)); err == nil {
			t.Fatal("the sync did not fail")
		}
		_ = l.Close()

		d = d.kill()
		opt.fs, opt.started = d.fs, true
		l, recs, _ := openSegmentLog(t, opt)
		_ = l.Close()
		seen := texts(recs)
		if len(seen) != 1 || seen[0] != rec {
			t.Fatalf("after a kill %d records, want the one written", len(seen))
		}

		opt.fs = d.crash(0, nil).fs
		_, recs, _ = openSegmentLog(t, opt)
		if diff := cmp.Diff(seen, texts(recs)); diff != "" {
			t.Errorf("what was seen after the kill is lost by a power cut: %s", diff)
		}
	}
}

// TestKilledPreparer: a segment whose name a killed process did not sync is made
// durable before it is used.
func TestKilledPreparer(t *testing.T) {
	d := newCrashableDisk()
	opt := testLogOptions(d)
	opt.clock = newHandClock()
	told := make(chan error, 10)
	opt.fullChanged = func(err error) { told <- err }
	d.setFault(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpRename && strings.Contains(op.Path, segmentName(2)) {
			d.failOn(errorfs.OpFileSync, "log", errDisk)
		}
		return nil
	})
	l, _, _ := openSegmentLog(t, opt)
	if err := <-told; !errors.Is(err, errDisk) {
		t.Fatalf("preparing failed with %v", err)
	}
	_ = l.Close()
	d = d.kill()
	d.failOn(errorfs.OpCreate, tempSuffix, errDisk) // nothing else syncs the directory
	opt.fs, opt.started, opt.fullChanged = d.fs, true, nil
	l, _, _ = openSegmentLog(t, opt)
	var want []string
	for len(want) < 6 {
		want = append(want, strings.Repeat("w", 3000))
		putDurable(t, l, want[0])
	}
	_ = l.Close()
	opt.fs = d.crash(0, nil).fs
	_, recs, _ := openSegmentLog(t, opt)
	if diff := cmp.Diff(want, texts(recs)); diff != "" {
		t.Error(diff)
	}
}

// TestRecycledSegment: frames of an older use of a file are not taken for the
// log's, wherever they lie.
func TestRecycledSegment(t *testing.T) {
	d, opt, want := sampleLog(t)
	old := readFile(t, d.fs, seg1)
	names, err := d.fs.List("log")
	if err != nil {
		t.Fatal(err)
	}
	// The last segment is prepared and unused; give it a true header and the
	// batches of the first one.
	last := uint64(len(names))
	editFile(t, d.fs, "log/"+segmentName(last), func(b []byte) []byte {
		copy(b[segmentHeaderSize:], old[segmentHeaderSize:])
		return b
	})
	l, recs, _, err := tryOpenSegmentLog(opt)
	if err == nil {
		_ = l.Close()
	}
	var damage *DamageError
	if len(recs) != len(want) || !errors.As(err, &damage) || !strings.Contains(err.Error(), "bytes are written") {
		t.Errorf("%d records and %v, want %d records and then damage by bytes that are no batch", len(recs), err, len(want))
	}
}

// TestLogInsideValue: a torn batch that carries a copy of the log itself is a
// torn tail, not damage.
func TestLogInsideValue(t *testing.T) {
	d := newCrashableDisk()
	opt := testLogOptions(d)
	l, _, _ := openSegmentLog(t, opt)
	putDurable(t, l, "one")
	putDurable(t, l, "two")
	segment := readFile(t, d.fs, seg1)
	d.failOn(errorfs.OpFileSyncData, segmentSuffix, errDisk)
	if err := l.Wait(t.Context(), put(t, l, string(segment[4000:12000]))); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	_ = l.Close()
	d = d.kill()
	opt.fs, opt.started = d.fs, true
	offs := frameOffsets(readFile(t, d.fs, seg1), testIdentity.seed(1))
	editFile(t, d.fs, seg1, func(b []byte) []byte { b[offs[2]+30] ^= 1; return b }) // tear the first block
	_, recs, stats := openSegmentLog(t, opt)
	if diff := cmp.Diff([]string{"one", "two"}, texts(recs)); diff != "" || stats.CutBytes < frameHeaderSize {
		t.Error(stats, diff)
	}
}

// TestRecordsDoNotAddUp: a batch whose checksum is right and whose records are
// not is refused as damage.
func TestRecordsDoNotAddUp(t *testing.T) {
	d := newCrashableDisk()
	opt := testLogOptions(d)
	l, _, _ := openSegmentLog(t, opt)
	_ = l.Close()
	opt.started = true
	editFile(t, d.fs, seg1, func(b []byte) []byte {
		frameBytes := append(make([]byte, frameHeaderSize), 200, 1, 'x')
		sealFrame(frameBytes, &frame{flags: frameLast, term: localTerm, index: 1}, seedAt(testIdentity.seed(1), segmentHeaderSize))
		copy(b[segmentHeaderSize:], frameBytes)
		return b
	})
	_, _, _, err := tryOpenSegmentLog(opt)
	var damage *DamageError
	if !errors.As(err, &damage) || !strings.Contains(err.Error(), "do not add up") {
		t.Errorf("got %v", err)
	}
}

// TestLeftovers: temporary files are removed, foreign files are left alone, and
// segments of another size are read as they are.
func TestLeftovers(t *testing.T) {
	d, opt, want := sampleLog(t)
	for _, name := range []string{"log/00000009.seg.tmp", "log/notes.txt"} {
		f, err := d.fs.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	opt.size = 3 * testSegment
	l, recs, _ := openSegmentLog(t, opt)
	if diff := cmp.Diff(want, texts(recs)); diff != "" {
		t.Error(diff)
	}
	big := strings.Repeat("b", 2*testSegment)
	putDurable(t, l, big)
	_ = l.Close()
	if _, err := d.fs.Stat("log/00000009.seg.tmp"); err == nil {
		t.Error("the temporary file is still there")
	}
	if _, err := d.fs.Stat("log/notes.txt"); err != nil {
		t.Error("a foreign file is gone")
	}
	_, recs, _ = openSegmentLog(t, opt)
	if diff := cmp.Diff(append(want, big), texts(recs)); diff != "" {
		t.Error("after a change of the segment size:", diff)
	}
}

// TestRecoveryCancelled: Replay ends with the cause of its context.
func TestRecoveryCancelled(t *testing.T) {
	_, opt, _ := sampleLog(t)
	cause := errors.New("the operator gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	l := newSegmentLog(opt)
	if _, err := l.Replay(ctx, func(Replayed) error { return nil }); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

// FuzzRecovery gives recovery a segment with arbitrary bytes: it must end, not
// panic, and accept afterwards what it left behind.
func FuzzRecovery(f *testing.F) {
	d, _, _ := sampleLog(f)
	f.Add(readFile(f, d.fs, seg1)[segmentHeaderSize:])
	f.Add([]byte("LMPF"))
	f.Add(bytes.Repeat([]byte("LMPF\x01\x00"), 100))
	valid := append(make([]byte, frameHeaderSize), "\x03abc\x00"...)
	sealFrame(valid, &frame{flags: frameLast, term: localTerm, index: 1}, seedAt(testIdentity.seed(1), segmentHeaderSize))
	f.Add(valid)
	f.Fuzz(func(t *testing.T, content []byte) {
		d := newCrashableDisk()
		opt := testLogOptions(d)
		l, _, _ := openSegmentLog(t, opt)
		_ = l.Close()
		opt.started = true
		editFile(t, d.fs, seg1, func(b []byte) []byte { copy(b[segmentHeaderSize:], content); return b })
		l, recs, stats, err := tryOpenSegmentLog(opt)
		if err != nil {
			var damage *DamageError
			var format *FormatError
			if !errors.As(err, &damage) && !errors.As(err, &format) {
				t.Fatalf("%v is neither damage nor a newer format", err)
			}
			return
		}
		putDurable(t, l, "after")
		_ = l.Close()
		_, again, stats2 := openSegmentLog(t, opt)
		want := append(texts(recs), "after")
		if diff := cmp.Diff(want, texts(again)); diff != "" || stats2.CutBytes != 0 {
			t.Errorf("first %+v, then %+v: %s", stats, stats2, diff)
		}
	})
}
