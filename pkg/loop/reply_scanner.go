package loop

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// replyScanner reads the content of a reply as it comes and parts it into words, thinking and calls. What it makes of the
// content does not depend on where the pieces were cut: whatever cannot be decided yet is held back.
//
// In this order:
//   - Think tags, anywhere outside code: what is between them is thinking. A closing tag without an opening one makes
//     everything before it thinking; an opening one without a closing one, everything after.
//   - Call tags (<tool_call> and its cousins, <function=name>), anywhere outside code: a call, whatever stands around it.
//     A tagged call that cannot be read, or whose tool is not offered, makes the reply unreadable; it is no answer.
//   - JSON of the shape of a call, fenced or not, and the form name {json}: a call when it begins a line and nothing but
//     further calls follows it to the end of the reply, unless the line before it announces an example. JSON that the
//     reply begins with is a call too when text follows on a new line: models go on and make the result up.
//
// Everything else is words: in particular JSON of another shape, calls of tools that are not offered, a call that is
// shown in the middle of an explanation, and one that is copied from what a tool returned.
type replyScanner struct {
	tools     toolNames
	copied    *copiedCalls // knows which calls are copied; nil = none are
	buf       []byte       // content so far, valid UTF-8
	pos       int          // everything before it is decided
	mode      int
	closeFrom int          // how far a closing tag has been looked for
	value     valueScanner // of the JSON value that is being held back
	heldAt    int          // where that value begins; -1 = none

	pending      []foundCall // calls that count if nothing else follows
	regionStart  int         // where the first of them, or its fence, begins; -1 = none
	inFence      bool        // inside the fence of the region
	startsReply  bool        // the region begins the reply, with bare JSON
	skipFenceEnd bool        // the end of a fence is still to come, around calls that are taken

	text         []byte
	lineStart    bool   // only blanks stand on the last line of words
	textEnd      int    // end of the last of words that is no blank
	exampleAt    int    // the ink up to which words were last asked about an example
	exampleFound bool   // what came of that
	tokensEnd    int    // how much of words is in tokens
	tokens       []byte // words that may be shown, for the caller to take
	mute         bool   // nobody takes them
	thinking     []byte
	calls        []foundCall
	compared     int    // calls that were looked for in results
	unreadable   string // what is unreadable about the reply, for the model; "" = nothing
	unknownTool  string // a tagged call's tool that is not offered
	carry        []byte // the beginning of a character whose end has not come
	mangled      bool   // bytes that are no text were replaced
}

// Modes of a scan.
const (
	modeText = iota
	modeThink
	modeFence // inside a code block that holds no call
)

// Tags around calls, as different models write them.
var wrapTags = []string{"tool_call", "tool_calls", "function_call", "function_calls", "tools"}

// Tags that are looked for in text. The first are for thinking, the others only when tools are offered.
var (
	openThinkTags    = []string{"<think>", "<thinking>"}
	closeThinkTags   = []string{"</think>", "</thinking>"}
	openCallTags     = []string{"<tool_call>", "<tool_calls>", "<function_call>", "<function_calls>", "<tools>"}
	closeCallTags    = []string{"</tool_call>", "</tool_calls>", "</function_call>", "</function_calls>", "</tools>", "</function>"}
	openFunctionTags = []string{"<function=", "<function name=", "<invoke name="}
	callMarkers      = []string{"<|python_tag|>", "[TOOL_CALLS]"} // they only say that calls follow
)

// allCallTags are the tags around calls, opening and closing.
var allCallTags = slices.Concat(openCallTags, closeCallTags[:len(openCallTags)])

// tagSets are the tags in the order in which they are looked for. Their letters after '<' stand in tag.
var tagSets = [...][]string{openThinkTags, closeThinkTags, openCallTags, openFunctionTags, closeCallTags, callMarkers}

