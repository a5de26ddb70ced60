package gateway

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"conclave/pkg/actor"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// metricsTimeout bounds one collection. What does not answer within it is missing in the response, and counted in
// conclave_scrape_errors.
const metricsTimeout = 3 * time.Second

// onMetrics serves the metrics of all actors, and of the Go runtime of the gateway's process, in the text format of
// Prometheus.
func (g *Gateway) onMetrics(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := g.withTimeout(r.Context(), lookupTimeout)
	defer cancel()
	text := append(encodeMetrics(g.metrics.collect(ctx, g)), encodeRuntimeMetrics()...)
	w.Header().Set("Content-Type", metricsType)
	_, _ = w.Write(text) // the client is gone
	return nil
}

// metricStore adds up the counters of actors. An actor may have several instances, in several processes, and its
// counters start at zero in each; the sums only grow while the gateway runs.
type metricStore struct {
	mu       sync.Mutex
	counters map[string]*counterSet // by the id of the counters
	retired  map[string]*telemetry.Sample
	ended    []string // ids of the counters in retired, the last of them
}

// counterSet is the last known counters of an instance.
type counterSet struct {
	actor   string
	samples []telemetry.Sample
	seen    time.Time
}

// Bounds of the store: instances whose last values are kept, ids of earlier ones, samples that one reply may have, and
// sums.
const (
	maxCounterSets  = 256
	maxEnded        = 4096
	maxReplySamples = 4000
	maxSums         = 100_000
)

// metricsByName finds the description of a metric.
var metricsByName = func() map[string]*telemetry.Metric {
	out := map[string]*telemetry.Metric{}
	for _, m := range telemetry.All {
		out[m.Name] = m
	}
	return out
}()

// collect reads the samples of all actors and of the system. A part that cannot be read is missing.
func (s *metricStore) collect(ctx context.Context, g *Gateway) sampleList {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var system sampleList
	wg.Go(func() { system = g.measureSystem(ctx) })
	stats, err := actor.CollectStats(ctx, g.out)
	wg.Wait()
	system = append(system, newErrorSample("actors", err))
	return append(s.merge(stats, g.out.Now()), system...)
}

// merge adds up the samples of replies: counters and histograms of all instances that were ever seen, gauges of those
// that replied. Samples of unknown metrics, or with a wrong number of labels or buckets, are skipped: another machine
// may run another version, and is not trusted with names.
func (s *metricStore) merge(stats []actor.StatsReply, now time.Time) (out sampleList) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counters == nil {
		s.counters, s.retired = map[string]*counterSet{}, map[string]*telemetry.Sample{}
	}
	gauges, system := map[string]*telemetry.Sample{}, map[string]telemetry.Sample{}
	for _, reply := range stats {
		set := &counterSet{actor: reply.Name, seen: now}
		for i, sample := range reply.Samples {
			m := metricsByName[sample.Name]
			if m == nil || i >= maxReplySamples || !isValidSample(m, sample) {
				continue
			}
			switch {
			case m.System && reply.Name == subjects.Registry:
				system[strings.Join(append([]string{sample.Name}, sample.Labels...), "\x00")] = sample
			case m.System:
			case m.Kind == telemetry.Gauge:
				addSample(gauges, reply.Name, sample)
			default:
				set.samples = append(set.samples, sample)
			}
		}
		if id := reply.Name + " " + reply.Counter; reply.Counter != "" && !slices.Contains(s.ended, id) {
			s.counters[id] = set
		}
	}
	for _, sample := range system {
		out = append(out, actorSample{Sample: sample})
	}
	s.retire()
	sums := map[string]*telemetry.Sample{}
	for key, sample := range s.retired {
		name, _, _ := strings.Cut(key, "\x00")
		addSample(sums, name, *sample)
	}
	for _, set := range s.counters {
		for _, sample := range set.samples {
			addSample(sums, set.actor, sample)
		}
	}
	for _, all := range []map[string]*telemetry.Sample{sums, gauges} {
		for key, sample := range all {
			name, _, _ := strings.Cut(key, "\x00")
			out = append(out, actorSample{name, *sample})
		}
	}
	return out
}

