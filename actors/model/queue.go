package model

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// queue decides who uses the slots of a server next. Who stands further in front goes first, always, and has those
// behind him sent away when they hold what he needs; see background. Among equals keys take turns and each key's own
// requests keep their order, so one busy session does not hold up the others. Where models exclude one another, requests
// for the model that is loaded go together, but only so many in a row while an equal waits for another.
//
// It has no goroutine: whoever comes or goes lets the next ones in, and an alarm where a rest has to pass; see rests.
type queue struct {
	slots     int           // requests at once
	ahead     int           // and so many more that the server has at hand; not for the background, which would be in the way there
	most      int           // requests that wait
	exclusive bool          // one model at a time
	batch     int           // requests for one model in a row while another is waited for
	rest      time.Duration // how long nobody in front may have been there before the background has another model loaded

	mu      sync.Mutex
	ring    []*line          // keys with somebody waiting, in the order of their turns
	waits   [ranks]int       // waiting requests of each rank
	owners  map[string]int   // waiting requests of each account
	runs    []*waiter        // who has a slot, in the order in which they were let in
	model   string           // the one that runs, or ran last
	rank    int              // of whom it runs, or ran last
	streak  int              // how many in a row it was let in for that rank
	left    [ranks]time.Time // when one of each rank left last, its slot or its place
	alarm   *time.Timer      // runs only while somebody waits for the end of a rest; nil = never needed yet
	tickets uint64
}

// line is the waiting requests of one key, first come first served.
type line struct {
	key  string
	rank int
	wait []*waiter
}

// waiter is a request, while it waits and while it has a slot.
type waiter struct {
	owner, key, model string
	rank              int
	ticket            uint64                  // order of arrival; 0 = it never stood in the queue
	in                chan struct{}           // closed when it is let in
	quit              context.CancelCauseFunc // ends its turn
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

// maxBehind bounds the places of a rank in the background: whoever waits also holds one of the actor's workers.
const maxBehind = 128

// fullFor counts each rank by itself: a flood in the background takes no place of those in front. Among these a quarter is
// left to the others: a flood from one account must not keep them out.
func (q *queue) fullFor(owner string) bool {
	rank := rankOf(owner)
	if rank > foreground {
		return q.waits[rank] >= max(1, min(q.most/4, maxBehind))
	}
	return q.waits[rank] >= q.most || q.owners[owner] >= q.most-q.most/4
}

// run waits for a slot and does work in it. The context of work ends with errGaveWay when it has to give way. The slot is
// somebody else's from then on, however long work still takes; when it returns that same error, it waits and is done
// anew, as long as ctx lasts. When ctx ends while it waits, its place is given up at once and the cause is returned. began
// is whether work was ever done.
func (q *queue) run(ctx context.Context, owner, key, model string, work func(turn context.Context) error) (began bool, err error) {
	w := &waiter{owner: owner, key: key, model: model, rank: rankOf(owner)}
	for {
		turn, err := q.enter(ctx, w)
		if err != nil {
			return began, err
		}
		err = func() error {
			defer q.leave(w)
			if turn.Err() != nil { // over before it began: the server need not hear of it
				return context.Cause(turn)
			}
			began = true
			return work(turn)
		}()
		if !errors.Is(err, errGaveWay) {
			return began, err
		}
	}
}

// enter waits for a slot and returns the context of the turn. After it leave must be called.
func (q *queue) enter(ctx context.Context, w *waiter) (turn context.Context, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	turn, w.quit = context.WithCancelCause(ctx)
	w.in = make(chan struct{})
	if !q.join(w) {
		w.quit(nil)
		return nil, errFull
	}
	select {
	case <-w.in:
		return turn, nil
	case <-ctx.Done():
	}
	if !q.give(w) { // let in at the same moment: the slot is given back
		q.leave(w)
	}
	w.quit(nil)
	return nil, context.Cause(ctx)
}

// join lines w up and lets in who may. One that gave way is never turned away, and goes before those who came later.
func (q *queue) join(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	again := w.ticket > 0
	if !again {
		if q.fullFor(w.owner) {
			return false
		}
		q.tickets++
		w.ticket = q.tickets
	}
	l := q.line(w.key, w.rank)
	i := len(l.wait)
	for i > 0 && l.wait[i-1].ticket > w.ticket {
		i--
	}
	l.wait = slices.Insert(l.wait, i, w)
	if again {
		i := slices.Index(q.ring, l)
		q.ring = slices.Insert(slices.Delete(q.ring, i, i+1), 0, l)
	}
	q.waits[w.rank]++
	q.owners[w.owner]++
	q.admit()
	return true
}

// line finds or makes the line of a key. A new one has its turn after all others.
func (q *queue) line(key string, rank int) *line {
	for _, l := range q.ring {
		if l.key == key && l.rank == rank {
			return l
		}
	}
	l := &line{key: key, rank: rank}
	q.ring = append(q.ring, l)
	return l
}

// leave ends a turn and frees its slot. The slot of one that gave way is no longer its own: it was freed then.
func (q *queue) leave(w *waiter) {
	w.quit(nil)
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.runs, w); i >= 0 {
		q.runs = slices.Delete(q.runs, i, i+1)
		q.left[w.rank] = time.Now()
		q.admit()
	}
}

