package webclient

import (
	"container/list"
	"sync"
	"time"
)

// Cache keeps values for a while, as many as fit into its bytes; what was used longest ago goes first. The zero value
// keeps nothing.
type Cache[V any] struct {
	most int
	ttl  time.Duration

	mu    sync.Mutex
	used  int
	order list.List // of *entry[V], newest use in front
	byKey map[string]*list.Element
}

type entry[V any] struct {
	key   string
	value V
	size  int
	until time.Time
}

// NewCache keeps values of most bytes in all, each for ttl. One of the two being 0 turns it off.
func NewCache[V any](most int, ttl time.Duration) *Cache[V] {
	return &Cache[V]{most: most, ttl: ttl, byKey: map[string]*list.Element{}}
}

// Get is what is kept under key and still fresh.
func (c *Cache[V]) Get(key string, now time.Time) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.byKey[key]
	if el == nil {
		return v, false
	}
	e := el.Value.(*entry[V])
	if !now.Before(e.until) {
		c.drop(el)
		return v, false
	}
	c.order.MoveToFront(el)
	return e.value, true
}

// Put keeps v, which takes size bytes. What alone is larger than a quarter of the cache is not kept.
func (c *Cache[V]) Put(key string, v V, size int, now time.Time) {
	size += len(key)
	if c.ttl <= 0 || size > c.most/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if el := c.byKey[key]; el != nil {
		c.drop(el)
	}
	c.byKey[key] = c.order.PushFront(&entry[V]{key, v, size, now.Add(c.ttl)})
	for c.used += size; c.used > c.most; {
		c.drop(c.order.Back())
	}
}

func (c *Cache[V]) drop(el *list.Element) {
	e := c.order.Remove(el).(*entry[V])
	delete(c.byKey, e.key)
	c.used -= e.size
}

// Bytes is how much is kept.
func (c *Cache[V]) Bytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}
