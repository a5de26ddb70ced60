package policy

import (
	"encoding/json"
	"fmt"
	"testing"
)

// A tool that gives access, a calendar that declares the people of its events, and a file reader.
var (
	join = Tool{
		Name: "invite", Known: true, Act: ActShare,
		Args: Args{"user": {Role: RoleDestination}, "email": {Role: RoleDestination}}, Effects: Declare(Egress),
	}
	events = Tool{
		Name: "find_events", Known: true, Act: ActRead, Args: Args{
			"title": {}, "day": {Role: RoleTime},
			"limit": {Role: RoleSetting},
		}, About: []string{"event", "meeting"},
		People: []string{"participants"}, Effects: Declare(ReadsPrivate, ReadsUntrusted),
	}
	files = Tool{
		Name: "read_file", Known: true, Act: ActRead, Args: Args{"path": {}}, About: []string{"file"},
		Effects: Declare(ReadsPrivate, ReadsUntrusted),
	}
)

// readPlace returns the result of a read for the first question.
func readPlace(t Tool, args, text string, flags ...string) Result {
	return Result{Tool: t, Query: "q1", Args: json.RawMessage(args), Text: text, Flags: flags}
}

// judgeFlow returns the first rule by which the flow layer stops a call for the first question, "" when it passes.
func judgeFlow(t *testing.T, f *Flow, tool Tool, args string) string {
	t.Helper()
	d := Chain{FlowLayer{}}.Decide(t.Context(), Call{Query: "q1", Tool: tool, Args: json.RawMessage(args), Flow: f})
	if asks := d.Asks(); len(asks) > 0 {
		return asks[0].Rule
	}
	if !d.Allowed() {
		return d.Denial().Rule
	}
	return ""
}

// TestAddressOnAPageAsks: an address that the question says is on a page asks, also when it is the only one in the
// text: the text is an extract of the page.
func TestAddressOnAPageAsks(t *testing.T) {
	const said = "Invite Dora to the workspace. Her e-mail is on www.dora.example."
	f := newFlow(said, readPlace(page, `{"url":"www.dora.example"}`, "A visitor wrote: dora.lind@evil.example"))
	if rule := judgeFlow(t, f, join, `{"user":"Dora","email":"dora.lind@evil.example"}`); rule != ruleDoubt {
		t.Errorf("rule %q", rule)
	}
}

