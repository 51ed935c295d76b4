package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// This file is how the processes of a run talk: the parent writes a JSON line to
// a child's stdin and reads one from its stdout; a child whose stdin ends ends
// too, so that none outlives a parent that was killed.

const (
	roleEnv   = "LIMPET_PROMISE_ROLE"
	configEnv = "LIMPET_PROMISE_CONFIG"
)

// child is a process as its parent sees it.
type child struct {
	name  string
	cmd   *exec.Cmd
	log   string // file of its stderr
	ended chan struct{}
	err   error // of Wait; set before ended is closed

	mu  sync.Mutex // one question at a time
	in  io.WriteCloser
	out *json.Decoder
}

// spawn starts this program in another role and waits for its first line.
func spawn(role string, config, ready any, log string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	stderr, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer stderr.Close() // the child has its own
	c := &child{name: role, cmd: exec.Command(self), log: log, ended: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+role, configEnv+"="+string(text))
	c.cmd.Stderr = stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is the parent's
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe() // not StdoutPipe, whose reader Wait closes
	if err != nil {
		return nil, err
	}
	c.cmd.Stdout = w
	c.out = json.NewDecoder(bufio.NewReader(r))
	err = c.cmd.Start()
	_ = w.Close() // the child has its own
	if err != nil {
		_ = r.Close() // nothing was read
		return nil, err
	}
	go func() { // ends with the process
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	if err := c.out.Decode(ready); err != nil {
		c.kill()
		return nil, fmt.Errorf("the %s did not start: %w, %w: %s", role, err, c.err, tail(log))
	}
	return c, nil
}

// ask sends a command and reads the answer.
func (c *child) ask(command, answer any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	text, err := json.Marshal(command)
	if err != nil {
		return err
	}
	if _, err = c.in.Write(append(text, '\n')); err == nil {
		err = c.out.Decode(answer)
	}
	if err != nil {
		return fmt.Errorf("the %s does not answer: %w: %s", c.name, err, tail(c.log))
	}
	return nil
}

// kill is kill -9; it returns when the process is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // if it is gone already, so much the better
	<-c.ended
}

// stop asks a process to end and waits until it has.
func (c *child) stop(within time.Duration) error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	limit := time.NewTimer(within)
	defer limit.Stop()
	select {
	case <-c.ended:
	case <-limit.C:
		_ = c.cmd.Process.Signal(syscall.SIGQUIT) // its log then says where it hangs
		select {
		case <-c.ended:
		case <-time.After(5 * time.Second):
		}
		c.kill()
		return fmt.Errorf("the %s did not end within %v of SIGTERM: %s", c.name, within, tail(c.log))
	}
	if c.err != nil {
		return fmt.Errorf("the %s ended with %w: %s", c.name, c.err, tail(c.log))
	}
	return nil
}

// tail is the end of a log.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const most = 2000
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return fmt.Sprintf("%s: …%s", filepath.Base(path), b)
}

// childMain is the main function of a child.
func childMain(role string) int {
	var err error
	switch role {
	case "node":
		err = nodeMain()
	case "proxy":
		err = proxyMain()
	case "witness":
		err = witnessMain()
	default:
		err = fmt.Errorf("there is no role %q", role)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "promise %s: %v\n", role, err)
		return 1
	}
	return 0
}

// childConfig reads what the parent gave.
func childConfig(into any) error {
	return json.Unmarshal([]byte(os.Getenv(configEnv)), into)
}

// answers reads commands until the parent is gone, and ends the process then.
func answers[C any](each func(C) any) {
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var c C
		if err := in.Decode(&c); err != nil {
			os.Exit(3) // nobody is left to report to
		}
		if err := out.Encode(each(c)); err != nil {
			os.Exit(3)
		}
	}
}

// say writes the first line.
func say(ready any) error { return json.NewEncoder(os.Stdout).Encode(ready) }
