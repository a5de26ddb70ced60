package loop

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"conclave/pkg/model"
)

// seed of the hashes by which calls and results are compared. They never leave the process.
var seed = maphash.MakeSeed()

// withDefaults fills in what is zero. A negative number means none: none of these for Nudges, Retries and Verbatim, and
// no bound for the rest. Most is bounded even so.
func (l Limits) withDefaults(window int) Limits {
	def := func(v *int, d, none int) {
		if *v == 0 {
			*v = d
		} else if *v < 0 {
			*v = none
		}
	}
	const unbounded = int(^uint(0) >> 2)
	def(&l.Steps, 5, unbounded)
	def(&l.TokenBudget, 0, 0)
	def(&l.Nudges, 2, 0)
	def(&l.Retries, 2, 0)
	def(&l.Repeats, 3, 0)
	def(&l.StepTokens, 2048, 0)
	def(&l.AnswerTokens, 4096, 0)
	def(&l.ReplyBytes, 256<<10, 64<<20)
	def(&l.WholeRounds, 3, 0)
	def(&l.CallsPerReply, 8, 0)
	share := 32 << 10
	if window > 0 {
		share = max(512, window/4*3) // a quarter of the tokens, at three bytes each
	}
	def(&l.ResultBytes, share, unbounded)
	dur := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
		*v = max(0, *v)
	}
	dur(&l.TurnTimeout, 10*time.Minute)
	dur(&l.CallTimeout, 2*time.Minute)
	return l
}

// checkLimits looks at the bounds of the turn before each call. Beyond one of them the next reply must be the answer.
func (t *turn) checkLimits() {
	if t.state.Forced || len(t.tools) == 0 {
		return
	}
	used := t.state.Usage.Prompt + t.state.Usage.Output
	switch {
	case t.state.Step >= t.limits.Steps:
		t.forceAnswer(NoteStepCap, fmt.Sprintf("%s with tools %s used up; the answer was asked for without tools",
			countNoun(t.limits.Steps, "step"), wasOrWere(t.limits.Steps)))
	case t.limits.TokenBudget > 0 && used+t.estimateNextPrompt() > t.limits.TokenBudget:
		t.forceAnswer(NoteTokenBudget, fmt.Sprintf("%d of %d tokens were used; the answer was asked for without tools", used, t.limits.TokenBudget))
	case t.limits.TurnTimeout > 0 && t.state.Step > 0 && t.limits.TurnTimeout-t.spentAt(t.now) < t.answerReserve():
		t.forceAnswer(NoteTurnTimeout, fmt.Sprintf("%s of %s were used; the answer was asked for without tools",
			t.spentAt(t.now).Round(time.Second), t.limits.TurnTimeout))
	}
}

// estimateNextPrompt is about what the next prompt costs: as much as the last one.
func (t *turn) estimateNextPrompt() int {
	sum := t.prompt.sysCost[0] + t.prompt.sumCost + t.prompt.toolCost
	for _, h := range t.prompt.turns {
		sum += h.cost
	}
	for _, c := range t.prompt.costs {
		sum += c
	}
	return sum
}

// answerReserve is the time that is kept for the answer.
func (t *turn) answerReserve() time.Duration {
	r := t.limits.TurnTimeout / 5
	if t.limits.CallTimeout > 0 {
		r = min(r, t.limits.CallTimeout)
	}
	return r
}

// forceAnswer makes the next reply the answer.
func (t *turn) forceAnswer(code, text string) {
	t.state.Forced = true
	t.addNote(code, text)
}

// useRetry reports whether another try is left, and takes it.
func (t *turn) useRetry(why string) bool {
	if t.state.Attempts.Retries >= t.limits.Retries {
		return false
	}
	t.state.Attempts.Retries++
	t.addNote(NoteRetried, fmt.Sprintf("%s; asked again (%d of %d)", why, t.state.Attempts.Retries, t.limits.Retries))
	return true
}

// retryUnreadable is a reply that is empty or holds a call that cannot be read. It is asked again with say, then without
// tools, then in the plainest words; after that the words are ours.
func (t *turn) retryUnreadable(ctx context.Context, r reply, say string) error {
	t.reportInterim(t.state.Step+1, r.text)
	t.appendThinking(r.thinking)
	if !t.state.Forced {
		why := "the reply was empty"
		switch {
		case r.unknownTool != "":
			t.addNote(NoteUnknown, "the model asked for "+clip(r.unknownTool, 64)+", which is not offered")
			why = "the reply named a tool that is not offered"
		case r.unreadable != "":
			why = r.unreadable
		case say == sayMalformed:
			why = "the reply could not be read"
		case say == sayDropped:
			why = "the reply was empty although the model wrote something: its call could not be read"
		}
		if t.useRetry(why) {
			t.setCorrection(r.text, say)
			return nil
		}
		t.setCorrection("", "")
		if t.state.TextTools && len(t.tools) > 0 {
			t.giveUpTools()
		} else {
			t.forceAnswer(NoteRetried, "no readable reply came; the answer was asked for without tools")
		}
		return nil
	}
	if !t.lastAttempt {
		t.lastAttempt = true
		t.setCorrection("", "")
		return nil
	}
	return t.finishWithoutModel(ctx)
}

