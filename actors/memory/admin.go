package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/firewall"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Bounds of a page of a list: a reply must fit into a message.
const (
	defaultPageSize  = 50
	maxPageSize      = 500
	maxPageBytes     = 512 << 10
	maxListedText    = 400 // of a corpus, unless the whole is asked for
	maxForgottenText = 160 // of a corpus, to see what is forgotten
)

// minIDPrefix is how much of an id is enough.
const minIDPrefix = 6

// onAdmin does what the user wants done.
func (m *Memory) onAdmin(ctx context.Context, in actor.Msg[subjects.MemoryAdminRequest], out actor.Out) (done subjects.MemoryAdminReply, err error) {
	if m.unavailable != nil {
		return done, m.unavailable
	}
	ops := map[string]func(context.Context, actor.Out, string, subjects.MemoryAdminRequest) (subjects.MemoryAdminReply, error){
		"list": m.listEntries, "show": m.showEntries, "edit": m.editEntry, "pin": m.pinEntries, "unpin": m.pinEntries, "forget": m.forgetEntries,
		"accept": m.decideCandidates, "reject": m.decideCandidates, "graph": m.listRelations, "status": m.reportStatus,
	}
	op, ok := ops[in.Body.Op]
	if !ok {
		return done, subjects.Faultf(subjects.CodeMalformed, "memory cannot %q", text.Clip(in.Body.Op, 40))
	}
	if in.Body.Op == "status" { // it tells nothing that was remembered, and doctor asks when the audit is full
		done, err = m.reportStatus(ctx, out, in.From, in.Body)
		done.Entries = []subjects.MemoryEntry{}
		return done, err
	}
	params, err := json.Marshal(in.Body)
	if err != nil {
		return done, err
	}
	a := act{who: in.From, action: actAdmin, tool: in.Body.Op, params: params, session: in.Session, query: in.Query}
	err = m.recorded(ctx, out, a, func() error {
		var err error
		done, err = op(ctx, out, in.From, in.Body)
		return err
	})
	if done.Entries == nil {
		done.Entries = []subjects.MemoryEntry{}
	}
	return done, err
}

// resolveIDs turns beginnings of ids into ids. One that is not there is a fault, and so is one that could be several.
func (m *Memory) resolveIDs(ctx context.Context, ids []string) ([]string, error) {
	found, missing, err := m.resolveExisting(ctx, ids)
	if err == nil && len(missing) > 0 {
		err = subjects.Faultf(subjects.CodeMalformed, "there is no entry %s; conclave memory list shows them", missing[0])
	}
	return found, err
}

// resolveExisting is resolve for an act that is done to those that are there. That none is there is a fault.
func (m *Memory) resolveExisting(ctx context.Context, ids []string) (out, missing []string, err error) {
	if len(ids) == 0 || len(ids) > maxIDs {
		return nil, nil, subjects.Faultf(subjects.CodeMalformed, "name between 1 and %d entries", maxIDs)
	}
	for _, id := range ids {
		if subjects.CheckToken(id) != nil || len(id) < minIDPrefix {
			return nil, nil, subjects.Faultf(subjects.CodeMalformed, "%q cannot be an id: give at least %d letters of it", text.Clip(id, 40), minIDPrefix)
		}
		found, err := m.unaudited.FindIDs(ctx, id)
		if err != nil {
			return nil, nil, fmt.Errorf("looking for %s: %w", id, err)
		}
		switch {
		case slices.Contains(found, id):
			out = append(out, id)
		case len(found) == 1:
			out = append(out, found[0])
		case len(found) == 0:
			missing = append(missing, id)
		default:
			return nil, nil, subjects.Faultf(subjects.CodeMalformed, "%s could be %s: give more letters", id, strings.Join(found, " or "))
		}
	}
	if len(out) == 0 {
		return nil, nil, subjects.Faultf(subjects.CodeMalformed, "there is no entry %s; conclave memory list shows them", missing[0])
	}
	return out, missing, nil
}

