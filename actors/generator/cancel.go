package generator

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// errStopped is the cause of a context that the user ended.
var errStopped = errors.New("the user stopped it")

// maxStopped bounds how many stopped queries are remembered. One that falls out of it is answered after all.
const maxStopped = 4096

// stops knows which queries are at work here and which ones a user has stopped. Every process hears every cancel: the
// query may be at work in any, or wait for its turn.
type stops struct {
	mu      sync.Mutex
	running map[string]context.CancelCauseFunc
	stopped []string // oldest first
}

func (s *stops) stop(query string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[query]; cancel != nil {
		cancel(errStopped)
	}
	if slices.Contains(s.stopped, query) {
		return
	}
	if len(s.stopped) >= maxStopped {
		s.stopped = s.stopped[1:]
	}
	s.stopped = append(s.stopped, query)
}

// begin gives a query a context that a cancel ends, at once when it was stopped before.
func (s *stops) begin(ctx context.Context, query string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = map[string]context.CancelCauseFunc{}
	}
	s.running[query] = cancel
	if slices.Contains(s.stopped, query) {
		cancel(errStopped)
	}
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, query)
		cancel(nil)
	}
}
