package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/value"
	"github.com/limpet-dev/limpet/internal/wire"
)

const (
	// bindingTimeout is how long Binding asks a node that does not answer.
	bindingTimeout = 10 * time.Second
	// addressTimeout is how long one of several addresses may take to answer.
	addressTimeout = 3 * time.Second
	// bindingPause is how long Binding waits after an attempt that failed.
	bindingPause = 200 * time.Millisecond
)

// Client is a program's way to the objects of a node: a limpet.Resolver. It is
// safe for concurrent use.
type Client struct {
	cfg    config
	addrs  []string
	clock  limpet.Clock
	engine *dispatch.Engine
	calls  dispatch.Counters
	ctx    context.Context // ends with Close; for dialing only
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	wg       sync.WaitGroup
	closed   bool
	session  *wire.Session   // the newest, or nil
	sessions []*wire.Session // all that have not ended, and some that have
	dialing  *dialing        // under way, or nil
	good     int             // index in addrs of the one that answered last
	home     *wire.Hello     // of whom good led to; nil before
	bindings map[string]*limpet.Binding
}

var _ limpet.Resolver = (*Client)(nil)

// dialing is one try to connect, for all calls that wait for it.
type dialing struct {
	done    chan struct{} // closed when the rest is set
	session *wire.Session
	err     error
}

var errClosed = errors.New("the client is closed")

// Dial connects to the first of several addresses ("host:port") of one node that
// answers, within ctx, and fails if none does: with CodeDisconnected, naming each
// address and why. Wrong options, and addresses that are none (with Network every
// text is one), are CodeInvalidArgument at once. Close must be called.
func Dial(ctx context.Context, addrs []string, opts ...Option) (*Client, error) {
	cfg := config{dialer: wire.Dialer{Clock: systemClock{}, Hello: wire.NewHello([16]byte{}, [16]byte{}, [16]byte{}, "limpet client")}}
	if len(addrs) == 0 {
		return nil, invalid("no address to connect to")
	}
	for i, o := range opts {
		if o == nil {
			return nil, invalid("option %d is nil", i)
		}
		if err := o.apply(&cfg); err != nil {
			return nil, invalid("%w", err)
		}
	}
	if cfg.dialer.Net == nil {
		for _, addr := range addrs {
			if err := wire.CheckAddr(addr, false); err != nil {
				return nil, invalid("%w", err)
			}
		}
	}
	c := &Client{cfg: cfg, addrs: slices.Clone(addrs), clock: cfg.dialer.Clock, bindings: map[string]*limpet.Binding{}}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.engine = dispatch.New(dispatch.Config{
		Router: router{c}, Clock: c.clock, Observer: &c.calls,
		ReplayMemory: cfg.replay, ReplayMemoryPerCall: cfg.replayPerCall,
	})
	if _, err := c.connect(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func invalid(format string, args ...any) error {
	e := limpet.Errorf(limpet.CodeInvalidArgument, "client: "+format, args...)
	e.Delivery = limpet.DeliveryNone
	return e
}

// Close ends the connection. Calls under way fail as if it had been lost, new
// ones are refused. It returns when every goroutine of the client has ended: one
// that reads the body of a request ends when that Read returns, and one that runs
// a function which was sent ends when that returns: such a function must not call
// Close itself, which would wait for it for ever.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.cancel(errClosed)
	sessions := c.sessions
	c.sessions, c.session = nil, nil
	c.mu.Unlock()
	for _, s := range sessions {
		s.Close()
	}
	c.engine.Close()
	c.wg.Wait()
	return nil
}

// Metrics reads the client's counters: those of callers in the list at
// limpet.Metric, in no particular order. It is safe for concurrent use, also
// after Close.
func (c *Client) Metrics() []limpet.Metric { return c.calls.Metrics(c.engine) }

// connect returns a session that takes calls. Its errors say that nothing was
// delivered.
func (c *Client) connect(ctx context.Context) (*wire.Session, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, refused(limpet.CodeCanceled, errClosed)
	}
	if s := c.session; s != nil && s.Usable() {
		c.mu.Unlock()
		return s, nil
	}
	d := c.dialing
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		c.dialing = d
		c.wg.Go(func() { c.dial(d) }) // ends with c.ctx; Close sets closed before it waits
	}
	c.mu.Unlock()
	select {
	case <-d.done:
		return d.session, d.err
	case <-ctx.Done():
		return nil, refused(limpet.CodeCanceled, context.Cause(ctx))
	}
}

