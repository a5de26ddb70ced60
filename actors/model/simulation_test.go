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
	q     *queue
	begun time.Time

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
	return h.q.run(ctx, asRequester(account, g.who), g.model, func(turn context.Context) error {
		h.addEvent(g.who + "@")
		select {
		case <-time.After(time.Duration(g.works) * time.Second):
			h.addEvent(g.who + ".")
			return nil
		case <-turn.Done():
			h.addEvent(g.who + "!")
			time.Sleep(time.Duration(g.stubborn) * time.Second)
			return context.Cause(turn)
		}
	})
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
		if err := checkInvariants(h.q); err != nil {
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
// run.
func checkInvariants(q *queue) error {
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
	inTheWay := slices.ContainsFunc(q.running, func(r *entry) bool { return r.priority <= w.priority })
	if !inTheWay || len(q.running) < q.slots && (!q.exclusive || w.model == q.lastModel) {
		return fmt.Errorf("%s waits for %s, and could run: %d of %d slots are taken", w.key, w.model, len(q.running),
			q.slots)
	}
	return nil
}
