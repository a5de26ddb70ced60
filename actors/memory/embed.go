package memory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"conclave/actors/memory/digest"
	"conclave/actors/memory/store"
	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/model/wire"
	"conclave/pkg/text"
	"conclave/pkg/vector"
	"conclave/subjects"
)

// maxEmbedded bounds the prefix of a text that is embedded, in bytes. The model actor splits it into windows of the
// model.
const maxEmbedded = 16 << 10

// embedBatch is the number of texts per EmbedTimeout.
const embedBatch = 32

// errVectors means that the reply of the embedding model is unusable.
var errVectors = errors.New("unusable vectors")

// embedded is the reply of the embedding model.
type embedded struct {
	model   string
	vectors [][]float32   // one per text, nil for those in failed; all of the same size
	failed  map[int]error // by the index of the text
}

// embed embeds texts, cut to maxEmbedded bytes, for a task of [subjects.EmbedRequest]. When the model is another than
// the index has, the index is switched to it. A reply without a model name or without one vector per text is rejected
// with errVectors, and so is a known model with another vector size. A text whose vector is empty, zero, infinite or of
// another size than the first has failed; when all have, that is the error. The error is kept for the status. texts
// must not be empty.
func (m *Memory) embed(ctx context.Context, out actor.Out, task string, texts []string) (embedded, error) {
	e, err := m.requestVectors(ctx, out, task, texts)
	switch {
	case err == nil:
		m.embedProblem.Store(nil)
	case ctx.Err() == nil:
		reason := text.OneLine(err.Error(), maxProblem)
		m.embedProblem.Store(&reason)
	}
	return e, err
}

// maxProblem bounds the reason of a failure in the status, in bytes.
const maxProblem = 400

// embeddingProblem returns why entries have no vectors, "" when nothing is known.
func (m *Memory) embeddingProblem() string {
	for _, p := range []*string{m.embedProblem.Load(), m.rejection.Load()} {
		if p != nil {
			return *p
		}
	}
	return ""
}

// requestVectors is [Memory.embed] without a record of the outcome.
func (m *Memory) requestVectors(ctx context.Context, out actor.Out, task string, texts []string) (embedded, error) {
	clipped := make([]string, len(texts))
	for i, t := range texts {
		if t = strings.TrimSpace(strings.ToValidUTF8(t, "\uFFFD")); t == "" {
			t = "-" // some servers reject an empty text
		}
		clipped[i] = text.Clip(t, maxEmbedded)
	}
	timeout := embedTimeout * time.Duration(1+len(clipped)/embedBatch)
	got, err := wire.Client{Out: out, Timeout: timeout, Task: task}.Embed(ctx, "", clipped)
	if err != nil {
		return embedded{}, err
	}
	if got.Model == "" {
		return embedded{}, fmt.Errorf("%w: the reply names no model", errVectors)
	}
	if len(got.Values) != len(texts) {
		return embedded{}, fmt.Errorf("%w: %d for %d texts", errVectors, len(got.Values), len(texts))
	}
	e, dims := embedded{model: got.Model, vectors: got.Values, failed: map[int]error{}}, 0
	for i, v := range got.Values {
		err := got.Failed[i]
		if err == nil {
			dims = cmp.Or(dims, len(v))
			if bad := vector.Check(v, dims); bad != nil {
				err = fmt.Errorf("%w of %s: %w", errVectors, got.Model, bad)
			}
		}
		if err != nil {
			e.failed[i], e.vectors[i] = err, nil
		}
	}
	if err := e.failed[0]; err != nil && len(e.failed) == len(texts) {
		return e, err
	}
	return e, m.adoptModel(ctx, got.Model, dims)
}

// adoptModel switches the index to a model that it does not have, and starts the backfill. It rejects a known model
// with another vector size with errVectors.
func (m *Memory) adoptModel(ctx context.Context, name string, dims int) error {
	m.search.RLock()
	known, size := m.search.model, m.search.dims
	m.search.RUnlock()
	switch {
	case known == name && size == dims:
		return nil
	case known == name:
		return fmt.Errorf("%w: %s made vectors of %d dimensions before and of %d now", errVectors, name, size, dims)
	}
	if err := m.switchIndex(ctx, name, dims); err != nil {
		return err
	}
	m.wakeBackfill()
	return nil
}

