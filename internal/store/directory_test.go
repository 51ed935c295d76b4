package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	diskfs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
)

func TestDirectoryIDs(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, testOptions(d))
	ids := []ID{s.NodeID(), s.DiskID(), s.HistoryID(), s.BootID()}
	for i, a := range ids {
		for _, b := range ids[:i] {
			if a == b || a == (ID{}) {
				t.Errorf("IDs %v", ids)
			}
		}
	}
	must(t, s.Close())
	if err := s.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if _, err := s.Object(objectID(1), Birth{}); !errors.Is(err, ErrClosed) {
		t.Errorf("Object after Close: %v", err)
	}
	s = openStore(t, testOptions(d.crash(0, nil)))
	if diff := cmp.Diff(ids[:3], []ID{s.NodeID(), s.DiskID(), s.HistoryID()}); diff != "" || s.BootID() == ids[3] {
		t.Errorf("after a restart: boot %v, before %v: %s", s.BootID(), ids[3], diff)
	}
}

func TestRegisterClass(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, testOptions(d))
	register := func(name, identity, want string) {
		t.Helper()
		if got, err := s.RegisterClass(name, identity); got != want || err != nil {
			t.Errorf("RegisterClass(%q, %q) = %q, %v, want %q", name, identity, got, err, want)
		}
	}
	register("Cart", "", "Cart")
	register("Cart", "", "Cart")
	register("Cart", "Cart", "Cart")
	register("Room", "ChatRoom", "ChatRoom")
	s = crashAndOpen(t, s, &d)
	register("Room", "", "ChatRoom") // keeps what it has
	if _, err := s.RegisterClass("Room", "Room"); !errors.Is(err, ErrClassIdentity) || !strings.Contains(err.Error(), `"ChatRoom"`) {
		t.Errorf("another identity: %v", err)
	}
	if _, err := s.RegisterClass("", ""); err == nil {
		t.Error("a class without a name")
	}
	if _, err := s.RegisterClass("X", strings.Repeat("x", maxClassText+1)); err == nil {
		t.Error("an identity over the limit")
	}
	d.failOn(errorfs.OpFileSync, directoryName+tempSuffix, errDisk)
	if _, err := s.RegisterClass("New", ""); !errors.Is(err, errDisk) {
		t.Errorf("a registration that cannot be written: %v", err)
	}
	d.setFault(nil)
	want := map[string]string{"Cart": "Cart", "Room": "ChatRoom"}
	if got := s.Classes(); !maps.Equal(got, want) {
		t.Errorf("classes %v, want %v", got, want)
	}
	register("New", "", "New")
	s = crashAndOpen(t, s, &d)
	want["New"] = "New"
	if got := s.Classes(); !maps.Equal(got, want) {
		t.Errorf("classes %v, want %v", got, want)
	}
}

func crashAndOpen(t *testing.T, s *Store, d **disk) *Store {
	t.Helper()
	after := (*d).crash(0, nil)
	must(t, s.Close())
	*d = after
	return openStore(t, testOptions(after))
}

