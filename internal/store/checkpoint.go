package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// Checkpoints write objects to the base store, on one goroutine, so that segments
// of the log can go and memory too:
//
//	an object's first commit ──> list, oldest first ──> group of objects:
//
//	  snapshot of each (its mutex is held to note where pages are; none is copied)
//	  wait until all of them are durable in the log
//	  write them, and where replay begins from then on; flush: durable
//	  ├─ failed ──> nothing changes; base store opened anew, again in a second
//	  └─> clean, or in the list again with what came since ──> segments given back
//
// An object is written when its first commit is CheckpointAge old, when the log
// passes LogLimit (the oldest go first: they pin the oldest segment), or when
// pages pass PageMemory (those not in use go first). Small databases are written
// as one image, larger ones page by page: those that changed.
//
// A crash at any place leaves a beginning of what was written. The log has all
// after Pos, and what the base store has already is passed over by its
// transaction number.

const (
	// DefaultLogLimit is how many bytes of log checkpoints leave.
	DefaultLogLimit = 1 << 30
	// DefaultCheckpointAge is how long a commit is in the log alone.
	DefaultCheckpointAge = time.Minute
	// DefaultPageMemory is how many bytes of pages are kept in memory.
	DefaultPageMemory = 1 << 30
	// DefaultConnections is how many connections to SQLite are open.
	DefaultConnections = 10_000

	checkpointRetry = time.Second
	// A group is made durable at once.
	groupObjects = 512
	groupBytes   = 32 << 20
	// writeBytes is how much goes to the base store in one Write.
	writeBytes = 4 << 20
	// dropBytes is how much below PageMemory pages are dropped, as a part of it.
	dropPart = 8
)

// CheckpointStats are figures of checkpoints.
type CheckpointStats struct {
	Checkpointed       int64  // objects written to the base store since Open
	CheckpointBytes    int64  // of their pages
	CheckpointFailures int64  // times that the base store failed
	CheckpointError    string // why it does not work now; "" when it does
	Waiting            int64  // objects of which the base store does not have the last commit
	DroppedPages       int64  // bytes of clean pages dropped from memory
}

// checkpoints is what a Store has for them.
type checkpoints struct {
	kick    chan struct{}
	ask     chan chan error
	stop    context.CancelFunc
	ctx     context.Context //nolint:containedctx // ends with Close
	stopped sync.WaitGroup

	// The list of objects that the base store does not have whole, in the order
	// in which they came into it.
	listMu        sync.Mutex
	oldest, newer *resident
	waiting       int64

	// Of the goroutine.
	info    BaseInfo
	left    []leftover
	failing error
	retryAt time.Time
	shorten bool  // the log is to get shorter
	written int64 // objects
	damaged map[ObjectID]bool
	large   map[*resident]bool // that have a Source

	mu       sync.Mutex
	counters CheckpointStats
	pressing atomic.Bool // the goroutine was told that memory is short
}

// note says that a record of e is about to be appended. e.mu is held.
func (s *Store) note(e *resident) {
	switch {
	case e.first == 0:
		e.since = s.opt.Clock.Now()
		s.enlist(e, s.log.Next().Index)
	case e.writing && e.next == 0:
		e.next = s.log.Next().Index
	}
	if s.log.sealedSize.Load() > s.opt.LogLimit {
		s.kickCheckpoints()
	}
	s.lookAtMemory()
}

// lookAtMemory wakes the goroutine when there is too much.
func (s *Store) lookAtMemory() {
	if (s.alloc.Bytes() > s.opt.PageMemory || s.connections.Load() > s.opt.Connections) && !s.pressing.Swap(true) {
		s.kickCheckpoints()
	}
}

func (s *Store) kickCheckpoints() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// enlist puts e at the end of the list. e.mu is held, but at Open.
func (s *Store) enlist(e *resident, first uint64) {
	s.listMu.Lock()
	e.first = first
	e.before, e.behind = s.newer, nil
	if s.newer == nil {
		s.oldest = e
	} else {
		s.newer.behind = e
	}
	s.newer = e
	s.waiting++
	alone := s.waiting == 1
	s.listMu.Unlock()
	if alone {
		s.kickCheckpoints() // to set its clock
	}
}

