package main

import (
	"bufio"
	"os"
	"strings"
	"testing"
)

// TestMain lets the test's own binary be the server that it starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serveCommand {
		serveMain(os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

func TestQuick(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-quick", "-connections", "1,8", "-dir", t.TempDir()}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| rpc, one object | 8 ", "| put ", "| handler ", "| door ", "No ratio"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-connections", "0"}, {"-connections", "2000"}, {"-rounds", "0"}, {"-objects", "-1"}} {
		if _, err := parse(args, new(strings.Builder)); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, tt := range []struct{ name, answer, body, err string }{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", ""},
		{"chunks", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", "ok", ""},
		{"status", "HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", "busy", "status 503: busy"},
		{"no length", "HTTP/1.1 200 OK\r\n\r\n", "", "without a length"},
		{"too long", "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", "", "more than"},
		{"other", "SSH-2.0-x\r\n\r\n", "", "no HTTP/1.1 answer"},
	} {
		c := &client{in: bufio.NewReader(strings.NewReader(tt.answer))}
		err := c.answer(request{path: "/"})
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.err)
		}
		if string(c.body) != tt.body {
			t.Errorf("%s: body %q, want %q", tt.name, c.body, tt.body)
		}
	}
}
