package gateway

import (
	"bytes"
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"conclave/pkg/telemetry"
)

// metricsType is the text format of Prometheus.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

var metricKinds = map[telemetry.Kind]string{
	telemetry.Counter:   "counter",
	telemetry.Gauge:     "gauge",
	telemetry.Histogram: "histogram",
}

// labelEscaper escapes the value of a label.
var labelEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// encodeMetrics returns samples in the text format, sorted by name and labels. A sample with a label that is not UTF-8
// is left out.
func encodeMetrics(samples sampleList) []byte {
	type series struct {
		actorSample
		labels string
	}
	var all []series
	for _, s := range samples {
		if labels := s.encodeLabels(); utf8.ValidString(labels) {
			all = append(all, series{s, labels})
		}
	}
	slices.SortFunc(all, func(a, b series) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.labels, b.labels))
	})
	var out bytes.Buffer
	for i, s := range all {
		m := metricsByName[s.Name]
		if i == 0 || all[i-1].Name != s.Name {
			fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s %s\n", m.Name, m.Help, m.Name, metricKinds[m.Kind])
		}
		if m.Kind != telemetry.Histogram {
			writeSeries(&out, s.Name, s.labels, s.Value)
			continue
		}
		total := uint64(0)
		for i, n := range s.Counts {
			total += n
			bound := "+Inf"
			if i < len(m.Buckets) {
				bound = encodeFloat(m.Buckets[i])
			}
			writeSeries(&out, s.Name+"_bucket", s.labels+`,le="`+bound+`"`, float64(total))
		}
		writeSeries(&out, s.Name+"_sum", s.labels, s.Value)
		writeSeries(&out, s.Name+"_count", s.labels, float64(total))
	}
	return out.Bytes()
}

// encodeLabels returns the labels of a sample, sorted by name.
func (s actorSample) encodeLabels() string {
	var pairs []string
	add := func(name, value string) { pairs = append(pairs, name+`="`+labelEscaper.Replace(value)+`"`) }
	if s.actor != "" {
		add("actor", s.actor)
	}
	for i, name := range metricsByName[s.Name].Labels {
		add(name, s.Labels[i])
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

func writeSeries(out *bytes.Buffer, name, labels string, v float64) {
	if labels = strings.TrimPrefix(labels, ","); labels != "" {
		labels = "{" + labels + "}"
	}
	fmt.Fprintf(out, "%s%s %s\n", name, labels, encodeFloat(v))
}

func encodeFloat(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// encodeRuntimeMetrics returns the metrics of the Go runtime of this process in the text format, under the names of
// Prometheus's own library, which dashboards know.
func encodeRuntimeMetrics() []byte {
	var out bytes.Buffer
	gc := debug.GCStats{PauseQuantiles: make([]time.Duration, 5)}
	debug.ReadGCStats(&gc)
	out.WriteString("# TYPE go_gc_duration_seconds summary\n")
	for i, pause := range gc.PauseQuantiles {
		writeSeries(&out, "go_gc_duration_seconds", `quantile="`+encodeFloat(float64(i)/4)+`"`, pause.Seconds())
	}
	writeSeries(&out, "go_gc_duration_seconds_sum", "", gc.PauseTotal.Seconds())
	writeSeries(&out, "go_gc_duration_seconds_count", "", float64(gc.NumGC))
	fmt.Fprintf(&out, "# TYPE go_info gauge\ngo_info{version=%q} 1\n", runtime.Version())
	for _, f := range readRuntimeFigures() {
		kind := telemetry.Gauge
		if strings.HasSuffix(f.name, "_total") {
			kind = telemetry.Counter
		}
		fmt.Fprintf(&out, "# TYPE go_%s %s\n", f.name, metricKinds[kind])
		writeSeries(&out, "go_"+f.name, "", float64(f.value))
	}
	return out.Bytes()
}

// runtimeFigure is a metric of the Go runtime. Its name lacks the prefix "go_".
type runtimeFigure struct {
	name  string
	value uint64
}

func readRuntimeFigures() []runtimeFigure {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	threads, _ := runtime.ThreadCreateProfile(nil)
	limits := []metrics.Sample{{Name: "/gc/gogc:percent"}, {Name: "/gc/gomemlimit:bytes"}}
	metrics.Read(limits)
	return []runtimeFigure{
		{"gc_gogc_percent", limits[0].Value.Uint64()},
		{"gc_gomemlimit_bytes", limits[1].Value.Uint64()},
		{"goroutines", uint64(runtime.NumGoroutine())},
		{"memstats_alloc_bytes", m.Alloc},
		{"memstats_alloc_bytes_total", m.TotalAlloc},
		{"memstats_buck_hash_sys_bytes", m.BuckHashSys},
		{"memstats_frees_total", m.Frees},
		{"memstats_gc_sys_bytes", m.GCSys},
		{"memstats_heap_alloc_bytes", m.HeapAlloc},
		{"memstats_heap_idle_bytes", m.HeapIdle},
		{"memstats_heap_inuse_bytes", m.HeapInuse},
		{"memstats_heap_objects", m.HeapObjects},
		{"memstats_heap_released_bytes", m.HeapReleased},
		{"memstats_heap_sys_bytes", m.HeapSys},
		{"memstats_last_gc_time_seconds", m.LastGC / uint64(time.Second)},
		{"memstats_mallocs_total", m.Mallocs},
		{"memstats_mcache_inuse_bytes", m.MCacheInuse},
		{"memstats_mcache_sys_bytes", m.MCacheSys},
		{"memstats_mspan_inuse_bytes", m.MSpanInuse},
		{"memstats_mspan_sys_bytes", m.MSpanSys},
		{"memstats_next_gc_bytes", m.NextGC},
		{"memstats_other_sys_bytes", m.OtherSys},
		{"memstats_stack_inuse_bytes", m.StackInuse},
		{"memstats_stack_sys_bytes", m.StackSys},
		{"memstats_sys_bytes", m.Sys},
		{"sched_gomaxprocs_threads", uint64(runtime.GOMAXPROCS(0))},
		{"threads", uint64(threads)},
	}
}
