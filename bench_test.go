package limpet_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/limpet-dev/limpet"
)

// atOnce is a Caller that only runs the method: what is left is the price of
// stubs and typed calls.
type atOnce struct{ receiver any }

func (a *atOnce) Call(ctx context.Context, c *limpet.CallSpec) (any, error) {
	return c.Runner.Run(ctx, a.receiver)
}

func (a *atOnce) Fetch(context.Context, *limpet.CallSpec, *http.Request, bool) (*http.Response, error) {
	return nil, limpet.CodeNotSupported
}

type idle struct{ n int }

func (i *idle) Set(_ context.Context, _ string, n int) error { i.n = n; return nil }
func (i *idle) Get(_ context.Context, _ string) (int, error) { return i.n, nil }
func (i *idle) Sum(_ context.Context, ns []int) (int, error) { return len(ns), nil }

func idleStub(b *testing.B) *limpet.Stub[*idle] {
	b.Helper()
	class := limpet.NewClass("Idle", func(*limpet.State) (*idle, error) { return &idle{}, nil })
	n := nodeOf(class, nil)
	n.binding.Caller = &atOnce{&idle{n: 1 << 20}}
	return namespace[*idle](b, n).Named("i")
}

func BenchmarkDo2(b *testing.B) {
	ctx, s := b.Context(), idleStub(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := limpet.Do2(ctx, s, (*idle).Set, "item", 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCall1(b *testing.B) {
	ctx, s := b.Context(), idleStub(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := limpet.Call1(ctx, s, (*idle).Get, "item"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNamed makes a stub and calls it once, as most programs do.
func BenchmarkNamed(b *testing.B) {
	ctx := b.Context()
	n := nodeOf(limpet.NewClass("Idle", func(*limpet.State) (*idle, error) { return &idle{}, nil }), nil)
	n.binding.Caller = &atOnce{&idle{}}
	ns := namespace[*idle](b, n)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := limpet.Call1(ctx, ns.Named("user-123"), (*idle).Get, "item"); err != nil {
			b.Fatal(err)
		}
	}
}
