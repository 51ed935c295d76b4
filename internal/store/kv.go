package store

import (
	"fmt"
	"iter"

	"zombiezen.com/go/sqlite"
)

// TableName is the table of the key-value API in an object's database.
const TableName = ReservedPrefix + "kv"

// The statements of turns and of the key-value API, prepared once per
// connection. Keys are blobs, so that order and equality are those of bytes.
// OR REPLACE instead of the upsert deletes the row first: some 5 % faster, but
// the page may change where the value does not, and a put that changes nothing
// makes a record.
const (
	stmtBegin = iota
	stmtCommit
	stmtGet
	stmtPut
	stmtDelete
	stmtListFrom    // from a key on; each is followed by the same with an end
	stmtListFromEnd // exclusive
	stmtListAfter
	stmtListAfterEnd
	stmtListDown // last key first
	stmtListDownEnd
	stmtCount
)

var queries = [stmtCount]string{
	stmtBegin:        "BEGIN",
	stmtCommit:       "COMMIT",
	stmtGet:          "SELECT value FROM " + TableName + " WHERE key=?1",
	stmtPut:          "INSERT INTO " + TableName + "(key,value) VALUES(?1,?2) ON CONFLICT(key) DO UPDATE SET value=excluded.value",
	stmtDelete:       "DELETE FROM " + TableName + " WHERE key=?1",
	stmtListFrom:     "SELECT key,value FROM " + TableName + " WHERE key>=?1 ORDER BY key",
	stmtListFromEnd:  "SELECT key,value FROM " + TableName + " WHERE key>=?1 AND key<?2 ORDER BY key",
	stmtListAfter:    "SELECT key,value FROM " + TableName + " WHERE key>?1 ORDER BY key",
	stmtListAfterEnd: "SELECT key,value FROM " + TableName + " WHERE key>?1 AND key<?2 ORDER BY key",
	stmtListDown:     "SELECT key,value FROM " + TableName + " WHERE key>=?1 ORDER BY key DESC",
	stmtListDownEnd:  "SELECT key,value FROM " + TableName + " WHERE key>=?1 AND key<?2 ORDER BY key DESC",
}

const createTable = "CREATE TABLE " + TableName + "(key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"

// maxEntry bounds key and value together in bytes: in SQLite a value is in
// memory as a whole, several times while it is written.
const maxEntry = MaxRecord - 1<<20

// A chunk is what a listing reads ahead at once.
const (
	chunkEntries = 128
	chunkBytes   = 256 << 10
)

// Entry is a key with its value. Keys are compared by their bytes; the empty
// key is one like others (SPEC H22).
type Entry struct {
	Key   string
	Value []byte
}

// statement prepares a query of the list above, or returns the one it has.
func (o *Object) statement(n int) (*sqlite.Stmt, error) {
	if o.sql != nil {
		o.allowLong()
	}
	if st := o.stmts[n]; st != nil {
		return st, nil
	}
	st, err := o.conn.Raw().Prepare(queries[n])
	if err != nil {
		return nil, o.check(err)
	}
	o.stmts[n] = st
	return st, nil
}

// reset gives a statement back: it must hold neither a read position nor values.
func (o *Object) reset(st *sqlite.Stmt, err error) error {
	if err2 := st.Reset(); err == nil {
		err = err2
	}
	_ = st.ClearBindings()
	return o.check(err)
}

// run runs a statement without parameters and rows.
func (o *Object) run(n int) error {
	st, err := o.statement(n)
	if err != nil {
		return err
	}
	if _, err = st.Step(); err != nil {
		err = o.conn.Explain(err) // before Reset, which may have less to say
	}
	_ = st.Reset()
	return err
}

// readable says whether there is a table to read; false is an empty object.
func (o *Object) readable() (bool, error) {
	if err := o.usable(); err != nil {
		return false, err
	}
	if o.table == tableUnknown {
		if !o.inTurn && (o.e.pages == nil || o.e.pages.PageCount() == 0) {
			o.table = tableMissing
			return false, nil
		}
		if err := o.connect(); err != nil {
			return false, err
		}
		st, _, err := o.conn.Raw().PrepareTransient("SELECT 1 FROM sqlite_schema WHERE name='" + TableName + "'")
		if err != nil {
			return false, o.check(err)
		}
		there, err := st.Step()
		if err2 := st.Finalize(); err == nil {
			err = err2
		}
		if err != nil {
			return false, o.check(err)
		}
		o.table = tableMissing
		if there {
			o.table = tableThere
		}
	}
	if o.table == tableMissing {
		return false, nil
	}
	return true, o.connect()
}

