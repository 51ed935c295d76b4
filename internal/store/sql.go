package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// This file runs the statements of users (SPEC H30-H33) on the connection that the
// key-value statements have. One Query:
//
//	text ── prepare, bind, step to the end ──> rest of the text ── … ──> the last one
//	         (authorizer: sqlguard.go)                                    │
//	                                 reads: first step, the rest by Next ─┤
//	                                 writes: to its end, rows kept ───────┘
//
// A statement that writes never stays open: SQLite makes and ends no savepoint
// meanwhile. One that reads may, over writes and the commit of the turn; it ends
// with its rows, with Close, EndCursors, Rollback, the rollback of a transaction it
// was begun in, or with the connection.

const (
	// maxCached is how many prepared statements are kept for reuse, of some 3 KiB.
	maxCached = 32
	// maxCachedText is how long the text of one may be, in bytes.
	maxCachedText = 8 << 10
	// maxCursors bounds the cursors that are open at once.
	maxCursors = 256
)

var (
	// ErrTurnOver ends cursors that are read after their turn.
	ErrTurnOver = errors.New("the cursor is of a turn that has ended: the object was given away meanwhile (by return, a call through a stub, Await or Sync); read it to its end before")
	// ErrNested says that a transaction within the one to be ended is open.
	ErrNested = errors.New("a transaction that was begun inside of this one is still open, and both were rolled back: end the inner one first")

	errUnwound     = errors.New("the cursor was ended by the rollback of the transaction it was made in")
	errInterrupted = errors.New("the cursor was ended by the interrupt of another statement")
	errWithin      = errors.New("the turn was rolled back within the transaction")
)

// session is what a connection has for statements of users; it goes with it.
type session struct {
	guard   guard
	cache   map[string]*prepared
	uses    uint64 // of the cache
	schema  uint64 // rises when prepared statements may have become others
	changed bool   // the turn has changed the schema
	short   bool   // Limits.Value is set as the longest value
	cursors []*Cursor

	// Of the statement that runs.
	watch   func() bool     // Object.watch
	ctx     context.Context // Background: does not end it
	since   time.Time       // when watch was last asked in this step
	spent   *time.Duration  // what its steps took so far
	stopped error           // why it was interrupted
}

// prepared is a statement with what it was seen to do.
type prepared struct {
	*vfs.Stmt
	text   string // key in the cache; "" for none
	cols   []string
	seen   sight
	schema uint64
	busy   bool
	used   uint64
}

// session is made with the first statement.
func (o *Object) openSession() (*session, error) {
	if err := o.usable(); err != nil {
		return nil, err
	}
	if err := o.connect(); err != nil {
		return nil, err
	}
	if o.sql == nil {
		q := &session{cache: map[string]*prepared{}, watch: o.watch}
		if err := o.conn.SetAuthorizer(q.guard.authorize); err != nil {
			return nil, err
		}
		o.s.opt.Limits.apply(o.conn)
		o.sql = q
	}
	return o.sql, nil
}

// closeSession finalizes all statements; the connection is about to be closed.
func (o *Object) closeSession() {
	if o.sql == nil {
		return
	}
	o.endCursors(0, ErrTurnOver)
	for _, p := range o.sql.cache {
		p.Finalize()
	}
	o.sql = nil
}

// enterSQL is called before SQLite works for a user, and leaveSQL after it.
func (o *Object) enterSQL(ctx context.Context, spent *time.Duration) {
	q := o.sql
	q.ctx, q.since, q.spent, q.stopped = ctx, time.Time{}, spent, nil
	if !q.short {
		q.short = true
		o.conn.Limit(sqlite.LimitLength, int32(o.s.opt.Limits.Value))
	}
	o.conn.SetWatch(q.watch)
}

func (o *Object) leaveSQL() {
	o.sql.ctx, o.sql.spent = nil, nil
	o.conn.SetWatch(nil)
}

// allowLong lifts the limit of values for key-value statements.
func (o *Object) allowLong() {
	if o.sql.short {
		o.sql.short = false
		o.conn.Limit(sqlite.LimitLength, maxLength)
	}
}

// maxLength is SQLite's own limit of a value.
const maxLength = 1_000_000_000

