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
	forQuery    = "search_query: "
	forDocument = "search_document: "
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
		if err := usable(v, dims); err != nil {
			return "", nil, fmt.Errorf("%w: %s %v", errVectors, got.Model, err)
		}
	}
	if len(got.Values) != len(texts) {
		return "", nil, fmt.Errorf("%w: %d for %d texts", errVectors, len(got.Values), len(texts))
	}
	m.space.RLock()
	same := m.space.model == got.Model && m.space.dims == dims
	known, size := m.space.model, m.space.dims
	m.space.RUnlock()
	if !same {
		if known == got.Model && size != dims {
			return "", nil, fmt.Errorf("%w: %s made vectors of %d numbers before and of %d now", errVectors, got.Model, size, dims)
		}
		if err := m.turn(ctx, got.Model, dims); err != nil {
			return "", nil, err
		}
		m.nudge()
	}
	return got.Model, got.Values, nil
}

// usable reports why a vector cannot be used.
func usable(v []float32, dims int) error {
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
	_, v, err := m.embed(ctx, out, forQuery, []string{query})
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
	by, v, err := m.embed(ctx, out, forDocument, texts)
	if err != nil {
		return nil, err
	}
	made := make([]*store.Vectors, len(entries))
	for i := range entries {
		made[i] = &store.Vectors{Model: by, Name: v[3*i], Description: v[3*i+1], Corpus: v[3*i+2]}
	}
	return made, nil
}

// ask is how texts are put before a small model. The built-in demo model is none.
func (m *Memory) ask(out actor.Out) digest.Ask {
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

// nudge says that there is something to catch up with.
func (m *Memory) nudge() {
	select {
	case m.wake <- struct{}{}:
	default: // it is known
	}
}

// Catching up: so many entries at a time, and so long until the model is tried again.
const (
	catchBatch = 8
	catchRetry = 30 * time.Second
)

// catchUp makes what could not be made when an entry came: words for the search, and vectors that wait for their model.
func (m *Memory) catchUp(ctx context.Context, out actor.Out) {
	m.warm(ctx, out)
	m.approximate(ctx, out)
	retry := time.NewTimer(catchRetry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-retry.C:
		}
		for ctx.Err() == nil {
			n, err := m.embedSome(ctx, out)
			if err != nil && ctx.Err() == nil && !away(err) {
				out.Note(fmt.Errorf("making vectors that were missing: %w", err))
			}
			if n == 0 || err != nil {
				break
			}
		}
		m.warm(ctx, out)
		m.approximate(ctx, out)
		retry.Reset(catchRetry)
	}
}

// warm reads the words of what is remembered.
func (m *Memory) warm(ctx context.Context, out actor.Out) {
	m.space.RLock()
	defer m.space.RUnlock()
	if err := m.space.index.Warm(ctx); err != nil && ctx.Err() == nil {
		out.Note(fmt.Errorf("reading the words of what is remembered: %w", err))
	}
}

// damaged are some entries whose vectors the index could not take.
func (m *Memory) damaged(ctx context.Context) ([]subjects.MemoryEntry, error) {
	m.space.RLock()
	rows := slices.Clone(m.space.bad[:min(catchBatch, len(m.space.bad))])
	m.space.RUnlock()
	if len(rows) == 0 {
		return nil, nil
	}
	entries, err := m.db.Rows(ctx, rows...)
	if err == nil && len(entries) == 0 {
		m.mended(rows...) // they are forgotten
	}
	return entries, err
}

// mended takes rows off the list of those whose vectors cannot be used.
func (m *Memory) mended(rows ...uint64) {
	m.space.Lock()
	defer m.space.Unlock()
	m.space.bad = slices.DeleteFunc(slices.Clone(m.space.bad), func(row uint64) bool { return slices.Contains(rows, row) })
}

// embedSome makes vectors for some entries that have none of the model at hand. It reports how many it made.
func (m *Memory) embedSome(ctx context.Context, out actor.Out) (int, error) {
	m.space.RLock()
	by := m.space.model
	m.space.RUnlock()
	waiting, err := m.db.Unembedded(ctx, by, catchBatch+len(m.aside))
	if err != nil {
		return 0, err
	}
	waiting = slices.DeleteFunc(waiting, func(e subjects.MemoryEntry) bool { return out.Now().Before(m.aside[e.ID]) })
	if waiting = waiting[:min(catchBatch, len(waiting))]; len(waiting) == 0 {
		if waiting, err = m.damaged(ctx); err != nil || len(waiting) == 0 {
			return 0, err
		}
	}
	vectors, err := m.embedEntries(ctx, out, waiting...)
	if err != nil {
		if len(waiting) == 1 || away(err) || ctx.Err() != nil {
			return 0, err
		}
		return m.embedSingly(ctx, out, waiting) // one of them may be what the model refuses
	}
	for i, e := range waiting {
		if err := m.vectored(ctx, e, *vectors[i]); err != nil {
			return 0, err
		}
	}
	return len(waiting), nil
}

// away reports whether there is no model to make vectors, whatever the text.
func away(err error) bool {
	return errors.Is(err, model.ErrMissing) || errors.Is(err, model.ErrUnreachable)
}

// embedSingly makes vectors one entry at a time. Those that the model refuses are set aside for a while, so that the
// others get theirs.
func (m *Memory) embedSingly(ctx context.Context, out actor.Out, waiting []subjects.MemoryEntry) (n int, err error) {
	for _, e := range waiting {
		v, err := m.embedEntries(ctx, out, e)
		switch {
		case err != nil && (away(err) || ctx.Err() != nil):
			return n, err
		case err != nil:
			if m.aside == nil || len(m.aside) > maxAside {
				m.aside = map[string]time.Time{}
			}
			m.aside[e.ID] = out.Now().Add(refusedFor)
			out.Note(fmt.Errorf("the model makes no vectors of %s, which is found by its words: %w", e.ID, err))
			continue
		}
		if err := m.vectored(ctx, e, *v[0]); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// Entries that the model refuses: so many are remembered, for so long.
const (
	maxAside   = 1000
	refusedFor = time.Hour
)

// vectored gives an entry its vectors, unless it was changed since.
func (m *Memory) vectored(ctx context.Context, e subjects.MemoryEntry, v store.Vectors) error {
	ctx, end := through(ctx)
	defer end()
	if err := m.db.SetVectors(ctx, e.ID, e.Updated, v); err != nil && !errors.Is(err, store.ErrChanged) {
		return err
	}
	m.space.RLock()
	waits := len(m.space.bad) > 0
	m.space.RUnlock()
	if waits {
		lights, err := m.db.Lights(ctx, v.Model, e.ID)
		if err != nil {
			return err
		}
		for _, l := range lights {
			m.mended(l.Row)
		}
	}
	return m.follow(ctx, e.ID)
}
