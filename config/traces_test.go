package config_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"conclave/config"
)

// seenSpan is a span as a collector received it.
type seenSpan struct{ trace, id, parent, name, service string }

// collector is a small receiver of OTLP/HTTP in JSON.
type collector struct {
	url string

	mu     sync.Mutex
	seen   []seenSpan
	bodies bytes.Buffer
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if err := c.add(body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

// otlpKeys are the keys that an export may have, as OTLP spells them.
var otlpKeys = strings.Fields(`resourceSpans resource attributes key value stringValue intValue scopeSpans scope name spans
	traceId spanId parentSpanId kind startTimeUnixNano endTimeUnixNano status code message`)

// checkKeys rejects a key that is not in otlpKeys. A decoder into a struct would also accept it in another case, which a collector ignores.
func checkKeys(v any) error {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if err := checkKeys(e); err != nil {
				return err
			}
		}
	case map[string]any:
		for k, e := range v {
			if !slices.Contains(otlpKeys, k) {
				return fmt.Errorf("unknown key %q", k)
			}
			if err := checkKeys(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// add reads the spans of an export. It rejects unknown keys: a real collector ignores them.
func (c *collector) add(body []byte) error {
	type attr struct {
		Key   string
		Value struct{ StringValue, IntValue string }
	}
	var in struct {
		ResourceSpans []struct {
			Resource   struct{ Attributes []attr }
			ScopeSpans []struct {
				Scope struct{ Name string }
				Spans []struct {
					TraceID, SpanID, ParentSpanID, Name string
					Kind                                int
					StartTimeUnixNano, EndTimeUnixNano  string
					Attributes                          []attr
					Status                              struct {
						Code    int
						Message string
					}
				}
			}
		}
	}
	var all any
	if err := errors.Join(json.Unmarshal(body, &all), json.Unmarshal(body, &in)); err != nil {
		return err
	}
	if err := checkKeys(all); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodies.Write(body)
	for _, r := range in.ResourceSpans {
		for _, s := range r.ScopeSpans {
			for _, x := range s.Spans {
				c.seen = append(c.seen, seenSpan{x.TraceID, x.SpanID, x.ParentSpanID, x.Name, r.Resource.Attributes[0].Value.StringValue})
			}
		}
	}
	return nil
}

func (c *collector) spans() []seenSpan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.seen)
}

func (c *collector) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = nil
}

func (c *collector) content() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bodies.String()
}

// wantedSpans are in the trace of a question that calls a tool and is graded, by service.
var wantedSpans = []seenSpan{
	{service: "router", name: "process query.received"},
	{service: "generator", name: "process query.session.*"},
	{service: "model", name: "process model.chat"},
	{service: "model", name: "chat gemma4:12b"},
	{service: "broker", name: "process tool.request.>"},
	{service: "broker", name: "decide get_datetime"},
	{service: "broker", name: "execute_tool get_datetime"},
	{service: "get_datetime", name: "process tool.call.*.*"},
	{service: "memory", name: "process response.generation"},
	{service: "critic", name: "process response.generation"},
}

// checkTree waits until the trace with this root has all of wantedSpans, one root, and no span without its parent.
func checkTree(t *testing.T, spans func() []seenSpan, root string) {
	t.Helper()
	var problem string
	defer func() {
		if problem != "" {
			t.Error(problem)
		}
	}()
	waitFor(t, "one tree over all actors below "+root, func() bool {
		problem = describeTree(spans(), root)
		return problem == ""
	})
}

