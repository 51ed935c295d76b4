package store

import (
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
	if o.SegmentSize == 0 {
		o.SegmentSize = DefaultSegmentSize
	}
	if o.UndurableLimit == 0 {
		o.UndurableLimit = DefaultUndurableLimit
	}
	if o.SpillAbove == 0 {
		o.SpillAbove = MaxRecord
	}
	if o.MaxCommit == 0 {
		o.MaxCommit = DefaultMaxCommit
	}
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
	spills   map[ObjectID]*spill // commits that have come in part
	spillBuf []byte
	strict   bool                                // apply checks the pages after each record
	reread   func(Place, []byte) ([]byte, error) // CommitLog.Reread
	dropped  struct{ pieces, bytes int64 }

	openObjects atomic.Int64
	withData    atomic.Int64
	spilled     atomic.Int64
}

// resident is what the store knows of an object that has data or is open. Its
// handle alone writes it; before the first handle, replay does.
type resident struct {
	slot  uint16
	sum   uint64     // checksum that the last record replayed says the pages have
	pages *vfs.Pages // nil: no database
	txid  uint64     // of the last record, 0 for none
	pos   Pos        // of the last record
	birth Birth
	born  atomic.Bool // a record has its birth and none its deletion
	open  bool        // a handle exists; under Store.mu
}

