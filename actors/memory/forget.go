package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// forgetEntries deletes entries by id or by words, with everything they superseded, and returns them shortened. By
// words it deletes the entries that a recall finds, as far as they share a word with the query or are very similar, at
// most maxForgottenByWords and those they superseded. It rejects both or neither of ids and words, and ids of which
// none exists; other unknown ids are returned as missing. With Dry it only returns what it would delete.
func (m *Memory) forgetEntries(ctx context.Context, out actor.Out, db *access, by string,
	q subjects.MemoryAdminRequest,
) (done subjects.MemoryAdminReply, err error) {
	var ids []string
	switch {
	case (q.Query == "") == (len(q.IDs) == 0):
		return done, subjects.Faultf(subjects.CodeMalformed, "give either ids or words")
	case q.Query != "":
		if ids, err = m.findByWords(ctx, out, q); err != nil {
			return done, err
		}
	default:
		if ids, done.Missing, err = resolveExisting(ctx, db, q.IDs); err != nil {
			return done, err
		}
	}
	if len(ids) == 0 {
		return done, nil
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	m.editMu.Lock()
	defer m.editMu.Unlock()
	if ids, done.Entries, err = withSuperseded(ctx, db, ids); err != nil {
		return done, err
	}
	for i, e := range done.Entries { // enough to recognize them: maxIDs of them must fit into one reply
		done.Entries[i] = subjects.MemoryEntry{
			ID: e.ID, Kind: e.Kind, State: e.State, Name: e.Name, Corpus: text.Clip(e.Corpus, maxForgottenText),
			Provenance: subjects.Provenance{Source: e.Provenance.Source, Trust: e.Provenance.Trust},
			Created:    e.Created, Updated: e.Updated, Pinned: e.Pinned,
		}
	}
	if q.Dry {
		return done, nil
	}
	all, err := db.Forget(ctx, ids...)
	if err != nil {
		return done, fmt.Errorf("forgetting: %w", err)
	}
	m.removeFromIndex(all)
	done.Changed = len(all)
	return done, m.emitStored(ctx, out, subjects.MemoryEvent{
		Action: ActionForgotten, IDs: ids, Why: "the user wanted it",
		By: by,
	})
}

// withSuperseded returns ids and, transitively, the ids of the entries that those superseded, with the entries: they
// hold the same content or a former version of it, which must not be left behind. Ids that do not exist stay in all and
// have no entry.
func withSuperseded(ctx context.Context, db *access, ids []string) (all []string, entries []subjects.MemoryEntry,
	err error,
) {
	all = slices.Clone(ids)
	for from := 0; from < len(all); {
		next := all[from:]
		from = len(all)
		some, err := db.Get(ctx, next...)
		if err != nil {
			return nil, nil, fmt.Errorf("reading entries: %w", err)
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

const (
	maxForgottenByWords = 50  // entries in one request
	minForgetSimilarity = 0.8 // of an entry that shares no word; a recall returns less similar ones too
)

// findByWords returns the ids of at most maxForgottenByWords entries that words select for deletion, in any state:
// those that share a word with the query, or have a similarity of at least minForgetSimilarity. It rejects what
// normalizeQuery rejects. Without an embedding model only words select.
func (m *Memory) findByWords(ctx context.Context, out actor.Out, q subjects.MemoryAdminRequest) (ids []string,
	err error,
) {
	asked := subjects.MemoryQuery{Query: q.Query, Kind: q.Kind}
	if err := normalizeQuery(&asked, m.cfg); err != nil {
		return nil, err
	}
	vector, err := m.embedQuery(ctx, out, asked.Query)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	found, err := m.searchIndex(recall.Query{
		Text: asked.Query, Vector: vector, Kind: q.Kind, All: true,
		Duplicates: true, Names: maxForgottenByWords, Top: maxForgottenByWords,
	})
	if err != nil {
		return nil, fmt.Errorf("searching: %w", err)
	}
	for _, c := range found.Top {
		if c.Similarity >= minForgetSimilarity || slices.ContainsFunc(c.Reasons, func(r subjects.MemoryReason) bool {
			return r.What == "words"
		}) {
			ids = append(ids, c.Entry.ID)
		}
	}
	return ids, nil
}

// ActionForgotten is the action of events about entries that were forgotten.
const ActionForgotten = "forgotten"

// Answer identifies an answer in the event log.
type Answer struct{ Query, Respondent string }

// ForgetAgain deletes the entries with these ids from the database in a data folder that no actor has open, and notes
// for those of the answers that have such an id that they are forgotten, so that their events do not store them again.
func ForgetAgain(ctx context.Context, data string, ids []string, answers []Answer) error {
	if len(ids) == 0 {
		return nil
	}
	db, err := store.Open(ctx, DatabaseFile(data), store.Options{Now: time.Now})
	if err != nil {
		return err
	}
	_, err = db.Forget(ctx, ids...)
	for _, a := range answers {
		if slices.Contains(ids, deriveID(subjects.KindEngram, a.Query, a.Respondent)) {
			err = errors.Join(err, db.ForgetAnswer(ctx, a.Query, a.Respondent))
		}
	}
	return errors.Join(err, db.Close(ctx))
}
