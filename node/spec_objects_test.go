package node_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
	"github.com/limpet-dev/limpet/node"
)

// named tells what it knows of itself, and fails as it is told to.
type named struct{ st *limpet.State }

func (n *named) WhoAmI(context.Context) (string, error) {
	if name, ok := n.st.ID().Name(); ok {
		return "name " + name, nil
	}
	return "no name", nil
}

func (n *named) Keep(_ context.Context, v int) error { return n.st.KV().Put("k", v) }

func (n *named) PutWrong(_ context.Context, what string) error {
	switch what {
	case "undefined":
		return n.st.KV().Put("k", limpet.Undefined{})
	case "function":
		return n.st.KV().Put("k", func() {})
	case "key":
		return n.st.KV().Put("\xff", 1)
	case "list":
		for _, err := range n.st.KV().List(limpet.ListOptions{Limit: -1}) {
			return err
		}
	case "large":
		return n.st.KV().Put("k", make([]byte, 31<<20))
	case "larger":
		return n.st.KV().Put("k", make([]byte, 32<<20))
	}
	return errors.New("the test knows no " + what)
}

func namedClass() *limpet.Class {
	return limpet.NewClass("Named", func(st *limpet.State) (*named, error) { return &named{st}, nil })
}

func openNamed(t *testing.T, disk *sim.Disk) (*node.Node, limpet.Namespace[*named]) {
	t.Helper()
	n, err := node.Open(t.Context(), node.Config{
		Dir: "data", Logger: slog.New(slog.DiscardHandler), Classes: []*limpet.Class{namedClass()},
	}.OnDisk(disk, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	ns, err := limpet.NamespaceOf[*named](n, "NAMED")
	if err != nil {
		t.Fatal(err)
	}
	return n, ns
}

// An object knows the name it was addressed by, and no name if only its digits
// were used.
func TestObjectKnowsItsName(t *testing.T) {
	disk := sim.NewDisk()
	n, ns := openNamed(t, disk)
	who := func(s *limpet.Stub[*named]) string {
		t.Helper()
		v, err := limpet.Call(t.Context(), s, (*named).WhoAmI)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, name := range []string{"user-123", "", "漢/字"} {
		// SPEC A13
		if got := who(ns.Named(name)); got != "name "+name {
			t.Errorf("%q sees %q", name, got)
		}
	}
	if got := who(ns.Get(ns.NewUniqueID())); got != "no name" {
		t.Errorf("a unique object sees %q", got)
	}
	byName, err := ns.IDFromName("by digits")
	if err != nil {
		t.Fatal(err)
	}
	digits, err := ns.IDFromString(byName.String())
	if err != nil {
		t.Fatal(err)
	}
	// SPEC A9
	if got := who(ns.Get(digits)); got != "no name" {
		t.Errorf("an object reached by its digits alone sees %q", got)
	}
	// SPEC A11: also while it is in memory
	for range 2 {
		if got := who(ns.Get(byName)); got != "name by digits" {
			t.Errorf("reached by name it sees %q", got)
		}
		if !n.Evict(digits) {
			t.Fatal("not in memory")
		}
	}
}

// What an object's storage refuses is an error inside the object; returned from
// a method it reaches the caller as the object's own.
func TestStorageRefusals(t *testing.T) {
	// SPEC C39
	_, ns := openNamed(t, sim.NewDisk())
	stub := ns.Named("a")
	for what, want := range map[string]struct {
		code        limpet.Code
		class, text string
	}{
		"undefined": {limpet.CodeInvalidArgument, "TypeError", "put() called with undefined value."},
		"function":  {limpet.CodeInvalidArgument, "", `put "k"`},
		"key":       {limpet.CodeInvalidArgument, "TypeError", "not valid UTF-8"},
		"list":      {limpet.CodeInvalidArgument, "TypeError", "Limit of -1: must not be negative"},
		"large":     {limpet.CodeTooLarge, "", "limit"},
		"larger":    {limpet.CodeTooLarge, "", `put "k": the value takes more than the limit of 33554432 bytes: at least 3355443`},
	} {
		err := limpet.Do1(t.Context(), stub, (*named).PutWrong, what)
		e, ok := errors.AsType[*limpet.Error](err)
		if !ok {
			t.Fatalf("%s: %v", what, err)
		}
		if e.Code != want.code || e.Name != want.class || !strings.Contains(e.Message, want.text) {
			t.Errorf("%s: got %s %s: %s, want %+v", what, e.Code, e.Name, e.Message, want)
		}
		if !e.Remote || e.Delivery != limpet.DeliveryReceived || e.ObjectID != stub.ID().String() || e.Reset || e.Attempts != 1 {
			t.Errorf("%s: %+v", what, e)
		}
	}
	if err := limpet.Do1(t.Context(), stub, (*named).Keep, 1); err != nil {
		t.Errorf("after the refusals: %v", err)
	}
}

// TestExistingOnDisk: only an object with data survives a restart.
func TestExistingOnDisk(t *testing.T) {
	disk := sim.NewDisk()
	n, ns := openNamed(t, disk)
	kept, visited := ns.Named("kept"), ns.Named("visited")
	if err := limpet.Do1(t.Context(), kept, (*named).Keep, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := limpet.Call(t.Context(), visited, (*named).WhoAmI); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	_, ns = openNamed(t, disk)
	if _, err := limpet.Call(t.Context(), ns.Existing(kept.ID()), (*named).WhoAmI); err != nil {
		t.Errorf("an object with data: %v", err)
	}
	for range 2 { // the first one creates nothing
		_, err := limpet.Call(t.Context(), ns.Existing(visited.ID()), (*named).WhoAmI)
		e, ok := errors.AsType[*limpet.Error](err)
		if !ok || e.Code != limpet.CodeNoSuchObject || e.Delivery != limpet.DeliveryNone || e.Attempts != 1 ||
			!strings.Contains(e.Message, "the object Named/visited does not exist") {
			t.Errorf("an object without data: %+v", err)
		}
	}
}

// TestExitWhenLogFails runs itself as a process whose disk fails: it must end
// with ExitLogFailed, and must not answer the call.
func TestExitWhenLogFails(t *testing.T) {
	const child = "LIMPET_TEST_LOG_FAILS"
	if os.Getenv(child) != "" {
		disk := sim.NewDisk()
		_, ns := openNamed(t, disk)
		if err := limpet.Do1(t.Context(), ns.Named("a"), (*named).Keep, 1); err != nil {
			t.Fatal(err)
		}
		disk.CutPower(0, 1)
		err := limpet.Do1(t.Context(), ns.Named("a"), (*named).Keep, 2)
		if err == nil {
			_, _ = io.WriteString(os.Stdout, "answered\n")
		}
		select {} // until the node ends the process
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestExitWhenLogFails$", "-test.timeout=30s")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != node.ExitLogFailed {
		t.Errorf("ended with %v, want exit code %d:\n%s", err, node.ExitLogFailed, out)
	}
	if strings.Contains(string(out), "answered") {
		t.Errorf("a write that is not durable was answered:\n%s", out)
	}
}