func (m *Memory) listEntries(ctx context.Context, _ actor.Out, _ string, q subjects.MemoryAdminRequest) (done subjects.MemoryAdminReply, err error) {
	limit := q.Limit
	if limit <= 0 {
		limit = defaultPageSize
	}
	f := store.Filter{Kind: q.Kind, State: q.State, Trust: q.Trust, Tag: strings.ToLower(q.Tag), From: q.From, Text: q.Text, Limit: min(limit, maxPageSize), After: q.After, Corpus: true}
	entries, next, err := m.unaudited.List(ctx, f)
	if errors.Is(err, store.ErrCursor) {
		return done, subjects.Faultf(subjects.CodeMalformed, "this is not where a page ended")
	}
	if err != nil {
		return done, fmt.Errorf("listing: %w", err)
	}
	size := 0
	for i, e := range entries {
		if !q.Whole {
			e.Corpus = text.Clip(e.Corpus, maxListedText)
		}
		data, err := json.Marshal(e)
		if err != nil {
			return done, err
		}
		if size += len(data); size > maxPageBytes && i > 0 { // the rest with the next page
			next = store.CursorAfter(entries[i-1])
			break
		}
		done.Entries = append(done.Entries, e)
	}
	done.Next = next
	return done, nil
}

func (m *Memory) showEntries(ctx context.Context, _ actor.Out, _ string, q subjects.MemoryAdminRequest) (done subjects.MemoryAdminReply, err error) {
	ids, err := m.resolveIDs(ctx, q.IDs)
	if err != nil {
		return done, err
	}
	if done.Entries, err = m.unaudited.Get(ctx, ids...); err != nil {
		return done, fmt.Errorf("reading: %w", err)
	}
	size := 0
	for i, e := range done.Entries {
		data, err := json.Marshal(e)
		if err != nil {
			return done, err
		}
		if size += len(data); size > maxPageBytes && i > 0 {
			return subjects.MemoryAdminReply{}, subjects.Faultf(subjects.CodeTooLarge, "that is too much for one answer: ask for fewer at a time")
		}
	}
	return done, nil
}

// editEntry changes what an entry says. Its vectors are made anew, and what is said of it in the graph stays.
func (m *Memory) editEntry(ctx context.Context, out actor.Out, by string, q subjects.MemoryAdminRequest) (done subjects.MemoryAdminReply, err error) {
	ids, err := m.resolveIDs(ctx, q.IDs)
	if err != nil {
		return done, err
	}
	if len(ids) != 1 || q.Edit == nil || *q.Edit == (subjects.MemoryEdit{}) {
		return done, subjects.Faultf(subjects.CodeMalformed, "say which one entry, and what to change")
	}
	e := *q.Edit
	for _, t := range []struct {
		what string
		text *string
		most int
	}{{"name", e.Name, maxName}, {"description", e.Description, maxDescription}, {"corpus", e.Corpus, maxCorpus}} {
		if t.text == nil {
			continue
		}
		if err := checkText("the "+t.what, *t.text, t.most); err != nil {
			return done, err
		}
		if _, hidden := firewall.Redact(*t.text); hidden > 0 {
			return done, subjects.Faultf(subjects.CodeMalformed, "the %s holds something that looks like a password or a key; conclave secret set keeps those", t.what)
		}
	}
	if e.Name != nil && strings.TrimSpace(*e.Name) == "" {
		return done, subjects.Faultf(subjects.CodeMalformed, "an entry needs a name")
	}
	if e.Tags != nil {
		if _, hidden := firewall.Redact(strings.Join(*e.Tags, "\n")); hidden > 0 {
			return done, subjects.Faultf(subjects.CodeMalformed, "a tag holds something that looks like a password or a key; conclave secret set keeps those")
		}
		tags := cleanTags(*e.Tags)
		e.Tags = &tags
	}
	now, err := m.updateEntry(ctx, ids[0], e, out.Now().UTC())
	if err != nil {
		return done, err
	}
	if v := m.tryEmbedEntry(ctx, out, now); v == nil {
		m.wakeBackfill()
	} else if err := m.storeVectors(ctx, now, *v); err != nil {
		return done, err
	}
	done.Entries, done.Changed = []subjects.MemoryEntry{now}, 1
	return done, m.emitStored(ctx, out, subjects.MemoryEvent{Action: "edited", IDs: ids, Why: "the user changed it", By: by})
}

