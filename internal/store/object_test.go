package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

func testOptions(d *disk) Options {
	return Options{FS: d.fs, Dir: "data", Clock: systemClock{}, SegmentSize: testSegment}
}

// openStore opens a store that is closed at the test's end, objects first.
func openStore(t testing.TB, opt Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func objectID(n int) (id ObjectID) {
	id[0], id[31] = byte(n), byte(n>>8)
	return id
}

func openObject(t testing.TB, s *Store, n int) *Object {
	t.Helper()
	o, err := s.Object(objectID(n), Birth{Class: "Cart", Name: fmt.Sprintf("object %d", n)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// commit commits and waits until it is durable.
func commit(t testing.TB, o *Object, ids ...limpet.Identity) Pos {
	t.Helper()
	p, err := o.Commit(ids)
	must(t, err)
	must(t, o.s.Wait(context.Background(), p))
	return p
}

// contents are all keys and values.
func contents(t testing.TB, o *Object) map[string]string {
	t.Helper()
	m := map[string]string{}
	last, first := "", true
	for e, err := range o.List(ListOptions{}) {
		must(t, err)
		if !first && e.Key <= last {
			t.Fatalf("key %q after %q", e.Key, last)
		}
		last, first = e.Key, false
		m[e.Key] = string(e.Value)
	}
	return m
}

func wantContents(t testing.TB, o *Object, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, contents(t, o)); diff != "" {
		t.Fatal(diff)
	}
}

func identity(n byte) limpet.Identity {
	return limpet.Identity{Nonce: [16]byte{n}, CreatedMS: 1700000000000 + int64(n)}
}

func TestTurn(t *testing.T) {
	// SPEC H25: a turn's writes are one commit.
	d := newCrashableDisk()
	s := openStore(t, testOptions(d))
	o := openObject(t, s, 1)
	if exists(t, s, o.ID()) || o.Exists() || o.Dirty() || !o.LastPos().IsZero() {
		t.Error("a new object is not empty")
	}
	if p, err := o.Commit(nil); err != nil || !p.IsZero() {
		t.Errorf("a commit of nothing: %v, %v", p, err)
	}
	if v, ok, err := o.Get("a"); v != nil || ok || err != nil {
		t.Errorf("Get of an empty object: %q, %t, %v", v, ok, err)
	}
	must(t, o.Put("a", []byte("1")))
	must(t, o.Put("b", []byte("2")))
	if !o.Dirty() || exists(t, s, o.ID()) {
		t.Error("after a put: not dirty, or existing before the commit")
	}
	p1 := commit(t, o)
	if st := s.Stats(); st.Records != 1 || st.Objects != 1 || st.OpenObjects != 1 {
		t.Errorf("two puts and a commit: %+v, want one record and object", st)
	}
	if o.Dirty() || !exists(t, s, o.ID()) || o.LastPos() != p1 {
		t.Error("after the commit")
	}
	must(t, o.Put("a", []byte("x")))
	if _, err := o.Delete("b"); err != nil {
		t.Fatal(err)
	}
	must(t, o.Rollback())
	wantContents(t, o, map[string]string{"a": "1", "b": "2"})
	if p, err := o.Commit(nil); p != p1 || err != nil {
		t.Errorf("a commit after a rollback: %v, %v, want %v", p, err, p1)
	}
	must(t, o.Put("a", []byte("1"))) // no change
	if p, err := o.Commit(nil); p != p1 || err != nil {
		t.Errorf("a commit that changes nothing: %v, %v, want %v", p, err, p1)
	}
	if p := commit(t, o, identity(1)); p.Compare(p1) <= 0 {
		t.Errorf("identities without writes: %v, want a record after %v", p, p1)
	}
	must(t, o.Put("a", []byte("1")))
	if p := commit(t, o, identity(2)); p != o.LastPos() || p.Compare(p1) <= 0 {
		t.Errorf("identities with writes that change nothing: %v", p)
	}
	must(t, o.Put("c", nil))
	commit(t, o, identity(3), identity(4))
	if got := s.Stats().Records; got != 4 {
		t.Errorf("%d records, want 4", got)
	}
	must(t, o.Close())
	must(t, s.Close())

	s = openStore(t, testOptions(d.crash(0, nil)))
	got, complete := s.RecoveredIdentities()
	var want []RecoveredIdentity
	for n := byte(1); n <= 4; n++ {
		want = append(want, RecoveredIdentity{objectID(1), identity(n)})
	}
	if diff := cmp.Diff(want, got); diff != "" || !complete {
		t.Error(complete, diff)
	}
	if got, _ := s.RecoveredIdentities(); got != nil {
		t.Error("identities are handed over twice")
	}
	if !exists(t, s, objectID(1)) || exists(t, s, objectID(2)) {
		t.Error("Exists after a restart")
	}
	if n := openObject(t, s, 2).Birth(); !n.Named { // not yet born: as it is to be
		t.Errorf("birth %+v", n)
	}
	o = openObject(t, s, 1)
	if o.Birth() != (Birth{"Cart", "object 1", true}) {
		t.Errorf("birth %+v", o.Birth())
	}
	wantContents(t, o, map[string]string{"a": "1", "b": "2", "c": ""})
	if v, ok, err := o.Get("c"); err != nil || !ok || v == nil || len(v) != 0 {
		t.Errorf("the empty value: %v, %t, %v", v, ok, err)
	}
}

func TestTransaction(t *testing.T) {
	// SPEC H25: transaction(cb) rolls back when the callback throws.
	s := openStore(t, testOptions(newCrashableDisk()))
	o := openObject(t, s, 1)
	refuse := errors.New("refused")
	must(t, o.Put("before", []byte("kept")))
	err := o.Transaction(func() error {
		must(t, o.Put("inner", []byte("gone")))
		must(t, o.Put("before", []byte("changed")))
		return refuse
	})
	if err != refuse { //nolint:errorlint // the very error
		t.Errorf("got %v, want the function's error", err)
	}
	must(t, o.Transaction(func() error {
		must(t, o.Put("outer", []byte("kept")))
		if err := o.Transaction(func() error {
			must(t, o.Put("outer", []byte("changed")))
			must(t, o.DeleteAll())
			return refuse
		}); !errors.Is(err, refuse) {
			t.Errorf("got %v", err)
		}
		return o.Transaction(func() error { return o.Put("nested", []byte("kept")) })
	}))
	func() {
		defer func() {
			if r := recover(); r != "stop" {
				t.Errorf("recovered %v, want the function's panic", r)
			}
		}()
		_ = o.Transaction(func() error {
			must(t, o.Put("panic", []byte("gone")))
			panic("stop")
		})
	}()
	want := map[string]string{"before": "kept", "outer": "kept", "nested": "kept"}
	wantContents(t, o, want)
	commit(t, o)
	wantContents(t, o, want)

	if err := o.Transaction(func() error {
		if _, err := o.Commit(nil); err == nil {
			t.Error("a commit within a transaction was made")
		}
		return o.Rollback() // not allowed: the transaction must say that it is gone
	}); err == nil {
		t.Error("a rollback within a transaction went unnoticed")
	}
	wantContents(t, o, want)
	var nest func(n int) error
	nest = func(n int) error {
		if n == 0 {
			return nil
		}
		return o.Transaction(func() error { return nest(n - 1) })
	}
	must(t, nest(maxDepth))
	if err := nest(maxDepth + 1); err == nil {
		t.Errorf("transactions %d deep", maxDepth+1)
	}
	// The first transaction of a new object makes the table and takes it back.
	o2 := openObject(t, s, 2)
	if err := o2.Transaction(func() error { must(t, o2.Put("k", nil)); return refuse }); !errors.Is(err, refuse) {
		t.Error(err)
	}
	must(t, o2.Put("k", []byte("v")))
	commit(t, o2)
	wantContents(t, o2, map[string]string{"k": "v"})
}

func TestKV(t *testing.T) {
	// SPEC H20, H22: get, put, delete of one and many; the empty key.
	s := openStore(t, testOptions(newCrashableDisk()))
	o := openObject(t, s, 1)
	keys := []string{"", "\x00", "a", "a\x00b", "b", "ä", "\xff\xfe not UTF-8", strings.Repeat("k", 3000)}
	var entries []Entry
	want := map[string]string{}
	for i, k := range keys {
		entries = append(entries, Entry{k, bytes.Repeat([]byte{byte(i)}, i*1000)})
		want[k] = string(entries[i].Value)
	}
	must(t, o.PutMany(entries))
	must(t, o.PutMany(nil))
	wantContents(t, o, want)
	m, err := o.GetMany(append(slices.Clone(keys), "absent"))
	must(t, err)
	got := map[string]string{}
	for k, v := range m {
		got[k] = string(v)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if ok, err := o.Delete("a"); !ok || err != nil {
		t.Errorf("Delete: %t, %v", ok, err)
	}
	if ok, err := o.Delete("a"); ok || err != nil {
		t.Errorf("Delete again: %t, %v", ok, err)
	}
	if n, err := o.DeleteMany([]string{"", "a", "b", "b"}); n != 2 || err != nil {
		t.Errorf("DeleteMany: %d, %v", n, err)
	}
	for _, k := range []string{"", "a", "b"} {
		delete(want, k)
	}
	wantContents(t, o, want)
	must(t, o.DeleteAll())
	wantContents(t, o, map[string]string{})
	commit(t, o)
	var limit *LimitError
	if err := o.Put("big", make([]byte, maxEntry)); !errors.As(err, &limit) || !errors.Is(err, ErrTooLarge) {
		t.Errorf("a value over the limit: %v", err)
	}
}

func TestList(t *testing.T) {
	// SPEC H20, H21: start, startAfter, end (exclusive), prefix, reverse, limit.
	s := openStore(t, testOptions(newCrashableDisk()))
	o := openObject(t, s, 1)
	var keys []string
	must(t, o.Transaction(func() error {
		for _, p := range []string{"", "a", "b", "b\xff", "b\xff\xff", "c", "\xff"} {
			for i := range 60 {
				k := fmt.Sprintf("%s%02d", p, i)
				keys = append(keys, k)
				must(t, o.Put(k, []byte("v"+k)))
			}
		}
		return nil
	}))
	slices.Sort(keys)
	points := []string{"", "0", "a", "a30", "b", "b\xff", "b\xff\xff", "b\xff\xff59", "c99", "\xff", "\xff\xff"}
	model := func(opt ListOptions) (got []string) {
		for _, k := range keys {
			if k >= opt.Start && (!opt.After && opt.StartAfter == "" || k > opt.StartAfter) &&
				(opt.End == "" || k < opt.End) && strings.HasPrefix(k, opt.Prefix) {
				got = append(got, k)
			}
		}
		if opt.Reverse {
			slices.Reverse(got)
		}
		if opt.Limit > 0 && len(got) > opt.Limit {
			got = got[:opt.Limit]
		}
		return got
	}
	for _, a := range points {
		for _, b := range points {
			for _, opt := range []ListOptions{
				{Start: a, End: b}, {StartAfter: a, End: b}, {StartAfter: a, After: true, Prefix: b}, {Start: a, Prefix: b},
				{Prefix: a, End: b, Limit: 3}, {Start: a, End: b, Limit: 128}, {Start: a, Limit: 129}, {Start: a, StartAfter: b},
			} {
				for _, reverse := range []bool{false, true} {
					opt.Reverse = reverse
					var got []string
					for e, err := range o.List(opt) {
						must(t, err)
						if string(e.Value) != "v"+e.Key {
							t.Fatalf("value %q of key %q", e.Value, e.Key)
						}
						got = append(got, e.Key)
					}
					if diff := cmp.Diff(model(opt), got); diff != "" {
						t.Fatalf("%+v: %s", opt, diff)
					}
				}
			}
		}
	}
	for _, err := range o.List(ListOptions{Limit: -1}) {
		if err == nil {
			t.Error("a negative limit was taken")
		}
	}
	for _, err := range o.List(ListOptions{}) {
		must(t, err)
		break // nothing stays open
	}
	commit(t, o)
}

// TestListWhileWriting: a listing goes on in order while the object is written,
// rolled back, committed and put to sleep.
func TestListWhileWriting(t *testing.T) {
	s := openStore(t, testOptions(newCrashableDisk()))
	o := openObject(t, s, 1)
	const n = 1000
	must(t, o.Transaction(func() error {
		for i := range n {
			must(t, o.Put(fmt.Sprintf("%06d", i), []byte("v")))
		}
		return nil
	}))
	commit(t, o)
	seen := 0
	last := ""
	for e, err := range o.List(ListOptions{}) {
		must(t, err)
		if e.Key <= last {
			t.Fatalf("key %q after %q", e.Key, last)
		}
		last = e.Key
		seen++
		if ok, err := o.Delete(e.Key); !ok || err != nil {
			t.Fatalf("delete of the key that was listed: %t, %v", ok, err)
		}
		inner := 0
		for _, err := range o.List(ListOptions{Limit: 2}) {
			must(t, err)
			inner++
		}
		if seen%100 == 0 {
			commit(t, o)
			must(t, o.Sleep())
		}
		if seen%150 == 0 {
			must(t, o.Put("0"+e.Key, []byte("behind")))
			must(t, o.Rollback())
		}
	}
	if seen != n {
		t.Errorf("%d keys listed, want %d", seen, n)
	}
	must(t, o.Close())
	for _, err := range o.List(ListOptions{}) {
		if !errors.Is(err, ErrObjectClosed) {
			t.Errorf("a listing of a closed object: %v", err)
		}
	}
}

func TestObjectHandle(t *testing.T) {
	s := openStore(t, testOptions(newCrashableDisk()))
	o := openObject(t, s, 1)
	if _, err := s.Object(o.ID(), Birth{Class: "Cart"}); !errors.Is(err, ErrObjectOpen) {
		t.Errorf("second handle: %v", err)
	}
	must(t, o.Put("k", []byte("v")))
	commit(t, o)
	must(t, o.Put("k", []byte("not committed")))
	must(t, o.Sleep())
	if !o.Dirty() {
		t.Error("Sleep ended a turn")
	}
	must(t, o.Close())
	must(t, o.Close()) // a second time
	for name, err := range map[string]error{
		"Put": o.Put("k", nil), "Rollback": o.Rollback(), "Sleep": o.Sleep(),
		"Transaction": o.Transaction(func() error { return nil }),
	} {
		if !errors.Is(err, ErrObjectClosed) {
			t.Errorf("%s of a closed object: %v", name, err)
		}
	}
	if _, err := s.Object(o.ID(), Birth{Class: "Room"}); err == nil || !strings.Contains(err.Error(), `class "Cart"`) {
		t.Errorf("an object of another class: %v", err)
	}
	if _, err := s.Object(objectID(9), Birth{Name: strings.Repeat("n", maxBirthText)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a name over the limit: %v", err)
	}
	before := s.Stats()
	o = openObject(t, s, 1)
	wantContents(t, o, map[string]string{"k": "v"})
	must(t, o.Sleep())
	wantContents(t, o, map[string]string{"k": "v"})
	if o.Memory() <= 0 {
		t.Error("no memory used")
	}
	must(t, o.Close())

	// An object without data costs nothing once it is closed.
	for n := 100; n < 110; n++ {
		o := openObject(t, s, n)
		must(t, o.Put("k", []byte("v")))
		must(t, o.Rollback())
		must(t, o.Close())
	}
	if after := s.Stats(); after.PageBytes != before.PageBytes || after.Objects != before.Objects || len(s.objects) != 1 {
		t.Errorf("before %+v, after %+v, %d in the table", before, after, len(s.objects))
	}
}

func TestDestroy(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, testOptions(d))
	o := openObject(t, s, 1)
	must(t, o.Put("k", []byte("old life")))
	commit(t, o)
	must(t, o.Put("k", []byte("not committed")))
	p, err := o.Destroy([]limpet.Identity{identity(1)})
	must(t, err)
	must(t, s.Wait(t.Context(), p))
	if exists(t, s, o.ID()) || s.Stats().PageBytes != 0 || s.Stats().Objects != 0 || o.LastPos() != p {
		t.Errorf("after Destroy: %+v", s.Stats())
	}
	wantContents(t, o, map[string]string{})
	if _, err := o.Destroy(nil); err != nil || s.Stats().Records != 2 {
		t.Errorf("Destroy of nothing: %v, %d records", err, s.Stats().Records)
	}
	o2 := openObject(t, s, 2)
	if _, err := o2.Destroy([]limpet.Identity{identity(2)}); err != nil {
		t.Fatal(err)
	}
	must(t, o.Close())
	must(t, o2.Close())
	must(t, s.Close())

	s = openStore(t, testOptions(d.crash(0, nil)))
	if exists(t, s, objectID(1)) || exists(t, s, objectID(2)) || s.Stats().Objects != 0 {
		t.Error("a destroyed object exists after a restart")
	}
	if ids, _ := s.RecoveredIdentities(); len(ids) != 2 {
		t.Errorf("%d identities, want 2: they outlive the object", len(ids))
	}
	o = openObject(t, s, 1)
	wantContents(t, o, map[string]string{})
	must(t, o.Put("k", []byte("new life")))
	commit(t, o)
	must(t, o.Close())
	must(t, s.Close())
	s = openStore(t, testOptions(d.crash(0, nil)))
	_ = s
}

// TestFullDisk: a commit that has no room is not made, the object is as before
// the turn, and goes on when there is room.
func TestFullDisk(t *testing.T) {
	d := newCrashableDisk()
	clock := newHandClock()
	opt := testOptions(d)
	opt.Clock = clock
	opt.Fatal = func(err error) { t.Errorf("the log was given up: %v", err) }
	s := openStore(t, opt)
	waitReady(s.log)
	o := openObject(t, s, 1)
	must(t, o.Put("k", []byte("before")))
	commit(t, o)
	d.setFault(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, tempSuffix) {
			return syscall.ENOSPC
		}
		return nil
	})
	for i := range 1000 {
		must(t, o.Put("k", []byte(strings.Repeat(fmt.Sprint(i%10), 3000))))
		must(t, o.Put("other", []byte("in the same turn")))
		want := contents(t, o)
		_, err := o.Commit(nil)
		if err == nil {
			if i > 20 {
				t.Fatal("the disk is never full")
			}
			continue
		}
		if !errors.Is(err, ErrStorageFull) || !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, vfs.ErrFull) {
			t.Fatalf("commit: %v, want ErrStorageFull", err)
		}
		got := contents(t, o)
		if o.Dirty() || got["k"] == want["k"] {
			t.Fatal("the object is not as before the turn")
		}
		break
	}
	if !s.Stats().StorageFull {
		t.Error("the figures do not tell")
	}
	must(t, s.Wait(t.Context(), o.LastPos()))
	before := contents(t, o)
	if _, err := o.Commit([]limpet.Identity{identity(1)}); err != nil && !errors.Is(err, ErrStorageFull) {
		t.Errorf("identities on a full disk: %v", err)
	}
	d.setFault(nil)
	<-clock.asked
	clock.Tick()
	for {
		must(t, o.Put("k", []byte(strings.Repeat("r", 3000))))
		_, err := o.Commit(nil)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrStorageFull) {
			t.Fatal(err)
		}
		wantContents(t, o, before)
	}
	must(t, s.Wait(t.Context(), o.LastPos()))
	want := contents(t, o)
	must(t, o.Close())
	must(t, s.Close())
	opt.FS, opt.Clock = d.crash(0, nil).fs, systemClock{}
	s = openStore(t, opt)
	wantContents(t, openObject(t, s, 1), want)
}

