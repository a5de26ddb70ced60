package memory

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/jsonschema"
	"conclave/pkg/text"
	"conclave/subjects"
)

//go:embed search_knowledge_graph.md
var searchGraphText string

var searchGraphSchema = subjects.ToolSchema{
	Name: "search_knowledge_graph", Description: searchGraphText,
	Parameters: jsonschema.Literal(`{
		"type": "object",
		"properties": {
			"query": {"type": "string", "minLength": 1, "maxLength": 2000,
				"description": "the question, in full words"},
			"people": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200},
				"maxItems": 20, "description": "names of people"},
			"locations": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200},
				"maxItems": 20, "description": "names of places"}
		},
		"additionalProperties": false
	}`),
}

// maxGraphLines bounds the relations that a model is shown.
const maxGraphLines = 40

// runSearchGraph finds present and past relations of people and places or for a question, at most maxGraphLines, and
// publishes which entries they are from. Each argument is enough by itself; it rejects a call without any, which would
// read everything, and arguments that do not decode. No relation is a result, not an error.
func (m *Memory) runSearchGraph(ctx context.Context, in actor.Msg[subjects.ToolOrder],
	out actor.Out,
) (subjects.ToolResult, error) {
	var a struct {
		Query     string   `json:"query"`
		People    []string `json:"people"`
		Locations []string `json:"locations"`
	}
	if err := actor.DecodeArguments(in.Body.Args, &a); err != nil {
		return subjects.ToolResult{}, err
	}
	if text.NameKey(strings.Join(append(slices.Concat(a.People, a.Locations), a.Query), " ")) == "" {
		return subjects.ToolResult{}, fmt.Errorf("%w: give people, locations or a query", actor.ErrArguments)
	}
	intent := toolAct(in, subjects.ActionMemoryRead, searchGraphSchema.Name, in.Body.Args)
	return audited(ctx, m, out, intent, func(ctx context.Context, db *access) (subjects.ToolResult, error) {
		relations, err := db.Relations(ctx, store.GraphQuery{
			People: a.People, Places: a.Locations, Words: a.Query,
			Limit: maxGraphLines,
		})
		if err != nil {
			return subjects.ToolResult{}, fmt.Errorf("reading the graph: %w", err)
		}
		found := formatGraph(out.Now(), relations)
		ev := subjects.MemoryEvent{
			SessionID: in.Session, QueryID: in.Body.QueryID, Action: "recalled", IDs: append([]string{},
				found.Recalls...), By: in.Body.Caller, Query: redactQuery(cmp.Or(a.Query,
				strings.Join(slices.Concat(a.People, a.Locations), ", "))),
			Why: fmt.Sprintf("%d lines of the graph", len(relations)),
		}
		return found, actor.Emit(ctx, out.WithIDs(in.Session, in.Body.QueryID), subjects.MemoryRecalled, ev)
	})
}

// formatGraph formats relations for a model, those that hold now first. The result is trusted only when every relation
// is, and names their entries.
func formatGraph(now time.Time, relations []subjects.Relation) subjects.ToolResult {
	if len(relations) == 0 {
		return newToolResult("Nothing is known about that.", true)
	}
	var b strings.Builder
	var ids []string
	trusted := true
	for _, tense := range []string{subjects.TenseIs, subjects.TenseWas} {
		for _, r := range relations {
			if r.Tense != tense {
				continue
			}
			trusted = trusted && r.Trust == subjects.Trusted
			if !slices.Contains(ids, r.Entry) {
				ids = append(ids, r.Entry)
			}
			fmt.Fprintf(&b, "%s: %s\n", strings.ToUpper(tense), formatRelation(now, r))
		}
	}
	return newToolResult(strings.TrimRight(b.String(), "\n"), trusted, ids...)
}

// formatRelation formats one relation on one line with its known dates, the time since it was said, UNTRUSTED if it is,
// and the id of its entry.
func formatRelation(now time.Time, r subjects.Relation) string {
	s := fmt.Sprintf("%s %s %s", text.OneLine(r.Subject, 200), text.OneLine(r.Predicate, 100),
		text.OneLine(r.Object, 200))
	var more []string
	if r.From != "" {
		more = append(more, "since "+text.OneLine(r.From, 40))
	}
	if r.Until != "" {
		more = append(more, "until "+text.OneLine(r.Until, 40))
	}
	more = append(more, "said "+formatAge(now, r.Said))
	if r.Trust != subjects.Trusted {
		more = append(more, "UNTRUSTED")
	}
	return s + " (" + strings.Join(more, ", ") + ") [" + r.Entry + "]"
}