// reset makes s ready for a new reply and keeps its memory.
func (s *replyScanner) reset(n toolNames) {
	*s = replyScanner{
		tools: n, heldAt: -1, regionStart: -1, lineStart: true, tokens: s.tokens[:0],
		buf: s.buf[:0], text: s.text[:0], thinking: s.thinking[:0], carry: s.carry[:0], pending: s.pending[:0], calls: s.calls[:0],
	}
}

// feed takes the next piece of content.
func (s *replyScanner) feed(piece string) {
	s.buf, s.carry, s.mangled = appendValid(s.buf, s.carry, piece, s.mangled)
	if s.text == nil {
		s.text = make([]byte, 0, len(s.buf)) // most replies come in one piece and are words
	}
	s.advance(false)
}

// finish decides what is left. cut says that the reply did not come to its own end: then nothing is put right, because
// what a call lacks may be more than a bracket.
func (s *replyScanner) finish(cut bool) {
	if len(s.carry) > 0 && !cut {
		s.buf = append(s.buf, string(utf8.RuneError)...)
		s.carry, s.mangled = s.carry[:0], true
	}
	s.advance(true)
	s.resolveEnd(cut)
}

// appendValid appends piece to buf, with bytes that are no UTF-8 replaced one by one. A character that is not complete
// yet waits in carry.
func appendValid(buf, carry []byte, piece string, replaced bool) ([]byte, []byte, bool) {
	if len(carry) == 0 && utf8.ValidString(piece) {
		return append(buf, piece...), carry, replaced
	}
	rest := append(carry, piece...)
	for len(rest) > 0 && utf8.FullRune(rest) {
		r, size := utf8.DecodeRune(rest)
		replaced = replaced || r == utf8.RuneError && size == 1
		buf = utf8.AppendRune(buf, r)
		rest = rest[size:]
	}
	return buf, append(carry[:0], rest...), replaced
}

// advance decides as much as can be decided.
func (s *replyScanner) advance(final bool) {
	for s.pos < len(s.buf) {
		before, mode, region := s.pos, s.mode, s.regionStart
		switch s.mode {
		case modeThink:
			s.scanThinking(final)
		case modeFence:
			s.scanCodeBlock(final)
		default:
			s.scanText(final)
		}
		if s.pos == before && s.mode == mode && s.regionStart == region {
			return // more has to come
		}
	}
}

// scanThinking looks for the closing tag.
func (s *replyScanner) scanThinking(final bool) {
	rest := s.buf[s.pos:]
	if end, size := indexAnyTag(rest, closeThinkTags); end >= 0 {
		s.thinking = append(s.thinking, rest[:end]...)
		s.thinking = append(s.thinking, '\n')
		s.pos += end + size
		s.mode = modeText
		return
	}
	keep := 0
	if i := bytes.LastIndexByte(rest, '<'); !final && i >= 0 && isTagPrefix(rest[i:], closeThinkTags) {
		keep = len(rest) - i
	}
	s.thinking = append(s.thinking, rest[:len(rest)-keep]...)
	s.pos += len(rest) - keep
}

// scanCodeBlock passes a code block on as it is, up to the line that closes it.
func (s *replyScanner) scanCodeBlock(final bool) {
	rest := s.buf[s.pos:]
	if s.lineStart {
		t := bytes.TrimLeft(rest, " \t")
		if !final && len(t) < 3 && len(rest)-len(t) <= maxGap && bytes.HasPrefix([]byte("```"), t) {
			return
		}
		if bytes.HasPrefix(t, []byte("```")) {
			s.mode = modeText
			s.emit(len(rest) - len(t) + 3)
			return
		}
	}
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		s.emit(i + 1)
		return
	}
	s.emit(len(rest))
}

