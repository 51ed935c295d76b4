package vfs

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// driver is what one process registers with SQLite: all of it lives as long as
// the process, since SQLite is process-wide state too. It is registered at the
// first Open, so that a program which only links this package is left alone.
type driver struct {
	once  sync.Once
	err   error
	name  string // of the VFS, unique so that two copies of this package can coexist
	vfs   uintptr
	io    uintptr // sqlite3_io_methods
	args  dbConfigArgs
	files fileTable
}

// dbConfigArgs are argument lists for sqlite3_db_config, in SQLite's memory, read only.
type dbConfigArgs struct {
	zero uintptr // 0, 0, 0
	on   uintptr // 1, NULL
}

var theDriver driver

// cFile is the sqlite3_file that SQLite allocates for us.
type cFile struct {
	methods uintptr // must be first
	num     uint32
}

// funcPtr returns a Go function as a function pointer of the transpiled code.
// It must be a package-level function: nothing else keeps a closure alive.
func funcPtr[T any](f T) uintptr {
	return *(*uintptr)(unsafe.Pointer(&f))
}

func (d *driver) register() error {
	d.once.Do(func() {
		if err := d.tryRegister(); err != nil {
			d.err = fmt.Errorf("register SQLite VFS: %w", err)
		}
	})
	return d.err
}

func (d *driver) tryRegister() error {
	var suffix [8]byte
	if _, err := rand.Read(suffix[:]); err != nil {
		return err
	}
	d.name = "limpet-" + hex.EncodeToString(suffix[:])

	tls := libc.NewTLS()
	defer tls.Close()
	if rc := lib.Xsqlite3_initialize(tls); rc != lib.SQLITE_OK {
		return fmt.Errorf("sqlite3_initialize: code %d", rc)
	}
	base := lib.Xsqlite3_vfs_find(tls, 0)
	if base == 0 {
		return errors.New("SQLite has no VFS of its own")
	}
	cname, err := libc.CString(d.name)
	if err != nil {
		return err
	}
	d.io = libc.Xcalloc(tls, 1, libc.Tsize_t(unsafe.Sizeof(lib.Tsqlite3_io_methods{})))
	d.vfs = libc.Xcalloc(tls, 1, libc.Tsize_t(unsafe.Sizeof(lib.Tsqlite3_vfs{})))
	if d.io == 0 || d.vfs == 0 {
		return errors.New("out of memory")
	}
	d.args.zero = libc.NewVaList(uintptr(0), uintptr(0), uintptr(0))
	d.args.on = libc.NewVaList(int32(1), uintptr(0))

	m := (*lib.Tsqlite3_io_methods)(unsafe.Pointer(d.io))
	m.FiVersion = 1
	m.FxClose = funcPtr(xClose)
	m.FxRead = funcPtr(xRead)
	m.FxWrite = funcPtr(xWrite)
	m.FxTruncate = funcPtr(xTruncate)
	m.FxSync = funcPtr(xSync)
	m.FxFileSize = funcPtr(xFileSize)
	m.FxLock = funcPtr(xLock)
	m.FxUnlock = funcPtr(xUnlock)
	m.FxCheckReservedLock = funcPtr(xCheckReservedLock)
	m.FxFileControl = funcPtr(xFileControl)
	m.FxSectorSize = funcPtr(xSectorSize)
	m.FxDeviceCharacteristics = funcPtr(xDeviceCharacteristics)

	v := (*lib.Tsqlite3_vfs)(unsafe.Pointer(d.vfs))
	*v = *(*lib.Tsqlite3_vfs)(unsafe.Pointer(base)) // clock, randomness, sleep
	v.FiVersion = 2
	v.FpNext = 0
	v.FszOsFile = int32(unsafe.Sizeof(cFile{}))
	v.FmxPathname = 64
	v.FzName = cname
	v.FpAppData = 0
	v.FxOpen = funcPtr(xOpen)
	v.FxDelete = funcPtr(xDelete)
	v.FxAccess = funcPtr(xAccess)
	v.FxFullPathname = funcPtr(xFullPathname)
	if rc := lib.Xsqlite3_vfs_register(tls, d.vfs, 0); rc != lib.SQLITE_OK {
		return fmt.Errorf("sqlite3_vfs_register: code %d", rc)
	}
	return nil
}

