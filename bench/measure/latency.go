package measure

import (
	"math/bits"
	"time"
)

// subBits is the number of bits of a latency kept below its first: a bucket is
// at most 1/32 (3 %) wide.
const subBits = 5

// Latencies counts durations in buckets of 3 %. Adding allocates nothing, so
// that measuring costs the measured little. One goroutine uses it at a time; the
// zero value is empty.
type Latencies struct {
	buckets [(64 - subBits + 1) << subBits]uint32
	n       uint64
}

// Add counts one duration; a negative one counts as 0.
func (l *Latencies) Add(d time.Duration) {
	l.buckets[bucketOf(uint64(max(d, 0)))]++
	l.n++
}

// Merge adds what o holds.
func (l *Latencies) Merge(o *Latencies) {
	for i, c := range o.buckets {
		l.buckets[i] += c
	}
	l.n += o.n
}

// Count is the number of durations.
func (l *Latencies) Count() uint64 { return l.n }

// Quantile is the duration that the fraction q (0 to 1) of all do not exceed, as
// the middle of its bucket; 0 if there are none.
func (l *Latencies) Quantile(q float64) time.Duration {
	if l.n == 0 {
		return 0
	}
	rank := min(uint64(q*float64(l.n)), l.n-1)
	for i, c := range l.buckets {
		if rank < uint64(c) {
			low, high := bucketBounds(i)
			return time.Duration(low + (high-low)/2)
		}
		rank -= uint64(c)
	}
	panic("the buckets hold fewer durations than were counted")
}

func bucketOf(v uint64) int {
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)<<subBits + int(v>>shift) - 1<<subBits
}

// bucketBounds are the smallest values of bucket i and of the one after it.
func bucketBounds(i int) (low, high uint64) {
	if i < 1<<subBits {
		return uint64(i), uint64(i) + 1
	}
	shift := i>>subBits - 1
	low = uint64(1<<subBits+i&(1<<subBits-1)) << shift
	return low, low + 1<<shift
}
