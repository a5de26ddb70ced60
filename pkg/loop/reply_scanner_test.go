package loop

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var offeredNames = toolNames{"web_search", "get_time", "fs_write"}

// scanResult is the outcome of a scan, in a form that can be compared.
type scanResult struct {
	words, tokens, thought, bad, unknown string
	calls                                []string
}

func (s scanResult) String() string {
	return fmt.Sprintf("words %q\ntokens %q\nthought %q\nbad %q unknown %q\ncalls %q",
		s.words, s.tokens, s.thought, s.bad, s.unknown, s.calls)
}

// scanPieces reads content that comes in pieces.
func scanPieces(n toolNames, pieces ...string) scanResult {
	s := newReplyScanner(n, nil)
	return scanAll(s, pieces)
}

func scanAll(s *replyScanner, pieces []string) scanResult {
	var tokens strings.Builder
	for _, p := range pieces {
		s.feed(p)
		tokens.WriteString(s.takeTokens())
	}
	s.finish(false)
	tokens.WriteString(s.takeTokens())
	out := scanResult{
		words: strings.TrimSpace(string(s.text)), tokens: tokens.String(),
		thought: strings.TrimSpace(string(s.thinking)),
		bad:     s.unreadable, unknown: s.unknownTool,
	}
	for _, c := range s.calls {
		out.calls = append(out.calls, c.layer+" "+c.Name+" "+string(c.Arguments))
	}
	return out
}

// splits gives a content whole, byte by byte, and cut in two at every position.
func splits(content string) [][]string {
	out := [][]string{{content}, strings.Split(content, "")}
	single := make([]string, 0, len(content))
	for i := range len(content) {
		single = append(single, content[i:i+1])
	}
	out = append(out, single)
	for i := 1; i < len(content); i++ {
		out = append(out, []string{content[:i], content[i:]})
	}
	return out
}

