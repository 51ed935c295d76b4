package wire

// This file is flow control: who may send how much. It has no I/O and no lock.
//
// Only what was granted may be sent, and the receiver grants no more than it can
// hold. Each call starts with initialWindow bytes per direction, which are set
// aside for it; a body that is read as fast as it comes gets more, up to
// maxWindow, out of a pool that all calls of the connection share:
//
//	connection 16 MiB = (maxCalls + maxBackCalls) x initialWindow   set aside
//	                  + pool                                        lent to bodies that move,
//	                                                                and bounded for all connections
//
//	one body's share: granted (the peer may send) + held (here, unread) + owed
//	                  (read, not granted again yet)
//
// Arguments and results of the methods that the dialer calls may begin with
// valueWindow bytes, without a round trip: arguments are counted in the node's
// budget whatever their window is, and results are what the dialer asked for.
//
// A reader that stalls keeps at most its own share, and every other call keeps
// its initial window: a slow reader stalls only its own stream.
const (
	initialWindow = 4 << 10
	valueWindow   = 64 << 10
	maxWindow     = 1 << 20
	connWindow    = 16 << 20
	// maxCalls is the number of calls of a connection that the dialer makes at one
	// time, maxBackCalls of those that the acceptor does.
	maxCalls     = 2048
	maxBackCalls = 512
)

// pool is what a connection can lend beyond the initial windows.
type pool struct {
	free int64
	lent *budget // of all connections
}

func newPool(lent *budget) *pool {
	return &pool{free: connWindow - (maxCalls+maxBackCalls)*initialWindow, lent: lent}
}

func (p *pool) take(n int64) int64 {
	n = p.lent.some(max(min(n, p.free), 0))
	p.free -= n
	return n
}

func (p *pool) give(n int64) {
	p.free += n
	p.lent.give(n, n)
}

// inflow is the receiving side of one body. Its share is granted + held + owed.
type inflow struct {
	pool                *pool
	own                 int64 // of share, what is not lent by the pool
	share               int64
	granted, held, owed int64
}

func newInflow(p *pool, window int64) inflow {
	return inflow{pool: p, own: window, share: window, granted: window}
}

// arrive takes n bytes that the peer sent; false if it was not allowed to.
func (f *inflow) arrive(n int64) bool {
	if n > f.granted {
		return false
	}
	f.granted -= n
	f.held += n
	return true
}

// consume says that n bytes were read, and returns what to grant the peer now.
func (f *inflow) consume(n int64) int64 {
	f.held -= n
	f.owed += n
	if f.granted < f.share/2 { // the reader keeps up with the sender
		f.grow(f.share)
	}
	if f.owed < f.share/2 {
		return 0
	}
	return f.grant()
}

// expect says that n bytes will come and be taken at once, and returns what to
// grant.
func (f *inflow) expect(n int64) int64 {
	if more := min(n, maxWindow) - f.share; more > 0 {
		f.grow(more)
	}
	if n <= f.own {
		return 0
	}
	return f.grant()
}

func (f *inflow) grant() int64 {
	n := f.owed
	f.owed = 0
	f.granted += n
	return n
}

func (f *inflow) grow(n int64) {
	n = f.pool.take(min(n, maxWindow-f.share))
	f.share += n
	f.owed += n
}

// close gives the share back. Nothing of the body is kept any more; what still
// arrives is thrown away.
func (f *inflow) close() {
	f.pool.give(f.share - f.own)
	*f = inflow{pool: f.pool, own: f.own, share: f.own}
}

// outflow is the sending side of one body: what may still be sent.
type outflow int64

// add takes a grant of the peer; false if that goes beyond all measure.
// Arguments are granted as a whole.
func (f *outflow) add(n int64) bool {
	*f += outflow(n)
	return n >= 0 && *f <= connWindow+maxBody
}
