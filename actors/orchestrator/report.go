package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/respondent"
	"conclave/pkg/text"
	"conclave/subjects"
)

// writeReport has a spawned assistant without tools write the report for the user from the results of the subtasks,
// which it gets as untrusted content. It publishes the text as it grows. "" = there is none: no subtask is done, or the
// model failed, which is logged; then the report is assembled by code.
func (t *task) writeReport(ctx context.Context) string {
	r := t.snapshot()
	if !slices.ContainsFunc(r.Subtasks, func(s subjects.Subtask) bool { return s.State == subjects.SubtaskDone }) ||
		t.tokensLeft() == 0 {
		return ""
	}
	root := &agent.Agent{
		Out: t.Out, Session: t.Session, Query: t.Query.QueryID, Scope: "report", ToolTimeout: t.o.cfg.ToolTimeout,
	}
	if _, _, err := root.Spawn(ctx, subjects.SpawnRequest{Type: "assistant"}); err != nil {
		t.Out.LogError(fmt.Errorf("spawning the agent that reports: %w", err))
		return ""
	}
	streams := agent.NewAnswerStreams(t.Out, subjects.Orchestrator, t.Query.QueryID)
	var results []string
	for _, s := range r.Subtasks {
		result := fmt.Sprintf("%s (%s): %s", s.Title, s.State, s.Doubt)
		if s.Return != nil {
			result = describeReturn(s)
		}
		results = append(results, result)
	}
	info := t.o.models.Role(ctx, t.Out, subjects.RoleAssistant)
	a := agent.NewLoop(wire.Client{Out: t.Out, Role: subjects.RoleAssistant, Timeout: t.o.cfg.Wall}, info,
		&t.o.cfg.Thinking, t.o.cfg.loopLimits(t.tokensLeft()), settingsFile)
	a.System = readPrompt("report")
	question := "The task: " + r.Query + "\n\nThe results:\n" + frame(strings.Join(results, "\n\n"), r.Nonce) +
		"\n\nWrite the report for the user."
	last, err := loop.RunTurn(ctx, a,
		loop.Input{State: loop.State{Messages: []model.Message{{Role: model.User, Content: question}}}}, loop.Hooks{
			Token: func(step int, words string) { streams.WriteToken(ctx, step, words) },
		})
	streams.Flush(ctx)
	t.addUsage(last.Usage)
	if err != nil {
		if ctx.Err() == nil {
			t.Out.LogError(fmt.Errorf("writing the report: %w", err))
		}
		return ""
	}
	if slices.ContainsFunc(last.Notes, func(n loop.Note) bool { return n.Code == loop.NoteEmpty }) {
		return ""
	}
	return last.Answer
}

// assembleReport is the report without a model: the result of each subtask that is done.
func assembleReport(all []subjects.Subtask) string {
	var b strings.Builder
	for _, s := range all {
		if s.State == subjects.SubtaskDone && s.Return != nil {
			fmt.Fprintf(&b, "%s: %s\n", s.Title, s.Return.Summary)
		}
	}
	return strings.TrimSpace(b.String())
}

// appendFacts appends what a report must say, whatever the model wrote: the files, what is uncertain, and what failed.
func appendFacts(report string, all []subjects.Subtask) string {
	var files, doubts, failed []string
	for _, s := range all {
		if s.Return != nil {
			for _, a := range s.Return.Artifacts {
				if !slices.Contains(files, a) {
					files = append(files, a)
				}
			}
		}
		switch {
		case s.State == subjects.SubtaskFailed && s.Return != nil:
			failed = append(failed, s.Title+": "+s.Return.FailureReason)
		case s.State == subjects.SubtaskSkipped:
			failed = append(failed, s.Title+": not done, because "+s.Doubt)
		case s.State == subjects.SubtaskDone && s.Doubt != "":
			doubts = append(doubts, s.Title+": "+s.Doubt)
		case s.State == subjects.SubtaskDone && s.Return != nil && s.Return.Status == subjects.ReturnPartial:
			doubts = append(doubts, s.Title+": only a part is done")
		case s.State == subjects.SubtaskDone && s.Return != nil && s.Return.Source == subjects.SourceModelKnowledge &&
			s.Return.ResultQuality != subjects.QualityVerified:
			doubts = append(doubts, s.Title+": from the model's own knowledge, not checked")
		}
	}
	parts := []string{report}
	for _, part := range []struct {
		head  string
		lines []string
	}{{"Files:", files}, {"Uncertain:", doubts}, {"Failed:", failed}} {
		if len(part.lines) > 0 {
			parts = append(parts, part.head+"\n- "+strings.Join(part.lines, "\n- "))
		}
	}
	return strings.TrimSpace(strings.Join(parts, "\n\n"))
}

