package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/model"
)

// Causes of contexts that ran into a limit: of one model call (with a [TimeoutError]), of the turn.
var (
	errCallTimeout = errors.New("model call timeout")
	errTurnTimeout = errors.New("turn timeout")
)

// A busy server, and a model actor that is not running, is asked again with exponential backoff from firstBackoff to
// lastBackoff, within the time of one call.
const (
	firstBackoff = 250 * time.Millisecond
	lastBackoff  = 8 * time.Second
)

// callModel makes the model calls of one step, one or in constrained mode up to three, and adds their usage. A
// [silenceTimer] bounds each. A server that is back soon is asked again with backoff, up to lastBackoff, while there is
// neither text nor a call. With an error the reply holds what came before it, without the text of a decision;
// reply.timedOut says that a timeout was the cause.
func (t *turn) callModel(ctx context.Context) (reply, error) {
	offer := t.offersTools()
	if offer && t.state.Calls == CallConstrained {
		return t.decide(ctx)
	}
	t.addRecalled()
	if offer {
		return t.requestReply(ctx, true, t.limits.StepTokens)
	}
	return t.requestReply(ctx, false, t.limits.AnswerTokens)
}

// requestReply sends one request and reads its reply: see [turn.callModel]. offer says whether the reply may have
// calls, predict is the most tokens that the model may write.
func (t *turn) requestReply(ctx context.Context, offer bool, predict int) (reply, error) {
	if t.moreTokens {
		predict *= 2
	}
	req, estimate := t.buildRequest(offer, predict)
	t.lastSent = estimate
	ctx, timer := startSilenceTimer(ctx, t.limits, t.agent.Settings)
	defer timer.stop()
	if t.hooks.Generating != nil {
		t.hooks.Generating(t.state.Step + 1)
	}
	t.hostKnown = false
	r, err := t.readReply(ctx, req, timer)
	for wait := firstBackoff; isBackSoon(err) && r.isEmpty() && wait <= lastBackoff; wait *= 2 {
		if !Sleep(ctx, wait) {
			break
		}
		r, err = t.readReply(ctx, req, timer)
	}
	r.offeredTools = offer
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errCallTimeout) {
		r.timedOut, err = true, fmt.Errorf("%w: %w", cause, err)
	}
	if err != nil && !t.hostKnown && ctx.Err() == nil && r.isEmpty() && r.thinking == "" {
		// given to no model, so it stayed here
		t.addHost("")
	}
	t.addUsage(&r, estimate, err)
	return r, err
}

// addHost adds a host that gets the prompt of a call, "" for this machine.
func (t *turn) addHost(host string) {
	t.hostKnown = true
	if u := &t.state.Usage; !slices.Contains(u.Hosts, host) {
		u.Hosts = append(slices.Clip(u.Hosts), host)
	}
}

// isBackSoon reports whether the model server is busy, or the model actor restarts.
func isBackSoon(err error) bool {
	return errors.Is(err, model.ErrBusy) || errors.Is(err, model.ErrAway)
}

// Sleep waits for d and reports true, or false as soon as ctx ends.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// addUsage adds the tokens of a call to the turn's usage; err is the error of the call, estimate the estimated prompt
// tokens. Counts that the server leaves out are estimated, so that the token budget holds in any case. A failed call
// without any output, such as one that was rejected, adds no tokens.
func (t *turn) addUsage(r *reply, estimate int, err error) {
	u := &t.state.Usage
	u.Calls++
	if err != nil && r.isEmpty() && r.thinking == "" {
		return
	}
	prompt, output := r.final.PromptTokens, r.final.OutputTokens
	if output <= 0 {
		output = estimateTokens(r.text) + estimateTokens(r.thinking)
	}
	u.Output += output
	if prompt > 0 {
		u.Prompt += prompt
	} else {
		u.Prompt += estimate
	}
	if r.final.Model != "" {
		u.Model = r.final.Model
	}
	t.compareCounts(estimate, prompt)
}

// offersTools reports whether the next model call offers tools.
func (t *turn) offersTools() bool { return len(t.tools) > 0 && !t.state.Forced && !t.toolsGivenUp }

