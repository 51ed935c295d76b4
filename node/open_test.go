package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
	"github.com/limpet-dev/limpet/internal/store"
	"github.com/limpet-dev/limpet/node"
)

type plain struct{}

func (*plain) Ping(context.Context) error { return nil }

func plainClass(name string, opts ...limpet.ClassOption) *limpet.Class {
	return limpet.NewClass(name, func(*limpet.State) (*plain, error) { return &plain{}, nil }, opts...)
}

type variadic struct{}

func (*variadic) Sum(context.Context, ...int) error { return nil }

// TestOpenRefuses: what is wrong is told at once, all of it, by name.
func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  node.Config
		want []string
	}{
		"no classes": {node.Config{}, []string{"Config.Classes is empty"}},
		"nil class":  {node.Config{Classes: []*limpet.Class{nil}}, []string{"Config.Classes[0] is nil"}},
		"two classes of one name": {
			node.Config{Classes: []*limpet.Class{plainClass("A"), plainClass("A")}}, []string{"class A is given twice"},
		},
		"two classes of one identity": {
			node.Config{Classes: []*limpet.Class{plainClass("A"), plainClass("B", limpet.ClassID("A"))}},
			[]string{"classes A and B have the same identity"},
		},
		"several mistakes": {
			node.Config{
				Classes: []*limpet.Class{
					limpet.NewClass("V", func(*limpet.State) (*variadic, error) { return nil, nil }),
					plainClass("A", limpet.RetryableNamed("Pong")),
				},
				Namespaces: map[string]node.Namespace{
					"X": {Class: "Nobody"},
					"Y": {Class: "A", Defaults: []limpet.StubOption{limpet.MaxRetries(11)}},
				},
				IdleTimeout: -1,
			},
			[]string{"class V: method Sum is variadic", "class A: RetryableNamed: ", "Pong", `namespace X: there is no class "Nobody"`, "namespace Y: ", "MaxRetries(11)", "Config.IdleTimeout is -1ns: must not be negative"},
		},
		"negative limits": {
			node.Config{Classes: []*limpet.Class{plainClass("A")}, DrainTimeout: -time.Second, MaxBody: -5},
			[]string{"Config.DrainTimeout is -1s: must not be negative", "Config.MaxBody is -5: must not be negative"},
		},
		"an address without a port": {
			node.Config{Classes: []*limpet.Class{plainClass("A")}, Wire: node.Wire{Addr: "localhost"}},
			[]string{`Config.Wire.Addr: address "localhost" is not host:port`},
		},
		"limits of other processes": {
			node.Config{Classes: []*limpet.Class{plainClass("A")}, Wire: node.Wire{Addr: ":0", MaxConns: -1}},
			[]string{"Config.Wire.MaxConns is -1: must not be negative"},
		},
		"memory of other processes": {
			node.Config{Classes: []*limpet.Class{plainClass("A")}, Wire: node.Wire{Addr: ":0", MaxMemory: 1 << 20}},
			[]string{"Config.Wire.MaxMemory is 1048576: must be 0 or at least 125829120"},
		},
		"a bad binding": {
			node.Config{Classes: []*limpet.Class{plainClass("A")}, Namespaces: map[string]node.Namespace{"a/b": {Class: "A"}}},
			[]string{`namespace "a/b"`},
		},
		"a default binding that is taken": {
			node.Config{Classes: []*limpet.Class{plainClass("AB"), plainClass("Ab")}, Namespaces: map[string]node.Namespace{"AB": {Class: "Ab"}}},
			[]string{"class AB would be bound to AB, as Ab is"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.Dir = filepath.Join(t.TempDir(), "data")
			n, err := node.Open(t.Context(), c.cfg)
			if err == nil {
				n.Close()
				t.Fatal("opened")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("got %q, want it to say %q", err, w)
				}
			}
			if !errors.Is(err, limpet.CodeInvalidArgument) {
				t.Errorf("got code %v, want InvalidArgument", limpet.CodeOf(err))
			}
		})
	}
}

// TestOpenRefusesDirectories: a directory that is in use, is something else's,
// or was written by a newer limpet is refused by name, and left as it was.
func TestOpenRefusesDirectories(t *testing.T) {
	open := func(dir string) error {
		n, err := node.Open(t.Context(), node.Config{Dir: dir, Classes: []*limpet.Class{plainClass("A")}})
		if err == nil {
			err = n.Close()
		}
		return err
	}
	t.Run("in use", func(t *testing.T) {
		dir := t.TempDir()
		n, err := node.Open(t.Context(), node.Config{Dir: dir, Classes: []*limpet.Class{plainClass("A")}})
		if err != nil {
			t.Fatal(err)
		}
		if err := open(dir); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("the second node: got %v, want an error naming %s", err, dir)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		if err := open(dir); err != nil {
			t.Errorf("after Close: %v", err)
		}
	})
	t.Run("something else's", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "thesis.txt"), []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := open(dir); err == nil || !strings.Contains(err.Error(), "thesis.txt") {
			t.Errorf("got %v, want an error naming what is there", err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("the directory was changed: %v, %v", entries, err)
		}
	})
	t.Run("a file", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "data")
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := open(file); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("got %v, want an error naming the file", err)
		}
	})
	t.Run("newer format", func(t *testing.T) {
		dir := t.TempDir()
		if err := open(dir); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, "limpet.json")
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		newer := regexp.MustCompile(`"format": *\d+\b`).ReplaceAll(b, []byte(`"format":99`))
		if string(newer) == string(b) {
			t.Fatalf("no format in %s", b)
		}
		if err := os.WriteFile(name, newer, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := open(dir); err == nil || !strings.Contains(err.Error(), "newer limpet") || !strings.Contains(err.Error(), "99") {
			t.Errorf("got %v, want it to say that a newer limpet wrote it", err)
		}
	})
}

