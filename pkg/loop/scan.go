package loop

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// scan reads the content of a reply as it comes and parts it into words, thinking and calls. What it makes of the
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
type scan struct {
	names  names
	quoted *quoted // knows which calls are copied; nil = none are
	buf    []byte  // content so far, valid UTF-8
	pos    int     // everything before it is decided
	mode   int
	from   int  // how far a closing tag has been looked for
	walk   walk // of the JSON value that is being held back
	held   int  // where that value begins; -1 = none

	pend   []found // calls that count if nothing else follows
	region int     // where the first of them, or its fence, begins; -1 = none
	fenced bool    // inside the fence of the region
	first  bool    // the region begins the reply, with bare JSON
	shut   bool    // the end of a fence is still to come, around calls that are taken

	words    []byte
	line     bool   // only blanks stand on the last line of words
	ink      int    // end of the last of words that is no blank
	heard    int    // the ink up to which words were last asked about an example
	shown    bool   // what came of that
	sent     int    // how much of words is in tokens
	tokens   []byte // words that may be shown, for the caller to take
	mute     bool   // nobody takes them
	thought  []byte
	calls    []found
	compared int    // calls that were looked for in results
	bad      string // what is unreadable about the reply, for the model; "" = nothing
	unknown  string // a tagged call's tool that is not offered
	carry    []byte // the beginning of a character whose end has not come
	mangled  bool   // bytes that are no text were replaced
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
	openThink  = []string{"<think>", "<thinking>"}
	closeThink = []string{"</think>", "</thinking>"}
	openCall   = []string{"<tool_call>", "<tool_calls>", "<function_call>", "<function_calls>", "<tools>"}
	closeCall  = []string{"</tool_call>", "</tool_calls>", "</function_call>", "</function_calls>", "</tools>", "</function>"}
	openFunc   = []string{"<function=", "<function name=", "<invoke name="}
	markers    = []string{"<|python_tag|>", "[TOOL_CALLS]"} // they only say that calls follow
)

// allCall are the tags around calls, opening and closing.
var allCall = slices.Concat(openCall, closeCall[:len(openCall)])

// tagSets are the tags in the order in which they are looked for. Their letters after '<' stand in tag.
var tagSets = [...][]string{openThink, closeThink, openCall, openFunc, closeCall, markers}

// reset makes s ready for a new reply and keeps its memory.
func (s *scan) reset(n names) {
	*s = scan{
		names: n, held: -1, region: -1, line: true, tokens: s.tokens[:0],
		buf: s.buf[:0], words: s.words[:0], thought: s.thought[:0], carry: s.carry[:0], pend: s.pend[:0], calls: s.calls[:0],
	}
}

// push takes the next piece of content.
func (s *scan) push(piece string) {
	s.buf, s.carry, s.mangled = appendValid(s.buf, s.carry, piece, s.mangled)
	if s.words == nil {
		s.words = make([]byte, 0, len(s.buf)) // most replies come in one piece and are words
	}
	s.run(false)
}

// finish decides what is left. cut says that the reply did not come to its own end: then nothing is put right, because
// what a call lacks may be more than a bracket.
func (s *scan) finish(cut bool) {
	if len(s.carry) > 0 && !cut {
		s.buf = append(s.buf, string(utf8.RuneError)...)
		s.carry, s.mangled = s.carry[:0], true
	}
	s.run(true)
	s.settle(cut)
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

// run decides as much as can be decided.
func (s *scan) run(final bool) {
	for s.pos < len(s.buf) {
		before, mode, region := s.pos, s.mode, s.region
		switch s.mode {
		case modeThink:
			s.thinking(final)
		case modeFence:
			s.code(final)
		default:
			s.plain(final)
		}
		if s.pos == before && s.mode == mode && s.region == region {
			return // more has to come
		}
	}
}

// thinking looks for the closing tag.
func (s *scan) thinking(final bool) {
	rest := s.buf[s.pos:]
	if end, size := indexAny(rest, closeThink); end >= 0 {
		s.thought = append(s.thought, rest[:end]...)
		s.thought = append(s.thought, '\n')
		s.pos += end + size
		s.mode = modeText
		return
	}
	keep := 0
	if i := bytes.LastIndexByte(rest, '<'); !final && i >= 0 && prefixOf(rest[i:], closeThink) {
		keep = len(rest) - i
	}
	s.thought = append(s.thought, rest[:len(rest)-keep]...)
	s.pos += len(rest) - keep
}

// code passes a code block on as it is, up to the line that closes it.
func (s *scan) code(final bool) {
	rest := s.buf[s.pos:]
	if s.line {
		t := bytes.TrimLeft(rest, " \t")
		if !final && len(t) < 3 && len(rest)-len(t) <= maxGap && bytes.HasPrefix([]byte("```"), t) {
			return
		}
		if bytes.HasPrefix(t, []byte("```")) {
			s.mode = modeText
			s.say(len(rest) - len(t) + 3)
			return
		}
	}
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		s.say(i + 1)
		return
	}
	s.say(len(rest))
}

