package model

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// queue assigns the slots of a server. Requests of a higher priority are admitted first, always, and preempt those of a
// lower one that hold what they need; see backgroundPriority. Within a priority the fairness keys take turns and the
// requests of one key keep their order, so that one busy session does not delay the others. Where models exclude one
// another, requests for the loaded model are admitted together, but only batch of them in a row while a request of the
// same priority waits for another model.
//
// It has no goroutine: a request that arrives or leaves admits the next ones.
type queue struct {
	slots      int  // requests at once
	ahead      int  // foreground requests sent to the server beyond slots, so that it has its next one at hand
	maxWaiting int  // foreground requests that wait
	exclusive  bool // one model at a time
	batch      int  // requests for one model in a row while another is waited for

	mu           sync.Mutex
	lines        []*line         // fairness keys with waiting requests, in the order of their turns
	waiting      [priorities]int // waiting requests by priority
	waitingBy    map[string]int  // waiting requests by account
	running      []*entry        // requests with a slot, in the order in which they were admitted
	lastModel    string          // of the request that was admitted last, the model
	lastPriority int             // and the priority
	streak       int             // requests in a row with this model and priority
	lastTicket   uint64
	ended        map[string]time.Time // by model: when its last request of the foreground ended
}

// line is the waiting requests of one fairness key, in the order of arrival.
type line struct {
	key      string
	priority int
	entries  []*entry
}

// entry is a request, while it waits and while it has a slot.
type entry struct {
	requester
	model    string
	ticket   uint64                  // order of arrival; 0 = not queued yet
	admitted chan struct{}           // closed when it gets a slot
	cancel   context.CancelCauseFunc // ends its turn
}

var errQueueFull = errors.New("queue full: too many requests are waiting for a model")

func newQueue(slots, maxWaiting int, exclusive bool, batch int) *queue {
	return &queue{
		slots: slots, maxWaiting: maxWaiting, exclusive: exclusive, batch: batch,
		waitingBy: map[string]int{}, ended: map[string]time.Time{},
	}
}

// isFull reports whether another request would be rejected.
func (q *queue) isFull(from requester) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.isFullFor(from)
}

// maxBackground bounds the waiting requests of each background priority: each also holds a worker of the actor.
const maxBackground = 128

// isFullFor is [queue.isFull] with mu held. Each priority has its own limit, so that background requests take no place
// of the foreground. One account may use three quarters of the foreground places at most.
func (q *queue) isFullFor(from requester) bool {
	if from.priority > foreground {
		return q.waiting[from.priority] >= max(1, min(q.maxWaiting/4, maxBackground))
	}
	return q.waiting[from.priority] >= q.maxWaiting || q.waitingBy[from.account] >= q.maxWaiting-q.maxWaiting/4
}

// run waits for a slot and runs work in it; began reports whether work was ever run. It fails with errQueueFull when
// too many wait, and with the cause of ctx when that ends first. A preempted request loses its slot at once, and the
// context of work ends with [errPreempted]; if work returns that error, the request is queued and work runs again.
// model is the name by which exclusive models are compared.
func (q *queue) run(ctx context.Context, from requester, model string, work func(turn context.Context) error) (
	began bool, err error,
) {
	e := &entry{requester: from, model: model}
	for {
		turn, err := q.acquire(ctx, e)
		if err != nil {
			return began, err
		}
		err = func() error {
			defer q.release(e)
			if turn.Err() != nil { // ended before it began: no request is sent to the server
				return context.Cause(turn)
			}
			began = true
			return work(turn)
		}()
		if !errors.Is(err, errPreempted) {
			return began, err
		}
	}
}

// acquire waits for a slot and returns the context of the turn. It fails with errQueueFull at once, and with the cause
// of ctx when that ends first. The caller must call release if there is no error.
func (q *queue) acquire(ctx context.Context, e *entry) (turn context.Context, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	turn, e.cancel = context.WithCancelCause(ctx)
	e.admitted = make(chan struct{})
	if !q.enqueue(e) {
		e.cancel(nil)
		return nil, errQueueFull
	}
	select {
	case <-e.admitted:
		return turn, nil
	case <-ctx.Done():
	}
	if !q.withdraw(e) { // admitted at the same moment
		q.release(e)
	}
	e.cancel(nil)
	return nil, context.Cause(ctx)
}

// enqueue adds e to the queue and admits the next requests. It returns false when the queue is full. A preempted
// request, which has a ticket, is never rejected, and goes before those that arrived later.
func (q *queue) enqueue(e *entry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	preempted := e.ticket > 0
	if !preempted {
		if q.isFullFor(e.requester) {
			return false
		}
		q.lastTicket++
		e.ticket = q.lastTicket
	}
	l := q.lineOf(e.key, e.priority)
	i := len(l.entries)
	for i > 0 && l.entries[i-1].ticket > e.ticket {
		i--
	}
	l.entries = slices.Insert(l.entries, i, e)
	if preempted {
		i := slices.Index(q.lines, l)
		q.lines = slices.Insert(slices.Delete(q.lines, i, i+1), 0, l)
	}
	q.waiting[e.priority]++
	q.waitingBy[e.account]++
	q.admit()
	return true
}