// watch says whether the statement that runs is to be interrupted.
func (o *Object) watch() bool {
	q := o.sql
	if q.ctx.Err() != nil {
		q.stopped = context.Cause(q.ctx)
		return true
	}
	now, took := o.s.opt.Clock.Now(), minTurn
	if !q.since.IsZero() {
		took = max(took, now.Sub(q.since))
	}
	q.since = now
	if *q.spent += took; *q.spent > o.s.opt.Limits.Time {
		q.stopped = &timeError{o.s.opt.Limits.Time}
		return true
	}
	return false
}

// minTurn is what SQLite takes at least between two looks at watch. It is what
// counts when each step (a row) is shorter than that: the time between steps is the
// user's.
const minTurn = 20 * time.Microsecond

// timeError says that a statement ran for too long. It matches ErrTooLarge.
type timeError struct{ limit time.Duration }

func (e *timeError) Error() string {
	return fmt.Sprintf("the statement was interrupted after %v, the limit of one statement's time: add an index, or do the work in several statements", e.limit)
}

func (e *timeError) Is(target error) bool { return target == ErrTooLarge }

// failed is the error of a statement of a user's.
func (o *Object) failed(err error) error {
	q := o.sql
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*vfs.Error](err)
	if !ok {
		return err
	}
	stopped := q.stopped
	if e.Code.ToPrimary() == sqlite.ResultInterrupt {
		// The interrupt stays until nothing runs any more.
		o.endCursors(0, errInterrupted)
	} else {
		stopped = nil
	}
	own := q.guard.denied
	switch {
	case own != nil:
	case stopped != nil:
		own = stopped
	default:
		own = o.sqlError(err)
	}
	_ = o.check(err)
	if o.broken != nil {
		o.broken = fmt.Errorf("%w: %w", ErrTurnBroken, own)
		o.endCursors(0, o.broken)
	}
	return own
}

// prepare returns the first statement of a text, and the rest. A nil statement is
// the end.
func (o *Object) prepare(text string) (*prepared, string, error) {
	q := o.sql
	word, text := firstWord(text)
	if text == "" {
		return nil, "", nil
	}
	if err := byWord(word); err != nil {
		return nil, "", err
	}
	if word == "PRAGMA" && strings.Contains(strings.ToLower(text), "defer_foreign_keys") {
		// It acts while it is prepared, and until the transaction ends.
		if err := o.begin(); err != nil {
			return nil, "", err
		}
	}
	q.guard.seen, q.guard.denied, q.guard.active = sight{}, nil, true
	st, rest, err := o.conn.Prepare(text)
	q.guard.active = false
	if err != nil {
		return nil, "", o.failed(err)
	}
	if st == nil {
		return nil, "", nil
	}
	return &prepared{Stmt: st, cols: st.Columns(), seen: q.guard.seen, schema: q.schema}, skipBlank(rest), nil
}

// take gets the first statement of a query, from the cache if that has it.
func (o *Object) take(query string) (*prepared, string, error) {
	q := o.sql
	if p := q.cache[query]; p != nil && !p.busy {
		if p.schema == q.schema {
			p.busy = true
			return p, "", nil
		}
		delete(q.cache, query)
		p.Finalize()
	}
	p, rest, err := o.prepare(query)
	if p != nil && rest == "" && !p.seen.pragma && !p.seen.schema && len(query) <= maxCachedText && q.cache[query] == nil {
		p.text, p.busy = query, true
		q.makeRoom()
		q.cache[query] = p
	}
	return p, rest, err
}

// makeRoom drops the statement that was not used for the longest time.
func (q *session) makeRoom() {
	if len(q.cache) < maxCached {
		return
	}
	var oldest *prepared
	for _, p := range q.cache {
		if !p.busy && (oldest == nil || p.used < oldest.used) {
			oldest = p
		}
	}
	if oldest != nil {
		delete(q.cache, oldest.text)
		oldest.Finalize()
	}
}

// release gives a statement back.
func (q *session) release(p *prepared) {
	if p.text == "" || len(q.cache) > maxCached {
		if p.text != "" {
			delete(q.cache, p.text)
		}
		p.Finalize()
		return
	}
	p.Reset()
	q.uses++
	p.busy, p.used = false, q.uses
}

