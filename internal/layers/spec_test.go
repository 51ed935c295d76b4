package layers_test

import (
	"fmt"
	"go/ast"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// rule is one line of docs/spec-rules.txt.
type rule struct {
	id, status, title string
}

var (
	ruleID   = regexp.MustCompile(`^[A-IT][1-9][0-9]?$`)
	statuses = []string{
		"yes", "todo", "differs", "hosted", "info",
		"later:javascript", "later:capabilities", "later:sql", "later:alarms", "later:websocket",
		"later:network", "later:cluster", "later:observability",
	}
	// citation finds "SPEC E27" and lists such as "SPEC E26, E27 and D10".
	citation = regexp.MustCompile(`\bSPEC ([A-Z][0-9]+(?:(?:, | and |/)[A-Z][0-9]+)*)(-|–)?`)
	oneRule  = regexp.MustCompile(`[A-Z][0-9]+`)
)

// parseRules reads docs/spec-rules.txt.
func parseRules(text string) ([]rule, error) {
	var rules []rule
	seen := map[string]bool{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 3 {
			return nil, fmt.Errorf("line %d: want: rule, status, title", n)
		}
		r := rule{f[0], f[1], strings.Join(f[2:], " ")}
		switch {
		case !ruleID.MatchString(r.id):
			return nil, fmt.Errorf("line %d: %q is no rule's number", n, r.id)
		case seen[r.id]:
			return nil, fmt.Errorf("line %d: rule %s stands twice", n, r.id)
		case !slices.Contains(statuses, r.status):
			return nil, fmt.Errorf("line %d: rule %s has the unknown status %q", n, r.id, r.status)
		}
		seen[r.id] = true
		rules = append(rules, r)
	}
	return rules, nil
}

// citations returns where tests cite each rule, and what is wrong with how they
// do it. A citation is a comment inside the body of a test, or of a function
// that is given one (a parameter of type *testing.T, testing.TB and their like).
// Rules of other sections (J and on, which are no rules) are left alone.
func (t *tree) citations() (cites map[string][]string, wrong []violation) {
	cites = map[string][]string{}
	for _, f := range t.files {
		if !f.test {
			continue
		}
		var bodies []*ast.FuncDecl
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && isTest(fn) {
				bodies = append(bodies, fn)
			}
		}
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				in := slices.ContainsFunc(bodies, func(fn *ast.FuncDecl) bool {
					return fn.Body.Pos() <= c.Pos() && c.End() <= fn.Body.End()
				})
				if !in {
					continue
				}
				line := f.fset.Position(c.Pos()).Line
				for _, m := range citation.FindAllStringSubmatch(c.Text, -1) {
					if m[2] != "" {
						wrong = append(wrong, violation{f.path, line, "cites a range of rules (" + m[0] + "…): cite each rule that the test shows"})
					}
					for _, id := range oneRule.FindAllString(m[1], -1) {
						if ruleID.MatchString(id) {
							cites[id] = append(cites[id], fmt.Sprintf("%s:%d", f.path, line))
						} else if id[0] <= 'I' {
							wrong = append(wrong, violation{f.path, line, "cites " + id + ", which is no rule's number"})
						}
					}
				}
			}
		}
	}
	return cites, wrong
}

// isTest tells whether fn is a test or is given one.
func isTest(fn *ast.FuncDecl) bool {
	for _, p := range []string{"Test", "Fuzz", "Example"} {
		if fn.Recv == nil && strings.HasPrefix(fn.Name.Name, p) {
			return true
		}
	}
	for _, param := range fn.Type.Params.List {
		typ := param.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if sel, ok := typ.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "testing" || x.Name == "rapid") && slices.Contains([]string{"T", "TB", "F"}, sel.Sel.Name) {
				return true
			}
		}
	}
	return false
}

