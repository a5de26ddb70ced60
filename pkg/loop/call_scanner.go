package loop

import (
	"bytes"
	"slices"
	"strings"
)

// This file holds the part of replyScanner that recognizes calls.

// scanJSON decides about the JSON value at pos, which begins with '{' or '['. Calls of offered tools join the region;
// broken JSON that names an offered tool makes the reply unreadable; any other value is text. A call marker such as
// [TOOL_CALLS] is skipped. Without the end of the value nothing is decided, also when final: see resolveHeld.
func (s *replyScanner) scanJSON(final bool) {
	rest := s.buf[s.pos:]
	if rest[0] == '[' {
		if marker, more := matchTag(rest, callMarkers); marker != "" {
			s.pos += len(marker)
			return
		} else if more && !final {
			return
		}
	}
	if s.heldAt != s.pos && !s.hold(s.pos, looksLikeCall(rest), final) {
		return
	}
	end, done := s.findHeldEnd()
	if !done {
		return
	}
	s.heldAt = -1
	v, err := parseLenient(s.buf[s.pos:end])
	if err != nil {
		if s.startsOfferedCall(s.buf[s.pos:end]) {
			s.markUnreadable("a tool call was not valid JSON", end)
			return
		}
		s.emitTo(end)
		return
	}
	if calls, _, ok := s.tools.parseCalls(&v); ok {
		s.holdCalls(calls, LayerJSON, end)
		return
	}
	s.emitTo(end)
}

// hold begins to hold back the text from pos on when v is match, and reports true; at is where its JSON value begins,
// an index of buf and not of the held text. Otherwise it reports false: the byte at pos is emitted when v is noMatch or
// final is set, and stays undecided when v is needMore.
func (s *replyScanner) hold(at int, v verdict, final bool) bool {
	switch {
	case v == match:
		s.heldAt, s.value = s.pos, valueScanner{pos: at}
		return true
	case v == noMatch || final:
		s.emitByte()
	}
	return false
}

// findHeldEnd is the index after the value that is held back, and whether it has been reached. A value that nests
// deeper than maxDepth is emitted as text and reported as not reached.
func (s *replyScanner) findHeldEnd() (end int, done bool) {
	end, done = s.value.findEnd(s.buf)
	if s.value.tooDeep {
		s.heldAt = -1
		s.emitTo(end)
		return end, false
	}
	return end, done
}

// looksLikeCall decides by the beginning of a JSON value whether it is worth holding back: an object whose first key is
// one of callKeys, or a list that begins with such an object. b must begin with '{' or '['. More than maxGap bytes of
// white space before the key are noMatch.
func looksLikeCall(b []byte) verdict {
	i := skipSpace(b, 1)
	if b[0] == '[' {
		if i == len(b) {
			return needMore
		}
		if b[i] != '{' {
			return noMatch
		}
		i = skipSpace(b, i+1)
	}
	switch {
	case i > maxGap:
		return noMatch
	case i == len(b):
		return needMore
	case b[i] != '"':
		return noMatch
	}
	key, _, ok := strings.Cut(string(b[i+1:min(len(b), i+1+maxGap)]), `"`)
	switch {
	case ok && slices.Contains(callKeys, key):
		return match
	case ok || len(b)-i > maxGap:
		return noMatch
	}
	return needMore
}

// startsOfferedCall reports whether broken JSON must be meant as a call: near its beginning, one of nameKeys has the
// name of an offered tool as its value.
func (s *replyScanner) startsOfferedCall(b []byte) bool {
	head := string(b[:min(len(b), maxName+2*maxGap)])
	for _, key := range nameKeys {
		_, rest, ok := strings.Cut(head, `"`+key+`"`)
		if !ok {
			continue
		}
		rest, ok = strings.CutPrefix(strings.TrimLeft(rest, " \n\t\r:"), `"`)
		if name, _, closed := strings.Cut(rest, `"`); ok && closed && s.tools.has(name) {
			return true
		}
	}
	return false
}

