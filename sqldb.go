package limpet

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"strings"
	"sync"
)

// This file is State.DB: database/sql over the statements of Incarnation. A
// "connection" of its pool has no state but the transaction that it began, so that
// any number of them is the object's one connection.

// dbView is the sql.DB of a State, if anybody asked for it.
type dbView struct {
	once sync.Once
	db   *sql.DB
}

// DB is the object's database for libraries that want database/sql, such as what
// sqlc generates. It is SQL under another surface: statements run in the object's
// turn, fail with CodeNoTurn outside of it, and are refused and limited as there. Do
// not close it; it is closed when the object leaves memory. It costs a goroutine
// until then, which SQL does not.
//
// All of its connections are the object's one connection. Begin is what
// Transaction is: the Tx is a part of the turn, and its Commit makes its writes part of the
// turn's one commit, which is made when the object is given away. So a Tx sees and
// takes back what others write meanwhile, also through State and not through the Tx;
// of two that overlap the inner one must end first; while one is open, calls
// through stubs, Await and Sync are refused; and a handler that returns with one
// open resets the object. Rollback is always possible, and the end of the context
// that was given to BeginTx does it, as everywhere. A read-only Tx and isolation
// levels other than the default and sql.LevelSerializable are refused.
//
// Prepare does not look at the statement: what is wrong with it shows at its first
// use. Statements are cached by their text anyway. Rows end with the turn, as a
// Cursor does. A column that a table declared as DATE, DATETIME or TIMESTAMP gives
// its texts as time.Time where they are one. LastInsertId and RowsAffected are those
// of SQLResult.
func (s *State) DB() *sql.DB {
	s.db.once.Do(func() {
		db := sql.OpenDB(dbConnector{s.in})
		s.db.db = db
		s.in.AtEnd(func() { _ = db.Close() })
	})
	return s.db.db
}

type dbConnector struct{ in Incarnation }

func (c dbConnector) Connect(context.Context) (driver.Conn, error) { return &dbConn{in: c.in}, nil }
func (c dbConnector) Driver() driver.Driver                        { return dbDriver{} }

// dbDriver is what sql.DB.Driver shows.
type dbDriver struct{}

// Open refuses: an object's database has no name to open it by.
func (dbDriver) Open(string) (driver.Conn, error) {
	return nil, Errorf(CodeNotSupported, "not supported: opening an object's database by name; use State.DB")
}

// dbConn is a connection of the pool. database/sql uses it by one goroutine at a
// time.
type dbConn struct {
	in  Incarnation
	end func(keep bool) error // of the transaction that it began
}

var _ interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
} = (*dbConn)(nil)

// CheckNamedValue makes SQLite's value of an argument.
func (c *dbConn) CheckNamedValue(nv *driver.NamedValue) error {
	v, err := sqlValue(nv.Value)
	if err != nil {
		return invalid("TypeError", "argument %d: %w", nv.Ordinal, err)
	}
	nv.Value = v.Any()
	return nil
}

func (c *dbConn) query(ctx context.Context, query string, args []driver.NamedValue) (SQLRows, error) {
	list := make([]SQLArg, len(args))
	for i, a := range args {
		v, err := sqlValue(a.Value)
		if err != nil {
			return nil, invalid("TypeError", "argument %d: %w", a.Ordinal, err)
		}
		list[i] = SQLArg{Name: a.Name, Value: v}
	}
	return c.in.Query(ctx, query, list)
}

// ExecContext runs statements to their end.
func (c *dbConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	rows, err := c.query(ctx, query, args)
	if err != nil {
		return nil, err
	}
	for ok := true; ok; {
		if ok, err = rows.Next(nil); err != nil {
			_ = rows.Close()
			return nil, err
		}
	}
	r := rows.Result()
	return dbResult{r}, rows.Close()
}

