package measure_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet/bench/measure"
)

func TestLatencies(t *testing.T) {
	var l measure.Latencies
	if got := l.Quantile(0.5); got != 0 {
		t.Errorf("quantile of nothing is %v, want 0", got)
	}
	for i := 1; i <= 100_000; i++ {
		l.Add(time.Duration(i) * time.Microsecond)
	}
	for _, q := range []float64{0.001, 0.5, 0.99, 0.999} {
		got, want := float64(l.Quantile(q)), q*1e8
		if math.Abs(got-want) > want*0.04 {
			t.Errorf("quantile %v is %v, want %v within 4%%", q, time.Duration(got), time.Duration(want))
		}
	}
	for _, d := range []time.Duration{0, 1, 31, 32, 33, 1 << 40, math.MaxInt64} {
		var one measure.Latencies
		one.Add(d)
		if got := float64(one.Quantile(0.5)); math.Abs(got-float64(d)) > float64(d)*0.04 {
			t.Errorf("the only latency is %v, the quantile says %v", d, time.Duration(got))
		}
	}
}

func TestLoad(t *testing.T) {
	res, err := measure.Load{Callers: 4, Time: time.Minute, Max: 1000, Op: func(int, *rand.Rand) error { return nil }}.Run(t.Context())
	if err != nil || res.Ops != 1000 {
		t.Errorf("bounded by count: %d operations, error %v; want 1000, nil", res.Ops, err)
	}
	broken := errors.New("broken")
	_, err = measure.Load{Callers: 2, Time: time.Minute, Op: func(int, *rand.Rand) error { return broken }}.Run(t.Context())
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if _, err = (measure.Load{Callers: 1, Time: time.Minute, Op: func(int, *rand.Rand) error { return nil }}).Run(ctx); !errors.Is(err, broken) {
		t.Errorf("cancelled: error %v, want %v", err, broken)
	}
}

func TestSpread(t *testing.T) {
	s := measure.Spread{3, 1, 2}
	if got, want := s.Text(measure.Number), "2.00 (1.00..3.00)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := measure.Ratio(measure.Spread{2, 9}, measure.Spread{1, 3}).Median(); got != 2.5 {
		t.Errorf("median of the ratios 2 and 3 is %v", got)
	}
	if got := (measure.Target{Got: math.NaN(), Limit: 1}).Met(); got {
		t.Error("a target without a figure is met")
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	table := measure.Table{Head: []string{"a", "long"}}
	table.Row("wide cell")
	table.Write(&b)
	want := "| a         | long |\n| --------- | ---- |\n| wide cell |      |\n\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
