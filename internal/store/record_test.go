package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// encode is the encoder as Object puts it together.
func (r *record) encode(c *vfs.Change) []byte {
	b := appendRecordStart(nil, SlotOf(r.id), &r.id, r.txid, r.prev)
	if r.birth != nil {
		b = appendBirth(b, r.birth)
	}
	if c == nil && r.pages != nil { // without a diff
		c = &vfs.Change{PageSize: r.pages.pageSize, PageCountAfter: r.pages.pageCount, ChecksumAfter: r.pages.checksum}
	}
	if c != nil {
		b = appendPages(b, c)
	}
	if len(r.identities) > 0 {
		b = appendIdentities(b, r.identities)
	}
	if r.deleted {
		b = appendDeletion(b)
	}
	if r.piece != nil {
		b = append(appendPiece(b, r.piece.number, len(r.piece.diff)), r.piece.diff...)
	}
	if r.spilled != nil {
		b = appendSpilled(b, *r.spilled)
	}
	if len(r.kept) > 0 {
		b = appendKept(b, r.kept)
	}
	return b
}

var allowRecord = cmp.AllowUnexported(record{}, pagesSection{}, pieceSection{}, spilledSection{})

func sampleChange(pages int) *vfs.Change {
	c := &vfs.Change{PageSize: 4096, PageCountAfter: uint32(pages), ChecksumAfter: 0x0123456789abcdef}
	for i := range pages {
		c.Pages = append(c.Pages, vfs.PageChange{Pgno: uint32(i + 1), After: bytes.Repeat([]byte{byte(i + 1)}, 4096)})
	}
	return c
}

