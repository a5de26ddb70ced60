package loop

import (
	"context"
	"strings"
	"unicode/utf8"

	"conclave/pkg/model"
)

// reply is the outcome of one model call, also of one that failed on the way.
type reply struct {
	text          string // without thinking and calls
	thinking      string
	calls         []foundCall
	unreadable    string // why a call could not be read, for the model; "" = all could
	unknownTool   string // the tool that the unreadable call named, when it is not offered
	final         model.Final
	offeredTools  bool // tools were offered in the request
	hitTokenLimit bool // the output reached its token limit
	hitByteLimit  bool // the reply is longer than [Limits.ReplyBytes]; the rest was not read
	repeats       bool // the model wrote the same again and again; the rest was not read
	copied        bool // the model copied text of its prompt, which is removed from text
	timedOut      bool // the call ran into [Limits.FirstToken] or [Limits.CallTimeout]
}

// isEmpty reports whether the reply has neither text nor calls.
func (r *reply) isEmpty() bool { return r.text == "" && len(r.calls) == 0 }

// replyReader reads one reply and reports tokens and thinking as they come.
type replyReader struct {
	turn      *turn
	timer     *silenceTimer
	shown     frameFilter // of the tokens that are reported
	scanner   *replyScanner
	bytesLeft int // bytes that may still be read
	thinking  []byte
	utf8      utf8Decoder // of the thinking
	checked   int         // bytes of the text that were checked for repetitions
	native    []foundCall
	reply     reply
}

// readReply sends req and reads the reply; each chunk restarts timer. It stops reading at [Limits.ReplyBytes], when the
// text repeats itself and when ctx ends, also when the backend goes on after the end of ctx. A reply without its last
// chunk is [model.ErrCut]. With an error the reply holds what was read before.
func (t *turn) readReply(ctx context.Context, req model.Request, timer *silenceTimer) (reply, error) {
	rd := &replyReader{
		turn: t, timer: timer, scanner: newReplyScanner(t.tools, &t.copied),
		bytesLeft: t.limits.ReplyBytes,
	}
	err := rd.readChunks(ctx, req)
	return rd.finish(err != nil), err
}

