package store

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store/vfs"
)

// Limits bound what objects may do with their data. Zero fields have their
// defaults, those of the hosted service (SPEC H23, H24, H32, H70).
type Limits struct {
	Statement    int           // bytes of the text given to one Query; 100,000
	Columns      int           // of a table, index, view or result; 100, at most 2,000
	Parameters   int           // of a statement; 100, at most 32,766
	FunctionArgs int           // of a function in SQL; 32, at most 1,000
	Pattern      int           // bytes of a pattern of LIKE and GLOB; 50, at most 50,000
	Value        int           // bytes of a string, blob or row in SQL; 2,000,000, at most 1,000,000,000
	Database     int64         // bytes of an object's database; 10 GB, at most vfs.MaxBytes, which is 10 GiB
	Time         time.Duration // of one statement in SQL; 30 s
	Key          int           // bytes of a key of the key-value API; none but Entry
	KeyValue     int           // bytes of a value of the key-value API; none but Entry
	Entry        int           // bytes of key and value together; 31 MiB, which is the most
}

// maxSlack is how much a database may grow beyond Limits.Database: a statement or
// put is refused where it begins, not in the middle, where SQLite would have to take
// back the turn.
const maxSlack = 64 << 20

func (l *Limits) defaults() {
	l.Statement = cmp.Or(l.Statement, 100_000)
	l.Columns = cmp.Or(l.Columns, 100)
	l.Parameters = cmp.Or(l.Parameters, 100)
	l.FunctionArgs = cmp.Or(l.FunctionArgs, 32)
	l.Pattern = cmp.Or(l.Pattern, 50)
	l.Value = cmp.Or(l.Value, 2_000_000)
	l.Key = cmp.Or(l.Key, maxEntry)
	l.KeyValue = cmp.Or(l.KeyValue, maxEntry)
	l.Entry = cmp.Or(l.Entry, maxEntry)
	l.Database = cmp.Or(l.Database, 10_000_000_000)
	l.Time = cmp.Or(l.Time, 30*time.Second)
}

// Validate tells everything that is wrong, with zero fields as their defaults.
func (l Limits) Validate() error {
	l.defaults()
	var errs []error
	within := func(name string, n, least, most int64) {
		if n < least || n > most {
			errs = append(errs, fmt.Errorf("limit %s of %d is not between %d and %d", name, n, least, most))
		}
	}
	within("Statement", int64(l.Statement), 1, 1_000_000_000)
	within("Columns", int64(l.Columns), 1, 2000)
	within("Parameters", int64(l.Parameters), 1, 32766)
	within("FunctionArgs", int64(l.FunctionArgs), 1, 1000)
	within("Pattern", int64(l.Pattern), 1, 50_000)
	within("Value", int64(l.Value), 1, 1_000_000_000)
	within("Database", l.Database, 1<<20, vfs.MaxBytes)
	within("Time", int64(l.Time), 1, math.MaxInt64)
	within("Key", int64(l.Key), 1, maxEntry)
	within("KeyValue", int64(l.KeyValue), 1, maxEntry)
	within("Entry", int64(l.Entry), 1, maxEntry)
	return errors.Join(errs...)
}

// entry checks a key with its value.
func (l *Limits) entry(key string, value []byte) error {
	switch n := len(key) + len(value); {
	case n <= l.Entry && len(key) <= l.Key && len(value) <= l.KeyValue:
		return nil
	case len(key) > l.Key:
		return &LimitError{What: fmt.Sprintf("key %.100q", key), Size: int64(len(key)), Limit: int64(l.Key), Remedy: "use a shorter key"}
	case len(value) > l.KeyValue:
		return &LimitError{What: fmt.Sprintf("the value of key %.100q", key), Size: int64(len(value)), Limit: int64(l.KeyValue), Remedy: "split the value over several keys"}
	default:
		return &LimitError{What: fmt.Sprintf("key %.100q with its value", key), Size: int64(n), Limit: int64(l.Entry), Remedy: "split the value over several keys"}
	}
}

// apply sets those that bind statements whenever they are prepared and run. The
// length of values is set before each statement: key-value statements have another.
func (l *Limits) apply(c *vfs.Conn) {
	c.Limit(sqlite.LimitSQLLength, int32(max(l.Statement, ownStatement)))
	c.Limit(sqlite.LimitColumn, int32(l.Columns))
	c.Limit(sqlite.LimitVariableNumber, int32(l.Parameters))
	c.Limit(sqlite.LimitFunctionArg, int32(l.FunctionArgs))
	c.Limit(sqlite.LimitLikePatternLength, int32(l.Pattern))
	c.Limit(sqlite.LimitAttached, 0)
	c.Limit(sqlite.LimitExprDepth, maxExprDepth)
	c.Limit(sqlite.LimitTriggerDepth, maxTriggerDepth)
}

