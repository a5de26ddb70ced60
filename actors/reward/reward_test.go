package reward

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"conclave/subjects"
)

// TestRoutes: it hears answers and feedback, serves its tool, and announces it as discovery shows it.
func TestRoutes(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	var got []string
	for _, r := range w.r.Routes() {
		got = append(got, r.Spec().Subscription())
	}
	if want := []string{
		"from.*.response.generation", "from.*.user.feedback",
		"tool.request.give_feedback",
	}; !slices.Equal(got, want) {
		t.Errorf("it listens on %v", got)
	}
	announced := publishedEvents[subjects.ToolSchema](w, "tool.schema.give_feedback")
	metadata := w.r.Describe()
	var shown subjects.ToolSchema
	if err := json.Unmarshal([]byte(metadata["definition.give_feedback"]), &shown); err != nil || len(metadata) != 1 {
		t.Fatalf("discovery shows %v, %v", metadata, err)
	}
	all := Tools()
	if len(announced) != 1 || len(all) != 1 || announced[0].Name != "give_feedback" ||
		announced[0].Description != shown.Description || string(announced[0].Parameters) != string(shown.Parameters) ||
		shown.Description != all[0].Schema.Description || all[0].Facts.Name != shown.Name ||
		!slices.Contains(subjects.Zones[all[0].Facts.Zone], shown.Name) {
		t.Errorf("announced %+v, shown %+v", announced, shown)
	}
	for _, word := range []string{"own words", "previous answer", "Do not use it to praise"} {
		if !strings.Contains(shown.Description, word) {
			t.Errorf("the text that a model reads lacks %q", word)
		}
	}
	if New().Name() != "reward" || w.r.Name() != subjects.ZoneOf("give_feedback") {
		t.Error("it has another name")
	}
}

// TestAnswersAreStored: which answers can be rewarded, for whom, and which one was the last.
func TestAnswersAreStored(t *testing.T) {
	t.Parallel()
	type told struct {
		from, session, query string
		seq                  uint64
	}
	for _, tt := range []struct {
		name    string
		answers []told
		query   string // of these, the one that is looked at
		who     string // who is rewarded for it; "" = nobody
		last    string // of session s1
	}{
		{"an answer", []told{{"generator", "s1", "q1", 1}}, "q1", "generator", "q1"},
		{"of the committee", []told{{"committee", "s1", "q1", 1}}, "q1", "committee", "q1"},
		{"of the orchestrator", []told{{"orchestrator", "s1", "q1", 1}}, "q1", "orchestrator", "q1"},
		{"two questions", []told{{"generator", "s1", "q1", 1}, {"generator", "s1", "q2", 2}}, "q1", "generator", "q2"},
		{
			"another session",
			[]told{{"generator", "s1", "q1", 1}, {"generator", "s2", "q2", 2}},
			"q2", "generator",
			"q1",
		},
		{"told again", []told{{"generator", "s1", "q1", 1}, {"generator", "s1", "q1", 1}}, "q1", "generator", "q1"},
		{"trick: told again after the next one", []told{
			{"generator", "s1", "q1", 1},
			{"generator", "s1", "q2", 2},
			{"generator", "s1", "q1", 1},
		}, "q1", "generator", "q2"},
		{
			"trick: out of order",
			[]told{{"generator", "s1", "q2", 2}, {"generator", "s1", "q1", 1}},
			"q1", "generator",
			"q2",
		},
		{"trick: respondent B", []told{{subjects.RespondentB, "s1", "q1", 1}}, "q1", "", ""},
		{
			"trick: respondent B first",
			[]told{{subjects.RespondentB, "s1", "q1", 1}, {"generator", "s1", "q1", 2}},
			"q1",
			"generator", "q1",
		},
		{"trick: one that does not answer", []told{{"critic", "s1", "q1", 1}}, "q1", "", ""},
		{
			"trick: somebody answers what was answered",
			[]told{{"generator", "s1", "q1", 1}, {"committee", "s1", "q1", 2}},
			"q1", "generator", "q1",
		},
		{"trick: and after the next one", []told{
			{"generator", "s1", "q1", 1},
			{"generator", "s1", "q2", 2},
			{"committee", "s1", "q1", 3},
		}, "q1", "generator", "q2"},
		{
			"trick: the same question in another session",
			[]told{{"generator", "s1", "q1", 1}, {"generator", "s2", "q1", 2}},
			"q1", "generator", "q1",
		},
		{"no session", []told{{"generator", "", "q1", 1}}, "q1", "generator", ""},
		{"trick: a session that is no token", []told{{"generator", "s1.>", "q1", 1}}, "q1", "generator", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			for _, a := range tt.answers {
				m := response(a.from, a.session, a.query, a.seq)
				if m.Session = ""; a.session == "s1" { // the header was checked by the runtime
					m.Session = "s1"
				}
				if err := w.r.onResponse(t.Context(), m, w.Out()); err != nil {
					t.Fatal(err)
				}
			}
			is := w.storedAnswer(tt.query)
			switch {
			case is == nil && tt.who != "" || is != nil && is.Respondent != tt.who:
				t.Errorf("the book has %+v, want %q", is, tt.who)
			case is != nil && (is.Count != 0 || is.EventID != "" || len(w.rewards()) > 0):
				t.Errorf("it is rewarded before anybody said anything: %+v", is)
			}
			if got := w.lastQuery("s1"); got != tt.last {
				t.Errorf("the last one is %q, want %q", got, tt.last)
			}
		})
	}
	w := newHarness(t)
	for _, query := range []string{"*", "a.b", "a b", strings.Repeat("x", 65)} {
		m := response("generator", "s1", query, 1)
		m.Query = ""
		if err := w.r.onResponse(t.Context(), m, w.Out()); err != nil || w.lastQuery("s1") != "" {
			t.Errorf("%q: %v, the last one is %q", query, err, w.lastQuery("s1"))
		}
	}
}

