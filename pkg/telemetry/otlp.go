package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Tracer exports the spans of one process over OTLP/HTTP, in its JSON form: a client of our own is a tenth of the code,
// and none of the dependencies, of the official one. Handlers never wait for it: spans that the collector does not
// accept in time are dropped and counted in [SpansDropped].
type Tracer struct {
	url    string
	host   string // "" = not exported
	client *http.Client
	log    *slog.Logger
	queue  chan *Span
	stop   chan struct{}
	done   chan struct{}
}

// Limits of the export.
const (
	maxQueue      = 4096
	maxBatch      = 512
	batchInterval = time.Second
	exportTimeout = 5 * time.Second
)

// ParseEndpoint parses the address of a collector: http or https, with a host, without user, query and fragment.
func ParseEndpoint(endpoint string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return nil, errors.New("not the address of a collector; write http://127.0.0.1:4318")
	}
	return u, nil
}

// NewTracer returns a tracer that exports to a collector; an address without a path gets that of OTLP/HTTP. host is the
// name of this machine in the spans, "" for none. The caller must call [Tracer.Close]. log may be nil.
func NewTracer(endpoint, host string, log *slog.Logger) (*Tracer, error) {
	u, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, fmt.Errorf("%q is %w", endpoint, err)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := &Tracer{
		url: u.String(), host: host, log: log, queue: make(chan *Span, maxQueue), stop: make(chan struct{}),
		done: make(chan struct{}),
		// No proxy and no redirects: spans go to the configured address only.
		client: &http.Client{
			Transport: &http.Transport{MaxIdleConns: 1}, Timeout: exportTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	go t.run()
	return t, nil
}

// export queues a span, or drops it when the queue is full. It does not wait.
func (t *Tracer) export(s *Span) {
	select {
	case t.queue <- s:
	default:
		s.scope.Meter.Add(&SpansDropped, 1)
	}
}

// Close exports the queued spans, for exportTimeout at most, and stops. Spans that end later are dropped. It must be
// called once.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	close(t.stop)
	<-t.done
	t.client.CloseIdleConnections()
}

// run sends batches until Close.
func (t *Tracer) run() {
	defer close(t.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tick := time.NewTicker(batchInterval)
	defer tick.Stop()
	failing := false
	for {
		stopping := false
		select {
		case <-tick.C:
		case <-t.stop:
			stopping = true
			time.AfterFunc(exportTimeout, cancel)
		}
		for batch := t.takeBatch(); len(batch) > 0; batch = t.takeBatch() {
			err := t.send(ctx, batch)
			if err != nil {
				for _, s := range batch {
					s.scope.Meter.Add(&SpansDropped, 1)
				}
			}
			if (err != nil) != failing {
				failing = err != nil
				if failing {
					t.log.Warn("spans are dropped, because the collector of telemetry.otlp does not accept them", "err",
						err)
				} else {
					t.log.Info("spans are exported again")
				}
			}
			if err != nil {
				break // the next attempt is due with the next tick
			}
		}
		if stopping {
			return
		}
	}
}

// takeBatch returns the spans that wait, at most maxBatch.
func (t *Tracer) takeBatch() (batch []*Span) {
	for len(batch) < maxBatch {
		select {
		case s := <-t.queue:
			batch = append(batch, s)
		default:
			return batch
		}
	}
	return batch
}

// send posts one batch.
func (t *Tracer) send(ctx context.Context, batch []*Span) error {
	body, err := json.Marshal(encodeSpans(batch, t.host))
	if err != nil {
		return fmt.Errorf("encoding spans: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	a, err := t.client.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(a.Body, 1<<16))
	if a.StatusCode/100 != 2 {
		return fmt.Errorf("%s answered %s", t.url, a.Status)
	}
	return nil
}

// The messages of OTLP in JSON, as far as they are sent: ids in hex, 64-bit numbers as texts.
type (
	otlpTraces struct {
		ResourceSpans []otlpResource `json:"resourceSpans"`
	}
	otlpResource struct {
		Resource struct {
			Attributes []otlpAttr `json:"attributes"`
		} `json:"resource"`
		ScopeSpans []otlpScope `json:"scopeSpans"`
	}
	otlpScope struct {
		Scope struct {
			Name string `json:"name"`
		} `json:"scope"`
		Spans []otlpSpan `json:"spans"`
	}
	otlpSpan struct {
		TraceID    string      `json:"traceId"`
		SpanID     string      `json:"spanId"`
		ParentID   string      `json:"parentSpanId,omitempty"`
		Name       string      `json:"name"`
		Kind       SpanKind    `json:"kind"`
		Start      string      `json:"startTimeUnixNano"`
		End        string      `json:"endTimeUnixNano"`
		Attributes []otlpAttr  `json:"attributes,omitempty"`
		Status     *otlpStatus `json:"status,omitempty"`
	}
	otlpStatus struct {
		Code    int    `json:"code"`
		Message string `json:"message,omitempty"`
	}
	otlpAttr struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	otlpValue struct {
		Text *string `json:"stringValue,omitempty"`
		Int  *string `json:"intValue,omitempty"`
	}
)

// encodeSpans groups spans by actor: each actor is a service of its own. host is the machine of the services, "" = not
// named.
func encodeSpans(batch []*Span, host string) (out otlpTraces) {
	byActor := map[string]int{}
	for _, s := range batch {
		i, ok := byActor[s.scope.Actor]
		if !ok {
			i = len(out.ResourceSpans)
			byActor[s.scope.Actor] = i
			var r otlpResource
			attrs := []Attr{String(ServiceName, s.scope.Actor), String(ServiceNamespace, "conclave")}
			if host != "" {
				attrs = append(attrs, String(HostName, host))
			}
			r.Resource.Attributes = encodeAttrs(attrs)
			r.ScopeSpans = make([]otlpScope, 1)
			r.ScopeSpans[0].Scope.Name = "conclave"
			out.ResourceSpans = append(out.ResourceSpans, r)
		}
		span := otlpSpan{
			TraceID: s.trace, SpanID: s.id, ParentID: s.parent, Name: s.Name, Kind: s.Kind,
			Start: nanos(s.start), End: nanos(s.end), Attributes: encodeAttrs(s.attrs),
		}
		if s.failure != "" {
			span.Status = &otlpStatus{Code: 2, Message: s.failure}
		}
		to := &out.ResourceSpans[i].ScopeSpans[0]
		to.Spans = append(to.Spans, span)
	}
	return out
}

func encodeAttrs(attrs []Attr) (out []otlpAttr) {
	for _, a := range attrs {
		v := otlpValue{Text: &a.Text}
		if a.isInt {
			n := strconv.FormatInt(a.Int, 10)
			v = otlpValue{Int: &n}
		}
		out = append(out, otlpAttr{a.Key, v})
	}
	return out
}
