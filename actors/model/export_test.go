package model

// Inside counts who has a slot for large models at Ollama, who waits for one, and the same for vectors.
func (m *Model) Inside() (running, waiting int) {
	s := m.servers[Ollama]
	for _, q := range []*queue{s.large, s.vectors} {
		q.mu.Lock()
		running += len(q.runs)
		for _, n := range q.waits {
			waiting += n
		}
		q.mu.Unlock()
	}
	return running, waiting
}
