package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// sqlArg makes a value of a Go value.
func sqlArg(v any) limpet.SQLArg {
	var x limpet.SQLValue
	switch v := v.(type) {
	case int:
		x = limpet.SQLValue{Kind: limpet.SQLInteger, Integer: int64(v)}
	case float64:
		x = limpet.SQLValue{Kind: limpet.SQLReal, Real: v}
	case string:
		x = limpet.SQLValue{Kind: limpet.SQLText, Text: v}
	case []byte:
		x = limpet.SQLValue{Kind: limpet.SQLBlob, Blob: v}
	}
	return limpet.SQLArg{Value: x}
}

func sqlArgs(args []any) []limpet.SQLArg {
	var list []limpet.SQLArg
	for _, a := range args {
		list = append(list, sqlArg(a))
	}
	return list
}

func open(o *Object, query string, args ...any) (*Cursor, error) {
	c, _, err := o.Query(context.Background(), query, sqlArgs(args))
	return c, err
}

// rest reads a cursor to its end, one line a row.
func rest(c *Cursor) (string, error) {
	var b strings.Builder
	for {
		row := make([]limpet.SQLValue, len(c.Columns()))
		ok, err := c.Next(row)
		if err != nil || !ok {
			return b.String(), err
		}
		for i, v := range row {
			if i > 0 {
				b.WriteByte(' ')
			}
			fmt.Fprint(&b, v.Any())
		}
		b.WriteByte('\n')
	}
}

func try(o *Object, query string, args ...any) (string, error) {
	c, err := open(o, query, args...)
	if err != nil {
		return "", err
	}
	return rest(c)
}

func run(t testing.TB, o *Object, query string, args ...any) string {
	t.Helper()
	s, err := try(o, query, args...)
	if err != nil {
		t.Fatalf("%.200s: %v", query, err)
	}
	return s
}

func wantRows(t testing.TB, o *Object, query, want string, args ...any) {
	t.Helper()
	if got := run(t, o, query, args...); got != want {
		t.Errorf("%.200s: %q, want %q", query, got, want)
	}
}

func integrity(t testing.TB, o *Object) {
	t.Helper()
	wantRows(t, o, "PRAGMA integrity_check", "ok\n")
}

func sqlObject(t testing.TB, l Limits) (*Store, *Object) {
	t.Helper()
	opt := testOptions(newCrashableDisk())
	opt.Limits = l
	s := openStore(t, opt)
	return s, openObject(t, s, 1)
}

func TestSQL(t *testing.T) {
	s, o := sqlObject(t, Limits{})
	wantRows(t, o, "SELECT 1, 'a', 2.5, x'00ff', NULL", "1 a 2.5 [0 255] <nil>\n")
	if o.Dirty() {
		t.Error("a read opened a turn")
	}
	// SPEC H30: several statements, of which the last has the parameters.
	wantRows(t, o, "CREATE TABLE t(a INTEGER PRIMARY KEY, b); /* ; */ INSERT INTO t(b) VALUES('x'); -- the last;\n INSERT INTO t(b) VALUES(?),(?2) RETURNING a, b ;;  ",
		"2 7\n3 [1]\n", 7, []byte{1})
	wantRows(t, o, "SELECT count(*) FROM t WHERE b=:b", "1\n", 7)
	for _, q := range []string{"SELECT ?; SELECT 1", "SELECT ?", "SELECT 1, ?2", ""} {
		if _, err := open(o, q, "x"); limpet.CodeOf(err) != limpet.CodeInvalidArgument && q != "SELECT ?" {
			t.Errorf("%q: %v", q, err)
		}
	}
	for _, q := range []string{"", " ;; -- nothing", "/* nothing */", "/*", "--"} {
		if _, err := open(o, q); limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("%q: %v, want that there is no statement", q, err)
		}
	}
	// SPEC H33: key-value and SQL writes of a turn are one commit.
	must(t, o.Put("k", []byte("v")))
	commit(t, o)
	if st := s.Stats(); st.Records != 1 {
		t.Errorf("%d records, want 1", st.Records)
	}
	run(t, o, "INSERT INTO t(b) VALUES('gone')")
	must(t, o.Put("k", []byte("gone")))
	must(t, o.Rollback())
	wantRows(t, o, "SELECT count(*) FROM t", "3\n")
	wantContents(t, o, map[string]string{"k": "v"})
	must(t, o.Sleep())
	wantRows(t, o, "SELECT count(*) FROM t", "3\n")

	// A statement that fails leaves those before it, and the turn.
	if _, err := try(o, "INSERT INTO t(a) VALUES(10); INSERT INTO t(a) VALUES(11),(10)"); err == nil {
		t.Error("a duplicate key was taken")
	} else if e, ok := errors.AsType[*limpet.SQLError](err); !ok || e.Code != "SQLITE_CONSTRAINT_PRIMARYKEY" ||
		e.Error() != "UNIQUE constraint failed: t.a: SQLITE_CONSTRAINT" { // SPEC H32: text and code
		t.Errorf("a duplicate key: %v", err)
	}
	wantRows(t, o, "SELECT a FROM t WHERE a>=10", "10\n")
	if _, err := try(o, "SELECT 1 FROM"); err == nil || err.Error() != "incomplete input: SQLITE_ERROR" {
		t.Errorf("a syntax error: %v", err)
	}
	if _, err := try(o, "SELECT 'a' 'b' FRM t"); err == nil || !strings.Contains(err.Error(), `syntax error at offset`) {
		t.Errorf("a syntax error: %v", err)
	}
	commit(t, o)
	integrity(t, o)
}

