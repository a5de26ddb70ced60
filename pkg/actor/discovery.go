package actor

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// An actor serves the micro protocol itself, with the protocol's types: the micro package counts a request as handled when
// its callback returns, but callbacks here only enqueue, and consumer routes have no callback.

// RouteStats is the data of each route in a STATS reply, beyond the protocol's own fields.
type RouteStats struct {
	State       State   `json:"state"`
	Restarts    int     `json:"restarts"`
	LastFailure string  `json:"last_fall,omitempty"`
	Mailbox     int     `json:"mailbox"`
	InFlight    int64   `json:"in_flight"`
	Rejected    int     `json:"refused"`
	P50         float64 `json:"p50_ms"`
	P95         float64 `json:"p95_ms"`
	P99         float64 `json:"p99_ms"`
}

// routeCounters are the counters and latencies of one route.
type routeCounters struct {
	mu       sync.Mutex
	hist     *hdrhistogram.Histogram // microseconds
	total    time.Duration
	count    int
	errors   int
	rejected int
	lastErr  string
}

// recordHandled counts one handled message that took d, as an error unless err is nil. The text of err is not kept:
// discovery is readable by other accounts.
func (f *routeCounters) recordHandled(d time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hist == nil {
		f.hist = hdrhistogram.New(1, int64(time.Hour/time.Microsecond), 2)
	}
	_ = f.hist.RecordValue(max(1, d.Microseconds()))
	f.total += d
	f.count++
	if err != nil {
		f.errors++
		f.lastErr = "handler failed"
	}
}

// recordRejected counts a rejected message: a request and an error of no duration.
func (f *routeCounters) recordRejected(code string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rejected++
	f.lastErr = "rejected: " + code
}

// serveDiscovery subscribes to the discovery subjects $SRV.PING, INFO and STATS, each for all actors, for this name and for
// this instance. The replies are those of the NATS micro protocol; a [Describer] adds version, text and metadata.
func (r *running) serveDiscovery() error {
	name := r.actor.Name()
	identity := micro.ServiceIdentity{Name: name, ID: r.id, Version: "0.1.0"}
	text := "conclave actor"
	if d, ok := r.actor.(Describer); ok {
		identity.Version, text, identity.Metadata = d.Describe()
	}
	if identity.Metadata == nil {
		identity.Metadata = map[string]string{}
	}
	started := r.cfg.Now().UTC()
	answers := map[string]func() any{
		"PING": func() any { return micro.Ping{ServiceIdentity: identity, Type: micro.PingResponseType} },
		"INFO": func() any { return r.info(identity, text) },
		"STATS": func() any {
			return micro.Stats{ServiceIdentity: identity, Type: micro.StatsResponseType, Started: started, Endpoints: r.stats()}
		},
	}
	for verb, answer := range answers {
		for _, subject := range []string{"$SRV." + verb, "$SRV." + verb + "." + name, "$SRV." + verb + "." + name + "." + r.id} {
			sub, err := r.nc.Subscribe(subject, func(m *nats.Msg) {
				if body, err := json.Marshal(answer()); err == nil {
					_ = m.Respond(body)
				}
			})
			if err != nil {
				return fmt.Errorf("subscribing to %s: %w", subject, err)
			}
			r.subs = append(r.subs, sub)
		}
	}
	return nil
}

func (r *running) info(id micro.ServiceIdentity, text string) micro.Info {
	i := micro.Info{ServiceIdentity: id, Type: micro.InfoResponseType, Description: text, Endpoints: []micro.EndpointInfo{}}
	for _, l := range r.routes {
		i.Endpoints = append(i.Endpoints, micro.EndpointInfo{Name: l.endpointName(), Subject: l.spec.Subscription(), QueueGroup: r.actor.Name()})
	}
	return i
}

// endpointName returns the route's subject with ".", "*", ">" and "$", which an endpoint name must not have, replaced by
// "_".
func (l *routeRun) endpointName() string {
	b := []byte(l.spec.Subscription())
	for i, c := range b {
		if c == '.' || c == '*' || c == '>' || c == '$' {
			b[i] = '_'
		}
	}
	return string(b)
}

// stats returns the statistics of each route. Rejected messages count as requests and as errors; times are of handled
// messages only, and zero before the first. Data holds a [RouteStats].
func (r *running) stats() []*micro.EndpointStats {
	state, restarts, last := r.health.Snapshot()
	out := []*micro.EndpointStats{}
	for _, l := range r.routes {
		f := &l.counters
		f.mu.Lock()
		s := &micro.EndpointStats{
			Name: l.endpointName(), Subject: l.spec.Subscription(), QueueGroup: r.actor.Name(),
			NumRequests: f.count + f.rejected, NumErrors: f.errors + f.rejected, LastError: f.lastErr, ProcessingTime: f.total,
		}
		g := RouteStats{State: state, Restarts: restarts, Mailbox: len(l.mailbox), InFlight: l.inFlight.Load(), Rejected: f.rejected}
		if last != nil {
			g.LastFailure = last.Error()
		}
		if f.count > 0 {
			s.AverageProcessingTime = f.total / time.Duration(f.count)
			ms := func(q float64) float64 { return float64(f.hist.ValueAtQuantile(q)) / 1000 }
			g.P50, g.P95, g.P99 = ms(50), ms(95), ms(99)
		}
		f.mu.Unlock()
		s.Data, _ = json.Marshal(g)
		out = append(out, s)
	}
	return out
}
