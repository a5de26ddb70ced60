package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/actors/memory/recall"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Notes of a recall: what it had to do without.
const (
	noteNoVectors = "no_vectors"  // words alone were compared
	noteNoRerank  = "no_rerank"   // the model did not put them in order
	notePlain     = "plain_parts" // plain rules chose the parts
)

// recallRequest is one recall: what is looked for, for whom, and for which answer.
type recallRequest struct {
	subjects.MemoryQuery
	caller  string // the account, with the path of spawned agents
	tool    string // "" = the user asks memory itself
	session string
	queryID string // the question that it is for
}

// maxQuery bounds what is looked for.
const maxQuery = 8 << 10

// recallAudited finds what is remembered, stage by stage, and tells of each. What it returns is the last stage, which is told
// when the outcome is recorded.
func (m *Memory) recallAudited(ctx context.Context, out actor.Out, q recallRequest, say func(subjects.MemoryReply) error) (subjects.MemoryReply, error) {
	if err := normalizeQuery(&q.MemoryQuery, m.cfg); err != nil {
		return subjects.MemoryReply{}, err
	}
	var done subjects.MemoryReply
	a := act{who: q.caller, action: actRead, tool: q.tool, params: []byte(q.Query), session: q.session, query: q.queryID}
	err := m.recorded(ctx, out, a, func() (err error) {
		if done, err = m.recallStaged(ctx, out, q, say); err != nil {
			return err
		}
		return m.emitRecalled(ctx, out, q, done)
	})
	if err != nil {
		return subjects.MemoryReply{}, err
	}
	return done, say(done)
}

// normalizeQuery makes a question fit, or says why it cannot be asked.
func normalizeQuery(q *subjects.MemoryQuery, cfg Config) error {
	q.Query = strings.TrimSpace(q.Query)
	switch {
	case q.Query == "":
		return subjects.Faultf(subjects.CodeMalformed, "nothing to look for: give some words")
	case !utf8.ValidString(q.Query):
		return subjects.Faultf(subjects.CodeMalformed, "what to look for is not text")
	case q.Kind != "" && !slices.Contains([]string{subjects.KindEngram, subjects.KindFact, subjects.KindDocument}, q.Kind):
		return subjects.Faultf(subjects.CodeMalformed, "there is no kind %q; kinds are engram, fact and document", text.Clip(q.Kind, 40))
	case q.Max < 0 || q.Max > maxTop:
		return subjects.Faultf(subjects.CodeMalformed, "max is between 1 and %d", maxTop)
	}
	q.Query = text.Clip(q.Query, maxQuery)
	if q.Max == 0 {
		q.Max = cfg.Top
	}
	return nil
}

func (m *Memory) recallStaged(ctx context.Context, out actor.Out, q recallRequest, say func(subjects.MemoryReply) error) (done subjects.MemoryReply, err error) {
	begun := out.Now()
	millis := func() float64 { return float64(out.Now().Sub(begun)) / float64(time.Millisecond) }
	var notes []subjects.Note
	vector, err := m.embedQuery(ctx, out, q.Query)
	if err != nil {
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
		notes = append(notes, subjects.Note{Code: noteNoVectors, Text: "only words were compared: " + text.OneLine(err.Error(), 200)})
	}
	key := recall.Key{Text: q.Query, Vector: vector, Options: fmt.Sprintf("%s %d %t %t", q.Kind, q.Max, q.Whole, q.All), Scope: q.cacheScope(), Top: q.Max}
	var seen uint64
	if m.cache != nil {
		seen = m.cache.Generation()
		if r, ok := m.cache.Get(key); ok && !q.Fresh {
			r.Cached, r.Done, r.Millis = true, true, millis()
			return r, nil
		}
	}
	found, err := m.searchIndex(ctx, recall.Query{Text: q.Query, Vector: vector, Kind: q.Kind, All: q.All, Names: max(m.cfg.Results, q.Max), Top: q.Max})
	if err != nil {
		return done, fmt.Errorf("looking for it: %w", err)
	}
	names, err := m.loadHits(ctx, found.Names, false)
	if err != nil {
		return done, err
	}
	if err := say(subjects.MemoryReply{Stage: "names", Hits: names, Millis: millis()}); err != nil {
		return done, err
	}
	if m.cfg.Rerank && m.cfg.Model && len(found.Top) > 1 {
		if found.Top, err = m.rerank(ctx, out, q.Query, found.Top); err != nil {
			notes = append(notes, subjects.Note{Code: noteNoRerank, Text: "the model did not put them in order: " + text.OneLine(err.Error(), 200)})
		}
	}
	top, err := m.loadHits(ctx, found.Top, true)
	if err != nil {
		return done, err
	}
	if err := say(subjects.MemoryReply{Stage: "descriptions", Hits: withoutCorpus(top), Millis: millis()}); err != nil {
		return done, err
	}
	if !q.Whole {
		var note *subjects.Note
		if top, note = m.selectSegments(ctx, out, q.Query, top); note != nil {
			notes = append(notes, *note)
		}
		if ctx.Err() != nil { // who asked is gone, and no part was chosen
			return done, ctx.Err()
		}
	}
	done = subjects.MemoryReply{Stage: "corpus", Hits: top, Notes: notes, Millis: millis(), Done: true}
	if m.cache != nil && vector != nil {
		m.cache.Put(key, done, seen)
	}
	return done, nil
}

