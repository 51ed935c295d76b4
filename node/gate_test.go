package node_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
	"github.com/limpet-dev/limpet/node"
)

// diary is an object that writes, and lets something out afterwards.
type diary struct {
	st  *limpet.State
	out chan<- string // what left any diary, in order
}

func (d *diary) Write(_ context.Context, n int) (int, error) { return n, d.st.KV().Put("n", n) }

func (d *diary) Read(context.Context) (n int, err error) {
	_, err = d.st.KV().Get("n", &n)
	return n, err
}

// Tell writes and then calls another object.
func (d *diary) Tell(ctx context.Context, other string, n int) error {
	if err := d.st.KV().Put("n", n); err != nil {
		return err
	}
	diaries, err := limpet.NamespaceOf[*diary](d.st, "DIARY")
	if err != nil {
		return err
	}
	return limpet.Do1(ctx, diaries.Named(other), (*diary).Hear, fmt.Sprintf("call %d", n))
}

func (d *diary) Hear(_ context.Context, what string) error {
	d.out <- what
	return nil
}

// Send writes and then does outside work.
func (d *diary) Send(ctx context.Context, n int) error {
	if err := d.st.KV().Put("n", n); err != nil {
		return err
	}
	return d.st.Await(ctx, func(context.Context) error {
		d.out <- fmt.Sprintf("await %d", n)
		return nil
	})
}

