package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

const (
	// pageSize of new databases in bytes; each record says it, so that it may
	// differ by object. SQLite's allocator rounds a cached page of 4 KiB up to
	// 8: an object with one value takes 82 KiB in memory with pages of 4 KiB
	// and 62 with 2 (go run ./bench/memory). Its price: values of more than
	// about 490 bytes, not 1,000, go to a page of their own.
	pageSize = 2048
	// maxDepth bounds how deep transactions nest.
	maxDepth = 64
	// maxKeptBuffer bounds the record buffers that are kept for reuse.
	maxKeptBuffer = 1 << 20
)

var (
	// ErrObjectOpen says that the object has a handle already.
	ErrObjectOpen = errors.New("object is open already")
	// ErrObjectClosed comes from a handle after Close.
	ErrObjectClosed = errors.New("object is closed")
	// ErrTurnBroken says that SQLite rolled back the turn because of an earlier
	// error, which it wraps. Everything fails until Rollback.
	ErrTurnBroken = errors.New("the turn's writes were rolled back by an earlier error")
)

// Object is the handle of one object's data. It is used by one goroutine at a
// time. Its writes form a turn:
//
//	clean ──first write──> dirty ──Commit──> clean, one record in the log
//	                         │ └──Rollback─> clean, as before the turn
//	                         └─error that made SQLite roll back─> broken ──Rollback──> clean
//
// Reads see the turn's own writes. The connection to SQLite is opened when it
// is needed and costs some 60 KiB until Sleep or Close; pages stay either way.
type Object struct {
	s     *Store
	id    ObjectID
	slot  uint16
	e     *resident
	birth Birth

	conn   *vfs.Conn // nil: none is open
	stmts  [stmtCount]*sqlite.Stmt
	sql    *session        // of conn; nil: no statement of a user's has run
	done   <-chan struct{} // of SetInterrupt
	closed bool

	inTurn bool  // BEGIN was run
	broken error // of the turn
	depth  int   // of nested transactions
	table  tableState

	// Of the commit that SQLite is making.
	ids    []limpet.Identity
	kept   []Kept
	rec    *[]byte // admitted, not yet appended; the last one if the commit was spilled
	pos    Pos     // of the record that Publish appended
	logged bool    // Publish was called
}

// tableState says whether the key-value table is there.
type tableState uint8

const (
	tableUnknown tableState = iota
	tableMissing
	tableThere
)

// ID is the object's ID.
func (o *Object) ID() ObjectID { return o.id }

// Birth is what the object was born as, or is to be born as.
func (o *Object) Birth() Birth {
	if o.e.born.Load() {
		return o.e.birth
	}
	return o.birth
}

// Exists says whether the object has committed anything.
func (o *Object) Exists() bool { return o.e.born.Load() }

// LastPos is the position of the object's last commit; the zero Pos for none.
// Whatever leaves the object waits for it.
func (o *Object) LastPos() Pos { return o.e.pos }

// Dirty says whether a turn is open: something was written since the last
// Commit or Rollback.
func (o *Object) Dirty() bool { return o.inTurn || o.broken != nil }

// SetInterrupt binds the statements and commits that follow to done: when it is
// closed they fail. nil, the default, never interrupts.
func (o *Object) SetInterrupt(done <-chan struct{}) {
	o.done = done
	if o.conn != nil {
		o.conn.SetInterrupt(done)
	}
}

// Commit ends the turn: all its writes and the identities become one record.
// It returns the record's position at once; what it means is durable when Wait
// of that position says so. Without writes and identities there is no record
// and the position is LastPos. An error leaves the object as before the turn:
// ErrStorageFull, a *LimitError (Options.MaxCommit), ErrLost, ErrClosed,
// ErrTurnBroken, or what SQLite says. A commit of more than Options.SpillAbove
// waits for the disk until all but its last piece are in the log.
// What it is to say of calls (kept) is part of the record.
func (o *Object) Commit(ids []limpet.Identity, kept ...Kept) (Pos, error) {
	if err := o.usable(); err != nil {
		_ = o.Rollback()
		return Pos{}, fmt.Errorf("commit object %x: %w", o.id, err)
	}
	if o.depth > 0 {
		return Pos{}, fmt.Errorf("commit object %x: a transaction is open", o.id)
	}
	if o.inTurn {
		o.ids, o.kept, o.logged = ids, kept, false
		err := o.run(stmtCommit)
		o.ids, o.kept = nil, nil
		if err != nil {
			err = o.commitError(err)
			return Pos{}, errors.Join(fmt.Errorf("commit object %x: %w", o.id, err), o.Rollback())
		}
		o.inTurn = false
		if o.sql != nil {
			o.sql.changed = false
		}
		if o.logged {
			return o.pos, nil
		}
	}
	return o.Note(ids, kept...)
}

