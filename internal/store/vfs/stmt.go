package vfs

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
	"zombiezen.com/go/sqlite"
)

// This file is statements that users wrote: what zombiezen's do not tell (whether
// one writes, what it counted, the rest of a text of several) and what they must
// be asked first (the authorizer). Statements of limpet's own are Conn.Raw's.

// Type is the type of a column in a row.
type Type uint8

// The types of SQLite, with its own numbers.
const (
	Integer Type = 1 + iota
	Float
	Text
	Blob
	Null
)

// Action is what a statement that is being prepared wants to do:
// sqlite3_set_authorizer of SQLite's documentation says what the arguments are.
type Action struct {
	Op         sqlite.OpType
	Arg1, Arg2 string
	Database   string
}

// Verdict is what an Authorizer says to an Action.
type Verdict int32

// Verdicts. Ignore leaves the action out, where SQLite can, and goes on.
const (
	Allow  Verdict = lib.SQLITE_OK
	Deny   Verdict = lib.SQLITE_DENY
	Ignore Verdict = lib.SQLITE_IGNORE
)

// SetAuthorizer has f asked about everything that statements prepared from now on
// want to do, those of Raw and those that SQLite and its virtual tables prepare by
// themselves included. f must not use the connection. Statements that exist are
// prepared anew at their next use. A panic of f denies.
func (c *Conn) SetAuthorizer(f func(Action) Verdict) error {
	if c.file == nil {
		return ErrClosed
	}
	c.file.authorize = f
	xAuth := funcPtr(xAuthorize)
	if f == nil {
		xAuth = 0
	}
	if rc := lib.Xsqlite3_set_authorizer(c.file.tls, c.file.db, xAuth, uintptr(c.num)); rc != lib.SQLITE_OK {
		return fmt.Errorf("sqlite3_set_authorizer: %w", sqlite.ResultCode(rc).ToError())
	}
	return nil
}

func xAuthorize(_ *libc.TLS, num uintptr, op int32, arg1, arg2, database, _ uintptr) (verdict int32) {
	verdict = int32(Deny)
	f := theDriver.files.get(uint32(num))
	if f == nil || f.authorize == nil {
		return verdict
	}
	defer func() { _ = recover() }()
	return int32(f.authorize(Action{
		Op: sqlite.OpType(op), Arg1: libc.GoString(arg1), Arg2: libc.GoString(arg2), Database: libc.GoString(database),
	}))
}

// SetWatch has f asked every few thousand steps of a statement, beside the channel
// of SetInterrupt: true interrupts it in the same way. f must not use the
// connection. nil takes it back.
func (c *Conn) SetWatch(f func() bool) {
	if c.file != nil {
		c.file.watch = f
	}
}

// Limit sets a limit of SQLite and returns what it was; a negative value only asks.
func (c *Conn) Limit(id sqlite.Limit, value int32) int32 { return c.raw.Limit(id, value) }

// SetForeignKeys turns the checks of foreign keys on or off, also in a transaction;
// statements are prepared anew.
func (c *Conn) SetForeignKeys(on bool) error {
	if c.file == nil {
		return ErrClosed
	}
	args := theDriver.args.zero
	if on {
		args = theDriver.args.on
	}
	if rc := lib.Xsqlite3_db_config(c.file.tls, c.file.db, lib.SQLITE_DBCONFIG_ENABLE_FKEY, args); rc != lib.SQLITE_OK {
		return fmt.Errorf("sqlite3_db_config: %w", sqlite.ResultCode(rc).ToError())
	}
	return nil
}

// Changes is how many rows all statements of the connection have inserted,
// updated and deleted so far, those of triggers and foreign keys included.
func (c *Conn) Changes() int64 {
	if c.file == nil {
		return 0
	}
	return lib.Xsqlite3_total_changes64(c.file.tls, c.file.db)
}

// LastChanges is how many rows the last writing statement itself has changed.
func (c *Conn) LastChanges() int64 {
	if c.file == nil {
		return 0
	}
	return lib.Xsqlite3_changes64(c.file.tls, c.file.db)
}

// Size is the size of the database in bytes, the running transaction included.
func (c *Conn) Size() int64 {
	f := c.file
	if f == nil {
		return 0
	}
	n := c.pages.count
	if p := (*lib.TPager)(unsafe.Pointer(f.pager)); lib.Xsqlite3_get_autocommit(f.tls, f.db) == 0 {
		n = max(n, p.FdbSize) // what SQLite still holds is not in our pages
		if p.FeState > lib.PAGER_READER {
			n = p.FdbSize
		}
	}
	return int64(n) << c.pages.shift
}

