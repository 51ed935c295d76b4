package host

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/limpet-dev/limpet"
)

// memory is a Storage whose sync can be held back.
type memory struct {
	mu      sync.Mutex
	objects map[[32]byte]*memoryData
	log     []memoryRecord
	durable uint64
	held    bool
	full    bool  // WaitRoom waits
	fail    error // of the next Commit
	changed chan struct{}
	lost    chan struct{}
}

type memoryData struct {
	kv   map[string][]byte
	last Pos
	born bool
	open bool
}

type memoryRecord struct {
	object [32]byte
	ids    []limpet.Identity
	kept   []Kept
	pages  bool
}

func newMemory() *memory {
	return &memory{objects: map[[32]byte]*memoryData{}, changed: make(chan struct{}), lost: make(chan struct{})}
}

// hold keeps what is appended from now on from becoming durable.
func (m *memory) hold() {
	m.mu.Lock()
	m.held = true
	m.mu.Unlock()
}

// sync makes everything durable; held stays as it is.
func (m *memory) sync() { m.change(func() { m.durable = uint64(len(m.log)) }) }

// syncOne makes one more record durable.
func (m *memory) syncOne() { m.change(func() { m.durable++ }) }

func (m *memory) release() {
	m.change(func() { m.held, m.durable = false, uint64(len(m.log)) })
}

func (m *memory) setFull(full bool) { m.change(func() { m.full = full }) }

func (m *memory) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *memory) records() []memoryRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.log)
}

func (m *memory) Object(id [32]byte, _ Birth) (Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.objects[id]
	if d == nil {
		d = &memoryData{kv: map[string][]byte{}}
		m.objects[id] = d
	}
	if d.open {
		return nil, limpet.Errorf(limpet.CodeInternal, "object is open already")
	}
	d.open = true
	return &memoryObject{m: m, id: id, d: d}, nil
}

func (m *memory) Exists(id [32]byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[id] != nil && m.objects[id].born
}