// embedQuery returns the vector of a query. It fails when no embedding model is available.
func (m *Memory) embedQuery(ctx context.Context, out actor.Out, query string) ([]float32, error) {
	e, err := m.embed(ctx, out, subjects.EmbedQuery, []string{query})
	if err != nil {
		return nil, err
	}
	return e.vectors[0], nil
}

// embedEntries returns the vectors of each entry, in order, from one request: that of its search text, and those of
// name and description where they say something else (see saysMore). A name or description that the model rejects has
// none of its own. The vector of a search text that is rejected is that of the description or the name; an entry
// without any has nil and its reason in failed, by index. An error means that the model could not be used. entries must
// not be empty.
func (m *Memory) embedEntries(ctx context.Context, out actor.Out, entries ...subjects.MemoryEntry) (
	made []*store.Vectors, failed map[int]error, err error,
) {
	made, failed = make([]*store.Vectors, len(entries)), map[int]error{}
	var texts []string
	var vectors []*[]float32           // of texts
	first := make([]int, len(entries)) // index of the search text
	for i, e := range entries {
		made[i], first[i] = &store.Vectors{}, len(texts)
		texts, vectors = append(texts, e.SearchText()), append(vectors, &made[i].Corpus)
		if saysMore(e.Name, e) {
			texts, vectors = append(texts, e.Name), append(vectors, &made[i].Name)
		}
		if saysMore(e.Description, e) {
			texts, vectors = append(texts, e.Description), append(vectors, &made[i].Description)
		}
	}
	got, err := m.embed(ctx, out, subjects.EmbedDocument, texts)
	if err != nil && len(got.failed) < len(texts) {
		return nil, nil, err
	}
	for i, to := range vectors {
		*to = got.vectors[i]
	}
	for i, v := range made {
		v.Model = got.model
		if v.Corpus = firstVector(v.Corpus, v.Description, v.Name); v.Corpus == nil {
			made[i], failed[i] = nil, got.failed[first[i]]
		}
	}
	return made, failed, nil
}

// saysMore reports whether a name or description says something that the search text of its entry does not: it has
// words, and they are not contained in it in this order. Case, accents and punctuation do not count, nor the dots of a
// text that was cut.
func saysMore(s string, e subjects.MemoryEntry) bool {
	words := text.NameKey(s)
	return words != "" && !strings.Contains(" "+text.NameKey(e.SearchText())+" ", " "+words+" ")
}

// firstVector returns the first of the vectors that is not nil.
func firstVector(all ...[]float32) []float32 {
	for _, v := range all {
		if v != nil {
			return v
		}
	}
	return nil
}

// askModel returns the function by which a digester calls the model for summaries, with at most 1024 tokens and
// ModelTimeout, without thinking. background means that no user waits for the result. Replies of the built-in demo
// model are errors, so that plain rules are used.
func (m *Memory) askModel(out actor.Out, background bool) digest.Ask {
	return func(ctx context.Context, system, user string, schema json.RawMessage) (string, error) {
		demo, zero, quiet := false, 0.0, false
		client := wire.Client{
			Out: out, Role: subjects.RoleSummaries, Hint: "simple", Timeout: modelTimeout, Background: background,
			OnDone: func(c subjects.ChatChunk) { demo = c.DemoModel },
		}
		reply, _, err := model.Collect(client.Chat(ctx, model.Request{
			Messages: []model.Message{{Role: model.System, Content: system}, {Role: model.User, Content: user}},
			Format:   schema, Think: &quiet,
			Options: model.Options{Predict: 1024, Temperature: &zero},
		}))
		if err == nil && demo {
			err = errors.New("the built-in demo model cannot summarize")
		}
		return reply.Content, err
	}
}
