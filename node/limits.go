package node

import (
	"time"

	"github.com/limpet-dev/limpet/internal/store"
)

// Limits bound what objects do with their data. A field of 0 has its default, that
// of the hosted service where it has one (SPEC H23, H24, H32, H70). What is over a
// limit fails with CodeTooLarge, naming it.
type Limits struct {
	// SQLStatement is how many bytes the text given to SQL at once may have;
	// 100,000.
	SQLStatement int
	// SQLColumns is how many columns a table, index, view or result may have, and
	// how many terms ORDER BY and GROUP BY; 100, at most 2,000.
	SQLColumns int
	// SQLParameters is how many parameters a statement may have; 100, at most
	// 32,766.
	SQLParameters int
	// SQLFunctionArgs is how many arguments a function of SQL takes; 32, at most
	// 1,000.
	SQLFunctionArgs int
	// SQLPattern is how many bytes a pattern of LIKE or GLOB may have; 50, at most
	// 50,000.
	SQLPattern int
	// SQLValue is how many bytes a string, a blob or a row of SQL may have;
	// 2,000,000, at most 1,000,000,000.
	SQLValue int
	// SQLTime is how long a statement runs before it is interrupted, without the time
	// between its rows; 30 s.
	SQLTime time.Duration
	// Database is how many bytes the database of an object may have, with its
	// key-value data and without what is free in it; 10,000,000,000, at least
	// 1 MiB, at most 10 GiB. A full one can still be read and deleted from.
	Database int64
	// KVKey, KVValue and KVEntry are how many bytes a key, an encoded value, and
	// both together may have in KV; 31 MiB, which is the most. Those of the hosted
	// service are 2,048, 131,072 and none for objects without SQL, and 2,000,000
	// for KVEntry with it.
	KVKey, KVValue, KVEntry int
}

func (l Limits) store() store.Limits {
	return store.Limits{
		Statement: l.SQLStatement, Columns: l.SQLColumns, Parameters: l.SQLParameters, FunctionArgs: l.SQLFunctionArgs,
		Pattern: l.SQLPattern, Value: l.SQLValue, Time: l.SQLTime, Database: l.Database,
		Key: l.KVKey, KeyValue: l.KVValue, Entry: l.KVEntry,
	}
}
