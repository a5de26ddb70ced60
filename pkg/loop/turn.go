package loop

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"conclave/pkg/model"
)

// turn is a running turn.
type turn struct {
	agent       Agent
	hooks       Hooks
	limits      Limits
	state       State
	prompt      promptParts
	tools       toolNames
	history     []model.Message // of earlier turns
	summary     string          // of those before
	start       time.Time
	now         time.Time     // when the step began: to ask for the time costs as much as some steps
	clock       bool          // these are of the real clock
	spentBefore time.Duration // spent in earlier lives

	reader      replyReader
	copied      copiedCalls
	correction  []model.Message // what is said to the model only until its next good reply
	repetitions []repetition    // a few: looking through them is cheaper than a map
	keys        [4]uint64       // hashes of the first calls of the last message; 0 = not known
	batch       []FinishedCall  // the calls of one message while they run; its memory is used again
	apart       bool            // it goes on in a goroutine of its own
	phase       atomic.Int32    // of that one

	moreTokens     bool // the next reply gets twice the room
	lastAttempt    bool // the answer was asked for in the plainest words
	toolsGivenUp   bool // tools are given up
	thinkingOff    bool
	claimCorrected bool // a claim without a call was pointed out

	lastSent     int     // estimate of the last request
	promptCap    int     // most tokens of a prompt, after the server refused one; 0 = as the window says
	countRatio   float64 // of the server's count to our estimate, the largest in this turn; 0 = not known
	lastEstimate int
	notedPlan    promptPlan // what was said to be left out

	memory memory
}

// memory is where the slices of an ordinary turn begin, so that it asks for memory once. What the caller gets to hold on
// to is not in it.
type memory struct {
	costs  [12]int
	rounds [6]int
	calls  [4]repetition
	batch  [1]FinishedCall
	native [1]foundCall
	// Slices in the state are cut from these: one piece of memory for several messages.
	made   []model.Call
	layers []string
}

// RunTurn runs a turn to its end and returns its last state. The answer is never empty, except with an error: then the
// state holds what came before, the error wraps one of [model]'s or the context's, and words for the user are the
// caller's.
func RunTurn(ctx context.Context, a Agent, in Input, h Hooks) (State, error) {
	if in.State.Final {
		return in.State, nil
	}
	if len(in.State.Messages) == 0 {
		return in.State, errors.New("a turn needs a question")
	}
	t := &turn{agent: a, hooks: h, limits: a.Limits.withDefaults(a.Options.Window), state: in.State}
	t.restore(in)
	wall := ctx
	if t.limits.TurnTimeout > 0 {
		var cancel context.CancelFunc
		wall, cancel = context.WithDeadlineCause(ctx, t.real(t.start).Add(t.limits.TurnTimeout-t.spentBefore), errTurnTimeout)
		defer cancel()
	}
	err := t.run(ctx, wall)
	t.state.Spent = t.spent()
	return t.state, err
}

// restore takes up the state. What the caller holds is not written to.
func (t *turn) restore(in Input) {
	if t.agent.Now == nil {
		t.agent.Now, t.clock = time.Now, true
	}
	if t.agent.NewID == nil {
		t.agent.NewID = func() string { return "call_" + rand.Text() }
	}
	t.start, t.spentBefore = t.agent.Now(), t.state.Spent
	t.prompt.costs, t.prompt.rounds, t.repetitions = t.memory.costs[:0], t.memory.rounds[:0], t.memory.calls[:0]
	t.batch, t.reader.native = t.memory.batch[:0], t.memory.native[:0]
	t.state.Finished, t.state.Notes, t.state.Layers = slices.Clip(t.state.Finished), slices.Clip(t.state.Notes), slices.Clip(t.state.Layers)
	t.state.Answer, t.state.Partial = "", false
	t.state.TextTools = t.state.TextTools || t.agent.TextTools
	t.toolsGivenUp, t.thinkingOff = t.hasNote(NoteStatic), t.hasNote(NoteNoThinking)
	t.tools = make(toolNames, len(t.agent.Tools))
	for i := range t.agent.Tools {
		t.tools[i] = t.agent.Tools[i].Name
	}
	if t.agent.TextTools && len(t.tools) > 0 && !t.hasNote(NoteNoTools) {
		t.addNote(NoteNoTools, wordsOnly)
	}
	t.preparePrompt(in)
	for i := range t.state.Finished {
		t.countCall(&t.state.Finished[i], 0)
	}
}

