package router

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/schedule"
	"conclave/subjects"
)

// clockSkew is how far the scheduler's clock may be ahead.
const clockSkew = time.Minute

// onDue publishes the question of a schedule that is due as a turn in a session of its own. Text, mode and grants are
// those of the user's definition: the scheduler only says when. A schedule that was removed or paused meanwhile is not
// asked. A time that is no occurrence of the definition, or is not yet due, and a definition that cannot be read become
// dead letters. Redelivered, it publishes the same turn, and the respondent answers a query once.
func (r *Router) onDue(ctx context.Context, in actor.Msg[subjects.ScheduleRun], out actor.Out) error {
	if len(in.Tokens) != 1 || subjects.CheckToken(in.Tokens[0]) != nil {
		return subjects.Faultf(subjects.CodeSubject, "invalid schedule subject: %s", in.Subject)
	}
	id, at := in.Tokens[0], in.Body.Occurrence
	session, query := subjects.ScheduleSession(id, at)
	reject := func(reason string) error {
		return writeDeadLetter(ctx, out, "dead-"+query, in.Subject, subjects.CodeMalformed, "schedule "+id+": "+reason)
	}
	def, err := readSchedule(ctx, out, id)
	if err != nil {
		return err
	}
	if def == nil || def.Removed || def.Paused {
		return nil
	}
	if err := def.Check(); err != nil {
		return reject(err.Error())
	}
	times, err := schedule.Parse(def.When, def.Zone)
	switch {
	case err != nil:
		return reject(err.Error())
	case !at.After(def.Since):
		return nil // it was paused and resumed since
	case at.After(out.Now().Add(clockSkew)) || !times.Occurs(def.Since, at):
		return reject(fmt.Sprintf("%s is not one of its times", at.UTC().Format(time.RFC3339)))
	}
	q := subjects.Query{SessionID: session, QueryID: query, Query: def.Query, Schedule: id, Fixed: def.Fixed}
	if in.Body.Late {
		q.Note = fmt.Sprintf("This question of the schedule %s was due at %s and is asked late: the system was not "+
			"running.", id, at.UTC().Format("2006-01-02 15:04 MST"))
	}
	topic, err := map[string]subjects.Topic[subjects.Query]{
		subjects.Generator: subjects.QuerySession, subjects.Committee: subjects.TurnCommittee,
		subjects.Orchestrator: subjects.TurnTask,
	}[subjects.Modes[def.Mode]].With(session)
	if err != nil {
		return reject(err.Error())
	}
	return actor.EmitOnce(ctx, out.WithIDs(session, query), topic, "turn-"+query, q)
}

// readSchedule reads the definition of a schedule, nil when there is none. The server's subject is compared, because
// the selector may not be trusted with a wildcard.
func readSchedule(ctx context.Context, out actor.Out, id string) (*subjects.Schedule, error) {
	topic, err := subjects.ScheduleDefinition.With(id)
	if err != nil {
		return nil, err
	}
	m, err := actor.ReadStored(ctx, out, subjects.ScheduleDefinition.Stream, map[string]any{"last_by_subj": topic.Name})
	if err != nil || m == nil {
		return nil, err
	}
	var def subjects.Schedule
	if err := json.Unmarshal(m.Data, &def); err != nil || m.Subject != topic.Name {
		return &subjects.Schedule{}, nil // Check rejects it
	}
	return &def, nil
}
