package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/subjects"
)

// What the embedding model wants to stand before a text. Nobody else adds these.
const (
	queryPrefix    = "search_query: "
	documentPrefix = "search_document: "
)

// maxEmbedded bounds what of a text is embedded: a model's window is some thousand tokens, and the beginning says most.
const maxEmbedded = 6 << 10

// embedBatch is how many texts have the time of one request.
const embedBatch = 32

// errVectors means that what came back cannot be used as vectors.
var errVectors = errors.New("the vectors cannot be used")

// embed makes one vector of each text, all of the same size and of the same model. The index is turned to that model when
// it is another than before.
func (m *Memory) embed(ctx context.Context, out actor.Out, prefix string, texts []string) (string, [][]float32, error) {
	said := make([]string, len(texts))
	for i, t := range texts {
		if t = strings.TrimSpace(strings.ToValidUTF8(t, "\uFFFD")); t == "" {
			t = "-" // a server may refuse nothing
		}
		said[i] = prefix + text.Clip(t, maxEmbedded)
	}
	patience := m.cfg.EmbedTimeout * time.Duration(1+len(said)/embedBatch)
	got, err := wire.Client{Out: out, Timeout: patience}.Embed(ctx, "", said)
	if err != nil {
		return "", nil, err
	}
	if got.Model == "" {
		return "", nil, fmt.Errorf("%w: nobody says which model made them", errVectors)
	}
	dims := 0
	for _, v := range got.Values {
		if dims == 0 {
			dims = len(v)
		}
		if err := checkVector(v, dims); err != nil {
			return "", nil, fmt.Errorf("%w: %s %v", errVectors, got.Model, err)
		}
	}
	if len(got.Values) != len(texts) {
		return "", nil, fmt.Errorf("%w: %d for %d texts", errVectors, len(got.Values), len(texts))
	}
	m.search.RLock()
	same := m.search.model == got.Model && m.search.dims == dims
	known, size := m.search.model, m.search.dims
	m.search.RUnlock()
	if !same {
		if known == got.Model && size != dims {
			return "", nil, fmt.Errorf("%w: %s made vectors of %d numbers before and of %d now", errVectors, got.Model, size, dims)
		}
		if err := m.switchIndex(ctx, got.Model, dims); err != nil {
			return "", nil, err
		}
		m.wakeBackfill()
	}
	return got.Model, got.Values, nil
}

// checkVector reports why a vector cannot be used.
func checkVector(v []float32, dims int) error {
	if len(v) == 0 || len(v) != dims {
		return fmt.Errorf("made vectors of %d and of %d numbers", dims, len(v))
	}
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	switch {
	case math.IsNaN(sum) || math.IsInf(sum, 0):
		return errors.New("made a vector with something in it that is no number")
	case sum == 0:
		return errors.New("made a vector that points nowhere")
	}
	return nil
}

// embedQuery makes the vector of what is looked for.
func (m *Memory) embedQuery(ctx context.Context, out actor.Out, query string) ([]float32, error) {
	_, v, err := m.embed(ctx, out, queryPrefix, []string{query})
	if err != nil {
		return nil, err
	}
	return v[0], nil
}

// embedEntries makes the vectors of entries: name, description and corpus of each.
func (m *Memory) embedEntries(ctx context.Context, out actor.Out, entries ...subjects.MemoryEntry) ([]*store.Vectors, error) {
	texts := make([]string, 0, 3*len(entries))
	for _, e := range entries {
		texts = append(texts, e.Name, e.Description, e.Corpus)
	}
	by, v, err := m.embed(ctx, out, documentPrefix, texts)
	if err != nil {
		return nil, err
	}
	made := make([]*store.Vectors, len(entries))
	for i := range entries {
		made[i] = &store.Vectors{Model: by, Name: v[3*i], Description: v[3*i+1], Corpus: v[3*i+2]}
	}
	return made, nil
}

// askModel is how texts are put before a small model. The built-in demo model is none.
func (m *Memory) askModel(out actor.Out) digest.Ask {
	return func(ctx context.Context, system, user string, schema json.RawMessage) (string, error) {
		standIn, zero := false, 0.0
		client := wire.Client{
			Out: out, Role: subjects.RoleSummaries, Hint: "simple", Timeout: m.cfg.ModelTimeout,
			Last: func(c subjects.ChatChunk) { standIn = c.DemoModel },
		}
		reply, _, err := model.Collect(client.Chat(ctx, model.Request{
			Messages: []model.Message{{Role: model.System, Content: system}, {Role: model.User, Content: user}}, Format: schema,
			Options: model.Options{Predict: 1024, Temperature: &zero},
		}))
		if err == nil && standIn {
			err = errors.New("the built-in demo model is no model")
		}
		return reply.Content, err
	}
}

// wakeBackfill says that there is something to catch up with.
func (m *Memory) wakeBackfill() {
	select {
	case m.backfillWake <- struct{}{}:
	default: // it is known
	}
}

// Catching up: so many entries at a time, and so long until the model is tried again.
const (
	backfillSize  = 8
	backfillRetry = 30 * time.Second
)