// plain decides about what stands at pos.
func (s *scan) plain(final bool) {
	c := s.buf[s.pos]
	switch {
	case s.region >= 0 && isBlank(c):
		s.pos++
		return
	case s.region >= 0:
		s.inRegion(final)
		return
	case isBlank(c):
		s.say(1)
		return
	case c == '<':
		s.tag(final)
		return
	case len(s.names) > 0 && s.line:
		s.begin(final)
		return
	}
	s.sayOn()
}

// begin decides about the start of a line.
func (s *scan) begin(final bool) {
	rest := s.buf[s.pos:]
	switch c := rest[0]; {
	case c == '`':
		s.fence(final)
	case c == '{' || c == '[':
		s.value(final)
	case isWord(c):
		s.named(final)
	default:
		s.sayOn()
	}
}

// inRegion decides what follows a call that counts only when nothing but calls follows.
func (s *scan) inRegion(final bool) {
	rest := s.buf[s.pos:]
	switch c := rest[0]; {
	case c == '`':
		if len(rest) < 3 && !final && bytes.HasPrefix([]byte("```"), rest) {
			return
		}
		if !bytes.HasPrefix(rest, []byte("```")) {
			s.demote()
			return
		}
		if s.fenced {
			s.fenced = false
			s.pos += 3
			return
		}
		s.fence(final)
	case c == '<':
		s.tag(final)
	case c == '{' || c == '[':
		s.value(final)
	case isWord(c):
		s.named(final)
	case c == ',' || c == ';':
		s.pos++ // between calls
	default:
		s.demote()
	}
}

// fence opens a region for a code block that may hold calls.
func (s *scan) fence(final bool) {
	rest := s.buf[s.pos:]
	if len(rest) < 3 && !final && bytes.HasPrefix([]byte("```"), rest) {
		return
	}
	if !bytes.HasPrefix(rest, []byte("```")) {
		s.fail()
		return
	}
	if s.shut {
		s.shut = false
		s.pos += 3
		return
	}
	line := bytes.IndexByte(rest[:min(len(rest), maxGap)], '\n')
	if line < 0 && !final && len(rest) < maxGap {
		return
	}
	if line < 0 || !callInfo(string(bytes.TrimSpace(rest[3:line]))) {
		block := s.region < 0 && line >= 0 && bytes.IndexByte(rest[3:line], '`') < 0
		s.fail()
		if block {
			s.mode = modeFence
		}
		return
	}
	if s.region < 0 {
		s.region, s.first = s.pos, false
	}
	s.fenced = true
	s.pos += line + 1
}

// callInfo reports whether a code block with this info string may hold calls.
func callInfo(info string) bool {
	switch strings.ToLower(info) {
	case "", "json", "jsonc", "tool_call", "tool_calls", "tool_code", "tool", "tools", "function_call", "xml", "text":
		return true
	}
	return false
}

// value decides about the JSON value at pos.
func (s *scan) value(final bool) {
	rest := s.buf[s.pos:]
	if rest[0] == '[' {
		if hit, more := matchTag(rest, markers); hit != "" {
			s.pos += len(hit)
			return
		} else if more && !final {
			return
		}
	}
	if s.held != s.pos {
		switch promising(rest) {
		case needMore:
			if !final {
				return
			}
			s.fail()
			return
		case noName:
			s.fail()
			return
		}
		s.held, s.walk = s.pos, walk{at: s.pos}
	}
	end, whole := s.walk.end(s.buf)
	if s.walk.deep {
		s.held = -1
		s.failAll(end)
		return
	}
	if !whole {
		return // settle decides at the end
	}
	s.held = -1
	v := s.buf[s.pos:end]
	if !json.Valid(v) {
		if m := mend(v); m != nil {
			v = m
		}
	}
	if json.Valid(v) {
		if calls, _, ok := s.names.callsIn(v); ok {
			s.keep(calls, LayerJSON, end)
			return
		}
	} else if s.meant(v) {
		s.spoil("a tool call was not valid JSON", end)
		return
	}
	s.failAll(end)
}