// scanNamedCall decides about the name at pos, at the start of a line or in the region: name {json} and name({json})
// with an offered name join the region. Arguments that are not JSON, even repaired, make the reply unreadable; any
// other name is text. Without the end of the arguments nothing is decided, also when final.
func (s *replyScanner) scanNamedCall(final bool) {
	if s.heldAt != s.pos {
		_, body, v := s.tools.parseCallHead(s.buf[s.pos:])
		if !s.hold(s.pos+body, v, final) {
			return
		}
	}
	end, done := s.findHeldEnd()
	if !done {
		return
	}
	if after := skipSpace(s.buf, end); after == len(s.buf) && !final && after-end <= maxGap {
		return // a closing parenthesis may follow
	}
	s.heldAt = -1
	calls, size := s.tools.parseNamedCall(s.buf[s.pos:])
	if size == 0 {
		s.markUnreadable("a tool call was not valid JSON", end)
		return
	}
	s.holdCalls(calls, LayerText, s.pos+size)
}

// scanTag decides about the '<' at pos. Think tags switch to and from thinking; with tools, call tags begin a call and
// call markers are skipped. A tag right behind a quote or backtick, and anything that is no known tag, is text. It
// waits for more bytes when they may complete a tag, unless final.
func (s *replyScanner) scanTag(final bool) {
	rest := s.buf[s.pos:]
	if s.pos > 0 && strings.IndexByte("`\"'", s.buf[s.pos-1]) >= 0 { // quoted: the text is about tags
		s.emitByte()
		return
	}
	if len(rest) > 1 && strings.IndexByte("tTfFiI/|", rest[1]) < 0 { // no tag begins so
		s.emitByte()
		return
	}
	handlers := []struct {
		tags   []string
		handle func(tag string)
	}{
		{openThinkTags, func(tag string) {
			s.resolveRegion()
			s.pos += len(tag)
			s.mode = modeThink
		}},
		{closeThinkTags, func(tag string) { s.endThinking(len(tag)) }},
		{openCallTags, func(tag string) { s.scanElement(tag, final) }},
		{openFunctionTags, func(tag string) { s.scanElement(tag, final) }},
		{closeCallTags, s.skipStrayTag},
		{callMarkers, func(tag string) { s.pos += len(tag) }},
	}
	if len(s.tools) == 0 {
		handlers = handlers[:2]
	}
	undecided := false
	for _, h := range handlers {
		tag, more := matchTag(rest, h.tags)
		if tag != "" {
			h.handle(tag)
			return
		}
		undecided = undecided || more
	}
	if !undecided || final {
		s.emitByte()
	}
}

// endThinking handles a closing think tag of size bytes at pos without an opening one: everything before it was
// thinking, and its calls are discarded.
func (s *replyScanner) endThinking(size int) {
	s.startsReply = false
	s.releaseRegion()
	s.thinking = append(append(s.thinking, s.text...), '\n')
	s.text, s.lineStart, s.textEnd, s.tokensEnd = nil, true, 0, 0
	s.exampleAt, s.exampleFound = 0, false
	s.calls, s.unreadable, s.unknownTool = nil, "", ""
	s.mode = modeText
	s.pos += size
}

// skipStrayTag skips a closing call tag after calls. Elsewhere it is text.
func (s *replyScanner) skipStrayTag(tag string) {
	if !s.hasCalls() && len(s.pending) == 0 {
		s.emitByte()
		return
	}
	s.pos += len(tag)
}