// readChunks sends req and reads up to the last chunk, or as much as may be read: nil in both cases. Otherwise the
// error is the backend's, that of ctx, or [model.ErrCut] when the last chunk is missing.
func (rd *replyReader) readChunks(ctx context.Context, req model.Request) error {
	predict := req.Options.Predict // the loop is a closure: with req in it, all of req would be on the heap
	for c, err := range rd.turn.agent.Chat.Chat(ctx, req) {
		if err != nil {
			return err
		}
		if c.Final.Model != "" {
			rd.turn.addHost(c.Final.RemoteHost)
		}
		switch { // not a part of the reply: the time for that goes on
		case c.Notice != "":
			rd.turn.reportNote(NoteMachine, c.Notice)
			continue
		case c.Final.Model != "" && !c.Done:
			continue
		}
		if !c.Done { // nothing is waited for after the last one
			rd.timer.restart(c.Reading)
		}
		if c.Reading != nil && rd.turn.hooks.Reading != nil {
			rd.turn.hooks.Reading(rd.turn.state.Step+1, *c.Reading)
		}
		if !rd.addChunk(&c) {
			return nil
		}
		if c.Done {
			rd.reply.final = c.Final
			rd.reply.hitTokenLimit = c.Final.Reason == "length" || predict > 0 && c.Final.OutputTokens >= predict
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return model.ErrCut
}

// addChunk reads one chunk. It reports false when the reply is longer than what may be read, or repeats itself. Native
// calls beyond twice [Limits.CallsPerReply] are dropped.
func (rd *replyReader) addChunk(c *model.Chunk) bool {
	for _, call := range c.Calls {
		size := len(call.Name) + len(call.ID) + len(call.Arguments)
		if size > rd.bytesLeft {
			rd.reply.hitByteLimit = true
			break
		}
		rd.bytesLeft -= size
		if most := rd.turn.limits.CallsPerReply; most <= 0 || len(rd.native) < 2*most { // so many refusals are enough
			rd.native = append(rd.native, foundCall{Call: call, layer: LayerNative})
		}
	}
	if c.Thinking != "" {
		from := len(rd.thinking)
		rd.thinking = rd.utf8.append(rd.thinking, rd.takeBytes(c.Thinking))
		rd.reportThinking(rd.thinking[from:])
	}
	if c.Content != "" {
		from := len(rd.scanner.thinking)
		rd.scanner.feed(rd.takeBytes(c.Content))
		rd.report(from)
	}
	if n := len(rd.scanner.buf); n-rd.checked >= minRepeated*maxRepeats {
		rd.checked = n
		_, rd.reply.repeats = cutRepetition(rd.scanner.buf)
	}
	return !rd.reply.hitByteLimit && !rd.reply.repeats
}

// takeBytes is as much of s as may still be read.
func (rd *replyReader) takeBytes(s string) string {
	if len(s) > rd.bytesLeft {
		s = s[:rd.bytesLeft]
		rd.reply.hitByteLimit = true
	}
	rd.bytesLeft -= len(s)
	return s
}

// report reports the tokens that the scanner has released, unless there is a native call, and its thinking from index
// from on.
func (rd *replyReader) report(from int) {
	rd.reportThinking(rd.scanner.thinking[min(from, len(rd.scanner.thinking)):])
	rd.reportTokens(rd.shown.strip(rd.scanner.takeTokens()))
}

// reportTokens reports tokens, unless there is a native call or a schema.
func (rd *replyReader) reportTokens(tokens string) {
	if report := rd.turn.hooks.Token; report != nil && tokens != "" && len(rd.native) == 0 && rd.turn.schema == nil {
		report(rd.turn.state.Step+1, tokens)
	}
}

func (rd *replyReader) reportThinking(b []byte) {
	if report := rd.turn.hooks.Thinking; report != nil && len(b) > 0 {
		report(rd.turn.state.Step+1, string(b))
	}
}

// finish puts the reply together; failed says that reading ended with an error. Native calls win over calls in the
// text, which repeat them; a failed reply has no calls from text.
func (rd *replyReader) finish(failed bool) reply {
	from, r := len(rd.scanner.thinking), &rd.reply
	rd.scanner.finish(failed || r.hitByteLimit || r.hitTokenLimit || r.repeats)
	rd.report(from)
	rd.reportTokens(rd.shown.flush())
	text := rd.scanner.text
	if r.repeats {
		text, _ = cutRepetition(text)
	}
	r.text = strings.TrimSpace(stripFrames(string(text)))
	r.thinking = rd.joinThinking()
	r.unreadable, r.unknownTool = rd.scanner.unreadable, rd.scanner.unknownTool
	switch {
	case len(rd.native) > 0:
		r.calls, r.unreadable, r.unknownTool = rd.native, "", ""
	case !failed:
		r.calls = rd.scanner.calls
	}
	if rd.utf8.replaced || rd.scanner.utf8.replaced {
		rd.turn.addNote(NoteBadText, "the model wrote invalid UTF-8; the invalid bytes were replaced")
	}
	return *r
}

// joinThinking joins the server's thinking field and the text in think tags, in this order; "" = there was none.
func (rd *replyReader) joinThinking() string {
	if !rd.reply.hitByteLimit {
		rd.thinking = rd.utf8.flush(rd.thinking)
	}
	native, tagged := strings.TrimSpace(string(rd.thinking)), strings.TrimSpace(string(rd.scanner.thinking))
	if native == "" || tagged == "" {
		return native + tagged
	}
	return native + "\n" + tagged
}

// utf8Decoder makes text that comes in pieces valid UTF-8: invalid bytes become U+FFFD, a character that is cut by the
// end of a piece waits for the next.
type utf8Decoder struct {
	rest     []byte // the beginning of a character
	replaced bool   // something was invalid
}

// append appends the complete characters of piece to buf, invalid bytes replaced. A character that piece cuts is kept
// for the next call.
func (d *utf8Decoder) append(buf []byte, piece string) []byte {
	if len(d.rest) == 0 && utf8.ValidString(piece) {
		return append(buf, piece...)
	}
	rest := append(d.rest, piece...)
	for len(rest) > 0 && utf8.FullRune(rest) {
		r, size := utf8.DecodeRune(rest)
		d.replaced = d.replaced || r == utf8.RuneError && size == 1
		buf = utf8.AppendRune(buf, r)
		rest = rest[size:]
	}
	d.rest = append(d.rest[:0], rest...)
	return buf
}

// flush appends U+FFFD to buf for a character whose end never came.
func (d *utf8Decoder) flush(buf []byte) []byte {
	if len(d.rest) == 0 {
		return buf
	}
	d.rest, d.replaced = nil, true
	return utf8.AppendRune(buf, utf8.RuneError)
}
