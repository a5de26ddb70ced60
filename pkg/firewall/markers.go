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

// findMarks returns a weak sign for each mark of a chat template or a tool call. One behind a backtick or an opening
// quotation mark, as in documentation, is none.
func findMarks(f *folded) (out []sign) {
	text := f.text
	for i := 0; i < len(text) && len(out) < maxSigns; i++ {
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
