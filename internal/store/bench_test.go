package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	diskfs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/limpet-dev/limpet"
)

// BenchmarkLogAppend makes 136-byte records durable on the real disk (in
// TMPDIR): the limit that all else is compared with.
func BenchmarkLogAppend(b *testing.B) {
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			opt := logOptions{
				fs: diskfs.Default, dir: b.TempDir() + "/log", clock: systemClock{}, identity: testIdentity, first: 1,
				size: DefaultSegmentSize, undurableLimit: DefaultUndurableLimit,
			}
			l, _, _ := openSegmentLog(b, opt)
			waitReady(l)
			rec := make([]byte, 136)
			b.ReportAllocs()
			b.ResetTimer()
			spread(b, callers, func(int) {
				if err := l.Admit(context.Background(), len(rec)); err != nil {
					b.Error(err)
				}
				if err := l.Wait(context.Background(), l.Append(rec)); err != nil {
					b.Error(err)
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(l.stats.records)/float64(max(l.stats.batches, 1)), "records/sync")
			b.ReportMetric(float64(l.stats.bytes)/float64(b.N), "logB/op")
		})
	}
}

// spread runs b.N operations on some goroutines.
func spread(b *testing.B, callers int, op func(caller int)) {
	var n atomic.Int64
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for n.Add(1) <= int64(b.N) {
				op(c)
			}
		})
	}
	wg.Wait()
}

// BenchmarkPutDurable puts 100 bytes into one of 1,000 open objects and waits
// until they are durable on the real disk.
func BenchmarkPutDurable(b *testing.B) {
	const objects = 1000
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s, os := benchObjects(b, objects)
			var locks [objects]sync.Mutex
			var seq atomic.Uint64
			before := s.Stats()
			b.ReportAllocs()
			b.ResetTimer()
			spread(b, callers, func(int) {
				i := seq.Add(1)
				n := int(i * 7919 % objects)
				value := make([]byte, 100)
				binary.LittleEndian.PutUint64(value, i)
				for k := 8; k < 100; k++ {
					value[k] = byte(i>>(k%8)) + byte(k)
				}
				locks[n].Lock()
				err := os[n].Put(fmt.Sprintf("key %d", i%100), value)
				if err != nil {
					b.Error(err)
				}
				p, err := os[n].Commit(nil)
				locks[n].Unlock()
				if err == nil {
					err = s.Wait(context.Background(), p)
				}
				if err != nil {
					b.Error(err)
				}
			})
			b.StopTimer()
			after := s.Stats()
			b.ReportMetric(float64(after.Records-before.Records)/float64(max(after.Batches-before.Batches, 1)), "records/sync")
			b.ReportMetric(float64(after.LogBytes-before.LogBytes)/float64(b.N), "logB/op")
		})
	}
}

// BenchmarkPut is one hot object that does not wait.
func BenchmarkPut(b *testing.B) {
	s, os := benchObjects(b, 1)
	value := make([]byte, 100)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		binary.LittleEndian.PutUint64(value, uint64(i))
		if err := os[0].Put("key", value); err != nil {
			b.Fatal(err)
		}
		if _, err := os[0].Commit(nil); err != nil {
			b.Fatal(err)
		}
		if s.Full() {
			must(b, s.WaitRoom(context.Background()))
		}
	}
}

// BenchmarkPutSQL is BenchmarkPut as an upsert in SQL, with a SELECT of it in the turn.
func BenchmarkPutSQL(b *testing.B) {
	s, os := benchObjects(b, 1)
	run(b, os[0], "CREATE TABLE t(key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")
	value := make([]byte, 100)
	args := []limpet.SQLArg{sqlArg("key"), sqlArg(value)}
	row := make([]limpet.SQLValue, 1)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		binary.LittleEndian.PutUint64(value, uint64(i))
		if _, _, err := os[0].Query(context.Background(), "INSERT INTO t VALUES(?,?) ON CONFLICT(key) DO UPDATE SET value=excluded.value", args); err != nil {
			b.Fatal(err)
		}
		c, _, err := os[0].Query(context.Background(), "SELECT value FROM t WHERE key=?", args[:1])
		if err != nil {
			b.Fatal(err)
		}
		if ok, err := c.Next(row); !ok || err != nil {
			b.Fatal(ok, err)
		}
		must(b, c.Close())
		if _, err := os[0].Commit(nil); err != nil {
			b.Fatal(err)
		}
		if s.Full() {
			must(b, s.WaitRoom(context.Background()))
		}
	}
}

// BenchmarkLargeCommit makes commits of 40 MiB durable, which are spilled.
func BenchmarkLargeCommit(b *testing.B) {
	s, os := benchObjects(b, 1)
	values := [2][]byte{noise(1, 10<<20), noise(2, 10<<20)}
	b.SetBytes(40 << 20)
	for i := 0; b.Loop(); i++ {
		for k := range 4 {
			must(b, os[0].Put(fmt.Sprint("large ", k), values[i%2]))
		}
		p, err := os[0].Commit(nil)
		must(b, err)
		must(b, s.Wait(context.Background(), p))
	}
	if n := s.Stats().Spilled; n != int64(b.N) {
		b.Errorf("%d of %d commits were spilled", n, b.N)
	}
}

// BenchmarkGet reads one key of a hot object.
func BenchmarkGet(b *testing.B) {
	_, os := benchObjects(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok, err := os[0].Get("key 7"); err != nil || !ok {
			b.Fatal(ok, err)
		}
	}
}

// benchObjects are open objects with 100 keys of 100 bytes each.
func benchObjects(b *testing.B, n int) (*Store, []*Object) {
	opt := Options{Dir: b.TempDir() + "/data", Clock: systemClock{}}
	s := openStore(b, opt)
	waitReady(s.log)
	os := make([]*Object, n)
	for i := range os {
		os[i] = openObject(b, s, i)
		must(b, os[i].Transaction(func() error {
			for k := range 100 {
				if err := os[i].Put(fmt.Sprintf("key %d", k), make([]byte, 100)); err != nil {
					return err
				}
			}
			return nil
		}))
		_, err := os[i].Commit(nil)
		must(b, err)
	}
	must(b, s.Wait(context.Background(), os[n-1].LastPos()))
	b.ReportMetric(float64(s.Stats().PageBytes)/float64(n), "pageB/object")
	return s, os
}

// BenchmarkReplay opens a log with 100,000 records of 1,000 objects.
func BenchmarkReplay(b *testing.B) {
	mem := diskfs.NewMem()
	opt := Options{FS: mem, Dir: "data", Clock: systemClock{}}
	s := openStore(b, opt)
	const objects, records = 1000, 100_000
	os := make([]*Object, objects)
	for i := range os {
		os[i] = openObject(b, s, i)
	}
	for i := range records {
		o := os[i%objects]
		must(b, o.Put(fmt.Sprint(i%17), []byte(fmt.Sprintf("%0100d", i))))
		_, err := o.Commit(nil)
		must(b, err)
	}
	for _, o := range os {
		must(b, o.Close())
	}
	must(b, s.Close())
	for b.Loop() {
		s, err := Open(context.Background(), opt)
		must(b, err)
		b.StopTimer()
		b.ReportMetric(float64(s.replay.Records), "records")
		must(b, s.Close())
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*records), "ns/record")
}
