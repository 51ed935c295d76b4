package vfs

import (
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
)

// MinPageSize and MaxPageSize bound the size of a page in bytes. A page size is
// a power of two between them (SQLite file format, 1.3.2).
const (
	MinPageSize = 512
	MaxPageSize = 65536
)

const (
	slabSize = 256 << 10 // bytes of one slab, whatever its page size
	classes  = 8         // 512, 1024 … 65536
	// spareSlabs is how many slabs without a page in use a size keeps, so that
	// a load that swings around a slab's edge does not allocate each time.
	spareSlabs = 2
)

// ValidPageSize reports whether n is a page size SQLite knows: a power of two
// from 512 to 65536.
func ValidPageSize(n int) bool {
	return n >= MinPageSize && n <= MaxPageSize && n&(n-1) == 0
}

// Allocator hands out the pages of all databases of a node. Pages of one size
// come out of slabs of 256 KiB that hold no pointer, so the garbage collector
// neither scans pages nor sees them one by one; a page that comes back is used
// for the next one of its size, and a slab without pages goes back to Go
// (two spare ones per page size are kept).
//
// An Allocator is safe for concurrent use.
type Allocator struct {
	used     atomic.Int64
	reserved atomic.Int64
	class    [classes]class
}

// NewAllocator returns an allocator that holds no memory yet.
func NewAllocator() *Allocator {
	a := &Allocator{}
	for i := range a.class {
		c := &a.class[i]
		c.size = MinPageSize << i
		c.perSlab = slabSize / c.size
		c.shift = bits.TrailingZeros(uint(c.perSlab))
		c.slabs.Store(&[]*slab{})
	}
	return a
}

// Bytes returns the bytes of the pages in use, images before running
// transactions included.
func (a *Allocator) Bytes() int64 { return a.used.Load() }

// Reserved returns the bytes of all slabs, in use or not.
func (a *Allocator) Reserved() int64 { return a.reserved.Load() }

func (a *Allocator) classOf(pageSize int) *class {
	return &a.class[bits.TrailingZeros(uint(pageSize))-9]
}

// ref names one page of a size class: slab number and page in the slab, plus
// one. Zero is no page. References instead of pointers keep the page tables
// of all databases free of pointers too.
type ref uint32

// class is the slabs of one page size.
type class struct {
	size    int
	perSlab int
	shift   int // perSlab = 1 << shift

	mu sync.Mutex
	// slabs only grows, and an element never changes, so a holder of pages may
	// keep a copy and index it without the lock for the pages it owns.
	slabs   atomic.Pointer[[]*slab]
	partial []*slab  // slabs with room
	vacant  []uint32 // numbers of slabs whose memory went back to Go
	empty   int      // slabs in partial without a page in use
}

// slab is 256 KiB of pages. Its fields are guarded by the class's mutex, but
// mem may be read by whoever owns one of its pages: it changes only while
// nobody does.
type slab struct {
	mem  []byte
	num  uint32
	used int
	next int // pages from here on were never handed out
	free ref // chain of pages that came back, through their first 4 bytes
	pos  int // index in partial, -1 when full or vacant
}

// alloc returns a page with undefined content.
func (a *Allocator) alloc(c *class) ref {
	c.mu.Lock()
	if len(c.partial) == 0 {
		c.grow(a)
	}
	s := c.partial[len(c.partial)-1]
	if s.used == 0 {
		c.empty--
	}
	s.used++
	var r ref
	if s.free != 0 {
		r = s.free
		s.free = ref(binary.LittleEndian.Uint32(c.at(s, r)))
	} else {
		r = ref(int(s.num)<<c.shift+s.next) + 1
		s.next++
	}
	if s.used == c.perSlab {
		c.unlist(s)
	}
	c.mu.Unlock()
	a.used.Add(int64(c.size))
	return r
}

// release takes pages back; zero references are skipped.
func (a *Allocator) release(c *class, refs ...ref) {
	n := 0
	c.mu.Lock()
	slabs := *c.slabs.Load()
	for _, r := range refs {
		if r == 0 {
			continue
		}
		n++
		s := slabs[int(r-1)>>c.shift]
		binary.LittleEndian.PutUint32(c.at(s, r), uint32(s.free))
		s.free = r
		if s.used == c.perSlab {
			c.list(s)
		}
		s.used--
		if s.used == 0 {
			c.empty++
			if c.empty > spareSlabs {
				c.drop(a, s)
			}
		}
	}
	c.mu.Unlock()
	a.used.Add(-int64(n) * int64(c.size))
}

// at returns the page r, which lies in slab s.
func (c *class) at(s *slab, r ref) []byte {
	i := (int(r-1) & (c.perSlab - 1)) * c.size
	return s.mem[i : i+c.size : i+c.size]
}

func (c *class) grow(a *Allocator) {
	var s *slab
	if n := len(c.vacant); n > 0 {
		s = (*c.slabs.Load())[c.vacant[n-1]]
		c.vacant = c.vacant[:n-1]
	} else {
		old := *c.slabs.Load()
		s = &slab{num: uint32(len(old))}
		grown := append(old, s) // readers of the shorter slice never look past its end
		c.slabs.Store(&grown)
	}
	s.mem = make([]byte, slabSize)
	s.used, s.next, s.free = 0, 0, 0
	a.reserved.Add(slabSize)
	c.empty++
	c.list(s)
}

func (c *class) drop(a *Allocator, s *slab) {
	c.unlist(s)
	c.empty--
	s.mem = nil
	c.vacant = append(c.vacant, s.num)
	a.reserved.Add(-slabSize)
}

func (c *class) list(s *slab) {
	s.pos = len(c.partial)
	c.partial = append(c.partial, s)
}

func (c *class) unlist(s *slab) {
	last := len(c.partial) - 1
	moved := c.partial[last]
	c.partial[s.pos] = moved
	moved.pos = s.pos
	c.partial[last] = nil
	c.partial = c.partial[:last]
	s.pos = -1
}
