package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	diskfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

const (
	baseMemTable = 16 << 20 // bytes that are written before pebble flushes by itself
	baseFiles    = 24       // files of pebble that are open at a time
)

// errBaseFailed says that the base store must be opened again: a write of a file
// failed, or it is being opened.
var errBaseFailed = errors.New("the base store has failed")

// pebbleBase is the BaseStore on disk: one pebble without a log of its own.
type pebbleBase struct {
	fs     diskfs.FS
	dir    string
	log    *slog.Logger
	cache  *pebble.Cache
	files  *pebble.FileCache
	create bool
	coder  imageCoder

	mu     sync.RWMutex // held while db is used; for writing while it is replaced
	closed bool         // by Close
	db     *pebble.DB   // nil after a Reopen that failed, and after Close
	at     *baseFailure // of db
}

// baseFailure is told by the goroutines of one pebble. After the first failure
// that pebble writes nothing any more: it would go on from a state of which it
// does not know what is on the disk, where a restart, and Reopen, look.
type baseFailure struct {
	once sync.Once
	err  atomic.Pointer[error]
	done chan struct{} // closed when err is set
}

func (f *baseFailure) fail(err error) {
	f.once.Do(func() {
		f.err.Store(&err)
		close(f.done)
	})
}

// MaybeError implements errorfs.Injector.
func (f *baseFailure) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose {
		return f.get()
	}
	return nil
}

// String implements errorfs.Injector.
func (f *baseFailure) String() string { return "failed base store" }

func (f *baseFailure) get() error {
	if p := f.err.Load(); p != nil {
		return fmt.Errorf("%w: %w", errBaseFailed, *p)
	}
	return nil
}

// openPebbleBase opens the store in dir. Unless create is set it must be there.
// cacheBytes is memory for blocks of files.
func openPebbleBase(fs diskfs.FS, dir string, create bool, cacheBytes int64, log *slog.Logger) (*pebbleBase, error) {
	b := &pebbleBase{fs: fs, dir: dir, log: log, create: create, cache: pebble.NewCache(cacheBytes), files: pebble.NewFileCache(1, baseFiles)}
	var err error
	if b.coder, err = newImageCoder(); err == nil {
		if err = b.open(); err != nil {
			b.coder.close()
		}
	}
	if err != nil {
		b.release()
		return nil, err
	}
	b.create = false
	return b, nil
}

func (b *pebbleBase) release() {
	b.files.Unref()
	b.cache.Unref()
}

// open sets db.
func (b *pebbleBase) open() error {
	at := &baseFailure{done: make(chan struct{})}
	logger := baseLogger{b.log, at}
	opt := &pebble.Options{
		FS: errorfs.Wrap(b.fs, at), Cache: b.cache, FileCache: b.files, Logger: logger,
		DisableWAL: true, ErrorIfNotExists: !b.create, FormatMajorVersion: pebble.FormatNewest,
		MemTableSize: baseMemTable, MemTableStopWritesThreshold: 4,
		L0CompactionThreshold: 4, L0StopWritesThreshold: 1000, LBaseMaxBytes: 64 << 20,
		CompactionConcurrencyRange: func() (int, int) { return 1, 1 },
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { at.fail(err) },
			DataCorruption:  func(i pebble.DataCorruptionInfo) { b.log.Error("base store: damaged file", "what", i.String()) },
		},
	}
	opt.TargetFileSizes[0] = 16 << 20
	for i := range opt.Levels {
		opt.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		opt.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.FastestCompression }
		opt.Levels[i].BlockSize = 16 << 10
	}
	db, err := pebble.Open(b.dir, opt)
	if err != nil {
		return fmt.Errorf("open base store %s: %w", b.dir, err)
	}
	b.db, b.at = db, at
	return nil
}

// baseLogger gets what pebble says. Fatalf returns: what failed then fails too,
// and the store is opened again.
type baseLogger struct {
	log *slog.Logger
	at  *baseFailure
}

func (baseLogger) Infof(string, ...any) {}

func (l baseLogger) Errorf(format string, args ...any) {
	l.log.Warn("base store", "message", fmt.Sprintf(format, args...))
}

func (l baseLogger) Fatalf(format string, args ...any) { l.at.fail(fmt.Errorf(format, args...)) }

// use gives fn the open pebble.
func (b *pebbleBase) use(fn func(*pebble.DB) error) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.db == nil {
		return fmt.Errorf("%w: it is not open", errBaseFailed)
	}
	return b.explain(fn(b.db))
}

