package gateway

import (
	"sync"
	"time"
)

// Limits of each run-time principal that asks questions, so that none takes the places of the user or fills the store.
const (
	maxClientWaiting = 4                // questions that wait at once
	clientInterval   = 20 * time.Second // average time between questions of up to 1 KB; a longer one counts as several
	clientBurst      = 60               // such questions at once after a pause
)

// clientLimits count the questions of run-time principals.
type clientLimits struct {
	mu      sync.Mutex
	clients map[string]*clientUse
}

// clientUse is what one principal uses.
type clientUse struct {
	waiting int
	due     time.Time // when its questions so far would have been asked at the average rate
}

// begin counts a question of size bytes of a principal at the time now. It reports false, and counts nothing, when a limit is reached. After
// true the caller must call end.
func (l *clientLimits) begin(name string, size int, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.clients == nil {
		l.clients = map[string]*clientUse{}
	}
	c := l.clients[name]
	if c == nil {
		c = &clientUse{}
		l.clients[name] = c
	}
	if c.due.Before(now) {
		c.due = now
	}
	due := c.due.Add(time.Duration(1+size>>10) * clientInterval)
	if c.waiting >= maxClientWaiting || due.Sub(now) > clientBurst*clientInterval {
		return false
	}
	c.waiting++
	c.due = due
	return true
}

// size returns the bytes of the texts of a question.
func (q Question) size() int {
	n := len(q.Query) + len(q.Reference)
	for _, a := range q.Attachments {
		n += len(a.Text) + len(a.Name)
	}
	return n
}

// end ends a question that begin admitted.
func (l *clientLimits) end(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients[name].waiting--
}
