package store

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Names in the data directory.
const (
	directoryName    = "limpet.json"
	lockName         = "lock"
	pidName          = "pid"
	logName          = "log"
	baseName         = "base"
	directoryVersion = 2 // 1 had no base store
	maxDirectoryFile = 64 << 20
	maxClassText     = 4 << 10 // bytes of a class name or identity
)

var (
	// ErrNotLimpet says that the directory holds other things than a limpet's.
	ErrNotLimpet = errors.New("is no limpet directory")
	// ErrInUse says that another process, or another store of this one, has
	// the directory open.
	ErrInUse = errors.New("data directory is in use")
	// ErrClassIdentity says that a class is registered under another identity.
	ErrClassIdentity = errors.New("class has another identity in this directory")
)

// directory is the content of limpet.json.
type directory struct {
	Format  int       `json:"format"`
	Node    ID        `json:"node"`
	Disk    ID        `json:"disk"`
	History ID        `json:"history"`
	Created time.Time `json:"created"`
	// LogStarted is set once the first segment is durable: from then on a log
	// without segments is damage.
	LogStarted bool `json:"log_started"`
	// BaseStarted is set once there is a base store: from then on a directory
	// without is damaged.
	BaseStarted bool `json:"base_started,omitempty"`
	// Classes maps the name of a class to its identity.
	Classes map[string]string `json:"classes"`
}

// directoryFile is limpet.json: the checksum is over the directory as compact
// JSON, so that spaces do not matter and every other edit is seen.
type directoryFile struct {
	Checksum  string          `json:"checksum"`
	Directory json.RawMessage `json:"directory"`
}

// MarshalText gives 32 hex digits.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads 32 hex digits.
func (id *ID) UnmarshalText(b []byte) error {
	var v ID
	if n, err := hex.Decode(v[:], b[:min(len(b), 2*len(v))]); err != nil || n != len(v) || len(b) != 2*len(v) {
		return fmt.Errorf("%q is not an ID of 32 hex digits", b)
	}
	*id = v
	return nil
}

func newID() (id ID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// checkForeign refuses a directory that holds files and no limpet.json.
func checkForeign(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	var foreign []string
	for _, name := range names {
		switch name {
		case directoryName:
			return nil
		case lockName, pidName, directoryName + tempSuffix: // a crash while it was made
		case "lost+found": // the root of a volume of its own
		default:
			foreign = append(foreign, name)
		}
	}
	if len(foreign) == 0 {
		return nil
	}
	slices.Sort(foreign)
	more := ""
	if len(foreign) > 3 {
		more = fmt.Sprintf(" and %d more", len(foreign)-3)
		foreign = foreign[:3]
	}
	return fmt.Errorf("%s %w: it has no %s and holds %s%s; name an empty or new directory", dir, ErrNotLimpet, directoryName, strings.Join(foreign, ", "), more)
}

// loadDirectory reads limpet.json; ok is false when there is none.
func loadDirectory(fs vfs.FS, dir string) (d directory, ok bool, err error) {
	path := fs.PathJoin(dir, directoryName)
	f, err := fs.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return d, false, nil
	}
	if err != nil {
		return d, false, fmt.Errorf("open %s: %w", path, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDirectoryFile+1))
	if err != nil {
		return d, false, fmt.Errorf("read %s: %w", path, err)
	}
	d, err = decodeDirectory(path, b)
	return d, err == nil, err
}

func decodeDirectory(path string, b []byte) (d directory, err error) {
	damage := func(format string, args ...any) (directory, error) {
		return directory{}, &DamageError{File: path, Offset: -1, Reason: fmt.Sprintf(format, args...), Remedy: remedyRestore}
	}
	var file directoryFile
	if len(b) > maxDirectoryFile {
		return damage("it is larger than %d bytes", maxDirectoryFile)
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return damage("it is not JSON: %v", err)
	}
	// The format comes before all else: a newer one may differ in everything.
	var format struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(file.Directory, &format); err == nil && format.Format > directoryVersion {
		return directory{}, &FormatError{File: path, What: "the directory", Found: uint64(format.Format), Max: directoryVersion}
	}
	sum, err := directoryChecksum(file.Directory)
	if err != nil {
		return damage("it has no directory: %v", err)
	}
	if sum != file.Checksum {
		return damage("its checksum is %q and must be %q (it is not to be edited by hand)", file.Checksum, sum)
	}
	dec := json.NewDecoder(bytes.NewReader(file.Directory))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return damage("%v", err)
	}
	if d.Format < 1 || d.Format > directoryVersion || d.Node == (ID{}) || d.Disk == (ID{}) || d.History == (ID{}) {
		return damage("format, node, disk or history is missing")
	}
	return d, nil
}

