package wire

import (
	"sync"
	"sync/atomic"

	"github.com/limpet-dev/limpet"
)

// This file is what the connections of one Server share, so that its memory is
// bounded however many there are: each has its own bounds besides.
//
//	calls    calls under way: their heads, arguments (twice: as they came, and as
//	         the method gets them) and goroutines
//	results  results and heads of responses that wait for their reader
//	lent     windows of request bodies beyond the first 4 KiB
//	queue    what is queued for the writers
//
// Calls and results have a limit each, and one for both together.
//
// Each connection has some of calls and results of its own, which is not counted
// here: those who take all there is keep nobody else from small calls.
type shares struct {
	calls, results, lent budget
	queue                atomic.Int64
	queueLimit           int64

	refused, dropped atomic.Int64 // calls and results for which there was no room
}

// DefaultMaxMemory is the bytes of ServerConfig.MaxMemory, and the least: the
// largest call there may be has room.
const DefaultMaxMemory = 120 << 20

const (
	// callCost is what a call under way holds beside what it carries: its
	// goroutine, mostly; and a fetch, which has two and their buffers.
	callCost  = 10 << 10
	fetchCost = 64 << 10
	// ownCalls and ownResults are what each connection has of its own.
	ownCalls   = 80 << 10
	ownResults = 32 << 10
	// maxOfCalls and maxOfResults are what one connection may hold of each: the
	// largest call.
	maxOfCalls   = 2*maxBody + 128<<10
	maxOfResults = maxBody
)

func newShares(memory int64) *shares {
	part := memory / 15
	both := &total{limit: 11 * part}
	return &shares{
		calls:   budget{limit: 9 * part, own: ownCalls, total: both},
		results: budget{limit: 4 * part, own: ownResults, total: both},
		lent:    budget{limit: part, total: &total{limit: part}}, queueLimit: part,
	}
}

// budget counts bytes that many connections share.
type budget struct {
	limit int64
	own   int64 // what each connection has besides
	total *total
	used  int64 // under total.mu
}

// newBudget is a budget that stands alone.
func newBudget(limit int64) *budget { return &budget{limit: limit, total: &total{limit: limit}} }

// total counts what several budgets have given together.
type total struct {
	limit int64
	mu    sync.Mutex
	used  int64
}

func (b *budget) freeLocked() int64 { return min(b.limit-b.used, b.total.limit-b.total.used) }

func (b *budget) addLocked(n int64) {
	b.used += n
	b.total.used += n
}

// common is what of n bytes of one connection is not its own.
func (b *budget) common(n int64) int64 { return max(n-b.own, 0) }

// take takes n bytes more for a connection that has so many of them already.
func (b *budget) take(has, n int64) bool {
	n = b.common(has+n) - b.common(has)
	if n == 0 {
		return true
	}
	b.total.mu.Lock()
	defer b.total.mu.Unlock()
	if n > b.freeLocked() {
		return false
	}
	b.addLocked(n)
	return true
}

// some takes up to n bytes, and returns how many.
func (b *budget) some(n int64) int64 {
	b.total.mu.Lock()
	defer b.total.mu.Unlock()
	n = max(min(n, b.freeLocked()), 0)
	b.addLocked(n)
	return n
}

// give gives n bytes back of a connection that has so many.
func (b *budget) give(has, n int64) {
	if n = b.common(has) - b.common(has-n); n == 0 {
		return
	}
	b.total.mu.Lock()
	b.addLocked(-n)
	b.total.mu.Unlock()
}

func (b *budget) inUse() int64 {
	b.total.mu.Lock()
	defer b.total.mu.Unlock()
	return b.used
}

// overloaded refuses a call before it has run.
func overloaded(format string, args ...any) *limpet.Error {
	e := refused(limpet.CodeOverloaded, format, args...)
	e.Overloaded = true
	return e
}
