package acceptance

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

	"conclave/actors/model"
	"conclave/config"
	"conclave/subjects"
)

// seenSpan is a span as a collector received it.
type seenSpan struct{ trace, id, parent, name, service, host string }

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
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" ||
			r.Header.Get("Content-Type") != "application/json" {
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
var otlpKeys = strings.Fields(`resourceSpans resource attributes key value stringValue intValue scopeSpans scope
	name spans traceId spanId parentSpanId kind startTimeUnixNano endTimeUnixNano status code message`)

// checkKeys rejects a key that is not in otlpKeys. A decoder into a struct would also accept it in another case, which
// a collector ignores.
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
				seen := seenSpan{
					trace: x.TraceID, id: x.SpanID, parent: x.ParentSpanID, name: x.Name,
					service: r.Resource.Attributes[0].Value.StringValue,
				}
				if i := slices.IndexFunc(r.Resource.Attributes, func(a attr) bool {
					return a.Key == "host.name"
				}); i >= 0 {
					seen.host = r.Resource.Attributes[i].Value.StringValue
				}
				c.seen = append(c.seen, seen)
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

// checkTree waits until the trace with this root has all of the wanted spans, one root, and no span without its parent.
func checkTree(t *testing.T, spans func() []seenSpan, root string, wanted []seenSpan) {
	t.Helper()
	var problem string
	defer func() {
		if problem != "" {
			t.Error(problem)
		}
	}()
	waitFor(t, "one tree over all actors below "+root, func() bool {
		problem = describeTree(spans(), root, wanted)
		return problem == ""
	})
}

// describeTree returns what is wrong with the trace that has this root, "" when nothing is.
func describeTree(all []seenSpan, root string, wanted []seenSpan) string {
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
	for _, want := range wanted {
		if !slices.ContainsFunc(all, func(s seenSpan) bool {
			return s.trace == all[i].trace && s.service == want.service && s.name == want.name && s.host == want.host
		}) {
			return fail("no %s of %s", want.name, want.service)
		}
	}
	return ""
}

// TestTraceOverMachine: the spans of a question whose model and tool run on a machine that joined are one tree with
// those of the hub, and name the machine. A machine without a collector sends none, and the tree of the hub has no gap.
func TestTraceOverMachine(t *testing.T) {
	t.Parallel()
	for _, exports := range []bool{true, false} {
		t.Run(fmt.Sprintf("exports %t", exports), func(t *testing.T) {
			t.Parallel()
			c := newCollector(t)
			onHub := settings(t, "system.machines.listen", "127.0.0.1:0", "system.telemetry.otlp", c.url)
			onHub.Models.Ollama.URL, onHub.Models.DemoModel = closedURL(),
				model.DemoNever
			hub := up(t, onHub, newHome(t), slices.DeleteFunc(slices.Clone(config.Actors), func(a string) bool {
				return a == "tools" || a == "gateway"
			})...)
			home := newHome(t)
			token := inviteMachine(t, hub.Bus,
				subjects.MachineInvite{Machine: "gpu-box", Actors: []string{"model", "get_datetime"}})
			if err := joinMachine(t, home, token); err != nil {
				t.Fatal(err)
			}
			onBox := settings(t)
			onBox.Models.Ollama.URL = observedServer(t).URL
			if exports {
				onBox.System.Telemetry.OTLP = c.url
			}
			startMachine(t, onBox, home)
			callUntilOK(t, hub.Bus)
			user := dialUser(t, hub.Bus)
			awaitTrue(t, "the hub knows the models of the machine", func() bool {
				l, err := user.Models(t.Context())
				return err == nil && slices.ContainsFunc(l.Models, func(m subjects.ModelInfo) bool {
					return m.Machine == "gpu-box" && m.Name == "gemma4:12b"
				})
			})
			c.forget()
			response := askQuestion(t, user, "s1", "What time is it in Tokyo?")
			awaitGrade(t, user, response.QueryID)
			wanted := slices.Clone(wantedSpans)
			at := slices.IndexFunc(wanted, func(s seenSpan) bool { return s.service == "get_datetime" })
			if exports {
				wanted[at].host = "gpu-box"
				wanted = append(wanted, seenSpan{
					service: "model", name: "process machine.*.model.run",
					host: "gpu-box",
				})
			} else {
				wanted = slices.Delete(wanted, at, at+1)
			}
			checkTree(t, c.spans, "publish query.received", wanted)
			if i := slices.IndexFunc(c.spans(), func(s seenSpan) bool {
				return s.host != "" && (!exports || s.name == "process machine.*.model.report" ||
					s.name == "process machine.*.model.end")
			}); i >= 0 {
				t.Errorf("the machine sent %+v", c.spans()[i])
			}
		})
	}
}

// closedURL returns the address of a server that is closed.
func closedURL() string {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	return s.URL
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

// TestCollector exports the trace of a question to the collector of the OpenTelemetry project, from the registry of Go
// modules. CONCLAVE_COLLECTOR is its program: task traces builds it, and runs this test.
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
	c.Models.Ollama.URL = observedServer(t).URL
	r := up(t, c, newHome(t), config.Actors...)
	user := dialUser(t, r.Bus)
	response := askQuestion(t, user, "s1", "What time is it in Tokyo?")
	awaitGrade(t, user, response.QueryID)
	checkTree(t, func() []seenSpan {
		return readDebugExporter(written.String())
	}, "publish query.received", wantedSpans)
	all := readDebugExporter(written.String())
	root := all[slices.IndexFunc(all, func(s seenSpan) bool { return s.name == "publish query.received" })]
	spans, roots, actors := 0, 0, map[string]bool{}
	for _, s := range all {
		if s.trace == root.trace {
			spans, actors[s.service] = spans+1, true
			if s.parent == "" {
				roots++
			}
		}
	}
	t.Logf("the trace of the question: %d spans of %d actors, %d root; %d spans of other traces", spans, len(actors),
		roots, len(all)-spans)
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