func TestReplyScanner(t *testing.T) {
	t.Parallel()
	const call = `{"name": "web_search", "arguments": {"query": "x"}}`
	search := `web_search {"query": "x"}`
	tests := []struct {
		name, content string
		words         string
		thought       string
		calls         []string
		bad           bool
	}{
		// Calls.
		{name: "bare JSON", content: call, calls: []string{"json " + search}},
		{name: "blanks around", content: "\n  " + call + "\n\n", calls: []string{"json " + search}},
		{
			name: "parameters", content: `{"name":"web_search","parameters":{"query":"x","n":{"deep":[1,2]}}}`,
			calls: []string{`json web_search {"query":"x","n":{"deep":[1,2]}}`},
		},
		{
			name: "args", content: `{"name":"web_search","args":{"query":"x"}}`,
			calls: []string{`json web_search {"query":"x"}`},
		},
		{
			name: "arguments as text", content: `{"name":"web_search","arguments":"{\"query\":\"x\"}"}`,
			calls: []string{`json web_search {"query":"x"}`},
		},
		{name: "no arguments", content: `{"name":"get_time"}`, calls: []string{`json get_time {}`}},
		{
			name: "list", content: `[` + call + `, {"name":"get_time","arguments":{}}]`,
			calls: []string{"json " + search, "json get_time {}"},
		},
		{
			name: "one after another", content: call + "\n" + `{"name":"get_time","arguments":{}}`,
			calls: []string{"json " + search, "json get_time {}"},
		},
		{name: "fenced", content: "```json\n" + call + "\n```", calls: []string{"json " + search}},
		{name: "fenced without a word", content: "```\n" + call + "\n```\n", calls: []string{"json " + search}},
		{name: "fence left open", content: "```json\n" + call, calls: []string{"json " + search}},
		{
			name: "two fences", content: "```json\n" + call +
				"\n```\n```json\n{\"name\":\"get_time\",\"arguments\":{}}\n```",
			calls: []string{"json " + search, "json get_time {}"},
		},
		{
			name: "words, then fenced", content: "I will search.\n\n```json\n" + call +
				"\n```", words: "I will search.",
			calls: []string{"json " + search},
		},
		{
			name: "words, then bare", content: "I will search.\n" + call, words: "I will search.",
			calls: []string{"json " + search},
		},
		{
			name: "bare, then a made-up result", content: call + "\nThe result is 42.", words: "The result is 42.",
			calls: []string{"json " + search},
		},
		{name: "marker", content: "[TOOL_CALLS][" + call + "]", calls: []string{"json " + search}},
		{
			name: "marker, then a made-up result", content: "[TOOL_CALLS] [" + call + "] It is 42.", words: "It is 42.",
			calls: []string{"json " + search},
		},
		{name: "tags", content: "<tool_call>\n" + call + "\n</tool_call>", calls: []string{"xml " + search}},
		{
			name: "tags inside words", content: "First.\n<tool_call>" + call + "</tool_call>\nThen I wait.",
			words: "First.\n\nThen I wait.", calls: []string{"xml " + search},
		},
		{
			name: "tags in the middle of a line", content: "Go <tool_call>" + call + "</tool_call>", words: "Go",
			calls: []string{"xml " + search},
		},
		{
			name: "two tags", content: "<tool_call>" + call +
				"</tool_call><tool_call>{\"name\":\"get_time\"}</tool_call>",
			calls: []string{"xml " + search, "xml get_time {}"},
		},
		{name: "tag left open", content: "<tool_call>" + call, calls: []string{"xml " + search}},
		{
			name: "parameters as elements",
			content: "<tool_call>\n<function=web_search>\n<parameter=query>\nx\n</parameter>\n" +
				"<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
			calls: []string{`xml web_search {"query":"x","n":"3"}`},
		},
		{
			name:    "elements without the wrapper",
			content: "<function=web_search>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>",
			calls:   []string{`xml web_search {"query":"x"}`},
		},
		{
			name: "fenced tags", content: "```xml\n<tool_call>" + call + "</tool_call>\n```",
			calls: []string{"xml " + search},
		},
		{name: "text form", content: search, calls: []string{"text " + search}},
		{name: "text form over lines", content: "web_search\n{\"query\": \"x\"}", calls: []string{"text " + search}},
		{
			name: "text form after words", content: "Let me see.\n" + search, words: "Let me see.",
			calls: []string{"text " + search},
		},
		{name: "text form in tags", content: "<tool_call>" + search + "</tool_call>", calls: []string{"xml " + search}},
		{
			name: "the same in two forms", content: "<tool_call>" + call + "</tool_call>\n" + call,
			calls: []string{"xml " + search},
		},

		// Thinking.
		{name: "think block", content: "<think>hm</think>Yes.", thought: "hm", words: "Yes."},
		{name: "two blocks", content: "<think>hm\n</think>\n<think>so</think>Yes.", thought: "hm\n\nso", words: "Yes."},
		{name: "never closed", content: "<think>hm and so on", thought: "hm and so on"},
		{name: "never opened", content: "hm and so on</think>Yes.", thought: "hm and so on", words: "Yes."},
		{name: "nested", content: "<think>a<think>b</think>c</think>d", thought: "a<think>b\nc", words: "d"},
		{name: "call in thinking", content: "<think>" + call + "</think>No need.", thought: call, words: "No need."},
		{
			name: "call in thinking that was not opened", content: "<tool_call>" + call +
				"</tool_call></think>No need.",
			thought: "<tool_call>" + call + "</tool_call>", words: "No need.",
		},
		{
			name: "thinking, then a call", content: "<think>hm</think>\n" + call, thought: "hm",
			calls: []string{"json " + search},
		},
		{
			name: "talk about the tag", content: "The tag `<think>` opens it, `</think>` closes it.",
			words: "The tag `<think>` opens it, `</think>` closes it.",
		},
		{name: "tag in code", content: "```html\n<think>\n</think>\n```", words: "```html\n<think>\n</think>\n```"},
		{name: "less than", content: "1 < 2 and <b>bold</b> <t", words: "1 < 2 and <b>bold</b> <t"},

		// No calls.
		{name: "plain words", content: "Hello.\n\nHow are you?", words: "Hello.\n\nHow are you?"},
		{
			name: "JSON answer", content: `{"city": "Bern", "name": "web_search"}`,
			words: `{"city": "Bern", "name": "web_search"}`,
		},
		{
			name: "not offered", content: `{"name": "rm", "arguments": {"path": "/"}}`,
			words: `{"name": "rm", "arguments": {"path": "/"}}`,
		},
		{
			name: "name of a person", content: `{"name": "Ada", "arguments": ["x"]}`,
			words: `{"name": "Ada", "arguments": ["x"]}`,
		},
		{
			name: "another key", content: `{"name": "web_search", "arguments": {}, "price": 3}`,
			words: `{"name": "web_search", "arguments": {}, "price": 3}`,
		},
		{
			name: "shown in the middle", content: "A call is:\n```json\n" + call +
				"\n```\nChange the query as you like.",
			words: "A call is:\n```json\n" + call + "\n```\nChange the query as you like.",
		},
		{
			name: "shown as an example at the end", content: "Here is an example:\n\n```json\n" + call + "\n```",
			words: "Here is an example:\n\n```json\n" + call + "\n```",
		},
		{name: "on one line with words", content: "Use " + call, words: "Use " + call},
		{name: "words on the same line after it", content: call + " is a call.", words: call + " is a call."},
		{name: "the name in a sentence", content: "web_search is a tool.", words: "web_search is a tool."},
		{name: "the name alone", content: "web_search", words: "web_search"},
		{name: "a list with something else", content: "[" + call + ", 3]", words: "[" + call + ", 3]"},
		{name: "in Go code", content: "```go\nx := " + call + "\n" + call + "\n```", words: "```go\nx := " + call +
			"\n" + call + "\n```"},
		{name: "talk about tags", content: "Write `<tool_call>` first.", words: "Write `<tool_call>` first."},
		{name: "tag as a word", content: "A <tool_call> is a tag.", words: "A <tool_call> is a tag."},
		{name: "list of words", content: "[1] first\n[2] second", words: "[1] first\n[2] second"},
		{name: "brace", content: "{", words: "{"},
		{name: "backtick", content: "`x`", words: "`x`"},
		{name: "block", content: "```\nweb_searching\n```", words: "```\nweb_searching\n```"},
		{
			name: "block on one line", content: "```x``` is code\n" + call + "\n", words: "```x``` is code",
			calls: []string{"json " + search},
		},

		// Forms that are not read are shown unchanged.
		{
			name: "function object", content: `{"function":{"name":"web_search","arguments":{"query":"x"}}}`,
			words: `{"function":{"name":"web_search","arguments":{"query":"x"}}}`,
		},
		{name: "tool and args", content: `{"tool":"web_search","args":{}}`, words: `{"tool":"web_search","args":{}}`},
		{
			name: "tool_calls", content: `{"tool_calls":[{"name":"get_time","arguments":{}}]}`,
			words: `{"tool_calls":[{"name":"get_time","arguments":{}}]}`,
		},
		{name: "python tag", content: "<|python_tag|>" + call, words: "<|python_tag|>" + call},
		{name: "like Python", content: `web_search(query="x")`, words: `web_search(query="x")`},
		{name: "text form with brackets", content: `web_search({"query": "x"})`, words: `web_search({"query": "x"})`},
		{name: "text form with a colon", content: `web_search: {"query": "x"}`, words: `web_search: {"query": "x"}`},
		{
			name: "invoke", content: `<invoke name="web_search"><parameter name="query">x</parameter></invoke>`,
			words: `<invoke name="web_search"><parameter name="query">x</parameter></invoke>`,
		},
		{name: "another tag", content: "<tools>" + call + "</tools>", words: "<tools>" + call + "</tools>"},
		{name: "upper case", content: "<THINK>hm</THINK>Yes.", words: "<THINK>hm</THINK>Yes."},
		{name: "think in the middle", content: "a<think>b</think>c", words: "a<think>b</think>c"},
		{
			name: "broken JSON of something else", content: "{\"name\": Ada}\n<function=get_time></function>",
			words: `{"name": Ada}`, calls: []string{"xml get_time {}"},
		},

		// Unreadable.
		{name: "brackets left open", content: `{"name": "web_search", "arguments": {"query": "x"}`, bad: true},
		{name: "line break in a text", content: "{\"name\":\"fs_write\",\"arguments\":{\"text\":\"a\nb\"}}", bad: true},
		{name: "comma too many", content: `{"name":"web_search","arguments":{"query":"x",},}`, bad: true},
		{name: "tag left open, then words", content: "<tool_call>" + call + "\nNow I wait.", bad: true},
		{
			name: "tag opened twice", bad: true,
			content: "<tool_call>" + call + "\n<tool_call>{\"name\":\"get_time\"}</tool_call>",
		},
		{
			name: "bracket missing in tags", bad: true,
			content: `<tool_call>{"name": "web_search", "arguments": {"query": "x"}</tool_call>`,
		},
		{name: "function with JSON", content: `<function=web_search>{"query": "x"}</function>`, bad: true},
		{name: "function left open", content: "<function=get_time>\n</tool_call>", bad: true},
		{name: "function, not offered", content: "<function=rm></function>", bad: true},
		{name: "marker of another form", content: `[TOOL_CALLS]web_search[ARGS]{"query":"x"}`, bad: true},
		{name: "tagged, not offered", content: `<tool_call>{"name":"rm","arguments":{}}</tool_call>`, bad: true},
		{name: "tagged, no JSON", content: `<tool_call>{"name": web_search}</tool_call>`, bad: true},
		{name: "cut in a text", content: `{"name": "web_search", "arguments": {"query": "x`, bad: true},
		{name: "text form, cut", content: `web_search {"query": "x`, bad: true},
		{name: "tag and nothing", content: "Yes.\n<tool_call>", words: "Yes.", bad: true},
		{name: "empty tags", content: "<tool_call></tool_call>", bad: true},
		{name: "between words", content: "So.\n<tool_call>{x}</tool_call>\nYes.", words: "So.\n\nYes.", bad: true},
		{
			name:    "unreadable, then readable",
			content: "<tool_call>{x}</tool_call>\n<tool_call>" + call + "</tool_call>",
			calls:   []string{"xml " + search}, bad: true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			first := scanPieces(offeredNames, tt.content)
			if first.words != tt.words || first.thought != tt.thought || !slices.Equal(first.calls, tt.calls) ||
				(first.bad != "") != tt.bad {
				t.Errorf("got\n%v\nwant\nwords %q\nthought %q\ncalls %q\nbad %v", first, tt.words, tt.thought, tt.calls,
					tt.bad)
			}
			if len(tt.calls) == 0 && !tt.bad && !strings.HasSuffix(first.tokens, tt.words) {
				t.Errorf("tokens %q do not end with the answer %q", first.tokens, tt.words)
			}
			for _, pieces := range splits(tt.content) {
				if got := scanPieces(offeredNames, pieces...); got.String() != first.String() {
					t.Fatalf("in pieces %q got\n%v\nwant\n%v", pieces, got, first)
				}
			}
		})
	}
}

