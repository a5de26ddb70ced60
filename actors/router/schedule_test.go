package router

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

var scheduled = time.Date(2026, 11, 13, 8, 0, 0, 0, time.UTC)

// TestDueBecomesTurn: text, mode and grants of the turn are those of the definition. What the scheduler could misuse is
// refused: times that are no occurrence, and schedules that are paused, removed or unknown.
func TestDueBecomesTurn(t *testing.T) {
	t.Parallel()
	good := subjects.Schedule{
		When: "daily 8:00", Zone: "UTC", Query: "what is new", Mode: "assistant",
		Fixed: []string{"f1"}, Since: scheduled.Add(-time.Hour),
	}
	with := func(change func(*subjects.Schedule)) any {
		s := good
		change(&s)
		return s
	}
	for _, tt := range []struct {
		name string
		def  any // nil = none
		run  subjects.ScheduleRun
		now  time.Time
		want string // subject of what is published, "" = nothing
	}{
		{
			"due", good,
			subjects.ScheduleRun{Occurrence: scheduled},
			scheduled,
			"query.session.schedule_news_20261113T0800Z",
		},
		{
			"late", good,
			subjects.ScheduleRun{Occurrence: scheduled, Late: true},
			scheduled.Add(5 * time.Hour),
			"query.session.schedule_news_20261113T0800Z",
		},
		{
			"a task", with(func(s *subjects.Schedule) { s.Mode = "task" }),
			subjects.ScheduleRun{Occurrence: scheduled},
			scheduled, "turn.orchestrator.schedule_news_20261113T0800Z",
		},
		{"for the committee", with(func(s *subjects.Schedule) {
			s.Mode = "committee"
		}), subjects.ScheduleRun{Occurrence: scheduled}, scheduled, "turn.committee.schedule_news_20261113T0800Z"},
		{
			"paused", with(func(s *subjects.Schedule) { s.Paused = true }),
			subjects.ScheduleRun{Occurrence: scheduled},
			scheduled, "",
		},
		{
			"removed", with(func(s *subjects.Schedule) { s.Removed = true }),
			subjects.ScheduleRun{Occurrence: scheduled},
			scheduled, "",
		},
		{"unknown", nil, subjects.ScheduleRun{Occurrence: scheduled}, scheduled, ""},
		{"resumed after it", with(func(s *subjects.Schedule) {
			s.Since = scheduled
		}), subjects.ScheduleRun{Occurrence: scheduled}, scheduled, ""},
		{
			"trick: another time", good,
			subjects.ScheduleRun{Occurrence: scheduled.Add(time.Minute)},
			scheduled.Add(time.Hour), "dead.router",
		},
		{
			"trick: tomorrow's", good,
			subjects.ScheduleRun{Occurrence: scheduled.Add(24 * time.Hour)},
			scheduled,
			"dead.router",
		},
		{"trick: no time", good, subjects.ScheduleRun{}, scheduled, ""},
		{
			"no question", with(func(s *subjects.Schedule) { s.Query = " " }),
			subjects.ScheduleRun{Occurrence: scheduled},
			scheduled, "dead.router",
		},
		{"unknown mode", with(func(s *subjects.Schedule) {
			s.Mode = "god"
		}), subjects.ScheduleRun{Occurrence: scheduled}, scheduled, "dead.router"},
		{"unreadable times", with(func(s *subjects.Schedule) {
			s.When = "soon"
		}), subjects.ScheduleRun{Occurrence: scheduled}, scheduled, "dead.router"},
		{"no object", "text", subjects.ScheduleRun{Occurrence: scheduled}, scheduled, "dead.router"},
	} {
		rec := &actortest.Recorder{Time: tt.now, Reply: func(subject string, body []byte) (any, error) {
			if subject != actor.StoredSubject(subjects.ScheduleDefinition.Stream) ||
				string(body) != `{"last_by_subj":"schedule.definition.news"}` {
				t.Errorf("%s: requested %s %s", tt.name, subject, body)
			}
			if tt.def == nil {
				return map[string]any{"error": map[string]any{"code": 404}}, nil
			}
			data, _ := json.Marshal(tt.def)
			return map[string]any{"message": map[string]any{
				"subject": "schedule.definition.news", "seq": 1,
				"data": data,
			}}, nil
		}}
		in := actor.Msg[subjects.ScheduleRun]{Subject: "schedule.due.news", Tokens: []string{"news"}, Body: tt.run}
		for range 2 { // redelivered: the same turn
			if err := New().onDue(t.Context(), in, rec.Out()); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		var got []string
		for _, p := range rec.Published() {
			got = append(got, p.Subject)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: published %q, want %q", tt.name, got, tt.want)
			continue
		}
		if !strings.Contains(tt.want, "schedule_news") {
			continue
		}
		var q subjects.Query
		if err := json.Unmarshal([]byte(rec.Published()[0].Body), &q); err != nil {
			t.Fatal(err)
		}
		if q.Query != "what is new" || q.Schedule != "news" || !slices.Equal(q.Fixed, []string{"f1"}) ||
			(q.Note != "") != tt.run.Late {
			t.Errorf("%s: %+v", tt.name, q)
		}
		if id, ok := subjects.ScheduleOf(q.SessionID); !ok || id != "news" {
			t.Errorf("%s: the session %s is of %q", tt.name, q.SessionID, id)
		}
	}
}

// TestQuestionCannotClaimSchedule: only the router says that a schedule asks.
func TestQuestionCannotClaimSchedule(t *testing.T) {
	t.Parallel()
	rec := &actortest.Recorder{}
	routeQuery(t, rec,
		actor.Msg[subjects.Query]{Body: subjects.Query{Query: "why", Schedule: "news", Fixed: []string{"f1"}}})
	if q, _ := publishedTurn(t, rec); q.Schedule != "" || q.Fixed != nil {
		t.Errorf("%+v", q)
	}
}

// TestDueOnTheBus: under the real grants the broker stores the definition, the scheduler says when, and the respondent
// gets the user's words. The scheduler cannot define or ask.
func TestDueOnTheBus(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	since := time.Now().Add(-90 * time.Second).Truncate(time.Second)
	def, err := subjects.ScheduleDefinition.With("news")
	if err != nil {
		t.Fatal(err)
	}
	due, err := subjects.ScheduleDue.With("news")
	if err != nil {
		t.Fatal(err)
	}
	body := subjects.Schedule{When: "every 1m", Zone: "UTC", Query: "what is new", Mode: "assistant", Since: since}
	if err := actor.EmitOnce(t.Context(), b.Out("broker"), def, "d1", body); err != nil {
		t.Fatal(err)
	}
	if err := actor.EmitOnce(t.Context(), b.Out("scheduler"), due, "r1",
		subjects.ScheduleRun{Occurrence: since.Add(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	l := listener{make(chan actor.Msg[subjects.Query], 64)}
	b.RunActor(l, actor.Config{})
	b.RunActor(New(), actor.Config{})
	select {
	case in := <-l.heard:
		if in.Body.Query != "what is new" || in.Body.Schedule != "news" {
			t.Errorf("%+v", in.Body)
		}
	case <-time.After(timeout):
		t.Fatal("the question did not come")
	}
}
