package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
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

// indexVectors returns the vectors of an entry for the index.
func indexVectors(v *store.Vectors) recall.Vectors {
	if v == nil {
		return recall.Vectors{}
	}
	return recall.Vectors{Corpus: v.Corpus, Description: v.Description, Name: v.Name}
}

// refreshIndex reads entries from the database, updates the index and drops cached replies. Ids that do not exist are
// not removed from the index: see removeFromIndex. It is not canceled with ctx.
func (m *Memory) refreshIndex(ctx context.Context, ids ...string) error {
	m.search.RLock()
	defer m.search.RUnlock()
	m.indexMu.Lock()
	defer m.indexMu.Unlock()
	defer m.cache.Clear() // the database has changed, whatever fails here
	lights, err := m.unaudited.IndexEntries(context.WithoutCancel(ctx), m.search.model, ids...)
	if err != nil {
		return fmt.Errorf("reading entries for the index: %w", err)
	}
	for _, l := range lights {
		if err := m.search.index.Put(l.Row, l.MemoryEntry, indexVectors(l.Vectors)); err != nil {
			return fmt.Errorf("indexing %s: %w", l.ID, err)
		}
	}
	return nil
}

// removeFromIndex removes deleted entries from the index, and invalidates cached replies.
func (m *Memory) removeFromIndex(all []store.Deleted) {
	m.search.RLock()
	defer m.search.RUnlock()
	m.indexMu.Lock()
	defer m.indexMu.Unlock()
	defer m.cache.Clear()
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
	defer m.cache.Clear()
	for _, g := range all {
		m.search.index.Grade(g.Row, g.Grades)
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