// describeTree returns what is wrong with the trace that has this root, "" when nothing is.
func describeTree(all []seenSpan, root string) string {
	i := slices.IndexFunc(all, func(s seenSpan) bool { return s.name == root && s.parent == "" })
	if i < 0 {
		return "no root " + root
	}
	ids, roots := map[string]int{}, 0
	var lines []string
	for _, s := range all {
		if s.trace != all[i].trace {
			continue
		}
		ids[s.id]++
		lines = append(lines, fmt.Sprintf("%s <- %s %s: %s", s.id, s.parent, s.service, s.name))
		if s.parent == "" {
			roots++
		}
	}
	fail := func(format string, a ...any) string {
		return fmt.Sprintf(format, a...) + " in\n" + strings.Join(lines, "\n")
	}
	if roots != 1 {
		return fail("%d roots", roots)
	}
	for _, s := range all {
		if s.trace == all[i].trace && s.parent != "" && ids[s.parent] == 0 {
			return fail("%s of %s has no parent", s.name, s.service)
		}
		if s.trace == all[i].trace && ids[s.id] != 1 {
			return fail("%s of %s was exported %d times", s.name, s.service, ids[s.id])
		}
	}
	for _, want := range wantedSpans {
		if !slices.ContainsFunc(all, func(s seenSpan) bool {
			return s.trace == all[i].trace && s.service == want.service && s.name == want.name
		}) {
			return fail("no %s of %s", want.name, want.service)
		}
	}
	return ""
}

// askOverHTTP asks and waits for the answer.
func askOverHTTP(t *testing.T, base, token, question string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]string{"query": question})
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/query", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+token)
	q.Header.Set("Content-Type", "application/json")
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if text, err := io.ReadAll(a.Body); err != nil || a.StatusCode != http.StatusOK {
		t.Fatalf("%s %v %s", a.Status, err, text)
	}
}

// TestCollector exports the trace of a question to the collector of the OpenTelemetry project, from the registry of Go modules.
// CONCLAVE_COLLECTOR is its program: task traces builds it, and runs this test.
func TestCollector(t *testing.T) {
	program := os.Getenv("CONCLAVE_COLLECTOR")
	if program == "" {
		t.Skip("the OpenTelemetry collector is tested with task traces, which builds it")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	file := filepath.Join(t.TempDir(), "collector.yaml")
	err = os.WriteFile(file, []byte(`
receivers: {otlp: {protocols: {http: {endpoint: "`+addr+`"}}}}
exporters: {debug: {verbosity: detailed}}
service:
  telemetry: {metrics: {level: none}, logs: {output_paths: [stdout], encoding: console}}
  pipelines: {traces: {receivers: [otlp], exporters: [debug]}}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	var written syncBuffer
	cmd := exec.CommandContext(t.Context(), program, "--config", file)
	cmd.Stdout, cmd.Stderr = &written, &written
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	waitFor(t, "the collector listens", func() bool {
		if strings.Contains(written.String(), "Error:") {
			t.Fatal(written.String())
		}
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	c := settings(t, "system.gateway.listen", "127.0.0.1:0", "system.telemetry.otlp", "http://"+addr)
	c.Models.Ollama.URL, c.Models.Ollama.IdleDelay = observedServer(t).URL, 0
	r := up(t, c, newHome(t), config.Actors...)
	user := dialUser(t, r.Bus)
	response := askQuestion(t, user, "s1", "What time is it in Tokyo?")
	awaitGrade(t, user, response.QueryID)
	checkTree(t, func() []seenSpan { return readDebugExporter(written.String()) }, "publish query.received")
	t.Logf("%d spans", len(readDebugExporter(written.String())))
}

// readDebugExporter reads the spans from the output of the collector's debug exporter.
func readDebugExporter(text string) (out []seenSpan) {
	service := ""
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case key == "-> service.name":
			service = strings.TrimSuffix(strings.TrimPrefix(value, "Str("), ")")
		case key == "Trace ID":
			out = append(out, seenSpan{trace: value, service: service})
		case len(out) == 0:
		case key == "Parent ID":
			out[len(out)-1].parent = value
		case key == "ID":
			out[len(out)-1].id = value
		case key == "Name":
			out[len(out)-1].name = value
		}
	}
	return out
}
