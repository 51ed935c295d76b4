package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
)

// TestStorageFull: when segments cannot be prepared, commits fail before they
// are made, what was admitted still fits, and the log goes on when there is
// room again.
func TestStorageFull(t *testing.T) {
	faults := map[string]struct {
		kind   errorfs.OpKind
		suffix string
		err    error
	}{
		"no room for the file":   {errorfs.OpCreate, tempSuffix, syscall.ENOSPC},
		"no room for the zeros":  {errorfs.OpFileWrite, tempSuffix, syscall.ENOSPC},
		"sync of the zeros":      {errorfs.OpFileSync, tempSuffix, errDisk},
		"rename":                 {errorfs.OpRename, "", errDisk},
		"sync of the directory":  {errorfs.OpFileSync, "log", errDisk},
		"opening of the segment": {errorfs.OpOpen, segmentSuffix, syscall.EMFILE},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			d := newCrashableDisk()
			clock := newHandClock()
			opt := testLogOptions(d)
			opt.clock = clock
			opt.fatal = func(err error) { t.Errorf("the log was given up: %v", err) }
			told := make(chan error, 10)
			opt.fullChanged = func(err error) { told <- err }
			l, _, _ := openSegmentLog(t, opt)
			waitReady(l)
			d.failOn(fault.kind, fault.suffix, fault.err)

			var want []string
			var last Pos
			rec := strings.Repeat("r", 1000)
			admitted := 0
			var err error
			for { // take all room without using it
				if err = l.Admit(t.Context(), len(rec)); err != nil {
					break
				}
				if admitted++; admitted > 1000 {
					t.Fatal("admission never ends")
				}
			}
			if !errors.Is(err, ErrStorageFull) || !errors.Is(err, fault.err) {
				t.Fatalf("Admit: %v, want ErrStorageFull and %v", err, fault.err)
			}
			if want := 2 * (testSegment - segmentHeaderSize) / 1200; admitted < want {
				t.Errorf("%d records of 1000 bytes were admitted into two segments, want at least %d", admitted, want)
			}
			for range admitted {
				last = l.Append([]byte(rec))
				want = append(want, rec)
				if len(want)%3 == 0 {
					if err := l.Wait(t.Context(), last); err != nil {
						t.Fatalf("an admitted record did not fit: %v", err)
					}
				}
			}
			if err := l.Wait(t.Context(), last); err != nil {
				t.Fatalf("an admitted record did not fit: %v", err)
			}
			if err := <-told; !errors.Is(err, fault.err) {
				t.Errorf("told of %v, want %v", err, fault.err)
			}

			d.setFault(nil)
			<-clock.asked
			clock.Tick()
			if err := <-told; err != nil {
				t.Errorf("told of %v, want nothing: there is room again", err)
			}
			for {
				err := l.Admit(t.Context(), len(rec))
				if err == nil {
					break
				}
				if !errors.Is(err, ErrStorageFull) {
					t.Fatal(err)
				}
			}
			if err := l.Wait(t.Context(), l.Append([]byte(rec))); err != nil {
				t.Fatal(err)
			}
			want = append(want, rec)
			_ = l.Close()
			opt.fs, opt.started, opt.fatal = d.crash(0, nil).fs, true, nil
			_, recs, _ := openSegmentLog(t, opt)
			if diff := cmp.Diff(want, texts(recs)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// waitReady waits until a segment is ready ahead of need.
func waitReady(l *segmentLog) {
	for {
		l.mu.Lock()
		n, c := len(l.ready), l.readiness
		l.mu.Unlock()
		if n > 0 {
			return
		}
		<-c
	}
}

// TestReleaseGivesRoomBack: what was admitted and given up can be admitted again.
func TestReleaseGivesRoomBack(t *testing.T) {
	d := newCrashableDisk()
	opt := testLogOptions(d)
	opt.clock = newHandClock()
	l, _, _ := openSegmentLog(t, opt)
	waitReady(l)
	d.failOn(errorfs.OpCreate, tempSuffix, syscall.ENOSPC)
	const n = 5000
	for range 1000 {
		if err := l.Admit(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		l.Release(n)
	}
}

// TestReserveIsExact fills segments to every remainder: whatever was admitted
// fits, however the batches fall.
func TestReserveIsExact(t *testing.T) {
	for n := range 130 {
		d := newDisk(vfs.NewMem())
		opt := testLogOptions(d)
		opt.size = MinSegmentSize
		opt.clock = newHandClock()
		l, _, _ := openSegmentLog(t, opt)
		waitReady(l)
		d.failOn(errorfs.OpCreate, tempSuffix, syscall.ENOSPC)
		rec := strings.Repeat("e", 700+n)
		for i := 0; ; i++ {
			if err := l.Admit(t.Context(), len(rec)); err != nil {
				if !errors.Is(err, ErrStorageFull) || i < 7 {
					t.Fatalf("record %d: %v", i, err)
				}
				break
			}
			p := l.Append([]byte(rec))
			if i%2 == 0 {
				if err := l.Wait(t.Context(), p); err != nil {
					t.Fatalf("size %d, record %d: %v", len(rec), i, err)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatalf("size %d: %v", len(rec), err)
		}
	}
}

// TestAdmitWaits: while a segment is being prepared, Admit waits for it.
func TestAdmitWaits(t *testing.T) {
	d := newCrashableDisk()
	l, _, _ := openSegmentLog(t, testLogOptions(d))
	rec := strings.Repeat("w", 40*testSegment) // needs some sixty segments
	putDurable(t, l, rec)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Admit(ctx, 20*testSegment); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Admit: %v", err)
	} else if err == nil {
		l.Release(20 * testSegment)
	}
}

// TestUnadmittedRecord: a record appended without admission never overwrites
// anything; without room the log is lost.
func TestUnadmittedRecord(t *testing.T) {
	d := newCrashableDisk()
	opt := testLogOptions(d)
	fatal := make(chan error, 1)
	opt.fatal = func(err error) { fatal <- err }
	l, _, _ := openSegmentLog(t, opt)
	waitReady(l)
	d.failOn(errorfs.OpCreate, tempSuffix, syscall.ENOSPC)
	err := l.Wait(t.Context(), l.Append(make([]byte, 5*testSegment)))
	if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "not admitted") {
		t.Errorf("Wait: %v", err)
	}
	if err := <-fatal; !errors.Is(err, ErrLost) {
		t.Errorf("fatal: %v", err)
	}
}

// TestFailureInUse: a failed write or sync of a segment in use is final: not
// retried, nothing acknowledged, the process told once.
func TestFailureInUse(t *testing.T) {
	for name, kind := range map[string]errorfs.OpKind{
		"write": errorfs.OpFileWriteAt,
		"sync":  errorfs.OpFileSyncData,
	} {
		for _, size := range []int{10, 3 * testSegment} {
			t.Run(fmt.Sprintf("%s of %d bytes", name, size), func(t *testing.T) {
				d := newCrashableDisk()
				opt := testLogOptions(d)
				fatal := make(chan error, 10)
				opt.fatal = func(err error) { fatal <- err }
				l, _, _ := openSegmentLog(t, opt)
				putDurable(t, l, "safe")
				failures := 0
				d.setFault(func(op errorfs.Op) error {
					if op.Kind == kind && strings.HasSuffix(op.Path, segmentSuffix) {
						failures++
						return errDisk
					}
					return nil
				})
				p := put(t, l, strings.Repeat("x", size))
				if err := l.Wait(t.Context(), p); !errors.Is(err, ErrLost) || !errors.Is(err, errDisk) {
					t.Fatalf("Wait: %v, want ErrLost and the cause", err)
				}
				if err := <-fatal; !errors.Is(err, ErrLost) || !errors.Is(err, errDisk) {
					t.Errorf("fatal got %v", err)
				}
				if err := l.Admit(t.Context(), 1); !errors.Is(err, ErrLost) {
					t.Errorf("Admit: %v", err)
				}
				if err := l.Wait(t.Context(), l.Append([]byte("y"))); !errors.Is(err, ErrLost) {
					t.Errorf("Wait: %v", err)
				}
				_ = l.Close()
				if failures != 1 || len(fatal) != 0 {
					t.Errorf("%d failures and %d more calls of fatal: it must not be tried again", failures, len(fatal))
				}
				if l.Durable() != (Pos{localTerm, 1}) {
					t.Errorf("durable to %v", l.Durable())
				}
			})
		}
	}
}

// TestInterruptedSync: fdatasync that a signal interrupted has given no answer
// and is made again.
func TestInterruptedSync(t *testing.T) {
	d := newCrashableDisk()
	l, _, _ := openSegmentLog(t, testLogOptions(d))
	interrupts := 3
	d.setFault(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, segmentSuffix) {
			if interrupts--; interrupts >= 0 {
				return fmt.Errorf("fdatasync: %w", syscall.EINTR)
			}
		}
		return nil
	})
	putDurable(t, l, "in the end")
}

// TestGroupCommit: records that come while a sync is under way share the next.
func TestGroupCommit(t *testing.T) {
	d := newCrashableDisk()
	l, _, _ := openSegmentLog(t, testLogOptions(d))
	d.hold()
	put(t, l, "first")
	for l.openIndex() == 1 { // until the flusher has taken it
	}
	var last Pos
	for i := range 20 {
		p := put(t, l, fmt.Sprint(i))
		if i > 0 && p != last {
			t.Errorf("record %d has position %v, the one before %v", i, p, last)
		}
		last = p
	}
	d.unhold()
	if err := l.Wait(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if last.Index != 2 {
		t.Errorf("21 records took %d batches, want 2", last.Index)
	}
}

func (l *segmentLog) openIndex() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open.index
}

// TestRealDisk runs the log on the operating system's files.
func TestRealDisk(t *testing.T) {
	opt := testLogOptions(newDisk(vfs.NewMem()))
	opt.fs, opt.dir, opt.size = vfs.Default, t.TempDir()+"/log", 1<<20
	l, _, _ := openSegmentLog(t, opt)
	want := numbered("record ", 1000)
	want = append(want, strings.Repeat("b", 3<<20))
	var last Pos
	for _, rec := range want {
		last = put(t, l, rec)
	}
	if err := l.Wait(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	opt.started = true
	_, recs, _ := openSegmentLog(t, opt)
	if diff := cmp.Diff(want, texts(recs)); diff != "" {
		t.Error(diff)
	}
}
