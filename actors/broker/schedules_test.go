package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"conclave/actors/broker"
	"conclave/pkg/actor"
	"conclave/pkg/actor/actortest"
	"conclave/pkg/audit"
	"conclave/subjects"
)

// changeSchedule requests a change with a role's key.
func (w *busFixture) changeSchedule(role string, q subjects.ScheduleChange) (subjects.Schedule, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), testTimeout)
	defer cancel()
	return actor.Ask(ctx, w.Out(role), subjects.ScheduleChangeService, q)
}

// storedSchedule reads a definition as the user does, nil for none.
func (w *busFixture) storedSchedule(id string) (s *subjects.Schedule) {
	w.t.Helper()
	m, err := actor.ReadStored(w.t.Context(), w.Out("user"), subjects.ScheduleDefinition.Stream,
		map[string]any{"last_by_subj": "schedule.definition." + id})
	if err == nil && m != nil {
		err = json.Unmarshal(m.Data, &s)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// addedSchedule is the addition of a schedule whose words permit to send and to save.
func addedSchedule(id string) subjects.ScheduleChange {
	return subjects.ScheduleChange{
		ID: id, Action: subjects.ScheduleAdd,
		Schedule: &subjects.Schedule{
			When: "daily 8:00", Zone: "UTC",
			Query: "Save a note 'fish' and send Anna the news", Mode: "assistant",
		},
	}
}

// TestScheduleChangeOnRecord: every change of a schedule has its records: who, what, which schedule, the kinds of acts
// that it permits and a hash of the rest. The grants are those that the broker derives, whatever the request says.
func TestScheduleChangeOnRecord(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	w.startBroker()
	add := addedSchedule("news")
	add.Schedule.Fixed, add.Schedule.Since, add.Schedule.Grants = []string{"forged"}, time.Unix(1, 0),
		[]subjects.Grant{{Acts: []string{"pay"}}}
	for i, q := range []subjects.ScheduleChange{
		add,
		{ID: "news", Action: "pause"},
		{ID: "news", Action: "resume"},
		{ID: "news", Action: "remove"},
	} {
		got, err := w.changeSchedule("user", q)
		if err != nil {
			t.Fatalf("%s: %v", q.Action, err)
		}
		stored := w.storedSchedule("news")
		if stored == nil || stored.Paused != (i == 1) || stored.Removed != (i == 3) || stored.Paused != got.Paused ||
			stored.Removed != got.Removed {
			t.Fatalf("%s: %+v, stored %+v", q.Action, got, stored)
		}
		if !stored.Removed && (len(stored.Fixed) != 2 || slices.Contains(stored.Fixed, "forged") ||
			len(stored.Grants) != 2 || time.Since(stored.Since) > testTimeout+time.Minute ||
			stored.Query != add.Schedule.Query) {
			t.Errorf("%s: stored %+v", q.Action, stored)
		}
	}
	_, recs := w.verified()
	var got, hashes []string
	for _, r := range recs {
		got = append(got, strings.Join([]string{r.AgentID, r.AgentType, r.Action, r.Tool, r.Phase, r.Status, r.Reason},
			" "))
		if r.ParamsHash == "" || strings.Contains(r.Reason, "Anna") {
			t.Errorf("%+v", r)
		}
		if r.Phase == subjects.AuditBefore {
			hashes = append(hashes, r.ParamsHash)
		}
	}
	want := []string{
		"user user schedule.add news before allowed may=create may=send", "user user schedule.add news after ok ",
		"user user schedule.pause news before allowed ", "user user schedule.pause news after ok ",
		"user user schedule.resume news before allowed ", "user user schedule.resume news after ok ",
		"user user schedule.remove news before allowed ", "user user schedule.remove news after ok ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("audit\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if slices.Sort(hashes); len(slices.Compact(hashes)) != 4 {
		t.Errorf("changes with the same hash: %v", hashes)
	}
}

// TestScheduleChangeRejects: what is malformed is stored nowhere and is on record; a name is used once.
func TestScheduleChangeRejects(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	w.startBroker()
	for _, action := range []string{"add", "remove"} {
		q := addedSchedule("gone")
		q.Action = action
		if action != "add" {
			q.Schedule = nil
		}
		if _, err := w.changeSchedule("user", q); err != nil {
			t.Fatal(err)
		}
	}
	with := func(change func(*subjects.ScheduleChange)) subjects.ScheduleChange {
		q := addedSchedule("x")
		change(&q)
		return q
	}
	for name, tt := range map[string]struct {
		q    subjects.ScheduleChange
		code string
	}{
		"a flag as its name": {addedSchedule("-all"), subjects.CodeMalformed},
		"no definition":      {subjects.ScheduleChange{ID: "x", Action: "add"}, subjects.CodeMalformed},
		"unknown action": {with(func(q *subjects.ScheduleChange) {
			q.Action = "edit"
		}), subjects.CodeMalformed},
		"no schedule of that name":  {subjects.ScheduleChange{ID: "x", Action: "resume"}, subjects.CodeMalformed},
		"a removed one is resumed":  {subjects.ScheduleChange{ID: "gone", Action: "resume"}, subjects.CodeMalformed},
		"the name of a removed one": {addedSchedule("gone"), subjects.CodeExists},
		"an empty question": {with(func(q *subjects.ScheduleChange) {
			q.Schedule.Query = " "
		}), subjects.CodeMalformed},
		"no time": {
			with(func(q *subjects.ScheduleChange) { q.Schedule.When = "soon" }),
			subjects.CodeMalformed,
		},
		"trick: a resume with text": {
			with(func(q *subjects.ScheduleChange) { q.ID, q.Action = "gone", "resume" }),
			subjects.CodeMalformed,
		},
		"trick: a wildcard as a name": {with(func(q *subjects.ScheduleChange) { q.ID = "*" }), subjects.CodeMalformed},
		"trick: two tokens as a name": {with(func(q *subjects.ScheduleChange) {
			q.ID = "x.y"
		}), subjects.CodeMalformed},
		"trick: a name that is a text": {
			with(func(q *subjects.ScheduleChange) { q.ID = strings.Repeat("a", 33) }),
			subjects.CodeMalformed,
		},
	} {
		_, before := w.verified()
		if _, err := w.changeSchedule("user", tt.q); actortest.Code(err) != tt.code {
			t.Errorf("%s: %v, want %s", name, err, tt.code)
		}
		if _, after := w.verified(); len(after) == len(before) ||
			after[len(after)-1].Status != subjects.StatusRefused &&
				after[len(after)-1].Status != subjects.StatusFailed {
			t.Errorf("%s: not on record", name)
		}
	}
	if s := w.storedSchedule("x"); s != nil {
		t.Errorf("stored %+v", s)
	}
	if s := w.storedSchedule("gone"); s == nil || !s.Removed {
		t.Errorf("the removed schedule is %+v", s)
	}
}

// stoppedAudit is an audit log that stores nothing.
type stoppedAudit struct{}

func (stoppedAudit) Append(context.Context, subjects.AuditRecord) error {
	return errors.New("not stored")
}
func (stoppedAudit) Close(context.Context) error { return nil }

// TestNoScheduleWithoutRecord: without an acknowledged record no schedule is stored, by nobody: the broker refuses, and
// the server lets no one else write, neither the user nor a client that was added at run time.
func TestNoScheduleWithoutRecord(t *testing.T) {
	t.Parallel()
	w := newUserTools(t)
	w.setPrincipals(subjects.Principal{Name: "phone", Kind: subjects.ClientPrincipal, Added: time.Unix(1, 0).UTC()})
	data, err := json.Marshal(addedSchedule("news").Schedule)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ role, subject string }{
		{"user", "schedule.definition.news"},
		{"gateway", "schedule.definition.news"},
		{"phone", "schedule.definition.news"},
		{"scheduler", "schedule.definition.news"},
		{"gateway", "schedule.change"},
		{"phone", "schedule.change"},
		{"generator", "schedule.change"},
		{"user", "ctl.user.schedule.change"},
	} {
		w.ExpectViolations(1)
		nc := w.Connect(tt.role)
		if err := errors.Join(nc.Publish(tt.subject, data), nc.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	if _, recs := w.verified(); len(recs) > 0 {
		t.Errorf("on record: %+v", recs)
	}

	stopped := newBusFixture(t)
	stopped.Run(stopped.AuditedSpec("broker", func(_ context.Context, a *audit.Writer, h *audit.Hasher) (actor.Actor,
		error,
	) {
		return broker.New(broker.Config{AuditTimeout: testTimeout}, rules(parseTestManifest(t), testChain(t)),
			stoppedAudit{}, h, nil), a.Close(t.Context())
	}), actor.Config{})
	_, err = stopped.changeSchedule("user", addedSchedule("news"))
	if actortest.Code(err) != subjects.CodeNoAudit ||
		!strings.Contains(err.Error(), "the audit did not acknowledge the record, so nothing was run or changed; see "+
			"conclave doctor") {
		t.Errorf("without an audit log: %v", err)
	}
	for _, f := range []*busFixture{w.busFixture, stopped} {
		if s := f.storedSchedule("news"); s != nil {
			t.Errorf("stored %+v", s)
		}
	}
}

// TestConcurrentScheduleChanges: two brokers serve many changes of one schedule at once. One addition is stored, and no
// change is lost.
func TestConcurrentScheduleChanges(t *testing.T) {
	t.Parallel()
	w := newBusFixture(t)
	w.startBroker()
	w.startBroker()
	changeAll := func(q subjects.ScheduleChange, wantErr string) (stored int) {
		var n atomic.Int32
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				switch _, err := w.changeSchedule("user", q); {
				case err == nil:
					n.Add(1)
				case actortest.Code(err) != wantErr:
					t.Errorf("%s: %v", q.Action, err)
				}
			})
		}
		writers.Wait()
		return int(n.Load())
	}
	if n := changeAll(addedSchedule("news"), subjects.CodeExists); n != 1 {
		t.Errorf("%d of 8 additions were stored", n)
	}
	if n := changeAll(subjects.ScheduleChange{ID: "news", Action: "pause"}, ""); n != 8 {
		t.Errorf("%d of 8 changes were stored", n)
	}
	if n := changeAll(subjects.ScheduleChange{ID: "news", Action: "remove"}, subjects.CodeMalformed); n != 1 {
		t.Errorf("%d of 8 removals were stored", n)
	}
}