// unlist takes e out of the list. e.mu is held, but at Open.
func (s *Store) unlist(e *resident) {
	s.listMu.Lock()
	defer s.listMu.Unlock()
	if e.before == nil {
		s.oldest = e.behind
	} else {
		e.before.behind = e.behind
	}
	if e.behind == nil {
		s.newer = e.before
	} else {
		e.behind.before = e.before
	}
	e.before, e.behind, e.first = nil, nil, 0
	s.waiting--
}

func (s *Store) startCheckpoints() {
	now := s.opt.Clock.Now()
	for _, e := range s.objects { // nobody else is here yet
		e.since = now
	}
	s.stopped.Go(s.runCheckpoints)
}

func (s *Store) stopCheckpoints() {
	s.stop()
	s.stopped.Wait()
}

func (s *Store) checkpointStats() CheckpointStats {
	s.checkpoints.mu.Lock()
	st := s.counters
	s.checkpoints.mu.Unlock()
	s.listMu.Lock()
	st.Waiting = s.waiting
	s.listMu.Unlock()
	return st
}

func (s *Store) count(fn func(*CheckpointStats)) {
	s.checkpoints.mu.Lock()
	fn(&s.counters)
	s.checkpoints.mu.Unlock()
}

// Checkpoint writes everything that was committed before to the base store. It
// returns the base store's error, ErrLost, ErrClosed, or the cause of ctx; the
// checkpoint goes on then.
func (s *Store) Checkpoint(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case s.ask <- answer:
	case <-s.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// runCheckpoints is the goroutine.
func (s *Store) runCheckpoints() {
	for {
		var answer chan error
		var timer limpet.Timer
		var fired <-chan time.Time
		if d, ok := s.nextCheckpoint(); ok {
			timer = s.opt.Clock.NewTimer(d)
			fired = timer.C()
		}
		select {
		case <-s.ctx.Done():
		case <-s.log.Lost():
		case answer = <-s.ask:
		case <-s.kick:
		case <-fired:
		}
		if timer != nil {
			timer.Stop()
		}
		select {
		case <-s.ctx.Done():
			if answer != nil {
				answer <- ErrClosed
			}
			return
		case <-s.log.Lost(): // nothing more becomes durable, so nothing more may be written
			if answer != nil {
				answer <- ErrLost
			}
			s.refuseCheckpoints()
			return
		default:
		}
		err := s.pass(answer != nil)
		if answer != nil {
			answer <- err
		}
	}
}

// refuseCheckpoints answers those who ask until Close.
func (s *Store) refuseCheckpoints() {
	for {
		select {
		case answer := <-s.ask:
			answer <- ErrLost
		case <-s.ctx.Done():
			return
		}
	}
}

// nextCheckpoint says when there is something to do, if nobody kicks.
func (s *Store) nextCheckpoint() (time.Duration, bool) {
	if s.opt.NoCheckpoints {
		return 0, false
	}
	now := s.opt.Clock.Now()
	if s.failing != nil {
		return max(s.retryAt.Sub(now), 0), true
	}
	s.listMu.Lock()
	e := s.oldest
	s.listMu.Unlock()
	if e == nil {
		return 0, false
	}
	return max(s.sinceOf(e).Add(s.opt.CheckpointAge).Sub(now), 0), true
}

func (s *Store) sinceOf(e *resident) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.since
}

// pass writes what is due, or all there is, and looks after memory.
func (s *Store) pass(all bool) error {
	if s.failing != nil || s.base.Failed() != nil {
		if s.failing == nil {
			s.fail(s.base.Failed())
		}
		if !all && s.opt.Clock.Now().Before(s.retryAt) {
			return nil // a kick
		}
		if err := s.base.Reopen(); err != nil {
			s.fail(err)
			return err
		}
		s.failing = nil
	}
	err := s.writeDue(all)
	if err == nil {
		err = s.relieve()
	}
	if err == nil {
		err = s.clean()
	}
	if err != nil && s.ctx.Err() == nil {
		select {
		case <-s.log.Lost():
		default:
			s.fail(err)
		}
		return err
	}
	if err == nil {
		s.works()
	}
	return err
}

