package node_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
	"github.com/limpet-dev/limpet/node"
)

// ledger runs functions of the test inside an object.
type ledger struct {
	st   *limpet.State
	work *[]func(context.Context, *limpet.State) error
}

func (l *ledger) Run(ctx context.Context, n int) error { return (*l.work)[n](ctx, l.st) }

// sqlWorld is a node with ledgers.
type sqlWorld struct {
	t    *testing.T
	n    *node.Node
	ns   limpet.Namespace[*ledger]
	work *[]func(context.Context, *limpet.State) error
}

func newSQLWorld(t *testing.T, disk *sim.Disk, l node.Limits) *sqlWorld {
	t.Helper()
	w := &sqlWorld{t: t, work: new([]func(context.Context, *limpet.State) error)}
	n, err := node.Open(t.Context(), node.Config{
		Dir: "data", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Limits: l,
		Classes: []*limpet.Class{limpet.NewClass("Ledger", func(st *limpet.State) (*ledger, error) { return &ledger{st, w.work}, nil })},
	}.OnDisk(disk, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	w.n = n
	if w.ns, err = limpet.NamespaceOf[*ledger](n, "LEDGER"); err != nil {
		t.Fatal(err)
	}
	return w
}

// do runs f in an object's turn; the error is what the caller gets.
func (w *sqlWorld) do(ctx context.Context, object string, f func(context.Context, *limpet.State) error) error {
	*w.work = append(*w.work, f)
	return limpet.Do1(ctx, w.ns.Named(object), (*ledger).Run, len(*w.work)-1)
}

// must runs f in the turn of object "a".
func (w *sqlWorld) must(f func(context.Context, *limpet.State) error) {
	w.t.Helper()
	if err := w.do(w.t.Context(), "a", f); err != nil {
		w.t.Fatal(err)
	}
}

// count is what SELECT count(*) FROM table says.
func (w *sqlWorld) count(table string) (n int) {
	w.t.Helper()
	w.must(func(ctx context.Context, st *limpet.State) error {
		row, err := st.SQL().One(ctx, "SELECT count(*) FROM "+table)
		if err != nil {
			return err
		}
		return row.Scan(&n)
	})
	return n
}

func (w *sqlWorld) exec(query string, args ...any) {
	w.t.Helper()
	w.must(func(ctx context.Context, st *limpet.State) error {
		_, err := st.SQL().Exec(ctx, query, args...)
		return err
	})
}

func TestSQLInObjects(t *testing.T) {
	w := newSQLWorld(t, sim.NewDisk(), node.Limits{})
	var kept *limpet.Cursor
	w.must(func(ctx context.Context, st *limpet.State) error {
		db := st.SQL()
		if _, err := db.Exec(ctx, "CREATE TABLE entries(id INTEGER PRIMARY KEY, what TEXT, amount INT, at TEXT)"); err != nil {
			return err
		}
		r, err := db.Exec(ctx, "INSERT INTO entries(what, amount) VALUES(?,?),(?,?)", "rent", -900, "pay", 2000)
		if err != nil || r.LastInsertID != 2 || r.RowsAffected != 2 || r.RowsWritten != 2 {
			return fmt.Errorf("insert: %+v, %w", r, err)
		}
		// SPEC H30: the cursor.
		c, err := db.Query(ctx, "SELECT id, what, amount FROM entries ORDER BY id")
		if err != nil {
			return err
		}
		if got := fmt.Sprint(c.Columns()); got != "[id what amount]" {
			t.Error(got)
		}
		if err := c.Scan(new(int)); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("Scan before Next: %v", err)
		}
		var id int
		var what string
		if !c.Next() || c.Scan(&id, &what, nil) != nil || id != 1 || what != "rent" {
			t.Errorf("first row: %d %q %v", id, what, c.Err())
		}
		if raw := c.Row().Values(); fmt.Sprint(raw) != "[1 rent -900]" {
			t.Errorf("raw row: %v", raw)
		}
		left, err := c.All()
		if err != nil || len(left) != 1 || fmt.Sprint(left[0].Map()) != "map[amount:2000 id:2 what:pay]" {
			t.Errorf("the rest: %v, %v", left, err)
		}
		if c.Next() || c.Err() != nil || c.Close() != nil || c.Stats().RowsRead != 2 {
			t.Errorf("after the end: %v, %+v", c.Err(), c.Stats())
		}
		for i, q := range []string{"SELECT 1 WHERE 0", "SELECT 1 UNION SELECT 2"} {
			_, err := db.One(ctx, q)
			want := [...]string{"Expected exactly one result from SQL query, but got no results.", "Expected exactly one result from SQL query, but got multiple results."}[i]
			if err == nil || err.Error() != want || limpet.CodeOf(err) != limpet.CodeSQL {
				t.Errorf("One of %s: %v", q, err)
			}
		}
		sum := 0
		for row, err := range db.Rows(ctx, "SELECT amount FROM entries") {
			var n int
			if err := errors.Join(err, row.Scan(&n)); err != nil {
				return err
			}
			sum += n
			// The State may be used in the loop.
			if _, err := db.Exec(ctx, "UPDATE entries SET what=upper(what) WHERE amount=?", n); err != nil {
				return err
			}
		}
		for _, err := range db.Rows(ctx, "SELECT nonsense") {
			if limpet.CodeOf(err) != limpet.CodeSQL {
				t.Errorf("rows of nonsense: %v", err)
			}
		}
		if sum != 1100 {
			t.Errorf("sum %d", sum)
		}
		if n, err := db.DatabaseSize(); err != nil || n < 2048 {
			t.Errorf("size %d, %v", n, err)
		}
		kept, err = db.Query(ctx, "SELECT id FROM entries")
		if err != nil || !kept.Next() {
			t.Errorf("%v", err)
		}
		return nil
	})
	// After the turn a cursor is over, and the object's data is out of reach.
	if kept.Next() || limpet.CodeOf(kept.Err()) != limpet.CodeNoTurn {
		t.Errorf("a cursor after its turn: %v", kept.Err())
	}
	w.must(func(ctx context.Context, st *limpet.State) error {
		c, err := st.SQL().Query(ctx, "SELECT id FROM entries")
		if err != nil || !c.Next() {
			return fmt.Errorf("first row: %w", err)
		}
		if err := st.Await(ctx, func(ctx context.Context) error {
			_, err := st.SQL().Exec(ctx, "SELECT 1")
			if limpet.CodeOf(err) != limpet.CodeNoTurn {
				t.Errorf("SQL inside Await: %v", err)
			}
			return nil
		}); err != nil {
			return err
		}
		if c.Next() || limpet.CodeOf(c.Err()) != limpet.CodeNoTurn || !strings.Contains(c.Err().Error(), "Await") {
			t.Errorf("a cursor after Await: %v", c.Err())
		}
		return c.Close()
	})
	// Stub.Start commits too, and keeps the object.
	w.must(func(ctx context.Context, st *limpet.State) error {
		c, err := st.SQL().Query(ctx, "SELECT id FROM entries")
		if err != nil || !c.Next() {
			return fmt.Errorf("first row: %w", err)
		}
		p := w.ns.Named("b").Start(ctx, "nothing")
		defer p.Close()
		if c.Next() || limpet.CodeOf(c.Err()) != limpet.CodeNoTurn {
			t.Errorf("a cursor after Start: %v", c.Err())
		}
		return c.Close()
	})
	// A constraint reaches the caller as the method's own error, with SQLite's text.
	err := w.do(t.Context(), "a", func(ctx context.Context, st *limpet.State) error {
		_, err := st.SQL().Exec(ctx, "INSERT INTO entries(id) VALUES(1)")
		if e, ok := errors.AsType[*limpet.SQLError](err); !ok || e.Code != "SQLITE_CONSTRAINT_PRIMARYKEY" {
			t.Errorf("%v", err)
		}
		return err
	})
	if limpet.CodeOf(err) != limpet.CodeSQL || err.Error() != "UNIQUE constraint failed: entries.id: SQLITE_CONSTRAINT" {
		t.Errorf("caller gets %v (%s)", err, limpet.CodeOf(err))
	}
	// It is all there after an eviction.
	id, err := w.ns.IDFromName("a")
	if err != nil || !w.n.Evict(id) {
		t.Fatal("not evicted", err)
	}
	if n := w.count("entries WHERE what IN ('RENT','PAY')"); n != 2 {
		t.Errorf("%d rows", n)
	}
}

// TestSQLTurns: what is committed, and what is not.
func TestSQLTurns(t *testing.T) {
	w := newSQLWorld(t, sim.NewDisk(), node.Limits{})
	w.exec("CREATE TABLE t(a UNIQUE); CREATE TABLE p(a PRIMARY KEY); CREATE TABLE c(a REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
	insert := func(ctx context.Context, st *limpet.State, v any) error {
		_, err := st.SQL().Exec(ctx, "INSERT INTO t VALUES(?)", v)
		return err
	}
	own := errors.New("own")

	// SPEC H31, H25: transactionSync, nested.
	w.must(func(ctx context.Context, st *limpet.State) error {
		if err := st.Transaction(func() error {
			if err := errors.Join(insert(ctx, st, 1), st.KV().Put("k", 1)); err != nil {
				return err
			}
			if err := st.Transaction(func() error { return errors.Join(insert(ctx, st, 2), st.KV().Put("k", 2), own) }); !errors.Is(err, own) {
				t.Errorf("inner: %v", err)
			}
			return insert(ctx, st, 3)
		}); err != nil {
			return err
		}
		if err := st.Transaction(func() error { return errors.Join(insert(ctx, st, 4), own) }); !errors.Is(err, own) {
			t.Errorf("outer: %v", err)
		}
		var k int
		if _, err := st.KV().Get("k", &k); err != nil || k != 1 {
			t.Errorf("k is %d, %v", k, err)
		}
		return nil
	})
	if n := w.count("t WHERE a IN (1,3)"); n != 2 || w.count("t") != 2 {
		t.Errorf("%d of 2 rows, of %d", n, w.count("t"))
	}
	// An error of the method commits (SPEC H9), a panic does not.
	if err := w.do(t.Context(), "a", func(ctx context.Context, st *limpet.State) error { return errors.Join(insert(ctx, st, 5), own) }); err == nil {
		t.Error("no error")
	}
	if err := w.do(t.Context(), "a", func(ctx context.Context, st *limpet.State) error {
		if err := errors.Join(insert(ctx, st, 6), st.KV().Put("k", 6)); err != nil {
			return err
		}
		panic("on purpose")
	}); limpet.CodeOf(err) != limpet.CodeReset {
		t.Errorf("a panic: %v", err)
	}
	if n := w.count("t"); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
	// A turn that SQLite refuses to commit: the reply is an error, nothing of it stays.
	err := w.do(t.Context(), "a", func(ctx context.Context, st *limpet.State) error {
		if err := errors.Join(insert(ctx, st, 7), st.KV().Put("k", 7)); err != nil {
			return err
		}
		_, err := st.SQL().Exec(ctx, "INSERT INTO c VALUES('nobody')")
		return err
	})
	e, ok := errors.AsType[*limpet.Error](err)
	if !ok || e.Code != limpet.CodeSQL || !e.Reset || e.Delivery != limpet.DeliveryReceived || !strings.Contains(err.Error(), "foreign key") {
		t.Errorf("a deferred foreign key: %v", err)
	}
	if n := w.count("t"); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
	// A statement that takes the turn with it.
	err = w.do(t.Context(), "a", func(ctx context.Context, st *limpet.State) error {
		if err := insert(ctx, st, 8); err != nil {
			return err
		}
		if _, err := st.SQL().Exec(ctx, "INSERT OR ROLLBACK INTO t VALUES(8)"); limpet.CodeOf(err) != limpet.CodeSQL {
			t.Errorf("OR ROLLBACK: %v", err)
		}
		if err := st.KV().Put("k", 8); err == nil {
			t.Error("a put into a broken turn")
		}
		return nil
	})
	if e, ok := errors.AsType[*limpet.Error](err); !ok || !e.Reset || e.Code != limpet.CodeSQL || !strings.Contains(err.Error(), "UNIQUE") {
		t.Errorf("a broken turn: %v", err)
	}
	if n := w.count("t"); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}

// TestSQLInterrupts: a caller that gives up ends a read; a reset ends anything.
func TestSQLInterrupts(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	const endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) "
	w := newSQLWorld(t, sim.NewDisk(), node.Limits{SQLTime: time.Hour})
	w.exec("CREATE TABLE t(a)")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	inner := make(chan error, 3)
	if err := w.do(ctx, "a", func(ctx context.Context, st *limpet.State) error {
		if _, err := st.SQL().Exec(ctx, "INSERT INTO t VALUES(1)"); err != nil {
			return err
		}
		cancel()
		_, err := st.SQL().Exec(ctx, endless+"SELECT i FROM n")
		inner <- err
		return nil
	}); limpet.CodeOf(err) != limpet.CodeCanceled {
		t.Errorf("the caller that gave up: %v", err)
	}
	if err := <-inner; limpet.CodeOf(err) != limpet.CodeCanceled || !errors.Is(err, context.Canceled) {
		t.Errorf("the read of the caller that gave up: %v", err)
	}
	if n := w.count("t"); n != 1 { // the turn went on
		t.Errorf("%d rows", n)
	}
	// Two writes that never end: closing the node does.
	begun := make(chan struct{})
	for _, q := range []string{"INSERT INTO t SELECT i FROM n WHERE i<0", "SELECT i FROM n"} {
		go func() {
			_ = w.do(context.WithoutCancel(t.Context()), q, func(ctx context.Context, st *limpet.State) error {
				if _, err := st.SQL().Exec(ctx, "CREATE TABLE t(a)"); err != nil {
					return err
				}
				begun <- struct{}{}
				_, err := st.SQL().Exec(ctx, endless+q)
				inner <- err
				return err
			})
		}()
		<-begun
	}
	if err := w.n.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-inner; limpet.CodeOf(err) != limpet.CodeDisconnected && limpet.CodeOf(err) != limpet.CodeReset {
			t.Errorf("a statement that the node ended: %v (%s)", err, limpet.CodeOf(err))
		}
	}
}

