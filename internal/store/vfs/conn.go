package vfs

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
	"zombiezen.com/go/sqlite"
)

const (
	// DefaultCachePages is how many pages SQLite caches of one database beside
	// ours. A page it has to read again costs 0.3 us: with 8, a get out of 1,000 keys takes
	// as long as with 200, with 2 a quarter longer (BenchmarkGet). Each cached page
	// of 4 KiB takes 8 KiB, since the C library's allocator rounds up.
	DefaultCachePages = 8

	// progressSteps is how many steps of SQLite's virtual machine run between
	// two looks at the interrupt channel, some 50 us.
	progressSteps = 4000
)

// AutoVacuum says what becomes of pages that are no longer needed.
type AutoVacuum int

const (
	// AutoVacuumNone keeps them for later inserts; VACUUM gives them back, in
	// one commit that rewrites the database. It is the default: the other modes
	// keep a page of back pointers, which costs each object 12 KiB of memory (4 KiB
	// pages, one here and one in SQLite's cache) and commits that allocate pages one page more.
	AutoVacuumNone AutoVacuum = iota
	// AutoVacuumIncremental keeps them too, and PRAGMA incremental_vacuum(n)
	// gives n of them back in a small commit. For databases of many megabytes that shrink.
	AutoVacuumIncremental
	// AutoVacuumFull moves pages at each commit that frees some.
	AutoVacuumFull
)

// Options of a connection; the zero value is the default.
type Options struct {
	// CachePages is the size of SQLite's own page cache, in pages. A
	// transaction that changes more pages writes the rest early, which costs a
	// copy each and nothing else. 0 means DefaultCachePages; the least that works is 1.
	CachePages int
	// AutoVacuum is used when the database is created, and ignored later.
	AutoVacuum AutoVacuum
	// MaxBytes is the size in bytes beyond which the database must not grow; what
	// would make it fails with ErrFull. 0, and anything larger, means MaxBytes.
	MaxBytes int64
}

// Conn is the only connection to a database. It is not safe for concurrent use.
type Conn struct {
	raw   *sqlite.Conn
	file  *file
	pages *Pages
	num   uint32
}

// Open opens the connection to the database in p, whose commits go to sink.
// It returns ErrOpen if p has a connection already, and ErrCorrupt if its first
// page is of no database with p's page size. The connection is in
// journal_mode=MEMORY, locking_mode=EXCLUSIVE, synchronous=OFF,
// temp_store=MEMORY, with foreign keys on, trusted_schema off and in defensive mode.
func Open(p *Pages, sink Sink, opt Options) (*Conn, error) {
	if p.file != nil {
		return nil, fmt.Errorf("open database: %w", ErrOpen)
	}
	if err := p.ready(); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	d := &theDriver
	if err := d.register(); err != nil {
		return nil, err
	}
	f := &file{pages: p, sink: sink, maxBytes: MaxBytes}
	var token [8]byte
	if _, err := rand.Read(token[:]); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	f.token = binary.LittleEndian.Uint64(token[:])
	if opt.MaxBytes > 0 {
		f.maxBytes = min(opt.MaxBytes, MaxBytes)
	}
	n := d.files.add(f)
	raw, err := sqlite.OpenConn("file:"+fileName(n, f.token)+"?vfs="+d.name, sqlite.OpenReadWrite, sqlite.OpenCreate, sqlite.OpenURI)
	if err != nil {
		d.files.remove(n, true)
		return nil, fmt.Errorf("open database: %w", errors.Join(err, f.refused))
	}
	p.file = f
	c := &Conn{raw: raw, file: f, pages: p, num: n}
	if err := c.configure(opt); err != nil {
		return nil, errors.Join(fmt.Errorf("open database: %w", err), c.Close())
	}
	return c, nil
}

// ready looks at the first page, before a connection is opened.
func (p *Pages) ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle()
	if p.committed == 0 {
		return nil
	}
	b, err := p.first()
	if err != nil {
		return err
	}
	return p.header(b, p.committed)
}