// scanText decides about what stands at pos.
func (s *replyScanner) scanText(final bool) {
	c := s.buf[s.pos]
	switch {
	case s.regionStart >= 0 && isSpace(c):
		s.pos++
		return
	case s.regionStart >= 0:
		s.scanAfterCall(final)
		return
	case isSpace(c):
		s.emit(1)
		return
	case c == '<':
		s.scanTag(final)
		return
	case len(s.tools) > 0 && s.lineStart:
		s.scanLineStart(final)
		return
	}
	s.emitToNextTag()
}

// scanLineStart decides about the start of a line.
func (s *replyScanner) scanLineStart(final bool) {
	rest := s.buf[s.pos:]
	switch c := rest[0]; {
	case c == '`':
		s.scanFence(final)
	case c == '{' || c == '[':
		s.scanJSON(final)
	case isNameByte(c):
		s.scanNamedCall(final)
	default:
		s.emitToNextTag()
	}
}

// scanAfterCall decides what follows a call that counts only when nothing but calls follows.
func (s *replyScanner) scanAfterCall(final bool) {
	rest := s.buf[s.pos:]
	switch c := rest[0]; {
	case c == '`':
		if len(rest) < 3 && !final && bytes.HasPrefix([]byte("```"), rest) {
			return
		}
		if !bytes.HasPrefix(rest, []byte("```")) {
			s.releaseRegion()
			return
		}
		if s.inFence {
			s.inFence = false
			s.pos += 3
			return
		}
		s.scanFence(final)
	case c == '<':
		s.scanTag(final)
	case c == '{' || c == '[':
		s.scanJSON(final)
	case isNameByte(c):
		s.scanNamedCall(final)
	case c == ',' || c == ';':
		s.pos++ // between calls
	default:
		s.releaseRegion()
	}
}

// scanFence opens a region for a code block that may hold calls.
func (s *replyScanner) scanFence(final bool) {
	rest := s.buf[s.pos:]
	if len(rest) < 3 && !final && bytes.HasPrefix([]byte("```"), rest) {
		return
	}
	if !bytes.HasPrefix(rest, []byte("```")) {
		s.emitByte()
		return
	}
	if s.skipFenceEnd {
		s.skipFenceEnd = false
		s.pos += 3
		return
	}
	line := bytes.IndexByte(rest[:min(len(rest), maxGap)], '\n')
	if line < 0 && !final && len(rest) < maxGap {
		return
	}
	if line < 0 || !mayHoldCalls(string(bytes.TrimSpace(rest[3:line]))) {
		block := s.regionStart < 0 && line >= 0 && bytes.IndexByte(rest[3:line], '`') < 0
		s.emitByte()
		if block {
			s.mode = modeFence
		}
		return
	}
	if s.regionStart < 0 {
		s.regionStart, s.startsReply = s.pos, false
	}
	s.inFence = true
	s.pos += line + 1
}

// mayHoldCalls reports whether a code block with this info string may hold calls.
func mayHoldCalls(info string) bool {
	switch strings.ToLower(info) {
	case "", "json", "jsonc", "tool_call", "tool_calls", "tool_code", "tool", "tools", "function_call", "xml", "text":
		return true
	}
	return false
}

// scanJSON decides about the JSON value at pos.
func (s *replyScanner) scanJSON(final bool) {
	rest := s.buf[s.pos:]
	if rest[0] == '[' {
		if hit, more := matchTag(rest, callMarkers); hit != "" {
			s.pos += len(hit)
			return
		} else if more && !final {
			return
		}
	}
	if s.heldAt != s.pos {
		switch looksLikeCall(rest) {
		case needMore:
			if !final {
				return
			}
			s.emitByte()
			return
		case noName:
			s.emitByte()
			return
		}
		s.heldAt, s.value = s.pos, valueScanner{pos: s.pos}
	}
	end, whole := s.value.findEnd(s.buf)
	if s.value.tooDeep {
		s.heldAt = -1
		s.emitTo(end)
		return
	}
	if !whole {
		return // settle decides at the end
	}
	s.heldAt = -1
	v := s.buf[s.pos:end]
	if !json.Valid(v) {
		if m := repairJSON(v); m != nil {
			v = m
		}
	}
	if json.Valid(v) {
		if calls, _, ok := s.tools.parseCalls(v); ok {
			s.holdCalls(calls, LayerJSON, end)
			return
		}
	} else if s.startsOfferedCall(v) {
		s.markUnreadable("a tool call was not valid JSON", end)
		return
	}
	s.emitTo(end)
}

