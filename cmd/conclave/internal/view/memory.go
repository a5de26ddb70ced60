package view

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

// Memories is a number of memories.
func Memories(n int) string { return term.Count(n, "memory", "memories") }

// untrusted is printed with every memory that is not trusted.
const untrusted = "UNTRUSTED: may contain external content"

// trustWord is how far an entry can be trusted. Everything that is not trusted is untrusted.
func trustWord(trust string) string {
	if trust == subjects.Trusted {
		return "trusted"
	}
	return "UNTRUSTED"
}

// nameRoom is how long a name or a question in a table may be, in columns. On a terminal the table clips it to what is
// left.
func nameRoom(w io.Writer) int {
	if term.IsTerminal(w) {
		return 200
	}
	return 60
}

// MemoryTable prints memories, a line each, under a header. A star marks a pinned one, a number the piece of a
// document.
func MemoryTable(w io.Writer, entries []subjects.MemoryEntry) {
	now := time.Now()
	rows := [][]string{{"ID", "KIND", "STATE", "TRUST", "AGE", "NAME"}}
	for _, e := range entries {
		name := term.Clip(e.Name, nameRoom(w))
		if e.Provenance.Part > 0 { // the pieces of a document often share a name
			name += fmt.Sprintf(" (%d)", e.Provenance.Part)
		}
		if e.Pinned {
			name = "* " + name
		}
		rows = append(rows, []string{
			term.Visible(term.ShortID(e.ID)), term.Visible(e.Kind), term.Visible(e.State),
			trustWord(e.Provenance.Trust), term.Age(now.Sub(e.Created)), term.Visible(name),
		})
	}
	term.Table(w, rows, term.Layout{Drop: []string{"STATE", "AGE", "KIND"}})
}

// MemoryHits prints the result of a search, and on stderr its notes, whether it was cached, and that nothing matched.
// With reasons, each score is broken down; with whole, the whole text is printed in place of the relevant part.
// Untrusted memories are marked.
func MemoryHits(s *term.Streams, r subjects.MemoryReply, reasons, whole bool) {
	if len(r.Hits) == 0 {
		s.Say("no memory matches")
	}
	w, now := s.Out, time.Now()
	for i, h := range r.Hits {
		if i > 0 {
			fmt.Fprintln(w)
		}
		e := h.Entry
		fmt.Fprintf(w, "%d. %s  %s\n", i+1, term.Paint(w, term.Yellow, term.Visible(term.ShortID(e.ID))),
			term.Paint(w, term.Bold, term.Visible(term.Clip(e.Name, 100))))
		fmt.Fprintf(w, "   similarity %.3f, score %.3f, %s ago, %s\n", h.Similarity, h.Score,
			term.Age(now.Sub(e.Created)), describeMemory(e))
		if e.Provenance.Trust != subjects.Trusted {
			fmt.Fprintf(w, "   %s\n", term.Paint(w, term.Red, untrustedWarning(e)))
		}
		text := cmp.Or(h.Segment, e.Description)
		if whole && e.Corpus != "" {
			text = e.Corpus
		}
		term.Indent(w, "   ", text)
		if reasons {
			for _, reason := range h.Reasons {
				fmt.Fprintf(w, "   %+.3f %s\n", reason.Value,
					term.Visible(strings.TrimSpace(reason.What+"  "+reason.Text)))
			}
		}
	}
	Notes(s, r.Notes)
	if r.Cached {
		s.Say("this is a cached result; --fresh searches again")
	}
}

// Notes prints notes on stderr.
func Notes(s *term.Streams, notes []subjects.Note) {
	for _, n := range notes {
		s.Say("%s", term.Plain(n.Text))
	}
}

