package story

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/strict"
	"conclave/pkg/text"
)

// Progress is one report of a running story. One of its fields is set.
type Progress struct {
	Checks []Check        `json:"checks,omitempty"` // all expectations at the start, then those that changed
	Turn   *TurnProgress  `json:"turn,omitempty"`
	Event  *EventProgress `json:"event,omitempty"`
	End    *End           `json:"end,omitempty"` // the last one
}

// States of a check and of a turn.
const (
	StatePending = "pending" // at the end of a story: not checked, because a step before it failed
	StateRunning = "running"
	StateOK      = "ok"
	StateFailed  = "failed"
)

// Check is one expectation and its state.
type Check struct {
	Path     string    `json:"path"` // in the story; "" = the run itself
	Line     int       `json:"line"`
	Text     string    `json:"text"`
	State    string    `json:"state"`
	Failures []Failure `json:"failures,omitempty"`
}

// TurnProgress is the state of a turn.
type TurnProgress struct {
	N      int    `json:"n"` // from 1
	Step   string `json:"step"`
	State  string `json:"state"`
	Answer string `json:"answer,omitempty"`
}

// EventProgress is an event of the story's system.
type EventProgress struct {
	Seq     uint64    `json:"seq,omitempty"`
	Time    time.Time `json:"time"`
	From    string    `json:"from,omitempty"`
	Subject string    `json:"subject"`
	Body    string    `json:"body"` // clipped, without ids
}

// End is the outcome of a story.
type End struct {
	OK      bool   `json:"ok"`
	Skipped string `json:"skipped,omitempty"`
	Millis  int64  `json:"ms"`
	Failed  int    `json:"failed"` // number of failures
	// Reason is the first failure, for a story that could not be run and has no checks.
	Reason string `json:"reason,omitempty"`
}

// End returns the outcome of the result.
func (r Result) End() *End {
	e := &End{OK: r.OK(), Skipped: r.Skipped, Millis: r.Took.Milliseconds(), Failed: len(r.Failures)}
	if !e.OK {
		e.Reason = r.Failures[0].Text
	}
	return e
}

// DiffLine is one line of the difference between expected and observed values.
type DiffLine struct {
	Op   string `json:"op"` // "-" expected and not observed, "+" observed and not expected, " " both
	Text string `json:"text"`
}

