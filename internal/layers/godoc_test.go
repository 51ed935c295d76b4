package layers_test

import (
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// userPackages are those whose comments users read.
var userPackages = []string{".", "node", "limpettest"}

// TestUserComments checks what users see with go doc: no word of a paper that
// they don't have, and the list of dynamic values where comments point to.
func TestUserComments(t *testing.T) {
	tr, err := load(os.DirFS(filepath.Join("..", "..")), true)
	if err != nil {
		t.Fatal(err)
	}
	list := ""
	for _, f := range tr.files {
		if f.test || !slices.Contains(userPackages, f.dir) {
			continue
		}
		for _, c := range f.ast.Comments {
			if strings.Contains(c.Text(), "DESIGN") {
				t.Errorf("%s: names DESIGN: say it in words, or name a SPEC rule or a page of docs", f.fset.Position(c.Pos()))
			}
		}
		for _, d := range f.ast.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || f.dir != "." {
				continue
			}
			for _, s := range gen.Specs {
				if s, ok := s.(*ast.TypeSpec); ok && s.Name.Name == "Undefined" {
					list = gen.Doc.Text()
				}
			}
		}
	}
	for _, want := range []string{"What a dynamic value is in Go", "*big.Int", "*ErrorValue", "map[string]any"} {
		if !strings.Contains(list, want) {
			t.Errorf("the comment of limpet.Undefined has no %q", want)
		}
	}
}
