package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/node"
)

// bench is the object.
type bench struct{ st *limpet.State }

var benchClass = limpet.NewClass("Bench", func(st *limpet.State) (*bench, error) { return &bench{st}, nil },
	limpet.Retryable((*bench).Write))

// Noop does nothing.
func (b *bench) Noop(context.Context) (int, error) { return 1, nil }

// Write stores a value.
func (b *bench) Write(_ context.Context, key, value string) (int, error) {
	return 1, b.st.KV().Put(key, value)
}

// serve is the limpet side, a process of its own: limpet's door, and beside it a
// handler that calls objects through typed stubs, as a Go service would. It
// prints its address and serves until its standard input ends.
func serve(dir string, in io.Reader, out io.Writer) (err error) {
	n, err := node.Open(context.Background(), node.Config{Dir: dir, Classes: []*limpet.Class{benchClass}, IdleTimeout: time.Hour})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	objects, err := limpet.NamespaceOf[*bench](n, "BENCH")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", n.Handler())
	mux.Handle("GET /rpc", answer(func(r *http.Request) (int, error) {
		return limpet.Call(r.Context(), objects.Named(r.FormValue("o")), (*bench).Noop)
	}))
	mux.Handle("GET /put", answer(func(r *http.Request) (int, error) {
		return limpet.Call2(r.Context(), objects.Named(r.FormValue("o")), (*bench).Write, "k", randomValue())
	}))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: answerTimeout}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // ends with Close below
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return errors.Join(err, server.Close(), <-served)
	}
	_, _ = io.Copy(io.Discard, in)
	err = server.Close()
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

func answer(call func(*http.Request) (int, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := call(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, v)
	})
}

// randomValue is 100 bytes of text that change each time.
func randomValue() string {
	var b [100]byte
	fill(b[:], rand.Uint64) //nolint:forbidigo // the servers' values need no replay
	return string(b[:])
}

func fill(b []byte, next func() uint64) {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
	for i := 0; i < len(b); i += 10 {
		n := next()
		for j := range min(10, len(b)-i) {
			b[i+j] = digits[n>>(6*j)&63]
		}
	}
}

// serveCommand is the first argument that makes this program the server.
const serveCommand = "serve"

func serveMain(args []string) {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "door serve: needs a folder")
		os.Exit(2)
	}
	if err := serve(args[0], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "door serve:", err)
		os.Exit(1)
	}
}
