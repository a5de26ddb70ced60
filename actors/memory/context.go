package memory

import (
	"context"
	"fmt"
	"slices"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of the context of a question. They keep it small beside the rest of the prompt.
const (
	maxPinned       = 10   // facts
	maxPinnedBytes  = 1200 // of all of them together
	maxContextBytes = 600  // of one entry that was found
)

// recallContext returns what a model should know before it is asked: the pinned facts, and the entries found for the
// query whose score is at least [Config.ContextScore], each labelled with its origin and trust. Answers of the same
// session are left out: its history has them. Untrusted entries do not displace trusted ones, see findForContext. It is
// one audited read. No model selects segments: the user waits for the answer. It rejects what normalizeQuery rejects.
func (m *Memory) recallContext(ctx context.Context, out actor.Out, q recallRequest) (none subjects.ToolResult,
	err error,
) {
	q.Whole = true
	if err := normalizeQuery(&q.MemoryQuery, m.cfg); err != nil {
		return none, err
	}
	return audited(ctx, m, out, q.act([]byte(q.Query)), func(ctx context.Context, db *access) (subjects.ToolResult,
		error,
	) {
		agent.EmitState(out, name, agent.StateRecalling, q.session, q.queryID)
		pinned, err := pinnedFacts(ctx, db)
		if err != nil {
			return none, err
		}
		r, err := m.findForContext(ctx, out, db, q, pinned)
		if err != nil {
			return none, err
		}
		found := r.Hits
		if err := cutSegments(ctx, q.Query, found); err != nil {
			return none, err
		}
		trusted, untrusted := splitByTrust(found)
		r.Hits = slices.Concat(pinned, trusted, untrusted) // in the order in which they are shown
		return formatContext(out.Now(), pinned, found), m.emitRecalled(ctx, out, db, q, r)
	})
}

// maxUntrustedInContext is how many untrusted entries may stand beside trusted ones in the context of a question.
const maxUntrustedInContext = 1

// findForContext returns the entries for the context of a question, best first, without the pinned ones. Where trusted
// entries fit the question, at most maxUntrustedInContext others do not displace them: anybody can write many sentences
// that fit. A note says how many were left out.
func (m *Memory) findForContext(ctx context.Context, out actor.Out, db *access, q recallRequest,
	pinned []subjects.MemoryHit,
) (r subjects.MemoryReply, err error) {
	find := func(q recallRequest) (subjects.MemoryReply, error) {
		r, err := m.recallStages(ctx, out, db, q, func(subjects.MemoryReply) error { return nil })
		r.Hits = slices.DeleteFunc(slices.Clone(r.Hits), func(h subjects.MemoryHit) bool {
			isInHistory := h.Entry.Kind == subjects.KindEngram && q.session != "" &&
				h.Entry.Provenance.SessionID == q.session
			return isInHistory || h.Score < float64(m.cfg.ContextScore) ||
				slices.ContainsFunc(pinned, func(p subjects.MemoryHit) bool { return p.Entry.ID == h.Entry.ID })
		})
		return r, err
	}
	r, err = find(q)
	_, untrusted := splitByTrust(r.Hits)
	left := len(untrusted) - maxUntrustedInContext
	if err != nil || left <= 0 {
		return r, err
	}
	q.trusted = true
	own, err := find(q)
	if err != nil || len(own.Hits) == 0 {
		return r, err
	}
	r.Hits = append(own.Hits[:min(len(own.Hits), q.Max-maxUntrustedInContext)], untrusted[:maxUntrustedInContext]...)
	r.Notes = append(slices.Clone(r.Notes),
		subjects.Note{Code: noteReserved, Text: fmt.Sprintf("%d untrusted left out beside trusted ones", left)})
	return r, nil
}

// pinnedFacts returns the newest pinned facts, newest first, at most maxPinned of them with maxPinnedBytes of text
// together; the last of them may be cut. Only active and trusted facts count: they are shown for every question,
// whatever it is about.
func pinnedFacts(ctx context.Context, db *access) (out []subjects.MemoryHit, err error) {
	facts, _, err := db.List(ctx, store.Filter{
		Kind: subjects.KindFact, State: subjects.MemoryActive,
		Trust: subjects.Trusted, Pinned: true, Corpus: true, Limit: maxPinned,
	})
	if err != nil {
		return nil, fmt.Errorf("reading pinned facts: %w", err)
	}
	room := maxPinnedBytes
	for _, e := range facts {
		if room <= 0 {
			break
		}
		segment := text.OneLine(e.Corpus, room)
		room -= len(segment)
		out = append(out, subjects.MemoryHit{Entry: e, Segment: segment, Reasons: []subjects.MemoryReason{}})
	}
	return out, nil
}

// cutSegments sets the segment of each hit to the part of its corpus that fits the query, by fixed rules.
func cutSegments(ctx context.Context, query string, hits []subjects.MemoryHit) error {
	texts := make([]string, len(hits))
	for i, h := range hits {
		texts[i] = h.Entry.Corpus
	}
	parts, _, err := digest.New(digest.Options{}).Segments(ctx, query, texts)
	if err != nil {
		return fmt.Errorf("selecting segments: %w", err)
	}
	for i := range hits {
		hits[i].Segment = text.Clip(parts[i], maxContextBytes)
	}
	return nil
}