// diffLines returns the difference of two lists of lines by their longest common subsequence.
func diffLines(want, got []string) []DiffLine {
	common := make([][]int, len(want)+1) // length of the common subsequence of want[i:] and got[j:]
	for i := range common {
		common[i] = make([]int, len(got)+1)
	}
	for i := len(want) - 1; i >= 0; i-- {
		for j := len(got) - 1; j >= 0; j-- {
			if want[i] == got[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []DiffLine
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case i < len(want) && j < len(got) && want[i] == got[j]:
			out = append(out, DiffLine{" ", want[i]})
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && common[i+1][j] >= common[i][j+1]:
			out = append(out, DiffLine{"-", want[i]})
			i++
		default:
			out = append(out, DiffLine{"+", got[j]})
			j++
		}
	}
	return out
}

// maxDiff bounds the lines of an observed text in a difference.
const maxDiff = 60

// splitLines returns the lines of a text for a difference, at most maxDiff.
func splitLines(s string) []string {
	lines := strings.Split(strings.TrimSpace(text.Clip(s, 4000)), "\n")
	return lines[:min(len(lines), maxDiff)]
}

// expectations returns the expectations of the story, pending. The failures of a run belong to the one with the longest
// path that is a prefix of theirs.
func (s *Story) expectations() (out []Check) {
	add := func(path, format string, a ...any) {
		out = append(out, Check{Path: path, Line: s.Line(path), Text: fmt.Sprintf(format, a...), State: StatePending})
	}
	add("", "every step runs")
	for i, t := range s.Turns {
		if t.asksNothing() {
			continue
		}
		path, turn := fmt.Sprintf("turns[%d]", i), fmt.Sprintf("turn %d", i+1)
		if t.Error != "" {
			add(path, "%s fails with %s", turn, t.Error)
		} else {
			add(path, "%s is answered", turn)
		}
		if a := t.Answer; a != nil {
			s.addAnswer(add, path+".answer", turn, *a)
		}
		if h := t.Thinking; h != nil {
			want := "no thinking"
			if !h.Empty {
				want = strings.TrimSpace("thinking " + strings.Join(h.Contains, ", "))
			}
			add(path+".thinking", "%s: %s", turn, want)
		}
		if t.ToolCalls != nil && len(t.ToolCalls) == 0 {
			add(path+".tool_calls", "%s calls no tool", turn)
		}
		for k, c := range t.ToolCalls {
			add(fmt.Sprintf("%s.tool_calls[%d]", path, k), "%s calls %s", turn, c)
		}
		if len(t.Notes) > 0 {
			add(path+".notes", "%s has the notes %s", turn, strings.Join(t.Notes, ", "))
		}
	}
	for _, role := range strict.SortedKeys(s.Model) {
		add("model."+role, "every scripted reply of %s is requested as expected (%d)", role, len(s.Model[role]))
	}
	for i, w := range s.Events.Present {
		add(fmt.Sprintf("events.present[%d]", i), "event %s", w)
	}
	for i, w := range s.Events.Absent {
		add(fmt.Sprintf("events.absent[%d]", i), "no event %s", w)
	}
	if n := len(s.Events.InOrder); n > 0 {
		add("events.in_order", "%d events in order", n)
	}
	add("events", "no unexpected dead letter")
	if s.Web != nil {
		for i, p := range s.Web.Pages {
			if p.Requests != nil {
				add(fmt.Sprintf("web.pages[%d].asked", i), "%s is requested %d times", p.URL, *p.Requests)
			}
		}
	}
	return out
}

func (s *Story) addAnswer(add func(string, string, ...any), path, turn string, a Answer) {
	for k, part := range a.Contains {
		add(fmt.Sprintf("%s.contains[%d]", path, k), "%s: the answer contains %q", turn, part)
	}
	for k, part := range a.NotContains {
		add(fmt.Sprintf("%s.not_contains[%d]", path, k), "%s: the answer does not contain %q", turn, part)
	}
	if a.Equals != "" {
		add(path+".equals", "%s: the answer is as written", turn)
	}
	if a.Matches != "" {
		add(path+".matches", "%s: the answer matches %s", turn, a.Matches)
	}
	if f := a.ContainsFrom; f != nil {
		add(path+".contains_from", "%s: the answer quotes %s of %s", turn, f.Field, f.Event)
	}
}

// String returns the expected call on one line.
func (w Call) String() string {
	out := w.Tool
	if len(w.Args) > 0 {
		out += " " + fmt.Sprint(w.Args)
	}
	if w.ResultContains != "" {
		out += fmt.Sprintf(", result %q", w.ResultContains)
	}
	if w.Error != "" {
		out += ", error " + w.Error
	}
	return out
}

// isBelow reports whether path is at or below the path of a check, at a boundary of its fields.
func isBelow(path, check string) bool {
	rest, ok := strings.CutPrefix(path, check)
	return ok && (check == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// observe sends a report, when the caller wants any.
func (r *runner) observe(p Progress) {
	if r.opts.Observe != nil {
		r.opts.Observe(p)
	}
}

// observeEvents reports the events that were not reported yet.
func (r *runner) observeEvents() {
	if r.opts.Observe == nil {
		return
	}
	for _, e := range r.events {
		key := fmt.Sprint(e.Seq, " ", e.Subject, " ", e.Query)
		if r.reported[key] {
			continue
		}
		r.reported[key] = true
		r.observe(Progress{Event: &EventProgress{
			Seq: e.Seq, Time: e.Time, From: e.From, Subject: e.Subject,
			Body: text.Clip(idFields.ReplaceAllString(string(e.Body), ""), 400),
		}})
	}
}

// observeChecks reports the checks whose state changed. Before the end, the expectations of answered turns are known,
// events that must be there only when they are, and those that must not only when they are.
func (r *runner) observeChecks() {
	if r.opts.Observe == nil {
		return
	}
	c := checker{story: r.story, live: r.opts.Live, events: r.events, turns: r.turns}
	for i, t := range r.turns {
		if t.response != nil {
			c.checkTurn(i)
		}
	}
	c.checkEvents()
	r.updateChecks(c.failures, func(path string, failed bool) string {
		answered := slices.ContainsFunc(r.turns, func(t turnState) bool {
			return t.response != nil && isBelow(path, fmt.Sprintf("turns[%d]", t.n))
		})
		switch {
		case failed && (answered || isBelow(path, "events.absent")):
			return StateFailed
		case !failed && (answered || isBelow(path, "events.present") || isBelow(path, "events.in_order")):
			return StateOK
		}
		return StatePending
	})
}

// finishChecks reports the final state of the checks. Without complete, those that did not fail stay pending.
func (r *runner) finishChecks(complete bool) {
	r.updateChecks(r.result.Failures, func(_ string, failed bool) string {
		switch {
		case failed:
			return StateFailed
		case complete:
			return StateOK
		}
		return StatePending
	})
}

// updateChecks assigns the failures to the checks, sets the state of each and reports those that changed.
func (r *runner) updateChecks(failures []Failure, state func(path string, failed bool) string) {
	if r.opts.Observe == nil {
		return
	}
	of := map[int][]Failure{}
	for _, f := range failures {
		at := 0
		for i, c := range r.checks {
			if isBelow(f.Path, c.Path) && len(c.Path) >= len(r.checks[at].Path) {
				at = i
			}
		}
		of[at] = append(of[at], f)
	}
	var changed []Check
	for i := range r.checks {
		c := &r.checks[i]
		to := state(c.Path, len(of[i]) > 0)
		if to == c.State {
			continue
		}
		c.State, c.Failures = to, nil
		if to == StateFailed {
			c.Failures = of[i]
		}
		changed = append(changed, *c)
	}
	if len(changed) > 0 {
		r.observe(Progress{Checks: changed})
	}
}

// step describes a turn in a few words.
func (t Turn) step() string {
	switch {
	case t.Query != "":
		return t.Query
	case t.Request != nil:
		return fmt.Sprintf("%s calls %s", t.Request.As, t.Request.Tool)
	case t.Memory != nil:
		return "the user changes memory"
	case t.Feedback != nil:
		return "the user rates an answer"
	case t.Override != nil:
		return "the user sets an override"
	}
	return "waits for events"
}
