package loop

import (
	"context"
	"sync"
	"time"
)

// limited is a context with a deadline that costs nothing until somebody waits for its end or makes another context from
// it: only then there are a timer and a channel. A model call that comes back at once needs neither. Besides that it is
// what context.WithDeadlineCause returns.
type limited struct {
	context.Context // the one it is made from, for what was never asked of made
	at              time.Time
	cause           error

	mu     sync.Mutex
	made   context.Context // the real one; nil = not needed yet
	cancel context.CancelFunc
	over   bool // ended by whoever made it, before anything else did
}

func limit(ctx context.Context, at time.Time, cause error) *limited {
	return &limited{Context: ctx, at: at, cause: cause}
}

// end ends it, as a cancel function does.
func (l *limited) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over = l.Context.Err() == nil; l.made != nil {
		l.cancel()
	}
}

// real makes the real one. The caller holds the lock.
func (l *limited) real() context.Context {
	switch {
	case l.made != nil:
	case l.over: // what becomes of its parent since does not matter any more
		l.made, l.cancel = context.WithCancel(context.WithoutCancel(l.Context))
		l.cancel()
	default:
		l.made, l.cancel = context.WithDeadlineCause(l.Context, l.at, l.cause)
	}
	return l.made
}

// Deadline is the earlier of its own and that of the context it is made from.
func (l *limited) Deadline() (time.Time, bool) {
	if at, ok := l.Context.Deadline(); ok && at.Before(l.at) {
		return at, true
	}
	return l.at, true
}

// Done makes it real.
func (l *limited) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.real().Done()
}

// Err makes it real when there is an error to tell.
func (l *limited) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made == nil && !l.over && l.Context.Err() == nil && time.Now().Before(l.at) {
		return nil
	}
	return l.real().Err()
}

// Value asks the real one when there is one: contexts made from this one find it there, and are ended with it.
func (l *limited) Value(key any) any {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made != nil {
		return l.made.Value(key)
	}
	return l.Context.Value(key)
}