func TestSQLNamedArgs(t *testing.T) {
	_, o := sqlObject(t, Limits{})
	name := func(n string, v any) limpet.SQLArg { a := sqlArg(v); a.Name = n; return a }
	for _, tt := range []struct {
		query string
		args  []limpet.SQLArg
		want  string // "" for an error
	}{
		{"SELECT :a, @b, $c, :a", []limpet.SQLArg{name("b", 2), name("c", 3), name("a", 1)}, "1 2 3 1\n"},
		{"SELECT ?, :x", []limpet.SQLArg{sqlArg(1), name("x", 2)}, "1 2\n"},
		{"SELECT :x, ?", []limpet.SQLArg{name("x", 2), sqlArg(1)}, "2 1\n"},
		{"SELECT :x, :y", []limpet.SQLArg{sqlArg(1), sqlArg(2)}, "1 2\n"},
		{"SELECT ?3", sqlArgs([]any{1, 2, 3}), "3\n"},
		{"SELECT :x", []limpet.SQLArg{name("y", 2)}, ""},
		{"SELECT :x", []limpet.SQLArg{name("x", 2), name("y", 2)}, ""},
		{"SELECT ?", []limpet.SQLArg{name("y", 2)}, ""},
		{"SELECT :x", nil, ""},
		{"SELECT 1", sqlArgs([]any{1}), ""},
	} {
		c, _, err := o.Query(context.Background(), tt.query, tt.args)
		got := ""
		if err == nil {
			got, err = rest(c)
		}
		if got != tt.want || (err == nil) != (tt.want != "") || err != nil && limpet.CodeOf(err) != limpet.CodeInvalidArgument {
			t.Errorf("%s: %q, %v, want %q", tt.query, got, err, tt.want)
		}
	}
}

// TestSQLFeatures: what modernc's build has, one statement each.
func TestSQLFeatures(t *testing.T) {
	_, o := sqlObject(t, Limits{})
	for _, tt := range [][2]string{
		{`SELECT '{"a":[1,2]}' ->> '$.a[1]', json_array_length('[1,2,3]'), json_valid('{')`, "2 3 0\n"},
		{"SELECT value FROM json_each('[5,6]')", "5\n6\n"},
		{"SELECT round(sin(pi()/2),3), sqrt(16), log2(8)", "1 4 3\n"},
		{"CREATE VIRTUAL TABLE f USING fts5(body); INSERT INTO f VALUES('the quick fox'),('slow'); SELECT highlight(f,0,'<','>') FROM f('quick')", "the <quick> fox\n"},
		{"CREATE VIRTUAL TABLE v USING fts5vocab(f, 'row'); SELECT count(*) FROM v", "4\n"},
		{"CREATE VIRTUAL TABLE r USING rtree(id,x0,x1); INSERT INTO r VALUES(1,0,2),(2,5,6); SELECT id FROM r WHERE x0>=5", "2\n"},
		{"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<4) SELECT sum(i) FROM n", "10\n"},
		{"SELECT row_number() OVER (ORDER BY value DESC) FROM json_each('[1,2]')", "1\n2\n"},
		{"CREATE TABLE p(a INTEGER PRIMARY KEY); CREATE TABLE c(a REFERENCES p(a) ON DELETE CASCADE); INSERT INTO p VALUES(1); INSERT INTO c VALUES(1); DELETE FROM p; SELECT count(*) FROM c", "0\n"},
		{"CREATE TABLE s(a INT NOT NULL, b TEXT GENERATED ALWAYS AS (a||'!')) STRICT; INSERT INTO s(a) VALUES(1) ON CONFLICT DO NOTHING RETURNING b", "1!\n"},
		{"CREATE TABLE l(x); CREATE TRIGGER tr AFTER INSERT ON p BEGIN INSERT INTO l VALUES(new.a); END; INSERT INTO p VALUES(7); SELECT x FROM l", "7\n"},
		{"CREATE VIEW w AS SELECT a FROM p; SELECT a FROM w", "7\n"},
		{"ALTER TABLE p RENAME TO pp; ALTER TABLE pp ADD COLUMN z; SELECT name FROM pragma_table_info('pp')", "a\nz\n"},
		{"ANALYZE; REINDEX; PRAGMA optimize; PRAGMA quick_check", "ok\n"},
		{"PRAGMA user_version=7; PRAGMA user_version", "7\n"},
		{"PRAGMA foreign_keys=ON; PRAGMA foreign_keys", "1\n"},
		{"SELECT date('2026-11-30','+1 day'), unixepoch('1970-01-02')", "2026-12-01 86400\n"},
		{"SELECT printf('%05d',42), hex(x'ff'), soundex('Tim')", "00042 FF T500\n"},
		{"EXPLAIN SELECT 1; SELECT 2", "2\n"},
	} {
		wantRows(t, o, tt[0], tt[1])
	}
	if _, err := try(o, "INSERT INTO c VALUES(99)"); err == nil || !strings.Contains(err.Error(), "FOREIGN KEY") {
		t.Errorf("foreign keys are not checked: %v", err)
	}
	commit(t, o)
	integrity(t, o)
	must(t, o.Sleep())
	wantRows(t, o, "SELECT highlight(f,0,'<','>') FROM f('quick')", "the <quick> fox\n")
}