// give takes w out of the queue; false when it was let in already. Others may go in its stead: the one that held them
// back may have been w.
func (q *queue) give(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, l := range q.ring {
		if j := slices.Index(l.wait, w); j >= 0 {
			q.take(i, j)
			q.left[w.rank] = time.Now()
			q.admit()
			return true
		}
	}
	return false
}

// admit lets in as many as may run. While the next one may not, nobody else does: those further behind would only be in
// his way.
func (q *queue) admit() {
	if q.alarm != nil {
		q.alarm.Stop() // set anew if somebody still has to wait for it
	}
	for {
		i := q.next()
		if i < 0 || !q.room(q.ring[i].wait[0]) {
			return
		}
		l := q.ring[i]
		w := q.take(i, 0)
		if len(l.wait) > 0 { // its next one has to wait until all others had their turn
			q.ring = append(append(q.ring[:i:i], q.ring[i+1:]...), l)
		}
		if w.model != q.model || w.rank != q.rank {
			q.model, q.rank, q.streak = w.model, w.rank, 0
		}
		q.streak++
		q.runs = append(q.runs, w)
		close(w.in)
	}
}

// room reports whether w may run now. Those further behind who are all that stands in its way are sent away, and not one
// more of them.
func (q *queue) room(w *waiter) bool {
	if q.exclusive && w.model != q.model {
		for _, r := range q.runs {
			if r.rank <= w.rank { // the other model has to wait until this one is done, and this one stops being let in
				return false
			}
		}
		if d := q.rests(w.rank); d > 0 {
			q.wake(d)
			return false
		}
		for len(q.runs) > 0 {
			q.cut(len(q.runs) - 1)
		}
	}
	if last := q.last(); len(q.runs) >= q.slots && last >= 0 && q.runs[last].rank > w.rank {
		q.cut(last)
	}
	if w.rank == foreground {
		return len(q.runs) < q.slots+q.ahead
	}
	return len(q.runs) < q.slots
}

// last is the one that gives way first: of those who stand furthest behind the one that has done the least.
func (q *queue) last() int {
	last := -1
	for i, r := range q.runs {
		if last < 0 || r.rank >= q.runs[last].rank {
			last = i
		}
	}
	return last
}

// cut sends one away that runs. Its slot is free at once: a server that does not let go of the request must not keep
// others out, and what the request does from now on is no longer counted.
func (q *queue) cut(i int) {
	w := q.runs[i]
	q.runs = slices.Delete(q.runs, i, i+1)
	w.quit(errGaveWay)
}

// take removes the j-th of the i-th line, and the line when it is empty.
func (q *queue) take(i, j int) *waiter {
	l := q.ring[i]
	w := l.wait[j]
	l.wait = append(l.wait[:j:j], l.wait[j+1:]...)
	if len(l.wait) == 0 {
		q.ring = append(q.ring[:i:i], q.ring[i+1:]...)
	}
	q.waits[w.rank]--
	if q.owners[w.owner]--; q.owners[w.owner] == 0 {
		delete(q.owners, w.owner)
	}
	return w
}

// next is the line whose first request runs next, -1 when nobody waits. Only those who stand furthest in front count.
func (q *queue) next() int {
	front := slices.IndexFunc(q.waits[:], func(n int) bool { return n > 0 })
	same, other := -1, -1 // whose turn it is for the same model; who has waited longest for another
	for i, l := range q.ring {
		switch first := l.wait[0]; {
		case l.rank != front:
		case !q.exclusive:
			return i
		case first.model == q.model:
			if same < 0 {
				same = i
			}
		case other < 0 || first.ticket < q.ring[other].wait[0].ticket:
			other = i
		}
	}
	if same >= 0 && (other < 0 || q.streak < q.batch || q.rests(front) > 0) { // who rests takes no turn from those who need not
		return same
	}
	return other
}