// TestLostLog: when a sync fails nothing is acknowledged, the process is told,
// and every later commit fails.
func TestLostLog(t *testing.T) {
	d := newCrashableDisk()
	opt := testOptions(d)
	fatal := make(chan error, 10)
	opt.Fatal = func(err error) { fatal <- err }
	s := openStore(t, opt)
	o := openObject(t, s, 1)
	must(t, o.Put("k", []byte("durable")))
	safe := commit(t, o)
	d.failOn(errorfs.OpFileSyncData, segmentSuffix, errDisk)
	must(t, o.Put("k", []byte("lost")))
	p, err := o.Commit(nil)
	must(t, err)
	if err := s.Wait(t.Context(), p); !errors.Is(err, ErrLost) || !errors.Is(err, errDisk) {
		t.Errorf("Wait: %v", err)
	}
	<-s.Lost()
	if err := <-fatal; !errors.Is(err, ErrLost) {
		t.Errorf("fatal got %v", err)
	}
	must(t, s.Wait(t.Context(), safe))
	must(t, o.Put("k", []byte("later")))
	if _, err := o.Commit(nil); !errors.Is(err, ErrLost) {
		t.Errorf("a commit after the loss: %v", err)
	}
	if _, err := o.Commit([]limpet.Identity{identity(1)}); !errors.Is(err, ErrLost) {
		t.Errorf("identities after the loss: %v", err)
	}
	if err := s.WaitRoom(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("WaitRoom: %v", err)
	}
	must(t, o.Close())
	if err := s.Close(); !errors.Is(err, ErrLost) {
		t.Errorf("Close: %v", err)
	}
	s = openStore(t, testOptions(d.crash(0, nil)))
	wantContents(t, openObject(t, s, 1), map[string]string{"k": "durable"})
}