// cacheScope keeps apart what the user and what agents may see: the parts for a model are chosen for one.
func (q recallRequest) cacheScope() string {
	if q.tool == "" {
		return "person"
	}
	return "agent"
}

// loadHits are candidates with their entries, in order. Those that are gone by now are left out.
func (m *Memory) loadHits(ctx context.Context, found []recall.Candidate, corpus bool) ([]subjects.MemoryHit, error) {
	out := make([]subjects.MemoryHit, 0, len(found))
	if !corpus {
		for _, c := range found {
			out = append(out, subjects.MemoryHit{Entry: lightEntry(c.Row), Similarity: c.Similarity, Score: c.Score, Reasons: c.Reasons})
		}
		return out, nil
	}
	ids := make([]string, len(found))
	for i, c := range found {
		ids[i] = c.ID
	}
	entries, err := m.unaudited.GetTexts(ctx, ids...)
	if err != nil {
		return nil, fmt.Errorf("reading what was found: %w", err)
	}
	for _, c := range found {
		if at := slices.IndexFunc(entries, func(e subjects.MemoryEntry) bool { return e.ID == c.ID }); at >= 0 {
			entries[at].Tags, entries[at].Grades = c.Tags, c.Grades
			out = append(out, subjects.MemoryHit{Entry: entries[at], Similarity: c.Similarity, Score: c.Score, Reasons: c.Reasons})
		}
	}
	return out, nil
}

// lightEntry is an entry as the first stage shows it.
func lightEntry(r recall.Row) subjects.MemoryEntry {
	return subjects.MemoryEntry{
		ID: r.ID, Kind: r.Kind, Name: r.Name, Description: r.Description, Tags: r.Tags, State: r.State, Pinned: r.Pinned, Grades: r.Grades, Created: r.Created,
		Respondent: r.Respondent, Provenance: subjects.Provenance{Source: subjects.Source(r.Source), Trust: r.Trust},
	}
}

// withoutCorpus are hits as the second stage shows them.
func withoutCorpus(hits []subjects.MemoryHit) []subjects.MemoryHit {
	out := slices.Clone(hits)
	for i := range out {
		out[i].Entry.Corpus = ""
	}
	return out
}

// selectSegments puts in place of each corpus what matters of it. An entry of which nothing does is left out.
func (m *Memory) selectSegments(ctx context.Context, out actor.Out, query string, hits []subjects.MemoryHit) ([]subjects.MemoryHit, *subjects.Note) {
	if len(hits) == 0 {
		return hits, nil
	}
	texts := make([]string, len(hits))
	for i, h := range hits {
		texts[i] = h.Entry.Corpus
	}
	parts, by, err := m.newDigester(out).Segments(ctx, query, texts)
	var note *subjects.Note
	if err != nil {
		note = &subjects.Note{Code: notePlain, Text: "plain rules chose the parts: " + text.OneLine(err.Error(), 200)}
	} else if by == "plain" && m.cfg.Model {
		note = &subjects.Note{Code: notePlain, Text: "plain rules chose the parts"}
	}
	mixed := slices.ContainsFunc(hits, func(h subjects.MemoryHit) bool { return h.Entry.Provenance.Trust != subjects.Trusted })
	kept := make([]subjects.MemoryHit, 0, len(hits))
	for i, h := range hits {
		part := ""
		if i < len(parts) {
			part = parts[i]
		}
		if part == "" && mixed && h.Entry.Provenance.Trust == subjects.Trusted {
			part = h.Entry.Description // a stranger's text beside it may have told the model to leave it out
		}
		if part != "" {
			h.Segment, h.Entry.Corpus = part, ""
			kept = append(kept, h)
		}
	}
	return kept, note
}

// rerank lets a small model put what was found in order. What it says that is of no use changes nothing.
func (m *Memory) rerank(ctx context.Context, out actor.Out, query string, found []recall.Candidate) ([]recall.Candidate, error) {
	m.search.RLock()
	index := m.search.index
	m.search.RUnlock()
	return index.Rerank(ctx, query, found, m.newDigester(out).Rank)
}