// commitError gives the failure of a COMMIT that users can mend its words.
func (o *Object) commitError(err error) error {
	e, ok := errors.AsType[*vfs.Error](err)
	if !ok || e.Code != sqlite.ResultConstraintForeignKey {
		return err
	}
	told := &limpet.SQLError{Code: e.Code.String(), Primary: e.Code.ToPrimary().String(), Message: "FOREIGN KEY constraint failed"}
	return fmt.Errorf("%w: a deferred foreign key was violated at the end of the turn, whose writes were taken back; PRAGMA foreign_key_check tells which row it is", told)
}

// Note makes a record of identities and what is to say of calls alone and returns
// its position, or LastPos if there are none. A turn that is open stays open and is no part of it.
// Errors as Commit.
func (o *Object) Note(ids []limpet.Identity, kept ...Kept) (Pos, error) {
	if o.closed {
		return Pos{}, ErrObjectClosed
	}
	if len(ids) == 0 && len(kept) == 0 {
		return o.e.pos, nil
	}
	buf := o.startRecord()
	*buf = appendCalls(o.appendBirth(*buf), ids, kept)
	if err := o.admit(buf); err != nil {
		return Pos{}, fmt.Errorf("commit object %x: %w", o.id, err)
	}
	o.e.mu.Lock()
	defer o.e.mu.Unlock()
	o.publish(buf, ids, kept)
	o.born()
	return o.pos, nil
}

// Rollback drops the writes since the last Commit. The object is as that left
// it, whatever is returned. It must not be called inside Transaction.
func (o *Object) Rollback() error {
	if o.closed {
		return ErrObjectClosed
	}
	if why := ErrTurnOver; o.sql != nil {
		if o.Dirty() {
			why = ErrTurnBroken
		}
		o.endCursors(0, why)
		o.schemaBack()
	}
	o.table, o.broken, o.depth = tableUnknown, nil, 0
	if !o.inTurn {
		return nil
	}
	o.inTurn = false
	if o.conn.Broken() == nil {
		if !o.conn.InTransaction() {
			return nil // SQLite has done so
		}
		o.conn.SetInterrupt(nil)
		err := o.conn.Exec("ROLLBACK")
		o.conn.SetInterrupt(o.done)
		if err == nil && !o.conn.InTransaction() {
			return nil
		}
	}
	// SQLite cannot: the pages can by themselves.
	o.e.pages.Revert()
	return o.disconnect()
}

// Destroy ends the object: its data is gone, in memory at once and on disk when
// the log segments that hold it go. The turn's writes are dropped. The handle
// stays usable for a new life of the object.
func (o *Object) Destroy(ids []limpet.Identity) (Pos, error) {
	if o.closed {
		return Pos{}, ErrObjectClosed
	}
	if o.depth > 0 {
		return Pos{}, fmt.Errorf("destroy object %x: a transaction is open", o.id)
	}
	if err := o.Rollback(); err != nil {
		return Pos{}, fmt.Errorf("destroy object %x: %w", o.id, err)
	}
	if !o.e.born.Load() && len(ids) == 0 {
		return o.e.pos, nil
	}
	if err := o.disconnect(); err != nil {
		return Pos{}, fmt.Errorf("destroy object %x: %w", o.id, err)
	}
	buf := o.startRecord()
	if len(ids) > 0 {
		*buf = appendIdentities(*buf, ids)
	}
	*buf = appendDeletion(*buf)
	if err := o.admit(buf); err != nil {
		return Pos{}, fmt.Errorf("destroy object %x: %w", o.id, err)
	}
	o.e.mu.Lock()
	o.publish(buf, ids, nil)
	if o.e.born.Load() {
		o.birth = o.e.birth
		o.s.withData.Add(-1)
	}
	pages := o.e.pages
	o.e.pages, o.e.birth = nil, Birth{}
	o.e.born.Store(false)
	o.e.mu.Unlock()
	if pages != nil {
		pages.Release()
	}
	return o.pos, nil
}

// Sleep closes the connection to SQLite and keeps the pages; the next use opens
// it again. It does nothing while a turn is open.
func (o *Object) Sleep() error {
	if o.closed {
		return ErrObjectClosed
	}
	if o.Dirty() {
		return nil
	}
	return o.disconnect()
}

// Close gives the handle back; an open turn is rolled back. The pages stay in
// memory until a checkpoint has them. A second Close does nothing.
func (o *Object) Close() error {
	if o.closed {
		return nil
	}
	err := errors.Join(o.Rollback(), o.disconnect())
	o.closed = true
	o.s.giveBack(o.e)
	return err
}

