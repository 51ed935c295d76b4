package layers_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// tree is what the rules look at: all Go files of one module.
type tree struct {
	module string // path of the module, from go.mod
	files  []file
}

// file is one Go file: its head only, unless bodies were asked for.
type file struct {
	path    string // from the module's root, with slashes
	dir     string // "." for the root
	pkg     string // the name in the package clause
	test    bool   // is a _test.go
	ext     bool   // a test of package x_test
	imports []spec
	comment string // of the package, "" for none
	// detached is the line of a comment that stands where a package comment
	// would, but with a blank line before the package clause; 0 for none.
	detached int
	fset     *token.FileSet
	ast      *ast.File
}

type spec struct {
	path string
	line int
}

var moduleLine = regexp.MustCompile(`(?m)^module\s+(\S+)`)

// load parses all Go files of fsys down to their imports, or, with bodies,
// whole. Folders that the go command ignores and modules of their own are left
// out.
func load(fsys fs.FS, bodies bool) (*tree, error) {
	mod, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return nil, err
	}
	m := moduleLine.FindSubmatch(mod)
	if m == nil {
		return nil, fmt.Errorf("go.mod has no module line")
	}
	t := &tree{module: string(m[1])}
	err = fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p == "." {
				return nil
			}
			if n := d.Name(); n == "testdata" || n == "vendor" || n[0] == '.' || n[0] == '_' {
				return fs.SkipDir
			}
			if _, err := fs.Stat(fsys, p+"/go.mod"); err == nil {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(p) != ".go" || d.Name()[0] == '.' || d.Name()[0] == '_' {
			return nil
		}
		f, err := loadFile(fsys, p, bodies)
		if err != nil {
			return err
		}
		t.files = append(t.files, f)
		return nil
	})
	return t, err
}

func loadFile(fsys fs.FS, p string, bodies bool) (file, error) {
	src, err := fs.ReadFile(fsys, p)
	if err != nil {
		return file{}, err
	}
	mode := parser.ParseComments | parser.SkipObjectResolution
	if !bodies {
		mode |= parser.ImportsOnly
	}
	fset := token.NewFileSet()
	a, err := parser.ParseFile(fset, p, src, mode)
	if err != nil {
		return file{}, err
	}
	f := file{path: p, dir: path.Dir(p), pkg: a.Name.Name, fset: fset, ast: a}
	f.test = strings.HasSuffix(p, "_test.go")
	f.ext = f.test && strings.HasSuffix(f.pkg, "_test")
	f.comment = a.Doc.Text() // leaves out directives such as //go:build
	for _, i := range a.Imports {
		ip, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return file{}, fmt.Errorf("%s: import %s: %w", p, i.Path.Value, err)
		}
		f.imports = append(f.imports, spec{ip, fset.Position(i.Pos()).Line})
	}
	if f.comment == "" {
		for _, c := range a.Comments {
			if c.End() < a.Package && c.Text() != "" && !generated.MatchString(c.Text()) {
				f.detached = fset.Position(c.Pos()).Line
			}
		}
	}
	return f, nil
}

var generated = regexp.MustCompile(`(?m)^Code generated .* DO NOT EDIT\.$`)

// own returns the folder of an import path of the module.
func (t *tree) own(path string) (dir string, ok bool) {
	if path == t.module {
		return ".", true
	}
	return strings.CutPrefix(path, t.module+"/")
}

// violation is one broken rule. Its text names the place, the offender and the
// rule.
type violation struct {
	path string
	line int // 0 for none
	text string
}

func (v violation) String() string {
	if v.line == 0 {
		return v.path + ": " + v.text
	}
	return fmt.Sprintf("%s:%d: %s", v.path, v.line, v.text)
}

// check returns what is wrong with t by all rules, in order of place.
func (t *tree) check() []violation {
	var all []violation
	add := func(p string, line int, format string, args ...any) {
		all = append(all, violation{p, line, fmt.Sprintf(format, args...)})
	}
	t.checkTable(add)
	for _, f := range t.files {
		for _, i := range f.imports {
			if why := t.refuse(f, i.path); why != "" {
				add(f.path, i.line, "import of %s: %s", i.path, why)
			}
		}
	}
	t.checkComments(add)
	t.checkNames(add)
	slices.SortStableFunc(all, func(a, b violation) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.line, b.line))
	})
	return all
}

type adder func(path string, line int, format string, args ...any)

// checkTable finds packages that have no layer.
func (t *tree) checkTable(add adder) {
	seen := map[string]bool{}
	for _, f := range t.files {
		if seen[f.dir] {
			continue
		}
		seen[f.dir] = true
		if _, ok := lookup(f.dir); !ok {
			add(f.dir, 0, "the package has no layer: put it into the table of internal/layers/table_test.go (and of docs, if it is a layer's member)")
		}
	}
}