// fileName is the name under which SQLite opens file number n: "o7-" and its
// token, which an ATTACH by another connection cannot guess.
func fileName(n uint32, token uint64) string {
	return "o" + strconv.FormatUint(uint64(n), 10) + "-" + strconv.FormatUint(token, 16)
}

// parseFileName is the inverse of fileName.
func parseFileName(s string) (n uint32, token uint64, ok bool) {
	num, tok, ok := strings.Cut(s, "-")
	if !ok || len(num) < 2 || num[0] != 'o' {
		return 0, 0, false
	}
	i, err1 := strconv.ParseUint(num[1:], 10, 32)
	token, err2 := strconv.ParseUint(tok, 16, 64)
	return uint32(i), token, err1 == nil && err2 == nil
}

func fileOf(cf uintptr) *file {
	return theDriver.files.get((*cFile)(unsafe.Pointer(cf)).num)
}

// xOpen opens main databases that Open has prepared, each once. A journal or a
// temporary file is never needed (journal_mode=MEMORY, temp_store=MEMORY), and ATTACH
// of whatever name finds nothing.
func xOpen(tls *libc.TLS, vfs, name, cf uintptr, flags int32, outFlags uintptr) int32 {
	c := (*cFile)(unsafe.Pointer(cf))
	c.methods = 0
	if flags&lib.SQLITE_OPEN_MAIN_DB == 0 || name == 0 {
		return lib.SQLITE_CANTOPEN
	}
	n, token, ok := parseFileName(libc.GoString(name))
	if !ok {
		return lib.SQLITE_CANTOPEN
	}
	f := theDriver.files.get(n)
	if f == nil || f.token != token || f.opened.Swap(true) {
		return lib.SQLITE_CANTOPEN
	}
	// The Pager stands before the name: "this pointer, then four zero bytes"
	// is what sqlite3_database_file_object relies on as well. Check that it is one.
	f.pager = *(*uintptr)(unsafe.Pointer(name - 4 - unsafe.Sizeof(uintptr(0))))
	p := (*lib.TPager)(unsafe.Pointer(f.pager))
	if lib.Xsqlite3_database_file_object(tls, name) != cf || p.Ffd != cf || p.FpVfs != theDriver.vfs {
		f.refuse(errors.New("SQLite's Pager is laid out differently: this version was not tested"), lib.SQLITE_CANTOPEN)
		return lib.SQLITE_CANTOPEN
	}
	c.num = n
	c.methods = theDriver.io
	if outFlags != 0 {
		*(*int32)(unsafe.Pointer(outFlags)) = flags
	}
	return lib.SQLITE_OK
}

func xClose(_ *libc.TLS, cf uintptr) int32 {
	if f := fileOf(cf); f != nil {
		f.close()
	}
	return lib.SQLITE_OK
}

func xRead(_ *libc.TLS, cf, buf uintptr, n int32, off int64) int32 {
	f := fileOf(cf)
	if f == nil {
		return lib.SQLITE_IOERR_READ
	}
	return f.read(unsafe.Slice((*byte)(unsafe.Pointer(buf)), n), off)
}

func xWrite(_ *libc.TLS, cf, buf uintptr, n int32, off int64) int32 {
	f := fileOf(cf)
	if f == nil {
		return lib.SQLITE_IOERR_WRITE
	}
	return f.write(unsafe.Slice((*byte)(unsafe.Pointer(buf)), n), off)
}

func xTruncate(_ *libc.TLS, cf uintptr, n int64) int32 {
	f := fileOf(cf)
	if f == nil {
		return lib.SQLITE_IOERR_TRUNCATE
	}
	return f.truncate(n)
}

func xSync(*libc.TLS, uintptr, int32) int32 { return lib.SQLITE_OK }

