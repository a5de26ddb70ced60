package orchestrator

import (
	"context"
	"fmt"
	"slices"

	"conclave/subjects"
)

// subtaskEnd is the end of the work on a subtask. An error means that it has to be resumed.
type subtaskEnd struct {
	id  string
	err error
}

// runPlan runs the subtasks of the plan until each is done, failed or skipped: at most Parallel at once, each as soon
// as the subtasks that it depends on are done. It returns when nothing runs any more. The end of ctx and an error that
// prevents checkpoints are errors; the subtasks then resume from their checkpoints.
func (t *task) runPlan(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ends := make(chan subtaskEnd)
	running := map[string]bool{}
	var failure error
	for {
		if failure == nil {
			failure = t.skipBlocked(ctx)
		}
		for failure == nil && ctx.Err() == nil && len(running) < t.o.cfg.Parallel {
			s, ok := t.nextReady(running)
			if !ok {
				break
			}
			running[s.ID] = true
			go func() { ends <- subtaskEnd{s.ID, t.runSubtaskSafely(ctx, s)} }()
		}
		if len(running) == 0 {
			break
		}
		end := <-ends
		delete(running, end.id)
		if end.err != nil && failure == nil {
			failure = end.err
			cancel(end.err)
		}
	}
	if failure == nil {
		failure = ctx.Err()
	}
	return failure
}

// runSubtaskSafely is runSubtask for its own goroutine: a panic is an error.
func (t *task) runSubtaskSafely(ctx context.Context, s subjects.Subtask) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("working on subtask %s: panic: %v", s.ID, p)
		}
	}()
	return t.runSubtask(ctx, s)
}

// hasEnded reports whether a subtask will not change any more.
func hasEnded(s subjects.Subtask) bool {
	return slices.Contains([]string{subjects.SubtaskDone, subjects.SubtaskFailed, subjects.SubtaskSkipped}, s.State)
}

// nextReady is the first subtask of the plan that is not running and whose dependencies are done. Subtasks that an
// earlier attempt began are ready, too.
func (t *task) nextReady(running map[string]bool) (subjects.Subtask, bool) {
	all := t.snapshot().Subtasks
	states := statesOf(all)
	for _, s := range all {
		if !hasEnded(s) && !running[s.ID] && !slices.ContainsFunc(s.DependsOn, func(d string) bool {
			return states[d] != subjects.SubtaskDone
		}) {
			return s, true
		}
	}
	return subjects.Subtask{}, false
}

// skipBlocked marks every subtask whose dependency failed or was skipped as skipped.
func (t *task) skipBlocked(ctx context.Context) error {
	for {
		all := t.snapshot().Subtasks
		states := statesOf(all)
		i := slices.IndexFunc(all, func(s subjects.Subtask) bool {
			return !hasEnded(s) && slices.ContainsFunc(s.DependsOn, func(d string) bool {
				return states[d] == subjects.SubtaskFailed || states[d] == subjects.SubtaskSkipped
			})
		})
		if i < 0 {
			return nil
		}
		if err := t.skip(ctx, all[i].ID, "a subtask that it depends on failed"); err != nil {
			return err
		}
	}
}

// skip marks a subtask as skipped.
func (t *task) skip(ctx context.Context, id, why string) error {
	err := t.updateSubtask(ctx, "subtask.skip", id, func(s *subjects.Subtask) {
		s.State, s.Ended, s.Doubt = subjects.SubtaskSkipped, t.Out.Now().UTC(), why
	})
	if err == nil {
		t.emitProgress(subjects.TaskProgress{Subtask: id, State: subjects.SubtaskSkipped, Text: why})
	}
	return err
}

func statesOf(all []subjects.Subtask) map[string]string {
	out := map[string]string{}
	for _, s := range all {
		out[s.ID] = s.State
	}
	return out
}
