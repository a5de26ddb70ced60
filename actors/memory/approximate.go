package memory

import (
	"context"
	"fmt"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
)

// DuckDB's vss extension selects the candidates of a search when the configuration names its file. The exact index
// still scores them. Until the approximate index is filled, and whenever it fails, searches are exact.

// approximateBatch is the number of vectors that are added at once.
const approximateBatch = 256

// approximateFactor multiplies the number of requested candidates: the approximate index misses some.
const approximateFactor = 4

// fillApproximate creates and fills the approximate index when it is configured and missing, and waits until it is
// filled; searches are exact until then. A failure is logged, and an index that could not be filled is not filled again
// before the model changes.
func (m *Memory) fillApproximate(ctx context.Context, out actor.Out) {
	if m.cfg.VSS == "" {
		return
	}
	m.search.RLock()
	near, model, dims := m.search.approximate, m.search.model, m.search.dims
	m.search.RUnlock()
	if near != nil {
		return
	}
	if m.unaudited.ErrVSS() != nil {
		return // conclave doctor reports it
	}
	near, err := m.unaudited.NewApproximate(ctx, dims)
	if err == nil {
		m.search.Lock()
		if m.search.model != model || m.search.dims != dims { // the model was switched meanwhile
			m.search.Unlock()
			return
		}
		m.search.approximate = near // new entries are added from now on
		m.search.Unlock()
		err = m.loadApproximate(ctx, near, model)
	}
	if err != nil {
		if ctx.Err() == nil {
			out.LogError(fmt.Errorf("searches stay exact: %w", err))
		}
		return
	}
	m.search.RLock()
	defer m.search.RUnlock()
	m.approximateReady.Store(m.search.approximate == near)
}

// loadApproximate adds the corpus vector of every entry that has one of this model to near.
func (m *Memory) loadApproximate(ctx context.Context, near store.ApproximateIndex, model string) error {
	var rows []uint64
	var vectors []float32
	flush := func() error {
		err := near.Put(ctx, rows, vectors)
		rows, vectors = rows[:0], vectors[:0]
		return err
	}
	err := m.unaudited.Load(ctx, model, func(l store.IndexEntry) error {
		if l.CorpusVector == nil {
			return nil
		}
		rows, vectors = append(rows, l.Row), append(vectors, l.CorpusVector...)
		if len(rows) == approximateBatch {
			return flush()
		}
		return nil
	})
	if err == nil && len(rows) > 0 {
		err = flush()
	}
	return err
}

// narrowCandidates restricts a query to the rows that the approximate index selects. It returns q unchanged, for an
// exact search, when that index is not ready or fails, when q has no vector, and for a query for one kind or for all
// states: the approximate index knows neither. The caller holds search.
func (m *Memory) narrowCandidates(ctx context.Context, q recall.Query) recall.Query {
	if m.search.approximate == nil || !m.approximateReady.Load() || q.Vector == nil || q.Kind != "" || q.All {
		return q
	}
	names := q.Names
	if names == 0 {
		names = m.cfg.Results
	}
	found, err := m.search.approximate.Nearest(ctx, q.Vector, approximateFactor*names)
	if err != nil {
		return q
	}
	q.Among = make([]uint64, len(found))
	for i, n := range found {
		q.Among[i] = n.Row
	}
	return q
}

// searchMethod describes for the user how searches run now. The caller holds search.
func (m *Memory) searchMethod() string {
	switch why := m.unaudited.ErrVSS(); {
	case m.search.approximate != nil && m.approximateReady.Load():
		return "approximate by DuckDB's vss extension, scored exactly; " + m.search.index.DescribeSearch()
	case m.cfg.VSS != "" && why != nil:
		return m.search.index.DescribeSearch() + " (" + why.Error() + ")"
	case m.cfg.VSS != "":
		return m.search.index.DescribeSearch() + " (the approximate index is being filled)"
	}
	return m.search.index.DescribeSearch()
}