// looksLikeCall looks at how a JSON value begins: only an object whose first key is one of a call's, or a list of such, is
// worth holding back. needMore and noName mean what they mean for head; 1 is yes.
func looksLikeCall(b []byte) int {
	i := skipSpace(b, 1)
	if b[0] == '[' {
		if i == len(b) {
			return needMore
		}
		if b[i] != '{' {
			return noName
		}
		i = skipSpace(b, i+1)
	}
	if i > maxGap {
		return noName
	}
	if i == len(b) {
		return needMore
	}
	if b[i] != '"' {
		return noName
	}
	end := bytes.IndexByte(b[i+1:], '"')
	if end < 0 {
		if len(b)-i > maxGap {
			return noName
		}
		return needMore
	}
	if !isCallKey(string(b[i+1 : i+1+end])) {
		return noName
	}
	return 1
}

// startsOfferedCall reports whether broken JSON was surely meant as a call: it begins with the name of an offered tool.
func (s *replyScanner) startsOfferedCall(b []byte) bool {
	head := string(b[:min(len(b), maxName+2*maxGap)])
	for _, key := range nameKeys {
		i := strings.Index(head, `"`+key+`"`)
		if i < 0 {
			continue
		}
		rest := strings.TrimLeft(head[i+len(key)+2:], " \n\t\r:")
		if !strings.HasPrefix(rest, `"`) {
			continue
		}
		name, _, ok := strings.Cut(rest[1:], `"`)
		if ok && s.tools.has(name) {
			return true
		}
	}
	return false
}

// scanNamedCall decides about a word at the start of a line: name {json}.
func (s *replyScanner) scanNamedCall(final bool) {
	if s.heldAt != s.pos {
		_, body := s.tools.parseCallHead(s.buf[s.pos:])
		switch body {
		case needMore:
			if !final {
				return
			}
			s.emitByte()
			return
		case noName:
			s.emitByte()
			return
		}
		s.heldAt, s.value = s.pos, valueScanner{pos: s.pos + body}
	}
	end, whole := s.value.findEnd(s.buf)
	if s.value.tooDeep {
		s.heldAt = -1
		s.emitTo(end)
		return
	}
	if !whole {
		return
	}
	// A closing bracket may follow: wait for what does.
	after := skipSpace(s.buf, end)
	if after == len(s.buf) && !final && after-end <= maxGap {
		return
	}
	s.heldAt = -1
	calls, size := s.tools.parseNamedCall(s.buf[s.pos:])
	if size == 0 {
		s.markUnreadable("a tool call was not valid JSON", end)
		return
	}
	s.holdCalls(calls, LayerText, s.pos+size)
}

// scanTag decides about a '<'.
func (s *replyScanner) scanTag(final bool) {
	rest := s.buf[s.pos:]
	if s.pos > 0 && bytes.IndexByte([]byte("`\"'"), s.buf[s.pos-1]) >= 0 {
		s.emitByte() // quoted: somebody talks about tags
		return
	}
	if len(rest) > 1 && strings.IndexByte("tTfFiI/|", rest[1]) < 0 {
		s.emitByte() // no tag of ours
		return
	}
	sets := tagSets[:]
	if len(s.tools) == 0 {
		sets = tagSets[:2]
	}
	more := false
	for i, set := range sets {
		hit, m := matchTag(rest, set)
		more = more || m
		if hit == "" {
			continue
		}
		switch i {
		case 0:
			s.resolveRegion()
			s.pos += len(hit)
			s.mode = modeThink
		case 1:
			s.endThinking(len(hit))
		case 2, 3:
			s.scanElement(hit, final)
		default:
			s.skipStrayTag(len(hit), i == 4)
		}
		return
	}
	if more && !final {
		return
	}
	s.emitByte()
}

