package dispatch

import (
	"context"
	"sync"

	"github.com/limpet-dev/limpet"
)

// Pipeliner makes calls on the promised result of an attempt that is under way:
// they are sent at once and run against the result, at the other side (SPEC B33).
// Implementations are safe for concurrent use.
type Pipeliner interface {
	// Child makes one call. It takes over c.Args, also when it fails; the result
	// is the caller's. It may be called as long as nobody has closed the promise,
	// also when the attempt has ended. If the attempt fails, so does Child, with
	// any error: what the child's caller gets is then the parent's (SPEC B34, E54).
	Child(ctx context.Context, c limpet.TargetCall) (limpet.Parcel, error)
	// Close says that no more children come; the other side may let go of the
	// result. It is called once, when the promise is closed, also before the
	// attempt has ended; children that are under way go on.
	Close()
}

// Pipe is one attempt's place for a Pipeliner. It is safe for concurrent use.
type Pipe struct {
	mu       sync.Mutex
	p        Pipeliner
	closed   bool
	attached chan struct{} // closed when p is there
}

// NewPipe makes one, for tests of transports too.
func NewPipe() *Pipe { return &Pipe{attached: make(chan struct{})} }

// Attach gives the attempt's Pipeliner, at most once, as soon as children can be
// sent.
func (p *Pipe) Attach(x Pipeliner) {
	p.mu.Lock()
	closed := p.closed
	p.p = x
	close(p.attached)
	p.mu.Unlock()
	if closed {
		x.Close()
	}
}

// Attached is closed when there is a Pipeliner.
func (p *Pipe) Attached() <-chan struct{} { return p.attached }

// Pipeliner is what Attach gave, or nil.
func (p *Pipe) Pipeliner() Pipeliner {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.p
}

// Close says that no more children come.
func (p *Pipe) Close() {
	p.mu.Lock()
	closed, x := p.closed, p.p
	p.closed = true
	p.mu.Unlock()
	if x != nil && !closed {
		x.Close()
	}
}
