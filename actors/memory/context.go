package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of the context of a question. They keep it small beside the rest of the prompt.
const (
	maxPinned       = 10   // facts
	maxPinnedBytes  = 1200 // of all of them together
	maxContextBytes = 600  // of one entry that was found
)

// recallContext returns what a model should know before it is asked: the pinned facts, and the entries found for the query whose
// score is at least [Config.ContextScore], each labelled with its origin and trust. Answers of the same session are left out: its
// history has them. It is one audited read. No model selects
// segments: the user waits for the answer. It rejects what normalizeQuery rejects.
func (m *Memory) recallContext(ctx context.Context, out actor.Out, q recallRequest) (none subjects.ToolResult, err error) {
	q.Whole = true
	if err := normalizeQuery(&q.MemoryQuery, m.cfg); err != nil {
		return none, err
	}
	return audited(ctx, m, out, q.act([]byte(q.Query)), func(ctx context.Context, db *access) (subjects.ToolResult, error) {
		pinned, err := pinnedFacts(ctx, db)
		if err != nil {
			return none, err
		}
		r, err := m.recallStages(ctx, out, db, q, func(subjects.MemoryReply) error { return nil })
		if err != nil {
			return none, err
		}
		found := slices.DeleteFunc(slices.Clone(r.Hits), func(h subjects.MemoryHit) bool {
			isInHistory := h.Entry.Kind == subjects.KindEngram && q.session != "" && h.Entry.Provenance.SessionID == q.session
			return isInHistory || h.Score < float64(m.cfg.ContextScore) || slices.ContainsFunc(pinned, func(p subjects.MemoryHit) bool { return p.Entry.ID == h.Entry.ID })
		})
		if err := cutSegments(ctx, q.Query, found); err != nil {
			return none, err
		}
		r.Hits = slices.Concat(pinned, found)
		return formatContext(out.Now(), pinned, found), m.emitRecalled(ctx, out, db, q, r)
	})
}

// pinnedFacts returns the newest pinned facts, newest first, at most maxPinned of them with maxPinnedBytes of text together; the
// last of them may be cut. Only active and trusted facts count: they are shown for every question, whatever it is about.
func pinnedFacts(ctx context.Context, db *access) (out []subjects.MemoryHit, err error) {
	facts, _, err := db.List(ctx, store.Filter{Kind: subjects.KindFact, State: subjects.MemoryActive, Trust: subjects.Trusted, Pinned: true, Corpus: true, Limit: maxPinned})
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

// formatContext formats pinned facts and the entries found for a model, a line or a few each with kind, id, age and origin.
// Without any it is nothingFound.
func formatContext(now time.Time, pinned, found []subjects.MemoryHit) subjects.ToolResult {
	var b strings.Builder
	var ids []string
	trusted := true
	list := func(head string, hits []subjects.MemoryHit) {
		if len(hits) > 0 {
			b.WriteString(head + "\n")
		}
		for _, h := range hits {
			e := h.Entry
			ids, trusted = append(ids, e.ID), trusted && e.Provenance.Trust == subjects.Trusted
			fmt.Fprintf(&b, "- %s [%s %s, %s, %s%s", strings.ReplaceAll(strings.TrimSpace(h.Segment), "\n", "\n  "), e.Kind, e.ID, formatAge(now, e.Created), formatOrigin(e.Provenance), formatSpeaker(e))
			if e.Grades.Critic > 0 {
				fmt.Fprintf(&b, ", graded %d of 5", e.Grades.Critic)
			}
			if e.Grades.Feedback != "" {
				fmt.Fprintf(&b, ", critic: %s", text.OneLine(e.Grades.Feedback, maxRecalledFeedback))
			}
			b.WriteString("]\n")
		}
	}
	list("Pinned by the user:", pinned)
	list("Remembered, may have to do with the question:", found)
	if len(ids) == 0 {
		return newToolResult(nothingFound, true)
	}
	return newToolResult(strings.TrimRight(b.String(), "\n"), trusted, ids...)
}