// Open opens the data directory and replays its commit log. It fails with
// ErrInUse, ErrNotLimpet, ErrStorageFull, *DamageError, *FormatError, an error
// of the file system, or the cause of ctx.
func Open(ctx context.Context, opt Options) (*Store, error) {
	opt.defaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	s := &Store{opt: opt, alloc: vfs.NewAllocator(), boot: newID(), objects: map[ObjectID]*resident{}}
	s.buffers.New = func() any { return new([]byte) }
	if err := s.open(ctx); err != nil {
		if s.log != nil {
			_ = s.log.Close()
		}
		if s.lock != nil {
			_ = s.lock.Close()
		}
		return nil, fmt.Errorf("open store %s: %w", opt.Dir, err)
	}
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
	logOpt.verify = s.verify
	s.log = newSegmentLog(logOpt)
	if err = s.recover(ctx, s.log); errors.Is(err, errPages) && ctx.Err() == nil {
		// Once more, to say which record it was: time does not matter any more.
		s.strict = true
		if again := s.recover(ctx, newSegmentLog(logOpt)); again != nil {
			err = again
		}
	}
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

// recover replays a log into a store without objects.
func (s *Store) recover(ctx context.Context, log *segmentLog) (err error) {
	for _, e := range s.objects {
		e.forget()
	}
	clear(s.objects)
	s.idents, s.kept = identityRing{max: s.idents.max}, keptRing{budget: s.opt.OutcomeMemory}
	if s.opt.KeyRetention > 0 {
		s.kept.after = s.opt.Clock.Now().Add(-s.opt.KeyRetention).UnixMilli()
	}
	s.reread, s.spills = log.Reread, map[ObjectID]*spill{}
	s.replay, err = log.Replay(ctx, s.apply)
	for id := range s.spills {
		s.dropSpill(id)
	}
	s.replay.DroppedPieces, s.replay.DroppedBytes = s.dropped.pieces, s.dropped.bytes
	s.spills, s.spillBuf, s.reread = nil, nil, nil
	return err
}

var errPages = errors.New("an object's pages are not what its last record says")

// verify checks that all objects have the pages that their last record says. To
// look once at the end takes a third of the time of looking after each record,
// and finds whatever is left of a wrong page.
func (s *Store) verify() error {
	for _, e := range s.objects {
		if e.pages != nil && e.pages.Checksum() != e.sum {
			return errPages
		}
	}
	return nil
}

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

// apply replays one record: the same result whenever and wherever it runs.
func (s *Store) apply(rp Replayed) error {
	p, b := rp.Pos, rp.Rec
	damage := func(format string, args ...any) error {
		return &DamageError{Reason: fmt.Sprintf(format, args...), Remedy: remedyRestore}
	}
	r, err := decodeRecord(b)
	if errors.Is(err, errMalformedRecord) {
		return damage("%v", err)
	}
	if err != nil {
		return err
	}
	e := s.objects[r.id]
	var had uint64
	if e != nil {
		had = e.txid
	}
	if e == nil || e.slot != r.slot {
		if err := r.checkSlot(); err != nil {
			return damage("%v", err)
		}
	}
	if r.txid <= had {
		return nil // had before
	}
	if r.prev != had {
		return damage("object %x: transaction %d follows %d, but the last one is %d", r.id, r.txid, r.prev, had)
	}
	if r.piece != nil {
		return s.addPiece(&r, &rp)
	}
	if e == nil {
		e = &resident{slot: r.slot}
		s.objects[r.id] = e
	}
	switch born := e.born.Load(); {
	case r.birth != nil && born:
		return damage("object %x is born again in transaction %d", r.id, r.txid)
	case r.birth == nil && !born && !r.deleted:
		return damage("object %x: transaction %d of an object that was not born", r.id, r.txid)
	}
	if r.birth != nil {
		e.birth = *r.birth
		e.born.Store(true)
		s.withData.Add(1)
	}
	if p := r.pages; p != nil {
		if e.pages == nil {
			e.pages = vfs.NewPages(s.alloc, p.pageSize)
		}
		if e.pages.PageSize() != p.pageSize {
			return damage("object %x: pages of %d bytes in transaction %d, of %d bytes before", r.id, p.pageSize, r.txid, e.pages.PageSize())
		}
		if r.spilled != nil {
			err = s.applySpill(e, &r)
		} else {
			err = e.pages.Apply(p.diff, p.pageCount)
		}
		if errors.Is(err, vfs.ErrMalformed) || errors.Is(err, errMalformedRecord) {
			return damage("object %x: transaction %d: %v", r.id, r.txid, err)
		}
		if err != nil {
			return err
		}
		e.sum = p.checksum
		if s.strict && e.pages.Checksum() != e.sum {
			return damage("object %x: after transaction %d the pages have checksum %016x and must have %016x", r.id, r.txid, e.pages.Checksum(), e.sum)
		}
	}
	if len(s.spills) > 0 {
		s.dropSpill(r.id)
	}
	for _, k := range r.kept {
		s.kept.add(r.id, k)
	}
	for _, id := range r.identities {
		s.idents.add(RecoveredIdentity{r.id, id})
	}
	if r.deleted {
		if e.born.Load() {
			s.withData.Add(-1)
		}
		e.forget()
	}
	e.txid, e.pos = r.txid, p
	return nil
}

// forget drops an object's data. Its transaction numbers go on, since the log
// still has its records.
func (e *resident) forget() {
	if e.pages != nil {
		e.pages.Release()
		e.pages = nil
	}
	e.birth = Birth{}
	e.born.Store(false)
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
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	e := s.objects[id]
	if e == nil {
		e = &resident{slot: SlotOf(id)}
		s.objects[id] = e
	}
	if e.open {
		return nil, fmt.Errorf("object %x: %w", id, ErrObjectOpen)
	}
	if e.born.Load() && e.birth.Class != birth.Class {
		return nil, fmt.Errorf("object %x belongs to class %q, not to %q", id, e.birth.Class, birth.Class)
	}
	e.open = true
	s.openObjects.Add(1)
	return &Object{s: s, id: id, slot: e.slot, e: e, birth: birth}, nil
}

// Exists says whether the object has committed anything (durable or not) and
// was not deleted since.
func (s *Store) Exists(id ObjectID) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e := s.objects[id]
	return e != nil && e.born.Load()
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
	StorageFull    bool  // the next segment cannot be prepared
}

// Stats returns the figures of now.
func (s *Store) Stats() Stats {
	l := s.log
	l.mu.Lock()
	st := Stats{
		UndurableBytes: l.undurable, Records: l.stats.records, Batches: l.stats.batches, Syncs: l.stats.syncs,
		LogBytes: l.stats.bytes, Segments: l.stats.segments, StorageFull: l.prepareErr != nil,
	}
	l.mu.Unlock()
	st.Replay = s.replay
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
	err := s.log.Close()
	if n := s.openObjects.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("store closed while %d objects are open", n))
	}
	return errors.Join(err, s.lock.Close())
}
