package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/store"
	"github.com/limpet-dev/limpet/node"
)

// logSide is the commit log alone.
type logSide struct{ log store.CommitLog }

func openLog(ctx context.Context, dir string) (*logSide, error) {
	log, err := store.OpenLog(ctx, store.Options{Dir: dir, Clock: node.SystemClock()})
	if err != nil {
		return nil, err
	}
	return &logSide{log}, nil
}

func (s *logSide) Put(ctx context.Context, object int, key, value string) error {
	var record [recordSize]byte
	record[0], record[1] = byte(object), byte(object>>8)
	copy(record[8:], key)
	copy(record[8+len(key):], value)
	if err := s.log.Admit(ctx, len(record)); err != nil {
		return err
	}
	return s.log.Wait(ctx, s.log.Append(record[:]))
}

func (s *logSide) Close() error { return s.log.Close() }

// limpetSide is an open node with all objects in memory.
type limpetSide struct {
	node  *node.Node
	dir   string
	stubs []*limpet.Stub[*shelf]
	put   func(*shelf, context.Context, string, string) error
	// before is what the log held when measuring began.
	before store.ReplayStats
}

// shelf is the object: it keeps values.
type shelf struct{ st *limpet.State }

var shelfClass = limpet.NewClass("Shelf", func(st *limpet.State) (*shelf, error) { return &shelf{st}, nil },
	limpet.Retryable((*shelf).Put), limpet.Retryable((*shelf).PutSQL))

// Put stores a value.
func (s *shelf) Put(_ context.Context, key, value string) error { return s.st.KV().Put(key, value) }

// PutSQL stores a value in a table and reads it back.
func (s *shelf) PutSQL(ctx context.Context, key, value string) error {
	db := s.st.SQL()
	if _, err := db.Exec(ctx, "INSERT INTO shelf(key, value) VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET value = excluded.value", key, value); err != nil {
		return err
	}
	row, err := db.One(ctx, "SELECT value FROM shelf WHERE key = ?", key)
	if err != nil {
		return err
	}
	var got string
	if err := row.Scan(&got); err != nil {
		return err
	}
	if got != value {
		return errors.New("another value than was stored")
	}
	return nil
}

// Fill stores a value under every key.
func (s *shelf) Fill(_ context.Context, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range keysPerObject {
		if err := s.st.KV().Put(key(i), value(r)); err != nil {
			return err
		}
	}
	return nil
}

// FillSQL is Fill for PutSQL.
func (s *shelf) FillSQL(ctx context.Context) error {
	_, err := s.st.SQL().Exec(ctx, "CREATE TABLE shelf(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID; INSERT INTO shelf SELECT 'key-' || printf('%06d', i), 'none' FROM "+
		"(WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n LIMIT ?) SELECT i FROM n)", keysPerObject)
	return err
}

// Has reads, and so brings the object into memory.
func (s *shelf) Has(_ context.Context, key string) (bool, error) { return s.st.KV().Has(key) }

// openLimpet makes the objects, looks at the log, and opens the node anew, as
// after a restart.
func openLimpet(ctx context.Context, dir string, objects int, inSQL bool) (*limpetSide, error) {
	s := &limpetSide{dir: dir, put: (*shelf).Put}
	if inSQL {
		s.put = (*shelf).PutSQL
	}
	if err := s.open(ctx, objects, func(i int, stub *limpet.Stub[*shelf]) error {
		if inSQL {
			if err := limpet.Do(ctx, stub, (*shelf).FillSQL); err != nil {
				return err
			}
		}
		return limpet.Do1(ctx, stub, (*shelf).Fill, uint64(i))
	}); err != nil {
		return nil, err
	}
	if err := s.node.Close(); err != nil {
		return nil, err
	}
	var err error
	if s.before, err = replay(ctx, dir); err != nil {
		return nil, err
	}
	return s, s.open(ctx, objects, func(_ int, stub *limpet.Stub[*shelf]) error {
		has, err := limpet.Call1(ctx, stub, (*shelf).Has, key(0))
		if err == nil && !has {
			err = errors.New("a value is missing after the restart")
		}
		return err
	})
}

