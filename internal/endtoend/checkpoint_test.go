package endtoend

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/limpet-dev/limpet/internal/store"
	"github.com/limpet-dev/limpet/node"
)

const killedObjects = 12

// killedStore is a process that writes objects in turn, with checkpoints and
// recycled segments all the time, until it is killed. It says what it found in each
// object and what is durable: "found N COUNT", "ready", "durable N COUNT".
func killedStore(dir string) error {
	s, err := store.Open(context.Background(), store.Options{
		Dir: dir, Clock: node.SystemClock(), SegmentSize: 256 << 10, LogLimit: 512 << 10, LogMax: 64 << 20,
		CheckpointAge: 5 * time.Millisecond, PageMemory: 256 << 10,
	})
	if err != nil {
		return err
	}
	var objects [killedObjects]*store.Object
	var counts [killedObjects]uint64
	for n := range objects {
		id := store.ObjectID{byte(n)}
		if objects[n], err = s.Object(id, store.Birth{Class: "Killed"}); err != nil {
			return err
		}
		// All keys were written in one commit: the counter and what is made of it.
		b, ok, err := objects[n].Get("count")
		if err != nil {
			return err
		}
		if ok {
			counts[n] = binary.LittleEndian.Uint64(b)
			for k := range 3 {
				v, _, err := objects[n].Get(fmt.Sprint("filler", k))
				if err != nil {
					return err
				}
				if !bytes.Equal(v, filler(n, k, counts[n])) {
					return fmt.Errorf("object %d: filler %d is not that of count %d", n, k, counts[n])
				}
			}
		}
		fmt.Printf("found %d %d\n", n, counts[n])
	}
	fmt.Println("ready")
	for n := 0; ; n = (n + 1) % killedObjects {
		o := objects[n]
		counts[n]++
		if err := o.Put("count", binary.LittleEndian.AppendUint64(nil, counts[n])); err != nil {
			return err
		}
		for k := range 3 {
			if err := o.Put(fmt.Sprint("filler", k), filler(n, k, counts[n])); err != nil {
				return err
			}
		}
		p, err := o.Commit(nil)
		if err != nil {
			return err
		}
		if err := s.Wait(context.Background(), p); err != nil {
			return err
		}
		fmt.Printf("durable %d %d\n", n, counts[n])
		if counts[n]%5 == 0 { // so that it goes from memory, and comes back
			if err := o.Close(); err != nil {
				return err
			}
			if objects[n], err = s.Object(store.ObjectID{byte(n)}, store.Birth{Class: "Killed"}); err != nil {
				return err
			}
		}
	}
}

// filler is large enough in some objects for a database kept in pages.
func filler(n, k int, count uint64) []byte {
	rng := rand.New(rand.NewPCG(uint64(n*10+k), count))
	b := make([]byte, 500+n*4000)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// TestKilledWhileCheckpointing kills a process at random moments while it writes,
// checkpoints and recycles, and starts it again: nothing acknowledged is lost,
// nothing is there by halves.
func TestKilledWhileCheckpointing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	seed := rand.Uint64() //nolint:forbidigo // it is logged, and can be put here
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var durable [killedObjects]uint64
	total := 0
	for round := range 15 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "LIMPET_ENDTOEND_STORE="+dir)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		after := 1 + rng.IntN(600)
		for s := bufio.NewScanner(out); s.Scan(); {
			var n int
			var count uint64
			switch line := s.Text(); {
			case line == "ready":
			case scan(line, "found %d %d", &n, &count):
				if count < durable[n] {
					t.Errorf("round %d: object %d has count %d, durable was %d", round, n, count, durable[n])
				}
				durable[n] = count
			case scan(line, "durable %d %d", &n, &count):
				durable[n] = count
				total++
				if after--; after == 0 {
					_ = cmd.Process.Kill()
				}
			default:
				t.Errorf("the process says %q", line)
			}
		}
		_ = cmd.Wait() // killed
		if after > 0 {
			t.Fatalf("round %d: the process ended by itself: %s", round, &errs)
		}
	}
	t.Logf("%d commits", total)
}

func scan(line, format string, args ...any) bool {
	n, err := fmt.Sscanf(line, format, args...)
	return err == nil && n == len(args)
}
