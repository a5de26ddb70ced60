package generator

import (
	"context"
	"encoding/json"
	"slices"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/text"
)

// recallTool is the tool that searches memory.
const recallTool = "search_memory"

// Values of [Config.RecallFirst].
const (
	recallAuto   = "auto"
	recallAlways = "always"
	recallNever  = "never"
)

// Bounds of the search of memory before the first model call.
const (
	maxRecallQuery = 2000 // bytes; the schema of the tool has as many characters
	recallEntries  = 3
)

// recallFirst searches memory for the user's own words before the first model call, by [Config.RecallFirst]: a small model does
// not know when to search. It is a call like any other, authorized and recorded by the broker. The entries found are appended
// to state as a call with its result; when there are none, the model learns nothing of the search. The tool is then no longer
// offered in this turn.
//
// The search is left out when the tool is not offered, when the question is an attachment only, and when the turn goes on after
// an interruption behind its first step. Before that step it is repeated under the same id, by which the broker returns the
// same result.
func (t *turn) recallFirst(ctx context.Context, a *loop.Agent, state *loop.State) {
	isRecall := func(tool model.Tool) bool { return tool.Name == recallTool }
	always := t.g.cfg.RecallFirst == recallAlways
	if t.g.cfg.RecallFirst == recallNever || !always && a.Calls != loop.CallConstrained || t.ownWords() == "" || !slices.ContainsFunc(a.Tools, isRecall) {
		return
	}
	a.Tools = slices.DeleteFunc(a.Tools, isRecall)
	if state.Step > 0 || len(state.Finished) > 0 {
		return
	}
	args, err := json.Marshal(map[string]any{"query": text.Clip(t.ownWords(), maxRecallQuery), "max": recallEntries})
	if err != nil {
		t.out.LogError(err)
		return
	}
	c := model.Call{ID: "recall", Name: recallTool, Arguments: args}
	before := len(t.record.Recalls)
	r := t.runTool(ctx, c)
	if r.Fault != "" || len(t.record.Recalls) == before {
		return
	}
	state.Messages = append(slices.Clone(state.Messages),
		model.Message{Role: model.Assistant, Calls: []model.Call{c}},
		model.Message{Role: model.ToolRole, Content: r.Text, ToolName: c.Name, CallID: c.ID})
	state.Finished = append(slices.Clone(state.Finished), loop.FinishedCall{Call: c, Layer: loop.LayerRecall, Step: 1, Result: r})
}