// Query runs the statements of a text, and returns a cursor of the last one; wrote
// says whether one of them was one that writes, also when it failed. What a
// failed statement did is undone, what those before it did is not. Errors: a
// *limpet.Error that refuses a statement, a *limpet.SQLError, a *LimitError or what
// else matches ErrTooLarge, the cause of ctx, and those of Put.
func (o *Object) Query(ctx context.Context, query string, args []limpet.SQLArg) (_ *Cursor, wrote bool, err error) {
	l := &o.s.opt.Limits
	if len(query) > l.Statement {
		return nil, false, &LimitError{What: "the text of SQL statements", Size: int64(len(query)), Limit: int64(l.Statement), Remedy: "run them one by one, and give values as parameters"}
	}
	q, err := o.openSession()
	if err != nil {
		return nil, wrote, err
	}
	if len(q.cursors) >= maxCursors {
		return nil, false, &countError{what: "cursors that are open at once", limit: maxCursors, remedy: "read them to their ends or close them", err: errors.New("too many open cursors")}
	}
	c := &Cursor{o: o}
	o.enterSQL(context.Background(), &c.spent)
	defer o.leaveSQL()
	p, rest, err := o.take(query)
	if err != nil {
		return nil, wrote, err
	}
	if p == nil {
		return nil, wrote, refused("the SQL text has no statement")
	}
	for rest != "" {
		if p.Params() > 0 {
			q.release(p)
			return nil, wrote, refused("When executing multiple SQL statements in a single call, only the last statement can have parameters.")
		}
		wrote = wrote || !p.ReadOnly()
		if err := c.start(ctx, p, nil); err != nil {
			return nil, wrote, err
		}
		if err := c.drain(); err != nil {
			return nil, wrote, err
		}
		next, after, err := o.prepare(rest)
		if err != nil {
			return nil, wrote, err
		}
		if next == nil {
			break
		}
		p, rest = next, after
		c = &Cursor{o: o, before: c.Result().SQLStats}
		q.spent = &c.spent
	}
	wrote = wrote || !p.ReadOnly()
	if err := c.start(ctx, p, args); err != nil {
		return nil, wrote, err
	}
	return c, wrote, nil
}

// Cursor is the rows of a statement. It is used as its Object is.
type Cursor struct {
	o      *Object
	ctx    context.Context
	p      *prepared // nil: it has ended
	cols   []string
	depth  int  // of transactions when it was made
	ready  bool // the statement stands on a row that nobody was given
	kept   [][]limpet.SQLValue
	types  []string // declared, of the columns of kept
	err    error    // why there is no next row
	spent  time.Duration
	given  int64
	scans  int64
	before limpet.SQLStats // of statements before
	result limpet.SQLResult
}

// start binds and runs a statement up to its first row, or to its end if it writes.
func (c *Cursor) start(ctx context.Context, p *prepared, args []limpet.SQLArg) (err error) {
	o := c.o
	c.p, c.cols, c.ctx, c.depth = p, p.cols, ctx, o.depth
	defer func() {
		if err != nil {
			c.end(err)
		}
	}()
	if err := o.bind(p, args); err != nil {
		return err
	}
	if p.ReadOnly() {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		o.sql.ctx = ctx
		o.sql.cursors = append(o.sql.cursors, c)
		if c.ready, err = c.step(); err == nil && !c.ready {
			c.end(nil)
		}
		return err
	}
	o.sql.ctx = context.Background()
	if err := o.begin(); err != nil {
		return err
	}
	if p.seen.grows {
		if err := o.roomToGrow(); err != nil {
			return err
		}
	}
	changes := o.conn.Changes()
	if p.seen.alters {
		err = o.altering(c.runToEnd)
	} else {
		err = c.runToEnd()
	}
	if p.seen.schema {
		o.sql.schema++
		o.sql.changed = true
		if o.table == tableMissing {
			o.table = tableUnknown
		}
	}
	if err != nil {
		return err
	}
	c.result.RowsWritten = o.conn.Changes() - changes
	if c.result.RowsWritten > 0 {
		c.result.RowsAffected = o.conn.LastChanges()
	}
	c.end(nil)
	return nil
}

