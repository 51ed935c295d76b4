package limpet_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/limpet-dev/limpet"
)

// contains checks that an error's text has all of the words.
func contains(t testing.TB, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error does not name %q: %v", w, err)
		}
	}
}

func namespaceOfClass(t testing.TB, classIdentity string) limpet.Namespace[any] {
	t.Helper()
	n := nodeOf(nil, nil)
	n.binding.ClassIdentity = classIdentity
	return namespace[any](t, n)
}

func in(ns limpet.Namespace[any], jurisdiction string) limpet.Namespace[any] {
	if jurisdiction == "" {
		return ns
	}
	return ns.Jurisdiction(jurisdiction)
}

// vector is one line of testdata/ids.json: the ID that this name has for ever.
// The file was made by another program in another language; it only ever grows.
type vector struct {
	Class        string
	Jurisdiction string
	Name         string // Times times, if that is not 0
	Times        int
	ID           string
}

func vectors(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/ids.json")
	if err != nil {
		t.Fatal(err)
	}
	var vs []vector
	if err := json.Unmarshal(b, &vs); err != nil {
		t.Fatal(err)
	}
	for i := range vs {
		vs[i].Name = strings.Repeat(vs[i].Name, max(vs[i].Times, 1))
	}
	return vs
}

// hmacByHand is HMAC-SHA-256 as RFC 2104 section 2 writes it.
func hmacByHand(key, message []byte) []byte {
	var inner, outer [64]byte
	copy(inner[:], key) // the keys of this test are shorter than a block
	copy(outer[:], key)
	for i := range inner {
		inner[i] ^= 0x36
		outer[i] ^= 0x5c
	}
	h := sha256.Sum256(append(inner[:], message...))
	h = sha256.Sum256(append(outer[:], h[:]...))
	return h[:]
}

func idByHand(class, jurisdiction, name string) string {
	key := sha256.Sum256([]byte(class))
	suffix := ""
	if jurisdiction != "" {
		suffix = "\x00" + jurisdiction
	}
	head := hmacByHand(key[:], []byte(name+suffix))[:16]
	tail := hmacByHand(key[:], []byte(string(head)+suffix))[:16]
	return hex.EncodeToString(append(head, tail...))
}

func TestIDGoldenVectors(t *testing.T) {
	vs := vectors(t)
	if len(vs) < 125 {
		t.Fatalf("got %d vectors: some were lost", len(vs))
	}
	seen := map[string]string{}
	for _, v := range vs {
		short := v.Class + "/" + v.Jurisdiction + "/" + v.Name[:min(len(v.Name), 20)]
		ns := in(namespaceOfClass(t, v.Class), v.Jurisdiction)
		id, err := ns.IDFromName(v.Name)
		if err != nil {
			t.Errorf("%s: %v", short, err)
			continue
		}
		// SPEC A1, A2, A3: the bytes are a function of class, jurisdiction and
		// name; the second half proves the namespace.
		if got := id.String(); got != v.ID {
			t.Errorf("%s: got ID %s, want %s", short, got, v.ID)
		}
		if got := idByHand(v.Class, v.Jurisdiction, v.Name); got != v.ID {
			t.Errorf("%s: computed by hand %s, want %s", short, got, v.ID)
		}
		// SPEC A23: one name is another ID in each jurisdiction.
		if other, ok := seen[v.ID]; ok {
			t.Errorf("%s and %s have one ID", short, other)
		}
		seen[v.ID] = short
		if v.ID != strings.ToLower(v.ID) || len(v.ID) != 64 {
			t.Errorf("%s: ID %s is not 64 lower-case hex digits", short, v.ID)
		}
		// SPEC A11, A13: the ID made from a name tells name and jurisdiction.
		if name, ok := id.Name(); !ok || name != v.Name {
			t.Errorf("%s: the ID's name is %.40q, %v", short, name, ok)
		}
		if got := id.Jurisdiction(); got != v.Jurisdiction {
			t.Errorf("%s: the ID's jurisdiction is %q", short, got)
		}
		// SPEC A9: read back from its digits it is the same object without a name.
		back, err := ns.IDFromString(v.ID)
		if err != nil || !back.Equal(id) || back.Jurisdiction() != v.Jurisdiction {
			t.Errorf("%s: read back: %v %v", short, back, err)
		}
		if name, ok := back.Name(); ok {
			t.Errorf("%s: an ID read from digits has the name %q", short, name)
		}
	}
}

