package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"conclave/pkg/actor"
	"conclave/subjects"
)

const (
	maxIDs        = 500 // in one request
	maxCorrelated = 20  // in one reply: an entry that is recalled often correlates with nearly everything
)

// onCorrelated returns the entries that correlate with those named by id or prefix, newest first, at most
// maxCorrelated, without their texts unless the request asks for them. It rejects no or more than maxIDs ids, and
// prefixes of no or several entries.
func (m *Memory) onCorrelated(ctx context.Context, in actor.Msg[subjects.MemoryIDs],
	out actor.Out,
) (none subjects.MemoryReply, err error) {
	if m.unavailable != nil {
		return none, m.unavailable
	}
	ids := in.Body.IDs
	if len(ids) == 0 || len(ids) > maxIDs {
		return none, subjects.Faultf(subjects.CodeMalformed, "name between 1 and %d entries", maxIDs)
	}
	q := recallRequest{caller: in.From, session: in.Session, queryID: in.Query}
	return audited(ctx, m, out, q.act([]byte(strings.Join(ids, "\n"))),
		func(ctx context.Context, db *access) (subjects.MemoryReply, error) {
			full, err := resolveIDs(ctx, db, ids)
			if err != nil {
				return none, err
			}
			entries, err := correlatedEntries(ctx, db, full)
			if err != nil {
				return none, err
			}
			r := subjects.MemoryReply{
				Stage: "correlated", Hits: make([]subjects.MemoryHit, 0, len(entries)),
				Done: true,
			}
			for _, e := range entries {
				if !in.Body.Corpus {
					e.Corpus = ""
				}
				r.Hits = append(r.Hits,
					subjects.MemoryHit{
						Entry: e,
						Reasons: []subjects.MemoryReason{
							{What: "correlates", Text: "it goes with what was asked for"},
						},
					})
			}
			q.Query = strings.Join(full, " ")
			return r, m.emitRecalled(ctx, out, db, q, r)
		})
}

// correlatedEntries returns the newest entries, at most maxCorrelated and in any state, that correlate with those
// named, without these.
func correlatedEntries(ctx context.Context, db *access, ids []string) ([]subjects.MemoryEntry, error) {
	entries, err := db.Correlated(ctx, ids...)
	if err != nil {
		return nil, fmt.Errorf("reading correlated entries: %w", err)
	}
	slices.SortStableFunc(entries, func(a, b subjects.MemoryEntry) int { return b.Created.Compare(a.Created) })
	return entries[:min(maxCorrelated, len(entries))], nil
}