// finishWithoutModel ends the turn with words of our own: what the tools returned, or that nothing came.
func (t *turn) finishWithoutModel(ctx context.Context) error {
	t.addNote(NoteEmpty, "the model gave no answer; these words are not the model's")
	var b strings.Builder
	for _, d := range t.state.Finished {
		if d.Result.Fault != "" {
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

// hasToolResult reports whether some call of this turn worked.
func (t *turn) hasToolResult() bool {
	for i := range t.state.Finished {
		if t.state.Finished[i].Result.Fault == "" {
			return true
		}
	}
	return false
}

// nudge asks again when the reply only says what it would do, or claims what did not happen.
func (t *turn) nudge(r reply) bool {
	if !r.offeredTools || t.state.Attempts.Nudges >= t.limits.Nudges {
		return false
	}
	say, why := "", ""
	switch {
	case announcesAction(r.text):
		say, why = sayAnnounce, "the model said what it would do, but made no call"
	case !t.claimCorrected && len(t.state.Finished) == 0 && claimsAction(r.text, t.tools):
		t.claimCorrected = true
		say, why = sayClaimed, "the model said that something was done, but no call was made"
	default:
		return false
	}
	t.state.Attempts.Nudges++
	t.addNote(NoteNudged, fmt.Sprintf("%s; asked again (%d of %d)", why, t.state.Attempts.Nudges, t.limits.Nudges))
	t.reportInterim(t.state.Step+1, r.text)
	t.appendThinking(r.thinking)
	t.setCorrection(r.text, say)
	return true
}

// handleHedge deals with an answer that says it cannot know: one search of our own when no tool ran, or one more question
// when results are there. It reports whether the turn goes on.
func (t *turn) handleHedge(ctx context.Context, r reply) (bool, error) {
	search, reask := t.canSearch(), t.canReask()
	if !search && !reask || !isHedge(r.text) {
		return false, nil
	}
	t.reportInterim(t.state.Step+1, r.text)
	t.appendThinking(r.thinking)
	if reask {
		t.state.Attempts.Reask++
		t.addNote(NoteReasked, "the answer said it cannot know, although results are there; asked once more")
		t.setCorrection(r.text, sayUseResults)
		return true, nil
	}
	t.state.Attempts.Search++
	t.addNote(NoteSearched, "the answer said it cannot know, and no tool had run; "+t.agent.Hedge.SearchTool+" was called for it")
	args := append(append([]byte(`{"query":`), encodeString(t.searchQuery())...), '}')
	call := foundCall{Call: model.Call{Name: t.agent.Hedge.SearchTool, Arguments: args}, layer: LayerSafety}
	return true, t.acceptCalls(ctx, reply{calls: []foundCall{call}})
}

// canSearch reports whether the one search of our own is left.
func (t *turn) canSearch() bool {
	return t.agent.Hedge.SearchTool != "" && t.tools.has(t.agent.Hedge.SearchTool) && len(t.state.Finished) == 0 && t.state.Attempts.Search == 0 &&
		!t.state.Forced && !t.toolsGivenUp
}

// canReask reports whether the one more question is left.
func (t *turn) canReask() bool {
	return t.agent.Hedge.Reask && t.state.Attempts.Reask == 0 && t.hasToolResult() && !t.hasNote(NoteTurnTimeout) && !t.hasNote(NoteTokenBudget)
}

// searchQuery is what the user asked, short enough to search for.
func (t *turn) searchQuery() string {
	for i := len(t.state.Messages) - 1; i >= 0; i-- {
		if m := &t.state.Messages[i]; m.Role == model.User {
			return firstRunes(strings.Join(strings.Fields(m.Content), " "), 400)
		}
	}
	return ""
}

// repetition is how often a call came to the same result in a row.
type repetition struct {
	call, result uint64
	times        int
}

// findRepetition is what is known of a call; nil when it was not made yet.
func (t *turn) findRepetition(call uint64) *repetition {
	for i := range t.repetitions {
		if t.repetitions[i].call == call {
			return &t.repetitions[i]
		}
	}
	return nil
}

// callHash is the same for calls that ask for the same.
func callHash(c *model.Call) uint64 {
	return mix(maphash.String(seed, c.Name)) + same(seed, c.Arguments)
}

// countCall counts a finished call; key is its hash, 0 when it is not known. One that did not run says nothing.
func (t *turn) countCall(d *FinishedCall, key uint64) {
	if t.limits.Repeats <= 0 || isRefusal(d.Result.Fault) {
		return
	}
	if key == 0 {
		key = callHash(&d.Call)
	}
	result := maphash.String(seed, d.Result.Text) + mix(maphash.String(seed, d.Result.Fault))
	was := t.findRepetition(key)
	switch {
	case was == nil:
		t.repetitions = append(t.repetitions, repetition{key, result, 1})
	case was.result == result:
		was.times++
	default:
		was.result, was.times = result, 1
	}
}

// isRepeated reports whether the i-th call of a reply would come to the same result too often. before are the calls ahead
// of it.
func (t *turn) isRepeated(c *model.Call, i int, before []model.Call) bool {
	if t.limits.Repeats <= 0 {
		return false
	}
	key := callHash(c)
	if i < len(t.keys) {
		t.keys[i] = key
	}
	n := 0
	if was := t.findRepetition(key); was != nil {
		n = was.times
	}
	for i := range before {
		if before[i].Name == c.Name && callHash(&before[i]) == key {
			n++
		}
	}
	return n >= t.limits.Repeats-1
}

// forceWhenStuck forces the answer when the model goes on repeating after it was refused.
func (t *turn) forceWhenStuck() {
	if t.state.Forced {
		return
	}
	steps, last := 0, -1
	for i := range t.state.Finished {
		if d := &t.state.Finished[i]; d.Result.Fault == FaultRepeated && d.Step != last {
			steps, last = steps+1, d.Step
		}
	}
	if steps >= 2 {
		t.forceAnswer(NoteRepeated, "the model went on repeating a call; the answer was asked for without tools")
	}
}