func diaries(t *testing.T, disk *sim.Disk) (limpet.Namespace[*diary], <-chan string) {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	out := make(chan string, 100)
	n, err := node.Open(t.Context(), node.Config{
		Dir: "data", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Classes: []*limpet.Class{limpet.NewClass("Diary", func(st *limpet.State) (*diary, error) { return &diary{st, out}, nil })},
	}.OnDisk(disk, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	ns, err := limpet.NamespaceOf[*diary](n, "DIARY")
	if err != nil {
		t.Fatal(err)
	}
	return ns, out
}

// TestNothingLeavesBeforeItIsDurable holds the log's sync back: no reply, not
// even of a read, no outgoing call and no Await function may leave meanwhile.
// Released, all of them leave, in order.
func TestNothingLeavesBeforeItIsDurable(t *testing.T) {
	// SPEC H2, E10
	disk := sim.NewDisk()
	ns, out := diaries(t, disk)
	ctx := t.Context()
	for _, name := range []string{"a", "b", "c", "ear"} { // all are constructed and idle
		if _, err := limpet.Call1(ctx, ns.Named(name), (*diary).Write, 0); err != nil {
			t.Fatal(err)
		}
	}
	release := disk.HoldSyncs()
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		replies []string
		begun   = make(chan struct{}, 10)
	)
	reply := func(what string, call func() (any, error)) {
		wg.Go(func() {
			begun <- struct{}{}
			v, err := call()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			replies = append(replies, fmt.Sprintf("%s %v", what, v))
		})
		<-begun
	}
	reply("write", func() (any, error) { return limpet.Call1(ctx, ns.Named("a"), (*diary).Write, 1) })
	// The read is only interesting once the write has been done in memory.
	waitUntil(t, func() bool {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		v, err := limpet.Call(short, ns.Named("a"), (*diary).Read)
		if err == nil && v != 0 { // 0: it came before the write
			t.Fatal("a read that has seen an undurable write was answered")
		}
		return errors.Is(err, context.DeadlineExceeded)
	})
	reply("read", func() (any, error) { return limpet.Call(ctx, ns.Named("a"), (*diary).Read) })
	reply("tell", func() (any, error) { return nil, limpet.Do2(ctx, ns.Named("b"), (*diary).Tell, "ear", 2) })
	reply("send", func() (any, error) { return nil, limpet.Do1(ctx, ns.Named("c"), (*diary).Send, 3) })

	// Nothing may come; the wait gives a leak the time to show itself.
	select {
	case what := <-out:
		t.Errorf("%q left before the write was durable", what)
	case <-time.After(200 * time.Millisecond):
	}
	mu.Lock()
	if len(replies) > 0 {
		t.Errorf("replies left before the sync: %q", replies)
	}
	mu.Unlock()

	release()
	wg.Wait()
	slices.Sort(replies)
	if want := []string{"read 1", "send <nil>", "tell <nil>", "write 1"}; !slices.Equal(replies, want) {
		t.Errorf("after the sync: got %q, want %q", replies, want)
	}
	left := []string{<-out, <-out}
	slices.Sort(left)
	if want := []string{"await 3", "call 2"}; !slices.Equal(left, want) {
		t.Errorf("left the objects: got %q, want %q", left, want)
	}
}

// TestPowerCutWhileHeld cuts the power while replies wait: none of them may
// ever come as a success, and the writes are gone.
func TestPowerCutWhileHeld(t *testing.T) {
	disk := sim.NewDisk()
	out := make(chan string, 10)
	class := limpet.NewClass("Diary", func(st *limpet.State) (*diary, error) { return &diary{st, out}, nil })
	lost := make(chan error, 1)
	cfg := node.Config{Dir: "data", Classes: []*limpet.Class{class}, Fatal: func(err error) { lost <- err },
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	n, err := node.Open(t.Context(), cfg.OnDisk(disk, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	ns, err := limpet.NamespaceOf[*diary](n, "DIARY")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limpet.Call1(t.Context(), ns.Named("a"), (*diary).Write, 1); err != nil {
		t.Fatal(err)
	}
	release := disk.HoldSyncs()
	answer := make(chan error, 1)
	go func() {
		_, err := limpet.Call1(t.Context(), ns.Named("a"), (*diary).Write, 2)
		answer <- err
	}()
	waitUntil(t, func() bool {
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := limpet.Call(short, ns.Named("a"), (*diary).Read)
		return errors.Is(err, context.DeadlineExceeded)
	})
	after := disk.CutPower(0, 1)
	release()
	if err := <-answer; !errors.Is(err, limpet.CodeStorageLost) || limpet.DeliveryOf(err) == limpet.DeliveryNone {
		t.Errorf("the write that was not durable: got %v (%v), want CodeStorageLost, not \"not delivered\"", err, limpet.DeliveryOf(err))
	}
	if err := <-lost; !errors.Is(err, sim.ErrPowerCut) {
		t.Errorf("Fatal got %v, want the power cut", err)
	}
	if err := n.Close(); err == nil {
		t.Error("Close of a node whose log failed says nothing of it")
	}
	n, err = node.Open(t.Context(), cfg.OnDisk(after, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if ns, err = limpet.NamespaceOf[*diary](n, "DIARY"); err != nil {
		t.Fatal(err)
	}
	if got, err := limpet.Call(t.Context(), ns.Named("a"), (*diary).Read); err != nil || got != 1 {
		t.Errorf("after the crash: got %d, %v, want 1", got, err)
	}
}

// Fill writes a value of some bytes, other ones each time.
func (d *diary) Fill(_ context.Context, bytes int) error {
	b := make([]byte, bytes)
	_, _ = rand.Read(b)
	return d.st.KV().Put("fill", b)
}

// TestFullDisk fills the disk: commits fail before they are made, and the node
// goes on when there is room.
func TestFullDisk(t *testing.T) {
	disk := sim.NewDisk()
	ns, _ := diaries(t, disk)
	ctx := t.Context()
	if _, err := limpet.Call1(ctx, ns.Named("a"), (*diary).Write, 7); err != nil {
		t.Fatal(err)
	}
	disk.SetFull(true)
	var err error
	for range 100 { // a segment is 1 MiB, two are ready
		if err = limpet.Do1(ctx, ns.Named("b"), (*diary).Fill, 100_000); err != nil {
			break
		}
	}
	if !errors.Is(err, limpet.CodeStorageFull) {
		t.Fatalf("on a full disk: got %v, want CodeStorageFull", err)
	}
	if limpet.DeliveryOf(err) != limpet.DeliveryReceived {
		t.Errorf("the method ran: got %v", limpet.DeliveryOf(err))
	}
	if got, err := limpet.Call(ctx, ns.Named("a"), (*diary).Read); err != nil || got != 7 {
		t.Errorf("reading goes on while the disk is full: got %d, %v, want 7", got, err)
	}
	disk.SetFull(false)
	waitUntil(t, func() bool { return limpet.Do1(ctx, ns.Named("b"), (*diary).Fill, 100_000) == nil })
	if got, err := limpet.Call1(ctx, ns.Named("a"), (*diary).Write, 8); err != nil || got != 8 {
		t.Errorf("after there is room: got %d, %v", got, err)
	}
}

func waitUntil(t *testing.T, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			t.Fatal("not within 10 s")
		}
	}
}
