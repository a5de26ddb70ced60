package jsonschema

import "sync"

// Limits of a cache.
const (
	maxCached      = 512
	maxCachedBytes = 4 << 20
)

// Cache compiles each schema once, and remembers schemas that do not compile too. It is safe for concurrent use. The
// zero value works; a nil cache compiles every time. When it is full it starts again from empty, because tools are few
// and a caller that sends ever new schemas must not fill the memory.
type Cache struct {
	mu      sync.RWMutex
	entries map[string]cacheEntry // by the text of the schema
	bytes   int
}

type cacheEntry struct {
	schema *Schema
	err    error
}

// Compile is [Compile] with a memory, also of errors. Schemas over maxSchemaBytes are not remembered.
func (c *Cache) Compile(raw []byte) (*Schema, error) {
	if c == nil || len(raw) > maxSchemaBytes {
		return Compile(raw)
	}
	c.mu.RLock()
	e, ok := c.entries[string(raw)]
	c.mu.RUnlock()
	if ok {
		return e.schema, e.err
	}
	e.schema, e.err = Compile(raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil || len(c.entries) >= maxCached || c.bytes+len(raw) > maxCachedBytes {
		c.entries, c.bytes = map[string]cacheEntry{}, 0
	}
	if _, ok := c.entries[string(raw)]; !ok {
		c.entries[string(raw)] = e
		c.bytes += len(raw)
	}
	return e.schema, e.err
}