// TestInterrupt: a statement and a commit that wait end with the event's
// channel, and half a turn is never committed.
func TestInterrupt(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, testOptions(d))
	o := openObject(t, s, 1)
	must(t, o.PutMany([]Entry{{"a", []byte("1")}, {"b", []byte("2")}}))
	commit(t, o)
	must(t, o.Put("a", []byte("half")))
	done := make(chan struct{})
	o.SetInterrupt(done)
	close(done)
	// A long statement: a join of the table with itself and itself.
	err := o.check(o.conn.Exec("UPDATE " + TableName + " SET value=(WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i+1 FROM n WHERE i<1000000) SELECT sum(i) FROM n)"))
	if !errors.Is(err, vfs.ErrInterrupt) {
		t.Fatalf("a long statement: %v, want an interrupt", err)
	}
	o.SetInterrupt(nil)
	if err := o.Put("b", []byte("other half")); !errors.Is(err, ErrTurnBroken) || !errors.Is(err, vfs.ErrInterrupt) {
		t.Errorf("a put into the broken turn: %v", err)
	}
	if _, _, err := o.Get("b"); !errors.Is(err, ErrTurnBroken) {
		t.Errorf("a get in the broken turn: %v", err)
	}
	if _, err := o.Commit(nil); !errors.Is(err, ErrTurnBroken) {
		t.Errorf("a commit of the broken turn: %v", err)
	}
	if o.Dirty() {
		t.Error("the failed commit left the turn open")
	}
	wantContents(t, o, map[string]string{"a": "1", "b": "2"})
}

