package jsonschema

import "sync"

// Limits of a cache.
const (
	maxCached      = 512
	maxCachedBytes = 4 << 20
)

// Cache derives a value from each schema once, and remembers errors too. It is safe for concurrent use. The zero value
// works; a nil cache derives every time. When it is full it starts again from empty, because tools are few and a caller
// that sends ever new schemas must not fill the memory.
type Cache[T any] struct {
	mu      sync.RWMutex
	entries map[string]cacheEntry[T] // by the text of the schema
	bytes   int
}

type cacheEntry[T any] struct {
	value T
	err   error
}

// Get returns derive(raw), which must be the same function in each call. The value is shared: nobody may change it.
// Schemas over maxSchemaBytes are not remembered.
func (c *Cache[T]) Get(raw []byte, derive func(raw []byte) (T, error)) (T, error) {
	if c == nil || len(raw) > maxSchemaBytes {
		return derive(raw)
	}
	c.mu.RLock()
	e, ok := c.entries[string(raw)]
	c.mu.RUnlock()
	if ok {
		return e.value, e.err
	}
	e.value, e.err = derive(raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil || len(c.entries) >= maxCached || c.bytes+len(raw) > maxCachedBytes {
		c.entries, c.bytes = map[string]cacheEntry[T]{}, 0
	}
	if _, ok := c.entries[string(raw)]; !ok {
		c.entries[string(raw)] = e
		c.bytes += len(raw)
	}
	return e.value, e.err
}
