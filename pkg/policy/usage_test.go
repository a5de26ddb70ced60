package policy

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var counterStart = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func newAttempt(caller, session, query, tool, params string) Attempt {
	return Attempt{Caller: caller, Session: session, Query: query, Tool: tool, ParamsHash: params}
}

// TestCounterRepetitions: calls are identical when they follow each other for the same question, with the same
// arguments and results.
func TestCounterRepetitions(t *testing.T) {
	first := newAttempt("generator", "s", "q", "fs_read", "h")
	other := newAttempt("generator", "s", "q", "fs_list", "h")
	ran := func(a Attempt, result string) func(*UsageCounter, time.Time) {
		return func(c *UsageCounter, now time.Time) {
			c.Count(now, a)
			c.Ended(now, a, result)
		}
	}
	refused := func(a Attempt) func(*UsageCounter, time.Time) {
		return func(c *UsageCounter, now time.Time) {
			c.Count(now, a)
			c.Refused(now, a)
		}
	}
	for _, tt := range []struct {
		name  string
		call  Attempt
		after time.Duration
		steps []func(*UsageCounter, time.Time)
		want  int
	}{
		{"the third", first, time.Second, nil, 2},
		{"after a pause", first, time.Minute, nil, 0},
		{"another question", newAttempt("generator", "s", "q2", "fs_read", "h"), time.Second, nil, 0},
		{"other arguments", newAttempt("generator", "s", "q", "fs_read", "h2"), time.Second, nil, 0},
		{"another tool", other, time.Second, nil, 0},
		{"another session", newAttempt("generator", "s2", "q", "fs_read", "h"), time.Second, nil, 0},
		{"another caller", newAttempt("committee", "s", "q", "fs_read", "h"), time.Second, nil, 0},
		{"a child", newAttempt("generator.coder-1", "s", "q", "fs_read", "h"), time.Second, nil, 0},
		{"after another call", first, time.Second, []func(*UsageCounter, time.Time){ran(other, "1")}, 0},
		{"after another result", first, time.Second, []func(*UsageCounter, time.Time){ran(first, "2")}, 1},
		{"after a refused attempt", first, time.Second, []func(*UsageCounter, time.Time){
			refused(first),
			refused(first),
		}, 2},
		{
			"after another call that was refused", first, time.Second,
			[]func(*UsageCounter, time.Time){refused(other)},
			2,
		},
		{
			"while another one runs", first, time.Second,
			[]func(*UsageCounter, time.Time){func(c *UsageCounter, now time.Time) { c.Count(now, first) }},
			3,
		},
		{"many more", first, time.Second, slices.Repeat([]func(*UsageCounter, time.Time){ran(first, "1")},
			3*maxIdentical), maxIdentical},
		{"trick: key parts that shift", newAttempt("generator", "s", "qf", "s_read", "h"), time.Second, nil, 0},
		{"trick: time goes back", first, -time.Hour, nil, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			counter := NewUsageCounter(time.Minute, time.Hour, 100)
			for range 2 {
				ran(first, "1")(counter, counterStart)
			}
			for _, step := range tt.steps {
				step(counter, counterStart)
			}
			if got := counter.Peek(counterStart.Add(tt.after), tt.call).Identical; got != tt.want {
				t.Errorf("dry: %d identical, want %d", got, tt.want)
			}
			if got := counter.Count(counterStart.Add(tt.after), tt.call).Identical; got != tt.want {
				t.Errorf("%d identical, want %d", got, tt.want)
			}
		})
	}
}

func TestCounterCallsAndAgents(t *testing.T) {
	counter := NewUsageCounter(time.Minute, time.Hour, 100)
	count := func(caller, query string) Usage {
		return counter.Count(counterStart, newAttempt(caller, "s", query, "x", caller+query))
	}
	count("generator", "q1")
	count("generator.coder-1", "q1")
	count("generator.coder-1.researcher-1", "q1")
	count("generator.coder-2", "q1")
	count("generator", "q2")
	count("committee", "q1")
	if got := count("generator.coder-2", "q1").Calls; got != 4 {
		t.Errorf("%d calls for the question, want 4: all agents of an account count together", got)
	}
	counter.AddResult(counterStart, "generator.coder-1.researcher-1", 1.5, 100)
	counter.AddResult(counterStart, "generator.coder-1", 2, 1000)
	counter.AddResult(counterStart, "generator.coder-1", math.NaN(), -50)
	counter.AddResult(counterStart, "generator.coder-1", -5, 0)

	got := count("generator.coder-1.researcher-1", "q1").Agents
	want := []AgentUsage{
		{Agent: "generator", Calls: 6, Seconds: 3.5, Bytes: 1100},
		{Agent: "generator.coder-1", Calls: 2, Seconds: 3.5, Bytes: 1100},
		{Agent: "generator.coder-1.researcher-1", Calls: 1, Seconds: 1.5, Bytes: 100},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("lines\n%+v, want\n%+v", got, want)
	}
	if l := counter.AgentUsage("generator.coder-1"); l.Calls != 3 || l.Bytes != 1100 || l.Agent != "generator.coder-1" {
		t.Errorf("line %+v", l)
	}
	if l := counter.AgentUsage("generator.coder"); l.Calls != 0 {
		t.Errorf("a prefix of a name is an agent: %+v", l)
	}
	counter.AddResult(counterStart, "committee", 1, math.MaxInt64)
	counter.AddResult(counterStart, "committee", 1, math.MaxInt64)
	if l := counter.AgentUsage("committee"); l.Bytes != math.MaxInt64 {
		t.Errorf("bytes ran over: %d", l.Bytes)
	}
	// An hour without a call resets the counts.
	if s := counter.Peek(counterStart.Add(2*time.Hour), newAttempt("generator", "s", "q1", "x", "h")); s.Calls != 0 ||
		s.Agents[0].Calls != 0 {
		t.Errorf("still counted: %+v", s)
	}
}

