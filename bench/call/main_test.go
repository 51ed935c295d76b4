package main

import (
	"strings"
	"testing"
)

func TestQuick(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-quick"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{rowDirect, rowCall, rowCallOff, rowInner, rowInvoke, rowManyCalls, "P1 Do2, retries on / off"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}
