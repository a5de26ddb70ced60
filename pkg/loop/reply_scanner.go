package loop

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unicode"
)

// replyScanner separates the content of a reply, as it comes, into thinking, text and calls. The result does not depend
// on where the content is split into pieces. From the first place that begins like a call, nothing is shown until the
// reply is complete; then the calls are read.
//
//   - A <think> tag that begins the text: what follows up to </think>, or to the end, is thinking. A </think> without
//     an opening tag anywhere before it makes everything before it thinking.
//   - A call between tags, anywhere outside code, or behind a marker that begins a line, is a call whatever is around
//     it. One that cannot be read, or whose tool is not offered, makes the reply unreadable: it is no answer.
//   - JSON in the form of a call, fenced or not, and the form name {json} are a call when they begin a line and only
//     further calls follow to the end of the reply, unless the line before announces an example. JSON that begins the
//     reply is a call too when text follows on a new line: models go on and invent the result.
//
// Everything else is text: in particular JSON in another form, calls of tools that are not offered, a call that is
// shown in the middle of an explanation, and a call that is copied from a tool result. See [callReader] for the forms.
type replyScanner struct {
	tools  toolNames
	copied *copiedCalls // nil = no call is copied
	utf8   utf8Decoder

	undecided     []byte // content that is neither thinking nor in buf: the beginning of a think tag
	inThinking    bool
	namesThinking bool // buf has a <think> that is text
	thinking      []byte

	buf       []byte // content outside of thinking
	pos       int    // everything before it is text
	held      bool   // a call may begin at pos
	noJSON    bool   // broken JSON came before: no JSON is a call any more
	lineStart bool   // only white space is on the line before pos
	inCode    bool   // pos is inside a code block that holds no call
	textEnd   int    // end of the last character before pos that is no white space
	shown     int    // how much of buf was shown
	unshown   string // text that may be shown and turned out to be thinking

	text        []byte // the text without calls; complete after finish
	calls       []foundCall
	read        int    // calls that were read, copied ones too
	unreadable  string // what is unreadable about the reply, for the model; "" = nothing
	unknownTool string // the tool of an unreadable call that is not offered
}

// maxTextCalls is how many calls are read from the text of one reply.
const maxTextCalls = 64

// newReplyScanner returns a scanner for one reply. Without tools no calls are read; copied nil means that no call is
// copied.
func newReplyScanner(tools toolNames, copied *copiedCalls) *replyScanner {
	return &replyScanner{tools: tools, copied: copied, lineStart: true}
}

// feed scans the next piece of content.
func (s *replyScanner) feed(piece string) {
	s.undecided = s.utf8.append(s.undecided, piece)
	s.splitThinking(false)
	s.scan(false)
}

// finish decides about everything that is held back; text, thinking and calls are complete after it. cut says that the
// reply did not come to its own end.
func (s *replyScanner) finish(cut bool) {
	if !cut {
		s.undecided = s.utf8.flush(s.undecided)
	}
	s.splitThinking(true)
	s.scan(true)
	if !s.held {
		s.text = s.buf
		return
	}
	content, from := string(s.buf), 0
	for s.held {
		r := callReader{tools: s.tools, text: content, pos: s.pos, end: s.pos}
		r.read()
		start := s.pos
		if s.accept(&r) {
			s.text = append(s.text, content[from:start]...)
			from = s.pos
		}
		s.scan(true)
	}
	s.text = append(s.text, content[from:]...)
}

// accept decides about what r has read from pos on, and goes on behind it. It reports true when that is not text.
func (s *replyScanner) accept(r *callReader) bool {
	s.held, s.noJSON = false, s.noJSON || r.brokenJSON
	isCall := r.unreadable != "" || r.marked || len(r.calls) > 0 && s.isCall(r)
	if r.unreadable != "" {
		s.unreadable, s.unknownTool = r.unreadable, r.unknownTool
	}
	if isCall && !s.addCalls(r.calls) {
		s.pos, s.lineStart = r.end, false
		return true
	}
	s.emit(max(1, r.end-s.pos))
	s.inCode = r.endInFence || r.brokenJSON && r.inFence
	return false
}

// isCall decides about calls without a tag by what is around them: see [replyScanner].
func (s *replyScanner) isCall(r *callReader) bool {
	rest := r.text[r.end:]
	after := strings.TrimLeft(rest, blanks)
	if after == "" {
		return !s.followsExample()
	}
	return s.textEnd == 0 && s.buf[s.pos] != '`' && r.calls[0].layer == LayerJSON &&
		strings.Contains(rest[:len(rest)-len(after)], "\n")
}

// followsExample reports whether the last line before pos announces an example.
func (s *replyScanner) followsExample() bool {
	line := s.buf[max(0, s.textEnd-maxHead):s.textEnd]
	return examplePattern().Match(line[bytes.LastIndexByte(line, '\n')+1:])
}

// addCalls adds calls, each once: some models write the same call in two forms. It reports whether some are copied from
// a tool result, which the model only shows; they are not added. The calls of a reply beyond maxTextCalls are dropped.
func (s *replyScanner) addCalls(calls []foundCall) (hasCopied bool) {
	for i := range calls {
		s.read++
		switch {
		case s.read > maxTextCalls:
		case s.copied.contains(&calls[i]):
			hasCopied = true
		case !slices.ContainsFunc(s.calls, calls[i].equals):
			s.calls = append(s.calls, calls[i])
		}
	}
	return hasCopied
}

