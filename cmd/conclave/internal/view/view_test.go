package view

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/cmd/conclave/internal/term/termtest"
	"conclave/pkg/client"
	"conclave/subjects"
)

// TestAnswerTextWithoutError removes the words about an error, and nothing else.
func TestAnswerTextWithoutError(t *testing.T) {
	t.Parallel()
	fault := subjects.Faultf("x", "the model is gone.")
	for _, tt := range []struct {
		answer string
		fault  *subjects.Fault
		want   string
	}{
		{"The model is gone. Start it.", fault, ""},
		{"Half.\n\nThe model is gone. Start it.", fault, "Half."},
		{"Half.\n\nthe model is gone", fault, "Half."},
		{"Someone said: the model is gone", fault, "Someone said: the model is gone"},
		{"The model is gone. Start it.", nil, "The model is gone. Start it."},
		{"Half.", fault, "Half."},
		{"Half.", &subjects.Fault{Code: "x"}, "Half."},
		{"", fault, ""},
	} {
		if got := AnswerText(subjects.Response{Answer: tt.answer, Error: tt.fault}); got != tt.want {
			t.Errorf("%q: %q", tt.answer, got)
		}
	}
}

// TestScreenShowsInterruptedSteps shows the steps of a turn that a crash has interrupted, on a pseudo-terminal.
func TestScreenShowsInterruptedSteps(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		pieces []subjects.Delta
		answer string
		want   string
	}{
		{"nothing was streamed", nil, "all at once", "all at once\n"},
		{"nothing came at all", nil, "", ""},
		{"white space around", []subjects.Delta{{Text: "\n "}, {N: 1, Text: "a"}, {N: 2, Text: "\n"}}, "a", "a\n"},
		{
			"a step begins anew",
			[]subjects.Delta{{Text: "a b"}, {N: 1, Text: "c"}, {Text: "a "}, {N: 1, Text: "d"}},
			"a d", "a bc\na d\n",
		},
		{
			"counted through",
			[]subjects.Delta{{Text: "I look"}, {Step: 1, N: 1, Text: "a"}, {Step: 1, N: 2, Text: "b"}},
			"ab", "I look\nab\n",
		},
		{
			"counted anew",
			[]subjects.Delta{{Text: "I look"}, {Step: 1, Text: "a"}, {Step: 1, N: 1, Text: "b"}},
			"ab",
			"I look\nab\n",
		},
		{"came late", []subjects.Delta{{N: 5, Text: "b"}, {N: 6, Text: "c"}}, "abc", "abc\n"},
		{"a piece lost in the middle", []subjects.Delta{{Text: "a"}, {N: 2, Text: "c"}}, "abc", "abc\n"},
		{
			"the first of a step lost",
			[]subjects.Delta{{Text: "I look"}, {Step: 1, N: 2, Text: "b"}},
			"ab",
			"I look\nab\n",
		},
	} {
		master, slave := termtest.Open(t)
		v := NewAnswerView(AnswerOptions{Streams: term.NewStreams(nil, slave, io.Discard)})
		for _, d := range tt.pieces {
			v.Show(client.Delta{Delta: d})
		}
		v.End(subjects.Response{Answer: tt.answer}, func() *subjects.Critique { return nil })
		if text := termtest.ReadAll(t, master, slave); text != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, text, tt.want)
		}
	}
}

// TestWordsBeforeACallAreShownOnce: pieces and states come by different ways, so the words before a call may come as a
// state before the piece that has them, or after the pieces of the next step.
func TestWordsBeforeACallAreShownOnce(t *testing.T) {
	t.Parallel()
	state := client.State{AgentState: subjects.AgentState{To: "DISPATCHING_TOOL", Words: "I look."}}
	piece := client.Delta{Delta: subjects.Delta{Text: "I look."}}
	next := client.Delta{Delta: subjects.Delta{Step: 1, Text: "Found."}}
	for _, updates := range [][]client.Update{{piece, state, next}, {state, piece, next}, {piece, next, state}} {
		master, slave := termtest.Open(t)
		v := NewAnswerView(AnswerOptions{Streams: term.NewStreams(nil, slave, slave)})
		for _, u := range updates {
			v.Show(u)
		}
		v.End(subjects.Response{Answer: "Found."}, func() *subjects.Critique { return nil })
		text := termtest.ReadAll(t, master, slave)
		if strings.Count(text, "I look.") != 1 || strings.Count(text, "Found.") != 1 {
			t.Errorf("%q", text)
		}
	}
}

