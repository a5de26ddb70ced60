package memory

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/policy"
	"conclave/subjects"
)

//go:embed search_memory.md
var searchMemoryText string

// searchMemory recalls. What it shows belongs to the user, and whoever wrote it is told with each result.
var searchMemory = tool{
	schema: subjects.ToolSchema{
		Name: "search_memory", Version: version, Description: strings.TrimSpace(searchMemoryText),
		Parameters: json.RawMessage(`{"type":"object","properties":{` +
			`"query":{"type":"string","minLength":1,"maxLength":2000,"description":"what to look for, in full words"},` +
			`"kind":{"type":"string","enum":["engram","fact","document"],"description":"only this kind: an earlier answer, a fact, a piece of a document"},` +
			`"max":{"type":"integer","minimum":1,"maximum":10,"description":"how many at most"},` +
			`"ids":{"type":"array","items":{"type":"string","minLength":6,"maxLength":64},"maxItems":5,"description":"show these entries whole, and the descriptions of what goes with them"}` +
			`},"required":["query"],"additionalProperties":false}`),
	},
	facts: policy.Tool{
		Name: "search_memory", Zone: name, Known: true, Effects: policy.Declare(policy.ReadsPrivate), Timeout: time.Minute, Graded: true, Standing: true,
	},
	run: runSearchMemory,
}

func runSearchMemory(m *Memory, ctx context.Context, out actor.Out, c call) (answer, error) {
	var a struct {
		Query string   `json:"query"`
		Kind  string   `json:"kind"`
		Max   int      `json:"max"`
		IDs   []string `json:"ids"`
	}
	if err := arguments(c.args, &a); err != nil {
		return answer{}, err
	}
	q := recallRequest{MemoryQuery: subjects.MemoryQuery{Query: a.Query, Kind: a.Kind, Max: a.Max}, caller: c.by, tool: "search_memory", session: c.session, queryID: c.query}
	if len(a.IDs) > 0 {
		return m.whole(ctx, out, q, a.IDs)
	}
	r, err := m.recallAudited(ctx, out, q, func(subjects.MemoryReply) error { return nil })
	if err != nil {
		return answer{}, err
	}
	return formatHits(out.Now(), r), nil
}

// whole shows entries as they are, with the descriptions of what goes with them.
func (m *Memory) whole(ctx context.Context, out actor.Out, q recallRequest, ids []string) (all answer, err error) {
	a := act{who: q.caller, action: actRead, tool: q.tool, params: []byte(strings.Join(ids, "\n")), session: q.session, query: q.queryID}
	err = m.recorded(ctx, out, a, func() error {
		full, err := m.resolveIDs(ctx, ids)
		if err != nil {
			return err
		}
		entries, err := m.unaudited.Get(ctx, full...)
		if err != nil {
			return fmt.Errorf("reading entries: %w", err)
		}
		r := subjects.MemoryReply{}
		for _, e := range entries {
			if e.State == subjects.MemoryCandidate {
				continue // not decided upon
			}
			r.Hits = append(r.Hits, subjects.MemoryHit{Entry: e, Similarity: 1, Score: 1})
		}
		near, err := m.correlatedEntries(ctx, full)
		if err != nil {
			return err
		}
		for _, e := range near {
			if e.State == subjects.MemoryActive {
				e.Corpus, e.Correlating = "", nil
				r.Hits = append(r.Hits, subjects.MemoryHit{Entry: e})
			}
		}
		all = formatHits(out.Now(), r)
		return m.emitRecalled(ctx, out, q, r)
	})
	return all, err
}
