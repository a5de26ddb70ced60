package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/model"
)

// reply is what came of one model call, also of one that failed on the way.
type reply struct {
	text          string // what is neither thinking nor a call
	thinking      string
	calls         []foundCall
	unreadable    string // a call that could not be read, in words for the model
	unknownTool   string // the tool that such a call named
	final         model.Final
	offeredTools  bool // tools were offered
	hitTokenLimit bool // the output hit its limit
	hitByteLimit  bool // the reply was longer than what is read
	timedOut      bool // it did not come within the time of one call
}

// isEmpty reports whether there is nothing to show and nothing to do.
func (r *reply) isEmpty() bool { return r.text == "" && len(r.calls) == 0 }

// errLate ends one model call, errWall the turn.
var (
	errCallTimeout = errors.New("the model call took too long")
	errTurnTimeout = errors.New("the turn took too long")
)

// callModel makes one model call.
func (t *turn) callModel(ctx context.Context) (reply, error) {
	offer := t.offersTools()
	predict := t.limits.AnswerTokens
	if offer {
		predict = t.limits.StepTokens
	}
	if t.moreTokens {
		predict *= 2
	}
	req, estimate := t.buildRequest(offer, predict)
	t.lastSent = estimate
	if t.limits.CallTimeout > 0 {
		call := limit(ctx, t.real(t.now).Add(t.limits.CallTimeout), errCallTimeout)
		defer call.end()
		ctx = call
	}
	if t.hooks.Generating != nil {
		t.hooks.Generating(t.state.Step + 1)
	}
	r, err := t.readReply(ctx, req)
	for wait := firstBackoff; errors.Is(err, model.ErrBusy) && r.isEmpty() && wait <= lastBackoff; wait *= 2 {
		if !sleep(ctx, wait) {
			break
		}
		r, err = t.readReply(ctx, req)
	}
	r.offeredTools = offer
	r.timedOut = err != nil && errors.Is(context.Cause(ctx), errCallTimeout)
	t.addUsage(&r, estimate, err)
	return r, err
}

// A busy server is asked again after these waits, each twice the one before, within the time of one call.
const (
	firstBackoff = 250 * time.Millisecond
	lastBackoff  = 8 * time.Second
)

// sleep waits, and reports whether it could wait to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// readReply takes the reply in as it comes.
func (t *turn) readReply(ctx context.Context, req model.Request) (reply, error) {
	in := &t.reader
	in.reset(t)
	// Not a range: what its body writes to would be moved to the heap, four times a call.
	t.agent.Chat.Chat(ctx, req)(func(c model.Chunk, err error) bool { return in.accept(ctx, &c, err) })
	if in.err == nil && !in.done && !in.reply.hitByteLimit {
		if in.err = model.ErrCut; ctx.Err() != nil {
			in.err = ctx.Err()
		}
	}
	predict := req.Options.Predict
	in.reply.hitTokenLimit = in.done && (in.reply.final.Reason == "length" || predict > 0 && in.reply.final.OutputTokens >= predict)
	return in.finish(in.err != nil), in.err
}

// replyReader collects one reply and passes on what may be shown. Its memory is kept from call to call.
type replyReader struct {
	turn      *turn
	scanner   replyScanner
	bytesLeft int // bytes that may still be read
	thinking  []byte
	carry     []byte
	mangled   bool
	native    []foundCall
	done      bool // the last piece came
	err       error
	reply     reply
}

func (in *replyReader) reset(t *turn) {
	in.turn = t
	in.scanner.reset(t.tools)
	in.scanner.mute = t.hooks.Token == nil
	t.copied.turn = t
	in.scanner.copied = &t.copied
	in.bytesLeft = t.limits.ReplyBytes
	in.thinking, in.carry, in.native = in.thinking[:0], in.carry[:0], in.native[:0]
	in.mangled, in.done, in.err = false, false, nil
	in.reply = reply{}
}

