package vfs_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/limpet-dev/limpet/internal/store/vfs"
)

func TestAllocatorGivesBack(t *testing.T) {
	a := vfs.NewAllocator()
	var all []*vfs.Pages
	for _, size := range []int{512, 1024, 2048, 4096, 8192, 16384, 32768, 65536} {
		for range 5 {
			p := vfs.NewPages(a, size)
			load(t, p, bytes.Repeat([]byte{byte(size >> 8)}, 1<<20))
			if p.Bytes() != 1<<20 {
				t.Errorf("%d bytes in use, want 1 MiB", p.Bytes())
			}
			all = append(all, p)
		}
	}
	if a.Bytes() != 40<<20 || a.Reserved() != a.Bytes() {
		t.Errorf("%d bytes in use of %d, want 40 MiB of as much", a.Bytes(), a.Reserved())
	}
	// Every other database goes; what stays is untouched, and the room is used again.
	for i := 0; i < len(all); i += 2 {
		all[i].Release()
	}
	if a.Bytes() != 20<<20 {
		t.Errorf("%d bytes in use, want 20 MiB", a.Bytes())
	}
	for i := 0; i < len(all); i += 2 {
		load(t, all[i], bytes.Repeat([]byte{byte(all[i].PageSize() >> 8)}, 1<<20))
	}
	if a.Bytes() != 40<<20 || a.Reserved() > 44<<20 {
		t.Errorf("%d bytes in use of %d after releasing and loading again", a.Bytes(), a.Reserved())
	}
	for _, p := range all {
		if got := image(t, p); !bytes.Equal(got, bytes.Repeat([]byte{byte(p.PageSize() >> 8)}, 1<<20)) {
			t.Errorf("page size %d: image differs", p.PageSize())
		}
		p.Release()
	}
	if a.Bytes() != 0 || a.Reserved() > 8*2*256<<10 {
		t.Errorf("%d bytes in use of %d after releasing all", a.Bytes(), a.Reserved())
	}
}

// Many connections of one allocator at a time, each with its own database.
func TestConcurrentDatabases(t *testing.T) {
	a := vfs.NewAllocator()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for round := range 5 {
				p := vfs.NewPages(a, 1024<<(i%2))
				r := newRecorder(p.PageSize())
				c, err := vfs.Open(p, r, vfs.Options{CachePages: 4})
				if err != nil {
					t.Error(err)
					return
				}
				exec(t, c, schemaKV)
				for n := range 100 {
					exec(t, c, upsert, n%40, make([]byte, 10*n+round))
				}
				if got := text(t, c, "PRAGMA integrity_check"); got != "ok" {
					t.Error(got)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if !bytes.Equal(image(t, p), image(t, r.replica)) {
					t.Error("replica differs")
				}
				p.Release()
			}
		})
	}
	wg.Wait()
	if a.Bytes() != 0 {
		t.Errorf("%d bytes in use", a.Bytes())
	}
}

func TestPageSizes(t *testing.T) {
	for _, n := range []int{0, -1, 1, 256, 511, 513, 1000, 65535, 131072} {
		if vfs.ValidPageSize(n) {
			t.Errorf("%d is taken for a page size", n)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("NewPages(%d) did not panic", n)
				}
			}()
			vfs.NewPages(vfs.NewAllocator(), n)
		}()
	}
}
