package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	readyWithin = 5 * time.Minute  // from start until ADDR answers: go run compiles first
	runWithin   = 10 * time.Minute // one command of a run block
	stopWithin  = time.Minute      // from SIGTERM until the end: a drain takes up to 30 s
)

// player runs the blocks of one file.
type player struct {
	file string
	dir  string // where commands run
	bin  string // where go install puts programs, first in PATH
	out  io.Writer

	server *exec.Cmd // nil when none runs
	addr   string
	ended  chan struct{} // closed when server has ended
	how    error         // what Wait of server returned, once ended is closed
}

func (p *player) say(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }

// bash returns a command in a process group of its own, so that it can be ended
// with all that it started.
func (p *player) bash(ctx context.Context, text string) *exec.Cmd {
	c := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", text)
	c.Dir = p.dir
	c.Env = append(os.Environ(), "GOBIN="+p.bin, "PATH="+p.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	return c
}

// play runs the blocks. It fails when the file has no serve or no run block:
// then it shows nothing that could be checked.
func (p *player) play(ctx context.Context, blocks []block) (err error) {
	defer func() {
		if p.server != nil { // only after an error
			_ = p.server.Cancel()
			<-p.ended
		}
	}()
	count := map[string]int{}
	for _, b := range blocks {
		count[b.kind]++
		switch b.kind {
		case "serve":
			if err = p.stop(); err == nil {
				err = p.start(ctx, b)
			}
		case "kill":
			err = p.kill()
		case "run":
			for _, c := range b.commands {
				if err == nil {
					err = p.command(ctx, c)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", p.file, b.line, err)
		}
	}
	if err := p.stop(); err != nil {
		return fmt.Errorf("%s: %w", p.file, err)
	}
	if count["serve"] == 0 || count["run"] == 0 {
		return fmt.Errorf("%s has %d blocks marked serve and %d marked run; it needs one of each", p.file, count["serve"], count["run"])
	}
	p.say("%s: %d served, %d blocks run: all as it says", p.file, count["serve"], count["run"])
	return nil
}

// test runs the test command.
func (p *player) test(ctx context.Context, blocks []block) error {
	var found []block
	for _, b := range blocks {
		if b.kind == "test-command" {
			found = append(found, b)
		}
	}
	if len(found) != 1 {
		return fmt.Errorf("%s has %d blocks marked test-command; it needs one", p.file, len(found))
	}
	text := found[0].commands[0].text
	p.say("$ %s", text)
	c := p.bash(ctx, text)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s:%d: %s: %w", p.file, found[0].line, text, err)
	}
	return nil
}

// command runs one command to its end and compares.
func (p *player) command(ctx context.Context, cmd command) error {
	ctx, cancel := context.WithTimeoutCause(ctx, runWithin, fmt.Errorf("not done within %v", runWithin))
	defer cancel()
	p.say("$ %s", cmd.text)
	c := p.bash(ctx, cmd.text)
	var out, diag bytes.Buffer
	c.Stdout, c.Stderr = &out, &diag
	if cmd.status != 0 {
		c.Stderr = &out
	}
	err := c.Run()
	p.say("%s", strings.TrimRight(out.String(), "\n"))
	if ctx.Err() != nil {
		return fmt.Errorf("line %d: %w", cmd.line, context.Cause(ctx))
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		return fmt.Errorf("line %d: %w", cmd.line, err)
	} else if status := statusOf(exit); status != cmd.status {
		return fmt.Errorf("line %d: exit status %d, want %d\n%s", cmd.line, status, cmd.status, diag.String())
	}
	if cmd.want != nil && !matches(cmd.want, out.String()) {
		return fmt.Errorf("line %d: it printed\n%s\nbut the text says\n%s", cmd.line, out.String(), strings.Join(cmd.want, "\n"))
	}
	return nil
}

// statusOf returns the exit status as a shell tells it; 0 for nil.
func statusOf(e *exec.ExitError) int {
	if e == nil {
		return 0
	}
	if w, ok := e.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return e.ExitCode()
}

// listening tells whether something takes connections at addr.
func listening(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// start runs the command of a serve block until its address answers.
func (p *player) start(ctx context.Context, b block) error {
	if listening(b.addr) {
		return fmt.Errorf("something else listens on %s", b.addr)
	}
	text := b.commands[0].text
	p.say("$ %s", text)
	c := p.bash(ctx, text)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		return err
	}
	p.server, p.addr, p.ended = c, b.addr, make(chan struct{})
	go func() { // ends with the process; stop, kill and play wait for it
		p.how = c.Wait()
		close(p.ended)
	}()
	for began := time.Now(); time.Since(began) < readyWithin; {
		select {
		case <-p.ended:
			p.server = nil
			return fmt.Errorf("%s ended before %s took connections: %w", text, b.addr, orZero(p.how))
		case <-time.After(100 * time.Millisecond):
		}
		if listening(b.addr) {
			return nil
		}
	}
	return fmt.Errorf("%s: no connection on %s within %v", text, b.addr, readyWithin)
}

// orZero makes an error of a good end, too.
func orZero(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// stop ends the server with SIGTERM and wants exit status 0.
func (p *player) stop() error {
	if p.server == nil {
		return nil
	}
	p.say("(SIGTERM to the server)")
	err, timely := p.end(syscall.SIGTERM)
	if !timely {
		return fmt.Errorf("the server still ran %v after SIGTERM", stopWithin)
	}
	if err != nil {
		return fmt.Errorf("after SIGTERM the server ended with: %w; want exit status 0", err)
	}
	if listening(p.addr) {
		return fmt.Errorf("the server ended, but something still listens on %s", p.addr)
	}
	return nil
}

// kill ends the server with SIGKILL.
func (p *player) kill() error {
	if p.server == nil {
		return errors.New("no server runs that could be killed")
	}
	p.say("(SIGKILL to the server)")
	if _, timely := p.end(syscall.SIGKILL); !timely {
		return errors.New("the server survived SIGKILL")
	}
	return nil
}

// end sends sig to the server and waits. timely is false when it had to be ended
// by force.
func (p *player) end(sig syscall.Signal) (err error, timely bool) {
	for _, pid := range leaves(p.server.Process.Pid) {
		_ = syscall.Kill(pid, sig) // one that has ended is no error: its parent tells how
	}
	defer func() { p.server = nil }()
	select {
	case <-p.ended:
		return p.how, true
	case <-time.After(stopWithin):
		_ = p.server.Cancel()
		<-p.ended
		return nil, false
	}
}
