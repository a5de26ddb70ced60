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
	usualPage = 50
	mostPage  = 500
	pageBytes = 512 << 10
	pageText  = 400 // of a corpus, unless the whole is asked for
	shortText = 160 // of a corpus, to see what is forgotten
)

// shortest is how much of an id is enough.
const shortest = 6

// onAdmin does what the user wants done.
func (m *Memory) onAdmin(ctx context.Context, in actor.Msg[subjects.MemoryAdmin], out actor.Out) (done subjects.MemoryAdmined, err error) {
	if m.shut != nil {
		return done, m.shut
	}
	ops := map[string]func(context.Context, actor.Out, string, subjects.MemoryAdmin) (subjects.MemoryAdmined, error){
		"list": m.list, "show": m.showEntries, "edit": m.edit, "pin": m.pin, "unpin": m.pin, "forget": m.forget,
		"accept": m.accept, "reject": m.accept, "graph": m.graph, "status": m.status,
	}
	op, ok := ops[in.Body.Op]
	if !ok {
		return done, subjects.Faultf(subjects.CodeMalformed, "memory cannot %q", text.Clip(in.Body.Op, 40))
	}
	if in.Body.Op == "status" { // it tells nothing that was remembered, and doctor asks when the audit is full
		done, err = m.status(ctx, out, in.From, in.Body)
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

// resolve turns beginnings of ids into ids. One that is not there is a fault, and so is one that could be several.
func (m *Memory) resolve(ctx context.Context, ids []string) ([]string, error) {
	found, missing, err := m.resolveSome(ctx, ids)
	if err == nil && len(missing) > 0 {
		err = subjects.Faultf(subjects.CodeMalformed, "there is no entry %s; conclave memory list shows them", missing[0])
	}
	return found, err
}

// resolveSome is resolve for an act that is done to those that are there. That none is there is a fault.
func (m *Memory) resolveSome(ctx context.Context, ids []string) (out, missing []string, err error) {
	if len(ids) == 0 || len(ids) > maxIDs {
		return nil, nil, subjects.Faultf(subjects.CodeMalformed, "name between 1 and %d entries", maxIDs)
	}
	for _, id := range ids {
		if subjects.CheckToken(id) != nil || len(id) < shortest {
			return nil, nil, subjects.Faultf(subjects.CodeMalformed, "%q cannot be an id: give at least %d letters of it", text.Clip(id, 40), shortest)
		}
		found, err := m.db.Beginning(ctx, id)
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

func (m *Memory) list(ctx context.Context, _ actor.Out, _ string, q subjects.MemoryAdmin) (done subjects.MemoryAdmined, err error) {
	limit := q.Limit
	if limit <= 0 {
		limit = usualPage
	}
	f := store.Filter{Kind: q.Kind, State: q.State, Trust: q.Trust, Tag: strings.ToLower(q.Tag), From: q.From, Text: q.Text, Limit: min(limit, mostPage), After: q.After, Corpus: true}
	entries, next, err := m.db.List(ctx, f)
	if errors.Is(err, store.ErrCursor) {
		return done, subjects.Faultf(subjects.CodeMalformed, "this is not where a page ended")
	}
	if err != nil {
		return done, fmt.Errorf("listing: %w", err)
	}
	size := 0
	for i, e := range entries {
		if !q.Whole {
			e.Corpus = text.Clip(e.Corpus, pageText)
		}
		data, err := json.Marshal(e)
		if err != nil {
			return done, err
		}
		if size += len(data); size > pageBytes && i > 0 { // the rest with the next page
			next = store.Cursor(entries[i-1])
			break
		}
		done.Entries = append(done.Entries, e)
	}
	done.Next = next
	return done, nil
}

func (m *Memory) showEntries(ctx context.Context, _ actor.Out, _ string, q subjects.MemoryAdmin) (done subjects.MemoryAdmined, err error) {
	ids, err := m.resolve(ctx, q.IDs)
	if err != nil {
		return done, err
	}
	if done.Entries, err = m.db.Get(ctx, ids...); err != nil {
		return done, fmt.Errorf("reading: %w", err)
	}
	size := 0
	for i, e := range done.Entries {
		data, err := json.Marshal(e)
		if err != nil {
			return done, err
		}
		if size += len(data); size > pageBytes && i > 0 {
			return subjects.MemoryAdmined{}, subjects.Faultf(subjects.CodeTooLarge, "that is too much for one answer: ask for fewer at a time")
		}
	}
	return done, nil
}

// edit changes what an entry says. Its vectors are made anew, and what is said of it in the graph stays.
func (m *Memory) edit(ctx context.Context, out actor.Out, by string, q subjects.MemoryAdmin) (done subjects.MemoryAdmined, err error) {
	ids, err := m.resolve(ctx, q.IDs)
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
	}{{"name", e.Name, maxName}, {"description", e.Description, maxAbout}, {"corpus", e.Corpus, maxCorpus}} {
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
	now, err := m.change(ctx, ids[0], e, out.Now().UTC())
	if err != nil {
		return done, err
	}
	if v := m.vectorsOf(ctx, out, now); v == nil {
		m.nudge()
	} else if err := m.vectored(ctx, now, *v); err != nil {
		return done, err
	}
	done.Entries, done.Changed = []subjects.MemoryEntry{now}, 1
	return done, m.tell(ctx, out, subjects.MemoryEvent{Action: "edited", IDs: ids, Why: "the user changed it", By: by})
}

// change writes an edit. Until its vectors are made anew the entry is found by its words.
func (m *Memory) change(ctx context.Context, id string, e subjects.MemoryEdit, at time.Time) (subjects.MemoryEntry, error) {
	ctx, end := through(ctx)
	defer end()
	m.edits.Lock()
	defer m.edits.Unlock()
	now, err := m.db.Update(ctx, id, e, nil, at)
	if err != nil {
		return now, fmt.Errorf("changing %s: %w", id, err)
	}
	return now, m.follow(ctx, id)
}

func (m *Memory) pin(ctx context.Context, out actor.Out, by string, q subjects.MemoryAdmin) (done subjects.MemoryAdmined, err error) {
	ids, missing, err := m.resolveSome(ctx, q.IDs)
	if err != nil {
		return done, err
	}
	ctx, end := through(ctx)
	defer end()
	m.edits.Lock()
	defer m.edits.Unlock()
	changed, err := m.db.Pin(ctx, q.Op == "pin", ids...)
	if err != nil {
		return done, fmt.Errorf("pinning: %w", err)
	}
	done.Changed, done.Missing = len(changed), missing
	if err := m.follow(ctx, ids...); err != nil || len(changed) == 0 {
		return done, err
	}
	return done, m.tell(ctx, out, subjects.MemoryEvent{Action: q.Op + "ned", IDs: changed, Why: "the user wanted it", By: by})
}

// forget removes entries, by id or by words. By words it takes those that were recalled for them, each of which shares
// a word with them or is much alike; with Dry it only tells which.
func (m *Memory) forget(ctx context.Context, out actor.Out, by string, q subjects.MemoryAdmin) (done subjects.MemoryAdmined, err error) {
	var ids []string
	switch {
	case (q.Query == "") == (len(q.IDs) == 0):
		return done, subjects.Faultf(subjects.CodeMalformed, "name entries, or give words, one of them")
	case q.Query != "":
		if ids, err = m.matching(ctx, out, q); err != nil {
			return done, err
		}
	default:
		if ids, done.Missing, err = m.resolveSome(ctx, q.IDs); err != nil {
			return done, err
		}
	}
	if len(ids) == 0 {
		return done, nil
	}
	ctx, end := through(ctx)
	defer end()
	m.edits.Lock()
	defer m.edits.Unlock()
	if ids, done.Entries, err = m.replaced(ctx, ids); err != nil {
		return done, err
	}
	for i, e := range done.Entries { // enough to see which: five hundred of them must fit into one answer
		done.Entries[i] = subjects.MemoryEntry{
			ID: e.ID, Kind: e.Kind, State: e.State, Name: e.Name, Corpus: text.Clip(e.Corpus, shortText), Provenance: subjects.Provenance{Source: e.Provenance.Source, Trust: e.Provenance.Trust},
			Created: e.Created, Updated: e.Updated, Pinned: e.Pinned,
		}
	}
	if q.Dry {
		return done, nil
	}
	all, err := m.db.Forget(ctx, ids...)
	if err != nil {
		return done, fmt.Errorf("forgetting: %w", err)
	}
	m.gone(all)
	done.Changed = len(all)
	return done, m.tell(ctx, out, subjects.MemoryEvent{Action: "forgotten", IDs: ids, Why: "the user wanted it", By: by})
}

// replaced are entries with those whose place they took: they say the same, or what it was before, and what is forgotten
// must not be read there.
func (m *Memory) replaced(ctx context.Context, ids []string) (all []string, entries []subjects.MemoryEntry, err error) {
	all = slices.Clone(ids)
	for from := 0; from < len(all); {
		next := all[from:]
		from = len(all)
		some, err := m.db.Get(ctx, next...)
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
	mostForgotten = 50
	muchAlike     = 0.8
)

// matching are the entries that words mean: in any state, since what is forgotten must not come back from the past.
func (m *Memory) matching(ctx context.Context, out actor.Out, q subjects.MemoryAdmin) (ids []string, err error) {
	asked := subjects.MemoryQuery{Query: q.Query, Kind: q.Kind}
	if err := checkQuery(&asked, m.cfg); err != nil {
		return nil, err
	}
	vector, err := m.embedQuery(ctx, out, asked.Query)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	found, err := m.find(ctx, recall.Query{Text: asked.Query, Vector: vector, Kind: q.Kind, All: true, Twins: true, Names: mostForgotten, Top: mostForgotten})
	if err != nil {
		return nil, fmt.Errorf("looking for it: %w", err)
	}
	for _, c := range found.Top {
		if c.Similarity >= muchAlike || slices.ContainsFunc(c.Reasons, func(r subjects.MemoryReason) bool { return r.What == "words" }) {
			ids = append(ids, c.ID)
		}
	}
	return ids, nil
}

// accept decides upon candidates.
func (m *Memory) accept(ctx context.Context, out actor.Out, by string, q subjects.MemoryAdmin) (done subjects.MemoryAdmined, err error) {
	ids, missing, err := m.resolveSome(ctx, q.IDs)
	if err != nil {
		return done, err
	}
	m.decisions.Lock()
	defer m.decisions.Unlock()
	entries, err := m.db.Get(ctx, ids...)
	if err != nil {
		return done, fmt.Errorf("reading: %w", err)
	}
	for _, e := range entries {
		if e.State != subjects.MemoryCandidate {
			return done, subjects.Faultf(subjects.CodeMalformed, "%s waits for no decision: it is %s", e.ID, e.State)
		}
	}
	done.Changed, done.Missing = len(entries), missing
	return done, m.settle(ctx, out, by, q.Op == "accept", entries...)
}

func (m *Memory) graph(ctx context.Context, _ actor.Out, _ string, q subjects.MemoryAdmin) (done subjects.MemoryAdmined, err error) {
	limit := q.Limit
	if limit <= 0 {
		limit = usualPage
	}
	if done.Relations, err = m.db.Relations(ctx, store.GraphQuery{Words: q.Query, Limit: min(limit, mostPage)}); err != nil {
		return done, fmt.Errorf("reading the graph: %w", err)
	}
	return done, nil
}

func (m *Memory) status(ctx context.Context, _ actor.Out, _ string, _ subjects.MemoryAdmin) (done subjects.MemoryAdmined, err error) {
	s, err := m.db.Stats(ctx)
	if err != nil {
		return done, fmt.Errorf("counting: %w", err)
	}
	m.space.RLock()
	defer m.space.RUnlock()
	done.Status = &subjects.MemoryStatus{
		Entries: s.Kinds, States: s.States, Relations: s.Relations, Documents: s.Documents, Bytes: m.db.Size(), Schema: s.Schema, DuckDB: s.DuckDB,
		Search: m.path(), Model: m.space.model, Resident: m.space.index.Stats().Bytes,
	}
	if done.Status.Unembedded, err = m.db.CountUnembedded(ctx, m.space.model); err != nil {
		return done, fmt.Errorf("counting: %w", err)
	}
	if m.cache != nil {
		done.Status.Cached = m.cache.Len()
	}
	return done, nil
}
