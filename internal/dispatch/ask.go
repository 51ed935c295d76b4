package dispatch

import (
	"context"
	"time"

	"github.com/limpet-dev/limpet"
)

// OutcomeTransport is a Transport over which outcomes can be asked for.
type OutcomeTransport interface {
	// Outcome makes one attempt to ask. age is the time since the identity was
	// made, by this process's clock; it means nothing for a key. Errors are as
	// those of Do.
	Outcome(ctx context.Context, c *limpet.CallSpec, q limpet.OutcomeQuery, age time.Duration) (*limpet.CallOutcome, error)
}

var _ limpet.OutcomeTeller = (*Engine)(nil)

// Outcome asks the object of c what became of a call. To ask twice does no harm,
// so that every lost connection is followed by another attempt within the policy.
func (e *Engine) Outcome(ctx context.Context, c *limpet.CallSpec, q limpet.OutcomeQuery) (*limpet.CallOutcome, error) {
	if err := e.admit(ctx); err != nil {
		return nil, err
	}
	o := limpet.OriginOf(ctx, c.Binding)
	if o == nil {
		return e.ask(ctx, c, q)
	}
	out, err := o.Leave(ctx)
	if err != nil {
		return nil, unsent(err)
	}
	got, err := e.ask(out, c, q)
	if gone := o.Return(out); gone != nil {
		return nil, notReturned(gone, err)
	}
	return got, err
}

func (e *Engine) ask(ctx context.Context, c *limpet.CallSpec, q limpet.OutcomeQuery) (*limpet.CallOutcome, error) {
	cutoff := e.now() + c.Policy.Timeout
	for n := 1; ; n++ {
		got, err := e.askOnce(ctx, c, q)
		if err == nil {
			return got, nil
		}
		failed := asError(err).Clone()
		failed.Attempts = n
		wait := backoff(n, e.draw())
		if !isLost(failed) || ctx.Err() != nil || n > c.Policy.MaxRetries || e.now()+wait >= cutoff {
			return nil, failed
		}
		pause := e.clock.NewTimer(wait)
		select {
		case <-pause.C():
		case <-ctx.Done():
			pause.Stop()
			return nil, canceled(ctx, failed.Delivery)
		case <-e.closing:
			pause.Stop()
			return nil, closed(failed.Delivery)
		}
	}
}

func (e *Engine) askOnce(ctx context.Context, c *limpet.CallSpec, q limpet.OutcomeQuery) (*limpet.CallOutcome, error) {
	t, err := e.router.Route(ctx, c)
	if err != nil {
		return nil, err
	}
	teller, ok := t.(OutcomeTransport)
	if !ok {
		return nil, unsent(limpet.Errorf(limpet.CodeNotSupported, "not supported: to ask for outcomes over this way to the object"))
	}
	age := time.Duration(0) // of a key nobody knows it
	if q.Key == "" {
		const most = int64(1<<62) / int64(time.Millisecond) // an identity may say anything
		age = time.Duration(max(min(e.clock.Now().UnixMilli()-q.Identity.CreatedMS, most), -most)) * time.Millisecond
	}
	return teller.Outcome(ctx, c, q, age)
}
