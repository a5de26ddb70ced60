package model

import (
	"context"
	"errors"
	"sync"
)

// queue decides who uses the slots of a server next. Keys take turns and each key's own requests keep their order, so one
// busy session does not hold up the others. Where models exclude one another, requests for the model that is loaded go
// together, but only so many in a row while somebody waits for another.
//
// It has no goroutine: whoever comes or goes lets the next ones in.
type queue struct {
	slots     int  // requests at once
	most      int  // requests that wait
	exclusive bool // one model at a time
	batch     int  // requests for one model in a row while another is waited for

	mu      sync.Mutex
	ring    []*line // keys with somebody waiting, in the order of their turns
	waiting int
	owners  map[string]int // waiting requests of each account
	running int
	model   string // the one that runs, or ran last
	streak  int    // how many in a row it was let in
	tickets uint64
}

// line is the waiting requests of one key, first come first served.
type line struct {
	key  string
	wait []*waiter
}

type waiter struct {
	owner, key, model string
	ticket            uint64 // order of arrival
	in                chan struct{}
}

var errFull = errors.New("too many requests are waiting for a model")

func newQueue(slots, most int, exclusive bool, batch int) *queue {
	return &queue{slots: slots, most: most, exclusive: exclusive, batch: batch, owners: map[string]int{}}
}

// full reports whether one more request of owner would be turned away.
func (q *queue) full(owner string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fullFor(owner)
}

// fullFor leaves a quarter of the places to the others: a flood from one account must not keep them out.
func (q *queue) fullFor(owner string) bool {
	if q.running < q.slots && q.waiting == 0 {
		return false
	}
	return q.waiting >= q.most || q.owners[owner] >= q.most-q.most/4
}

// enter waits for a slot. What it returns must be called when the slot is free again. When ctx ends first, the place in
// the queue is given up at once and the cause is returned.
func (q *queue) enter(ctx context.Context, owner, key, model string) (leave func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	w := &waiter{owner: owner, key: key, model: model, in: make(chan struct{})}
	if !q.join(w) {
		return nil, errFull
	}
	select {
	case <-w.in:
		return q.leave, nil
	case <-ctx.Done():
	}
	if !q.give(w) { // let in at the same moment: the slot is given back
		q.leave()
	}
	return nil, context.Cause(ctx)
}

// join lines w up and lets in who may.
func (q *queue) join(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fullFor(w.owner) {
		return false
	}
	q.tickets++
	w.ticket = q.tickets
	l := q.line(w.key)
	l.wait = append(l.wait, w)
	q.waiting++
	q.owners[w.owner]++
	q.admit()
	return true
}

// line finds or makes the line of a key. A new one has its turn after all others.
func (q *queue) line(key string) *line {
	for _, l := range q.ring {
		if l.key == key {
			return l
		}
	}
	l := &line{key: key}
	q.ring = append(q.ring, l)
	return l
}

// leave frees a slot.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.admit()
}

// give takes w out of the queue; false when it was let in already. Others may go in its stead: the one that held them
// back may have been w.
func (q *queue) give(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, l := range q.ring {
		if l.key != w.key {
			continue
		}
		for j := range l.wait {
			if l.wait[j] == w {
				q.take(i, j)
				q.admit()
				return true
			}
		}
	}
	return false
}

// admit lets in as many as may run.
func (q *queue) admit() {
	for q.running < q.slots {
		i := q.next()
		if i < 0 {
			return
		}
		l := q.ring[i]
		w := q.take(i, 0)
		if len(l.wait) > 0 { // its next one has to wait until all others had their turn
			q.ring = append(append(q.ring[:i:i], q.ring[i+1:]...), l)
		}
		if w.model != q.model {
			q.model, q.streak = w.model, 0
		}
		q.streak++
		q.running++
		close(w.in)
	}
}

// take removes the j-th of the i-th line, and the line when it is empty.
func (q *queue) take(i, j int) *waiter {
	l := q.ring[i]
	w := l.wait[j]
	l.wait = append(l.wait[:j:j], l.wait[j+1:]...)
	if len(l.wait) == 0 {
		q.ring = append(q.ring[:i:i], q.ring[i+1:]...)
	}
	q.waiting--
	if q.owners[w.owner]--; q.owners[w.owner] == 0 {
		delete(q.owners, w.owner)
	}
	return w
}

// next is the line whose first request runs next, -1 when none may now.
func (q *queue) next() int {
	if len(q.ring) == 0 {
		return -1
	}
	if !q.exclusive {
		return 0
	}
	same, other := -1, -1 // whose turn it is for the same model; who has waited longest for another
	for i, l := range q.ring {
		switch first := l.wait[0]; {
		case first.model == q.model:
			if same < 0 {
				same = i
			}
		case other < 0 || first.ticket < q.ring[other].wait[0].ticket:
			other = i
		}
	}
	switch {
	case same >= 0 && (other < 0 || q.streak < q.batch):
		return same
	case q.running > 0: // the other model has to wait until this one is done, and this one stops being let in
		return -1
	}
	return other
}
