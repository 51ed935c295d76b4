package layers_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// shownBy is a test as docs/GUARANTEES.md names it.
var shownBy = regexp.MustCompile("`([a-z./]+)` (Test[A-Za-z0-9_]+)")

// TestGuarantees checks that every promise names tests that exist.
func TestGuarantees(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "GUARANTEES.md"))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]map[string]bool{}
	promises := 0
	for n, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| promise") || strings.HasPrefix(line, "| ---") {
			continue
		}
		promises++
		named := shownBy.FindAllStringSubmatch(line, -1)
		if len(named) == 0 {
			t.Errorf("docs/GUARANTEES.md:%d: a promise without a test", n+1)
		}
		for _, m := range named {
			dir, test := m[1], m[2]
			if have[dir] == nil {
				have[dir] = testsIn(t, filepath.Join(root, filepath.FromSlash(dir)))
			}
			if !have[dir][test] {
				t.Errorf("docs/GUARANTEES.md:%d: there is no %s in %s", n+1, test, dir)
			}
		}
	}
	if promises == 0 {
		t.Error("docs/GUARANTEES.md has no table of promises")
	}
}

// testsIn lists the test functions of a folder.
func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests[fn.Name.Name] = true
			}
		}
	}
	return tests
}