// takeTokens returns the text that may be shown since the last call. Spaces at the ends are not shown, because they may
// be the ends of the answer, and nothing is once there is a call, because then the text is not the answer.
func (s *replyScanner) takeTokens() string {
	if len(s.calls) > 0 || s.unreadable != "" {
		return ""
	}
	tokens := s.unshown + string(s.buf[s.shown:max(s.shown, s.textEnd)])
	s.unshown, s.shown = "", max(s.shown, s.textEnd)
	return tokens
}

const (
	openThink  = "<think>"
	closeThink = "</think>"
)

// splitThinking moves the undecided content to thinking and buf. The beginning of a think tag at the end stays unless
// final.
func (s *replyScanner) splitThinking(final bool) {
	rest := s.undecided
	for len(rest) > 0 {
		n := bytes.IndexByte(rest, '<')
		switch {
		case n < 0:
			n = len(rest)
		case n > 0:
		case !final && len(rest) < len(closeThink) &&
			(strings.HasPrefix(openThink, string(rest)) || strings.HasPrefix(closeThink, string(rest))):
			s.undecided = append(s.undecided[:0], rest...)
			return
		default:
			if n = s.switchThinking(rest); n > 0 {
				rest = rest[n:]
				continue
			}
			n = 1
		}
		if s.inThinking {
			s.thinking = append(s.thinking, rest[:n]...)
		} else {
			s.buf = append(s.buf, rest[:n]...)
		}
		rest = rest[n:]
	}
	s.undecided = s.undecided[:0]
}

// switchThinking handles a think tag at the start of rest and returns its size; 0 = there is none, or it is text.
func (s *replyScanner) switchThinking(rest []byte) int {
	isOpen := bytes.HasPrefix(rest, []byte(openThink))
	switch {
	case isOpen && !s.inThinking && !s.namesThinking && len(bytes.TrimSpace(s.buf)) == 0:
		s.inThinking = true
		s.buf, s.pos = s.buf[:0], 0
		return len(openThink)
	case isOpen:
		s.namesThinking = s.namesThinking || !s.inThinking
		return 0
	case !bytes.HasPrefix(rest, []byte(closeThink)):
		return 0
	case !s.inThinking && (s.namesThinking || s.isQuoted(len(s.buf))):
		return 0
	case !s.inThinking: // everything before it was thinking
		s.scan(false)
		s.unshown = s.takeTokens()
		s.thinking = append(s.thinking, s.buf...)
		s.buf, s.pos, s.textEnd, s.shown = s.buf[:0], 0, 0, 0
		s.held, s.lineStart, s.inCode = false, true, false
	}
	s.thinking = append(s.thinking, '\n')
	s.inThinking = false
	return len(closeThink)
}

// isQuoted reports whether a quote or backtick is before index i of buf: the text is about tags.
func (s *replyScanner) isQuoted(i int) bool {
	return i > 0 && strings.IndexByte("`\"'", s.buf[i-1]) >= 0
}

// scan decides how much of buf is text, up to the first place that begins like a call. Where one may begin it waits for
// maxStart bytes, unless final.
func (s *replyScanner) scan(final bool) {
	for s.pos < len(s.buf) && !s.held {
		rest := s.buf[s.pos:]
		if s.mayStartCall(rest) {
			if len(rest) < maxStart && !final {
				return
			}
			s.held = !s.inCode && s.tools.startsCall(rest[:min(len(rest), maxStart)])
			if s.held {
				return
			}
		}
		s.emitPart(rest)
	}
}

// maxStart is how many bytes decide whether a call begins.
const maxStart = 512

// mayStartCall reports whether the first bytes of rest, at pos, leave it open that a call begins there, or that a code
// block begins or ends. Only tags are looked for in the middle of a line.
func (s *replyScanner) mayStartCall(rest []byte) bool {
	switch c := rest[0]; {
	case len(s.tools) == 0:
		return false
	case s.inCode || c == '`':
		return s.lineStart && c == '`'
	case c == '<':
		return !s.isQuoted(s.pos) && (len(rest) == 1 || rest[1] == 't' || rest[1] == 'f')
	case !s.lineStart || s.noJSON:
		return false
	case c == '{' || c == '[':
		return true
	}
	return slices.ContainsFunc(s.tools, func(name string) bool {
		n := min(len(name), len(rest))
		return name[:n] == string(rest[:n])
	})
}

// emitPart makes the next part of rest, which begins at pos, text: white space, or everything up to the next tag or
// line. A fence begins or ends a code block.
func (s *replyScanner) emitPart(rest []byte) {
	if n := len(rest) - len(bytes.TrimLeft(rest, blanks)); n > 0 {
		s.emit(n)
		return
	}
	n := bytes.IndexAny(rest[1:], "<\n") + 1
	n = cmp.Or(n, len(rest))
	if s.lineStart && bytes.HasPrefix(rest, []byte(fence)) {
		line, _, _ := bytes.Cut(rest[len(fence):min(len(rest), maxStart)], []byte("\n"))
		s.inCode = !s.inCode && bytes.IndexByte(line, '`') < 0
	}
	s.emit(n)
}

// emit makes the next n bytes text.
func (s *replyScanner) emit(n int) {
	part := s.buf[s.pos : s.pos+n]
	if i := bytes.LastIndexByte(part, '\n'); i >= 0 || s.lineStart {
		s.lineStart = len(bytes.Trim(part[i+1:], blanks)) == 0
	}
	if len(bytes.TrimSpace(part)) > 0 {
		if s.textEnd == 0 {
			s.shown = s.pos + len(part) - len(bytes.TrimLeftFunc(part, unicode.IsSpace))
		}
		s.textEnd = s.pos + len(bytes.TrimRightFunc(part, unicode.IsSpace))
	}
	s.pos += n
}