// first returns the image of page 1 in the running transaction.
func (p *Pages) first() ([]byte, error) {
	if err := p.fetch(1); err != nil {
		return nil, err
	}
	if len(p.table) == 0 || p.table[0].ref == 0 {
		return zeroes[:p.pageSize], nil
	}
	return p.view(p.table[0].ref), nil
}

// configure sets up the connection through SQLite's own functions: statements
// of zombiezen would cost twice the time of the whole Open.
func (c *Conn) configure(opt Options) error {
	f, args := c.file, &theDriver.args
	if f.db == 0 {
		return errors.New("SQLite did not tell its connection (FCNTL_PDB): this version was not tested")
	}
	for _, s := range [...]struct {
		op   int32
		args uintptr
	}{
		// Two memory pools of 48 KiB together that most objects would never use.
		{lib.SQLITE_DBCONFIG_LOOKASIDE, args.zero},
		{lib.SQLITE_DBCONFIG_ENABLE_FKEY, args.on},
		{lib.SQLITE_DBCONFIG_DEFENSIVE, args.on},
		{lib.SQLITE_DBCONFIG_TRUSTED_SCHEMA, args.zero},
	} {
		if rc := lib.Xsqlite3_db_config(f.tls, f.db, s.op, s.args); rc != lib.SQLITE_OK {
			return fmt.Errorf("sqlite3_db_config %d: %w", s.op, sqlite.ResultCode(rc).ToError())
		}
	}
	lib.Xsqlite3_progress_handler(f.tls, f.db, progressSteps, funcPtr(xProgress), uintptr(c.num))

	cache := opt.CachePages
	if cache <= 0 {
		cache = DefaultCachePages
	}
	// The journal mode stands before all that may write.
	sql := fmt.Sprintf("PRAGMA locking_mode=EXCLUSIVE;PRAGMA journal_mode=MEMORY;PRAGMA synchronous=OFF;PRAGMA temp_store=MEMORY;PRAGMA cache_size=%d;", cache)
	if c.pages.committed == 0 {
		sql += fmt.Sprintf("PRAGMA page_size=%d;", c.pages.pageSize)
	}
	z, err := libc.CString(sql)
	if err != nil {
		return err
	}
	defer libc.Xfree(f.tls, z)
	if rc := lib.Xsqlite3_exec(f.tls, f.db, z, 0, 0, 0); rc != lib.SQLITE_OK {
		return c.Explain(fmt.Errorf("%s: %w", sql, sqlite.ResultCode(rc).ToError()))
	}
	if c.pages.committed == 0 && opt.AutoVacuum != AutoVacuumNone {
		// Only prepared: that sets how the first commit will create the database. The
		// statement itself would create it now.
		st, _, err := c.raw.PrepareTransient(fmt.Sprintf("PRAGMA auto_vacuum=%d", [...]int{0, 2, 1}[opt.AutoVacuum]))
		if err != nil {
			return c.Explain(err)
		}
		return st.Finalize()
	}
	return nil
}

// Raw returns the connection for statements. Its SetInterrupt starts a
// goroutine per call; use that of Conn. Its Close must not be called.
func (c *Conn) Raw() *sqlite.Conn { return c.raw }

// Close ends the connection; a transaction is rolled back. Statements of
// Raw().Prepare are finalized, those of PrepareTransient must be before. The pages
// stay as of the last commit, whatever Close returns. The second Close returns ErrClosed.
func (c *Conn) Close() error {
	if c.file == nil {
		return ErrClosed
	}
	err := c.raw.Close()
	c.detach()
	if err != nil {
		return fmt.Errorf("close database: %w", err)
	}
	return nil
}

// Discard ends the use of the connection without touching SQLite, and
// restores the pages as of the last commit: after a panic that passed through
// the transpiled code, SQLite may hold locks and its memory is in an unknown
// state. The memory of the connection is lost to the process.
func (c *Conn) Discard() {
	if c.file == nil {
		return
	}
	c.detach()
}

func (c *Conn) detach() {
	f := c.file
	theDriver.files.remove(c.num, f.closed)
	defer func() { c.pages.file, c.file = nil, nil }()
	if !f.closed {
		f.fail(ErrClosed)
	}
}

