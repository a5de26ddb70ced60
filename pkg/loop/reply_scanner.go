package loop

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
)

// replyScanner separates the content of a reply, as it comes, into text, thinking and calls. The result does not depend
// on where the content is split into pieces: what cannot be decided yet is held back.
//
// In this order:
//   - Think tags, anywhere outside code: their content is thinking. A closing tag without an opening one makes
//     everything
//     before it thinking; an opening one without a closing one, everything after.
//   - Call tags (<tool_call> and its variants, <function=name>), anywhere outside code: a call, whatever is around it.
//     A
//     tagged call that cannot be read, or whose tool is not offered, makes the reply unreadable: it is no answer.
//   - JSON in the form of a call, fenced or not, and the form name {json}: a call when it begins a line and only
//     further
//     calls follow it to the end of the reply, unless the line before it announces an example. JSON that begins the
//     reply
//     is a call too when text follows on a new line: models go on and invent the result.
//
// Everything else is text: in particular JSON in another form, calls of tools that are not offered, a call that is
// shown in the middle of an explanation, and a call that is copied from a tool result.
type replyScanner struct {
	tools     toolNames
	copied    *copiedCalls // nil = no call is copied
	buf       []byte       // content so far, valid UTF-8
	pos       int          // everything before it is decided
	mode      scanMode
	closeFrom int          // from here on a closing tag has not been looked for
	value     valueScanner // of the JSON value that is held back
	heldAt    int          // where the held text begins: the value, or the name before it; -1 = none

	// The region is the part of buf with calls that count only if nothing else follows.
	pending     []foundCall
	regionStart int  // where the first of them, or its fence, begins; -1 = no region
	inFence     bool // inside the fence of the region
	startsReply bool // the region begins the reply, with JSON that is not fenced

	skipFenceEnd bool // the end of the fence around confirmed calls is still to come

	text         []byte
	lineStart    bool   // only spaces are on the last line of text
	textEnd      int    // end of the last of text that is no space
	exampleAt    int    // textEnd when followsExample last looked at the text
	exampleFound bool   // its result
	tokensEnd    int    // how much of text was added to tokens
	tokens       []byte // text that may be shown and was not taken yet
	thinking     []byte
	calls        []foundCall
	compared     int    // calls that were compared with tool results
	unreadable   string // what is unreadable about the reply, for the model; "" = nothing
	unknownTool  string // the tool of a tagged call that is not offered
	utf8         utf8Decoder
}

type scanMode int

const (
	modeText scanMode = iota
	modeThink
	modeFence // inside a code block that holds no call
)

// Tags that are looked for in text: those of thinking always, the others only when tools are offered.
var (
	openThinkTags  = []string{"<think>", "<thinking>"}
	closeThinkTags = []string{"</think>", "</thinking>"}
	openCallTags   = []string{"<tool_call>", "<tool_calls>", "<function_call>", "<function_calls>", "<tools>"}
	closeCallTags  = []string{
		"</tool_call>", "</tool_calls>", "</function_call>", "</function_calls>", "</tools>",
		"</function>",
	}
	openFunctionTags = []string{"<function=", "<function name=", "<invoke name="}
	callMarkers      = []string{"<|python_tag|>", "[TOOL_CALLS]"} // they announce calls

	wrapTags    = slices.Concat(openCallTags, closeCallTags)
	allCallTags = wrapTags[:len(wrapTags)-1] // without </function>
)

// maxTextCalls is how many calls are read from the text of one reply.
const maxTextCalls = 64

// newReplyScanner returns a scanner for one reply. Without tools no calls are read; copied nil means that no call is
// copied.
func newReplyScanner(tools toolNames, copied *copiedCalls) *replyScanner {
	return &replyScanner{tools: tools, copied: copied, heldAt: -1, regionStart: -1, lineStart: true}
}

// feed scans the next piece of content.
func (s *replyScanner) feed(piece string) {
	s.buf = s.utf8.append(s.buf, piece)
	s.advance(false)
}