// promising looks at how a JSON value begins: only an object whose first key is one of a call's, or a list of such, is
// worth holding back. needMore and noName mean what they mean for head; 1 is yes.
func promising(b []byte) int {
	i := blanks(b, 1)
	if b[0] == '[' {
		if i == len(b) {
			return needMore
		}
		if b[i] != '{' {
			return noName
		}
		i = blanks(b, i+1)
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
	if !firstKey(string(b[i+1 : i+1+end])) {
		return noName
	}
	return 1
}

// meant reports whether broken JSON was surely meant as a call: it begins with the name of an offered tool.
func (s *scan) meant(b []byte) bool {
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
		if ok && s.names.has(name) {
			return true
		}
	}
	return false
}

// named decides about a word at the start of a line: name {json}.
func (s *scan) named(final bool) {
	if s.held != s.pos {
		_, body := s.names.head(s.buf[s.pos:])
		switch body {
		case needMore:
			if !final {
				return
			}
			s.fail()
			return
		case noName:
			s.fail()
			return
		}
		s.held, s.walk = s.pos, walk{at: s.pos + body}
	}
	end, whole := s.walk.end(s.buf)
	if s.walk.deep {
		s.held = -1
		s.failAll(end)
		return
	}
	if !whole {
		return
	}
	// A closing bracket may follow: wait for what does.
	after := blanks(s.buf, end)
	if after == len(s.buf) && !final && after-end <= maxGap {
		return
	}
	s.held = -1
	calls, size := s.names.textAt(s.buf[s.pos:])
	if size == 0 {
		s.spoil("a tool call was not valid JSON", end)
		return
	}
	s.keep(calls, LayerText, s.pos+size)
}

// tag decides about a '<'.
func (s *scan) tag(final bool) {
	rest := s.buf[s.pos:]
	if s.pos > 0 && bytes.IndexByte([]byte("`\"'"), s.buf[s.pos-1]) >= 0 {
		s.fail() // quoted: somebody talks about tags
		return
	}
	if len(rest) > 1 && strings.IndexByte("tTfFiI/|", rest[1]) < 0 {
		s.fail() // no tag of ours
		return
	}
	sets := tagSets[:]
	if len(s.names) == 0 {
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
			s.settleRegion()
			s.pos += len(hit)
			s.mode = modeThink
		case 1:
			s.thinkEnd(len(hit))
		case 2, 3:
			s.element(hit, final)
		default:
			s.stray(len(hit), i == 4)
		}
		return
	}
	if more && !final {
		return
	}
	s.fail()
}

// thinkEnd is a closing tag without an opening one: what came before it was thinking.
func (s *scan) thinkEnd(size int) {
	s.first = false
	s.demote()
	s.thought = append(append(s.thought, s.words...), '\n')
	s.words, s.line, s.ink, s.sent = s.words[:0], true, 0, 0
	s.heard, s.shown = 0, false
	s.calls, s.bad, s.unknown = s.calls[:0], "", "" // they were thoughts
	s.mode = modeText
	s.pos += size
}

// stray goes over a marker, or over the end of a call whose beginning is gone. Elsewhere a closing tag is words.
func (s *scan) stray(size int, closing bool) {
	if closing && len(s.calls) == 0 && len(s.pend) == 0 && s.bad == "" {
		s.fail()
		return
	}
	s.pos += size
}

// element decides about a tagged call. It is held back to its closing tag, or to the end.
func (s *scan) element(open string, final bool) {
	bare := strings.HasSuffix(open, "=") // <function=
	body := s.pos + len(open)
	if !bare {
		i := blanks(s.buf, body)
		switch verdict := s.opens(s.buf[i:]); {
		case i-body > maxGap || verdict == noName:
			s.fail()
			return
		case verdict == needMore && final:
			s.spoil("a tool call was not complete", len(s.buf))
			return
		case verdict == needMore:
			return
		}
	}
	begin := max(body, s.from)
	end, size := indexAny(s.buf[begin:], closersOf(open))
	if end < 0 {
		s.from = max(body, len(s.buf)-32) // the closing tag may have begun
		return                            // settle decides at the end
	}
	s.readElement(s.pos, body, begin+end, begin+end+size, bare, true)
}