// runToEnd keeps the rows: a statement that writes must not stay open.
func (c *Cursor) runToEnd() error {
	for {
		ok, err := c.step()
		if err != nil || !ok {
			return err
		}
		row := make([]limpet.SQLValue, len(c.cols))
		c.read(row)
		c.kept = append(c.kept, row)
		if c.types == nil {
			c.types = make([]string, len(row))
			for i := range c.types {
				c.types[i] = c.p.DeclaredType(i)
			}
		}
	}
}

// altering undoes what gave something a reserved name: the authorizer is not told
// the new name of ALTER TABLE … RENAME TO.
func (o *Object) altering(run func() error) error {
	before, err := o.countReserved()
	if err != nil {
		return err
	}
	depth, err := o.BeginTransaction()
	if err != nil {
		return err
	}
	err = run()
	if err == nil {
		var after int64
		if after, err = o.countReserved(); err == nil && after != before {
			err = errAltered
		}
	}
	if err2 := o.EndTransaction(depth, err == nil); err == nil {
		err = err2
	}
	return err
}

func (o *Object) countReserved() (int64, error) {
	st, err := o.conn.Raw().Prepare("SELECT count(*) FROM sqlite_schema WHERE lower(substr(name,1,8))='" + ReservedPrefix + "'")
	if err != nil {
		return 0, o.check(err)
	}
	_, err = st.Step()
	n := st.ColumnInt64(0)
	return n, o.reset(st, err)
}

func (c *Cursor) step() (bool, error) {
	g := &c.o.sql.guard
	g.denied, g.active = nil, true
	ok, err := c.p.Step()
	g.active = false
	if err != nil {
		return false, c.o.failed(err)
	}
	if why := c.o.sql.stopped; why != nil && (!ok || c.p.ReadOnly()) {
		// It came to a row, or to its end, just before SQLite looked: the interrupt
		// would hit whatever runs next.
		if c.p.ReadOnly() {
			c.end(why)
			ok, err = false, why
		}
		c.o.endCursors(0, errInterrupted)
	}
	return ok, err
}

// end gives the statement back; err is what Next says from then on.
func (c *Cursor) end(err error) {
	if c.err == nil {
		c.err = err
	}
	if c.p == nil {
		return
	}
	o := c.o
	c.scans += c.p.FullScanSteps()
	c.result.LastInsertID = o.conn.Raw().LastInsertRowID()
	for i, d := range o.sql.cursors {
		if d == c {
			last := len(o.sql.cursors) - 1
			o.sql.cursors[i] = o.sql.cursors[last]
			o.sql.cursors[last] = nil
			o.sql.cursors = o.sql.cursors[:last]
			break
		}
	}
	p := c.p
	c.p, c.ready = nil, false
	o.sql.release(p)
}

// endCursors ends those that were made at the depth or a greater one.
func (o *Object) endCursors(depth int, err error) {
	if o.sql == nil {
		return
	}
	for i := len(o.sql.cursors) - 1; i >= 0; i-- {
		if c := o.sql.cursors[i]; c.depth >= depth {
			c.end(err)
		}
	}
}

// EndCursors ends all cursors: the object is given away. Their Next says so.
func (o *Object) EndCursors() { o.endCursors(0, ErrTurnOver) }

func (c *Cursor) drain() error {
	for {
		if ok, err := c.Next(nil); err != nil || !ok {
			return err
		}
	}
}

// Columns are the names of the columns.
func (c *Cursor) Columns() []string { return c.cols }

// DeclaredType is the type with which a table declared column i; it is empty once
// the rows have ended.
func (c *Cursor) DeclaredType(i int) string {
	switch {
	case c.p != nil:
		return c.p.DeclaredType(i)
	case c.types != nil:
		return c.types[i]
	}
	return ""
}

// Next reads the next row, or drops it if row is nil; false is the end.
func (c *Cursor) Next(row []limpet.SQLValue) (bool, error) {
	if len(c.kept) > 0 {
		copy(row, c.kept[0])
		c.kept = c.kept[1:]
		c.given++
		return true, nil
	}
	if c.p == nil {
		return false, c.err
	}
	if !c.ready {
		c.o.enterSQL(c.ctx, &c.spent)
		ok, err := c.step()
		c.o.leaveSQL()
		if err != nil {
			c.end(err)
			return false, err
		}
		if !ok {
			c.end(nil)
			return false, nil
		}
	}
	c.ready = false
	c.given++
	if row != nil {
		c.read(row)
	}
	return true, nil
}

