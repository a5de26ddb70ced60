package broker

import (
	"container/list"
	"sync"

	"conclave/pkg/policy"
)

// flowMemo keeps the decoded flows of recent sessions. It does not cache the bucket: a record is read each time, and a
// decoded flow is reused only for equal bytes.
type flowMemo struct {
	mu       sync.Mutex
	sessions map[string]*list.Element
	order    list.List // most recently used first
}

type memoEntry struct {
	session string
	data    []byte
	rev     uint64
	flow    *policy.Flow
}

// maxFlows is how many sessions are kept.
const maxFlows = 64

// get returns the entry of a session and marks it as recently used; nil when there is none. The entry may be outdated.
func (m *flowMemo) get(session string) *memoEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.sessions[session]
	if !ok {
		return nil
	}
	m.order.MoveToFront(e)
	return e.Value.(*memoEntry)
}

// put keeps a decoded flow with the bytes and revision it was stored as, and drops the least recently used session
// beyond maxFlows. data must not be changed later.
func (m *flowMemo) put(session string, data []byte, rev uint64, f *policy.Flow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry := &memoEntry{session, data, rev, f}
	if e, ok := m.sessions[session]; ok {
		e.Value = entry
		m.order.MoveToFront(e)
		return
	}
	if m.sessions == nil {
		m.sessions = map[string]*list.Element{}
	}
	m.sessions[session] = m.order.PushFront(entry)
	if m.order.Len() > maxFlows {
		last := m.order.Back()
		delete(m.sessions, last.Value.(*memoEntry).session)
		m.order.Remove(last)
	}
}
