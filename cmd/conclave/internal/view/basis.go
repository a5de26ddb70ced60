package view

import (
	"fmt"
	"io"
	"strings"
	"time"

	"conclave/cmd/conclave/internal/term"
	"conclave/subjects"
)

// Basis prints what an answer is based on: the memories that were recalled for it, its tool calls, notes, model and
// tokens.
func Basis(w io.Writer, r subjects.Response, recalls []subjects.MemoryRecall) {
	line := func(name, format string, v ...any) {
		fmt.Fprintf(w, "%-10s %s\n", name, term.Visible(term.OneLine(fmt.Sprintf(format, v...))))
	}
	line("question", "%s", r.Query)
	for _, h := range recalls {
		text := fmt.Sprintf("%s %q, similarity %.2f, score %.2f, %s ago, %s", term.ShortID(h.ID), term.Clip(h.Name, 80),
			h.Similarity, h.Score, term.Age(time.Since(h.Created)), trustWord(h.Trust))
		if h.Critic > 0 {
			text += fmt.Sprintf(", graded %d of 5", h.Critic)
			if strings.HasPrefix(h.Feedback, subjects.GradedByItself) {
				text += ", " + subjects.GradedByItself
			}
		}
		line("memory", "%s", text)
	}
	if len(recalls) == 0 {
		line("memory", "nothing was recalled")
	}
	for _, c := range r.ToolCalls {
		line("tool", "%s %s", c.Tool, c.Args)
	}
	if len(r.ToolCalls) == 0 {
		line("tool", "no call")
	}
	for _, n := range r.Notes {
		line("note", "%s", n.Text)
	}
	line("answered", "%s", SummarizeAnswer(r))
	line("query", "%s", r.QueryID)
}
