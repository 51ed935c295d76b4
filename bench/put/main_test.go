package main

import (
	"strings"
	"testing"
)

func TestQuick(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-quick", "-sides", "log,limpet,sql,files", "-dir", t.TempDir()}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| log ", "| limpet ", "| sql ", "| files ", "P3 of the log, 16 callers", "P3 times files", "bytes of a record"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-callers", "0"}, {"-callers", "x"}, {"-rounds", "0"}, {"-objects", "-1"}} {
		if _, err := parse(args, new(strings.Builder)); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
	if err := run(t.Context(), []string{"-sides", "nothing", "-dir", t.TempDir()}, new(strings.Builder)); err == nil {
		t.Error("an unknown side is taken")
	}
}
