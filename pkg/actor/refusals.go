package actor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/subjects"
)

const (
	// refusals of an account for one action within refusalPeriod that are recorded each
	maxRefusals   = 50
	refusalPeriod = 10 * time.Second // after it, the next refusal of any account records the number of the others
	// refusals of a period that are only counted before the first record of their number
	firstTotal       = 500
	maxRefusedTools  = 32 // tools that are counted each; further ones are counted together
	maxToolSummaries = 5  // tools with a record of their own at the end of a period; the others share one
)

// refusalCounter aggregates repeated refusals, so that an agent that repeats a denied request does not fill the audit
// log: of the refusals of one account, action and status within refusalPeriod the first maxRefusals are recorded, the
// others counted by tool. Their number is recorded
//
//   - in one record for all tools when firstTotal refusals of the period are counted, and each time their number has
//     doubled: a flood writes a logarithmic number of records, and a crash loses less than half of it;
//   - in at most maxToolSummaries+1 records, by tool, with the next refusal of any account after the period, and at the
//     end ([Gate.Close]).
//
// A refusal is part of one summary only, so that the numbers can be added up.
type refusalCounter struct {
	mu      sync.Mutex
	periods map[refusalKey]*refusals
}

// refusalKey has no tool: an agent that invents names of tools would get maxRefusals records for each.
type refusalKey struct{ account, action, status string }

// refusals are those of one key within a period.
type refusals struct {
	start     time.Time
	recorded  int          // refusals with a record each
	counted   int          // refusals that are only counted
	nextTotal int          // value of counted at which their number is recorded
	pending   refusalTally // refusals that are only counted, and not yet part of a summary
}

// refusalTally is a number of refusals by tool, for at most maxRefusedTools tools.
type refusalTally struct {
	since  time.Time // the first refusal
	byTool map[string]int
	others int // refusals for further tools
}

// add adds n refusals for tool, the first of them at the time since.
func (t *refusalTally) add(tool string, n int, since time.Time) {
	if _, known := t.byTool[tool]; !known && len(t.byTool) >= maxRefusedTools {
		t.addOthers(n, since)
		return
	}
	if t.byTool == nil {
		t.byTool = map[string]int{}
	}
	t.byTool[tool] += n
	t.extendTo(since)
}

// addOthers adds n refusals for tools that are not counted each, the first of them at the time since.
func (t *refusalTally) addOthers(n int, since time.Time) {
	t.others += n
	t.extendTo(since)
}

// extendTo makes since the time of the first refusal if it is earlier.
func (t *refusalTally) extendTo(since time.Time) {
	if t.since.IsZero() || since.Before(t.since) {
		t.since = since
	}
}

func (t *refusalTally) isEmpty() bool { return len(t.byTool) == 0 && t.others == 0 }

// refusalSummary is one record about refusals that were only counted.
type refusalSummary struct {
	key   refusalKey
	start time.Time // of the period into which the refusals are put back
	refusalTally
}

// record returns the audit record. It names the tool if all refusals are for the same.
func (s *refusalSummary) record() subjects.AuditRecord {
	rec := subjects.AuditRecord{AgentID: s.key.account, Action: s.key.action, Status: s.key.status}
	n := s.others
	for tool, refused := range s.byTool {
		rec.Tool = tool
		n += refused
	}
	rec.Reason = fmt.Sprintf("repeated: %d more from %s on, not recorded one by one", n,
		s.since.UTC().Format(time.RFC3339))
	if s.others > 0 || len(s.byTool) > 1 {
		rec.Tool, rec.Reason = "", rec.Reason+", of several tools"
	}
	return rec
}

// count counts a refusal at the time now. It reports whether to record it, and returns the summaries to record: the
// caller passes those that it cannot store to restore. A repetition of a pending call counts as a refusal; every other
// status is recorded.
func (c *refusalCounter) count(rec subjects.AuditRecord, status string, now time.Time) (admitted bool,
	summaries []refusalSummary,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, r := range c.periods {
		if now.Sub(r.start) >= refusalPeriod {
			delete(c.periods, key)
			summaries = append(summaries, r.summarizeByTool(key, now)...)
		}
	}
	if status != subjects.StatusDenied && status != subjects.StatusRefused && status != subjects.StatusPending {
		return true, summaries
	}
	account, _, _ := strings.Cut(rec.AgentID, ".")
	key := refusalKey{account, rec.Action, status}
	r := c.period(key, now)
	if r.recorded < maxRefusals {
		r.recorded++
		return true, summaries
	}
	r.pending.add(rec.Tool, 1, now)
	if r.counted++; r.counted >= r.nextTotal {
		r.nextTotal *= 2 // also if the summary is not stored: the next attempt has to wait
		summaries = append(summaries, refusalSummary{key, r.start, r.pending})
		r.pending = refusalTally{}
	}
	return false, summaries
}

// period returns the refusals of key, those of a period that begins at start if there are none. c.mu must be held.
func (c *refusalCounter) period(key refusalKey, start time.Time) *refusals {
	r := c.periods[key]
	if r == nil {
		if c.periods == nil {
			c.periods = map[refusalKey]*refusals{}
		}
		r = &refusals{start: start, nextTotal: firstTotal}
		c.periods[key] = r
	}
	return r
}

// restore puts the refusals of summaries that were not stored back. They are part of the next summary of their key, in
// the current period or, if there is none, in one that begins now: a log that fails gets one attempt per period.
func (c *refusalCounter) restore(summaries []refusalSummary) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range summaries {
		r := c.period(s.key, s.start)
		for tool, n := range s.byTool {
			r.pending.add(tool, n, s.since)
		}
		r.pending.addOthers(s.others, s.since)
	}
}

// drain returns the summaries of all refusals that were only counted, and forgets them.
func (c *refusalCounter) drain() (summaries []refusalSummary) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, r := range c.periods {
		summaries = append(summaries, r.summarizeByTool(key, r.start)...)
	}
	c.periods = nil
	return summaries
}

// summarizeByTool returns a summary for each of the maxToolSummaries tools with the most pending refusals and one for
// the others, and leaves none pending. start is that of the period into which they are put back.
func (r *refusals) summarizeByTool(key refusalKey, start time.Time) (out []refusalSummary) {
	t := r.pending
	r.pending = refusalTally{}
	tools := slices.SortedFunc(maps.Keys(t.byTool), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.byTool[b], t.byTool[a]), cmp.Compare(a, b))
	})
	for _, tool := range tools[:min(len(tools), maxToolSummaries)] {
		out = append(out,
			refusalSummary{key, start, refusalTally{since: t.since, byTool: map[string]int{tool: t.byTool[tool]}}})
		delete(t.byTool, tool)
	}
	if !t.isEmpty() {
		out = append(out, refusalSummary{key, start, t})
	}
	return out
}
