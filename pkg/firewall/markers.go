package firewall

import "strings"

// marker is a piece of text that has a meaning between a program and a model and none between people.
type marker struct {
	text   string
	tech   technique
	weight int
}

// markersByByte by their first byte. All are lower case, as the folded text is.
var markersByByte = func() (t [256][]marker) {
	for _, m := range []marker{
		{"<|im_start|>", techRole, 8},
		{"<|im_end|>", techRole, 6},
		{"<|system|>", techRole, 8},
		{"<|user|>", techRole, 8},
		{"<|assistant|>", techRole, 8},
		{"<|endoftext|>", techRole, 7},
		{"<|eot_id|>", techRole, 8},
		{"<|start_header_id|>", techRole, 8},
		{"<|end|>", techRole, 6},
		{"<start_of_turn>", techRole, 8},
		{"<end_of_turn>", techRole, 8},
		{"<<sys>>", techRole, 8},
		{"<</sys>>", techRole, 8},
		{"[inst]", techRole, 8},
		{"[/inst]", techRole, 8},
		{"[system]", techRole, 7},
		{"[/system]", techRole, 7},
		{"[assistant]", techRole, 5},
		{"<system>", techRole, 6},
		{"</system>", techRole, 6},
		{"<assistant>", techRole, 6},
		{"</assistant>", techRole, 6},
		{"<user>", techRole, 3},
		{"</user>", techRole, 3},
		{"<human>", techRole, 5},
		{"</tool_result>", techRole, 7},
		{"<tool_result>", techRole, 5},
		{"</function_results>", techRole, 7},
		{"</tool_response>", techRole, 7},
		{"</tool_output>", techRole, 7},
		{"</untrusted", techRole, 7},
		{"[end of tool_result", techRole, 8},
		{"[tool_result:", techRole, 7},
		{"<information>", techDelimiter, 6},
		{"</information>", techDelimiter, 5},
		{"<important>", techDelimiter, 6},
		{"</important>", techDelimiter, 5},
		{"<instructions>", techDelimiter, 5},
		{"<instruction>", techDelimiter, 5},
		{"<system_prompt>", techRole, 6},
		{"<system-reminder>", techRole, 8},
		{"<tool_call>", techToolCall, 7},
		{"<function_calls>", techToolCall, 8},
		{"<function_call>", techToolCall, 7},
		{"<invoke name=", techToolCall, 8},
		{"<tool_use>", techToolCall, 7},
		{"[tool_calls]", techToolCall, 7},
		{"<admin>", techAuthority, 5},
		{"<developer>", techAuthority, 5},
	} {
		t[m.text[0]] = append(t[m.text[0]], m)
	}
	return t
}()

// turnNames are the words that name the speaker of a turn in a conversation with a model.
var turnNames = []string{"system", "assistant", "user", "human", "instruction", "instructions", "ai"}

// opensMarker marks the bytes at which matchMarkers looks closer.
var opensMarker = [256]bool{'<': true, '[': true, '!': true, '#': true, '{': true, '\n': true}

// matchMarkers adds signs for the marks of chat templates and tool calls, for headings and turns written as
// "Assistant:", and for images whose link carries data.
func (s *scanner) matchMarkers() {
	text := s.text
	turns := turnTracker{assistant: -1, user: -1}
	if text != "" && text[0] != '\n' {
		s.matchTurn(0, &turns)
	}
	for i := 0; i < len(text); i++ {
		if !opensMarker[text[i]] { // nearly every byte
			continue
		}
		switch text[i] {
		case '<', '[':
			s.matchMark(i)
		case '!':
			if strings.HasPrefix(text[i:], "![") {
				s.matchImage(i)
			}
		case '#':
			if strings.HasPrefix(text[i:], "###") {
				s.matchHeading(i)
			}
		case '{':
			s.matchToolCall(i)
		case '\n':
			if i+1 < len(text) && text[i+1] != '\n' {
				s.matchTurn(i+1, &turns)
			}
		}
	}
}

// matchMark adds a sign for a mark of markersByByte at offset i. A mark after a backtick or an opening quotation mark,
// as in documentation, weighs half.
func (s *scanner) matchMark(i int) {
	for _, m := range markersByByte[s.text[i]] {
		if !strings.HasPrefix(s.text[i:], m.text) {
			continue
		}
		weight := m.weight
		if i > 0 && s.text[i-1] == '`' || i > 1 && s.text[i-2:i] == ` "` {
			weight /= 2
		}
		s.addHit(m.tech, weight, i, len(m.text))
		return
	}
}

// turnTracker is where the assistant and the user last had a turn, -1 when they had none.
type turnTracker struct{ assistant, user int }