// updateEntry writes an edit. Until its vectors are made anew the entry is found by its words.
func (m *Memory) updateEntry(ctx context.Context, id string, e subjects.MemoryEdit, at time.Time) (subjects.MemoryEntry, error) {
	ctx, end := detach(ctx)
	defer end()
	m.editMu.Lock()
	defer m.editMu.Unlock()
	now, err := m.unaudited.Update(ctx, id, e, nil, at)
	if err != nil {
		return now, fmt.Errorf("changing %s: %w", id, err)
	}
	return now, m.refreshIndex(ctx, id)
}

func (m *Memory) pinEntries(ctx context.Context, out actor.Out, by string, q subjects.MemoryAdminRequest) (done subjects.MemoryAdminReply, err error) {
	ids, missing, err := m.resolveExisting(ctx, q.IDs)
	if err != nil {
		return done, err
	}
	ctx, end := detach(ctx)
	defer end()
	m.editMu.Lock()
	defer m.editMu.Unlock()
	changed, err := m.unaudited.Pin(ctx, q.Op == "pin", ids...)
	if err != nil {
		return done, fmt.Errorf("pinning: %w", err)
	}
	done.Changed, done.Missing = len(changed), missing
	if err := m.refreshIndex(ctx, ids...); err != nil || len(changed) == 0 {
		return done, err
	}
	return done, m.emitStored(ctx, out, subjects.MemoryEvent{Action: q.Op + "ned", IDs: changed, Why: "the user wanted it", By: by})
}

// forgetEntries removes entries, by id or by words. By words it takes those that were recalled for them, each of which shares
// a word with them or is much alike; with Dry it only tells which.
func (m *Memory) forgetEntries(ctx context.Context, out actor.Out, by string, q subjects.MemoryAdminRequest) (done subjects.MemoryAdminReply, err error) {
	var ids []string
	switch {
	case (q.Query == "") == (len(q.IDs) == 0):
		return done, subjects.Faultf(subjects.CodeMalformed, "name entries, or give words, one of them")
	case q.Query != "":
		if ids, err = m.findByWords(ctx, out, q); err != nil {
			return done, err
		}
	default:
		if ids, done.Missing, err = m.resolveExisting(ctx, q.IDs); err != nil {
			return done, err
		}
	}
	if len(ids) == 0 {
		return done, nil
	}
	ctx, end := detach(ctx)
	defer end()
	m.editMu.Lock()
	defer m.editMu.Unlock()
	if ids, done.Entries, err = m.withSuperseded(ctx, ids); err != nil {
		return done, err
	}
	for i, e := range done.Entries { // enough to see which: five hundred of them must fit into one answer
		done.Entries[i] = subjects.MemoryEntry{
			ID: e.ID, Kind: e.Kind, State: e.State, Name: e.Name, Corpus: text.Clip(e.Corpus, maxForgottenText), Provenance: subjects.Provenance{Source: e.Provenance.Source, Trust: e.Provenance.Trust},
			Created: e.Created, Updated: e.Updated, Pinned: e.Pinned,
		}
	}
	if q.Dry {
		return done, nil
	}
	all, err := m.unaudited.Forget(ctx, ids...)
	if err != nil {
		return done, fmt.Errorf("forgetting: %w", err)
	}
	m.removeFromIndex(all)
	done.Changed = len(all)
	return done, m.emitStored(ctx, out, subjects.MemoryEvent{Action: "forgotten", IDs: ids, Why: "the user wanted it", By: by})
}

// withSuperseded are entries with those whose place they took: they say the same, or what it was before, and what is forgotten
// must not be read there.
func (m *Memory) withSuperseded(ctx context.Context, ids []string) (all []string, entries []subjects.MemoryEntry, err error) {
	all = slices.Clone(ids)
	for from := 0; from < len(all); {
		next := all[from:]
		from = len(all)
		some, err := m.unaudited.Get(ctx, next...)
		if err != nil {
			return nil, nil, fmt.Errorf("reading: %w", err)
		}
		entries = append(entries, some...)
		for _, e := range some {
			for _, id := range e.Supersedes {
				if !slices.Contains(all, id) {
					all = append(all, id)
				}
			}
		}
	}
	return all, entries, nil
}

