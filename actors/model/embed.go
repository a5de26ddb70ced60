package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/subjects"
)

// onEmbed computes embeddings with the requested model, or that of the embeddings role, or fails: embeddings of two
// models cannot be compared, so that no model but the demo model, which says so, takes the place of another. It rejects
// a malformed request, and denies one for a missing model, for one on another machine without permission, and when the
// queue is full; each is recorded.
func (m *Model) onEmbed(ctx context.Context, in actor.Msg[subjects.EmbedRequest], out actor.Out) (subjects.EmbedReply, error) {
	ctx, end := m.calls.track(ctx, in.Query)
	defer end()
	begun := out.Now()
	texts, err := json.Marshal(in.Body.Texts)
	if err != nil {
		return subjects.EmbedReply{}, err
	}
	rec := m.newRecord(subjects.ActionModelEmbed, in.From, in.Session, in.Query, in.Body.Model, texts)
	if err := checkEmbed(in.Body); err != nil {
		return subjects.EmbedReply{}, m.refuse(ctx, out, rec, err)
	}
	name := in.Body.Model
	if name == "" {
		name = m.cfg.Roles[subjects.RoleEmbeddings]
	}
	t, err := m.findModel(ctx, name, begun)
	if rec.Tool = name; err == nil {
		rec.Tool = t.name
		if t.server.embeddings.isFull(in.From) {
			err = errQueueFull
		}
	}
	if err != nil {
		return subjects.EmbedReply{}, m.refuse(ctx, out, rec, err)
	}
	return actor.Audited(ctx, out, m.gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.EmbedReply, error) {
		v, began, err := runEmbed(ctx, p, t, in.Body.Texts, newRequester(in.From, in.Session))
		if errors.Is(err, model.ErrMissing) {
			t.server.dropCache()
		}
		if err := reportOutcome(ctx, p, began, err); err != nil {
			return subjects.EmbedReply{}, err
		}
		return subjects.EmbedReply{Vectors: v.Values, Model: t.name}, nil
	})
}

// runEmbed waits for a slot and computes the embeddings. began reports whether the model was asked. It rejects a reply
// without one vector per text, and vectors that are empty or longer than maxVector.
func runEmbed(ctx context.Context, p *actor.Permit, t target, texts []string, from requester) (vectors model.Vectors, began bool, err error) {
	if err := p.Check(); err != nil {
		return vectors, false, err
	}
	began, err = t.server.embeddings.run(ctx, from.account, from.key, t.backendName, func(turn context.Context) (err error) {
		if vectors, err = t.server.backend.Embed(turn, t.backendName, texts); err != nil {
			return preemptionError(turn, err, false)
		}
		if len(vectors.Values) != len(texts) || slices.ContainsFunc(vectors.Values, func(v []float32) bool { return len(v) == 0 || len(v) > maxVector }) {
			return fmt.Errorf("%w: the vectors of %s do not fit the texts", model.ErrMalformed, t.name)
		}
		return nil
	})
	return vectors, began, err
}

// checkEmbed rejects an invalid model name ("" is valid), no texts and more than maxTexts of them.
func checkEmbed(q subjects.EmbedRequest) error {
	if q.Model != "" {
		if err := checkName(q.Model); err != nil {
			return subjects.Faultf(subjects.CodeMalformed, "%v", err)
		}
	}
	if len(q.Texts) == 0 || len(q.Texts) > maxTexts {
		return subjects.Faultf(subjects.CodeMalformed, "%d texts; a request may have between 1 and %d", len(q.Texts), maxTexts)
	}
	return nil
}
