package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
)

// underTest is one implementation of CommitLog with what its environment can do.
type underTest struct {
	log          CommitLog // replayed, empty
	hold, unhold func()    // keep syncs from ending
	fail         func()    // lose the log
	// crash is the log that is found after a power cut, not yet replayed.
	crash func() CommitLog
}

// TestCommitLog is the conformance suite: every implementation passes it.
func TestCommitLog(t *testing.T) {
	kinds := map[string]func(t *testing.T, limit int64) underTest{
		"segments": func(t *testing.T, limit int64) underTest {
			d := newCrashableDisk()
			opt := testLogOptions(d)
			opt.undurableLimit = limit
			l, _, _ := openSegmentLog(t, opt)
			return underTest{
				log: l, hold: d.hold, unhold: d.unhold,
				fail: func() {
					d.failOn(errorfs.OpFileSyncData, segmentSuffix, errDisk)
					if err := l.Admit(t.Context(), 1); err == nil {
						_ = l.Wait(t.Context(), l.Append([]byte("x")))
					}
				},
				crash: func() CommitLog {
					opt := opt
					opt.fs, opt.started = d.crash(0, nil).fs, true
					l := newSegmentLog(opt)
					t.Cleanup(func() { _ = l.Close() })
					return l
				},
			}
		},
		"memory": func(t *testing.T, limit int64) underTest {
			l := NewMemLog(limit)
			if _, err := l.Replay(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			return underTest{
				log: l, hold: l.Hold, unhold: l.Unhold, fail: func() { l.Fail(errDisk) },
				crash: func() CommitLog {
					n := l.Crash()
					t.Cleanup(func() { _ = n.Close() })
					return n
				},
			}
		},
	}
	cases := map[string]func(t *testing.T, open func(limit int64) underTest){
		"order":       logOrder,
		"concurrent":  logConcurrent,
		"empty":       logEmpty,
		"cancel":      logCancel,
		"unknown":     logUnknownPosition,
		"cap":         logCap,
		"admitMany":   logAdmitMany,
		"close":       logClose,
		"full":        logFull,
		"lost":        logLost,
		"crash":       logCrash,
		"replayError": logReplayError,
	}
	for kind, open := range kinds {
		for name, run := range cases {
			t.Run(kind+"/"+name, func(t *testing.T) {
				run(t, func(limit int64) underTest { return open(t, limit) })
			})
		}
	}
}

func waitErr(l CommitLog, p Pos) <-chan error {
	c := make(chan error, 1)
	go func() { c <- l.Wait(context.Background(), p) }()
	return c
}

func logOrder(t *testing.T, open func(int64) underTest) {
	u := open(DefaultUndurableLimit)
	if !u.log.Durable().IsZero() {
		t.Fatalf("an empty log is durable to %v, want nothing", u.log.Durable())
	}
	want := numbered("record ", 300)
	want = append(want, strings.Repeat("long", 20_000), "", "after")
	var last Pos
	var positions []Pos
	for _, rec := range want {
		p := put(t, u.log, rec)
		if p.Compare(last) < 0 || p.Term != localTerm {
			t.Fatalf("position %v after %v", p, last)
		}
		last = p
		positions = append(positions, p)
	}
	if err := u.log.Wait(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if u.log.Durable() != last {
		t.Errorf("durable to %v, want %v", u.log.Durable(), last)
	}
	found := u.crash()
	recs, stats, err := replayAll(found)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, texts(recs)); diff != "" {
		t.Error(diff)
	}
	for i, r := range recs {
		if r.pos != positions[i] {
			t.Fatalf("record %d replayed at %v, was appended at %v", i, r.pos, positions[i])
		}
	}
	if stats.Records != int64(len(want)) || stats.Last != last || stats.CutBytes != 0 {
		t.Errorf("stats %+v", stats)
	}
	next := putDurable(t, found, "next")
	if next.Compare(last) <= 0 {
		t.Errorf("after replay to %v comes %v", last, next)
	}
}

func logConcurrent(t *testing.T, open func(int64) underTest) {
	u := open(DefaultUndurableLimit)
	const writers, each = 32, 40
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				rec := fmt.Sprintf("%d/%d/%s", w, i, strings.Repeat("x", (w*i)%700))
				if err := u.log.Admit(context.Background(), len(rec)); err != nil {
					t.Error(err)
					return
				}
				p := u.log.Append([]byte(rec))
				if i%3 == 0 {
					if err := u.log.Wait(context.Background(), p); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if err := u.log.Close(); err != nil {
		t.Fatal(err)
	}
	recs, _, err := replayAll(u.crash())
	if err != nil {
		t.Fatal(err)
	}
	next := make([]int, writers)
	for _, r := range recs {
		var w, i int
		if _, err := fmt.Sscanf(r.rec, "%d/%d/", &w, &i); err != nil {
			t.Fatal(err)
		}
		if i != next[w] {
			t.Fatalf("writer %d: record %d where %d must stand", w, i, next[w])
		}
		next[w]++
	}
	for w, n := range next {
		if n != each {
			t.Errorf("writer %d: %d records, want %d", w, n, each)
		}
	}
}

func logEmpty(t *testing.T, open func(int64) underTest) {
	u := open(DefaultUndurableLimit)
	if err := u.log.Wait(t.Context(), Pos{}); err != nil {
		t.Errorf("the zero position must be durable: %v", err)
	}
	recs, stats, err := replayAll(u.crash())
	if err != nil || len(recs) != 0 || stats.Records != 0 {
		t.Errorf("replay of an empty log: %v, %+v, %v", recs, stats, err)
	}
}

func logCancel(t *testing.T, open func(int64) underTest) {
	u := open(1)
	u.hold()
	defer u.unhold()
	p := put(t, u.log, "held")
	cause := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := u.log.Wait(ctx, p); !errors.Is(err, cause) {
		t.Errorf("Wait: %v, want the cause of the context", err)
	}
	if err := u.log.WaitRoom(ctx); !errors.Is(err, cause) {
		t.Errorf("WaitRoom: %v, want the cause of the context", err)
	}
}

func logUnknownPosition(t *testing.T, open func(int64) underTest) {
	u := open(DefaultUndurableLimit)
	putDurable(t, u.log, "one")
	for _, p := range []Pos{{localTerm, 1000}, {localTerm + 1, 1}, {0, 5}} {
		if err := u.log.Wait(t.Context(), p); err == nil || errors.Is(err, ErrLost) {
			t.Errorf("Wait(%v): %v, want an error about the position", p, err)
		}
	}
}

func logCap(t *testing.T, open func(int64) underTest) {
	u := open(DefaultUndurableLimit)
	var limit *LimitError
	err := u.log.Admit(t.Context(), MaxRecord+1)
	if !errors.As(err, &limit) || !errors.Is(err, ErrTooLarge) || limit.Limit != MaxRecord || limit.Size != MaxRecord+1 {
		t.Fatalf("Admit over the cap: %v", err)
	}
	if err := u.log.Admit(t.Context(), 1, MaxRecord+1); !errors.As(err, &limit) || limit.Size != MaxRecord+1 {
		t.Fatalf("Admit of one over the cap: %v", err)
	}
	putDurable(t, u.log, "the log goes on")
}

// logAdmitMany: records that were admitted together are appended between
// others, or released.
func logAdmitMany(t *testing.T, open func(int64) underTest) {
	u := open(DefaultUndurableLimit)
	parts := []string{strings.Repeat("p", 30_000), "", "q", strings.Repeat("r", 9000)}
	sizes := make([]int, len(parts))
	for i, p := range parts {
		sizes[i] = len(p)
	}
	must(t, u.log.Admit(t.Context(), sizes...))
	var want []string
	var last Pos
	for i, p := range parts[:3] {
		u.log.Append([]byte(p))
		between := fmt.Sprint("between ", i)
		last = put(t, u.log, between)
		want = append(want, p, between)
	}
	u.log.Release(sizes[3:]...)
	must(t, u.log.Wait(t.Context(), last))
	recs, _, err := replayAll(u.crash())
	if diff := cmp.Diff(want, texts(recs)); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func logClose(t *testing.T, open func(int64) underTest) {
	u := open(DefaultUndurableLimit)
	p := put(t, u.log, "appended before Close")
	if err := u.log.Admit(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if err := u.log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := u.log.Wait(t.Context(), p); err != nil {
		t.Errorf("Close must make what was appended durable: %v", err)
	}
	if err := u.log.Admit(t.Context(), 1); !errors.Is(err, ErrClosed) {
		t.Errorf("Admit after Close: %v", err)
	}
	late := u.log.Append([]byte("late"))
	if err := u.log.Wait(t.Context(), late); !errors.Is(err, ErrClosed) {
		t.Errorf("Wait for a record appended after Close: %v", err)
	}
	if err := u.log.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	recs, _, err := replayAll(u.crash())
	if diff := cmp.Diff([]string{"appended before Close"}, texts(recs)); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func logFull(t *testing.T, open func(int64) underTest) {
	u := open(100)
	if u.log.Full() {
		t.Error("an empty log is full")
	}
	u.hold()
	first := put(t, u.log, strings.Repeat("a", 60))
	put(t, u.log, strings.Repeat("b", 60))
	if !u.log.Full() {
		t.Error("120 undurable bytes of 100 are not full")
	}
	room := make(chan error, 1)
	go func() { room <- u.log.WaitRoom(context.Background()) }()
	select {
	case err := <-room:
		t.Errorf("WaitRoom came back while the log was full: %v", err)
	default:
	}
	u.unhold()
	if err := <-room; err != nil {
		t.Error(err)
	}
	if err := u.log.Wait(t.Context(), first); err != nil {
		t.Error(err)
	}
}

func logLost(t *testing.T, open func(int64) underTest) {
	u := open(10)
	safe := putDurable(t, u.log, "safe")
	u.hold()
	p := put(t, u.log, "never acknowledged")
	if err := u.log.Admit(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	waiting := []<-chan error{waitErr(u.log, p), waitErr(u.log, p)}
	room := make(chan error, 1)
	go func() { room <- u.log.WaitRoom(context.Background()) }()
	go u.unhold()
	u.fail()
	<-u.log.Lost()
	// The held record may have become durable before the failure, unless it
	// was the one that failed; what comes later never does.
	for _, c := range waiting {
		if err := <-c; err != nil && (!errors.Is(err, ErrLost) || !errors.Is(err, errDisk)) {
			t.Errorf("Wait: %v, want ErrLost and its cause", err)
		}
	}
	if err := <-room; err != nil && !errors.Is(err, ErrLost) {
		t.Errorf("WaitRoom: %v", err)
	}
	if err := u.log.Wait(t.Context(), safe); err != nil {
		t.Errorf("what was durable stays so: %v", err)
	}
	late := u.log.Append([]byte("late!"))
	if err := u.log.Wait(t.Context(), late); !errors.Is(err, ErrLost) || !errors.Is(err, errDisk) {
		t.Errorf("Wait for a record appended to a lost log: %v", err)
	}
	if err := u.log.Admit(t.Context(), 1); !errors.Is(err, ErrLost) {
		t.Errorf("Admit: %v", err)
	}
	if err := u.log.WaitRoom(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("WaitRoom: %v", err)
	}
	if err := u.log.Close(); !errors.Is(err, ErrLost) {
		t.Errorf("Close of a lost log: %v, want its error", err)
	}
}

func logCrash(t *testing.T, open func(int64) underTest) {
	u := open(DefaultUndurableLimit)
	putDurable(t, u.log, "kept")
	u.hold()
	defer u.unhold()
	put(t, u.log, "gone")
	found := u.crash()
	recs, _, err := replayAll(found)
	if diff := cmp.Diff([]string{"kept"}, texts(recs)); err != nil || diff != "" {
		t.Fatal(err, diff)
	}
	putDurable(t, found, "new")
}

func logReplayError(t *testing.T, open func(int64) underTest) {
	u := open(DefaultUndurableLimit)
	putDurable(t, u.log, "one")
	refuse := errors.New("the reader refuses")
	_, err := u.crash().Replay(t.Context(), func(Replayed) error { return refuse })
	if !errors.Is(err, refuse) {
		t.Errorf("Replay: %v, want the reader's error", err)
	}
}