// fail notes that checkpoints do not work.
func (s *Store) fail(err error) {
	first := false
	s.count(func(c *CheckpointStats) {
		first = c.CheckpointError == ""
		c.CheckpointFailures++
		c.CheckpointError = err.Error()
	})
	if first {
		s.opt.Logger.Error("checkpoint: cannot write to the base store; nothing is lost, but the commit log grows until it works, tried every second", "error", err)
	}
	s.failing = err
	s.retryAt = s.opt.Clock.Now().Add(checkpointRetry)
	if b := s.base.Failed(); b != nil {
		// Its goroutines would try again at once and for ever.
		if err := s.base.Reopen(); err != nil {
			s.failing = errors.Join(s.failing, err)
		}
	}
}

func (s *Store) works() {
	again := false
	s.count(func(c *CheckpointStats) {
		again = c.CheckpointError != ""
		c.CheckpointError = ""
	})
	if again {
		s.opt.Logger.Info("checkpoint: the base store works again")
	}
}

// due takes objects that are to be written from the list: those that are old or
// pin the log, or all that were in it at the beginning.
func (s *Store) due(all bool, until uint64) (group []*resident) {
	now := s.opt.Clock.Now()
	over := s.log.sealedSize.Load() > s.opt.LogLimit/2 && s.overLimit()
	s.listMu.Lock()
	e := s.oldest
	s.listMu.Unlock()
	for e != nil && len(group) < groupObjects {
		switch {
		case all:
			if e.first >= until {
				return group
			}
		case over:
		case now.Sub(s.sinceOf(e)) < s.opt.CheckpointAge:
			return group
		}
		if !s.damaged[e.id] {
			group = append(group, e)
		}
		s.listMu.Lock()
		e = e.behind
		s.listMu.Unlock()
	}
	return group
}

// overLimit says whether the log is to get shorter: it is too long, or was and is
// not half as long yet.
func (s *Store) overLimit() bool {
	if s.log.sealedSize.Load() > s.opt.LogLimit {
		s.shorten = true
	}
	return s.shorten
}

func (s *Store) writeDue(all bool) error {
	if s.opt.NoCheckpoints && !all {
		return nil
	}
	defer func() { s.shorten = false }()
	until := s.log.Next().Index + 1
	for {
		began := s.opt.Clock.Now()
		group := s.due(all, until)
		if len(group) == 0 {
			return nil
		}
		before := s.written
		if err := s.writeGroup(group); err != nil {
			return err
		}
		if s.written == before { // all of it is as it was: damaged objects
			return nil
		}
		if !all && !s.shorten && !s.pressing.Load() && !s.rest(s.opt.Clock.Now().Sub(began)) {
			return s.ctx.Err()
		}
	}
}

// rest waits, so that checkpoints that are in no hurry leave half of the time
// of the disk and of a processor to others.
func (s *Store) rest(d time.Duration) bool {
	if d <= 0 {
		return s.ctx.Err() == nil
	}
	t := s.opt.Clock.NewTimer(min(d, time.Second))
	defer t.Stop()
	select {
	case <-t.C():
	case <-s.ctx.Done():
	case <-s.log.Lost():
	}
	return s.ctx.Err() == nil
}

// job is one object of a group.
type job struct {
	e     *resident
	meta  BaseMeta
	was   inBase
	said  []saidOfCall
	snap  *vfs.Snapshot // nil: there are no pages, or none that changed
	same  bool          // the base store has all of it
	saved vfs.Source
}

