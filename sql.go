package limpet

import (
	"context"
	"iter"
)

// SQL is the SQLite database of one object, the same in which KV keeps its values:
// what a turn writes through both is one commit (SPEC H33). Foreign keys are
// enforced, and JSON, FTS5, R-tree and the mathematical functions are there.
// docs/SQL.md tells what is refused (transaction statements, ATTACH, temporary
// tables, tables whose names begin with _limpet_, most pragmas) and the limits.
//
// A failed statement is CodeSQL, with a *SQLError behind it; one that is refused is
// CodeInvalidArgument or CodeNotSupported, and one over a limit CodeTooLarge. The
// statement has then changed nothing, and the turn goes on. Only a statement that
// SQLite could not undo by itself (ON CONFLICT ROLLBACK, an interrupted write, a
// full database in the middle of one) takes the whole turn with it: every use of
// the State fails from then on, and the object is reset when the event ends.
//
// The context bounds a statement that only reads: it ends with CodeCanceled within
// a millisecond or so, and the turn goes on. One that writes is not ended by it,
// since that would take the turn with it and reset the object under everybody.
// Both end with the object's incarnation, and after 30 s (node.Limits) of a
// statement's time: a reading one with CodeTooLarge, a writing one with the turn.
//
// For its use by several goroutines see State.
type SQL struct{ in Incarnation }

// SQL is the object's database.
func (s *State) SQL() *SQL { return &SQL{in: s.in} }

// SQLResult tells what Exec did.
type SQLResult struct {
	// LastInsertID is the rowid of the object's last INSERT, of whatever
	// statement; 0 if there was none since the object's database was opened.
	LastInsertID int64
	// RowsAffected is how many rows the last statement inserted, updated or
	// deleted itself; 0 for one that does not write.
	RowsAffected int64
	SQLStats
}

// SQLStats counts the rows of all statements of one Exec or Query, so far.
type SQLStats struct {
	// RowsRead is how many rows were stepped over in tables that a statement went
	// through without an index, or given as its result, whichever is more. A row
	// that an index found and nobody was given is not counted.
	RowsRead int64
	// RowsWritten is how many rows were inserted, updated or deleted, those of
	// triggers and foreign keys included, entries of indexes not.
	RowsWritten int64
}

// Exec runs one or several statements, separated by semicolons, to their end and
// drops the rows (SPEC H30). Arguments go to the last one, whose parameters (?,
// ?3, :name, @name, $name) they must fill exactly: by position, or by name with
// sql.Named. An argument is nil, a bool (0 or 1), an integer, a float, a string, a
// []byte (a BLOB), a json.RawMessage (a text), a time.Time (a text in UTC that
// sorts and that SQLite's functions read), JSON(v), or whatever database/sql makes
// one of these of: a pointer, a driver.Valuer.
//
// If a statement fails those before it stay done; Transaction undoes them.
func (q *SQL) Exec(ctx context.Context, query string, args ...any) (SQLResult, error) {
	rows, err := q.query(ctx, query, args)
	if err != nil {
		return SQLResult{}, err
	}
	for ok := true; ok; {
		if ok, err = rows.Next(nil); err != nil {
			_ = rows.Close()
			return SQLResult{}, err
		}
	}
	r := rows.Result()
	return r, rows.Close()
}

// Query runs one or several statements as Exec does, and returns a cursor over the
// rows of the last one (SPEC H30). All but the last have ended when it returns, and
// so has the last if it writes: then its rows (of RETURNING) are in memory. The
// cursor should be read to its end or closed.
func (q *SQL) Query(ctx context.Context, query string, args ...any) (*Cursor, error) {
	rows, err := q.query(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return &Cursor{rows: rows, cols: rows.Columns()}, nil
}

// Rows is Query as a loop:
//
//	for row, err := range st.SQL().Rows(ctx, "SELECT name, score FROM players") { … }
//
// An error ends the loop and comes as the second value. The statement runs when
// the loop begins, and its cursor is closed when the loop ends.
func (q *SQL) Rows(ctx context.Context, query string, args ...any) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		c, err := q.Query(ctx, query, args...)
		if err != nil {
			yield(Row{}, err)
			return
		}
		for row, err := range c.Rows() {
			if !yield(row, err) {
				return
			}
		}
	}
}

// One is the single row of a query. None, or more than one, is CodeSQL (SPEC H30).
func (q *SQL) One(ctx context.Context, query string, args ...any) (Row, error) {
	c, err := q.Query(ctx, query, args...)
	if err != nil {
		return Row{}, err
	}
	return c.One()
}

// DatabaseSize is the size of the object's database in bytes, with what the turn
// has written and with pages that are free for reuse.
func (q *SQL) DatabaseSize() (int64, error) { return q.in.DatabaseSize() }

func (q *SQL) query(ctx context.Context, query string, args []any) (SQLRows, error) {
	if ctx == nil {
		return nil, invalid("", "SQL: the context is nil")
	}
	list, err := sqlArgs(args)
	if err != nil {
		return nil, err
	}
	return q.in.Query(ctx, query, list)
}

// Cursor reads the rows of a statement one after the other; they are not all in
// memory. It belongs to the turn it was made in: when the object is given away (by
// return, a call through a stub, Await or Sync) it ends, and Next fails with
// CodeNoTurn, unlike a cursor of Cloudflare's, which goes on over whatever is there
// then (SPEC H30). Rolling back a Transaction ends the cursors made in it.
//
// The tables that it reads may be written meanwhile: rows that are inserted, updated
// or deleted ahead of it may be seen as before or as after, each row whole. DROP
// fails with SQLITE_LOCKED while a cursor is open, whatever it reads.
//
// A Cursor is for one goroutine at a time.
type Cursor struct {
	rows SQLRows
	cols []string
	row  []SQLValue
	has  bool
	err  error
	over bool
}

