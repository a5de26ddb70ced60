package loop

import (
	"encoding/json"
	"regexp"
	"strings"

	"conclave/pkg/model"
)

// describeTools is the part of the system message that describes tools to a model without native tool calls. Parameters
// that are not JSON are left out.
func describeTools(tools []model.Tool) string {
	var b strings.Builder
	b.WriteString(headTools + textForm)
	for _, tool := range tools {
		line, err := json.Marshal(tool)
		if err != nil { // the parameters are not JSON
			tool.Parameters = nil
			line, _ = json.Marshal(tool)
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.String()
}

// renderAsText writes calls and results as text between tags, for a model without native tool calls. Results become
// messages of the user, one for all results in a row; thinking is left out. ms is not modified.
func renderAsText(ms []model.Message) []model.Message {
	out := make([]model.Message, 0, len(ms))
	for i, m := range ms {
		switch {
		case len(m.Calls) > 0:
			out = append(out, model.Message{Role: m.Role, Content: renderCalls(m)})
		case m.Role == model.ToolRole:
			body := "<tool_result name=" + m.ToolName + " id=" + m.CallID + ">\n" +
				escapeResultEnd(m.Content) + "\n</tool_result>"
			if i > 0 && ms[i-1].Role == model.ToolRole {
				out[len(out)-1].Content += "\n" + body
				continue
			}
			out = append(out, model.Message{Role: model.User, Content: body})
		default:
			m.Thinking = ""
			out = append(out, m)
		}
	}
	return out
}

// escapeResultEnd escapes closing tags of results in s, in any case, so that a result cannot end its own tag and pose
// as the user. The '<' of each gets a backslash behind it.
func escapeResultEnd(s string) string { return resultEndPattern.ReplaceAllString(s, `<\$1`) }

var resultEndPattern = regexp.MustCompile(`(?i)<(/tool_result)`)

// renderCalls is the text of m and its calls in the form that text_form.md asks for. The arguments must be JSON: they
// are inserted as they are.
func renderCalls(m model.Message) string {
	var b strings.Builder
	b.WriteString(m.Content)
	for _, c := range m.Calls {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("<tool_call>\n{\"name\": ")
		b.Write(encodeJSON(c.Name))
		b.WriteString(", \"arguments\": ")
		b.Write(c.Arguments)
		b.WriteString("}\n</tool_call>")
	}
	return b.String()
}
