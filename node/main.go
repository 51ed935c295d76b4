package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// Exit codes of Main besides ExitLogFailed.
const (
	ExitFailed = 1
	ExitUsage  = 2
)

// Main is the main function of a server: it reads the flags that every server
// of limpet has, serves until a signal, and returns the exit code.
//
//	--listen ADDR   where the HTTP door listens (DefaultListen)
//	--dir DIR       the data directory (Config.Dir, or DefaultDir)
//	--wire ADDR     where other processes connect (Config.Wire; default: nowhere)
//	--wire-cert FILE, --wire-key FILE, --wire-ca FILE   mutual TLS for it
//	--wire-plaintext   allow an address of other machines without TLS
//
// SIGTERM or SIGINT drains (see Serve) and the code is 0; a second one ends the
// process at once with 128 and its number. Another failure is told on stderr and
// the code is ExitFailed, or ExitUsage for wrong flags; a failed commit log ends
// the process with ExitLogFailed. Where the door listens is told on stdout, then
// ready, if not nil, tells what else there is to say; url is the door's.
func Main(args []string, cfg Config, ready func(stdout io.Writer, url string)) int {
	flags := flag.NewFlagSet(filepath.Base(os.Args[0]), flag.ContinueOnError)
	listen := flags.String("listen", DefaultListen, "`address` of the HTTP door")
	if cfg.Dir == "" {
		cfg.Dir = DefaultDir
	}
	flags.StringVar(&cfg.Dir, "dir", cfg.Dir, "data `directory`")
	flags.StringVar(&cfg.Wire.Addr, "wire", cfg.Wire.Addr, "`address` where other processes connect")
	flags.StringVar(&cfg.Wire.CertFile, "wire-cert", cfg.Wire.CertFile, "certificate `file` (PEM) for --wire")
	flags.StringVar(&cfg.Wire.KeyFile, "wire-key", cfg.Wire.KeyFile, "key `file` (PEM) for --wire")
	flags.StringVar(&cfg.Wire.CAFile, "wire-ca", cfg.Wire.CAFile, "`file` (PEM) with the CA of all who may connect to --wire")
	flags.BoolVar(&cfg.Wire.Plaintext, "wire-plaintext", cfg.Wire.Plaintext, "allow --wire on other than loopback addresses without TLS")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return ExitUsage // flags has told it
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "%s: unexpected argument %q\n", flags.Name(), flags.Arg(0))
		flags.Usage()
		return ExitUsage
	}
	ctx, stop := untilSignal(os.Exit)
	defer stop()
	err := Serve(ctx, cfg, *listen, func(n *Node, addr net.Addr) {
		url := "http://" + addr.String()
		fmt.Fprintf(os.Stdout, "listening on %s, data in %s\n", url, n.Dir())
		if a := n.WireAddr(); a != nil {
			fmt.Fprintf(os.Stdout, "other processes connect to %s\n", a)
		}
		if ready != nil {
			ready(os.Stdout, url)
		}
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", flags.Name(), err)
		return ExitFailed
	}
	return 0
}

// untilSignal returns a context that the first SIGINT or SIGTERM ends. The
// second calls exit at once. stop undoes it and waits for its goroutine.
func untilSignal(exit func(code int)) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for first := true; ; first = false {
			select {
			case s := <-signals:
				if first {
					cancel(fmt.Errorf("signal: %v", s))
					continue
				}
				code := ExitFailed
				if n, ok := s.(syscall.Signal); ok {
					code = 128 + int(n)
				}
				exit(code)
				return
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		<-ended
		cancel(nil)
	}
}
