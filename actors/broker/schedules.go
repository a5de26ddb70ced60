package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/schedule"
	"conclave/pkg/text"
	"conclave/subjects"
)

// A schedule fixes grants for questions that are asked later. Only the broker may write the stream SCHEDULES, so that
// no definition is stored without a record in the audit log.

// scheduleActions are the audit actions of the changes.
var scheduleActions = map[string]string{
	subjects.ScheduleAdd: subjects.ActionScheduleAdd, subjects.SchedulePause: subjects.ActionSchedulePause,
	subjects.ScheduleResume: subjects.ActionScheduleResume, subjects.ScheduleRemove: subjects.ActionScheduleRemove,
}

// onScheduleChange makes a change of a schedule by the user, on the record, and returns the definition that is stored
// then. The record has the name of the schedule, the kinds of acts that its words permit, and a keyed hash of the
// change, text and grants included. A change that is malformed is recorded as refused.
func (b *Broker) onScheduleChange(ctx context.Context, in actor.Msg[subjects.ScheduleChange],
	out actor.Out,
) (subjects.Schedule, error) {
	q := in.Body
	rec := subjects.AuditRecord{ID: out.NewID(), AgentID: in.From, Action: scheduleActions[q.Action]}
	if rec.Action == "" {
		rec.Action = subjects.ActionScheduleAdd
	}
	fault := checkScheduleChange(in.From, q)
	if fault == nil && q.Schedule != nil {
		q.Schedule, fault = b.newSchedule(*q.Schedule, out.Now())
	}
	if fault != nil {
		b.gate.Refuse(ctx, out, rec, subjects.StatusRefused, fault.Code)
		return subjects.Schedule{}, fault
	}
	asked, err := json.Marshal(q)
	if err != nil {
		return subjects.Schedule{}, fmt.Errorf("encoding the change of a schedule: %w", err)
	}
	rec.Tool, rec.ParamsHash = q.ID, b.hash.Hash(asked)
	if q.Schedule != nil {
		rec.Reason = summarizeGrants(q.Schedule.Grants)
	}
	return actor.Audited(ctx, out, b.gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.Schedule, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
		defer cancel()
		return storeSchedule(ctx, out, p, q)
	})
}

// checkScheduleChange denies accounts other than the user and rejects a malformed change.
func checkScheduleChange(from string, q subjects.ScheduleChange) *subjects.Fault {
	switch {
	case from != "user":
		return subjects.Faultf(subjects.CodeDenied, "only the user may change a schedule")
	case scheduleActions[q.Action] == "":
		return subjects.Faultf(subjects.CodeMalformed, "unknown action; choose add, pause, resume or remove")
	case subjects.CheckToken(q.ID) != nil || len(q.ID) > subjects.MaxScheduleID:
		return subjects.Faultf(subjects.CodeMalformed, "the name of the schedule is not valid: use letters, digits, "+
			"_ and -, at most %d", subjects.MaxScheduleID)
	case q.Action == subjects.ScheduleAdd && subjects.CheckScheduleID(q.ID) != nil: // one that exists can be removed
		return subjects.Faultf(subjects.CodeMalformed, "%v", subjects.CheckScheduleID(q.ID))
	case (q.Action == subjects.ScheduleAdd) != (q.Schedule != nil):
		return subjects.Faultf(subjects.CodeMalformed, "a definition belongs to the action add, and to no other")
	}
	return nil
}

// newSchedule returns the definition of a schedule that is made now, with the grants that its words have now. Of s it
// uses what the user says: times, question and mode.
func (b *Broker) newSchedule(s subjects.Schedule, now time.Time) (*subjects.Schedule, *subjects.Fault) {
	now = now.UTC().Truncate(time.Minute) // schedules count in minutes
	next := &subjects.Schedule{When: s.When, Zone: s.Zone, Query: s.Query, Mode: s.Mode, Made: now, Since: now}
	err := next.Check()
	if err == nil {
		_, err = schedule.Parse(s.When, s.Zone)
	}
	if err != nil {
		return nil, subjects.Faultf(subjects.CodeMalformed, "%v", err)
	}
	for _, g := range policy.DeriveGrants(subjects.UserText(s.Query)) {
		next.Grants, next.Fixed = append(next.Grants, g.Describe()), append(next.Fixed, g.Fingerprint())
	}
	return next, nil
}

// summarizeGrants returns the kinds of acts of grants for the audit log, without the words and the destinations.
func summarizeGrants(grants []subjects.Grant) string {
	words := make([]string, len(grants))
	for i, g := range grants {
		words[i] = "may=" + strings.Join(g.Acts, "|")
	}
	return text.Clip(strings.Join(words, " "), 200)
}

// storeSchedule stores the definition after a change. It fails without a valid permit, where [changeSchedule] fails,
// and after maxWriteAttempts write conflicts.
func storeSchedule(ctx context.Context, out actor.Out, p *actor.Permit, q subjects.ScheduleChange) (s subjects.Schedule,
	err error,
) {
	if err := p.Check(); err != nil {
		return s, err
	}
	for range maxWriteAttempts {
		if s, err = replaceSchedule(ctx, out, q); !errors.Is(err, actor.ErrChanged) {
			break
		}
	}
	if _, isFault := err.(*subjects.Fault); err == nil || isFault {
		return s, err
	}
	out.LogError(fmt.Errorf("storing schedule %s: %w", q.ID, err))
	return s, subjects.Faultf(subjects.CodeUnavailable, "the schedule could not be stored; see conclave doctor, then "+
		"try again")
}

// replaceSchedule reads a definition, changes it and stores it by compare-and-set. A change by another broker meanwhile
// is [actor.ErrChanged].
func replaceSchedule(ctx context.Context, out actor.Out, q subjects.ScheduleChange) (next subjects.Schedule,
	err error,
) {
	topic, err := subjects.ScheduleDefinition.With(q.ID)
	if err != nil {
		return next, err
	}
	m, err := actor.ReadStored(ctx, out, subjects.ScheduleDefinition.Stream, map[string]any{"last_by_subj": topic.Name})
	if err != nil {
		return next, err
	}
	var stored *subjects.Schedule
	var revision uint64
	if m != nil {
		if err := json.Unmarshal(m.Data, &stored); err != nil {
			return next, err
		}
		revision = m.Seq
	}
	if next, err = changeSchedule(stored, q, out.Now()); err != nil {
		return next, err
	}
	return next, actor.EmitRevision(ctx, out, topic, out.NewID(), revision, next)
}

// changeSchedule returns the definition after a change of the stored one, nil for none. It rejects the addition of a
// schedule that exists or was removed, whose sessions have its name, and any other change of one that does not exist.
func changeSchedule(stored *subjects.Schedule, q subjects.ScheduleChange, now time.Time) (next subjects.Schedule,
	err error,
) {
	switch {
	case q.Action == subjects.ScheduleAdd && stored != nil:
		return next, subjects.Faultf(subjects.CodeExists, "there is, or was, a schedule %s; choose another name", q.ID)
	case q.Action == subjects.ScheduleAdd:
		return *q.Schedule, nil
	case stored == nil || stored.Removed:
		return next, subjects.Faultf(subjects.CodeMalformed, "there is no schedule %s; see conclave schedule list",
			q.ID)
	case q.Action == subjects.ScheduleRemove:
		return subjects.Schedule{Made: stored.Made, Removed: true}, nil
	}
	next = *stored
	next.Paused = q.Action == subjects.SchedulePause
	if !next.Paused {
		next.Since = now.UTC().Truncate(time.Minute)
	}
	return next, nil
}
