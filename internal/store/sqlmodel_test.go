package store

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"zombiezen.com/go/sqlite"

	"github.com/limpet-dev/limpet"
)

var sqlSeeds = flag.Int("sqlseeds", 30, "how many seeds TestSQLModel plays; 5 with -short")

// TestSQLModel runs random statements on an object and on SQLite alone, in memory,
// with turns, transactions, cursors, sleep and restarts between them: every result
// and every error must be the same.
func TestSQLModel(t *testing.T) {
	seeds := *sqlSeeds
	if testing.Short() {
		seeds = min(seeds, 5)
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			newSQLModel(t, uint64(seed)).play(300)
		})
	}
}

type sqlModel struct {
	t     *testing.T
	r     *rand.Rand
	disk  *disk
	s     *Store
	o     *Object
	alone *sqlite.Conn
	depth int
	oks   int
	fails map[string]int
}

func newSQLModel(t *testing.T, seed uint64) *sqlModel {
	m := &sqlModel{t: t, r: rand.New(rand.NewPCG(seed, 3)), disk: newCrashableDisk(), fails: map[string]int{}}
	var err error
	if m.alone, err = sqlite.OpenConn(":memory:", sqlite.OpenReadWrite); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.alone.Close() })
	m.reference("PRAGMA foreign_keys=ON")
	m.reference("BEGIN")
	m.open()
	return m
}

func (m *sqlModel) open() {
	m.s = openStore(m.t, testOptions(m.disk))
	m.o = openObject(m.t, m.s, 1)
}

// reference runs one statement on SQLite alone; its error is a result code.
func (m *sqlModel) reference(query string) (string, sqlite.ResultCode) {
	st, _, err := m.alone.PrepareTransient(query)
	if err != nil {
		return "", sqlite.ErrCode(err)
	}
	defer func() { _ = st.Finalize() }()
	var b strings.Builder
	for {
		ok, err := st.Step()
		if err != nil || !ok {
			return b.String(), sqlite.ErrCode(err)
		}
		for i := range st.ColumnCount() {
			if i > 0 {
				b.WriteByte(' ')
			}
			switch st.ColumnType(i) {
			case sqlite.TypeNull:
				b.WriteString("<nil>")
			case sqlite.TypeBlob:
				fmt.Fprint(&b, columnBytes(st, i))
			case sqlite.TypeFloat:
				fmt.Fprint(&b, st.ColumnFloat(i))
			default:
				b.WriteString(st.ColumnText(i))
			}
		}
		b.WriteByte('\n')
	}
}

// both runs a statement on both sides.
func (m *sqlModel) both(query string) {
	m.t.Helper()
	if strings.HasPrefix(query, "DROP") { // is refused while a cursor is open
		m.o.EndCursors()
	}
	got, err := try(m.o, query)
	want, code := m.reference(query)
	if err == nil && code == sqlite.ResultOK {
		m.oks++
		if got != want {
			m.t.Fatalf("%s: %q, want %q", query, got, want)
		}
		return
	}
	e, ok := errors.AsType[*limpet.SQLError](err)
	if !ok || e.Code != code.String() {
		m.t.Fatalf("%s: error %v, want %v", query, err, code)
	}
	m.fails[e.Code]++
}

func (m *sqlModel) play(ops int) {
	for range ops {
		if m.t.Failed() {
			return
		}
		switch x := m.r.IntN(100); {
		case x < 5:
			m.endTurn("COMMIT")
		case x < 8:
			m.endTurn("ROLLBACK")
		case x < 16 && m.depth < 3:
			m.transaction()
		case x < 18 && m.depth == 0:
			m.endTurn("COMMIT")
			must(m.t, m.o.Sleep())
		case x < 19 && m.depth == 0:
			m.endTurn("COMMIT")
			must(m.t, m.o.Close())
			must(m.t, m.s.Close())
			m.open()
		case x < 23: // something reads while others write
			if _, err := open(m.o, "SELECT 1 FROM json_each('[1,2,3]')"); err != nil {
				m.t.Fatal(err)
			}
			if m.r.IntN(2) == 0 {
				m.o.EndCursors()
			}
		default:
			m.both(m.statement())
		}
	}
	for m.depth > 0 {
		m.t.Fatal("a transaction is left")
	}
	m.compare()
	m.endTurn("COMMIT")
	integrity(m.t, m.o)
	m.t.Logf("%d statements, failed %v", m.oks, m.fails)
	if m.oks < ops/4 {
		m.t.Errorf("only %d statements of %d did something", m.oks, ops)
	}
}

