// Package telemetry measures the system: metrics that each actor counts in its process, and traces over all actors.
//
// A [Meter] belongs to one actor and travels in the context of its handlers, in a [Scope]; its samples are part of the
// actor's discovery reply, and the gateway collects them when it is asked for metrics. So counting depends on nobody
// who watches, and actors in other processes count the same way. Labels are names of actors, tools, models and codes:
// never content, and no ids.
package telemetry

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"conclave/pkg/text"
)

// Kind is the type of a metric.
type Kind uint8

const (
	Counter Kind = iota + 1
	Gauge
	Histogram
)

// Metric describes the series of one name. The gateway adds the label "actor", except to metrics that are
// [Metric.System].
type Metric struct {
	Name, Help string
	Kind       Kind
	Labels     []string
	Buckets    []float64 // upper bounds of a histogram
	System     bool      // measured by the gateway for the whole system
}

// Sample is one series: a value, or the buckets of a histogram. It travels in discovery replies.
type Sample struct {
	Name   string   `json:"name"`
	Labels []string `json:"labels,omitempty"`
	Value  float64  `json:"value"`             // the sum of a histogram
	Counts []uint64 `json:"buckets,omitempty"` // per bucket, with one more for values above the last bound
}

// maxSeries bounds the series of one metric in a meter, maxLabel the bytes of a label. Series beyond it are counted
// under [OtherLabel].
const (
	maxSeries = 100
	maxLabel  = 100
)

// OtherLabel stands for label values beyond the bound of a meter.
const OtherLabel = "other"

// Meter counts what one actor does. It outlives restarts of the actor. It is safe for concurrent use; a nil meter
// counts nothing.
type Meter struct {
	mu     sync.Mutex
	series map[string]map[string]*Sample // by name and joined labels
}

// NewMeter returns a meter without series.
func NewMeter() *Meter { return &Meter{series: map[string]map[string]*Sample{}} }

// find returns the series of metric with these labels. The caller holds mu.
func (m *Meter) find(metric *Metric, labels []string) *Sample {
	key := strings.Join(labels, "\x00")
	all := m.series[metric.Name]
	if s := all[key]; s != nil {
		return s
	}
	if all == nil {
		all = map[string]*Sample{}
		m.series[metric.Name] = all
	}
	own := slices.Clone(labels)
	for i := range own {
		own[i] = text.Clip(strings.ToValidUTF8(own[i], "?"), maxLabel)
		if len(all) >= maxSeries {
			own[i] = OtherLabel
		}
	}
	if key = strings.Join(own, "\x00"); all[key] != nil {
		return all[key]
	}
	s := &Sample{Name: metric.Name, Labels: own}
	if metric.Kind == Histogram {
		s.Counts = make([]uint64, len(metric.Buckets)+1)
	}
	all[key] = s
	return s
}

// Add adds v to a counter, or counts the value v in a histogram. A wrong number of labels counts nothing.
func (m *Meter) Add(metric *Metric, v float64, labels ...string) {
	if m == nil || len(labels) != len(metric.Labels) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.find(metric, labels)
	s.Value += v
	if metric.Kind == Histogram {
		i, _ := slices.BinarySearch(metric.Buckets, v)
		s.Counts[i]++
	}
}

// Samples returns a copy of all series, sorted by name and labels.
func (m *Meter) Samples() []Sample {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Sample
	for _, all := range m.series {
		for _, s := range all {
			c := *s
			c.Counts = slices.Clone(s.Counts)
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Sample) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), slices.Compare(a.Labels, b.Labels))
	})
	return out
}

// Scope is what the handlers of one actor measure with. Each part may be missing.
type Scope struct {
	Actor   string
	Meter   *Meter
	Tracer  *Tracer      // exports spans
	Log     *slog.Logger // gets requests to models, decisions and tool calls at level debug
	Content bool         // spans may hold what users and models wrote
}

type scopeKey struct{}

// WithScope returns ctx with the scope of an actor.
func WithScope(ctx context.Context, s *Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

var noScope = &Scope{}

// ScopeOf returns the scope of ctx, an empty one without.
func ScopeOf(ctx context.Context) *Scope {
	if s, ok := ctx.Value(scopeKey{}).(*Scope); ok && s != nil {
		return s
	}
	return noScope
}

// ShowsContent reports whether spans below ctx may hold what users and models wrote.
func ShowsContent(ctx context.Context) bool { return ScopeOf(ctx).Content }

// Count adds one to a counter of the actor whose handler ctx belongs to. Without a meter it does nothing.
func Count(ctx context.Context, metric *Metric, labels ...string) {
	ScopeOf(ctx).Meter.Add(metric, 1, labels...)
}

// Add adds v to a counter, or counts the value v in a histogram, of the actor whose handler ctx belongs to.
func Add(ctx context.Context, metric *Metric, v float64, labels ...string) {
	ScopeOf(ctx).Meter.Add(metric, v, labels...)
}
