package endtoend

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/invariant"
)

// frame writes a frame by hand, from what internal/wire says of its bytes.
func frame(typ, flags byte, call uint64, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{typ, flags}, uint16(len(payload)))
	return append(binary.BigEndian.AppendUint64(b, call), payload...)
}

const (
	typeHello, typeCall, typeData, typeWindow, typeCancel, typePing, typeMore = 1, 2, 6, 9, 10, 11, 15
	flagMore, flagEnd                                                         = 1, 2
)

// hello is a CBOR map of small integers to numbers: versions, window, calls.
func hello(from, to uint16) []byte {
	b := []byte("limpet\xa4")
	for _, kv := range [][2]uint16{{1, from}, {2, to}, {6, 4096}, {7, 100}} {
		b = append(b, byte(kv[0]), 0x19, byte(kv[1]>>8), byte(kv[1]))
	}
	return frame(typeHello, 0, 0, b)
}

// methodCall is the head of a call of shops' add, with arguments of a length.
func methodCall(id limpet.ID, method string, length uint64) []byte {
	raw := id.Bytes()
	b := append([]byte{0, 0, 4}, "SHOP"...)
	b = append(append(b, raw[:]...), 1, 0)
	b = binary.AppendUvarint(b, length+1)
	return append(append(b, byte(len(method))), method...)
}

// enemy connects to a node, says hello and then whatever it likes.
func enemy(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write(hello(1, 1)); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 12)
	if _, err := io.ReadFull(c, head); err != nil || head[0] != typeHello {
		t.Fatalf("the node says %v, %v", head, err)
	}
	if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint16(head[2:]))); err != nil {
		t.Fatal(err)
	}
	return c
}

// ended waits until the node has closed the connection, and returns what it said.
func ended(t *testing.T, c net.Conn) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	b, err := io.ReadAll(c)
	if ne, ok := err.(net.Error); ok && ne.Timeout() { //nolint:errorlint // as it comes from the connection
		t.Error("the node did not end the connection")
	}
	return string(b)
}

func TestBadPeers(t *testing.T) {
	w := open(t, nil)
	good := shops(t, dial(t, w.addr)).Named("good")
	id := good.ID()
	call := func(n uint64, flags byte, b []byte) []byte { return frame(typeCall, flags, n, b) }
	for name, c := range map[string]struct {
		send []byte
		want string // in the log
	}{
		"an unknown frame":         {frame(99, 0, 1, nil), "frame type 99 is unknown"},
		"an unknown flag":          {frame(typeData, 64, 1, nil), "unknown flags"},
		"a frame too long":         {[]byte{typeData, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1}, "the limit is"},
		"data of no call":          {frame(typeData, 0, 7, []byte("x")), "DATA of call 7, which was never made"},
		"a call twice":             {append(call(1, flagEnd, methodCall(id, "get", 0)), call(1, flagEnd, methodCall(id, "get", 0))...), "call 1 after call 1"},
		"an even call":             {call(2, flagEnd, methodCall(id, "get", 0)), "a number of the other side"},
		"a malformed call":         {call(1, flagEnd, []byte{0, 0, 200, 1}), "malformed"},
		"huge arguments":           {call(1, 0, methodCall(id, "get", 1<<40)), "arguments of 1099511627776 bytes"},
		"more than was said":       {append(call(1, 0, methodCall(id, "get", 1)), frame(typeData, flagEnd, 1, []byte("xx"))...), "they were said to be 1"},
		"less than was said":       {append(call(1, 0, methodCall(id, "get", 3)), frame(typeData, flagEnd, 1, []byte("xx"))...), "they were said to be 3"},
		"a window beyond measure":  {append(call(1, 0, methodCall(id, "get", 9)), bytes.Repeat(frame(typeWindow, 0, 1, []byte{255, 255, 255, 255}), 2)...), "beyond all measure"},
		"a part of nothing":        {frame(typeMore, 0, 1, []byte("x")), "without a block"},
		"a block interrupted":      {append(call(1, flagMore, []byte("x")), frame(typePing, 0, 0, make([]byte, 8))...), "inside a block"},
		"a block without end":      {append(call(1, flagMore, []byte("x")), bytes.Repeat(frame(typeMore, flagMore, 1, make([]byte, 60000)), 20)...), "over the limit"},
		"a ping too short":         {frame(typePing, 0, 0, []byte("x")), "PING of 1 bytes"},
		"a second hello":           {hello(1, 1), "second HELLO"},
		"an unknown cancel reason": {append(call(1, 0, methodCall(id, "get", 9)), frame(typeCancel, 0, 1, []byte{9})...), "CANCEL is malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			c1 := enemy(t, w.addr)
			_, _ = c1.Write(c.send) // the node may hang up in the middle
			said := ended(t, c1)
			wantIn(t, "what the node said", said, "protocol error")
			w.log.wait(t, c.want)
		})
	}
	for name, c := range map[string]struct {
		send []byte
		want string
	}{
		"HTTP":            {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "does not speak limpet's protocol"},
		"a hello of dust": {frame(typeHello, 0, 0, []byte("limpet\xff\xff")), "HELLO is malformed"},
		"a newer version": {hello(7, 9), "versions 7 to 9 of limpet's protocol, this process 1 to 1: update this process"},
		"a huge hello":    {frame(typeHello, 0, 0, make([]byte, 60000)), "does not speak limpet's protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = conn.Write(c.send) // as above
			ended(t, conn)
			w.log.wait(t, c.want)
		})
	}
	// A newer peer that still speaks ours is welcome.
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write(append(hello(1, 9), frame(typePing, 0, 0, []byte("12345678"))...))
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	var got []byte
	for buf := make([]byte, 4096); !bytes.Contains(got, []byte("12345678")); {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("a newer peer: %v", err)
		}
		got = append(got, buf[:n]...)
	}
	if n, err := limpet.Call1(t.Context(), good, Shop.Add, 1); n != 1 || err != nil {
		t.Errorf("the good client: %d, %v", n, err)
	}
}

