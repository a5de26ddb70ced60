package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"conclave/subjects"
)

// SessionExport is a conversation as a file.
type SessionExport struct {
	SessionID string          `json:"session_id"`
	Title     string          `json:"title"`
	Updated   time.Time       `json:"updated"`
	Client    string          `json:"client"` // whose session it is; "" = the user's
	Turns     []subjects.Turn `json:"conversation"`
	Lost      int             `json:"lost"` // turns that are not among these
}

// exportTypes are the media types of an export by its format, which is also the end of the file's name.
var exportTypes = map[string]string{"md": "text/markdown; charset=utf-8", "json": "application/json"}

// onSessionExport writes the whole conversation of a session as a file for the user, archived turns too: as JSON, or as
// Markdown without the results of tools. An unknown session is 404.
func (g *Gateway) onSessionExport(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	format := cmp.Or(r.URL.Query().Get("format"), "md")
	kind := exportTypes[format]
	if kind == "" {
		return malformedf("format: md or json")
	}
	ctx, cancel := g.withTimeout(r.Context(), exportTimeout)
	defer cancel()
	conv, lost, err := g.client.WholeSession(ctx, id)
	if err != nil {
		return g.explainEnd(ctx, explainSession(id, err))
	}
	out := SessionExport{
		SessionID: id, Title: g.titleOf(ctx, conv), Updated: conv.Updated, Client: subjects.ClientOf(id),
		Turns: append([]subjects.Turn{}, conv.Turns...), Lost: lost,
	}
	var file []byte
	if format == "md" {
		file = out.markdown()
	} else if file, err = json.MarshalIndent(out, "", "  "); err != nil {
		return err
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="conversation-%s.%s"`, id, format))
	_, _ = w.Write(file)
	return nil
}

// exportTimeout is the timeout of reading a whole conversation.
const exportTimeout = time.Minute

// markdown returns the conversation as Markdown: questions and answers as they are, with the names of attachments and
// of the tools that were called.
func (e SessionExport) markdown() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", e.Title)
	if e.Lost > 0 {
		fmt.Fprintf(&b, "*%d earlier turns are not kept.*\n\n", e.Lost)
	}
	for _, t := range e.Turns {
		fmt.Fprintf(&b, "## Question, %s\n\n%s\n\n", t.Time.UTC().Format("2006-01-02 15:04 UTC"), t.Query)
		for _, a := range t.Attachments {
			fmt.Fprintf(&b, "- attached: %s\n", makeTitle(cmp.Or(a.Name, "a text")))
		}
		if len(t.Attachments) > 0 {
			b.WriteString("\n")
		}
		facts := []string{cmp.Or(t.Respondent, "assistant")}
		if t.Model != "" {
			facts = append(facts, t.Model)
		}
		if t.Labels == nil || t.Labels.Trust != subjects.Trusted {
			facts = append(facts, "with untrusted content")
		}
		fmt.Fprintf(&b, "### Answer, %s\n\n", strings.Join(facts, ", "))
		var tools []string
		for _, m := range t.Messages {
			for _, c := range m.Calls {
				tools = append(tools, c.Name)
			}
		}
		if len(tools) > 0 {
			fmt.Fprintf(&b, "*Called: %s.*\n\n", strings.Join(tools, ", "))
		}
		fmt.Fprintf(&b, "%s\n\n", t.Answer)
	}
	return []byte(b.String())
}
