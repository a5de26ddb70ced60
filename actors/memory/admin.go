package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// Limits of a reply, which must fit into one message.
const (
	maxPageSize      = 500
	maxPageBytes     = 512 << 10
	maxListedText    = 400 // bytes of a corpus in a list, unless the whole is asked for
	maxForgottenText = 160 // bytes of a corpus in the reply to forget
)

// minIDPrefix is the shortest prefix of an id that is accepted.
const minIDPrefix = 6

// adminOp is one operation of memory.admin.
type adminOp func(ctx context.Context, out actor.Out, db *access, by string, q subjects.MemoryAdminRequest) (
	subjects.MemoryAdminReply, error)

// onAdmin runs an operation for the user. Unknown operations are rejected, unaudited. status is not audited either: it
// reveals nothing of the content, and conclave doctor needs it when the audit log is full. Entries in the reply is
// never nil, unless memory is unavailable or the request was rejected.
func (m *Memory) onAdmin(ctx context.Context, in actor.Msg[subjects.MemoryAdminRequest],
	out actor.Out,
) (done subjects.MemoryAdminReply, err error) {
	if m.unavailable != nil {
		return done, m.unavailable
	}
	if in.Body.Op == "status" {
		return m.reportStatus(ctx)
	}
	op, ok := map[string]adminOp{
		"list": m.listEntries, "show": m.showEntries, "edit": m.editEntry, "pin": m.pinEntries, "unpin": m.pinEntries,
		"forget": m.forgetEntries,
		"accept": m.decideCandidates, "reject": m.decideCandidates, "graph": m.listRelations,
	}[in.Body.Op]
	if !ok {
		return done, subjects.Faultf(subjects.CodeMalformed, "memory has no operation %q", text.Clip(in.Body.Op, 40))
	}
	params, err := json.Marshal(in.Body)
	if err != nil {
		return done, err
	}
	a := act{
		caller: in.From, action: subjects.ActionMemoryAdmin, target: in.Body.Op, params: params,
		session: in.Session, query: in.Query,
	}
	done, err = audited(ctx, m, out, a, func(ctx context.Context, db *access) (subjects.MemoryAdminReply, error) {
		return op(ctx, out, db, in.From, in.Body)
	})
	if done.Entries == nil {
		done.Entries = []subjects.MemoryEntry{}
	}
	return done, err
}

// resolveIDs turns id prefixes into ids, in order. It rejects a prefix of no entry, one of several, one with fewer than
// minIDPrefix characters, and no or more than maxIDs prefixes. An exact id wins over longer ones.
func resolveIDs(ctx context.Context, db *access, ids []string) ([]string, error) {
	found, missing, err := resolveExisting(ctx, db, ids)
	if err == nil && len(missing) > 0 {
		err = noEntry(missing[0])
	}
	return found, err
}

// resolveExisting turns id prefixes into ids and returns the prefixes of no entry apart. It rejects a list of which
// nothing exists, a prefix of several entries (unless it is an exact id), one with fewer than minIDPrefix characters,
// and a list of none or more than maxIDs.
func resolveExisting(ctx context.Context, db *access, ids []string) (out, missing []string, err error) {
	if len(ids) == 0 || len(ids) > maxIDs {
		return nil, nil, subjects.Faultf(subjects.CodeMalformed, "name between 1 and %d entries", maxIDs)
	}
	for _, id := range ids {
		if subjects.CheckToken(id) != nil || len(id) < minIDPrefix {
			return nil, nil, subjects.Faultf(subjects.CodeMalformed, "%q is not a valid id: give at least %d "+
				"characters of it", text.Clip(id, 40), minIDPrefix)
		}
		found, err := db.FindIDs(ctx, id)
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
			return nil, nil, subjects.Faultf(subjects.CodeMalformed, "%s could be %s: give more characters", id,
				strings.Join(found, " or "))
		}
	}
	if len(out) == 0 {
		return nil, nil, noEntry(missing[0])
	}
	return out, missing, nil
}

func noEntry(id string) *subjects.Fault {
	return subjects.Faultf(subjects.CodeMalformed, "there is no entry %s; conclave memory list shows them", id)
}

