package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// TestMain makes this test's binary the command limpet when a script calls it.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"limpet": main})
}

// box is the object that the scripts call.
type box struct{ st *limpet.State }

var boxClass = limpet.NewClass("Box", func(st *limpet.State) (*box, error) { return &box{st}, nil })

func (b *box) Put(_ context.Context, v any) error { return b.st.KV().Put("v", v) }
func (b *box) Get(context.Context) (any, error) {
	var v any
	_, err := b.st.KV().Get("v", &v)
	return v, err
}
func (b *box) Add(_ context.Context, n, m int) (int, error) { return n + m, nil }
func (b *box) Name(context.Context) (string, error) {
	name, _ := b.st.ID().Name()
	return name, nil
}
func (b *box) ID(context.Context) (string, error) { return b.st.ID().String(), nil }
func (b *box) Fail(context.Context) error {
	return &limpet.Error{Code: "SoldOut", Name: "CartError", Message: "nothing is left", Overloaded: true, Fields: map[string]any{"left": 0}}
}
func (b *box) Rude(context.Context) error {
	return &limpet.Error{Message: "\x1b]0;x\aé\n  delivery: not delivered\u202e"}
}
func (b *box) Wait(ctx context.Context) error {
	return b.st.Await(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
}

// TestScripts runs testdata/script: the command as a process against a node with
// a door on a real socket. $OTHER is an HTTP server that is none of limpet's,
// $NOBODY an address where nobody listens, $CUT one that reads a request and
// hangs up.
func TestScripts(t *testing.T) {
	n := limpettest.Start(t, boxClass)
	door := httptest.NewServer(n.Handler())
	t.Cleanup(door.Close)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/half/"):
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			_, _ = fmt.Fprint(w, `{"result":`)
		case strings.HasPrefix(r.URL.Path, "/json/"):
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadGateway)
			_, _ = fmt.Fprint(w, `{"error":"a proxy's own"}`)
		case strings.HasPrefix(r.URL.Path, "/status/"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"status":"ok"}`)
		case strings.HasPrefix(r.URL.Path, "/null/"):
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `null`)
		case strings.HasPrefix(r.URL.Path, "/moved/"):
			http.Redirect(w, r, door.URL+"/", http.StatusTemporaryRedirect)
		case strings.HasPrefix(r.URL.Path, "/prefix/"):
			n.Handler().ServeHTTP(w, strip(r, "/prefix"))
		default:
			_, _ = fmt.Fprint(w, "<html>hello")
		}
	}))
	t.Cleanup(other.Close)
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = nobody.Close()
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = c.Close()
		}
	}))
	t.Cleanup(cut.Close)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("LIMPET_SERVER", door.URL)
			e.Setenv("DOOR", door.URL)
			e.Setenv("OTHER", other.URL)
			e.Setenv("CUT", cut.URL)
			e.Setenv("NOBODY", "http://"+nobody.Addr().String())
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// strip is r with a prefix taken off its path, escaped as it was.
func strip(r *http.Request, prefix string) *http.Request {
	out := r.Clone(r.Context())
	out.URL.Path = strings.TrimPrefix(out.URL.Path, prefix)
	out.URL.RawPath = strings.TrimPrefix(out.URL.RawPath, prefix)
	return out
}

// exits runs a command and checks its exit code: exits 3 limpet …
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code command [args…]")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		var ok bool
		if got, ok = strings.CutPrefix(err.Error(), "exit status "); !ok {
			ts.Fatalf("%v", err)
		}
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

func TestCallBody(t *testing.T) {
	if _, err := callBody([]string{"a", "\xff"}); err == nil || !strings.Contains(err.Error(), `argument 2: "\xff" is not valid UTF-8`) {
		t.Errorf("a word that is not UTF-8 would be sent as another one: %v", err)
	}
}
