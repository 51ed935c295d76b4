package endtoend

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/internal/invariant"
	"github.com/limpet-dev/limpet/internal/value"
	"github.com/limpet-dev/limpet/node"
)

// Sink is what the floods pour into.
type Sink interface {
	Size(ctx context.Context, v []byte) (int, error)
	Make(ctx context.Context, n int) ([]byte, error)
	Hold(ctx context.Context) error
}

type sink struct{}

var sinkClass = limpet.NewClass("Sink", func(*limpet.State) (*sink, error) { return &sink{}, nil })

// Size is the length of v.
func (*sink) Size(_ context.Context, v []byte) (int, error) { return len(v), nil }

// Make gives n bytes.
func (*sink) Make(_ context.Context, n int) ([]byte, error) { return make([]byte, n), nil }

// Hold waits until nobody waits for it.
func (*sink) Hold(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// ServeHTTP answers when nobody waits any more, without a look at the body; on
// /flood it writes for as long as somebody might read.
func (*sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/flood" {
		for buf := make([]byte, 64<<10); ; {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	}
	<-r.Context().Done()
}

// sinkHead is the head of a method call of a sink.
func sinkHead(id limpet.ID, method string, length int) []byte {
	raw := id.Bytes()
	b := append([]byte{0, 0, 4}, "SINK"...)
	b = append(append(b, raw[:]...), 1, 0)
	b = binary.AppendUvarint(b, uint64(length)+1)
	return append(append(b, byte(len(method))), method...)
}

// sinkFetch is the head of a POST to a sink, with a body of unknown length.
func sinkFetch(id limpet.ID, path string) []byte {
	raw := id.Bytes()
	b := append([]byte{1, 0, 4}, "SINK"...)
	b = append(append(b, raw[:]...), 1, 0, 0)
	b = append(append(b, 4), "POST"...)
	u := "http://x" + path
	b = append(append(b, byte(len(u))), u...)
	return append(b, 0, 0, 0)
}

// sinkCall is a whole method call.
func sinkCall(n uint64, id limpet.ID, method string, args ...any) []byte {
	enc, err := value.Codec{}.Args(args...)
	if err != nil {
		panic(err)
	}
	b := frame(typeCall, 0, n, sinkHead(id, method, len(enc)))
	for len(enc) > 60000 {
		b = append(b, frame(typeData, 0, n, enc[:60000])...)
		enc = enc[60000:]
	}
	return append(b, frame(typeData, flagEnd, n, enc)...)
}

// flood is a node process under attack.
type flood struct {
	t    *testing.T
	p    *process
	ctx  context.Context // of the attackers
	stop context.CancelFunc
	all  sync.WaitGroup
	ids  [64]limpet.ID // of sinks
	good limpet.Namespace[Sink]
	sent atomic.Int64 // bytes of the attackers
}

func newFlood(t *testing.T) *flood {
	t.Helper()
	if testing.Short() {
		t.Skip("floods for seconds")
	}
	f := &flood{t: t, p: start(t, filepath.Join(t.TempDir(), "data"), "")}
	var err error
	if f.good, err = limpet.NamespaceOf[Sink](dial(t, f.p.addr), "SINK"); err != nil {
		t.Fatal(err)
	}
	for i := range f.ids {
		f.ids[i] = f.good.Named(fmt.Sprint("victim-", i)).ID()
	}
	f.ctx, f.stop = context.WithCancel(t.Context())
	t.Cleanup(func() {
		if said := f.p.errs.String(); t.Failed() {
			t.Logf("the end of what the node said:\n%s", said[max(0, len(said)-3000):])
		}
	})
	return f
}

// attacker is a connection that says hello and goes on in attack, until it fails
// or the flood ends. With reads it takes all that the node says.
func (f *flood) attacker(reads bool, attack func(write func([]byte) bool)) {
	f.all.Go(func() {
		c, err := net.Dial("tcp", f.p.addr)
		if err != nil {
			f.t.Error(err)
			return
		}
		defer c.Close()
		defer context.AfterFunc(f.ctx, func() { _ = c.Close() })()
		if _, err := c.Write(hello(1, 1)); err != nil {
			return
		}
		if reads {
			f.all.Go(func() { _, _ = io.Copy(io.Discard, c) }) // ends with the connection
		}
		attack(func(b []byte) bool {
			n, err := c.Write(b)
			f.sent.Add(int64(n))
			return err == nil
		})
		<-f.ctx.Done()
	})
}

// other checks that other calls go on for a while, small and of some size, and
// ends the attack.
func (f *flood) other(d time.Duration) {
	f.t.Helper()
	s := f.good.Named("good", patient...)
	v := make([]byte, 20_000)
	n := 0
	for limit := time.Now().Add(d); time.Now().Before(limit); n++ {
		begun := time.Now()
		if got, err := limpet.Call1(f.t.Context(), s, Sink.Size, v); got != len(v) || err != nil {
			f.t.Errorf("the good client: %d, %v", got, err)
			break
		}
		if got, err := limpet.Call1(f.t.Context(), s, Sink.Make, 3000); len(got) != 3000 || err != nil {
			f.t.Errorf("the good client: %d bytes, %v", len(got), err)
			break
		}
		if took := time.Since(begun); took > 20*time.Second {
			f.t.Errorf("the good client waited %v", took)
		}
	}
	// Some figures before the attackers go.
	f.peak(n)
	f.stop()
	f.all.Wait()
	if got, err := limpet.Call1(f.t.Context(), s, Sink.Size, v); got != len(v) || err != nil {
		f.t.Errorf("the good client, after it: %d, %v", got, err)
	}
}

// peak prints the most memory that the node ever had, and checks it.
func (f *flood) peak(calls int) {
	f.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.p.cmd.Process.Pid))
	if err != nil {
		f.t.Skipf("this system does not tell of memory: %v", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Logf("peak memory of the node %d MiB; %d MiB came from attackers, %d times two calls of another client went through", kib>>10, f.sent.Load()>>20, calls)
	if kib > 256<<10 && !invariant.Enabled { // the race detector needs several times as much
		f.t.Errorf("the node's peak memory is %d MiB, want at most 256", kib>>10)
	}
}

// TestIdleConnections has nearly as many connections as a node takes, that do
// nothing.
func TestIdleConnections(t *testing.T) {
	f := newFlood(t)
	for range 990 {
		f.attacker(true, func(func([]byte) bool) {})
	}
	f.other(3 * time.Second)
}

// TestSilentConnections has more connections than a node takes that do not even
// say hello: they keep nobody out.
func TestSilentConnections(t *testing.T) {
	f := newFlood(t)
	for range 1100 {
		f.all.Go(func() {
			c, err := net.Dial("tcp", f.p.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			stop := context.AfterFunc(f.ctx, func() { _ = c.Close() })
			defer stop()
			_, _ = io.Copy(io.Discard, c) // until the node ends it
		})
	}
	time.Sleep(100 * time.Millisecond)
	c := dial(t, f.p.addr)
	again, err := limpet.NamespaceOf[Sink](c, "SINK")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := limpet.Call1(t.Context(), again.Named("late"), Sink.Size, make([]byte, 3)); n != 3 || err != nil {
		t.Errorf("a client that comes later: %d, %v", n, err)
	}
	f.other(time.Second)
	f.p.errs.wait(t, "connection")
}

// TestBigArguments has many connections that call with the largest arguments
// there are, all at once.
func TestBigArguments(t *testing.T) {
	f := newFlood(t)
	v := make([]byte, limpet.MaxValueBytes-1024)
	for k := range 24 {
		b := sinkCall(1, f.ids[k], "size", v)
		f.attacker(true, func(write func([]byte) bool) {
			for n := uint64(1); write(b); n += 2 {
				for at := 0; at < len(b); at += 12 + int(binary.BigEndian.Uint16(b[at+2:])) {
					binary.BigEndian.PutUint64(b[at+4:], n+2)
				}
			}
		})
	}
	f.other(4 * time.Second)
}

// TestUnreadRequests sends bodies to handlers that do not read, over many
// connections and streams.
func TestUnreadRequests(t *testing.T) {
	f := newFlood(t)
	for k := range 100 {
		f.attacker(true, func(write func([]byte) bool) {
			for n := uint64(1); n < 1000; n += 2 {
				id := f.ids[(k+int(n))%len(f.ids)]
				if !write(append(frame(typeCall, 0, n, sinkFetch(id, "/")), frame(typeData, 0, n, make([]byte, 4096))...)) {
					return
				}
			}
		})
	}
	f.other(4 * time.Second)
}

// TestUnreadResults asks for results and responses and reads nothing.
func TestUnreadResults(t *testing.T) {
	f := newFlood(t)
	for k := range 100 {
		f.attacker(false, func(write func([]byte) bool) {
			for n := uint64(1); n < 200; n += 2 {
				id, size := f.ids[(k+int(n))%len(f.ids)], []int{3_000, 60_000, 3 << 20}[n/2%3]
				if size > 1<<20 {
					id = f.ids[0] // what handlers hold before they return is not the protocol's
				}
				b := sinkCall(n, id, "make", size)
				if n%20 == 1 {
					b = frame(typeCall, flagEnd, n, sinkFetch(id, "/flood"))
				}
				if !write(b) {
					return
				}
			}
		})
	}
	f.other(4 * time.Second)
}

// TestUnreadRefusals provokes refusals and reads none.
func TestUnreadRefusals(t *testing.T) {
	f := newFlood(t)
	for range 200 {
		f.attacker(false, func(write func([]byte) bool) {
			for n := uint64(1); ; n += 200 {
				var b []byte
				for i := range uint64(100) {
					b = append(b, frame(typeCall, flagEnd, n+2*i, sinkHead(limpet.ID{}, "nothing", 0))...)
				}
				if !write(b) {
					return
				}
			}
		})
	}
	f.other(4 * time.Second)
}

// TestManyWaitingCalls has calls that wait, as many as there may be, over many
// connections.
func TestManyWaitingCalls(t *testing.T) {
	f := newFlood(t)
	for k := range 50 {
		f.attacker(true, func(write func([]byte) bool) {
			for n := uint64(1); n < 4000; n += 2 {
				if !write(sinkCall(n, f.ids[(k+int(n))%len(f.ids)], "hold")) {
					return
				}
			}
		})
	}
	f.other(4 * time.Second)
}

// TestSmallFrames floods with frames that cost the sender nothing: windows,
// cancels and pings of calls that run, that are over and that never were.
func TestSmallFrames(t *testing.T) {
	f := newFlood(t)
	for k, b := range [][]byte{
		frame(typeWindow, 0, 1, []byte{0, 0, 0, 0}), frame(typeCancel, 0, 1, []byte{0}), frame(typePing, 0, 0, make([]byte, 8)),
		frame(typeData, 0, 1, nil), frame(typeWindow, 0, 3, []byte{0, 0, 0, 1}), frame(typeData, 0, 3, nil),
	} {
		for _, reads := range []bool{true, false} {
			f.attacker(reads, func(write func([]byte) bool) {
				first := sinkCall(1, f.ids[k], "hold")
				first = append(first, frame(typeCall, 0, 3, sinkHead(f.ids[k], "size", 1<<20))...)
				many := []byte(strings.Repeat(string(b), 1000))
				for ok := write(first); ok; ok = write(many) {
				}
			})
		}
	}
	f.other(3 * time.Second)
}

// TestWireMetrics reads what a node counts of other processes.
func TestWireMetrics(t *testing.T) {
	w := open(t, func(c *node.Config) { c.Wire.MaxConns = 2 })
	metric := func(name string) float64 {
		t.Helper()
		for _, m := range w.n.Metrics() {
			if m.Name == name {
				return m.Value
			}
		}
		t.Errorf("there is no %s", name)
		return -1
	}
	s := shops(t, dial(t, w.addr)).Named("x", limpet.NoRetries())
	done := make(chan error, 1)
	go func() { done <- limpet.Do(t.Context(), s, Shop.Wait) }()
	<-w.g.entered
	if conns, held, limit := metric("limpet_wire_connections"), metric("limpet_wire_held_bytes"), metric("limpet_wire_held_limit_bytes"); conns != 1 || held < 1000 || limit < held {
		t.Errorf("%v connections hold %v bytes of %v", conns, held, limit)
	}
	dial(t, w.addr)
	if _, err := client.Dial(t.Context(), []string{w.addr}); limpet.DeliveryOf(err) != limpet.DeliveryNone {
		t.Errorf("a third connection: %v", err)
	}
	if n := metric("limpet_wire_connections_refused_total"); n != 1 {
		t.Errorf("%v connections were refused", n)
	}
	w.log.wait(t, "too many connections")
	close(w.g.open)
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, name := range []string{"limpet_wire_calls_refused_total", "limpet_wire_results_dropped_total"} {
		if n := metric(name); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
}
