package scheduler

import (
	"encoding/json"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestSchedulerOnTheBus: under the real grants it reads the user's definitions and stores what is due, once: after a restart the stream
// says what was stored.
func TestSchedulerOnTheBus(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	user := b.Out("user")
	since := time.Now().Add(-3 * time.Minute).Truncate(time.Minute)
	topic, err := subjects.ScheduleDefinition.With("news")
	if err != nil {
		t.Fatal(err)
	}
	def := subjects.Schedule{When: "every 2m", Zone: "UTC", Query: "what is new", Mode: "assistant", Since: since}
	if err := actor.EmitOnce(t.Context(), user, topic, "d1", def); err != nil {
		t.Fatal(err)
	}
	read := func() (run subjects.ScheduleRun, seq uint64) {
		m, err := actor.ReadStored(t.Context(), user, getDue, map[string]any{"last_by_subj": "schedule.due.news"})
		if err != nil {
			t.Fatal(err)
		}
		if m == nil {
			return run, 0
		}
		if err := json.Unmarshal(m.Data, &run); err != nil {
			t.Fatal(err)
		}
		return run, m.Seq
	}
	first := b.RunActor(New(), actor.Config{})
	var seq uint64
	for deadline := time.Now().Add(time.Minute); seq == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nothing was due")
		}
		_, seq = read()
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	run, seq := read()
	if elapsed := run.Occurrence.Sub(since); elapsed <= 0 || elapsed%(2*time.Minute) != 0 {
		t.Errorf("%+v since %s", run, since)
	}
	s := New() // restarted
	if err := s.publishDue(t.Context(), b.Out("scheduler")); err != nil {
		t.Fatal(err)
	}
	if again, now := read(); now != seq && again.Occurrence.Equal(run.Occurrence) {
		t.Errorf("%+v was stored twice", again)
	}
}
