package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/subjects"
)

// fixture is a scheduler over two streams in memory: definitions, and due as the stream of occurrences.
type fixture struct {
	rec   actortest.Recorder
	defs  []definition
	lost  bool // the next publication is stored, and its acknowledgement is lost
	s     *Scheduler
	seen  int
	store map[string]subjects.ScheduleRun
}

type definition struct {
	id   string
	body any
}

var began = time.Date(2026, 11, 13, 7, 0, 0, 0, time.UTC)

func newFixture(defs ...definition) *fixture {
	f := &fixture{defs: defs, s: New(), store: map[string]subjects.ScheduleRun{}}
	f.rec.Time = began
	f.rec.Reply = func(subject string, body []byte) (any, error) {
		var q struct {
			Seq  int    `json:"seq"`
			Last string `json:"last_by_subj"`
		}
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		none := map[string]any{"error": map[string]any{"code": 404}}
		switch subject {
		case actor.StoredSubject(subjects.ScheduleDefinition.Stream):
			if q.Seq > len(f.defs) {
				return none, nil
			}
			d := f.defs[q.Seq-1]
			data, _ := json.Marshal(d.body)
			return map[string]any{"message": map[string]any{
				"subject": "schedule.definition." + d.id, "seq": q.Seq,
				"data": data,
			}}, nil
		case actor.StoredSubject(subjects.ScheduleDue.Stream):
			run, ok := f.store[strings.TrimPrefix(q.Last, "schedule.due.")]
			if !ok {
				return none, nil
			}
			data, _ := json.Marshal(run)
			return map[string]any{"message": map[string]any{"subject": q.Last, "seq": 1, "data": data}}, nil
		}
		return nil, fmt.Errorf("unexpected request %s", subject)
	}
	f.rec.FailPublish = func(subject string) error {
		if f.lost {
			return errors.New("the acknowledgement is lost")
		}
		return nil
	}
	return f
}

// tick looks at the clock at a time, and returns what was published, as "id time[ late]".
func (f *fixture) tick(t testing.TB, now time.Time) (out []string, err error) {
	t.Helper()
	f.rec.Time = now
	err = f.s.publishDue(t.Context(), f.rec.Out())
	all := f.rec.Published()
	for _, p := range all[f.seen:] {
		var run subjects.ScheduleRun
		if err := json.Unmarshal([]byte(p.Body), &run); err != nil {
			t.Fatal(err)
		}
		id := strings.TrimPrefix(p.Subject, "schedule.due.")
		f.store[id] = run
		text := id + " " + run.Occurrence.Format("02 15:04")
		if run.Late {
			text += " late"
		}
		if p.ID == "" {
			t.Errorf("%s has no message id", text)
		}
		out = append(out, text)
	}
	f.seen = len(all)
	return out, err
}

func daily(change ...func(*subjects.Schedule)) subjects.Schedule {
	s := subjects.Schedule{
		When: "daily 8:00", Zone: "UTC", Query: "what is new", Mode: "assistant", Made: began,
		Since: began,
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

// TestDue: each occurrence is published once, at its time; after a downtime only the last one, marked as late; never
// one from before the schedule began or was resumed.
func TestDue(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	f := newFixture(
		definition{"news", daily()},
		definition{"off", daily(func(s *subjects.Schedule) { s.Paused = true })},
		definition{"gone", daily(func(s *subjects.Schedule) { s.Removed = true })},
		definition{"odd", daily(func(s *subjects.Schedule) { s.When = "soon" })},
		definition{"broken", "no object"},
		definition{"once", daily(func(s *subjects.Schedule) { s.When = "2026-11-14 09:00" })},
	)
	for _, tt := range []struct {
		name    string
		now     time.Time
		restart bool
		want    []string
	}{
		{"before", began.Add(time.Minute), false, nil},
		{"at the time", began.Add(time.Hour + 3*time.Second), false, []string{"news 13 08:00"}},
		{"the same minute", began.Add(time.Hour + 20*time.Second), false, nil},
		{"after a restart", began.Add(time.Hour + 30*time.Second), true, nil},
		{"the next day", began.Add(day + time.Hour), false, []string{"news 14 08:00"}},
		{
			"after a downtime of days", began.Add(5*day + 2*time.Hour), true,
			[]string{"news 18 08:00 late", "once 14 09:00 late"},
		},
		{"once is over", began.Add(5*day + 3*time.Hour), true, nil},
	} {
		if tt.restart {
			f.s = New()
		}
		got, err := f.tick(t, tt.now)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, %v, want %q", tt.name, got, err, tt.want)
		}
	}
	if n := len(f.rec.Logged()); n != 2*4 { // once for each of the two in each process
		t.Errorf("%d log entries: %v", n, f.rec.Logged())
	}
}

// TestResumedSchedule: occurrences of the time in which it was paused are not made up.
func TestResumedSchedule(t *testing.T) {
	t.Parallel()
	f := newFixture(definition{"news", daily(func(s *subjects.Schedule) { s.Since = began.Add(49 * time.Hour) })})
	if got, err := f.tick(t, began.Add(50*time.Hour)); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := f.tick(t, began.Add(73*time.Hour)); err != nil || !slices.Equal(got, []string{"news 16 08:00"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestLostAcknowledgement: after an error the stream decides whether the occurrence was stored.
func TestLostAcknowledgement(t *testing.T) {
	t.Parallel()
	f := newFixture(definition{"news", daily()})
	f.lost = true
	if _, err := f.tick(t, began.Add(time.Hour)); err == nil {
		t.Fatal("no error")
	}
	f.lost = false
	f.store["news"] = subjects.ScheduleRun{Occurrence: began.Add(time.Hour)} // it was stored
	if got, err := f.tick(t, began.Add(time.Hour+time.Second)); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
}
