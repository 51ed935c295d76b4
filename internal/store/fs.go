package store

import diskfs "github.com/cockroachdb/pebble/v2/vfs"

// FS is the file system that a Store works on, for packages that pass one on.
type FS = diskfs.FS