// Stmt is one prepared statement. It is used as its Conn is, between Prepare and
// Finalize, which must come before the Conn is closed.
type Stmt struct {
	c        *Conn
	ptr      uintptr
	params   int
	readOnly bool
}

// Prepare prepares the first statement of a text and returns the rest. The
// statement is nil if there is none: the text is empty, or comments. It returns an
// *Error; one of the authorizer's has the code sqlite.ResultAuth, mostly.
func (c *Conn) Prepare(text string) (st *Stmt, rest string, err error) {
	f := c.file
	if f == nil {
		return nil, "", ErrClosed
	}
	if strings.IndexByte(text, 0) >= 0 {
		return nil, "", &Error{Code: sqlite.ResultError, Err: errors.New("the statement has a zero byte")}
	}
	z, err := libc.CString(text)
	if err != nil {
		return nil, "", &Error{Code: sqlite.ResultNoMem, Err: err}
	}
	defer libc.Xfree(f.tls, z)
	out := f.tls.Alloc(16)
	defer f.tls.Free(16)
	rc := lib.Xsqlite3_prepare_v3(f.tls, f.db, z, int32(len(text)+1), lib.SQLITE_PREPARE_PERSISTENT, out, out+8)
	if rc != lib.SQLITE_OK {
		return nil, "", c.failure(rc)
	}
	ptr := *(*uintptr)(unsafe.Pointer(out))
	rest = text[min(len(text), int(*(*uintptr)(unsafe.Pointer(out + 8))-z)):]
	if ptr == 0 {
		return nil, rest, nil
	}
	return &Stmt{
		c: c, ptr: ptr,
		params:   int(lib.Xsqlite3_bind_parameter_count(f.tls, ptr)),
		readOnly: lib.Xsqlite3_stmt_readonly(f.tls, ptr) != 0,
	}, rest, nil
}

// failure is the connection's last error.
func (c *Conn) failure(rc int32) error {
	f := c.file
	if ext := lib.Xsqlite3_extended_errcode(f.tls, f.db); ext&0xff == rc&0xff {
		rc = ext
	}
	text := libc.GoString(lib.Xsqlite3_errmsg(f.tls, f.db))
	if at := lib.Xsqlite3_error_offset(f.tls, f.db); at >= 0 {
		text = fmt.Sprintf("%s at offset %d", text, at)
	}
	return c.explain(&Error{Code: sqlite.ResultCode(rc), Err: errors.New(text)})
}

// ReadOnly reports whether the statement writes nothing to the database.
func (s *Stmt) ReadOnly() bool { return s.readOnly }

// Params is the number of parameters: the largest number of one.
func (s *Stmt) Params() int { return s.params }

// ParamName is the name of parameter i from 1, with the character before it (":a"),
// or empty.
func (s *Stmt) ParamName(i int) string {
	return libc.GoString(lib.Xsqlite3_bind_parameter_name(s.c.file.tls, s.ptr, int32(i)))
}

// Columns are the names of the columns. A statement that was prepared before the
// schema changed may have others after its first step.
func (s *Stmt) Columns() []string {
	f := s.c.file
	names := make([]string, lib.Xsqlite3_column_count(f.tls, s.ptr))
	for i := range names {
		names[i] = libc.GoString(lib.Xsqlite3_column_name(f.tls, s.ptr, int32(i)))
	}
	return names
}

// DeclaredType is the type with which a table declared the column, from 0, or
// empty for an expression.
func (s *Stmt) DeclaredType(i int) string {
	return libc.GoString(lib.Xsqlite3_column_decltype(s.c.file.tls, s.ptr, int32(i)))
}

// Step goes to the next row, or to the end. After an error and after the end Reset
// must follow.
func (s *Stmt) Step() (row bool, err error) {
	f := s.c.file
	if f == nil {
		return false, ErrClosed
	}
	switch rc := lib.Xsqlite3_step(f.tls, s.ptr); rc {
	case lib.SQLITE_ROW:
		return true, nil
	case lib.SQLITE_DONE:
		if f.broken != nil { // Publish panicked, where SQLite could not fail
			return false, s.c.explain(&Error{Code: sqlite.ResultIOErr, Err: sqlite.ResultIOErr.ToError()})
		}
		return false, nil
	default:
		return false, s.c.failure(rc)
	}
}

// Reset makes the statement ready to be run again, without parameters. Its error
// is that of the Step before, which told it.
func (s *Stmt) Reset() {
	if f := s.c.file; f != nil {
		lib.Xsqlite3_reset(f.tls, s.ptr)
		if s.params > 0 {
			lib.Xsqlite3_clear_bindings(f.tls, s.ptr)
		}
	}
}

