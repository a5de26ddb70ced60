package memory

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"conclave/actors/memory/digest"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Entries are formatted for a model as a label in brackets on a line of its own, and then the text of the entry, each
// line of it behind textPrefix. So no text can pass for a label: it stands behind the label, every line of it is
// marked, and an untrusted one has no brackets.
const textPrefix = "> "

// formatAge formats the time since then for a model, in minutes, hours (up to two days) or days. A time in the future
// is "just now".
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

// formatOrigin formats the provenance of an entry for a model, with its file or address on one line. Untrusted entries
// are marked UNTRUSTED.
func formatOrigin(p subjects.Provenance) string {
	words := map[subjects.Source]string{
		subjects.SourceUser: "from the user", subjects.SourceConversation: "from a conversation",
		subjects.SourceAgent:    "noted by an agent",
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

// formatLabel formats what a model should know of an entry before it reads the text: kind, id, age, origin and trust,
// who said it and on which day, and its grade. A text in the first person says nothing without its speaker.
func formatLabel(now time.Time, e subjects.MemoryEntry) string {
	label := fmt.Sprintf("%s %s, %s, %s", e.Kind, e.ID, formatAge(now, e.Created), formatOrigin(e.Provenance))
	if e.Speaker != "" {
		label += ", said by " + text.OneLine(e.Speaker, subjects.MaxSpeaker)
		if !e.Happened.IsZero() {
			label += e.Happened.UTC().Format(" on 2 January 2006")
		}
	}
	if e.Grades.Critic > 0 {
		label += fmt.Sprintf(", graded %d of 5", e.Grades.Critic)
	}
	return "[" + brackets.Replace(label) + "]"
}

var (
	// lineBreaks are characters other than a line feed that some program takes for the end of a line.
	lineBreaks = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\v", "\n", "\f", "\n", "\x1c", "\n", "\x1d", "\n",
		"\x1e", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n")
	// brackets become parentheses, also those that only look like the brackets of a label.
	brackets = strings.NewReplacer("[", "(", "]", ")", "［", "(", "］", ")", "【", "(", "】", ")", "〔", "(", "〕", ")", "〖",
		"(", "〗", ")",
		"⟦", "(", "⟧", ")", "〚", "(", "〛", ")", "⁅", "(", "⁆", ")", "❲", "(", "❳", ")")
	// labelWords are the words of labels and of quotes that vouch for a text.
	labelWords = regexp.MustCompile(`(?i)\b(pinned by|from|said by|you|the assistant) (the user|said|answered)\b`)
)

// writeText writes a text of an entry, a line at a time behind textPrefix, without blank lines. Of an untrusted one
// brackets become parentheses, and words are quoted where they are those of a label.
func writeText(b *strings.Builder, e subjects.MemoryEntry, s string) {
	s = lineBreaks.Replace(s)
	if e.Provenance.Trust != subjects.Trusted {
		s = labelWords.ReplaceAllString(brackets.Replace(s), `$1 "$2"`)
	}
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(textPrefix + line + "\n")
		}
	}
}

// writeFeedback writes the critic's feedback on an entry as a part of its text: it may quote the entry.
func writeFeedback(b *strings.Builder, e subjects.MemoryEntry) {
	if e.Grades.Feedback != "" {
		writeText(b, e, "critic: "+text.OneLine(redactText(e.Grades.Feedback, maxRecalledFeedback),
			maxRecalledFeedback))
	}
}

