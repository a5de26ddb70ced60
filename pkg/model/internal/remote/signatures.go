package remote

import "sync"

const maxCacheBytes = 4 << 20 // bytes

// SignatureCache holds the thinking signatures that a service expects back with a tool call and that [model.Message]
// has no field for. It evicts the oldest first and does not survive the process, so a backend must work without them.
// The zero value is ready to use.
type SignatureCache struct {
	mu     sync.Mutex
	values map[string][]byte
	order  []string
	size   int
}

// Put stores v for the call id; the first value of an id stays. Empty ids and values above an eighth of the cache are
// ignored.
func (k *SignatureCache) Put(id string, v []byte) {
	if id == "" || len(v) == 0 || len(v) > maxCacheBytes/8 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.values == nil {
		k.values = map[string][]byte{}
	}
	if _, known := k.values[id]; known {
		return
	}
	k.values[id] = v
	k.order = append(k.order, id)
	k.size += len(id) + len(v)
	for k.size > maxCacheBytes {
		oldest := k.order[0]
		k.size -= len(oldest) + len(k.values[oldest])
		delete(k.values, oldest)
		k.order = k.order[1:]
	}
}

// Get returns the value stored for the call id, or nil.
func (k *SignatureCache) Get(id string) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.values[id]
}
