package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/text"
	"conclave/subjects"
)

// The index follows the database: what is written there is put here once it is durable, and what is gone there is taken
// out. Each of these is called after the write, never before.

// detach is a context for a write and for what follows it. The caller may go, but what was written must be found, and what
// was forgotten must not: the index does not stay behind the database.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// retryEvent does something for an event until it is done. What fails for a while, such as an audit that does not answer, is
// no reason to bury what was said: the stream waits as long as somebody works at it. A database that has stopped is opened
// anew by a restart.
func (m *Memory) retryEvent(ctx context.Context, out actor.Out, do func() error) error {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := do()
		var f *subjects.Fault
		switch {
		case err == nil:
			return nil
		case errors.Is(err, store.ErrBroken):
			return actor.Fatal(err)
		case errors.As(err, &f) && f.Code != subjects.CodeNoAudit && f.Code != subjects.CodeUnrecorded, !m.started.Load():
			return err
		}
		out.LogError(fmt.Errorf("it is tried again in %s: %w", wait, err))
		again := time.NewTimer(wait)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return err
		}
	}
}

// indexRow is an entry as the index knows it.
func indexRow(l store.IndexEntry) recall.Row {
	return recall.Row{
		Key: l.Row, ID: l.ID, Kind: l.Kind, State: l.State, Trust: l.Trust, Source: l.Source, Respondent: l.Respondent,
		Name: l.Name, Description: l.Description, Tags: l.Tags, Created: l.Created, Pinned: l.Pinned, Grades: l.Grades, Words: l.Words,
	}
}

// refreshIndex brings the index in step with some entries, as they are in the database now.
func (m *Memory) refreshIndex(ctx context.Context, ids ...string) error {
	m.search.RLock()
	defer m.search.RUnlock()
	m.indexMu.Lock()
	defer m.indexMu.Unlock()
	lights, err := m.unaudited.IndexEntries(context.WithoutCancel(ctx), m.search.model, ids...)
	if err != nil {
		return fmt.Errorf("reading what was written: %w", err)
	}
	defer m.invalidateCache(ids...)
	for _, l := range lights {
		if err := m.putIndexRow(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// indexNewEntry puts something new into the index, as it was just written: reading it back would cost more than the writing. What
// was changed with it, or graded before it came, is read.
func (m *Memory) indexNewEntry(ctx context.Context, row uint64, e subjects.MemoryEntry, v *store.Vectors, touched []string) error {
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
		Row: row, ID: e.ID, Kind: e.Kind, State: e.State, Trust: e.Provenance.Trust, Source: string(e.Provenance.Source), Respondent: e.Respondent, Name: e.Name,
		Description: e.Description, Words: text.Clip(e.Corpus, maxWords), Tags: e.Tags, Created: e.Created, Pinned: e.Pinned, NameVector: v.Name, DescriptionVector: v.Description,
	}
	err := m.putIndexRow(ctx, l)
	m.indexMu.Unlock()
	m.search.RUnlock()
	if err != nil || e.Kind != subjects.KindEngram {
		return err
	}
	// A grade that came between the look and the index is in the database: it found nothing here to grade.
	if graded, err = m.unaudited.HasGrades(ctx, e.Provenance.QueryID); err != nil || !graded {
		return err
	}
	return m.refreshIndex(ctx, e.ID)
}

// maxWords is how much of a corpus the search by words reads, as in [store.IndexEntry].
const maxWords = 2000

// putIndexRow puts one row into the index, and drops what was recalled without it. The caller holds the space and the steps.
func (m *Memory) putIndexRow(ctx context.Context, l store.IndexEntry) error {
	defer m.invalidateCache(l.ID)
	if err := m.search.index.Put(indexRow(l), l.NameVector, l.DescriptionVector); err != nil {
		return fmt.Errorf("indexing %s: %w", l.ID, err)
	}
	if m.search.near != nil && l.NameVector != nil && m.search.near.Put(context.WithoutCancel(ctx), []uint64{l.Row}, l.NameVector) != nil {
		m.approximateReady.Store(false) // it does not know everything any more: searches are exact again
	}
	if m.cache != nil {
		words := strings.Join(append([]string{l.Name, l.Description}, l.Tags...), " ")
		m.cache.Wrote(l.NameVector, words)
		if l.DescriptionVector != nil {
			m.cache.Wrote(l.DescriptionVector, words)
		}
	}
	return nil
}

// removeFromIndex takes entries out of the index.
func (m *Memory) removeFromIndex(all []store.Deleted) {
	m.search.RLock()
	defer m.search.RUnlock()
	m.indexMu.Lock()
	defer m.indexMu.Unlock()
	for _, g := range all {
		m.search.index.Remove(g.Row)
		if m.search.near != nil { // a row that stays there chooses nothing: the index that scores does not know it
			_ = m.search.near.Remove(context.Background(), g.Row)
		}
		m.invalidateCache(g.ID)
	}
}

// updateIndexGrades tells the index what others thought. What was recalled without an entry may have to be recalled with it now.
func (m *Memory) updateIndexGrades(ctx context.Context, all []store.Graded) {
	m.search.RLock()
	defer m.search.RUnlock()
	m.indexMu.Lock()
	defer m.indexMu.Unlock()
	ids := make([]string, len(all))
	for i, g := range all {
		m.search.index.Grade(g.Row, g.Grades)
		ids[i] = g.ID
	}
	if m.cache == nil || len(ids) == 0 {
		return
	}
	lights, err := m.unaudited.IndexEntries(context.WithoutCancel(ctx), m.search.model, ids...)
	if err != nil {
		m.cache.Clear()
		return
	}
	for _, l := range lights {
		m.cache.Wrote(l.NameVector, l.Name+" "+l.Description)
	}
	m.invalidateCache(ids...)
}

// invalidateCache forgets what was recalled with any of these in it.
func (m *Memory) invalidateCache(ids ...string) {
	if m.cache != nil {
		m.cache.Drop(ids...)
	}
}

// searchIndex searches what is in memory.
func (m *Memory) searchIndex(ctx context.Context, q recall.Query) (recall.Found, error) {
	m.search.RLock()
	defer m.search.RUnlock()
	if len(q.Vector) != 0 && len(q.Vector) != m.search.dims { // the model was changed in between
		q.Vector = nil
	}
	return m.search.index.Find(m.narrowCandidates(ctx, q))
}

// summarizeHit is an entry as the event of a recall tells of it.
func summarizeHit(h subjects.MemoryHit) subjects.MemoryRecall {
	e := h.Entry
	return subjects.MemoryRecall{
		ID: e.ID, Kind: e.Kind, Name: e.Name, Similarity: h.Similarity, Score: h.Score, Created: e.Created,
		Source: e.Provenance.Source, Trust: e.Provenance.Trust, Critic: e.Grades.Critic,
	}
}