// listEntries returns a page of entries, newest first, and in Next the cursor of the next page ("" at the end). A Limit
// of 0 or less means that of the store; it is capped at maxPageSize, and a page ends early when the reply would not fit
// into a message. Texts are cut to maxListedText unless Whole is set. An invalid cursor is rejected.
func (m *Memory) listEntries(ctx context.Context, _ actor.Out, db *access, _ string, q subjects.MemoryAdminRequest) (
	done subjects.MemoryAdminReply, err error,
) {
	f := store.Filter{
		Kind: q.Kind, State: q.State, Trust: q.Trust, Tag: strings.ToLower(q.Tag), From: q.From,
		Text: q.Text, Limit: min(q.Limit, maxPageSize), After: q.After,
	}
	entries, next, err := db.List(ctx, f)
	if errors.Is(err, store.ErrCursor) {
		return done, subjects.Faultf(subjects.CodeMalformed, "invalid cursor")
	}
	if err != nil {
		return done, fmt.Errorf("listing: %w", err)
	}
	if !q.Whole {
		for i := range entries {
			entries[i].Corpus = text.Clip(entries[i].Corpus, maxListedText)
		}
	}
	n, err := countFitting(entries)
	if err != nil {
		return done, err
	}
	if n < len(entries) {
		entries, next = entries[:n], store.CursorAfter(entries[n-1])
	}
	done.Entries = entries
	done.Next = next
	return done, nil
}

// showEntries returns entries by id or prefix, with their texts. It rejects what resolveIDs rejects, and more than fit
// into one reply.
func (m *Memory) showEntries(ctx context.Context, _ actor.Out, db *access, _ string, q subjects.MemoryAdminRequest) (
	done subjects.MemoryAdminReply, err error,
) {
	ids, err := resolveIDs(ctx, db, q.IDs)
	if err != nil {
		return done, err
	}
	if done.Entries, err = db.Get(ctx, ids...); err != nil {
		return done, fmt.Errorf("reading: %w", err)
	}
	if n, err := countFitting(done.Entries); err != nil {
		return subjects.MemoryAdminReply{}, err
	} else if n < len(done.Entries) {
		return subjects.MemoryAdminReply{}, subjects.Faultf(subjects.CodeTooLarge, "the entries do not fit into one "+
			"reply: ask for fewer at a time")
	}
	return done, nil
}

// countFitting returns how many of entries, from the first on, fit into one reply of maxPageBytes; at least one if
// there is any.
func countFitting(entries []subjects.MemoryEntry) (int, error) {
	size := 0
	for i, e := range entries {
		data, err := json.Marshal(e)
		if err != nil {
			return 0, err
		}
		if size += len(data); size > maxPageBytes && i > 0 {
			return i, nil
		}
	}
	return len(entries), nil
}

// editEntry changes the texts or tags of one entry and embeds it again, now or by the backfill. Its relations in the
// graph stay. It rejects no or several ids, an edit without a change, and what checkEdit rejects.
func (m *Memory) editEntry(ctx context.Context, out actor.Out, db *access, by string, q subjects.MemoryAdminRequest) (
	done subjects.MemoryAdminReply, err error,
) {
	ids, err := resolveIDs(ctx, db, q.IDs)
	if err != nil {
		return done, err
	}
	if len(ids) != 1 || q.Edit == nil || *q.Edit == (subjects.MemoryEdit{}) {
		return done, subjects.Faultf(subjects.CodeMalformed, "name one entry and what to change")
	}
	e := *q.Edit
	if err := checkEdit(&e); err != nil {
		return done, err
	}
	now, err := m.updateEntry(ctx, db, ids[0], e, out.Now().UTC())
	if err != nil {
		return done, err
	}
	if v := m.tryEmbedEntry(ctx, out, now); v == nil {
		m.wakeBackfill()
	} else if err := m.storeVectors(ctx, now, *v); err != nil {
		return done, err
	}
	done.Entries, done.Changed = []subjects.MemoryEntry{now}, 1
	return done, m.emitStored(ctx, out, subjects.MemoryEvent{
		Action: "edited", IDs: ids, Why: "the user changed it",
		By: by,
	})
}

// checkEdit normalizes the tags of an edit in place; nil fields are unchanged. It rejects texts beyond the limits or
// not UTF-8, credentials in texts or tags, and a blank name.
func checkEdit(e *subjects.MemoryEdit) error {
	for _, t := range []struct {
		what string
		text *string
		most int
	}{
		{"the name", e.Name, maxName},
		{"the description", e.Description, maxDescription},
		{"the corpus", e.Corpus, maxCorpus},
	} {
		if t.text == nil {
			continue
		}
		if err := checkText(t.what, *t.text, t.most); err != nil {
			return err
		}
		if err := rejectCredential(t.what, *t.text); err != nil {
			return err
		}
	}
	if e.Name != nil && strings.TrimSpace(*e.Name) == "" {
		return subjects.Faultf(subjects.CodeMalformed, "an entry needs a name")
	}
	if e.Tags == nil {
		return nil
	}
	if err := rejectCredential("a tag", *e.Tags...); err != nil {
		return err
	}
	tags := cleanTags(*e.Tags)
	e.Tags = &tags
	return nil
}

