package policy

import (
	"container/list"
	"math"
	"strings"
	"sync"
	"time"
)

// UsageCounter counts calls, for the limits. It is kept in memory: it starts at nothing when the broker does. What it takes is
// bounded, the longest unused is forgotten first, and what agents can flood with made-up questions never pushes out what
// their line has spent. Safe for concurrent use.
//
// Every attempt that is judged counts, refused ones too: a loop of refused calls has to end as well. A loop that goes on therefore keeps
// itself refused, until it has been quiet for the window.
type UsageCounter struct {
	window time.Duration
	keep   time.Duration

	mu        sync.Mutex
	identical lruMap[[]time.Time] // by caller, session, tool and arguments
	calls     lruMap[int]         // by account, session and question
	agents    lruMap[usageSum]    // by agent
}

type usageSum struct {
	calls   int
	seconds float64
	bytes   int64
}

// maxIdentical is how many identical calls are told apart. A limit above it would never be reached.
const maxIdentical = 100

// NewUsageCounter returns a tally that takes calls as identical within window, and forgets a question or an agent of which
// nothing was heard for keep. It holds at most most entries of each kind.
func NewUsageCounter(window, keep time.Duration, most int) *UsageCounter {
	t := &UsageCounter{window: window, keep: keep}
	t.identical.capacity, t.calls.capacity, t.agents.capacity = most, most, most
	return t
}

// SetWindow makes calls identical within another window from now on: the manifest may change.
func (t *UsageCounter) SetWindow(window time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.window = window
}

// Attempt is a call as it is counted. Nothing in it may be empty but Session and Query.
type Attempt struct {
	Caller         string // as in [subjects.Caller.ID]: the account, and the agents of the line, between dots
	Session, Query string
	Tool           string
	ParamsHash     string // hash of the arguments
}

// Count counts a call, and returns what was used up before it: the identical calls of this caller in this session within
// the window, the calls of the account and all agents below it for the same question, and what each agent of the line has
// spent, the account first. Budgets are for the caller to fill in. Asking and counting is one step, so that of many calls
// at the same time no two are the first.
func (t *UsageCounter) Count(now time.Time, a Attempt) Usage { return t.usage(now, a, true) }

// Peek is Count for a call that is only asked about.
func (t *UsageCounter) Peek(now time.Time, a Attempt) Usage { return t.usage(now, a, false) }

func (t *UsageCounter) usage(now time.Time, a Attempt, count bool) (s Usage) {
	account, _, _ := strings.Cut(a.Caller, ".")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)

	key := joinKey(a.Caller, a.Session, a.Tool, a.ParamsHash)
	times, _ := t.identical.get(key)
	for len(times) > 0 && now.Sub(times[0]) >= t.window {
		times = times[1:]
	}
	s.Identical = len(times)
	question := joinKey(account, a.Session, a.Query)
	s.Calls, _ = t.calls.get(question)
	for who := range lineageIDs(a.Caller) {
		sum, _ := t.agents.get(who)
		s.Agents = append(s.Agents, AgentUsage{Agent: who, Calls: sum.calls, Seconds: sum.seconds, Bytes: sum.bytes})
		if sum.calls++; count {
			t.agents.put(who, sum, now)
		}
	}
	if count {
		if len(times) >= maxIdentical {
			times = times[1:]
		}
		t.identical.put(key, append(times, now), now)
		t.calls.put(question, s.Calls+1, now)
	}
	return s
}

// AddResult adds what a call took, once it has ended, to the agent that made it and to each one above.
func (t *UsageCounter) AddResult(now time.Time, caller string, seconds float64, bytes int64) {
	if !(seconds > 0) { // not a number neither
		seconds = 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for who := range lineageIDs(caller) {
		sum, _ := t.agents.get(who)
		sum.seconds += min(seconds, math.MaxInt32)
		if sum.bytes += max(bytes, 0); sum.bytes < 0 {
			sum.bytes = math.MaxInt64
		}
		t.agents.put(who, sum, now)
	}
}

// AgentUsage is what an agent and all below it have spent.
func (t *UsageCounter) AgentUsage(who string) AgentUsage {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum, _ := t.agents.get(who)
	return AgentUsage{Agent: who, Calls: sum.calls, Seconds: sum.seconds, Bytes: sum.bytes}
}

// expire drops what is over.
func (t *UsageCounter) expire(now time.Time) {
	t.identical.expire(now.Add(-t.window))
	t.calls.expire(now.Add(-t.keep))
	t.agents.expire(now.Add(-t.keep))
}

// lineageIDs yields the account of a caller, then each agent below it, the caller last.
func lineageIDs(caller string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for i, c := range caller {
			if c == '.' && !yield(caller[:i]) {
				return
			}
		}
		yield(caller)
	}
}

// joinKey is a key of parts that cannot be shifted against one another: none of them holds a NUL, because all are tokens
// of subjects, or hashes.
func joinKey(parts ...string) string { return strings.Join(parts, "\x00") }

// lruMap is a map of bounded size whose longest unused entry goes first.
type lruMap[V any] struct {
	capacity int
	entries  map[string]*list.Element
	order    *list.List // the last used in front
}

type lruEntry[V any] struct {
	key   string
	value V
	used  time.Time
}

func (c *lruMap[V]) get(key string) (v V, ok bool) {
	e, ok := c.entries[key]
	if !ok {
		return v, false
	}
	return e.Value.(*lruEntry[V]).value, true
}

func (c *lruMap[V]) put(key string, v V, now time.Time) {
	if e, ok := c.entries[key]; ok {
		*e.Value.(*lruEntry[V]) = lruEntry[V]{key, v, now}
		c.order.MoveToFront(e)
		return
	}
	if c.entries == nil {
		c.entries, c.order = map[string]*list.Element{}, list.New()
	}
	c.entries[key] = c.order.PushFront(&lruEntry[V]{key, v, now})
	if len(c.entries) > max(c.capacity, 1) {
		c.drop(c.order.Back())
	}
}

// expire drops what was used last at until or before.
func (c *lruMap[V]) expire(until time.Time) {
	for c.order != nil && c.order.Len() > 0 {
		oldest := c.order.Back()
		if oldest.Value.(*lruEntry[V]).used.After(until) {
			return
		}
		c.drop(oldest)
	}
}

func (c *lruMap[V]) drop(e *list.Element) {
	delete(c.entries, e.Value.(*lruEntry[V]).key)
	c.order.Remove(e)
}
