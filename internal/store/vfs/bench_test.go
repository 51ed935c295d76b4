package vfs_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// logSink does what a log would with a commit: the diff into a buffer.
type logSink struct{ buf []byte }

func (s *logSink) Admit(c *vfs.Change) error {
	s.buf = vfs.AppendDiff(s.buf[:0], c)
	return nil
}
func (s *logSink) Publish() {}
func (s *logSink) Abandon() {}

const (
	schemaKV = "CREATE TABLE kv(key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID"
	upsert   = "INSERT INTO kv VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET value=excluded.value"
)

// BenchmarkPut is one upsert of 100 B in its own commit, over 1,000 keys.
func BenchmarkPut(b *testing.B) {
	for _, size := range []int{1024, 4096} {
		for _, cache := range []int{2, 4, 8, 16, 200} {
			b.Run(fmt.Sprintf("page=%d/cache=%d", size, cache), func(b *testing.B) {
				p := vfs.NewPages(vfs.NewAllocator(), size)
				s := &logSink{}
				c := open(b, p, s, vfs.Options{CachePages: cache})
				exec(b, c, schemaKV)
				keys := fill(b, c, 1000)
				st := c.Raw().Prep(upsert)
				value := make([]byte, 100)
				bytes := 0
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					i++
					binary.LittleEndian.PutUint32(value, uint32(i))
					for j := 4; j < len(value); j++ {
						value[j] = value[j-4]*31 + byte(j)
					}
					st.BindText(1, keys[i*7%1000])
					st.BindBytes(2, value)
					if _, err := st.Step(); err != nil {
						b.Fatal(err)
					}
					_ = st.Reset()
					bytes += len(s.buf)
				}
				b.ReportMetric(float64(bytes)/float64(i), "diff-B/op")
			})
		}
	}
}

func BenchmarkGet(b *testing.B) {
	for _, cache := range []int{2, 4, 8, 16, 200} {
		b.Run(fmt.Sprintf("cache=%d", cache), func(b *testing.B) {
			c := open(b, vfs.NewPages(vfs.NewAllocator(), 4096), &logSink{}, vfs.Options{CachePages: cache})
			exec(b, c, schemaKV)
			keys := fill(b, c, 1000)
			st := c.Raw().Prep("SELECT value FROM kv WHERE key=?1")
			buf := make([]byte, 200)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				st.BindText(1, keys[i*7%1000])
				if row, err := st.Step(); err != nil || !row {
					b.Fatal(row, err)
				}
				st.ColumnBytes(0, buf)
				_ = st.Reset()
			}
		})
	}
}

// BenchmarkGetBig reads one blob of 1 MiB.
func BenchmarkGetBig(b *testing.B) {
	c := open(b, vfs.NewPages(vfs.NewAllocator(), 4096), &logSink{}, vfs.Options{})
	exec(b, c, schemaKV)
	exec(b, c, upsert, "big", make([]byte, 1<<20))
	st := c.Raw().Prep("SELECT value FROM kv WHERE key=?1")
	buf := make([]byte, 1<<20)
	b.SetBytes(1 << 20)
	for b.Loop() {
		st.BindText(1, "big")
		if row, err := st.Step(); err != nil || !row {
			b.Fatal(row, err)
		}
		st.ColumnBytes(0, buf)
		_ = st.Reset()
	}
}

// BenchmarkOpen opens a connection over resident pages, reads one value and closes.
func BenchmarkOpen(b *testing.B) {
	p := vfs.NewPages(vfs.NewAllocator(), 4096)
	c := open(b, p, &logSink{}, vfs.Options{})
	exec(b, c, schemaKV)
	exec(b, c, upsert, "k", "v")
	_ = c.Close()
	for _, get := range []bool{false, true} {
		b.Run(fmt.Sprintf("get=%v", get), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c, err := vfs.Open(p, &logSink{}, vfs.Options{})
				if err != nil {
					b.Fatal(err)
				}
				if get {
					st := c.Raw().Prep("SELECT value FROM kv WHERE key=?1")
					st.BindText(1, "k")
					if row, err := st.Step(); err != nil || !row {
						b.Fatal(row, err)
					}
				}
				if err := c.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkResident reports the memory of an idle object with storage: a
// table of 20 keys, a put and a get statement prepared.
func BenchmarkResident(b *testing.B) {
	for _, size := range []int{1024, 2048, 4096} {
		for _, trim := range []bool{false, true} {
			b.Run(fmt.Sprintf("page=%d/trim=%v", size, trim), func(b *testing.B) {
				const n = 500
				a := vfs.NewAllocator()
				before := rss(b)
				conns := make([]*vfs.Conn, n)
				var sqlite int64
				for i := range conns {
					c, err := vfs.Open(vfs.NewPages(a, size), &logSink{}, vfs.Options{})
					if err != nil {
						b.Fatal(err)
					}
					conns[i] = c
					exec(b, c, schemaKV)
					fill(b, c, 20)
					c.Raw().Prep("SELECT value FROM kv WHERE key=?1")
					c.Raw().Prep(upsert)
					if trim {
						c.Trim()
					}
					sqlite += c.MemoryUsed()
				}
				after := rss(b)
				for b.Loop() {
				}
				b.ReportMetric(float64(after-before)/n/1024, "KiB/object")
				b.ReportMetric(float64(sqlite)/n/1024, "SQLite-KiB/object")
				b.ReportMetric(float64(a.Bytes())/n/1024, "pages-KiB/object")
				for _, c := range conns {
					_ = c.Close()
				}
			})
		}
	}
}

func fill(b *testing.B, c *vfs.Conn, n int) []string {
	keys := make([]string, n)
	exec(b, c, "BEGIN")
	for i := range keys {
		keys[i] = fmt.Sprintf("key%05d", i)
		exec(b, c, upsert, keys[i], make([]byte, 100))
	}
	exec(b, c, "COMMIT")
	return keys
}

// rss returns the resident memory of the process in bytes.
func rss(b *testing.B) int64 {
	runtime.GC()
	n, err := readRSS()
	if err != nil {
		b.Skip(err)
	}
	return n
}
