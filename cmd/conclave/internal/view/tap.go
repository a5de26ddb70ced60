package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/client"
	"conclave/subjects"
)

const (
	maxPreviewColumns = 200 // of an event where the output is no terminal
	minPreviewColumns = 20
)

// Event prints one event on a line: local time, who published it, the query, the subject, and a preview of what it
// says, with "~" before thinking and the number of tool calls. On a terminal the line is cut to its width.
func Event(w io.Writer, e client.Event) {
	family, _, _ := strings.Cut(e.Subject, ".")
	about := cmp.Or(term.ShortID(e.Query), term.ShortID(e.Session), "-")
	what := term.Plain(e.Subject)
	if e.Query != "" { // which stands in a column of its own
		what = term.Plain(strings.TrimSuffix(e.Subject, "."+e.Query))
	}
	head := fmt.Sprintf("%s %-11s %-8s ", e.Time.Local().Format("15:04:05.000"), term.Plain(cmp.Or(e.From, "-")),
		term.Plain(about))
	room := maxPreviewColumns
	if columns, _, ok := term.Size(w); ok {
		room = max(minPreviewColumns, columns-term.Width(head)-term.Width(what)-2)
	}
	fmt.Fprintf(w, "%s%s %s\n", head, term.Paint(w, subjectColours[family], what),
		term.Clip(term.Plain(joinLines.Replace(describeEvent(e))), room))
}

// joinLines replaces line breaks and tabs by blanks.
var joinLines = strings.NewReplacer("\r\n", " ", "\n", " ", "\t", " ")

// eventBody is what events of all kinds have in common for a preview. Each field belongs to a few of them.
type eventBody struct {
	Query     string            `json:"query"`
	Answer    string            `json:"answer"`
	Text      string            `json:"text"`
	Thinking  string            `json:"thinking"`
	Words     string            `json:"words"`
	From      string            `json:"from"`
	To        string            `json:"to"`
	Tool      string            `json:"tool"`
	Caller    string            `json:"caller"`
	Args      json.RawMessage   `json:"args"`
	Result    string            `json:"result"`
	Error     *subjects.Fault   `json:"error"`
	ToolCalls []json.RawMessage `json:"tool_calls"`
	State     string            `json:"state"`
	By        string            `json:"by"`
	Reason    string            `json:"reason"`
	Score     int               `json:"score"`
	Self      bool              `json:"self_graded"`
	Feedback  string            `json:"feedback"`
	Why       string            `json:"why"`
	Status    string            `json:"status"`
	Persona   string            `json:"persona"`
	Response  string            `json:"response"`
}

// describeEvent is what an event says, in a few words. One that has none of the known fields is shown as it is.
func describeEvent(e client.Event) string {
	var b eventBody
	if json.Unmarshal(e.Body, &b) != nil {
		return e.Text()
	}
	var parts []string
	add := func(format string, v ...any) { parts = append(parts, fmt.Sprintf(format, v...)) }
	switch {
	case strings.HasPrefix(e.Subject, "response.thinking"):
		add("~ %s", b.Text)
	case b.Answer != "":
		add("%s", b.Answer)
	case b.Persona != "":
		add("%s: %s", b.Persona, cmp.Or(b.Response, b.Status))
	case b.Query != "" && strings.HasPrefix(e.Subject, "query"):
		add("%s", b.Query)
	case b.To != "":
		add("%s -> %s", cmp.Or(b.From, "?"), b.To)
	case b.Text != "":
		add("%s", b.Text)
	case len(b.Args) > 0:
		add("%s %s", b.Caller, b.Args)
	case b.State != "":
		add("%s", strings.TrimSuffix(b.State+" by "+b.By, " by "))
	case b.Score > 0 && b.Self:
		add("%d of 5, %s: %s", b.Score, subjects.GradedByItself, b.Feedback)
	case b.Score > 0:
		add("%d of 5: %s", b.Score, b.Feedback)
	}
	for _, text := range []string{b.Words, b.Result, b.Why, b.Reason} {
		if text != "" {
			parts = append(parts, text)
		}
	}
	if b.Error != nil {
		add("%s: %s", b.Error.Code, b.Error.Text)
	}
	if len(parts) == 0 {
		return e.Text()
	}
	text := strings.TrimSpace(strings.Join(parts, "; "))
	if n := len(b.ToolCalls); n > 0 {
		text = "[" + term.Count(n, "tool call") + "] " + text
	}
	if b.Thinking != "" {
		text = "[thought] " + text
	}
	return text
}
