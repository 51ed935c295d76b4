package wire

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// TestCancelCause: the other side learns whether the caller wished the end of its
// call: the run of a kept outcome goes on otherwise.
func TestCancelCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		causes := make(chan error, 1)
		w := serve(t, &callee{call: func(ctx context.Context, _ *Call, _ limpet.Encoded) (limpet.Encoded, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, nil
		}}, sim.Clock{})
		s := w.session(t)
		for _, c := range []struct{ cause, want error }{
			{limpet.Errorf(limpet.CodeDisconnected, "the time for retries is over"), limpet.CodeDisconnected},
			{errors.New("no longer wanted"), errCanceledByCaller},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			done := startCall(ctx, s, method("a"), nil)
			synctest.Wait()
			cancel(c.cause)
			<-done
			if got := <-causes; !errors.Is(got, c.want) {
				t.Errorf("canceled by %v: the handler got %v, want %v", c.cause, got, c.want)
			}
		}
		s.Close()
		w.close(t)
	})
}