// run goes on until there is an answer or an error.
func (t *turn) run(ctx, wall context.Context) error {
	for !t.state.Final {
		if err := t.step(ctx, wall); err != nil {
			return err
		}
	}
	return nil
}

// step is one step: the calls that wait, or a model call.
func (t *turn) step(ctx, wall context.Context) error {
	switch {
	case ctx.Err() != nil:
		return t.stop(ctx, "")
	case wall.Err() != nil:
		return t.finishTimedOut(ctx, "")
	}
	if at := t.openRound(); at >= 0 {
		if !t.apart && !t.agent.Obeys {
			return t.goOn(ctx, wall)
		}
		return t.dispatch(ctx, wall, at)
	}
	t.now = t.agent.Now()
	t.checkLimits()
	r, err := t.callModel(wall)
	t.moreTokens = false
	if err != nil {
		return t.handleFailure(ctx, wall, r, err)
	}
	return t.handleReply(ctx, r)
}

// handleReply decides what a complete reply is.
func (t *turn) handleReply(ctx context.Context, r reply) error {
	calls := r.calls
	if !r.offeredTools {
		r.calls = nil // nothing was offered: what is left of the reply is its words
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
		return t.retryUnreadable(ctx, r, sayBad(r.unreadable, r.unknownTool, t.tools))
	case r.text == "" && len(calls) == 0 && r.final.OutputTokens > 0:
		return t.retryUnreadable(ctx, r, sayDropped)
	case r.text == "":
		return t.retryUnreadable(ctx, r, sayEmpty)
	case r.hitTokenLimit || r.hitByteLimit:
		return t.finishCutOff(ctx, r)
	case t.nudge(r):
		return nil
	}
	if on, err := t.handleHedge(ctx, r); on || err != nil {
		return err
	}
	t.appendThinking(r.thinking)
	return t.finish(ctx, r.text, false)
}

// retryWithMoreTokens asks once more with twice the room.
func (t *turn) retryWithMoreTokens(r reply) bool {
	if t.state.Attempts.MoreTokens > 0 || r.hitByteLimit {
		return false
	}
	t.state.Attempts.MoreTokens++
	t.moreTokens = true
	t.addNote(NoteMoreTokens, "the reply hit its limit of tokens; asked again with twice the room")
	t.reportInterim(t.state.Step+1, r.text)
	return true
}

// finishCutOff keeps an answer that is longer than what is read or written.
func (t *turn) finishCutOff(ctx context.Context, r reply) error {
	if r.hitByteLimit {
		t.noteOversized()
	} else {
		t.addNote(NoteCut, "the answer hit its limit of tokens and is cut there")
	}
	t.appendThinking(r.thinking)
	return t.finish(ctx, r.text, true)
}

// noteOversized says that a reply was longer than what is read.
func (t *turn) noteOversized() {
	t.addNote(NoteCut, fmt.Sprintf("the reply is longer than %d bytes; the rest was not read", t.limits.ReplyBytes))
}

// finish writes the answer down.
func (t *turn) finish(ctx context.Context, answer string, partial bool) error {
	t.state.Step++
	t.appendMessages(model.Message{Role: model.Assistant, Content: answer})
	t.state.Layers = nil
	t.state.Answer, t.state.Partial, t.state.Final = answer, partial, true
	return t.checkpoint(ctx)
}

// stop keeps what is there when somebody stops the turn.
func (t *turn) stop(ctx context.Context, words string) error {
	t.addNote(NoteStopped, "stopped before the answer was complete")
	t.state.Answer, t.state.Partial = words, true
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return fmt.Errorf("running the turn: %w", err)
	}
	return fmt.Errorf("running the turn: %w: %w", err, cause)
}

// finishTimedOut ends a turn whose time is up with what is there.
func (t *turn) finishTimedOut(ctx context.Context, words string) error {
	t.addNote(NoteTurnTimeout, fmt.Sprintf("the turn took longer than %s; the answer is what there was until then", t.limits.TurnTimeout))
	if words != "" {
		return t.finish(ctx, words, true)
	}
	return t.finishWithoutModel(ctx)
}

