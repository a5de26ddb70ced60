package gateway

import (
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"runtime/metrics"

	"conclave/pkg/local"
)

// profilesPath is the path below which the profiles of the process are served, when they are.
const profilesPath = "/debug/pprof/"

// countersPath serves the counters of the process.
const countersPath = "/debug/counters"

// checkProfiles fails when profiles are to be served on an address that other machines can reach.
func (g *Gateway) checkProfiles() error {
	if g.Counters == nil {
		return nil
	}
	if host, _, err := net.SplitHostPort(g.cfg.Listen); err != nil || !local.IsLocalHost(host) {
		return errors.New("profiles are served on a loopback address only: set gateway.listen to 127.0.0.1:8765, or " +
			"start without --pprof")
	}
	return nil
}

// profileRoutes lists the routes of [Gateway.Counters]; nil without it. The command line of the process, which
// net/http/pprof serves too, is left out.
func (g *Gateway) profileRoutes() []route {
	if g.Counters == nil {
		return nil
	}
	serve := func(h http.HandlerFunc) handler {
		return func(w http.ResponseWriter, r *http.Request) error {
			// A proxy for other machines, which names a host of gateway.hosts, must not reach them.
			if !local.IsLocalHost(trimPort(r.Host)) {
				return deniedf("profiles are served on this machine only")
			}
			h(w, r)
			return nil
		}
	}
	routes := []route{
		{"GET", profilesPath + "{$}", anyParams, serve(pprof.Index)},
		{"GET", profilesPath + "profile", anyParams, serve(pprof.Profile)},
		{"GET", profilesPath + "trace", anyParams, serve(pprof.Trace)},
		{"GET", countersPath, anyParams, serve(func(w http.ResponseWriter, _ *http.Request) {
			g.writeJSON(w, http.StatusOK, g.readCounters())
		})},
	}
	for _, name := range []string{"allocs", "block", "goroutine", "heap", "mutex", "threadcreate"} {
		routes = append(routes, route{"GET", profilesPath + name, anyParams, serve(pprof.Handler(name).ServeHTTP)})
	}
	return routes
}

// readCounters returns the counters of the Go runtime, and those of the function that the process has set.
func (g *Gateway) readCounters() map[string]int64 {
	out := map[string]int64{"goroutines": int64(runtime.NumGoroutine())}
	names := map[string]string{
		"/gc/heap/live:bytes": "heap_live", "/memory/classes/heap/objects:bytes": "heap_objects",
		"/memory/classes/heap/unused:bytes": "heap_unused",
		"/memory/classes/heap/free:bytes":   "heap_free", "/memory/classes/heap/stacks:bytes": "stacks",
		"/memory/classes/total:bytes":         "mapped",
		"/memory/classes/heap/released:bytes": "heap_released", "/gc/cycles/total:gc-cycles": "gc_cycles",
	}
	var samples []metrics.Sample
	for name := range names {
		samples = append(samples, metrics.Sample{Name: name})
	}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			out[names[s.Name]] = int64(s.Value.Uint64())
		}
	}
	maps.Copy(out, g.Counters())
	return out
}
