package webclient

import (
	"container/list"
	"sync"
	"time"
)

// Cache is an LRU cache with a limit in bytes and a time to live. The zero value keeps nothing.
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

// NewCache returns a cache of at most most bytes, each value for ttl. Either being 0 turns it off.
func NewCache[V any](most int, ttl time.Duration) *Cache[V] {
	return &Cache[V]{most: most, ttl: ttl, byKey: map[string]*list.Element{}}
}

// Get returns the value of key if it is stored and not expired at now, and marks it as used.
func (c *Cache[V]) Get(key string, now time.Time) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.byKey[key]
	if el == nil {
		return v, false
	}
	e := el.Value.(*entry[V])
	if !now.Before(e.until) {
		c.removeElement(el)
		return v, false
	}
	c.order.MoveToFront(el)
	return e.value, true
}

// Put stores v, which takes size bytes, from now on for the time to live, and evicts the values that were not used the
// longest. It ignores values larger than a quarter of the cache.
func (c *Cache[V]) Put(key string, v V, size int, now time.Time) {
	size += len(key)
	if c.ttl <= 0 || size > c.most/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if el := c.byKey[key]; el != nil {
		c.removeElement(el)
	}
	c.byKey[key] = c.order.PushFront(&entry[V]{key, v, size, now.Add(c.ttl)})
	for c.used += size; c.used > c.most; {
		c.removeElement(c.order.Back())
	}
}

func (c *Cache[V]) removeElement(el *list.Element) {
	e := c.order.Remove(el).(*entry[V])
	delete(c.byKey, e.key)
	c.used -= e.size
}

// Bytes returns how many bytes are in use.
func (c *Cache[V]) Bytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}