func refused(code limpet.Code, cause error) *limpet.Error {
	e := limpet.Errorf(code, "The operation was aborted: %w", cause)
	e.Delivery = limpet.DeliveryNone
	return e
}

// dial tries the addresses in turn, the one that answered last first.
func (c *Client) dial(d *dialing) {
	var errs []error
	c.mu.Lock()
	first := c.good
	c.mu.Unlock()
	for i := range c.addrs {
		k := (first + i) % len(c.addrs)
		s, err := c.dialOne(c.addrs[k])
		if err == nil {
			if err = c.meet(k, s.Peer()); err != nil {
				s.Close()
			}
		}
		if err == nil {
			c.adopt(d, s)
			return
		}
		errs = append(errs, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d.err = errs[0]
	if len(errs) > 1 {
		e := limpet.Errorf(limpet.CodeDisconnected, "Network connection lost: %w", errors.Join(errs...))
		e.Delivery, e.Retryable = limpet.DeliveryNone, true
		d.err = e
	}
	c.dialing = nil
	close(d.done)
}

// meet refuses a peer that is another node, with other data, than the one that
// another address led to: calls would find other objects there, and claims of what
// they did already would be missing. What is at the same address is believed: a
// node may have been restored, or made anew.
func (c *Client) meet(k int, peer wire.Hello) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.home
	if h == nil || k == c.good || h.Node == peer.Node || h.History == peer.History {
		c.home, c.good = &peer, k
		return nil
	}
	e := limpet.Errorf(limpet.CodeDisconnected,
		"connect to %s: it is another node, with other data, than %s: node %x with history %x there, node %x with history %x here; all addresses of a client must lead to one node",
		c.addrs[k], c.addrs[c.good], h.Node[:4], h.History[:4], peer.Node[:4], peer.History[:4])
	e.Delivery, e.Retryable = limpet.DeliveryNone, true // the right one may come back
	return e
}

// dialOne tries one address. With others to try it does not wait for long: those
// of a machine that is off never answer.
func (c *Client) dialOne(addr string) (*wire.Session, error) {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	if len(c.addrs) > 1 {
		limit := c.clock.AfterFunc(addressTimeout, func() { cancel(fmt.Errorf("no answer within %v", addressTimeout)) })
		defer limit.Stop()
	}
	return c.cfg.dialer.Dial(ctx, addr)
}

// adopt makes a session the one of new calls.
func (c *Client) adopt(d *dialing, s *wire.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialing = nil
	defer close(d.done)
	if c.closed {
		d.err = refused(limpet.CodeCanceled, errClosed)
		c.wg.Go(s.Close) // it is young; this goroutine is one of wg's, so that Close waits
		return
	}
	d.session, c.session = s, s
	c.sessions = append(slices.DeleteFunc(c.sessions, func(old *wire.Session) bool {
		select {
		case <-old.Ended():
			c.wg.Go(old.Close) // waits for its last goroutines
			return true
		default:
			return false // it drains
		}
	}), s)
}

// Binding finds a namespace: it asks the node, once per name. An unknown one is
// CodeUnknownNamespace, naming those that there are. If the node can't be reached
// for 10 s, that is the error.
func (c *Client) Binding(name string) (*limpet.Binding, error) {
	c.mu.Lock()
	b := c.bindings[name]
	c.mu.Unlock()
	if b != nil {
		return b, nil
	}
	info, err := c.describe(name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.bindings[name]; b != nil {
		return b, nil
	}
	b = &limpet.Binding{
		Name: name, ClassIdentity: info.ClassIdentity, Policy: info.Policy, Caller: c.engine, Codec: value.Codec{},
	}
	c.bindings[name] = b
	return b, nil
}

// describe asks until there is an answer; asking twice does no harm.
func (c *Client) describe(name string) (wire.BindingInfo, error) {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	limit := c.clock.AfterFunc(bindingTimeout, func() {
		cancel(fmt.Errorf("the node did not tell of namespace %.200q within %v", name, bindingTimeout))
	})
	defer limit.Stop()
	for {
		s, err := c.connect(ctx)
		var info wire.BindingInfo
		if err == nil {
			info, err = s.Describe(ctx, name)
		}
		again := errors.Is(err, limpet.CodeDisconnected) || errors.Is(err, limpet.CodeDraining)
		if err == nil || !again || ctx.Err() != nil {
			return info, err
		}
		pause := c.clock.NewTimer(bindingPause)
		select {
		case <-pause.C():
		case <-ctx.Done():
			pause.Stop()
			return info, err
		}
	}
}
