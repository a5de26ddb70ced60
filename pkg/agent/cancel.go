package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrCanceled is the cause of a context that the user canceled.
var ErrCanceled = errors.New("canceled by the user")

// maxCanceled bounds the canceled queries that are remembered. A query beyond it is answered after all.
const maxCanceled = 4096

// Cancellations knows the queries that run here and those that were canceled. Its zero value knows none. Every process
// receives every cancellation: the query may run in any, or still be queued.
type Cancellations struct {
	mu       sync.Mutex
	running  map[string]context.CancelCauseFunc
	canceled []string // oldest first
}

// Cancel cancels the query if it runs here, and remembers it in any case, so that it ends at once when it starts later.
// Of more than maxCanceled queries the oldest is forgotten.
func (s *Cancellations) Cancel(query string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[query]; cancel != nil {
		cancel(ErrCanceled)
	}
	if slices.Contains(s.canceled, query) {
		return
	}
	if len(s.canceled) >= maxCanceled {
		s.canceled = s.canceled[1:]
	}
	s.canceled = append(s.canceled, query)
}

// Watch returns a context that ends when the query is canceled, at once when it was canceled before. The caller must
// call the returned function when the query is finished.
func (s *Cancellations) Watch(ctx context.Context, query string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = map[string]context.CancelCauseFunc{}
	}
	s.running[query] = cancel
	if slices.Contains(s.canceled, query) {
		cancel(ErrCanceled)
	}
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, query)
		cancel(nil)
	}
}
