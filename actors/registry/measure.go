package registry

import (
	"conclave/pkg/bus"
	"conclave/pkg/telemetry"
)

// Streams is a server that knows the sizes of its streams; the embedded one does.
type Streams interface {
	StreamSizes() []bus.StreamSize
}

// Measure implements [actor.Measurer]: the sizes of all streams. The registry runs in the process of the server, and
// reads no message of them.
func (r *Registry) Measure() (out []telemetry.Sample) {
	s, ok := r.server.(Streams)
	if !ok {
		return nil
	}
	for _, st := range s.StreamSizes() {
		labels := []string{st.Name}
		out = append(out, telemetry.Sample{
			Name: telemetry.StreamMessages.Name, Labels: labels,
			Value: float64(st.Messages),
		},
			telemetry.Sample{Name: telemetry.StreamBytes.Name, Labels: labels, Value: float64(st.Bytes)})
		if st.MaxBytes > 0 {
			out = append(out, telemetry.Sample{
				Name: telemetry.StreamMaxBytes.Name, Labels: labels,
				Value: float64(st.MaxBytes),
			})
		}
	}
	return out
}
