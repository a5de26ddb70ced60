package actor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/subjects"
)

const (
	maxRefusals    = 50               // refusals of an account for one action within refusalPeriod that are recorded each
	refusalPeriod  = 10 * time.Second // after it, the next refusal of any account records the number of the others
	maxCounted     = 500              // refusals that are only counted before their number is recorded: a crash loses at most these
	maxRefusedTool = 32               // tools that are counted each; further ones are counted together
)

// refusalCounter aggregates repeated refusals, so that an agent that repeats a denied request does not fill the audit log:
// of the refusals of one account, action and status within refusalPeriod the first maxRefusals are recorded, the others
// counted by tool. Their number is one record per tool: with the next refusal of any account after the period, after
// maxCounted refusals, or at the end ([Gate.Close]).
type refusalCounter struct {
	mu      sync.Mutex
	periods map[refusalKey]*refusals
}

// refusalKey has no tool: an agent that invents names of tools would get maxRefusals records for each.
type refusalKey struct{ account, action, status string }

type refusals struct {
	start    time.Time
	recorded int
	counted  int            // in skipped
	skipped  map[string]int // by tool
}

// otherTools is the tool of the refusals for more than maxRefusedTool tools.
const otherTools = "other tools"

// count counts a refusal at the time now. It reports whether to record it, and returns the records about the refusals that
// were only counted. A status that is no refusal is always recorded.
func (c *refusalCounter) count(rec subjects.AuditRecord, status string, now time.Time) (admitted bool, summaries []subjects.AuditRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, r := range c.periods {
		if now.Sub(r.start) >= refusalPeriod {
			delete(c.periods, key)
			summaries = append(summaries, r.summarize(key)...)
		}
	}
	if status != subjects.StatusDenied && status != subjects.StatusRefused {
		return true, summaries
	}
	account, _, _ := strings.Cut(rec.AgentID, ".")
	key := refusalKey{account, rec.Action, status}
	r := c.periods[key]
	if r == nil {
		if c.periods == nil {
			c.periods = map[refusalKey]*refusals{}
		}
		r = &refusals{start: now, skipped: map[string]int{}}
		c.periods[key] = r
	}
	if r.recorded < maxRefusals {
		r.recorded++
		return true, summaries
	}
	tool := rec.Tool
	if _, known := r.skipped[tool]; !known && len(r.skipped) >= maxRefusedTool {
		tool = otherTools
	}
	r.skipped[tool]++
	if r.counted++; r.counted >= maxCounted {
		summaries = append(summaries, r.summarize(key)...)
	}
	return false, summaries
}

// drain returns the records about all refusals that were only counted, and forgets them.
func (c *refusalCounter) drain() (summaries []subjects.AuditRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, r := range c.periods {
		summaries = append(summaries, r.summarize(key)...)
	}
	c.periods = nil
	return summaries
}

// summarize returns a record for each tool with refusals that were only counted, and sets their numbers to 0.
func (r *refusals) summarize(key refusalKey) (out []subjects.AuditRecord) {
	for _, tool := range slices.Sorted(maps.Keys(r.skipped)) {
		rec := subjects.AuditRecord{
			AgentID: key.account, Action: key.action, Status: key.status, Tool: tool,
			Reason: fmt.Sprintf("repeated: %d more from %s on, not recorded one by one", r.skipped[tool], r.start.UTC().Format(time.RFC3339)),
		}
		if tool == otherTools {
			rec.Tool, rec.Reason = "", rec.Reason+", of other tools"
		}
		out = append(out, rec)
	}
	r.counted = 0
	clear(r.skipped)
	return out
}