// lineOf finds the line of a key and priority, or adds one whose turn comes after all others. The caller holds mu.
func (q *queue) lineOf(key string, priority int) *line {
	for _, l := range q.lines {
		if l.key == key && l.priority == priority {
			return l
		}
	}
	l := &line{key: key, priority: priority}
	q.lines = append(q.lines, l)
	return l
}

// release ends a turn and frees its slot, unless the request was preempted: then its slot was freed before.
func (q *queue) release(e *entry) {
	e.cancel(nil)
	q.mu.Lock()
	defer q.mu.Unlock()
	if e.priority == foreground {
		q.ended[e.model] = time.Now()
	}
	if i := slices.Index(q.running, e); i >= 0 {
		q.running = slices.Delete(q.running, i, i+1)
		q.admit()
	}
}

// withdraw removes a waiting request from the queue and admits the next ones, which it may have held back. It returns
// false when the request was admitted already.
func (q *queue) withdraw(e *entry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, l := range q.lines {
		if j := slices.Index(l.entries, e); j >= 0 {
			q.remove(i, j)
			q.admit()
			return true
		}
	}
	return false
}

// admit gives free slots to the next requests, and preempts for them. While the next one cannot run, no other is
// admitted: it would only delay it. The caller holds mu.
func (q *queue) admit() {
	for {
		i := q.nextLine()
		if i < 0 || !q.makeRoom(q.lines[i].entries[0]) {
			return
		}
		l := q.lines[i]
		e := q.remove(i, 0)
		if len(l.entries) > 0 { // the next request of this key waits until all others had their turn
			q.lines = append(append(q.lines[:i:i], q.lines[i+1:]...), l)
		}
		if e.model != q.lastModel || e.priority != q.lastPriority {
			q.lastModel, q.lastPriority, q.streak = e.model, e.priority, 0
		}
		q.streak++
		q.running = append(q.running, e)
		close(e.admitted)
	}
}

// makeRoom reports whether e can run now. It preempts requests of a lower priority if only they are in the way, and no
// more of them than needed. false means that there is no free slot, or that another model is in use. The caller holds
// mu.
func (q *queue) makeRoom(e *entry) bool {
	if q.exclusive && e.model != q.lastModel {
		for _, r := range q.running {
			if r.priority <= e.priority { // the loaded model is in use; no more requests for it are admitted
				return false
			}
		}
		for len(q.running) > 0 {
			q.preempt(len(q.running) - 1)
		}
	}
	if i := q.nextVictim(); len(q.running) >= q.slots && i >= 0 && q.running[i].priority > e.priority {
		q.preempt(i)
	}
	if e.priority == foreground {
		return len(q.running) < q.slots+q.ahead
	}
	return len(q.running) < q.slots
}

// nextVictim returns the index of the running request that is preempted first: of those of the lowest priority the one
// that was admitted last. It returns -1 if none runs. Whether it may be preempted is for the caller to decide, who
// holds mu.
func (q *queue) nextVictim() int {
	victim := -1
	for i, r := range q.running {
		if victim < 0 || r.priority >= q.running[victim].priority {
			victim = i
		}
	}
	return victim
}

// preempt ends the turn of a running request. Its slot is free at once: a server that is slow to drop the request must
// not delay others, and the rest of its work does not count.
func (q *queue) preempt(i int) {
	e := q.running[i]
	q.running = slices.Delete(q.running, i, i+1)
	e.cancel(errPreempted)
}

// remove removes the j-th request of the i-th line, and the line when it is empty, and returns the request. The caller
// holds mu.
func (q *queue) remove(i, j int) *entry {
	l := q.lines[i]
	e := l.entries[j]
	l.entries = append(l.entries[:j:j], l.entries[j+1:]...)
	if len(l.entries) == 0 {
		q.lines = append(q.lines[:i:i], q.lines[i+1:]...)
	}
	q.waiting[e.priority]--
	q.waitingBy[e.account]--
	if q.waitingBy[e.account] == 0 {
		delete(q.waitingBy, e.account)
	}
	return e
}

// nextLine returns the index of the line whose first request runs next, -1 when none waits. Only lines of the highest
// waiting priority count. Where models exclude one another, the loaded model goes on for up to batch requests in a row,
// then the request that has waited longest for another model is next. The caller holds mu.
func (q *queue) nextLine() int {
	highest := slices.IndexFunc(q.waiting[:], func(n int) bool { return n > 0 })
	same, other := -1, -1 // the next turn for the loaded model; the longest wait for another
	for i, l := range q.lines {
		switch first := l.entries[0]; {
		case l.priority != highest:
		case !q.exclusive:
			return i
		case first.model == q.lastModel:
			if same < 0 {
				same = i
			}
		case other < 0 || first.ticket < q.lines[other].entries[0].ticket:
			other = i
		}
	}
	if same >= 0 && (other < 0 || q.streak < q.batch) {
		return same
	}
	return other
}