// accept takes what the model yields and reports whether more is wanted. Once it is not, nothing is taken any more.
func (in *replyReader) accept(ctx context.Context, c *model.Chunk, err error) bool {
	switch {
	case in.done || in.err != nil || in.reply.hitByteLimit:
	case err != nil:
		in.err = err
	case !in.addChunk(c):
	case c.Done:
		in.reply.final, in.done = c.Final, true
	default:
		in.err = ctx.Err() // a backend that does not look at it, and a model that never ends
	}
	return !in.done && in.err == nil && !in.reply.hitByteLimit
}

// addChunk takes one piece; false when the reply is longer than what is read.
func (in *replyReader) addChunk(c *model.Chunk) bool {
	for i := range c.Calls {
		call := &c.Calls[i]
		size := len(call.Name) + len(call.ID) + len(call.Arguments)
		if size > in.bytesLeft {
			in.reply.hitByteLimit = true
			break
		}
		in.bytesLeft -= size
		if in.turn.limits.CallsPerReply <= 0 || len(in.native) < 2*in.turn.limits.CallsPerReply { // one refusal for each beyond the limit is enough
			in.native = append(in.native, foundCall{Call: *call, layer: LayerNative})
		}
	}
	if c.Thinking != "" {
		from := len(in.thinking)
		in.thinking, in.carry, in.mangled = appendValid(in.thinking, in.carry, in.takeBytes(c.Thinking), in.mangled)
		in.reportThinking(in.thinking[from:])
	}
	if c.Content != "" {
		before := len(in.scanner.thinking)
		in.scanner.feed(in.takeBytes(c.Content))
		in.report(before)
	}
	return !in.reply.hitByteLimit
}

// takeBytes is as much of s as may still be read.
func (in *replyReader) takeBytes(s string) string {
	if len(s) > in.bytesLeft {
		s = s[:in.bytesLeft]
		in.reply.hitByteLimit = true
	}
	in.bytesLeft -= len(s)
	return s
}

// report passes on what the scan has decided on. before is how much of its thinking was shown already.
func (in *replyReader) report(before int) {
	in.reportThinking(in.scanner.thinking[min(before, len(in.scanner.thinking)):])
	if h := in.turn.hooks.Token; h != nil && len(in.scanner.tokens) > 0 && len(in.native) == 0 {
		h(in.turn.state.Step+1, string(in.scanner.tokens))
	}
	in.scanner.tokens = in.scanner.tokens[:0]
}

func (in *replyReader) reportThinking(b []byte) {
	if h := in.turn.hooks.Thinking; h != nil && len(b) > 0 {
		h(in.turn.state.Step+1, string(b))
	}
}

// finish puts the reply together.
func (in *replyReader) finish(failed bool) reply {
	before := len(in.scanner.thinking)
	in.scanner.finish(failed || in.reply.hitByteLimit || in.reply.hitTokenLimit)
	in.report(before)
	r := &in.reply
	r.text = strings.TrimSpace(string(in.scanner.text))
	r.thinking = in.joinThinking()
	r.unreadable, r.unknownTool = in.scanner.unreadable, in.scanner.unknownTool
	switch {
	case len(in.native) > 0: // what is written as text besides is the same, or an echo
		r.calls, r.unreadable, r.unknownTool = in.native, "", ""
	case failed:
	default:
		r.calls = in.scanner.calls
	}
	if in.mangled || in.scanner.mangled {
		in.turn.addNote(NoteBadText, "the model wrote bytes that are no text; they were replaced")
	}
	return *r
}

// joinThinking is what the server called thinking and what stood in think tags.
func (in *replyReader) joinThinking() string {
	if len(in.carry) > 0 && !in.reply.hitByteLimit {
		in.thinking = utf8.AppendRune(in.thinking, utf8.RuneError)
		in.mangled = true
	}
	if len(in.thinking) == 0 && len(in.scanner.thinking) == 0 {
		return ""
	}
	native, tagged := strings.TrimSpace(string(in.thinking)), strings.TrimSpace(string(in.scanner.thinking))
	if native == "" || tagged == "" {
		return native + tagged
	}
	return native + "\n" + tagged
}