// QueryContext runs statements and leaves the last one to be read.
func (c *dbConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.query(ctx, query, args)
	if err != nil {
		return nil, err
	}
	cols := rows.Columns()
	return &dbRows{rows: rows, cols: cols, row: make([]SQLValue, len(cols)), times: make([]isTime, len(cols))}, nil
}

// Prepare keeps the text: the object's connection has the statements.
func (c *dbConn) Prepare(query string) (driver.Stmt, error) { return &dbStmt{c, query}, nil }

// Begin is the old form of BeginTx.
func (c *dbConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx begins a transaction within the turn.
func (c *dbConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if o.ReadOnly {
		return nil, Errorf(CodeNotSupported, "not supported: a read-only transaction; an object has one connection, and its turn may write")
	}
	if l := sql.IsolationLevel(o.Isolation); l != sql.LevelDefault && l != sql.LevelSerializable {
		return nil, Errorf(CodeNotSupported, "not supported: isolation level %v; the turn of an object is serializable", l)
	}
	end, err := c.in.BeginTransaction(ctx)
	if err != nil {
		return nil, err
	}
	c.end = end
	return dbTx{c}, nil
}

// Close takes back a transaction that nobody ended.
func (c *dbConn) Close() error {
	if c.end == nil {
		return nil
	}
	return dbTx{c}.Rollback()
}

type dbTx struct{ c *dbConn }

func (t dbTx) finish(keep bool) error {
	end := t.c.end
	t.c.end = nil
	return end(keep)
}

func (t dbTx) Commit() error   { return t.finish(true) }
func (t dbTx) Rollback() error { return t.finish(false) }

type dbStmt struct {
	c     *dbConn
	query string
}

func (s *dbStmt) Close() error { return nil }

// NumInput leaves the count to the statement.
func (s *dbStmt) NumInput() int { return -1 }

func (s *dbStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.c.ExecContext(ctx, s.query, args)
}

func (s *dbStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.c.QueryContext(ctx, s.query, args)
}

// Exec is not called: ExecContext is there.
func (s *dbStmt) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }

// Query is not called: QueryContext is there.
func (s *dbStmt) Query([]driver.Value) (driver.Rows, error) { return nil, driver.ErrSkip }

type dbResult struct{ r SQLResult }

func (r dbResult) LastInsertId() (int64, error) { return r.r.LastInsertID, nil }
func (r dbResult) RowsAffected() (int64, error) { return r.r.RowsAffected, nil }

// isTime says of a column whether its texts are times; zero is not asked yet.
type isTime uint8

const (
	timeNo isTime = 1 + iota
	timeYes
)

type dbRows struct {
	rows  SQLRows
	cols  []string
	row   []SQLValue
	times []isTime
}

func (r *dbRows) Columns() []string { return r.cols }
func (r *dbRows) Close() error      { return r.rows.Close() }

// ColumnTypeDatabaseTypeName is the declared type, without what stands in
// parentheses.
func (r *dbRows) ColumnTypeDatabaseTypeName(i int) string {
	name, _, _ := strings.Cut(r.rows.DeclaredType(i), "(")
	return strings.ToUpper(strings.TrimSpace(name))
}

func (r *dbRows) Next(dest []driver.Value) error {
	ok, err := r.rows.Next(r.row)
	if err != nil {
		return err
	}
	if !ok {
		return io.EOF
	}
	for i := range dest {
		v := &r.row[i]
		dest[i] = v.Any()
		if v.Kind == SQLText && r.hasTimes(i) {
			if t, ok := parseSQLTime(v.Text); ok {
				dest[i] = t
			}
		}
	}
	return nil
}

func (r *dbRows) hasTimes(i int) bool {
	if r.times[i] == 0 {
		r.times[i] = timeNo
		switch r.ColumnTypeDatabaseTypeName(i) {
		case "DATE", "DATETIME", "TIMESTAMP":
			r.times[i] = timeYes
		}
	}
	return r.times[i] == timeYes
}
