package generator

import (
	"context"
	"errors"

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
		Out: t.Out, Session: t.Session, Query: t.Query.QueryID, ToolTimeout: t.g.cfg.ToolTimeout,
		MaxResult: int(t.g.cfg.Result),
		OnResult:  func(_ string, res subjects.ToolResult) { t.results.Add(res) },
		OnClipped: func(tool string) {
			t.Note(loop.NoteClipped, "a result of "+tool+" was clipped for the model")
		},
	}
	if t.g.isRespondentB {
		a.Scope = t.g.Account
	}
	return a
}

// discoverTools asks the broker for tools that fit the question, at most MaxTools. Without a reply there are no tools,
// and a note says so. nil = no tools.
func (t *turn) discoverTools(ctx context.Context) []model.Tool {
	tools, _, err := t.caller().Discover(ctx, t.task(), t.g.cfg.MaxTools)
	if err != nil {
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			why := "no reply"
			if f, ok := errors.AsType[*subjects.Fault](err); ok && actor.IsReplyFault(err) {
				why = text.OneLine(f.Text, maxTextBytes)
			}
			t.Note(subjects.NoteNoBroker, "no tools could be used: asking the broker for tools failed ("+why+")")
		}
		return nil
	}
	return tools
}
