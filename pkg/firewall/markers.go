package firewall

import "strings"

// mark is a piece of text that has a meaning between a program and a model and none between people.
type mark struct {
	text string
	tech technique
}

// marksByByte by their first byte. All are lower case, as the folded text is.
var marksByByte = func() (t [256][]mark) {
	for _, m := range []mark{
		{"<|im_start|>", techRole},
		{"<|im_end|>", techRole},
		{"<|system|>", techRole},
		{"<|user|>", techRole},
		{"<|assistant|>", techRole},
		{"<|endoftext|>", techRole},
		{"<|eot_id|>", techRole},
		{"<|start_header_id|>", techRole},
		{"<|end|>", techRole},
		{"<start_of_turn>", techRole},
		{"<end_of_turn>", techRole},
		{"<<sys>>", techRole},
		{"<</sys>>", techRole},
		{"[inst]", techRole},
		{"[/inst]", techRole},
		{"[system]", techRole},
		{"[/system]", techRole},
		{"[assistant]", techRole},
		{"<system>", techRole},
		{"</system>", techRole},
		{"<assistant>", techRole},
		{"</assistant>", techRole},
		{"<human>", techRole},
		{"</tool_result>", techRole},
		{"<tool_result>", techRole},
		{"</function_results>", techRole},
		{"</tool_response>", techRole},
		{"</tool_output>", techRole},
		{"</untrusted", techRole},
		{"[end of tool_result", techRole},
		{"[tool_result:", techRole},
		{"<information>", techDelimiter},
		{"</information>", techDelimiter},
		{"<system_prompt>", techRole},
		{"<system-reminder>", techRole},
		{"<tool_call>", techToolCall},
		{"<function_calls>", techToolCall},
		{"<function_call>", techToolCall},
		{"<invoke name=", techToolCall},
		{"<tool_use>", techToolCall},
		{"[tool_calls]", techToolCall},
	} {
		t[m.text[0]] = append(t[m.text[0]], m)
	}
	return t
}()

// findMarks returns a weak sign for each mark of a chat template or a tool call, and a sign for images whose link
// carries data. A mark behind a backtick or an opening quotation mark, as in documentation, is none.
func findMarks(f *folded) (out []sign) {
	text := f.text
	for i := 0; i < len(text) && len(out) < maxSigns; i++ {
		if text[i] != '<' && text[i] != '[' && text[i] != '!' { // nearly every byte
			continue
		}
		if strings.HasPrefix(text[i:], "![") {
			if end, strong := matchImage(text[i:min(len(text), i+600)]); end > 0 {
				out = append(out, newSign(f, techExfiltration, strong, i, i+end))
			}
			continue
		}
		for _, m := range marksByByte[text[i]] {
			if strings.HasPrefix(text[i:], m.text) && (i == 0 || text[i-1] != '`') &&
				(i < 2 || text[i-2:i] != ` "`) {
				out = append(out, newSign(f, m.tech, false, i, i+len(m.text)))
				break
			}
		}
	}
	return out
}

// matchImage returns where the Markdown image ends that text begins with, when the query of its http link has a
// placeholder, which is strong, or names private data: an image is fetched without a click, so a link that carries data
// sends it. end is 0 for any other image.
func matchImage(text string) (end int, strong bool) {
	mid := strings.Index(text, "](")
	if mid < 0 || mid > 200 {
		return 0, false
	}
	link := text[mid+2:]
	if end := strings.IndexAny(link, ")\n"); end >= 0 {
		link = link[:end]
	}
	q := strings.IndexByte(link, '?')
	if !strings.HasPrefix(link, "http") || q < 0 {
		return 0, false
	}
	end = mid + 2 + len(link)
	if strings.ContainsAny(link[q:], "<{[$ ") {
		return end, true
	}
	if containsAny(link[q:], []string{"summary", "secret", "conversation", "history", "password", "token=", "exfil"}) {
		return end, false
	}
	return 0, false
}
