package broker

import (
	"bytes"
	"container/list"
	"sync"

	"conclave/pkg/policy"
)

// memo remembers what the records of the latest sessions say, so that they are not decoded anew for each call. It is no
// cache of the bucket: a record is read each time, and only the same bytes mean the same.
type memo struct {
	mu      sync.Mutex
	records map[string]*list.Element // by key
	order   list.List                // the last used in front
}

type memoEntry struct {
	key  string
	data []byte
	rev  uint64
	flow *policy.Flow
}

// mostFlows is how many sessions are remembered.
const mostFlows = 64

// same is the flow that these bytes were decoded to before, nil when they are new.
func (m *memo) same(key string, data []byte) *policy.Flow {
	e := m.get(key)
	if e == nil || !bytes.Equal(e.data, data) {
		return nil
	}
	return e.flow
}

func (m *memo) get(key string) *memoEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.records[key]
	if !ok {
		return nil
	}
	m.order.MoveToFront(e)
	return e.Value.(*memoEntry)
}

func (m *memo) put(key string, data []byte, rev uint64, f *policy.Flow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry := &memoEntry{key, data, rev, f}
	if e, ok := m.records[key]; ok {
		e.Value = entry
		m.order.MoveToFront(e)
		return
	}
	if m.records == nil {
		m.records = map[string]*list.Element{}
	}
	m.records[key] = m.order.PushFront(entry)
	if m.order.Len() > mostFlows {
		last := m.order.Back()
		delete(m.records, last.Value.(*memoEntry).key)
		m.order.Remove(last)
	}
}
