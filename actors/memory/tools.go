package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// version of the tools, as discovery shows it.
const version = "0.1.0"

// tool is one of the tools that memory serves: what a model reads of it, what the broker knows of it, and what it does.
type tool struct {
	schema subjects.ToolSchema
	facts  policy.Tool
	run    func(m *Memory, ctx context.Context, out actor.Out, c call) (answer, error)
}

// call is a call of a tool as the broker hands it over. Who asks, and what went into the session, is the broker's word.
type call struct {
	id      string
	args    json.RawMessage
	by      string
	spawned bool
	labels  *subjects.Labels
	session string
	query   string
}

// trusted reports whether no stranger could have written into the session.
func (c call) trusted() bool { return c.labels != nil && c.labels.Trust == subjects.Trusted }

// answer is what a tool has to say, and whose words are in it.
type answer struct {
	text    string
	trusted bool
	ids     []string
}

// Tool is what the build knows of a tool of memory.
type Tool struct {
	Facts  policy.Tool
	Schema subjects.ToolSchema
}

// Tools are those that memory serves.
func Tools() (out []Tool) {
	for _, t := range tools {
		out = append(out, Tool{t.facts, t.schema})
	}
	return out
}

var tools = []tool{searchMemory, saveMemory, searchGraph}

// definition is a schema as discovery shows it.
func (t tool) definition() string {
	b, err := json.Marshal(t.schema)
	if err != nil {
		return ""
	}
	return string(b)
}

// errArgs means that the arguments are not what the tool takes. The text is for the model, which may try again.
var errArgs = errors.New("bad arguments")

func (t tool) handler(m *Memory) actor.RequestHandler[subjects.ToolOrder, subjects.ToolResult] {
	return func(ctx context.Context, in actor.Msg[subjects.ToolOrder], out actor.Out) (subjects.ToolResult, error) {
		o := in.Body
		res := subjects.ToolResult{CallID: o.CallID, QueryID: o.QueryID, Tool: t.schema.Name}
		got, err := t.run(m, ctx, out, call{id: o.CallID, args: o.Args, by: o.Caller, spawned: o.Spawned, labels: o.Labels, session: in.Session, query: o.QueryID})
		var f *subjects.Fault
		switch {
		case errors.Is(err, errArgs):
			res.Error = subjects.Faultf(subjects.CodeTool, "%v", err)
		case errors.As(err, &f):
			res.Error = f
		case err != nil:
			return res, fmt.Errorf("running %s: %w", t.schema.Name, err)
		default:
			res.Result, res.Recalls = got.text, got.ids
			res.Labels = &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Private}
			if got.trusted {
				res.Labels.Trust = subjects.Trusted
			}
		}
		return res, nil
	}
}

// arguments reads a tool's arguments as strictly as its schema says.
func arguments(raw json.RawMessage, v any) error {
	if err := actor.DecodeStrict(raw, v); err != nil {
		return fmt.Errorf("%w: %w", errArgs, err)
	}
	return nil
}

// formatAge is how long ago something was, in words.
func formatAge(now, then time.Time) string {
	d := now.Sub(then)
	plural := func(n int, unit string) string {
		if n == 1 {
			return "1 " + unit + " ago"
		}
		return fmt.Sprintf("%d %ss ago", n, unit)
	}
	switch {
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return plural(int(d/time.Minute), "minute")
	case d < 48*time.Hour:
		return plural(int(d/time.Hour), "hour")
	}
	return plural(int(d/(24*time.Hour)), "day")
}

// formatOrigin says where an entry came from, in words for a model.
func formatOrigin(p subjects.Provenance) string {
	words := map[subjects.Source]string{
		subjects.SourceUser: "from the user", subjects.SourceConversation: "from a conversation", subjects.SourceAgent: "noted by an agent",
		subjects.SourceDocument: "from a document", subjects.SourceExternal: "source: external",
	}[p.Source]
	if words == "" {
		words = "source: unknown"
	}
	if p.From != "" {
		words += " (" + text.OneLine(p.From, 120) + ")"
	}
	if p.Trust != subjects.Trusted {
		words += ", UNTRUSTED"
	}
	return words
}

// formatHits is a recall in words for a model: content, similarity, age, score and provenance of each.
func formatHits(now time.Time, r subjects.MemoryReply) answer {
	a := answer{trusted: true}
	if len(r.Hits) == 0 {
		a.text = "Nothing is remembered about that." // not what was asked: what a tool says counts as known
		return a
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d remembered:\n", len(r.Hits))
	for i, h := range r.Hits {
		e := h.Entry
		a.ids = append(a.ids, e.ID)
		a.trusted = a.trusted && e.Provenance.Trust == subjects.Trusted
		fmt.Fprintf(&b, "%d. %s [%s %s] similarity %.2f, score %.2f, %s, %s", i+1, text.OneLine(e.Name, maxName), e.Kind, e.ID, h.Similarity, h.Score, formatAge(now, e.Created), formatOrigin(e.Provenance))
		if e.Grades.Critic > 0 {
			fmt.Fprintf(&b, ", graded %d of 5", e.Grades.Critic)
		}
		if e.State != subjects.MemoryActive {
			fmt.Fprintf(&b, ", %s", e.State)
		}
		b.WriteString("\n")
		body := h.Segment
		for _, more := range []string{e.Corpus, e.Description} {
			if body == "" {
				body = more
			}
		}
		for line := range strings.Lines(strings.TrimSpace(body)) {
			b.WriteString("   " + strings.TrimRight(line, "\r\n") + "\n")
		}
		if len(e.Correlating) > 0 {
			fmt.Fprintf(&b, "   goes with: %s\n", strings.Join(e.Correlating[:min(5, len(e.Correlating))], ", "))
		}
	}
	for _, n := range r.Notes {
		if n.Code == noteNoVectors {
			b.WriteString("(Only words were compared: the model for vectors does not answer.)\n")
		}
	}
	a.text = strings.TrimRight(b.String(), "\n")
	return a
}

// cleanTags are tags as they are kept.
func cleanTags(tags []string) (out []string) {
	for _, t := range tags {
		if t = strings.ToLower(text.OneLine(strings.TrimSpace(t), maxTag)); t != "" && !slices.Contains(out, t) && len(out) < maxTags {
			out = append(out, t)
		}
	}
	return out
}