// TestInterruptedAdmit: a commit that waits for a segment ends with the event.
func TestInterruptedAdmit(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, testOptions(d))
	waitReady(s.log)
	o := openObject(t, s, 1)
	gate, reached := make(chan struct{}), make(chan struct{}, 100)
	d.setFault(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, tempSuffix) {
			reached <- struct{}{}
			<-gate
		}
		return nil
	})
	done := make(chan struct{})
	o.SetInterrupt(done)
	must(t, o.Put("k", bytes.Repeat([]byte{7}, 10*testSegment)))
	go func() {
		<-reached
		close(done)
	}()
	if _, err := o.Commit(nil); !errors.Is(err, context.Canceled) {
		t.Errorf("commit: %v, want the interrupt", err)
	}
	close(gate)
	o.SetInterrupt(nil)
	wantContents(t, o, map[string]string{})
}

// TestConcurrentObjects uses many objects at once, each by one goroutine, while
// figures are read.
func TestConcurrentObjects(t *testing.T) {
	s := openStore(t, testOptions(newCrashableDisk()))
	stop := make(chan struct{})
	var wg, readers sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = s.Stats()
				_ = exists(t, s, objectID(3))
				_ = s.Full()
				_ = s.Durable()
				runtime.Gosched()
			}
		}
	})
	for n := range 8 {
		o := openObject(t, s, n)
		wg.Go(func() {
			for i := range 30 {
				if err := o.Put(fmt.Sprint(i), bytes.Repeat([]byte{byte(n)}, 100*i)); err != nil {
					t.Error(err)
				}
				p, err := o.Commit(nil)
				if err != nil {
					t.Error(err)
				}
				if err := s.Wait(t.Context(), p); err != nil {
					t.Error(err)
				}
			}
			if _, err := s.RegisterClass(fmt.Sprint(n), ""); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(stop)
	readers.Wait()
	if st := s.Stats(); st.Objects != 8 || st.Records != 240 || st.UndurableBytes != 0 || st.Syncs < st.Batches {
		t.Errorf("%+v", st)
	}
}

// TestRecoveredIdentitiesBound: the newest are kept, and it is told that there
// were more.
func TestRecoveredIdentitiesBound(t *testing.T) {
	s := &Store{idents: identityRing{max: 3}}
	for n := range byte(8) {
		s.idents.add(RecoveredIdentity{objectID(1), identity(n)})
	}
	got, complete := s.RecoveredIdentities()
	want := []RecoveredIdentity{{objectID(1), identity(5)}, {objectID(1), identity(6)}, {objectID(1), identity(7)}}
	if diff := cmp.Diff(want, got); diff != "" || complete {
		t.Error(complete, diff)
	}
}

// TestLogger: what an operator must know is told, with figures.
func TestLogger(t *testing.T) {
	d := newCrashableDisk()
	var out bytes.Buffer
	opt := testOptions(d)
	opt.Logger = slog.New(slog.NewTextHandler(&out, nil))
	s := openStore(t, opt)
	o := openObject(t, s, 1)
	d.failOn(errorfs.OpFileSyncData, segmentSuffix, errDisk)
	must(t, o.Put("k", bytes.Repeat([]byte{1}, 9000)))
	p, err := o.Commit(nil)
	must(t, err)
	if err := s.Wait(t.Context(), p); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	must(t, o.Close())
	_ = s.Close()
	if !strings.Contains(out.String(), "level=ERROR") || !strings.Contains(out.String(), errDisk.Error()) {
		t.Errorf("a lost log: %s", &out)
	}
	out.Reset()
	d = d.kill()
	editFile(t, d.fs, "data/"+seg1, func(b []byte) []byte { b[len(b)-200] = 1; b[segmentHeaderSize+60] ^= 1; return b })
	opt.FS = d.fs
	s = openStore(t, opt)
	if !strings.Contains(out.String(), "level=WARN") || !strings.Contains(out.String(), "file=data/log/00000001.seg offset=4096") || !strings.Contains(out.String(), fmt.Sprint("bytes=", s.replay.CutBytes)) {
		t.Errorf("a cut tail: %s", &out)
	}
}

// TestModel compares the key-value API and SQL with a map over random turns, with
// restarts.
func TestModel(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, testOptions(d))
	w := newWorkload(1, 4)
	for range 40 {
		for range 20 {
			o := w.pick(t, s)
			_, _, err := w.turn(t, o)
			must(t, err)
		}
		for n, want := range w.committed {
			if o := w.open[n]; o != nil {
				wantEverything(t, o.Object, want)
			}
		}
		w.closeAll(t)
		must(t, s.Close())
		s = openStore(t, testOptions(d))
		for n, want := range w.committed {
			o := openObject(t, s, n)
			wantEverything(t, o, want)
			must(t, o.Close())
		}
	}
}
