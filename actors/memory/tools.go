package memory

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Tools returns the tools that memory serves, for the broker's configuration. They cannot be run.
func Tools() actor.Toolset { return (&Memory{}).toolset() }

// toolset returns the tools of m. Each is two files: the code and the description that the model reads.
func (m *Memory) toolset() actor.Toolset {
	return actor.Toolset{
		newTool(searchMemorySchema, policy.Tool{
			// The query has no role: a recall with words of the user is one that the user asked for, one with other words is not.
			// Nor has context, so that a recall with pinned facts never counts as asked for: the question did not name them.
			Args: policy.Args{
				"query": {}, "max": {Role: policy.RoleSetting},
				"kind": {Role: policy.RoleOption, Values: []string{subjects.KindEngram, subjects.KindFact, subjects.KindDocument}},
			},
			Effects: policy.Declare(policy.ReadsPrivate), Timeout: time.Minute, Standing: true, Empty: nothingFound,
		}, m.runSearchMemory),
		newTool(saveMemorySchema, policy.Tool{Effects: policy.Declare(policy.Remember), Timeout: time.Minute, MaxArgs: 64 << 10}, m.runSaveMemory),
		newTool(searchGraphSchema, policy.Tool{Effects: policy.Declare(policy.ReadsPrivate), Timeout: 30 * time.Second}, m.runSearchGraph),
	}
}

// toolFunc runs one call of a tool.
type toolFunc = func(ctx context.Context, in actor.Msg[subjects.ToolOrder], out actor.Out) (subjects.ToolResult, error)

// newTool completes what all tools of memory share.
func newTool(schema subjects.ToolSchema, facts policy.Tool, run toolFunc) actor.Tool {
	schema.Version, schema.Description = version, strings.TrimSpace(schema.Description)
	facts.Name, facts.Zone, facts.Known, facts.Graded = schema.Name, name, true, true
	return actor.Tool{Schema: schema, Facts: facts, Run: run}
}

// toolAct is the act of a tool call, for the audit log. Caller and session are the broker's word.
func toolAct(in actor.Msg[subjects.ToolOrder], action, tool string, params []byte) act {
	return act{caller: in.Body.Caller, typ: in.Body.CallerType, action: action, target: tool, params: params, session: in.Session, query: in.Body.QueryID}
}

// newToolResult returns a result that is private to the user. trusted must be false unless every entry in content is trusted. ids
// are the entries that were recalled.
func newToolResult(content string, trusted bool, ids ...string) subjects.ToolResult {
	labels := &subjects.Labels{Trust: subjects.Untrusted, Privacy: subjects.Private}
	if trusted {
		labels.Trust = subjects.Trusted
	}
	return subjects.ToolResult{Result: content, Recalls: ids, Labels: labels}
}

// nothingFound is the result of a search that found nothing. The session holds no private data by it, see [policy.Tool.Empty].
const nothingFound = "Nothing is remembered about that."

// formatAge formats the time since then for a model, in minutes, hours (up to two days) or days. A time in the future is "just
// now".
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

// formatOrigin formats the provenance of an entry for a model, with its file or address on one line. Untrusted entries are marked
// UNTRUSTED.
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

// formatSpeaker formats who said an entry and on which day, with a comma in front, for a model: a text in the first person says
// nothing without its speaker. "" = the speaker is not known.
func formatSpeaker(e subjects.MemoryEntry) string {
	switch {
	case e.Speaker == "":
		return ""
	case e.Happened.IsZero():
		return ", said by " + text.OneLine(e.Speaker, subjects.MaxSpeaker)
	}
	return ", said by " + text.OneLine(e.Speaker, subjects.MaxSpeaker) + e.Happened.UTC().Format(" on 2 January 2006")
}

// formatHits formats recalled entries for a model: content, similarity, age, score and provenance of each. The result is trusted
// only when every entry is; an empty one is. It does not repeat the query, which would count as content of the tool.
func formatHits(now time.Time, r subjects.MemoryReply) subjects.ToolResult {
	if len(r.Hits) == 0 {
		return newToolResult(nothingFound, true)
	}
	var b strings.Builder
	var ids []string
	trusted := true
	fmt.Fprintf(&b, "%d remembered:\n", len(r.Hits))
	for i, h := range r.Hits {
		ids = append(ids, h.Entry.ID)
		trusted = trusted && h.Entry.Provenance.Trust == subjects.Trusted
		fmt.Fprintf(&b, "%d. ", i+1)
		formatHit(&b, now, h)
	}
	for _, n := range r.Notes {
		if n.Code == noteNoVectors {
			b.WriteString("(Only words were compared: the model for vectors does not answer.)\n")
		}
	}
	return newToolResult(strings.TrimRight(b.String(), "\n"), trusted, ids...)
}

// formatHit writes one entry: a line about it with its speaker and grades, then its segment, or else its corpus, or else its description,
// indented, the critic's feedback and at most 5 ids of correlated entries.
func formatHit(b *strings.Builder, now time.Time, h subjects.MemoryHit) {
	e := h.Entry
	fmt.Fprintf(b, "%s [%s %s] similarity %.2f, score %.2f, %s, %s", text.OneLine(e.Name, maxName), e.Kind, e.ID, h.Similarity, h.Score, formatAge(now, e.Created), formatOrigin(e.Provenance))
	b.WriteString(formatSpeaker(e))
	if e.Grades.Critic > 0 {
		fmt.Fprintf(b, ", graded %d of 5", e.Grades.Critic)
	}
	if e.Grades.Rewards > 0 {
		fmt.Fprintf(b, ", the user's reward %+.1f", e.Grades.Reward)
	}
	if e.State != subjects.MemoryActive {
		fmt.Fprintf(b, ", %s", e.State)
	}
	b.WriteString("\n")
	for line := range strings.Lines(strings.TrimSpace(cmp.Or(h.Segment, e.Corpus, e.Description))) {
		b.WriteString("   " + strings.TrimRight(line, "\r\n") + "\n")
	}
	if e.Grades.Feedback != "" {
		fmt.Fprintf(b, "   critic: %s\n", text.OneLine(redactText(e.Grades.Feedback, maxRecalledFeedback), maxRecalledFeedback))
	}
	if len(e.Correlating) > 0 {
		fmt.Fprintf(b, "   goes with: %s\n", strings.Join(e.Correlating[:min(5, len(e.Correlating))], ", "))
	}
}
