package acceptance

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"conclave/config"
	"conclave/pkg/client"
	"conclave/pkg/model/modeltest"
	"conclave/pkg/model/scriptserver"
	"conclave/pkg/telemetry"
	"conclave/subjects"
)

// observedServer is a model server whose assistant calls one tool, and whose critic gives a grade.
func observedServer(t *testing.T) *scriptserver.Server {
	t.Helper()
	return modeltest.New(t, scriptserver.Script{"gemma4:12b": {
		{
			Always: true, When: scriptserver.When{Contains: []string{"[RESULT]"}},
			Reply: scriptserver.Reply{Content: "Feedback: Exact. [RESULT] 5"},
		},
		{
			Always: true, When: scriptserver.When{LastRole: "tool"},
			Reply: scriptserver.Reply{Content: "It is late in Tokyo."},
		},
		{
			Always: true, When: scriptserver.When{ToolsInclude: []string{"get_datetime"}},
			Reply: scriptserver.Reply{
				Calls: []scriptserver.Call{{Name: "get_datetime", Arguments: map[string]any{"timezone": "Asia/Tokyo"}}},
			},
		},
		{Always: true, Reply: scriptserver.Reply{Content: "ok"}},
	}}, scriptserver.WithModels(
		scriptserver.Model{Name: "gemma4:12b", Family: "gemma", Parameters: "12B", Window: 131072, Tools: true},
		scriptserver.Model{Name: "nomic-embed-text", Embedding: true, Window: 8192},
	))
}

// awaitGrade waits until the answer to query has a grade. Memory does not store an answer that is about the time.
func awaitGrade(t *testing.T, c *client.Client, query string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	w, err := c.Watch(ctx, subjects.CritiqueResult.Name, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for e, err := range w.Events(ctx) {
		if err != nil {
			t.Fatalf("waiting for the grade: %v", err)
		}
		if e.Query == query {
			return
		}
	}
}

// secretWords are in a question, and must be in no metric, span or log.
const secretWords = "Zanzibar77"

// TestObservability starts one system and looks at it from outside.
func TestObservability(t *testing.T) {
	t.Parallel()
	collector := newCollector(t)
	address := make(chan string, 1)
	c := settings(t, "system.gateway.listen", "127.0.0.1:0", "system.telemetry.otlp", collector.url).WithWiring(
		config.Wiring{OnListen: func(addr string) { address <- addr }})
	c.Models.Ollama.URL = observedServer(t).URL
	home := newHome(t)
	r := up(t, c, home, config.Actors...)
	base := "http://" + <-address
	token, err := os.ReadFile(home.HTTPToken())
	if err != nil {
		t.Fatal(err)
	}
	get := func(path, token string) (int, string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			q.Header.Set("Authorization", "Bearer "+token)
		}
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		body, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		return a.StatusCode, string(body)
	}
	scrape := func() string {
		status, body := get("/metrics", string(bytes.TrimSpace(token)))
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		return body
	}

	user := dialUser(t, r.Bus)
	response := askQuestion(t, user, "s1", "What time is it in Tokyo, "+secretWords+"?")
	awaitGrade(t, user, response.QueryID)
	if res := dialOperator(t, r.Bus).callTool(t.Context(), "get_datetime", "call-1",
		`{"timezone":7}`); res.Error == nil {
		t.Fatal("a call with a wrong argument ran")
	}
	// a dead letter
	if err := user.StoreQuestion(t.Context(), "generator", subjects.Query{
		Query: " ", QueryID: "empty",
		SessionID: "s2",
	}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := user.AddMemory(t.Context(), subjects.MemoryEntry{Corpus: secretWords + " is an island."},
		false); err != nil {
		t.Fatal(err)
	}

	t.Run("metrics", func(t *testing.T) {
		if status, _ := get("/metrics", ""); status != http.StatusUnauthorized {
			t.Errorf("without a token: %d", status)
		}
		var body string
		waitFor(t, "the dead letter is counted", func() bool {
			body = scrape()
			return strings.Contains(body, `conclave_dead_letters_total{actor="router",code="malformed"} 1`)
		})
		for _, line := range []string{
			`conclave_questions_total{actor="generator",end="answered"} 1`,
			`conclave_question_seconds_count{actor="generator"} 1`,
			`conclave_grades_total{actor="critic",grade="5"} 1`,
			`conclave_tool_calls_total{actor="broker",decision="allowed",result="ok",tool="get_datetime"} 1`,
			`conclave_tool_calls_total{actor="broker",decision="denied",result="none",tool="get_datetime"} 1`,
			`conclave_model_calls_total{actor="model",model="gemma4:12b",result="ok",role="assistant"} 2`,
			`conclave_model_calls_total{actor="model",model="gemma4:12b",result="ok",role="critic"} 1`,
			`conclave_memory_entries{kind="fact"} 1`,
			`conclave_approvals_waiting 0`,
			`conclave_machines{state="up"} 0`,
			`conclave_actor_instances{actor="gateway"} 1`,
			`conclave_actor_instances{actor="get_datetime"} 1`,
			`conclave_messages_total{actor="get_datetime",endpoint="tool-request-get_datetime",result="ok"} 1`,
			`conclave_scrape_errors{source="actors"} 0`,
			`conclave_stream_messages{stream="QUERIES"} 2`,
		} {
			if !strings.Contains(body, line+"\n") {
				name, _, _ := strings.Cut(line, "{")
				t.Errorf("no line %s among\n%s", line,
					strings.Join(regexp.MustCompile(`(?m)^`+name+`.*$`).FindAllString(body, -1), "\n"))
			}
		}
		for _, secret := range []string{secretWords, response.QueryID, "s1\"", "Tokyo"} {
			if strings.Contains(body, secret) {
				t.Errorf("%s is in the metrics", secret)
			}
		}
		if n := strings.Count(body, "\n"); n > 4000 {
			t.Errorf("%d lines", n)
		}
	})

	t.Run("trace of a question on the bus", func(t *testing.T) {
		checkTree(t, collector.spans, "publish query.received", wantedSpans)
	})

	t.Run("trace of a question over HTTP", func(t *testing.T) {
		collector.forget()
		askOverHTTP(t, base, string(bytes.TrimSpace(token)), "What time is it in Tokyo now, "+secretWords+"?")
		checkTree(t, collector.spans, "POST /query", wantedSpans)
		if body := collector.content(); strings.Contains(body, secretWords) || strings.Contains(body, "late in Tokyo") {
			t.Error("spans hold content although the settings do not say so")
		}
	})

	t.Run("dashboard and documentation", func(t *testing.T) {
		body := scrape()
		for _, file := range []string{"../docs/grafana.json", "../docs/observability.md"} {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			names := regexp.MustCompile(`\b(conclave|go)_[a-z_]*[a-z]\b`).FindAllString(string(text), -1)
			if len(names) < 20 {
				t.Fatalf("only %d metrics in %s", len(names), file)
			}
			for _, name := range names {
				if name == telemetry.SpansDropped.Name { // served when a span was dropped
					continue
				}
				if !strings.Contains(body, "# TYPE "+name+" ") && !strings.Contains(body, "\n"+name+"{") {
					t.Errorf("%s in %s is not served", name, file)
				}
			}
		}
	})
}
