package measure

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table is a table in Markdown whose columns are also straight as plain text.
type Table struct {
	Head []string
	rows [][]string
}

// Row appends a row. Missing cells are empty, surplus ones an error of the
// program (it panics).
func (t *Table) Row(cells ...string) {
	if len(cells) > len(t.Head) {
		panic(fmt.Sprintf("a row of %d cells in a table of %d columns", len(cells), len(t.Head)))
	}
	t.rows = append(t.rows, append(cells, make([]string, len(t.Head)-len(cells))...))
}

// Write writes the table and an empty line.
func (t *Table) Write(w io.Writer) {
	width := make([]int, len(t.Head))
	for _, r := range append([][]string{t.Head}, t.rows...) {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c), 3)
		}
	}
	line := func(cells []string) {
		var b strings.Builder
		for i, c := range cells {
			b.WriteString("| " + c + strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+1))
		}
		fmt.Fprintf(w, "%s|\n", b.String())
	}
	line(t.Head)
	rule := make([]string, len(t.Head))
	for i := range rule {
		rule[i] = strings.Repeat("-", width[i])
	}
	line(rule)
	for _, r := range t.rows {
		line(r)
	}
	fmt.Fprintln(w)
}

// Target is a figure that is to be at most (or, with AtLeast, at least) Limit.
type Target struct {
	What    string
	Got     float64
	Limit   float64
	AtLeast bool
	Unit    string
}

// Met reports whether the target is met. What is not a number is not.
func (t Target) Met() bool {
	if t.AtLeast {
		return t.Got >= t.Limit
	}
	return t.Got <= t.Limit
}

// Targets writes a table of targets with what was measured.
func Targets(w io.Writer, targets ...Target) {
	t := Table{Head: []string{"target", "wanted", "measured", ""}}
	for _, x := range targets {
		sign, verdict := "<=", "met"
		if x.AtLeast {
			sign = ">="
		}
		if !x.Met() {
			verdict = "MISSED"
		}
		unit := ""
		if x.Unit != "" {
			unit = " " + x.Unit
		}
		t.Row(x.What, sign+" "+Number(x.Limit)+unit, Number(x.Got)+unit, verdict)
	}
	t.Write(w)
}
