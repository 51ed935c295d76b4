package dispatch

import (
	"context"
	"net/http"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// BenchmarkCallLossless is what dispatch adds to a call inside one process.
func BenchmarkCallLossless(b *testing.B) {
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, bench := range []struct {
		name    string
		retries int
		ctx     context.Context
	}{
		{"retries=on", 4, context.Background()},
		{"retries=off", 0, context.Background()},
		{"retries=on/cancellable", 4, cancellable},
	} {
		b.Run(bench.name, func(b *testing.B) {
			e := New(Config{Router: bare{}, Clock: sim.Clock{}})
			defer e.Close()
			c := newCall(policy(bench.retries, limpet.DefaultRetryTimeout))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.Call(bench.ctx, c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCallLossless's object: nothing.
type bare struct{}

func (bare) Route(context.Context, *limpet.CallSpec) (Transport, error) { return bare{}, nil }
func (bare) Do(context.Context, Attempt) (any, error)                   { return nil, nil }
func (bare) Lossless() bool                                             { return true }
func (bare) Prompt() bool                                               { return true }
func (bare) Boot() Boot                                                 { return Boot{} }
func (bare) Fetch(context.Context, Attempt) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
}

// BenchmarkCallWire is the same over a transport that can lose answers.
func BenchmarkCallWire(b *testing.B) {
	e := New(Config{Router: lossy{}, Clock: sim.Clock{}})
	defer e.Close()
	c := newCall()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Call(context.Background(), c); err != nil {
			b.Fatal(err)
		}
	}
}

type lossy struct{ bare }

func (lossy) Route(context.Context, *limpet.CallSpec) (Transport, error) { return lossy{}, nil }
func (lossy) Lossless() bool                                             { return false }

// BenchmarkStep is one retried call in the machine.
func BenchmarkStep(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		m := newMachine(limpet.DefaultRetryPolicy(), true)
		m.Step(0, event{kind: evStart})
		m.Step(1, event{kind: evFailed, failure: failUncertain})
		m.Step(1, event{kind: evBackoffOver})
		if m.Step(2, event{kind: evSucceeded}); m.state != done {
			b.Fatal(m.state)
		}
	}
}
