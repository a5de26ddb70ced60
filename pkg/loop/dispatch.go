package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/model"
)

// openRound is the index of the last message with calls when not all of them have their results behind it; -1 when they
// have, or when a message other than a result follows.
func (t *turn) openRound() int {
	ms := t.state.Messages
	i := len(ms) - 1
	for i >= 0 && ms[i].Role == model.ToolRole {
		i--
	}
	if i < 0 || len(ms[i].Calls) == 0 || len(ms)-i-1 >= len(ms[i].Calls) {
		return -1
	}
	return i
}

// callResult is the result of the call at index i of a round.
type callResult struct {
	i      int
	result Result
}

// runRound runs the calls of the message at index at that have no result yet, all at once, waits for them, and appends
// the results in the order of the calls. It does not wait for a tool that ignores its context: its goroutine is
// abandoned. When ctx ends (a stop) its call stays open; when only wall ends (the turn timeout) its result is
// [FaultUnavailable]. The error is that of the stop or the checkpoint.
func (t *turn) runRound(ctx, wall context.Context, at int) error {
	calls := t.state.Messages[at].Calls
	round := make([]FinishedCall, len(calls)) // Step 0 = no result yet
	results := make(chan callResult, len(calls))
	running := 0
	for i, c := range calls {
		if d := t.finishedIndex(c.ID); d >= 0 {
			round[i] = t.state.Finished[d]
			round[i].Step = max(1, round[i].Step)
			continue
		}
		round[i] = FinishedCall{Call: c, Layer: t.layerOf(i)}
		if t.hooks.Started != nil {
			t.hooks.Started(t.state.Step, c, round[i].Layer)
		}
		go runCall(wall, t.agent.RunTool, c, i, results)
		running++
	}
	for ; running > 0; running-- {
		select {
		case r := <-results:
			if ctx.Err() != nil && r.result.Fault != "" { // it failed because of the stop
				return t.stopRound(ctx, round)
			}
			t.recordResult(&round[r.i], r.result)
			continue
		case <-wall.Done():
		}
		if ctx.Err() != nil {
			return t.stopRound(ctx, round)
		}
		for i := range round {
			t.recordResult(&round[i], unavailableResult)
		}
		break
	}
	t.appendResults(at, round)
	t.forceWhenStuck()
	return t.checkpoint(ctx)
}

// unavailableResult is the result of a call that did not return in time or panicked.
var unavailableResult = Result{
	Text: resultUnavailable, Fault: FaultUnavailable,
	Cause: "it did not return: ask again, and see conclave doctor",
}

// runCall runs one call and sends its result, with the index i, to results, which must have room for it. A tool that
// panics or ends its goroutine is unavailable.
func runCall(ctx context.Context, run func(context.Context, model.Call) Result, c model.Call, i int,
	results chan<- callResult,
) {
	r := callResult{i, unavailableResult}
	defer func() {
		_ = recover()
		results <- r
	}()
	r.result = run(ctx, c)
}

// recordResult gives a call its result, cut to its limit, and reports it uncut to [Hooks.Finished]. It does nothing
// when the call has a result, that is, when d.Step is not 0.
func (t *turn) recordResult(d *FinishedCall, r Result) {
	if d.Step != 0 {
		return
	}
	d.Step = max(1, t.state.Step)
	full := t.limitResult(d, r)
	if t.hooks.Finished != nil {
		reported := *d
		reported.Result = full
		t.hooks.Finished(d.Step, reported)
	}
}

// limitResult stores r in d, with its text cut to about [Limits.ResultBytes], and returns it uncut. The text is made
// valid UTF-8 and is never empty. Replaced bytes and a cut are noted.
func (t *turn) limitResult(d *FinishedCall, r Result) Result {
	text, ok := toValidUTF8(r.Text)
	if !ok {
		t.addNote(NoteBadText, d.Call.Name+" returned invalid UTF-8; the invalid bytes were replaced")
	}
	if r.Text = text; strings.TrimSpace(r.Text) == "" {
		r.Text = resultEmpty
		if r.Fault != "" {
			r.Text = "[" + r.Fault + "]"
		}
	}
	d.Result = r
	if len(r.Text) > t.limits.ResultBytes {
		d.Result.Text = clipMiddle(r.Text, t.limits.ResultBytes, d.Call.ID)
		t.addNote(NoteClipped, fmt.Sprintf("the result of %s has %d bytes; the model was sent %d of them",
			d.Call.Name, len(r.Text), t.limits.ResultBytes))
	}
	return r
}

// stopRound adds the results that came before a stop to the finished calls and stops the turn. It always returns an
// error: see [turn.stop].
func (t *turn) stopRound(ctx context.Context, round []FinishedCall) error {
	for _, d := range round {
		if d.Step != 0 && t.finishedIndex(d.Call.ID) < 0 {
			t.state.Finished = append(t.state.Finished, d)
		}
	}
	return t.stop(ctx, "")
}

// appendResults appends a finished round to the finished calls, and its results to the messages behind the one at index
// at. Results of the same calls that are there from before a restart are replaced. A checkpoint may hold the old
// slices, so none of their elements is overwritten.
func (t *turn) appendResults(at int, round []FinishedCall) {
	inRound := func(d FinishedCall) bool {
		return slices.ContainsFunc(round, func(o FinishedCall) bool { return o.Call.ID == d.Call.ID })
	}
	if slices.ContainsFunc(t.state.Finished, inRound) {
		t.state.Finished = slices.DeleteFunc(slices.Clone(t.state.Finished), inRound)
	}
	if len(t.state.Messages) > at+1 {
		t.state.Messages = slices.Clone(t.state.Messages[:at+1])
		t.prompt.costs = t.prompt.costs[:at+1]
	}
	for i := range round {
		d := &round[i]
		t.appendMessages(model.Message{
			Role: model.ToolRole, Content: d.Result.Text, ToolName: d.Call.Name,
			CallID: d.Call.ID,
		})
		t.countCall(d)
	}
	t.state.Finished = append(t.state.Finished, round...)
}

// finishedIndex is the index of the call with this id among the finished ones; -1 when it is not there.
func (t *turn) finishedIndex(id string) int {
	for i := len(t.state.Finished) - 1; i >= 0; i-- {
		if t.state.Finished[i].Call.ID == id {
			return i
		}
	}
	return -1
}

// layerOf is the layer in which the i-th call of the last message was found.
func (t *turn) layerOf(i int) string {
	if i < len(t.state.Layers) {
		return t.state.Layers[i]
	}
	return LayerNative
}