// finish decides about everything that is held back; text, thinking and calls are complete after it. cut says that the
// reply did not come to its own end: then no JSON is repaired, because a call may lack more than a bracket.
func (s *replyScanner) finish(cut bool) {
	if !cut {
		s.buf = s.utf8.flush(s.buf)
	}
	s.advance(true)
	if s.mode == modeText && s.pos < len(s.buf) {
		s.resolveHeld(cut)
	}
	s.resolveRegion()
	s.emit(len(s.buf) - s.pos)
}

// takeTokens returns the text that may be shown since the last call.
func (s *replyScanner) takeTokens() string {
	tokens := string(s.tokens)
	s.tokens = s.tokens[:0]
	return tokens
}

// advance decides as much as can be decided and leaves the rest of buf undecided. final says that nothing follows.
func (s *replyScanner) advance(final bool) {
	for s.pos < len(s.buf) {
		pos, mode, region := s.pos, s.mode, s.regionStart
		switch s.mode {
		case modeThink:
			s.scanThinking(final)
		case modeFence:
			s.scanCodeBlock(final)
		default:
			s.scanText(final)
		}
		if s.pos == pos && s.mode == mode && s.regionStart == region {
			return // undecided
		}
	}
}

// scanThinking reads thinking up to its closing tag, or all of it so far. The beginning of a closing tag at the end is
// held back unless final.
func (s *replyScanner) scanThinking(final bool) {
	rest := s.buf[s.pos:]
	if end, size := indexAnyTag(rest, closeThinkTags); end >= 0 {
		s.thinking = append(append(s.thinking, rest[:end]...), '\n')
		s.pos += end + size
		s.mode = modeText
		return
	}
	if i := bytes.LastIndexByte(rest, '<'); i >= 0 && !final {
		if _, more := matchTag(rest[i:], closeThinkTags); more {
			rest = rest[:i]
		}
	}
	s.thinking = append(s.thinking, rest...)
	s.pos += len(rest)
}

// scanCodeBlock emits one line of a code block, or the fence that ends it. A line that may still become that fence is
// held back unless final.
func (s *replyScanner) scanCodeBlock(final bool) {
	rest := s.buf[s.pos:]
	if s.lineStart {
		line := bytes.TrimLeft(rest, " \t")
		switch startsFence(line) {
		case needMore:
			if !final && len(rest)-len(line) <= maxGap {
				return
			}
		case match:
			s.mode = modeText
			s.emit(len(rest) - len(line) + len(fence))
			return
		}
	}
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		rest = rest[:i+1]
	}
	s.emit(len(rest))
}

const fence = "```"

// startsFence decides whether b begins with a fence. A shorter b that may become one, also an empty one, is needMore.
func startsFence(b []byte) verdict {
	switch {
	case bytes.HasPrefix(b, []byte(fence)):
		return match
	case strings.HasPrefix(fence, string(b)):
		return needMore
	}
	return noMatch
}

// scanText decides about the byte at pos outside of thinking and code blocks. Calls other than tagged ones are looked
// for only at the start of a line or in the region, and only when there are tools.
func (s *replyScanner) scanText(final bool) {
	c := s.buf[s.pos]
	inRegion := s.regionStart >= 0
	switch {
	case inRegion && (isSpace(c) || c == ',' || c == ';'): // separators between calls
		s.pos++
	case isSpace(c):
		s.emit(1)
	case c == '<':
		s.scanTag(final)
	case !inRegion && (len(s.tools) == 0 || !s.lineStart):
		s.emitToNextTag()
	case c == '`':
		s.scanFence(final)
	case c == '{' || c == '[':
		s.scanJSON(final)
	case isNameByte(c):
		s.scanNamedCall(final)
	case inRegion:
		s.releaseRegion()
	default:
		s.emitToNextTag()
	}
}