// Columns are the names of the columns; two may be equal. A statement that gives no
// rows has none.
func (c *Cursor) Columns() []string { return append([]string(nil), c.cols...) }

// Next goes to the next row, which Scan and Row read. False is the end, or an error
// that Err tells; the cursor is then closed.
func (c *Cursor) Next() bool {
	if c.over {
		return false
	}
	if c.row == nil {
		c.row = make([]SQLValue, len(c.cols))
	}
	c.has, c.err = c.rows.Next(c.row)
	if !c.has {
		c.over = true
		if err := c.rows.Close(); c.err == nil {
			c.err = err
		}
	}
	return c.has
}

// Err is what ended Next, nil for the end of the rows.
func (c *Cursor) Err() error { return c.err }

// Scan reads the row into the pointers, one for each column. A pointer may lead to
// an integer (from INTEGER; its range is checked), a bool (from 0 and 1), a float
// (from REAL and INTEGER), a string (from TEXT), a []byte (from BLOB and TEXT), an
// any (nil, int64, float64, string, []byte), a time.Time (from a TEXT as time.Time
// arguments are stored, or as SQLite's functions make it, or the INTEGER of
// unixepoch), a pointer to one of these (nil for NULL), or be a sql.Scanner, such as
// sql.Null or JSON(&v); nil skips the column. Anything else, NULL without a place
// for it among them, is CodeInvalidArgument naming the column. The values are
// copies.
func (c *Cursor) Scan(into ...any) error {
	if !c.has {
		return invalid("", "Scan: there is no row: call Next first, and only while it returns true")
	}
	return scanRow(c.cols, c.row, into)
}

// Row is a copy of the row that Next went to.
func (c *Cursor) Row() Row {
	if !c.has {
		return Row{}
	}
	return Row{cols: c.cols, values: append([]SQLValue(nil), c.row...)}
}

// Rows goes over the rows that are left and closes the cursor when the loop ends. An
// error ends it and comes as the second value.
func (c *Cursor) Rows() iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		defer func() { _ = c.Close() }()
		for c.Next() {
			if !yield(c.Row(), nil) {
				return
			}
		}
		if c.err != nil {
			yield(Row{}, c.err)
		}
	}
}

// All reads the rows that are left into memory.
func (c *Cursor) All() ([]Row, error) {
	var all []Row
	for row, err := range c.Rows() {
		if err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, nil
}

// One reads the single row that is left and closes the cursor (SPEC H30).
func (c *Cursor) One() (Row, error) {
	defer func() { _ = c.Close() }()
	if !c.Next() {
		if c.err != nil {
			return Row{}, c.err
		}
		return Row{}, &Error{Code: CodeSQL, Message: "Expected exactly one result from SQL query, but got no results."}
	}
	row := c.Row()
	if c.Next() {
		return Row{}, &Error{Code: CodeSQL, Message: "Expected exactly one result from SQL query, but got multiple results."}
	}
	return row, c.err
}

// Stats counts rows so far.
func (c *Cursor) Stats() SQLStats { return c.rows.Result().SQLStats }

// Close ends the cursor before its end; a second Close, and one after Next was
// false, does nothing. It may be called at any time.
func (c *Cursor) Close() error {
	c.has = false
	if c.over {
		return nil
	}
	c.over = true
	return c.rows.Close()
}

// Row is one row of a result. It shares nothing with the database and may be kept.
type Row struct {
	cols   []string
	values []SQLValue
}

// Columns are the names of the columns.
func (r Row) Columns() []string { return append([]string(nil), r.cols...) }

// Scan reads the row as Cursor.Scan does.
func (r Row) Scan(into ...any) error { return scanRow(r.cols, r.values, into) }

// Values are the columns as nil, int64, float64, string and []byte.
func (r Row) Values() []any {
	values := make([]any, len(r.values))
	for i, v := range r.values {
		values[i] = v.Any()
	}
	return values
}

// Map is the columns by name; of two with one name it has the last.
func (r Row) Map() map[string]any {
	m := make(map[string]any, len(r.values))
	for i, v := range r.values {
		m[r.cols[i]] = v.Any()
	}
	return m
}

// SQLError is why SQLite refused a statement, behind an Error with CodeSQL.
type SQLError struct {
	// Code is SQLite's extended result code, such as "SQLITE_CONSTRAINT_UNIQUE".
	Code string
	// Primary is the code's class, such as "SQLITE_CONSTRAINT".
	Primary string
	// Message is SQLite's text, such as "UNIQUE constraint failed: users.name".
	Message string
}

// Error is "<text>: SQLITE_<CODE>" (SPEC H32).
func (e *SQLError) Error() string { return e.Message + ": " + e.Primary }

// SQLRows is what Incarnation.Query returns. For limpet's own packages.
type SQLRows interface {
	// Columns are the names of the columns.
	Columns() []string
	// DeclaredType is the type with which a table declared column i, or empty.
	DeclaredType(i int) string
	// Next reads the next row into row, which has the length of Columns; nil drops
	// it. It is false at the end. After an error Close is left.
	Next(row []SQLValue) (bool, error)
	Result() SQLResult
	// Close ends it. A second one does nothing.
	Close() error
}