// TestSQLRefused: what may not be done, and that the answer says what and what to do.
func TestSQLRefused(t *testing.T) {
	_, o := sqlObject(t, Limits{})
	must(t, o.Put("secret", []byte("v")))
	run(t, o, "CREATE TABLE t(a); CREATE TABLE other(a)")
	const invalid, unsupported = limpet.CodeInvalidArgument, limpet.CodeNotSupported
	for _, tt := range []struct {
		query string
		code  limpet.Code
		text  string
	}{
		// SPEC H31: statements of transactions.
		{"BEGIN", invalid, "State.Transaction"}, {"begin immediate", invalid, "State.Transaction"},
		{"COMMIT", invalid, "State.Transaction"}, {"END", invalid, "State.Transaction"}, {"/*x*/ ROLLBACK", invalid, "State.Transaction"},
		{"SAVEPOINT a", invalid, "State.Transaction"}, {"RELEASE a", invalid, "State.Transaction"}, {"; ROLLBACK TO t0", invalid, "State.Transaction"},
		{"RELEASE t0", invalid, "State.Transaction"}, {"EXPLAIN COMMIT", invalid, "State.Transaction"},
		{"ATTACH 'x.db' AS x", unsupported, "ATTACH"}, {"ATTACH ':memory:' AS x", unsupported, "ATTACH"}, {"DETACH main", unsupported, "DETACH"},
		{"EXPLAIN ATTACH 'x' AS y", unsupported, "ATTACH"},
		{"VACUUM", unsupported, "VACUUM"}, {"VACUUM INTO '/tmp/x'", unsupported, "VACUUM"},
		{"SELECT load_extension('x')", unsupported, "load_extension"},
		{"CREATE TEMP TABLE x(a)", unsupported, "temporary"}, {"CREATE TABLE temp.x(a)", unsupported, "temporary"},
		{"CREATE VIEW temp.x AS SELECT 1", unsupported, "temporary"}, {"CREATE VIRTUAL TABLE temp.x USING fts5(a)", unsupported, "temporary"},
		{"CREATE TRIGGER temp.x AFTER INSERT ON main.t BEGIN SELECT 1; END", unsupported, "temporary"},
		{"CREATE TEMP VIEW x AS SELECT 1", unsupported, "temporary"}, {"CREATE TEMP TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END", unsupported, "temporary"},
		{"SELECT * FROM sqlite_dbpage", unsupported, "sqlite_dbpage"},
		{"CREATE VIRTUAL TABLE x USING dbstat", unsupported, "dbstat"}, {"CREATE VIRTUAL TABLE x USING sqlite_dbpage", unsupported, "module"},
		{"SELECT * FROM _limpet_kv", invalid, "_limpet_"}, {"SELECT count(*) FROM _LIMPET_KV", invalid, "_limpet_"},
		{`SELECT * FROM main."_Limpet_kv"`, invalid, "_limpet_"}, {"INSERT INTO _limpet_kv VALUES('a','b')", invalid, "_limpet_"},
		{"UPDATE _limpet_kv SET value='x'", invalid, "_limpet_"}, {"DELETE FROM _limpet_kv", invalid, "_limpet_"},
		{"DROP TABLE _limpet_kv", invalid, "_limpet_"}, {"ALTER TABLE _limpet_kv ADD COLUMN x", invalid, "_limpet_"},
		{"ALTER TABLE _limpet_kv RENAME TO x", invalid, "_limpet_"}, {"ALTER TABLE t RENAME TO _limpet_x", invalid, "_limpet_"},
		{"CREATE TABLE _limpet_y(a)", invalid, "_limpet_"}, {"CREATE VIEW _limpet_y AS SELECT 1", invalid, "_limpet_"},
		{"CREATE INDEX _limpet_i ON t(a)", invalid, "_limpet_"}, {"CREATE INDEX i ON _limpet_kv(value)", invalid, "_limpet_"},
		{"CREATE TRIGGER tr AFTER INSERT ON _limpet_kv BEGIN SELECT 1; END", invalid, "_limpet_"},
		{"CREATE TRIGGER _limpet_tr AFTER INSERT ON t BEGIN SELECT 1; END", invalid, "_limpet_"},
		{"CREATE VIRTUAL TABLE _limpet USING fts5(a)", invalid, "_limpet_"},
		{"CREATE VIRTUAL TABLE _limpet_f USING fts5(a)", invalid, "_limpet_"},
		{"CREATE VIEW w AS SELECT * FROM _limpet_kv; SELECT * FROM w", invalid, "_limpet_"},
		{"CREATE TRIGGER spy AFTER INSERT ON t BEGIN DELETE FROM _limpet_kv; END; INSERT INTO t VALUES(1)", invalid, "_limpet_"},
		{"CREATE TABLE copy AS SELECT * FROM _limpet_kv", invalid, "_limpet_"},
		{"CREATE VIRTUAL TABLE ft USING fts5(value, content=_limpet_kv, content_rowid=key); SELECT * FROM ft", invalid, "_limpet_"},
		{"PRAGMA table_info(_limpet_kv)", invalid, "_limpet_"}, {"SELECT * FROM pragma_table_info('_limpet_kv')", invalid, "_limpet_"},
		{"PRAGMA writable_schema=ON", unsupported, "writable_schema"}, {"PRAGMA journal_mode=OFF", unsupported, "journal_mode"},
		{"PRAGMA journal_mode", unsupported, "journal_mode"}, {"PRAGMA synchronous=FULL", unsupported, "synchronous"},
		{"PRAGMA page_size=512", unsupported, "page_size"}, {"PRAGMA locking_mode=NORMAL", unsupported, "locking_mode"},
		{"PRAGMA cache_size=100000", unsupported, "cache_size"}, {"PRAGMA temp_store_directory='/'", unsupported, "temp_store_directory"},
		{"PRAGMA foreign_keys=OFF", unsupported, "defer_foreign_keys"}, {"PRAGMA foreign_keys=0", unsupported, "defer_foreign_keys"},
		{"PRAGMA ignore_check_constraints=1", unsupported, "ignore_check_constraints"}, {"PRAGMA wal_checkpoint", unsupported, "wal_checkpoint"},
		{"PRAGMA mmap_size=1", unsupported, "mmap_size"}, {"PRAGMA schema_version=1", unsupported, "schema_version"},
		{"PRAGMA trusted_schema=1", unsupported, "trusted_schema"}, {"PRAGMA auto_vacuum=1", unsupported, "auto_vacuum"},
		{"PRAGMA incremental_vacuum", unsupported, "incremental_vacuum"}, {"PRAGMA encoding='UTF-16'", unsupported, "encoding"},
		{"PRAGMA hard_heap_limit=1", unsupported, "hard_heap_limit"}, {"PRAGMA case_sensitive_like=1", unsupported, "case_sensitive_like"},
	} {
		_, err := try(o, tt.query)
		if limpet.CodeOf(err) != tt.code || !strings.Contains(fmt.Sprint(err), tt.text) {
			t.Errorf("%s: %v (%s), want %s with %q", tt.query, err, limpet.CodeOf(err), tt.code, tt.text)
		}
	}
	// Neither did anything, nor did it hurt.
	wantRows(t, o, "SELECT name FROM sqlite_schema WHERE type='table' AND name NOT LIKE 'ft%' ORDER BY name", "_limpet_kv\nother\nt\n")
	for _, q := range []string{"INSERT INTO sqlite_schema VALUES(1,2,3,4,5)", "DELETE FROM sqlite_schema", "UPDATE sqlite_schema SET sql=''", "INSERT INTO ft_data VALUES(1,2)"} {
		if _, err := try(o, q); err == nil {
			t.Errorf("%s was done", q)
		}
	}
	wantContents(t, o, map[string]string{"secret": "v"})
	commit(t, o)
	integrity(t, o)
	must(t, o.Put("more", []byte("v")))
	commit(t, o)
	wantContents(t, o, map[string]string{"secret": "v", "more": "v"})
}

