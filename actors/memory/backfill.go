package memory

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/text"
	"conclave/subjects"
)

// wakeBackfill starts a run of the backfill, now or after the current one. It does not wait.
func (m *Memory) wakeBackfill() {
	select {
	case m.backfillWake <- struct{}{}:
	default: // a run is due already
	}
}

const (
	backfillSize  = 8 // entries per request
	backfillRetry = 30 * time.Second
	maxDeferred   = 1000 // entries
	deferFor      = time.Hour
	maxRejections = 6 // of one text by one model
)

// deferral is about an entry that the embedding model rejected.
type deferral struct {
	model      string    // the model that rejected it
	updated    time.Time // the version of the entry
	rejections int
	until      time.Time // it is not retried before
}

// isDeferred reports whether an entry is not to be embedded by a model now: it was rejected a short while ago, or
// maxRejections times. Another version of the entry and another model are tried at once.
func (m *Memory) isDeferred(e subjects.MemoryEntry, by string, now time.Time) bool {
	d := m.deferred[e.ID]
	return d.rejections > 0 && d.model == by && d.updated.Equal(e.Updated) &&
		(now.Before(d.until) || d.rejections >= maxRejections)
}

// deferEntry notes that a model rejected an entry, logs why and keeps it for the status. The time until the next
// attempt doubles with each rejection, from deferFor on.
func (m *Memory) deferEntry(out actor.Out, e subjects.MemoryEntry, by string, why error) {
	now := out.Now()
	out.LogError(fmt.Errorf("the model rejects %s, which is found by words only: %w", e.ID, why))
	reason := text.OneLine(fmt.Sprintf("%s is rejected: %v", e.ID, why), maxProblem)
	m.rejection.Store(&reason)
	if m.deferred == nil || len(m.deferred) > maxDeferred {
		m.deferred = map[string]deferral{}
	}
	d := m.deferred[e.ID]
	if d.model != by || !d.updated.Equal(e.Updated) {
		d = deferral{model: by, updated: e.Updated}
	}
	d.until = now.Add(deferFor << d.rejections)
	d.rejections++
	m.deferred[e.ID] = d
}

// manyRows is from how many entries on loading them leaves more garbage than a forced collection is worth.
const manyRows = 1000

// runBackfill indexes the words of loaded entries. Then it embeds entries without vectors and has a model describe new
// entries: once at the start, at each wakeBackfill and every backfillRetry. Errors are logged, except that no model is
// available. It runs until ctx ends.
func (m *Memory) runBackfill(ctx context.Context, out actor.Out) {
	m.search.RLock()
	index := m.search.index
	m.search.RUnlock()
	if err := index.IndexWords(ctx); err != nil {
		return // ctx has ended
	}
	m.cache.Clear() // of what was found without words
	if index.Stats().Rows >= manyRows {
		debug.FreeOSMemory() // what loading the entries left
	}
	retry := time.NewTimer(backfillRetry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.backfillWake:
		case <-retry.C:
		}
		for ctx.Err() == nil {
			n, err := m.backfillBatch(ctx, out)
			if err != nil && ctx.Err() == nil && !isModelUnavailable(err) {
				out.LogError(fmt.Errorf("embedding entries without vectors: %w", err))
			}
			if n == 0 || err != nil {
				break
			}
		}
		m.refinePending(ctx, out)
		retry.Reset(backfillRetry)
	}
}

// backfillBatch embeds up to backfillSize entries without vectors of the current model and returns how many; 0 means
// that none is left that is not deferred. Entries that the model rejects are deferred; when a request fails as a whole,
// each entry is embedded alone.
func (m *Memory) backfillBatch(ctx context.Context, out actor.Out) (int, error) {
	m.search.RLock()
	by := m.search.model
	m.search.RUnlock()
	waiting, err := m.unaudited.Unembedded(ctx, by, backfillSize+len(m.deferred))
	if err != nil {
		return 0, err
	}
	waiting = slices.DeleteFunc(waiting, func(e subjects.MemoryEntry) bool { return m.isDeferred(e, by, out.Now()) })
	if waiting = waiting[:min(backfillSize, len(waiting))]; len(waiting) == 0 {
		return 0, nil
	}
	made, failed, err := m.embedEntries(ctx, out, waiting...)
	if err != nil && !isModelUnavailable(err) && ctx.Err() == nil {
		made, failed, err = m.embedSingly(ctx, out, waiting)
	}
	n := 0
	for i, v := range made {
		if v == nil {
			m.deferEntry(out, waiting[i], by, failed[i])
			continue
		}
		if err := m.storeVectors(ctx, waiting[i], *v); err != nil {
			return n, err
		}
		n++
	}
	return n, err
}

// embedSingly is [Memory.embedEntries] one by one, so that a text at which a request fails does not block the others.
// It ends with an error when the model is unavailable or ctx ends; made has the entries before.
func (m *Memory) embedSingly(ctx context.Context, out actor.Out, entries []subjects.MemoryEntry) (
	made []*store.Vectors, failed map[int]error, err error,
) {
	failed = map[int]error{}
	for i, e := range entries {
		one, why, err := m.embedEntries(ctx, out, e)
		switch {
		case err != nil && (isModelUnavailable(err) || ctx.Err() != nil):
			return made, failed, err
		case err != nil:
			made, failed[i] = append(made, nil), err
		default:
			made, failed[i] = append(made, one[0]), why[0]
		}
	}
	return made, failed, nil
}

// isModelUnavailable reports whether err is about the model and not about a text.
func isModelUnavailable(err error) bool {
	return errors.Is(err, model.ErrMissing) || errors.Is(err, model.ErrUnreachable) || errors.Is(err, model.ErrSwap)
}

// storeVectors stores the vectors of an entry and updates the index, also when the caller has gone. Vectors of an entry
// that was edited since it was read as e are discarded without an error; a forgotten entry is an error.
func (m *Memory) storeVectors(ctx context.Context, e subjects.MemoryEntry, v store.Vectors) error {
	ctx, cancel := detach(ctx)
	defer cancel()
	if err := m.unaudited.SetVectors(ctx, e.ID, e.Updated, v); err != nil && !errors.Is(err, store.ErrChanged) {
		return err
	}
	return m.refreshIndex(ctx, e.ID)
}
