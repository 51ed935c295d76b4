package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/limpet-dev/limpet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// systemClock is the machine's clock.
type systemClock struct{}

type systemTimer struct {
	*time.Timer
	c <-chan time.Time
}

func (t systemTimer) C() <-chan time.Time { return t.c }

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) NewTimer(d time.Duration) limpet.Timer {
	t := time.NewTimer(d)
	return systemTimer{t, t.C}
}

func (systemClock) AfterFunc(d time.Duration, f func()) limpet.Timer {
	return systemTimer{time.AfterFunc(d, f), nil}
}

// handClock is a clock whose timers fire only when Tick is called.
type handClock struct {
	systemClock
	mu     sync.Mutex
	timers []chan time.Time
	asked  chan struct{} // gets one value for each timer made
}

func newHandClock() *handClock { return &handClock{asked: make(chan struct{}, 1000)} }

type handTimer struct{ c chan time.Time }

func (t handTimer) C() <-chan time.Time      { return t.c }
func (t handTimer) Stop() bool               { return true }
func (t handTimer) Reset(time.Duration) bool { panic("not used") }

func (c *handClock) NewTimer(time.Duration) limpet.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := handTimer{make(chan time.Time, 1)}
	c.timers = append(c.timers, t.c)
	c.asked <- struct{}{}
	return t
}

// Tick fires every timer.
func (c *handClock) Tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.timers {
		t <- time.Time{}
	}
	c.timers = nil
}

// disk is a crashable memory disk whose operations can be made to fail or wait.
type disk struct {
	mem *vfs.MemFS
	fs  vfs.FS

	mu     sync.Mutex
	fault  func(op errorfs.Op) error
	gate   chan struct{} // data syncs wait until it is closed
	counts map[errorfs.OpKind]int
}

func newDisk(mem *vfs.MemFS) *disk {
	d := &disk{mem: mem, counts: map[errorfs.OpKind]int{}}
	d.fs = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		d.mu.Lock()
		fault, gate := d.fault, d.gate
		d.counts[op.Kind]++
		d.mu.Unlock()
		if gate != nil && op.Kind == errorfs.OpFileSyncData {
			<-gate
		}
		if fault != nil {
			return fault(op)
		}
		return nil
	}))
	return d
}

func newCrashableDisk() *disk { return newDisk(vfs.NewCrashableMem()) }

func (d *disk) setFault(f func(op errorfs.Op) error) {
	d.mu.Lock()
	d.fault = f
	d.mu.Unlock()
}

// failOn makes operations of kind on paths that end with suffix fail.
func (d *disk) failOn(kind errorfs.OpKind, suffix string, err error) {
	d.setFault(func(op errorfs.Op) error {
		if op.Kind == kind && strings.HasSuffix(op.Path, suffix) {
			return err
		}
		return nil
	})
}

func (d *disk) hold() {
	d.mu.Lock()
	d.gate = make(chan struct{})
	d.mu.Unlock()
}

func (d *disk) unhold() {
	d.mu.Lock()
	close(d.gate)
	d.gate = nil
	d.mu.Unlock()
}

// crash is the disk after a power cut that keeps percent of what was not synced.
func (d *disk) crash(percent int, rng *rand.Rand) *disk {
	return newDisk(d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}))
}

// kill is the disk after the process was killed: everything written is there,
// synced or not.
func (d *disk) kill() *disk { return newDisk(d.mem) }

const testSegment = 16 << 10

var testIdentity = logIdentity{history: ID{1}, disk: ID{2}}

func testLogOptions(d *disk) logOptions {
	return logOptions{
		fs: d.fs, dir: "log", clock: systemClock{}, identity: testIdentity, first: 1,
		size: testSegment, undurableLimit: DefaultUndurableLimit,
	}
}

type loggedRecord struct {
	pos Pos
	rec string
}

// openSegmentLog opens and replays; the log is closed at the test's end unless
// it was closed before.
func openSegmentLog(t testing.TB, opt logOptions) (*segmentLog, []loggedRecord, ReplayStats) {
	t.Helper()
	l, recs, stats, err := tryOpenSegmentLog(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, recs, stats
}

func tryOpenSegmentLog(opt logOptions) (*segmentLog, []loggedRecord, ReplayStats, error) {
	if err := opt.fs.MkdirAll(opt.dir, 0o755); err != nil {
		return nil, nil, ReplayStats{}, err
	}
	if err := syncDir(opt.fs, opt.fs.PathDir(opt.dir)); err != nil {
		return nil, nil, ReplayStats{}, err
	}
	l := newSegmentLog(opt)
	recs, stats, err := replayAll(l)
	return l, recs, stats, err
}

func replayAll(l CommitLog) ([]loggedRecord, ReplayStats, error) {
	var recs []loggedRecord
	var buf []byte
	stats, err := l.Replay(context.Background(), func(r Replayed) (err error) {
		recs = append(recs, loggedRecord{r.Pos, string(r.Rec)})
		if buf, err = l.Reread(r.Place(), buf); err == nil && !bytes.Equal(buf, r.Rec) {
			err = fmt.Errorf("read again at %v, record %d of %v is another: %.100q, was %.100q", r.Place(), len(recs), r.Pos, buf, r.Rec)
		}
		return err
	})
	return recs, stats, err
}

// put admits and appends.
func put(t testing.TB, l CommitLog, rec string) Pos {
	t.Helper()
	if err := l.Admit(context.Background(), len(rec)); err != nil {
		t.Fatalf("Admit: %v", err)
	}
	return l.Append([]byte(rec))
}

// putDurable also waits.
func putDurable(t testing.TB, l CommitLog, rec string) Pos {
	t.Helper()
	p := put(t, l, rec)
	if err := l.Wait(context.Background(), p); err != nil {
		t.Fatalf("Wait: %v", err)
	}
	return p
}

var errDisk = errors.New("input/output error")

func texts(recs []loggedRecord) []string {
	var s []string
	for _, r := range recs {
		s = append(s, r.rec)
	}
	return s
}

func numbered(prefix string, n int) []string {
	s := make([]string, n)
	for i := range s {
		s[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return s
}

func exists(t testing.TB, s *Store, id ObjectID) bool {
	t.Helper()
	ok, err := s.Exists(id)
	must(t, err)
	return ok
}
