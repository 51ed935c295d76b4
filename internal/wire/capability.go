package wire

import (
	"context"
	"io"
	"net/http"
	"slices"

	"github.com/limpet-dev/limpet"
)

// This file is the capabilities of a connection. What this side gave to the peer
// is an export; what the peer gave is an import, a limpet.Capability whose calls
// go over the connection.
//
//	          CALL or RESULT with it          RELEASE, or the end of the connection
//	┌──────┐ ────────────────────▶ ┌────────┐ ────────────────────▶ ┌──────────┐
//	│ ours │                       │ export │                       │ released │
//	└──────┘ ◀──────────────────── └────────┘                       └──────────┘
//	          the call was never taken
//
// Each sending makes an export of its own with a new id (SPEC B38). An import
// that goes back over the same connection is named as the receiver's own.
//
// The Release of a last handle may run code of the program: it is never called
// with a lock held, nor by the reader.
type capabilities struct {
	*link
	d *duplex

	total *budget // of exports and imports; other connections may share it

	// Under link.mu.
	exports map[uint64]limpet.Capability
	last    uint64 // highest id of an export
	imports map[uint64]limpet.CapabilityKind
	streams int // byte streams among both: a drain waits for them
}

// importCore is what the handles of one import lead to.
type importCore struct {
	p    *capabilities
	id   uint64
	kind limpet.CapabilityKind

	// Under link.mu.
	stream   *outCall // the read of a byte stream
	released bool
}

// imported is a handle to an import that can be told from others.
type imported struct {
	handle
	core *importCore
}

// handle is what limpet.NewCapability makes.
type handle interface {
	limpet.Capability
	Released() bool
}

// Dup is another handle of the same sort.
func (h imported) Dup() limpet.Capability { return imported{h.handle.Dup().(handle), h.core} }

// exportLocked makes descriptors of capabilities and takes these over. On an
// error they are still the caller's. free must be released when what has the
// descriptors in it was queued, without the lock.
func (p *capabilities) exportLocked(caps []limpet.Capability) (all []descriptor, free []limpet.Capability, err error) {
	if len(caps) == 0 {
		return nil, nil, nil
	}
	fresh := 0
	for _, c := range caps {
		if p.homeLocked(c) == nil {
			fresh++
		}
	}
	if n := len(p.exports) + fresh; n > maxExports {
		return nil, nil, overloaded("%d stubs, functions and streams can't be sent: the other side of the connection has %d that it did not release; the limit is %d (close stubs that are not needed any more)", fresh, len(p.exports), maxExports)
	}
	if !p.total.take(0, int64(fresh)) {
		return nil, nil, overloaded("%d stubs, functions and streams can't be sent: all connections together have %d of them that were not released (close stubs that are not needed any more)", fresh, p.total.limit)
	}
	all = make([]descriptor, len(caps))
	for i, c := range caps {
		kind := c.Kind()
		if core := p.homeLocked(c); core != nil {
			all[i] = descriptor{kind, true, core.id}
			free = append(free, c)
			continue
		}
		p.last++
		p.exports[p.last] = c
		p.countLocked(kind, 1)
		all[i] = descriptor{kind, false, p.last}
	}
	return all, free, nil
}

// homeLocked is the import behind a handle, if it came by this connection.
func (p *capabilities) homeLocked(c limpet.Capability) *importCore {
	if h, ok := c.(imported); ok && h.core.p == p && !h.core.released {
		return h.core
	}
	return nil
}

// unexportLocked takes exports back that the peer gave back or never got.
func (p *capabilities) unexportLocked(all []descriptor) {
	var free []limpet.Capability
	for _, d := range all {
		if c := p.exports[d.id]; c != nil && !d.home {
			p.takeBackLocked(d)
			free = append(free, c)
		}
	}
	p.laterLocked(free)
}

// takeBackLocked undoes an export; the handle is the caller's.
func (p *capabilities) takeBackLocked(d descriptor) {
	delete(p.exports, d.id)
	p.total.give(1, 1)
	p.countLocked(d.kind, -1)
}

func (p *capabilities) countLocked(k limpet.CapabilityKind, n int) {
	if k == limpet.CapabilityStream {
		p.streams += n
	}
}

// laterLocked releases handles elsewhere. It is called while one of the link's
// goroutines runs.
func (p *capabilities) laterLocked(free []limpet.Capability) {
	if len(free) > 0 {
		p.wg.Go(limpet.Parcel{Caps: free}.Release)
	}
}

// importLocked makes capabilities of descriptors. An error is a violation, or
// says that there are too many; then the peer gets them back.
func (p *capabilities) importLocked(all []descriptor) ([]limpet.Capability, error) {
	if len(all) == 0 {
		return nil, nil
	}
	fresh := 0
	for i, d := range all {
		err := p.takeLocked(d)
		if err != nil {
			for _, d := range all[:i] { // they are not counted yet
				if !d.home {
					delete(p.imports, d.id)
				}
			}
			return nil, err
		}
		if !d.home {
			fresh++
		}
	}
	if !p.total.take(0, int64(fresh)) {
		p.refuseLocked(all)
		return nil, overloaded("%d stubs, functions and streams can't be taken: all connections together have %d of them that were not released", fresh, p.total.limit)
	}
	caps := make([]limpet.Capability, len(all))
	for i, d := range all {
		if d.home {
			c, _ := p.exportedLocked(d.id) // it was looked up above
			caps[i] = c.Dup()
			continue
		}
		core := &importCore{p: p, id: d.id, kind: d.kind}
		caps[i] = imported{limpet.NewCapability(core).(handle), core}
	}
	return caps, nil
}