// Memory is the bytes that the object holds: pages, and what SQLite holds for
// its connection.
func (o *Object) Memory() int64 {
	var n int64
	if o.e.pages != nil {
		n = o.e.pages.Bytes()
	}
	if o.conn != nil {
		n += o.conn.MemoryUsed()
	}
	return n
}

func (o *Object) usable() error {
	if o.closed {
		return ErrObjectClosed
	}
	return o.broken
}

// connect opens the connection if there is none.
func (o *Object) connect() error {
	if o.conn != nil {
		return nil
	}
	if o.e.pages == nil {
		p := vfs.NewPages(o.s.alloc, pageSize)
		p.Share(&o.e.mu)
		o.e.mu.Lock()
		o.e.pages = p
		o.e.mu.Unlock()
	}
	c, err := vfs.Open(o.e.pages, (*objectSink)(o), vfs.Options{MaxBytes: o.s.opt.Limits.Database + maxSlack})
	if err != nil {
		return fmt.Errorf("object %x: %w", o.id, err)
	}
	c.SetInterrupt(o.done)
	o.conn = c
	o.s.connections.Add(1)
	o.s.lookAtMemory()
	return nil
}

// disconnect closes the connection; statements go with it.
func (o *Object) disconnect() error {
	if o.conn == nil {
		return nil
	}
	o.closeSession()
	c := o.conn
	o.conn = nil
	o.s.connections.Add(-1)
	clear(o.stmts[:])
	if err := c.Close(); err != nil {
		c.Discard() // the memory is lost, the pages are not
		return fmt.Errorf("object %x: %w", o.id, err)
	}
	return nil
}

// begin makes sure that a turn is open.
func (o *Object) begin() error {
	if err := o.usable(); err != nil {
		return err
	}
	if err := o.connect(); err != nil || o.inTurn {
		return err
	}
	if err := o.run(stmtBegin); err != nil {
		return fmt.Errorf("begin a turn of object %x: %w", o.id, err)
	}
	o.inTurn = true
	return nil
}

// check looks after an error whether SQLite has rolled back the turn, as it
// does when it is interrupted, out of memory or refused by the pages: then half
// a turn must not be committed.
func (o *Object) check(err error) error {
	if err == nil {
		return nil
	}
	err = o.conn.Explain(err)
	if o.inTurn && (o.conn.Broken() != nil || !o.conn.InTransaction()) {
		o.broken = fmt.Errorf("%w: %w", ErrTurnBroken, err)
	}
	return err
}

// Transaction runs fn and keeps its writes if it returns nil; on an error or a
// panic the object is as before fn, and the turn goes on. Transactions nest, up
// to 64 deep. fn's error is returned as it is.
func (o *Object) Transaction(fn func() error) (err error) {
	depth, err := o.BeginTransaction()
	if err != nil {
		return err
	}
	kept := false
	defer func() {
		gone := o.depth < depth || o.broken != nil
		end := o.EndTransaction(depth, kept)
		switch {
		case err == nil:
			err = end
		case end != nil && !gone:
			err = errors.Join(err, end)
		}
	}()
	err = fn()
	kept = err == nil
	return err
}

// BeginTransaction begins what Transaction does to its function, and returns the
// depth that EndTransaction is to be told.
func (o *Object) BeginTransaction() (depth int, err error) {
	if o.depth >= maxDepth {
		return 0, &countError{
			what: "transactions within each other", limit: maxDepth, remedy: "end the inner ones first",
			err: fmt.Errorf("transactions nest deeper than %d", maxDepth),
		}
	}
	if err := o.begin(); err != nil {
		return 0, err
	}
	if err := o.check(o.conn.Exec("SAVEPOINT " + savepoints[o.depth])); err != nil {
		return 0, err
	}
	o.depth++
	return o.depth, nil
}

// EndTransaction keeps the writes of a transaction, or takes them back with those of
// transactions in it that are open still: to keep them is then ErrNested. It fails
// if the turn was rolled back meanwhile.
func (o *Object) EndTransaction(depth int, keep bool) error {
	if o.closed || o.depth < depth { // a Rollback within, or Close: nothing is left to do
		return errWithin
	}
	nested := o.depth > depth
	o.depth = depth - 1
	if o.broken != nil {
		return o.broken
	}
	name := savepoints[o.depth]
	if keep && !nested {
		if o.sql != nil {
			for _, c := range o.sql.cursors {
				c.depth = min(c.depth, o.depth)
			}
		}
		return o.check(o.conn.Exec("RELEASE " + name))
	}
	o.endCursors(depth, errUnwound)
	o.schemaBack()
	o.table = tableUnknown
	o.conn.SetInterrupt(nil)
	err := o.check(o.conn.Exec("ROLLBACK TO " + name))
	if err == nil {
		err = o.check(o.conn.Exec("RELEASE " + name))
	}
	o.conn.SetInterrupt(o.done)
	if err != nil {
		if o.broken == nil {
			o.broken = fmt.Errorf("%w: %w", ErrTurnBroken, err)
		}
		return err
	}
	if keep {
		return ErrNested
	}
	return nil
}

