package orchestrator

import (
	"context"
	"fmt"
	"strings"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// verify runs the subtask's verification through the broker, as a call of the agent, and reports whether its failure
// went back to the agent, which then works on. It does so at most Checks times. Without a verification, after one that
// passed and after the last one it reports false. The runtime decides by the result of the run, not by the agent's
// claim.
func (w *worker) verify(ctx context.Context) (again bool, err error) {
	if w.subtask.Verify == nil || w.kind != kindSubtask || w.record.Passed {
		return false, nil
	}
	w.emitProgress(subjects.SubtaskVerifying, "")
	call := w.verifyCall()
	res := w.agent.RunTool(ctx, call)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	labels, _ := w.got.Result()
	w.mu.Lock()
	w.record.Labels = w.record.Labels.Join(labels) // the output below is part of the work from now on
	w.record.Passed = hasPassed(res)
	w.record.Runs = append(w.record.Runs, text.Clip(res.Text, maxRun))
	w.mu.Unlock()
	failed := !w.record.Passed
	if failed && w.record.Failed < w.t.o.cfg.Checks && !isRefused(res.Fault) {
		w.record.Failed++
		w.continueWith("The verification failed. Its output stands below; correct the work, then say what you " +
			"changed.\n" + frame(text.Clip(res.Text, maxRun), w.t.snapshot().Nonce))
		again = true
	}
	return again, w.store(ctx, "work.verify")
}

// maxRun bounds the output of a verification that is kept, in bytes.
const maxRun = 8 << 10

// verifyCall is the call of the verification. Its id differs for each attempt, and is the same after a crash.
func (w *worker) verifyCall() model.Call {
	v, c := w.subtask.Verify, model.Call{ID: fmt.Sprintf("verify-%d", len(w.record.Runs)), Name: "run_code"}
	switch {
	case v.Command != "" && w.subtask.Agent == "sysadmin":
		c.Name = "run_shell"
		c.Arguments = encodeArguments(map[string]string{"command": v.Command})
	case v.Command != "":
		c.Arguments = encodeArguments(map[string]string{"language": "shell", "code": v.Command})
	default:
		c.Arguments = encodeArguments(map[string]string{"language": v.Language, "code": v.Code})
	}
	return c
}

// passedLine is the first line of the result of a program that ended without an error. The tool writes it, before any
// output.
const passedLine = "exit code: 0"

// hasPassed reports whether a verification succeeded: the call ran, and its program ended with status 0. The lines of
// the frame around the result do not count.
func hasPassed(res loop.Result) bool {
	if res.Fault != "" {
		return false
	}
	for line := range strings.Lines(res.Text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "[") {
			return line == passedLine
		}
	}
	return false
}

// isRefused reports whether a call did not run because somebody refused it, so that the agent cannot correct it.
func isRefused(fault string) bool {
	switch fault {
	case subjects.CodeDenied, subjects.CodeNotApproved, subjects.CodeUnanswered, subjects.CodeLimit,
		subjects.CodeUnknownTool:
		return true
	}
	return false
}

// continueWith lets the agent work on with one more message, in the same conversation and with new limits.
func (w *worker) continueWith(words string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := *w.record.State
	w.record.State = &loop.State{
		Messages: append(s.Messages[:len(s.Messages):len(s.Messages)], model.Message{Role: model.User, Content: words}),
		Finished: s.Finished, Notes: s.Notes, Usage: s.Usage, Calls: s.Calls,
	}
}

// secondOpinion has another agent of the same type check an uncertain result, once. It returns the result with its
// quality after the check, and why it is still uncertain, "" = it was confirmed. A result whose verification failed is
// not checked again, and neither is what a model wrote from its own knowledge, a poem as well as a fact: it would only
// be compared with the knowledge of the same model, and the report says that it was not checked.
func (w *worker) secondOpinion(ctx context.Context, ret subjects.AgentReturn) (subjects.AgentReturn, string, error) {
	if w.subtask.Verify != nil {
		return ret, "its verification did not pass", nil
	}
	if ret.Source == subjects.SourceModelKnowledge {
		return ret, "", nil
	}
	s := w.subtask
	s.Instructions = readPrompt("check") + "\n\nThe subtask: " + s.Instructions + "\n\n" +
		frame(ret.Summary, w.t.snapshot().Nonce)
	c, err := w.t.openWork(ctx, kindCheck, s)
	if err != nil {
		return ret, "", err
	}
	w.emitProgress(subjects.SubtaskVerifying, "a second agent checks the result")
	if c.record.Return == nil {
		got, err := c.do(ctx)
		if err != nil {
			return ret, "", err
		}
		if err := c.storeReturn(ctx, got); err != nil {
			return ret, "", err
		}
	}
	if err := c.publishReturn(ctx); err != nil {
		return ret, "", err
	}
	got := *c.record.Return
	if err := w.t.update(ctx, "subtask.check", func(r *taskRecord) {
		r.Labels = r.Labels.Join(c.labels())
	}); err != nil {
		return ret, "", err
	}
	switch {
	case got.Status == subjects.ReturnFailed:
		return ret, "a second agent did not confirm it: " + text.OneLine(got.FailureReason, 300), nil
	case got.Status != subjects.ReturnSuccess || got.ResultQuality == subjects.QualityUncertain:
		return ret, "a second agent is not sure either", nil
	}
	ret.ResultQuality = subjects.QualityInferred
	return ret, "", nil
}
