package scheduler

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/bus/bustest"
	"conclave/subjects"
)

// TestSchedulerOnTheBus: under the real grants it reads the definitions and stores what is due, once: after a restart
// the stream says what was stored.
func TestSchedulerOnTheBus(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t)
	user, broker := b.Out("user"), b.Out("broker")
	since := time.Now().Add(-3 * time.Minute).Truncate(time.Minute)
	topic, err := subjects.ScheduleDefinition.With("news")
	if err != nil {
		t.Fatal(err)
	}
	def := subjects.Schedule{When: "every 2m", Zone: "UTC", Query: "what is new", Mode: "assistant", Since: since}
	if err := actor.EmitOnce(t.Context(), broker, topic, "d1", def); err != nil {
		t.Fatal(err)
	}
	readRun := func(id string) (run subjects.ScheduleRun, seq uint64) {
		t.Helper()
		m, err := actor.ReadStored(t.Context(), user, subjects.ScheduleDue.Stream,
			map[string]any{"last_by_subj": "schedule.due." + id})
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
		_, seq = readRun("news")
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	run, seq := readRun("news")
	if elapsed := run.Occurrence.Sub(since); elapsed <= 0 || elapsed%(2*time.Minute) != 0 {
		t.Errorf("%+v since %s", run, since)
	}
	// The same occurrence of another schedule under another message id: only the stream says that it was stored.
	other, err := subjects.ScheduleDefinition.With("other")
	if err != nil {
		t.Fatal(err)
	}
	otherDue, err := subjects.ScheduleDue.With("other")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(actor.EmitOnce(t.Context(), broker, other, "d2", def),
		actor.EmitOnce(t.Context(), b.Out("scheduler"), otherDue, "o1", run)); err != nil {
		t.Fatal(err)
	}
	_, otherSeq := readRun("other")
	s := New() // restarted
	if err := s.publishDue(t.Context(), b.Out("scheduler")); err != nil {
		t.Fatal(err)
	}
	for id, was := range map[string]uint64{"news": seq, "other": otherSeq} {
		if again, now := readRun(id); now != was && again.Occurrence.Equal(run.Occurrence) {
			t.Errorf("%s: %+v was stored twice", id, again)
		}
	}
}
