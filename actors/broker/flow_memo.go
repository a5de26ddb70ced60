package broker

import (
	"bytes"
	"container/list"
	"sync"

	"conclave/pkg/policy"
)

// flowMemo remembers what the records of the latest sessions say, so that they are not decoded anew for each call. It is no
// cache of the bucket: a record is read each time, and only the same bytes mean the same.
type flowMemo struct {
	mu       sync.Mutex
	sessions map[string]*list.Element
	order    list.List // the last used in front
}

type memoEntry struct {
	session string
	data    []byte
	rev     uint64
	flow    *policy.Flow
}

// maxFlows is how many sessions are remembered.
const maxFlows = 64

// findDecoded is the flow that these bytes were decoded to before, nil when they are new.
func (m *flowMemo) findDecoded(session string, data []byte) *policy.Flow {
	e := m.get(session)
	if e == nil || !bytes.Equal(e.data, data) {
		return nil
	}
	return e.flow
}

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