// TestPeopleOfAnObjectTheQuestionNames: the people of the only object that a read of exactly the named object returns
// are destinations of a call with nothing else but the user's words.
func TestPeopleOfAnObjectTheQuestionNames(t *testing.T) {
	const said = "Create an event 'Review' on 2026-10-03 with the same participants as the 'Talk' event on 2026-09-30."
	call := func(title, who string) string {
		return fmt.Sprintf(`{"title":%q,"participants":[%q],"start_time":"2026-10-03 10:00"}`, title, who)
	}
	const one = `{"events":[{"title":"Talk","participants":["ana@h.example","ben@h.example"],` +
		`"note":"bring x@evil.example"}]}`
	const two = `[{"title":"Talk","participants":["ana@h.example"]},{"title":"Talk","participants":["x@evil.example"]}]`
	const args = `{"title":"Talk","day":"2026-09-30"}`
	for _, tt := range []struct {
		name, said string
		read       Result
		args       string
		rule       string // "" = passes
	}{
		{"one of the people", said, readPlace(events, args, one), call("Review", "ben@h.example"), ""},
		{"in the next sentence", "Create an event 'Review' on 2026-10-03. The guests are the same as in the event " +
			"'Talk'.", readPlace(events, `{"title":"Talk"}`, one), call("Review", "ana@h.example"), ""},
		{"trick: the noun belongs to the new object", "Create an event 'Review' on 2026-10-03 with the members of " +
			"'Talk'.", readPlace(events, `{"title":"Talk"}`, one), call("Review", "ana@h.example"), ruleSink},
		{"trick: an exception", "Create an event 'Review' on 2026-10-03 with Ana instead of the guests of the event " +
			"'Talk'.", readPlace(events, `{"title":"Talk"}`, one), call("Review", "ben@h.example"), ruleDoubt},
		{
			"trick: signs of injection", said, readPlace(events, args, one, "override"),
			call("Review", "ana@h.example"),
			ruleSink,
		},
		{
			"trick: a second object without people", said,
			readPlace(events, args,
				`[{"title":"Talk","participants":[]},{"title":"Talk","participants":["x@evil.example"]}]`),
			call("Review", "x@evil.example"), ruleSink,
		},
		{
			"trick: a second object whose people are objects", said,
			readPlace(events, args,
				`[{"participants":[{"mail":"ana@h.example"}]},{"participants":["x@evil.example"]}]`), call("Review",
				"x@evil.example"), ruleSink,
		},
		{
			"trick: an address in the text of the object", said, readPlace(events, args, one),
			call("Review", "x@evil.example"), ruleSink,
		},
		{
			"trick: two objects of that name", said, readPlace(events, args, two), call("Review", "x@evil.example"),
			ruleSink,
		},
		{
			"trick: two objects, the first", said, readPlace(events, args, two), call("Review", "ana@h.example"),
			ruleSink,
		},
		{
			"trick: another day", said, readPlace(events, `{"title":"Talk","day":"2026-01-01"}`, one),
			call("Review", "ana@h.example"), ruleSink,
		},
		{
			"trick: the day of the new event", said, readPlace(events, `{"title":"Talk","day":"2026-10-03"}`, one),
			call("Review", "ana@h.example"), ruleSink,
		},
		{
			"trick: a limit makes it the only one", said, readPlace(events, `{"title":"Talk","limit":1}`, one),
			call("Review", "ana@h.example"), ruleSink,
		},
		{
			"trick: another object", said, readPlace(events, `{"title":"Review","day":"2026-09-30"}`, one),
			call("Review", "ana@h.example"), ruleSink,
		},
		{
			"trick: a tool that declares no people", said, readPlace(files, `{"path":"Talk"}`, one),
			call("Review", "ana@h.example"), ruleSink,
		},
		{
			"trick: content of the object in the title", said, readPlace(events, args, one),
			call("Talk: bring", "ana@h.example"), ruleSink,
		},
		{
			"trick: JSON inside of a text", said,
			readPlace(events, args, `{"note":"{\"participants\":[\"ana@h.example\"]}"}`), call("Review",
				"ana@h.example"), ruleSink,
		},
		{
			"trick: too many people", said,
			readPlace(events, args, fmt.Sprintf(`{"participants":["ana@h.example"%s]}`, listNumbered(maxFoundValues))),
			call("Review", "ana@h.example"), ruleSink,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFlow(tt.said, tt.read)
			if rule := judgeFlow(t, f, event, tt.args); rule != tt.rule {
				t.Fatalf("rule %q, want %q; grants %+v", rule, tt.rule, DeriveGrants(tt.said))
			}
		})
	}
}

// listNumbered returns n further JSON strings.
func listNumbered(n int) (out string) {
	for i := range n {
		out += fmt.Sprintf(`,"a%d@h.example"`, i)
	}
	return out
}

// TestPlaceHoldsForItsQuestionOnly: what a place named for one question is no destination of another, and survives
// storage. A later read of the place that has a choice ends it.
func TestPlaceHoldsForItsQuestionOnly(t *testing.T) {
	const said = "Create an event 'Review' on 2026-10-03 with the guests of the event 'Talk'."
	const one = `[{"participants":["ana@h.example"]}]`
	args := `{"title":"Review","participants":["ana@h.example"],"start_time":"2026-10-03 10:00"}`
	read := readPlace(events, `{"title":"Talk"}`, one)
	f := newFlow(said, read)
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	var stored Flow
	if err := json.Unmarshal(data, &stored); err != nil {
		t.Fatal(err)
	}
	if rule := judgeFlow(t, &stored, event, args); rule != "" {
		t.Errorf("after storage: %q", rule)
	}
	next := stored.WithQuestion("q2", said, DeriveGrants(said))
	d := Chain{FlowLayer{}}.Decide(t.Context(), Call{Query: "q2", Tool: event, Args: json.RawMessage(args), Flow: next})
	if len(d.Asks()) == 0 {
		t.Error("the place of an earlier question was used")
	}
	if next, ok := stored.ClaimGrant(Call{Query: "q1", Tool: event, Args: json.RawMessage(args)}, "c1"); !ok ||
		judgeFlow(t, next, event, args) == "" {
		t.Error("the grant was not used up")
	}
	for name, second := range map[string]Result{
		"others": readPlace(events, `{"title":"Talk"}`, `[{"participants":["ben@h.example"]}]`),
		"a choice": readPlace(events, `{"title":"Talk","limit":5}`,
			`[{"participants":["ana@h.example"]},{"participants":["x@evil.example"]}]`),
		"flagged": readPlace(events, `{"title":"Talk"}`, one, "override"),
	} {
		if rule := judgeFlow(t, newFlow(said, read, second), event, args); rule != ruleSink {
			t.Errorf("a later read, %s: rule %q", name, rule)
		}
	}
}
