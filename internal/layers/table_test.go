package layers_test

import "strings"

// row is one package, or a folder of packages, of the table.
type row struct {
	dir     string // from the module's root, "." for the root; "x/*" is any folder below x
	layer   int    // imports go to lower ones only
	stdOnly bool   // production files import no third party
	forTest bool   // production packages must not import it
	parent  string // a subpackage: the only package that may import it
	public  bool   // imports nothing internal, as users can't either
}

// table is the one place where a new package gets its layer.
var table = []row{
	{dir: ".", layer: 0, stdOnly: true},
	{dir: "internal/invariant", layer: 0, stdOnly: true},
	{dir: "internal/layers", layer: 0, stdOnly: true},
	{dir: "internal/mutation", layer: 0, stdOnly: true},

	{dir: "internal/value", layer: 1},
	{dir: "internal/workers", layer: 1, stdOnly: true},
	{dir: "internal/sim", layer: 1, forTest: true},

	{dir: "internal/dispatch", layer: 2, stdOnly: true},
	{dir: "internal/wire", layer: 2},
	{dir: "internal/store", layer: 2},
	{dir: "internal/store/vfs", layer: 2, parent: "internal/store"},
	{dir: "internal/js", layer: 2},
	{dir: "internal/js/qjs", layer: 2, parent: "internal/js"},
	{dir: "internal/config", layer: 2},
	{dir: "internal/cluster", layer: 2},

	{dir: "internal/host", layer: 3},
	{dir: "internal/gateway", layer: 3},
	{dir: "internal/admin", layer: 3},

	{dir: "node", layer: 4},
	{dir: "client", layer: 4},

	{dir: "cmd/limpet", layer: 5},
	{dir: "examples/*", layer: 6, public: true}, // above limpettest, which may be shown outside of tests
	{dir: "limpettest", layer: 5, forTest: true},
	{dir: "internal/endtoend", layer: 5, forTest: true},
	{dir: "bench/*", layer: 5},
}

// usesSim are the packages of the table that are no production code, though
// their files are no _test.go: they may import packages that are for tests.
var usesSim = []string{"limpettest", "bench/*", "examples/*"}

// thirdParty tells which of our packages may import a module (or, with a longer
// path, a part of it) in production files; a folder stands for all below it.
// The longest path that fits an import decides.
var thirdParty = map[string][]string{
	"zombiezen.com/go/sqlite":           {"internal/store", "bench"}, // bench: the rival is SQLite on its own file
	"modernc.org/sqlite":                {"internal/store"},
	"modernc.org/libc":                  {"internal/store/vfs", "internal/js/qjs"}, // the C types of the transpiled ABI
	"github.com/cockroachdb/pebble/v2":  {"internal/store"},
	"github.com/klauspost/compress":     {"internal/store"},
	"github.com/fxamacker/cbor/v2":      {"internal/wire"}, // value reads and writes its own heads
	"modernc.org/libquickjs":            {"internal/js/qjs"},
	"github.com/evanw/esbuild":          {"internal/js"},
	"github.com/nlnwa/whatwg-url":       {"internal/js"},
	"github.com/dlclark/regexp2/v2":     {"internal/js"},
	"github.com/go-sourcemap/sourcemap": {"internal/js"},
	"github.com/coder/websocket":        {"internal/gateway", "internal/js"},

	"github.com/prometheus/client_golang": {"internal/admin", "node"},
	"go.opentelemetry.io/otel":            {"internal/admin", "node"},
	"go.opentelemetry.io/otel/sdk":        {"cmd/limpet"}, // a library's user brings their own
	"go.opentelemetry.io/otel/exporters":  {"cmd/limpet"},

	"github.com/spf13/cobra":       {"cmd/limpet"},
	"github.com/fsnotify/fsnotify": {"cmd/limpet"},
	"github.com/lmittmann/tint":    {"cmd/limpet"},

	"github.com/BurntSushi/toml":        {"internal/config"},
	"github.com/tidwall/jsonc":          {"internal/config"},
	"github.com/tailscale/hujson":       {"internal/config"},
	"golang.org/x/sync":                 {"internal", "node", "client", "cmd", "limpettest", "bench"},
	"golang.org/x/time":                 {"internal", "node", "client", "cmd", "limpettest", "bench"},
	"golang.org/x/sys":                  {"internal/store", "node", "cmd/limpet", "bench"}, // fdatasync, file locks, memory figures
	"github.com/anishathalye/porcupine": {"bench/promise"},                                 // histories are checked by a command; a library's user links none of it
	"github.com/cockroachdb/pebble/v2/vfs": {
		"internal/store", "internal/sim", "limpettest", // the crashable disk is pebble's, behind the same interface as the real one
	},
}

// testThirdParty is what _test.go files may import besides, and where.
var testThirdParty = map[string][]string{
	"github.com/google/go-cmp":             {"*"},
	"pgregory.net/rapid":                   {"*"},
	"github.com/anishathalye/porcupine":    {"*"},
	"github.com/rogpeppe/go-internal":      {"*"},
	"go.uber.org/goleak":                   {"*"},
	"golang.org/x/sync":                    {"*"},
	"golang.org/x/sys":                     {"*"},              // signals and limits of child processes
	"github.com/cockroachdb/pebble/v2/vfs": {"*"},              // the crashable disk
	"github.com/fxamacker/cbor/v2":         {"internal/value"}, // the oracle
	"zombiezen.com/go/sqlite":              {"internal/store"},
}

// unsafeDirs are where "unsafe" may be imported, in tests too.
var unsafeDirs = []string{"internal/store/vfs", "internal/js/qjs"}

// drawers are names that say nothing about what is inside.
var drawers = []string{"util", "utils", "common", "manager", "managers", "helper", "helpers"}

// lookup returns the row of dir. An exact row wins over a "x/*" one.
func lookup(dir string) (row, bool) {
	var found row
	ok := false
	for _, r := range table {
		if r.dir == dir {
			return r, true
		}
		if below, tree := strings.CutSuffix(r.dir, "/*"); tree && strings.HasPrefix(dir, below+"/") {
			found, ok = r, true
		}
	}
	return found, ok
}

// inside tells whether dir is where, or below it; "*" holds everything.
func inside(dir, where string) bool {
	where = strings.TrimSuffix(where, "/*")
	return where == "*" || dir == where || strings.HasPrefix(dir, where+"/")
}

// insideAny tells whether dir is inside one of where.
func insideAny(dir string, where []string) bool {
	for _, w := range where {
		if inside(dir, w) {
			return true
		}
	}
	return false
}

// places returns where an import path may stand by the longest path of m that
// fits it.
func places(m map[string][]string, path string) (where []string, ok bool) {
	best := -1
	for prefix, w := range m {
		if (path == prefix || strings.HasPrefix(path, prefix+"/")) && len(prefix) > best {
			best, where, ok = len(prefix), w, true
		}
	}
	return where, ok
}
