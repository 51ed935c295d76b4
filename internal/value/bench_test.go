package value_test

import (
	"testing"

	"github.com/limpet-dev/limpet/internal/value"
)

type benchItem struct {
	SKU   string  `json:"sku"`
	Name  string  `json:"name"`
	Count int     `json:"count"`
	Price float64 `json:"price"`
	Gift  bool    `json:"gift"`
}

type benchCart struct {
	ID    string       `json:"id"`
	Items []*benchItem `json:"items"`
	Meta  map[string]string
}

var (
	item = benchItem{"sku-1234", "coffee mug", 3, 12.5, true}
	cart = benchCart{"user-123", []*benchItem{&item, {SKU: "b"}, {SKU: "c"}}, map[string]string{"a": "1", "b": "2"}}
)

func benchMarshal(b *testing.B, v any) {
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = value.Append(buf[:0], v); err != nil {
			b.Fatal(err)
		}
	}
}

func benchUnmarshal[T any](b *testing.B, v T) {
	enc, err := value.Marshal(v)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		var out T
		if err := value.Unmarshal(enc, &out); err != nil {
			b.Fatal(err)
		}
	}
}

func dynamic() any {
	return map[string]any{"id": "user-123", "count": 3, "list": []any{1, 2.5, "three", nil, true}, "o": map[string]any{"a": 1}}
}

func BenchmarkMarshal(b *testing.B) {
	b.Run("int", func(b *testing.B) { benchMarshal(b, 12345) })
	b.Run("string", func(b *testing.B) { benchMarshal(b, "user-123") })
	b.Run("struct", func(b *testing.B) { benchMarshal(b, item) })
	b.Run("pointer", func(b *testing.B) { benchMarshal(b, &item) })
	b.Run("cart", func(b *testing.B) { benchMarshal(b, &cart) })
	b.Run("ints", func(b *testing.B) { benchMarshal(b, make([]int, 1000)) })
	b.Run("map", func(b *testing.B) { benchMarshal(b, map[string]int{"a": 1, "b": 2, "c": 3, "d": 4}) })
	b.Run("dynamic", func(b *testing.B) { benchMarshal(b, dynamic()) })
}

func BenchmarkUnmarshal(b *testing.B) {
	b.Run("int", func(b *testing.B) { benchUnmarshal(b, 12345) })
	b.Run("string", func(b *testing.B) { benchUnmarshal(b, "user-123") })
	b.Run("struct", func(b *testing.B) { benchUnmarshal(b, item) })
	b.Run("cart", func(b *testing.B) { benchUnmarshal(b, &cart) })
	b.Run("ints", func(b *testing.B) { benchUnmarshal(b, make([]int, 1000)) })
	b.Run("map", func(b *testing.B) { benchUnmarshal(b, map[string]int{"a": 1, "b": 2, "c": 3, "d": 4}) })
	b.Run("dynamic", func(b *testing.B) { benchUnmarshal(b, dynamic()) })
}

func BenchmarkArgs(b *testing.B) {
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = value.AppendArgs(buf[:0], "item-1", 3); err != nil {
			b.Fatal(err)
		}
		var s string
		var n int
		if err := value.DecodeArgs(buf, &s, &n); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkJSON(b *testing.B) {
	enc, err := value.Marshal(&cart)
	if err != nil {
		b.Fatal(err)
	}
	text, err := value.ToJSON(enc)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("to", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := value.ToJSON(enc); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("from", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := value.FromJSON(text); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkPlainCheck(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := value.Copy(item); err != nil {
			b.Fatal(err)
		}
	}
}