// matchTurn adds a role sign for a turn, such as "Assistant: ...", on the line that begins at i, and notes it in turns.
// It weighs little by itself, more with an order in it, and most for a user's turn that follows an assistant's within
// 600 bytes and requests something.
func (s *scanner) matchTurn(i int, turns *turnTracker) {
	text := s.text
	start := i
	for start < len(text) && start < i+8 && strings.IndexByte(" *>", text[start]) >= 0 {
		start++
	}
	name, rest := "", ""
	for _, n := range turnNames {
		if after, ok := strings.CutPrefix(text[start:], n); ok && strings.HasPrefix(after, ":") {
			name, rest = n, after[1:]
			break
		}
	}
	if len(rest) < 2 || rest[0] != ' ' && rest[0] != '*' || rest[1] == '\n' {
		return
	}
	switch name {
	case "assistant", "ai":
		turns.assistant = start
	case "user", "human":
		turns.user = start
	}
	weight := 2
	if s.isOrderAt(start + len(name) + 1) {
		weight = 7
	}
	// The assistant's turn and then the user's, close together: a conversation inside of the data.
	if turns.assistant >= 0 && turns.user > turns.assistant && turns.user-turns.assistant < 600 {
		weight = max(weight, 6)
		if s.next(s.tokenAt(turns.user), cPlease|cAct|cSay, 12) >= 0 ||
			containsAny(text[turns.user:min(len(text), turns.user+200)], []string{"please", "could you", "can you"}) {
			weight = 10
		}
	}
	s.addHit(techRole, weight, start, len(name)+40)
}

// isOrderAt reports whether the first word within 6 bytes of offset pos may begin an order: please, a verb of an order,
// "you" or "new".
func (s *scanner) isOrderAt(pos int) bool {
	i := s.tokenAt(pos)
	if i == len(s.tokens) || int(s.tokens[i].from) > pos+6 {
		return false
	}
	return s.has(i, cPlease|cIgnore|cAct|cSay|cFollow) || s.any(i, "you", "new")
}

// matchHeading adds a role sign when the "###" at i heads a turn, as in "### System:" or "###(system)".
func (s *scanner) matchHeading(i int) {
	text := s.text
	j := i
	for j < len(text) && j < i+8 && strings.IndexByte("# (*[", text[j]) >= 0 {
		j++
	}
	for _, name := range turnNames {
		if strings.HasPrefix(text[j:], name) {
			end := j + len(name)
			if end < len(text) && (text[end] == ':' || text[end] == '_' || text[end] == ')') {
				s.addHit(techRole, 6, i, end-i)
			}
			return
		}
	}
}

// matchImage adds an exfiltration sign for the Markdown image at i when the query of its http link has a placeholder or
// names private data: an image is fetched without a click, so a link that carries data sends it.
func (s *scanner) matchImage(i int) {
	text := s.text[i:min(len(s.text), i+600)]
	mid := strings.Index(text, "](")
	if mid < 0 || mid > 200 {
		return
	}
	link := text[mid+2:]
	if end := strings.IndexByte(link, '\n'); end >= 0 {
		link = link[:end]
	}
	if end := strings.IndexByte(link, ')'); end >= 0 {
		link = link[:end]
	}
	q := strings.IndexByte(link, '?')
	if !strings.HasPrefix(link, "http") || q < 0 {
		return
	}
	query := link[q:]
	if strings.ContainsAny(query, "<{[$ ") {
		s.addHit(techExfiltration, 9, i, mid+2+len(link))
		return
	}
	for _, word := range []string{
		"summary", "secret", "conversation", "history", "password", "token=", "exfil",
		"stolen",
	} {
		if strings.Contains(query, word) {
			s.addHit(techExfiltration, 7, i, mid+2+len(link))
			return
		}
	}
}

// matchToolCall adds a weak sign when the brace at i opens a tool call in JSON: an object that begins with name, tool
// or function and has arguments within 160 bytes.
func (s *scanner) matchToolCall(i int) {
	text := s.text[i:min(len(s.text), i+160)]
	if len(text) < 3 || text[1] != '"' && text[1] != '\'' && text[1] != ' ' && text[1] != '\n' {
		return
	}
	key := strings.TrimLeft(text[1:], " \n")
	if len(key) < 8 || !strings.HasPrefix(key[1:], "name") && !strings.HasPrefix(key[1:], "tool") &&
		!strings.HasPrefix(key[1:], "function") {
		return
	}
	if strings.Contains(text, `"arguments"`) || strings.Contains(text, `"tool_input"`) ||
		strings.Contains(text, `'arguments'`) {
		s.addHit(techToolCall, 3, i, 60)
	}
}

// containsAny reports whether s contains one of the texts in list; false for an empty list.
func containsAny(s string, list []string) bool {
	for _, w := range list {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}