// runBackfill makes what could not be made when an entry came: words for the search, and vectors that wait for their model.
func (m *Memory) runBackfill(ctx context.Context, out actor.Out) {
	m.warmIndex(ctx, out)
	m.fillApproximate(ctx, out)
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
				out.LogError(fmt.Errorf("making vectors that were missing: %w", err))
			}
			if n == 0 || err != nil {
				break
			}
		}
		m.warmIndex(ctx, out)
		m.fillApproximate(ctx, out)
		retry.Reset(backfillRetry)
	}
}

// warmIndex reads the words of what is remembered.
func (m *Memory) warmIndex(ctx context.Context, out actor.Out) {
	m.search.RLock()
	defer m.search.RUnlock()
	if err := m.search.index.Warm(ctx); err != nil && ctx.Err() == nil {
		out.LogError(fmt.Errorf("reading the words of what is remembered: %w", err))
	}
}

// unusableEntries are some entries whose vectors the index could not take.
func (m *Memory) unusableEntries(ctx context.Context) ([]subjects.MemoryEntry, error) {
	m.search.RLock()
	rows := slices.Clone(m.search.bad[:min(backfillSize, len(m.search.bad))])
	m.search.RUnlock()
	if len(rows) == 0 {
		return nil, nil
	}
	entries, err := m.unaudited.GetRows(ctx, rows...)
	if err == nil && len(entries) == 0 {
		m.clearUnusable(rows...) // they are forgotten
	}
	return entries, err
}

// clearUnusable takes rows off the list of those whose vectors cannot be used.
func (m *Memory) clearUnusable(rows ...uint64) {
	m.search.Lock()
	defer m.search.Unlock()
	m.search.bad = slices.DeleteFunc(slices.Clone(m.search.bad), func(row uint64) bool { return slices.Contains(rows, row) })
}

// backfillBatch makes vectors for some entries that have none of the model at hand. It reports how many it made.
func (m *Memory) backfillBatch(ctx context.Context, out actor.Out) (int, error) {
	m.search.RLock()
	by := m.search.model
	m.search.RUnlock()
	waiting, err := m.unaudited.Unembedded(ctx, by, backfillSize+len(m.deferred))
	if err != nil {
		return 0, err
	}
	waiting = slices.DeleteFunc(waiting, func(e subjects.MemoryEntry) bool { return out.Now().Before(m.deferred[e.ID]) })
	if waiting = waiting[:min(backfillSize, len(waiting))]; len(waiting) == 0 {
		if waiting, err = m.unusableEntries(ctx); err != nil || len(waiting) == 0 {
			return 0, err
		}
	}
	vectors, err := m.embedEntries(ctx, out, waiting...)
	if err != nil {
		if len(waiting) == 1 || isModelUnavailable(err) || ctx.Err() != nil {
			return 0, err
		}
		return m.backfillSingly(ctx, out, waiting) // one of them may be what the model refuses
	}
	for i, e := range waiting {
		if err := m.storeVectors(ctx, e, *vectors[i]); err != nil {
			return 0, err
		}
	}
	return len(waiting), nil
}

// isModelUnavailable reports whether there is no model to make vectors, whatever the text.
func isModelUnavailable(err error) bool {
	return errors.Is(err, model.ErrMissing) || errors.Is(err, model.ErrUnreachable)
}

// backfillSingly makes vectors one entry at a time. Those that the model refuses are set aside for a while, so that the
// others get theirs.
func (m *Memory) backfillSingly(ctx context.Context, out actor.Out, waiting []subjects.MemoryEntry) (n int, err error) {
	for _, e := range waiting {
		v, err := m.embedEntries(ctx, out, e)
		switch {
		case err != nil && (isModelUnavailable(err) || ctx.Err() != nil):
			return n, err
		case err != nil:
			if m.deferred == nil || len(m.deferred) > maxDeferred {
				m.deferred = map[string]time.Time{}
			}
			m.deferred[e.ID] = out.Now().Add(deferFor)
			out.LogError(fmt.Errorf("the model makes no vectors of %s, which is found by its words: %w", e.ID, err))
			continue
		}
		if err := m.storeVectors(ctx, e, *v[0]); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// Entries that the model refuses: so many are remembered, for so long.
const (
	maxDeferred = 1000
	deferFor    = time.Hour
)

// storeVectors gives an entry its vectors, unless it was changed since.
func (m *Memory) storeVectors(ctx context.Context, e subjects.MemoryEntry, v store.Vectors) error {
	ctx, end := detach(ctx)
	defer end()
	if err := m.unaudited.SetVectors(ctx, e.ID, e.Updated, v); err != nil && !errors.Is(err, store.ErrChanged) {
		return err
	}
	m.search.RLock()
	waits := len(m.search.bad) > 0
	m.search.RUnlock()
	if waits {
		lights, err := m.unaudited.IndexEntries(ctx, v.Model, e.ID)
		if err != nil {
			return err
		}
		for _, l := range lights {
			m.clearUnusable(l.Row)
		}
	}
	return m.refreshIndex(ctx, e.ID)
}
