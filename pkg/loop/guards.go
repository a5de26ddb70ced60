package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/model"
	"conclave/pkg/strict"
)

// withDefaults replaces zero limits by their defaults; see [Limits]. Negative Nudges, Retries and WholeRounds become 0
// (none allowed), other negative limits unbounded (StepTokens and AnswerTokens: the backend's default) except
// ReplyBytes (64 MiB). window is the model's context window in tokens, 0 = unknown. It must be applied once: a second
// time would replace the 0 of "none allowed" by the default.
func (l Limits) withDefaults(window int) Limits {
	setInt := func(v *int, zero, negative int) {
		if *v == 0 {
			*v = zero
		} else if *v < 0 {
			*v = negative
		}
	}
	setDuration := func(v *time.Duration, zero time.Duration) {
		if *v == 0 {
			*v = zero
		}
		*v = max(0, *v)
	}
	const unbounded = int(^uint(0) >> 2)
	resultBytes := 32 << 10
	if window > 0 {
		resultBytes = max(512, window/4*3) // a quarter of the tokens, at three bytes each
	}
	setInt(&l.Steps, 5, unbounded)
	setInt(&l.TokenBudget, 0, 0)
	setInt(&l.Nudges, 2, 0)
	setInt(&l.Retries, 2, 0)
	setInt(&l.Repeats, 3, 0)
	setInt(&l.StepTokens, 2048, 0)
	setInt(&l.AnswerTokens, 4096, 0)
	setInt(&l.ReplyBytes, 256<<10, 64<<20)
	setInt(&l.WholeRounds, 3, 0)
	setInt(&l.CallsPerReply, 20, 0)
	setInt(&l.ResultBytes, resultBytes, unbounded)
	setDuration(&l.TurnTimeout, 10*time.Minute)
	setDuration(&l.CallTimeout, 2*time.Minute)
	setDuration(&l.FirstToken, 5*time.Minute)
	return l
}

// checkLimits forces the answer when the steps are used up, when the next prompt would exceed the token budget, or,
// after the first step, when less time is left than [turn.answerReserve]. It does nothing when there are no tools or
// the answer is forced already. It is called before each model call.
func (t *turn) checkLimits() {
	if t.state.Forced || len(t.tools) == 0 {
		return
	}
	used, spent := t.state.Usage.Prompt+t.state.Usage.Output, t.spent()
	switch {
	case t.state.Step >= t.limits.Steps:
		t.forceAnswer(NoteStepCap, fmt.Sprintf("%s with tools %s used up; the answer was asked for without tools",
			countNoun(t.limits.Steps, "step"), wasOrWere(t.limits.Steps)))
	case t.limits.TokenBudget > 0 && used+t.estimateNextPrompt() > t.limits.TokenBudget:
		t.forceAnswer(NoteTokenBudget, fmt.Sprintf("%d of %d tokens were used; the answer was asked for without tools",
			used, t.limits.TokenBudget))
	case t.limits.TurnTimeout > 0 && t.state.Step > 0 && t.limits.TurnTimeout-spent < t.answerReserve():
		t.forceAnswer(NoteTurnTimeout, fmt.Sprintf("%s of %s were used; the answer was asked for without tools",
			spent.Round(time.Second), t.limits.TurnTimeout))
	}
}

// estimateNextPrompt is the estimated tokens of the whole conversation with the system message and native tool
// definitions, as if nothing were dropped or shortened.
func (t *turn) estimateNextPrompt() int {
	sum := t.prompt.systemCost + t.prompt.summaryCost + t.prompt.toolCost
	for _, h := range t.prompt.turns {
		sum += h.cost
	}
	for _, c := range t.prompt.costs {
		sum += c
	}
	return sum
}

// answerReserve is the part of the turn's time that is reserved for the answer.
func (t *turn) answerReserve() time.Duration {
	r := t.limits.TurnTimeout / 5
	if t.limits.CallTimeout > 0 {
		r = min(r, t.limits.CallTimeout)
	}
	return r
}

// forceAnswer stops offering tools: the next reply must be the answer.
func (t *turn) forceAnswer(code, text string) {
	t.state.Forced = true
	t.addNote(code, text)
}

// useRetry uses up one retry and notes it with its reason why. It reports false, without a note, when none is left.
func (t *turn) useRetry(why string) bool {
	if t.state.Attempts.Retries >= t.limits.Retries {
		return false
	}
	t.state.Attempts.Retries++
	t.addNote(NoteRetried, fmt.Sprintf("%s; retry %d of %d", why, t.state.Attempts.Retries, t.limits.Retries))
	return true
}

// retryUnreadable handles a reply that is empty or has an unreadable call. While retries are left it asks again with
// the instruction, then without tools, then with the final instruction; after that it ends the turn with the tool
// results. nil means that the turn goes on or is final; the only error is that of the last checkpoint.
func (t *turn) retryUnreadable(ctx context.Context, r reply, instruction string) error {
	t.reportInterim(t.state.Step+1, r.text)
	t.appendThinking(r.thinking)
	switch {
	case !t.state.Forced && t.useRetry(t.describeUnreadable(r, instruction)):
		t.setCorrection(r.text, instruction)
		return nil
	case !t.state.Forced && t.state.Calls == CallText && len(t.tools) > 0:
		t.giveUpTools()
	case !t.state.Forced:
		t.forceAnswer(NoteRetried, "no readable reply came; the answer was asked for without tools")
	case !t.lastAttempt:
		t.lastAttempt = true
	default:
		return t.finishWithoutModel(ctx)
	}
	t.setCorrection("", "")
	return nil
}