// Tokens are the answer and hold no part of a call.
func TestTokensAreTheAnswer(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"  Hello\nthere.  \n": "Hello\nthere.",
		"I will.\n{\"name\":\"web_search\",\"arguments\":{}}":        "I will.",
		"<tool_call>{\"name\":\"web_search\"}</tool_call> and so on": "",
		"{\"temperature\": 3}": "{\"temperature\": 3}",
		"```json\n{\"name\":\"web_search\",\"arguments\":{}}\n```": "",
		"<think>b</think>c":            "c",
		"web_search {\"query\":\"x\"}": "",
		"{\"name\":\"web_search\",\"arguments\":{}}\nand I make up the result": "",
	} {
		for _, pieces := range splits(content) {
			if got := scanPieces(offeredNames, pieces...).tokens; got != want {
				t.Errorf("%q in pieces %q: tokens %q, want %q", content, pieces, got, want)
			}
		}
	}
}

// Text is held back where a call may begin, until it is clear that there is none; then it is shown.
func TestUndecidedTextIsHeldBackBriefly(t *testing.T) {
	t.Parallel()
	more := strings.Repeat("more ", maxStart/5+1)
	for _, tt := range []struct{ piece, shown string }{
		{"Hello", "Hello"},
		{"{\"city\": ", ""},
		{"{\"city\": " + more, "{\"city\": " + more},
		{"{\"name\": " + more, ""},
		{"```json\n{\"name\": " + more, ""},
		{"```json\n{\"city\": " + more, "```json\n{\"city\": " + more},
		{"```go\nx" + more, "```go\nx" + more},
		{"web_s", ""},
		{"web_searc is", "web_searc is"},
		{"[TOOL_C", ""},
		{"[1] " + more, "[1] " + more},
		{"Now: <function=", "Now:"},
		{"a <tool_c", "a"},
		{"a <b", "a <b"},
		{"I look.\n```json\n{\"name\": \"get_time\"}\n```\n" + more, "I look."},
	} {
		s := newReplyScanner(offeredNames, nil)
		s.feed(tt.piece)
		if got := s.takeTokens(); got != strings.TrimSpace(tt.shown) {
			t.Errorf("after %q shown %q, want %q", tt.piece, got, tt.shown)
		}
	}
}

