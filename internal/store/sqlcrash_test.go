package store

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

// sqlRow is the key under which a workload's model has a row of SQL.
func sqlRow(k string) string { return "row " + k }

// everything is contents, and the rows that writeSQL made.
func everything(t testing.TB, o *Object) map[string]string {
	t.Helper()
	m := contents(t, o)
	c, err := open(o, "SELECT count(*) FROM sqlite_schema WHERE name='rows'")
	must(t, err)
	if got, err := rest(c); err != nil || got == "0\n" {
		must(t, err)
		return m
	}
	c, err = open(o, "SELECT k, v FROM rows")
	must(t, err)
	row := make([]limpet.SQLValue, 2)
	for {
		ok, err := c.Next(row)
		must(t, err)
		if !ok {
			return m
		}
		m[sqlRow(row[0].Text)] = string(row[1].Blob)
	}
}

func wantEverything(t testing.TB, o *Object, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, everything(t, o)); diff != "" {
		t.Fatal(diff)
	}
}

// writeSQL makes some random writes through SQL, and notes them in m.
func (w *workload) writeSQL(t testing.TB, o *workObject, m map[string]string) error {
	if _, err := try(o.Object, "CREATE TABLE IF NOT EXISTS rows(k TEXT PRIMARY KEY, v BLOB, n INT UNIQUE); CREATE INDEX IF NOT EXISTS byv ON rows(v)"); err != nil {
		return err
	}
	for range 1 + w.rng.IntN(3) {
		switch k := w.key(); w.rng.IntN(9) {
		case 0, 1, 2, 3:
			v := w.value()
			if _, err := try(o.Object, "INSERT INTO rows(k,v) VALUES(?,?) ON CONFLICT(k) DO UPDATE SET v=excluded.v RETURNING v", k, v); err != nil {
				return err
			}
			m[sqlRow(k)] = string(v)
		case 4:
			if _, err := try(o.Object, "DELETE FROM rows WHERE k>=? AND k<?", k, k+"~"); err != nil {
				return err
			}
			maps.DeleteFunc(m, func(key, _ string) bool { return key >= sqlRow(k) && key < sqlRow(k+"~") })
		case 5:
			if _, err := try(o.Object, "UPDATE rows SET v=CAST(v||'+' AS BLOB) WHERE k<=?", k); err != nil {
				return err
			}
			for key, v := range m {
				if strings.HasPrefix(key, sqlRow("")) && key <= sqlRow(k) {
					m[key] = v + "+"
				}
			}
		case 6: // a statement that fails in the middle
			if _, err := try(o.Object, "INSERT INTO rows(k,n) VALUES(?||'1',1),(?||'2',1)", k, k); err == nil {
				t.Error("a duplicate was taken")
			}
		case 7:
			o.EndCursors() // nothing is dropped under them
			if _, err := try(o.Object, fmt.Sprintf("CREATE TABLE scratch%d AS SELECT * FROM rows; DROP TABLE scratch%[1]d", w.rng.IntN(3))); err != nil {
				return err
			}
		case 8: // a cursor that outlives the turn
			_, err := open(o.Object, "SELECT * FROM rows, rows AS other")
			if err != nil {
				return err
			}
		}
	}
	return nil
}