func TestRecord(t *testing.T) {
	for name, r := range map[string]record{
		"plain":      {id: objectID(1), txid: 1},
		"birth":      {id: objectID(300), txid: 1, birth: &Birth{Class: "Cart", Name: strings.Repeat("n", 40_000), Named: true}},
		"empty name": {id: objectID(2), txid: 1, birth: &Birth{Class: "C", Named: true}},
		"no name":    {id: objectID(2), txid: 1, birth: &Birth{Class: "C"}},
		"kept": {id: objectID(4), txid: 1, kept: []Kept{
			{ID: identity(1), Kind: 1, Data: bytes.Repeat([]byte("x"), 64<<10)},
			{Keyed: true, ID: identity(2), Claimed: true, Print: [32]byte{1, 31: 2}, ClaimedMS: -5},
			{Keyed: true, ID: identity(3), Claimed: true, Print: [32]byte{3}, ClaimedMS: 1 << 50, Kind: 200, Data: []byte{}},
		}},
		"identities": {id: objectID(3), txid: 1 << 60, prev: 1<<60 - 1, identities: []limpet.Identity{identity(1), {}, identity(3)}},
		"spilled": {id: objectID(6), txid: 3, prev: 2, pages: &pagesSection{pageSize: 512, pageCount: 9, checksum: 1, diff: []byte{}},
			spilled: &spilledSection{pieces: 1 << 40, bytes: 300, checksum: 0xdeadbeef}},
		"piece":    {id: objectID(6), txid: 3, prev: 2, piece: &pieceSection{number: 200, diff: []byte("diff")}},
		"deletion": {id: objectID(4), txid: 9, prev: 8, deleted: true, identities: []limpet.Identity{identity(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodeRecord(r.encode(nil))
			if err != nil {
				t.Fatal(err)
			}
			must(t, got.checkSlot())
			r.slot = SlotOf(r.id)
			if diff := cmp.Diff(r, got, allowRecord); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, pages := range []int{0, 1, 3, 5, 600} { // lengths of one to four bytes
		c := sampleChange(pages)
		r := record{id: objectID(5), txid: 2, prev: 1, birth: &Birth{Class: "X"}, identities: []limpet.Identity{identity(1)}}
		got, err := decodeRecord(r.encode(c))
		if err != nil {
			t.Fatal(err)
		}
		p := got.pages
		if p == nil || p.pageSize != 4096 || p.pageCount != uint32(pages) || p.checksum != c.ChecksumAfter || !bytes.Equal(p.diff, vfs.AppendDiff(nil, c)) {
			t.Errorf("%d pages: %+v", pages, p)
		}
	}
}

// TestRecordGolden: these bytes are on disks.
func TestRecordGolden(t *testing.T) {
	r := record{id: objectID(1), txid: 300, prev: 299, birth: &Birth{Class: "Cart", Name: "u", Named: true}, identities: []limpet.Identity{identity(1)}}
	c := sampleChange(1)
	c.Pages[0].After = make([]byte, 4096)
	c.Pages[0].After[100] = 'x'
	want := "01d0" + "01" + strings.Repeat("00", 31) +
		"01" + "04" + "ac02" + "ab02" +
		"02" + "07" + "04" + "43617274" + "01" + "75" +
		"03" + "0f" + "0c" + "01" + "efcdab8967452301" + "03" + "01" + "64" + "78" + "00" +
		"04" + "18" + "01" + strings.Repeat("00", 15) + "0168e5cf8b010000"
	if got := hexString(r.encode(c)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// Of a spilled commit: a piece, and the last record.
	piece := record{id: objectID(1), txid: 300, prev: 299, piece: &pieceSection{number: 2, diff: []byte{3, 1, 100, 'x', 0}}}
	want = "01d0" + "01" + strings.Repeat("00", 31) +
		"01" + "04" + "ac02" + "ab02" +
		"06" + "06" + "02" + "03" + "01" + "64" + "78" + "00"
	if got := hexString(piece.encode(nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r.spilled = &spilledSection{pieces: 3, bytes: 300, checksum: 0x01020304}
	c.Pages = nil
	want = "01d0" + "01" + strings.Repeat("00", 31) +
		"01" + "04" + "ac02" + "ab02" +
		"02" + "07" + "04" + "43617274" + "01" + "75" +
		"03" + "0a" + "0c" + "01" + "efcdab8967452301" +
		"04" + "18" + "01" + strings.Repeat("00", 15) + "0168e5cf8b010000" +
		"07" + "07" + "03" + "ac02" + "04030201"
	if got := hexString(r.encode(c)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := SlotOf(objectID(1)); got != binary.BigEndian.Uint16(r.encode(nil)) {
		t.Errorf("slot %04x", got)
	}
}

func hexString(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

func TestRecordRefused(t *testing.T) {
	good := record{id: objectID(1), txid: 2, prev: 1}
	head := good.encode(nil)
	noDiff := good.encode(sampleChange(0))
	for name, b := range map[string][]byte{
		"empty":                nil,
		"short":                head[:recordHeaderSize-1],
		"no section":           head[:recordHeaderSize],
		"section too long":     append(bytes.Clone(head), sectionIdentities, 24, 1, 2),
		"section twice":        append(bytes.Clone(head), head[recordHeaderSize:]...),
		"sections unordered":   append(bytes.Clone(head), sectionDeletion, 0, sectionIdentities, 0),
		"section zero":         append(bytes.Clone(head), 0, 0),
		"identities odd":       append(bytes.Clone(head), sectionIdentities, 1, 0),
		"identities none":      append(bytes.Clone(head), sectionIdentities, 0),
		"deletion with bytes":  append(bytes.Clone(head), sectionDeletion, 1, 0),
		"page size":            append(bytes.Clone(head), sectionPages, 10, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0),
		"page count":           append(bytes.Clone(head), sectionPages, 3, 12, 0x80, 0x80),
		"birth":                append(bytes.Clone(head), sectionBirth, 2, 9, 'x'),
		"name of none":         append(bytes.Clone(head), sectionBirth, 4, 1, 'C', 0, 'n'),
		"named twice":          append(bytes.Clone(head), sectionBirth, 3, 1, 'C', 2),
		"piece empty":          append(bytes.Clone(head), sectionPiece, 1, 0),
		"piece and more":       append(bytes.Clone(head), sectionPiece, 2, 0, 9, sectionSpilled, 6, 1, 1, 0, 0, 0, 0),
		"piece with others":    append(bytes.Clone(head), sectionDeletion, 0, sectionPiece, 2, 0, 9),
		"spilled without diff": append(bytes.Clone(head), sectionSpilled, 6, 1, 1, 0, 0, 0, 0),
		"spilled, no pieces":   append(bytes.Clone(noDiff), sectionSpilled, 6, 0, 1, 0, 0, 0, 0),
		"spilled, cut":         append(bytes.Clone(noDiff), sectionSpilled, 5, 1, 1, 0, 0, 0),
		"spilled, empty":       append(bytes.Clone(noDiff), sectionSpilled, 0),
		"spilled, and a diff":  append(good.encode(sampleChange(1)), sectionSpilled, 6, 1, 1, 0, 0, 0, 0),
		"kept, empty":          append(bytes.Clone(head), sectionKept, 0),
		"kept, short":          append(bytes.Clone(head), append([]byte{sectionKept, 24, keptOutcome}, make([]byte, 23)...)...),
		"kept, says nothing":   append(bytes.Clone(head), append([]byte{sectionKept, 25, keptKeyed}, make([]byte, 24)...)...),
		"kept, unknown flag":   append(bytes.Clone(head), append([]byte{sectionKept, 27, 8 | keptOutcome}, append(make([]byte, 24), 1, 0)...)...),
		"kept, no kind":        append(bytes.Clone(head), append([]byte{sectionKept, 27, keptOutcome}, append(make([]byte, 24), 0, 0)...)...),
		"kept, data cut":       append(bytes.Clone(head), append([]byte{sectionKept, 27, keptOutcome}, append(make([]byte, 24), 1, 1)...)...),
		"kept, claim cut":      append(bytes.Clone(head), append([]byte{sectionKept, 64, keptKeyed | keptClaimed}, make([]byte, 63)...)...),
		"kept, claim, no key":  append(bytes.Clone(head), append([]byte{sectionKept, 65, keptClaimed}, make([]byte, 64)...)...),
		"txid not above":       (&record{id: objectID(1), txid: 1, prev: 1}).encode(nil),
	} {
		if r, err := decodeRecord(b); !errors.Is(err, errMalformedRecord) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	for _, section := range []byte{sectionAlarm, sectionMax + 1, 99} {
		var format *FormatError
		if _, err := decodeRecord(append(bytes.Clone(head), section, 1, 0)); !errors.As(err, &format) || format.Found != uint64(section) {
			t.Errorf("section %d: %v, want a newer format", section, err)
		}
	}
}

// replayRecords opens a store whose log holds these records.
func replayRecords(t *testing.T, records ...[]byte) (*Store, error) {
	t.Helper()
	d := newCrashableDisk()
	s := openStore(t, testOptions(d))
	for _, b := range records {
		must(t, s.log.Admit(t.Context(), len(b)))
		must(t, s.Wait(t.Context(), s.log.Append(b)))
	}
	must(t, s.Close())
	n, err := Open(context.Background(), testOptions(d))
	if err != nil {
		return n, err
	}
	t.Cleanup(func() { _ = n.Close() })
	for _, e := range n.objects {
		err = errors.Join(err, n.load(e))
	}
	return n, err
}

// TestReplay: what replay accepts, and that it names the file, the place and
// the object of what it refuses.
func TestReplay(t *testing.T) {
	birth := &Birth{Class: "Cart"}
	first := record{id: objectID(1), txid: 1, birth: birth}
	second := record{id: objectID(1), txid: 2, prev: 1}
	s, err := replayRecords(t, first.encode(nil), first.encode(nil), second.encode(nil), first.encode(nil), second.encode(nil))
	if err != nil || s.Stats().Objects != 1 {
		t.Fatalf("records that come again must be passed over: %v", err)
	}
	other := record{id: objectID(2), txid: 1, birth: birth}
	wrongSum := sampleChange(1)
	malformed := sampleChange(1)
	malformed.Pages[0].Pgno = 2
	otherSize := sampleChange(0)
	otherSize.PageSize, otherSize.ChecksumAfter = 8192, 0
	empty := sampleChange(0)
	empty.ChecksumAfter = 0
	for name, c := range map[string]struct {
		records [][]byte
		reason  string
	}{
		"gap":                    {[][]byte{first.encode(nil), (&record{id: objectID(1), txid: 4, prev: 3}).encode(nil)}, "transaction 4 follows 3, but the last one is 1"},
		"no birth":               {[][]byte{(&record{id: objectID(1), txid: 1}).encode(nil)}, "was not born"},
		"two births":             {[][]byte{first.encode(nil), (&record{id: objectID(1), txid: 2, prev: 1, birth: birth}).encode(nil)}, "born again"},
		"checksum":               {[][]byte{first.encode(wrongSum)}, "and must have 0123456789abcdef"},
		"checksum before others": {[][]byte{first.encode(wrongSum), other.encode(nil), second.encode(nil)}, "after transaction 1 the pages"},
		"diff":                   {[][]byte{first.encode(malformed)}, "malformed page diff"},
		"page size":              {[][]byte{first.encode(empty), second.encode(otherSize)}, "pages of 8192 bytes"},
		"slot":                   {[][]byte{append([]byte{first.encode(nil)[0] ^ 1}, first.encode(nil)[1:]...)}, "is not that of object"},
		"slot later":             {[][]byte{first.encode(nil), append([]byte{second.encode(nil)[0] ^ 1}, second.encode(nil)[1:]...)}, "is not that of object"},
		"garbage":                {[][]byte{[]byte("garbage")}, "malformed record"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := replayRecords(t, c.records...)
			var damage *DamageError
			if !errors.As(err, &damage) || !strings.Contains(err.Error(), c.reason) {
				t.Fatalf("got %v, want damage: %s", err, c.reason)
			}
			if damage.File != "data/log/00000001.seg" || damage.Offset < segmentHeaderSize || damage.Remedy == "" {
				t.Errorf("file %q, offset %d, remedy %q", damage.File, damage.Offset, damage.Remedy)
			}
		})
	}
	newer := append(first.encode(nil), sectionAlarm, 1, 0)
	_, err = replayRecords(t, newer)
	var format *FormatError
	if !errors.As(err, &format) || format.File != "data/log/00000001.seg" || !strings.Contains(err.Error(), "written by a newer limpet") {
		t.Errorf("a newer record: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	r := record{id: objectID(1), txid: 2, prev: 1, birth: &Birth{Class: "Cart", Name: "n", Named: true}, identities: []limpet.Identity{identity(1)}}
	f.Add(r.encode(sampleChange(1)))
	f.Add((&record{id: objectID(1), txid: 1, deleted: true}).encode(nil))
	f.Add((&record{id: objectID(1), txid: 1, kept: []Kept{{Keyed: true, ID: identity(1), Claimed: true, ClaimedMS: 7, Kind: 2, Data: []byte("out")}}}).encode(nil))
	f.Add((&record{id: objectID(1), txid: 1, piece: &pieceSection{number: 300, diff: []byte{3, 1, 100, 'x', 0}}}).encode(nil))
	f.Add((&record{id: objectID(1), txid: 1, pages: &pagesSection{pageSize: 512}, spilled: &spilledSection{pieces: 2, bytes: 200}}).encode(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			var format *FormatError
			if !errors.Is(err, errMalformedRecord) && !errors.As(err, &format) {
				t.Fatalf("error of neither kind: %v", err)
			}
			return
		}
		if r.pages != nil { // applied as replay does
			_ = vfs.NewPages(vfs.NewAllocator(), r.pages.pageSize).Apply(r.pages.diff, min(r.pages.pageCount, 1000))
		}
		if r.piece != nil {
			_ = vfs.NewPages(vfs.NewAllocator(), 512).Apply(r.piece.diff, 1000)
		}
		if r.pages != nil && len(r.pages.diff) > 0 {
			return // what encodes a diff needs its pages
		}
		r.slot = SlotOf(r.id)
		again, err := decodeRecord(r.encode(nil))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, again, allowRecord); diff != "" {
			t.Error(diff)
		}
	})
}
