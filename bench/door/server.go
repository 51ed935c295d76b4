package main

import (
	"context"
	_ "embed" // the worker of workerd
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/limpet-dev/limpet/bench/measure"
)

//go:embed worker.js
var workerJS []byte

//go:embed worker.capnp
var workerConfig []byte

// server is a process under load.
type server struct {
	addr string
	pid  int
	stop func() error
}

// startLimpet runs this program again as the server.
func startLimpet(ctx context.Context, dir string) (*server, error) {
	s, err := measure.StartServer(ctx, serveCommand, dir)
	if err != nil {
		return nil, err
	}
	return &server{addr: s.Addr, pid: s.PID, stop: s.Stop}, nil
}

// startWorkerd runs workerd on an empty folder.
func startWorkerd(ctx context.Context, path, dir string) (*server, error) {
	store := filepath.Join(dir, "store")
	if err := os.Mkdir(store, 0o700); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "worker.capnp")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "worker.js"), workerJS, 0o600), os.WriteFile(config, workerConfig, 0o600)); err != nil {
		return nil, err
	}
	// A free port of now: workerd does not say which one it took.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	// workerd holds three files open for each object. Set by hand the limit is
	// that of the child too.
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return nil, err
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("raise the limit of open files: %w", err)
	}
	cmd := exec.CommandContext(ctx, path, "serve", "--experimental", config, "config", "-s", "http="+addr, "-d", "store="+store)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{addr: addr, pid: cmd.Process.Pid, stop: func() error {
		if err := cmd.Process.Kill(); err != nil {
			return err
		}
		_ = cmd.Wait() // says that it was killed
		return nil
	}}
	deadline := time.Now().Add(answerTimeout)
	for {
		c, err := dial(addr)
		if err == nil {
			_ = c.Close()
			return s, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("workerd does not answer: %w", err), s.stop())
		}
		time.Sleep(5 * time.Millisecond)
	}
}