// readElement reads a tagged call that is all there, or all there will be.
func (s *scan) readElement(start, body, end, after int, bare, closed bool) {
	s.from = 0
	inner := s.buf[body:end]
	if bare {
		inner = s.buf[start:after]
	}
	calls, unknown, ok := s.names.tagged(inner)
	if !ok && (closed || len(calls) == 0) {
		s.unknown = unknown
		s.spoil("a tool call between tags could not be read", after)
		return
	}
	s.confirm()
	for i := range calls {
		calls[i].layer = LayerXML
	}
	own := s.own(calls)
	if s.take(own); len(own) < len(calls) {
		s.say(after - s.pos)
		return
	}
	s.pos = after
}

// opens reports whether b, which stands after an opening tag, begins like a call: 1, needMore or noName.
func (s *scan) opens(b []byte) int {
	switch {
	case len(b) == 0:
		return needMore
	case b[0] == '{' || b[0] == '[':
		return 1
	case b[0] == '<':
		more := false
		for _, set := range [][]string{openCall, openFunc, closeCall} {
			hit, m := matchTag(b, set)
			if hit != "" {
				return 1
			}
			more = more || m
		}
		if more {
			return needMore
		}
	case isWord(b[0]):
		_, body := s.names.head(b)
		return min(body, 1)
	}
	return noName
}

// closersOf are the tags that end what open began.
func closersOf(open string) []string {
	if strings.HasPrefix(open, "<invoke") {
		return []string{"</invoke>"}
	}
	if strings.HasSuffix(open, "=") {
		return []string{"</function>", "</tool_call>"}
	}
	return []string{"</" + open[1:]}
}

// keep adds calls that count when nothing else follows.
func (s *scan) keep(calls []found, layer string, end int) {
	for i := range calls {
		calls[i].layer, calls[i].source = layer, s.buf[s.pos:end]
	}
	if s.region < 0 {
		s.region = s.pos
		s.first = layer == LayerJSON && s.ink == 0 && len(s.calls) == 0
	}
	s.pend = append(s.pend, calls[:min(len(calls), maxFound)]...)
	s.pend = s.pend[:min(len(s.pend), maxFound)]
	s.pos = end
}

// spoil remembers that a call was meant and could not be read. It is not shown as words.
func (s *scan) spoil(why string, end int) {
	s.bad = why
	s.confirm()
	s.pos = end
}

// fail passes one character on as words, with all that was waiting on it.
func (s *scan) fail() {
	if s.region >= 0 {
		s.demote()
		return
	}
	s.say(1)
}

// failAll passes on all up to end.
func (s *scan) failAll(end int) {
	if s.region >= 0 {
		s.demote()
	}
	s.say(end - s.pos)
}

// demote makes words of what might have been calls: something else followed. Only JSON that began the reply stays a
// call when the rest begins on a new line.
func (s *scan) demote() {
	if s.region < 0 {
		return
	}
	from := s.region
	if s.first && len(s.pend) > 0 && bytes.IndexByte(s.tail(), '\n') >= 0 {
		s.confirm()
		return
	}
	s.region, s.pend = -1, s.pend[:0]
	s.asWords(from)
}

// asWords makes words of the region that began at from.
func (s *scan) asWords(from int) {
	s.add(s.buf[from:s.pos])
	if s.fenced {
		s.fenced = false
		s.mode = modeFence
	}
}

// tail is the white space before pos.
func (s *scan) tail() []byte {
	return s.buf[len(bytes.TrimRight(s.buf[:s.pos], " \n\t\r")):s.pos]
}

// confirm makes calls of what was waiting. It stays words when some of it is copied.
func (s *scan) confirm() {
	from, waiting := s.region, len(s.pend)
	own := s.own(s.pend)
	s.take(own)
	s.region, s.pend = -1, s.pend[:0]
	if len(own) < waiting {
		s.asWords(from)
		return
	}
	s.shut = s.shut || s.fenced
	s.fenced = false
}

// own are the calls that are not copied from what a tool returned. The others are not the model's: it only shows them.
// To compare costs something, so it is done only so often in one reply.
func (s *scan) own(calls []found) []found {
	if len(calls) == 0 || len(s.calls) >= maxFound || !s.quoted.any() {
		return calls // none is taken, or none can be copied
	}
	if s.compared += len(calls); s.compared > 4*maxFound {
		return nil
	}
	return slices.DeleteFunc(calls, func(f found) bool { return s.quoted.has(&f) })
}

// take adds calls, each once: some models write the same call in two forms.
func (s *scan) take(calls []found) {
	for _, c := range calls {
		if len(s.calls) < maxFound && !slices.ContainsFunc(s.calls, c.same) {
			s.calls = append(s.calls, c)
		}
	}
}

