package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var seedFlag = flag.Uint64("kill.seed", 0, "seed of TestKill; 0 takes a new one")

const (
	killClients  = 32
	killRounds   = 50
	killCounters = 6 // fewer than clients, so that they meet
)

// TestKill writes from 32 clients over HTTP while the server is killed with
// SIGKILL at random moments, in the middle of its start too, and started again.
// After each start every acknowledged write is there, no acknowledged addOne is
// missing, and nothing is there that was not sent.
func TestKill(t *testing.T) {
	rounds := killRounds
	if testing.Short() {
		rounds = 10
	}
	if scale, err := strconv.Atoi(os.Getenv("LIMPET_TEST_SCALE")); err == nil {
		rounds *= max(scale, 1)
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d (-kill.seed)", seed)
	rng := rand.New(rand.NewPCG(seed, 0))

	s := newServer(t)
	m := newModel()
	for round := range rounds {
		if rng.IntN(4) == 0 { // a start that is killed half-way
			s.start()
			time.Sleep(time.Duration(rng.Int64N(int64(40 * time.Millisecond)))) // the moment is what is random here
			s.kill()
		}
		s.start()
		s.waitReady()
		m.verify(t, s)
		if t.Failed() {
			t.Fatalf("round %d\n%s", round, s.output())
		}
		var clients sync.WaitGroup
		for i := range killClients {
			clientRng := rand.New(rand.NewPCG(seed, uint64(round*killClients+i+1)))
			clients.Go(func() { m.run(t, s, i, clientRng) })
		}
		time.Sleep(10*time.Millisecond + time.Duration(rng.Int64N(int64(250*time.Millisecond))))
		s.kill()
		clients.Wait() // each ends with its first call that gets no answer
		if t.Failed() {
			t.Fatalf("round %d\n%s", round, s.output())
		}
	}
	// One last time through SIGTERM: nothing is uncertain then.
	s.start()
	s.waitReady()
	m.verify(t, s)
	s.terminate()
	s.start()
	s.waitReady()
	m.verify(t, s)
	s.terminate()
	t.Logf("%d rounds: %d calls acknowledged, %d uncertain, %d not delivered", rounds, m.acked, m.uncertain, m.notSent)
	if m.acked < rounds*killClients || m.uncertain == 0 {
		t.Errorf("too little happened: %d acknowledged, %d uncertain", m.acked, m.uncertain)
	}
}

// model is what is known of the carts.
type model struct {
	mu        sync.Mutex // guards everything below
	counters  [killCounters]counter
	registers [killClients]register

	acked, uncertain, notSent int
}

// counter is an item that all clients add one to. Between verifications the
// quantity is at least base+acked and at most base+sent.
type counter struct {
	base  int // what the last verification read
	acked int // addOne calls answered since then
	sent  int // addOne calls that may have run since then
	top   int // the largest answer
	seen  map[int]bool
}

// register is an item that one client sets to ever larger quantities.
type register struct {
	value int         // acknowledged or read
	maybe map[int]int // uncertain quantities sent after value
	next  int
}

func newModel() *model {
	m := &model{}
	for i := range m.counters {
		m.counters[i].seen = map[int]bool{}
	}
	for i := range m.registers {
		m.registers[i].maybe = map[int]int{}
	}
	return m
}

func counterPath(i int) string  { return fmt.Sprintf("counters-%d", i%2) } // two carts, so that items share one too
func registerPath(i int) string { return fmt.Sprintf("cart-of-%d", i) }

// run calls until a call gets no answer.
func (m *model) run(t *testing.T, s *server, client int, rng *rand.Rand) {
	c := s.client()
	defer c.CloseIdleConnections()
	for {
		var ok bool
		if rng.IntN(2) == 0 {
			ok = m.addOne(t, s, c, rng.IntN(killCounters))
		} else {
			ok = m.set(t, s, c, client)
		}
		if !ok {
			return
		}
	}
}

func (m *model) addOne(t *testing.T, s *server, c *http.Client, i int) bool {
	m.mu.Lock()
	floor := m.counters[i].top
	m.mu.Unlock()
	var n int
	out := s.call(c, counterPath(i), "addOne", &n, fmt.Sprint("item-", i))
	m.mu.Lock()
	defer m.mu.Unlock()
	k := &m.counters[i]
	if !m.count(t, out) {
		if out.mayHaveRun() {
			k.sent++
		}
		return false
	}
	k.acked++
	k.sent++
	if k.seen[n] || n <= floor {
		t.Errorf("counter %d: addOne answered %d; answered before it began: up to %d, this one already: %v", i, n, floor, k.seen[n])
	}
	k.seen[n] = true
	k.top = max(k.top, n)
	return true
}

func (m *model) set(t *testing.T, s *server, c *http.Client, i int) bool {
	m.mu.Lock()
	r := &m.registers[i]
	r.next++
	v := r.next
	m.mu.Unlock()
	out := s.call(c, registerPath(i), "setQuantity", nil, "item", v)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.count(t, out) {
		if out.mayHaveRun() {
			r.maybe[v]++
		}
		return false
	}
	r.value = v
	clear(r.maybe)
	return true
}

// count reports whether the call was acknowledged.
func (m *model) count(t *testing.T, o outcome) bool {
	switch {
	case o.err == nil:
		m.acked++
		return true
	case o.delivery == "uncertain":
		m.uncertain++
	case o.delivery == "not delivered":
		m.notSent++
	default:
		t.Errorf("a call failed at the object: %v", o.err)
	}
	return false
}

// verify reads everything and compares. What it read is durable, so that the
// model goes on from there.
func (m *model) verify(t *testing.T, s *server) {
	t.Helper()
	c := s.client()
	defer c.CloseIdleConnections()
	read := func(cart, item string) int {
		t.Helper()
		var n int
		if o := s.call(c, cart, "quantity", &n, item); o.err != nil {
			t.Fatalf("read %s %s: %v\n%s", cart, item, o.err, s.output())
		}
		return n
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.counters {
		k := &m.counters[i]
		got := read(counterPath(i), fmt.Sprint("item-", i))
		if got < k.base+k.acked || got > k.base+k.sent || got < k.top {
			t.Errorf("counter %d: got %d, want %d to %d, at least the largest answer %d", i, got, k.base+k.acked, k.base+k.sent, k.top)
		}
		k.base, k.acked, k.sent, k.top = got, 0, 0, got
		clear(k.seen)
	}
	for i := range m.registers {
		r := &m.registers[i]
		got := read(registerPath(i), "item")
		if got != r.value && r.maybe[got] == 0 {
			t.Errorf("cart of client %d: got %d, want the acknowledged %d or one of the uncertain %v", i, got, r.value, r.maybe)
		}
		r.value = got
		clear(r.maybe)
	}
	if got := read(counterPath(0), "never"); got != 0 {
		t.Errorf("an item that nobody sent: %d", got)
	}
}

// outcome is what a client knows of a call; delivery as DESIGN's door says it.
type outcome struct {
	err      error
	delivery string
}

func (o outcome) mayHaveRun() bool { return o.err != nil && o.delivery != "not delivered" }

// server is the example as a process of its own.
type server struct {
	t      *testing.T
	binary string
	dir    string
	cmd    *exec.Cmd
	ready  chan string   // the URL of the started process, once
	read   chan struct{} // closed when its output has been read to the end

	mu  sync.Mutex
	url string
	log bytes.Buffer // guarded by mu: the output of the last processes
}

func newServer(t *testing.T) *server {
	t.Helper()
	tmp := t.TempDir()
	s := &server{t: t, binary: filepath.Join(tmp, "cart"), dir: filepath.Join(tmp, "data")}
	build := exec.Command("go", "build", "-o", s.binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
	})
	return s
}

// start starts the process on a free port of its own choice.
func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.binary, "--listen", "127.0.0.1:0", "--dir", s.dir)
	r, w, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd.Stdout, s.cmd.Stderr = w, w
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	_ = w.Close() // the process has its own
	s.mu.Lock()
	s.log.Reset()
	s.mu.Unlock()
	s.ready, s.read = make(chan string, 1), make(chan struct{})
	go func(ready chan<- string, read chan<- struct{}) {
		defer close(read)
		defer func() { _ = r.Close() }()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			s.mu.Lock()
			if s.log.Len() < 1<<20 {
				s.log.WriteString(lines.Text() + "\n")
			}
			s.mu.Unlock()
			if rest, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
				url, _, _ := strings.Cut(rest, ",")
				ready <- url
			}
		}
	}(s.ready, s.read)
}

