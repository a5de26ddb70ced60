package model

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