// mostForgotten bounds what is forgotten by words at once, and muchAlike is how near something is that has none of them.
// A recall shows what is a little alike too, and that must not go.
const (
	maxForgottenByWords = 50
	minForgetSimilarity = 0.8
)

// findByWords are the entries that words mean: in any state, since what is forgotten must not come back from the past.
func (m *Memory) findByWords(ctx context.Context, out actor.Out, q subjects.MemoryAdminRequest) (ids []string, err error) {
	asked := subjects.MemoryQuery{Query: q.Query, Kind: q.Kind}
	if err := normalizeQuery(&asked, m.cfg); err != nil {
		return nil, err
	}
	vector, err := m.embedQuery(ctx, out, asked.Query)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	found, err := m.searchIndex(ctx, recall.Query{Text: asked.Query, Vector: vector, Kind: q.Kind, All: true, Duplicates: true, Names: maxForgottenByWords, Top: maxForgottenByWords})
	if err != nil {
		return nil, fmt.Errorf("looking for it: %w", err)
	}
	for _, c := range found.Top {
		if c.Similarity >= minForgetSimilarity || slices.ContainsFunc(c.Reasons, func(r subjects.MemoryReason) bool { return r.What == "words" }) {
			ids = append(ids, c.ID)
		}
	}
	return ids, nil
}

// decideCandidates decides upon candidates.
func (m *Memory) decideCandidates(ctx context.Context, out actor.Out, by string, q subjects.MemoryAdminRequest) (done subjects.MemoryAdminReply, err error) {
	ids, missing, err := m.resolveExisting(ctx, q.IDs)
	if err != nil {
		return done, err
	}
	m.decisionMu.Lock()
	defer m.decisionMu.Unlock()
	entries, err := m.unaudited.Get(ctx, ids...)
	if err != nil {
		return done, fmt.Errorf("reading: %w", err)
	}
	for _, e := range entries {
		if e.State != subjects.MemoryCandidate {
			return done, subjects.Faultf(subjects.CodeMalformed, "%s waits for no decision: it is %s", e.ID, e.State)
		}
	}
	done.Changed, done.Missing = len(entries), missing
	return done, m.settleCandidates(ctx, out, by, q.Op == "accept", entries...)
}

func (m *Memory) listRelations(ctx context.Context, _ actor.Out, _ string, q subjects.MemoryAdminRequest) (done subjects.MemoryAdminReply, err error) {
	limit := q.Limit
	if limit <= 0 {
		limit = defaultPageSize
	}
	if done.Relations, err = m.unaudited.Relations(ctx, store.GraphQuery{Words: q.Query, Limit: min(limit, maxPageSize)}); err != nil {
		return done, fmt.Errorf("reading the graph: %w", err)
	}
	return done, nil
}

func (m *Memory) reportStatus(ctx context.Context, _ actor.Out, _ string, _ subjects.MemoryAdminRequest) (done subjects.MemoryAdminReply, err error) {
	s, err := m.unaudited.Stats(ctx)
	if err != nil {
		return done, fmt.Errorf("counting: %w", err)
	}
	m.search.RLock()
	defer m.search.RUnlock()
	done.Status = &subjects.MemoryStatus{
		Entries: s.Kinds, States: s.States, Relations: s.Relations, Documents: s.Documents, Bytes: m.unaudited.Size(), Schema: s.Schema, DuckDB: s.DuckDB,
		Search: m.searchMethod(), Model: m.search.model, Resident: m.search.index.Stats().Bytes,
	}
	if done.Status.Unembedded, err = m.unaudited.CountUnembedded(ctx, m.search.model); err != nil {
		return done, fmt.Errorf("counting: %w", err)
	}
	if m.cache != nil {
		done.Status.Cached = m.cache.Len()
	}
	return done, nil
}