// TestNoteDoesNotCutTheAnswer: a note that comes between two pieces of the answer is printed below it.
func TestNoteDoesNotCutTheAnswer(t *testing.T) {
	t.Parallel()
	master, slave := termtest.Open(t)
	v := NewAnswerView(AnswerOptions{Streams: term.NewStreams(nil, slave, slave)})
	v.Show(client.Delta{Delta: subjects.Delta{Text: "The "}})
	v.Show(client.Note{Note: subjects.Note{Code: subjects.NoteModel, Text: "another one answers"}})
	v.Show(client.Delta{Delta: subjects.Delta{N: 1, Text: "capital is Paris."}})
	v.End(subjects.Response{Answer: "The capital is Paris."}, func() *subjects.Critique { return nil })
	text := termtest.ReadAll(t, master, slave)
	if at := strings.Index(text, "note: another one answers"); at < strings.Index(text, "The capital is Paris.") ||
		!strings.Contains(text, "The capital is Paris.") {
		t.Errorf("%q", text)
	}
}

// Warnings about a result are printed on stderr and cannot control the terminal.
func TestToolWarnings(t *testing.T) {
	t.Parallel()
	label := func(trust string, flags ...string) subjects.ToolResult {
		return subjects.ToolResult{Labels: &subjects.Labels{Trust: trust, Privacy: subjects.Public, Flags: flags}}
	}
	parked := label(subjects.Trusted)
	parked.Parked = &subjects.Parked{ID: "0123", Bytes: 4 << 20, Shown: 15 << 10}
	for _, tt := range []struct {
		name string
		res  subjects.ToolResult
		want string
	}{
		{"trusted", label(subjects.Trusted), ""},
		{"no labels", subjects.ToolResult{}, ""},
		{"untrusted", label(subjects.Untrusted), "this may contain external content\n"},
		{"a label that nobody knows is no trust", label("fine"), "this may contain external content\n"},
		{"flags", label(subjects.Untrusted, "override", "exfiltration"), "warning: external content with signs of " +
			"injection: override, exfiltration\n"},
		{"flags in what is trusted", label(subjects.Trusted, "override"), "warning: external content with signs of " +
			"injection: override\n"},
		{"a flag that steers", label(subjects.Untrusted, "\x1b[2J"), "warning: external content with signs of " +
			"injection: \\u001b[2J\n"},
		{"redacted only", label(subjects.Trusted, "redacted"), "text that looked like a credential was removed\n"},
		{"parked", parked, "15 KB of 4 MB shown; the whole result: conclave call --parked 0123\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var talk bytes.Buffer
			ToolWarnings(term.NewStreams(nil, io.Discard, &talk), tt.res, "conclave")
			if talk.String() != tt.want {
				t.Errorf("%q, want %q", talk.String(), tt.want)
			}
		})
	}
}

