package committee

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/respondent"
	"conclave/pkg/respondent/conversation"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of an answer.
const (
	maxAnswerCalls = 100
	maxAnswer      = 64 << 10
	maxRecalls     = 100
	maxReference   = 16 << 10
)

// Respond implements [respondent.Work]: the answer is that of the closing persona, or, when it was not closed, what the
// members said.
func (t *turn) Respond(_ context.Context, cause error) (respondent.Pending, func(r *record), error) {
	s := t.said
	if errors.Is(cause, agent.ErrCanceled) {
		s.Partial, cause = true, nil
	}
	return respondent.Pending{Response: t.buildResponse(s, t.last, cause)}, func(r *record) {
		if t.last != nil {
			r.Events = append(slices.Clip(r.Events), pendingEvent{ID: t.Out.NewID(), Body: t.last.event})
		}
	}, nil
}

// buildResponse is the response event. Its answer is never empty: an error is explained in it, and a turn that was
// canceled before anybody spoke says so. Both make it partial.
func (t *turn) buildResponse(s loop.State, last *closed, err error) subjects.Response {
	rec := t.Record()
	r := subjects.Response{
		SessionID: t.Session, QueryID: t.Query.QueryID, Query: text.Clip(t.Query.Query, maxQuestion),
		Answer: strings.TrimSpace(text.Clip(s.Answer, maxAnswer)), Thinking: text.Clip(s.Thinking, maxThinking),
		ToolCalls: []subjects.ToolCall{}, GeneratorID: name, RespondentID: name, Partial: s.Partial,
		Reference: text.Clip(t.Query.Reference, maxReference),
		// explicit: memory relies on labels
		Labels: (&subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Public}).Join(t.labels),
	}
	for _, a := range t.Query.Attachments {
		a.Text = text.Clip(a.Text, 4<<10)
		r.Attachments = append(r.Attachments, a)
	}
	if c := rec.Context; c != nil {
		r.ToolCalls, r.Labels, r.Recalls = append(r.ToolCalls, c.Calls...), r.Labels.Join(c.Labels), c.Recalls
	}
	for _, c := range rec.Done {
		r.Deliberations = append(r.Deliberations, summarize(c))
		addContribution(&r, c)
	}
	if last != nil {
		addContribution(&r, last.contribution)
		r.Model = cmp.Or(last.Model, r.Model)
		r.Usage.Estimated, r.Usage.Counted = last.Usage.Estimated, last.Usage.Counted
	}
	r.Notes = append(t.Notes(), respondent.NoteFailedCalls(r.ToolCalls)...)
	r.ToolCalls = r.ToolCalls[:min(len(r.ToolCalls), maxAnswerCalls)]
	if !rec.Began.IsZero() {
		r.Usage.Millis = t.Out.Now().Sub(rec.Began).Milliseconds()
	}
	if r.DemoModel {
		r.Notes = append(r.Notes, subjects.Note{Code: subjects.NoteDemoModel, Text: "answered by the built-in demo " +
			"model, which is not a language model"})
	}
	if r.Answer == "" {
		r.Answer, r.Partial = describeDeliberation(rec.Done), true
		if err == nil {
			r.Notes = append(r.Notes, subjects.Note{Code: loop.NoteStopped, Text: "stopped before the deliberation " +
				"was closed"})
		}
	}
	if err != nil {
		fault, words := agent.Explain(err, explanations...)
		r.Error, r.Partial, r.Answer = fault, true, strings.TrimSpace(r.Answer+"\n\n"+words)
	}
	r.Answer = cmp.Or(r.Answer, "Stopped before anybody spoke.")
	return r
}

// summarize is a contribution in the record of an answer.
func summarize(c contribution) subjects.DeliberationSummary {
	s := subjects.DeliberationSummary{
		Persona: c.Persona, Round: c.Round, Status: subjects.DeliberationDone,
		Dissents: c.Dissents, Dissent: c.Dissent, ToolCalls: c.Made, Usage: c.Usage,
	}
	if c.Error != nil {
		s.Status, s.Error = subjects.DeliberationFailed, c.Error.Code
	}
	return s
}

// addContribution adds the calls, tokens, labels and recalls of a contribution to an answer.
func addContribution(r *subjects.Response, c contribution) {
	r.ToolCalls, r.Labels = append(r.ToolCalls, c.Calls...), r.Labels.Join(c.Labels)
	r.Usage.PromptTokens += c.Usage.PromptTokens
	r.Usage.CompletionTokens += c.Usage.CompletionTokens
	r.Usage.ModelCalls += c.Usage.ModelCalls
	r.Usage.Hosts = subjects.AddHosts(r.Usage.Hosts, c.Usage.Hosts)
	for _, id := range c.Recalls {
		if len(r.Recalls) < maxRecalls && !slices.Contains(r.Recalls, id) {
			r.Recalls = append(slices.Clip(r.Recalls), id)
		}
	}
	r.Model, r.DemoModel = cmp.Or(r.Model, c.Model), r.DemoModel || c.Demo
}

// Append implements [respondent.Work].
func (t *turn) Append(ctx context.Context, p respondent.Pending) error {
	store := t.Out.Store(subjects.StateBucket(name))
	c, rev, err := conversation.Read(ctx, store, t.Session)
	if err != nil {
		return err
	}
	added := conversation.NewTurn(p.Response, t.Out.Now().UTC())
	added.Respondent = name
	_, _, _, err = conversation.Append(ctx, store, c, rev, func() subjects.Turn { return added }, t.c.cfg.Turns)
	return err
}
