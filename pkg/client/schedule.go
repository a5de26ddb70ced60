package client

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// Subjects of the JetStream API by which the user reads schedules.
var (
	getSchedule = subjects.Spec{Name: coreAPI + ".STREAM.MSG.GET." + subjects.ScheduleDefinition.Stream}
	getDue      = subjects.Spec{Name: coreAPI + ".STREAM.MSG.GET." + subjects.ScheduleDue.Stream}
)

// StoredSchedule is the definition of a schedule as it is stored.
type StoredSchedule struct {
	subjects.Schedule
	Revision uint64 // for [Client.StoreSchedule]
}

// Schedules reads all definitions in the order of their last change, also those of removed schedules, whose ids are not used again.
func (c *Client) Schedules(ctx context.Context) (ids []string, all map[string]StoredSchedule, err error) {
	all = map[string]StoredSchedule{}
	for seq := uint64(1); ; {
		m, err := actor.ReadStored(ctx, c.out, getSchedule, map[string]any{"seq": seq, "next_by_subj": subjects.ScheduleDefinition.Name})
		if err != nil || m == nil {
			if err != nil {
				err = fmt.Errorf("reading the schedules: %w", err)
			}
			return ids, all, err
		}
		seq = m.Seq + 1
		id := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
		s := StoredSchedule{Revision: m.Seq}
		if err := json.Unmarshal(m.Data, &s.Schedule); err != nil {
			return nil, nil, fmt.Errorf("schedule %s: %w: %w", id, ErrUnreadable, err)
		}
		ids = append(ids, id)
		all[id] = s
	}
}

// StoreSchedule stores the definition of a schedule in place of the one with that revision, which is 0 for a new schedule. If another one is
// stored by now, the error is [actor.ErrChanged].
func (c *Client) StoreSchedule(ctx context.Context, id string, revision uint64, s subjects.Schedule) error {
	topic, err := subjects.ScheduleDefinition.With(id)
	if err != nil {
		return err
	}
	err = c.publishStored(ctx, func(ctx context.Context, msg string) error {
		return actor.EmitRevision(ctx, c.out, topic, msg, revision, s)
	})
	if err != nil {
		return fmt.Errorf("storing the schedule: %w", err)
	}
	return nil
}

// LastScheduleRun returns the last occurrence of a schedule that was due; the zero value when there was none.
func (c *Client) LastScheduleRun(ctx context.Context, id string) (run subjects.ScheduleRun, err error) {
	topic, err := subjects.ScheduleDue.With(id)
	if err != nil {
		return run, err
	}
	m, err := actor.ReadStored(ctx, c.out, getDue, map[string]any{"last_by_subj": topic.Name})
	if err == nil && m != nil {
		err = json.Unmarshal(m.Data, &run)
	}
	if err != nil {
		return run, fmt.Errorf("reading the last run of schedule %s: %w", id, err)
	}
	return run, nil
}
