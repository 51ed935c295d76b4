package value_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet/internal/value"
)

// TestFromJSON: what JSON text means; and its JSON again.
func TestFromJSON(t *testing.T) {
	for text, want := range map[string]string{
		` [ 1 , -2.50 , 1e2 , 3.0 ] `: `[1,-2.5,100,3]`,
		`-0`:                          `{"$number":"-0"}`,
		`0.0`:                         `0`,
		`9007199254740994`:            `9007199254740994`,
		`9007199254740993.0`:          `9007199254740992`,
		`100000000000000000000000`:    `1e+23`,
		`123456789012345680000`:       `123456789012345680000`,
		`1e-400`:                      `0`,
		`1E21`:                        `1e+21`,
		`1e-7`:                        `1e-7`,
		`0.000001`:                    `0.000001`,
		`"\ud83d\ude00 \u00e9 \/\b\f\n\r\t\"\\ \u0000"`: `"😀 é /\u0008\u000c\n\r\t\"\\ \u0000"`,
		`"\uD83D"`:                          `"\ud83d"`,
		`"\udc00\ud800"`:                    `"\udc00\ud800"`,
		`"\ud800\u0041"`:                    `"\ud800A"`,
		`{"a":1,"b":{"c":[],"d":{}},"a":2}`: `{"b":{"c":[],"d":{}},"a":2}`,
		`{"a":{"x":[1,{"y":2}]},"\u0061":2,"a":{"z":[{}]}}`: `{"a":{"z":[{}]}}`,
		`{"z":1,"a":2}`:                                  `{"z":1,"a":2}`,
		`{"":{}}`:                                        `{"":{}}`,
		`{"$a":1,"b":2}`:                                 `{"$a":1,"b":2}`,
		`{"$object":{"$date":1}}`:                        `{"$object":{"$date":1}}`,
		`{"$object":{"a":1}}`:                            `{"a":1}`,
		`{"$object":{"$object":{"a":1,"b":2}}}`:          `{"$object":{"$object":{"a":1,"b":2}}}`,
		`{"\u0024date":"2026-01-31T12:00:00.5+01:00"}`:   `{"$date":"2026-01-31T11:00:00.500Z"}`,
		`{"$date":"2026-01-31T12:00:00.123999Z"}`:        `{"$date":"2026-01-31T12:00:00.123Z"}`,
		`{"$date":"+275760-09-13T00:00:00.000Z"}`:        `{"$date":"+275760-09-13T00:00:00.000Z"}`,
		`{"$date":"-271821-04-20T00:00:00.000Z"}`:        `{"$date":"-271821-04-20T00:00:00.000Z"}`,
		`{"$date":"-000001-02-28T00:00:00.000Z"}`:        `{"$date":"-000001-02-28T00:00:00.000Z"}`,
		`{"$date":"+012004-02-29T00:00:00.000Z"}`:        `{"$date":"+012004-02-29T00:00:00.000Z"}`,
		`{"$date":"0000-01-01T00:00:00Z"}`:               `{"$date":"0000-01-01T00:00:00.000Z"}`,
		`{"$bigint":"-00123"}`:                           `{"$bigint":"-123"}`,
		`{"$map":[]}`:                                    `{"$map":[]}`,
		`{"$map":[[{"$map":[[1,2]]},[{"$hole":true}]]]}`: `{"$map":[[{"$map":[[1,2]]},[{"$hole":true}]]]}`,
		`{"$set":[1,{"$set":[]}]}`:                       `{"$set":[1,{"$set":[]}]}`,
		`{"$error":{}}`:                                  `{"$error":{"class":"Error","name":"Error","message":""}}`,
		`{"$error":{"name":"TypeError"}}`:                `{"$error":{"class":"TypeError","name":"TypeError","message":""}}`,
		`{"$error":{"errors":[1,[2]],"cause":{"$undefined":true},"fields":{"$a":[{}]},"stack":"s","message":"m","name":"N","class":"RangeError"}}`: `{"$error":{"class":"RangeError","name":"N","message":"m","stack":"s","fields":{"$a":[{}]},"cause":{"$undefined":true},"errors":[1,[2]]}}`,
		`[{"$error":{"cause":[[]],"message":"m"}},[7]]`: `[{"$error":{"class":"Error","name":"Error","message":"m","cause":[[]]}},[7]]`,
		`{"$boxed":{"$bigint":"1"}}`:                    `{"$boxed":{"$bigint":"1"}}`,
		`{"$regexp":["a\"","g"]}`:                       `{"$regexp":["a\"","g"]}`,
		`{"$typed":["Float64Array","AAAAAAAA8D8="]}`:    `{"$typed":["Float64Array","AAAAAAAA8D8="]}`,
	} {
		b, err := value.FromJSON([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := value.ToJSON(b)
		if err != nil || string(got) != want {
			t.Errorf("%s\n got %s, %v\nwant %s", text, got, err, want)
		}
	}
	// The escape nests.
	b, err := value.Marshal(map[string]any{"$object": map[string]any{"$object": 1}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := value.ToJSON(b)
	if want := `{"$object":{"$object":{"$object":{"$object":1}}}}`; err != nil || string(text) != want {
		t.Errorf("got %s, want %s", text, want)
	}
	if again, err := value.FromJSON(text); err != nil || string(again) != string(b) {
		t.Errorf("%x, %v", again, err)
	}
}

func TestFromJSONRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                                    `JSON: text ends where a value must stand (byte 0)`,
		`[1,]`:                                `JSON: ']' where a value must stand (byte 3)`,
		`[1 2]`:                               `JSON: '2' where ',' or ']' must stand (byte 3)`,
		`{"a" 1}`:                             `JSON: '1' where ':' must stand (byte 5)`,
		`{a:1}`:                               `JSON: 'a' where a member's name must stand (byte 1)`,
		`{"a":1,}`:                            `JSON: '}' where a member's name must stand (byte 7)`,
		`9007199254740993`:                    `JSON: integer 9007199254740993 is no float64, it would be rounded to 9007199254740992: write {"$bigint":"…"} for an exact one (byte 16)`,
		`[-123456789012345678]`:               `[0]: JSON: integer -123456789012345678 is no float64, it would be rounded to -123456789012345680: write {"$bigint":"…"} for an exact one (byte 20)`,
		`01`:                                  `JSON: '1' where the end must stand (byte 1)`,
		`+1`:                                  `JSON: '+' where a value must stand (byte 0)`,
		`1.`:                                  `JSON: text ends where a digit must stand (byte 2)`,
		`.5`:                                  `JSON: '.' where a value must stand (byte 0)`,
		`-`:                                   `JSON: text ends where a digit must stand (byte 1)`,
		`1e`:                                  `JSON: text ends where a digit must stand (byte 2)`,
		`NaN`:                                 `JSON: 'N' where a value must stand (byte 0)`,
		`nul`:                                 `JSON: 'n' where a value must stand (byte 0)`,
		`"a`:                                  `JSON: text ends where the end of a string must stand (byte 2)`,
		`"\x"`:                                `JSON: unknown escape in a string (byte 2)`,
		`"\u12g4"`:                            `JSON: \u without four hexadecimal digits (byte 3)`,
		"\"a\nb\"":                            `JSON: control character 0x0a in a string (byte 2)`,
		"\"\\t\nb\"":                          `JSON: control character 0x0a in a string (byte 3)`,
		"\"a\xffb\"":                          `JSON: text is no UTF-8 (byte 2)`,
		"\"\\t\xed\xa0\x80\"":                 `JSON: text is no UTF-8 (byte 3)`,
		"\ufeff1":                             `JSON: '\ufeff' where a value must stand (byte 0)`,
		`1 x`:                                 `JSON: 'x' where the end must stand (byte 2)`,
		"1\x00":                               `JSON: '\x00' where the end must stand (byte 1)`,
		`[1e400]`:                             `[0]: JSON: number 1e400 is beyond a float64 (byte 6)`,
		`{"a":{"$x":1}}`:                      `.a.$x: JSON: "$x" is no form that limpet knows; an object that really has one member of this name is written {"$object": {...}} (byte 11)`,
		`{"$date":5}`:                         `.$date: JSON: $date takes a string (byte 9)`,
		`{"$date":"today"}`:                   `.$date: JSON: $date takes a time like "2026-01-31T12:00:00.000Z" (RFC 3339) (byte 16)`,
		`{"$date":"-000000-01-01T00:00:00Z"}`: `.$date: JSON: $date takes a time like "2026-01-31T12:00:00.000Z" (RFC 3339) (byte 34)`,
		`{"$date":"+275760-09-13T00:00:00.001Z"}`: `.$date: JSON: $date takes a time like "2026-01-31T12:00:00.000Z" (RFC 3339) (byte 38)`,
		`{"$bigint":"1.5"}`:                       `.$bigint: JSON: $bigint takes decimal digits in a string (byte 16)`,
		`{"$bigint":""}`:                          `.$bigint: JSON: $bigint takes decimal digits in a string (byte 13)`,
		`{"$number":"1"}`:                         `.$number: JSON: $number takes "NaN", "Infinity", "-Infinity" or "-0" (byte 14)`,
		`{"$bytes":"AQI"}`:                        `.$bytes: JSON: $bytes takes base64 with padding (RFC 4648, section 4) (byte 15)`,
		`{"$typed":["Int16Array","AQ=="]}`:        `.$typed: Int16Array of 1 bytes: no whole elements of 2 bytes`,
		`{"$typed":["Uint8Array","AQ=="]}`:        `.$typed: JSON: $typed takes [kind, base64], with a kind like "Float64Array" (byte 31)`,
		`{"$typed":["Int8Array"]}`:                `.$typed: JSON: $typed takes [kind, base64], with a kind like "Float64Array" (byte 10)`,
		`{"$regexp":["a",1]}`:                     `.$regexp[1]: JSON: $regexp takes [source, flags] (byte 16)`,
		`{"$map":[[1]]}`:                          `.$map[0]: JSON: $map takes an array of [key, value] pairs (byte 9)`,
		`{"$map":{}}`:                             `.$map: JSON: $map takes an array of [key, value] pairs (byte 8)`,
		`{"$set":1}`:                              `.$set: JSON: $set takes an array of values (byte 8)`,
		`{"$undefined":false}`:                    `.$undefined: JSON: $undefined takes true (byte 14)`,
		`{"$hole":true}`:                          `.$hole: hole outside of an object or array`,
		`{"$boxed":null}`:                         `.$boxed: null in a boxed primitive`,
		`{"$object":[]}`:                          `.$object: JSON: $object takes an object (byte 11)`,
		`{"$error":1}`:                            `.$error: JSON: $error takes an object (byte 10)`,
		`{"$error":{"nam":1}}`:                    `.$error.nam: JSON: $error has no member "nam" (byte 17)`,
		`{"$error":{"name":1}}`:                   `.$error.name: JSON: name takes a string (byte 18)`,
		`{"$error":{"errors":{}}}`:                `.$error.errors: JSON: errors takes an array (byte 20)`,
	} {
		b, err := value.Options{}.AppendFromJSON([]byte("x"), []byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
		if string(b) != "x" {
			t.Errorf("%s: dst became %q", text, b)
		}
		if err != nil {
			checkTyped(t, err)
		}
	}
	for _, deep := range []string{strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 100_000), strings.Repeat(`{"$map":[[`, 100_000), strings.Repeat("[", 1001) + strings.Repeat("]", 1001)} {
		if _, err := value.FromJSON([]byte(deep)); !errors.Is(err, value.ErrTooDeep) {
			t.Errorf("%.20s: %v", deep, err)
		}
	}
	if _, err := value.FromJSON([]byte(`{"$bigint":"` + strings.Repeat("9", 1<<20) + `"}`)); !errors.Is(err, value.ErrTooLarge) {
		t.Error(err)
	}
	if _, err := (value.Options{MaxSize: 10}).FromJSON([]byte(`"0123456789"`)); !errors.Is(err, value.ErrTooLarge) {
		t.Error(err)
	}
}

// Errors in errors are not read again and again: 1,000 levels take no time.
func TestFromJSONNestedErrors(t *testing.T) {
	text := strings.Repeat(`{"$error":{"cause":`, 999) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat(`}}`, 999)
	start := time.Now()
	b, err := value.FromJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("read in %v", time.Since(start))
	if again, err := value.ToJSON(b); err != nil || len(again) < len(text) {
		t.Error(len(again), err)
	}
}

// A cycle has no JSON; what is merely shared is written at each place.
func TestToJSONShared(t *testing.T) {
	list := []any{1}
	b, err := value.Marshal(map[string]any{"a": list, "b": []any{list, list}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := value.ToJSON(b); err != nil || string(got) != `{"a":[1],"b":[[1],[1]]}` {
		t.Errorf("got %s, %v", got, err)
	}
	self := map[string]any{}
	self["a"] = []any{map[string]any{"b": self}}
	if b, err = value.Marshal(self); err != nil {
		t.Fatal(err)
	}
	want := ".a[0].b: value contains itself, and JSON has no form for cycles"
	if _, err = value.ToJSON(b); !errors.Is(err, value.ErrType) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
