package generator

import (
	"context"
	"encoding/json"
	"slices"

	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/model"
	"conclave/pkg/text"
)

// Tools by name.
const (
	recallTool = agent.RecallTool
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

// recallFirst recalls the pinned facts and, by [Config.RecallFirst], the user's own statements that fit the question,
// before the first model call: a model searches only when it thinks of it, and a small one hardly ever does. It is a
// call like any other, authorized and recorded by the broker, which labels it trusted or withholds it. It returns the
// call with what was found; nil = nothing, and the prompt does not mention the recall. The entries follow the question,
// so that the beginning of the prompt stays in the cache of the model server; for constrained calls they stand before
// it, and the search in memory is one of the choices.
//
// The recall is left out when the tool is not offered, when the question is an attachment only, for the built-in demo
// model, whose rules take any result for that of their own call, and when the turn goes on after an interruption behind
// its first step. Before that step it is repeated under the same id, by which the broker returns the same result.
func (t *turn) recallFirst(ctx context.Context, a *loop.Agent, state loop.State) *loop.FinishedCall {
	offered := slices.ContainsFunc(a.Tools, func(tool model.Tool) bool { return tool.Name == recallTool })
	setting := t.g.cfg.RecallFirst
	if !offered || t.ownWords() == "" || t.role.DemoModel || setting == recallNever {
		return nil
	}
	most := recallEntries
	if a.Calls == loop.CallConstrained {
		a.Tools = agent.RemoveRecallTools(a.Tools)
	} else if setting == recallAuto {
		most = 0 // pinned facts only
	}
	if state.Step > 0 || len(state.Finished) > 0 {
		return nil
	}
	args, err := json.Marshal(map[string]any{"query": text.Cut(t.ownWords(), maxRecallQuery), "max": most})
	if err != nil {
		t.Out.LogError(err)
		return nil
	}
	t.transition(startRecall, 0)
	c := model.Call{ID: recallCall, Name: recallTool, Arguments: args}
	_, before := t.results.Result()
	done := &loop.FinishedCall{Call: c, Layer: loop.LayerRecall, Step: 1, Result: t.caller().RecallOwn(ctx, c)}
	t.Edit(func(r *turnRecord) { r.Recall = done })
	if _, now := t.results.Result(); done.Result.Fault != "" || len(now) == len(before) {
		return nil
	}
	return done
}

// finishedCalls returns the calls of a turn with their results, in order, the recall before the first model call among
// them also when it found nothing or the prompt does not have it yet.
func (t *turn) finishedCalls(s loop.State) []loop.FinishedCall {
	r := t.Record().Recall
	if r == nil || slices.ContainsFunc(s.Finished, func(d loop.FinishedCall) bool { return d.Layer == r.Layer }) {
		return s.Finished
	}
	return append([]loop.FinishedCall{*r}, s.Finished...)
}
