package vfs

// FileName returns the name under which SQLite has the connection's database.
func FileName(c *Conn) string { return fileName(c.num, c.file.token) }

// DriverName returns the name of the VFS.
func DriverName() string { return theDriver.name }

// FailIO makes all I/O of the connection fail with err, until it is called with nil.
func FailIO(c *Conn, err error) { c.file.broken = err }

func pageOf(p *Pages, pgno uint32) []byte {
	b, err := p.Page(pgno)
	if err != nil {
		panic(err)
	}
	return b
}

// PageOf is Page of pages whose source does not fail.
var PageOf = pageOf

// SumOf is Checksum for a Sink, which is called with the mutex held.
var SumOf = (*Pages).checksum