// TestMemoryBound attacks a node process with floods of all kinds at once, and
// looks at the most memory it ever had.
func TestMemoryBound(t *testing.T) {
	if testing.Short() {
		t.Skip("floods for seconds")
	}
	p := start(t, filepath.Join(t.TempDir(), "data"), "")
	ns := shops(t, dial(t, p.addr))
	id := ns.Named("victim").ID()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var all sync.WaitGroup
	attack := func(reads bool, next func(i uint64) []byte) {
		all.Go(func() {
			for ctx.Err() == nil {
				c := enemy(t, p.addr)
				if reads {
					all.Go(func() { _, _ = io.Copy(io.Discard, c) }) // ends with the connection
				}
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				for i := uint64(0); ; i++ {
					if _, err := c.Write(next(i)); err != nil {
						break
					}
				}
				stop()
				_ = c.Close()
			}
		})
	}
	many := func(f func(n uint64) []byte) func(uint64) []byte {
		return func(i uint64) (b []byte) {
			for k := range uint64(100) {
				b = append(b, f(2*(100*i+k)+1)...)
			}
			return b
		}
	}
	attack(false, many(func(uint64) []byte { return frame(typePing, 0, 0, make([]byte, 8)) }))
	attack(false, many(func(n uint64) []byte { return frame(typeCall, flagEnd, n, methodCall(id, "nothing", 0)) }))
	attack(true, many(func(n uint64) []byte { return frame(typeCall, flagEnd, n, methodCall(id, "nothing", 0)) }))
	attack(false, many(func(n uint64) []byte {
		return append(frame(typeCall, 0, n, methodCall(id, "echo", 9)), frame(typeCancel, 0, n, []byte{0})...)
	}))
	attack(false, func(i uint64) []byte { // fetches with a header of a megabyte
		raw := id.Bytes()
		b := append([]byte{1, 0, 4}, "SHOP"...)
		b = append(append(b, raw[:]...), 1, 0, 1)
		b = append(append(b, 3), "GET"...)
		b = append(append(b, 9), "http://x/"...)
		b = binary.AppendUvarint(append(b, 0), 8000)
		for k := range 8000 {
			b = append(append(b, 5), fmt.Sprintf("%05d", k)...)
			b = append(append(b, 100), make([]byte, 100)...)
		}
		b = append(b, 0)
		out := frame(typeCall, flagMore|flagEnd, 2*i+1, b[:60000])
		for b = b[60000:]; len(b) > 60000; b = b[60000:] {
			out = append(out, frame(typeMore, flagMore, 2*i+1, b[:60000])...)
		}
		return append(out, frame(typeMore, 0, 2*i+1, b)...)
	})
	for range 4 { // arguments of 32 MiB each that never end
		attack(false, func(i uint64) (b []byte) {
			b = frame(typeCall, 0, 2*i+1, methodCall(id, "echo", 32<<20))
			for range 512 {
				b = append(b, frame(typeData, 0, 2*i+1, make([]byte, 60000))...)
			}
			return b
		})
	}
	v := make([]byte, 30_000) // what every connection has room for
	for ctx.Err() == nil {    // meanwhile
		if got, err := limpet.Call1(t.Context(), ns.Named("good", patient...), Shop.Echo, v); len(got) != len(v) || err != nil {
			t.Errorf("the good client: %d bytes, %v", len(got), err)
			break
		}
	}
	all.Wait()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Skipf("this system does not tell of memory: %v", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the node's peak memory is %d MiB", kib>>10)
	if kib > 256<<10 && !invariant.Enabled { // the race detector needs several times as much
		t.Errorf("the node's peak memory is %d MiB, want at most 256", kib>>10)
	}
}