func TestInvalidUTF8IsReplaced(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"Grüße, 世界 🙂":    "Grüße, 世界 🙂",
		"a\xffb":         "a\uFFFDb",
		"a\xe4\xb8":      "a\uFFFD",
		"\xe4\xb8A\x80z": "\uFFFD\uFFFDA\uFFFDz",
	} {
		bad := !utf8.ValidString(content)
		for i := range len(content) + 1 {
			s := newReplyScanner(nil, nil)
			s.feed(content[:i])
			s.feed(content[i:])
			s.finish(false)
			// A character whose end never comes is replaced once, however many bytes of it there were.
			if got := string(s.text); got != want || s.utf8.replaced != bad {
				t.Errorf("%q cut at %d: %q (%v), want %q (%v)", content, i, got, s.utf8.replaced, want, bad)
			}
		}
	}
}

func TestTextCallsAreCapped(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&all, "{\"name\":\"get_time\",\"arguments\":{\"n\":%d}}\n", i)
	}
	for _, content := range []string{all.String(), "<tool_call>" + all.String() + "</tool_call>"} {
		if got := scanPieces(offeredNames, content); len(got.calls) != maxTextCalls || got.words != "" {
			t.Errorf("%d calls, words %.40q", len(got.calls), got.words)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`{"name":"web_search","arguments":{"query":"x"}}`, "```json\n{\"name\":\"get_time\"}\n```",
		"<tool_call>{\"name\":\"x\"}</tool_call>",
		"<think>a</think>b</think>c", "web_search {\"a\":[1,{}]}",
		"text\n{\"name\":\"web_search\",\"arguments\":\"{}\"}\nmore",
		"<function=web_search><parameter=a>1</parameter></function>",
		"[TOOL_CALLS][{\"name\":\"get_time\",\"arguments\":{}}]",
		"a\xe4\xb8b", "<tool_call>\n<function=fs_write>\n<parameter=x>\n</tool_call>", "```\n```\n```json\n{",
		"for example:\n{\"name\":\"get_time\"}",
		"<tools>[{\"tool\":\"get_time\",\"args\":{}}]</tools>", "{\"name\":\"get_time\"},\n{\"name\":\"web_search\"};",
		"get_time({})\n`x`",
	} {
		f.Add(seed, uint8(3))
	}
	f.Fuzz(func(t *testing.T, content string, step uint8) {
		if len(content) > 4096 {
			return
		}
		whole := scanPieces(offeredNames, content)
		for _, c := range whole.calls {
			name := strings.Fields(c)[1]
			if !offeredNames.has(name) {
				t.Fatalf("%q was taken for a call of %q", content, name)
			}
		}
		if !utf8.ValidString(whole.words + whole.tokens + whole.thought) {
			t.Fatalf("not valid: %v", whole)
		}
		var pieces []string
		for n, rest := max(1, int(step)), content; rest != ""; {
			k := min(n, len(rest))
			pieces, rest = append(pieces, rest[:k]), rest[k:]
		}
		if got := scanPieces(offeredNames, pieces...); got.String() != whole.String() {
			t.Fatalf("in pieces of %d got\n%v\nwant\n%v", step, got, whole)
		}
		if len(content) < 64 {
			for i := 1; i < len(content); i++ {
				if got := scanPieces(offeredNames, content[:i], content[i:]); got.String() != whole.String() {
					t.Fatalf("cut at %d got\n%v\nwant\n%v", i, got, whole)
				}
			}
		}
	})
}
