package generator

import (
	"sync"
	"time"
)

// cacheTTL is how long a reply of the model actor is reused: changes of the configuration are seen soon, and not every turn
// asks again.
const cacheTTL = 10 * time.Second

// cached is a value that expires after cacheTTL.
type cached[T any] struct {
	mu    sync.Mutex
	value T
	at    time.Time
	known bool
}

// get returns the value; false = there is none, or it is older than cacheTTL.
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