// describeUnreadable returns the reason of a retry, for the user. A call of a tool that is not offered also gets a note
// of its own.
func (t *turn) describeUnreadable(r reply, instruction string) string {
	switch {
	case r.unknownTool != "":
		t.addNote(NoteUnknown, "the model called "+clip(r.unknownTool, 64)+", which is not offered")
		return "the reply named a tool that is not offered"
	case r.unreadable != "":
		return r.unreadable
	case instruction == instructMalformed:
		return "the reply could not be read"
	case instruction == instructCopied:
		return "the reply was copied from the prompt"
	case instruction == instructDropped:
		return "the reply was empty although the model wrote something: its call could not be read"
	}
	return "the reply was empty"
}

// finishWithoutModel ends the turn with a partial answer that is not the model's: the results of the calls that
// succeeded, each clipped to 600 characters, or a sentence that there is no answer. The error is that of the
// checkpoint.
func (t *turn) finishWithoutModel(ctx context.Context) error {
	t.addNote(NoteEmpty, "the model gave no answer; this text is not the model's")
	var b strings.Builder
	for _, d := range t.state.Finished {
		if d.Result.Fault != "" || d.Layer == LayerRecall { // an entry that was recalled is no answer
			continue
		}
		if b.Len() == 0 {
			b.WriteString("The model gave no answer. This is what the tools returned:\n")
		}
		fmt.Fprintf(&b, "\n%s %s:\n%s\n", d.Call.Name, clip(string(d.Call.Arguments), 120),
			clip(strings.TrimSpace(d.Result.Text), 600))
	}
	if b.Len() == 0 {
		b.WriteString("The model gave no answer. Please ask again, perhaps in other words.")
	}
	return t.finish(ctx, strings.TrimSpace(b.String()), true)
}

// hasToolResult reports whether a call of this turn other than the recall succeeded, that is, has a result without a
// fault.
func (t *turn) hasToolResult() bool {
	return slices.ContainsFunc(t.state.Finished, func(d FinishedCall) bool {
		return d.Result.Fault == "" && d.Layer != LayerRecall
	})
}

// hasCalls reports whether the turn has made a call other than the recall.
func (t *turn) hasCalls() bool {
	return slices.ContainsFunc(t.state.Finished, func(d FinishedCall) bool { return d.Layer != LayerRecall })
}

// nudge prepares another model call when the reply announces an action without a call. It reports false, and the reply
// stands, when it does not, no tools were offered or [Limits.Nudges] is used up.
func (t *turn) nudge(r reply) bool {
	if !r.offeredTools || t.state.Attempts.Nudges >= t.limits.Nudges || !announcesAction(r.text) {
		return false
	}
	t.announced = r.text
	t.state.Attempts.Nudges++
	t.addNote(NoteNudged, fmt.Sprintf("the model announced an action but made no call; nudge %d of %d",
		t.state.Attempts.Nudges, t.limits.Nudges))
	t.reportInterim(t.state.Step+1, r.text)
	t.appendThinking(r.thinking)
	t.setCorrection(r.text, instructAnnounce)
	return true
}

// handleHedge handles an answer that says it cannot know current facts: one more model call when there are results,
// otherwise one search call by the loop when no call ran. Each happens once in a turn. goesOn false means that r is not
// a hedge or nothing is left to do about it: r is the answer. The error is that of the checkpoint.
func (t *turn) handleHedge(ctx context.Context, r reply) (goesOn bool, err error) {
	search, reask := t.canSearch(), t.canReask()
	if !search && !reask || !isHedge(r.text) {
		return false, nil
	}
	t.reportInterim(t.state.Step+1, r.text)
	t.appendThinking(r.thinking)
	if reask {
		t.state.Attempts.Reask++
		t.addNote(NoteReasked, "the answer hedged although there are results; asked once more")
		t.setCorrection(r.text, instructUseResults)
		return true, nil
	}
	t.state.Attempts.Search++
	t.addNote(NoteSearched, "the answer hedged and no tool had run; "+t.agent.Hedge.SearchTool+" was called for it")
	args := newObject(
		[]strict.Member{
			{
				Name:  "query",
				Value: newString(firstRunes(strings.Join(strings.Fields(t.agent.Hedge.Query), " "), maxHedgeQuery)),
			},
		}).Text
	call := foundCall{
		Call:  model.Call{Name: t.agent.Hedge.SearchTool, Arguments: json.RawMessage(args)},
		layer: LayerSafety,
	}
	return true, t.acceptCalls(ctx, reply{calls: []foundCall{call}})
}

// canSearch reports whether the search after a hedge is possible and still unused.
func (t *turn) canSearch() bool {
	return t.agent.Hedge.SearchTool != "" && t.agent.Hedge.Query != "" && t.tools.has(t.agent.Hedge.SearchTool) &&
		!t.hasCalls() &&
		t.state.Attempts.Search == 0 && !t.state.Forced && !t.toolsGivenUp
}

// canReask reports whether the model call after a hedge is possible and still unused.
func (t *turn) canReask() bool {
	return t.agent.Hedge.Reask && t.state.Attempts.Reask == 0 && t.hasToolResult() && !t.hasNote(NoteTurnTimeout) &&
		!t.hasNote(NoteTokenBudget)
}

// maxHedgeQuery bounds the query of the search after a hedge, in characters.
const maxHedgeQuery = 400
