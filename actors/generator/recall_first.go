package generator

import (
	"context"
	"encoding/json"
	"slices"

	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/text"
)

// Tools by name. Small models choose graphTool for any question about a fact.
const (
	recallTool = "search_memory"
	graphTool  = "search_knowledge_graph"
	saveTool   = "save_memory"
)

// Values of [Config.RecallFirst].
const (
	recallAuto   = "auto"
	recallAlways = "always"
	recallNever  = "never"
)

// Bounds of the search of memory before the first model call.
const (
	recallCall     = "recall" // id of the call
	maxRecallQuery = 2000     // bytes, so at most as many characters as the schema of the tool allows
	recallEntries  = 3
)

// recallFirst searches memory for the user's own words before the first model call, by [Config.RecallFirst]: a model
// searches only when it thinks of it, and a small one hardly ever does. It is a call like any other, authorized and
// recorded by the broker. It returns the call with the pinned facts and the entries that fit; nil = there are none, and
// the prompt does not mention the search. They follow the question, so that the beginning of the prompt stays in the
// cache of the model server. Where the search applies, a model with constrained calls is offered neither recallTool nor
// graphTool in this turn.
//
// The search is left out when the tool is not offered, when the question is an attachment only, for the built-in demo
// model, whose rules take any result for that of their own call, and when the turn goes on after an interruption behind
// its first step. Before that step it is repeated under the same id, by which the broker returns the same result.
func (t *turn) recallFirst(ctx context.Context, a *loop.Agent, state loop.State) *loop.FinishedCall {
	offered := slices.ContainsFunc(a.Tools, func(tool model.Tool) bool { return tool.Name == recallTool })
	constrained, setting := a.Calls == loop.CallConstrained, t.g.cfg.RecallFirst
	if !offered || t.ownWords() == "" || t.role.DemoModel || setting == recallNever || setting == recallAuto &&
		!constrained {
		return nil
	}
	if constrained {
		a.Tools = RemoveRecallTools(a.Tools)
	}
	if state.Step > 0 || len(state.Finished) > 0 {
		return nil
	}
	args, err := json.Marshal(map[string]any{
		"query": text.Cut(t.ownWords(), maxRecallQuery), "max": recallEntries,
		"context": true,
	})
	if err != nil {
		t.out.LogError(err)
		return nil
	}
	c := model.Call{ID: recallCall, Name: recallTool, Arguments: args}
	before := len(t.record.Recalls)
	r := t.caller().RunTool(ctx, c)
	if r.Fault != "" || len(t.record.Recalls) == before {
		return nil
	}
	return &loop.FinishedCall{Call: c, Layer: loop.LayerRecall, Step: 1, Result: r}
}

// RemoveRecallTools returns the tools that do not read memory: those that a model with constrained calls is offered,
// because memory was searched for it.
func RemoveRecallTools(tools []model.Tool) []model.Tool {
	return slices.DeleteFunc(slices.Clone(tools), func(tool model.Tool) bool {
		return tool.Name == recallTool || tool.Name == graphTool
	})
}