// TestFailedAnswersCanBeRated: what went wrong can be rated too.
func TestFailedAnswersCanBeRated(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	m := response("generator", "s1", "q1", 1)
	m.Body.Answer, m.Body.Partial, m.Body.Error = "", true, subjects.Faultf(subjects.CodeTimeout, "too slow")
	if err := w.r.onResponse(t.Context(), m, w.Out()); err != nil {
		t.Fatal(err)
	}
	if err := w.deliverFeedback(2, subjects.Feedback{QueryID: "q1", Thumb: -1}); err != nil ||
		w.rewardSummary() != "-1.0/1 " {
		t.Errorf("%q, %v", w.rewardSummary(), err)
	}
}

// TestFailedWriteIsAnError: then nothing is said, and the message comes again.
func TestFailedWriteIsAnError(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.deliverAnswer("s1", "q1", 1)
	w.FailStore = errTest
	if err := w.deliverFeedback(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err == nil || len(w.rewards()) > 0 ||
		len(w.deadLetters()) > 0 {
		t.Errorf("%v, said %v", err, w.Published())
	}
	if err := w.r.onResponse(t.Context(), response("generator", "s1", "q2", 3), w.Out()); err == nil {
		t.Error("an answer was lost")
	}
	w.FailStore = nil
	if err := w.deliverFeedback(2, subjects.Feedback{QueryID: "q1", Thumb: 1}); err != nil ||
		w.rewardSummary() != "+1.0/1 " {
		t.Errorf("%q, %v", w.rewardSummary(), err)
	}
	// What stands there and cannot be read is not written over.
	store := w.Out().Store(bucket)
	if _, err := store.Put(t.Context(), subjects.AnswerKey("q9"), []byte("{"), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.deliverFeedback(4, subjects.Feedback{QueryID: "q9", Thumb: 1}); err == nil || len(w.deadLetters()) > 0 {
		t.Errorf("%v, letters %v", err, w.deadLetters())
	}
}