func directoryChecksum(raw json.RawMessage) (string, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return "", err
	}
	return fmt.Sprintf("crc32c-%08x", crc32.Checksum(compact.Bytes(), castagnoli)), nil
}

// save replaces limpet.json as a whole.
func (d *directory) save(fs vfs.FS, dir string) error {
	raw, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode %s: %w", directoryName, err)
	}
	sum, err := directoryChecksum(raw)
	if err != nil {
		return fmt.Errorf("encode %s: %w", directoryName, err)
	}
	b, err := json.MarshalIndent(directoryFile{sum, raw}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", directoryName, err)
	}
	return replaceFile(fs, dir, directoryName, append(b, '\n'))
}

// replaceFile makes b the content of a file, which has the old or the new
// content after a crash.
func replaceFile(fs vfs.FS, dir, name string, b []byte) error {
	path := fs.PathJoin(dir, name)
	temp := path + tempSuffix
	f, err := fs.Create(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("create %s: %w", temp, err)
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = fs.Rename(temp, path)
	}
	if err != nil {
		_ = fs.Remove(temp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(fs, dir)
}

func (d *directory) clone() directory {
	c := *d
	c.Classes = maps.Clone(d.Classes)
	return c
}

// makeDir makes dir and its parents.
func makeDir(fs vfs.FS, dir string) error {
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make data directory %s: %w", dir, err)
	}
	return nil
}

// syncParents makes the name of dir durable, and those of its parents: any of
// them may have been made by a process that was killed before it synced them.
// A parent that this user may not read was not made by it.
func syncParents(fs vfs.FS, dir string) error {
	for d := dir; ; {
		parent := fs.PathDir(d)
		if parent == d {
			return nil
		}
		if err := syncDir(fs, parent); err != nil && !errors.Is(err, os.ErrPermission) {
			return err
		}
		d = parent
	}
}

// oneName is the one name of dir on the operating system's disk, so that two
// spellings of it cannot be locked twice.
func oneName(fs vfs.FS, dir string) (string, error) {
	if vfs.Root(fs) != vfs.Default {
		return dir, nil
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("data directory %s: %w", dir, err)
	}
	return abs, nil
}

// lockDir takes the directory for this process.
func lockDir(fs vfs.FS, dir string) (io.Closer, error) {
	lock, err := lockBoth(fs, dir)
	if path, ok := errors.AsType[*os.PathError](err); ok {
		return nil, fmt.Errorf("lock data directory %s: %w", dir, path) // it did not come to locking
	}
	if err != nil {
		who := ""
		if f, err := fs.Open(fs.PathJoin(dir, pidName)); err == nil {
			b, _ := io.ReadAll(io.LimitReader(f, 32))
			_ = f.Close()
			if pid := strings.TrimSpace(string(b)); pid != "" {
				who = " by process " + pid
			}
		}
		return nil, fmt.Errorf("%w%s: %s: %w", ErrInUse, who, dir, err)
	}
	// The lock file itself must not be opened: closing it would release the lock.
	f, err := fs.Create(fs.PathJoin(dir, pidName), vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
		if err2 := f.Close(); err == nil {
			err = err2
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", fs.PathJoin(dir, pidName), err), lock.Close())
	}
	return lock, nil
}

// lockBoth takes the lock file and, on the operating system's disk, the
// directory itself.
func lockBoth(fs vfs.FS, dir string) (io.Closer, error) {
	file, err := fs.Lock(fs.PathJoin(dir, lockName))
	if err != nil || vfs.Root(fs) != vfs.Default {
		return file, err
	}
	itself, err := flockDir(dir)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return locks{itself, file}, nil
}

// locks are given back together, the last first.
type locks [2]io.Closer

func (l locks) Close() error { return errors.Join(l[0].Close(), l[1].Close()) }