// TestSQLLimits meets each limit with its default, and says that the answer names it.
func TestSQLLimits(t *testing.T) {
	// SPEC H32
	_, o := sqlObject(t, Limits{})
	list := func(n int, s string) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	columns := func(n int) string {
		var c []string
		for i := range n {
			c = append(c, fmt.Sprintf("c%d", i))
		}
		return strings.Join(c, ",")
	}
	pad := func(n int) string { return "SELECT 1 --" + strings.Repeat("x", n-len("SELECT 1 --")) }
	args := func(n int) []any { return make([]any, n) }
	big := strings.Repeat("x", 2_000_000)
	run(t, o, "CREATE TABLE big(a,b); CREATE TABLE deep(a)")
	for _, tt := range []struct {
		name, query string
		args        []any
		limit       string // "" for within it
	}{
		{"statement", pad(100_000), nil, ""}, {"long statement", pad(100_001), nil, "100000"},
		{"columns", "CREATE TABLE w100(" + columns(100) + ")", nil, ""}, {"too many columns", "CREATE TABLE w101(" + columns(101) + ")", nil, "100"},
		{"result", "SELECT " + list(100, "1"), nil, ""}, {"too many results", "SELECT " + list(101, "1"), nil, "100"},
		{"terms", "SELECT 1 GROUP BY " + list(101, "1"), nil, "100"},
		{"parameters", "SELECT 1 WHERE 1 IN (" + list(100, "?") + ")", args(100), ""}, {"too many parameters", "SELECT 1 WHERE 1 IN (" + list(101, "?") + ")", args(101), "100"},
		{"numbered", "SELECT ?101", args(101), "100"},
		{"function", "SELECT max(" + list(32, "1") + ")", nil, ""}, {"too many arguments", "SELECT max(" + list(33, "1") + ")", nil, "32"},
		{"pattern", "SELECT 'x' LIKE '" + strings.Repeat("x", 50) + "'", nil, ""}, {"long pattern", "SELECT 'x' LIKE '" + strings.Repeat("x", 51) + "'", nil, "50"},
		{"long glob", "SELECT 'x' GLOB ?", []any{strings.Repeat("x", 51)}, "50"},
		{"value", "SELECT length(?)", []any{big}, ""}, {"long value", "SELECT length(?)", []any{big + "x"}, "2000000"},
		{"long blob", "SELECT zeroblob(2000001)", nil, "2000000"}, {"long concatenation", "SELECT length(?1||?1)", []any{big}, "2000000"},
		{"long row", "INSERT INTO big VALUES(?1,?1)", []any{big[:1_100_000]}, "2000000"},
		{"deep expression", "SELECT " + strings.Repeat("(", 1100) + "1" + strings.Repeat(")", 1100), nil, "*"},
		{"deep operators", "SELECT 1" + strings.Repeat("+1", 1100), nil, "1000"},
		{"compound", "SELECT 1" + strings.Repeat(" UNION ALL SELECT 1", 501), nil, "500"},
		{"deep subqueries", strings.Repeat("SELECT * FROM (", 6000) + "SELECT 1" + strings.Repeat(")", 6000), nil, "nests"},
		{"deep scalar subqueries", strings.Repeat("SELECT (", 6000) + "SELECT 1" + strings.Repeat(")", 6000), nil, "*"},
		{"deep case", "SELECT " + strings.Repeat("CASE WHEN 1 THEN ", 3000) + "1" + strings.Repeat(" END", 3000), nil, "*"},
		{"deep json", "SELECT json(?)", []any{strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000)}, "*"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := try(o, tt.query, tt.args...)
			switch {
			case tt.limit == "*": // whatever it says, it says something and lives
				t.Log(err)
			case tt.limit == "" && err != nil:
				t.Errorf("within the limit: %v", err)
			case tt.limit != "" && (!errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), tt.limit)):
				t.Errorf("over the limit: %v, want one that names %s", err, tt.limit)
			case err != nil:
				t.Log(err)
			}
			if o.broken != nil {
				t.Fatalf("the turn is broken: %v", o.broken)
			}
		})
	}
	// The limit of SQL's values is not that of key-value data, in any order.
	must(t, o.Put("large", make([]byte, 16<<20)))
	wantRows(t, o, "SELECT count(*) FROM big", "0\n")
	v, _, err := o.Get("large")
	must(t, err)
	if len(v) != 16<<20 {
		t.Errorf("%d bytes", len(v))
	}
	commit(t, o)

	if _, err := Open(context.Background(), Options{FS: newCrashableDisk().fs, Dir: "data", Clock: systemClock{}, Limits: Limits{Columns: -1, Parameters: 1e6}}); err == nil || !strings.Contains(err.Error(), "Columns") || !strings.Contains(err.Error(), "Parameters") {
		t.Errorf("bad limits: %v", err)
	}
}

