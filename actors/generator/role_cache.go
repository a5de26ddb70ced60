package generator

import (
	"sync"
	"time"
)

// cacheTTL is how long an answer of the broker or of the model actor is good for: what a person changes is seen soon, and a
// conversation does not ask the same again at each turn.
const cacheTTL = 10 * time.Second

// cached is one value that is asked for now and then.
type cached[T any] struct {
	mu    sync.Mutex
	value T
	at    time.Time
	known bool
}

func (c *cached[T]) get(now time.Time) (T, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known || now.Sub(c.at) > cacheTTL {
		var none T
		return none, false
	}
	return c.value, true
}

func (c *cached[T]) put(v T, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.at, c.known = v, now, true
}
