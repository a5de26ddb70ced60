package memory

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/jsonschema"
	"conclave/subjects"
)

//go:embed search_memory.md
var searchMemoryText string

var searchMemorySchema = subjects.ToolSchema{
	Name: "search_memory", Description: searchMemoryText,
	Parameters: jsonschema.Literal(`{
		"type": "object",
		"properties": {
			"query": {"type": "string", "minLength": 1, "maxLength": 2000,
				"description": "what to look for, in full words"},
			"kind": {"type": "string", "enum": ["engram", "fact", "document"],
				"description": "only this kind: an earlier answer, a fact, a piece of a document"},
			"max": {"type": "integer", "minimum": 0, "maximum": 10, "description": "how many at most"},
			"ids": {"type": "array", "items": {"type": "string", "minLength": 6, "maxLength": 64},
				"maxItems": 5,
				"description": "show these entries whole, and the descriptions of what goes with them"}
		},
		"required": ["query"],
		"additionalProperties": false
	}`),
}

// runSearchMemory recalls entries for an agent, or reads the entries that ids name. In [subjects.ModeOwn] it returns
// the user's own statements, see [Memory.recallOwn], in [subjects.ModeSummary] a list without content. It rejects
// arguments that do not decode, and what normalizeQuery or resolveIDs rejects. The result is trusted only when every
// entry in it is.
func (m *Memory) runSearchMemory(ctx context.Context, in actor.Msg[subjects.ToolOrder],
	out actor.Out,
) (subjects.ToolResult, error) {
	var a struct {
		Query string   `json:"query"`
		Kind  string   `json:"kind"`
		Max   int      `json:"max"`
		IDs   []string `json:"ids"`
	}
	if err := actor.DecodeArguments(in.Body.Args, &a); err != nil {
		return subjects.ToolResult{}, err
	}
	q := recallRequest{
		MemoryQuery: subjects.MemoryQuery{Query: a.Query, Kind: a.Kind, Max: a.Max},
		caller:      in.Body.Caller, typ: in.Body.CallerType, tool: searchMemorySchema.Name, session: in.Session,
		queryID: in.Body.QueryID,
	}
	format := formatHits
	if in.Body.Mode == subjects.ModeSummary {
		format = summarizeHits
	}
	switch {
	case in.Body.Mode == subjects.ModeOwn:
		return m.recallOwn(ctx, out, q)
	case len(a.IDs) > 0:
		return m.readWhole(ctx, out, q, a.IDs, format)
	}
	r, err := m.recallAudited(ctx, out, q, func(subjects.MemoryReply) error { return nil })
	if err != nil {
		return subjects.ToolResult{}, err
	}
	return format(out.Now(), r), nil
}

// readWhole returns the entries that ids or prefixes name with their corpus, then the descriptions of correlated active
// entries. Candidates are left out: no decision was made on them. It rejects what resolveIDs rejects. format makes the
// result.
func (m *Memory) readWhole(ctx context.Context, out actor.Out, q recallRequest, ids []string,
	format func(time.Time, subjects.MemoryReply) subjects.ToolResult,
) (subjects.ToolResult, error) {
	return audited(ctx, m, out, q.act([]byte(strings.Join(ids, "\n"))),
		func(ctx context.Context, db *access) (none subjects.ToolResult, err error) {
			full, err := resolveIDs(ctx, db, ids)
			if err != nil {
				return none, err
			}
			entries, err := db.Get(ctx, full...)
			if err != nil {
				return none, fmt.Errorf("reading entries: %w", err)
			}
			r := subjects.MemoryReply{}
			for _, e := range entries {
				if e.State != subjects.MemoryCandidate {
					r.Hits = append(r.Hits, subjects.MemoryHit{Entry: e, Similarity: 1, Score: 1})
				}
			}
			correlated, err := correlatedEntries(ctx, db, full)
			if err != nil {
				return none, err
			}
			for _, e := range correlated {
				if e.State == subjects.MemoryActive {
					e.Corpus, e.Correlating = "", nil
					r.Hits = append(r.Hits, subjects.MemoryHit{Entry: e})
				}
			}
			return format(out.Now(), r), m.emitRecalled(ctx, out, db, q, r)
		})
}
