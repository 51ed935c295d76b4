package value_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet/internal/value"
)

func readPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/VALUES.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// compactJSON is text without spaces.
func compactJSON(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return b.String()
}

// TestPage runs the Go example of docs/VALUES.md: the page must show these lines.
func TestPage(t *testing.T) {
	type Address struct {
		City string `limpet:"city"`
	}

	type Customer struct {
		Name    string    `limpet:"name"`
		Address           // its fields count as the customer's own
		Since   time.Time `json:"since"`
		Note    string    `limpet:"note,omitempty"`
		Secret  string    `limpet:"-"`
		visits  int
	}

	c := Customer{Name: "Ann", Address: Address{"Ulm"}, Since: time.UnixMilli(1000), Secret: "x", visits: 7}

	example := regexp.MustCompile("(?s)<!-- go -->\n```go\n(.*?)\n```\n<!-- json -->\n```json\n(.*?)\n```").FindStringSubmatch(readPage(t))
	if example == nil {
		t.Fatal("the page has no example")
	}
	source, err := os.ReadFile("page_test.go")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.ReplaceAll(string(source), "\n\t", "\n")
	if !strings.Contains(lines, "\n"+example[1]+"\n") {
		t.Errorf("the page shows other Go than this test runs:\n%s", example[1])
	}
	_ = c.visits
	checkJSON(t, c, example[2])
	var back Customer
	b, err := value.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := value.Unmarshal(b, &back); err != nil || back != (Customer{Name: "Ann", Address: Address{"Ulm"}, Since: time.UnixMilli(1000).UTC()}) {
		t.Errorf("back as %+v, %v", back, err)
	}
}

func checkJSON(t *testing.T, v any, want string) {
	t.Helper()
	b, err := value.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := value.ToJSON(b); err != nil || string(got) != compactJSON(t, want) {
		t.Errorf("%v is %s, %v, the page says %s", v, got, err, want)
	}
}

// table gives the rows of the page's table under a header, cell by cell.
func table(t *testing.T, header string) (rows [][]string) {
	t.Helper()
	_, rest, ok := strings.Cut(readPage(t), header+"\n")
	if !ok {
		t.Fatalf("the page has no table %q", header)
	}
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		if cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | "); !strings.HasPrefix(line, "| ---") {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}

// quoted is what a cell has in backticks, in order.
func quoted(cell string) (out []string) {
	for i, part := range strings.Split(cell, "`") {
		if i%2 == 1 {
			out = append(out, part)
		}
	}
	return out
}

// TestPageGo: what Go values become.
func TestPageGo(t *testing.T) {
	values := map[string]any{
		"nil": nil, "7": 7, "2.5": 2.5, "int64(1)<<53 + 1": int64(1)<<53 + 1, "big.NewInt(5)": big.NewInt(5), `"text"`: "text",
		"[]byte{1, 2}": []byte{1, 2}, "[]string{}": []string{}, "[2]int{1, 2}": [2]int{1, 2},
		`map[string]int{"b": 2, "a": 1}`: map[string]int{"b": 2, "a": 1}, `map[int]string{7: "x"}`: map[int]string{7: "x"},
		"time.Unix(1, 2345678)": time.Unix(1, 2345678), "time.Second": time.Second,
		`netip.MustParseAddr("::1")`: netip.MustParseAddr("::1"), `errors.New("no")`: errors.New("no"),
	}
	rows := table(t, "| Go | becomes | in JSON |")
	if len(rows) != len(values) {
		t.Errorf("%d rows, want %d", len(rows), len(values))
	}
	for _, row := range rows {
		text := quoted(row[0])[0]
		v, ok := values[text]
		if !ok {
			t.Errorf("nobody tests %s", text)
			continue
		}
		checkJSON(t, v, quoted(row[2])[0])
	}
}

// TestPageJSON: what the JSON forms are in Go, and which types they go into.
func TestPageJSON(t *testing.T) {
	types := map[string]any{
		"*int": new(*int), "[]int": new([]int), "map[string]int": new(map[string]int), "bool": new(bool), "int": new(int), "float64": new(float64),
		"*big.Int": new(*big.Int), "string": new(string), "[]byte": new([]byte), "[2]byte": new([2]byte), "time.Time": new(time.Time),
		"*time.Time": new(*time.Time), "[2]int": new([2]int), "map[int]int": new(map[int]int),
	}
	if _, err := value.FromJSON([]byte("9007199254740993")); !errors.Is(err, value.ErrSyntax) || !strings.Contains(err.Error(), "$bigint") {
		t.Errorf("a number that is no float64: %v", err)
	}
	rows := table(t, "| value | JSON | in an `any` | goes into |")
	if len(rows) < 20 {
		t.Errorf("only %d rows", len(rows))
	}
	for _, row := range rows {
		text := quoted(row[1])[0]
		b, err := value.FromJSON([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if again, err := value.ToJSON(b); err != nil || string(again) != compactJSON(t, text) {
			t.Errorf("%s becomes %s, %v", text, again, err)
		}
		v, err := value.Decode(b)
		if got := strings.Trim(fmt.Sprintf("%T", v), "<>"); err != nil || got != quoted(row[2])[0] {
			t.Errorf("%s in an any is a %s, %v, the page says %s", text, got, err, row[2])
		}
		if len(row) < 4 {
			continue
		}
		for _, name := range quoted(row[3]) {
			dst := types[name]
			if dst == nil {
				t.Errorf("nobody tests %s", name)
				continue
			}
			if err := value.Unmarshal(b, reflect.New(reflect.TypeOf(dst).Elem()).Interface()); err != nil {
				t.Errorf("%s does not go into %s: %v", text, name, err)
			}
		}
	}
}