// describeMemory is the kind, source, speaker, state, pin and grade of an entry in a few words. The state is left out
// when it is active.
func describeMemory(e subjects.MemoryEntry) string {
	parts := []string{e.Kind, "from " + cmp.Or(string(e.Provenance.Source), "an unknown source")}
	if e.Provenance.From != "" {
		parts = append(parts, e.Provenance.From)
	}
	if e.Speaker != "" {
		parts = append(parts, "said by "+e.Speaker)
		if !e.Happened.IsZero() {
			parts = append(parts, "on "+e.Happened.UTC().Format(time.DateOnly))
		}
	}
	if e.State != subjects.MemoryActive {
		parts = append(parts, e.State)
	}
	if e.Pinned {
		parts = append(parts, "pinned")
	}
	if e.Grades.Critic > 0 {
		parts = append(parts, fmt.Sprintf("graded %d of 5", e.Grades.Critic))
		if e.Grades.IsSelfGraded() {
			parts = append(parts, subjects.GradedByItself)
		}
	}
	return term.Visible(strings.Join(parts, ", "))
}

// untrustedWarning is the trust line of an untrusted memory, with the signs of injection that were found in it.
func untrustedWarning(e subjects.MemoryEntry) string {
	if f := e.Provenance.Flags; len(f) > 0 {
		return untrusted + ", with signs of injection: " + term.Visible(strings.Join(f, ", "))
	}
	return untrusted
}

// Memory prints everything about one memory; empty fields are left out. related gives names to the memories it
// correlates with; one that is not in it is shown by its id alone.
func Memory(w io.Writer, e subjects.MemoryEntry, related []subjects.MemoryEntry) {
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "%-13s %s\n", name, text)
		}
	}
	list := func(name string, v ...string) {
		line(name, term.Visible(strings.Join(slices.DeleteFunc(v, func(s string) bool { return s == "" }), ", ")))
	}
	p, g := e.Provenance, e.Grades
	list("id", e.ID)
	line("name", term.Paint(w, term.Bold, term.Visible(e.Name)))
	line("about", describeMemory(e))
	if p.Trust != subjects.Trusted {
		line("trust", term.Paint(w, term.Red, untrustedWarning(e)))
	} else {
		line("trust", trustWord(p.Trust))
	}
	list("tags", slices.Clone(e.Tags)...)
	list("author", p.Agent, p.Model)
	list("session", p.SessionID, p.QueryID)
	if p.Part > 0 {
		line("part", fmt.Sprint(p.Part))
	}
	list("speaker", e.Speaker)
	if !e.Happened.IsZero() {
		line("happened", term.Stamp(e.Happened))
	}
	if e.Conversation != "" && e.Conversation != p.SessionID && e.Conversation != p.From {
		list("conversation", e.Conversation)
	}
	if e.Position > 0 && e.Position != p.Part {
		line("position", fmt.Sprint(e.Position))
	}
	list("digest", p.Digest)
	list("intent", e.Intent)
	list("entities", slices.Clone(e.Entities)...)
	list("sentiment", e.Sentiment)
	list("respondent", e.Respondent)
	if g.Critic > 0 {
		list("critic", strings.TrimSpace(fmt.Sprintf("%d of 5  %s", g.Critic, g.Feedback)))
	}
	list("pairwise", g.Pairwise)
	if g.Rewards > 0 {
		line("reward", fmt.Sprintf("%+.2f, rated %s", g.Reward, formatTimes(g.Rewards)))
	}
	list("superseded by", e.SupersededBy)
	list("supersedes", slices.Clone(e.Supersedes)...)
	line("created", term.Stamp(e.Created))
	if e.Updated.After(e.Created) {
		line("updated", term.Stamp(e.Updated))
	}
	if e.Accesses > 0 {
		line("recalled", fmt.Sprintf("%s, last %s", formatTimes(e.Accesses), term.Stamp(e.Accessed)))
	}
	for _, r := range nameRelated(e, related) {
		list("related", r)
	}
	if e.Description != "" {
		fmt.Fprintln(w)
		term.Indent(w, "", e.Description)
	}
	if e.Corpus != "" && e.Corpus != e.Description {
		fmt.Fprintln(w)
		term.Indent(w, "  ", e.Corpus)
	}
}

// nameRelated lists the memories that e correlates with: the short id, and the name where related has it. The caller
// sanitizes.
func nameRelated(e subjects.MemoryEntry, related []subjects.MemoryEntry) []string {
	names := map[string]string{}
	for _, r := range related {
		names[r.ID] = r.Name
	}
	var lines []string
	for _, id := range e.Correlating {
		lines = append(lines, strings.TrimSpace(term.ShortID(id)+"  "+term.Clip(names[id], 80)))
	}
	return lines
}