func TestKVLimits(t *testing.T) {
	// SPEC H23: keys of 2048 bytes, values of 131,072, where it is wanted.
	_, o := sqlObject(t, Limits{Key: 2048, KeyValue: 131_072})
	must(t, o.Put(strings.Repeat("k", 2048), make([]byte, 131_072)))
	for _, err := range []error{o.Put(strings.Repeat("k", 2049), nil), o.Put("k", make([]byte, 131_073))} {
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("over the limit: %v", err)
		}
	}
	// SPEC H24: key and value together.
	_, o = sqlObject(t, Limits{Entry: 2_000_000})
	must(t, o.Put("key", make([]byte, 2_000_000-3)))
	if err := o.Put("key", make([]byte, 2_000_000-2)); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "2000000") {
		t.Errorf("over the limit: %v", err)
	}
}

func TestDatabaseLimit(t *testing.T) {
	_, o := sqlObject(t, Limits{Database: 1 << 20})
	run(t, o, "CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		_, err = try(o, "INSERT INTO t(b) VALUES(?)", string(make([]byte, 10_000)))
	}
	if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "1048576") || o.broken != nil {
		t.Fatalf("after %d rows: %v, broken %v", n, err, o.broken)
	}
	if err := o.Put("k", nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a put into a full database: %v", err)
	}
	if size, err := o.DatabaseSize(); err != nil || size < 1<<20 || size > 1<<20+100_000 {
		t.Errorf("size %d, %v", size, err)
	}
	commit(t, o)
	wantRows(t, o, "DELETE FROM t; SELECT count(*) FROM t", "0\n") // the way out
	commit(t, o)
	run(t, o, "INSERT INTO t(b) VALUES(?)", string(make([]byte, 10_000))) // into free pages
	must(t, o.Put("k", make([]byte, 10_000)))
	commit(t, o)
	integrity(t, o)
}