// scanElement decides about a tagged call at pos; open is its opening tag, up to the '=' for a function tag. A tag
// whose content does not begin like a call is text; one whose content is missing when final makes the reply unreadable.
// The call is held back to its closing tag, or to the end of the reply: see resolveHeld.
func (s *replyScanner) scanElement(open string, final bool) {
	isBare := strings.HasSuffix(open, "=") // <function=
	body := s.pos + len(open)
	if !isBare {
		i := skipSpace(s.buf, body)
		switch v := s.startsCall(s.buf[i:]); {
		case i-body > maxGap || v == noMatch:
			s.emitByte()
			return
		case v == needMore && final:
			s.markUnreadable("a tool call was not complete", len(s.buf))
			return
		case v == needMore:
			return
		}
	}
	from := max(body, s.closeFrom)
	end, size := indexAnyTag(s.buf[from:], closingTags(open))
	if end < 0 {
		s.closeFrom = max(body, len(s.buf)-32) // a closing tag may have begun there
		return
	}
	inner := s.buf[body : from+end]
	if isBare {
		inner = s.buf[s.pos : from+end+size]
	}
	s.parseElement(inner, from+end+size, true)
}

// startsCall decides whether b, the content of a call tag without leading white space, begins like a call: JSON, a call
// tag, or an offered name with its arguments. Nothing yet is needMore.
func (s *replyScanner) startsCall(b []byte) verdict {
	switch {
	case len(b) == 0:
		return needMore
	case b[0] == '{' || b[0] == '[':
		return match
	case b[0] == '<':
		tag, more := matchTag(b, slices.Concat(openFunctionTags, wrapTags))
		if tag != "" {
			return match
		} else if more {
			return needMore
		}
	case isNameByte(b[0]):
		_, _, v := s.tools.parseCallHead(b)
		return v
	}
	return noMatch
}

// closingTags are the tags that end the element of an opening tag of openCallTags or openFunctionTags; any one of them
// does.
func closingTags(open string) []string {
	switch {
	case strings.HasPrefix(open, "<invoke"):
		return []string{"</invoke>"}
	case strings.HasSuffix(open, "="):
		return []string{"</function>", "</tool_call>"}
	}
	return []string{"</" + open[1:]}
}

// parseElement reads inner, the content of a tagged call, and moves pos to end. closed says whether its closing tag
// came: if so, all of inner must be calls of offered tools; if not, calls before something unreadable count. Otherwise
// the reply is unreadable. Copied calls are not added; the element is then text as well.
func (s *replyScanner) parseElement(inner []byte, end int, closed bool) {
	s.closeFrom = 0
	calls, unknown, ok := s.tools.parseTagged(inner)
	if !ok && (closed || len(calls) == 0) {
		s.unknownTool = unknown
		s.markUnreadable("a tool call between tags could not be read", end)
		return
	}
	s.confirmCalls()
	for i := range calls {
		calls[i].layer = LayerXML
	}
	own := s.withoutCopied(calls)
	s.addCalls(own)
	if len(own) < len(calls) {
		s.emit(end - s.pos)
		return
	}
	s.pos = end
}

// resolveHeld decides about the rest of the reply, a call whose end never came; pos must be before the end of buf. cut
// says that the reply was cut off: then no call is completed. A rest that is no call is text, unless it must be meant
// as one, which makes the reply unreadable.
func (s *replyScanner) resolveHeld(cut bool) {
	rest, end := s.buf[s.pos:], len(s.buf)
	switch c := rest[0]; {
	case c == '<' && cut:
		s.markUnreadable("a tool call was cut off", end)
	case c == '<':
		open, _ := matchTag(rest, openCallTags)
		s.parseElement(rest[len(open):], end, false)
	case c == '{' || c == '[':
		if repaired := repairJSON(bytes.TrimRight(rest, "` \n\t\r")); repaired != nil && !cut {
			if v, err := parseLenient(repaired); err == nil {
				if calls, _, ok := s.tools.parseCalls(&v); ok {
					s.holdCalls(calls, LayerJSON, end)
					return
				}
			}
		}
		if s.startsOfferedCall(rest) {
			s.markUnreadable("a tool call was not complete", end)
			return
		}
		s.emitTo(end)
	default:
		if calls, size := s.tools.parseNamedCall(rest); size > 0 && !cut {
			s.holdCalls(calls, LayerText, end)
			return
		}
		s.markUnreadable("a tool call was not complete", end)
	}
}