// open opens the node and calls each object once.
func (s *limpetSide) open(ctx context.Context, objects int, call func(int, *limpet.Stub[*shelf]) error) (err error) {
	s.node, err = node.Open(ctx, node.Config{Dir: s.dir, Classes: []*limpet.Class{shelfClass}, IdleTimeout: 24 * time.Hour})
	if err != nil {
		return err
	}
	shelves, err := limpet.NamespaceOf[*shelf](s.node, "SHELF")
	if err != nil {
		return errors.Join(err, s.node.Close())
	}
	s.stubs = s.stubs[:0]
	for i := range objects {
		s.stubs = append(s.stubs, shelves.Named("shelf-"+strconv.Itoa(i)))
	}
	if err := each(objects, func(i int) error { return call(i, s.stubs[i]) }); err != nil {
		return errors.Join(err, s.node.Close())
	}
	return nil
}

// each runs f for 0 to n-1, 16 at a time.
func each(n int, f func(int) error) error {
	const workers = 16
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += workers {
				errs[w] = f(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// replay reads a data directory that no node has open.
func replay(ctx context.Context, dir string) (store.ReplayStats, error) {
	s, err := store.Open(ctx, store.Options{Dir: dir, Clock: node.SystemClock()})
	if err != nil {
		return store.ReplayStats{}, err
	}
	stats := s.Stats().Replay
	return stats, s.Close()
}

func (s *limpetSide) Put(_ context.Context, object int, key, value string) error {
	// A context that can't end, as in a service that has no deadline: the
	// loop looks at the program's own.
	return limpet.Do2(context.Background(), s.stubs[object], s.put, key, value)
}

func (s *limpetSide) Close() error { return s.node.Close() }

// filesSide is a SQLite file for each object.
type filesSide struct{ objects []fileObject }

type fileObject struct {
	mu   sync.Mutex // of conn
	conn *sqlite.Conn
	put  *sqlite.Stmt
}

func openFiles(dir string, objects int) (*filesSide, error) {
	s := &filesSide{objects: make([]fileObject, objects)}
	for i := range min(objects, 256) {
		if err := os.MkdirAll(filepath.Join(dir, fmt.Sprintf("%02x", i)), 0o700); err != nil {
			return nil, err
		}
	}
	err := each(objects, func(i int) error {
		return s.objects[i].open(filepath.Join(dir, fmt.Sprintf("%02x", i%256), strconv.Itoa(i)), uint64(i))
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (o *fileObject) open(path string, seed uint64) (err error) {
	// Its own journal mode is set below, under exclusive locking.
	if o.conn, err = sqlite.OpenConn(path, sqlite.OpenReadWrite|sqlite.OpenCreate); err != nil {
		return err
	}
	for _, pragma := range []string{
		"PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL",
		"CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID",
	} {
		if err := sqlitex.ExecuteTransient(o.conn, pragma, nil); err != nil {
			return fmt.Errorf("%s: %w", pragma, err)
		}
	}
	o.put, err = o.conn.Prepare("INSERT INTO kv(key, value) VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET value = excluded.value")
	if err != nil {
		return err
	}
	defer sqlitex.Save(o.conn)(&err)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range keysPerObject {
		if err := o.step(key(i), value(r)); err != nil {
			return err
		}
	}
	return nil
}

func (o *fileObject) step(key, value string) error {
	o.put.BindText(1, key)
	o.put.BindText(2, value)
	_, err := o.put.Step()
	return errors.Join(err, o.put.Reset())
}

func (s *filesSide) Put(_ context.Context, object int, key, value string) error {
	o := &s.objects[object]
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.step(key, value)
}

func (s *filesSide) Close() error {
	var errs []error
	for i := range s.objects {
		if c := s.objects[i].conn; c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}