func TestSQLValues(t *testing.T) {
	w := newSQLWorld(t, sim.NewDisk(), node.Limits{SQLColumns: 5})
	now := time.Date(2026, 11, 30, 21, 41, 20, 123456789, time.FixedZone("X", 3600))
	w.must(func(ctx context.Context, st *limpet.State) error {
		db := st.SQL()
		type text string
		three := 3
		for i, tt := range []struct{ in, want any }{
			{nil, nil}, {true, int64(1)}, {false, int64(0)}, {int8(-3), int64(-3)}, {uint16(3), int64(3)}, {1.5, 1.5}, {float32(0.5), 0.5},
			{"", ""}, {"a\x00b", "a\x00b"}, {text("t"), "t"}, {[]byte{}, []byte{}}, {[]byte(nil), nil}, {[]byte{0, 255}, []byte{0, 255}},
			{json.RawMessage(`{}`), `{}`}, {limpet.JSON(map[string]int{"a": 1}), `{"a":1}`}, {&three, int64(3)}, {(*int)(nil), nil},
			{sql.NullString{}, nil}, {sql.NullInt64{Int64: 4, Valid: true}, int64(4)}, {now, "2026-11-30 20:41:20.123456789Z"},
			{int64(-1 << 63), int64(-1 << 63)}, {uint64(1<<63 - 1), int64(1<<63 - 1)},
		} {
			row, err := db.One(ctx, "SELECT ?", tt.in)
			if err != nil {
				t.Errorf("%d: %T: %v", i, tt.in, err)
				continue
			}
			if got := row.Values()[0]; fmt.Sprintf("%T %v", got, got) != fmt.Sprintf("%T %v", tt.want, tt.want) {
				t.Errorf("%d: %T %v became %T %v", i, tt.in, tt.in, got, got)
			}
		}
		for _, bad := range []any{uint64(1 << 63), struct{}{}, []int{1}, func() {}, limpet.Undefined{}, limpet.JSON(func() {}), zero() / zero(), sql.Named("a", sql.Named("b", 1))} {
			if _, err := db.One(ctx, "SELECT :a", bad); limpet.CodeOf(err) != limpet.CodeInvalidArgument || !strings.Contains(err.Error(), "argument 1") {
				t.Errorf("argument %T: %v", bad, err)
			}
		}
		var none context.Context
		if _, err := db.One(none, "SELECT 1"); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("a nil context: %v", err)
		}

		row, err := db.One(ctx, "SELECT 7, 1.5, 'text', x'01', NULL")
		if err != nil {
			return err
		}
		var (
			i   int
			u8  uint8
			i64 int64
			f   float64
			s   string
			ts  text
			b   []byte
			pi  *int
			dyn any
			ns  sql.NullString
			ok  bool
			at  time.Time
			m   map[string]int
		)
		for _, tt := range []struct {
			into []any
			fine bool
		}{
			{[]any{&i, &f, &s, &b, &pi}, true}, {[]any{&u8, &f, &ts, &dyn, &dyn}, true}, {[]any{&i64, nil, &b, nil, &ns}, true},
			{[]any{&f, nil, &dyn, nil, &b}, true}, {[]any{&at, nil, nil, nil, limpet.JSON(&m)}, true},
			{[]any{&s, nil, nil, nil, nil}, false}, {[]any{nil, &i, nil, nil, nil}, false}, {[]any{nil, nil, &i, nil, nil}, false},
			{[]any{nil, nil, nil, &s, nil}, false}, {[]any{nil, nil, nil, nil, &i}, false}, {[]any{nil, nil, nil, nil, &s}, false},
			{[]any{&ok, nil, nil, nil, nil}, false}, {[]any{nil, nil, &at, nil, nil}, false}, {[]any{i, nil, nil, nil, nil}, false},
			{[]any{(*int)(nil), nil, nil, nil, nil}, false}, {[]any{&i}, false}, {[]any{nil, nil, limpet.JSON(&m), nil, nil}, false},
		} {
			if err := row.Scan(tt.into...); (err == nil) != tt.fine || err != nil && limpet.CodeOf(err) != limpet.CodeInvalidArgument {
				t.Errorf("%T: %v", tt.into, err)
			}
		}
		if i != 7 || u8 != 7 || i64 != 7 || s != "text" || ts != "text" || pi != nil || ns.Valid || f != 7 {
			t.Error("scanned", i, u8, i64, s, ts, pi, ns, f)
		}
		row, err = db.One(ctx, "SELECT 300, -1, json('{\"a\":5}'), ?", now)
		if err != nil {
			return err
		}
		if err := row.Scan(&u8, nil, nil, nil); err == nil {
			t.Error("300 fits a byte")
		}
		var u uint
		if err := row.Scan(nil, &u, nil, nil); err == nil {
			t.Error("-1 fits a uint")
		}
		if err := row.Scan(nil, nil, limpet.JSON(&m), &at); err != nil || m["a"] != 5 || !at.Equal(now) {
			t.Errorf("JSON %v, time %v, %v", m, at, err)
		}
		if _, err := db.One(ctx, "SELECT 1,2,3,4,5,6"); limpet.CodeOf(err) != limpet.CodeTooLarge || !strings.Contains(err.Error(), "5") {
			t.Errorf("a limit of the configuration: %v", err)
		}
		return nil
	})
	if _, err := node.Open(t.Context(), node.Config{Classes: []*limpet.Class{limpet.NewClass("Ledger", func(st *limpet.State) (*ledger, error) { return nil, nil })}, Limits: node.Limits{SQLColumns: 3000}}); err == nil || !strings.Contains(err.Error(), "Columns") {
		t.Errorf("a limit beyond SQLite's: %v", err)
	}
}

