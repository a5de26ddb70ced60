package model

import "time"

// Between two steps of a turn, while a tool runs, nobody asks for the assistant's model. Whoever had another one loaded
// just then would save no time: the next step sends him away, and pays for loading its own again. So where models exclude
// one another, the background has another one loaded only after nobody in front of it was there for a while, neither
// waiting nor with a slot. The one that is loaded it may use at once; that is always the one that those in front used
// last, because until the rest is over nothing else is let in.

// rests is how much longer those of a rank have to leave the loaded model where it is. It counts from the moment the last
// one in front of them left, and not at all where there was none.
func (q *queue) rests(rank int) time.Duration {
	for _, r := range q.runs {
		if r.rank < rank {
			return q.rest
		}
	}
	var last time.Time
	for _, at := range q.left[:rank] {
		if at.After(last) {
			last = at
		}
	}
	if last.IsZero() {
		return 0
	}
	return max(0, q.rest-time.Since(last))
}

// wake lets in who may when a rest is over: nobody need come or go then. One alarm is enough, because only those who stand
// furthest in front are waited for.
func (q *queue) wake(after time.Duration) {
	if q.alarm != nil {
		q.alarm.Reset(after)
		return
	}
	q.alarm = time.AfterFunc(after, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.admit()
	})
}
