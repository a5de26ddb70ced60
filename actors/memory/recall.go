package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/actors/memory/recall"
	"conclave/pkg/actor"
	"conclave/pkg/agent"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Codes of the notes of a recall.
const (
	noteNoVectors = "no_vectors"  // only words were compared
	noteNoRerank  = "no_rerank"   // the model did not reorder the results
	notePlain     = "plain_parts" // plain rules selected the segments
)

// maxQuery bounds the text of a query, in bytes.
const maxQuery = 8 << 10

// recallRequest is a query with its caller.
type recallRequest struct {
	subjects.MemoryQuery
	caller  string // the account, with the path of spawned agents
	typ     string // its agent type as the broker says; "" = the manifest's type of the account
	tool    string // "" = a request of the user
	session string
	queryID string // the user's question that the recall is for
	own     bool   // for the user's own statements: trusted entries only, each for what it says itself
}

// act describes a read for the audit log.
func (q recallRequest) act(params []byte) act {
	return act{
		caller: q.caller, typ: q.typ, action: subjects.ActionMemoryRead, target: q.tool, params: params,
		session: q.session, query: q.queryID,
	}
}

// onRecall streams the stages of a recall to the user: names, descriptions, then the texts. It rejects what
// normalizeQuery rejects.
func (m *Memory) onRecall(ctx context.Context, in actor.Msg[subjects.MemoryQuery],
	send func(subjects.MemoryReply) error, out actor.Out,
) error {
	if m.unavailable != nil {
		return m.unavailable
	}
	_, err := m.recallAudited(ctx, out, recallRequest{
		MemoryQuery: in.Body, caller: in.From, session: in.Session,
		queryID: in.Query,
	}, send)
	return err
}

// recallAudited recalls entries and sends each stage; an error of send ends it. The last stage, which holds the texts,
// is sent and returned only after the outcome is recorded. A query that normalizeQuery rejects is not audited.
func (m *Memory) recallAudited(ctx context.Context, out actor.Out, q recallRequest,
	send func(subjects.MemoryReply) error,
) (subjects.MemoryReply, error) {
	if err := normalizeQuery(&q.MemoryQuery, m.cfg); err != nil {
		return subjects.MemoryReply{}, err
	}
	done, err := audited(ctx, m, out, q.act([]byte(q.Query)),
		func(ctx context.Context, db *access) (subjects.MemoryReply, error) {
			emitState(out, q.session, q.queryID, agent.StateRecalling)
			done, err := m.recallStages(ctx, out, db, q, send)
			if err != nil {
				return done, err
			}
			return done, m.emitRecalled(ctx, out, db, q, done)
		})
	if err != nil {
		return subjects.MemoryReply{}, err
	}
	return done, send(done)
}

// normalizeQuery trims a query, cuts it to maxQuery bytes and fills in cfg.Top for a Max of 0. It rejects an empty
// query, one that is not UTF-8, an unknown kind and a Max that is negative or above maxTop.
func normalizeQuery(q *subjects.MemoryQuery, cfg Config) error {
	q.Query = strings.TrimSpace(q.Query)
	switch {
	case q.Query == "":
		return subjects.Faultf(subjects.CodeMalformed, "the query is empty: give some words")
	case !utf8.ValidString(q.Query):
		return subjects.Faultf(subjects.CodeMalformed, "the query is not valid UTF-8")
	case q.Kind != "" && !slices.Contains([]string{subjects.KindEngram, subjects.KindFact, subjects.KindDocument},
		q.Kind):
		return subjects.Faultf(subjects.CodeMalformed, "there is no kind %q; kinds are engram, fact and document",
			text.Clip(q.Kind, 40))
	case q.Max < 0 || q.Max > maxTop:
		return subjects.Faultf(subjects.CodeMalformed, "max is between 1 and %d", maxTop)
	}
	q.Query = text.Clip(q.Query, maxQuery)
	if q.Max == 0 {
		q.Max = cfg.Top
	}
	return nil
}

