package actor

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"conclave/subjects"
)

// An actor serves the micro protocol itself, with the protocol's types: the micro package counts a request as handled
// when its callback returns, but callbacks here only enqueue, and consumer routes have no callback.

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

// semanticVersion is the form that the micro protocol requires; clients skip replies of any other.
var semanticVersion = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// DiscoveryVersion returns the version of a build for the micro protocol: "0.0.0-dev" for a build without a version.
func DiscoveryVersion(build string) string {
	if v := strings.TrimPrefix(build, "v"); semanticVersion.MatchString(v) {
		return v
	}
	return "0.0.0-dev"
}

// StateMetadata is the name of an actor's [State] in the metadata of its statistics: one without routes has it nowhere
// else.
const StateMetadata = "state"

// serveDiscovery subscribes to the discovery subjects $SRV.PING, INFO and STATS of this name and of this instance. The
// replies are those of the NATS micro protocol, with the description of the table; a [Describer] adds metadata. The
// directory also answers requests without a name, for all actors.
func (r *running) serveDiscovery() error {
	name := r.actor.Name()
	identity := func() micro.ServiceIdentity {
		id := micro.ServiceIdentity{
			Name: name, ID: r.id, Version: DiscoveryVersion(r.cfg.Version),
			Metadata: map[string]string{},
		}
		// for each reply: the address of a gateway is known only when it has started
		if d, ok := r.actor.(Describer); ok {
			maps.Copy(id.Metadata, d.Describe())
		}
		return id
	}
	text := ""
	for _, d := range subjects.Table().Discoverables() {
		if d.Name == name {
			text = d.Doc
		}
	}
	started := r.cfg.Now().UTC()
	answers := map[string]func() any{
		"PING": func() any { return micro.Ping{ServiceIdentity: identity(), Type: micro.PingResponseType} },
		"INFO": func() any { return r.info(identity(), text) },
		"STATS": func() any {
			id := identity()
			state, _, _ := r.health.Snapshot()
			id.Metadata[StateMetadata] = string(state)
			return StatsReply{
				Stats: micro.Stats{
					ServiceIdentity: id, Type: micro.StatsResponseType, Started: started,
					Endpoints: r.stats(),
				},
				Counter: r.health.id, Samples: r.samples(),
			}
		},
	}
	r.out.ownStats = answers["STATS"]
	for verb, answer := range answers {
		on := []string{"$SRV." + verb + "." + name, "$SRV." + verb + "." + name + "." + r.id}
		if name == subjects.Directory {
			on = append(on, "$SRV."+verb)
			if err := r.serveDirectory(verb); err != nil {
				return err
			}
		}
		for _, subject := range on {
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
	i := micro.Info{
		ServiceIdentity: id, Type: micro.InfoResponseType, Description: text,
		Endpoints: []micro.EndpointInfo{},
	}
	for _, l := range r.routes {
		i.Endpoints = append(i.Endpoints, micro.EndpointInfo{
			Name: l.endpoint, Subject: l.spec.Subscription(),
			QueueGroup: r.actor.Name(),
		})
	}
	return i
}

// nameEndpoints gives each route the name of its endpoint: the subject as its publisher knows it, without wildcards,
// its tokens joined by "-": tool-request for agent.*.tool.request.>. Of two routes with one name, the second gets a
// number.
func nameEndpoints(routes []*routeRun) {
	used := map[string]int{}
	for _, l := range routes {
		var tokens []string
		for i, token := range strings.Split(l.spec.Subscription(), ".") {
			if isAttested(l.spec) && i < 2 || token == "*" || token == ">" {
				continue
			}
			tokens = append(tokens, token)
		}
		l.endpoint = strings.Join(tokens, "-")
		used[l.endpoint]++
		if n := used[l.endpoint]; n > 1 {
			l.endpoint += "-" + strconv.Itoa(n)
		}
	}
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
			Name: l.endpoint, Subject: l.spec.Subscription(), QueueGroup: r.actor.Name(),
			NumRequests: f.count + f.rejected, NumErrors: f.errors + f.rejected, LastError: f.lastErr,
			ProcessingTime: f.total,
		}
		g := RouteStats{
			State: state, Restarts: restarts, Mailbox: l.mailbox.length(), InFlight: l.inFlight.Load(),
			Rejected: f.rejected,
		}
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
