package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const fence = "```"

// md makes Markdown: "~~~" stands for a fence of backquotes.
func md(s string) string { return strings.ReplaceAll(s, "~~~", fence) }

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"a\n<!-- run -->\ntext":                                              "line 2: no fenced block follows the marker",
		"<!-- run -->":                                                       "line 1: no fenced block follows the marker",
		"<!-- run -->\n~~~sh\necho":                                          "line 2: the fenced block is never closed",
		"<!-- run -->\n~~~sh\n\n~~~":                                         "line 1: the block has no command",
		"<!-- run: exit x -->\n~~~sh\na\n~~~":                                `line 1: "exit x" is not: exit STATUS`,
		"<!-- serve: a:1 -->\n~~~\n$ a\n$ b\n~~~":                            "line 1: a serve block has one command, this has 2",
		"<!-- expect -->\n~~~\na\n~~~":                                       "line 1: no run block stands before what is expected",
		"<!-- run -->\n~~~\n$ a\nx\n~~~\n<!-- expect -->\n~~~\na\n~~~":       "line 6: the run block before shows its output already",
		"<!-- kill: 9 -->":                                                   "line 1: kill takes no argument",
		"<!-- test-command: x -->\n~~~\na\n~~~":                              "line 1: test-command takes no argument",
		"~~~text\n<!-- run -->\n~~~\n\n<!-- run -->\n~~~sh\n~~~\n<!-- a -->": "line 5: the block has no command",
	} {
		if _, err := parse(md(text)); err == nil || err.Error() != want {
			t.Errorf("parse(%q) says %v, want %s", text, err, want)
		}
	}
}

func TestParseDefaults(t *testing.T) {
	blocks, err := parse(md("<!-- serve -->\n~~~sh\na\n~~~\n<!-- run -->\n\n~~~sh\nb\nc\n~~~\n\n<!-- expect -->\n~~~\n1\n~~~\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(blocks) != 2 || blocks[0].addr != "127.0.0.1:8787" || len(blocks[1].commands) != 1 {
		t.Fatalf("parsed to %+v", blocks)
	}
	if c := blocks[1].commands[0]; c.text != "b\nc" || len(c.want) != 1 || c.want[0] != "1" || c.line != 8 {
		t.Errorf("the script is %+v", c)
	}
}

func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		want, got string
		ok        bool
	}{
		{"a\nb", "a \nb\n\n", true},
		{"a", "a\nb\n", false},
		{"a", "aa\n", false},
		{"", "", true},
		{"", "a\n", false},
		{`{"id":"...","n":3}`, `{"id":"12","n":3}`, true},
		{`{"id":"...","n":3}`, `{"id":"12","n":4}`, false},
		{"a\n...\nb", "a\nb", true},
		{"a\n...\nb", "a\n1\n2\nb\n", true},
		{"a\n...\nb", "a\n1\n2\n", false},
		{"a.c", "abc", false},
	} {
		if got := matches(strings.Split(tt.want, "\n"), tt.got); got != tt.ok {
			t.Errorf("matches(%q, %q) = %v, want %v", tt.want, tt.got, got, tt.ok)
		}
	}
}

// server is a program that answers every connection with its argument.
const server = `package main
import ("fmt"; "net"; "os"; "os/signal"; "syscall")
func main() {
	l, err := net.Listen("tcp", os.Args[1])
	if err != nil { panic(err) }
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	go func() { <-c; fmt.Println("draining"); if os.Args[2] == "bad" { os.Exit(4) }; os.Exit(0) }()
	for { conn, err := l.Accept(); if err != nil { return }; fmt.Fprintln(conn, os.Args[2]); conn.Close() }
}
`

func TestRun(t *testing.T) {
	addr := freeAddr(t)
	port := addr[strings.LastIndexByte(addr, ':')+1:]
	serve := func(word string) string {
		return "<!-- serve: " + addr + " -->\n~~~sh\ngo run server.go " + addr + " " + word + "\n~~~\n"
	}
	ask := "<!-- run -->\n~~~console\n$ cat \\\n    </dev/tcp/127.0.0.1/" + port + "\n"
	for _, tt := range []struct{ name, mode, text, want string }{
		{name: "good", mode: "run", text: "Text.\n" + serve("one") + ask + "one\n$ echo a; echo b\n...\nb\n~~~\n" +
			"<!-- kill -->\n" + serve("two") + ask + "two\n~~~\n" + serve("three") + ask + "th...\n~~~\n" +
			"<!-- run: exit 3 -->\n~~~sh\necho hard >&2\nexit 3\n~~~\n<!-- expect -->\n~~~text\nhard\n~~~\n"},
		{name: "other output", mode: "run", text: serve("one") + ask + "two\n~~~\n", want: "it printed\none\n\nbut the text says\ntwo"},
		{name: "failing command", mode: "run", text: serve("one") + "<!-- run -->\n~~~\nfalse\ntrue\n~~~\n", want: "exit status 1, want 0"},
		{name: "bad end", mode: "run", text: serve("bad") + ask + "bad\n~~~\n", want: "after SIGTERM the server ended with: exit status 1"},
		{name: "no server", mode: "run", text: "<!-- serve: " + addr + " -->\n~~~\nexit 7\n~~~\n", want: "ended before " + addr + " took connections: exit status 7"},
		{name: "nothing marked", mode: "run", text: "Text.", want: "has 0 blocks marked serve and 0 marked run"},
		{name: "kill nothing", mode: "run", text: "<!-- kill -->\n", want: "no server runs"},
		{name: "test", mode: "test", text: "<!-- test-command -->\n~~~\n$ true\n~~~\n"},
		{name: "failing test", mode: "test", text: "<!-- test-command -->\n~~~\n$ exit 2\n~~~\n", want: "exit 2: exit status 2"},
		{name: "no test", mode: "test", text: "Text.", want: "has 0 blocks marked test-command"},
		{name: "other mode", mode: "look", text: "", want: "neither run nor test"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"README.md": md(tt.text), "server.go": server, "go.mod": "module m\n\ngo 1.26\n"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			err := run(t.Context(), []string{tt.mode, filepath.Join(dir, "README.md")})
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("it says %v, want an error with %q", err, tt.want)
			}
			if listening(addr) {
				t.Fatalf("something still listens on %s", addr)
			}
		})
	}
}

// freeAddr is an address nobody listens on. Its port is below those that systems
// give out by themselves, so that no other test gets it meanwhile.
func freeAddr(t *testing.T) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(os.Getpid())))
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rng.IntN(10000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port from 20000 to 29999 is free")
	return ""
}
