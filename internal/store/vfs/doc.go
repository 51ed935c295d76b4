// Package vfs keeps SQLite databases as pages in Go memory and hands each
// commit over as the byte ranges it changed. SQLite touches no file.
//
//	            SQLite (transpiled, one connection per database)
//	               | xRead, xWrite, xTruncate, xFileControl
//	               v
//	Sink  <---  file  --->  Pages  --->  Allocator
//	(a log)                 (table of    (slabs of 256 KiB,
//	                        page refs,    all databases of
//	                        undo list)    a node)
//
// # Commit
//
// What SQLite calls in journal_mode=MEMORY, locking_mode=EXCLUSIVE, from the
// first change to the end of a transaction:
//
//	xWrite*                   pages that did not fit the cache (spill), any number of times
//	COMMIT, phase one:
//	  xWrite*                 the other dirty pages, whole
//	  FCNTL_SYNC              also with synchronous=OFF. The change is made up:
//	    |                     pages against the undo list, checksum; then Sink.Admit.
//	    |--- error ---------> SQLite rolls back (below), the statement fails
//	COMMIT, phase two:        an error would be ignored from here on
//	  xTruncate               when the database got shorter: only now, so that FCNTL_SYNC
//	                          must ask the Pager for the size
//	  FCNTL_COMMIT_PHASETWO   the change is final: undo list dropped, Sink.Publish
//
//	ROLLBACK after pages were written:
//	  xTruncate, xWrite*      from SQLite's journal in memory, by then without pages that
//	                          were free before (their content is not journaled)
//	  FCNTL_SYNC              told from that of a commit by Pager.changeCountDone. What
//	                          still differs is restored from the undo list; Sink.Abandon
//	                          if the commit had been admitted
//	ROLLBACK that failed (out of memory, journal_mode=OFF): SQLite tells nothing, drops its
//	cache, and reads anew with the next statement:
//	  xRead 16 bytes at 24    the undo list restores everything, Sink.Abandon
//
// A transaction that wrote no page sends COMMIT_PHASETWO alone; one whose pages
// are equal in the end neither admits nor publishes.
//
//	          xWrite, xTruncate
//	         +--------------+
//	         v              |
//	clean ---+--> changed --+-- FCNTL_SYNC --> admitted -- COMMIT_PHASETWO --> clean
//	  ^             |                             |
//	  |<-- restore -+-----------------------------+
//	  |    (FCNTL_SYNC of a rollback, xRead of 16 bytes at 24, xUnlock, xClose)
//	  +--- restore, and the connection is broken: Revert, Discard, a panic
//
// # Page diff
//
// One commit, pages in ascending order. Numbers are unsigned LEB128 varints as
// in encoding/binary.
//
//	diff  = page*
//	page  = varint (pgno - pgno of the page before, 0 at first) * 2 + fresh
//	        range*
//	        0x00
//	range = varint n, 1 or more      bytes that follow
//	        varint skip              from the end of the range before, 0 at first
//	        n bytes
//
//	fresh = 1: the page is all zeroes before the ranges are laid over it,
//	        whatever the replica has; else they are laid over the page as it is.
//
// Two bytes of page 3 from offset 100, then all of the new page 5, "hi" at 0:
//
//	06        page 3, not fresh
//	02 64     2 bytes after skipping 100
//	AA BB
//	00
//	05        page 3+2, fresh
//	02 00
//	68 69
//	00
//
// The page count after the commit travels beside the diff: pages beyond it are
// gone before the diff is applied, and no page in it lies beyond. The diff has no
// version and no checksum of its own: the record around it has both.
//
// # Checksum
//
// The checksum of a database is the XOR of one 64-bit hash per page, with the
// page's number in it, and one of the page count: see pageSum. A commit
// hashes the pages it changed and nothing else.
//
// # Unsafe
//
// SQLite is C, transpiled to Go: its structures are reached through uintptr into memory
// that is not Go's. All of that is in register.go. The versions of the driver, of SQLite
// and of its C library are pinned together, and TestVersions says what to do when they
// change.
package vfs