func TestIDNames(t *testing.T) {
	ns := namespaceOfClass(t, "Cart")
	for _, c := range []struct {
		what, name string
		refused    []string // words of the error; nil: accepted
	}{
		{"empty", "", nil},
		{"10,000 characters of one byte", strings.Repeat("n", 10_000), nil},
		{"10,000 characters of three bytes", strings.Repeat("漢", 10_000), nil},
		{"NUL", "a\x00b", nil},
		{"at the limit", strings.Repeat("n", limpet.MaxNameBytes), nil},
		{"over the limit", strings.Repeat("n", limpet.MaxNameBytes+1), []string{"32769", "32768", "too long"}},
		{"invalid UTF-8", "ok\xff", []string{"UTF-8", `ok\xff`}},
		{"half a character", "大"[:2], []string{"UTF-8"}},
		{"a surrogate in UTF-8", "\xed\xa0\x80", []string{"UTF-8"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			id, err := ns.IDFromName(c.name)
			stub := ns.Named(c.name)
			if c.refused == nil {
				// SPEC A7: the empty name and 10,000 characters are valid.
				if err != nil || id.IsZero() || stub.Err() != nil {
					t.Errorf("got %v, %v, %v", id, err, stub.Err())
				}
				return
			}
			refused(t, err, limpet.CodeInvalidArgument, c.refused...)
			if !id.IsZero() {
				t.Errorf("a refused name has the ID %v", id)
			}
			// SPEC A14: the stub knows at once.
			refused(t, stub.Err(), limpet.CodeInvalidArgument, c.refused...)
		})
	}
}