// endThinking is a closing tag without an opening one: what came before it was thinking.
func (s *replyScanner) endThinking(size int) {
	s.startsReply = false
	s.releaseRegion()
	s.thinking = append(append(s.thinking, s.text...), '\n')
	s.text, s.lineStart, s.textEnd, s.tokensEnd = s.text[:0], true, 0, 0
	s.exampleAt, s.exampleFound = 0, false
	s.calls, s.unreadable, s.unknownTool = s.calls[:0], "", "" // they were thoughts
	s.mode = modeText
	s.pos += size
}

// skipStrayTag goes over a marker, or over the end of a call whose beginning is gone. Elsewhere a closing tag is words.
func (s *replyScanner) skipStrayTag(size int, closing bool) {
	if closing && len(s.calls) == 0 && len(s.pending) == 0 && s.unreadable == "" {
		s.emitByte()
		return
	}
	s.pos += size
}

// scanElement decides about a tagged call. It is held back to its closing tag, or to the end.
func (s *replyScanner) scanElement(open string, final bool) {
	bare := strings.HasSuffix(open, "=") // <function=
	body := s.pos + len(open)
	if !bare {
		i := skipSpace(s.buf, body)
		switch verdict := s.startsCall(s.buf[i:]); {
		case i-body > maxGap || verdict == noName:
			s.emitByte()
			return
		case verdict == needMore && final:
			s.markUnreadable("a tool call was not complete", len(s.buf))
			return
		case verdict == needMore:
			return
		}
	}
	begin := max(body, s.closeFrom)
	end, size := indexAnyTag(s.buf[begin:], closingTags(open))
	if end < 0 {
		s.closeFrom = max(body, len(s.buf)-32) // the closing tag may have begun
		return                                 // settle decides at the end
	}
	s.parseElement(s.pos, body, begin+end, begin+end+size, bare, true)
}

// parseElement reads a tagged call that is all there, or all there will be.
func (s *replyScanner) parseElement(start, body, end, after int, bare, closed bool) {
	s.closeFrom = 0
	inner := s.buf[body:end]
	if bare {
		inner = s.buf[start:after]
	}
	calls, unknown, ok := s.tools.parseTagged(inner)
	if !ok && (closed || len(calls) == 0) {
		s.unknownTool = unknown
		s.markUnreadable("a tool call between tags could not be read", after)
		return
	}
	s.confirmCalls()
	for i := range calls {
		calls[i].layer = LayerXML
	}
	own := s.withoutCopied(calls)
	if s.addCalls(own); len(own) < len(calls) {
		s.emit(after - s.pos)
		return
	}
	s.pos = after
}

// startsCall reports whether b, which stands after an opening tag, begins like a call: 1, needMore or noName.
func (s *replyScanner) startsCall(b []byte) int {
	switch {
	case len(b) == 0:
		return needMore
	case b[0] == '{' || b[0] == '[':
		return 1
	case b[0] == '<':
		more := false
		for _, set := range [][]string{openCallTags, openFunctionTags, closeCallTags} {
			hit, m := matchTag(b, set)
			if hit != "" {
				return 1
			}
			more = more || m
		}
		if more {
			return needMore
		}
	case isNameByte(b[0]):
		_, body := s.tools.parseCallHead(b)
		return min(body, 1)
	}
	return noName
}

// closingTags are the tags that end what open began.
func closingTags(open string) []string {
	if strings.HasPrefix(open, "<invoke") {
		return []string{"</invoke>"}
	}
	if strings.HasSuffix(open, "=") {
		return []string{"</function>", "</tool_call>"}
	}
	return []string{"</" + open[1:]}
}