// writable opens the turn and makes the table.
func (o *Object) writable() error {
	if err := o.begin(); err != nil {
		return err
	}
	there, err := o.readable()
	if err != nil || there {
		return err
	}
	if err := o.check(o.conn.Exec(createTable)); err != nil {
		return fmt.Errorf("create the key-value table: %w", err)
	}
	o.table = tableThere
	return nil
}

// Get returns the value of key; ok is false when there is none. The caller owns
// the value. SPEC H20.
func (o *Object) Get(key string) (value []byte, ok bool, err error) {
	there, err := o.readable()
	if err != nil || !there {
		return nil, false, err
	}
	st, err := o.statement(stmtGet)
	if err != nil {
		return nil, false, err
	}
	st.BindBytes(1, []byte(key))
	ok, err = st.Step()
	if ok && err == nil {
		value = columnBytes(st, 0)
	}
	if err := o.reset(st, err); err != nil {
		return nil, false, fmt.Errorf("get %.100q: %w", key, err)
	}
	return value, ok, nil
}

func columnBytes(st *sqlite.Stmt, col int) []byte {
	b := make([]byte, st.ColumnLen(col))
	st.ColumnBytes(col, b)
	return b
}

// GetMany returns the values of those keys that have one.
func (o *Object) GetMany(keys []string) (map[string][]byte, error) {
	m := make(map[string][]byte, len(keys))
	for _, key := range keys {
		v, ok, err := o.Get(key)
		if err != nil {
			return nil, err
		}
		if ok {
			m[key] = v
		}
	}
	return m, nil
}

// Put sets the value of key. Limits bound key, value and both together, and the
// database: else a *LimitError (SPEC H23, H24). nil is the empty value.
func (o *Object) Put(key string, value []byte) error {
	if err := o.s.opt.Limits.entry(key, value); err != nil {
		return err
	}
	if err := o.writable(); err != nil {
		return err
	}
	if err := o.roomToGrow(); err != nil {
		return err
	}
	st, err := o.statement(stmtPut)
	if err != nil {
		return err
	}
	st.BindBytes(1, []byte(key))
	st.BindBytes(2, value)
	_, err = st.Step()
	if err := o.reset(st, err); err != nil {
		return fmt.Errorf("put %.100q: %w", key, err)
	}
	return nil
}

// PutMany sets all of the entries, or none.
func (o *Object) PutMany(entries []Entry) error {
	if len(entries) == 0 {
		return o.usable()
	}
	return o.Transaction(func() error {
		for _, e := range entries {
			if err := o.Put(e.Key, e.Value); err != nil {
				return err
			}
		}
		return nil
	})
}

// Delete removes key and says whether it was there.
func (o *Object) Delete(key string) (bool, error) {
	n, err := o.DeleteMany([]string{key})
	return n > 0, err
}

// DeleteMany removes the keys, all or on an error none, and says how many were
// there.
func (o *Object) DeleteMany(keys []string) (int, error) {
	there, err := o.readable()
	if err != nil || !there || len(keys) == 0 {
		return 0, err
	}
	if len(keys) > 1 {
		n := 0
		err := o.Transaction(func() (err error) {
			n, err = o.deleteEach(keys)
			return err
		})
		if err != nil {
			n = 0
		}
		return n, err
	}
	if err := o.begin(); err != nil {
		return 0, err
	}
	return o.deleteEach(keys)
}

func (o *Object) deleteEach(keys []string) (int, error) {
	st, err := o.statement(stmtDelete)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, key := range keys {
		st.BindBytes(1, []byte(key))
		_, err = st.Step()
		if err == nil {
			n += o.conn.Raw().Changes()
		}
		if err := o.reset(st, err); err != nil {
			return 0, fmt.Errorf("delete %.100q: %w", key, err)
		}
	}
	return n, nil
}