// writeGroup writes objects and makes them durable. On an error all are as
// before.
func (s *Store) writeGroup(group []*resident) (err error) {
	jobs := make([]*job, 0, len(group))
	ok := false
	defer func() {
		if !ok {
			for _, j := range jobs {
				s.undo(j)
			}
		}
	}()
	var last Pos
	var bytes int64
	for _, e := range group {
		if err := s.load(e); err != nil {
			if _, damaged := errors.AsType[*DamageError](err); !damaged {
				return err
			}
			// It stays in the log, and pins it, until somebody looks.
			s.complain(e, err)
			continue
		}
		j, err := s.snapshot(e)
		if _, damaged := errors.AsType[*DamageError](err); damaged {
			s.complain(e, err)
			continue
		}
		if err != nil {
			return err
		}
		if j == nil {
			continue
		}
		jobs = append(jobs, j)
		if j.meta.Pos.Compare(last) > 0 {
			last = j.meta.Pos
		}
		if j.snap != nil {
			bytes += int64(j.snap.Pages()) * int64(j.snap.PageSize)
		}
		if bytes >= groupBytes {
			break
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	// Checkpoints never pass what is durable.
	if err := s.log.Wait(s.ctx, last); err != nil {
		return err
	}
	info := s.info
	var batch []*BaseWrite
	size := 0
	send := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := s.base.Write(&info, batch...)
		batch, size = nil, 0
		return err
	}
	for _, j := range jobs {
		if j.same {
			continue
		}
		info.Objects += liveIn(!j.meta.Deleted) - liveIn(j.was.there && !j.was.meta.Deleted)
		w, n, err := s.fill(j, &info)
		if err != nil {
			return err
		}
		batch = append(batch, w)
		if size += n; size >= writeBytes {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if err := send(); err != nil {
		return err
	}
	if p := s.position(jobs); p.Compare(info.Pos) > 0 {
		info.Pos = p
	}
	if err := s.base.Write(&info); err != nil {
		return err
	}
	if err := s.base.Flush(); err != nil {
		return err
	}
	ok = true
	s.info = info
	for _, j := range jobs {
		s.finish(j)
	}
	s.written += int64(len(jobs))
	s.count(func(c *CheckpointStats) {
		c.Checkpointed += int64(len(jobs))
		c.CheckpointBytes += bytes
	})
	return s.log.Truncate(info.Pos)
}

func liveIn(live bool) int64 {
	if live {
		return 1
	}
	return 0
}

// complain says once that an object cannot be read.
func (s *Store) complain(e *resident, err error) {
	if s.damaged == nil {
		s.damaged = map[ObjectID]bool{}
	}
	if !s.damaged[e.id] {
		s.damaged[e.id] = true
		s.opt.Logger.Error("checkpoint: an object is damaged; the commit log keeps what it has of it", "object", fmt.Sprintf("%x", e.id), "error", err)
	}
}

// snapshot begins the checkpoint of an object; nil if it was checkpointed
// meanwhile.
func (s *Store) snapshot(e *resident) (*job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == 0 || e.writing {
		return nil, nil
	}
	j := &job{e: e, was: e.base, said: e.said[:len(e.said):len(e.said)]}
	j.meta = BaseMeta{Txid: e.txid, Pos: e.pos, Deleted: !e.born.Load(), Birth: e.birth}
	j.same = e.txid == e.base.meta.Txid
	if p := e.pages; p != nil && p.PageCount() > 0 && !j.same {
		m := &j.meta.Pages
		m.PageSize, m.Count = p.PageSize(), p.PageCount()
		m.Inline = int64(m.PageSize)*int64(m.Count) <= maxImage
		if m.Inline && p.Attached() {
			if err := p.FetchAll(); err != nil {
				return nil, err
			}
		}
		j.snap = p.TakeSnapshot(m.Inline)
		m.Checksum = j.snap.Checksum
		if !m.Inline {
			j.saved = pageSource{s, e.id}
		}
	}
	e.writing, e.next = true, e.spilling
	return j, nil
}

// fill makes what is written of an object; what is too large for one Write is
// written before, but for the last part. n is its size in bytes.
func (s *Store) fill(j *job, info *BaseInfo) (w *BaseWrite, n int, err error) {
	e := j.e
	w = &BaseWrite{ID: e.id, Slot: e.slot, Meta: j.meta, AlarmWas: j.was.meta.AlarmMS}
	if w.Claims, err = s.liveClaims(e.id, j.was.claims, j.said); err != nil {
		return nil, 0, err
	}
	n = len(w.Claims) + 256
	if j.snap == nil {
		return w, n, nil
	}
	buf := make([]byte, j.snap.PageSize)
	for i := range j.snap.Pages() {
		b, err := j.snap.Page(i, buf)
		if err != nil {
			return nil, 0, fmt.Errorf("checkpoint object %x: %w", e.id, err)
		}
		n += len(b)
		if j.meta.Pages.Inline {
			w.Image = append(w.Image, b...)
			continue
		}
		if n > writeBytes && len(w.Changed) > 0 {
			// The pages so far become visible before the rest: Mixed says so.
			part := &BaseWrite{ID: e.id, Slot: e.slot, Meta: j.was.meta, Changed: w.Changed}
			part.Meta.Mixed = true
			if err := s.base.Write(nil, part); err != nil {
				return nil, 0, err
			}
			w.Changed, n = nil, len(b)
		}
		if &b[0] == &buf[0] { // it was read
			b = append([]byte(nil), b...)
		}
		w.Changed = append(w.Changed, BasePage{j.snap.Number(i), b})
	}
	return w, n, nil
}

// position is where replay may begin once the jobs are durable.
func (s *Store) position(jobs []*job) Pos {
	p := s.log.Durable().Index + 1 // before the list is looked at
	group := make(map[*resident]bool, len(jobs))
	for _, j := range jobs {
		group[j.e] = true
	}
	s.listMu.Lock()
	for e := s.oldest; e != nil; e = e.behind {
		if !group[e] {
			p = min(p, e.first)
		}
	}
	s.listMu.Unlock()
	for _, j := range jobs {
		j.e.mu.Lock()
		if n := j.e.next; n != 0 {
			p = min(p, n)
		}
		j.e.mu.Unlock()
	}
	return Pos{localTerm, p}
}

// finish says that a job is durable.
func (s *Store) finish(j *job) {
	e := j.e
	if j.snap != nil {
		j.snap.SavedIn(j.saved)
	}
	now := s.opt.Clock.Now()
	e.mu.Lock()
	if !j.same {
		e.base = inBase{there: true, claims: true, meta: j.meta}
	}
	e.said = append([]saidOfCall(nil), e.said[len(j.said):]...)
	if len(e.said) == 0 {
		e.said = nil
	}
	next := e.next
	e.writing, e.next = false, 0
	s.unlist(e)
	if next != 0 {
		e.since = now
		s.enlist(e, next)
	}
	attached := e.pages != nil && e.pages.Attached()
	e.mu.Unlock()
	if attached {
		s.large[e] = true
	}
	if !j.same && (len(j.said) > 0 || j.was.claims || j.meta.Deleted) {
		s.left = append(s.left, leftover{e.id, s.sinceOpen() + ClaimRetention.Milliseconds()})
	}
	s.mu.Lock()
	s.dropIfClean(e)
	s.mu.Unlock()
}

// undo says that a job came to nothing.
func (s *Store) undo(j *job) {
	if j.snap != nil {
		j.snap.Done(false)
	}
	j.e.mu.Lock()
	j.e.writing, j.e.next = false, 0
	j.e.mu.Unlock()
}

// relieve gives memory back while there is too much of it: pages that were not
// used lately, then objects that are not in use, then those that are.
func (s *Store) relieve() error {
	defer s.pressing.Store(false)
	target := s.opt.PageMemory - s.opt.PageMemory/dropPart
	if s.connections.Load() > s.opt.Connections && s.opt.Pressure != nil {
		s.opt.Pressure()
	}
	if s.alloc.Bytes() <= s.opt.PageMemory {
		return nil
	}
	s.dropPages(target)
	if s.opt.NoCheckpoints {
		return nil
	}
	for _, inUse := range []bool{false, true} {
		for s.alloc.Bytes() > target {
			group := s.withMemory(inUse)
			if len(group) == 0 {
				break
			}
			before := s.written
			if err := s.writeGroup(group); err != nil {
				return err
			}
			s.dropPages(target)
			if s.written == before || inUse {
				break
			}
		}
	}
	if s.alloc.Bytes() > target && s.opt.Pressure != nil {
		s.opt.Pressure()
	}
	return nil
}

// dropPages drops clean pages until there are no more than target bytes.
func (s *Store) dropPages(target int64) {
	for e := range s.large {
		e.mu.Lock()
		p := e.pages
		e.mu.Unlock()
		if p == nil || !p.Attached() {
			delete(s.large, e)
			continue
		}
		over := s.alloc.Bytes() - target
		if over <= 0 {
			return
		}
		freed := p.Drop(over)
		s.count(func(c *CheckpointStats) { c.DroppedPages += freed })
	}
}

// withMemory chooses objects whose checkpoint lets memory go: those that are not in
// use, or large ones that are.
func (s *Store) withMemory(inUse bool) (group []*resident) {
	s.mu.RLock()
	s.listMu.Lock()
	for e := s.oldest; e != nil && (inUse || len(group) < groupObjects); e = e.behind {
		if e.open == inUse && !s.damaged[e.id] {
			group = append(group, e)
		}
	}
	s.listMu.Unlock()
	s.mu.RUnlock()
	if !inUse {
		return group
	}
	some := group[:0]
	for _, e := range group {
		e.mu.Lock()
		if p := e.pages; p != nil && int64(p.PageCount())*int64(p.PageSize()) > maxImage {
			some = append(some, e)
		}
		e.mu.Unlock()
	}
	return some
}

// clean removes what the base store need not have any more: claims that are too old,
// and the notes of deleted objects.
func (s *Store) clean() error {
	now := s.sinceOpen()
	kept := make([]leftover, 0, len(s.left))
	var writes []*BaseWrite
	var held []*resident
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range held {
			if !e.open {
				delete(s.objects, e.id)
			}
			e.loading.Unlock()
		}
	}()
	for _, l := range s.left {
		if now < l.at || len(writes) >= groupObjects {
			kept = append(kept, l)
			continue
		}
		l.at = now + ClaimRetention.Milliseconds()
		s.mu.Lock()
		if s.objects[l.id] != nil {
			s.mu.Unlock()
			kept = append(kept, l)
			continue
		}
		// Who wants to use the object now waits until it is known what is left of it.
		e := &resident{id: l.id, slot: SlotOf(l.id)}
		e.loading.Lock()
		s.objects[l.id] = e
		held = append(held, e)
		s.mu.Unlock()
		w, again, err := s.cleanOne(l)
		if err != nil {
			return err
		}
		if again {
			kept = append(kept, l)
		}
		if w != nil {
			writes = append(writes, w)
		}
	}
	if len(writes) > 0 {
		// Durable before an object is let go: a new life begins with transaction 1, and
		// must not meet what is left of the old one after a crash.
		if err := errors.Join(s.base.Write(nil, writes...), s.base.Flush()); err != nil {
			return err
		}
	}
	s.left = kept
	return nil
}

// cleanOne looks at one leftover; again says that it must be looked at later.
func (s *Store) cleanOne(l leftover) (w *BaseWrite, again bool, err error) {
	had, err := s.base.Claims(l.id)
	if err != nil {
		return nil, false, err
	}
	claims, err := s.liveClaims(l.id, had != nil, nil)
	if err != nil {
		return nil, false, err
	}
	o, ok, err := s.base.Load(l.id)
	if err != nil || !ok {
		return nil, false, err
	}
	if claims == nil && o.Deleted && s.log.Gone() >= o.Pos.Index {
		return &BaseWrite{ID: l.id, Slot: SlotOf(l.id), Remove: true, AlarmWas: o.AlarmMS}, false, nil
	}
	again = claims != nil || o.Deleted
	if had != nil && len(claims) != len(had) {
		w = &BaseWrite{ID: l.id, Slot: SlotOf(l.id), Meta: o.BaseMeta, Claims: claims, ClaimsOnly: true}
	}
	return w, again, nil
}
