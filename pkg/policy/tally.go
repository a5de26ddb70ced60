package policy

import (
	"container/list"
	"math"
	"strings"
	"sync"
	"time"
)

// Tally counts calls, for the limits. It is kept in memory: it starts at nothing when the broker does. What it takes is
// bounded, the longest unused is forgotten first, and what agents can flood with made-up questions never pushes out what
// their line has spent. Safe for concurrent use.
//
// Every attempt that is judged counts, refused ones too: a loop of refused calls has to end as well. A loop that goes on therefore keeps
// itself refused, until it has been quiet for the window.
type Tally struct {
	window time.Duration
	keep   time.Duration

	mu    sync.Mutex
	same  counted[[]time.Time] // by caller, session, tool and arguments
	calls counted[int]         // by account, session and question
	lines counted[lineSum]     // by agent
}

type lineSum struct {
	calls   int
	seconds float64
	bytes   int64
}

// maxTimes is how many identical calls are told apart. A limit above it would never be reached.
const maxTimes = 100

// NewTally returns a tally that takes calls as identical within window, and forgets a question or an agent of which
// nothing was heard for keep. It holds at most most entries of each kind.
func NewTally(window, keep time.Duration, most int) *Tally {
	t := &Tally{window: window, keep: keep}
	t.same.most, t.calls.most, t.lines.most = most, most, most
	return t
}

// Within makes calls identical within another window from now on: the manifest may change.
func (t *Tally) Within(window time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.window = window
}

// Attempt is a call as it is counted. Nothing in it may be empty but Session and Query.
type Attempt struct {
	Caller         string // as in [subjects.Caller.ID]: the account, and the agents of the line, between dots
	Session, Query string
	Tool           string
	Params         string // hash of the arguments
}

// Count counts a call, and returns what was used up before it: the identical calls of this caller in this session within
// the window, the calls of the account and all agents below it for the same question, and what each agent of the line has
// spent, the account first. Budgets are for the caller to fill in. Asking and counting is one step, so that of many calls
// at the same time no two are the first.
func (t *Tally) Count(now time.Time, a Attempt) Spent { return t.tell(now, a, true) }

// Look is Count for a call that is only asked about.
func (t *Tally) Look(now time.Time, a Attempt) Spent { return t.tell(now, a, false) }

func (t *Tally) tell(now time.Time, a Attempt, count bool) (s Spent) {
	account, _, _ := strings.Cut(a.Caller, ".")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(now)

	key := joined(a.Caller, a.Session, a.Tool, a.Params)
	times, _ := t.same.get(key)
	for len(times) > 0 && now.Sub(times[0]) >= t.window {
		times = times[1:]
	}
	s.Same = len(times)
	question := joined(account, a.Session, a.Query)
	s.Calls, _ = t.calls.get(question)
	for who := range prefixes(a.Caller) {
		sum, _ := t.lines.get(who)
		s.Lines = append(s.Lines, LineSpent{Who: who, Calls: sum.calls, Seconds: sum.seconds, Bytes: sum.bytes})
		if sum.calls++; count {
			t.lines.put(who, sum, now)
		}
	}
	if count {
		if len(times) >= maxTimes {
			times = times[1:]
		}
		t.same.put(key, append(times, now), now)
		t.calls.put(question, s.Calls+1, now)
	}
	return s
}

// Add adds what a call took, once it has ended, to the agent that made it and to each one above.
func (t *Tally) Add(now time.Time, caller string, seconds float64, bytes int64) {
	if !(seconds > 0) { // not a number neither
		seconds = 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for who := range prefixes(caller) {
		sum, _ := t.lines.get(who)
		sum.seconds += min(seconds, math.MaxInt32)
		if sum.bytes += max(bytes, 0); sum.bytes < 0 {
			sum.bytes = math.MaxInt64
		}
		t.lines.put(who, sum, now)
	}
}

// Line is what an agent and all below it have spent.
func (t *Tally) Line(who string) LineSpent {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum, _ := t.lines.get(who)
	return LineSpent{Who: who, Calls: sum.calls, Seconds: sum.seconds, Bytes: sum.bytes}
}

// forget drops what is over.
func (t *Tally) forget(now time.Time) {
	t.same.forget(now.Add(-t.window))
	t.calls.forget(now.Add(-t.keep))
	t.lines.forget(now.Add(-t.keep))
}

// prefixes yields the account of a caller, then each agent below it, the caller last.
func prefixes(caller string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for i, c := range caller {
			if c == '.' && !yield(caller[:i]) {
				return
			}
		}
		yield(caller)
	}
}

// joined is a key of parts that cannot be shifted against one another: none of them holds a NUL, because all are tokens
// of subjects, or hashes.
func joined(parts ...string) string { return strings.Join(parts, "\x00") }

// counted is a map of bounded size whose longest unused entry goes first.
type counted[V any] struct {
	most    int
	entries map[string]*list.Element
	order   *list.List // the last used in front
}

type countedEntry[V any] struct {
	key   string
	value V
	used  time.Time
}

func (c *counted[V]) get(key string) (v V, ok bool) {
	e, ok := c.entries[key]
	if !ok {
		return v, false
	}
	return e.Value.(*countedEntry[V]).value, true
}

func (c *counted[V]) put(key string, v V, now time.Time) {
	if e, ok := c.entries[key]; ok {
		*e.Value.(*countedEntry[V]) = countedEntry[V]{key, v, now}
		c.order.MoveToFront(e)
		return
	}
	if c.entries == nil {
		c.entries, c.order = map[string]*list.Element{}, list.New()
	}
	c.entries[key] = c.order.PushFront(&countedEntry[V]{key, v, now})
	if len(c.entries) > max(c.most, 1) {
		c.drop(c.order.Back())
	}
}

// forget drops what was used last at until or before.
func (c *counted[V]) forget(until time.Time) {
	for c.order != nil && c.order.Len() > 0 {
		oldest := c.order.Back()
		if oldest.Value.(*countedEntry[V]).used.After(until) {
			return
		}
		c.drop(oldest)
	}
}

func (c *counted[V]) drop(e *list.Element) {
	delete(c.entries, e.Value.(*countedEntry[V]).key)
	c.order.Remove(e)
}
