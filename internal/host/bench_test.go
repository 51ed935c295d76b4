package host

import (
	"context"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
)

type counter struct{ n int }

func (c *counter) Add(_ context.Context, n int) (int, error) { c.n += n; return c.n, nil }

var counterClass = limpet.NewClass("Counter", func(*limpet.State) (*counter, error) { return &counter{}, nil })

// BenchmarkCall is a warm call in this process that touches no storage: alone
// (the host's own part), and through stub and engine.
func BenchmarkCall(b *testing.B) {
	w := newWorld(b, Limits{}, counterClass)
	defer w.close()
	stub := stubOf[*counter](w, "Counter", "o")
	ctx := context.Background()
	if _, err := limpet.Call1(ctx, stub, (*counter).Add, 1); err != nil {
		b.Fatal(err)
	}
	b.Run("stub", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := limpet.Call1(ctx, stub, (*counter).Add, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("host", func(b *testing.B) {
		a := dispatch.Attempt{Call: &limpet.CallSpec{Binding: w.names["Counter"], Object: stub.ID(), Method: "add", Runner: plainRunner{}}, Number: 1}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.host.Do(ctx, a); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cancelable", func(b *testing.B) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		b.ReportAllocs()
		for b.Loop() {
			if _, err := limpet.Call1(ctx, stub, (*counter).Add, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := limpet.Call1(ctx, stub, (*counter).Add, 1); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

type plainRunner struct{}

func (plainRunner) Run(ctx context.Context, r any) (any, error) {
	_, err := r.(*counter).Add(ctx, 1)
	return nil, err
}
func (plainRunner) Args() (limpet.Encoded, error)     { return nil, nil }
func (plainRunner) Capabilities() []limpet.Capability { return nil }
func (plainRunner) Size() int                         { return 0 }

// BenchmarkGate is the machine alone.
func BenchmarkGate(b *testing.B) {
	g := &gate{limits: gateLimits{events: 1000, bytes: 1 << 20}}
	e := &entry{}
	for b.Loop() {
		e.state = fresh
		g.step(0, inArrive, e, 0)
		g.step(0, inConclude, e, 0)
	}
}
