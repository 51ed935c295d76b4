package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-dev/limpet/internal/wire"
)

// This file is the proxy process, which stands between clients and node, and
// between the node and the witness's, reads every frame and strikes.
//
//	client ──▶ up:   CALL? choose a fault ──▶ node
//	client ◀── down: outcome? count, or swallow it ◀── node

type proxyConfig struct {
	Seed  uint64
	Every int  // one call of so many is struck
	Short bool // freeze for moments only
}

type proxyReady struct{ Addr string }

// proxyCommand is one line of the parent: what is not zero is done, in this
// order. The answer is always tally.
type proxyCommand struct {
	Journal string // write the attempts of the next round into this file
	Target  string // the node's address; "-" for none
	Why     fault  // what ends connections of the node from now on: kill, drain, or 0
	Faults  bool   // strike
	Quiet   bool   // do not, and answer when nothing is held back any more
}

// tally is what the proxy has counted since its start.
type tally struct {
	// Struck are calls (of refuse: connections) that a fault chose, or that were
	// under way when the connection froze, or the node was killed or began to
	// drain; Along were cut with one that was struck; Events are the cuts, kills
	// and so on.
	Struck, Along, Events [faults]int64
	Attempts              int64
	Retries               retries // with the retry flag
	OverRestart           retries // those that an earlier process of the node may have had
}

// retries are flagged attempts by what the object answered.
type retries struct {
	Sent     int64
	Accepted int64 // it ran, whatever came out
	Refused  int64
	Answered int64 // it ran and gave a result
}

type proxy struct {
	cfg   proxyConfig
	conns atomic.Uint64
	late  sync.WaitGroup // calls that are delivered late, and frozen connections

	mu      sync.Mutex
	target  string
	why     fault
	strike  bool
	iced    map[*pass]struct{} // frozen for long
	calm    chan struct{}      // closed when faults are off
	tally   tally
	journal *bufio.Writer
	file    *os.File
	start   time.Time
}

func proxyMain() error {
	p := &proxy{start: time.Now(), calm: make(chan struct{}), target: "-", iced: map[*pass]struct{}{}}
	close(p.calm)
	if err := childConfig(&p.cfg); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go p.accept(ln) // until the process ends
	if err := say(proxyReady{ln.Addr().String()}); err != nil {
		return err
	}
	answers(p.command)
	return nil
}

func (p *proxy) command(c proxyCommand) any {
	p.mu.Lock()
	if c.Journal != "" {
		if err := p.open(c.Journal); err != nil {
			fmt.Fprintln(os.Stderr, "journal:", err)
		}
	}
	if c.Target != "" {
		p.target = c.Target
	}
	if c.Target != "" && c.Target != "-" {
		p.why = none
	}
	if c.Why != none {
		p.why = c.Why
		p.tally.Events[c.Why]++
		for f := range p.iced { // lest a drain waits for it; its client stays in the ice
			_ = f.node.Close()
		}
	}
	if c.Faults && !p.strike {
		p.strike, p.calm = true, make(chan struct{})
	}
	if c.Quiet && p.strike {
		p.strike = false
		close(p.calm)
	}
	p.mu.Unlock()
	if c.Quiet {
		p.late.Wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Quiet && p.journal != nil {
		_ = p.journal.Flush() // it is evidence, no result
	}
	return p.tally
}

func (p *proxy) open(path string) error {
	if p.file != nil {
		_ = p.journal.Flush() // as above
		_ = p.file.Close()
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	p.file, p.journal = f, bufio.NewWriterSize(f, 1<<20)
	return nil
}

// write writes a line of the journal; p.mu is held.
func (p *proxy) write(c *pass, k *passing, what string) {
	if p.journal == nil || k.op == "" {
		return
	}
	fmt.Fprintf(p.journal, "%s at %.6f s, connection %d: attempt %d", k.op, time.Since(p.start).Seconds(), c.n, k.head.Attempt)
	if k.head.Retry {
		fmt.Fprint(p.journal, ", a retry")
	}
	if k.over {
		fmt.Fprint(p.journal, " over a restart")
	}
	fmt.Fprintf(p.journal, ", of call %v to node process %.4x: %s\n", k.head.Identity, c.boot.Boot, what)
}

func (p *proxy) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			os.Exit(1)
		}
		c := &pass{p: p, n: p.conns.Add(1), client: conn.(*net.TCPConn), calls: map[uint64]*passing{}}
		c.s = newStrikes(p.cfg.Seed, c.n, p.cfg.Every)
		go c.run() // until both connections have ended
	}
}

// pass is one connection from client to node.
type pass struct {
	p            *proxy
	n            uint64
	client, node *net.TCPConn
	s            *strikes // of the goroutine that reads the client

	// Under p.mu.
	calls map[uint64]*passing
	boot  wire.Boot
	cut   bool      // the client's side was closed by a fault
	late  bool      // what the client sends is held back
	until time.Time // nothing passes before
}