func TestBindings(t *testing.T) {
	n, err := node.Open(t.Context(), node.Config{
		Dir:     t.TempDir(),
		Classes: []*limpet.Class{plainClass("ChatRoom"), plainClass("HTTPRoom"), plainClass("Cart2")},
		Namespaces: map[string]node.Namespace{
			"CARTS": {Class: "Cart2", Defaults: []limpet.StubOption{limpet.MaxRetries(1), limpet.RetryTimeout(700 * time.Millisecond)}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for _, b := range []string{"CHAT_ROOM", "HTTP_ROOM", "CARTS"} {
		if _, err := limpet.NamespaceOf[*plain](n, b); err != nil {
			t.Errorf("%s: %v", b, err)
		}
	}
	_, err = limpet.NamespaceOf[*plain](n, "CART2")
	if !errors.Is(err, limpet.CodeUnknownNamespace) || !strings.Contains(err.Error(), "CARTS, CHAT_ROOM, HTTP_ROOM") {
		t.Errorf("an unknown binding: got %v, want those that there are", err)
	}
	carts, err := limpet.NamespaceOf[*plain](n, "CARTS")
	if err != nil {
		t.Fatal(err)
	}
	// The binding's defaults hold, a stub's own option wins field by field, and
	// sub-namespaces carry them.
	got := carts.Jurisdiction("eu").Named("x", limpet.MaxRetries(0)).Policy()
	if want := (limpet.RetryPolicy{MaxRetries: 0, Timeout: 700 * time.Millisecond}); got != want {
		t.Errorf("policy: got %+v, want %+v", got, want)
	}
}

// TestExisting: an object that was never created and has no data is refused,
// and nothing is created by asking.
func TestExisting(t *testing.T) {
	n, err := node.Open(t.Context(), node.Config{Dir: t.TempDir(), Classes: []*limpet.Class{plainClass("A")}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	ns, err := limpet.NamespaceOf[*plain](n, "A")
	if err != nil {
		t.Fatal(err)
	}
	id, err := ns.IDFromName("x")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err = limpet.Do(t.Context(), ns.Existing(id), (*plain).Ping)
		if !errors.Is(err, limpet.CodeNoSuchObject) || limpet.DeliveryOf(err) != limpet.DeliveryNone {
			t.Errorf("got %v (%v), want NoSuchObject, not delivered", err, limpet.DeliveryOf(err))
		}
		if e, ok := errors.AsType[*limpet.Error](err); !ok || e.Attempts != 1 {
			t.Errorf("it was retried: %+v", e)
		}
	}
	if err := limpet.Do(t.Context(), ns.Get(id), (*plain).Ping); err != nil {
		t.Fatal(err)
	}
	if err := limpet.Do(t.Context(), ns.Existing(id), (*plain).Ping); err != nil {
		t.Errorf("after it was created: %v", err)
	}
}

type stuck struct{ release chan struct{} }

func (s *stuck) Hang(context.Context) error {
	<-s.release
	return nil
}

// TestCloseWithStuckHandler: a handler that ignores its context can't keep the
// node from closing.
func TestCloseWithStuckHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		n, err := node.Open(t.Context(), node.Config{Dir: "data", Classes: []*limpet.Class{
			limpet.NewClass("Stuck", func(*limpet.State) (*stuck, error) { return &stuck{release}, nil }),
		}}.OnDisk(sim.NewDisk(), 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		ns, err := limpet.NamespaceOf[*stuck](n, "STUCK")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := limpet.Do(ctx, ns.Named("x"), (*stuck).Hang); !errors.Is(err, limpet.CodeCanceled) {
			t.Errorf("got %v", err)
		}
		began := time.Now()
		err = n.Close()
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("Close took %v, want 10 s", took)
		}
		close(release)
		if err == nil || !strings.Contains(err.Error(), "did not return") {
			t.Errorf("Close: got %v, want it to say that a handler did not return", err)
		}
		if again := n.Close(); again != err { //nolint:errorlint // the very same
			t.Errorf("Close again: got %v", again)
		}
	})
}

// TestRefusedClassesLeaveNoTrace: classes that do not fit together, or that have
// another identity than that on record, are refused without recording anything,
// so that the corrected program opens the directory.
func TestRefusedClassesLeaveNoTrace(t *testing.T) {
	disk := sim.NewDisk()
	open := func(classes ...*limpet.Class) error {
		n, err := node.Open(t.Context(), node.Config{Dir: "data", Classes: classes}.OnDisk(disk, 1<<20))
		if err == nil {
			err = n.Close()
		}
		return err
	}
	if err := open(plainClass("A"), plainClass("B", limpet.ClassID("A"))); !errors.Is(err, limpet.CodeInvalidArgument) || !strings.Contains(err.Error(), "A and B have the same identity") {
		t.Errorf("one identity twice: %v", err)
	}
	if err := open(plainClass("A"), plainClass("B", limpet.ClassID("b"))); err != nil {
		t.Errorf("corrected: %v", err)
	}
	if err := open(plainClass("C"), plainClass("A", limpet.ClassID("a"))); !errors.Is(err, store.ErrClassIdentity) {
		t.Errorf("another identity than that on record: %v", err)
	}
	if err := open(plainClass("C", limpet.ClassID("c")), plainClass("A")); err != nil {
		t.Errorf("corrected: %v", err)
	}
	if err := open(plainClass("Renamed", limpet.ClassID("c"))); err != nil {
		t.Errorf("a class under a new name: %v", err)
	}
}
