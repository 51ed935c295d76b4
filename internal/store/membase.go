package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// MemBase is a BaseStore in memory, for tests.
type MemBase struct {
	mu      sync.RWMutex
	now     memBaseState
	durable memBaseState
	failed  error
}

type memBaseState struct {
	info    BaseInfo
	objects map[ObjectID]memBaseObject
}

// memBaseObject is replaced as a whole.
type memBaseObject struct {
	meta   []byte
	image  []byte
	pages  map[uint32][]byte
	claims []byte
}

// NewMemBase returns an empty store.
func NewMemBase() *MemBase {
	m := &MemBase{}
	m.now.objects, m.durable.objects = map[ObjectID]memBaseObject{}, map[ObjectID]memBaseObject{}
	return m
}

// Fail makes everything fail until Reopen.
func (m *MemBase) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = err
}

// Failed implements BaseStore.
func (m *MemBase) Failed() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.failed
}

// Info implements BaseStore.
func (m *MemBase) Info() (BaseInfo, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.now.info, m.failed
}

// Load implements BaseStore.
func (m *MemBase) Load(id ObjectID) (BaseObject, bool, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	o, ok := m.now.objects[id]
	if !ok || o.meta == nil || m.failed != nil {
		return BaseObject{}, false, m.failed
	}
	meta, err := decodeBaseMeta(o.meta)
	if err != nil {
		return BaseObject{}, false, err
	}
	return BaseObject{meta, bytes.Clone(o.image)}, true, nil
}

// ReadPage implements BaseStore.
func (m *MemBase) ReadPage(id ObjectID, pgno uint32, b []byte) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.failed != nil {
		return m.failed
	}
	p, ok := m.now.objects[id].pages[pgno]
	if !ok {
		return missingPage("memory", id, pgno)
	}
	_, err := decodePage(p, pgno, b)
	return err
}

func missingPage(where string, id ObjectID, pgno uint32) error {
	return &DamageError{File: where, Offset: -1, Reason: fmt.Sprintf("page %d of object %x is missing", pgno, id), Remedy: remedyRestore}
}

// EachPage implements BaseStore.
func (m *MemBase) EachPage(id ObjectID, count uint32, fn func(uint32, uint64) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	pages := m.now.objects[id].pages
	for _, pgno := range slices.Sorted(maps.Keys(pages)) {
		if pgno > count {
			break
		}
		sum, err := decodePage(pages[pgno], pgno, nil)
		if err == nil {
			err = fn(pgno, sum)
		}
		if err != nil {
			return err
		}
	}
	return m.failed
}

// Claims implements BaseStore.
func (m *MemBase) Claims(id ObjectID) ([]byte, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return bytes.Clone(m.now.objects[id].claims), m.failed
}

func (m *MemBase) each(from, through uint16, fn func(ObjectID, *BaseMeta, *memBaseObject) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.failed != nil {
		return m.failed
	}
	order := func(a, b ObjectID) int {
		var ka, kb [34]byte
		binary.BigEndian.PutUint16(ka[:], SlotOf(a))
		binary.BigEndian.PutUint16(kb[:], SlotOf(b))
		copy(ka[2:], a[:])
		copy(kb[2:], b[:])
		return bytes.Compare(ka[:], kb[:])
	}
	for _, id := range slices.SortedFunc(maps.Keys(m.now.objects), order) {
		if slot := SlotOf(id); slot < from || slot > through {
			continue
		}
		o := m.now.objects[id]
		if o.meta == nil {
			continue
		}
		meta, err := decodeBaseMeta(o.meta)
		if err == nil {
			err = fn(id, &meta, &o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// EachClaimed implements BaseStore.
func (m *MemBase) EachClaimed(fn func(ObjectID, []byte) error) error {
	return m.each(0, 0xffff, func(id ObjectID, meta *BaseMeta, o *memBaseObject) error {
		if !meta.Deleted && o.claims == nil {
			return nil
		}
		return fn(id, bytes.Clone(o.claims))
	})
}

// Each implements BaseStore.
func (m *MemBase) Each(from, through uint16, fn func(ObjectID, *BaseMeta) error) error {
	return m.each(from, through, func(id ObjectID, meta *BaseMeta, _ *memBaseObject) error { return fn(id, meta) })
}

// EachAlarm implements BaseStore.
func (m *MemBase) EachAlarm(from, through uint16, fn func(int64, ObjectID) error) error {
	type alarm struct {
		key []byte
		ms  int64
		id  ObjectID
	}
	var all []alarm
	if err := m.each(from, through, func(id ObjectID, meta *BaseMeta, _ *memBaseObject) error {
		if meta.AlarmMS != 0 {
			all = append(all, alarm{baseAlarmKey(SlotOf(id), meta.AlarmMS, &id), meta.AlarmMS, id})
		}
		return nil
	}); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b alarm) int { return bytes.Compare(a.key, b.key) })
	for _, a := range all {
		if err := fn(a.ms, a.id); err != nil {
			return err
		}
	}
	return nil
}

// Write implements BaseStore.
func (m *MemBase) Write(info *BaseInfo, objects ...*BaseWrite) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil {
		return m.failed
	}
	if info != nil {
		m.now.info = *info
	}
	for _, w := range objects {
		if w.Remove {
			delete(m.now.objects, w.ID)
			continue
		}
		was := m.now.objects[w.ID]
		if w.ClaimsOnly {
			was.claims = bytes.Clone(w.Claims)
			m.now.objects[w.ID] = was
			continue
		}
		o := memBaseObject{meta: w.Meta.encode(), claims: bytes.Clone(w.Claims)}
		if w.Meta.Txid == 0 {
			o.meta = was.meta
		}
		if w.KeepClaims || w.Meta.Mixed {
			o.claims = was.claims
		}
		switch p := &w.Meta.Pages; {
		case w.Meta.Mixed, p.PageSize > 0 && !p.Inline:
			if o.pages = maps.Clone(was.pages); w.Meta.Mixed {
				o.image = was.image
			}
			if o.pages == nil {
				o.pages = map[uint32][]byte{}
			}
			for _, g := range w.Changed {
				o.pages[g.Pgno] = encodePage(nil, g.Pgno, g.Data)
			}
			if !w.Meta.Mixed {
				maps.DeleteFunc(o.pages, func(pgno uint32, _ []byte) bool { return pgno > p.Count })
			}
		case p.Inline:
			o.image = bytes.Clone(w.Image)
		}
		m.now.objects[w.ID] = o
	}
	return nil
}

// Flush implements BaseStore.
func (m *MemBase) Flush() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == nil {
		m.durable = memBaseState{m.now.info, maps.Clone(m.now.objects)}
	}
	return m.failed
}

// Snapshot implements BaseStore.
func (m *MemBase) Snapshot(string) error {
	return fmt.Errorf("not supported: a copy of a store in memory")
}

// Reopen implements BaseStore.
func (m *MemBase) Reopen() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = nil
	m.now = memBaseState{m.durable.info, maps.Clone(m.durable.objects)}
	return nil
}

// Close implements BaseStore.
func (m *MemBase) Close() error { return nil }
