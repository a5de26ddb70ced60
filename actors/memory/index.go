package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// The index follows the database: each function here is called after the write is durable, never before.

// detach returns a context for a write and the index update that follows it. It outlives the caller, so that the index
// never stays behind the database, and ends after a minute.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// retryEvent calls do until it succeeds, with backoff from a second to a minute: a failure that may pass, such as an
// audit log that does not reply, must not make the event a dead letter. It returns the error of do at once for faults
// other than those of the audit log and before [Memory.Start], and when ctx ends while it waits. A database that has
// stopped is fatal: the restarted actor opens it again. do must be safe to repeat.
func (m *Memory) retryEvent(ctx context.Context, out actor.Out, do func() error) error {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := do()
		var f *subjects.Fault
		switch {
		case err == nil:
			return nil
		case errors.Is(err, store.ErrBroken):
			return actor.Fatal(err)
		case errors.As(err, &f) && f.Code != subjects.CodeNoAudit &&
			f.Code != subjects.CodeUnrecorded, !m.started.Load():
			return err
		}
		out.LogError(fmt.Errorf("retrying in %s: %w", wait, err))
		again := time.NewTimer(wait)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return err
		}
	}
}

// indexRow converts an entry for the index.
func indexRow(l store.IndexEntry) recall.Row {
	return recall.Row{
		Key: l.Row, ID: l.ID, Kind: l.Kind, State: l.State, Trust: l.Trust, Source: l.Source, Respondent: l.Respondent,
		Name: l.Name, Description: l.Description, Tags: l.Tags, Created: l.Created, Pinned: l.Pinned, Grades: l.Grades,
		Words:        l.Words,
		Conversation: l.Conversation, Position: l.Position, Speaker: l.Speaker, Happened: l.Happened,
	}
}

// indexVectors returns the vectors of an entry for the index.
func indexVectors(l store.IndexEntry) recall.Vectors {
	return recall.Vectors{Corpus: l.CorpusVector, Description: l.DescriptionVector, Name: l.NameVector}
}

// refreshIndex reads entries from the database, updates the index and drops cached replies. Ids that do not exist are
// not removed from the index: see removeFromIndex. It is not canceled with ctx.
func (m *Memory) refreshIndex(ctx context.Context, ids ...string) error {
	m.search.RLock()
	defer m.search.RUnlock()
	m.indexMu.Lock()
	defer m.indexMu.Unlock()
	defer m.clearCache() // the database has changed, whatever fails here
	lights, err := m.unaudited.IndexEntries(context.WithoutCancel(ctx), m.search.model, ids...)
	if err != nil {
		return fmt.Errorf("reading entries for the index: %w", err)
	}
	for _, l := range lights {
		if err := m.putIndexRow(l); err != nil {
			return err
		}
	}
	return nil
}

// indexNewEntry adds an entry that was just written at row to the index without reading it back, which would cost more
// than the write. touched are its id and those of the entries that changed with it; when there are any, v is nil or of
// another model than the index, or the entry was graded before it arrived, all of touched are read instead.
func (m *Memory) indexNewEntry(ctx context.Context, row uint64, e subjects.MemoryEntry, v *store.Vectors,
	touched []string,
) error {
	graded := false
	if e.Kind == subjects.KindEngram {
		var err error
		if graded, err = m.unaudited.HasGrades(ctx, e.Provenance.QueryID); err != nil {
			return err
		}
	}
	if graded || v == nil || len(touched) > 1 {
		return m.refreshIndex(ctx, touched...)
	}
	m.search.RLock()
	if v.Model != m.search.model {
		m.search.RUnlock()
		return m.refreshIndex(ctx, e.ID)
	}
	m.indexMu.Lock()
	l := store.IndexEntry{
		Row: row, ID: e.ID, Kind: e.Kind, State: e.State, Trust: e.Provenance.Trust,
		Source: string(e.Provenance.Source), Respondent: e.Respondent, Name: e.Name,
		Description: e.Description, Words: subjects.SearchText(e.Speaker, e.Happened, text.Clip(e.Corpus, maxWords)),
		Tags: e.Tags, Created: e.Created, Pinned: e.Pinned,
		Conversation: e.Conversation, Position: e.Position, Speaker: e.Speaker, Happened: e.Happened,
		CorpusVector: v.Corpus, NameVector: v.Name, DescriptionVector: v.Description,
	}
	err := m.putIndexRow(l)
	m.indexMu.Unlock()
	m.search.RUnlock()
	if err != nil || e.Kind != subjects.KindEngram {
		return err
	}
	// A grade that arrived in between is in the database, and found no entry in the index to update.
	if graded, err = m.unaudited.HasGrades(ctx, e.Provenance.QueryID); err != nil || !graded {
		return err
	}
	return m.refreshIndex(ctx, e.ID)
}

// maxWords is the length of the corpus prefix that the search by words reads, as in [store.IndexEntry].
const maxWords = 2000

// putIndexRow puts one entry into the index and invalidates cached replies. The caller holds search for reading, and
// indexMu.
func (m *Memory) putIndexRow(l store.IndexEntry) error {
	defer m.clearCache()
	if err := m.search.index.Put(indexRow(l), indexVectors(l)); err != nil {
		return fmt.Errorf("indexing %s: %w", l.ID, err)
	}
	return nil
}

// removeFromIndex removes deleted entries from the index, and invalidates cached replies.
func (m *Memory) removeFromIndex(all []store.Deleted) {
	m.search.RLock()
	defer m.search.RUnlock()
	m.indexMu.Lock()
	defer m.indexMu.Unlock()
	defer m.clearCache()
	for _, g := range all {
		m.search.index.Remove(g.Row)
	}
}

// updateIndexGrades updates grades in the index, and invalidates cached replies. Entries that are not in the index yet
// are skipped.
func (m *Memory) updateIndexGrades(all []store.Graded) {
	m.search.RLock()
	defer m.search.RUnlock()
	m.indexMu.Lock()
	defer m.indexMu.Unlock()
	defer m.clearCache()
	for _, g := range all {
		m.search.index.Grade(g.Row, g.Grades)
	}
}

// clearCache removes all cached replies, when there is a cache.
func (m *Memory) clearCache() {
	if m.cache != nil {
		m.cache.Clear()
	}
}

// searchIndex searches the index. A vector of another size, left from a former model, is ignored: the search is by
// words then.
func (m *Memory) searchIndex(q recall.Query) (recall.Found, error) {
	m.search.RLock()
	defer m.search.RUnlock()
	if len(q.Vector) != 0 && len(q.Vector) != m.search.dims {
		q.Vector = nil
	}
	return m.search.index.Find(q)
}