// holdCalls adds calls that count when nothing else follows.
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

// markUnreadable remembers that a call was meant and could not be read. It is not shown as words.
func (s *replyScanner) markUnreadable(why string, end int) {
	s.unreadable = why
	s.confirmCalls()
	s.pos = end
}

// emitByte passes one character on as words, with all that was waiting on it.
func (s *replyScanner) emitByte() {
	if s.regionStart >= 0 {
		s.releaseRegion()
		return
	}
	s.emit(1)
}

// emitTo passes on all up to end.
func (s *replyScanner) emitTo(end int) {
	if s.regionStart >= 0 {
		s.releaseRegion()
	}
	s.emit(end - s.pos)
}

// releaseRegion makes words of what might have been calls: something else followed. Only JSON that began the reply stays a
// call when the rest begins on a new line.
func (s *replyScanner) releaseRegion() {
	if s.regionStart < 0 {
		return
	}
	from := s.regionStart
	if s.startsReply && len(s.pending) > 0 && bytes.IndexByte(s.spaceBefore(), '\n') >= 0 {
		s.confirmCalls()
		return
	}
	s.regionStart, s.pending = -1, s.pending[:0]
	s.emitRegion(from)
}

// emitRegion makes words of the region that began at from.
func (s *replyScanner) emitRegion(from int) {
	s.appendText(s.buf[from:s.pos])
	if s.inFence {
		s.inFence = false
		s.mode = modeFence
	}
}

// spaceBefore is the white space before pos.
func (s *replyScanner) spaceBefore() []byte {
	return s.buf[len(bytes.TrimRight(s.buf[:s.pos], " \n\t\r")):s.pos]
}

// confirmCalls makes calls of what was waiting. It stays words when some of it is copied.
func (s *replyScanner) confirmCalls() {
	from, waiting := s.regionStart, len(s.pending)
	own := s.withoutCopied(s.pending)
	s.addCalls(own)
	s.regionStart, s.pending = -1, s.pending[:0]
	if len(own) < waiting {
		s.emitRegion(from)
		return
	}
	s.skipFenceEnd = s.skipFenceEnd || s.inFence
	s.inFence = false
}

// withoutCopied are the calls that are not copied from what a tool returned. The others are not the model's: it only shows them.
// To compare costs something, so it is done only so often in one reply.
func (s *replyScanner) withoutCopied(calls []foundCall) []foundCall {
	if len(calls) == 0 || len(s.calls) >= maxTextCalls || !s.copied.hasSources() {
		return calls // none is taken, or none can be copied
	}
	if s.compared += len(calls); s.compared > 4*maxTextCalls {
		return nil
	}
	return slices.DeleteFunc(calls, func(f foundCall) bool { return s.copied.contains(&f) })
}

// addCalls adds calls, each once: some models write the same call in two forms.
func (s *replyScanner) addCalls(calls []foundCall) {
	for _, c := range calls {
		if len(s.calls) < maxTextCalls && !slices.ContainsFunc(s.calls, c.equals) {
			s.calls = append(s.calls, c)
		}
	}
}

// maxTextCalls is how many calls are taken out of the text of one reply.
const maxTextCalls = 64

// resolveEnd decides about what is still held at the end of the reply.
func (s *replyScanner) resolveEnd(cut bool) {
	if s.mode == modeText && s.pos < len(s.buf) {
		s.resolveHeld(cut)
	}
	s.resolveRegion()
	if s.pos < len(s.buf) {
		s.emit(len(s.buf) - s.pos)
	}
}

// resolveRegion decides about calls that were waiting for what follows: nothing does.
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

