package client

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/subjects"
)

// scheduleTimeout is the timeout of a change of a schedule: two audit records and a write.
const scheduleTimeout = 30 * time.Second

// Schedules reads all definitions in the order of their last change, also those of removed schedules, whose ids are not
// used again.
func (c *Client) Schedules(ctx context.Context) (ids []string, all map[string]subjects.Schedule, err error) {
	all = map[string]subjects.Schedule{}
	for seq := uint64(1); ; {
		m, err := actor.ReadStored(ctx, c.out, subjects.ScheduleDefinition.Stream,
			map[string]any{"seq": seq, "next_by_subj": subjects.ScheduleDefinition.Name})
		if err != nil || m == nil {
			if err != nil {
				err = fmt.Errorf("reading the schedules: %w", err)
			}
			return ids, all, err
		}
		seq = m.Seq + 1
		id := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
		var s subjects.Schedule
		if err := json.Unmarshal(m.Data, &s); err != nil {
			return nil, nil, fmt.Errorf("schedule %s: %w: %w", id, ErrUnreadable, err)
		}
		ids = append(ids, id)
		all[id] = s
	}
}

// ChangeSchedule adds, pauses, resumes or removes a schedule, and returns its definition after that. The broker records
// the change in the audit log before it stores it.
func (c *Client) ChangeSchedule(ctx context.Context, change subjects.ScheduleChange) (subjects.Schedule, error) {
	return request(ctx, c, scheduleTimeout, subjects.ScheduleChangeService, change)
}

// LastScheduleRun returns the last occurrence of a schedule that was due; the zero value when there was none.
func (c *Client) LastScheduleRun(ctx context.Context, id string) (run subjects.ScheduleRun, err error) {
	topic, err := subjects.ScheduleDue.With(id)
	if err != nil {
		return run, err
	}
	m, err := actor.ReadStored(ctx, c.out, subjects.ScheduleDue.Stream, map[string]any{"last_by_subj": topic.Name})
	if err == nil && m != nil {
		err = json.Unmarshal(m.Data, &run)
	}
	if err != nil {
		return run, fmt.Errorf("reading the last run of schedule %s: %w", id, err)
	}
	return run, nil
}
