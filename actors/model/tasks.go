package model

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/model"
	"conclave/subjects"
)

// task is work of the actor that no request waits for. Its error is logged.
type task func(ctx context.Context, out actor.Out) error

const (
	maxTasks   = 8                // tasks that wait to be started; further ones are dropped
	ownTimeout = 10 * time.Minute // of one request of the actor itself, with the wait for its slot
)

// Start implements [actor.Starter]: tasks run until Close, whatever becomes of ctx.
func (m *Model) Start(ctx context.Context, out actor.Out) error {
	ctx, m.stopTasks = context.WithCancel(context.WithoutCancel(ctx))
	m.running.Go(func() { m.watchMachines(ctx, out) })
	m.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case run := <-m.tasks:
				m.running.Go(func() {
					if err := run(ctx, out); err != nil && ctx.Err() == nil {
						out.LogError(err)
					}
				})
			}
		}
	})
	return nil
}

// startTask queues a task and reports whether it did: it drops the task when maxTasks wait. It does not block.
func (m *Model) startTask(run task) bool {
	select {
	case m.tasks <- run:
		return true
	default:
		return false
	}
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