// emitRecalled says what was recalled, why, and for which answer.
func (m *Memory) emitRecalled(ctx context.Context, out actor.Out, q recallRequest, r subjects.MemoryReply) error {
	ev := subjects.MemoryEvent{
		SessionID: q.session, QueryID: q.queryID, Action: "recalled", IDs: []string{}, Why: fmt.Sprintf("%d of %s", len(r.Hits), m.countText()), By: q.caller,
		Query: redactQuery(q.Query), Cached: r.Cached,
	}
	for _, h := range r.Hits {
		ev.IDs, ev.Hits = append(ev.IDs, h.Entry.ID), append(ev.Hits, summarizeHit(h))
	}
	account, _, _ := strings.Cut(q.caller, ".")
	if len(ev.IDs) > 0 && account != subjects.RespondentB { // what respondent B reads leaves no trace
		if err := m.unaudited.Touch(ctx, out.Now().UTC(), ev.IDs...); err != nil {
			out.LogError(fmt.Errorf("counting a recall: %w", err))
		}
	}
	return actor.Emit(ctx, out.WithIDs(q.session, q.queryID), subjects.MemoryRecalled, ev)
}

// redactQuery is what was looked for, as an event tells of it: many watch those, and it may hold a password.
func redactQuery(query string) string {
	clean, _ := firewall.Redact(query)
	return text.Clip(clean, 1<<10)
}

// countText is how much there is, in words.
func (m *Memory) countText() string {
	m.search.RLock()
	defer m.search.RUnlock()
	if n := m.search.index.Stats().Active; n != 1 {
		return fmt.Sprintf("%d entries", n)
	}
	return "1 entry"
}

// onRecall answers the user, stage by stage.
func (m *Memory) onRecall(ctx context.Context, in actor.Msg[subjects.MemoryQuery], say func(subjects.MemoryReply) error, out actor.Out) error {
	if m.unavailable != nil {
		return m.unavailable
	}
	_, err := m.recallAudited(ctx, out, recallRequest{MemoryQuery: in.Body, caller: in.From, session: in.Session, queryID: in.Query}, say)
	return err
}

// onCorrelated answers what goes with some entries: the descriptions, and the whole on request.
func (m *Memory) onCorrelated(ctx context.Context, in actor.Msg[subjects.MemoryIDs], out actor.Out) (subjects.MemoryReply, error) {
	if m.unavailable != nil {
		return subjects.MemoryReply{}, m.unavailable
	}
	return m.correlated(ctx, out, recallRequest{caller: in.From, session: in.Session, queryID: in.Query}, in.Body)
}

// maxIDs bounds how many entries may be named at once.
const maxIDs = 500

// maxCorrelated bounds how much of what goes with something is told: of an entry that is recalled often that is nearly all.
const maxCorrelated = 20

// correlatedEntries are the newest entries that go with some.
func (m *Memory) correlatedEntries(ctx context.Context, ids []string) ([]subjects.MemoryEntry, error) {
	entries, err := m.unaudited.Correlated(ctx, ids...)
	if err != nil {
		return nil, fmt.Errorf("looking for what goes with it: %w", err)
	}
	slices.SortStableFunc(entries, func(a, b subjects.MemoryEntry) int { return b.Created.Compare(a.Created) })
	return entries[:min(maxCorrelated, len(entries))], nil
}

func (m *Memory) correlated(ctx context.Context, out actor.Out, q recallRequest, ids subjects.MemoryIDs) (r subjects.MemoryReply, err error) {
	if len(ids.IDs) == 0 || len(ids.IDs) > maxIDs {
		return r, subjects.Faultf(subjects.CodeMalformed, "name between 1 and %d entries", maxIDs)
	}
	a := act{who: q.caller, action: actRead, tool: q.tool, params: []byte(strings.Join(ids.IDs, "\n")), session: q.session, query: q.queryID}
	err = m.recorded(ctx, out, a, func() error {
		full, err := m.resolveIDs(ctx, ids.IDs)
		if err != nil {
			return err
		}
		entries, err := m.correlatedEntries(ctx, full)
		if err != nil {
			return err
		}
		r = subjects.MemoryReply{Stage: "correlated", Hits: make([]subjects.MemoryHit, 0, len(entries)), Done: true}
		for _, e := range entries {
			if !ids.Corpus {
				e.Corpus = ""
			}
			r.Hits = append(r.Hits, subjects.MemoryHit{Entry: e, Reasons: []subjects.MemoryReason{{What: "correlates", Text: "it goes with what was asked for"}}})
		}
		return m.emitRecalled(ctx, out, recallRequest{MemoryQuery: subjects.MemoryQuery{Query: strings.Join(full, " ")}, caller: q.caller, session: q.session, queryID: q.queryID}, r)
	})
	return r, err
}