// schemaBack notes that a rollback may bring an earlier schema back.
func (o *Object) schemaBack() {
	if o.sql != nil && o.sql.changed {
		o.sql.schema++
	}
}

var savepoints = func() (s [maxDepth]string) {
	for i := range s {
		s[i] = fmt.Sprintf("t%d", i)
	}
	return s
}()

// startRecord begins the object's next record in a buffer of the store.
func (o *Object) startRecord() *[]byte {
	buf := o.s.buffers.Get().(*[]byte)
	b := appendRecordStart((*buf)[:0], o.slot, &o.id, o.e.txid+1, o.e.txid)
	*buf = b
	return buf
}

func (o *Object) freeRecord(buf *[]byte) {
	if cap(*buf) <= maxKeptBuffer {
		o.s.buffers.Put(buf)
	}
}

// admit reserves the place of a record, or frees its buffer.
func (o *Object) admit(buf *[]byte) error {
	err := o.s.log.Admit(doneContext{o.done}, len(*buf))
	if err != nil {
		o.freeRecord(buf)
	}
	return err
}

func (o *Object) appendBirth(b []byte) []byte {
	if o.e.born.Load() {
		return b
	}
	return appendBirth(b, &o.birth)
}

// publish appends an admitted record. e.mu is held.
func (o *Object) publish(buf *[]byte, ids []limpet.Identity, kept []Kept) {
	o.s.note(o.e)
	o.s.say(o.e, ids, kept)
	o.pos = o.s.log.Append(*buf)
	o.freeRecord(buf)
	o.e.txid++
	o.e.pos = o.pos
	o.e.spilling = 0
}

// born notes that a record has the object's birth.
func (o *Object) born() {
	if !o.e.born.Load() {
		o.e.birth = o.birth
		o.e.born.Store(true)
		o.s.withData.Add(1)
	}
}

// objectSink is the Object as vfs sees it.
type objectSink Object

// Admit implements vfs.Sink: it builds the record and reserves its place.
func (k *objectSink) Admit(c *vfs.Change) error {
	o := (*Object)(k)
	buf, err := o.buildRecord(c)
	if err != nil {
		switch {
		case errors.Is(err, ErrStorageFull):
			return refusal{err, vfs.ErrFull}
		case errors.Is(err, ErrTooLarge):
			return refusal{err, vfs.ErrTooBig}
		case errors.Is(err, context.Canceled):
			return refusal{err, vfs.ErrInterrupt}
		}
		return err
	}
	o.rec = buf
	return nil
}

// buildRecord returns the record of a change, with its place reserved; it is the
// last of several if the commit was spilled.
func (o *Object) buildRecord(c *vfs.Change) (*[]byte, error) {
	buf := o.startRecord()
	*buf = o.appendBirth(*buf)
	room := o.s.opt.SpillAbove - int64(len(*buf)+len(o.ids)*identitySize+maxSectionHeads)
	for i := range o.kept {
		room -= int64(o.kept[i].size())
	}
	if vfs.MaxDiff(c) > room {
		plan, err := o.planSpill(c)
		if err != nil {
			o.freeRecord(buf)
			return nil, err
		}
		if plan.bytes > room && plan.bytes > 0 {
			return buf, o.spill(buf, c, plan)
		}
	}
	*buf = appendCalls(appendPages(*buf, c), o.ids, o.kept)
	return buf, o.admit(buf)
}

// Publish implements vfs.Sink.
func (k *objectSink) Publish() {
	o := (*Object)(k)
	buf := o.rec
	o.rec, o.logged = nil, true
	o.publish(buf, o.ids, o.kept)
	o.born()
}

// Abandon implements vfs.Sink.
func (k *objectSink) Abandon() {
	o := (*Object)(k)
	buf := o.rec
	o.rec = nil
	o.e.spilling = 0
	o.s.log.Release(len(*buf))
	o.freeRecord(buf)
}

// refusal is an error with the class of SQLite error that it is shown as.
type refusal struct{ err, class error }

func (r refusal) Error() string   { return r.err.Error() }
func (r refusal) Unwrap() []error { return []error{r.err, r.class} }

// doneContext is a context that ends with a channel; nil never ends.
type doneContext struct{ done <-chan struct{} }

func (c doneContext) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c doneContext) Done() <-chan struct{}       { return c.done }
func (c doneContext) Value(any) any               { return nil }
func (c doneContext) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}
