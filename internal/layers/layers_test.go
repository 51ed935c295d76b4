package layers_test

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// root is the module's root as seen from this package's folder.
const root = "../.."

func TestTree(t *testing.T) {
	tr, err := load(os.DirFS(root), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.files) < 5 {
		t.Fatalf("only %d Go files found under %s", len(tr.files), root)
	}
	for _, v := range tr.check() {
		t.Error(v)
	}
}

// src is the text of a file of a fixture: its package, then its imports. A
// file called doc.go has a package comment.
func src(pkg string, imports ...string) string {
	s := "package " + pkg + "\n"
	for _, i := range imports {
		s += "import _ \"" + strings.Replace(i, "~", "m.test/limpet", 1) + "\"\n"
	}
	return s
}

// TestRules shows each rule caught by a tree that breaks it and nothing else,
// and next to it what the rule allows.
func TestRules(t *testing.T) {
	const pebble = "github.com/cockroachdb/pebble/v2"
	tests := []struct {
		name  string
		files map[string]string // package comments are added where there is no doc.go
		want  []string          // in order; each a violation's whole text, "" for none
	}{
		{
			name: "down",
			files: map[string]string{
				"internal/host/a.go": src("host", "~", "~/internal/store", "~/internal/value", "fmt"),
			},
		},
		{
			name:  "up",
			files: map[string]string{"internal/store/a.go": src("store", "fmt", "~/internal/host")},
			want:  []string{"internal/store/a.go:3: import of m.test/limpet/internal/host: goes up, from layer 2 to layer 3; imports go strictly down"},
		},
		{
			name:  "sideways",
			files: map[string]string{"internal/host/a.go": src("host", "~/internal/gateway")},
			want:  []string{"internal/host/a.go:2: import of m.test/limpet/internal/gateway: goes sideways, from layer 3 to layer 3; imports go strictly down"},
		},
		{
			name:  "root imports nothing of ours",
			files: map[string]string{"a.go": src("limpet", "~/internal/invariant")},
			want:  []string{"a.go:2: import of m.test/limpet/internal/invariant: goes sideways, from layer 0 to layer 0; imports go strictly down"},
		},
		{
			name:  "tests follow the table",
			files: map[string]string{"internal/store/a_test.go": src("store_test", "~/internal/store", "~/node")},
			want:  []string{"internal/store/a_test.go:3: import of m.test/limpet/node: goes up, from layer 2 to layer 4; imports go strictly down"},
		},
		{
			name: "limpettest from package x_test",
			files: map[string]string{
				"a_test.go":                src("limpet_test", "~", "~/limpettest"),
				"examples/cart/a_test.go":  src("main", "~/limpettest"),
				"internal/host/a_test.go":  src("host_test", "~/limpettest"),
				"internal/value/a_test.go": src("value", "~/limpettest"),
			},
			want: []string{"internal/value/a_test.go:2: import of m.test/limpet/limpettest: only tests of package value_test may import limpettest"},
		},
		{
			name:  "limpettest in production",
			files: map[string]string{"cmd/limpet/a.go": src("main", "~/limpettest")},
			want:  []string{"cmd/limpet/a.go:2: import of m.test/limpet/limpettest: production packages must not import what is made for tests"},
		},
		{
			name: "sim",
			files: map[string]string{
				"internal/host/a.go":      src("host", "~/internal/sim"),
				"internal/host/a_test.go": src("host", "~/internal/sim"),
				"limpettest/a.go":         src("limpettest", "~/internal/sim", "~/node"),
				"bench/calls/a.go":        src("main", "~/internal/sim"),
			},
			want: []string{"internal/host/a.go:2: import of m.test/limpet/internal/sim: production packages must not import what is made for tests"},
		},
		{
			name: "subpackage",
			files: map[string]string{
				"internal/store/a.go":          src("store", "~/internal/store/vfs"),
				"internal/store/vfs/a.go":      src("vfs", "~/internal/invariant", "unsafe"),
				"internal/store/vfs/b.go":      src("vfs", "~/internal/store"),
				"internal/store/vfs/a_test.go": src("vfs_test", "~/internal/store/vfs"),
				"node/a.go":                    src("node", "~/internal/store/vfs"),
			},
			want: []string{
				"internal/store/vfs/b.go:2: import of m.test/limpet/internal/store: goes sideways, from layer 2 to layer 2; imports go strictly down",
				"node/a.go:2: import of m.test/limpet/internal/store/vfs: a subpackage serves its parent internal/store only",
			},
		},
		{
			name: "unknown package",
			files: map[string]string{
				"internal/turnstile/a.go": src("turnstile", "~/node"),
				"internal/store/log/a.go": src("log"),
				"internal/host/a.go":      src("host", "~/internal/turnstile"),
			},
			want: []string{
				"internal/store/log: the package has no layer: put it into the table of internal/layers/table_test.go (and of docs, if it is a layer's member)",
				"internal/turnstile: the package has no layer: put it into the table of internal/layers/table_test.go (and of docs, if it is a layer's member)",
			},
		},
		{
			name: "standard library only",
			files: map[string]string{
				"a.go":                        src("limpet", "golang.org/x/sync/errgroup"),
				"a_test.go":                   src("limpet", "github.com/google/go-cmp/cmp"),
				"internal/dispatch/a.go":      src("dispatch", "~", "~/internal/value", "golang.org/x/time/rate"),
				"internal/dispatch/a_test.go": src("dispatch_test", "pgregory.net/rapid", "~/internal/sim"),
			},
			want: []string{
				"a.go:2: import of golang.org/x/sync/errgroup: . imports the standard library only",
				"internal/dispatch/a.go:4: import of golang.org/x/time/rate: internal/dispatch imports the standard library only",
			},
		},
		{
			name: "third party",
			files: map[string]string{
				"internal/store/a.go":      src("store", pebble, pebble+"/vfs", "zombiezen.com/go/sqlite/sqlitex"),
				"internal/host/a.go":       src("host", pebble, "golang.org/x/sync/errgroup"),
				"internal/host/a_test.go":  src("host", pebble+"/vfs", "go.uber.org/goleak"),
				"internal/host/b_test.go":  src("host", pebble),
				"internal/sim/a.go":        src("sim", pebble+"/vfs", pebble),
				"internal/value/a.go":      src("value", "github.com/fxamacker/cbor/v2"),
				"internal/value/a_test.go": src("value_test", "github.com/fxamacker/cbor/v2"),
				"node/a.go":                src("node", "go.opentelemetry.io/otel/trace", "go.opentelemetry.io/otel/sdk/trace"),
			},
			want: []string{
				"internal/host/a.go:2: import of github.com/cockroachdb/pebble/v2: only these may import it: internal/store",
				"internal/host/b_test.go:2: import of github.com/cockroachdb/pebble/v2: only these may import it: internal/store",
				"internal/sim/a.go:3: import of github.com/cockroachdb/pebble/v2: only these may import it: internal/store",
				"internal/value/a.go:2: import of github.com/fxamacker/cbor/v2: only these may import it: internal/wire",
				"node/a.go:3: import of go.opentelemetry.io/otel/sdk/trace: only these may import it: cmd/limpet",
			},
		},
		{
			name:  "test library in production",
			files: map[string]string{"node/a.go": src("node", "go.uber.org/goleak")},
			want:  []string{"node/a.go:2: import of go.uber.org/goleak: it is a library for tests"},
		},
		{
			name:  "unknown dependency",
			files: map[string]string{"node/a_test.go": src("node", "example.org/leftpad"), "node/a.go": src("node")},
			want:  []string{"node/a_test.go:2: import of example.org/leftpad: a dependency that the table of internal/layers/table_test.go does not know"},
		},
		{
			name: "unsafe and cgo",
			files: map[string]string{
				"internal/store/vfs/a.go":  src("vfs", "unsafe"),
				"internal/value/a.go":      src("value", "unsafe", "C"),
				"internal/value/a_test.go": src("value", "unsafe"),
			},
			want: []string{
				"internal/value/a.go:2: import of unsafe: unsafe is used in internal/store/vfs and internal/js/qjs only",
				"internal/value/a.go:3: import of C: limpet is pure Go, cgo is used nowhere",
				"internal/value/a_test.go:2: import of unsafe: unsafe is used in internal/store/vfs and internal/js/qjs only",
			},
		},
		{
			name: "example",
			files: map[string]string{
				"examples/cart/a.go": src("main", "~", "~/node", "~/internal/gateway"),
				"examples/chat/a.go": src("main", "~/examples/cart"),
				"bench/puts/a.go":    src("main", "~/bench/report", "~/internal/store"),
				"bench/report/a.go":  src("report"),
			},
			want: []string{
				"examples/cart/a.go:4: import of m.test/limpet/internal/gateway: an example uses what users can use, and they can't import internal packages",
				"examples/chat/a.go:2: import of m.test/limpet/examples/cart: goes sideways, from layer 6 to layer 6; imports go strictly down",
			},
		},
		{
			name: "package comment",
			files: map[string]string{
				"client/doc.go":          "// Package client is attached.\npackage client\n",
				"client/a.go":            "// Package client is told twice.\npackage client\n",
				"internal/host/doc.go":   "// Package host is cut off.\n\npackage host\n",
				"internal/js/doc.go":     "//go:build linux\n\n// Package js is attached.\npackage js\n",
				"internal/wire/doc.go":   "// This package is about bytes.\npackage wire\n",
				"internal/wire/frame.go": "//go:build linux\n\npackage wire\n",
				"internal/config/a.go":   "// Package config is in the wrong file.\npackage config\n",
				"cmd/limpet/main.go":     "// Limpet is a program.\npackage main\n",
				"cmd/limpet/doc.go":      "package main\n",
				"internal/sim/doc.go":    "package sim\n",
				"node/a_test.go":         "// A test's comment is not the package's.\npackage node\n",
			},
			want: []string{
				"client/a.go: package client has 2 package comments, one is right",
				"client/doc.go: package client has 2 package comments, one is right",
				"internal/config/a.go: the package comment belongs into doc.go",
				"internal/host/doc.go: package host has no package comment: write it in internal/host/doc.go",
				"internal/host/doc.go:1: a blank line between this comment and the package clause hides it from go doc",
				"internal/sim/doc.go: package sim has no package comment: write it in internal/sim/doc.go",
				`internal/wire/doc.go: the package comment starts with "Package wire "`,
			},
		},
		{
			name: "names",
			files: map[string]string{
				"examples/common/a.go":         src("main"),
				"internal/host/helpers.go":     src("host"),
				"internal/host/util_test.go":   src("host"),
				"internal/host/inbox.go":       src("host"),
				"internal/store/utilities.go":  src("store"),
				"bench/calls/lock_manager.go":  src("main"),
				"internal/gateway/manage.go":   src("gateway"),
				"internal/gateway/doc_test.go": src("helper_test"),
			},
			want: []string{
				`bench/calls/lock_manager.go: a file called "manager" says nothing about what is inside: name it for its one concept`,
				`examples/common: a package called "common" says nothing about what is inside: name it for its one concept`,
				`internal/gateway: a package called "helper" says nothing about what is inside: name it for its one concept`,
				`internal/host/helpers.go: a file called "helpers" says nothing about what is inside: name it for its one concept`,
				`internal/host/util_test.go: a file called "util" says nothing about what is inside: name it for its one concept`,
			},
		},
		{
			name: "other modules and ignored folders",
			files: map[string]string{
				"tools/go.mod":           "module m.test/tools\n",
				"tools/a.go":             src("util", "C"),
				"node/testdata/a.go":     src("util", "C"),
				".ci/a.go":               src("util", "C"),
				"node/_old/a.go":         src("util", "C"),
				"internal/host/_util.go": src("host", "C"),
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := fstest.MapFS{"go.mod": {Data: []byte("module m.test/limpet\n\ngo 1.26\n")}}
			for p, text := range tt.files {
				fsys[p] = &fstest.MapFile{Data: []byte(text)}
				dir := p[:max(strings.LastIndexByte(p, '/'), 0)]
				if tt.name == "package comment" || strings.HasSuffix(p, "_test.go") || !strings.HasSuffix(p, ".go") {
					continue
				}
				doc := strings.TrimPrefix(dir+"/doc.go", "/")
				pkg := strings.Fields(text)[1]
				fsys[doc] = &fstest.MapFile{Data: []byte("// Package " + pkg + " is a fixture.\npackage " + pkg + "\n")}
			}
			tr, err := load(fsys, false)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range tr.check() {
				got = append(got, v.String())
			}
			for i := range max(len(got), len(tt.want)) {
				switch {
				case i >= len(got):
					t.Errorf("not found: %s", tt.want[i])
				case i >= len(tt.want):
					t.Errorf("found though not wanted: %s", got[i])
				case got[i] != tt.want[i]:
					t.Errorf("violation %d\n got %s\nwant %s", i, got[i], tt.want[i])
				}
			}
		})
	}
}

// TestLoadErrors shows that a file that can't be read as Go is no silent gap.
func TestLoadErrors(t *testing.T) {
	for name, fsys := range map[string]fstest.MapFS{
		"no go.mod":      {"a.go": {Data: []byte("package limpet\n")}},
		"no module line": {"go.mod": {Data: []byte("go 1.26\n")}},
		"not Go":         {"go.mod": {Data: []byte("module m\n")}, "a.go": {Data: []byte("packet limpet\n")}},
	} {
		if _, err := load(fsys, false); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
