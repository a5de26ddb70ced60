package memory

import (
	"context"
	"fmt"

	"conclave/actors/memory/recall"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
)

// DuckDB's extension for approximate search, when the settings name its file. Its index is in memory beside the exact one,
// which goes on scoring: the extension only chooses whose names are looked at. Until it is filled, and whenever it fails,
// searches are exact.

// approximateBatch is how many vectors go into the approximate index at once.
const approximateBatch = 256

// approximateFactor is how many more than the wanted names the approximate index is asked for: it misses some.
const approximateFactor = 4

// fillApproximate fills the index of the extension.
func (m *Memory) fillApproximate(ctx context.Context, out actor.Out) {
	if m.cfg.VSS == "" {
		return
	}
	m.search.RLock()
	near, model, dims := m.search.near, m.search.model, m.search.dims
	m.search.RUnlock()
	if near != nil {
		return
	}
	if m.unaudited.ErrVSS() != nil {
		return // doctor says so
	}
	near, err := m.unaudited.NewApproximate(ctx, dims)
	if err == nil {
		m.search.Lock()
		if m.search.model != model || m.search.dims != dims { // it would hold vectors of a model that is no longer asked
			m.search.Unlock()
			return
		}
		m.search.near = near // what is written from now on goes there too
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
	m.approximateReady.Store(m.search.near == near)
}

// loadApproximate puts every name into an approximate index.
func (m *Memory) loadApproximate(ctx context.Context, near store.ApproximateIndex, model string) error {
	var rows []uint64
	var vectors []float32
	flush := func() error {
		err := near.Put(ctx, rows, vectors)
		rows, vectors = rows[:0], vectors[:0]
		return err
	}
	err := m.unaudited.Load(ctx, model, func(l store.IndexEntry) error {
		if l.NameVector == nil {
			return nil
		}
		rows, vectors = append(rows, l.Row), append(vectors, l.NameVector...)
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

// narrowCandidates lets the approximate index choose whose names are compared. It is asked for no kind and no state, so a query for
// these looks at all. The caller holds the space.
func (m *Memory) narrowCandidates(ctx context.Context, q recall.Query) recall.Query {
	if m.search.near == nil || !m.approximateReady.Load() || q.Vector == nil || q.Kind != "" || q.All {
		return q
	}
	names := q.Names
	if names == 0 {
		names = m.cfg.Results
	}
	found, err := m.search.near.Nearest(ctx, q.Vector, approximateFactor*names)
	if err != nil {
		return q
	}
	q.Among = make([]uint64, len(found))
	for i, n := range found {
		q.Among[i] = n.Row
	}
	return q
}

// searchMethod says in words for a person which way a search takes now. The caller holds the space.
func (m *Memory) searchMethod() string {
	switch why := m.unaudited.ErrVSS(); {
	case m.search.near != nil && m.approximateReady.Load():
		return "approximate by DuckDB's vss extension, scored exactly; " + m.search.index.DescribeSearch()
	case m.cfg.VSS != "" && why != nil:
		return m.search.index.DescribeSearch() + " (" + why.Error() + ")"
	case m.cfg.VSS != "":
		return m.search.index.DescribeSearch() + " (the approximate index is being filled)"
	}
	return m.search.index.DescribeSearch()
}
