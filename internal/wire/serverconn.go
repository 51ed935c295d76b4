package wire

// serverConn is the acceptor's end of a connection.
type serverConn struct {
	duplex
	s *Server
}

func newServerConn(s *Server, conn Conn) *serverConn {
	c := &serverConn{s: s}
	c.init(newLink(conn, s.cfg.Clock, s.shares), false, s.cfg.Callee, s.ctx, s.caps, &s.workers)
	c.linger = true
	return c
}

// drain sends GOAWAY, and ends the connection once its calls are over.
func (c *serverConn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.in.drained {
		return
	}
	c.in.drained = true
	c.pushLocked(item{head: appendGoAway(nil, c.in.last, "the node is stopping")})
	c.restLocked()
}
