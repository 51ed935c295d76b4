package store

import (
	"flag"
	"fmt"
	"runtime"
	"testing"
)

var listRows = flag.Int("listrows", 50_000, "how many keys TestListMemory lists; the long form is 2,000,000")

// TestListMemory lists a large object, forwards, backwards and by prefix: what is in
// memory for that does not grow with it.
func TestListMemory(t *testing.T) {
	// SPEC H21: bounds of a list, which reads in pieces.
	s := openStore(t, Options{FS: newCrashableDisk().fs, Dir: "data", Clock: systemClock{}, SegmentSize: 64 << 20, NoCheckpoints: true})
	o := openObject(t, s, 1)
	value := make([]byte, 100)
	for i := range *listRows {
		must(t, o.Put(fmt.Sprintf("key %08d", i), value))
		if i%10_000 == 9_999 {
			commit(t, o)
		}
	}
	commit(t, o)
	waitReady(s.log) // a segment that is prepared on this disk is memory too
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	half := fmt.Sprintf("key %08d", *listRows/2)
	for _, tt := range []struct {
		name string
		opt  ListOptions
		want int
	}{
		{"all", ListOptions{}, *listRows},
		{"reverse", ListOptions{Reverse: true}, *listRows},
		{"from", ListOptions{Start: half}, *listRows - *listRows/2},
		{"end", ListOptions{Prefix: "key", End: half, Reverse: true}, *listRows / 2},
		{"after", ListOptions{StartAfter: half, Limit: 1000}, 1000},
	} {
		before := heap()
		n, most := 0, uint64(0)
		for _, err := range o.List(tt.opt) {
			must(t, err)
			if n++; n%(*listRows/5) == 0 {
				most = max(most, heap())
			}
		}
		if n != tt.want {
			t.Errorf("%s: %d keys, want %d", tt.name, n, tt.want)
		}
		if limit := before + 2*chunkBytes + 1<<20; most > limit {
			t.Errorf("%s: %d bytes in memory, %d before", tt.name, most, before)
		}
	}
	// And rows of SQL.
	run(t, o, "CREATE TABLE t AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n LIMIT ?) SELECT i, zeroblob(100) AS b FROM n", *listRows)
	commit(t, o)
	waitReady(s.log)
	before := heap()
	c, err := open(o, "SELECT * FROM t")
	must(t, err)
	n, most := 0, uint64(0)
	for {
		ok, err := c.Next(nil)
		must(t, err)
		if !ok {
			break
		}
		if n++; n%(*listRows/5) == 0 {
			most = max(most, heap())
		}
	}
	if n != *listRows || most > before+1<<20 {
		t.Errorf("%d rows, %d bytes in memory, %d before", n, most, before)
	}
}
