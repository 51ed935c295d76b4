package endtoend

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
)

// process is a node in a process of its own.
type process struct {
	cmd   *exec.Cmd
	addr  string
	lines chan string // of its stdout, after the address
	errs  *logs
	ended chan error
}

// start starts a node on a directory; an empty address means any.
func start(t *testing.T, dir, addr string) *process {
	t.Helper()
	p, err := spawn(dir, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kill() })
	return p
}

func spawn(dir, addr string) (*process, error) {
	if addr == "" {
		addr = freeAddr()
	}
	p := &process{cmd: exec.Command(os.Args[0]), lines: make(chan string, 100), errs: &logs{}, ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), "LIMPET_ENDTOEND_NODE="+dir, "LIMPET_ENDTOEND_ADDR="+addr)
	p.cmd.Stderr = p.errs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() { // ends with the process
		for s := bufio.NewScanner(out); s.Scan(); {
			if a, ok := strings.CutPrefix(s.Text(), "other processes connect to "); ok {
				ready <- a
				continue
			}
			select {
			case p.lines <- s.Text():
			default:
			}
		}
		p.ended <- p.cmd.Wait()
	}()
	select {
	case p.addr = <-ready:
		return p, nil
	case err := <-p.ended:
		return nil, fmt.Errorf("the node ended: %w: %s", err, p.errs)
	}
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	if p.cmd.Process.Kill() == nil {
		err := <-p.ended
		p.ended <- err
	}
}

func (p *process) line(t *testing.T, want string) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case l := <-p.lines:
			if l == want {
				return
			}
		case <-limit:
			t.Fatalf("the node never said %q", want)
		}
	}
}

// Gated is what a client knows of the class of that name.
type Gated interface {
	Add(ctx context.Context, n int) (int, error)
	Slow(ctx context.Context, n int) (int, error)
	Get(ctx context.Context) (int, error)
}

var patient = []limpet.StubOption{limpet.MaxRetries(10), limpet.RetryTimeout(60 * time.Second)}

// TestKilledWhileIdle kills the node between two calls and starts it again on the
// same port and directory while the second one is tried.
func TestKilledWhileIdle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir, "")
	s := shops(t, dial(t, p.addr)).Named("x", patient...)
	if n, err := limpet.Call1(t.Context(), s, Shop.Add, 1); n != 1 || err != nil {
		t.Fatalf("the first call gives %d, %v", n, err)
	}
	p.kill()
	again := make(chan error, 1)
	go func() {
		next, err := spawn(dir, p.addr)
		if err == nil {
			t.Cleanup(next.kill)
		}
		again <- err
	}()
	// SPEC C20: not delivered while nobody listens. What was acknowledged is
	// there, and the call ran once.
	n, err := limpet.Call1(t.Context(), s, Shop.Add, 1)
	if err := <-again; err != nil {
		t.Fatal(err)
	}
	if n != 2 || err != nil {
		t.Errorf("the call over the restart gives %d, %v", n, err)
	}
}

// TestKilledWhileRunning kills the node while an unmarked method runs.
func TestKilledWhileRunning(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir, "")
	c := dial(t, p.addr)
	gated, err := limpet.NamespaceOf[Gated](c, "GATED")
	if err != nil {
		t.Fatal(err)
	}
	ns := shops(t, c)
	over := func(call func() (int, error)) (int, error) {
		t.Helper()
		type result struct {
			n   int
			err error
		}
		done := make(chan result, 1)
		go func() {
			n, err := call()
			done <- result{n, err}
		}()
		p.line(t, "slow has begun")
		p.kill()
		p = start(t, dir, p.addr)
		r := <-done
		return r.n, r.err
	}
	// SPEC F18, F20: an ungated class may have done anything before the kill, and
	// nobody can tell: the retry is refused.
	_, err = over(func() (int, error) {
		return limpet.Call1(t.Context(), ns.Named("x", patient...), Shop.Slow, 1)
	})
	e := errorOf(t, err)
	if e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryUncertain || e.Attempts < 2 {
		t.Errorf("an ungated method gives %+v", e)
	}
	if n, err := limpet.Call(t.Context(), ns.Named("x"), Shop.Get); n != 0 || err != nil {
		t.Errorf("the object has %d, %v, want 0", n, err)
	}
	// SPEC F20: of a gated class nothing of the first run was seen.
	n, err := over(func() (int, error) {
		return limpet.Call1(t.Context(), gated.Named("x", patient...), Gated.Slow, 1)
	})
	if n != 1 || err != nil {
		t.Errorf("a gated method gives %d, %v, want 1", n, err)
	}
	if n, err := limpet.Call(t.Context(), gated.Named("x"), Gated.Get); n != 1 || err != nil {
		t.Errorf("the object has %d, %v, want 1", n, err)
	}
}

