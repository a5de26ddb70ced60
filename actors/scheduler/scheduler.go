// Package scheduler says when the user's schedules are due. It publishes on schedule.due.<schedule>, and reads the
// definitions, which the broker writes for the user, from SCHEDULES. It listens on nothing.
//
// It asks nothing itself: the router reads the question from the definition. The stream SCHEDULED has the last
// occurrence of each schedule and is its only state. An occurrence is published once: it has one message id, and after
// a crash the stream says whether it was stored.
package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/schedule"
	"conclave/subjects"
)

const (
	// interval is the time between two looks at the clock. It is short because the timers of a suspended machine stand
	// still.
	interval = 15 * time.Second
	// lateAfter is the age from which an occurrence is late.
	lateAfter = 2 * time.Minute
)

// Scheduler is the actor.
type Scheduler struct {
	stop context.CancelFunc
	done sync.WaitGroup

	ran      map[string]time.Time // the last occurrence of each schedule, as SCHEDULED has it; owned by the loop
	reported map[string]string    // the last error of each schedule, so that it is logged once
}

// New returns a scheduler.
func New() *Scheduler { return &Scheduler{} }

// Name implements [actor.Actor].
func (s *Scheduler) Name() string { return subjects.Scheduler }

// Routes implements [actor.Actor].
func (s *Scheduler) Routes() []actor.Route { return nil }

// Start implements [actor.Starter]: it looks at the clock until the actor is closed.
func (s *Scheduler) Start(ctx context.Context, out actor.Out) error {
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.done.Go(func() { s.run(ctx, out) })
	return nil
}

// Close implements [actor.Closer].
func (s *Scheduler) Close(context.Context) error {
	if s.stop != nil {
		s.stop()
	}
	s.done.Wait()
	return nil
}

// run publishes what is due, until ctx ends.
func (s *Scheduler) run(ctx context.Context, out actor.Out) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := s.publishDue(ctx, out); err != nil && ctx.Err() == nil {
			out.LogError(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// publishDue publishes each schedule that is due now: the last occurrence that is over, once, however many were missed.
// An invalid definition is logged once and skipped; any other error is returned after all schedules were tried.
func (s *Scheduler) publishDue(ctx context.Context, out actor.Out) error {
	var errs []error
	for seq := uint64(1); ; {
		m, err := actor.ReadStored(ctx, out, subjects.ScheduleDefinition.Stream,
			map[string]any{"seq": seq, "next_by_subj": subjects.ScheduleDefinition.Name})
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("reading the schedules: %w", err))...)
		}
		if m == nil {
			return errors.Join(errs...)
		}
		if m.Seq < seq {
			return errors.Join(append(errs, fmt.Errorf("reading the schedules: sequence %d follows %d", m.Seq,
				seq-1))...)
		}
		seq = m.Seq + 1
		id := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
		if err := s.publishSchedule(ctx, out, id, m.Data); err != nil {
			errs = append(errs, fmt.Errorf("schedule %s: %w", id, err))
		}
	}
}

// publishSchedule publishes the last occurrence of a schedule, unless it was published before.
func (s *Scheduler) publishSchedule(ctx context.Context, out actor.Out, id string, data []byte) error {
	var def subjects.Schedule
	err := json.Unmarshal(data, &def)
	if err == nil {
		err = def.Check()
	}
	if err == nil && (def.Removed || def.Paused) {
		return nil
	}
	var times schedule.Times
	if err == nil {
		times, err = schedule.Parse(def.When, def.Zone)
	}
	if s.reportOnce(out, id, err) {
		return nil
	}
	last, err := s.lastRun(ctx, out, id)
	if err != nil {
		return err
	}
	now := out.Now()
	at, due := times.Last(def.Since, last, now)
	if !due {
		return nil
	}
	topic, err := subjects.ScheduleDue.With(id)
	if err != nil {
		return err
	}
	_, query := subjects.ScheduleSession(id, at)
	if err := actor.EmitOnce(ctx, out, topic, query,
		subjects.ScheduleRun{Occurrence: at.UTC(), Late: now.Sub(at) >= lateAfter}); err != nil {
		delete(s.ran, id) // it may be stored: read it again
		return err
	}
	s.ran[id] = at
	return nil
}

// lastRun returns the last occurrence that was published, the zero time for none.
func (s *Scheduler) lastRun(ctx context.Context, out actor.Out, id string) (time.Time, error) {
	if at, ok := s.ran[id]; ok {
		return at, nil
	}
	topic, err := subjects.ScheduleDue.With(id)
	if err != nil {
		return time.Time{}, err
	}
	m, err := actor.ReadStored(ctx, out, subjects.ScheduleDue.Stream, map[string]any{"last_by_subj": topic.Name})
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the last occurrence: %w", err)
	}
	var run subjects.ScheduleRun
	if m != nil {
		if err := json.Unmarshal(m.Data, &run); err != nil {
			return time.Time{}, fmt.Errorf("reading the last occurrence: %w", err)
		}
	}
	if s.ran == nil {
		s.ran = map[string]time.Time{}
	}
	s.ran[id] = run.Occurrence
	return run.Occurrence, nil
}

// reportOnce logs the error of an invalid definition when it is new. It reports whether there is one.
func (s *Scheduler) reportOnce(out actor.Out, id string, err error) bool {
	if err == nil {
		delete(s.reported, id)
		return false
	}
	if s.reported == nil {
		s.reported = map[string]string{}
	}
	if s.reported[id] != err.Error() {
		s.reported[id] = err.Error()
		out.LogError(fmt.Errorf("schedule %s is invalid and not asked: %w", id, err))
	}
	return true
}
