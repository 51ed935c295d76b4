package endtoend

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy passes bytes between clients and a node, counts them, and cuts a
// connection when it is told to.
type proxy struct {
	to string
	ln net.Listener

	up, down       atomic.Int64 // bytes passed on
	cutUp, cutDown atomic.Int64 // how often the next bytes are thrown away and the connection cut
	strikes        atomic.Int64
	held           atomic.Pointer[chan struct{}] // what comes down waits for it
	hangUp         atomic.Bool                   // on everybody who calls
	wg             sync.WaitGroup
	mu             sync.Mutex
	conns          []net.Conn
	closed         bool
	called         []time.Time // and was hung up on
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{to: to, ln: ln}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) addr() string { return p.ln.Addr().String() }

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	_ = p.ln.Close()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// calls tells when somebody was hung up on.
func (p *proxy) calls() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.called)
}

// cut ends all connections that there are.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strikes.Add(1)
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// hold keeps back what the node sends, until the function that it returns is
// called.
func (p *proxy) hold() (goOn func()) {
	gate := make(chan struct{})
	p.held.Store(&gate)
	return sync.OnceFunc(func() {
		p.held.Store(nil)
		close(gate)
	})
}

func (p *proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		if p.hangUp.Load() {
			p.mu.Lock()
			p.called = append(p.called, time.Now())
			p.mu.Unlock()
			_ = c.Close()
			continue
		}
		n, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = c.Close()
			continue
		}
		p.mu.Lock()
		if p.closed {
			_, _ = c.Close(), n.Close()
		}
		p.conns = append(p.conns, c, n)
		p.mu.Unlock()
		p.wg.Go(func() { p.pass(n, c, &p.up, &p.cutUp) })
		p.wg.Go(func() { p.pass(c, n, &p.down, &p.cutDown) })
	}
}

// pass copies until the connection ends, or its turn to be cut has come.
func (p *proxy) pass(dst, src net.Conn, count, cut *atomic.Int64) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if left := cut.Load(); left > 0 && cut.CompareAndSwap(left, left-1) {
				p.strikes.Add(1)
				return
			}
			if gate := p.held.Load(); gate != nil && count == &p.down {
				<-*gate
			}
			count.Add(int64(n))
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
