package sim

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrPowerCut is what every operation on a disk answers after its power was cut.
var ErrPowerCut = errors.New("sim: the power was cut")

// Disk is a disk in memory that remembers what was synced. It is a vfs.FS, and
// safe for concurrent use.
type Disk struct {
	vfs.FS // what reading passes through to
	mem    *vfs.MemFS

	mu  sync.RWMutex // held for reading by every operation, for writing by CutPower
	cut bool

	full   atomic.Bool
	syncMu sync.RWMutex  // held for reading by every data sync that runs; guards held
	held   chan struct{} // data syncs wait until it is closed; nil if none was ever held
}

// NewDisk returns an empty disk.
func NewDisk() *Disk { return newDisk(vfs.NewCrashableMem()) }

func newDisk(mem *vfs.MemFS) *Disk { return &Disk{FS: mem, mem: mem} }

// SetFull makes every write that would make a file longer fail with ENOSPC, or
// lets it work again.
func (d *Disk) SetFull(full bool) { d.full.Store(full) }

// HoldSyncs makes every SyncData that starts from now on wait until release is
// called, once; it returns when those under way have ended. CutPower does not
// wait for them: they fail when they are released.
func (d *Disk) HoldSyncs() (release func()) {
	d.syncMu.Lock()
	defer d.syncMu.Unlock()
	held := make(chan struct{})
	d.held = held
	return func() { close(held) }
}

// enterSync waits until data syncs are not held, and keeps HoldSyncs waiting until
// syncMu is given back. It waits for a channel, so that in a testing/synctest
// bubble synctest.Wait does not wait for it.
func (d *Disk) enterSync() {
	for {
		d.syncMu.RLock()
		held := d.held
		select {
		case <-held:
			return
		default:
		}
		if held == nil {
			return
		}
		d.syncMu.RUnlock()
		<-held
	}
}

// CutPower ends the disk: operations that run have ended when it returns, and
// every later one fails with ErrPowerCut. The disk it returns holds what was
// synced, and of the blocks and directory entries that were not synced each with
// a probability of keep percent (0 to 100), drawn from seed.
func (d *Disk) CutPower(keep int, seed uint64) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = true
	rng := rand.New(rand.NewPCG(seed, 0))
	return newDisk(d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: min(max(keep, 0), 100), RNG: rng}))
}

// do runs one operation unless the power is cut.
func (d *Disk) do(op func() error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.cut {
		return ErrPowerCut
	}
	return op()
}

func (d *Disk) file(open func() (vfs.File, error)) (f vfs.File, err error) {
	err = d.do(func() error {
		f, err = open()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, d: d}, nil
}

// Create implements vfs.FS.
func (d *Disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.file(func() (vfs.File, error) { return d.mem.Create(name, c) })
}

// Open implements vfs.FS.
func (d *Disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.file(func() (vfs.File, error) { return d.mem.Open(name, opts...) })
}

// OpenReadWrite implements vfs.FS.
func (d *Disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.file(func() (vfs.File, error) { return d.mem.OpenReadWrite(name, c, opts...) })
}

// OpenDir implements vfs.FS.
func (d *Disk) OpenDir(name string) (vfs.File, error) {
	return d.file(func() (vfs.File, error) { return d.mem.OpenDir(name) })
}

// ReuseForWrite implements vfs.FS.
func (d *Disk) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.file(func() (vfs.File, error) { return d.mem.ReuseForWrite(oldname, newname, c) })
}

// Link implements vfs.FS.
func (d *Disk) Link(oldname, newname string) error {
	return d.do(func() error { return d.mem.Link(oldname, newname) })
}

// Remove implements vfs.FS.
func (d *Disk) Remove(name string) error { return d.do(func() error { return d.mem.Remove(name) }) }

// RemoveAll implements vfs.FS.
func (d *Disk) RemoveAll(name string) error {
	return d.do(func() error { return d.mem.RemoveAll(name) })
}

// Rename implements vfs.FS.
func (d *Disk) Rename(oldname, newname string) error {
	return d.do(func() error { return d.mem.Rename(oldname, newname) })
}

// MkdirAll implements vfs.FS.
func (d *Disk) MkdirAll(dir string, perm os.FileMode) error {
	return d.do(func() error { return d.mem.MkdirAll(dir, perm) })
}

// Lock implements vfs.FS.
func (d *Disk) Lock(name string) (c io.Closer, err error) {
	err = d.do(func() error {
		c, err = d.mem.Lock(name)
		return err
	})
	return c, err
}

// Unwrap implements vfs.FS: nothing may go around the disk.
func (d *Disk) Unwrap() vfs.FS { return nil }

type diskFile struct {
	vfs.File
	d *Disk
}

func (f *diskFile) count(op func() (int, error)) (n int, err error) {
	err = f.d.do(func() error {
		n, err = op()
		return err
	})
	return n, err
}

func (f *diskFile) Read(p []byte) (int, error) {
	return f.count(func() (int, error) { return f.File.Read(p) })
}

func (f *diskFile) ReadAt(p []byte, off int64) (int, error) {
	return f.count(func() (int, error) { return f.File.ReadAt(p, off) })
}

func (f *diskFile) Write(p []byte) (int, error) {
	if f.d.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.count(func() (int, error) { return f.File.Write(p) })
}

func (f *diskFile) WriteAt(p []byte, off int64) (int, error) {
	if f.d.full.Load() {
		if info, err := f.Stat(); err != nil || off+int64(len(p)) > info.Size() {
			return 0, errors.Join(syscall.ENOSPC, err)
		}
	}
	return f.count(func() (int, error) { return f.File.WriteAt(p, off) })
}

func (f *diskFile) Sync() error { return f.d.do(f.File.Sync) }

func (f *diskFile) SyncData() error {
	f.d.enterSync()
	defer f.d.syncMu.RUnlock()
	return f.d.do(f.File.SyncData)
}

func (f *diskFile) SyncTo(length int64) (full bool, err error) {
	err = f.d.do(func() error {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}