// TestPullProgress draws at most ten times a second, with the rate.
func TestPullProgress(t *testing.T) {
	t.Parallel()
	master, slave := termtest.Open(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := NewPullProgress(term.NewStreams(nil, io.Discard, slave), "m")
	b.now = func() time.Time { return now }
	layer := func(digest string, completed, total int64) {
		b.Show(subjects.PullProgress{Status: "pulling " + digest, Digest: digest, Total: total, Completed: completed})
	}
	layer("a", 0, 100<<20)
	now = now.Add(50 * time.Millisecond)
	layer("a", 10<<20, 100<<20) // too soon to be drawn
	now = now.Add(1950 * time.Millisecond)
	layer("a", 20<<20, 100<<20)
	now = now.Add(time.Second)
	layer("b", -5, 100)           // makes no sense
	layer("a", 1000<<20, 100<<20) // nor this: there is no more than all
	b.Clear()
	got := termtest.ReadAll(t, master, slave)
	want := []string{
		"m: pulling   0 %  0 B of 100 MB  [--------------------]",
		"m: pulling  20 %  20 MB of 100 MB  [####----------------]  10 MB/s",
		"m: pulling  20 %  20 MB of 100 MB  [####----------------]  6.67 MB/s",
		"",
	}
	if drawn := regexp.MustCompile("\r\x1b\\[K").Split(got, -1)[1:]; strings.Join(drawn, "|") != strings.Join(want,
		"|") {
		t.Errorf("%q, want %q", drawn, want)
	}
}

// A session shows what each question grants below the question, on one sanitized line each.
func TestSessionShowsGrants(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	conv := subjects.Conversation{
		SessionID: "s1",
		Turns: []subjects.Turn{
			{QueryID: "q1", Query: "Write to Anna.", Answer: "Done."},
			{QueryID: "q2", Query: "And now?", Answer: "Noon."},
		},
	}
	grants := map[string][]subjects.Grant{"q1": {{
		Acts: []string{"send", "create"}, To: []string{"Anna"}, Times: 1,
		Clause: "Write to\x1b[2J\nAnna",
	}}, "q3": {{Acts: []string{"spend"}, Times: 2}}}
	Session(&out, conv, conv, grants)
	if got := out.String(); !strings.Contains(got,
		"  Write to Anna.\n  grants send or create, at most 1 time: Write to") || strings.Count(got, "grants ") != 1 ||
		strings.Contains(got, "\x1b") || strings.Contains(got, "spend") || strings.Count(got, "\n") != 9 {
		t.Errorf("printed %q", got)
	}
}

// TestSessionMarksTheWindow: a whole session says where the part begins that the model gets, with the summary of the
// others, and the state of a turn that was not answered in full.
func TestSessionMarksTheWindow(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	whole := subjects.Conversation{SessionID: "s1", Turns: []subjects.Turn{
		{QueryID: "q1", Query: "One?", Answer: "1", State: subjects.StateStopped, Partial: true},
		{QueryID: "q2", Query: "Two?", Answer: "2", State: subjects.StateFailed, Error: "internal"},
		{QueryID: "q3", Query: "Three?", Answer: "3", Partial: true},
	}}
	sent := whole
	sent.Turns, sent.Summary, sent.Summarized = whole.Turns[2:], "They counted.", 2
	Session(&out, whole, sent, nil)
	want := "One?\nassistant stopped\n  1\nuser -\n  Two?\nassistant failed (internal)\n  2\n" +
		"---- the model gets the conversation from here on ----\nsummary of 2 earlier turns\n  They counted.\n" +
		"user -\n  Three?\nassistant answered in part\n  3\n"
	if got := out.String(); !strings.HasSuffix(got, want) {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// The questions of a client are not shown as the user's.
func TestSessionNamesItsClient(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	conv := subjects.Conversation{
		SessionID: subjects.ScopeClientID("phone", "s1"),
		Turns:     []subjects.Turn{{QueryID: "q1", Query: "Write to Anna.", Answer: "Done."}},
	}
	Session(&out, conv, conv, nil)
	Sessions(&out, []client.SessionSummary{
		{ID: conv.SessionID, Turns: 1, Question: "Write to Anna."},
		{ID: "s2", Turns: 1, Question: "And now?"},
	})
	if got := out.String(); !strings.Contains(got, "phone, untrusted") ||
		!strings.Contains(got, "[asked by phone, untrusted] Write") || strings.Contains(got, "user") ||
		strings.Count(got, "untrusted") != 2 {
		t.Errorf("printed %q", got)
	}
}

// TestCapabilitiesShowTheCallTest names how a model calls tools and how many replies of its self-test were right.
func TestCapabilitiesShowTheCallTest(t *testing.T) {
	t.Parallel()
	test := &subjects.CallTest{Passed: 1, Total: 4}
	for want, m := range map[string]subjects.ModelInfo{
		"tools":                         {Tools: true, Calls: subjects.CallNative},
		"tools (test 1/4)":              {Tools: true, Calls: subjects.CallNative, CallTest: test},
		"tools (constrained)":           {Tools: true, Calls: subjects.CallConstrained},
		"tools (constrained, test 1/4)": {Tools: true, Calls: subjects.CallConstrained, CallTest: test},
	} {
		if got := orDash(capabilities(m)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestModelsNameTheirMachine shows where each model is when there is more than one machine, and which one is missing.
func TestModelsNameTheirMachine(t *testing.T) {
	t.Parallel()
	list := subjects.ModelList{
		Models: []subjects.ModelInfo{{Name: "big", Queue: 1}, {Name: "big", Machine: "gpu-box", Queue: 3}},
		Machines: []subjects.ModelMachine{
			{Name: "gpu-box", Connected: true},
			{Name: "old-box", Reason: "the connection is interrupted"},
		},
	}
	for _, several := range []bool{true, false} {
		if !several {
			list.Machines = nil
		}
		var out, err bytes.Buffer
		Models(term.NewStreams(nil, &out, &err), list, "conclave")
		if strings.Contains(out.String(), "MACHINE") != several ||
			strings.Contains(out.String(), "gpu-box") != several ||
			strings.Contains(err.String(), "old-box is not connected: the connection is interrupted") != several {
			t.Errorf("several machines: %t\n%s\n%s", several, out.String(), err.String())
		}
	}
}