// Finalize ends the statement. A second one does nothing, and neither does one
// after Discard of the Conn.
func (s *Stmt) Finalize() {
	if f := s.c.file; f != nil && s.ptr != 0 {
		lib.Xsqlite3_finalize(f.tls, s.ptr)
	}
	s.ptr = 0
}

// FullScanSteps is how many rows the statement has stepped over in tables that it
// went through without an index, since the last call.
func (s *Stmt) FullScanSteps() int64 {
	return int64(lib.Xsqlite3_stmt_status(s.c.file.tls, s.ptr, lib.SQLITE_STMTSTATUS_FULLSCAN_STEP, 1))
}

func (s *Stmt) bound(i int, rc int32) error {
	if rc == lib.SQLITE_OK {
		return nil
	}
	return fmt.Errorf("bind parameter %d: %w", i, s.c.failure(rc))
}

// BindNull binds NULL to parameter i from 1, as the others do their values.
func (s *Stmt) BindNull(i int) error {
	return s.bound(i, lib.Xsqlite3_bind_null(s.c.file.tls, s.ptr, int32(i)))
}

// BindInt binds an integer.
func (s *Stmt) BindInt(i int, v int64) error {
	return s.bound(i, lib.Xsqlite3_bind_int64(s.c.file.tls, s.ptr, int32(i), v))
}

// BindFloat binds a float; NaN is NULL to SQLite.
func (s *Stmt) BindFloat(i int, v float64) error {
	return s.bound(i, lib.Xsqlite3_bind_double(s.c.file.tls, s.ptr, int32(i), v))
}

// BindText binds a copy of a text.
func (s *Stmt) BindText(i int, v string) error {
	p, err := s.copyIn(unsafe.Slice(unsafe.StringData(v), len(v)))
	if err != nil {
		return err
	}
	return s.bound(i, lib.Xsqlite3_bind_text(s.c.file.tls, s.ptr, int32(i), p, int32(len(v)), freeFunc))
}

// BindBlob binds a copy of bytes; nil and empty are the empty blob.
func (s *Stmt) BindBlob(i int, v []byte) error {
	p, err := s.copyIn(v)
	if err != nil {
		return err
	}
	return s.bound(i, lib.Xsqlite3_bind_blob(s.c.file.tls, s.ptr, int32(i), p, int32(len(v)), freeFunc))
}

// freeFunc is how SQLite gives back what copyIn made.
var freeFunc = funcPtr(libc.Xfree)

// copyIn copies bytes into memory of the C library.
func (s *Stmt) copyIn(b []byte) (uintptr, error) {
	p := libc.Xmalloc(s.c.file.tls, libc.Tsize_t(max(len(b), 1)))
	if p == 0 {
		return 0, &Error{Code: sqlite.ResultNoMem, Err: sqlite.ResultNoMem.ToError()}
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(p)), len(b)), b)
	return p, nil
}

// ColumnType is the type of column i from 0 in the row. As for the others below,
// there must be a row and a column.
func (s *Stmt) ColumnType(i int) Type {
	return Type(lib.Xsqlite3_column_type(s.c.file.tls, s.ptr, int32(i)))
}

// ColumnCount is the number of columns of the row; 0 without one.
func (s *Stmt) ColumnCount() int { return int(lib.Xsqlite3_data_count(s.c.file.tls, s.ptr)) }

// ColumnInt is column i as an integer.
func (s *Stmt) ColumnInt(i int) int64 {
	return lib.Xsqlite3_column_int64(s.c.file.tls, s.ptr, int32(i))
}

// ColumnFloat is column i as a float.
func (s *Stmt) ColumnFloat(i int) float64 {
	return lib.Xsqlite3_column_double(s.c.file.tls, s.ptr, int32(i))
}

// ColumnText is a copy of column i as a text.
func (s *Stmt) ColumnText(i int) string {
	p := lib.Xsqlite3_column_text(s.c.file.tls, s.ptr, int32(i))
	n := lib.Xsqlite3_column_bytes(s.c.file.tls, s.ptr, int32(i))
	if p == 0 || n <= 0 {
		return ""
	}
	return string(unsafe.Slice((*byte)(unsafe.Pointer(p)), n))
}

// ColumnBlob is a copy of column i as bytes, not nil.
func (s *Stmt) ColumnBlob(i int) []byte {
	p := lib.Xsqlite3_column_blob(s.c.file.tls, s.ptr, int32(i))
	n := lib.Xsqlite3_column_bytes(s.c.file.tls, s.ptr, int32(i))
	if p == 0 || n <= 0 {
		return []byte{}
	}
	return append([]byte{}, unsafe.Slice((*byte)(unsafe.Pointer(p)), n)...)
}