// DeleteAll removes everything: keys, and whatever SQL has made.
func (o *Object) DeleteAll() error {
	if err := o.usable(); err != nil {
		return err
	}
	if o.conn == nil && (o.e.pages == nil || o.e.pages.PageCount() == 0) {
		return nil
	}
	if err := o.dropAll(); err != nil {
		return fmt.Errorf("delete all: %w", err)
	}
	there, err := o.readable()
	if err != nil || !there {
		return err
	}
	if err := o.begin(); err != nil {
		return err
	}
	if err := o.check(o.conn.Exec("DELETE FROM " + TableName)); err != nil {
		return fmt.Errorf("delete all keys: %w", err)
	}
	return nil
}

// ListOptions choose a range of keys; the zero value is all of them. All that
// is set must hold.
type ListOptions struct {
	Start      string // first key, inclusive
	StartAfter string // the keys after this one
	After      bool   // StartAfter counts, though it be empty
	End        string // exclusive; "" is no end
	Prefix     string
	Reverse    bool // last key first
	Limit      int  // of entries; 0 is none
}

// keyRange is a range of keys: low inclusive or exclusive, high exclusive or
// none.
type keyRange struct {
	low, high string
	after     bool // low is exclusive
	bounded   bool // high counts
}

func (opt *ListOptions) keyRange() keyRange {
	r := keyRange{low: opt.Start}
	if opt.Prefix > r.low {
		r.low = opt.Prefix
	}
	if (opt.After || opt.StartAfter != "") && opt.StartAfter >= r.low {
		r.low, r.after = opt.StartAfter, true
	}
	if end, ok := prefixEnd(opt.Prefix); ok {
		r.high, r.bounded = end, true
	}
	if opt.End != "" && (!r.bounded || opt.End < r.high) {
		r.high, r.bounded = opt.End, true
	}
	return r
}

// prefixEnd is the first key after all that begin with prefix.
func prefixEnd(prefix string) (string, bool) {
	b := []byte(prefix)
	for len(b) > 0 {
		if b[len(b)-1] < 0xff {
			b[len(b)-1]++
			return string(b), true
		}
		b = b[:len(b)-1]
	}
	return "", false
}

// List goes through the keys of a range in order (SPEC H20, H21). It reads
// ahead in chunks of at most 128 entries, and may be used while the object is
// written: each key comes at most once and in order; what is written or
// deleted ahead of the listing may be seen or not. An error ends it.
func (o *Object) List(opt ListOptions) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if opt.Limit < 0 {
			yield(Entry{}, fmt.Errorf("list: limit %d is negative", opt.Limit))
			return
		}
		r := opt.keyRange()
		for left := opt.Limit; ; {
			chunk, more, err := o.chunk(r, opt.Reverse, left)
			if err != nil {
				yield(Entry{}, fmt.Errorf("list: %w", err))
				return
			}
			for _, e := range chunk {
				if !yield(e, nil) {
					return
				}
			}
			if !more {
				return
			}
			if left > 0 {
				if left -= len(chunk); left == 0 {
					return
				}
			}
			last := chunk[len(chunk)-1].Key
			if opt.Reverse {
				r.high, r.bounded = last, true
			} else {
				r.low, r.after = last, true
			}
		}
	}
}

// chunk reads the first entries of a range; more says that it did not come to
// the range's end.
func (o *Object) chunk(r keyRange, reverse bool, limit int) (chunk []Entry, more bool, err error) {
	there, err := o.readable()
	if err != nil || !there {
		return nil, false, err
	}
	low := r.low
	n := stmtListFrom
	switch {
	case reverse:
		n = stmtListDown
		if r.after { // the first key after low
			low += "\x00"
		}
	case r.after:
		n = stmtListAfter
	}
	if r.bounded {
		n++
	}
	st, err := o.statement(n)
	if err != nil {
		return nil, false, err
	}
	st.BindBytes(1, []byte(low))
	if r.bounded {
		st.BindBytes(2, []byte(r.high))
	}
	size := 0
	for {
		var row bool
		if row, err = st.Step(); err != nil || !row {
			break
		}
		e := Entry{Key: string(columnBytes(st, 0)), Value: columnBytes(st, 1)}
		chunk = append(chunk, e)
		size += len(e.Key) + len(e.Value)
		if len(chunk) == limit {
			break
		}
		if len(chunk) == chunkEntries || size >= chunkBytes {
			more = true
			break
		}
	}
	return chunk, more, o.reset(st, err)
}