// read copies the row.
func (c *Cursor) read(row []limpet.SQLValue) {
	for i := range row {
		v := &row[i]
		*v = limpet.SQLValue{}
		switch c.p.ColumnType(i) {
		case vfs.Integer:
			v.Kind, v.Integer = limpet.SQLInteger, c.p.ColumnInt(i)
		case vfs.Float:
			v.Kind, v.Real = limpet.SQLReal, c.p.ColumnFloat(i)
		case vfs.Text:
			v.Kind, v.Text = limpet.SQLText, c.p.ColumnText(i)
		case vfs.Blob:
			v.Kind, v.Blob = limpet.SQLBlob, c.p.ColumnBlob(i)
		}
	}
}

// Result tells what was done so far.
func (c *Cursor) Result() limpet.SQLResult {
	if c.p != nil {
		c.scans += c.p.FullScanSteps()
	}
	r := c.result
	scanned := c.scans
	if scanned > 0 {
		scanned++ // the first row is not stepped to
	}
	r.RowsRead = c.before.RowsRead + max(c.given, scanned)
	r.RowsWritten += c.before.RowsWritten
	return r
}

// Close ends the cursor.
func (c *Cursor) Close() error {
	c.end(nil)
	c.kept = nil
	return nil
}

// bind gives a statement its arguments: by position, or by name.
func (o *Object) bind(p *prepared, args []limpet.SQLArg) error {
	n := p.Params()
	named := false
	for i := range args {
		named = named || args[i].Name != ""
	}
	if !named && len(args) != n {
		return refused("Wrong number of parameter bindings for SQL query: it has %d parameters, and got %d", n, len(args))
	}
	if !named {
		for i := range args {
			if err := o.bindOne(p, i+1, &args[i].Value); err != nil {
				return err
			}
		}
		return nil
	}
	used := make([]bool, len(args))
	for i := 1; i <= n; i++ {
		at := i - 1 // by position
		if name := p.ParamName(i); len(name) > 1 && name[0] != '?' {
			for j := range args {
				if args[j].Name == name[1:] {
					at = j
				}
			}
			if at >= len(args) || args[at].Name != "" && args[at].Name != name[1:] {
				return refused("SQL parameter %s has no argument: give it as sql.Named(%q, …)", name, name[1:])
			}
		} else if at >= len(args) || args[at].Name != "" {
			return refused("SQL parameter %d has no name and no argument in its place", i)
		}
		used[at] = true
		if err := o.bindOne(p, i, &args[at].Value); err != nil {
			return err
		}
	}
	for i := range used {
		if !used[i] {
			return refused("argument %d (%.64q) fits no parameter of the SQL query", i+1, args[i].Name)
		}
	}
	return nil
}

func (o *Object) bindOne(p *prepared, i int, v *limpet.SQLValue) (err error) {
	if n, limit := len(v.Text)+len(v.Blob), o.s.opt.Limits.Value; n > limit {
		return &LimitError{What: fmt.Sprintf("argument %d of SQL", i), Size: int64(n), Limit: int64(limit), Remedy: "split it over several rows"}
	}
	switch v.Kind {
	case limpet.SQLInteger:
		err = p.BindInt(i, v.Integer)
	case limpet.SQLReal:
		err = p.BindFloat(i, v.Real)
	case limpet.SQLText:
		err = p.BindText(i, v.Text)
	case limpet.SQLBlob:
		err = p.BindBlob(i, v.Blob)
	default:
		err = p.BindNull(i)
	}
	return o.failed(err)
}

// DatabaseSize is the size of the object's database in bytes, the turn included.
func (o *Object) DatabaseSize() (int64, error) {
	if err := o.usable(); err != nil {
		return 0, err
	}
	if o.conn != nil {
		return o.conn.Size(), nil
	}
	if o.e.pages == nil {
		return 0, nil
	}
	return int64(o.e.pages.PageCount()) * int64(o.e.pages.PageSize()), nil
}
