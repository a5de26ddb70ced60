package model

import "time"

// Between two steps of a turn, while a tool runs, there is no request for the assistant's model. Loading another model
// for a background request just then would save no time: the next step preempts it and loads its own model again. So
// where models exclude one another, a background request causes another model to be loaded only after an idle delay
// without any request of a higher priority, waiting or running. It may use the loaded model at once; that is the one
// that the requests of higher priority used last, because nothing else is admitted until the delay is over.

// remainingIdle returns how long requests of a priority must still not replace the loaded model; 0 = they may. The
// delay starts when the last request of a higher priority leaves, and is 0 if there was none. The caller holds mu.
func (q *queue) remainingIdle(priority int) time.Duration {
	return q.remainingDelay(priority, q.idleDelay)
}

// remainingPrefix returns how long a background request for the loaded model must still wait. It replaces the prompt of
// the assistant in the server's cache, which the next question or step would have to read again. Waiting for as long as
// that takes costs at most as much as it can save. 0 = it may run; always for foreground requests. The caller holds mu.
func (q *queue) remainingPrefix(e *entry) time.Duration {
	if e.priority == foreground || q.prefixCost < minPrefixCost {
		return 0
	}
	return q.remainingDelay(e.priority, min(q.prefixCost, maxIdleDelay))
}

// minPrefixCost is the time below which a prompt is read again at no noticeable cost.
const minPrefixCost = time.Second

// setPrefixCost sets how long the prompt of the foreground request that runs takes to read.
func (q *queue) setPrefixCost(cost time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.prefixCost = cost
}

// remainingDelay returns what is left of a delay that starts when the last request of a higher priority leaves. It is 0
// if there was none. The caller holds mu.
func (q *queue) remainingDelay(priority int, delay time.Duration) time.Duration {
	for _, r := range q.running {
		if r.priority < priority {
			return delay
		}
	}
	var last time.Time
	for _, at := range q.lastLeft[:priority] {
		if at.After(last) {
			last = at
		}
	}
	if last.IsZero() {
		return 0
	}
	return max(0, delay-time.Since(last))
}

// admitAfter calls admit when an idle delay is over, since no request may arrive or leave then. It does not wait. One
// timer is enough: only the requests of the highest waiting priority are considered. The caller holds mu.
func (q *queue) admitAfter(delay time.Duration) {
	if q.idleTimer != nil {
		q.idleTimer.Reset(delay)
		return
	}
	q.idleTimer = time.AfterFunc(delay, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.admit()
	})
}
