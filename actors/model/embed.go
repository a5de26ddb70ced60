package model

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/telemetry"
	"conclave/pkg/text"
	"conclave/subjects"
)

// onEmbed computes embeddings with the requested model, or that of the embeddings role, or fails: embeddings of two
// models cannot be compared, so that no model but the demo model, which says so, takes the place of another. It rejects
// a malformed request, and denies one for a missing model, for one on another machine without permission, when the
// queue is full, and when it was seen to unload the model that answers; each is recorded.
func (m *Model) onEmbed(ctx context.Context, in actor.Msg[subjects.EmbedRequest], out actor.Out) (subjects.EmbedReply,
	error,
) {
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
	name = cmp.Or(name, m.cfg.Roles[subjects.RoleEmbeddings])
	t, err := m.findEmbedder(ctx, name, begun)
	rec.Tool = name
	if err == nil {
		rec.Tool = t.key()
		if t.server.embeddings.isFull(newRequester(in.From, in.Session, false)) {
			err = errQueueFull
		} else {
			err = m.checkSwap(ctx, t)
		}
	}
	if err != nil {
		return subjects.EmbedReply{}, m.refuse(ctx, out, rec, err)
	}
	return actor.Audited(ctx, out, m.gate, rec, func(ctx context.Context, p *actor.Permit) (subjects.EmbedReply,
		error,
	) {
		reply, began, err := m.runEmbed(ctx, p, t, in.Body, newRequester(in.From, in.Session, false))
		if errors.Is(err, model.ErrMissing) {
			t.server.dropCache()
		}
		if err := reportOutcome(ctx, p, began, err); err != nil {
			return subjects.EmbedReply{}, err
		}
		return reply, nil
	})
}

// runEmbed waits for a slot and computes the embeddings; see [textEmbedder]. began reports whether the model was asked.
func (m *Model) runEmbed(ctx context.Context, p *actor.Permit, t target, q subjects.EmbedRequest, from requester) (
	reply subjects.EmbedReply, began bool, err error,
) {
	if err := p.Check(); err != nil {
		return reply, false, err
	}
	began, err = t.server.embeddings.run(ctx, from, t.backendName, func(turn context.Context) error {
		e := newTextEmbedder(t, q.Task)
		turn, span := telemetry.StartSpan(turn, telemetry.GenAIOperationEmbed+" "+t.name, telemetry.KindClient,
			telemetry.String(telemetry.GenAIOperation, telemetry.GenAIOperationEmbed),
			telemetry.String(telemetry.GenAIProvider, t.server.name), telemetry.String(telemetry.GenAIRequestModel,
				t.name))
		var vectors [][]float32
		var failed map[int]error
		err := m.watchSwap(turn, t, func() (err error) {
			vectors, failed, err = e.embedTexts(turn, q.Texts)
			return err
		})
		span.End(err)
		if err != nil {
			return preemptionError(turn, err, false)
		}
		reply = subjects.EmbedReply{Vectors: vectors, Model: t.name}
		for _, i := range slices.Sorted(maps.Keys(failed)) {
			reply.Failed = append(reply.Failed,
				subjects.EmbedFailure{Index: i, Reason: text.OneLine(failed[i].Error(), maxText)})
		}
		return nil
	})
	return reply, began, err
}

// checkEmbed rejects an invalid model name ("" is valid), an unknown task, no texts and more than maxTexts of them.
func checkEmbed(q subjects.EmbedRequest) error {
	if q.Model != "" {
		if err := checkName(q.Model); err != nil {
			return subjects.Faultf(subjects.CodeMalformed, "%v", err)
		}
	}
	if !slices.Contains([]string{"", subjects.EmbedQuery, subjects.EmbedDocument}, q.Task) {
		return subjects.Faultf(subjects.CodeMalformed, "the task is neither %s nor %s", subjects.EmbedQuery,
			subjects.EmbedDocument)
	}
	if len(q.Texts) == 0 || len(q.Texts) > maxTexts {
		return subjects.Faultf(subjects.CodeMalformed, "%d texts; a request may have between 1 and %d", len(q.Texts),
			maxTexts)
	}
	return nil
}
