package vfs

// Change is one commit before it is made. Its images are valid until Admit
// returns.
type Change struct {
	PageSize        int          // bytes
	PageCountBefore uint32       // pages after the commit before
	PageCountAfter  uint32       // pages this commit leaves
	ChecksumBefore  uint64       // Pages.Checksum before
	ChecksumAfter   uint64       // what Pages.Checksum will be
	Pages           []PageChange // ascending by Pgno; only pages that differ, none beyond PageCountAfter

	sum uint64
}

// PageChange is one page that differs.
type PageChange struct {
	Pgno   uint32 // from 1
	Before []byte // nil: the page was never written or did not exist
	After  []byte // PageSize bytes
}

// Sink takes the commits of one connection, in order. Its methods are called
// on the goroutine that runs the statement, while SQLite is at work: they must not
// use the connection. A commit that changes no page calls none of them.
//
// A panic in one of them is stopped at the callback: the transaction is reverted
// (after Publish: it stands), the statement fails with *PanicError where SQLite
// still can fail, and the connection is broken: who runs commits through Conn.Raw
// asks Conn.Broken after each. runtime.Goexit in one of them goes on through
// SQLite; after it, only Conn.Discard is left.
type Sink interface {
	// Admit decides on a commit. An error refuses it: SQLite rolls the
	// transaction back, the statement fails, and Conn.Explain gives the error.
	// (After RELEASE of the outermost savepoint SQLite then has an empty
	// transaction open: ROLLBACK ends it.) What Admit needs of c it must copy.
	Admit(c *Change) error
	// Publish makes the commit admitted last final. It cannot fail. Like Abandon
	// it is called with the pages' mutex held (Pages.Share), so that what it
	// notes and the pages change together for a Snapshot.
	Publish()
	// Abandon withdraws the commit admitted last, which SQLite rolled back.
	Abandon()
}
