package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	diskfs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// Options of Open. Dir and Clock must be set.
type Options struct {
	// FS is the file system; nil means the operating system's.
	FS diskfs.FS
	// Dir is the data directory. It is made if it is missing.
	Dir string
	// Clock is where waiting and time go through.
	Clock limpet.Clock
	// Logger gets progress of a long replay, a tail that was cut, a full disk.
	// nil drops them.
	Logger *slog.Logger
	// SegmentSize is the size of new segments of the commit log in bytes, from
	// MinSegmentSize to 1 GiB; 0 means DefaultSegmentSize. Two of them are
	// always allocated.
	SegmentSize int64
	// UndurableLimit is how many bytes of commits may wait for the disk before
	// WaitRoom waits; 0 means DefaultUndurableLimit.
	UndurableLimit int64
	// SpillAbove is how many bytes the record of a commit may have in memory;
	// a larger one is written to the log in pieces of at most 1 MiB while SQLite
	// commits. 0 means MaxRecord, which is the most.
	SpillAbove int64
	// MaxCommit is how many bytes of changes one commit may have; more is
	// refused with a *LimitError. 0 means DefaultMaxCommit.
	MaxCommit int64
	// KeyRetention is how old a claim of an idempotency key may be that Open
	// finds again, by this machine's clock; 0 means any age. OutcomeMemory is how
	// many bytes of outcomes Open keeps, the newest; 0 means none.
	KeyRetention  time.Duration
	OutcomeMemory int64
	// Limits bound what objects do with their data.
	Limits Limits
	// LogLimit is how many bytes of the commit log checkpoints leave, about; 0
	// means DefaultLogLimit. Commits fail with ErrStorageFull when the log has
	// LogMax bytes, because checkpoints do not work; 0 means four times LogLimit.
	LogLimit, LogMax int64
	// CheckpointAge is how long a commit stays in the log alone, about; 0 means
	// DefaultCheckpointAge.
	CheckpointAge time.Duration
	// PageMemory is how many bytes of pages are kept in memory, about: beyond it
	// objects that are not in use go first, then pages that were not used lately. 0
	// means DefaultPageMemory. What a running turn changes stays in any case.
	PageMemory int64
	// Connections is how many open connections to SQLite are too many: Pressure is
	// called then. 0 means DefaultConnections.
	Connections int64
	// Pressure is called, on a goroutine of the store, when there are more pages or
	// connections than there should be and objects in use have them: it should close
	// some that are idle. It may be nil.
	Pressure func()
	// NoCheckpoints leaves checkpoints to Store.Checkpoint. It is for tests.
	NoCheckpoints bool
	// Fatal is called once, on a goroutine of the store, when the commit log is
	// lost: the process is to end with exit code 4. It must not call Close.
	// nil leaves it at broken gates.
	Fatal func(error)
}

