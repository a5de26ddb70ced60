package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// simulatedRequest arrives at a second and runs for some. Its account is the part of who before the slash. When it is
// preempted, it goes on for stubborn seconds.
type simulatedRequest struct {
	at              int
	who, model      string
	works, stubborn int
}

// simulation runs requests against a queue on a fake clock. Its history has the events of each second: @ admitted,
// ! preempted or cancelled, . done.
type simulation struct {
	q        *queue
	begun    time.Time
	observer observer

	mu     sync.Mutex
	events []simulationEvent
}

type simulationEvent struct {
	at   int
	what string
}

func newSimulation(q *queue) *simulation { return &simulation{q: q, begun: time.Now()} }

func (h *simulation) addEvent(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, simulationEvent{int(time.Since(h.begun) / time.Second), what})
}

// runRequest runs one request to its end.
func (h *simulation) runRequest(ctx context.Context, g simulatedRequest) (began bool, err error) {
	account, _, _ := strings.Cut(g.who, "/")
	present := &presence{w: &h.observer, rank: priorityOf(account)}
	if ctx.Err() == nil { // else it never comes
		present.begin()
		defer present.end()
	}
	return h.q.run(ctx, asRequester(account, g.who), g.model, func(turn context.Context) error {
		h.addEvent(g.who + "@")
		beside := h.runsBeside(present.rank, g.model) // before the other question: who has left by then was seen
		if present.early(g.model) && !beside {
			h.addEvent(g.who + " is too early")
		}
		select {
		case <-time.After(time.Duration(g.works) * time.Second):
			h.addEvent(g.who + ".")
			return nil
		case <-turn.Done():
			h.addEvent(g.who + "!")
			if errors.Is(context.Cause(turn), errPreempted) { // it has no slot any more, and does not wait yet
				present.end()
				defer func() {
					if ctx.Err() == nil {
						present.begin()
					}
				}()
			}
			time.Sleep(time.Duration(g.stubborn) * time.Second)
			return context.Cause(turn)
		}
	})
}

// runsBeside reports whether a request of a higher priority runs with the same model: requests that are admitted at the
// same moment may be observed in any order.
func (h *simulation) runsBeside(rank int, model string) bool {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	return slices.ContainsFunc(h.q.running, func(r *entry) bool { return r.priority < rank && r.model == model })
}

// runAll lets all requests come, checks the queue after each, and waits until they are gone.
func (h *simulation) runAll(t *testing.T, guests []simulatedRequest) {
	t.Helper()
	var all sync.WaitGroup
	for _, g := range guests {
		time.Sleep(time.Until(h.begun.Add(time.Duration(g.at) * time.Second)))
		synctest.Wait()
		all.Go(func() {
			if _, err := h.runRequest(t.Context(), g); err != nil {
				t.Errorf("%s: %v", g.who, err)
			}
		})
		synctest.Wait()
		if err := checkInvariants(h.q, 0); err != nil {
			t.Errorf("after %s came: %v", g.who, err)
		}
	}
	all.Wait()
}

// history is the story, second by second. What happened at the same moment has no order.
func (h *simulation) history() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.events, func(a, b simulationEvent) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.what, b.what))
	})
	var b strings.Builder
	for i, n := range h.events {
		if i == 0 || h.events[i-1].at != n.at {
			fmt.Fprintf(&b, "|%d", n.at)
		}
		b.WriteString(" " + n.what)
	}
	return strings.TrimPrefix(b.String(), "|")
}

// checkInvariants checks the counters of a queue, that no request runs that must not, and that none waits that could
// have run for longer than late.
func checkInvariants(q *queue, late time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var waits [priorities]int
	owners := map[string]int{}
	for _, l := range q.lines {
		if len(l.entries) == 0 {
			return fmt.Errorf("an empty line %s", l.key)
		}
		for i, w := range l.entries {
			waits[w.priority]++
			owners[w.account]++
			if w.priority != l.priority || i > 0 && l.entries[i-1].ticket >= w.ticket {
				return fmt.Errorf("the line %s is out of order", l.key)
			}
		}
	}
	if waits != q.waiting || len(owners) != len(q.waitingBy) {
		return fmt.Errorf("%v wait, counted %v; owners %v, counted %v", waits, q.waiting, owners, q.waitingBy)
	}
	behind := 0
	for i, r := range q.running {
		if r.priority > foreground {
			behind++
		}
		if slices.Contains(q.running[:i], r) {
			return errors.New("one has two slots")
		}
		if q.exclusive && r.model != q.lastModel {
			return fmt.Errorf("%s runs beside %s", r.model, q.lastModel)
		}
	}
	if len(q.running) > q.slots+q.ahead || behind > 0 && len(q.running) > q.slots {
		return fmt.Errorf("%d run, %d of them in the background, with %d slots and %d ahead", len(q.running), behind,
			q.slots, q.ahead)
	}
	i := q.nextLine()
	if i < 0 {
		return nil
	}
	w := q.lines[i].entries[0]
	if q.exclusive && w.model != q.lastModel {
		for _, at := range q.lastLeft[:w.priority] {
			if !at.IsZero() && time.Since(at) < q.idleDelay+late {
				return nil
			}
		}
	}
	inTheWay := slices.ContainsFunc(q.running, func(r *entry) bool { return r.priority <= w.priority })
	if !inTheWay || len(q.running) < q.slots && (!q.exclusive || w.model == q.lastModel) {
		return fmt.Errorf("%s waits for %s, and could run: %d of %d slots are taken", w.key, w.model, len(q.running),
			q.slots)
	}
	return nil
}

// observer tracks the requests from outside the queue and detects a model that is loaded before the idle delay is over.
type observer struct {
	mu           sync.Mutex
	rest         time.Duration
	present      [priorities]int       // waiting or with a slot
	lastPresent  [priorities]time.Time // when one was last present
	lastAdmitted [priorities]int       // number of the one that was admitted last
	model        [priorities]string    // and its model
	count        int
	slow         int // admitted the moment the delay was over
}

// presence is the part of one request in an observer.
type presence struct {
	w     *observer
	rank  int
	there bool
}

func (a *presence) begin() {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.there = true
	a.w.present[a.rank]++
}

func (a *presence) end() {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if a.there {
		a.there = false
		a.w.present[a.rank]--
		a.w.lastPresent[a.rank] = time.Now()
	}
}

// early takes down that one is admitted, and reports whether it should not be yet.
func (a *presence) early(model string) bool {
	w := a.w
	w.mu.Lock()
	defer w.mu.Unlock()
	last, rests, over := -1, false, false
	for better := range a.rank {
		if w.lastAdmitted[better] > 0 && (last < 0 || w.lastAdmitted[better] > w.lastAdmitted[last]) {
			last = better
		}
		since := time.Since(w.lastPresent[better])
		rests = rests || w.present[better] > 0 || since < w.rest
		over = over || since == w.rest
	}
	if over && w.rest > 0 {
		w.slow++
	}
	w.count++
	w.lastAdmitted[a.rank], w.model[a.rank] = w.count, model
	return w.rest > 0 && last >= 0 && w.model[last] != model && rests
}
