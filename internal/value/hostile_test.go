package value_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet/internal/value"
)

func fromHex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// hostile are bytes that promise much, nest deeply or multiply.
func hostile() [][]byte {
	all := [][]byte{
		nil, {1}, {2, 0xf6}, {0},
		fromHex("01 9a ffffffff"),
		fromHex("01 9b 7fffffffffffffff"),
		fromHex("01 bb ffffffffffffffff"),
		fromHex("01 5b ffffffffffffffff"),
		fromHex("01 d90103 ba 00010000 00"),
		fromHex("01 9f ff"),
		fromHex("01 18 05"),
		fromHex("01 d81d 00"),
		fromHex("01 d81c d81d 00"),
		fromHex("01 d81c e0"),
		fromHex("01 82 d81c d81c 80 80"),
		fromHex("01 a1 d81c 61 61 00"),
		fromHex("01 c2 42 0001"),
		fromHex("01 1b 0020000000000001"),
		fromHex("01 d90111 42 6161"),
		fromHex("01 62 ffff"),
		fromHex("01 d84d 41 00"),
		fromHex("01 ff"),
	}
	// Arrays in arrays, each promising all that is left.
	deep := []byte{1}
	for range 1 << 16 {
		deep = append(deep, 0x9a, 0, 0, 0xff, 0xff)
	}
	all = append(all, deep)
	all = append(all, append([]byte{1}, bytes.Repeat([]byte{0x81}, 5000)...))
	// Each shared array holds the one before it twice: 2^60 elements when copied out.
	laughs := fromHex("01 98 3d d81c 81 00")
	for i := range 60 {
		laughs = append(laughs, 0xd8, 0x1c, 0x82)
		for range 2 {
			if i < 24 {
				laughs = append(laughs, 0xd8, 0x1d, byte(i))
			} else {
				laughs = append(laughs, 0xd8, 0x1d, 0x18, byte(i))
			}
		}
	}
	return append(all, laughs)
}

// TestHostile: bytes that promise more than they hold are refused before
// anything is allocated for the promise.
func TestHostile(t *testing.T) {
	type small struct{ A []small }
	for i, b := range hostile() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := value.Decode(b)
		_, jsonErr := value.ToJSON(b)
		var x []small
		typedErr := value.Unmarshal(b, &x)
		var wide [][1 << 16]int
		_ = value.Unmarshal(b, &wide)
		runtime.ReadMemStats(&after)
		if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(64<<20+1000*len(b)); got > limit {
			t.Errorf("%d: %d bytes allocated for an input of %d", i, got, len(b))
		}
		laughs := i == len(hostile())-1
		if laughs {
			if err != nil {
				t.Errorf("shared arrays: %v", err)
			}
			if !errors.Is(jsonErr, value.ErrTooLarge) {
				t.Errorf("shared arrays as JSON: %v, want ErrTooLarge", jsonErr)
			}
			continue
		}
		if err == nil || typedErr == nil || jsonErr == nil {
			t.Errorf("%d: %x is accepted: %v, %v, %v", i, b[:min(len(b), 20)], err, typedErr, jsonErr)
		}
	}
}
