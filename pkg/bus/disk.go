package bus

import (
	"context"
	"syscall"
	"time"
)

// minFreeBytes is how much room the store's disk must have. Below it the server may already have failed to write.
const minFreeBytes = 16 << 20

// WatchDisk looks after the store's disk until ctx ends. A NATS server whose disk was full says nothing and stores
// nothing until it is restarted, so after a shortage it is restarted as soon as there is room again; what it had
// acknowledged survives. In between nothing is acknowledged, so nothing unaudited runs.
func (s *Server) WatchDisk(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	short := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		free, err := FreeBytes(s.cfg.Store)
		switch {
		case err != nil:
			s.logWarning("cannot see how much room the store has", "err", err)
		case free < minFreeBytes && !short:
			short = true
			s.logWarning("the disk is full: tool calls are denied until there is room", "store", s.cfg.Store, "free", free)
		case free >= 2*minFreeBytes && (short || s.isJetStreamDown()):
			s.logWarning("there is room again: restarting the server", "free", free)
			if err := s.Restart(); err != nil {
				s.logWarning("restart failed, will try again", "err", err)
				continue
			}
			short = false
		}
	}
}

// isJetStreamDown reports whether JetStream has turned itself off, as it does after a failed write.
func (s *Server) isJetStreamDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ns == nil && !s.stopped || s.ns != nil && !s.ns.JetStreamEnabled()
}

func (s *Server) logWarning(msg string, args ...any) {
	if s.log != nil {
		s.log.Warn(msg, append([]any{"actor", "nats"}, args...)...)
	}
}

// FreeBytes is how many bytes a normal user may still write to the disk that holds dir.
func FreeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}
