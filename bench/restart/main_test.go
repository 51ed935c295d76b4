package main

import (
	"os"
	"strings"
	"testing"
)

// TestMain lets the test's own binary be the process that opens again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == againCommand {
		againMain(os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

func TestQuick(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-quick", "-dir", t.TempDir()}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"first answer", "P7 everything", "P6 evicted object"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
	if err := run(t.Context(), []string{"-objects", "0"}, new(strings.Builder)); err == nil {
		t.Error("no objects are taken")
	}
}
