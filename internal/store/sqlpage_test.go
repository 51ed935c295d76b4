package store

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSQLPage compares the lists of docs/SQL.md with the program.
func TestSQLPage(t *testing.T) {
	b, err := os.ReadFile("../../docs/SQL.md")
	must(t, err)
	page := string(b)
	var read, set []string
	for _, name := range slices.Sorted(maps.Keys(pragmas)) {
		switch pragmas[name] {
		case pragmaRead, pragmaAbout:
			read = append(read, name)
		case pragmaSet:
			set = append(set, name)
		}
	}
	for _, want := range []string{
		"may be read: " + strings.Join(read, ", ") + ".\n",
		"may be set too: " + strings.Join(set, ", ") + ", and foreign_keys to ON.\n",
		"modules than " + strings.Join(slices.Sorted(maps.Keys(modules)), ", ") + " |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("docs/SQL.md has no %q", want)
		}
	}
	var l Limits
	l.defaults()
	want := []string{
		fmt.Sprint(l.Statement, " bytes"), fmt.Sprint(l.Columns), fmt.Sprint(l.Parameters), fmt.Sprint(l.FunctionArgs),
		fmt.Sprint(l.Pattern, " bytes"), fmt.Sprint(l.Value, " bytes"), fmt.Sprint(l.Database, " bytes"), l.Time.String(), fmt.Sprint(maxCursors),
	}
	var got []string
	_, table, _ := strings.Cut(page, "| limit | default |")
	for _, m := range regexp.MustCompile(`(?m)^\| [^|]+ \| (\d[^|]*) \|$`).FindAllStringSubmatch(table, -1) {
		got = append(got, m[1])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("limits of docs/SQL.md: %s", diff)
	}
}