// TestKillsUnderLoad kills the node again and again while callers add: what was
// acknowledged is there, and no call counts twice.
func TestKillsUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for seconds")
	}
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir, "")
	c := dial(t, p.addr)
	ns := shops(t, c)
	const objects = 4
	var acked, uncertain, not [objects]atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			o := i % objects
			s := ns.Named(fmt.Sprint("o", o), limpet.MaxRetries(10), limpet.RetryTimeout(20*time.Second))
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := limpet.Call1(context.Background(), s, Shop.Add, 1)
				e, _ := errors.AsType[*limpet.Error](err)
				switch {
				case err == nil:
					acked[o].Add(1)
				case e.Delivery == limpet.DeliveryNone:
					not[o].Add(1)
				default:
					uncertain[o].Add(1)
				}
			}
		})
	}
	// some lets so many calls of each object through.
	some := func() {
		var before [objects]int64
		for o := range objects {
			before[o] = acked[o].Load()
		}
		limit := time.Now().Add(time.Minute)
		for o := range objects {
			for acked[o].Load() < before[o]+25 {
				if time.Now().After(limit) {
					t.Fatalf("object %d acknowledged %d calls within a minute", o, acked[o].Load()-before[o])
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	for range 5 {
		some()
		p.kill()
		p = start(t, dir, p.addr)
	}
	some()
	close(stop)
	all.Wait()
	for o := range objects {
		n, err := limpet.Call(t.Context(), ns.Named(fmt.Sprint("o", o), patient...), Shop.Get)
		if err != nil {
			t.Fatal(err)
		}
		least, most := acked[o].Load(), acked[o].Load()+uncertain[o].Load()
		t.Logf("object %d: %d acknowledged, %d uncertain, %d not delivered; it has %d", o, least, uncertain[o].Load(), not[o].Load(), n)
		if int64(n) < least || int64(n) > most {
			t.Errorf("object %d has %d, want %d to %d", o, n, least, most)
		}
		if least == 0 {
			t.Errorf("object %d acknowledged nothing: proved nothing", o)
		}
	}
}

// TestFrozen stops the node as a frozen machine does, and lets it go on: it must
// not act on what waited in the meantime.
func TestFrozen(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a connection is lost")
	}
	p := start(t, filepath.Join(t.TempDir(), "data"), "")
	s := shops(t, dial(t, p.addr)).Named("x", limpet.NoRetries())
	if _, err := limpet.Call1(t.Context(), s, Shop.Add, 1); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for !stopped(t, p.cmd.Process.Pid) { // the signal reaches one thread after the other
		runtime.Gosched()
	}
	begun := time.Now()
	_, err := limpet.Call1(t.Context(), s, Shop.Add, 1)
	took := time.Since(begun)
	if e := errorOf(t, err); e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryUncertain {
		t.Errorf("a call of a frozen node gives %+v", e)
	}
	if took < 5*time.Second || took > 30*time.Second {
		t.Errorf("it was given up after %v", took)
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if n, err := limpet.Call(t.Context(), s, Shop.Get); n != 1 || err != nil {
		t.Errorf("after the thaw the object has %d, %v: want 1, without the stale call", n, err)
	}
}

// stopped reports whether every thread of a process is stopped; where the system
// does not say, it is true.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			return false
		}
		// The state stands behind the program's name, which is in parentheses.
		if _, rest, ok := bytes.Cut(b, []byte(") ")); !ok || !bytes.HasPrefix(rest, []byte("T")) {
			return false
		}
	}
	return true
}

// freeAddr is an address nobody listens on, for a node that is started again on
// it. Its port is below those that systems give out by themselves, so that no
// connection of another test takes it meanwhile.
func freeAddr() string {
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(os.Getpid())))
	for range 100 {
		if ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rng.IntN(10000))); err == nil {
			_ = ln.Close()
			return ln.Addr().String()
		}
	}
	return "127.0.0.1:0"
}