// formatHits formats recalled entries for a model. The result is trusted only when every entry is; an empty one is. It
// does not repeat the query, which would count as content of the tool.
func formatHits(now time.Time, r subjects.MemoryReply) subjects.ToolResult {
	if len(r.Hits) == 0 {
		return newToolResult(nothingFound, true)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d remembered:\n", len(r.Hits))
	for i, h := range r.Hits {
		fmt.Fprintf(&b, "%d. ", i+1)
		writeHit(&b, now, h)
	}
	for _, n := range r.Notes {
		if n.Code == noteNoVectors {
			b.WriteString("(Only words were compared: the model for vectors does not answer.)\n")
		}
	}
	if strings.Contains(b.String(), " you said: \"") { // only the runtime writes this: see labelWords
		b.WriteString("(After \"you said\", \"I\" and \"my\" are the user, not you.)\n")
	}
	return newHitsResult(strings.TrimRight(b.String(), "\n"), r.Hits)
}

// newHitsResult returns a result that names its hits, and is trusted when every one is.
func newHitsResult(content string, hits []subjects.MemoryHit) subjects.ToolResult {
	var ids []string
	trusted := true
	for _, h := range hits {
		ids = append(ids, h.Entry.ID)
		trusted = trusted && h.Entry.Provenance.Trust == subjects.Trusted
	}
	return newToolResult(content, trusted, ids...)
}

// summarizeHits lists recalled entries by name and description, never with their corpus, a segment or the feedback, for
// an agent that must not read content. The result is trusted only when every entry is.
func summarizeHits(_ time.Time, r subjects.MemoryReply) subjects.ToolResult {
	if len(r.Hits) == 0 {
		return newToolResult(nothingFound, true)
	}
	var list subjects.MemorySummary
	for _, h := range r.Hits {
		e := h.Entry
		list.Entries = append(list.Entries, subjects.MemorySummaryEntry{
			ID: e.ID, Kind: e.Kind,
			Name: text.OneLine(e.Name, maxName), Description: text.OneLine(e.Description, maxSummaryDescription),
		})
	}
	data, err := json.Marshal(list)
	if err != nil {
		return newToolResult(nothingFound, true)
	}
	return newHitsResult(string(data), r.Hits)
}

// maxSummaryDescription bounds a description in a summary, in bytes.
const maxSummaryDescription = 300

// writeHit writes one entry: its label with similarity, score and reward, its name where the text does not have it, its
// segment, or else its corpus, or else its description, the critic's feedback and at most 5 ids of correlated entries.
func writeHit(b *strings.Builder, now time.Time, h subjects.MemoryHit) {
	e := h.Entry
	fmt.Fprintf(b, "%s similarity %.2f, score %.2f", formatLabel(now, e), h.Similarity, h.Score)
	if e.Grades.Rewards > 0 {
		fmt.Fprintf(b, ", the user's reward %+.1f", e.Grades.Reward)
	}
	if e.State != subjects.MemoryActive {
		fmt.Fprintf(b, ", %s", e.State)
	}
	b.WriteString("\n")
	shown := cmp.Or(h.Segment, e.Corpus, e.Description)
	if !strings.Contains(text.NameKey(shown), text.NameKey(e.Name)) {
		writeText(b, e, text.OneLine(e.Name, maxName)+":")
	}
	writeText(b, e, formatExchange(now, e, shown))
	writeFeedback(b, e)
	if len(e.Correlating) > 0 {
		fmt.Fprintf(b, "goes with: %s\n", strings.Join(e.Correlating[:min(5, len(e.Correlating))], ", "))
	}
}

// formatExchange formats a part of a trusted exchange, whose texts are in the first person, with who said what and
// when. Any other text, and a part without the words of the user, is returned unchanged.
func formatExchange(now time.Time, e subjects.MemoryEntry, shown string) string {
	asked, answered := digest.SplitExchange(shown)
	if e.Kind != subjects.KindEngram || e.Provenance.Trust != subjects.Trusted || asked == "" {
		return shown
	}
	when := formatAge(now, saidAt(e))
	said := fmt.Sprintf("%s, %s: \"%s\"", when, formatSpeaker(e), strings.TrimSpace(asked))
	if answered = strings.TrimSpace(answered); answered != "" {
		said += fmt.Sprintf("\n%s, the assistant answered: \"%s\"", when, answered)
	}
	return said
}
