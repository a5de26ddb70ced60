package story_test

import (
	"slices"
	"strings"
	"testing"

	"conclave/pkg/story"
	"conclave/subjects"
)

// TestObserve compares the reports of a run with its result: every expectation ends in a state, a failed one has the
// difference of expected and observed, and each event and turn is reported.
func TestObserve(t *testing.T) {
	const text = `story: T
title: observed
why: a test
turns:
  - query: Is the world round?
    answer: {contains: [round, flat]}
events:
  present: [tool.result.web_search, tool.result.web_search error.code=denied]
  absent: [tool.request.run_shell, tool.request.web_search]
  in_order: [tool.request.web_search, tool.result.web_search, tool.request.web_search, response.generation]
`
	var checks, at []story.Check
	var turns []story.TurnProgress
	events := 0
	opts := quick
	opts.Observe = func(p story.Progress) {
		switch {
		case p.Turn != nil:
			turns = append(turns, *p.Turn)
		case p.Event != nil:
			events++
		}
		for _, c := range p.Checks {
			if i := slices.IndexFunc(at, func(x story.Check) bool { return x.Path == c.Path }); i >= 0 {
				at[i] = c
			} else {
				at = append(at, c)
			}
		}
		if checks == nil {
			checks = slices.Clone(p.Checks)
		}
	}
	r := run(t, parse(t, text), &fakeSystem{answer: replies(good())}, opts)
	if end := r.End(); end.OK || end.Failed != 4 || end.Reason != r.Failures[0].Text {
		t.Errorf("%+v\n%s", end, r.Report())
	}
	if events != len(r.Events) || events == 0 {
		t.Errorf("%d of %d events reported", events, len(r.Events))
	}
	if len(turns) != 2 || turns[0].State != story.StateRunning || turns[1].State != story.StateOK ||
		turns[1].Answer != good().Answer {
		t.Errorf("turns %+v", turns)
	}
	for _, c := range checks {
		if c.State != story.StatePending {
			t.Errorf("at the start: %+v", c)
		}
	}
	want := map[string]string{
		"": "ok", "turns[0]": "ok", "turns[0].answer.contains[0]": "ok", "events.present[0]": "ok",
		"events.absent[0]": "ok", "events": "ok",
		"turns[0].answer.contains[1]": "-flat +The world is round. Alpha ships",
		"events.present[1]":           "-tool.result.web_search error.code=denied +tool.result.web_search by=broker",
		"events.absent[1]":            "-no tool.request.web_search +tool.request.web_search by=broker",
		"events.in_order": " tool.request.web_search  tool.result.web_search -tool.request.web_search " +
			"-response.generation +response.generation",
	}
	for _, c := range at {
		got := c.State
		if c.State == story.StateFailed {
			var lines []string
			for _, l := range c.Failures[0].Diff {
				lines = append(lines, l.Op+l.Text)
			}
			got = strings.Join(lines, " ")
		}
		if !strings.HasPrefix(got, want[c.Path]) || want[c.Path] == "" {
			t.Errorf("%s: %q", c.Path, got)
		}
		delete(want, c.Path)
	}
	if len(want) > 0 {
		t.Errorf("not reported: %v", want)
	}
}

// TestObserveUnansweredTurn leaves the expectations behind a step that could not run unchecked: they neither hold nor
// fail.
func TestObserveUnansweredTurn(t *testing.T) {
	var last []story.Check
	opts := quick
	opts.Observe = func(p story.Progress) { last = append(last, p.Checks...) }
	s := parse(t, "story: T\ntitle: t\nwhy: w\nturns:\n  - query: Who?\n    approve: {answer: deny}\n    answer: "+
		"{contains: [x]}\nevents: {absent: [a.b]}\n")
	run(t, s, &fakeSystem{answer: func(w *fakeSystem, q subjects.Query) { w.done(q.QueryID, good()) }}, opts)
	states := map[string]string{}
	for _, c := range last {
		states[c.Path] = c.State
	}
	if states[""] != story.StateFailed || states["events.absent[0]"] != story.StatePending {
		t.Errorf("%v", states)
	}
}
