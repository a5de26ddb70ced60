package bus

import (
	"context"
	"syscall"
	"time"
)

// minFreeBytes is the free disk space below which the server may have failed to write.
const minFreeBytes = 16 << 20

// WatchDisk checks the disk of the store every interval until ctx ends. It warns below 16 MiB of free space. A NATS
// server whose disk was full, even between two checks, stores nothing until it is restarted, so WatchDisk restarts it
// when 32 MiB are available again; acknowledged messages survive. Meanwhile nothing is acknowledged, so no unaudited
// call runs.
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
			s.logWarning("reading the free disk space failed", "err", err)
		case free < minFreeBytes && !short:
			short = true
			s.logWarning("disk full: tool calls are denied until space is available", "store", s.cfg.Store, "free",
				free)
		case free >= 2*minFreeBytes && (short || s.serverLog.writeFailed.Load() || s.isJetStreamDown()):
			s.logWarning("disk space available again: restarting the server", "free", free)
			s.serverLog.writeFailed.Store(false) // before the restart, so that a new failure counts
			if err := s.Restart(); err != nil {
				s.logWarning("restart failed, will retry", "err", err)
				continue
			}
			short = false
		}
	}
}

// isJetStreamDown reports whether JetStream has disabled itself, as it does after a failed write, or the server is
// down.
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

// IsDiskFull reports whether the disk of dir has so little space left that the server may have failed to write, and how
// many bytes. A disk that cannot be examined is not full.
func IsDiskFull(dir string) (free int64, full bool) {
	free, err := FreeBytes(dir)
	return free, err == nil && free < minFreeBytes
}

// FreeBytes returns the bytes that an unprivileged user may still write to the disk of dir.
func FreeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}
