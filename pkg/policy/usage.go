package policy

import (
	"container/list"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// UsageCounter counts calls for the limits layer, in memory: a restart of the broker resets it. Its size is bounded and
// the least recently used entries are dropped first; agents are counted apart from questions, so that a flood of
// made-up questions cannot evict the usage of a spawn chain. Safe for concurrent use.
//
// A denied call counts as a call of its question, so that a loop of denied calls ends. It does not count as a
// repetition: only calls that ran do, and only in a row, for one question and with equal results.
type UsageCounter struct {
	window time.Duration
	keep   time.Duration

	mu       sync.Mutex
	repeated lruMap[questionKey, repetition] // by caller
	calls    lruMap[questionKey, int]        // by account
	agents   lruMap[string, usageSum]        // by agent
}

// questionKey is a question of an agent, or of an account and all agents below it.
type questionKey struct{ agent, session, query string }

// callKey identifies identical calls.
type callKey struct{ tool, paramsHash string }

// repetition is the latest run of identical calls of a caller for one question. A call is identified by tool and
// arguments.
type repetition struct {
	call    callKey   // of the last call that ended
	result  string    // of that call
	n       int       // how often it ran in a row with this result
	running []callKey // calls that were counted and have not ended; they count as if their results were equal
}

// identical returns the number of calls identical to call in a row before it.
func (r repetition) identical(call callKey) int {
	n := 0
	for _, running := range r.running {
		if running == call {
			n++
		}
	}
	if r.call == call {
		n += r.n
	}
	return min(n, maxIdentical)
}

// withoutRunning returns r without one of the calls in progress. It reuses the memory of r.
func (r repetition) withoutRunning(call callKey) repetition {
	if i := slices.Index(r.running, call); i >= 0 {
		r.running = slices.Delete(r.running, i, i+1)
	}
	return r
}

// usageSum is the usage of one agent and all agents below it.
type usageSum struct {
	calls   int
	seconds float64
	bytes   int64
}

// maxIdentical is the most identical calls that are counted. A limit above it would never take effect.
const maxIdentical = 100

// NewUsageCounter returns a counter that forgets repetitions after window without a call, and a question or agent after
// keep. It holds at most capacity entries of each kind, and at least one.
func NewUsageCounter(window, keep time.Duration, capacity int) *UsageCounter {
	t := &UsageCounter{window: window, keep: keep}
	t.repeated.capacity, t.calls.capacity, t.agents.capacity = capacity, capacity, capacity
	return t
}

// SetWindow changes the window of repetitions, after a change of the manifest.
func (t *UsageCounter) SetWindow(window time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.window = window
}

// Attempt is a call as it is counted. Only Session and Query may be empty.
type Attempt struct {
	Caller         string // [subjects.Caller.ID]: the account and the agents of the lineage, separated by dots
	Session, Query string
	Tool           string
	ParamsHash     string // hash of the arguments
}

// Count counts a call and returns the usage before it: identical calls of this caller in a row for the same question,
// calls of the account and all agents below it for the same question, and the usage of each agent of the lineage, the
// account first. The caller must fill in the budgets, and call [UsageCounter.Ended] or [UsageCounter.Refused] once.
// Reading and counting is atomic, so that no two concurrent calls see the same count.
func (t *UsageCounter) Count(now time.Time, a Attempt) Usage { return t.usage(now, a, true) }

// Peek is [UsageCounter.Count] without counting, for a dry run.
func (t *UsageCounter) Peek(now time.Time, a Attempt) Usage { return t.usage(now, a, false) }

// usage returns the usage before a, and counts a when count is set. It first drops expired entries. Identical is at
// most maxIdentical, and the budgets are not set.
func (t *UsageCounter) usage(now time.Time, a Attempt, count bool) (s Usage) {
	account, _, _ := strings.Cut(a.Caller, ".")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)

	key, call := a.repetitionKey(), a.call()
	r, _ := t.repeated.get(key)
	s.Identical = r.identical(call)
	question := questionKey{account, a.Session, a.Query}
	s.Calls, _ = t.calls.get(question)
	for agent := range lineageIDs(a.Caller) {
		sum, _ := t.agents.get(agent)
		s.Agents = append(s.Agents, AgentUsage{Agent: agent, Calls: sum.calls, Seconds: sum.seconds, Bytes: sum.bytes})
		sum.calls++
		if count {
			t.agents.put(agent, sum, now)
		}
	}
	if count {
		r.running = append(r.running, call)
		t.repeated.put(key, r, now)
		t.calls.put(question, s.Calls+1, now)
	}
	return s
}

