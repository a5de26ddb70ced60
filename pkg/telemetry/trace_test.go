package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"conclave/subjects"
)

// total is the value of a counter without labels.
func total(m *Meter, metric *Metric) float64 {
	for _, s := range m.Samples() {
		if s.Name == metric.Name {
			return s.Value
		}
	}
	return 0
}

// TestCollectorThatHangs shows that spans never wait: what the collector does not take is dropped and counted.
func TestCollectorThatHangs(t *testing.T) {
	t.Parallel()
	release, asked := make(chan struct{}), make(chan struct{}, 100)
	var received atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var in otlpTraces
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		asked <- struct{}{}
		<-release
		received.Add(int64(len(in.ResourceSpans[0].ScopeSpans[0].Spans)))
	}))
	defer s.Close()
	tracer, err := NewTracer(s.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	meter := NewMeter()
	ctx := WithScope(t.Context(), &Scope{Actor: "a", Meter: meter, Tracer: tracer})
	end := func(n int) {
		for range n {
			_, span := StartSpan(ctx, "x", KindInternal)
			span.End(nil)
		}
	}
	end(1)
	<-asked // from now on it hangs
	const more = 3 * maxQueue
	end(more)
	if got := total(meter, &SpansDropped); got != more-maxQueue {
		t.Errorf("%v dropped, want %d", got, more-maxQueue)
	}
	close(release)
	tracer.Close()
	if got := total(meter, &SpansDropped) + float64(received.Load()); got != more+1 {
		t.Errorf("%v dropped or received of %d", got, more+1)
	}
}

func TestDeadCollector(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	url := s.URL
	s.Close()
	var log strings.Builder
	tracer, err := NewTracer(url, "", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	meter := NewMeter()
	_, span := StartSpan(WithScope(t.Context(), &Scope{Meter: meter, Tracer: tracer}), "x", KindInternal)
	span.End(nil)
	tracer.Close()
	if total(meter, &SpansDropped) != 1 || !strings.Contains(log.String(), "spans are dropped") {
		t.Errorf("%v dropped\n%s", total(meter, &SpansDropped), log.String())
	}
}

func TestSpans(t *testing.T) {
	t.Parallel()
	if _, span := StartSpan(t.Context(), "x", KindInternal); span != nil {
		t.Error("a span without anybody who wants it")
	}
	var log strings.Builder
	ctx := WithScope(t.Context(),
		&Scope{Actor: "a", Log: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	ctx, outer := StartSpan(ctx, "outer", KindInternal)
	_, inner := StartSpan(ctx, "inner", KindInternal)
	if inner.trace != outer.trace || inner.parent != outer.id || outer.parent != "" || !IsSampled(inner.Traceparent()) {
		t.Errorf("%+v below %+v", inner, outer)
	}
	const unrecorded, recorded = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if _, s := StartRemote(ctx, unrecorded, "x", KindClient); s.parent != "" || s.trace != unrecorded[3:35] {
		t.Errorf("%+v", s)
	}
	if _, s := StartRemote(ctx, recorded, "x", KindClient); s.parent != recorded[36:52] {
		t.Errorf("%+v", s)
	}
	for flags, want := range map[string]bool{"00": false, "01": true, "0a": false, "0b": true, "zz": false} {
		if got := IsSampled(recorded[:53] + flags); got != want {
			t.Errorf("flags %s: sampled %v", flags, got)
		}
	}
	inner.End(errors.New("password hunter2 was wrong"))
	for _, c := range []struct {
		err  error
		want string
	}{{subjects.Faultf("denied", "no"), "denied"}, {context.Canceled, "cancelled"}, {errors.New("x"), "internal"}} {
		if got := errorCode(c.err); got != c.want {
			t.Errorf("%v: %s", c.err, got)
		}
	}
	if strings.Contains(log.String(), "hunter2") || !strings.Contains(log.String(), `"error.type":"internal"`) {
		t.Error(log.String())
	}
}

func TestParseEndpoint(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"127.0.0.1:4318", "ftp://h", "http://", "http://user:pw@h", "http://h?x=1",
		"http://h#x", "http:///v1/traces",
	} {
		if _, err := ParseEndpoint(bad); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
	if _, err := ParseEndpoint("https://collector.example:4318/v1/traces"); err != nil {
		t.Error(err)
	}
}
