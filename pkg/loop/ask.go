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
	words    string // what is neither thinking nor a call
	thinking string
	calls    []found
	bad      string // a call that could not be read, in words for the model
	unknown  string // the tool that such a call named
	final    model.Final
	offer    bool // tools were offered
	full     bool // the output hit its limit
	over     bool // the reply was longer than what is read
	late     bool // it did not come within the time of one call
}

// empty reports whether there is nothing to show and nothing to do.
func (r *reply) empty() bool { return r.words == "" && len(r.calls) == 0 }

// errLate ends one model call, errWall the turn.
var (
	errLate = errors.New("the model call took too long")
	errWall = errors.New("the turn took too long")
)

// ask makes one model call.
func (t *turn) ask(ctx context.Context) (reply, error) {
	offer := t.offers()
	predict := t.lim.Answer
	if offer {
		predict = t.lim.Predict
	}
	if t.wide {
		predict *= 2
	}
	req, estimate := t.request(offer, predict)
	t.sent = estimate
	if t.lim.Call > 0 {
		call := limit(ctx, t.real(t.now).Add(t.lim.Call), errLate)
		defer call.end()
		ctx = call
	}
	if t.h.Generating != nil {
		t.h.Generating(t.s.Step + 1)
	}
	r, err := t.read(ctx, req)
	for wait := firstWait; errors.Is(err, model.ErrBusy) && r.empty() && wait <= lastWait; wait *= 2 {
		if !pause(ctx, wait) {
			break
		}
		r, err = t.read(ctx, req)
	}
	r.offer = offer
	r.late = err != nil && errors.Is(context.Cause(ctx), errLate)
	t.spend(&r, estimate, err)
	return r, err
}

// A busy server is asked again after these waits, each twice the one before, within the time of one call.
const (
	firstWait = 250 * time.Millisecond
	lastWait  = 8 * time.Second
)

// pause waits, and reports whether it could wait to the end.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// read takes the reply in as it comes.
func (t *turn) read(ctx context.Context, req model.Request) (reply, error) {
	in := &t.intake
	in.reset(t)
	// Not a range: what its body writes to would be moved to the heap, four times a call.
	t.a.Chat.Chat(ctx, req)(func(c model.Chunk, err error) bool { return in.next(ctx, &c, err) })
	if in.failed == nil && !in.done && !in.r.over {
		if in.failed = model.ErrCut; ctx.Err() != nil {
			in.failed = ctx.Err()
		}
	}
	predict := req.Options.Predict
	in.r.full = in.done && (in.r.final.Reason == "length" || predict > 0 && in.r.final.OutputTokens >= predict)
	return in.end(in.failed != nil), in.failed
}

// intake collects one reply and passes on what may be shown. Its memory is kept from call to call.
type intake struct {
	t       *turn
	scan    scan
	left    int // bytes that may still be read
	thought []byte
	carry   []byte
	mangled bool
	native  []found
	done    bool // the last piece came
	failed  error
	r       reply
}

func (in *intake) reset(t *turn) {
	in.t = t
	in.scan.reset(t.names)
	in.scan.mute = t.h.Token == nil
	t.quoted.t = t
	in.scan.quoted = &t.quoted
	in.left = t.lim.Most
	in.thought, in.carry, in.native = in.thought[:0], in.carry[:0], in.native[:0]
	in.mangled, in.done, in.failed = false, false, nil
	in.r = reply{}
}

// next takes what the model yields and reports whether more is wanted. Once it is not, nothing is taken any more.
func (in *intake) next(ctx context.Context, c *model.Chunk, err error) bool {
	switch {
	case in.done || in.failed != nil || in.r.over:
	case err != nil:
		in.failed = err
	case !in.take(c):
	case c.Done:
		in.r.final, in.done = c.Final, true
	default:
		in.failed = ctx.Err() // a backend that does not look at it, and a model that never ends
	}
	return !in.done && in.failed == nil && !in.r.over
}

// take takes one piece; false when the reply is longer than what is read.
func (in *intake) take(c *model.Chunk) bool {
	for i := range c.Calls {
		call := &c.Calls[i]
		size := len(call.Name) + len(call.ID) + len(call.Arguments)
		if size > in.left {
			in.r.over = true
			break
		}
		in.left -= size
		if in.t.lim.Calls <= 0 || len(in.native) < 2*in.t.lim.Calls { // one refusal for each beyond the limit is enough
			in.native = append(in.native, found{Call: *call, layer: LayerNative})
		}
	}
	if c.Thinking != "" {
		from := len(in.thought)
		in.thought, in.carry, in.mangled = appendValid(in.thought, in.carry, in.part(c.Thinking), in.mangled)
		in.showThought(in.thought[from:])
	}
	if c.Content != "" {
		before := len(in.scan.thought)
		in.scan.push(in.part(c.Content))
		in.show(before)
	}
	return !in.r.over
}

// part is as much of s as may still be read.
func (in *intake) part(s string) string {
	if len(s) > in.left {
		s = s[:in.left]
		in.r.over = true
	}
	in.left -= len(s)
	return s
}

// show passes on what the scan has decided on. before is how much of its thinking was shown already.
func (in *intake) show(before int) {
	in.showThought(in.scan.thought[min(before, len(in.scan.thought)):])
	if h := in.t.h.Token; h != nil && len(in.scan.tokens) > 0 && len(in.native) == 0 {
		h(in.t.s.Step+1, string(in.scan.tokens))
	}
	in.scan.tokens = in.scan.tokens[:0]
}

func (in *intake) showThought(b []byte) {
	if h := in.t.h.Thinking; h != nil && len(b) > 0 {
		h(in.t.s.Step+1, string(b))
	}
}

