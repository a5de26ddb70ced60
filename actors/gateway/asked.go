package gateway

import "sync"

// question is one that was asked here.
type question struct {
	id, session string
	since       uint64 // what belongs to it comes after this in EVENTS
}

// questionLog are the latest questions asked here, so that they can be looked up without reading all of EVENTS.
type questionLog struct {
	mu      sync.Mutex
	known   map[string]question
	order   []string
	waiting map[string]bool // those somebody waits for
}

const maxAsked = 4096

// add notes a question. It reports false when somebody waits for that very one.
func (a *questionLog) add(q question) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known, a.waiting = map[string]question{}, map[string]bool{}
	}
	if a.waiting[q.id] {
		return false
	}
	a.waiting[q.id] = true
	if _, again := a.known[q.id]; !again {
		a.order = append(a.order, q.id)
	}
	a.known[q.id] = q
	if len(a.order) > maxAsked {
		delete(a.known, a.order[0])
		a.order = a.order[1:]
	}
	return true
}

// release says that nobody waits for it any more.
func (a *questionLog) release(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, id)
}

func (a *questionLog) find(id string) (question, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q, ok := a.known[id]
	return q, ok
}