// refuse returns why f must not import path, or "".
func (t *tree) refuse(f file, path string) string {
	me, ok := lookup(f.dir)
	if !ok {
		return "" // checkTable says so once
	}
	switch {
	case path == "C":
		return "limpet is pure Go, cgo is used nowhere"
	case path == "unsafe":
		if !insideAny(f.dir, unsafeDirs) {
			return "unsafe is used in " + strings.Join(unsafeDirs, " and ") + " only"
		}
		return ""
	}
	if dir, ok := t.own(path); ok {
		return refuseOwn(f, me, dir)
	}
	if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
		return "" // the standard library
	}
	return refuseThirdParty(f, me, path)
}

// refuseOwn decides about an import of a package of the module.
func refuseOwn(f file, me row, dir string) string {
	it, ok := lookup(dir)
	if !ok {
		return "" // checkTable says so at the package itself
	}
	if f.dir == dir {
		return "" // package x_test imports x
	}
	if it.dir == "limpettest" && f.test {
		// Nothing imports a program, so the tests inside it can't make a cycle.
		if f.ext || f.pkg == "main" {
			return ""
		}
		return fmt.Sprintf("only tests of package %s_test may import limpettest", f.pkg)
	}
	if it.parent != "" && f.dir != it.parent {
		return fmt.Sprintf("a subpackage serves its parent %s only", it.parent)
	}
	if it.forTest && !f.test && !me.forTest && !slices.Contains(usesSim, me.dir) {
		return "production packages must not import what is made for tests"
	}
	if me.public && !f.test && strings.HasPrefix(dir, "internal/") {
		return "an example uses what users can use, and they can't import internal packages"
	}
	sameTree := me.dir == it.dir && strings.HasSuffix(me.dir, "/*")
	if it.parent == f.dir || sameTree && !me.public {
		return ""
	}
	if it.layer >= me.layer {
		way := "up"
		if it.layer == me.layer {
			way = "sideways"
		}
		return fmt.Sprintf("goes %s, from layer %d to layer %d; imports go strictly down", way, me.layer, it.layer)
	}
	return ""
}

// refuseThirdParty decides about an import of another module.
func refuseThirdParty(f file, me row, path string) string {
	where, known := places(thirdParty, path)
	if known && !me.stdOnly && insideAny(f.dir, where) {
		return ""
	}
	whereTest, knownTest := places(testThirdParty, path)
	if f.test && knownTest && insideAny(f.dir, whereTest) {
		return ""
	}
	switch {
	case me.stdOnly && !f.test:
		return fmt.Sprintf("%s imports the standard library only", f.dir)
	case known:
		return "only these may import it: " + strings.Join(where, ", ")
	case knownTest && !f.test:
		return "it is a library for tests"
	case knownTest:
		return "only tests of these may import it: " + strings.Join(whereTest, ", ")
	}
	return "a dependency that the table of internal/layers/table_test.go does not know"
}

// checkComments wants one package comment per package, in the right file and
// attached.
func (t *tree) checkComments(add adder) {
	type pkg struct {
		name  string
		first string // a file of it, for the message
		has   []file
	}
	pkgs := map[string]*pkg{}
	for _, f := range t.files {
		if f.test {
			continue
		}
		p := pkgs[f.dir]
		if p == nil {
			p = &pkg{name: f.pkg, first: f.path}
			pkgs[f.dir] = p
		}
		if f.comment != "" {
			p.has = append(p.has, f)
		}
		if base := path.Base(f.path); f.detached != 0 && (base == "doc.go" || base == "main.go") {
			add(f.path, f.detached, "a blank line between this comment and the package clause hides it from go doc")
		}
	}
	for dir, p := range pkgs {
		if len(p.has) == 0 {
			add(p.first, 0, "package %s has no package comment: write it in %s", p.name, path.Join(dir, "doc.go"))
			continue
		}
		if len(p.has) > 1 {
			for _, f := range p.has {
				add(f.path, 0, "package %s has %d package comments, one is right", p.name, len(p.has))
			}
			continue
		}
		f := p.has[0]
		base := path.Base(f.path)
		if base != "doc.go" && (p.name != "main" || base != "main.go") {
			add(f.path, 0, "the package comment belongs into doc.go")
		}
		if want := "Package " + p.name + " "; p.name != "main" && !strings.HasPrefix(f.comment, want) {
			add(f.path, 0, "the package comment starts with %q", want)
		}
	}
}

// checkNames refuses names that say nothing.
func (t *tree) checkNames(add adder) {
	seen := map[string]bool{}
	for _, f := range t.files {
		stem := strings.TrimSuffix(path.Base(f.path), ".go")
		for word := range strings.SplitSeq(stem, "_") {
			if slices.Contains(drawers, word) {
				add(f.path, 0, "a file called %q says nothing about what is inside: name it for its one concept", word)
			}
		}
		if seen[f.dir+"\x00"+f.pkg] {
			continue
		}
		seen[f.dir+"\x00"+f.pkg] = true
		for word := range strings.SplitSeq(f.dir+"/"+strings.TrimSuffix(f.pkg, "_test"), "/") {
			if slices.Contains(drawers, word) {
				add(f.dir, 0, "a package called %q says nothing about what is inside: name it for its one concept", word)
				break
			}
		}
	}
}