// TestCursors: what becomes of one that is open while something else happens.
func TestCursors(t *testing.T) {
	_, o := sqlObject(t, Limits{})
	run(t, o, "CREATE TABLE t(a INTEGER PRIMARY KEY, b); INSERT INTO t(b) SELECT value FROM json_each('[1,2,3,4]')")
	commit(t, o)
	const all = "SELECT a FROM t"
	next := func(c *Cursor) string {
		row := make([]limpet.SQLValue, 1)
		ok, err := c.Next(row)
		if err != nil {
			return "error"
		}
		if !ok {
			return "end"
		}
		return fmt.Sprint(row[0].Any())
	}
	newCursor := func() *Cursor {
		c, err := open(o, all)
		must(t, err)
		if got := next(c); got != "1" {
			t.Fatalf("first row %s", got)
		}
		return c
	}
	// Over writes of both kinds, and a commit.
	c := newCursor()
	run(t, o, "UPDATE t SET b=b+1")
	must(t, o.Put("k", []byte("v")))
	run(t, o, "CREATE TABLE u(a)")
	if got := next(c) + next(c); got != "23" {
		t.Errorf("after writes: %s", got)
	}
	commit(t, o)
	run(t, o, "DELETE FROM t WHERE a=4")
	if got := next(c) + next(c); got != "endend" {
		t.Errorf("after a commit, and a row deleted ahead: %s", got)
	}
	must(t, o.Rollback())

	// Two of one text at once, and the third from the cache.
	c, d := newCursor(), newCursor()
	if got := next(c) + next(d) + next(c) + next(d); got != "2233" {
		t.Errorf("two cursors: %s", got)
	}
	must(t, c.Close())
	must(t, c.Close())
	if got := next(newCursor()) + next(d) + next(c); got != "24end" {
		t.Errorf("after one was closed: %s", got)
	}

	// The object is given away.
	c = newCursor()
	o.EndCursors()
	if _, err := c.Next(nil); !errors.Is(err, ErrTurnOver) {
		t.Errorf("after the turn: %v", err)
	}
	// The turn is rolled back.
	c = newCursor()
	run(t, o, "INSERT INTO t(b) VALUES(1)")
	must(t, o.Rollback())
	if _, err := c.Next(nil); !errors.Is(err, ErrTurnBroken) {
		t.Errorf("after a rollback: %v", err)
	}
	// A transaction is rolled back: those made in it end, those before go on.
	c = newCursor()
	own := errors.New("own")
	err := o.Transaction(func() error {
		run(t, o, "UPDATE t SET b=0")
		d = newCursor()
		return own
	})
	if err != own { //nolint:errorlint // the very error
		t.Errorf("Transaction: %v", err)
	}
	if got := next(c); got != "2" {
		t.Errorf("a cursor from before the transaction: %s", got)
	}
	if _, err := d.Next(nil); !errors.Is(err, errUnwound) {
		t.Errorf("a cursor of the transaction: %v", err)
	}
	// One that is kept leaves its cursors.
	must(t, o.Transaction(func() error { d = newCursor(); return nil }))
	if got := next(d); got != "2" {
		t.Errorf("a cursor of a kept transaction: %s", got)
	}
	// The schema changes under it.
	if _, err := try(o, "DROP TABLE t"); err == nil || !strings.Contains(err.Error(), "cursor") {
		t.Errorf("DROP TABLE under a cursor: %v", err)
	}
	run(t, o, "ALTER TABLE t ADD COLUMN z DEFAULT 9")
	if got := next(d); got != "3" {
		t.Errorf("a cursor after ALTER TABLE: %s", got)
	}
	wantRows(t, o, "SELECT * FROM t WHERE a=1", "1 2 9\n")
	must(t, o.Rollback())
	wantRows(t, o, "SELECT * FROM t WHERE a=1", "1 2\n") // the cached statement knows
	run(t, o, "ALTER TABLE t ADD COLUMN y DEFAULT 8")
	wantRows(t, o, "SELECT * FROM t WHERE a=1", "1 2 8\n")
	commit(t, o)

	// The connection goes.
	c = newCursor()
	must(t, o.Sleep())
	if _, err := c.Next(nil); !errors.Is(err, ErrTurnOver) {
		t.Errorf("after Sleep: %v", err)
	}
	// Too many.
	var open []*Cursor
	for range maxCursors {
		open = append(open, newCursor())
	}
	if _, err := try(o, "SELECT 1"); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "256") {
		t.Errorf("too many cursors: %v", err)
	}
	for _, c := range open {
		must(t, c.Close())
	}
	run(t, o, "SELECT 1")
	c = newCursor()
	must(t, o.Close())
	if _, err := c.Next(nil); !errors.Is(err, ErrTurnOver) {
		t.Errorf("after Close: %v", err)
	}
	must(t, c.Close())
	if _, err := try(o, "SELECT 1"); !errors.Is(err, ErrObjectClosed) {
		t.Errorf("a query after Close: %v", err)
	}
}

func TestStatementCache(t *testing.T) {
	_, o := sqlObject(t, Limits{})
	run(t, o, "CREATE TABLE t(a)")
	for i := range 100 {
		run(t, o, fmt.Sprintf("SELECT %d FROM t", i))
		run(t, o, "SELECT a FROM t WHERE a=?", i)
	}
	if n := len(o.sql.cache); n != maxCached {
		t.Errorf("%d statements cached, want %d", n, maxCached)
	}
	p := o.sql.cache["SELECT a FROM t WHERE a=?"]
	run(t, o, "SELECT a FROM t WHERE a=?", 1)
	if p == nil || p != o.sql.cache["SELECT a FROM t WHERE a=?"] {
		t.Error("the statement that was used last was not kept")
	}
	run(t, o, "CREATE TABLE u(a)")
	run(t, o, "SELECT a FROM t WHERE a=?", 1)
	if p == o.sql.cache["SELECT a FROM t WHERE a=?"] {
		t.Error("the statement was kept over a change of the schema")
	}
	run(t, o, "SELECT 1 -- "+strings.Repeat("x", maxCachedText))
	if o.sql.cache["SELECT 1 -- "+strings.Repeat("x", maxCachedText)] != nil {
		t.Error("a long text was cached")
	}
}

