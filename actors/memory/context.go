package memory

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/loop"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of the user's own statements in a prompt. They keep them small beside the rest of it.
const (
	maxPinned         = 10   // facts
	maxPinnedBytes    = 1200 // of all of them together
	maxStatementBytes = 300  // of one statement that was found
	maxSentences      = 20   // of the user's words that are read for statements
	// fitScore is the score of a statement that clearly fits the question: see docs/live.md for what was measured.
	fitScore = 0.5
)

// recallOwn returns what a model should know before it is asked, for [subjects.ModeOwn]: the pinned facts, and the
// user's own statements nearest to the query, at most q.Max (0 = none) with a score of at least
// [Config.ContextScore]. Neither answers of the assistant nor untrusted entries are among them: the result is always
// trusted. It is one audited read. No model selects segments: the user waits for the answer. It rejects what
// normalizeQuery rejects.
func (m *Memory) recallOwn(ctx context.Context, out actor.Out, q recallRequest) (none subjects.ToolResult, err error) {
	most := q.Max
	q.Whole, q.own, q.Max = true, true, maxTop // questions and answers are left out of what is found
	if err := normalizeQuery(&q.MemoryQuery, m.cfg); err != nil {
		return none, err
	}
	return audited(ctx, m, out, q.act([]byte(q.Query)), func(ctx context.Context, db *access) (subjects.ToolResult,
		error,
	) {
		emitState(out, q.session, q.queryID, agent.StateRecalling)
		pinned, err := pinnedFacts(ctx, db)
		if err != nil {
			return none, err
		}
		var r subjects.MemoryReply
		if most > 0 {
			if r, err = m.recallStages(ctx, out, db, q, func(subjects.MemoryReply) error { return nil }); err != nil {
				return none, err
			}
		}
		fits := slices.DeleteFunc(slices.Clone(r.Hits), func(h subjects.MemoryHit) bool {
			return h.Score < float64(m.cfg.ContextScore)
		})
		r.Hits = selectStatements(q.Query, pinned, fits, most)
		return formatOwn(out.Now(), r.Hits), m.emitRecalled(ctx, out, db, q, r)
	})
}

// pinnedFacts returns the newest pinned facts, newest first, at most maxPinned of them with maxPinnedBytes of text
// together; the last of them may be cut. Only active and trusted facts count: they are shown for every question,
// whatever it is about.
func pinnedFacts(ctx context.Context, db *access) (out []subjects.MemoryHit, err error) {
	facts, _, err := db.List(ctx, store.Filter{
		Kind: subjects.KindFact, State: subjects.MemoryActive,
		Trust: subjects.Trusted, Pinned: true, Limit: maxPinned,
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

// selectStatements returns the pinned facts, then the first most of found that are statements of the user, each with
// its statement as the segment. One that another contains is left out, and so is one that repeats the message: small
// models quote it as their answer.
func selectStatements(message string, pinned, found []subjects.MemoryHit, most int) (out []subjects.MemoryHit) {
	var seen []string
	add := func(h subjects.MemoryHit) {
		folded := text.Fold(h.Segment)
		if folded == "" || slices.ContainsFunc(seen, func(s string) bool {
			return strings.Contains(s, folded) || strings.Contains(folded, s)
		}) {
			return
		}
		seen, out = append(seen, folded), append(out, h)
	}
	for _, h := range pinned {
		add(h)
	}
	repeated := text.Fold(text.OneLine(message, maxStatementBytes))
	for most += len(out); len(found) > 0 && len(out) < most; found = found[1:] {
		h := found[0]
		h.Segment = text.OneLine(ownStatement(h.Entry), maxStatementBytes)
		if text.Fold(h.Segment) != repeated {
			add(h)
		}
	}
	return out
}

// ownStatement returns what the user states in an entry: the text of a trusted fact, or the sentences of the user's
// part of a trusted exchange that ask nothing, up to what may be quoted or pasted. It is "" for every other entry, also
// for what another assistant said in an imported conversation.
func ownStatement(e subjects.MemoryEntry) string {
	switch {
	case e.Provenance.Trust != subjects.Trusted || e.State != subjects.MemoryActive || digest.IsProgramName(e.Speaker):
		return ""
	case e.Kind == subjects.KindFact:
		return e.Corpus
	case e.Kind != subjects.KindEngram:
		return ""
	}
	said, _ := digest.SplitExchange(e.Corpus)
	own := text.SentenceTexts(subjects.UserText(said), maxSentences)
	if at := slices.IndexFunc(own, quoteStart.MatchString); at >= 0 {
		own = own[:at]
	}
	return strings.Join(slices.DeleteFunc(own, text.IsQuestion), " ")
}

// quoteStart matches a sentence in which quoted or pasted words may begin. What follows is not recalled by the runtime;
// a search in memory finds it. How many statements of users it cuts off was not measured; one that it misses was shown
// to be recalled as the user's own.
var quoteStart = regexp.MustCompile(`["“„«]|:\s`)

// formatOwn formats the user's own statements for a model, one a line. Without any it is nothingFound.
func formatOwn(now time.Time, hits []subjects.MemoryHit) subjects.ToolResult {
	if len(hits) == 0 {
		return newToolResult(nothingFound, true)
	}
	var b strings.Builder
	b.WriteString("What the user told you. In a quote, \"I\" and \"my\" are the user, not you.\n")
	for _, h := range hits {
		mark := ""
		switch {
		case h.Entry.Pinned:
			mark = loop.RecallPinned
		case h.Score >= fitScore && h.Entry.Speaker == "":
			mark = loop.RecallFits
		}
		fmt.Fprintf(&b, "- %s%s, %s: \"%s\"\n", mark, formatAge(now, saidAt(h.Entry)), formatSpeaker(h.Entry),
			h.Segment)
	}
	return newHitsResult(strings.TrimRight(b.String(), "\n"), hits)
}

// formatSpeaker says who stated an entry, for a model.
func formatSpeaker(e subjects.MemoryEntry) string {
	switch {
	case e.Speaker != "":
		return text.OneLine(e.Speaker, subjects.MaxSpeaker) + " said"
	case e.Provenance.Source == subjects.SourceAgent:
		return "noted from what you said"
	}
	return "you said"
}