// recallStages sends the names and the descriptions, and returns the last stage. A cached reply is returned without
// stages, unless the query asks for a fresh one. A model that fails becomes a note in the reply: without an embedding
// model only words are compared, and the reply is not cached. q must be normalized.
func (m *Memory) recallStages(ctx context.Context, out actor.Out, db *access, q recallRequest,
	send func(subjects.MemoryReply) error,
) (done subjects.MemoryReply, err error) {
	start := out.Now()
	millis := func() float64 { return float64(out.Now().Sub(start)) / float64(time.Millisecond) }
	var notes []subjects.Note
	vector, err := m.embedQuery(ctx, out, q.Query)
	if err != nil {
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
		notes = append(notes, subjects.Note{Code: noteNoVectors, Text: "only words were compared: " +
			text.OneLine(err.Error(), 200)})
	}
	// Segments for the user and for agents are cached apart, because a model selected those of agents.
	scope := fmt.Sprintf("%t %s %d %t %t %t", q.tool == "", q.Kind, q.Max, q.Whole, q.All, q.own)
	key := recall.Key{Text: q.Query, Vector: vector, Scope: scope}
	generation := m.cache.Generation()
	if r, ok := m.cache.Get(key); ok && !q.Fresh {
		r.Cached, r.Done, r.Millis = true, true, millis()
		return r, nil
	}
	found, err := m.searchIndex(recall.Query{
		Text: q.Query, Vector: vector, Kind: q.Kind, All: q.All,
		Trusted: q.own, Alone: q.own, Names: max(m.cfg.Results, q.Max), Top: q.Max,
	})
	if err != nil {
		return done, fmt.Errorf("searching: %w", err)
	}
	if err := send(subjects.MemoryReply{Stage: "names", Hits: found.Names, Millis: millis()}); err != nil {
		return done, err
	}
	top, err := loadHits(ctx, db, found.Top)
	if err != nil {
		return done, err
	}
	if m.cfg.Rerank && m.cfg.Model {
		if top, err = recall.Rerank(ctx, q.Query, top, m.newDigester(out, false).Rank); err != nil {
			notes = append(notes, subjects.Note{Code: noteNoRerank, Text: "the model did not put them in order: " +
				text.OneLine(err.Error(), 200)})
		}
	}
	if err := send(subjects.MemoryReply{
		Stage: "descriptions", Hits: withoutCorpus(top),
		Millis: millis(),
	}); err != nil {
		return done, err
	}
	if !q.Whole {
		var note *subjects.Note
		if top, note = m.selectSegments(ctx, out, q.Query, top); note != nil {
			notes = append(notes, *note)
		}
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
	}
	done = subjects.MemoryReply{Stage: "corpus", Hits: top, Notes: notes, Millis: millis(), Done: true}
	m.cache.Put(key, done, generation)
	return done, nil
}

// loadHits returns hits of the index with their texts, in order, and the critic's feedback of graded ones. Entries that
// were forgotten meanwhile are left out.
func loadHits(ctx context.Context, db *access, found []subjects.MemoryHit) ([]subjects.MemoryHit, error) {
	ids := make([]string, len(found))
	for i, h := range found {
		ids[i] = h.Entry.ID
	}
	entries, err := db.GetTexts(ctx, ids...)
	if err != nil {
		return nil, fmt.Errorf("reading the entries found: %w", err)
	}
	hits := make([]subjects.MemoryHit, 0, len(found))
	var graded []*subjects.MemoryEntry
	for _, h := range found {
		at := slices.IndexFunc(entries, func(e subjects.MemoryEntry) bool { return e.ID == h.Entry.ID })
		if at < 0 {
			continue
		}
		entries[at].Tags, entries[at].Grades = h.Entry.Tags, h.Entry.Grades
		h.Entry = entries[at]
		hits = append(hits, h)
	}
	for i := range hits {
		if hits[i].Entry.Grades.Critic > 0 {
			graded = append(graded, &hits[i].Entry)
		}
	}
	return hits, db.ReadGrades(ctx, graded...)
}

// withoutCorpus returns hits as the second stage shows them.
func withoutCorpus(hits []subjects.MemoryHit) []subjects.MemoryHit {
	out := slices.Clone(hits)
	for i := range out {
		out[i].Entry.Corpus = ""
	}
	return out
}

