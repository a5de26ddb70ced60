package bus

import (
	"net"
	"sync"
	"time"
)

// pausableConn is an in-process connection of a client. Its writes wait while the server is paused.
type pausableConn struct {
	net.Conn
	pause *sync.RWMutex
}

func (c pausableConn) Write(b []byte) (int, error) {
	c.pause.RLock()
	defer c.pause.RUnlock()
	return c.Conn.Write(b)
}

// Pause stops the server from receiving anything of in-process clients until resume is called, for at most limit: their
// writes wait, nothing is lost, and no request fails. Clients over TCP are not paused. resume reports whether the pause
// lasted until then; it must be called once. Pauses do not overlap: a second one waits for the end of the first.
//
// limit must be below ten seconds, after which the server closes connections that it cannot write to.
func (s *Server) Pause(limit time.Duration) (resume func() bool) {
	s.pause.Lock()
	unlock := sync.OnceFunc(s.pause.Unlock)
	timer := time.AfterFunc(limit, unlock)
	return func() bool {
		lasted := timer.Stop()
		unlock()
		return lasted
	}
}