// TestDeferredForeignKey: what a COMMIT refuses is rolled back, and says so.
func TestDeferredForeignKey(t *testing.T) {
	_, o := sqlObject(t, Limits{})
	run(t, o, "CREATE TABLE p(a INTEGER PRIMARY KEY); CREATE TABLE c(a REFERENCES p(a) DEFERRABLE INITIALLY DEFERRED); CREATE TABLE i(a REFERENCES p(a))")
	commit(t, o)
	for _, q := range []string{"INSERT INTO c VALUES(1)", "PRAGMA defer_foreign_keys=ON; INSERT INTO i VALUES(1)"} {
		run(t, o, q)
		must(t, o.Put("k", []byte("v")))
		_, err := o.Commit(nil)
		if e, ok := errors.AsType[*limpet.SQLError](err); !ok || e.Code != "SQLITE_CONSTRAINT_FOREIGNKEY" || !strings.Contains(err.Error(), "foreign_key_check") {
			t.Errorf("%s: %v", q, err)
		}
		if o.Dirty() {
			t.Error("the turn is still open")
		}
		wantContents(t, o, map[string]string{})
		wantRows(t, o, "SELECT count(*) FROM c, i", "0\n")
		run(t, o, q+"; INSERT INTO p VALUES(1)") // mended in time
		commit(t, o)
		run(t, o, "DELETE FROM c; DELETE FROM i; DELETE FROM p")
		commit(t, o)
	}
	if _, err := try(o, "INSERT INTO i VALUES(1)"); err == nil {
		t.Error("defer_foreign_keys outlived its turn")
	}
}

// TestRollingBackStatement: ON CONFLICT ROLLBACK takes the turn with it, and nothing
// of the turn can be committed.
func TestRollingBackStatement(t *testing.T) {
	_, o := sqlObject(t, Limits{})
	run(t, o, "CREATE TABLE t(a UNIQUE)")
	commit(t, o)
	must(t, o.Put("k", []byte("v")))
	run(t, o, "INSERT INTO t VALUES(1)")
	c, err := open(o, "SELECT a FROM t, json_each('[1,2]')")
	must(t, err)
	if _, err := try(o, "INSERT OR ROLLBACK INTO t VALUES(1)"); err == nil {
		t.Fatal("a duplicate was taken")
	}
	if _, err := c.Next(nil); !errors.Is(err, ErrTurnBroken) {
		t.Errorf("a cursor of the turn: %v", err)
	}
	if _, err := try(o, "SELECT 1"); !errors.Is(err, ErrTurnBroken) {
		t.Errorf("a query in a broken turn: %v", err)
	}
	if _, err := o.Commit(nil); !errors.Is(err, ErrTurnBroken) {
		t.Errorf("a commit of a broken turn: %v", err)
	}
	wantRows(t, o, "SELECT count(*) FROM t", "0\n")
	wantContents(t, o, map[string]string{})
}

// tickClock goes on with each look at it.
type tickClock struct {
	systemClock
	now *atomic.Int64
}

func (c tickClock) Now() time.Time { return time.Unix(0, c.now.Add(int64(time.Second))) }

const endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) "

func TestRunawayStatements(t *testing.T) {
	d := newCrashableDisk()
	opt := testOptions(d)
	opt.Clock = tickClock{now: new(atomic.Int64)}
	s := openStore(t, opt)
	o := openObject(t, s, 1)
	run(t, o, "CREATE TABLE t(a)")
	commit(t, o)
	run(t, o, "INSERT INTO t VALUES(1)")
	other, err := open(o, "SELECT value FROM json_each('[1,2]')")
	must(t, err)

	// One that reads ends at its time, and the turn goes on.
	if _, err := try(o, endless+"SELECT count(*) FROM n"); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "30s") {
		t.Errorf("an endless read: %v", err)
	}
	if _, err := try(o, "SELECT count(*) FROM ("+endless+"SELECT i FROM n)"); !errors.Is(err, ErrTooLarge) {
		t.Errorf("another: %v", err)
	}
	if _, err := other.Next(nil); !errors.Is(err, errInterrupted) {
		t.Errorf("another cursor: %v", err)
	}
	commit(t, o)

	// One whose rows are endless, too.
	c, err := open(o, endless+"SELECT 1 FROM n")
	must(t, err)
	c.spent = 30*time.Second - 10*minTurn
	if err := c.drain(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("endless rows: %v", err)
	}

	// And with its context.
	o = openObject(t, openStore(t, testOptions(newCrashableDisk())), 1)
	run(t, o, "CREATE TABLE t(a); INSERT INTO t VALUES(1)")
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	c, _, err = o.Query(ctx, endless+"SELECT i FROM n WHERE i<3 OR i<0", nil)
	must(t, err)
	time.AfterFunc(10*time.Millisecond, func() { cancel(gone) })
	if _, err := rest(c); !errors.Is(err, gone) {
		t.Errorf("an endless read whose context ended: %v", err)
	}
	if _, _, err := o.Query(ctx, "SELECT 1", nil); !errors.Is(err, gone) {
		t.Errorf("a read whose context has ended: %v", err)
	}
	// One that writes is not ended by a context.
	if _, wrote, err := o.Query(ctx, "INSERT INTO t VALUES(2)", nil); err != nil || !wrote {
		t.Errorf("a write whose context has ended: %v", err)
	}
	wantRows(t, o, "SELECT a FROM t", "1\n2\n")
	commit(t, o)
	o = openObject(t, s, 2)
	run(t, o, "CREATE TABLE t(a); INSERT INTO t VALUES(1),(2)")
	commit(t, o)
	// By its time it is, and takes the turn with it.
	if _, err := try(o, endless+"INSERT INTO t SELECT i FROM n WHERE i<0"); !errors.Is(err, ErrTooLarge) {
		t.Errorf("an endless write: %v", err)
	}
	if _, err := o.Commit(nil); !errors.Is(err, ErrTurnBroken) || !errors.Is(err, ErrTooLarge) {
		t.Errorf("the turn of an endless write: %v", err)
	}
	wantRows(t, o, "SELECT a FROM t", "1\n2\n")

	// And with the incarnation.
	done := make(chan struct{})
	close(done)
	o.SetInterrupt(done)
	if _, err := try(o, endless+"SELECT count(*) FROM n"); !errors.Is(err, vfs.ErrInterrupt) && !strings.Contains(fmt.Sprint(err), "interrupt") {
		t.Errorf("a read of an incarnation that ended: %v", err)
	}
}

