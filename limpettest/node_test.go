package limpettest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
	"github.com/limpet-dev/limpet/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func counters(t *testing.T, n *limpettest.Node) limpet.Namespace[*counter] {
	t.Helper()
	ns, err := limpet.NamespaceOf[*counter](n, "COUNTER")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// TestCrashKeepsWhatWasAnswered goes through every way down and up again with
// the same stub.
func TestCrashKeepsWhatWasAnswered(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := limpettest.Start(t, newCounter())
	c := counters(t, n).Named("a")
	for want := 1; want <= 10; want++ {
		got, err := limpet.Call1(ctx, c, (*counter).Add, 1)
		if err != nil || got != want {
			t.Fatalf("add: got %d, %v, want %d", got, err, want)
		}
		switch want % 4 {
		case 1:
			n.Crash(limpettest.KeepUnsynced(want*10, uint64(want)))
			_, err := limpet.Call1(ctx, c, (*counter).Add, 1)
			if !errors.Is(err, limpet.CodeDisconnected) || limpet.DeliveryOf(err) != limpet.DeliveryNone {
				t.Fatalf("a call to a node that is down: %v", err)
			}
			n.Restart()
		case 2:
			n.Restart()
		case 3:
			if !n.Evict(c.ID()) {
				t.Fatal("the object was not in memory")
			}
			if n.Evict(c.ID()) {
				t.Fatal("the object was in memory after Evict")
			}
		}
	}
}

// TestCrashUnderLoad cuts the power again and again while eight callers add:
// what was answered is there, and nothing is there that was not sent.
func TestCrashUnderLoad(t *testing.T) {
	t.Parallel()
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	n := limpettest.Start(t, newCounter())
	c := counters(t, n).Named("a")
	acked, uncertain := 0, 0
	for round := range rounds {
		outcomes := make(chan error, 8)
		ctx, cancel := context.WithCancel(t.Context())
		for range 8 {
			go func() {
				for {
					_, err := limpet.Call1(ctx, c, (*counter).Add, 1)
					outcomes <- err
					if err != nil {
						return
					}
				}
			}()
		}
		down := 0
		for i := 0; down < 8; i++ {
			if i == 50+round*10 {
				go n.Crash(limpettest.KeepUnsynced(round*5, uint64(round)))
			}
			switch err := <-outcomes; {
			case err == nil:
				acked++
			case limpet.DeliveryOf(err) != limpet.DeliveryNone:
				uncertain++
				down++
			default:
				down++
			}
		}
		cancel()
		n.Restart()
		got, err := limpet.Call1(t.Context(), c, (*counter).Add, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got < acked || got > acked+uncertain {
			t.Fatalf("round %d: the counter is %d, %d were answered and %d are uncertain", round, got, acked, uncertain)
		}
		acked, uncertain = got, 0
	}
}

func TestHandler(t *testing.T) {
	t.Parallel()
	n := limpettest.StartConfig(t, node.Config{
		Classes: []*limpet.Class{newCounter()}, Namespaces: map[string]node.Namespace{"C": {Class: "Counter"}},
	})
	srv := httptest.NewServer(n.Handler())
	defer srv.Close()
	post := func() (int, string) {
		resp, err := http.Post(srv.URL+"/v1/objects/C/a/call/add", "application/json", strings.NewReader("[1]"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	if status, body := post(); status != 200 || !strings.Contains(body, `"result":1`) {
		t.Errorf("got %d %s", status, body)
	}
	n.Crash()
	if status, _ := post(); status != http.StatusServiceUnavailable {
		t.Errorf("while the node is down: got %d", status)
	}
	n.Restart()
	if status, body := post(); status != 200 || !strings.Contains(body, `"result":2`) {
		t.Errorf("after the restart: got %d %s", status, body)
	}
}

// TestVirtualTime runs a whole node in a bubble: eviction after ten idle
// seconds takes no time.
func TestVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := limpettest.Start(t, newCounter())
		c := counters(t, n).Named("a")
		if _, err := limpet.Call1(t.Context(), c, (*counter).Add, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(12 * time.Second)
		// SPEC H60: it has left the memory by itself, and nothing is lost.
		if n.Evict(c.ID()) {
			t.Error("the object was still in memory after 12 s")
		}
		if got, err := limpet.Call1(t.Context(), c, (*counter).Add, 1); err != nil || got != 2 {
			t.Errorf("got %d, %v, want 2", got, err)
		}
	})
}