func TestIDFromString(t *testing.T) {
	ns := namespaceOfClass(t, "Cart")
	id, err := ns.IDFromName("user-123")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := namespaceOfClass(t, "Other").IDFromName("user-123")
	if err != nil {
		t.Fatal(err)
	}
	flipped := id.Bytes()
	flipped[31] ^= 1
	const malformed, notOurs = "Invalid Durable Object ID: must be 64 hex digits", "Durable Object ID is not valid for this namespace."
	for _, c := range []struct{ what, digits, refused string }{
		{"as printed", id.String(), ""},
		{"upper case", strings.ToUpper(id.String()), ""},
		{"mixed case", strings.ToUpper(id.String()[:20]) + id.String()[20:], ""},
		{"empty", "", malformed},
		{"63 digits", id.String()[1:], malformed},
		{"65 digits", id.String() + "0", malformed},
		{"no digit", id.String()[:63] + "g", malformed},
		{"a space", " " + id.String()[1:], malformed},
		{"a sign", "+" + id.String()[1:], malformed},
		{"64 bytes of characters", strings.Repeat("é", 32), malformed},
		{"a million digits", strings.Repeat("0", 1_000_000), malformed},
		{"another class", foreign.String(), notOurs},
		{"zeros", strings.Repeat("0", 64), notOurs},
		{"one bit of the proof", hex.EncodeToString(flipped[:]), notOurs},
	} {
		t.Run(c.what, func(t *testing.T) {
			// SPEC A8
			got, err := ns.IDFromString(c.digits)
			if c.refused == "" {
				if err != nil || !got.Equal(id) || got.String() != id.String() {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			refused(t, err, limpet.CodeInvalidArgument)
			if e := asError(t, err); e.Error() != c.refused || e.Name != "TypeError" {
				t.Errorf("got %s %q, want %q", e.Name, e.Error(), c.refused)
			}
			if !got.IsZero() {
				t.Errorf("a refused ID is %v", got)
			}
		})
	}
}

func TestIDUnique(t *testing.T) {
	ns := namespaceOfClass(t, "Cart")
	seen := map[string]bool{}
	for _, j := range []string{"", "eu", "us", "fedramp", "fedramp-high"} {
		for range 100 {
			// SPEC A4: random, nameless, and it proves its namespace (A2).
			id := in(ns, j).NewUniqueID()
			if seen[id.String()] {
				t.Fatalf("%v came twice", id)
			}
			seen[id.String()] = true
			if name, ok := id.Name(); ok {
				t.Errorf("a unique ID has the name %q", name)
			}
			back, err := ns.IDFromString(id.String())
			if err != nil || !back.Equal(id) || back.Jurisdiction() != j || id.Jurisdiction() != j {
				t.Errorf("%q: read back %v in %q, %v", j, back, back.Jurisdiction(), err)
			}
		}
	}
}

func TestIDEqual(t *testing.T) {
	ns := namespaceOfClass(t, "Cart")
	a, _ := ns.IDFromName("a")
	again, _ := namespaceOfClass(t, "Cart").IDFromName("a")
	b, _ := ns.IDFromName("b")
	other, _ := namespaceOfClass(t, "Other").IDFromName("a")
	digits, _ := ns.IDFromString(a.String())
	// SPEC A3, A10: one name is one ID, in whatever process; IDs of other
	// namespaces are not equal.
	if !a.Equal(again) || !a.Equal(digits) || a.Equal(b) || a.Equal(other) {
		t.Errorf("%v %v %v %v %v", a, again, digits, b, other)
	}
	if !(limpet.ID{}).IsZero() || a.IsZero() {
		t.Error("IsZero is wrong")
	}
	text, err := json.Marshal(a)
	if err != nil || string(text) != `"`+a.String()+`"` {
		t.Errorf("as JSON: %s %v", text, err)
	}
}

func TestJurisdictions(t *testing.T) {
	node := nodeOf(nil, nil)
	root := namespace[any](t, node)
	all := []string{"eu", "us", "fedramp", "fedramp-high"} // SPEC A24
	ids := map[string]limpet.ID{}
	for _, j := range all {
		id, err := root.Jurisdiction(j).IDFromName("n")
		if err != nil {
			t.Fatal(err)
		}
		ids[j] = id
	}
	ids[""], _ = root.IDFromName("n")
	const wrong = "get called on jurisdictional subnamespace with an ID from a different jurisdiction"
	for _, j := range append([]string{""}, all...) {
		for of, id := range ids {
			ns := in(root, j)
			digits, err := ns.IDFromString(id.String())
			// SPEC A23: a sub-namespace takes only its own IDs, the root takes all.
			for what, got := range map[string]error{"Get": ns.Get(id).Err(), "Existing": ns.Existing(id).Err(), "IDFromString": err} {
				if j == "" || j == of {
					if got != nil {
						t.Errorf("%s on %q of an ID in %q: %v", what, j, of, got)
					}
					continue
				}
				refused(t, got, limpet.CodeInvalidArgument, wrong)
			}
			if err != nil && !digits.IsZero() {
				t.Errorf("%q: a refused ID of %q is %v", j, of, digits)
			}
		}
	}

	for what, ns := range map[string]limpet.Namespace[any]{
		"unknown":            root.Jurisdiction("mars"),
		"empty":              root.Jurisdiction(""),
		"other case":         root.Jurisdiction("EU"),
		"one in another":     root.Jurisdiction("eu").Jurisdiction("us"),
		"after a wrong one":  root.Jurisdiction("mars").Jurisdiction("eu"),
		"a very long one":    root.Jurisdiction(strings.Repeat("j", 1<<20)),
		"the zero namespace": limpet.Namespace[any]{}.Jurisdiction("eu"),
	} {
		t.Run(what, func(t *testing.T) {
			_, err := ns.IDFromName("n")
			refused(t, err, limpet.CodeInvalidArgument)
			if len(err.Error()) > 300 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			refused(t, ns.Named("n").Err(), limpet.CodeInvalidArgument)
			refused(t, ns.Get(ids["eu"]).Err(), limpet.CodeInvalidArgument)
			if !ns.NewUniqueID().IsZero() {
				t.Error("it gave a unique ID")
			}
		})
	}
	if err := root.Jurisdiction("eu").Jurisdiction("eu").Named("n").Err(); err != nil {
		t.Errorf("the same jurisdiction twice: %v", err)
	}
	if node.attempts() != 0 {
		t.Error("something was called")
	}
}

func TestGetRefusesForeignIDs(t *testing.T) {
	node := nodeOf(nil, nil)
	ns := namespace[any](t, node)
	foreign, err := namespaceOfClass(t, "Other").IDFromName("n")
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		id    limpet.ID
		words string
	}{
		// SPEC A20, J22: an ID of another namespace is refused, though workerd takes it.
		"of another class": {foreign, "Durable Object ID is not valid for this namespace."},
		// SPEC A15
		"zero": {limpet.ID{}, "CART"},
	} {
		t.Run(what, func(t *testing.T) {
			for _, stub := range []*limpet.Stub[any]{ns.Get(c.id), ns.Existing(c.id)} {
				refused(t, stub.Err(), limpet.CodeInvalidArgument, c.words)
				_, err := stub.Invoke(t.Context(), "m")
				refused(t, err, limpet.CodeInvalidArgument, c.words)
			}
		})
	}
	// SPEC A5: making IDs and stubs starts nothing, and a refused one never does.
	ns.Named("n")
	ns.Get(ns.NewUniqueID())
	if node.attempts() != 0 {
		t.Errorf("%d calls were made", node.attempts())
	}
}

func TestIDProperties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		class := rapid.StringN(1, 40, -1).Draw(r, "class")
		j := rapid.SampledFrom([]string{"", "eu", "us", "fedramp", "fedramp-high"}).Draw(r, "jurisdiction")
		name := rapid.String().Draw(r, "name")
		ns := in(namespaceOfClass(t, class), j)
		id, err := ns.IDFromName(name)
		if err != nil {
			r.Fatal(err)
		}
		if got := idByHand(class, j, name); got != id.String() {
			r.Fatalf("got %v, by hand %s", id, got)
		}
		if err := ns.Get(id).Err(); err != nil {
			r.Fatal(err)
		}
	})
}

func FuzzIDFromString(f *testing.F) {
	ns := namespaceOfClass(f, "Cart")
	id, _ := ns.Jurisdiction("eu").IDFromName("seed")
	f.Add(id.String())
	f.Add(strings.ToUpper(id.String()))
	f.Add(strings.Repeat("0", 64))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ns.IDFromString(s)
		if err != nil {
			refused(t, err, limpet.CodeInvalidArgument)
			if !got.IsZero() {
				t.Fatalf("%q is refused but gives %v", s, got)
			}
			return
		}
		if got.String() != strings.ToLower(s) {
			t.Fatalf("%q reads as %v", s, got)
		}
		if err := ns.Get(got).Err(); err != nil {
			t.Fatalf("%q is accepted but not usable: %v", s, err)
		}
	})
}
