package broker

import (
	"encoding/json"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

// TestScheduledGrantsAreFixed: of the grants that the words of a scheduled question have, those hold that were stored
// with its definition, and no others. A turn that differs from the definition is not the user's.
func TestScheduledGrantsAreFixed(t *testing.T) {
	t.Parallel()
	const words = "Save a note 'fish' and send Anna the news"
	derived := policy.DeriveGrants(words)
	if len(derived) != 2 {
		t.Fatalf("%+v", derived)
	}
	save, other := derived[0].Fingerprint(), policy.DeriveGrants("Send Bob the news")[0].Fingerprint()
	daily, _ := subjects.ScheduleSession("daily", time.Unix(0, 0))
	weekly, _ := subjects.ScheduleSession("weekly", time.Unix(0, 0))
	for name, tt := range map[string]struct {
		session, schedule string
		fixed             []string
		change            func(*subjects.Schedule) // of the definition
		want              int
	}{
		"a question":                            {"s1", "", nil, nil, 2},
		"all fixed":                             {daily, "daily", []string{save, derived[1].Fingerprint()}, nil, 2},
		"one fixed":                             {daily, "daily", []string{save}, nil, 1},
		"none fixed":                            {daily, "daily", nil, nil, 0},
		"trick: a question with a list":         {"s1", "", []string{save}, nil, 0},
		"trick: a grant that the words lack":    {daily, "daily", []string{other}, nil, 0},
		"trick: one that the words have, twice": {daily, "daily", []string{save, save, other}, nil, 1},
		"trick: an empty fingerprint":           {daily, "daily", []string{""}, nil, 0},
		"trick: in a session of the user":       {"s1", "daily", []string{save}, nil, 0},
		"trick: in that of another schedule":    {weekly, "daily", []string{save}, nil, 0},
		"trick: no definition":                  {weekly, "weekly", []string{save}, nil, 0},
		"trick: other words": {daily, "daily", []string{save}, func(s *subjects.Schedule) {
			s.Query = "What is new?"
		}, 0},
		"trick: more grants": {daily, "daily", []string{save}, func(s *subjects.Schedule) { s.Fixed = nil }, 0},
		"trick: for another": {daily, "daily", []string{save}, func(s *subjects.Schedule) { s.Mode = "task" }, 0},
	} {
		h := newSessionFixture(t)
		h.addTurn(tt.session, "q1", words)
		h.turns[0].Schedule, h.turns[0].Fixed = tt.schedule, tt.fixed
		def := subjects.Schedule{Query: words, Mode: "assistant", Fixed: tt.fixed}
		if tt.change != nil {
			tt.change(&def)
		}
		data, err := json.Marshal(def)
		if err != nil {
			t.Fatal(err)
		}
		h.rec.Reply = func(subject string, body []byte) (any, error) {
			switch {
			case subject != actor.StoredSubject(subjects.ScheduleDefinition.Stream):
				return h.answerAll(subject, body)
			case string(body) != `{"last_by_subj":"schedule.definition.daily"}`:
				return map[string]any{"error": map[string]any{"code": 404, "description": "no message found"}}, nil
			}
			return map[string]any{"message": map[string]any{
				"subject": "schedule.definition.daily", "seq": 1,
				"data": data,
			}}, nil
		}
		f, err := h.loadFlow(t.Context(), h.rec.Out(), subjects.Generator, tt.session, "q1", false)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Grants("q1"); len(got) != tt.want {
			t.Errorf("%s: %d grants, want %d: %+v", name, len(got), tt.want, got)
		}
	}
}