func (m *sqlModel) endTurn(how string) {
	m.t.Helper()
	if m.depth > 0 {
		return
	}
	var err error
	if how == "COMMIT" {
		_, err = m.o.Commit(nil)
	} else {
		err = m.o.Rollback()
	}
	_, code := m.reference(how)
	if code != sqlite.ResultOK {
		m.reference("ROLLBACK")
	}
	m.reference("BEGIN")
	if (err != nil) != (code != sqlite.ResultOK) {
		m.t.Fatalf("%s: %v, want %v", how, err, code)
	}
	m.compare()
}

func (m *sqlModel) compare() {
	m.t.Helper()
	m.both("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE '\\_limpet%' ESCAPE '\\' ORDER BY 1,2")
	for _, q := range []string{"SELECT * FROM t ORDER BY 1", "SELECT rowid, * FROM u ORDER BY 1", "SELECT * FROM l ORDER BY rowid", "SELECT * FROM w", "SELECT rowid FROM f('a OR b') ORDER BY 1"} {
		m.both(q)
	}
}

func (m *sqlModel) transaction() {
	keep := m.r.IntN(2) == 0
	m.reference(fmt.Sprintf("SAVEPOINT s%d", m.depth))
	m.depth++
	err := m.o.Transaction(func() error {
		for range m.r.IntN(6) {
			if m.r.IntN(8) == 0 && m.depth < 3 {
				m.transaction()
				continue
			}
			m.both(m.statement())
		}
		if keep {
			return nil
		}
		return errRollback
	})
	m.depth--
	if keep != (err == nil) {
		m.t.Fatalf("transaction: %v", err)
	}
	if !keep {
		m.reference(fmt.Sprintf("ROLLBACK TO s%d", m.depth))
	}
	m.reference(fmt.Sprintf("RELEASE s%d", m.depth))
}

// statement makes one up.
func (m *sqlModel) statement() string {
	r := m.r
	n := func(max int) int { return r.IntN(max) }
	text := func() string { return "'" + strings.Repeat(string(rune('a'+n(5))), n(8)) + "'" }
	value := func() string {
		switch n(6) {
		case 0:
			return "NULL"
		case 1:
			return fmt.Sprint(n(50))
		case 2:
			return fmt.Sprintf("%d.5", n(50))
		case 3:
			return fmt.Sprintf("zeroblob(%d)", n(4000))
		case 4:
			return fmt.Sprintf("json_object('n',%d)", n(9))
		}
		return text()
	}
	where := func() string {
		return [...]string{
			fmt.Sprintf("a=%d", n(40)), fmt.Sprintf("a BETWEEN %d AND %d", n(40), n(40)), "b=" + text(), "c IS NULL",
			"typeof(c)='text'", fmt.Sprintf("a IN (SELECT r FROM u WHERE d<%d)", n(20)), "b GLOB '[ab]*'",
		}[n(7)]
	}
	switch n(24) {
	case 0:
		return "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT UNIQUE, c, CHECK(a<60))"
	case 1:
		return "CREATE TABLE u(r REFERENCES t(a) ON DELETE CASCADE ON UPDATE SET NULL DEFERRABLE INITIALLY DEFERRED, d INT)"
	case 2:
		return "CREATE TABLE l(what)"
	case 3:
		return "CREATE TRIGGER tr AFTER " + [...]string{"INSERT", "DELETE", "UPDATE"}[n(3)] + " ON t BEGIN INSERT INTO l VALUES('t'); END"
	case 4:
		return "CREATE VIRTUAL TABLE f USING fts5(x)"
	case 5:
		return "CREATE VIEW w AS SELECT count(*) AS n, sum(a) AS s, max(b) AS m FROM t"
	case 6:
		return [...]string{"DROP TABLE u", "DROP TRIGGER tr", "DROP VIEW w", "CREATE INDEX tc ON t(c,b)", "DROP INDEX tc", "REINDEX", "ANALYZE"}[n(7)]
	case 7:
		return [...]string{"ALTER TABLE l ADD COLUMN x DEFAULT 3", "ALTER TABLE l DROP COLUMN x", "ALTER TABLE l RENAME COLUMN what TO thing", "ALTER TABLE l RENAME COLUMN thing TO what"}[n(4)]
	case 8, 9, 10:
		return fmt.Sprintf("INSERT %s INTO t(a,b,c) VALUES(%d,%s,%s),(NULL,%s,%s)", [...]string{"", "OR IGNORE", "OR REPLACE", "OR FAIL"}[n(4)], n(70), text(), value(), text(), value())
	case 11:
		return fmt.Sprintf("INSERT INTO t(a,b,c) VALUES(%d,%s,%s) ON CONFLICT(a) DO UPDATE SET c=excluded.c RETURNING a, c", n(50), text(), value())
	case 12:
		return fmt.Sprintf("INSERT INTO u VALUES(%d,%d)", n(50), n(30))
	case 13:
		return fmt.Sprintf("INSERT INTO u SELECT a, a%%7 FROM t WHERE %s", where())
	case 14:
		return fmt.Sprintf("UPDATE t SET c=%s WHERE %s", value(), where())
	case 15:
		return fmt.Sprintf("UPDATE t SET a=a+%d WHERE %s RETURNING a", n(5), where())
	case 16:
		return fmt.Sprintf("DELETE FROM t WHERE %s", where())
	case 17:
		return fmt.Sprintf("DELETE FROM u WHERE d<%d OR r NOT IN (SELECT a FROM t)", n(10))
	case 18:
		return fmt.Sprintf("INSERT INTO f VALUES(%s||' '||%s)", text(), text())
	case 19:
		return fmt.Sprintf("DELETE FROM f WHERE rowid=%d", n(20))
	case 20:
		return fmt.Sprintf("SELECT a, b, c FROM t WHERE %s ORDER BY a", where())
	case 21:
		return "SELECT b, count(*), total(d) FROM t LEFT JOIN u ON r=a GROUP BY a ORDER BY a"
	case 22:
		return "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i+1 FROM n WHERE i<9) SELECT i, (SELECT max(a) FROM t WHERE a<=i) FROM n"
	default:
		return "SELECT highlight(f,0,'<','>') FROM f WHERE f MATCH 'a OR bb' ORDER BY rowid"
	}
}

