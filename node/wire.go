package node

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
	"github.com/limpet-dev/limpet/internal/value"
	"github.com/limpet-dev/limpet/internal/wire"
)

// Wire is where a node takes calls of other processes (package client). The zero
// value takes none.
type Wire struct {
	// Addr is "host:port"; port 0 means any. Empty means not to listen.
	Addr string
	// CertFile, KeyFile and CAFile are PEM files: the node's certificate and key,
	// and the CA that must have signed the certificate of everybody who connects.
	// All or none; with none, only an address of this machine is allowed.
	CertFile, KeyFile, CAFile string
	// Plaintext allows another address without certificates: whoever reaches it
	// can call every object.
	Plaintext bool
	// MaxConns is the number of connections at one time; 0 means 1000. When there
	// are more, those that have not said who they are are closed first.
	MaxConns int
	// MaxMemory is about the bytes that calls of other processes may hold at one
	// time: arguments (twice: as they came and as methods get them), results that
	// wait for their reader, bodies that wait for their handler, and some 10 KiB
	// (64 KiB for a fetch) for each call under way. Calls beyond are refused,
	// not delivered, as Overloaded. Each connection has some 112 KiB of its own
	// besides, so that nobody keeps others from small calls. 0 means 120 MiB, which
	// is also the least.
	MaxMemory int64
}

func (w Wire) validate() error {
	some := w.CertFile != "" || w.KeyFile != "" || w.CAFile != ""
	if w.Addr != "" {
		if err := wire.CheckAddr(w.Addr, true); err != nil {
			return limpet.Errorf(limpet.CodeInvalidArgument, "Config.Wire.Addr: %w", err)
		}
	}
	switch {
	case w.Addr == "" && (some || w.Plaintext):
		return errors.New("Config.Wire: certificates or Plaintext without Addr")
	case w.MaxConns < 0:
		return fmt.Errorf("Config.Wire.MaxConns is %d: must not be negative", w.MaxConns)
	case w.MaxMemory != 0 && w.MaxMemory < wire.DefaultMaxMemory:
		return fmt.Errorf("Config.Wire.MaxMemory is %d: must be 0 or at least %d, so that the largest call has room", w.MaxMemory, wire.DefaultMaxMemory)
	case some && (w.CertFile == "" || w.KeyFile == "" || w.CAFile == ""):
		return errors.New("Config.Wire: CertFile, KeyFile and CAFile belong together")
	}
	return nil
}

// wireAnswers is how long the answers of calls that have ended may still be read
// when the node closes.
const wireAnswers = 5 * time.Second

// wireDoor is the node's listener for other processes.
type wireDoor struct {
	server *wire.Server
	ln     net.Listener
	served chan struct{} // closed when the listener is
}

// openWire starts to listen, if Config.Wire says so.
func (n *Node) openWire() (*wireDoor, error) {
	w := n.cfg.Wire
	if w.Addr == "" {
		return nil, nil
	}
	var security *tls.Config
	if w.CertFile != "" {
		var err error
		if security, err = wire.LoadTLS(w.CertFile, w.KeyFile, w.CAFile); err != nil {
			return nil, fmt.Errorf("listen for other processes on %s: %w", w.Addr, err)
		}
	}
	c := callee{n: n, spaces: map[string]limpet.Namespace[any]{}, proven: &provenIDs{}}
	for name := range n.bindings {
		space, err := limpet.NamespaceOf[any](n, name)
		if err != nil {
			return nil, err
		}
		c.spaces[name] = space
	}
	server, err := wire.NewServer(wire.ServerConfig{
		Callee: c, Clock: n.cfg.Clock, Logger: n.cfg.Logger, TLS: security, Plaintext: w.Plaintext, MaxConns: w.MaxConns, MaxMemory: w.MaxMemory,
		Hello: wire.NewHello(n.store.NodeID(), n.store.HistoryID(), n.store.BootID(), "limpet node"),
	})
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", w.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen for other processes: %w", err)
	}
	if security == nil && !w.Plaintext {
		if a, ok := ln.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
			_ = ln.Close() // nobody has connected
			return nil, limpet.Errorf(limpet.CodeInvalidArgument,
				"listen for other processes on %v: the address is not on this machine, and there is no TLS; give certificate, key and CA (--wire-cert, --wire-key, --wire-ca), or allow plaintext (--wire-plaintext)", ln.Addr())
		}
	}
	if security == nil && w.Plaintext {
		n.cfg.Logger.Warn("other processes connect without TLS: everybody who reaches the address can call every object", "address", ln.Addr().String())
	}
	d := &wireDoor{server: server, ln: ln, served: make(chan struct{})}
	go func() { // ends with the server
		defer close(d.served)
		if err := server.Serve(ln); !errors.Is(err, wire.ErrServerClosed) {
			n.cfg.Logger.Error("the node takes no connections of other processes any more", "address", ln.Addr().String(), "error", err)
		}
	}()
	return d, nil
}

