package loop

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/pkg/model"
)

// turn is a running turn. Only the goroutine of [RunTurn] touches it.
type turn struct {
	agent   Agent
	hooks   Hooks
	limits  Limits
	state   State
	prompt  promptParts
	tools   toolNames
	history []model.Message // earlier turns, as in [Input]
	// recalled is [Input.Recalled] until [turn.addRecalled].
	recalled *FinishedCall
	summary  string

	start       time.Time
	spentBefore time.Duration // State.Spent at the start: time used before a restart

	copied      copiedCalls
	correction  []model.Message // appended to each request until the next reply that is accepted; not part of the state
	repetitions map[string]*repetition
	callKeys    map[string]string // by the id of the call

	schema            json.RawMessage // of the next reply, which is then not the answer; nil = none
	instruction       string          // last message of the next request of a constrained step; "" = none
	decision          []model.Message // all messages of the next request, which decides about the question; nil = none
	answersFromRecall bool            // the recalled statements answer the question
	instructed        bool            // an instruction of the loop was sent
	announced         string          // the last reply, which announced an action without a call; "" = none

	moreTokens   bool // the next model call may write twice as many tokens
	lastAttempt  bool // the answer was asked for with the final instruction after an empty reply
	toolsGivenUp bool // no tools are offered any more, not even in text form
	thinkingOff  bool // the model rejected thinking

	hostKnown    bool    // the host that gets the prompt of the last model call is in Usage.Hosts
	lastSent     int     // estimated tokens of the last request
	promptCap    int     // most prompt tokens after the server rejected a prompt as too long; 0 = as the window allows
	countRatio   float64 // largest ratio of the server's token count to the estimate in this turn; 0 = unknown
	lastEstimate int     // estimate of the last request whose prompt the server counted
	notedPlan    promptPlan
}

// RunTurn runs a turn to its end, waits for it, and returns its last state. A state that is final is returned
// unchanged; one without messages is rejected. The answer is never empty, except with an error: then the state holds
// the progress so far, the error wraps that of the model, the checkpoint or the context, and the caller words it for
// the user. The turn timeout is no error, nor is a call timeout when there is text or a tool result to answer with.
func RunTurn(ctx context.Context, a Agent, in Input, h Hooks) (State, error) {
	if in.State.Final {
		return in.State, nil
	}
	if len(in.State.Messages) == 0 {
		return in.State, errors.New("running the turn: no question")
	}
	t := &turn{agent: a, hooks: h, limits: a.Limits.withDefaults(a.Options.Window), state: in.State}
	t.restore(in)
	wall := ctx
	if t.limits.TurnTimeout > 0 {
		var cancel context.CancelFunc
		wall, cancel = context.WithTimeoutCause(ctx, t.limits.TurnTimeout-t.spentBefore, errTurnTimeout)
		defer cancel()
	}
	var err error
	for err == nil && !t.state.Final {
		err = t.step(ctx, wall)
	}
	t.state.Spent = t.spent()
	return t.state, err
}

// restore sets up the turn from its input; t.agent, t.limits and t.state must be set. It writes to nothing that the
// caller holds.
func (t *turn) restore(in Input) {
	if t.agent.Now == nil {
		t.agent.Now = time.Now
	}
	if t.agent.NewID == nil {
		t.agent.NewID = func() string { return "call_" + rand.Text() }
	}
	t.start, t.spentBefore = t.agent.Now(), t.state.Spent
	s := &t.state
	s.Messages, s.Finished = slices.Clip(s.Messages), slices.Clip(s.Finished)
	s.Notes, s.Layers = slices.Clip(s.Notes), slices.Clip(s.Layers)
	s.Answer, s.Partial = "", false
	s.Calls = cmp.Or(s.Calls, t.agent.Calls, CallNative)
	t.toolsGivenUp, t.thinkingOff = t.hasNote(NoteStatic), t.hasNote(NoteNoThinking)
	for i := range t.agent.Tools {
		t.tools = append(t.tools, t.agent.Tools[i].Name)
	}
	if s.Calls == CallText && len(t.tools) > 0 && !t.hasNote(NoteNoTools) {
		t.addNote(NoteNoTools, textToolsNote)
	}
	t.history, t.summary = in.History, in.Summary
	if in.Recalled != nil && t.finishedIndex(in.Recalled.Call.ID) < 0 {
		t.recalled = in.Recalled
	}
	t.copied.turn = t
	t.preparePrompt()
	t.repetitions, t.callKeys = map[string]*repetition{}, map[string]string{}
	for i := range s.Finished {
		t.countCall(&s.Finished[i])
	}
}

