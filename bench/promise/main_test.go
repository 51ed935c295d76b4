package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet/internal/mutation"
)

// TestMain is a child of a run when the environment says so, else the tests.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(childMain(role))
	}
	os.Exit(m.Run())
}

// TestProve runs the whole command for a moment: too short to prove anything, so
// that it must say so, and long enough to show that it works.
func TestProve(t *testing.T) {
	var out strings.Builder
	err := prove(t.Context(), []string{"-seconds", "3", "-round", "2s", "-callers", "100", "-clients", "8", "-dir", t.TempDir()}, &out)
	t.Log(out.String())
	if !errors.Is(err, errNothing) {
		t.Fatalf("a run of 3 s gives %v, want that it proved nothing", err)
	}
	for _, want := range []string{"| write, call, write ", "| kill -9 ", "| over a restart of the node ", "0 violations"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q", want)
		}
	}
}

// TestCalls shows that a run ends with its calls.
func TestCalls(t *testing.T) {
	var out strings.Builder
	err := prove(t.Context(), []string{"-calls", "500", "-callers", "50", "-clients", "4", "-objects", "20", "-dir", t.TempDir()}, &out)
	if !errors.Is(err, errNothing) || !strings.Contains(out.String(), ", 0 violations") {
		t.Errorf("a run of 500 calls gives %v:\n%s", err, out.String())
	}
}

// TestMutations shows that the judge is not blind: each rule of the promise that is
// left out is found out within a minute.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("each mutation takes some seconds")
	}
	for _, name := range mutation.Names() {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			begun := time.Now()
			err := prove(t.Context(), []string{"-seconds", "60", "-round", "5s", "-every", "40", "-mutate", name, "-dir", t.TempDir()}, &out)
			if !errors.Is(err, errBroken) {
				t.Fatalf("after %v it gives %v, want violations:\n%s", time.Since(begun), err, out.String())
			}
			_, told, _ := strings.Cut(out.String(), "VIOLATION")
			told, _, _ = strings.Cut(told, "\n")
			t.Logf("found after %v: %.300s", time.Since(begun).Round(time.Second), told)
		})
	}
}

// TestOrphans shows that a child ends when its parent has gone, however that went.
func TestOrphans(t *testing.T) {
	dir := t.TempDir()
	var where witnessReady
	w, err := spawn("witness", witnessConfig{dir + "/witness"}, &where, dir+"/witness.log")
	if err != nil {
		t.Fatal(err)
	}
	defer w.kill()
	var at proxyReady
	p, err := spawn("proxy", proxyConfig{Seed: 1, Every: 10}, &at, dir+"/proxy.log")
	if err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	var ready nodeReady
	n, err := spawn("node", nodeConfig{Dir: dir + "/data", Life: 1, Witness: where}, &ready, dir+"/node.log")
	if err != nil {
		t.Fatal(err)
	}
	defer n.kill()
	for _, c := range []*child{n, p, w} {
		if err := c.in.Close(); err != nil { // what the system does when the parent dies
			t.Fatal(err)
		}
		select {
		case <-c.ended:
		case <-time.After(20 * time.Second):
			t.Errorf("the %s goes on", c.name)
		}
	}
	if _, err := spawn("nobody", nil, &ready, dir+"/nobody.log"); err == nil || !strings.Contains(err.Error(), `no role "nobody"`) {
		t.Errorf("an unknown role gives %v", err)
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-seconds", "-1"}, {"-calls", "-1"}, {"-clients", "0"}, {"-callers", "0"}, {"-objects", "1"}, {"-every", "0"},
		{"-round", "0s"}, {"-mutate", "nonsense"}, {"more"},
	} {
		if _, err := parse(args, new(strings.Builder)); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
	o, err := parse(nil, new(strings.Builder))
	if err != nil || o.seconds != 60 || o.seed == 0 || o.broken != (mutation.Set{}) {
		t.Errorf("without flags: %+v, %v", o, err)
	}
}

// TestNothing shows what a run must have met.
func TestNothing(t *testing.T) {
	good := snapshot{histories: 2, unknown: 1}
	for f := range good.tally.Struck {
		good.tally.Struck[f] = leastStrikes
	}
	good.tally.Retries = retries{Sent: 4, Accepted: 2, Refused: 2, Answered: 1}
	good.tally.OverRestart = retries{Sent: 2, Accepted: 1, Refused: 1, Answered: 1}
	if why := good.nothing(); len(why) > 0 {
		t.Errorf("a good run proves nothing: %v", why)
	}
	for what, change := range map[string]func(*snapshot){
		"kill -9 struck 99 calls; it must strike 100":   func(s *snapshot) { s.tally.Struck[kill] = 99 },
		"reply lost struck 0 calls; it must strike 100": func(s *snapshot) { s.tally.Struck[replyLost] = 0 },
		"no retry was accepted":                         func(s *snapshot) { s.tally.Retries.Accepted = 0 },
		"no retry was refused":                          func(s *snapshot) { s.tally.Retries.Refused = 0 },
		"no retry recovered its call over a restart":    func(s *snapshot) { s.tally.OverRestart.Answered = 0 },
		"no retry was refused after a restart":          func(s *snapshot) { s.tally.OverRestart.Refused = 0 },
		"no history was decided on":                     func(s *snapshot) { s.unknown = 2 },
	} {
		s := good
		change(&s)
		if why := s.nothing(); len(why) != 1 || why[0] != what {
			t.Errorf("%q: the run says %q", what, why)
		}
	}
}