// FuzzSQL: no text of a user's may crash the process, reach limpet's own tables, or
// hurt the database.
func FuzzSQL(f *testing.F) {
	r := &sqlModel{r: rand.New(rand.NewPCG(1, 1))}
	for range 30 {
		f.Add(r.statement(), "x", int64(1))
	}
	for _, q := range []string{
		"SELECT ?1, :name", "PRAGMA table_info(t)", "ALTER TABLE t RENAME TO _limpet_x", "EXPLAIN SELECT 1", "-- nothing", "/*", "SELECT 1;;SELECT 2",
		"CREATE TABLE x(a); ROLLBACK", "INSERT OR ROLLBACK INTO t VALUES(1,2,3)", "SELECT json('[[[', ?)", "SELECT * FROM _limpet_kv", "\x00", "SELECT '\x00'",
	} {
		f.Add(q, "", int64(0))
	}
	s := openStore(f, Options{FS: newCrashableDisk().fs, Dir: "data", Clock: systemClock{}, SegmentSize: testSegment * 100, Limits: Limits{Time: 1e8, Database: 4 << 20}})
	n := 0
	f.Fuzz(func(t *testing.T, query, text string, number int64) {
		n++
		o := openObject(t, s, n%1000)
		must(t, o.Put("secret", []byte("v")))
		run(t, o, "CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, b TEXT UNIQUE, c)")
		if _, err := o.Commit(nil); err != nil {
			t.Skip(err) // the database is full of what came before
		}
		for _, args := range [][]any{nil, {text}, {text, number}} {
			if c, err := open(o, query, args...); err == nil {
				for row := make([]limpet.SQLValue, len(c.Columns())); c.given < 1000; {
					if ok, err := c.Next(row); !ok || err != nil {
						break
					}
				}
				must(t, c.Close())
			}
			if o.broken != nil {
				must(t, o.Rollback())
			}
		}
		v, ok, err := o.Get("secret")
		if err != nil || !ok || string(v) != "v" {
			t.Errorf("the key-value data is %q, %v, %v", v, ok, err)
		}
		if rng := n % 4; rng == 0 {
			must(t, o.Rollback())
		} else if _, err := o.Commit(nil); err != nil && o.Dirty() {
			t.Errorf("commit: %v", err)
		}
		if n%8 == 0 {
			checkIntegrity(t, o)
		}
		must(t, o.Close())
	})
}
