package vfs_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// change makes the change from one image to the other, both of whole pages.
func change(pageSize int, before, after []byte) *vfs.Change {
	c := &vfs.Change{PageSize: pageSize, PageCountBefore: uint32(len(before) / pageSize), PageCountAfter: uint32(len(after) / pageSize)}
	for i := 0; i < len(after); i += pageSize {
		p := vfs.PageChange{Pgno: uint32(i/pageSize + 1), After: after[i : i+pageSize]}
		if i < len(before) {
			p.Before = before[i : i+pageSize]
		}
		if !bytes.Equal(p.Before, p.After) {
			c.Pages = append(c.Pages, p)
		}
	}
	return c
}

// The example of the package documentation.
func TestDiffGolden(t *testing.T) {
	before := make([]byte, 4*512)
	after := make([]byte, 5*512)
	copy(after[2*512+100:], "\xaa\xbb")
	copy(after[4*512:], "hi")
	c := change(512, before, after)
	c.Pages = c.Pages[len(c.Pages)-2:]
	got := vfs.AppendDiff(nil, c)
	want, _ := hex.DecodeString("06" + "0264aabb" + "00" + "05" + "02006869" + "00")
	if !bytes.Equal(got, want) {
		t.Errorf("diff %x, want %x", got, want)
	}
}

func TestDiffRoundTrip(t *testing.T) {
	const seed = 3
	r := rand.New(rand.NewPCG(seed, 1))
	t.Log("seed", seed)
	a := vfs.NewAllocator()
	for range 2000 {
		size := 512 << r.IntN(8)
		before := make([]byte, r.IntN(4)*size)
		noise(r, before)
		after := make([]byte, (1+r.IntN(4))*size)
		if r.IntN(3) > 0 {
			copy(after, before)
		}
		for range r.IntN(20) {
			i := r.IntN(len(after))
			noise(r, after[i:min(len(after), i+r.IntN(60))])
		}
		c := change(size, before, after)
		p := vfs.NewPages(a, size)
		load(t, p, before)
		diff := vfs.AppendDiff([]byte("kept"), c)
		if string(diff[:4]) != "kept" {
			t.Fatal("AppendDiff does not append")
		}
		if n := len(diff) - 4; n > len(c.Pages)*(size+12) {
			t.Fatalf("diff of %d bytes for %d pages of %d", n, len(c.Pages), size)
		}
		if err := p.Apply(diff[4:], c.PageCountAfter); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(image(t, p), after) {
			t.Fatal("image differs")
		}
		q := vfs.NewPages(a, size)
		load(t, q, after)
		if p.Checksum() != q.Checksum() {
			t.Fatal("checksum depends on the history")
		}
		p.Release()
		q.Release()
	}
	if a.Bytes() != 0 {
		t.Errorf("%d bytes in use", a.Bytes())
	}
}

func noise(r *rand.Rand, b []byte) {
	for i := range b {
		x := r.Uint32()
		b[i] = byte(x & (x >> 8) & (x >> 16)) // zeroes and equal bytes are frequent
	}
}

func load(t testing.TB, p *vfs.Pages, b []byte) {
	t.Helper()
	if err := p.Load(bytes.NewReader(b), uint32(len(b)/p.PageSize())); err != nil {
		t.Fatal(err)
	}
}

func TestApplyMalformed(t *testing.T) {
	start := bytes.Repeat([]byte{7}, 3*512)
	for name, tc := range map[string]struct {
		diff  string
		count uint32
		text  string
	}{
		"cut head":               {"80", 3, "cut or oversized number"},
		"oversized head":         {"ffffffffffffffffffff7f", 3, "cut or oversized number"},
		"no page":                {"00", 3, "do not ascend"},
		"the same page again":    {"02000000", 3, "do not ascend"},
		"page beyond the end":    {"0800", 3, "beyond the 3 pages"},
		"page 2^32":              {"808080802000", 3, "beyond the 3 pages"},
		"page after truncation":  {"0600", 2, "beyond the 2 pages"},
		"no end of page":         {"02", 3, "cut or oversized number"},
		"no skip":                {"0201", 3, "cut or oversized number"},
		"cut range":              {"020200aa", 3, "cut range"},
		"range passes the page":  {"0202ff03aabb00", 3, "passes the end of page 1"},
		"range longer than page": {"028104" + "00" + strings.Repeat("aa", 513) + "00", 3, "passes the end of page 1"},
		"skip overflows":         {"0201ffffffffffffffffff01aa00", 3, "passes the end"},
		"second range too far":   {"0201ff03aa0100bb00", 3, "passes the end"},
		"bad after good":         {"020100aa00" + "02", 3, "cut or oversized number"},
		"too many pages":         {"", 1 << 31, "pass the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			p := vfs.NewPages(vfs.NewAllocator(), 512)
			load(t, p, start)
			sum := p.Checksum()
			diff, err := hex.DecodeString(tc.diff)
			if err != nil {
				t.Fatal(err)
			}
			err = p.Apply(diff, tc.count)
			if !errors.Is(err, vfs.ErrMalformed) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %v, want %q", err, tc.text)
			}
			if !bytes.Equal(image(t, p), start) || p.Checksum() != sum {
				t.Error("pages changed")
			}
		})
	}
	c := open(t, vfs.NewPages(vfs.NewAllocator(), 512), newRecorder(512), vfs.Options{})
	exec(t, c, schemaKV)
}

