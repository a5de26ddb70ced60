package memory

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed search_knowledge_graph.md
var searchGraphText string

// searchGraph tells how people and places are related, now and before.
var searchGraph = tool{
	schema: subjects.ToolSchema{
		Name: "search_knowledge_graph", Version: version, Description: strings.TrimSpace(searchGraphText),
		Parameters: json.RawMessage(`{"type":"object","properties":{` +
			`"query":{"type":"string","minLength":1,"maxLength":2000,"description":"the question, in full words"},` +
			`"people":{"type":"array","items":{"type":"string","minLength":1,"maxLength":200},"maxItems":20,"description":"names of people"},` +
			`"locations":{"type":"array","items":{"type":"string","minLength":1,"maxLength":200},"maxItems":20,"description":"names of places"}` +
			`},"required":["query"],"additionalProperties":false}`),
	},
	facts: policy.Tool{
		Name: "search_knowledge_graph", Zone: name, Known: true, Effects: policy.Declare(policy.ReadsPrivate), Timeout: 30 * time.Second, Graded: true,
	},
	run: runSearchGraph,
}

// maxGraphLines bounds what a model is shown of the graph.
const maxGraphLines = 40

func runSearchGraph(m *Memory, ctx context.Context, out actor.Out, c call) (found answer, err error) {
	var a struct {
		Query     string   `json:"query"`
		People    []string `json:"people"`
		Locations []string `json:"locations"`
	}
	if err := arguments(c.args, &a); err != nil {
		return answer{}, err
	}
	does := act{who: c.by, action: actRead, tool: "search_knowledge_graph", params: c.args, session: c.session, query: c.query}
	err = m.recorded(ctx, out, does, func() error {
		lines, err := m.unaudited.Relations(ctx, store.GraphQuery{People: a.People, Places: a.Locations, Words: a.Query, Limit: maxGraphLines})
		if err != nil {
			return fmt.Errorf("reading the graph: %w", err)
		}
		found = formatGraph(out.Now(), lines)
		ev := subjects.MemoryEvent{
			SessionID: c.session, QueryID: c.query, Action: "recalled", IDs: append([]string{}, found.ids...), By: c.by, Query: redactQuery(a.Query),
			Why: fmt.Sprintf("%d lines of the graph", len(lines)),
		}
		return actor.Emit(ctx, out.WithIDs(c.session, c.query), subjects.MemoryRecalled, ev)
	})
	return found, err
}

// formatGraph is the graph in words for a model: what is first, then what was.
func formatGraph(now time.Time, lines []subjects.Relation) answer {
	a := answer{trusted: true}
	if len(lines) == 0 {
		a.text = "Nothing is known about that."
		return a
	}
	var b strings.Builder
	for _, tense := range []string{subjects.TenseIs, subjects.TenseWas} {
		for _, l := range lines {
			if l.Tense != tense {
				continue
			}
			a.trusted = a.trusted && l.Trust == subjects.Trusted
			if !slices.Contains(a.ids, l.Entry) {
				a.ids = append(a.ids, l.Entry)
			}
			fmt.Fprintf(&b, "%s: %s\n", strings.ToUpper(tense), formatRelation(now, l))
		}
	}
	a.text = strings.TrimRight(b.String(), "\n")
	return a
}

// formatRelation is one line of the graph, with dates as far as they were said.
func formatRelation(now time.Time, l subjects.Relation) string {
	s := fmt.Sprintf("%s %s %s", text.OneLine(l.Subject, 200), text.OneLine(l.Predicate, 100), text.OneLine(l.Object, 200))
	var more []string
	if l.From != "" {
		more = append(more, "since "+text.OneLine(l.From, 40))
	}
	if l.Until != "" {
		more = append(more, "until "+text.OneLine(l.Until, 40))
	}
	more = append(more, "said "+formatAge(now, l.Said))
	if l.Trust != subjects.Trusted {
		more = append(more, "UNTRUSTED")
	}
	return s + " (" + strings.Join(more, ", ") + ") [" + l.Entry + "]"
}
