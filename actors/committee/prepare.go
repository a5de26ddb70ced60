package committee

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/respondent"
	"conclave/pkg/respondent/conversation"
	"conclave/pkg/text"
	"conclave/subjects"
)

// prepare reads what all personas share: the models, the tools, the conversation before, and the static context when
// the model of one of them does not search memory by itself. Without a model actor or a broker the turn goes on with
// defaults, and a note says so. It fails only when the conversation or the record cannot be stored or read.
func (t *turn) prepare(ctx context.Context, personas []Persona) error {
	t.nonce = agent.NewNonce(t.Out)
	attached := agent.RedactAttachments(t.Query.Attachments)
	t.asked = subjects.JoinAttached(t.Query.Query, agent.FrameAttachments(attached, t.nonce))
	t.labels = t.labels.Join(agent.LabelAttachments(attached))
	if t.Query.Note != "" {
		t.Note(subjects.NoteRenamed, t.Query.Note)
	}
	lookup, cancel := context.WithTimeout(ctx, agent.LookupTimeout)
	defer cancel()
	t.models, _ = actor.Ask(lookup, t.Out, subjects.ModelListService, subjects.Empty{}) // without it the defaults hold
	if err := t.loadHistory(ctx); err != nil {
		return err
	}
	var found agent.Collection
	searcher := t.newAgent(t.Owner+" context", &found)
	var err error
	if t.tools, _, err = searcher.Discover(ctx, text.Clip(t.Query.Query, maxTask), maxTools); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		t.Note(subjects.NoteNoBroker, "no tools could be used: asking the broker for tools failed")
	}
	without := slices.IndexFunc(personas, func(p Persona) bool {
		return agent.CallMode(t.abilities(p)) != loop.CallNative
	})
	if without < 0 || len(t.tools) == 0 {
		return nil
	}
	t.Note(subjects.NoteContext, fmt.Sprintf("the model %s does not search memory by itself; memory was searched once "+
		"for the committee", t.abilities(personas[without]).Model))
	if t.Record().Context != nil {
		return nil // searched before an interruption
	}
	return t.searchContext(ctx, searcher, &found)
}

// maxTask bounds the description of a question for the selection of tools, in bytes.
const maxTask = 4 << 10

// Bounds of the static context.
const (
	maxSearch      = 2000 // bytes of the query, so at most as many characters as the schema of the tools allows
	contextEntries = 5
	maxContext     = 32 << 10
)

// searchContext recalls the user's own statements for the user's words, by a call that is authorized and recorded by
// the broker, and stores what it returns. A recall that fails is left out.
func (t *turn) searchContext(ctx context.Context, by *agent.Agent, found *agent.Collection) error {
	words := text.Cut(subjects.UserText(t.Query.Query), maxSearch)
	var c staticContext
	if slices.ContainsFunc(t.tools, func(o model.Tool) bool { return o.Name == agent.RecallTool }) {
		args, err := json.Marshal(map[string]any{"query": words, "max": contextEntries})
		if err != nil {
			return err
		}
		call := model.Call{ID: agent.RecallTool, Name: agent.RecallTool, Arguments: args}
		res := by.RecallOwn(ctx, call)
		c.Calls = append(c.Calls, by.RecordCall(loop.FinishedCall{Call: call, Layer: loop.LayerRecall, Result: res},
			maxTracedResult, maxTracedResult))
		if res.Fault == "" && len(c.Text)+len(res.Text) <= maxContext {
			c.Text = strings.TrimSpace(c.Text + "\n\n" + res.Text)
		}
	}
	c.Labels, c.Recalls = found.Result()
	return t.Checkpoint(ctx, "turn.context", func(r *record) { r.Context = &c })
}

// maxHistoryText bounds one question or answer that personas are given, in bytes.
const maxHistoryText = 4 << 10

// loadHistory reads the conversation before the question: the turns of the assistant, which the committee may read, and
// the committee's own, by time. It fails when its own conversation cannot be read.
func (t *turn) loadHistory(ctx context.Context) error {
	own, _, err := conversation.Read(ctx, t.Out.Store(subjects.StateBucket(name)), t.Session)
	if err != nil {
		return errors.Join(respondent.ErrNotStored, err)
	}
	said, _, err := conversation.Read(ctx, t.Out.Store(subjects.StateBucket(subjects.Generator)), t.Session)
	if err != nil {
		t.Out.LogError(fmt.Errorf("reading the conversation with the assistant: %w", err))
		t.Note(subjects.NoteNoHistory, "the conversation with the assistant could not be read; this answer does "+
			"not use it")
	}
	turns := slices.Concat(said.Turns, own.Turns)
	slices.SortStableFunc(turns, func(a, b subjects.Turn) int { return a.Time.Compare(b.Time) })
	turns = slices.DeleteFunc(turns, func(p subjects.Turn) bool { return p.QueryID == t.Query.QueryID })
	t.history = nil
	for _, p := range turns[max(0, len(turns)-t.c.cfg.History):] {
		t.labels = t.labels.Join(p.Labels)
		t.history = append(t.history,
			model.Message{Role: model.User, Content: text.Clip(p.Query, maxHistoryText)},
			model.Message{Role: model.Assistant, Content: text.Clip(p.Answer, maxHistoryText)})
	}
	return nil
}