// acceptCalls takes a reply with calls into the conversation. Calls that must not run are answered here, before anything is
// written down; the others run after that.
func (t *turn) acceptCalls(ctx context.Context, r reply) error {
	m := model.Message{Role: model.Assistant, Content: r.text, Thinking: r.thinking}
	t.keys = [4]uint64{}
	m.Calls = piece(&t.memory.made, len(r.calls))
	layers := piece(&t.memory.layers, len(r.calls))
	t.state.Step++
	from := len(t.state.Finished)
	for i := range r.calls {
		f := &r.calls[i]
		f.ID = t.assignID(f.ID, m.Calls)
		res, no := t.checkCall(&f.Call, i, m.Calls)
		if f.layer != LayerNative && f.layer != LayerSafety {
			t.addNote(NoteRecovered, "a call of "+f.Name+" was written as text ("+f.layer+") and read from it")
		}
		m.Calls = append(m.Calls, f.Call)
		layers = append(layers, f.layer)
		if no {
			t.state.Finished = append(t.state.Finished, FinishedCall{Call: f.Call, Layer: f.layer, Step: t.state.Step, Result: res})
		}
	}
	t.appendMessages(m)
	t.state.Layers = layers
	t.correction, t.lastAttempt = nil, false
	t.appendThinking(r.thinking)
	t.indexMessages()
	t.reportInterim(t.state.Step, r.text)
	if err := t.checkpoint(ctx); err != nil {
		return err
	}
	for _, d := range t.state.Finished[from:] {
		t.reportRefused(d)
	}
	return nil
}

// Faults of calls that the loop answers itself. They are the bus's codes where it has one.
const (
	FaultInvalid     = "malformed"    // arguments that do not fit the schema
	FaultUnknown     = "unknown_tool" // a name that was not offered
	FaultRepeated    = "repeated"     // the same call with the same result, once too often
	FaultTooMany     = "too_many"     // more calls than one reply may make
	FaultUnavailable = "unavailable"  // it did not return in time, or broke
)

// isRefusal reports whether a fault means that the loop did not run the call.
func isRefusal(fault string) bool {
	return fault == FaultInvalid || fault == FaultUnknown || fault == FaultRepeated || fault == FaultTooMany
}

// checkCall makes the arguments of a call fit, and answers it when it must not run. before are the calls ahead of it in the
// same reply.
func (t *turn) checkCall(c *model.Call, i int, before []model.Call) (Result, bool) {
	at := slices.Index(t.tools, c.Name)
	if at < 0 {
		c.Name, _ = toValidUTF8(clip(c.Name, 64))
		if c.Arguments = objectOrNil(c.Arguments); len(c.Arguments) == 0 {
			c.Arguments = json.RawMessage("{}")
		}
		t.addNote(NoteUnknown, "the model asked for "+c.Name+", which is not offered")
		return Result{Text: "There is no tool of that name. " + listTools(t.tools), Fault: FaultUnknown}, true
	}
	s, err := cachedSchema(&t.agent.Tools[at])
	if err != nil {
		t.addNote(NoteInvalid, c.Name+" was not called: its definition cannot be read")
		c.Arguments = json.RawMessage("{}")
		return Result{Text: "This tool's definition is broken. Do not use it.", Fault: FaultInvalid}, true
	}
	fit, wrong := s.fitArguments(c.Arguments)
	c.Arguments = fit
	switch {
	case t.limits.CallsPerReply > 0 && i >= t.limits.CallsPerReply:
		t.addNote(NoteInvalid, fmt.Sprintf("more than %d calls in one reply; the rest was refused", t.limits.CallsPerReply))
		return Result{Text: resultTooMany, Fault: FaultTooMany}, true
	case wrong != "":
		t.addNote(NoteInvalid, c.Name+": "+wrong)
		return Result{Text: "The call was not made: " + wrong + ". Correct it and call again.", Fault: FaultInvalid}, true
	case t.isRepeated(c, i, before):
		t.addNote(NoteRepeated, c.Name+" was asked for again with the same arguments and the same result; it was not called")
		return Result{Text: resultRepeated, Fault: FaultRepeated}, true
	}
	return Result{}, false
}

// objectOrNil keeps arguments only when they are an object, as servers ask.
func objectOrNil(b json.RawMessage) json.RawMessage {
	if json.Valid(b) && kindOf(b) == kindObject && !isTooDeep(b) {
		return b
	}
	return nil
}

// piece cuts an empty slice with room for n off the end of from. The next one is cut behind it: they share no element.
func piece[T any](from *[]T, n int) []T {
	if cap(*from)-len(*from) < n {
		*from = make([]T, 0, max(n, 4))
	}
	at := len(*from)
	*from = (*from)[:at+n]
	return (*from)[at : at : at+n]
}

