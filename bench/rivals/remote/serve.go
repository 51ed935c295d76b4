package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/pprof"
	"time"

	"google.golang.org/grpc"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/bench/rivals/remote/adder"
	"github.com/limpet-dev/limpet/bench/rivals/remote/adder/adderconnect"
	"github.com/limpet-dev/limpet/node"
)

// serveCommand is the first argument that makes this program a server.
const serveCommand = "serve"

func serveMain(args []string) {
	if len(args) != 3 {
		fmt.Fprintln(os.Stderr, "remote serve: needs a side, a folder and the file for a profile, or \"\"")
		os.Exit(2)
	}
	if err := profiled(args[2], func() error { return serve(args[0], args[1]) }); err != nil {
		fmt.Fprintln(os.Stderr, "remote serve:", err)
		os.Exit(1)
	}
}

func profiled(path string, do func() error) error {
	if path == "" {
		return do()
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	err = do()
	pprof.StopCPUProfile()
	return errors.Join(err, f.Close())
}

// serve prints its address and serves until its standard input ends.
func serve(side, dir string) error {
	switch side {
	case sideLimpet, sideOne:
		return serveLimpet(dir)
	case sideGRPC:
		return serveGRPC()
	case sideConnect:
		return serveConnect()
	}
	return fmt.Errorf("there is no side %q", side)
}

// announced says where a server is, and returns when it shall end.
func announced(addr net.Addr) {
	fmt.Println(addr)
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
}

// counter is limpet's object.
type counter struct{ quantity int }

var counterClass = limpet.NewClass("Counter", func(*limpet.State) (*counter, error) { return &counter{}, nil })

// AddOne is not marked.
func (c *counter) AddOne(_ context.Context, _ string, n int) (int, error) {
	c.quantity += n
	return c.quantity, nil
}

func serveLimpet(dir string) error {
	n, err := node.Open(context.Background(), node.Config{
		Dir: dir, Classes: []*limpet.Class{counterClass}, IdleTimeout: time.Hour, Wire: node.Wire{Addr: "127.0.0.1:0"},
	})
	if err != nil {
		return err
	}
	announced(n.WireAddr())
	return n.Close()
}

// rival is the same method for grpc-go and connect-go. It keeps no sum: that
// would be a lock more than limpet's objects need.
type rival struct {
	adder.UnimplementedAdderServer
}

func (rival) AddOne(_ context.Context, r *adder.AddOneRequest) (*adder.AddOneResponse, error) {
	return &adder.AddOneResponse{Quantity: r.GetN() + int64(len(r.GetItem()))}, nil
}

func serveGRPC() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	adder.RegisterAdderServer(s, rival{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }() // ends with Stop
	announced(ln.Addr())
	s.Stop()
	return <-served
}

func serveConnect() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(adderconnect.NewAdderHandler(rival{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, Protocols: &http.Protocols{}}
	s.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }() // ends with Close
	announced(ln.Addr())
	err = s.Close()
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}