// resolveHeld reads a call whose end never came.
func (s *replyScanner) resolveHeld(cut bool) {
	rest := s.buf[s.pos:]
	all := len(s.buf)
	switch c := rest[0]; {
	case c == '<':
		if cut {
			s.markUnreadable("a tool call was cut off", all)
			return
		}
		hit, _ := matchTag(rest, openFunctionTags)
		open, _ := matchTag(rest, openCallTags)
		s.parseElement(s.pos, s.pos+len(open), all, all, hit != "", false)
	case c == '{' || c == '[':
		if m := repairJSON(bytes.TrimRight(rest, "` \n\t\r")); m != nil && !cut {
			if calls, _, ok := s.tools.parseCalls(m); ok {
				s.holdCalls(calls, LayerJSON, all)
				return
			}
		}
		if s.startsOfferedCall(rest) {
			s.markUnreadable("a tool call was not complete", all)
			return
		}
		s.emitTo(all)
	default:
		if calls, size := s.tools.parseNamedCall(rest); size > 0 && !cut {
			s.holdCalls(calls, LayerText, all)
			return
		}
		s.markUnreadable("a tool call was not complete", all)
	}
}

// followsExample reports whether the words before the region announce an example. Only the end of the last line is looked at:
// many regions may stand after one long line. Each line is asked about once.
func (s *replyScanner) followsExample() bool {
	if s.textEnd == s.exampleAt {
		return s.exampleFound
	}
	w := s.text[max(0, s.textEnd-maxExampleBytes):s.textEnd]
	if i := bytes.LastIndexByte(w, '\n'); i >= 0 {
		w = w[i+1:]
	}
	s.exampleAt, s.exampleFound = s.textEnd, examplePattern().Match(w)
	return s.exampleFound
}

// maxExampleBytes is how many bytes before a call may announce that it is an example.
const maxExampleBytes = 256

// emit passes n bytes on as words.
func (s *replyScanner) emit(n int) {
	s.appendText(s.buf[s.pos : s.pos+n])
	s.pos += n
}

// appendText appends to the words, and to the tokens as far as they may be shown: blanks at the ends are not, because they may
// turn out to be the ends of the answer, and nothing is once there is a call, because then it is not the answer.
func (s *replyScanner) appendText(b []byte) {
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		s.lineStart = len(bytes.TrimLeft(b[i+1:], " \t\r")) == 0
	} else if s.lineStart {
		s.lineStart = len(bytes.TrimLeft(b, " \t\r")) == 0
	}
	if n := len(bytes.TrimSpace(b)); n > 0 {
		if s.textEnd == 0 {
			s.tokensEnd = len(s.text) + len(b) - len(bytes.TrimLeftFunc(b, unicode.IsSpace))
		}
		s.textEnd = len(s.text) + len(bytes.TrimRightFunc(b, unicode.IsSpace))
	}
	s.text = append(s.text, b...)
	if s.textEnd > s.tokensEnd && !s.hasCalls() {
		if !s.mute {
			s.tokens = append(s.tokens, s.text[s.tokensEnd:s.textEnd]...)
		}
		s.tokensEnd = s.textEnd
	}
}

// emitToNextTag passes on everything up to where the next decision may be.
func (s *replyScanner) emitToNextTag() {
	n := bytes.IndexAny(s.buf[s.pos+1:], "<\n")
	if n < 0 {
		n = len(s.buf) - s.pos - 1
	}
	s.emit(n + 1)
}

// hasCalls reports whether the reply holds a call, so that its words are not the answer.
func (s *replyScanner) hasCalls() bool { return len(s.calls) > 0 || s.unreadable != "" }

// matchTag is the tag of set that b begins with, and whether b may become one.
func matchTag(b []byte, set []string) (hit string, more bool) {
	for _, t := range set {
		if hasPrefixFold(b, t) {
			return t, false
		}
		more = more || len(b) < len(t) && strings.EqualFold(string(b), t[:len(b)])
	}
	return "", more
}

func isTagPrefix(b []byte, set []string) bool {
	_, more := matchTag(b, set)
	return more
}
