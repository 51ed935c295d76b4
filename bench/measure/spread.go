package measure

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Spread is a figure of several rounds.
type Spread []float64

// Add appends the figure of one more round.
func (s *Spread) Add(v float64) { *s = append(*s, v) }

// Median is the middle of the rounds; not a number if there are none.
func (s Spread) Median() float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(s))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// Text is the median and, in brackets, the range, each as format writes it.
func (s Spread) Text(format func(float64) string) string {
	switch len(s) {
	case 0:
		return "-"
	case 1:
		return format(s[0])
	}
	return fmt.Sprintf("%s (%s..%s)", format(s.Median()), format(slices.Min(s)), format(slices.Max(s)))
}

// Ratio is a/b round by round. Rounds that one of them lacks are left out.
func Ratio(a, b Spread) Spread {
	var r Spread
	for i := range min(len(a), len(b)) {
		r.Add(a[i] / b[i])
	}
	return r
}

// Number writes three digits or whole numbers: 0.123, 4.56, 78.9, 12345.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "-"
	case a >= 100 || v == 0:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// Whole writes a whole number.
func Whole(v float64) string { return fmt.Sprintf("%.0f", v) }

// Micros is d in microseconds.
func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
