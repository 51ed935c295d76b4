package main

import (
	"os"
	"strings"
	"testing"
)

// TestMain lets the test's own binary be the servers that it starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serveCommand {
		serveMain(os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

func TestQuick(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-quick"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 1       | limpet ", "| 64      | one ", "| 64      | grpc ", "| 64      | connect ", "P2 p50 of grpc-go's, 1 caller", "P2 calls/s of grpc-go's, 64 callers"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-callers", "0"}, {"-rounds", "0"}, {"-time", "0s"}} {
		if _, err := parse(args, new(strings.Builder)); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
	if err := run(t.Context(), []string{"-sides", "nothing"}, new(strings.Builder)); err == nil {
		t.Error("an unknown side is taken")
	}
}