// selectSegments replaces each corpus by the segment that matters for the query, and drops entries without one. When
// untrusted entries are among the hits, a trusted entry is never dropped but shown by its description: untrusted
// content may have told the model to. The note says that plain rules selected although a model is configured, else it
// is nil. When ctx is canceled the result is not usable.
func (m *Memory) selectSegments(ctx context.Context, out actor.Out, query string, hits []subjects.MemoryHit) (
	[]subjects.MemoryHit, *subjects.Note,
) {
	if len(hits) == 0 {
		return hits, nil
	}
	texts := make([]string, len(hits))
	for i, h := range hits {
		texts[i] = h.Entry.Corpus
	}
	parts, by, err := m.newDigester(out, false).Segments(ctx, query, texts)
	var note *subjects.Note
	if err != nil {
		note = &subjects.Note{Code: notePlain, Text: "plain rules chose the parts: " + text.OneLine(err.Error(), 200)}
	} else if by == subjects.DigestPlain && m.cfg.Model {
		note = &subjects.Note{Code: notePlain, Text: "plain rules chose the parts"}
	}
	isTrusted := func(h subjects.MemoryHit) bool { return h.Entry.Provenance.Trust == subjects.Trusted }
	mixed := slices.ContainsFunc(hits, func(h subjects.MemoryHit) bool { return !isTrusted(h) })
	kept := make([]subjects.MemoryHit, 0, len(hits))
	for i, h := range hits {
		part := ""
		if i < len(parts) {
			part = parts[i]
		}
		if part == "" && mixed && isTrusted(h) {
			part = h.Entry.Description
		}
		if part != "" {
			h.Segment, h.Entry.Corpus = part, ""
			kept = append(kept, h)
		}
	}
	return kept, note
}

// emitRecalled publishes which entries were recalled, with content and grades, why, and for which question, without
// credentials, and counts the accesses; a failure to count is only logged. Reads of respondent B are not counted: it
// must leave no trace in the ranking.
func (m *Memory) emitRecalled(ctx context.Context, out actor.Out, db *access, q recallRequest,
	r subjects.MemoryReply,
) error {
	ev := subjects.MemoryEvent{
		SessionID: q.session, QueryID: q.queryID, Action: "recalled", IDs: []string{}, Why: fmt.Sprintf("%d of %s",
			len(r.Hits), m.countText()), By: q.caller,
		Query: redactQuery(q.Query), Cached: r.Cached,
	}
	for _, h := range r.Hits {
		ev.IDs, ev.Hits = append(ev.IDs, h.Entry.ID), append(ev.Hits, summarizeHit(h))
	}
	account, _, _ := strings.Cut(q.caller, ".")
	if len(ev.IDs) > 0 && account != subjects.RespondentB {
		if err := db.Touch(ctx, out.Now().UTC(), ev.IDs...); err != nil {
			out.LogError(fmt.Errorf("counting accesses: %w", err))
		}
	}
	return actor.Emit(ctx, out.WithIDs(q.session, q.queryID), subjects.MemoryRecalled, ev)
}

// Bounds of the texts of one entry that a recall shows, in bytes.
const (
	maxRecalledContent  = 600 // in the event
	maxRecalledFeedback = 300 // in the event and for a model
)

// summarizeHit returns a hit for the event of a recall: its segment, or else its corpus, or else its description, and
// its grades, without credentials and clipped.
func summarizeHit(h subjects.MemoryHit) subjects.MemoryRecall {
	e := h.Entry
	return subjects.MemoryRecall{
		ID: e.ID, Kind: e.Kind, Name: e.Name, Similarity: h.Similarity, Score: h.Score, Created: e.Created,
		Source: e.Provenance.Source, Trust: e.Provenance.Trust,
		Content: redactText(cmp.Or(h.Segment, e.Corpus, e.Description), maxRecalledContent),
		Critic:  e.Grades.Critic, Feedback: redactText(e.Grades.Feedback, maxRecalledFeedback), Reward: e.Grades.Reward,
	}
}

// redactQuery returns a query for an event, without credentials and at most 1 KB of it.
func redactQuery(query string) string { return redactText(query, 1<<10) }

// redactText returns s without credentials, clipped to most bytes and the dots that mark it.
func redactText(s string, most int) string {
	clean, _ := firewall.Redact(s)
	return text.Clip(clean, most)
}

// countText returns the number of recallable entries in words, such as "1 entry".
func (m *Memory) countText() string {
	m.search.RLock()
	defer m.search.RUnlock()
	if n := m.search.index.Stats().Active; n != 1 {
		return fmt.Sprintf("%d entries", n)
	}
	return "1 entry"
}
