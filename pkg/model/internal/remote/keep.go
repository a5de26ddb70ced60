package remote

import "sync"

const mostKept = 4 << 20 // bytes

// Keep remembers what a server wants back with a call and a [model.Message] has no place for: the signature of the
// thinking that led to it. It forgets the oldest first, and everything with the process; a backend must get along
// without. The zero value is ready.
type Keep struct {
	mu    sync.Mutex
	of    map[string][]byte
	order []string
	size  int
}

// Put remembers v for the call with this id. What has no id or is too large is not kept.
func (k *Keep) Put(id string, v []byte) {
	if id == "" || len(v) == 0 || len(v) > mostKept/8 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == nil {
		k.of = map[string][]byte{}
	}
	if _, known := k.of[id]; known {
		return // ids are the server's and unique; the first word stands
	}
	k.of[id] = v
	k.order = append(k.order, id)
	k.size += len(id) + len(v)
	for k.size > mostKept {
		oldest := k.order[0]
		k.size -= len(oldest) + len(k.of[oldest])
		delete(k.of, oldest)
		k.order = k.order[1:]
	}
}

// Get returns what was kept for the call; nil when it is not known.
func (k *Keep) Get(id string) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of[id]
}