// repetitionKey is the key of repetitions.
func (a Attempt) repetitionKey() questionKey { return questionKey{a.Caller, a.Session, a.Query} }

// call identifies the call by tool and arguments.
func (a Attempt) call() callKey { return callKey{a.Tool, a.ParamsHash} }

// Ended records that a counted call ran and ended with result, a hash or the text itself. It continues the repetition
// when call and result equal the last ones of the question, and starts a new one otherwise.
func (t *UsageCounter) Ended(now time.Time, a Attempt, result string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, call := a.repetitionKey(), a.call()
	r, _ := t.repeated.get(key)
	if r.call != call || r.result != result {
		r.call, r.result, r.n = call, result, 0
	}
	r.n = min(r.n+1, maxIdentical)
	t.repeated.put(key, r.withoutRunning(call), now)
}

// Refused records that a counted call was denied and did not run: it is no repetition.
func (t *UsageCounter) Refused(now time.Time, a Attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := a.repetitionKey()
	r, _ := t.repeated.get(key)
	t.repeated.put(key, r.withoutRunning(a.call()), now)
}

// AddResult adds the duration and result size of a finished call to its caller and each ancestor. caller is as in
// [Attempt]. Negative values and NaN count as 0; seconds of one call are capped and the sum of bytes saturates.
func (t *UsageCounter) AddResult(now time.Time, caller string, seconds float64, bytes int64) {
	if !(seconds > 0) { // true for NaN
		seconds = 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for agent := range lineageIDs(caller) {
		sum, _ := t.agents.get(agent)
		sum.seconds += min(seconds, math.MaxInt32)
		if sum.bytes += max(bytes, 0); sum.bytes < 0 {
			sum.bytes = math.MaxInt64
		}
		t.agents.put(agent, sum, now)
	}
}

// AgentUsage returns the usage of an agent and all agents below it, without a budget; zero for an unknown agent.
func (t *UsageCounter) AgentUsage(agent string) AgentUsage {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum, _ := t.agents.get(agent)
	return AgentUsage{Agent: agent, Calls: sum.calls, Seconds: sum.seconds, Bytes: sum.bytes}
}

// expire drops the entries that are older than window or keep. The caller holds mu.
func (t *UsageCounter) expire(now time.Time) {
	t.repeated.expire(now.Add(-t.window))
	t.calls.expire(now.Add(-t.keep))
	t.agents.expire(now.Add(-t.keep))
}

// lineageIDs yields the account of a caller, then each agent below it, the caller last. caller is as in [Attempt].
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

// lruMap is a map of bounded size that evicts the least recently written entry. The zero value holds one entry.
type lruMap[K comparable, V any] struct {
	capacity int
	entries  map[K]*list.Element
	order    *list.List // most recently written first
}

// lruEntry is an element of lruMap.order.
type lruEntry[K comparable, V any] struct {
	key   K
	value V
	used  time.Time
}

func (c *lruMap[K, V]) get(key K) (v V, ok bool) {
	e, ok := c.entries[key]
	if !ok {
		return v, false
	}
	return e.Value.(*lruEntry[K, V]).value, true
}

// put sets the value of key at the time now and evicts the least recently written entry beyond the capacity.
func (c *lruMap[K, V]) put(key K, v V, now time.Time) {
	if e, ok := c.entries[key]; ok {
		*e.Value.(*lruEntry[K, V]) = lruEntry[K, V]{key, v, now}
		c.order.MoveToFront(e)
		return
	}
	if c.entries == nil {
		c.entries, c.order = map[K]*list.Element{}, list.New()
	}
	c.entries[key] = c.order.PushFront(&lruEntry[K, V]{key, v, now})
	if len(c.entries) > max(c.capacity, 1) {
		c.drop(c.order.Back())
	}
}

// expire drops the entries that were last written at until or before. The times of put must not decrease.
func (c *lruMap[K, V]) expire(until time.Time) {
	for c.order != nil && c.order.Len() > 0 {
		oldest := c.order.Back()
		if oldest.Value.(*lruEntry[K, V]).used.After(until) {
			return
		}
		c.drop(oldest)
	}
}

func (c *lruMap[K, V]) drop(e *list.Element) {
	delete(c.entries, e.Value.(*lruEntry[K, V]).key)
	c.order.Remove(e)
}