// close lets answers be read for a while, and returns when nothing of the door is
// left.
func (d *wireDoor) close(clock limpet.Clock) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	limit := clock.AfterFunc(wireAnswers, func() { cancel(fmt.Errorf("not within %v", wireAnswers)) })
	defer limit.Stop()
	err := d.server.Close(ctx)
	<-d.served
	return err
}

// WireAddr is where the node takes calls of other processes, or nil.
func (n *Node) WireAddr() net.Addr {
	if n.wire == nil {
		return nil
	}
	return n.wire.ln.Addr()
}

// callee brings calls of other processes to the host.
type callee struct {
	n      *Node
	spaces map[string]limpet.Namespace[any]
	proven *provenIDs
}

var _ wire.Callee = callee{}

// Call runs a method.
func (c callee) Call(ctx context.Context, h *wire.Call, args limpet.Parcel) (limpet.Parcel, error) {
	defer args.Release() // SPEC B39
	b, id, err := c.find(h)
	if err != nil {
		return limpet.Parcel{}, err
	}
	spec := &limpet.CallSpec{
		Kind: limpet.KindMethod, Binding: b, Object: id, Method: h.Method, Existing: h.Existing,
		Key: h.Key, Policy: limpet.RetryPolicy{ReplayOutcome: h.Replay},
	}
	if x := h.Ext; x != nil {
		spec.Path, spec.Property = x.Path, x.Property
	}
	out, err := c.n.host.Do(ctx, attempt(limpet.EncodedCall(spec, args), h))
	if err != nil {
		return limpet.Parcel{}, err
	}
	switch out := out.(type) { // what EncodedCall's Runner returns
	case limpet.Encoded:
		return limpet.Parcel{Bytes: out}, nil
	case limpet.Parcel:
		return out, nil
	}
	return limpet.Parcel{}, nil
}

// Child makes a pipelined call.
func (callee) Child(ctx context.Context, result limpet.Parcel, c limpet.TargetCall) (limpet.Parcel, error) {
	return limpet.CallResult(ctx, value.Codec{}, result, c)
}

// Fetch runs an http.Handler.
func (c callee) Fetch(ctx context.Context, h *wire.Call, req *http.Request) (*http.Response, error) {
	b, id, err := c.find(h)
	if err != nil {
		return nil, err
	}
	a := attempt(&limpet.CallSpec{
		Kind: limpet.KindFetch, Binding: b, Object: id, Existing: h.Existing,
		Key: h.Key, Policy: limpet.RetryPolicy{ReplayOutcome: h.Replay},
	}, h)
	a.Request = req
	return c.n.host.Fetch(ctx, a)
}

// Describe tells of a binding.
func (c callee) Describe(_ context.Context, name string) (wire.BindingInfo, error) {
	b, err := c.n.Binding(name)
	if err != nil {
		return wire.BindingInfo{}, err
	}
	return wire.BindingInfo{ClassIdentity: b.ClassIdentity, Policy: b.Policy}, nil
}

// Outcome tells what became of a call.
func (c callee) Outcome(ctx context.Context, h *wire.Call, age time.Duration) (*limpet.CallOutcome, error) {
	b, id, err := c.find(h)
	if err != nil {
		return nil, err
	}
	q, err := limpet.ParseOutcomeQuery(h.Method)
	if err != nil {
		return nil, err
	}
	return c.n.host.Outcome(ctx, &limpet.CallSpec{Kind: limpet.KindMethod, Binding: b, Object: id, Existing: h.Existing}, q, age)
}

// Acknowledge gives a claim back.
func (c callee) Acknowledge(object [32]byte, id limpet.Identity) {
	c.n.host.Acknowledge(object, id)
}

// find checks that a call's object belongs to its binding, and its name to its
// object.
func (c callee) find(h *wire.Call) (*limpet.Binding, limpet.ID, error) {
	b, err := c.n.Binding(h.Binding)
	if err != nil {
		return nil, limpet.ID{}, err
	}
	if id, ok := c.proven.find(b, h); ok {
		return b, id, nil
	}
	id, err := c.prove(h)
	if err == nil {
		c.proven.add(b, h, id)
	}
	return b, id, err
}

// prove is find without a memory; the binding exists.
func (c callee) prove(h *wire.Call) (limpet.ID, error) {
	space := c.spaces[h.Binding]
	id, err := space.IDFromString(hex.EncodeToString(h.Object[:]))
	if err != nil || !h.Named {
		return id, err
	}
	if j := id.Jurisdiction(); j != "" {
		space = space.Jurisdiction(j)
	}
	named, err := space.IDFromName(h.Name)
	if err == nil && !named.Equal(id) {
		err = limpet.Errorf(limpet.CodeInvalidArgument, "the object's name and ID do not belong together").With(func(e *limpet.Error) { e.Delivery = limpet.DeliveryNone })
	}
	return named, err
}

func attempt(spec *limpet.CallSpec, h *wire.Call) dispatch.Attempt {
	a := dispatch.Attempt{Call: spec, Identity: h.Identity, Number: h.Attempt, Retry: h.Retry, WillRetry: h.WillRetry}
	for _, b := range h.Uncertain {
		a.Uncertain = append(a.Uncertain, dispatch.Boot(b))
	}
	return a
}