// Respond implements [respondent.Work]: the end of the task with its report. Its state is derived from the subtasks;
// those that have not ended are skipped.
func (t *task) Respond(ctx context.Context, cause error) (p respondent.Pending, change func(r *taskRecord), err error) {
	state, report := "", ""
	switch {
	case errors.Is(cause, agent.ErrCanceled):
		state, cause = subjects.TaskStopped, nil
	case cause != nil:
		state = subjects.TaskFailed
	default:
		report = t.report
	}
	f := t.newFilter()
	r := t.snapshot()
	now := t.Out.Now().UTC()
	done := 0
	for i := range r.Subtasks {
		s := &r.Subtasks[i]
		if !hasEnded(*s) {
			s.State, s.Doubt, s.Ended = subjects.SubtaskSkipped, "the task ended before", now
		}
		if s.State == subjects.SubtaskDone {
			done++
		}
	}
	if state == "" || state == subjects.TaskFailed && done > 0 {
		switch {
		case done == 0:
			state = subjects.TaskFailed
		case done == len(r.Subtasks) && cause == nil:
			state = subjects.TaskDone
		default:
			state = subjects.TaskPartial
		}
	}
	p.Response, err = t.buildResponse(ctx, r, state, report, cause)
	p.Summary = f.apply(cmp.Or(report, assembleReport(r.Subtasks)))
	return p, func(next *taskRecord) {
		next.Subtasks, next.State, next.Report = r.Subtasks, state, text.Clip(p.Response.Answer, 64<<10)
		next.Error, next.Ended = p.Response.Error, now
	}, err
}

// buildResponse is the response event of the task. Its answer is never empty.
func (t *task) buildResponse(ctx context.Context, r taskRecord, state, report string, failure error) (subjects.Response,
	error,
) {
	res := subjects.Response{
		SessionID: t.Session, QueryID: t.Query.QueryID, Query: r.Query, ToolCalls: []subjects.ToolCall{},
		GeneratorID: subjects.Orchestrator, RespondentID: subjects.Orchestrator,
		Usage: r.Usage, Labels: r.Labels, Notes: t.Notes(), Partial: state != subjects.TaskDone,
		Model: t.o.models.Role(ctx, t.Out, subjects.RoleOrchestrator).Model,
	}
	res.Usage.Millis = t.Out.Now().Sub(r.Began).Milliseconds()
	if res.Labels == nil { // no untrusted input: say so explicitly, because memory relies on labels
		res.Labels = &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Public}
	}
	var candidates []candidate
	var unavailable []subjects.UnavailableTool
	for _, s := range r.Subtasks {
		for _, kind := range []string{kindSubtask, kindCheck} {
			v, err := works.Load(ctx, t.Out, workKey(t.Query.QueryID, kind, s.ID))
			if err != nil {
				return res, err
			}
			res.ToolCalls = append(res.ToolCalls, toolCalls(&worker{t: t, kind: kind, subtask: s}, v.Value)...)
			res.Recalls = append(res.Recalls, v.Value.Recalls...)
			unavailable = append(unavailable, v.Value.Unavailable...)
			if kind == kindSubtask && s.Return != nil {
				candidates = append(candidates, candidatesOf(s, v.Value.Labels)...)
			}
		}
	}
	res.Notes = append(res.Notes, respondent.NoteFailedCalls(res.ToolCalls)...)
	res.Notes = append(res.Notes, respondent.NoteUnavailable(unavailable)...)
	if note := t.keepCandidates(ctx, candidates, res.Labels, state); note != "" {
		res.Notes = append(res.Notes, subjects.Note{Code: subjects.NoteCandidates, Text: note})
	}
	report = cmp.Or(report, assembleReport(r.Subtasks))
	switch {
	case state == subjects.TaskStopped:
		res.Notes = append(res.Notes, subjects.Note{
			Code: subjects.NoteStopped, Text: "stopped before the task was finished",
		})
		report = strings.TrimSpace("Stopped by you before the task was finished.\n\n" + report)
	case failure != nil:
		fault, words := explain(failure)
		res.Error, report = fault, strings.TrimSpace(report+"\n\n"+words)
	case state == subjects.TaskFailed:
		res.Error = subjects.Faultf(subjects.CodeTaskFailed, "no subtask is done")
		report = cmp.Or(report, "The task failed: no subtask has a result.")
	}
	if t.tokensLeft() == 0 && failure == nil {
		fault, words := explain(errNoTokens)
		res.Error, res.Partial, report = fault, true, report+"\n\n"+words
	}
	res.Answer = appendFacts(report, r.Subtasks)
	return respondent.ShrinkResponse(res, maxResponse), nil
}

// toolCalls are the calls of the work of w for the response event, with the beginning of each result: the whole is in
// other events.
func toolCalls(w *worker, r workRecord) (out []subjects.ToolCall) {
	if r.State == nil {
		return nil
	}
	a := w.agentOf(r.Child)
	for _, d := range r.State.Finished {
		out = append(out, a.RecordCall(d, 512, 2<<10))
	}
	return out
}

// maxResponse bounds a response, in bytes, so that the record has room for more.
const maxResponse = 400 << 10

// shrinkWorks removes the conversations of agents from their large records: the task has ended. A failure is only
// logged.
func (t *task) shrinkWorks(ctx context.Context, all []subjects.Subtask) {
	for _, s := range all {
		for _, kind := range []string{kindSubtask, kindCheck} {
			key := workKey(t.Query.QueryID, kind, s.ID)
			v, err := works.Load(ctx, t.Out, key)
			if err == nil && v.Value.State != nil {
				v.Value.State, v.Value.Runs = nil, nil
				_, err = works.Store(ctx, t.Out, "work.shrink", key, v)
			}
			if err != nil {
				t.Out.LogError(err)
			}
		}
	}
}