// passing is one attempt under way.
type passing struct {
	head  *wire.Call
	op    string
	over  bool  // a retry that an earlier process may have had
	fault fault // chosen for it
}

func (c *pass) run() {
	p := c.p
	p.mu.Lock()
	target, strike := p.target, p.strike
	refused := strike && target != "-" && c.s.refused()
	if refused {
		p.tally.Struck[refuse]++
		p.tally.Events[refuse]++
	}
	p.mu.Unlock()
	if refused || target == "-" {
		_ = c.client.Close() // that is the fault
		return
	}
	node, err := net.Dial("tcp", target)
	if err != nil {
		_ = c.client.Close() // the node is not there
		return
	}
	c.node = node.(*net.TCPConn)
	go c.down() // until the node's connection has ended
	c.up()
}

// up passes on what the client sends.
func (c *pass) up() {
	tap := wire.NewTap(c.client)
	var lost *passing // its frames are thrown away
	var lostCall uint64
	var late bool // all frames are held back
	var held []byte
	after := uint64(0) // the call that the connection ends after
	for {
		f, err := tap.Next()
		switch {
		case err != nil && late:
			c.deliverLate(held)
			return
		case err != nil:
			c.over(err)
			_ = c.node.CloseWrite() // the client has gone
			return
		}
		c.wait()
		if f.Head != nil && f.Head.Kind != wire.KindDescribe {
			switch k := c.begin(&f); k.fault {
			case requestLost:
				lost, lostCall = k, f.Call
			case requestLate:
				late = true
				_ = c.client.SetReadDeadline(time.Now().Add(lateSpan)) // it ends this loop
			case cutAfter:
				after = f.Call
			case freeze, longFreeze:
				c.wait()
			}
		}
		if lost != nil && f.Call == lostCall {
			c.spot(lost, f.Payload)
			if !f.Ends {
				continue
			}
			c.end(requestLost)
			return
		}
		if f.Type == "DATA" {
			c.p.mu.Lock()
			k := c.calls[f.Call]
			c.p.mu.Unlock()
			if k != nil {
				c.spot(k, f.Payload)
			}
		}
		if late {
			held = append(held, f.Raw...)
			continue
		}
		if _, err := c.node.Write(f.Raw); err != nil {
			c.end(none)
			return
		}
		if after != 0 && f.Call == after && f.Ends {
			time.Sleep(c.s.between(0, 3*time.Millisecond))
			c.end(cutAfter)
			return
		}
	}
}

// spot finds the operation in the arguments.
func (c *pass) spot(k *passing, payload []byte) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if k.op == "" {
		k.op = findOp(payload)
	}
}

// findOp finds an operation's name in encoded arguments.
func findOp(b []byte) string {
	if i := bytes.Index(b, []byte(opPrefix)); i >= 0 && len(b) >= i+opLength {
		return string(b[i : i+opLength])
	}
	return ""
}

// begin counts an attempt and chooses what happens to it.
func (c *pass) begin(f *wire.Tapped) *passing {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	head := *f.Head
	k := &passing{head: &head}
	fetch := head.Kind == wire.KindFetch
	if fetch {
		k.op = findOp([]byte(head.URL))
	}
	p.tally.Attempts++
	if head.Retry {
		for _, b := range head.Uncertain {
			k.over = k.over || b != c.boot
		}
		p.tally.Retries.Sent++
		if k.over {
			p.tally.OverRestart.Sent++
		}
	}
	switch {
	case c.late:
		k.fault = requestLate
	case p.strike:
		k.fault = c.s.next(fetch)
	}
	switch k.fault {
	case requestLate:
		c.late = true
	case longFreeze:
		if p.cfg.Short || len(p.iced) >= mostIced {
			k.fault = none
			break
		}
		p.iced[c] = struct{}{}
		c.until = time.Now().Add(longFreezeTime)
		p.thaw(longFreezeTime, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.iced, c)
		})
		c.frozen(longFreeze)
	case freeze:
		d := c.s.between(20*time.Millisecond, 400*time.Millisecond)
		c.until = time.Now().Add(d)
		p.thaw(d, func() {})
		c.frozen(freeze)
	}
	c.calls[f.Call] = k
	return k
}

// frozen counts a freeze: it strikes every call of the connection.
func (c *pass) frozen(f fault) {
	t := &c.p.tally
	t.Events[f]++
	t.Struck[f] += 1 + int64(len(c.calls))
}

// thaw keeps Quiet waiting until a freeze is over; p.mu is held.
func (p *proxy) thaw(d time.Duration, then func()) {
	calm := p.calm
	p.late.Go(func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-calm:
		}
		then()
	})
}

// wait returns when the connection is not frozen.
func (c *pass) wait() {
	for {
		c.p.mu.Lock()
		d, calm, strike := time.Until(c.until), c.p.calm, c.p.strike
		c.p.mu.Unlock()
		if d <= 0 || !strike {
			return
		}
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-calm:
		}
		t.Stop()
	}
}