// addUsage adds up what a call cost. What the server does not say is estimated, so that a budget holds in any case.
func (t *turn) addUsage(r *reply, estimate int, err error) {
	u := &t.state.Usage
	u.Calls++
	prompt, output := r.final.PromptTokens, r.final.OutputTokens
	if err != nil && r.isEmpty() && r.thinking == "" {
		return // refused or never reached
	}
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

// offersTools reports whether the next call offers tools.
func (t *turn) offersTools() bool { return len(t.tools) > 0 && !t.state.Forced && !t.toolsGivenUp }

// handleFailure decides what to do about a call that ended in an error: go on (nil), or end the turn.
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
	case errors.Is(err, model.ErrNoTools) && !t.toolsGivenUp:
		t.degradeTools()
		return nil
	case errors.Is(err, model.ErrNoThinking) && t.agent.Think != nil && !t.thinkingOff:
		t.thinkingOff = true
		t.addNote(NoteNoThinking, "the model does not think aloud; it was asked without")
		return nil
	case errors.Is(err, model.ErrTooLong) && t.promptCap == 0:
		t.shrinkPrompt()
		return nil
	case errors.Is(err, model.ErrMalformed):
		return t.retryUnreadable(ctx, r, sayMalformed)
	case errors.Is(err, model.ErrCut) && t.useRetry("the reply broke off"):
		t.reportInterim(t.state.Step+1, r.text)
		t.setCorrection("", sayCut)
		return nil
	}
	t.addNote(NoteFailed, "the model failed: "+clip(err.Error(), 300))
	t.keepPartial(r)
	return fmt.Errorf("asking the model: %w", err)
}

// isUnknownError reports whether an error is none that a model is known to make.
func isUnknownError(err error) bool {
	for _, known := range []error{
		model.ErrUnreachable, model.ErrMissing, model.ErrNoTools, model.ErrNoThinking, model.ErrTooLong, model.ErrBusy,
		model.ErrMalformed, model.ErrCut, model.ErrRemote, model.ErrUnsupported, model.ErrUnauthorized, errCallTimeout, errTurnTimeout,
		context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return false
		}
	}
	return true
}

// awaitStop waits a moment for a stop. Who stops a turn may tell the model first: its complaint that it was stopped must
// not be taken for a failure.
func awaitStop(ctx context.Context) bool { return !sleep(ctx, stopWait) }

// stopWait is how much later than by the model a stop may be heard here.
const stopWait = 250 * time.Millisecond

// keepPartial holds on to the words of a reply that did not come to its end.
func (t *turn) keepPartial(r reply) {
	t.appendThinking(r.thinking)
	t.state.Answer, t.state.Partial = r.text, true
}

// finishLate is a call that took too long. What was said counts as a part of the answer; results that are there are told.
func (t *turn) finishLate(ctx context.Context, r reply, err error) error {
	text := fmt.Sprintf("the model did not finish within %s", t.limits.CallTimeout)
	t.appendThinking(r.thinking)
	switch {
	case r.text != "":
		t.addNote(NoteCut, text+"; the answer is what came until then")
		return t.finish(ctx, r.text, true)
	case t.hasToolResult():
		t.addNote(NoteFailed, text)
		return t.finishWithoutModel(ctx)
	}
	t.addNote(NoteFailed, text)
	t.state.Partial = true
	return fmt.Errorf("asking the model: nothing came within %s: %w: %w", t.limits.CallTimeout, context.DeadlineExceeded, err)
}

// degradeTools goes one step down: from native calls to the text form, from there to the prompt alone.
func (t *turn) degradeTools() {
	if !t.state.TextTools {
		t.state.TextTools = true
		t.addNote(NoteNoTools, wordsOnly)
		return
	}
	t.giveUpTools()
}

// giveUpTools gives up on tools: the answer comes from the prompt alone.
func (t *turn) giveUpTools() {
	t.toolsGivenUp, t.state.TextTools, t.state.Forced = true, true, true
	t.addNote(NoteStatic, "the model cannot call tools in words either; it answers from the prompt alone")
}

// shrinkPrompt makes the next prompt a good deal smaller than the last.
func (t *turn) shrinkPrompt() {
	t.promptCap = max(1, t.lastSent*6/10)
	if w := t.agent.Options.Window; w > 0 {
		t.promptCap = min(t.promptCap, w*6/10)
	}
}
