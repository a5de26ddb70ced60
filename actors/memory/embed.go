package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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

// Task prefixes that the embedding model expects. No other package adds them.
const (
	queryPrefix    = "search_query: "
	documentPrefix = "search_document: "
)

// maxEmbedded bounds the prefix of a text that is embedded, in bytes: a model has a window of some thousand tokens.
const maxEmbedded = 6 << 10

// embedBatch is the number of texts per EmbedTimeout.
const embedBatch = 32

// errVectors means that the reply of the embedding model is unusable.
var errVectors = errors.New("unusable vectors")

// embed returns the name of the embedding model and one vector per text, all of the same size. Texts are cut to maxEmbedded bytes
// behind prefix. When the model is another than the index has, the index is switched to it. A reply without a model name or with
// missing, empty, zero, infinite or differing vectors is rejected with errVectors, and so is a known model with another vector
// size. texts must not be empty.
func (m *Memory) embed(ctx context.Context, out actor.Out, prefix string, texts []string) (string, [][]float32, error) {
	prefixed := make([]string, len(texts))
	for i, t := range texts {
		if t = strings.TrimSpace(strings.ToValidUTF8(t, "\uFFFD")); t == "" {
			t = "-" // some servers reject an empty text
		}
		prefixed[i] = prefix + text.Clip(t, maxEmbedded)
	}
	timeout := m.cfg.EmbedTimeout * time.Duration(1+len(prefixed)/embedBatch)
	got, err := wire.Client{Out: out, Timeout: timeout}.Embed(ctx, "", prefixed)
	if err != nil {
		return "", nil, err
	}
	if got.Model == "" {
		return "", nil, fmt.Errorf("%w: the reply names no model", errVectors)
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
			return "", nil, fmt.Errorf("%w: %s made vectors of %d dimensions before and of %d now", errVectors, got.Model, size, dims)
		}
		if err := m.switchIndex(ctx, got.Model, dims); err != nil {
			return "", nil, err
		}
		m.wakeBackfill()
	}
	return got.Model, got.Values, nil
}

// checkVector rejects an empty vector and one of another size than dims, with NaN or infinity, or of length zero. The error
// continues a sentence that begins with the model.
func checkVector(v []float32, dims int) error {
	if len(v) == 0 || len(v) != dims {
		return fmt.Errorf("made vectors of %d and of %d dimensions", dims, len(v))
	}
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	switch {
	case math.IsNaN(sum) || math.IsInf(sum, 0):
		return errors.New("made a vector with NaN or infinity")
	case sum == 0:
		return errors.New("made a zero vector")
	}
	return nil
}

// embedQuery returns the vector of a query. It fails when no embedding model is available.
func (m *Memory) embedQuery(ctx context.Context, out actor.Out, query string) ([]float32, error) {
	_, v, err := m.embed(ctx, out, queryPrefix, []string{query})
	if err != nil {
		return nil, err
	}
	return v[0], nil
}

// embedEntries returns the vectors of name, description and corpus of each entry, in order, from one request: all or an error.
// entries must not be empty.
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

// askModel returns the function by which a digester calls the model for summaries, with at most 1024 tokens and ModelTimeout.
// Replies of the built-in demo model are errors, so that plain rules are used.
func (m *Memory) askModel(out actor.Out) digest.Ask {
	return func(ctx context.Context, system, user string, schema json.RawMessage) (string, error) {
		demo, zero := false, 0.0
		client := wire.Client{
			Out: out, Role: subjects.RoleSummaries, Hint: "simple", Timeout: m.cfg.ModelTimeout,
			OnDone: func(c subjects.ChatChunk) { demo = c.DemoModel },
		}
		reply, _, err := model.Collect(client.Chat(ctx, model.Request{
			Messages: []model.Message{{Role: model.System, Content: system}, {Role: model.User, Content: user}}, Format: schema,
			Options: model.Options{Predict: 1024, Temperature: &zero},
		}))
		if err == nil && demo {
			err = errors.New("the built-in demo model cannot summarize")
		}
		return reply.Content, err
	}
}