// SetInterrupt binds the statements that follow to done: while one runs
// and done is closed, it fails with ErrInterrupt within some 4,000 steps of SQLite's virtual
// machine, and a writing one rolls back the transaction. A short statement may finish
// nevertheless. nil, the default, never interrupts. It costs nothing; it must not be
// called while a statement runs.
func (c *Conn) SetInterrupt(done <-chan struct{}) {
	if c.file != nil {
		c.file.done = done
	}
}

// InTransaction reports whether a transaction is open: BEGIN or SAVEPOINT was
// run, and neither its end nor an error that rolled it back came.
func (c *Conn) InTransaction() bool { return c.file != nil && !c.raw.AutocommitEnabled() }

// Broken returns why only Close is left, or nil.
func (c *Conn) Broken() error {
	if c.file == nil {
		return ErrClosed
	}
	return c.file.broken
}

// Explain returns err, an error of a statement of Raw, as *Error with what the
// Sink or this package refused with; a cause is given once. nil stays nil; an *Error
// stays as it is.
func (c *Conn) Explain(err error) error {
	if err == nil {
		return nil
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	return c.explain(&Error{Code: sqlite.ErrCode(err), Err: err})
}

// explain adds the cause.
func (c *Conn) explain(e *Error) *Error {
	if f := c.file; f != nil && e.Code != sqlite.ResultOK {
		switch {
		case f.broken != nil:
			e.Cause = f.broken
		case f.refused != nil && (int32(e.Code) == f.refusedCode || e.Code == sqlite.ResultCode(f.refusedCode).ToPrimary()):
			e.Cause = f.refused
			f.refused, f.refusedCode = nil, 0
		}
	}
	return e
}

// Exec runs one statement to its end, dropping rows. The statement is
// prepared once and kept for the life of the connection. Arguments bind to ?1, ?2 …: nil, int,
// int64, float64, bool, string or []byte.
func (c *Conn) Exec(query string, args ...any) error {
	if c.file == nil {
		return ErrClosed
	}
	st, err := c.raw.Prepare(query)
	if err != nil {
		return c.Explain(err)
	}
	for i, a := range args {
		switch v := a.(type) {
		case nil:
			st.BindNull(i + 1)
		case int:
			st.BindInt64(i+1, int64(v))
		case int64:
			st.BindInt64(i+1, v)
		case float64:
			st.BindFloat(i+1, v)
		case bool:
			st.BindBool(i+1, v)
		case string:
			st.BindText(i+1, v)
		case []byte:
			st.BindBytes(i+1, v)
		default:
			return fmt.Errorf("argument %d of %q: type %T is not supported", i+1, query, a)
		}
	}
	for row := true; row && err == nil; {
		row, err = st.Step()
	}
	if len(args) > 0 { // a big value must not stay in memory with the statement
		_ = st.Reset()
		_ = st.ClearBindings()
	}
	if err == nil && c.file.broken != nil { // Publish panicked, where SQLite could not fail
		err = sqlite.ResultIOErr.ToError()
	}
	return c.Explain(err)
}

// MemoryUsed returns the bytes SQLite holds for this connection: page cache,
// schema and statements. Its fixed part of some 30 KiB is not in it.
func (c *Conn) MemoryUsed() int64 {
	f := c.file
	if f == nil {
		return 0
	}
	var sum int64
	for _, op := range [...]int32{lib.SQLITE_DBSTATUS_CACHE_USED, lib.SQLITE_DBSTATUS_SCHEMA_USED, lib.SQLITE_DBSTATUS_STMT_USED} {
		sum += dbStatus(f.tls, f.db, op)
	}
	return sum
}

// Trim gives SQLite's page cache of this connection back; it is for objects that are
// idle. The next statement reads its pages anew, which takes about a microsecond.
func (c *Conn) Trim() {
	if f := c.file; f != nil {
		lib.Xsqlite3_db_release_memory(f.tls, f.db)
	}
}