// assignID is the call's own id when it is a token that was not used before. before are the calls ahead of it in the same reply.
func (t *turn) assignID(id string, before []model.Call) string {
	for tries := 0; !isValidID(id) || t.isUsedID(id, before); tries++ {
		if tries > 8 { // a NewID that repeats itself
			id = "call_" + rand.Text()
		} else {
			id = t.agent.NewID()
		}
	}
	return id
}

// isUsedID reports whether a call of the history or of this turn has this id.
func (t *turn) isUsedID(id string, before []model.Call) bool {
	has := func(calls []model.Call) bool {
		for i := range calls {
			if calls[i].ID == id {
				return true
			}
		}
		return false
	}
	for i := range t.history {
		if has(t.history[i].Calls) {
			return true
		}
	}
	for i := range t.state.Messages {
		if has(t.state.Messages[i].Calls) {
			return true
		}
	}
	return has(before)
}

func isValidID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isNameByte(c) || c == '.' {
			return false
		}
	}
	return true
}

// openRound is where the message stands whose calls have not all been answered; -1 when there is none.
func (t *turn) openRound() int {
	i := len(t.state.Messages) - 1
	for i >= 0 && t.state.Messages[i].Role == model.ToolRole {
		i--
	}
	if i < 0 || len(t.state.Messages[i].Calls) == 0 || len(t.state.Messages)-i-1 >= len(t.state.Messages[i].Calls) {
		return -1
	}
	return i
}

// dispatch runs the calls of the message at index at that have no result yet, all at once, and appends the results in
// the order of the calls.
func (t *turn) dispatch(ctx, wall context.Context, at int) error {
	calls := t.state.Messages[at].Calls
	t.batch = slices.Grow(t.batch[:0], len(calls))[:len(calls)]
	missing := 0
	for i := range calls {
		if d := t.finishedIndex(calls[i].ID); d >= 0 {
			t.batch[i] = t.state.Finished[d]
			t.batch[i].Step = max(1, t.state.Finished[d].Step) // it ran, whoever wrote it down
			continue
		}
		t.batch[i] = FinishedCall{Call: calls[i], Layer: t.layerOf(i)} // without a step as long as there is no result
		missing++
	}
	var err error
	switch missing {
	case 0:
	case 1:
		err = t.runOne(ctx, wall)
	default:
		err = t.runAll(ctx, wall, missing)
	}
	if err != nil {
		return err
	}
	return t.recordRound(ctx)
}

// recordRound takes the batch into the conversation.
func (t *turn) recordRound(ctx context.Context) error {
	t.appendResults(t.openRound())
	t.forceWhenStuck()
	return t.checkpoint(ctx)
}

// recordResult takes in one result.
func (t *turn) recordResult(o outcome) {
	d := &t.batch[o.i]
	if d.Step != 0 {
		return
	}
	d.Step = max(1, t.state.Step)
	full := t.limitResult(d, o.r)
	if t.hooks.Finished != nil {
		shown := *d
		shown.Result = full
		t.hooks.Finished(d.Step, shown)
	}
}

// limitResult makes a result fit for the context and returns it as it was.
func (t *turn) limitResult(d *FinishedCall, r Result) Result {
	clean, ok := toValidUTF8(r.Text)
	if !ok {
		t.addNote(NoteBadText, d.Call.Name+" returned bytes that are no text; they were replaced")
	}
	if r.Text = clean; strings.TrimSpace(r.Text) == "" {
		if r.Text = resultEmpty; r.Fault != "" {
			r.Text = "[" + r.Fault + "]"
		}
	}
	d.Result = r
	if len(r.Text) > t.limits.ResultBytes {
		d.Result.Text = clipMiddle(r.Text, t.limits.ResultBytes, d.Call.ID)
		t.addNote(NoteClipped, fmt.Sprintf("the result of %s has %d bytes; %d of them went to the model",
			d.Call.Name, len(r.Text), t.limits.ResultBytes))
	}
	return r
}

// stopWithResults keeps the results that have come before a stop.
func (t *turn) stopWithResults(ctx context.Context) error {
	for _, d := range t.batch {
		if d.Step != 0 && t.finishedIndex(d.Call.ID) < 0 {
			t.state.Finished = append(t.state.Finished, d)
		}
	}
	return t.stop(ctx, "")
}