func TestDirectoryRefused(t *testing.T) {
	edit := func(old, new string) func(*testing.T, *disk) {
		return func(t *testing.T, d *disk) {
			editFile(t, d.fs, "data/"+directoryName, func(b []byte) []byte {
				if !bytes.Contains(b, []byte(old)) {
					t.Fatalf("no %q in %s", old, b)
				}
				return bytes.Replace(b, []byte(old), []byte(new), 1)
			})
		}
	}
	create := func(names ...string) func(*testing.T, *disk) {
		return func(t *testing.T, d *disk) {
			for _, name := range names {
				f, err := d.fs.Create("data/"+name, diskfs.WriteCategoryUnspecified)
				must(t, err)
				must(t, f.Close())
			}
		}
	}
	for name, c := range map[string]struct {
		fresh  bool // without a store in it
		change func(*testing.T, *disk)
		damage bool
		is     error
		text   string
	}{
		"foreign": {
			fresh: true, change: create("b.txt", "a.txt", "d", "c", "e"), is: ErrNotLimpet,
			text: "data is no limpet directory: it has no limpet.json and holds a.txt, b.txt, c and 2 more; name an empty or new directory",
		},
		"without limpet.json": {
			change: func(t *testing.T, d *disk) { must(t, d.fs.Remove("data/"+directoryName)) }, is: ErrNotLimpet,
			text: "holds base, log",
		},
		"newer":    {change: edit(`"format": 2`, `"format": 3`), text: "data/limpet.json was written by a newer limpet: the directory has format 3, this one reads up to 2"},
		"edited":   {change: edit(`"log_started": true`, `"log_started": false`), damage: true, text: "checksum is"},
		"not JSON": {change: edit(`{`, `[`), damage: true, text: "not JSON"},
		"empty":    {change: create(directoryName), damage: true, text: "not JSON"},
		"log lost": {change: func(t *testing.T, d *disk) { must(t, d.fs.RemoveAll("data/log")) }, text: "data/log"},
		"segments lost": {change: func(t *testing.T, d *disk) {
			must(t, d.fs.RemoveAll("data/log"))
			must(t, d.fs.MkdirAll("data/log", 0o755))
		}, damage: true, text: "no segment at all"},
		"log of another directory": {change: func(t *testing.T, d *disk) {
			other := newDisk(diskfs.NewMem())
			must(t, openStore(t, testOptions(other)).Close())
			b := readFile(t, other.fs, "data/"+seg1)
			editFile(t, d.fs, "data/"+seg1, func([]byte) []byte { return b })
		}, damage: true, text: "it belongs to history"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newCrashableDisk()
			if c.fresh {
				must(t, d.fs.MkdirAll("data", 0o755))
			} else {
				must(t, openStore(t, testOptions(d)).Close())
			}
			c.change(t, d)
			before := d.mem.String()
			s, err := Open(context.Background(), testOptions(d))
			if err == nil {
				_ = s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("got %v, want %q", err, c.text)
			}
			var damage *DamageError
			if errors.As(err, &damage) != c.damage {
				t.Errorf("got %#v, want damage: %t", err, c.damage)
			}
			if c.is == ErrNotLimpet && d.mem.String() != before { //nolint:errorlint // a table's own value
				t.Errorf("a foreign directory was changed:\n%s\n%s", before, d.mem)
			}
			// The lock was given back: the second try says the same.
			if _, err2 := Open(context.Background(), testOptions(d)); err2 == nil || errors.Is(err2, ErrInUse) {
				t.Errorf("second try: %v", err2)
			}
		})
	}
}

func TestDirectoryLock(t *testing.T) {
	d := newCrashableDisk()
	s := openStore(t, testOptions(d))
	_, err := Open(context.Background(), testOptions(d))
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf("by process %d", os.Getpid())) {
		t.Errorf("second open: %v", err)
	}
	must(t, s.Close())
	must(t, openStore(t, testOptions(d)).Close())

	// On the real disk other spellings of the directory are the same one.
	dir := t.TempDir()
	opt := testOptions(d)
	opt.FS, opt.Dir = nil, filepath.Join(dir, "a", "data")
	s = openStore(t, opt)
	must(t, os.Symlink(opt.Dir, filepath.Join(dir, "link")))
	for _, other := range []string{filepath.Join(dir, "a") + "/../a/data/", filepath.Join(dir, "link")} {
		opt.Dir = other
		if _, err := Open(context.Background(), opt); !errors.Is(err, ErrInUse) {
			t.Errorf("open as %s: %v", other, err)
		}
	}
	must(t, s.Close())
	must(t, openStore(t, opt).Close())
}

// TestFreshVolume: the root of a new file system has a directory in it.
func TestFreshVolume(t *testing.T) {
	d := newCrashableDisk()
	must(t, d.fs.MkdirAll(d.fs.PathJoin(testOptions(d).Dir, "lost+found"), 0o700))
	must(t, openStore(t, testOptions(d)).Close())
}

