package limpet_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
)

func TestIdentityText(t *testing.T) {
	nonce := [16]byte{0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff}
	for _, c := range []struct {
		id   limpet.Identity
		text string
	}{
		{limpet.Identity{}, ""},
		{limpet.Identity{Nonce: nonce, CreatedMS: 0x19aabbccdd0}, "ab0102030405060708090a0b0c0d0eff-19aabbccdd0"},
		{limpet.Identity{Nonce: nonce}, "ab0102030405060708090a0b0c0d0eff-0"},
		{limpet.Identity{CreatedMS: 1}, strings.Repeat("0", 32) + "-1"},
		{limpet.Identity{Nonce: nonce, CreatedMS: -1}, "ab0102030405060708090a0b0c0d0eff-ffffffffffffffff"},
		{limpet.Identity{Nonce: nonce, CreatedMS: math.MinInt64}, "ab0102030405060708090a0b0c0d0eff-8000000000000000"},
	} {
		// SPEC F1: a random number and the time of creation.
		if got := c.id.String(); got != c.text {
			t.Errorf("got %q, want %q", got, c.text)
		}
		back, err := limpet.ParseIdentity(c.text)
		if err != nil || back != c.id {
			t.Errorf("%q reads as %+v, %v", c.text, back, err)
		}
	}
	id := limpet.Identity{CreatedMS: 1_764_500_000_123}
	if got, want := id.Created(), time.Date(2025, 11, 30, 10, 53, 20, 123e6, time.UTC); !got.Equal(want) || got.Location() != time.UTC {
		t.Errorf("created %v, want %v", got, want)
	}
}

func TestParseIdentityRefuses(t *testing.T) {
	good := strings.Repeat("0a", 16) + "-1"
	for what, s := range map[string]string{
		"a process only":  "@",
		"process alone":   "@x-y",
		"no time":         good[:33],
		"no dash":         good[:32] + "+1",
		"short":           good[1:],
		"bad nonce":       "zz" + good[2:],
		"bad time":        good + "x",
		"17 digits":       good + strings.Repeat("0", 16),
		"a million bytes": strings.Repeat("0", 1_000_000),
		"all zeros":       strings.Repeat("0", 32) + "-0",
	} {
		id, err := limpet.ParseIdentity(s)
		if limpet.CodeOf(err) != limpet.CodeInvalidArgument || !id.IsZero() {
			t.Errorf("%s: got %+v, %v", what, id, err)
		} else if len(err.Error()) > 200 {
			t.Errorf("%s: the error has %d bytes", what, len(err.Error()))
		}
	}
}

func FuzzParseIdentity(f *testing.F) {
	f.Add("")
	f.Add("@")
	f.Add(strings.Repeat("0a", 16) + "-1@x-y")
	f.Add(limpet.Identity{Nonce: [16]byte{1}, CreatedMS: 1_764_500_000_000}.String())
	f.Add(strings.Repeat("F", 32) + "-" + strings.Repeat("F", 16))
	f.Add(strings.Repeat("0", 32) + "-0")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := limpet.ParseIdentity(s)
		if err != nil {
			if limpet.CodeOf(err) != limpet.CodeInvalidArgument || !id.IsZero() {
				t.Fatalf("%q: got %+v, %v", s, id, err)
			}
			return
		}
		if (s == "") != id.IsZero() {
			t.Fatalf("%q reads as %+v", s, id)
		}
		back, err := limpet.ParseIdentity(id.String())
		if err != nil || back != id {
			t.Fatalf("%q reads as %+v, whose text %q reads as %+v, %v", s, id, id, back, err)
		}
	})
}