func (s *server) waitReady() {
	s.t.Helper()
	select {
	case url := <-s.ready:
		s.mu.Lock()
		s.url = url
		s.mu.Unlock()
	case <-s.read:
		s.t.Fatalf("the server ended: %v\n%s", s.cmd.Wait(), s.output())
	case <-time.After(time.Minute):
		s.t.Fatalf("the server does not come up\n%s", s.output())
	}
}

func (s *server) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "output of the server:\n" + s.log.String()
}

// waitOutput waits until the process has said something.
func (s *server) waitOutput(text string) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(s.output(), text); {
		if time.Now().After(deadline) {
			s.t.Fatalf("no %q\n%s", text, s.output())
		}
		time.Sleep(time.Millisecond) // another process: there is nothing to wait on
	}
}

// kill is SIGKILL.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.read
	_ = s.cmd.Wait() // "signal: killed"
	s.cmd = nil
}

// terminate is SIGTERM; the server must end well.
func (s *server) terminate() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	<-s.read
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("exit after SIGTERM: %v\n%s", err, s.output())
	}
	s.cmd = nil
}

func (s *server) client() *http.Client {
	return &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
}

// call makes one call; result may be nil.
func (s *server) call(c *http.Client, cart, method string, result any, args ...any) outcome {
	s.mu.Lock()
	url := s.url + "/v1/objects/CART/" + cart + "/call/" + method
	s.mu.Unlock()
	body, err := json.Marshal(args)
	if err != nil {
		return outcome{err, "not delivered"}
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return outcome{err, "not delivered"}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return outcome{err, "not delivered"}
		}
		return outcome{err, "uncertain"}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return outcome{err, "uncertain"}
	}
	var answer struct {
		Result json.RawMessage
		Error  *struct{ Message, Delivery string }
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		return outcome{fmt.Errorf("%s: %q: %w", resp.Status, b, err), "received"}
	}
	if answer.Error != nil || resp.StatusCode != http.StatusOK {
		o := outcome{fmt.Errorf("%s: %s", resp.Status, b), "received"}
		if answer.Error != nil {
			o.delivery = answer.Error.Delivery
		}
		return o
	}
	if result != nil {
		if err := json.Unmarshal(answer.Result, result); err != nil {
			return outcome{fmt.Errorf("result %s: %w", b, err), "received"}
		}
	}
	return outcome{}
}

// TestSecondSignal: the first SIGTERM waits for a client in the middle of a
// request, the second does not.
func TestSecondSignal(t *testing.T) {
	s := newServer(t)
	s.start()
	s.waitReady()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := fmt.Fprint(c, "POST /v1/objects/CART/a/call/addOne HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	// The door asks for the body: the request is in its hands.
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("%q, %v", line, err)
	}
	for range 2 {
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		s.waitOutput("stopping")
	}
	<-s.read
	err = s.cmd.Wait()
	if s.cmd.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) {
		t.Errorf("%v\n%s", err, s.output())
	}
	s.cmd = nil
}

// TestSecondServer: one directory, one process.
func TestSecondServer(t *testing.T) {
	s := newServer(t)
	s.start()
	s.waitReady()
	out, err := exec.Command(s.binary, "--listen", "127.0.0.1:0", "--dir", s.dir).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !strings.Contains(string(out), s.dir) {
		t.Errorf("a second server: %v\n%s", err, out)
	}
	out, err = exec.Command(s.binary, "--lisen", "x").CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 {
		t.Errorf("a wrong flag: %v\n%s", err, out)
	}
	s.terminate()
}