// step runs the calls that have no result yet, or else makes one model call. ctx ends when the user stops the turn,
// wall also when the turn is out of time. nil means that the turn goes on or is final; an error ends it.
func (t *turn) step(ctx, wall context.Context) error {
	switch {
	case ctx.Err() != nil:
		return t.stop(ctx, "")
	case wall.Err() != nil:
		return t.finishTimedOut(ctx, "")
	}
	if at := t.openRound(); at >= 0 {
		return t.runRound(ctx, wall, at)
	}
	t.checkLimits()
	r, err := t.callModel(wall)
	t.moreTokens = false
	if err != nil {
		return t.handleFailure(ctx, wall, r, err)
	}
	return t.handleReply(ctx, r)
}

// handleReply decides what a complete reply is: calls, the answer, or a reason to ask again (unreadable, empty, over
// its token limit, announcing or hedging). Calls in a reply to a request without tools are never run. nil means that
// the turn goes on or is final; the only error is that of a checkpoint.
func (t *turn) handleReply(ctx context.Context, r reply) error {
	calls := r.calls
	if !r.offeredTools {
		r.calls = nil // calls without an offer are never run
	}
	if len(r.calls) == 0 && r.unreadable == "" {
		r.text, r.copied = t.cleanAnswer(r.text)
	}
	switch {
	case len(r.calls) > 0:
		if r.hitByteLimit {
			t.noteOversized()
		}
		return t.acceptCalls(ctx, r)
	case r.hitTokenLimit && t.retryWithMoreTokens(r):
		return nil
	case r.unreadable != "" && (r.offeredTools || r.text == ""):
		return t.retryUnreadable(ctx, r, instructUnreadable(r.unreadable, r.unknownTool, t.tools))
	case r.text == "" && r.copied:
		return t.retryUnreadable(ctx, r, instructCopied)
	case r.text == "" && len(calls) == 0 && r.final.OutputTokens > 0:
		return t.retryUnreadable(ctx, r, instructDropped)
	case r.text == "":
		return t.retryUnreadable(ctx, r, instructEmpty)
	case r.hitTokenLimit || r.hitByteLimit || r.repeats:
		return t.finishCutOff(ctx, r)
	case t.nudge(r):
		return nil
	}
	if goesOn, err := t.handleHedge(ctx, r); goesOn || err != nil {
		return err
	}
	t.appendThinking(r.thinking)
	return t.finish(ctx, r.text, false)
}

// retryWithMoreTokens allows the next model call twice the output tokens, once in a turn, and discards r. It reports
// false when that was done before, or when the reply is too large to be read anyway.
func (t *turn) retryWithMoreTokens(r reply) bool {
	if t.state.Attempts.MoreTokens > 0 || r.hitByteLimit {
		return false
	}
	t.state.Attempts.MoreTokens++
	t.moreTokens = true
	t.addNote(NoteMoreTokens, "the reply hit its token limit; retried with twice the limit")
	t.reportInterim(t.state.Step+1, r.text)
	return true
}

// finishCutOff ends the turn with the text of r, an answer that hit a limit of tokens or bytes or repeats itself, as a
// partial answer. The error is that of the checkpoint.
func (t *turn) finishCutOff(ctx context.Context, r reply) error {
	switch {
	case r.repeats:
		t.addNote(NoteCut, "the model wrote the same again and again, so its reply was ended there")
	case r.hitByteLimit:
		t.noteOversized()
	default:
		t.addNote(NoteCut, "the answer hit its token limit and is cut off there")
	}
	t.appendThinking(r.thinking)
	return t.finish(ctx, r.text, true)
}

func (t *turn) noteOversized() {
	t.addNote(NoteCut, fmt.Sprintf("the reply is longer than %d bytes; the rest was not read", t.limits.ReplyBytes))
}