// takeLocked notes one capability of the peer, or finds one of ours.
func (p *capabilities) takeLocked(d descriptor) error {
	if d.home {
		_, err := p.exportedLocked(d.id)
		return err
	}
	if _, twice := p.imports[d.id]; twice {
		return violation("capability %d was given twice", d.id)
	}
	if len(p.imports) >= maxExports {
		return violation("more than %d capabilities that were not released", maxExports)
	}
	p.imports[d.id] = d.kind
	p.countLocked(d.kind, 1)
	return nil
}

// refuseLocked gives back what nobody takes.
func (p *capabilities) refuseLocked(all []descriptor) {
	for _, d := range all {
		if d.home {
			continue
		}
		if kind, ok := p.imports[d.id]; ok {
			delete(p.imports, d.id)
			p.countLocked(kind, -1)
		}
		p.pushReleaseLocked(d.id)
	}
}

// exportedLocked finds an export that the peer names. One that it has released
// is a handle of no use.
func (p *capabilities) exportedLocked(id uint64) (limpet.Capability, error) {
	if id == 0 || id > p.last {
		return nil, violation("capability %d, which was never given", id)
	}
	if c := p.exports[id]; c != nil {
		return c, nil
	}
	return disposed, nil
}

// disposed is a handle that was released.
var disposed = func() limpet.Capability {
	c := limpet.NewCapability(deadCore{})
	c.Release()
	return c
}()

// deadCore is never reached: its only handle was released.
type deadCore struct{ limpet.CapabilityCore }

func (deadCore) Kind() limpet.CapabilityKind { return limpet.CapabilityTarget }
func (deadCore) Disposed()                   {}

// released takes a frame of the peer.
func (p *capabilities) released(payload []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var back []descriptor
	err := readReleases(payload, func(id uint64) error {
		c, err := p.exportedLocked(id)
		if err == nil && c != disposed {
			back = append(back, descriptor{c.Kind(), false, id})
		}
		return err
	})
	p.unexportLocked(back)
	p.d.restLocked()
	return err
}

// gone releases everything when the connection has ended. Its caller holds no
// lock.
func (p *capabilities) gone() {
	p.mu.Lock()
	var free []limpet.Capability
	for _, c := range p.exports {
		free = append(free, c)
	}
	n := int64(len(free) + len(p.imports))
	p.total.give(n, n)
	clear(p.exports)
	clear(p.imports)
	p.streams = 0
	p.mu.Unlock()
	limpet.Parcel{Caps: free}.Release()
}

// Kind is what can be done with it.
func (c *importCore) Kind() limpet.CapabilityKind { return c.kind }

// Disposed is called when the last handle was released. A stream that is being
// read ends.
func (c *importCore) Disposed() {
	p := c.p
	p.mu.Lock()
	c.released = true
	read := c.stream
	if _, ok := p.imports[c.id]; ok { // else the connection has ended
		delete(p.imports, c.id)
		p.total.give(1, 1)
		p.countLocked(c.kind, -1)
		p.pushReleaseLocked(c.id)
		p.d.restLocked()
	}
	p.mu.Unlock()
	if read != nil {
		p.d.out.abandon(read, cancelClosed, limpet.DisposedError())
	}
}

// Call calls it: one attempt, as for a method.
func (c *importCore) Call(ctx context.Context, t limpet.TargetCall) (limpet.Parcel, error) {
	return c.p.d.out.target(ctx, &Ext{capability: c.id}, t)
}

// Fetch sends it a request.
func (c *importCore) Fetch(ctx context.Context, req *http.Request) (*http.Response, error) {
	return c.p.d.out.fetch(ctx, &Call{Kind: KindTargetFetch, Ext: &Ext{capability: c.id}}, req)
}

// Open reads it.
func (c *importCore) Open(ctx context.Context) (io.ReadCloser, error) { return c.p.d.out.open(ctx, c) }

// target makes a call of a capability, or of the promised result of a call.
func (o *outgoing) target(ctx context.Context, x *Ext, t limpet.TargetCall) (limpet.Parcel, error) {
	x.Path, x.Property = t.Path, t.Property
	if i := slices.IndexFunc(t.Path, func(name string) bool { return len(name) > maxMethod }); i >= 0 || len(t.Path) > limpet.MaxPath {
		t.Args.Release()
		return limpet.Parcel{}, refused(limpet.CodeInvalidArgument, "the path of a call has a name of more than %d bytes, or more than %d names", maxMethod, limpet.MaxPath)
	}
	return o.call(ctx, &Call{Kind: KindTarget, Ext: x}, t.Args)
}

// open starts to read a byte stream.
func (o *outgoing) open(ctx context.Context, c *importCore) (io.ReadCloser, error) {
	head := &Call{Kind: KindStream, Ext: &Ext{capability: c.id}}
	o.left(ctx, head)
	oc, err := o.begin(ctx, head, nil, false, nil)
	if err != nil {
		return nil, err
	}
	if err := o.outcome(ctx, oc); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		o.abandon(oc, reasonOf(ctx), canceled(ctx, limpet.DeliveryReceived))
	})
	oc.in.atEnd = func(error) { stop() }
	oc.in.onClose = func(unread bool) {
		stop()
		if unread {
			o.abandon(oc, cancelClosed, http.ErrBodyReadAfterClose)
		}
	}
	o.mu.Lock()
	c.stream = oc
	released := c.released
	o.mu.Unlock()
	if released {
		o.abandon(oc, cancelClosed, limpet.DisposedError())
	}
	return &oc.in, nil
}
