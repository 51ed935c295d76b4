package wire

import (
	"context"
	"net/http"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/workers"
)

// Session is the dialer's end of a connection. It is safe for concurrent use.
type Session struct {
	duplex
	workers workers.Pool[*inCall]
}

// NewSession makes a session of a connection that was dialed. It waits for the
// peer's hello until ctx ends. Calls that the peer makes go to callee; nil means
// that this process has no objects. The errors are plain; nothing of a call was
// sent.
func NewSession(ctx context.Context, conn Conn, ours Hello, clock limpet.Clock, callee Callee) (*Session, error) {
	if callee == nil {
		callee = noObjects{}
	}
	s := &Session{}
	s.init(newLink(conn, clock, newShares(DefaultMaxMemory)), true, callee, context.Background(), newBudget(2*maxExports), &s.workers)
	ours.MaxCalls = maxBackCalls
	peer, err := s.greet(ctx, ours, true)
	if err != nil {
		_ = conn.Close() // nothing was promised
		return nil, err
	}
	s.peer = peer
	s.run(s)
	return s, nil
}

// Peer is what the other side said of itself.
func (s *Session) Peer() Hello { return s.peer }

// Usable reports whether new calls may begin.
func (s *Session) Usable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err == nil && s.last == nil && !s.out.away
}

// Ended is closed when the connection has ended.
func (s *Session) Ended() <-chan struct{} { return s.closed }

// Close ends the connection at once and returns when its goroutines have ended,
// also those that run calls of the peer, whose contexts end. Calls fail as if it
// had been lost.
func (s *Session) Close() {
	s.fail(errClosed)
	s.wait()
	s.workers.Close()
	s.workers.Wait()
}

// Call makes one attempt of a method call. It takes over args, also when it
// fails; their bytes must not change, also after Call has returned. The result is
// the caller's. Every error is an *limpet.Error with its delivery.
func (s *Session) Call(ctx context.Context, c *Call, args limpet.Parcel) (limpet.Parcel, error) {
	return s.out.call(ctx, c, args)
}

// Describe asks about a binding.
func (s *Session) Describe(ctx context.Context, binding string) (BindingInfo, error) {
	return s.out.describe(ctx, binding)
}

// Fetch makes one attempt of a fetch. It returns when the response's head is
// there; ctx goes on to bound the body. It closes req.Body in every case. Every
// error is an *limpet.Error with its delivery.
func (s *Session) Fetch(ctx context.Context, c *Call, req *http.Request) (*http.Response, error) {
	return s.out.fetch(ctx, c, req)
}