// TestLockFileRemoved: another process is refused although somebody has removed
// the lock file of a directory in use.
func TestLockFileRemoved(t *testing.T) {
	const childDir = "LIMPET_TEST_LOCKED_DIR"
	opt := testOptions(newCrashableDisk())
	opt.FS, opt.Dir = nil, os.Getenv(childDir)
	if opt.Dir != "" {
		s, err := Open(context.Background(), opt)
		fmt.Printf("opened: %v, in use: %v\n", err == nil, errors.Is(err, ErrInUse))
		if err == nil {
			must(t, s.Close())
		}
		return
	}
	opt.Dir = t.TempDir()
	child := func() string {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run=^TestLockFileRemoved$")
		cmd.Env = append(os.Environ(), childDir+"="+opt.Dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		line, _, _ := strings.Cut(string(out), "\n")
		return line
	}
	s := openStore(t, opt)
	must(t, os.Remove(filepath.Join(opt.Dir, lockName)))
	if got := child(); got != "opened: false, in use: true" {
		t.Errorf("a second process: %s", got)
	}
	must(t, s.Close())
	if got := child(); got != "opened: true, in use: false" {
		t.Errorf("a process after it: %s", got)
	}
}

// TestLockFails: a directory that can't be locked is not told to be in use.
func TestLockFails(t *testing.T) {
	opt := testOptions(newCrashableDisk())
	opt.FS, opt.Dir = nil, t.TempDir()
	must(t, openStore(t, opt).Close())
	must(t, os.Remove(filepath.Join(opt.Dir, lockName)))
	must(t, os.Mkdir(filepath.Join(opt.Dir, lockName), 0o755))
	_, err := Open(context.Background(), opt)
	if err == nil || errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), filepath.Join(opt.Dir, lockName)+": is a directory") {
		t.Errorf("got %v", err)
	}
}

func TestOpenOptions(t *testing.T) {
	d := newCrashableDisk()
	for name, change := range map[string]func(*Options){
		"no data directory": func(o *Options) { o.Dir = "" },
		"no clock":          func(o *Options) { o.Clock = nil },
		"segment size of ":  func(o *Options) { o.SegmentSize = MinSegmentSize - 1 },
		"undurable limit":   func(o *Options) { o.UndurableLimit = -1 },
	} {
		opt := testOptions(d)
		change(&opt)
		if _, err := Open(context.Background(), opt); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
	opt := testOptions(d)
	s := openStore(t, opt)
	o, err := s.Object(objectID(1), Birth{})
	must(t, err)
	must(t, o.Put("k", nil))
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "1 objects are open") {
		t.Errorf("Close with an open object: %v", err)
	}
	if _, err := o.Commit(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("commit after Close: %v", err)
	}
	must(t, o.Close())
}

// TestFirstOpenFull: a disk with no room for the first segment is told as such,
// and the directory is fine once there is room.
func TestFirstOpenFull(t *testing.T) {
	d := newCrashableDisk()
	d.failOn(errorfs.OpFileWrite, segmentSuffix+tempSuffix, errDisk)
	if _, err := Open(context.Background(), testOptions(d)); !errors.Is(err, ErrStorageFull) || !errors.Is(err, errDisk) {
		t.Fatalf("got %v, want ErrStorageFull", err)
	}
	d.setFault(nil)
	o := openObject(t, openStore(t, testOptions(d)), 1)
	must(t, o.Put("k", nil))
	commit(t, o)
}

func FuzzDirectory(f *testing.F) {
	d := newDisk(diskfs.NewMem())
	s := openStore(f, testOptions(d))
	_, err := s.RegisterClass("Cart", "")
	must(f, err)
	f.Add(readFile(f, d.fs, "data/"+directoryName))
	f.Add([]byte(`{"checksum":"","directory":{"format":9}}`))
	f.Add([]byte(`{"checksum":"crc32c-00000000","directory":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodeDirectory("limpet.json", b)
		var damage *DamageError
		var format *FormatError
		if err != nil && !errors.As(err, &damage) && !errors.As(err, &format) {
			t.Fatalf("error of neither kind: %v", err)
		}
		if err == nil && (d.Format != directoryVersion || d.History == (ID{})) {
			t.Errorf("%+v was taken", d)
		}
	})
}