// end puts the reply together.
func (in *intake) end(failed bool) reply {
	before := len(in.scan.thought)
	in.scan.finish(failed || in.r.over || in.r.full)
	in.show(before)
	r := &in.r
	r.words = strings.TrimSpace(string(in.scan.words))
	r.thinking = in.thinking()
	r.bad, r.unknown = in.scan.bad, in.scan.unknown
	switch {
	case len(in.native) > 0: // what is written as text besides is the same, or an echo
		r.calls, r.bad, r.unknown = in.native, "", ""
	case failed:
	default:
		r.calls = in.scan.calls
	}
	if in.mangled || in.scan.mangled {
		in.t.note(NoteBadText, "the model wrote bytes that are no text; they were replaced")
	}
	return *r
}

// thinking is what the server called thinking and what stood in think tags.
func (in *intake) thinking() string {
	if len(in.carry) > 0 && !in.r.over {
		in.thought = utf8.AppendRune(in.thought, utf8.RuneError)
		in.mangled = true
	}
	if len(in.thought) == 0 && len(in.scan.thought) == 0 {
		return ""
	}
	native, tagged := strings.TrimSpace(string(in.thought)), strings.TrimSpace(string(in.scan.thought))
	if native == "" || tagged == "" {
		return native + tagged
	}
	return native + "\n" + tagged
}

// spend adds up what a call cost. What the server does not say is estimated, so that a budget holds in any case.
func (t *turn) spend(r *reply, estimate int, err error) {
	u := &t.s.Usage
	u.Calls++
	prompt, output := r.final.PromptTokens, r.final.OutputTokens
	if err != nil && r.empty() && r.thinking == "" {
		return // refused or never reached
	}
	if output <= 0 {
		output = tokens(r.words) + tokens(r.thinking)
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
	t.counted(estimate, prompt)
}

// offers reports whether the next call offers tools.
func (t *turn) offers() bool { return len(t.names) > 0 && !t.s.Forced && !t.static }

// failed decides what to do about a call that ended in an error: go on (nil), or end the turn.
func (t *turn) failed(ctx, wall context.Context, r reply, err error) error {
	switch {
	case ctx.Err() != nil || unheardOf(err) && heardStop(ctx):
		t.think(r.thinking)
		return t.stopped(ctx, r.words)
	case wall.Err() != nil:
		t.think(r.thinking)
		return t.outOfTime(ctx, r.words)
	case r.late:
		return t.late(ctx, r, err)
	case errors.Is(err, model.ErrNoTools) && !t.static:
		t.withoutTools()
		return nil
	case errors.Is(err, model.ErrNoThinking) && t.a.Think != nil && !t.noThink:
		t.noThink = true
		t.note(NoteNoThinking, "the model does not think aloud; it was asked without")
		return nil
	case errors.Is(err, model.ErrTooLong) && t.tight == 0:
		t.tighten()
		return nil
	case errors.Is(err, model.ErrMalformed):
		return t.unreadable(ctx, r, sayMalformed)
	case errors.Is(err, model.ErrCut) && t.retry("the reply broke off"):
		t.interim(t.s.Step+1, r.words)
		t.setAside("", sayCut)
		return nil
	}
	t.note(NoteFailed, "the model failed: "+clip(err.Error(), 300))
	t.keep(r)
	return fmt.Errorf("asking the model: %w", err)
}

// unheardOf reports whether an error is none that a model is known to make.
func unheardOf(err error) bool {
	for _, known := range []error{
		model.ErrUnreachable, model.ErrMissing, model.ErrNoTools, model.ErrNoThinking, model.ErrTooLong, model.ErrBusy,
		model.ErrMalformed, model.ErrCut, model.ErrRemote, model.ErrUnsupported, model.ErrUnauthorized, errLate, errWall,
		context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return false
		}
	}
	return true
}

// heardStop waits a moment for a stop. Who stops a turn may tell the model first: its complaint that it was stopped must
// not be taken for a failure.
func heardStop(ctx context.Context) bool { return !pause(ctx, stopWait) }

// stopWait is how much later than by the model a stop may be heard here.
const stopWait = 250 * time.Millisecond

// keep holds on to the words of a reply that did not come to its end.
func (t *turn) keep(r reply) {
	t.think(r.thinking)
	t.s.Answer, t.s.Partial = r.words, true
}

// late is a call that took too long. What was said counts as a part of the answer; results that are there are told.
func (t *turn) late(ctx context.Context, r reply, err error) error {
	text := fmt.Sprintf("the model did not finish within %s", t.lim.Call)
	t.think(r.thinking)
	switch {
	case r.words != "":
		t.note(NoteCut, text+"; the answer is what came until then")
		return t.finish(ctx, r.words, true)
	case t.worked():
		t.note(NoteFailed, text)
		return t.ours(ctx)
	}
	t.note(NoteFailed, text)
	t.s.Partial = true
	return fmt.Errorf("asking the model: nothing came within %s: %w: %w", t.lim.Call, context.DeadlineExceeded, err)
}

// withoutTools goes one step down: from native calls to the text form, from there to the prompt alone.
func (t *turn) withoutTools() {
	if !t.s.Text {
		t.s.Text = true
		t.note(NoteNoTools, wordsOnly)
		return
	}
	t.goStatic()
}

// goStatic gives up on tools: the answer comes from the prompt alone.
func (t *turn) goStatic() {
	t.static, t.s.Text, t.s.Forced = true, true, true
	t.note(NoteStatic, "the model cannot call tools in words either; it answers from the prompt alone")
}

// tighten makes the next prompt a good deal smaller than the last.
func (t *turn) tighten() {
	t.tight = max(1, t.sent*6/10)
	if w := t.a.Options.Window; w > 0 {
		t.tight = min(t.tight, w*6/10)
	}
}