// maxFound is how many calls are taken out of the text of one reply.
const maxFound = 64

// settle decides about what is still held at the end of the reply.
func (s *scan) settle(cut bool) {
	if s.mode == modeText && s.pos < len(s.buf) {
		s.settleHeld(cut)
	}
	s.settleRegion()
	if s.pos < len(s.buf) {
		s.say(len(s.buf) - s.pos)
	}
}

// settleRegion decides about calls that were waiting for what follows: nothing does.
func (s *scan) settleRegion() {
	switch {
	case s.region < 0:
	case len(s.pend) > 0 && !s.example():
		s.confirm()
	default:
		s.first = false
		s.demote()
	}
}

// settleHeld reads a call whose end never came.
func (s *scan) settleHeld(cut bool) {
	rest := s.buf[s.pos:]
	all := len(s.buf)
	switch c := rest[0]; {
	case c == '<':
		if cut {
			s.spoil("a tool call was cut off", all)
			return
		}
		hit, _ := matchTag(rest, openFunc)
		open, _ := matchTag(rest, openCall)
		s.readElement(s.pos, s.pos+len(open), all, all, hit != "", false)
	case c == '{' || c == '[':
		if m := mend(bytes.TrimRight(rest, "` \n\t\r")); m != nil && !cut {
			if calls, _, ok := s.names.callsIn(m); ok {
				s.keep(calls, LayerJSON, all)
				return
			}
		}
		if s.meant(rest) {
			s.spoil("a tool call was not complete", all)
			return
		}
		s.failAll(all)
	default:
		if calls, size := s.names.textAt(rest); size > 0 && !cut {
			s.keep(calls, LayerText, all)
			return
		}
		s.spoil("a tool call was not complete", all)
	}
}

// example reports whether the words before the region announce an example. Only the end of the last line is looked at:
// many regions may stand after one long line. Each line is asked about once.
func (s *scan) example() bool {
	if s.ink == s.heard {
		return s.shown
	}
	w := s.words[max(0, s.ink-maxAnnounce):s.ink]
	if i := bytes.LastIndexByte(w, '\n'); i >= 0 {
		w = w[i+1:]
	}
	s.heard, s.shown = s.ink, exampleWords().Match(w)
	return s.shown
}

// maxAnnounce is how many bytes before a call may announce that it is an example.
const maxAnnounce = 256

// say passes n bytes on as words.
func (s *scan) say(n int) {
	s.add(s.buf[s.pos : s.pos+n])
	s.pos += n
}

// add appends to the words, and to the tokens as far as they may be shown: blanks at the ends are not, because they may
// turn out to be the ends of the answer, and nothing is once there is a call, because then it is not the answer.
func (s *scan) add(b []byte) {
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		s.line = len(bytes.TrimLeft(b[i+1:], " \t\r")) == 0
	} else if s.line {
		s.line = len(bytes.TrimLeft(b, " \t\r")) == 0
	}
	if n := len(bytes.TrimSpace(b)); n > 0 {
		if s.ink == 0 {
			s.sent = len(s.words) + len(b) - len(bytes.TrimLeftFunc(b, unicode.IsSpace))
		}
		s.ink = len(s.words) + len(bytes.TrimRightFunc(b, unicode.IsSpace))
	}
	s.words = append(s.words, b...)
	if s.ink > s.sent && !s.certain() {
		if !s.mute {
			s.tokens = append(s.tokens, s.words[s.sent:s.ink]...)
		}
		s.sent = s.ink
	}
}

// sayOn passes on everything up to where the next decision may be.
func (s *scan) sayOn() {
	n := bytes.IndexAny(s.buf[s.pos+1:], "<\n")
	if n < 0 {
		n = len(s.buf) - s.pos - 1
	}
	s.say(n + 1)
}

// certain reports whether the reply holds a call, so that its words are not the answer.
func (s *scan) certain() bool { return len(s.calls) > 0 || s.bad != "" }

// matchTag is the tag of set that b begins with, and whether b may become one.
func matchTag(b []byte, set []string) (hit string, more bool) {
	for _, t := range set {
		if hasFold(b, t) {
			return t, false
		}
		more = more || len(b) < len(t) && strings.EqualFold(string(b), t[:len(b)])
	}
	return "", more
}

func prefixOf(b []byte, set []string) bool {
	_, more := matchTag(b, set)
	return more
}