// retire adds the counters of the instances that were not seen for the longest time to the sums of their actor, until
// the number of the others is within its bound. Such an instance is not counted when it replies again. The caller holds
// mu.
func (s *metricStore) retire() {
	if len(s.counters) <= maxCounterSets {
		return
	}
	var ids []string
	for id := range s.counters {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(s.counters[a].seen.Compare(s.counters[b].seen), cmp.Compare(a, b))
	})
	for _, id := range ids[:len(ids)-maxCounterSets] {
		for _, sample := range s.counters[id].samples {
			addSample(s.retired, s.counters[id].actor, sample)
		}
		delete(s.counters, id)
		s.ended = append(s.ended, id)
	}
	s.ended = s.ended[max(0, len(s.ended)-maxEnded):]
}

// isValidSample reports whether a sample fits its metric.
func isValidSample(m *telemetry.Metric, s telemetry.Sample) bool {
	return len(s.Labels) == len(m.Labels) && (m.Kind != telemetry.Histogram || len(s.Counts) == len(m.Buckets)+1) &&
		s.Value >= 0
}

// addSample adds a sample of an actor to the one with the same name and labels in sums, which has at most [maxSums].
func addSample(sums map[string]*telemetry.Sample, actor string, s telemetry.Sample) {
	key := strings.Join(append([]string{actor, s.Name}, s.Labels...), "\x00")
	sum := sums[key]
	if sum == nil && len(sums) >= maxSums {
		return
	}
	if sum == nil {
		sum = &telemetry.Sample{Name: s.Name, Labels: s.Labels, Counts: make([]uint64, len(s.Counts))}
		sums[key] = sum
	}
	sum.Value += s.Value
	for i, n := range s.Counts {
		sum.Counts[i] += n
	}
}

// measureSystem reads the figures of the system that no actor counts. None of them is content.
func (g *Gateway) measureSystem(ctx context.Context) (out sampleList) {
	sources := []struct {
		name string
		read func(add func(m *telemetry.Metric, v float64, labels ...string)) error
	}{
		{"approvals", func(add func(*telemetry.Metric, float64, ...string)) error {
			l, err := g.client.Approvals(ctx, false)
			if err == nil {
				add(&telemetry.ApprovalsWaiting, float64(len(l.Approvals)))
			}
			return err
		}},
		{"memory", func(add func(*telemetry.Metric, float64, ...string)) error {
			status, err := g.client.MemoryStatus(ctx)
			for kind, n := range status.Entries {
				add(&telemetry.MemoryEntries, float64(n), kind)
			}
			return err
		}},
		{"machines", func(add func(*telemetry.Metric, float64, ...string)) error {
			all, err := g.client.Machines(ctx)
			up := 0
			for _, m := range all {
				if !m.Connected.IsZero() {
					up++
				}
			}
			if err == nil {
				add(&telemetry.Machines, float64(up), "up")
				add(&telemetry.Machines, float64(len(all)-up), "down")
			}
			return err
		}},
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range sources {
		wg.Go(func() {
			var own sampleList
			err := s.read(func(m *telemetry.Metric, v float64, labels ...string) {
				own = append(own, actorSample{Sample: telemetry.Sample{Name: m.Name, Labels: labels, Value: v}})
			})
			mu.Lock()
			defer mu.Unlock()
			out = append(append(out, own...), newErrorSample(s.name, err))
		})
	}
	wg.Wait()
	return out
}

// newErrorSample tells whether a part of a scrape could not be read.
func newErrorSample(source string, err error) actorSample {
	s := telemetry.Sample{Name: telemetry.Unanswered.Name, Labels: []string{source}}
	if err != nil {
		s.Value = 1
	}
	return actorSample{Sample: s}
}

// actorSample is a sample with the actor it belongs to, "" for one of the system.
type actorSample struct {
	actor string
	telemetry.Sample
}

// sampleList is the samples of one scrape. They are valid and have different labels.
type sampleList []actorSample