func zero() float64 { return 0 }

func TestSQLDB(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	w := newSQLWorld(t, sim.NewDisk(), node.Limits{})
	w.exec("CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, at DATETIME, ok BOOLEAN)")
	now := time.Date(2026, 11, 30, 21, 0, 0, 0, time.UTC)
	var kept *sql.DB
	own := errors.New("own")
	w.must(func(ctx context.Context, st *limpet.State) error {
		db := st.DB()
		if kept = st.DB(); kept != db {
			t.Error("another DB")
		}
		r, err := db.ExecContext(ctx, "INSERT INTO t(b, at, ok) VALUES(?, ?, ?)", "x", now, true)
		if err != nil {
			return err
		}
		id, _ := r.LastInsertId()
		n, _ := r.RowsAffected()
		if id != 1 || n != 1 {
			t.Errorf("id %d, %d rows", id, n)
		}
		var b string
		var at time.Time
		var ok bool
		if err := db.QueryRowContext(ctx, "SELECT b, at, ok FROM t WHERE a=:a", sql.Named("a", 1)).Scan(&b, &at, &ok); err != nil || b != "x" || !at.Equal(now) || !ok {
			t.Errorf("%q %v %v, %v", b, at, ok, err)
		}
		if err := db.QueryRowContext(ctx, "SELECT 1 WHERE 0").Scan(&b); !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("no rows: %v", err)
		}
		st2, err := db.PrepareContext(ctx, "INSERT INTO t(b) VALUES(?) RETURNING a, at")
		if err != nil {
			return err
		}
		defer func() { _ = st2.Close() }()
		for i := range 3 {
			if err := st2.QueryRowContext(ctx, "p").Scan(&id, new(any)); err != nil || id != int64(i+2) {
				t.Errorf("prepared: %d, %v", id, err)
			}
		}
		// A transaction is a savepoint of the turn.
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM t"); err != nil {
			return err
		}
		if err := st.Sync(ctx); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("Sync in a Tx: %v", err)
		}
		if err := st.KV().Put("k", 1); err != nil { // in it too
			return err
		}
		if err := tx.Rollback(); err != nil {
			return err
		}
		if has, err := st.KV().Has("k"); has || err != nil {
			t.Errorf("a put of a Tx that was rolled back: %v, %v", has, err)
		}
		// Nested in each other, and in State.Transaction.
		outer, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
		if err != nil {
			return err
		}
		inner, err := db.Begin()
		if err != nil {
			return err
		}
		if _, err := inner.Exec("INSERT INTO t(b) VALUES('inner')"); err != nil {
			return err
		}
		if err := inner.Commit(); err != nil {
			return err
		}
		if err := outer.Commit(); err != nil {
			return err
		}
		if err := st.Transaction(func() error {
			tx, err := db.Begin()
			if err != nil {
				return err
			}
			if _, err := tx.Exec("DELETE FROM t"); err != nil {
				return err
			}
			return errors.Join(tx.Commit(), own)
		}); !errors.Is(err, own) {
			t.Errorf("Transaction: %v", err)
		}
		// Ended in the wrong order.
		outer, err = db.Begin()
		if err != nil {
			return err
		}
		inner, err = db.Begin()
		if err != nil {
			return err
		}
		if _, err := inner.Exec("DELETE FROM t"); err != nil {
			return err
		}
		if err := outer.Commit(); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("the outer Tx ended first: %v", err)
		}
		if err := inner.Commit(); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("the inner Tx after it: %v", err)
		}
		// One forgotten in State.Transaction.
		if err := st.Transaction(func() error {
			inner, err = db.Begin()
			if err == nil {
				_, err = inner.Exec("DELETE FROM t")
			}
			return err
		}); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("a Tx forgotten in Transaction: %v", err)
		}
		if err := inner.Rollback(); err != nil {
			t.Errorf("Rollback of the forgotten one: %v", err)
		}
		for _, o := range []*sql.TxOptions{{ReadOnly: true}, {Isolation: sql.LevelReadCommitted}} {
			if _, err := db.BeginTx(ctx, o); limpet.CodeOf(err) != limpet.CodeNotSupported {
				t.Errorf("%+v: %v", o, err)
			}
		}
		// The end of a Tx's context takes it back.
		short, cancel := context.WithCancel(ctx)
		defer cancel()
		tx, err = db.BeginTx(short, nil)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM t"); err != nil {
			return err
		}
		cancel()
		for tx.Commit() == nil {
			t.Error("committed after its context ended")
		}
		rows, err := db.QueryContext(ctx, "SELECT a FROM t")
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		got := 0
		for rows.Next() {
			got++
		}
		if got != 5 || rows.Err() != nil {
			t.Errorf("%d rows, %v", got, rows.Err())
		}
		if _, err := db.QueryContext(ctx, "COMMIT"); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("COMMIT: %v", err)
		}
		if _, err := db.Driver().Open("x"); limpet.CodeOf(err) != limpet.CodeNotSupported {
			t.Errorf("Open: %v", err)
		}
		return nil
	})
	if _, err := kept.Exec("SELECT 1"); limpet.CodeOf(err) != limpet.CodeNoTurn {
		t.Errorf("outside of the turn: %v", err)
	}
	if _, err := kept.Begin(); limpet.CodeOf(err) != limpet.CodeNoTurn {
		t.Errorf("Begin outside of the turn: %v", err)
	}
	// A handler that forgets one.
	err := w.do(t.Context(), "a", func(ctx context.Context, st *limpet.State) error {
		tx, err := st.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM t")
		return err
	})
	if limpet.CodeOf(err) != limpet.CodeReset || !strings.Contains(err.Error(), "transaction") {
		t.Errorf("a forgotten Tx: %v", err)
	}
	if n := w.count("t"); n != 5 {
		t.Errorf("%d rows, want 5", n)
	}
	if err := kept.Ping(); err == nil {
		t.Error("the DB of an incarnation that was reset is open")
	}
}

// TestSQLPowerCut: what was answered is there, SQL and key-value data together.
func TestSQLPowerCut(t *testing.T) {
	disk := sim.NewDisk()
	w := newSQLWorld(t, disk, node.Limits{})
	w.exec("CREATE TABLE t(a)")
	for i := range 20 {
		w.must(func(ctx context.Context, st *limpet.State) error {
			if err := st.KV().Put("n", i); err != nil {
				return err
			}
			_, err := st.SQL().Exec(ctx, "INSERT INTO t VALUES(?)", i)
			return err
		})
	}
	w = newSQLWorld(t, disk.CutPower(0, 1), node.Limits{})
	w.must(func(ctx context.Context, st *limpet.State) error {
		var n, rows, last int
		if _, err := st.KV().Get("n", &n); err != nil {
			return err
		}
		row, err := st.SQL().One(ctx, "SELECT count(*), max(a) FROM t")
		if err == nil {
			err = row.Scan(&rows, &last)
		}
		if n != 19 || rows != 20 || last != 19 {
			t.Errorf("n %d, %d rows, last %d", n, rows, last)
		}
		return err
	})
}
