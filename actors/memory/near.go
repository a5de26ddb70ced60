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

// nearBatch is how many vectors go into the approximate index at once.
const nearBatch = 256

// spare is how many more than the wanted names the approximate index is asked for: it misses some.
const spare = 4

// approximate fills the index of the extension.
func (m *Memory) approximate(ctx context.Context, out actor.Out) {
	if m.cfg.VSS == "" {
		return
	}
	m.space.RLock()
	near, model, dims := m.space.near, m.space.model, m.space.dims
	m.space.RUnlock()
	if near != nil {
		return
	}
	if m.db.ErrVSS() != nil {
		return // doctor says so
	}
	near, err := m.db.Approximate(ctx, dims)
	if err == nil {
		m.space.Lock()
		if m.space.model != model || m.space.dims != dims { // it would hold vectors of a model that is no longer asked
			m.space.Unlock()
			return
		}
		m.space.near = near // what is written from now on goes there too
		m.space.Unlock()
		err = m.fillNear(ctx, near, model)
	}
	if err != nil {
		if ctx.Err() == nil {
			out.Note(fmt.Errorf("searches stay exact: %w", err))
		}
		return
	}
	m.space.RLock()
	defer m.space.RUnlock()
	m.ready.Store(m.space.near == near)
}

// fillNear puts every name into an approximate index.
func (m *Memory) fillNear(ctx context.Context, near store.Approximate, model string) error {
	var rows []uint64
	var vectors []float32
	flush := func() error {
		err := near.Put(ctx, rows, vectors)
		rows, vectors = rows[:0], vectors[:0]
		return err
	}
	err := m.db.Load(ctx, model, func(l store.Light) error {
		if l.NameVector == nil {
			return nil
		}
		rows, vectors = append(rows, l.Row), append(vectors, l.NameVector...)
		if len(rows) == nearBatch {
			return flush()
		}
		return nil
	})
	if err == nil && len(rows) > 0 {
		err = flush()
	}
	return err
}

// among lets the approximate index choose whose names are compared. It is asked for no kind and no state, so a query for
// these looks at all. The caller holds the space.
func (m *Memory) among(ctx context.Context, q recall.Query) recall.Query {
	if m.space.near == nil || !m.ready.Load() || q.Vector == nil || q.Kind != "" || q.All {
		return q
	}
	names := q.Names
	if names == 0 {
		names = m.cfg.Results
	}
	found, err := m.space.near.Nearest(ctx, q.Vector, spare*names)
	if err != nil {
		return q
	}
	q.Among = make([]uint64, len(found))
	for i, n := range found {
		q.Among[i] = n.Row
	}
	return q
}

// path says in words for a person which way a search takes now. The caller holds the space.
func (m *Memory) path() string {
	switch why := m.db.ErrVSS(); {
	case m.space.near != nil && m.ready.Load():
		return "approximate by DuckDB's vss extension, scored exactly; " + m.space.index.Path()
	case m.cfg.VSS != "" && why != nil:
		return m.space.index.Path() + " (" + why.Error() + ")"
	case m.cfg.VSS != "":
		return m.space.index.Path() + " (the approximate index is being filled)"
	}
	return m.space.index.Path()
}