// handleFailure decides about a model call that failed with err; r is what came before. It retries a malformed or
// broken-off reply, degrades when the model lacks tools or thinking, and shrinks a too long prompt once. A timeout ends
// the turn with the text or results so far. nil means that the turn goes on or is final; an error ends it without a
// complete answer: a stop, a call timeout without text or results, any other failure.
func (t *turn) handleFailure(ctx, wall context.Context, r reply, err error) error {
	switch {
	case ctx.Err() != nil || isUnknownError(err) && awaitStop(ctx):
		t.appendThinking(r.thinking)
		return t.stop(ctx, r.text)
	case wall.Err() != nil:
		t.appendThinking(r.thinking)
		return t.finishTimedOut(ctx, r.text)
	case r.timedOut:
		return t.finishLate(ctx, r, err)
	case errors.Is(err, model.ErrNoTools) && !t.toolsGivenUp, errors.Is(err, model.ErrUnsupported) &&
		t.state.Calls == CallConstrained:
		t.degradeTools()
		return nil
	case errors.Is(err, model.ErrNoThinking) && t.agent.Think != nil && !t.thinkingOff:
		t.thinkingOff = true
		t.addNote(NoteNoThinking, "the model does not support thinking; retried without")
		return nil
	case errors.Is(err, model.ErrTooLong) && t.promptCap == 0:
		t.shrinkPrompt()
		return nil
	case errors.Is(err, model.ErrMalformed):
		return t.retryUnreadable(ctx, r, instructMalformed)
	case (errors.Is(err, model.ErrCut) || errors.Is(err, model.ErrAway) && r.text != "") &&
		t.useRetry("the reply broke off"):
		t.reportInterim(t.state.Step+1, r.text)
		t.setCorrection("", instructCut)
		return nil
	}
	t.addNote(NoteFailed, "the model failed: "+clip(err.Error(), 300))
	t.appendThinking(r.thinking)
	t.state.Answer, t.state.Partial = r.text, true
	return fmt.Errorf("calling the model: %w", err)
}

// isUnknownError reports whether err is none of the errors of package model and no timeout. A cancellation is unknown,
// too.
func isUnknownError(err error) bool {
	return !model.IsAny(err, model.ErrUnreachable, model.ErrMissing, model.ErrNoTools, model.ErrNoThinking,
		model.ErrTooLong, model.ErrBusy, model.ErrMalformed, model.ErrCut, model.ErrRemote, model.ErrUnsupported,
		model.ErrUnauthorized, errCallTimeout, errTurnTimeout, context.DeadlineExceeded)
}

// awaitStop reports whether ctx ends within stopWait. The model may learn of a stop before ctx ends: its error about
// the stop must not count as a failure.
func awaitStop(ctx context.Context) bool { return !Sleep(ctx, stopWait) }

const stopWait = 250 * time.Millisecond

// finishLate ends the turn after a model call that timed out with err, which wraps a *TimeoutError: with its text as a
// partial answer, or else with the tool results. Without either it returns an error that wraps err.
func (t *turn) finishLate(ctx context.Context, r reply, err error) error {
	text := err.Error()
	if timeout := (*TimeoutError)(nil); errors.As(err, &timeout) {
		text = timeout.Error()
	}
	t.appendThinking(r.thinking)
	switch {
	case r.text != "":
		t.addNote(NoteCut, text+"; the answer is incomplete")
		return t.finish(ctx, r.text, true)
	case t.hasToolResult():
		t.addNote(NoteFailed, text)
		return t.finishWithoutModel(ctx)
	}
	t.addNote(NoteFailed, text)
	t.state.Partial = true
	return fmt.Errorf("calling the model: %w", err)
}

// degradeTools goes from native or constrained calls to the text form, and from there to no tools, with a note each
// time.
func (t *turn) degradeTools() {
	if t.state.Calls == CallText {
		t.giveUpTools()
		return
	}
	t.state.Calls = CallText
	t.addNote(NoteNoTools, textToolsNote)
}

// giveUpTools has the model answer from the prompt alone.
func (t *turn) giveUpTools() {
	t.toolsGivenUp, t.state.Calls, t.state.Forced = true, CallText, true
	t.addNote(NoteStatic, "the model cannot call tools in text form either; it answers without tools")
}

// shrinkPrompt caps the next prompt at 60 % of the one that the server rejected as too long, or of the window.
func (t *turn) shrinkPrompt() {
	t.promptCap = max(1, t.lastSent*6/10)
	if w := t.agent.Options.Window; w > 0 {
		t.promptCap = min(t.promptCap, w*6/10)
	}
}