func (o *Options) defaults() {
	if o.FS == nil {
		o.FS = diskfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.SegmentSize = cmp.Or(o.SegmentSize, DefaultSegmentSize)
	o.UndurableLimit = cmp.Or(o.UndurableLimit, DefaultUndurableLimit)
	o.SpillAbove = cmp.Or(o.SpillAbove, MaxRecord)
	o.MaxCommit = cmp.Or(o.MaxCommit, DefaultMaxCommit)
	o.LogLimit = cmp.Or(o.LogLimit, DefaultLogLimit)
	o.LogMax = cmp.Or(o.LogMax, max(4*o.LogLimit, 8*o.SegmentSize))
	o.CheckpointAge = cmp.Or(o.CheckpointAge, DefaultCheckpointAge)
	o.PageMemory = cmp.Or(o.PageMemory, DefaultPageMemory)
	o.Connections = cmp.Or(o.Connections, DefaultConnections)
	o.Limits.defaults()
}

func (o *Options) validate() error {
	switch {
	case o.Dir == "":
		return errors.New("open store: no data directory given")
	case o.Clock == nil:
		return errors.New("open store: no clock given")
	case o.SegmentSize < MinSegmentSize || o.SegmentSize > maxSegmentSize:
		return fmt.Errorf("open store: segment size of %d bytes is not between %d and %d", o.SegmentSize, MinSegmentSize, maxSegmentSize)
	case o.UndurableLimit < 0:
		return fmt.Errorf("open store: undurable limit of %d bytes is negative", o.UndurableLimit)
	case o.SpillAbove < 0 || o.SpillAbove > MaxRecord:
		return fmt.Errorf("open store: to spill above %d bytes is not between 0 and %d", o.SpillAbove, MaxRecord)
	case o.KeyRetention < 0 || o.OutcomeMemory < 0:
		return fmt.Errorf("open store: key retention %v or outcome memory of %d bytes is negative", o.KeyRetention, o.OutcomeMemory)
	case o.LogLimit < 0 || o.CheckpointAge < 0 || o.PageMemory < 0 || o.Connections < 0:
		return errors.New("open store: a limit is negative")
	case o.LogMax < 4*o.SegmentSize || o.LogMax < o.LogLimit:
		return fmt.Errorf("open store: the commit log may have %d bytes, which is less than its limit of %d or than four segments of %d", o.LogMax, o.LogLimit, o.SegmentSize)
	case o.MaxCommit < 0:
		return fmt.Errorf("open store: commit limit of %d bytes is negative", o.MaxCommit)
	}
	if err := o.Limits.Validate(); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	return nil
}

// Store is the data directory of a node. It is safe for concurrent use.
type Store struct {
	opt     Options
	lock    io.Closer
	log     *segmentLog
	base    BaseStore
	opened  time.Time
	alloc   *vfs.Allocator
	boot    ID
	replay  ReplayStats
	buffers sync.Pool // of *[]byte, for records

	dirMu sync.Mutex // guards dir.Classes; the rest of dir stays as Open found it
	dir   directory

	mu      sync.RWMutex
	objects map[ObjectID]*resident
	closed  bool
	idents  identityRing
	kept    keptRing

	// Of Open.
	spills  map[ObjectID]*spill // commits that have come in part
	scanned logTail
	reread  func(Place, []byte) ([]byte, error) // CommitLog.Reread
	dropped struct{ pieces, bytes int64 }
	from    Pos  // the base store has everything before
	fresh   bool // the base store was never written

	// Of objects that were not used since Open.
	tail   atomic.Pointer[logTail] // nil when there are none
	unread atomic.Int64

	checkpoints

	openObjects atomic.Int64
	withData    atomic.Int64
	spilled     atomic.Int64
	connections atomic.Int64
	pageReads   atomic.Int64
}

// resident is what the store knows of an object that is open, or of which the
// base store does not have the last commit. All others are in the base store alone.
//
//	nothing ──Object──> open, clean ──commit──> open, dirty ──checkpoint──> open, clean
//	   ^                    │Close                 │Close                      │
//	   ├────────────────────┘                      v                           │
//	   ├─────────────────checkpoint────────── closed, dirty                    │
//	   └───────────────────────────────Close───────────────────────────────────┘
type resident struct {
	id   ObjectID
	slot uint16
	open bool // a handle exists; under Store.mu

	loading sync.Mutex // held while load is at work
	loaded  bool       // under loading and mu: what follows is known

	// mu is the mutex of pages too. It is held for moments, and while a page is read
	// that is needed. The handle alone writes txid, pos, birth, born and pages; it
	// reads them without mu.
	mu    sync.Mutex
	pages *vfs.Pages // nil: no database
	txid  uint64     // of the last record, 0 for none
	pos   Pos        // of the last record
	birth Birth
	born  atomic.Bool // a record has its birth and none its deletion
	said  []saidOfCall
	base  inBase

	// first is a batch at or before the first record that the base store does not
	// have; 0: it has all, or a checkpoint found nothing to do. It is written with mu
	// and checkpoints.listMu held, but at Open.
	first    uint64
	since    time.Time // when that record came
	next     uint64    // the same after the snapshot that is being written
	writing  bool      // a snapshot is being written
	spilling uint64    // a batch at or before the first piece of a commit that goes on; 0 for none

	before, behind *resident // in the list of those with first

	// Of Open, until loaded.
	tailFirst, tailLast uint32 // records in the log
	tailBorn            uint8
	counted             bool // in Store.withData
}

// inBase is what the base store has of an object.
type inBase struct {
	there  bool
	claims bool // perhaps
	meta   BaseMeta
}

// Open opens the data directory and replays its commit log. It fails with
// ErrInUse, ErrNotLimpet, ErrStorageFull, *DamageError, *FormatError, an error
// of the file system, or the cause of ctx.
func Open(ctx context.Context, opt Options) (*Store, error) {
	opt.defaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	s := &Store{opt: opt, alloc: vfs.NewAllocator(), boot: newID(), objects: map[ObjectID]*resident{}, opened: opt.Clock.Now()}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.kick, s.ask, s.large = make(chan struct{}, 1), make(chan chan error), map[*resident]bool{}
	s.buffers.New = func() any { return new([]byte) }
	if err := s.open(ctx); err != nil {
		s.stop()
		if s.log != nil {
			_ = s.log.Close()
		}
		if s.base != nil {
			_ = s.base.Close()
		}
		if s.lock != nil {
			_ = s.lock.Close()
		}
		return nil, fmt.Errorf("open store %s: %w", opt.Dir, err)
	}
	s.startCheckpoints()
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	fs := s.opt.FS
	if err := makeDir(fs, s.opt.Dir); err != nil {
		return err
	}
	dir, err := oneName(fs, s.opt.Dir)
	if err != nil {
		return err
	}
	s.opt.Dir = dir
	if err := checkForeign(fs, dir); err != nil {
		return err
	}
	if s.lock, err = lockDir(fs, dir); err != nil {
		return err
	}
	var ok bool
	if s.dir, ok, err = loadDirectory(fs, dir); err != nil {
		return err
	}
	if !ok {
		s.dir = directory{
			Format: directoryVersion, Node: newID(), Disk: newID(), History: newID(),
			Created: s.opt.Clock.Now().UTC().Truncate(time.Second), Classes: map[string]string{},
		}
		if err := s.dir.save(fs, dir); err != nil {
			return err
		}
	}
	logDir := fs.PathJoin(dir, logName)
	if !s.dir.LogStarted {
		if err := errors.Join(makeDir(fs, logDir), syncParents(fs, logDir)); err != nil {
			return err
		}
	}
	logOpt := logOptions{
		fs: fs, dir: logDir, clock: s.opt.Clock,
		identity: logIdentity{history: s.dir.History, disk: s.dir.Disk},
		first:    1, started: s.dir.LogStarted,
		size: s.opt.SegmentSize, undurableLimit: s.opt.UndurableLimit,
		fatal: s.fatal, fullChanged: s.fullChanged, progress: s.progress(),
	}
	if err := s.openBase(); err != nil {
		return err
	}
	logOpt.from, logOpt.limit, logOpt.shorten = s.from, s.opt.LogMax, func() error { return s.Checkpoint(s.ctx) }
	s.log = newSegmentLog(logOpt)
	err = s.recover(ctx)
	if err != nil {
		return err
	}
	if s.replay.CutBytes > 0 {
		s.opt.Logger.Warn("commit log: cut the end of the log, which is no whole batch: one was being written when the process or the power ended, and nothing of it was acknowledged; if the node had been stopped properly, the disk has changed it",
			"bytes", s.replay.CutBytes, "file", s.replay.CutFile, "offset", s.replay.CutAt)
	}
	if n := s.replay.DroppedPieces; n > 0 {
		s.opt.Logger.Info("commit log: passed over pieces of large commits that were rolled back or cut short; nothing of them was acknowledged",
			"pieces", n, "bytes", s.replay.DroppedBytes)
	}
	if !s.dir.LogStarted {
		d := s.dir.clone()
		d.LogStarted = true
		if err := d.save(fs, dir); err != nil {
			return err
		}
		s.dir = d
	}
	return nil
}

// recover reads the log.
func (s *Store) recover(ctx context.Context) (err error) {
	s.kept.budget = s.opt.OutcomeMemory
	if s.opt.KeyRetention > 0 {
		s.kept.after = s.opt.Clock.Now().Add(-s.opt.KeyRetention).UnixMilli()
	}
	if err := s.recoverClaims(); err != nil {
		return err
	}
	s.spills, s.reread = map[ObjectID]*spill{}, s.log.Reread
	s.replay, err = s.log.Replay(ctx, s.scan)
	for id := range s.spills {
		s.dropSpill(id)
	}
	s.replay.DroppedPieces, s.replay.DroppedBytes = s.dropped.pieces, s.dropped.bytes
	s.spills = nil
	s.keepTail()
	return err
}

// keepTail goes on with the objects of which the log has records.
func (s *Store) keepTail() {
	for id, e := range s.objects {
		switch {
		case e.tailFirst == 0: // pieces of a commit that was not made
			s.unlist(e)
			delete(s.objects, id)
			continue
		case s.fresh: // all there is of it
			e.counted = true
			if e.tailBorn == bornYes {
				s.withData.Add(1)
			}
		}
		s.unread.Add(1)
	}
	if s.unread.Load() > 0 {
		s.tail.Store(&logTail{s.scanned.recs, s.scanned.long})
	}
	s.scanned = logTail{}
}

// openBase opens the base store.
func (s *Store) openBase() error {
	fs, dir := s.opt.FS, s.baseDir()
	base, err := openPebbleBase(fs, dir, !s.dir.BaseStarted, min(s.opt.PageMemory/8, 256<<20), s.opt.Logger)
	if err != nil {
		return err
	}
	s.base = base
	if !s.dir.BaseStarted {
		if err := syncDir(fs, s.opt.Dir); err != nil {
			return err
		}
		d := s.dir.clone()
		d.Format, d.BaseStarted = directoryVersion, true
		if err := d.save(fs, s.opt.Dir); err != nil {
			return err
		}
		s.dir = d
	}
	info, err := base.Info()
	if err != nil {
		return err
	}
	if s.fresh = info == (BaseInfo{}); s.fresh {
		info.History, info.Disk = s.dir.History, s.dir.Disk
	}
	if info.History != s.dir.History || info.Disk != s.dir.Disk {
		return &DamageError{
			File: dir, Offset: -1, Remedy: remedyRestore,
			Reason: fmt.Sprintf("it belongs to history %v on disk %v, this directory is history %v on disk %v", info.History, info.Disk, s.dir.History, s.dir.Disk),
		}
	}
	s.info, s.from = info, info.Pos
	s.withData.Store(info.Objects)
	return nil
}

// doneReading says that Open's records of the log are all applied.
func (s *Store) doneReading() {
	if s.log != nil {
		s.log.readers.close()
	}
}

func (s *Store) baseDir() string { return s.opt.FS.PathJoin(s.opt.Dir, baseName) }

func (s *Store) fatal(err error) {
	s.opt.Logger.Error("commit log: given up; what was not acknowledged is lost, a restart reads what is on the disk", "error", err)
	if s.opt.Fatal != nil {
		s.opt.Fatal(err)
	}
}

func (s *Store) fullChanged(err error) {
	if err != nil {
		s.opt.Logger.Error("commit log: cannot prepare the next segment; commits will fail until it works, tried every second", "error", err)
		return
	}
	s.opt.Logger.Info("commit log: there is room again")
}

// progressEvery is how often a replay says how far it is.
const progressEvery = 2 * time.Second

func (s *Store) progress() func(segment, of int, stats *ReplayStats) {
	last := s.opt.Clock.Now()
	return func(segment, of int, stats *ReplayStats) {
		if now := s.opt.Clock.Now(); now.Sub(last) >= progressEvery {
			last = now
			s.opt.Logger.Info("replaying the commit log", "segment", segment, "of", of, "records", stats.Records, "bytes", stats.Bytes)
		}
	}
}

// Object opens the object with this ID; it need not exist. The birth is
// recorded with the first commit. There is one handle of an object at a time:
// a second is refused with ErrObjectOpen until the first is closed.
func (s *Store) Object(id ObjectID, birth Birth) (*Object, error) {
	birth.Named = birth.Named || birth.Name != ""
	if len(birth.Class) > maxClassText || len(birth.Name) > maxBirthText-maxClassText-8 {
		return nil, &LimitError{What: "class and name of an object", Size: int64(len(birth.Class) + len(birth.Name)), Limit: maxBirthText - maxClassText - 8, Remedy: "use a shorter name"}
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	e := s.objects[id]
	if e == nil {
		e = &resident{id: id, slot: SlotOf(id)}
		s.objects[id] = e
	}
	if e.open {
		s.mu.Unlock()
		return nil, fmt.Errorf("object %x: %w", id, ErrObjectOpen)
	}
	e.open = true
	s.openObjects.Add(1)
	s.mu.Unlock()
	if err := s.load(e); err != nil {
		s.giveBack(e)
		return nil, err
	}
	if e.born.Load() && e.birth.Class != birth.Class {
		class := e.birth.Class
		s.giveBack(e)
		return nil, fmt.Errorf("object %x belongs to class %q, not to %q", id, class, birth.Class)
	}
	return &Object{s: s, id: id, slot: e.slot, e: e, birth: birth}, nil
}

// giveBack ends the use of an open object.
func (s *Store) giveBack(e *resident) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.open = false
	s.openObjects.Add(-1)
	s.dropIfClean(e)
}

// dropIfClean forgets an object that the base store has, or that never was, and is
// not open. s.mu is held.
func (s *Store) dropIfClean(e *resident) {
	e.mu.Lock()
	if e.open || e.first != 0 || e.writing {
		e.mu.Unlock()
		return
	}
	pages := e.pages
	e.pages = nil
	delete(s.objects, e.id)
	e.mu.Unlock()
	if pages != nil {
		pages.Release()
	}
}

// Exists says whether the object has committed anything (durable or not) and
// was not deleted since. The error is that of the base store.
func (s *Store) Exists(id ObjectID) (bool, error) {
	s.mu.RLock()
	e := s.objects[id]
	s.mu.RUnlock()
	if e != nil {
		e.mu.Lock()
		loaded, tail := e.loaded, e.tailBorn
		e.mu.Unlock()
		switch {
		case loaded:
			return e.born.Load(), nil
		case tail != bornUnknown:
			return tail == bornYes, nil
		}
	}
	o, ok, err := s.base.Load(id)
	return ok && !o.Deleted, err
}

// Wait returns when everything up to p is durable; see CommitLog.
func (s *Store) Wait(ctx context.Context, p Pos) error { return s.log.Wait(ctx, p) }

// Durable is the position up to which everything is durable.
func (s *Store) Durable() Pos { return s.log.Durable() }

// Lost is closed when the commit log failed.
func (s *Store) Lost() <-chan struct{} { return s.log.Lost() }

// Full says whether no object may start another turn.
func (s *Store) Full() bool { return s.log.Full() }

// WaitRoom waits until Full is false; see CommitLog.
func (s *Store) WaitRoom(ctx context.Context) error { return s.log.WaitRoom(ctx) }

// NodeID names the node this directory was made for.
func (s *Store) NodeID() ID { return s.dir.Node }

// DiskID names the directory.
func (s *Store) DiskID() ID { return s.dir.Disk }

// HistoryID names the line of commits: a restore or import starts a new one.
func (s *Store) HistoryID() ID { return s.dir.History }

// BootID is random for each Open.
func (s *Store) BootID() ID { return s.boot }

// RegisterClass returns the identity of a class: the one it has in this
// directory, else identity, else ("" given) its name; it is durable on return.
// The identity is part of the ID of every object of the class, so it never
// changes: another one than that on record is ErrClassIdentity.
func (s *Store) RegisterClass(name, identity string) (string, error) {
	if name == "" || len(name) > maxClassText || len(identity) > maxClassText {
		return "", fmt.Errorf("register class %.64q: name and identity must have 1 to %d bytes", name, maxClassText)
	}
	s.dirMu.Lock()
	defer s.dirMu.Unlock()
	if have, ok := s.dir.Classes[name]; ok {
		if identity != "" && identity != have {
			return "", fmt.Errorf("register class %s with identity %q: %w: %q; keep that one, or use another data directory", name, identity, ErrClassIdentity, have)
		}
		return have, nil
	}
	if identity == "" {
		identity = name
	}
	d := s.dir.clone()
	if d.Classes == nil {
		d.Classes = map[string]string{}
	}
	d.Classes[name] = identity
	if err := d.save(s.opt.FS, s.opt.Dir); err != nil {
		return "", fmt.Errorf("register class %s: %w", name, err)
	}
	s.dir.Classes = d.Classes // the rest is read without the lock
	return identity, nil
}

// Classes returns the identity of every class ever registered, by name.
func (s *Store) Classes() map[string]string {
	s.dirMu.Lock()
	defer s.dirMu.Unlock()
	return maps.Clone(s.dir.Classes)
}

// Stats are figures of a store, of one moment each.
type Stats struct {
	Replay         ReplayStats // of Open
	Objects        int64       // with data
	OpenObjects    int64       // with a handle
	PageBytes      int64       // of pages in use
	ReservedBytes  int64       // of page memory, in use or not
	UndurableBytes int64       // of commits that wait for the disk
	Records        int64       // made durable since Open; pieces of spilled commits are records too
	Spilled        int64       // commits since Open that were written in pieces
	Batches        int64
	Syncs          int64
	LogBytes       int64 // written to segments, headers included
	Segments       int64 // prepared since Open
	Recycled       int64 // of them, files that were used before
	LogSize        int64 // of the commit log now
	Connections    int64 // open connections to SQLite
	PageReads      int64 // pages read from the base store since Open
	StorageFull    bool  // the next segment cannot be prepared
	CheckpointStats
}

// Stats returns the figures of now.
func (s *Store) Stats() Stats {
	l := s.log
	l.mu.Lock()
	st := Stats{
		UndurableBytes: l.undurable, Records: l.stats.records, Batches: l.stats.batches, Syncs: l.stats.syncs,
		LogBytes: l.stats.bytes, Segments: l.stats.segments, StorageFull: l.prepareErr != nil,
	}
	recycled := l.stats.recycled
	l.mu.Unlock()
	st.Replay = s.replay
	st.Recycled, st.LogSize = recycled, l.Size()
	st.Connections, st.PageReads = s.connections.Load(), s.pageReads.Load()
	st.CheckpointStats = s.checkpointStats()
	st.Spilled = s.spilled.Load()
	st.Objects, st.OpenObjects = s.withData.Load(), s.openObjects.Load()
	st.PageBytes, st.ReservedBytes = s.alloc.Bytes(), s.alloc.Reserved()
	return st
}

// Close makes what was committed durable and gives the directory back. Every
// object must be closed before: what is open stays unusable, and Close says so.
// The error of a lost log is returned.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.closed = true
	s.mu.Unlock()
	s.stopCheckpoints()
	err := s.log.Close()
	if err := s.base.Close(); err != nil {
		// What is not durable there is in the log.
		s.opt.Logger.Warn("close the base store", "error", err)
	}
	if n := s.openObjects.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("store closed while %d objects are open", n))
	}
	return errors.Join(err, s.lock.Close())
}
