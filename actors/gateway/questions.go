package gateway

import (
	"sync"

	"conclave/subjects"
)

// question is a question that was asked through this gateway.
type question struct {
	id, session string
	since       uint64 // its events have a higher sequence
	respondent  string // the account that it was asked; "" = not known, as for a question that was asked elsewhere
}

// respondents are the accounts whose response can be the answer.
func (q question) respondents() []string {
	if q.respondent == "" {
		return subjects.VisibleRespondents
	}
	return []string{q.respondent}
}

// questionLog keeps the latest questions of this gateway, so that their answers are found without reading the whole
// log.
type questionLog struct {
	mu      sync.Mutex
	known   map[string]question
	order   []string
	waiting map[string]bool // by query id: a client waits for the answer
}

// maxAsked is the number of questions that are kept; the oldest are dropped.
const maxAsked = 4096

// add records a question and marks it as waited for, until release. It reports false, and records nothing, when a
// client already waits for it. Beyond maxAsked the oldest question is dropped.
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

// release ends the wait for a question.
func (a *questionLog) release(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, id)
}

// find returns a question by its id, false when it is not kept.
func (a *questionLog) find(id string) (question, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q, ok := a.known[id]
	return q, ok
}