// scanFence decides about the backtick at pos: the end of a fence around calls, the start of a region that may hold
// calls, a code block, or text. It waits for the line of an opening fence, at most maxGap bytes, unless final.
func (s *replyScanner) scanFence(final bool) {
	rest := s.buf[s.pos:]
	switch v := startsFence(rest); {
	case v == needMore && !final:
		return
	case v != match:
		s.emitByte()
		return
	case s.regionStart >= 0 && s.inFence:
		s.inFence = false
		s.pos += len(fence)
		return
	case s.skipFenceEnd:
		s.skipFenceEnd = false
		s.pos += len(fence)
		return
	}
	end := bytes.IndexByte(rest[:min(len(rest), maxGap)], '\n')
	if end < 0 && !final && len(rest) < maxGap {
		return
	}
	if end < 0 || !mayHoldCalls(string(bytes.TrimSpace(rest[len(fence):end]))) {
		isBlock := s.regionStart < 0 && end >= 0 && bytes.IndexByte(rest[len(fence):end], '`') < 0
		s.emitByte()
		if isBlock {
			s.mode = modeFence
		}
		return
	}
	if s.regionStart < 0 {
		s.regionStart, s.startsReply = s.pos, false
	}
	s.inFence = true
	s.pos += end + 1
}

// mayHoldCalls reports whether a code block with this info string may hold calls.
func mayHoldCalls(info string) bool {
	switch strings.ToLower(info) {
	case "", "json", "jsonc", "tool_call", "tool_calls", "tool_code", "tool", "tools", "function_call", "xml", "text":
		return true
	}
	return false
}

// holdCalls adds calls, read from buf between pos and end, to the region, which they begin if there is none. Calls
// beyond maxTextCalls are dropped.
func (s *replyScanner) holdCalls(calls []foundCall, layer string, end int) {
	for i := range calls {
		calls[i].layer, calls[i].source = layer, s.buf[s.pos:end]
	}
	if s.regionStart < 0 {
		s.regionStart = s.pos
		s.startsReply = layer == LayerJSON && s.textEnd == 0 && len(s.calls) == 0
	}
	s.pending = append(s.pending, calls[:min(len(calls), maxTextCalls)]...)
	s.pending = s.pending[:min(len(s.pending), maxTextCalls)]
	s.pos = end
}

// markUnreadable remembers why a call up to end could not be read. It is not part of the text.
func (s *replyScanner) markUnreadable(why string, end int) {
	s.unreadable = why
	s.confirmCalls()
	s.pos = end
}

// releaseRegion makes text of the region, if there is one, because something else followed. JSON that began the reply
// stays a call when the rest begins on a new line.
func (s *replyScanner) releaseRegion() {
	if s.regionStart < 0 {
		return
	}
	space := s.buf[len(bytes.TrimRight(s.buf[:s.pos], " \n\t\r")):s.pos]
	if s.startsReply && len(s.pending) > 0 && bytes.IndexByte(space, '\n') >= 0 {
		s.confirmCalls()
		return
	}
	s.emitRegion()
}

// emitRegion makes text of the region. An open fence becomes a code block.
func (s *replyScanner) emitRegion() {
	s.appendText(s.buf[s.regionStart:s.pos])
	s.regionStart, s.pending = -1, nil
	if s.inFence {
		s.inFence = false
		s.mode = modeFence
	}
}

// confirmCalls ends the region, if there is one, and adds its calls to the calls of the reply, except copied ones. The
// region is text as well when some of them are copied.
func (s *replyScanner) confirmCalls() {
	own := s.withoutCopied(s.pending)
	s.addCalls(own)
	if len(own) < len(s.pending) {
		s.emitRegion()
		return
	}
	s.regionStart, s.pending = -1, nil
	s.skipFenceEnd = s.skipFenceEnd || s.inFence
	s.inFence = false
}

