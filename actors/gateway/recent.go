package gateway

// recentMap keeps the values of the keys that were added last. The zero value is ready; it has no lock.
type recentMap[K comparable, V any] struct {
	values map[K]V
	order  []K
}

// put sets the value of a key. Beyond limit keys, the one that was added first is dropped.
func (m *recentMap[K, V]) put(key K, value V, limit int) {
	if m.values == nil {
		m.values = map[K]V{}
	}
	if _, known := m.values[key]; !known {
		m.order = append(m.order, key)
	}
	m.values[key] = value
	if len(m.order) > limit {
		delete(m.values, m.order[0])
		m.order = m.order[1:]
	}
}
