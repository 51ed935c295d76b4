package host

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/limpet-dev/limpet"
)

// TestEndlessChain: objects that call each other without end fail, and the
// failure travels back through all of them; a long chain passes.
func TestEndlessChain(t *testing.T) {
	b := new(box).standard()
	b.on("down", func(ctx context.Context, th *thing, arg string) (string, error) {
		n, err := strconv.Atoi(arg)
		if n == 0 || err != nil {
			return "bottom", err
		}
		if n%2 == 0 {
			ctx = context.Background() // the stub knows whose it is
		}
		return limpet.Call2(ctx, th.other(), (*thing).Do, "down", strconv.Itoa(n-1))
	})
	inBubble(t, Limits{}, oneClass(b), func(t *testing.T, w *world) {
		if v, err := w.call(t.Context(), "down", strconv.Itoa(maxChain-1)); v != "bottom" || err != nil {
			t.Errorf("a chain of %d: %q %v", maxChain, v, err)
		}
		_, err := w.call(t.Context(), "down", strconv.Itoa(maxChain))
		if err == nil || !strings.Contains(err.Error(), "a chain of 256 calls is taken for one without end: … → Thing/") {
			t.Errorf("a chain of %d: %v", maxChain+1, err)
		}
		if v, err := w.call(t.Context(), "down", "1"); v != "bottom" || err != nil {
			t.Errorf("afterwards: %q %v", v, err)
		}
	})
}