// A fresh page starts from zeroes, whatever the replica has.
func TestApplyFresh(t *testing.T) {
	for diff, want := range map[string]string{"0302006869" + "00": "hi", "0300": ""} {
		p := vfs.NewPages(vfs.NewAllocator(), 512)
		load(t, p, bytes.Repeat([]byte{7}, 512))
		b, _ := hex.DecodeString(diff)
		if err := p.Apply(b, 1); err != nil {
			t.Fatal(err)
		}
		after := append([]byte(want), make([]byte, 512-len(want))...)
		q := vfs.NewPages(vfs.NewAllocator(), 512)
		load(t, q, after)
		if !bytes.Equal(image(t, p), after) || p.Checksum() != q.Checksum() {
			t.Errorf("%s: image or checksum differs", diff)
		}
	}
}

func TestApplyWhileOpen(t *testing.T) {
	c, p, _ := newFixture(t, vfs.Options{})
	if err := p.Apply(nil, 1); !errors.Is(err, vfs.ErrOpen) {
		t.Errorf("Apply: %v, want ErrOpen", err)
	}
	if err := p.Load(nil, 0); !errors.Is(err, vfs.ErrOpen) {
		t.Errorf("Load: %v, want ErrOpen", err)
	}
	if got := text(t, c, "SELECT count(*) FROM kv"); got != "60" {
		t.Error(got)
	}
}

// The checksum is stored: these values, made by another program, must never change.
func TestChecksumGolden(t *testing.T) {
	text := []byte(strings.Repeat("a limpet returns to its own place ", 200))
	for _, tc := range []struct {
		size int
		b    []byte
		want uint64
	}{
		{512, nil, 0},
		{512, make([]byte, 512), 0xb55a8fa067537a73},
		{512, make([]byte, 1024), 0x5e8ecde7a3c2dda7},
		{512, text[:512], 0xdebcf3a9edb4c566},
		{512, text[:1024], 0xfe2511fcbbfc9e0},
		{4096, text[:4096], 0xda5402b72fda355b},
		{512, append(make([]byte, 512), text[:512]...), 0x6a5241a1d66521ec},
	} {
		p := vfs.NewPages(vfs.NewAllocator(), tc.size)
		load(t, p, tc.b)
		if got := p.Checksum(); got != tc.want {
			t.Errorf("%d pages of %d bytes: %#x, want %#x", p.PageCount(), tc.size, got, tc.want)
		}
	}
}

func FuzzApply(f *testing.F) {
	f.Add([]byte{}, uint32(3))
	f.Add([]byte{0x06, 0x02, 0x64, 0xaa, 0xbb, 0x00, 0x05, 0x02, 0x00, 0x68, 0x69, 0x00}, uint32(5))
	f.Add([]byte{0x03, 0x00}, uint32(2))
	f.Add([]byte{0x02, 0x02, 0xff, 0x03, 0xaa, 0xbb, 0x00}, uint32(1))
	f.Fuzz(func(t *testing.T, diff []byte, count uint32) {
		count %= 64
		a := vfs.NewAllocator()
		p := vfs.NewPages(a, 512)
		load(t, p, bytes.Repeat([]byte{1, 0, 0}, 512))
		before := image(t, p)
		sum := p.Checksum()
		if err := p.Apply(diff, count); err != nil {
			if !errors.Is(err, vfs.ErrMalformed) {
				t.Fatalf("error %v is no ErrMalformed", err)
			}
			if !bytes.Equal(image(t, p), before) || p.Checksum() != sum {
				t.Fatal("a refused diff changed pages")
			}
			return
		}
		after := image(t, p)
		if len(after) != int(count)*512 {
			t.Fatalf("%d bytes, want %d pages", len(after), count)
		}
		// The diff of the two images leads to the same place.
		q := vfs.NewPages(a, 512)
		load(t, q, before)
		if err := q.Apply(vfs.AppendDiff(nil, change(512, before, after)), count); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(image(t, q), after) || p.Checksum() != q.Checksum() {
			t.Fatal("the diff of the images leads elsewhere")
		}
		p.Release()
		q.Release()
		if a.Bytes() != 0 {
			t.Fatalf("%d bytes in use", a.Bytes())
		}
	})
}

func ExampleAppendDiff() {
	before, after := make([]byte, 512), make([]byte, 512)
	copy(after[100:], "limpet")
	diff := vfs.AppendDiff(nil, &vfs.Change{PageSize: 512, Pages: []vfs.PageChange{{Pgno: 1, Before: before, After: after}}})
	fmt.Printf("%x\n", diff)
	// Output: 0206646c696d70657400
}
