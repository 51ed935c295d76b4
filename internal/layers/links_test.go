package layers_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

var (
	// link is [text](target) or ![text](target), without a title.
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	// scheme begins a link to elsewhere.
	scheme = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
)

// pages are the files for people of which the links are checked.
func pages(fsys fs.FS) (names []string, err error) {
	names = []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md"}
	err = fs.WalkDir(fsys, "docs", func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path.Ext(p) == ".md" {
			names = append(names, p)
		}
		return err
	})
	return names, err
}

// brokenLinks lists the relative links of a page that point at nothing, and how
// many there were.
func brokenLinks(fsys fs.FS, page string) (broken []string, all int, err error) {
	text, err := fs.ReadFile(fsys, page)
	if err != nil {
		return nil, 0, err
	}
	for _, m := range link.FindAllStringSubmatch(withoutCode(string(text)), -1) {
		target, _, _ := strings.Cut(m[1], "#")
		if target == "" || scheme.MatchString(target) || strings.HasPrefix(target, "//") {
			continue
		}
		all++
		if _, err := fs.Stat(fsys, path.Join(path.Dir(page), target)); err != nil {
			broken = append(broken, m[1])
		}
	}
	return broken, all, nil
}

// withoutCode leaves fenced blocks and inline code out.
func withoutCode(text string) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if fenced {
			continue
		}
		for i, part := range strings.Split(line, "`") {
			if i%2 == 0 {
				b.WriteString(part)
			}
		}
	}
	return b.String()
}

// TestLinks checks that the relative links of the pages lead to files.
func TestLinks(t *testing.T) {
	fsys := os.DirFS(filepath.Join("..", ".."))
	names, err := pages(fsys)
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, name := range names {
		broken, n, err := brokenLinks(fsys, name)
		if err != nil {
			t.Error(err)
		}
		links += n
		for _, target := range broken {
			t.Errorf("%s: the link to %s leads nowhere", name, target)
		}
	}
	if links == 0 {
		t.Error("no links were found at all")
	}
}

// TestBrokenLinks shows that the check finds what is wrong.
func TestBrokenLinks(t *testing.T) {
	fsys := fstest.MapFS{
		"docs/a.md": {Data: []byte("[b](b.md) [c](../c/) [d](b.md#x) [e](#y) [f](https://e.org/f) `[g](g)` [h](h.md) [i](/docs/b.md)\n```\n[j](j.md)\n```\n![k](k.png)\n")},
		"docs/b.md": {}, "c/d": {},
	}
	broken, n, err := brokenLinks(fsys, "docs/a.md")
	if err != nil || n != 6 || strings.Join(broken, " ") != "h.md /docs/b.md k.png" {
		t.Errorf("got %q of %d, %v", broken, n, err)
	}
}