// TestCounterFloodKeepsAgentUsage: a flood of made-up questions evicts questions, not the usage of a spawn chain.
func TestCounterFloodKeepsAgentUsage(t *testing.T) {
	counter := NewUsageCounter(time.Minute, time.Hour, 50)
	for i := range 5000 {
		counter.Count(counterStart, newAttempt("generator", fmt.Sprint("s", i), fmt.Sprint("q", i), "x", fmt.Sprint(i)))
	}
	if got := counter.AgentUsage("generator").Calls; got != 5000 {
		t.Errorf("%d calls of the line, want 5000", got)
	}
	if got := counter.Peek(counterStart, newAttempt("generator", "s0", "q0", "x", "0")); got.Calls != 0 ||
		got.Identical != 0 {
		t.Errorf("the oldest of 5000 is still there: %+v", got)
	}
	if got := counter.Peek(counterStart, newAttempt("generator", "s4999", "q4999", "x", "4999")); got.Calls != 1 ||
		got.Identical != 1 {
		t.Errorf("the last of 5000 is gone: %+v", got)
	}
}

// TestCounterIsConcurrent: concurrent calls each see a different count.
func TestCounterIsConcurrent(t *testing.T) {
	counter := NewUsageCounter(time.Minute, time.Hour, 50)
	seen := make([]int, 800)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				s := counter.Count(counterStart, newAttempt("generator", "s", "q", "x", "h"))
				counter.AddResult(counterStart, "generator", 1, 1)
				mu.Lock()
				seen[s.Calls]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for n, times := range seen {
		if times != 1 {
			t.Fatalf("%d calls saw %d before them", times, n)
		}
	}
	if l := counter.AgentUsage("generator"); l.Seconds != 800 || l.Bytes != 800 || l.Calls != 800 {
		t.Errorf("line %+v", l)
	}
}

// TestCounterMatchesModel compares the counts with an unbounded list.
func TestCounterMatchesModel(t *testing.T) {
	type made struct {
		at     time.Time
		a      Attempt
		result string
	}
	rapid.Check(t, func(rt *rapid.T) {
		counter, now := NewUsageCounter(time.Minute, 24*time.Hour, 1000), counterStart
		var all []made
		for range rapid.IntRange(1, 40).Draw(rt, "calls") {
			now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(rt, "wait")) * time.Second)
			one := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(rt, name) }
			a := newAttempt(one("caller", "generator", "committee", "generator.coder-1"), one("session", "s", "t"),
				one("query", "q", "r"), one("tool", "x", "y"), one("params", "1", "2"))
			same, calls, result := 0, 0, one("result", "", "1", "2") // "" = refused
			last := now
			var want string
			// the repetition that ends with the last call of this caller and question that ran
			for _, m := range slices.Backward(all) {
				if m.a.repetitionKey() != a.repetitionKey() {
					continue
				}
				if last.Sub(m.at) >= time.Minute {
					break
				}
				last = m.at
				if m.result == "" {
					continue
				}
				if m.a.call() != a.call() || want != "" && m.result != want {
					break
				}
				want = m.result
				same++
			}
			for _, m := range all {
				if m.a.Caller[:9] == a.Caller[:9] && m.a.Session == a.Session && m.a.Query == a.Query {
					calls++
				}
			}
			if s := counter.Count(now, a); s.Identical != same || s.Calls != calls {
				rt.Fatalf("%d identical and %d calls, want %d and %d", s.Identical, s.Calls, same, calls)
			}
			if result == "" {
				counter.Refused(now, a)
			} else {
				counter.Ended(now, a, result)
			}
			all = append(all, made{now, a, result})
		}
	})
}

// TestCounterWindowChanges: a new window applies to calls counted before.
func TestCounterWindowChanges(t *testing.T) {
	counter, a := NewUsageCounter(time.Hour, time.Hour, 100), newAttempt("generator", "s", "q", "x", "h")
	counter.Count(counterStart, a)
	counter.Ended(counterStart, a, "1")
	if got := counter.Peek(counterStart.Add(time.Minute), a).Identical; got != 1 {
		t.Errorf("%d identical calls, want 1", got)
	}
	counter.SetWindow(time.Second)
	if got := counter.Peek(counterStart.Add(time.Minute), a).Identical; got != 0 {
		t.Errorf("%d identical calls in a shorter window, want 0", got)
	}
}