// formatTimes returns a count of events in words: once, 2 times.
func formatTimes(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// MemoryStatus prints counts, sizes and models of memory, and on stderr what waits for an embedding or for the user's
// decision. program begins the printed command.
func MemoryStatus(s *term.Streams, m subjects.MemoryStatus, program string) {
	line := func(name, format string, v ...any) {
		fmt.Fprintf(s.Out, "%-10s %s\n", name, term.Visible(fmt.Sprintf(format, v...)))
	}
	total := 0
	for _, n := range m.Entries {
		total += n
	}
	kinds := CountBy(m.Entries)
	if kinds != "" {
		kinds = ": " + kinds
	}
	line("memories", "%d%s", total, kinds)
	line("states", "%s", cmp.Or(CountBy(m.States), "-"))
	line("documents", "%d", m.Documents)
	line("relations", "%d", m.Relations)
	line("file", "%s, DuckDB %s, schema %d", term.Bytes(m.Bytes), cmp.Or(m.DuckDB, "-"), m.Schema)
	line("search", "%s", cmp.Or(m.Search, "-"))
	line("vectors", "%s, %s in memory", cmp.Or(m.Model, "no model"), term.Bytes(m.Resident))
	line("cached", "%d", m.Cached)
	if m.Unembedded > 0 {
		s.Say("%s without an embedding yet; found by words only until then", Memories(m.Unembedded))
	}
	if n := m.States[subjects.MemoryCandidate]; n > 0 {
		s.Say("%s waiting for your decision; list with: %s memory list --state candidate", Memories(n), program)
	}
}

// CountBy lists counts sorted by name: "3 document, 12 fact"; "" for none.
func CountBy(by map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%d %s", by[name], name))
	}
	return strings.Join(parts, ", ")
}

// MemoryGraph prints relations under IS and WAS, current ones first, and on stderr that there are none. A tense that is
// unknown counts as past, so that it is not presented as a fact of today. Untrusted relations are marked.
func MemoryGraph(s *term.Streams, all []subjects.Relation) {
	if len(all) == 0 {
		s.Say("no relations are known")
	}
	var rows [][]string
	for _, current := range []bool{true, false} {
		head := false
		for _, r := range all {
			if (r.Tense == subjects.TenseIs) != current {
				continue
			}
			if !head {
				head = true
				tense := "WAS"
				if current {
					tense = "IS"
				}
				rows = append(rows, []string{tense, "", "", "", "", ""})
			}
			doubt := ""
			if r.Trust != subjects.Trusted {
				doubt = trustWord(r.Trust)
			}
			cell := func(s string) string { return term.Visible(term.Clip(s, 40)) }
			rows = append(rows, []string{
				"  " + cell(r.Subject), cell(r.Predicate), cell(r.Object),
				cmp.Or(relationSpan(r), "-"), term.Visible(term.ShortID(r.Entry)), doubt,
			})
		}
	}
	term.Table(s.Out, rows, term.Layout{})
}

// relationSpan is when a relation holds, as far as it is known: from and to, since or until; "" when neither end is.
func relationSpan(r subjects.Relation) string {
	from, until := term.Visible(term.Clip(r.From, 20)), term.Visible(term.Clip(r.Until, 20))
	switch {
	case from != "" && until != "":
		return from + " to " + until
	case from != "":
		return "since " + from
	case until != "":
		return "until " + until
	}
	return ""
}

// MemoryWritten says on stderr what became of a new memory: the action, which other memory it was merged into or
// replaces, the reason, and the notes. The caller handles a refusal.
func MemoryWritten(s *term.Streams, w subjects.MemoryWriteResult, notes []subjects.Note) {
	text := fmt.Sprintf("%s %s", term.Visible(w.Action), term.Visible(term.ShortID(w.ID)))
	if w.Other != "" {
		link := map[string]string{"merged": " into ", "superseded": ", replaces "}[w.Action]
		text += cmp.Or(link, " beside ") + term.Visible(term.ShortID(w.Other))
	}
	if w.Why != "" {
		text += ": " + term.Plain(w.Why)
	}
	s.Say("%s", text)
	Notes(s, notes)
}