func (m *memory) wait(ctx context.Context, ready func() bool) error {
	for {
		m.mu.Lock()
		ok, c := ready(), m.changed
		m.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c:
		case <-m.lost:
			return limpet.Errorf(limpet.CodeStorageLost, "the log is lost")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (m *memory) Wait(ctx context.Context, p Pos) error {
	return m.wait(ctx, func() bool { return m.durable >= p.Index })
}

func (m *memory) WaitRoom(ctx context.Context) error {
	return m.wait(ctx, func() bool { return !m.full })
}

func (m *memory) Lost() <-chan struct{} { return m.lost }

type memoryObject struct {
	m      *memory
	id     [32]byte
	d      *memoryData
	turn   map[string][]byte // as before the turn; nil while nothing was written
	depth  int
	stop   <-chan struct{}
	closed bool
}

var errMemoryClosed = errors.New("object is closed")

func (o *memoryObject) usable() error {
	if o.closed {
		return errMemoryClosed
	}
	select {
	case <-o.stop:
		return errors.New("interrupted")
	default:
		return nil
	}
}

func (o *memoryObject) write() error {
	if err := o.usable(); err != nil {
		return err
	}
	if o.turn == nil {
		o.turn = maps.Clone(o.d.kv)
	}
	return nil
}

func (o *memoryObject) Get(key string) ([]byte, bool, error) {
	if err := o.usable(); err != nil {
		return nil, false, err
	}
	v, ok := o.d.kv[key]
	return slices.Clone(v), ok, nil
}

func (o *memoryObject) Put(key string, value []byte) error {
	if err := o.write(); err != nil {
		return err
	}
	o.d.kv[key] = slices.Clone(value)
	return nil
}

func (o *memoryObject) Delete(key string) (bool, error) {
	if err := o.write(); err != nil {
		return false, err
	}
	_, ok := o.d.kv[key]
	delete(o.d.kv, key)
	return ok, nil
}

func (o *memoryObject) DeleteAll() error {
	if err := o.write(); err != nil {
		return err
	}
	clear(o.d.kv)
	return nil
}

func (o *memoryObject) List(opt limpet.ListOptions, yield func(string, []byte) bool) error {
	if err := o.usable(); err != nil {
		return err
	}
	keys := slices.Sorted(maps.Keys(o.d.kv))
	if opt.Reverse {
		slices.Reverse(keys)
	}
	n := 0
	for _, k := range keys {
		switch {
		case k < opt.Start, opt.StartAfter != "" && k <= opt.StartAfter, opt.End != "" && k >= opt.End, !strings.HasPrefix(k, opt.Prefix):
			continue
		case opt.Limit > 0 && n == opt.Limit:
			return nil
		}
		n++
		if !yield(k, slices.Clone(o.d.kv[k])) {
			return nil
		}
	}
	return nil
}

func (o *memoryObject) Transaction(fn func() error) (err error) {
	if err := o.write(); err != nil {
		return err
	}
	o.depth++
	depth, before, kept := o.depth, maps.Clone(o.d.kv), false
	defer func() {
		if o.closed || o.depth < depth {
			if err == nil {
				err = errors.New("rolled back within the transaction")
			}
			return
		}
		o.depth--
		if !kept {
			o.d.kv = before
		}
	}()
	err = fn()
	kept = err == nil
	return err
}

func (o *memoryObject) BeginTransaction() (int, error) {
	return 0, errors.New("not supported: BeginTransaction of the memory storage")
}

func (o *memoryObject) EndTransaction(int, bool) error {
	return errors.New("not supported: EndTransaction of the memory storage")
}

func (o *memoryObject) Query(context.Context, string, []limpet.SQLArg) (limpet.SQLRows, bool, error) {
	return nil, false, errors.New("not supported: SQL of the memory storage")
}

func (o *memoryObject) EndCursors() {}

func (o *memoryObject) DatabaseSize() (int64, error) { return 0, nil }

func (o *memoryObject) Dirty() bool { return o.turn != nil }

func (o *memoryObject) Commit(ids []limpet.Identity, kept ...Kept) (Pos, error) {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	err := o.usable()
	if err == nil && o.depth > 0 {
		err = errors.New("a transaction is open")
	}
	if err == nil {
		err, o.m.fail = o.m.fail, nil
	}
	if err != nil {
		o.back()
		return Pos{}, err
	}
	if o.turn == nil && len(ids) == 0 && len(kept) == 0 {
		return o.d.last, nil
	}
	o.append(ids, kept, o.turn != nil)
	o.turn = nil
	return o.d.last, nil
}

func (o *memoryObject) Note(ids []limpet.Identity, kept ...Kept) (Pos, error) {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	if o.closed {
		return Pos{}, errMemoryClosed
	}
	if o.m.fail != nil && len(kept) > 0 {
		err := o.m.fail
		o.m.fail = nil
		return Pos{}, err
	}
	if len(ids) > 0 || len(kept) > 0 {
		o.append(ids, kept, false)
	}
	return o.d.last, nil
}

func (o *memoryObject) append(ids []limpet.Identity, kept []Kept, pages bool) {
	o.m.log = append(o.m.log, memoryRecord{object: o.id, ids: slices.Clone(ids), kept: slices.Clone(kept), pages: pages})
	o.d.last, o.d.born = Pos{Term: 1, Index: uint64(len(o.m.log))}, true
	if !o.m.held {
		o.m.durable = uint64(len(o.m.log))
	}
}

func (o *memoryObject) back() {
	if o.turn != nil {
		o.d.kv, o.turn = o.turn, nil
	}
	o.depth = 0
}

func (o *memoryObject) Rollback() error {
	if o.closed {
		return errMemoryClosed
	}
	o.back()
	return nil
}

func (o *memoryObject) LastPos() Pos { return o.d.last }

func (o *memoryObject) SetInterrupt(c <-chan struct{}) { o.stop = c }

func (o *memoryObject) Close() error {
	if o.closed {
		return nil
	}
	o.back()
	o.closed = true
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	o.d.open = false
	return nil
}