// appendResults puts the finished calls of the message at index at in their order, and their results behind it.
func (t *turn) appendResults(at int) {
	// Whoever took down a checkpoint may hold on to these slices: nothing in them is overwritten.
	if slices.ContainsFunc(t.batch, func(d FinishedCall) bool { return t.finishedIndex(d.Call.ID) >= 0 }) {
		t.state.Finished = slices.DeleteFunc(slices.Clone(t.state.Finished), func(d FinishedCall) bool {
			return slices.ContainsFunc(t.batch, func(o FinishedCall) bool { return o.Call.ID == d.Call.ID })
		})
	}
	if len(t.state.Messages) > at+1 {
		t.prompt.all = slices.Clone(t.prompt.all[:t.prompt.own+at+1])
		t.prompt.costs = t.prompt.costs[:at+1]
	}
	if len(t.state.Finished) == 0 {
		t.state.Finished = make([]FinishedCall, 0, max(4, len(t.batch)))
	}
	for i := range t.batch {
		d := &t.batch[i]
		t.appendMessages(model.Message{
			Role: model.ToolRole, Content: d.Result.Text, ToolName: d.Call.Name, CallID: d.Call.ID,
		})
		key := uint64(0)
		if i < len(t.keys) {
			key = t.keys[i]
		}
		t.countCall(d, key)
	}
	t.state.Finished = append(t.state.Finished, t.batch...)
	t.indexMessages()
}

// finishedIndex is where the call with this id is among the finished ones; -1 when it is not.
func (t *turn) finishedIndex(id string) int {
	for i := len(t.state.Finished) - 1; i >= 0; i-- {
		if t.state.Finished[i].Call.ID == id {
			return i
		}
	}
	return -1
}

// layerOf is where the i-th call of the last message was found.
func (t *turn) layerOf(i int) string {
	if i < len(t.state.Layers) {
		return t.state.Layers[i]
	}
	return LayerNative
}

// reportRefused shows a call that was answered without running.
func (t *turn) reportRefused(d FinishedCall) {
	if t.hooks.Started != nil {
		t.hooks.Started(d.Step, d.Call, d.Layer)
	}
	if t.hooks.Finished != nil {
		t.hooks.Finished(d.Step, d)
	}
}

// checkpoint writes the turn down.
func (t *turn) checkpoint(ctx context.Context) error {
	if t.hooks.Checkpoint == nil {
		return nil
	}
	t.state.Spent = t.spent()
	if err := t.hooks.Checkpoint(ctx, &t.state); err != nil {
		return fmt.Errorf("writing the turn down: %w", err)
	}
	return nil
}

// spent is the wall clock of this life and the earlier ones.
func (t *turn) spent() time.Duration { return t.spentAt(t.agent.Now()) }

func (t *turn) spentAt(now time.Time) time.Duration { return t.spentBefore + now.Sub(t.start) }

// real is a time of the turn on the clock that contexts go by.
func (t *turn) real(at time.Time) time.Time {
	if t.clock {
		return at
	}
	return time.Now()
}

// addNote takes down something that a person should see, once.
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

// maxNotes is how many notes a turn keeps. A turn that needs more has told enough.
const maxNotes = 64

// hasNote reports whether there is a note of this code.
func (t *turn) hasNote(code string) bool {
	return slices.ContainsFunc(t.state.Notes, func(n Note) bool { return n.Code == code })
}

// appendThinking adds to the thinking of the turn, up to the size of one reply.
func (t *turn) appendThinking(text string) {
	if text == "" || len(t.state.Thinking) >= t.limits.ReplyBytes {
		return
	}
	if t.state.Thinking != "" {
		t.state.Thinking += "\n\n"
	}
	t.state.Thinking += text
}

// reportInterim shows words that are not the answer.
func (t *turn) reportInterim(step int, words string) {
	if words != "" && t.hooks.Interim != nil {
		t.hooks.Interim(step, words)
	}
}

// setCorrection sets what is said to the model after everything else, until its next good reply: its own last words, if there
// were any, and ours.
func (t *turn) setCorrection(words, say string) {
	t.correction = t.correction[:0]
	if words != "" {
		t.correction = append(t.correction, model.Message{Role: model.Assistant, Content: words})
	}
	if say != "" {
		t.correction = append(t.correction, model.Message{Role: model.User, Content: say})
	}
}
