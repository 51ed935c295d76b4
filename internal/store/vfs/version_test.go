package vfs_test

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zombiezen.com/go/sqlite"
)

// tested are the versions this package was tested with.
var tested = map[string]string{
	"zombiezen.com/go/sqlite": "v1.4.2",
	"modernc.org/sqlite":      "v1.62.0",
	"modernc.org/libc":        "v1.80.1",
}

const testedSQLite = "3.54.1"

// TestVersions: the VFS stands on C structures, on the order of SQLite's calls and
// on modernc's way of calling functions. A new version needs more than a compiler.
func TestVersions(t *testing.T) {
	const remedy = `
The three are one set. To move to other versions:
 1. take zombiezen.com/go/sqlite, and the modernc.org/sqlite you want with exactly the modernc.org/libc its go.mod names;
 2. read what changed in SQLite's pager.c (sqlite3PagerCommitPhaseOne, pager_playback, pager_end_transaction,
    pager_unlock, sqlite3PagerSharedLock) against the drawing in doc.go;
 3. go test ./internal/store/vfs -run TestCheck -seeds 500 -ops 2000 -timeout 0; and the package with -race
    (-gcflags=modernc.org/...=-race=false);
 4. set the versions here.`
	got := requirements(t)
	for path, want := range tested {
		if got[path] != want {
			t.Errorf("%s is %q in go.mod, tested was %s%s", path, got[path], want, remedy)
		}
	}
	if sqlite.Version != testedSQLite {
		t.Errorf("SQLite is %s, tested was %s%s", sqlite.Version, testedSQLite, remedy)
	}
}

// requirements reads go.mod; the build information of a test binary has no modules.
func requirements(t *testing.T) map[string]string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above this package")
		}
		dir = parent
	}
	f, err := os.Open(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	versions := map[string]string{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(sc.Text()), "require "))
		if len(fields) >= 2 && strings.HasPrefix(fields[1], "v") {
			versions[fields[0]] = fields[1]
		}
		if strings.Contains(sc.Text(), "=>") {
			t.Errorf("go.mod replaces a module: %s", sc.Text())
		}
	}
	return versions
}
