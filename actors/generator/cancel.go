package generator

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// errCanceled is the cause of a context that the user ended.
var errCanceled = errors.New("the user stopped it")

// maxCanceled bounds how many stopped queries are remembered. One that falls out of it is answered after all.
const maxCanceled = 4096

// cancellations knows which queries are at work here and which ones a user has stopped. Every process hears every cancel: the
// query may be at work in any, or wait for its turn.
type cancellations struct {
	mu       sync.Mutex
	running  map[string]context.CancelCauseFunc
	canceled []string // oldest first
}

func (s *cancellations) cancel(query string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[query]; cancel != nil {
		cancel(errCanceled)
	}
	if slices.Contains(s.canceled, query) {
		return
	}
	if len(s.canceled) >= maxCanceled {
		s.canceled = s.canceled[1:]
	}
	s.canceled = append(s.canceled, query)
}

// watch gives a query a context that a cancel ends, at once when it was stopped before.
func (s *cancellations) watch(ctx context.Context, query string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = map[string]context.CancelCauseFunc{}
	}
	s.running[query] = cancel
	if slices.Contains(s.canceled, query) {
		cancel(errCanceled)
	}
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, query)
		cancel(nil)
	}
}
