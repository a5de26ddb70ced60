package model

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// ownTimeout is the timeout of one request of the actor itself, with the wait for its slot.
const ownTimeout = 10 * time.Minute

// Start implements [actor.Starter].
func (m *Model) Start(ctx context.Context, out actor.Out) error {
	m.spawn(ctx, func(ctx context.Context) { m.watchMachines(ctx, out) })
	return nil
}

// spawn runs work in the background, in the scope of ctx but not in its trace. The context of work ends when the actor
// closes, which waits for it.
func (m *Model) spawn(ctx context.Context, work func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(telemetry.WithScope(context.Background(), telemetry.ScopeOf(ctx)))
	m.running.Go(func() {
		defer cancel()
		defer context.AfterFunc(m.closing, cancel)()
		work(ctx)
	})
}

// runOwnChat asks a model on behalf of the actor itself, at the lowest priority and in the audit log like every call.
// It returns the whole reply; nothing is streamed.
func (m *Model) runOwnChat(ctx context.Context, out actor.Out, t target, r model.Request) (model.Chunk, error) {
	ctx, cancel := context.WithTimeout(ctx, ownTimeout)
	defer cancel()
	r.Stream = false
	messages, err := json.Marshal(r.Messages)
	if err != nil {
		return model.Chunk{}, fmt.Errorf("encoding a request: %w", err)
	}
	rec := m.newRecord(subjects.ActionModelChat, m.Name(), "", "", t.key(), messages)
	return actor.Audited(ctx, out, m.gate, rec, func(ctx context.Context, p *actor.Permit) (model.Chunk, error) {
		c := &chatCall{
			from: requester{m.Name(), m.Name(), lowest},
			send: func(subjects.ChatChunk) error { return nil },
		}
		c.in.Body.Role = "self_test"
		last, began, err := m.runChat(ctx, p, t, r, c)
		return last, reportOutcome(ctx, p, began, err)
	})
}