// explain makes damage told by pebble a *DamageError.
func (b *pebbleBase) explain(err error) error {
	if err == nil {
		return nil
	}
	if d, ok := errors.AsType[*DamageError](err); ok {
		if d.File == "" {
			d.File = b.dir
		}
		return err
	}
	if f, ok := errors.AsType[*FormatError](err); ok {
		if f.File == "" {
			f.File = b.dir
		}
		return err
	}
	if pebble.IsCorruptionError(err) || errors.Is(err, errMalformedBase) {
		return &DamageError{File: b.dir, Offset: -1, Reason: err.Error(), Remedy: remedyRestore}
	}
	return fmt.Errorf("base store: %w", err)
}

// get calls fn with a value, which is valid during the call; found is false when
// there is none.
func get(db pebble.Reader, key []byte, fn func([]byte) error) (found bool, err error) {
	v, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = fn(v)
	if err2 := closer.Close(); err == nil {
		err = err2
	}
	return true, err
}

// Failed implements BaseStore.
func (b *pebbleBase) Failed() error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.db == nil {
		return errBaseFailed
	}
	return b.at.get()
}

// Info implements BaseStore.
func (b *pebbleBase) Info() (i BaseInfo, err error) {
	err = b.use(func(db *pebble.DB) error {
		_, err := get(db, baseInfoKey, func(v []byte) (err error) {
			i, err = decodeBaseInfo(v)
			return err
		})
		return err
	})
	return i, err
}

// Load implements BaseStore.
func (b *pebbleBase) Load(id ObjectID) (o BaseObject, ok bool, err error) {
	slot := SlotOf(id)
	err = b.use(func(open *pebble.DB) (err error) {
		db := open.NewSnapshot() // a checkpoint may change both
		defer func() { err = errors.Join(err, db.Close()) }()
		ok, err = get(db, baseKey(slot, baseMeta, &id), func(v []byte) (err error) {
			o.BaseMeta, err = decodeBaseMeta(v)
			return err
		})
		if err != nil || !ok || !o.Pages.Inline {
			return err
		}
		found, err := get(db, baseKey(slot, baseImage, &id), func(v []byte) (err error) {
			o.Image, err = b.coder.decode(v, o.Pages.PageSize*int(o.Pages.Count))
			return err
		})
		if err == nil && !found {
			err = fmt.Errorf("%w: it is missing", errMalformedBase)
		}
		if err != nil {
			return fmt.Errorf("image of object %x: %w", id, err)
		}
		return nil
	})
	return o, ok && err == nil, err
}

// ReadPage implements BaseStore.
func (b *pebbleBase) ReadPage(id ObjectID, pgno uint32, page []byte) error {
	return b.use(func(db *pebble.DB) error {
		found, err := get(db, basePageKey(SlotOf(id), &id, pgno), func(v []byte) error {
			_, err := decodePage(v, pgno, page)
			return err
		})
		if err != nil {
			return fmt.Errorf("object %x: %w", id, err)
		}
		if !found {
			return missingPage(b.dir, id, pgno)
		}
		return nil
	})
}

// scan goes through the keys from low to high, high not included.
func scan(db pebble.Reader, low, high []byte, fn func(key, value []byte) error) error {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: high})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil {
			err = fn(it.Key(), v)
		}
		if err != nil {
			return errors.Join(err, it.Close())
		}
	}
	return errors.Join(it.Error(), it.Close())
}

// EachPage implements BaseStore.
func (b *pebbleBase) EachPage(id ObjectID, count uint32, fn func(uint32, uint64) error) error {
	slot := SlotOf(id)
	return b.use(func(db *pebble.DB) error {
		return scan(db, basePageKey(slot, &id, 0), afterPage(slot, &id, count), func(key, v []byte) error {
			pgno := binary.BigEndian.Uint32(key[len(key)-4:])
			sum, err := decodePage(v, pgno, nil)
			if err != nil {
				return fmt.Errorf("object %x: %w", id, err)
			}
			return fn(pgno, sum)
		})
	})
}

// afterPage is the first key after page pgno of an object.
func afterPage(slot uint16, id *ObjectID, pgno uint32) []byte {
	return append(basePageKey(slot, id, pgno), 0)
}

// Claims implements BaseStore.
func (b *pebbleBase) Claims(id ObjectID) (claims []byte, err error) {
	err = b.use(func(db *pebble.DB) error {
		_, err := get(db, baseKey(SlotOf(id), baseClaims, &id), func(v []byte) error {
			claims = append([]byte{}, v...)
			return nil
		})
		return err
	})
	return claims, err
}