// updateEntry writes an edit and updates the index, also when the caller has gone. After a change of its texts the
// entry is found by its words until it is embedded again.
func (m *Memory) updateEntry(ctx context.Context, db *access, id string, e subjects.MemoryEdit,
	at time.Time,
) (subjects.MemoryEntry, error) {
	ctx, cancel := detach(ctx)
	defer cancel()
	m.editMu.Lock()
	defer m.editMu.Unlock()
	now, err := db.Update(ctx, id, e, at)
	if err != nil {
		return now, fmt.Errorf("editing %s: %w", id, err)
	}
	return now, m.refreshIndex(ctx, id)
}

// pinEntries pins entries, or unpins them for any Op but "pin". Changed counts those that were not so already. Prefixes
// of no entry are returned as missing; it rejects what resolveExisting rejects.
func (m *Memory) pinEntries(ctx context.Context, out actor.Out, db *access, by string, q subjects.MemoryAdminRequest) (
	done subjects.MemoryAdminReply, err error,
) {
	ids, missing, err := resolveExisting(ctx, db, q.IDs)
	if err != nil {
		return done, err
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	m.editMu.Lock()
	defer m.editMu.Unlock()
	changed, err := db.Pin(ctx, q.Op == "pin", ids...)
	if err != nil {
		return done, fmt.Errorf("pinning: %w", err)
	}
	done.Changed, done.Missing = len(changed), missing
	if err := m.refreshIndex(ctx, ids...); err != nil || len(changed) == 0 {
		return done, err
	}
	return done,
		m.emitStored(ctx, out, subjects.MemoryEvent{
			Action: q.Op + "ned", IDs: changed, Why: "the user wanted it",
			By: by,
		})
}

// decideCandidates accepts candidates, or deletes them for any Op but "accept". It rejects the whole request when one
// of the entries is not a candidate, and what resolveExisting rejects. Prefixes of no entry are returned as missing.
func (m *Memory) decideCandidates(ctx context.Context, out actor.Out, db *access, by string,
	q subjects.MemoryAdminRequest,
) (done subjects.MemoryAdminReply, err error) {
	ids, missing, err := resolveExisting(ctx, db, q.IDs)
	if err != nil {
		return done, err
	}
	m.decisionMu.Lock()
	defer m.decisionMu.Unlock()
	entries, err := db.Get(ctx, ids...)
	if err != nil {
		return done, fmt.Errorf("reading: %w", err)
	}
	for _, e := range entries {
		if e.State != subjects.MemoryCandidate {
			return done, subjects.Faultf(subjects.CodeMalformed, "%s is not a candidate: it is %s", e.ID, e.State)
		}
	}
	done.Changed, done.Missing = len(entries), missing
	return done, m.settleCandidates(ctx, out, db, by, q.Op == "accept", entries...)
}

// listRelations returns relations of the graph that match the words in Query, best first, or the newest when it is
// empty. A Limit of 0 or less means that of the store; it is capped at maxPageSize.
func (m *Memory) listRelations(ctx context.Context, _ actor.Out, db *access, _ string, q subjects.MemoryAdminRequest) (
	done subjects.MemoryAdminReply, err error,
) {
	done.Relations, err = db.Relations(ctx, store.GraphQuery{Words: q.Query, Limit: min(q.Limit, maxPageSize)})
	if err != nil {
		return done, fmt.Errorf("reading the graph: %w", err)
	}
	return done, nil
}

// reportStatus returns counts and sizes, never content. It is not audited.
func (m *Memory) reportStatus(ctx context.Context) (done subjects.MemoryAdminReply, err error) {
	done.Entries = []subjects.MemoryEntry{}
	s, err := m.unaudited.Stats(ctx)
	if err != nil {
		return done, fmt.Errorf("counting: %w", err)
	}
	m.search.RLock()
	defer m.search.RUnlock()
	done.Status = &subjects.MemoryStatus{
		Entries: s.Kinds, States: s.States, Relations: s.Relations, Documents: s.Documents, Bytes: m.unaudited.Size(),
		Schema: s.Schema, DuckDB: s.DuckDB,
		Search: m.search.index.DescribeSearch(), Model: m.search.model, Resident: m.search.index.Stats().Bytes,
	}
	if done.Status.Unembedded, err = m.unaudited.CountUnembedded(ctx, m.search.model); err != nil {
		return done, fmt.Errorf("counting: %w", err)
	}
	if done.Status.Unembedded > 0 {
		done.Status.Problem = m.embeddingProblem()
	}
	done.Status.Cached = m.cache.Len()
	return done, nil
}