// finish makes the state final with this answer and checkpoints it.
func (t *turn) finish(ctx context.Context, answer string, partial bool) error {
	t.state.Step++
	t.appendMessages(model.Message{Role: model.Assistant, Content: answer})
	t.state.Layers = nil
	t.state.Answer, t.state.Partial, t.state.Final = answer, partial, true
	return t.checkpoint(ctx)
}

// stop ends the turn because ctx ended, with the text that the model has written so far as a partial answer; the state
// is not final and can be resumed. It always returns an error, which wraps that of ctx and its cause.
func (t *turn) stop(ctx context.Context, text string) error {
	t.addNote(NoteStopped, "stopped before the answer was complete")
	t.state.Answer, t.state.Partial = text, true
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return fmt.Errorf("running the turn: %w", err)
	}
	return fmt.Errorf("running the turn: %w: %w", err, cause)
}

// finishTimedOut ends a turn that is out of time with a partial answer: the text so far, or else the tool results. The
// error is that of the checkpoint.
func (t *turn) finishTimedOut(ctx context.Context, text string) error {
	t.addNote(NoteTurnTimeout, fmt.Sprintf("the turn timed out after %s%s; the answer is incomplete",
		t.limits.TurnTimeout, nameSetting("wall", t.agent.Settings)))
	if text != "" {
		return t.finish(ctx, text, true)
	}
	return t.finishWithoutModel(ctx)
}

// appendMessages adds to the turn's messages. Slices that were handed out earlier are not overwritten.
func (t *turn) appendMessages(ms ...model.Message) {
	t.state.Messages = append(t.state.Messages, ms...)
	t.indexMessages()
}

// checkpoint hands the state to [Hooks.Checkpoint], if there is one. Its error ends the turn.
func (t *turn) checkpoint(ctx context.Context) error {
	if t.hooks.Checkpoint == nil {
		return nil
	}
	t.state.Spent = t.spent()
	if err := t.hooks.Checkpoint(ctx, &t.state); err != nil {
		return fmt.Errorf("writing a checkpoint: %w", err)
	}
	return nil
}

// spent is the time that the turn has taken, restarts not counted.
func (t *turn) spent() time.Duration { return t.spentBefore + t.agent.Now().Sub(t.start) }

// addNote adds a note and reports it. A note with the same code and text as an earlier one, and any beyond maxNotes, is
// dropped.
func (t *turn) addNote(code, text string) {
	n := Note{Code: code, Text: text}
	if len(t.state.Notes) >= maxNotes || slices.Contains(t.state.Notes, n) {
		return
	}
	t.state.Notes = append(t.state.Notes, n)
	if t.hooks.Note != nil {
		t.hooks.Note(n)
	}
}

// reportNote is addNote for a state that can come and go: it reports the note each time.
func (t *turn) reportNote(code, text string) {
	n := Note{Code: code, Text: text}
	if !slices.Contains(t.state.Notes, n) {
		t.addNote(code, text)
	} else if t.hooks.Note != nil {
		t.hooks.Note(n)
	}
}

// maxNotes bounds the notes of a turn.
const maxNotes = 64

func (t *turn) hasNote(code string) bool {
	return slices.ContainsFunc(t.state.Notes, func(n Note) bool { return n.Code == code })
}

// appendThinking adds to the thinking of the turn. It drops text once the thinking has reached [Limits.ReplyBytes].
func (t *turn) appendThinking(text string) {
	if text == "" || len(t.state.Thinking) >= t.limits.ReplyBytes {
		return
	}
	if t.state.Thinking != "" {
		t.state.Thinking += "\n\n"
	}
	t.state.Thinking += text
}

// reportInterim reports text of the model that is not the answer.
func (t *turn) reportInterim(step int, text string) {
	if text != "" && t.hooks.Interim != nil {
		t.hooks.Interim(step, text)
	}
}

// setCorrection sets the messages that end each request until calls are accepted: the model's own rejected text and an
// instruction. "" leaves either out; both "" remove the correction.
func (t *turn) setCorrection(text, instruction string) {
	t.correction = nil
	if text != "" {
		t.correction = append(t.correction, model.Message{Role: model.Assistant, Content: text})
	}
	if instruction != "" {
		t.correction = append(t.correction, model.Message{Role: model.User, Content: instruction})
	}
}