// withoutCopied returns the calls that are not copied from tool results: those the model only shows. At most
// 4*maxTextCalls calls of a reply are compared, which bounds the cost; none beyond that is run.
func (s *replyScanner) withoutCopied(calls []foundCall) (own []foundCall) {
	if len(calls) == 0 || len(s.calls) >= maxTextCalls || !s.copied.hasSources() {
		return calls
	}
	if s.compared += len(calls); s.compared > 4*maxTextCalls {
		return nil
	}
	for i := range calls {
		if !s.copied.contains(&calls[i]) {
			own = append(own, calls[i])
		}
	}
	return own
}

// addCalls adds calls, each once: some models write the same call in two forms.
func (s *replyScanner) addCalls(calls []foundCall) {
	for _, c := range calls {
		if len(s.calls) < maxTextCalls && !slices.ContainsFunc(s.calls, c.equals) {
			s.calls = append(s.calls, c)
		}
	}
}

// hasCalls reports whether the reply has a call, so that its text is not the answer.
func (s *replyScanner) hasCalls() bool { return len(s.calls) > 0 || s.unreadable != "" }

// resolveRegion decides about the region, if there is one, when nothing follows it: its calls count, unless the line
// before it announces an example; then it is text.
func (s *replyScanner) resolveRegion() {
	switch {
	case s.regionStart < 0:
	case len(s.pending) > 0 && !s.followsExample():
		s.confirmCalls()
	default:
		s.startsReply = false
		s.releaseRegion()
	}
}

// followsExample reports whether the text before the region announces an example. Only the last line is looked at, at
// most its last maxExampleBytes, and once: many regions may follow one long line.
func (s *replyScanner) followsExample() bool {
	if s.textEnd == s.exampleAt {
		return s.exampleFound
	}
	line := s.text[max(0, s.textEnd-maxExampleBytes):s.textEnd]
	line = line[bytes.LastIndexByte(line, '\n')+1:]
	s.exampleAt, s.exampleFound = s.textEnd, examplePattern().Match(line)
	return s.exampleFound
}

// maxExampleBytes is how many bytes before a call may announce that it is an example.
const maxExampleBytes = 256

// emit makes the next n bytes text.
func (s *replyScanner) emit(n int) {
	s.appendText(s.buf[s.pos : s.pos+n])
	s.pos += n
}

// emitByte makes one byte text, or the region if there is one.
func (s *replyScanner) emitByte() {
	if s.regionStart >= 0 {
		s.releaseRegion()
		return
	}
	s.emit(1)
}

// emitTo makes everything up to end text, with the region.
func (s *replyScanner) emitTo(end int) {
	s.releaseRegion()
	s.emit(end - s.pos)
}

// emitToNextTag makes everything text up to the next tag or line.
func (s *replyScanner) emitToNextTag() {
	n := bytes.IndexAny(s.buf[s.pos+1:], "<\n")
	if n < 0 {
		n = len(s.buf) - s.pos - 1
	}
	s.emit(n + 1)
}

// appendText appends to the text, and to the tokens as far as they may be shown: spaces at the ends are not, because
// they may be the ends of the answer, and nothing is once there is a call, because then the text is not the answer.
func (s *replyScanner) appendText(b []byte) {
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 || s.lineStart {
		s.lineStart = len(bytes.TrimLeft(b[i+1:], " \t\r")) == 0
	}
	if len(bytes.TrimSpace(b)) > 0 {
		if s.textEnd == 0 {
			s.tokensEnd = len(s.text) + len(b) - len(bytes.TrimLeftFunc(b, unicode.IsSpace))
		}
		s.textEnd = len(s.text) + len(bytes.TrimRightFunc(b, unicode.IsSpace))
	}
	s.text = append(s.text, b...)
	if s.textEnd > s.tokensEnd && !s.hasCalls() {
		s.tokens = append(s.tokens, s.text[s.tokensEnd:s.textEnd]...)
		s.tokensEnd = s.textEnd
	}
}