// compare returns what must be mended, and what is only to be told.
func compare(rules []rule, cites map[string][]string) (bad, told []string) {
	known := map[string]bool{}
	var noTest, flip []string
	later := map[string]int{}
	covered := 0
	for _, r := range rules {
		known[r.id] = true
		cited := len(cites[r.id]) > 0
		switch {
		case r.status == "yes" && !cited:
			bad = append(bad, fmt.Sprintf("%s (%s) is said to be built, but no test cites it", r.id, r.title))
		case r.status == "yes":
			covered++
		case cited:
			flip = append(flip, fmt.Sprintf("%-4s %s: %s, cited at %s", r.id, r.title, r.status, cites[r.id][0]))
		case r.status == "todo":
			noTest = append(noTest, fmt.Sprintf("%-4s %s", r.id, r.title))
		default:
			later[r.status]++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(cites)) {
		if !known[id] {
			bad = append(bad, fmt.Sprintf("%s: cites %s, which docs/spec-rules.txt does not list", cites[id][0], id))
		}
	}
	told = append(told, fmt.Sprintf("%d rules: %d built and tested, %d cited but not said to be built, %d of the present work without a test",
		len(rules), covered, len(flip), len(noTest)))
	for _, s := range slices.Sorted(maps.Keys(later)) {
		told = append(told, fmt.Sprintf("%4d %s", later[s], s))
	}
	if len(flip) > 0 {
		told = append(told, "cited, so perhaps built (set them to yes if all of the rule holds):\n    "+strings.Join(flip, "\n    "))
	}
	if len(noTest) > 0 {
		told = append(told, "no test cites:\n    "+strings.Join(noTest, "\n    "))
	}
	return bad, told
}

// promised are the rules of calls and retries: B5 to B17, C20 to C54, and all of D
// to G.
func promised(id string) bool {
	n, err := strconv.Atoi(id[1:])
	switch id[0] {
	case 'B':
		return err == nil && 5 <= n && n <= 17
	case 'C':
		return err == nil && 20 <= n && n <= 54
	case 'D', 'E', 'F', 'G':
		return true
	}
	return false
}

// unexplained are the rules of calls and retries that no test cites and of which
// docs/COMPATIBILITY.md does not say why.
func unexplained(rules []rule, cites map[string][]string, compatibility string) (bad []string) {
	named := map[string]bool{}
	for _, id := range oneRule.FindAllString(compatibility, -1) {
		named[id] = true
	}
	for _, r := range rules {
		if promised(r.id) && len(cites[r.id]) == 0 && !named[r.id] {
			bad = append(bad, fmt.Sprintf("%s (%s): no test cites it, and docs/COMPATIBILITY.md does not say why", r.id, r.title))
		}
	}
	return bad
}

// tested are the rules of which docs/COMPATIBILITY.md says that no test shows
// them, though one does.
func tested(cites map[string][]string, compatibility string) (bad []string) {
	_, table, _ := strings.Cut(compatibility, "\n| rule | what it says | why there is no test |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		cells := strings.SplitN(line, "|", 3)
		if len(cells) < 3 {
			continue
		}
		for _, id := range oneRule.FindAllString(cells[1], -1) {
			if at := cites[id]; len(at) > 0 {
				bad = append(bad, fmt.Sprintf("%s: docs/COMPATIBILITY.md says that no test shows it, but %s does", id, at[0]))
			}
		}
	}
	return bad
}

func TestTested(t *testing.T) {
	got := tested(map[string][]string{"E1": {"a_test.go:1"}, "E2": {"a_test.go:2"}, "E4": {"a_test.go:3"}, "E5": {"a_test.go:4"}},
		"# Head, E1\n\n| rule | what it says | why there is no test |\n| --- | --- | --- |\n| E3, E2 | x | as E4 |\n| F1 | y | z |\n\n| E5 | a | b |\n")
	if want := []string{"E2: docs/COMPATIBILITY.md says that no test shows it, but a_test.go:2 does"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUnexplained(t *testing.T) {
	got := unexplained(
		[]rule{{"B4", "yes", "a"}, {"B5", "differs", "b"}, {"C40", "later:javascript", "c"}, {"C55", "yes", "d"}, {"E3", "yes", "e"}, {"G24", "info", "f"}, {"H1", "todo", "g"}},
		map[string][]string{"E3": {"a_test.go:1"}},
		"| C40 | code updates | later |",
	)
	want := []string{
		"B5 (b): no test cites it, and docs/COMPATIBILITY.md does not say why",
		"G24 (f): no test cites it, and docs/COMPATIBILITY.md does not say why",
	}
	if !slices.Equal(got, want) {
		t.Errorf("unexplained are\n%q, want\n%q", got, want)
	}
}

// TestSpecRules fails for a rule that is said to be built and has no test, for one
// of calls and retries that has neither a test nor a reason, or a reason for having
// no test and one all the same, and prints, with -v, what has none yet.
func TestSpecRules(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/spec-rules.txt")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := parseRules(string(text))
	if err != nil {
		t.Fatalf("docs/spec-rules.txt: %v", err)
	}
	tr, err := load(os.DirFS(root), true)
	if err != nil {
		t.Fatal(err)
	}
	cites, wrong := tr.citations()
	for _, v := range wrong {
		t.Error(v)
	}
	bad, told := compare(rules, cites)
	compatibility, err := os.ReadFile(root + "/docs/COMPATIBILITY.md")
	if err != nil {
		t.Fatal(err)
	}
	bad = append(bad, unexplained(rules, cites, string(compatibility))...)
	bad = append(bad, tested(cites, string(compatibility))...)
	for _, b := range bad {
		t.Error(b)
	}
	for _, s := range told {
		t.Log(s)
	}
}

func TestParseRules(t *testing.T) {
	got, err := parseRules("# head\n\nE27  yes  a backoff that does not fit\nA1\tlater:sql\tx\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := []rule{{"E27", "yes", "a backoff that does not fit"}, {"A1", "later:sql", "x"}}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for text, want := range map[string]string{
		"E27 yes":              "line 1: want: rule, status, title",
		"\nJ27 yes x":          `line 2: "J27" is no rule's number`,
		"E27 perhaps x":        `line 1: rule E27 has the unknown status "perhaps"`,
		"E27 yes x\nE27 yes y": "line 2: rule E27 stands twice",
	} {
		if _, err := parseRules(text); err == nil || err.Error() != want {
			t.Errorf("parseRules(%q) says %v, want %s", text, err, want)
		}
	}
}

func TestCitations(t *testing.T) {
	// Built from parts, so that this file cites nothing.
	s := "// SP" + "EC "
	fsys := fstest.MapFS{"go.mod": {Data: []byte("module m\n")}, "a.go": {Data: []byte(
		"package m\nfunc F() {\n" + s + "A1\n}\n")}, "a_test.go": {Data: []byte("package m\n" +
		s + "A2\n" + // outside of any body
		"func TestX(t *testing.T) {\n" + s + "E26, E27 and D10: why\n f() " + s + "E27/F1\n}\n" + // lines 4, 5
		"func check(t testing.TB) { " + s + "B5\n}\n" +
		"func other(n int) { " + s + "B6\n}\n" +
		"func FuzzY(f *testing.F) {\n" + s + "E20-E36\n" + s + "E99, Z1, J22, E100 and C0\n}\n")}}
	tr, err := load(fsys, true)
	if err != nil {
		t.Fatal(err)
	}
	cites, wrong := tr.citations()
	want := map[string][]string{
		"E26": {"a_test.go:4"}, "E27": {"a_test.go:4", "a_test.go:5"}, "D10": {"a_test.go:4"}, "F1": {"a_test.go:5"},
		"B5": {"a_test.go:7"}, "E20": {"a_test.go:12"}, "E99": {"a_test.go:13"},
	}
	if got := fmt.Sprint(cites); got != fmt.Sprint(want) {
		t.Errorf("citations are\n%s, want\n%s", got, fmt.Sprint(want))
	}
	wantWrong := []string{
		"a_test.go:12: cites a range of rules (SP" + "EC E20-…): cite each rule that the test shows",
		"a_test.go:13: cites E100, which is no rule's number",
		"a_test.go:13: cites C0, which is no rule's number",
	}
	var gotWrong []string
	for _, v := range wrong {
		gotWrong = append(gotWrong, v.String())
	}
	if !slices.Equal(gotWrong, wantWrong) {
		t.Errorf("wrong citations are\n%q, want\n%q", gotWrong, wantWrong)
	}
}

func TestCompare(t *testing.T) {
	bad, told := compare(
		[]rule{{"E1", "yes", "one"}, {"E2", "yes", "two"}, {"E3", "todo", "three"}, {"E4", "todo", "four"}, {"H30", "later:sql", "five"}},
		map[string][]string{"E1": {"a_test.go:1"}, "E4": {"a_test.go:2"}, "E9": {"a_test.go:3"}},
	)
	wantBad := []string{
		"E2 (two) is said to be built, but no test cites it",
		"a_test.go:3: cites E9, which docs/spec-rules.txt does not list",
	}
	if !slices.Equal(bad, wantBad) {
		t.Errorf("bad is\n%q, want\n%q", bad, wantBad)
	}
	wantTold := []string{
		"5 rules: 1 built and tested, 1 cited but not said to be built, 1 of the present work without a test",
		"   1 later:sql",
		"cited, so perhaps built (set them to yes if all of the rule holds):\n    E4   four: todo, cited at a_test.go:2",
		"no test cites:\n    E3   three",
	}
	if !slices.Equal(told, wantTold) {
		t.Errorf("told is\n%q, want\n%q", told, wantTold)
	}
}