// eachKind goes through the keys of one kind of many slots: it skips what lies
// between.
func eachKind(db pebble.Reader, from, through uint16, kind byte, fn func(key, value []byte) error) error {
	it, err := db.NewIter(nil)
	if err != nil {
		return err
	}
	fail := func(err error) error { return errors.Join(err, it.Error(), it.Close()) }
	prefix := func(slot uint32) []byte { return []byte{byte(slot >> 8), byte(slot), kind} }
	for slot := uint32(from); slot <= uint32(through); {
		if !it.SeekGE(prefix(slot)) {
			break
		}
		for it.Valid() && uint32(binary.BigEndian.Uint16(it.Key())) == slot && it.Key()[2] == kind {
			v, err := it.ValueAndErr()
			if err == nil {
				err = fn(it.Key(), v)
			}
			if err != nil {
				return fail(err)
			}
			it.Next()
		}
		if !it.Valid() {
			break
		}
		at := uint32(binary.BigEndian.Uint16(it.Key()))
		if at == slot { // a higher kind of this slot
			at++
		}
		slot = at
	}
	return fail(nil)
}

// EachClaimed implements BaseStore.
func (b *pebbleBase) EachClaimed(fn func(ObjectID, []byte) error) error {
	return b.use(func(db *pebble.DB) error {
		for hi := range 256 {
			var marks [32]byte
			if _, err := get(db, baseMarksKey(byte(hi)), func(v []byte) error {
				copy(marks[:], v)
				return nil
			}); err != nil {
				return err
			}
			for lo := range 256 {
				if marks[lo/8]&(1<<(lo%8)) == 0 {
					continue
				}
				low := []byte{byte(hi), byte(lo), baseClaims}
				high := []byte{byte(hi), byte(lo), baseDeleted + 1}
				if err := scan(db, low, high, func(key, v []byte) error {
					id := ObjectID(key[3:])
					if key[2] == baseClaims {
						return fn(id, append([]byte{}, v...))
					}
					// A deleted object with claims came already.
					found, err := get(db, baseKey(binary.BigEndian.Uint16(key), baseClaims, &id), func([]byte) error { return nil })
					if err != nil || found {
						return err
					}
					return fn(id, nil)
				}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Each implements BaseStore.
func (b *pebbleBase) Each(from, through uint16, fn func(ObjectID, *BaseMeta) error) error {
	return b.use(func(db *pebble.DB) error {
		return eachKind(db, from, through, baseMeta, func(key, v []byte) error {
			m, err := decodeBaseMeta(v)
			if err != nil {
				return fmt.Errorf("object %x: %w", key[3:], err)
			}
			return fn(ObjectID(key[3:]), &m)
		})
	})
}

// EachAlarm implements BaseStore.
func (b *pebbleBase) EachAlarm(from, through uint16, fn func(int64, ObjectID) error) error {
	return b.use(func(db *pebble.DB) error {
		return eachKind(db, from, through, baseAlarm, func(key, _ []byte) error {
			return fn(int64(binary.BigEndian.Uint64(key[3:])^1<<63), ObjectID(key[11:]))
		})
	})
}

// Write implements BaseStore.
func (b *pebbleBase) Write(info *BaseInfo, objects ...*BaseWrite) error {
	return b.use(func(db *pebble.DB) error {
		if err := b.at.get(); err != nil {
			return err
		}
		batch := db.NewBatch()
		defer func() { _ = batch.Close() }() // gives memory back; Apply says what went wrong
		w := baseWriter{db: db, batch: batch, coder: b.coder}
		if info != nil {
			w.set(baseInfoKey, info.encode())
		}
		for _, o := range objects {
			w.object(o)
		}
		if w.err != nil {
			return w.err
		}
		if err := db.Apply(batch, pebble.NoSync); err != nil {
			b.at.fail(err)
			return err
		}
		return b.at.get()
	})
}

// baseWriter fills a batch.
type baseWriter struct {
	db    *pebble.DB
	batch *pebble.Batch
	coder imageCoder
	marks map[byte]*[32]byte
	buf   []byte
	err   error
}

func (w *baseWriter) set(key, value []byte) {
	if w.err == nil {
		w.err = w.batch.Set(key, value, nil)
	}
}

func (w *baseWriter) delete(key []byte) {
	if w.err == nil {
		w.err = w.batch.Delete(key, nil)
	}
}

func (w *baseWriter) deleteRange(from, to []byte) {
	if w.err == nil {
		w.err = w.batch.DeleteRange(from, to, nil)
	}
}

func (w *baseWriter) object(o *BaseWrite) {
	noPages := func(above uint32) {
		// Most objects never had a page of their own: a look costs less than a
		// range deletion.
		low, high := basePageKey(o.Slot, &o.ID, above), afterPage(o.Slot, &o.ID, 1<<32-1)
		it, err := w.db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: high})
		if err != nil {
			w.err = err
			return
		}
		some := it.First()
		if err := errors.Join(it.Error(), it.Close()); err != nil {
			w.err = err
		}
		if some {
			w.deleteRange(low, high)
		}
	}
	key := func(kind byte) []byte { return baseKey(o.Slot, kind, &o.ID) }
	if o.AlarmWas != 0 && (o.Remove || o.AlarmWas != o.Meta.AlarmMS) {
		w.delete(baseAlarmKey(o.Slot, o.AlarmWas, &o.ID))
	}
	if o.Remove {
		noPages(0)
		for _, kind := range []byte{baseMeta, baseImage, baseClaims, baseDeleted} {
			w.delete(key(kind))
		}
		return
	}
	m := &o.Meta
	if o.ClaimsOnly {
		if o.Claims != nil {
			w.set(key(baseClaims), o.Claims)
		} else {
			w.delete(key(baseClaims))
		}
		return
	}
	switch {
	case m.Mixed:
	case m.Pages.Inline:
		noPages(0)
		w.set(key(baseImage), w.coder.encode(o.Image))
	case m.Pages.PageSize == 0:
		noPages(0)
		w.delete(key(baseImage))
	default:
		noPages(m.Pages.Count + 1)
		w.delete(key(baseImage))
	}
	if m.Mixed || !m.Pages.Inline && m.Pages.PageSize > 0 {
		for _, p := range o.Changed {
			w.buf = encodePage(w.buf[:0], p.Pgno, p.Data)
			w.set(basePageKey(o.Slot, &o.ID, p.Pgno), w.buf)
		}
	}
	if m.Txid > 0 {
		w.set(key(baseMeta), m.encode())
	}
	if m.Mixed {
		return
	}
	if m.AlarmMS != 0 {
		w.set(baseAlarmKey(o.Slot, m.AlarmMS, &o.ID), nil)
	}
	if m.Deleted {
		w.set(key(baseDeleted), nil)
	} else {
		w.delete(key(baseDeleted))
	}
	switch {
	case o.KeepClaims:
	case o.Claims != nil:
		w.set(key(baseClaims), o.Claims)
	default:
		w.delete(key(baseClaims))
	}
	if m.Deleted || o.Claims != nil {
		w.mark(o.Slot)
	}
}

// mark notes that a slot may have claims or deleted objects.
func (w *baseWriter) mark(slot uint16) {
	hi, lo := byte(slot>>8), byte(slot)
	marks := w.marks[hi]
	if marks == nil {
		marks = new([32]byte)
		if _, err := get(w.db, baseMarksKey(hi), func(v []byte) error {
			copy(marks[:], v)
			return nil
		}); err != nil {
			w.err = err
			return
		}
		if w.marks == nil {
			w.marks = map[byte]*[32]byte{}
		}
		w.marks[hi] = marks
	}
	if bit := byte(1) << (lo % 8); marks[lo/8]&bit == 0 {
		marks[lo/8] |= bit
		w.set(baseMarksKey(hi), marks[:])
	}
}

// Flush implements BaseStore.
func (b *pebbleBase) Flush() error {
	return b.use(func(db *pebble.DB) error {
		done, err := db.AsyncFlush()
		if err != nil {
			return err
		}
		select {
		case <-done:
		case <-b.at.done:
		}
		return b.at.get()
	})
}

// Snapshot implements BaseStore.
func (b *pebbleBase) Snapshot(dir string) error {
	return b.use(func(db *pebble.DB) error { return db.Checkpoint(dir) })
}

// Reopen implements BaseStore.
func (b *pebbleBase) Reopen() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.db != nil {
		// It has failed: what it says at the end is no news.
		_ = b.db.Close()
		b.db = nil
	}
	return b.open()
}

// Close implements BaseStore.
func (b *pebbleBase) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var err error
	if b.db != nil {
		failed := b.at.get()
		if err = b.db.Close(); failed != nil {
			err = failed
		}
		b.db = nil
	}
	if !b.closed {
		b.closed = true
		b.coder.close()
		b.release()
	}
	return err
}