// end ends the connection by a fault. The node gets what was sent to it before;
// what it answers goes nowhere.
func (c *pass) end(f fault) {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.cut {
		return
	}
	c.cut = true
	if f != none {
		p.tally.Events[f]++
	}
	for _, k := range c.calls {
		switch {
		case f != none && k.fault == f:
			p.tally.Struck[f]++
			p.write(c, k, f.String())
		default:
			if f != none {
				p.tally.Along[f]++
			}
			p.write(c, k, "cut along with another ("+f.String()+")")
		}
	}
	clear(c.calls)
	if c.n%2 == 0 { // one half of the connections end with a reset
		_ = c.client.SetLinger(0)
	}
	_ = c.client.Close()    // that is the fault
	_ = c.node.CloseWrite() // down reads it to its end
}

// deliverLate gives the node a call whose client has gone.
func (c *pass) deliverLate(held []byte) {
	p := c.p
	p.mu.Lock()
	calm := p.calm
	p.late.Add(1)
	strike := p.strike
	p.mu.Unlock()
	defer p.late.Done()
	node := c.node
	c.endLate()
	if strike {
		t := time.NewTimer(c.s.between(300*time.Millisecond, 2500*time.Millisecond))
		select {
		case <-t.C:
		case <-calm:
		}
		t.Stop()
	}
	_, _ = node.Write(held)            // the node may have gone meanwhile
	time.Sleep(300 * time.Millisecond) // for the handler: the end of the connection ends its context
	_ = node.CloseWrite()
}

// endLate is end for the client's side alone.
func (c *pass) endLate() {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.cut {
		return
	}
	c.cut = true
	p.tally.Events[requestLate]++
	for _, k := range c.calls {
		if k.fault == requestLate {
			p.tally.Struck[requestLate]++
			p.write(c, k, "request late: delivered when the client had gone")
			continue
		}
		p.tally.Along[requestLate]++
		p.write(c, k, "cut along with another (request late)")
	}
	clear(c.calls)
	_ = c.client.Close() // that is the fault
}

// over counts what was under way when the client or the node ended a connection.
func (c *pass) over(err error) {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.cut {
		return
	}
	c.cut = true
	why := p.why
	text := "the connection ended"
	switch why {
	case kill:
		p.tally.Struck[kill] += int64(len(c.calls))
		text += ": kill -9"
	case drain: // counted when it began
		text += ": drain"
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		text += ": " + err.Error()
	}
	for _, k := range c.calls {
		p.write(c, k, text)
	}
	clear(c.calls)
}

// down passes on what the node sends.
func (c *pass) down() {
	defer c.node.Close() //nolint:errcheck // nothing was promised
	tap := wire.NewTap(c.node)
	for {
		f, err := tap.Next()
		if err != nil {
			c.wait()
			c.over(err)
			_ = c.client.Close() // the node has gone
			return
		}
		c.wait()
		if c.took(&f) {
			continue
		}
		if _, err := c.client.Write(f.Raw); err != nil {
			c.over(err)
			_ = c.node.CloseWrite() // the client has gone
		}
	}
}

// took looks at a frame of the node, and says whether it is swallowed.
func (c *pass) took(f *wire.Tapped) bool {
	p := c.p
	p.mu.Lock()
	if f.Hello != nil {
		c.boot = f.Hello.Process()
	}
	if c.cut {
		p.mu.Unlock()
		return true
	}
	if f.Type == "GOAWAY" && p.why == drain {
		p.tally.Struck[drain] += int64(len(c.calls))
	}
	k := c.calls[f.Call]
	if k == nil {
		p.mu.Unlock()
		return false
	}
	outcome := f.Type == "RESULT" || f.Type == "RESPONSE" || f.Type == "FAILURE"
	switch {
	case outcome && k.fault == replyLost:
		p.mu.Unlock()
		c.end(replyLost)
		return true
	case f.Type == "RESPONSE" && k.fault == bodyCut:
	case f.Type == "DATA" && k.fault == bodyCut:
		p.mu.Unlock()
		_, _ = c.client.Write(f.Raw) // it is cut next
		c.end(bodyCut)
		return true
	case outcome:
		c.outcome(k, f)
		delete(c.calls, f.Call)
	}
	p.mu.Unlock()
	return false
}

// outcome counts what became of a retry; p.mu is held.
func (c *pass) outcome(k *passing, f *wire.Tapped) {
	p := c.p
	what := strings.ToLower(f.Type)
	switch {
	case f.Rejected:
		what = "refused: " + f.Failure.Message
	case f.Failure != nil:
		what = "failed: " + f.Failure.Error()
	}
	p.write(c, k, what)
	if !k.head.Retry {
		return
	}
	count := func(r *retries) {
		switch {
		case f.Rejected:
			r.Refused++
		default:
			r.Accepted++
			if f.Failure == nil {
				r.Answered++
			}
		}
	}
	count(&p.tally.Retries)
	if k.over {
		count(&p.tally.OverRestart)
	}
}