const (
	// ownStatement is what SQLite's virtual tables need for statements of their own.
	ownStatement = 100_000
	// maxExprDepth is how deep an expression nests: the transpiled parser recurses.
	maxExprDepth = 1000
	// maxTriggerDepth is how deep triggers set off triggers.
	maxTriggerDepth = 1000
)

// limitTexts are the texts that SQLite has for limits for which it has no code of
// their own: the version is pinned, and a test meets each of them.
var limitTexts = []struct {
	begin, what, remedy string
	limit               func(*Limits) int // nil: SQLite does not tell
}{
	{"too many columns", "the columns of a table or result", "split the table, or keep what belongs together in one JSON column", func(l *Limits) int { return l.Columns }},
	{"too many terms in compound SELECT", "the SELECTs of a compound", "use VALUES, or join a table of the values", func(*Limits) int { return 500 }},
	{"too many terms in", "the terms of a result, ORDER BY or GROUP BY", "split the query", func(l *Limits) int { return l.Columns }},
	{"too many SQL variables", "the parameters of a statement", "run it for fewer rows at a time, or give the values as one JSON parameter and read them with json_each", func(l *Limits) int { return l.Parameters }},
	{"variable number must be between", "the number of a parameter", "number parameters from ?1, or give the values as one JSON parameter and read them with json_each", func(l *Limits) int { return l.Parameters }},
	{"too many arguments on function", "the arguments of a function", "nest the calls", func(l *Limits) int { return l.FunctionArgs }},
	{"LIKE or GLOB pattern too complex", "the bytes of a pattern of LIKE or GLOB", "use a shorter one, instr(), or an FTS5 table", func(l *Limits) int { return l.Pattern }},
	{"Expression tree is too large", "the depth of an expression", "write long chains of OR as IN (…), or join a table of the values", func(*Limits) int { return maxExprDepth }},
	{"too many levels of trigger recursion", "the depth to which triggers set off triggers", "end the recursion with a WHEN clause", func(*Limits) int { return maxTriggerDepth }},
	{"Recursion limit", "the depth to which a statement nests", "split the statement", nil},
	{"parser stack overflow", "the depth to which a statement nests", "split the statement", nil},
}

// countError says that a statement passes a limit of something that is counted.
// It matches ErrTooLarge.
type countError struct {
	what   string
	limit  int
	remedy string
	err    error // SQLite's
}

func (e *countError) Error() string {
	if e.limit == 0 {
		return fmt.Sprintf("%s: %s is over SQLite's limit: %s", e.err, e.what, e.remedy)
	}
	return fmt.Sprintf("%s: the limit of %s is %d: %s", e.err, e.what, e.limit, e.remedy)
}

func (e *countError) Is(target error) bool { return target == ErrTooLarge }
func (e *countError) Unwrap() error        { return e.err }

// sqlError gives an error of a statement its form: a limit, or a *limpet.SQLError.
func (o *Object) sqlError(err error) error {
	e, ok := errors.AsType[*vfs.Error](err)
	if !ok {
		return err
	}
	told := &limpet.SQLError{Code: e.Code.String(), Primary: e.Code.ToPrimary().String(), Message: e.Err.Error()}
	l := &o.s.opt.Limits
	switch e.Code.ToPrimary() {
	case sqlite.ResultTooBig:
		return &LimitError{What: "a string, blob or row of SQL", Size: -1, Limit: int64(l.Value), Remedy: "split it over several rows"}
	case sqlite.ResultFull:
		return o.databaseFull()
	case sqlite.ResultLocked:
		return fmt.Errorf("%w: a cursor is open, and SQLite drops nothing meanwhile: read it to its end or close it first", told)
	case sqlite.ResultError:
		for _, t := range limitTexts {
			if strings.HasPrefix(told.Message, t.begin) {
				e := &countError{what: t.what, remedy: t.remedy, err: told}
				if t.limit != nil {
					e.limit = t.limit(l)
				}
				return e
			}
		}
	}
	if e.Cause != nil {
		return fmt.Errorf("%w: %w", told, e.Cause)
	}
	return told
}

func (o *Object) databaseFull() error {
	return &LimitError{What: "the object's database", Size: o.conn.Size(), Limit: o.s.opt.Limits.Database, Remedy: "delete rows, or spread the data over several objects"}
}

// roomToGrow refuses what would let a full database grow.
func (o *Object) roomToGrow() error {
	if o.conn == nil || o.conn.Size() < o.s.opt.Limits.Database {
		return nil
	}
	st, err := o.conn.Raw().Prepare("PRAGMA freelist_count")
	if err != nil {
		return o.check(err)
	}
	_, err = st.Step()
	free := st.ColumnInt64(0) * int64(o.e.pages.PageSize())
	if err := o.reset(st, err); err != nil {
		return err
	}
	if o.conn.Size()-free >= o.s.opt.Limits.Database {
		return o.databaseFull()
	}
	return nil
}
