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

// guest comes at a second and works for some. His account is the part of his name before the stroke. When he is told to
// leave, he goes on for a while all the same if he is stubborn.
type guest struct {
	at              int
	who, model      string
	works, stubborn int
}

// house is a queue that guests come to. Its story is what happened in each second: @ is let in, ! is told to leave, . is
// done.
type house struct {
	q     *queue
	begun time.Time
	watch watch

	mu    sync.Mutex
	story []note
}

type note struct {
	at   int
	what string
}

func newHouse(q *queue) *house { return &house{q: q, begun: time.Now()} }

func (h *house) note(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.story = append(h.story, note{int(time.Since(h.begun) / time.Second), what})
}

// visit is a guest's whole way.
func (h *house) visit(ctx context.Context, g guest) (began bool, err error) {
	account, _, _ := strings.Cut(g.who, "/")
	present := &attendance{w: &h.watch, rank: rankOf(account)}
	if ctx.Err() == nil { // else it never comes
		present.begin()
		defer present.end()
	}
	return h.q.run(ctx, account, g.who, g.model, func(turn context.Context) error {
		h.note(g.who + "@")
		beside := h.beside(present.rank, g.model) // before the other question: who has left by then was seen
		if present.early(g.model) && !beside {
			h.note(g.who + " is too early")
		}
		select {
		case <-time.After(time.Duration(g.works) * time.Second):
			h.note(g.who + ".")
			return nil
		case <-turn.Done():
			h.note(g.who + "!")
			if errors.Is(context.Cause(turn), errGaveWay) { // it has no slot any more, and does not wait yet
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

// beside reports whether somebody in front has the same model right now: of those who are let in at the same moment, any
// may be seen first.
func (h *house) beside(rank int, model string) bool {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	return slices.ContainsFunc(h.q.runs, func(r *waiter) bool { return r.rank < rank && r.model == model })
}

// open lets all guests come, checks the queue after each, and waits until they are gone.
func (h *house) open(t *testing.T, guests []guest) {
	t.Helper()
	var all sync.WaitGroup
	for _, g := range guests {
		time.Sleep(time.Until(h.begun.Add(time.Duration(g.at) * time.Second)))
		synctest.Wait()
		all.Go(func() {
			if _, err := h.visit(t.Context(), g); err != nil {
				t.Errorf("%s: %v", g.who, err)
			}
		})
		synctest.Wait()
		if err := sound(h.q, 0); err != nil {
			t.Errorf("after %s came: %v", g.who, err)
		}
	}
	all.Wait()
}

// told is the story, second by second. What happened at the same moment has no order.
func (h *house) told() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.story, func(a, b note) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.what, b.what))
	})
	var b strings.Builder
	for i, n := range h.story {
		if i == 0 || h.story[i-1].at != n.at {
			fmt.Fprintf(&b, "|%d", n.at)
		}
		b.WriteString(" " + n.what)
	}
	return strings.TrimPrefix(b.String(), "|")
}

// sound checks a queue inside: nothing is counted wrong, nothing is let in that must not be, and nobody waits who could
// run, or could have for longer than late.
func sound(q *queue, late time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var waits [ranks]int
	owners := map[string]int{}
	for _, l := range q.ring {
		if len(l.wait) == 0 {
			return fmt.Errorf("an empty line %s", l.key)
		}
		for i, w := range l.wait {
			waits[w.rank]++
			owners[w.owner]++
			if w.rank != l.rank || i > 0 && l.wait[i-1].ticket >= w.ticket {
				return fmt.Errorf("the line %s is out of order", l.key)
			}
		}
	}
	if waits != q.waits || len(owners) != len(q.owners) {
		return fmt.Errorf("%v wait, counted %v; owners %v, counted %v", waits, q.waits, owners, q.owners)
	}
	behind := 0
	for i, r := range q.runs {
		if r.rank > foreground {
			behind++
		}
		if slices.Contains(q.runs[:i], r) {
			return errors.New("one has two slots")
		}
		if q.exclusive && r.model != q.model {
			return fmt.Errorf("%s runs beside %s", r.model, q.model)
		}
	}
	if len(q.runs) > q.slots+q.ahead || behind > 0 && len(q.runs) > q.slots {
		return fmt.Errorf("%d run, %d of them in the background, with %d slots and %d ahead", len(q.runs), behind, q.slots, q.ahead)
	}
	i := q.next()
	if i < 0 {
		return nil
	}
	w := q.ring[i].wait[0]
	if q.exclusive && w.model != q.model {
		for _, at := range q.left[:w.rank] {
			if !at.IsZero() && time.Since(at) < q.rest+late {
				return nil
			}
		}
	}
	inTheWay := slices.ContainsFunc(q.runs, func(r *waiter) bool { return r.rank <= w.rank })
	if !inTheWay || len(q.runs) < q.slots && (!q.exclusive || w.model == q.model) {
		return fmt.Errorf("%s waits for %s, and could run: %d of %d slots are taken", w.key, w.model, len(q.runs), q.slots)
	}
	return nil
}

// watch sees from outside who is there, and when somebody has another model loaded too early.
type watch struct {
	mu    sync.Mutex
	rest  time.Duration
	there [ranks]int       // waiting or with a slot
	gone  [ranks]time.Time // when one was last there
	let   [ranks]int       // number of the one that was let in last
	model [ranks]string    // and its model
	count int
	slow  int // let in the moment the rest was over
}

// attendance is one guest's.
type attendance struct {
	w     *watch
	rank  int
	there bool
}

func (a *attendance) begin() {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.there = true
	a.w.there[a.rank]++
}

func (a *attendance) end() {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if a.there {
		a.there = false
		a.w.there[a.rank]--
		a.w.gone[a.rank] = time.Now()
	}
}

// early takes down that one is let in, and reports whether it should not be yet.
func (a *attendance) early(model string) bool {
	w := a.w
	w.mu.Lock()
	defer w.mu.Unlock()
	last, rests, over := -1, false, false
	for better := range a.rank {
		if w.let[better] > 0 && (last < 0 || w.let[better] > w.let[last]) {
			last = better
		}
		since := time.Since(w.gone[better])
		rests = rests || w.there[better] > 0 || since < w.rest
		over = over || since == w.rest
	}
	if over && w.rest > 0 {
		w.slow++
	}
	w.count++
	w.let[a.rank], w.model[a.rank] = w.count, model
	return w.rest > 0 && last >= 0 && w.model[last] != model && rests
}
