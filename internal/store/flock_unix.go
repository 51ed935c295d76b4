//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// flockDir locks the directory itself. A lock file can be removed, by somebody
// who takes it for a leftover, and a second process would then lock another file
// of that name. Where directories can't be locked (some network file systems)
// the lock file stays alone.
func flockDir(dir string) (io.Closer, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open %s to lock it: %w", dir, err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