func xFileSize(_ *libc.TLS, cf, out uintptr) int32 {
	f := fileOf(cf)
	if f == nil {
		return lib.SQLITE_IOERR_FSTAT
	}
	*(*int64)(unsafe.Pointer(out)) = int64(f.pages.count) << f.pages.shift
	return lib.SQLITE_OK
}

func xLock(*libc.TLS, uintptr, int32) int32 { return lib.SQLITE_OK }

func xUnlock(_ *libc.TLS, cf uintptr, level int32) int32 {
	if f := fileOf(cf); f != nil && level == lib.SQLITE_LOCK_NONE {
		return f.unlock()
	}
	return lib.SQLITE_OK
}

func xCheckReservedLock(_ *libc.TLS, _, out uintptr) int32 {
	*(*int32)(unsafe.Pointer(out)) = 0
	return lib.SQLITE_OK
}

func xFileControl(tls *libc.TLS, cf uintptr, op int32, arg uintptr) int32 {
	f := fileOf(cf)
	if f == nil {
		return lib.SQLITE_IOERR
	}
	switch op {
	case lib.SQLITE_FCNTL_SYNC:
		// SQLite sends this at the end of a commit's first phase, where it has just
		// made sure of the change counter, and at the end of a rollback, where it
		// has just said that the counter must be looked after again.
		p := (*lib.TPager)(unsafe.Pointer(f.pager))
		return f.sync(p.FchangeCountDone != 0, p.FdbSize)
	case lib.SQLITE_FCNTL_COMMIT_PHASETWO:
		f.phaseTwo()
		return lib.SQLITE_OK
	case lib.SQLITE_FCNTL_PDB: // comes once, while the connection opens
		f.tls = tls
		f.db = *(*uintptr)(unsafe.Pointer(arg))
		return lib.SQLITE_OK
	}
	return lib.SQLITE_NOTFOUND
}

func xSectorSize(*libc.TLS, uintptr) int32 { return 0 }

// xDeviceCharacteristics: a write of a page is whole, order is kept, and bytes
// beside those written are safe; overflow pages may be read in part past the cache.
func xDeviceCharacteristics(*libc.TLS, uintptr) int32 {
	return lib.SQLITE_IOCAP_ATOMIC | lib.SQLITE_IOCAP_SAFE_APPEND | lib.SQLITE_IOCAP_SEQUENTIAL |
		lib.SQLITE_IOCAP_POWERSAFE_OVERWRITE | lib.SQLITE_IOCAP_SUBPAGE_READ
}

func xDelete(*libc.TLS, uintptr, uintptr, int32) int32 { return lib.SQLITE_IOERR_DELETE_NOENT }

func xAccess(_ *libc.TLS, _, _ uintptr, _ int32, out uintptr) int32 {
	*(*int32)(unsafe.Pointer(out)) = 0
	return lib.SQLITE_OK
}

func xFullPathname(_ *libc.TLS, _, name uintptr, n int32, out uintptr) int32 {
	s := libc.GoString(name)
	b := unsafe.Slice((*byte)(unsafe.Pointer(out)), n)
	if len(s) >= len(b) {
		return lib.SQLITE_CANTOPEN
	}
	b[copy(b, s)] = 0
	return lib.SQLITE_OK
}

// xProgress stops a statement whose event has ended. It does not return 1 for
// that: SQLite asks it once more after a statement has committed, and would then
// report as interrupted what is done. An interrupt is looked at only while
// there is something left to do.
func xProgress(tls *libc.TLS, num uintptr) int32 {
	if f := theDriver.files.get(uint32(num)); f != nil && f.interrupted() {
		lib.Xsqlite3_interrupt(tls, f.db)
	}
	return 0
}

// dbStatus returns one figure of sqlite3_db_status.
func dbStatus(tls *libc.TLS, db uintptr, op int32) int64 {
	bp := tls.Alloc(16)
	defer tls.Free(16)
	if rc := lib.Xsqlite3_db_status(tls, db, op, bp, bp+8, 0); rc != lib.SQLITE_OK {
		return 0
	}
	return int64(*(*int32)(unsafe.Pointer(bp)))
}
