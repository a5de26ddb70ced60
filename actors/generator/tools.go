package generator

import (
	"context"
	"errors"
	"slices"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// caller is the agent that asks the broker for tools and runs the calls of the turn. Call ids of respondent B differ
// from the generator's for the same query.
func (t *turn) caller() *agent.Agent {
	a := &agent.Agent{
		Out: t.out, Session: t.sessionID, Query: t.query.QueryID, ToolTimeout: t.g.cfg.ToolTimeout,
		MaxResult: int(t.g.cfg.Result),
		OnResult:  t.addResult, OnClipped: t.noteClippedResult,
	}
	if t.g.isRespondentB {
		a.Scope = t.g.name
	}
	return a
}

// discoverTools asks the broker for tools that fit the question, at most MaxTools. Without a reply there are no tools,
// and a note says so. nil = no tools.
func (t *turn) discoverTools(ctx context.Context) []model.Tool {
	tools, err := t.caller().Discover(ctx, t.task(), t.g.cfg.MaxTools)
	if err != nil {
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			why := "no reply"
			var f *subjects.Fault
			if actor.IsReplyFault(err) && errors.As(err, &f) {
				why = text.OneLine(f.Text, maxTextBytes)
			}
			t.addNote(subjects.NoteNoBroker, "no tools could be used: asking the broker for tools failed ("+why+")")
		}
		return nil
	}
	return tools
}

// addResult joins the labels of a result to those of the answer, and adds the ids of the memories that it holds.
func (t *turn) addResult(_ string, res subjects.ToolResult) {
	t.addLabels(res.Labels)
	if res.Error == nil {
		t.addRecalls(res.Recalls)
	}
}

// addLabels joins the labels of a result to those of the answer.
func (t *turn) addLabels(l *subjects.Labels) {
	if l == nil {
		return
	}
	t.resultMu.Lock()
	defer t.resultMu.Unlock()
	t.record.Labels = t.record.Labels.Join(l)
}

// addRecalls adds the ids of memories that a result holds, each once. Ids beyond maxRecalls are dropped.
func (t *turn) addRecalls(ids []string) {
	t.resultMu.Lock()
	defer t.resultMu.Unlock()
	for _, id := range ids {
		if len(t.record.Recalls) < maxRecalls && !slices.Contains(t.record.Recalls, id) {
			t.record.Recalls = append(slices.Clone(t.record.Recalls), text.Clip(id, subjects.MaxToken))
		}
	}
}

// maxRecalls bounds how many memories an answer names.
const maxRecalls = 100

// noteClippedResult notes, once per tool, that the model is sent only a part of a result.
func (t *turn) noteClippedResult(tool string) {
	n := subjects.Note{Code: loop.NoteClipped, Text: "a result of " + tool + " was clipped for the model"}
	t.resultMu.Lock()
	defer t.resultMu.Unlock()
	if !slices.Contains(t.clipNotes, n) {
		t.clipNotes = append(t.clipNotes, n)
		t.emitNote(n.Code, n.Text)
	}
}

// answerLabels are the labels of the answer and the ids of the memories it used.
func (t *turn) answerLabels() (*subjects.Labels, []string) {
	t.resultMu.Lock()
	defer t.resultMu.Unlock()
	return t.record.Labels, t.record.Recalls
}
