package store

import (
	"errors"
	"fmt"
	"strings"
)

// dropAll drops everything in the database but limpet's own tables. The turn begins
// anew: what it wrote would be deleted too, and foreign keys that it left to be
// checked at its end would still count.
func (o *Object) dropAll() error {
	if err := o.connect(); err != nil {
		return err
	}
	if names, err := o.schemaNames("LIMIT 1"); err != nil || len(names) == 0 {
		return err
	}
	if o.depth > 0 {
		return errors.New("a transaction is open")
	}
	if err := o.Rollback(); err != nil {
		return err
	}
	if err := o.begin(); err != nil {
		return err
	}
	err := o.conn.SetForeignKeys(false)
	if err == nil {
		err = o.dropEach()
	}
	if err2 := o.conn.SetForeignKeys(true); err == nil {
		err = err2
	}
	if o.sql != nil {
		o.sql.schema++
		o.sql.changed = true
	}
	o.table = tableUnknown
	if err != nil { // half of it is gone, and so is what the turn had written
		o.broken = fmt.Errorf("%w: %w", ErrTurnBroken, err)
	}
	return err
}

// schemaName is one row of sqlite_schema.
type schemaName struct{ kind, name string }

// schemaNames are views first, whose triggers go with them, then virtual tables,
// whose shadow tables do.
func (o *Object) schemaNames(more string) ([]schemaName, error) {
	st, _, err := o.conn.Raw().PrepareTransient("SELECT type, name FROM sqlite_schema WHERE type IN ('view','table')" +
		" AND lower(substr(name,1,8))<>'" + ReservedPrefix + "' AND (name NOT LIKE 'sqlite\\_%' ESCAPE '\\' OR name LIKE 'sqlite\\_stat%' ESCAPE '\\')" +
		" ORDER BY type='table', coalesce(sql,'') NOT LIKE 'CREATE VIRTUAL%' " + more)
	if err != nil {
		return nil, o.check(err)
	}
	var names []schemaName
	for {
		var row bool
		if row, err = st.Step(); err != nil || !row {
			break
		}
		names = append(names, schemaName{st.ColumnText(0), st.ColumnText(1)})
	}
	if err2 := st.Finalize(); err == nil {
		err = err2
	}
	return names, o.check(err)
}

func (o *Object) dropEach() error {
	names, err := o.schemaNames("")
	if err != nil {
		return err
	}
	for _, n := range names {
		sql := fmt.Sprintf(`DROP %s IF EXISTS "%s"`, n.kind, strings.ReplaceAll(n.name, `"`, `""`))
		st, _, err := o.conn.Raw().PrepareTransient(sql)
		if err != nil {
			return o.check(err)
		}
		_, err = st.Step()
		if err2 := st.Finalize(); err == nil {
			err = err2
		}
		if err != nil {
			return fmt.Errorf("%s: %w", sql, o.check(err))
		}
	}
	return o.check(o.conn.Exec("PRAGMA user_version=0"))
}
