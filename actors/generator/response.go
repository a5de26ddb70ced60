package generator

import (
	"cmp"
	"slices"
	"strings"

	"conclave/pkg/loop"
	"conclave/pkg/respondent"
	"conclave/pkg/text"
	"conclave/subjects"
)

// buildResponse is the response event for a state, shortened to its size limit. Its answer is never empty: err, nil =
// none, is explained in it, and a turn that was canceled before there was text says so. Both make it partial.
func (t *turn) buildResponse(s loop.State, err error) subjects.Response {
	record := t.Record()
	r := subjects.Response{
		SessionID: t.Session, QueryID: t.Query.QueryID, Query: t.Query.Query, Answer: s.Answer, Thinking: s.Thinking,
		ToolCalls:   []subjects.ToolCall{},
		GeneratorID: t.g.Account, RespondentID: t.g.Account, Model: s.Usage.Model, DemoModel: t.demoModel,
		Partial:   s.Partial,
		Reference: text.Clip(t.Query.Reference, maxReference), Attachments: record.Attachments,
		ModelCalls: t.modelCalls,
		Usage: subjects.Usage{
			PromptTokens: s.Usage.Prompt, CompletionTokens: s.Usage.Output, ModelCalls: s.Usage.Calls,
			Estimated: s.Usage.Estimated, Counted: s.Usage.Counted, Hosts: subjects.JoinHosts(s.Usage.Hosts),
		},
	}
	if t.g.isRespondentB {
		r.Thinking = "" // its thinking is never published
	}
	if !record.Began.IsZero() {
		r.Usage.Millis = t.Out.Now().Sub(record.Began).Milliseconds()
	}
	r.Model = cmp.Or(r.Model, t.role.Model)
	r.Labels, r.Recalls = t.results.Result()
	if r.Labels == nil { // no untrusted input: say so explicitly, because memory relies on labels
		r.Labels = &subjects.Labels{Trust: subjects.Trusted, Privacy: subjects.Public}
	}
	for _, d := range t.finishedCalls(s) {
		r.ToolCalls = append(r.ToolCalls, t.caller().RecordCall(d, maxRecord, maxRecord))
	}
	for _, n := range s.Notes {
		r.Notes = append(r.Notes, subjects.Note{Code: n.Code, Text: n.Text})
	}
	r.Notes = append(r.Notes, respondent.NoteFailedCalls(r.ToolCalls)...)
	r.Notes = append(r.Notes, t.Notes()...)
	if err != nil {
		fault, words := explain(err)
		r.Error, r.Partial = fault, true
		r.Answer = strings.TrimSpace(r.Answer + "\n\n" + words)
	}
	if strings.TrimSpace(r.Answer) == "" {
		r.Answer, r.Partial = "Stopped before there was an answer.", true
		if !slices.ContainsFunc(r.Notes, func(n subjects.Note) bool { return n.Code == loop.NoteStopped }) {
			r.Notes = append(r.Notes, subjects.Note{Code: loop.NoteStopped, Text: "stopped before it began"})
		}
	}
	return respondent.ShrinkResponse(r, maxResponse)
}

// maxReference bounds a reference answer, in bytes.
const maxReference = 16 << 10

// maxResponse bounds a response, in bytes, so that the record has room for more.
const maxResponse = 640 << 10