func TestCounts(t *testing.T) {
	_, o := sqlObject(t, Limits{})
	result := func(query string) limpet.SQLResult {
		t.Helper()
		c, err := open(o, query)
		must(t, err)
		_, err = rest(c)
		must(t, err)
		return c.Result()
	}
	type stats = limpet.SQLStats
	for _, tt := range []struct {
		query string
		want  limpet.SQLResult
	}{
		{"CREATE TABLE t(a INTEGER PRIMARY KEY, b)", limpet.SQLResult{}},
		{"INSERT INTO t(b) VALUES(1),(2),(3)", limpet.SQLResult{LastInsertID: 3, RowsAffected: 3, SQLStats: stats{RowsWritten: 3}}},
		{"SELECT * FROM t WHERE b=2", limpet.SQLResult{LastInsertID: 3, SQLStats: stats{RowsRead: 3}}},
		{"SELECT * FROM t WHERE a=2", limpet.SQLResult{LastInsertID: 3, SQLStats: stats{RowsRead: 1}}},
		{"CREATE TABLE l(a); CREATE TRIGGER r AFTER DELETE ON t BEGIN INSERT INTO l VALUES(1); END", limpet.SQLResult{LastInsertID: 3}},
		{"DELETE FROM t WHERE a<3; UPDATE t SET b=5", limpet.SQLResult{LastInsertID: 3, RowsAffected: 1, SQLStats: stats{RowsRead: 1, RowsWritten: 5}}},
		{"UPDATE t SET b=1 WHERE a=99", limpet.SQLResult{LastInsertID: 3}},
	} {
		got := result(tt.query)
		if strings.Contains(tt.query, "DELETE FROM t") {
			got.RowsRead = tt.want.RowsRead
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.query, diff)
		}
	}
}

func TestDeleteAllOfSQL(t *testing.T) {
	_, o := sqlObject(t, Limits{})
	run(t, o, `CREATE TABLE p(a INTEGER PRIMARY KEY AUTOINCREMENT); CREATE TABLE c(a REFERENCES p(a) DEFERRABLE INITIALLY DEFERRED, b REFERENCES d);
		CREATE TABLE d(a PRIMARY KEY REFERENCES d); CREATE VIRTUAL TABLE f USING fts5(x); CREATE VIEW w AS SELECT * FROM p;
		CREATE TABLE "odd ""name"(a); CREATE TRIGGER tr AFTER INSERT ON p BEGIN DELETE FROM c; END; INSERT INTO p VALUES(1); INSERT INTO d VALUES(1); INSERT INTO c VALUES(1,1); INSERT INTO f VALUES('x'); PRAGMA user_version=3; ANALYZE`)
	must(t, o.Put("k", []byte("v")))
	commit(t, o)
	c, err := open(o, "SELECT a FROM d, json_each('[1,2]')")
	must(t, err)
	run(t, o, "INSERT INTO c VALUES(99,1)") // would fail the commit
	must(t, o.DeleteAll())
	if _, err := c.Next(nil); err == nil {
		t.Error("a cursor outlived DeleteAll")
	}
	wantRows(t, o, "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'", "_limpet_kv\n")
	wantRows(t, o, "PRAGMA user_version", "0\n")
	wantContents(t, o, map[string]string{})
	commit(t, o)
	integrity(t, o)
	run(t, o, "CREATE TABLE p(a); CREATE TABLE c(a REFERENCES x)")
	if _, err := try(o, "INSERT INTO c VALUES(1)"); err == nil {
		t.Error("foreign keys are off after DeleteAll")
	}
	must(t, o.Rollback())
	must(t, o.DeleteAll())
	commit(t, o)
}
