package model

import (
	"context"
	"time"
)

// QueueCounts counts who has a slot for large models at Ollama, who waits for one, and the same for vectors.
func (m *Model) QueueCounts() (running, waiting int) {
	s := m.servers[Ollama]
	for _, q := range []*queue{s.large, s.embeddings} {
		q.mu.Lock()
		running += len(q.running)
		for _, n := range q.waiting {
			waiting += n
		}
		q.mu.Unlock()
	}
	return running, waiting
}

// asRequester is the requester of a queue test: key is the fairness key.
func asRequester(account, key string) requester {
	return requester{account: account, key: key, priority: priorityOf(account)}
}

// SetTimes changes the times of the link.
func (x *Executor) SetTimes(t LinkTimes) { x.times = t.withDefaults() }

// AgeSwaps makes the swaps that were seen older.
func (m *Model) AgeSwaps(d time.Duration) {
	m.swaps.mu.Lock()
	defer m.swaps.mu.Unlock()
	for key, s := range m.swaps.seen {
		m.swaps.seen[key] = swap{s.unloaded, s.at.Add(-d)}
	}
}

// DuringEmbedding runs work in place of a request for vectors, watched for a swap as one.
func (m *Model) DuringEmbedding(ctx context.Context, work func() error) error {
	t, err := m.findEmbedder(ctx, m.cfg.Roles["embeddings"], time.Now())
	if err != nil {
		return err
	}
	_, err = t.server.embeddings.run(ctx, asRequester("memory", ""), t.backendName, func(turn context.Context) error {
		return m.watchSwap(turn, t, work)
	})
	return err
}
